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
Find the nodes to measure: those that run, or those that a command starts.

A :class:`Command` finds what it has started with :class:`Descendants`. :class:`Newcomers` are
nodes that begin while others are measured: nothing looked at them, so nothing is known of what
they did.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
import contextlib
import ctypes
import os
from pathlib import Path
import signal
import subprocess
import time

from zc_perception.errors import ConfigError
from zc_perception.observe.frame_log import (
    find_frame_logs,
    FoundFrameLogs,
    FrameLogReader,
    UnreadableProcess,
)
from zc_perception.observe.processes import all_pids, PROC, process_state, who
from zc_perception.verify.evidence import Unreadable
from zc_perception.verify.observation import INFERENCE

# <linux/prctl.h>
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


_WALKS = 10


class Descendants:
    """
    The descendants of this process that began after this object was made.

    It finds them whatever sessions and environments they made for themselves. Until :meth:`close`
    this process is the "subreaper": if a descendant's parent ends, the descendant becomes a child
    of this process, and so is still known as a descendant.
    """

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        self._before = {
            pid: state.start
            for pid in all_pids()
            if self.has(pid) and (state := process_state(pid))
        }
        self._libc = ctypes.CDLL(None)
        was = ctypes.c_int(0)
        self._libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(was), 0, 0, 0)
        self._was = was.value
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def has(self, pid: int) -> bool:
        """Say whether a process is a descendant."""
        for _ in range(_WALKS):  # the child of a parent that has ended has another one now
            found = self._walk(pid)
            if found is not None:
                return found
        return False

    def _walk(self, pid: int) -> bool | None:
        """Return a process and its ancestors; ``None``: one of them ended meanwhile."""
        first, met = pid, set[int]()
        while pid > 1 and pid not in met:
            met.add(pid)
            state = process_state(pid)
            if state is None:
                return False if pid == first else None
            if self._before.get(pid) == state.start:
                return False
            if state.parent == os.getpid():
                return True
            pid = state.parent
        return False

    def reap(self, but: int) -> None:
        """
        Take the exit status of each orphan that has ended, so that no zombie stays.

        :param but: a child whose status is taken elsewhere.
        """
        own = os.getpid()
        for pid in all_pids():
            state = process_state(pid)
            if (
                pid != but
                and state is not None
                and state.ended
                and state.parent == own
                and self._before.get(pid) != state.start
            ):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def close(self) -> None:
        """Let orphans go to the same parent as before."""
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, self._was, 0, 0, 0)


_POLL_S = 0.25
#: Frames of each inference node before a command counts as running.
_FLOWING = 5
#: A command's nodes are complete when no further one has begun for this time; those of a launch
#: file don't begin all at once.
_SETTLED_S = 2.0
_PATIENCE_S = (15.0, 5.0, 5.0)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_LOOK_S = 0.05
#: More processes that can't be read for the same reason are counted, not named.
_NAMED = 4


class Command:
    """
    A command that runs while its nodes are measured.

    :meth:`stop` ends it, and everything that it has started. It runs in a session of its own, so
        that
    a Ctrl-C in the terminal reaches only this program, which measures first.
    """

    def __init__(self, words: Sequence[str], output: Path) -> None:
        self.words = list(words)
        self._output = output.open('wb')
        self._descendants = Descendants()
        try:
            self._process = subprocess.Popen(
                self.words,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._descendants.close()
            self._output.close()
            raise ConfigError(
                f'the command {self.words[0]!r} cannot be started: {error.strerror}; give one '
                'that is in PATH'
            ) from error

    def started(self, pid: int) -> bool:
        """Say whether a process is the command or was started by it, and has not ended."""
        state = process_state(pid)
        return state is not None and not state.ended and self._descendants.has(pid)

    @property
    def ended(self) -> bool:
        """Whether the command has ended."""
        return self.status is not None

    @property
    def status(self) -> int | None:
        """Its exit status; after a signal minus the signal's number; ``None``: it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """
        End the command as Ctrl-C would, then harder, then all processes that it left.

        Those may be in its session or in another one.
        """
        self._end(lambda: [] if self.ended else [self._process.pid])
        self._end(lambda: [pid for pid in all_pids() if self.started(pid)])
        self._descendants.reap(self._process.pid)
        self._descendants.close()
        self._output.close()

    def _end(self, those: Callable[[], list[int]]) -> None:
        """End these processes, until none is left."""
        for number, patience in zip(_SIGNALS, _PATIENCE_S, strict=True):
            for pid in those():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            deadline = time.monotonic() + patience
            while those() and time.monotonic() < deadline:
                time.sleep(_LOOK_S)


def running_nodes(pids: Collection[int] | None) -> FoundFrameLogs:
    """Return the logs of running nodes; of these processes, or of all."""
    found = find_frame_logs(pids=pids)
    return FoundFrameLogs([log for log in found if log.alive], found.unreadable)


def wait_for_frames(
    command: Command, seconds: float, wait: Callable[[float], bool]
) -> FoundFrameLogs:
    """
    Wait until all nodes of a command have begun and frames flow through each inference node.

    After *seconds* return the nodes that there are.
    """
    known: dict[tuple[int, str, int], FrameLogReader] = {}
    unreadable: tuple[UnreadableProcess, ...] = ()
    deadline = time.monotonic() + seconds
    settled = 0.0
    while time.monotonic() < deadline and not command.ended:
        if wait(_POLL_S):
            break
        logs = find_frame_logs()
        unreadable = tuple(one for one in logs.unreadable if command.started(one.pid))
        for log in logs:
            identity = identity_of(log)
            if identity in known or not command.started(log.pid):
                log.close()
            else:
                known[identity] = log
                settled = time.monotonic() + _SETTLED_S
        inferring = [log for log in known.values() if log.role == INFERENCE]
        if (
            inferring
            and time.monotonic() >= settled
            and all(log.written >= _FLOWING for log in inferring)
        ):
            break
    return FoundFrameLogs(sorted(known.values(), key=lambda log: (log.pid, log.node)), unreadable)


def identity_of(log: FrameLogReader) -> tuple[int, str, int]:
    """Return what tells the logs of a machine apart, also successive logs of one node."""
    return log.pid, log.node, log.started_ns


def absent(found: FoundFrameLogs, pids: Collection[int]) -> list[str]:
    """Return a line for each of *pids* that is no process with a node: what to do about it."""
    told = []
    seen = {log.pid for log in found}
    hidden = {one.pid: one for one in found.unreadable}
    for pid in sorted(set(pids)):
        if not (PROC / str(pid)).exists():
            told.append(f'process {pid}: there is no such process; start it, or give another pid')
        elif pid not in seen and pid not in hidden:
            told.append(
                f'{who(pid)} is no node with a frame log; give those of capture and inference '
                'nodes, or no --pid'
            )
    return told


def hidden_logs(unreadable: Collection[UnreadableProcess]) -> list[Unreadable]:
    """List node logs that this user may not read; many with the same reason are one line."""
    by_step: dict[str, list[UnreadableProcess]] = {}
    for one in unreadable:
        by_step.setdefault(one.next_step, []).append(one)
    told = []
    for step, those in by_step.items():
        if len(those) > _NAMED:
            names = ', '.join(f'{one.pid} ({one.name})' for one in those[:_NAMED])
            told.append(
                Unreadable(
                    f'{len(those)} processes',
                    f'they may be nodes but cannot be looked into: {names}, …',
                    step,
                )
            )
        else:
            told += [
                Unreadable(f'process {one.pid} ({one.name})', one.reason, step) for one in those
            ]
    return told


_REASON, _STEP = 'it began while others were measured, and was not looked at', 'measure once more'


class Newcomers:
    """
    Nodes that begin while others are measured.

    Each :meth:`look` finds those that run at that moment, and remembers them.

    :param found: the nodes that are measured, and the processes that can't be read: those are
        reported already.
    :param pids: of these processes; ``None``: of all, or of those that the command started.
    """

    def __init__(
        self, found: FoundFrameLogs, pids: Collection[int] | None, command: Command | None
    ) -> None:
        self._known = {identity_of(log) for log in found}
        self._hidden = {one.pid for one in found.unreadable}
        self._unreadable: dict[int, tuple[int, UnreadableProcess]] = {}
        self._pids, self._command = pids, command
        self._began: dict[tuple[int, str, int], tuple[int, str]] = {}

    def look(self) -> None:
        """Look at all processes that count."""
        now_ns = time.monotonic_ns()
        with find_frame_logs(pids=self._pids) as logs:
            for log in logs:
                identity = identity_of(log)
                if (
                    identity not in self._known
                    and identity not in self._began
                    and log.alive
                    and self._counts(log.pid)
                ):
                    self._began[identity] = min(now_ns, log.started_ns), str(log)
        for one in logs.unreadable:
            # A process without a name has ended meanwhile.
            if one.name and one.pid not in self._hidden and self._counts(one.pid):
                self._unreadable.setdefault(one.pid, (now_ns, one))

    def _counts(self, pid: int) -> bool:
        return self._command is None or self._command.started(pid)

    def unreadable(self, until_ns: int) -> list[Unreadable]:
        """Return newcomers that began before *until_ns* (CLOCK_MONOTONIC), and unreadable logs."""
        hidden = [one for began_ns, one in self._unreadable.values() if began_ns <= until_ns]
        lines = dict.fromkeys(
            line for began_ns, line in self._began.values() if began_ns <= until_ns
        )
        return [*(Unreadable(line, _REASON, _STEP) for line in lines), *hidden_logs(hidden)]
