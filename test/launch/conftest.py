# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""
Fixtures with the real ``ros2`` and ``colcon``, and the record of the last run of these tests.

After a change to a file that the tests depend on (``evidence_file.DEPENDS_ON``), run the tests
again and record the result, in a shell whose ``ros2`` works and finds launch_ros:
``.venv/bin/python -m pytest test/launch --write-evidence``.
"""

from __future__ import annotations

from collections.abc import Iterator
import datetime
from pathlib import Path
import subprocess

import evidence_file
import pytest
from ros2_tools import Ros2, why_not_here, Workspace

_outcomes: dict[str, str] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        '--write-evidence',
        action='store_true',
        help='record this run of test/launch in evidence.json',
    )


def _writes(config: pytest.Config) -> bool:
    # In a run of all tests, pytest has parsed the command line before it reads this file, so the
    # option may be unknown.
    return bool(config.getoption('--write-evidence', False))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a run that replaces the evidence, leave out the tests that check the old evidence."""
    if _writes(config):
        judges = [item for item in items if item.path.name in evidence_file.ELSEWHERE]
        config.hook.pytest_deselected(items=judges)
        items[:] = [item for item in items if item not in judges]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = Path(report.nodeid.split('::')[0])
    if name.parent.name != 'launch' or name.name in evidence_file.ELSEWHERE:
        return
    key = f'{name.name}::{report.nodeid.split("::", 1)[1]}'
    # Record a failure or skip of the test's set-up, call or teardown rather than a pass.
    if report.outcome != 'passed' or key not in _outcomes:
        _outcomes[key] = report.outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _writes(session.config) and _outcomes:
        evidence_file.write(
            _outcomes,
            datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
            _versions(),
        )


def _versions() -> dict[str, str]:
    """Return the version of each tool, which ``ros2 pkg xml`` reads from its package."""
    packages = (
        'launch',
        'launch_ros',
        'ros2cli',
        'ros2component',
        'ros2lifecycle',
        'ros2doctor',
        'rclpy',
    )
    versions = {}
    for package in packages:
        done = subprocess.run(
            ['ros2', 'pkg', 'xml', package, '-t', 'version'],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        versions[package] = done.stdout.strip() if done.returncode == 0 else 'unknown'
    return versions


@pytest.fixture(scope='session')
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """Yield a workspace in which colcon has built this package and ``foreign_components``."""
    reason = why_not_here()
    if reason:
        pytest.skip(f'{reason}; their last run is recorded in {evidence_file.FILE.name}')
    yield Workspace(tmp_path_factory.mktemp('colcon'))


@pytest.fixture
def ros2(workspace: Workspace, free_domain: int) -> Ros2:
    """Return the command ``ros2``, in a ROS domain of the test's own."""
    assert workspace.built.returncode == 0, workspace.built.stdout + workspace.built.stderr
    return Ros2(workspace, free_domain)
