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

"""Run the package's console scripts as users do, with variables, wrappers and signals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import os
from pathlib import Path
import signal
import subprocess
import sys
import threading

from nodes.programs import BIN, environment, Program
from ros_domains import discovery_range


class Running(Program):
    """
    A running program, whose output is collected; SIGKILL ends it at the latest.

    :param wrapper: command in front, such as ``unshare``.
    :param variables: variables of its environment.
    """

    def __init__(
        self,
        name: str,
        *args: str,
        domain: int,
        variables: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
    ) -> None:
        command = [sys.executable, *args] if name == 'python' else [str(BIN / name), *args]
        self.process = subprocess.Popen(
            [*wrapper, *command],
            env=environment(domain) | dict(variables or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.PIPE,
            text=True,
            errors='replace',
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._ready_marks: tuple[str, ...] = ()
        self._reader = threading.Thread(target=self._read, name='program output', daemon=True)

    @property
    def pid(self) -> int:
        """The program's process id; the wrapper's if that doesn't exec the program."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> bool:
        if self.alive:
            return False
        self._reader.join(60.0)
        return True

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60.0)
        self._reader.join(60.0)

    def end(self, timeout_s: float = 60.0) -> int:
        """Send SIGINT; return the exit code, or SIGKILL's if it doesn't end in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.interrupt(timeout_s)
        self.kill()
        return int(self.process.returncode)

    def __exit__(self, *exception: object) -> None:
        if any(exception):
            alive = 'alive' if self.alive else f'ended with {self.process.returncode}'
            print(f'{self.process.args}: {alive}; the end of its output:')
            print(self.output[-4000:])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # ends a wrapper's child, too
        super().__exit__(*exception)
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()


@contextlib.contextmanager
def own_sockets(folder: Path) -> Iterator[Path]:
    """Give this process a folder for sockets and logs below *folder*; ROS stays on this host."""
    sockets = folder / 's'
    sockets.mkdir(mode=0o700, exist_ok=True)
    names = {
        'ZC_RUNTIME_DIR': str(sockets),
        'ROS_HOME': str(folder),
        'ROS_AUTOMATIC_DISCOVERY_RANGE': discovery_range(),
    }
    before = {name: os.environ.get(name) for name in names}
    os.environ |= names
    try:
        yield sockets
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
