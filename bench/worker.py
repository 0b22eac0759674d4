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
Start a process that measures, send it commands, and end it.

The benchmark writes one command per line to the process's standard input, and reads one answer per
line from its standard output.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
import contextlib
import json
import os
from pathlib import Path
import select
import signal
import subprocess
import sys
import time
from typing import Any

from zc_perception.errors import ZcError

_START_S = 60.0
_END_S = 5.0
_ORDERLY_END_S = 10.0


def importing_bench(environment: Mapping[str, str]) -> dict[str, str]:
    """Return *environment* with a PYTHONPATH that finds ``bench``, which isn't installed."""
    own = str(Path(__file__).resolve().parents[1])
    before = environment.get('PYTHONPATH', '')
    return {**environment, 'PYTHONPATH': f'{own}{os.pathsep}{before}' if before else own}


class BenchError(ZcError):
    """A process of the benchmark ended, doesn't answer, or measured something wrong."""


class NoAnswerError(BenchError):
    """A process of the benchmark didn't answer in time."""


class Worker:
    """
    Owns a process that runs a module of this folder.

    The process has a process group of its own, so that Ctrl-C at the terminal reaches the
    benchmark only, which then ends its processes in order. If the benchmark dies, the process's
    standard input ends, and the process ends after its series.

    :param module: full name of the module to run.
    :param arguments: the first one is the process's role, for error messages.
    :param environment: all environment variables of the process.
    :param inherited: descriptors that stay open in the process, under the same numbers.
    :param orderly: the process cleans up on SIGTERM.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        inherited: Sequence[int] = (),
        *,
        orderly: bool = True,
    ) -> None:
        self.role = arguments[0]
        self._orderly = orderly
        self._told = False
        self._pending = b''
        self._process = subprocess.Popen(
            [sys.executable, '-m', module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=importing_bench(environment),
            pass_fds=inherited,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def cpus(self) -> set[int]:
        """CPUs that the process may run on; once it has ended, the CPUs of the benchmark."""
        with contextlib.suppress(ProcessLookupError):
            return os.sched_getaffinity(self._process.pid)
        return os.sched_getaffinity(0)

    def set_cpus(self, cpus: Collection[int]) -> None:
        """Let all threads of the process, also later ones, run on these CPUs only."""
        # A thread or the process may have ended. The next command raises an error for the process.
        with contextlib.suppress(FileNotFoundError):
            for thread in os.listdir(f'/proc/{self._process.pid}/task'):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread), cpus)

    def send(self, **command: Any) -> None:
        """
        Send one command.

        :raises BenchError: the process ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b'\n')
        except BrokenPipeError as error:
            raise self._ended() from error

    def receive(self, timeout_s: float = _START_S) -> dict[str, Any]:
        """
        Receive one answer.

        :raises BenchError: the process ended, answered a failure, or took longer than *timeout_s*.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            # Libraries may print to standard output too; only objects are answers.
            with contextlib.suppress(ValueError):
                answer = json.loads(self._line(deadline, timeout_s))
                if isinstance(answer, dict):
                    break
        if 'failure' in answer:
            raise BenchError(f"the benchmark's process '{self.role}': {answer['failure']}")
        return answer

    def _line(self, deadline: float, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        while b'\n' not in self._pending:
            if not select.select(
                [self._process.stdout], [], [], max(0.0, deadline - time.monotonic())
            )[0]:
                raise NoAnswerError(
                    f"the benchmark's process '{self.role}' doesn't answer within "
                    f'{timeout_s:.0f} s; is the machine overloaded?'
                )
            received = os.read(self._process.stdout.fileno(), 1 << 20)
            if not received:
                raise self._ended()
            self._pending += received
        line, _, self._pending = self._pending.partition(b'\n')
        return line

    def _ended(self) -> BenchError:
        """Return the error for a process that ended; its own message is on standard error."""
        try:
            status = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return BenchError(f"the benchmark's process '{self.role}' has closed its pipes")
        how = (
            f'was killed by {signal.Signals(-status).name}'
            if status < 0
            else f'has ended with exit code {status}'
        )
        return BenchError(f"the benchmark's process '{self.role}' {how}")

    def ask(self, timeout_s: float = _START_S, **command: Any) -> dict[str, Any]:
        """Send a command and return the answer; see :meth:`send` and :meth:`receive`."""
        self.send(**command)
        return self.receive(timeout_s)

    def end(self) -> None:
        """
        Tell the process to end, without waiting for that.

        A second call does nothing, because a second SIGTERM would interrupt the cleaning up.
        """
        if self._told:
            return
        self._told = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._orderly:
            self._process.terminate()

    def close(self) -> None:
        """End the process and its process group. A second call does nothing."""
        self.end()
        # A process that is still starting ends only after its start, which takes seconds on a busy
        # machine. If it were killed, its sockets would stay.
        patience_s = _ORDERLY_END_S if self._orderly else _END_S
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                self._process.wait(patience_s)
                break
            except subprocess.TimeoutExpired:
                self._signal_group(number)
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _signal_group(self, number: signal.Signals) -> None:
        # To the whole group, because the floor fd_socket forks. The group's number can't belong to
        # another group, as long as its first process isn't waited for.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
