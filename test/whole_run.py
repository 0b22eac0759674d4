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
Pytest plugin that ``conftest.py`` loads: limits, signals, order and progress of a run.

With pytest-xdist (``make test``) each file is one group, which one worker runs from start to end.
The rig's files form two groups, so that at most two guests run at a time.

``times.json`` holds the measured seconds of the slow files (``--write-times`` measures again):
slow files start first, and the progress lines estimate the end of the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
import faulthandler
import json
import os
from pathlib import Path
import resource
import shutil
import signal
import sys
import tempfile
import time
from typing import Any

from long_form import LONG
import pytest

HERE = Path(__file__).resolve().parent
TIMES = HERE / 'times.json'
#: Seconds assumed for a file that times.json lacks; shorter times are not written.
_QUICK_S = 0.5
#: Time limit in seconds for one rig test, including the boot.
_RIG_LIMIT_S = 3600
_TOLD_EVERY_S = 20.0
#: Number of workers in the run that times.json is from.
_USUAL_WORKERS = 5
#: Group of each rig file. Two guests run at a time, with about the same amount of work.
_RIG_GROUPS = {'test_rig_camera.py': 'rig 1', 'test_rig_verify.py': 'rig 1', None: 'rig 2'}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        '--write-times',
        action='store_true',
        help=f'write what each slow file took to {TIMES.name}',
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """
    Prepare a process that runs tests, or that waits for the workers.

    ``colcon test`` may run without pytest-xdist and pytest-timeout: tests then run one by one
    without a limit.
    """
    config.addinivalue_line('markers', 'xdist_group(name): what one worker runs')
    config.addinivalue_line('markers', 'timeout(seconds): the limit of a test')
    _raise_descriptor_limit()
    _start_children_with_default_signals()
    if not hasattr(config, 'workerinput'):
        config.pluginmanager.register(_Progress(config), 'zc-progress')
        if config.option.basetemp is None:
            config.pluginmanager.register(_ShortFolder(config), 'zc-folder')


def _raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to the hard limit: some tests need over 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _start_children_with_default_signals() -> None:
    """
    Start children with default signals.

    A shell starts background programs with SIGINT and SIGQUIT ignored, ``nohup`` ignores SIGHUP,
    and children inherit that. A handled signal is reset in a child, so this process installs a
    handler that does nothing.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _file_of(nodeid: str) -> str:
    return nodeid.partition('::')[0].removeprefix(f'{HERE.name}/')


def _known_times() -> dict[str, float]:
    return json.loads(TIMES.read_text(encoding='utf-8')) if TIMES.exists() else {}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of the long form, group the tests, and put the slowest groups first."""
    if not LONG:
        config.hook.pytest_deselected(
            items=[item for item in items if item.get_closest_marker('long') is not None]
        )
        items[:] = [item for item in items if item.get_closest_marker('long') is None]
    times = _known_times()
    seconds: dict[str, float] = defaultdict(float)
    groups: dict[pytest.Item, str] = {}
    for item in items:
        in_rig = item.get_closest_marker('rig') is not None
        file = _file_of(item.nodeid)
        groups[item] = _RIG_GROUPS.get(Path(file).name, _RIG_GROUPS[None]) if in_rig else file
        # The rig comes first, whatever times.json says.
        seconds[groups[item]] = 1e9 if in_rig else times.get(file, 0.0)
        item.add_marker(pytest.mark.xdist_group(groups[item]))
        if item.get_closest_marker('root') is not None and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip('only root can do it; CI runs it as root'))
        if in_rig and item.get_closest_marker('timeout') is None:
            item.add_marker(pytest.mark.timeout(_RIG_LIMIT_S))
    items.sort(key=lambda item: -seconds[groups[item]])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Kill the process if pytest-timeout can't: its alarm doesn't interrupt C code."""
    if not item.config.pluginmanager.hasplugin('timeout'):
        return (yield)
    marker = item.get_closest_marker('timeout')
    limit = float(marker.args[0] if marker else item.config.getini('timeout'))
    faulthandler.dump_traceback_later(2 * limit, exit=True, file=sys.__stderr__)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


class _ShortFolder:
    """The folder of all ``tmp_path``: a short name, as sockets below have at most 107 bytes."""

    def __init__(self, config: pytest.Config) -> None:
        self._path = tempfile.mkdtemp(prefix='zc-')
        config.option.basetemp = self._path

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """With xdist, all workers have ended by now."""
        if exitstatus == pytest.ExitCode.OK:
            shutil.rmtree(self._path, ignore_errors=True)


class _Progress:
    """Counts finished tests and prints the progress, in the process that the user started."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._times = _known_times()
        self._began = self._told = time.monotonic()
        self._expected: dict[str, float] = {}
        self._left: dict[str, int] = defaultdict(int)
        self._took: dict[str, float] = defaultdict(float)
        self._total = self._ended = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Without xdist this hook gives the list of tests."""
        self._know([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Each xdist worker reports the tests; all report the same."""
        self._know(ids)

    def _know(self, ids: list[str]) -> None:
        if self._total or not ids:
            return
        self._total = len(ids)
        for nodeid in ids:
            self._left[_file_of(nodeid)] += 1
        self._expected = {
            file: self._times.get(file, _QUICK_S) / count for file, count in self._left.items()
        }
        if self._total > 100:
            self._say(f'{self._total} tests in {len(self._left)} files')

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the test's time, and print the progress from time to time."""
        file = _file_of(report.nodeid)
        self._took[file] += report.duration
        if report.when != 'teardown':
            return
        self._ended += 1
        self._left[file] -= 1
        if self._total > 100 and time.monotonic() - self._told > _TOLD_EVERY_S:
            self._say(self._how_far())

    def _how_far(self) -> str:
        elapsed = time.monotonic() - self._began
        left = sum(count * self._expected.get(file, 0.0) for file, count in self._left.items())
        whole = sum(self._times.get(file, _QUICK_S) for file in self._left)
        done = whole - left
        # Earlier, one boot of the rig or one slow file would dominate the estimate.
        pace = elapsed / done if done > whole / 20 else 1 / _USUAL_WORKERS
        return (
            f'{self._ended} of {self._total} tests after {_minutes(elapsed)}, about '
            f'{_minutes(left * pace)} left'
        )

    def _say(self, text: str) -> None:
        self._told = time.monotonic()
        reporter: Any = self._config.pluginmanager.get_plugin('terminalreporter')
        if reporter is not None:
            reporter.write_line(f'\n-- {text}', flush=True)

    def pytest_sessionfinish(self) -> None:
        """Write the measured times if ``--write-times`` was given."""
        if self._config.getoption('--write-times'):
            ran = {file: round(seconds, 1) for file, seconds in self._took.items()}
            kept = {
                file: seconds
                for file, seconds in {**self._times, **ran}.items()
                if seconds >= _QUICK_S and (HERE / file).exists()
            }
            TIMES.write_text(
                json.dumps(dict(sorted(kept.items())), indent=1) + '\n', encoding='utf-8'
            )


def _minutes(seconds: float) -> str:
    return f'{int(seconds) // 60}:{int(seconds) % 60:02d}'
