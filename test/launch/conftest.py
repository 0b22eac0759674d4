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
Real tools for all tests of this folder, and the record of their last run.

After a change in what they depend on (``evidence_file.DEPENDS_ON``) run them anew where launch_ros
is installed and write down what they said, in one command, in a shell whose ``ros2`` works:
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
    # In a run of all tests this file is read when the command line has long been parsed.
    return bool(config.getoption('--write-evidence', False))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """While the evidence is written anew, what it said before is not judged."""
    if _writes(config):
        judges = [item for item in items if item.path.name in evidence_file.ELSEWHERE]
        config.hook.pytest_deselected(items=judges)
        items[:] = [item for item in items if item not in judges]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = Path(report.nodeid.split('::')[0])
    if name.parent.name != 'launch' or name.name in evidence_file.ELSEWHERE:
        return
    key = f'{name.name}::{report.nodeid.split("::", 1)[1]}'
    # The worst of set-up, call and end.
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
    """Of the tools, as they say it themselves."""
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
    """Build and install the package and a foreign one with colcon."""
    reason = why_not_here()
    if reason:
        pytest.skip(f'{reason}; their last run is recorded in {evidence_file.FILE.name}')
    yield Workspace(tmp_path_factory.mktemp('colcon'))


@pytest.fixture
def ros2(workspace: Workspace, free_domain: int) -> Ros2:
    """Yield the command ``ros2``, in a domain of the test's own."""
    assert workspace.built.returncode == 0, workspace.built.stdout + workspace.built.stderr
    return Ros2(workspace, free_domain)
