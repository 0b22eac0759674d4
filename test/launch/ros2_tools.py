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
Run the real ``ros2`` and ``colcon`` for tests.

:class:`Workspace` is a workspace that colcon builds. :class:`Ros2` runs commands in it.
:class:`Launch` is a running ``ros2 launch``. The tests call only the commands and import no module
of these tools: they run with any Python, as long as ``ros2`` works in the shell.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import os
from pathlib import Path
import re
import shutil
import signal
import subprocess
import threading
import time

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
SOURCES = (
    'launch',
    'config',
    'docs',
    'examples',
    'resource',
    'client',  # the extension module is compiled from sources in this folder, too
    'zc_perception',
    'setup.py',
    'setup.cfg',
    'package.xml',
    'pyproject.toml',
    'LICENSE',
    'README.md',
)
# The test file that "colcon test" runs here: it needs no other test file and takes little time.
TESTED = 'test/test_backoff.py'
COMMAND_S = 60.0
START_S = 60.0
STOP_S = 20.0
BUILD_S = 300.0
_LOOKS_S = (2, 4, 8)
# Variables that a shell has after it has sourced ROS. colcon runs without them: it finds its ROS
# itself, and its Python may be another one than that of the tests.
_SOURCED = ('PYTHONPATH', 'AMENT_PREFIX_PATH', 'LD_LIBRARY_PATH', '_ROS_WHEELS_BOOTSTRAP_COMPLETE')


def why_not_here() -> str:
    """Return what is missing for these tests; empty: nothing."""
    for tool in ('ros2', 'colcon'):
        if shutil.which(tool) is None:
            return (
                f"'{tool}' is not in the PATH: source a ROS 2 installation, with "
                'launch_ros, ros2cli and colcon, first'
            )
    done = subprocess.run(
        ['ros2', 'pkg', 'prefix', 'launch_ros'],
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    if done.returncode:
        return (
            "'ros2' does not find launch_ros: "
            f'{" ".join((done.stderr or done.stdout).split())[-200:]}'
        )
    return ''


def without_ros() -> dict[str, str]:
    """Return the environment for colcon: this process's, without a sourced ROS's variables."""
    return {name: value for name, value in os.environ.items() if name not in _SOURCED}


class Workspace:
    """
    A colcon workspace with this package and ``foreign_components``; the constructor builds it.

    :param folder: the folder of the workspace; nothing is written into the repository.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        source = folder / 'src' / 'zc_perception'
        source.mkdir(parents=True)
        ignored = shutil.ignore_patterns('__pycache__', '*.egg-info')
        for name in SOURCES:
            if (REPOSITORY / name).is_dir():
                shutil.copytree(REPOSITORY / name, source / name, ignore=ignored)
            else:
                shutil.copy2(REPOSITORY / name, source / name)
        (source / 'test').mkdir()
        shared = (
            'conftest.py',
            'whole_run.py',
            'process_state.py',
            'descriptors.py',
            'frame_kit.py',
            'long_form.py',
            'ros_domains.py',
            'waiting.py',
            'fastdds.xml',
        )
        for name in (*(f'test/{name}' for name in shared), TESTED):
            shutil.copy2(REPOSITORY / name, source / name)
        shutil.copytree(
            HERE / 'foreign_components', folder / 'src' / 'foreign_components', ignore=ignored
        )
        self.built = self.colcon('build')
        self.environment = self._sourced() if self.built.returncode == 0 else dict(os.environ)

    def colcon(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run colcon in the workspace."""
        return subprocess.run(
            ['colcon', *args],
            cwd=self.folder,
            env=without_ros(),
            capture_output=True,
            text=True,
            timeout=BUILD_S,
            check=False,
        )

    def _sourced(self) -> dict[str, str]:
        command = 'source install/local_setup.bash && env -0'
        text = subprocess.run(
            ['bash', '-c', command], cwd=self.folder, capture_output=True, text=True, check=True
        ).stdout
        return dict(entry.split('=', 1) for entry in text.split('\0') if '=' in entry)

    @property
    def prefix(self) -> Path:
        """The folder in which colcon has installed this package."""
        return self.folder / 'install' / 'zc_perception'


class Launch:
    """A running ``ros2 launch``; a thread collects its output."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._grown = threading.Condition()
        self._reader = threading.Thread(
            target=self._read, name='output of ros2 launch', daemon=True
        )
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._grown:
                self.lines.append(line)
                self._grown.notify_all()
        with self._grown:
            self._grown.notify_all()

    @property
    def output(self) -> str:
        """All that the launch has printed so far."""
        return ''.join(self.lines)

    def wait_for(self, pattern: str, count: int = 1, timeout_s: float = START_S) -> list[str]:
        """
        Wait until *count* lines of the output match the pattern, and return these lines.

        :raises AssertionError: the launch ended, or *timeout_s* passed, before there were as many.
        """
        deadline = time.monotonic() + timeout_s
        with self._grown:
            while True:
                found = [line for line in self.lines if re.search(pattern, line)]
                if len(found) >= count:
                    return found
                ended = not self._reader.is_alive()
                assert not ended and time.monotonic() < deadline, (
                    f"'{pattern}' {len(found)} times of {count} in:\n{self.output}"
                )
                self._grown.wait(0.2)

    def pid_of(self, executable: str) -> int:
        """Return the process id of the last *executable* that the launch has started."""
        started = self.wait_for(rf'\[{executable}-\d+\]: process started with pid')
        return int(started[-1].rsplit('[', 1)[1].split(']')[0])

    def end(self) -> int:
        """Wait until the launch ends by itself; return its exit code."""
        code = self.process.wait(START_S)
        self._reader.join(5)
        return code

    def interrupt(self, *, whole_group: bool = False) -> int:
        """
        Send SIGINT, as Ctrl-C does, and wait for the end; return the exit code.

        :param whole_group: send it to the whole process group, as a terminal does; otherwise to
            ``ros2`` alone.
        """
        if whole_group:
            os.killpg(self.process.pid, signal.SIGINT)
        else:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(STOP_S)
        self._reader.join(5)
        return code


class Ros2:
    """Runs ``ros2`` in a workspace and in ROS domain *domain*."""

    def __init__(self, workspace: Workspace, domain: int) -> None:
        self.workspace = workspace
        self._daemon = False
        self.environment = {
            **workspace.environment,
            'ROS_DOMAIN_ID': str(domain),
            'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST',
            'PYTHONUNBUFFERED': '1',
            'ROS_LOG_DIR': str(workspace.folder / 'log_ros'),
        }

    def run(self, *args: str, timeout_s: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
        """Run a command that ends by itself; its whole output is in ``stdout``."""
        return subprocess.run(
            ['ros2', *args],
            env=self.environment,
            cwd=self.workspace.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def say(self, *args: str) -> str:
        """Run a command that must succeed; return its output."""
        done = self.run(*args)
        assert done.returncode == 0, f'ros2 {" ".join(args)}:\n{done.stdout}'
        return done.stdout

    def asked(self, verb: str, *args: str, until: str = '') -> str:
        """
        Run a command that looks at the ROS graph until it succeeds; return its output.

        Without the daemon, the command itself looks for nodes for a given time. On a loaded
        machine two seconds may be too short to see all nodes, so it is run again with more time.

        :param verb: a command and its verb, such as ``node list``.
        :param until: text that the output must contain.
        :raises AssertionError: each of three runs failed, or its output lacked the text.
        """
        command, action = verb.split()
        for seconds in _LOOKS_S:
            how = [] if self._daemon else ['--no-daemon', '--spin-time', str(seconds)]
            done = self.run(command, action, *how, *args)
            if done.returncode == 0 and until in done.stdout:
                return done.stdout
        raise AssertionError(f"ros2 {verb} {' '.join(args)}, until '{until}':\n{done.stdout}")

    @contextmanager
    def daemon(self, *nodes: str) -> Iterator[None]:
        """
        Start the ``ros2`` daemon of this domain, which remembers the graph; stop it at the end.

        The ``with`` block begins when the daemon knows *nodes*.
        """
        self.say('daemon', 'start')
        try:
            deadline = time.monotonic() + START_S
            while not set(nodes) <= set(known := self.say('node', 'list').split()):
                assert time.monotonic() < deadline, f'the daemon knows {known}'
                time.sleep(0.2)
            self._daemon = True
            yield
        finally:
            self._daemon = False
            self.say('daemon', 'stop')

    @contextmanager
    def launch(self, *args: str) -> Iterator[Launch]:
        """Run ``ros2 launch``; if it still runs at the end, interrupt it; if it hangs, kill it."""
        process = subprocess.Popen(
            ['ros2', 'launch', *args],
            env=self.environment,
            cwd=self.workspace.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        running = Launch(process)
        try:
            yield running
        finally:
            if process.poll() is None:
                running.process.send_signal(signal.SIGINT)
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(STOP_S)
            running._reader.join(5)
            assert process.stdout is not None
            process.stdout.close()
