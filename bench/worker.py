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
The benchmark's end of a process that measures.

It writes a command per line to the process's standard input, and reads an answer per line from its
standard output.
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
    """Return *environment* for a process that imports this folder, which is not installed."""
    own = str(Path(__file__).resolve().parents[1])
    before = environment.get('PYTHONPATH', '')
    return {**environment, 'PYTHONPATH': f'{own}{os.pathsep}{before}' if before else own}


class BenchError(ZcError):
    """
    A process of the benchmark ended or doesn't answer.

    Or it measured something else than it should.
    """


class NoAnswerError(BenchError):
    """A process of the benchmark takes too long."""


class Worker:
    """
    A process of a module of this folder.

    It has a process group of its own: a Ctrl-C at the terminal is the benchmark's, which then ends
    all of them in order. Whatever happens to the benchmark, the end of its standard input ends a
    process after the series that it is in.

    :param module: full name of what to run.
    :param arguments: the first one is its role, for messages.
    :param environment: all of it.
    :param inherited: descriptors that stay open in it, under the same numbers.
    :param orderly: it has things to clean up, and does so on SIGTERM.
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
        """Of the process."""
        return self._process.pid

    @property
    def cpus(self) -> set[int]:
        """That it may run on; all of ours once it has ended."""
        with contextlib.suppress(ProcessLookupError):
            return os.sched_getaffinity(self._process.pid)
        return os.sched_getaffinity(0)

    def set_cpus(self, cpus: Collection[int]) -> None:
        """Let all of its threads, those that it starts later too, run on these CPUs only."""
        # One that has just ended, or all of it: the next command says so.
        with contextlib.suppress(FileNotFoundError):
            for thread in os.listdir(f'/proc/{self._process.pid}/task'):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread), cpus)

    def send(self, **command: Any) -> None:
        """Send one command."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b'\n')
        except BrokenPipeError as error:
            raise self._ended() from error

    def receive(self, timeout_s: float = _START_S) -> dict[str, Any]:
        """
        Receive one answer.

        :raises BenchError: the process ended, says that it can't go on, or takes longer than
            *timeout_s*.
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
        """Return the error for a process that ended; its last words are on standard error."""
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
        """Send a command and return the answer."""
        self.send(**command)
        return self.receive(timeout_s)

    def end(self) -> None:
        """
        Tell the process to end, without waiting for that.

        A second call does nothing: a signal in a program's last moments kills it.
        """
        if self._told:
            return
        self._told = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._orderly:
            self._process.terminate()

    def close(self) -> None:
        """End the process, with all that it started. A second call does nothing."""
        self.end()
        # One that is just being built up ends after that, and leaves its sockets if it may not: on
        # a busy machine that takes seconds.
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
        # A floor has forked. Nobody else can have the group's number: its first process isn't
        # waited for yet.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
