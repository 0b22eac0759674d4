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
Pytest plugin that ``conftest.py`` loads: limits, signals, order and times of a run.

With pytest-xdist (``make test``) each file is one group, which one worker runs from start to end.
The rig's files form two groups, so that at most two guests run at a time.

``times.json`` holds the measured seconds of the slow files (``--write-times`` measures again):
slow files start first.
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

from long_form import LONG
import pytest

HERE = Path(__file__).resolve().parent
TIMES = HERE / 'times.json'
#: Shorter times are not written.
_QUICK_S = 0.5
#: Time limit in seconds for one rig test, including the boot.
_RIG_LIMIT_S = 3600
#: Group of each rig file. Two guests run at a time, with about the same amount of work.
_RIG_GROUPS = {'test_rig_verify.py': 'rig 1', None: 'rig 2'}


def pytest_addoption(parser: pytest.Parser) -> None:
    what = f'write what each slow file took to {TIMES.name}'
    parser.addoption('--write-times', action='store_true', help=what)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """
    Prepare a process that runs tests, or that waits for the workers.

    ``colcon test`` may run without pytest-xdist and pytest-timeout: tests then run one by one
    without a limit.
    """
    config.addinivalue_line('markers', 'xdist_group(name): what one worker runs')
    config.addinivalue_line('markers', 'timeout(seconds): the limit of a test')
    # Raise the soft limit of descriptors to the hard limit: some tests need over 1,024.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _start_children_with_default_signals()
    if not hasattr(config, 'workerinput'):
        if config.option.write_times:
            config.pluginmanager.register(_Times(), 'zc-times')
        if config.option.basetemp is None:
            config.pluginmanager.register(_ShortFolder(config), 'zc-folder')


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
        long = [item for item in items if item.get_closest_marker('long') is not None]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in set(long)]
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


class _Times:
    """Adds up what each file takes, and writes it at the end."""

    def __init__(self) -> None:
        self._took: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took[_file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        took = {file: round(seconds, 1) for file, seconds in self._took.items()}
        kept = {
            file: seconds
            for file, seconds in {**_known_times(), **took}.items()
            if seconds >= _QUICK_S and (HERE / file).exists()
        }
        TIMES.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + '\n', encoding='utf-8')
