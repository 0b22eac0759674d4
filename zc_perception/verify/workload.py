"""The nodes that are to be measured: those that run, or those that a command starts; and nodes that begin meanwhile.

A :class:`Command` knows what it has started by :class:`Descendants`: processes that descend from this one, whatever sessions and
environments they made for themselves. :class:`Newcomers` are nodes that begin while others are measured: nobody looked at them, so nothing
is known of what they did.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from zc_perception.errors import ConfigError
from zc_perception.observe.frame_log import FoundFrameLogs, FrameLogReader, UnreadableProcess, find_frame_logs
from zc_perception.verify.evidence.processes import PROC, all_pids, command_name
from zc_perception.verify.evidence.unreadable import Unreadable
from zc_perception.verify.observation import INFERENCE

# <linux/prctl.h>
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


class ProcessState(NamedTuple):
    """Of ``/proc/PID/stat``.

    :ivar start: in clock ticks since the machine began: tells two processes with the same pid apart.
    """

    state: str
    parent: int
    session: int
    start: int

    @property
    def ended(self) -> bool:
        """Whether only its zombie is left."""
        return self.state in 'ZX'


def process_state(pid: int, proc: Path = PROC) -> ProcessState | None:
    """``None``: there is no such process."""
    try:
        words = (proc / str(pid) / 'stat').read_text(errors='replace').rpartition(')')[2].split()
        return ProcessState(words[0], int(words[1]), int(words[3]), int(words[19]))
    except (OSError, ValueError, IndexError):
        return None


class Descendants:
    """Descendants of this process that began after this object was made.

    Until :meth:`close` this process is the "subreaper": if a descendant's parent ends, the descendant becomes a child of this process, and
    so is still known as a descendant.
    """

    def __init__(self, proc: Path = PROC) -> None:
        before = {pid: state.start for pid in all_pids(proc) if self._descends(pid, {}, proc) and (state := process_state(pid, proc))}
        self._before = before
        self._libc = ctypes.CDLL(None)
        was = ctypes.c_int(0)
        self._libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(was), 0, 0, 0)
        self._was = was.value
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def has(self, pid: int, proc: Path = PROC) -> bool:
        """Whether a process is one of them."""
        return self._descends(pid, self._before, proc)

    @staticmethod
    def _descends(pid: int, without: dict[int, int], proc: Path) -> bool:
        own, met = os.getpid(), set[int]()
        while pid > 1 and pid not in met:
            met.add(pid)
            state = process_state(pid, proc)
            if state is None or without.get(pid) == state.start:
                return False
            if state.parent == own:
                return True
            pid = state.parent
        return False

    def reap(self, but: int) -> None:
        """Take the exit status of each orphan that has ended, so that no zombie stays.

        :param but: a child whose status somebody else takes.
        """
        own = os.getpid()
        for pid in all_pids():
            state = process_state(pid)
            if pid != but and state is not None and state.ended and state.parent == own and self._before.get(pid) != state.start:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def close(self) -> None:
        """Orphans go where they went before."""
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, self._was, 0, 0, 0)


_MARK = 'ZC_VERIFY_COMMAND'
_POLL_S = 0.25
#: Frames of each inference node before a command counts as running.
_FLOWING = 5
#: No further node for so long: those of a launch file don't begin all at once.
_SETTLED_S = 2.0
_PATIENCE_S = (15.0, 5.0, 5.0)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_LOOK_S = 0.05
#: More processes that can't be read for the same reason are counted, not named.
_NAMED = 4


class Command:
    """A command that runs while its nodes are measured. :meth:`stop` ends it, and everything that it has started.

    It runs in a session of its own, so that a Ctrl-C in the terminal reaches this program only, which measures first. A process counts as
    started by the command if one of these is true: it is in the command's session, it has inherited a certain variable of the environment,
    or it descends from the command. None of them is enough alone: a launch system puts processes into other sessions, and sudo gives them
    another environment.
    """

    def __init__(self, words: Sequence[str], output: Path) -> None:
        self.words = list(words)
        self._mark = f'{_MARK}={os.getpid()}-{time.monotonic_ns()}'.encode()
        name, _, value = self._mark.decode().partition('=')
        self._output = output.open('wb')
        self._descendants = Descendants()
        try:
            self._process = subprocess.Popen(
                self.words, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, name: value},
            )  # fmt: skip
        except OSError as error:
            self._descendants.close()
            self._output.close()
            raise ConfigError(f'the command {self.words[0]!r} cannot be started: {error.strerror}; give one that is in PATH') from error

    def started(self, pid: int, proc: Path = PROC) -> bool:
        """Whether a process is the command or was started by it, and has not ended."""
        state = process_state(pid, proc)
        if state is None or state.ended:
            return False
        with contextlib.suppress(OSError):
            if self._mark in (proc / str(pid) / 'environ').read_bytes().split(b'\0'):
                return True
        return state.session == self._process.pid or self._descendants.has(pid, proc)

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self.status is not None

    @property
    def status(self) -> int | None:
        """Its exit status, minus the signal's number after one; ``None``: it runs."""
        return self._process.poll()

    def stop(self) -> int:
        """End it as Ctrl-C would, then harder, then whatever it left, in its own session or in another one; its exit status."""
        for number, patience in zip(_SIGNALS, _PATIENCE_S, strict=True):
            if self._process.poll() is None:
                (self._process.send_signal if number == signal.SIGINT else self._signal_all)(number)
            try:
                self._process.wait(patience)
                break
            except subprocess.TimeoutExpired:
                continue
        self._end_rest()
        self._descendants.reap(self._process.pid)
        self._descendants.close()
        self._output.close()
        return self._process.returncode if self._process.returncode is not None else -signal.SIGKILL

    def _signal_all(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return

    def _end_rest(self) -> None:
        for number, patience in zip(_SIGNALS, _PATIENCE_S, strict=True):
            deadline = time.monotonic() + patience
            for pid in self._rest():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            while self._rest():
                if time.monotonic() > deadline:
                    break
                time.sleep(_LOOK_S)
            else:
                return

    def _rest(self) -> list[int]:
        return [pid for pid in all_pids() if self.started(pid)]


def running_nodes(pids: Collection[int] | None, proc: Path = PROC) -> FoundFrameLogs:
    """The logs of the nodes that run and have not ended; of these processes, or of all."""
    found = find_frame_logs(proc, pids)
    return FoundFrameLogs([log for log in found if log.alive], found.unreadable)


def wait_for_frames(command: Command, seconds: float, wait: Callable[[float], bool], proc: Path = PROC) -> FoundFrameLogs:
    """The nodes that a command started, once no more of them begin and frames flow through all that infer; after *seconds* those that
    there are."""
    known: dict[tuple[int, str, int], FrameLogReader] = {}
    unreadable: tuple[UnreadableProcess, ...] = ()
    deadline = time.monotonic() + seconds
    settled = 0.0
    while time.monotonic() < deadline and not command.ended:
        if wait(_POLL_S):
            break
        logs = find_frame_logs(proc)
        unreadable = tuple(one for one in logs.unreadable if command.started(one.pid, proc))
        for log in logs:
            identity = identity_of(log)
            if identity in known or not command.started(log.pid, proc):
                log.close()
            else:
                known[identity] = log
                settled = time.monotonic() + _SETTLED_S
        inferring = [log for log in known.values() if log.role == INFERENCE]
        if inferring and time.monotonic() >= settled and all(log.written >= _FLOWING for log in inferring):
            break
    return FoundFrameLogs(sorted(known.values(), key=lambda log: (log.pid, log.node)), unreadable)


def identity_of(log: FrameLogReader) -> tuple[int, str, int]:
    """Tells the logs of a machine apart, also those that a node had one after the other."""
    return log.pid, log.node, log.started_ns


def absent(found: FoundFrameLogs, pids: Collection[int], proc: Path = PROC) -> list[str]:
    """Those of *pids* that are no process with a node, each with what to do: a line for each."""
    told = []
    seen = {log.pid for log in found}
    hidden = {one.pid: one for one in found.unreadable}
    for pid in sorted(set(pids)):
        if not (proc / str(pid)).exists():
            told.append(f'process {pid}: there is no such process; start it, or give another pid')
        elif pid not in seen and pid not in hidden:
            name = command_name(pid, proc)
            told.append(f'process {pid} ({name}) is no node with a frame log; give those of capture and inference nodes, or no --pid')
    return told


def hidden_logs(unreadable: Collection[UnreadableProcess]) -> list[Unreadable]:
    """What may be a node and can't be read. Many with one reason are one."""
    by_step: dict[str, list[UnreadableProcess]] = {}
    for one in unreadable:
        by_step.setdefault(one.next_step, []).append(one)
    told = []
    for step, those in by_step.items():
        if len(those) > _NAMED:
            names = ', '.join(f'{one.pid} ({one.name})' for one in those[:_NAMED])
            told.append(Unreadable(f'{len(those)} processes', f'they may be nodes but cannot be looked into: {names}, …', step))
        else:
            told += [Unreadable(f'process {one.pid} ({one.name})', one.reason, step) for one in those]
    return told


def describe(log: FrameLogReader) -> str:
    """A node in a line."""
    return f'{log.role} {log.node} (process {log.pid})'


_REASON, _STEP = 'it began while others were measured, and was not looked at', 'measure once more'


class Newcomers:
    """Nodes that begin while others are measured. Each :meth:`look` finds those that run at that moment, and remembers them.

    :param found: the nodes that are measured, and the processes that can't be read: those are told already.
    :param pids: of these processes; ``None``: of all, or of those that the command started.
    """

    def __init__(self, found: FoundFrameLogs, pids: Collection[int] | None, command: Command | None, proc: Path = PROC) -> None:
        self._known = {identity_of(log) for log in found}
        self._hidden = {one.pid for one in found.unreadable}
        self._unreadable: dict[int, tuple[int, UnreadableProcess]] = {}
        self._pids, self._command, self._proc = pids, command, proc
        self._began: dict[tuple[int, str, int], tuple[int, str]] = {}

    def look(self) -> None:
        """At all processes that count."""
        now_ns = time.monotonic_ns()
        with find_frame_logs(self._proc, self._pids) as logs:
            for log in logs:
                identity = identity_of(log)
                if identity not in self._known and identity not in self._began and log.alive and self._counts(log.pid):
                    self._began[identity] = min(now_ns, log.started_ns), describe(log)
        for one in logs.unreadable:
            # One without a name has ended meanwhile.
            if one.name and one.pid not in self._hidden and self._counts(one.pid):
                self._unreadable.setdefault(one.pid, (now_ns, one))

    def _counts(self, pid: int) -> bool:
        return self._command is None or self._command.started(pid, self._proc)

    def unreadable(self, until_ns: int) -> list[Unreadable]:
        """Those that began before a moment of CLOCK_MONOTONIC, and what may be one and can't be read."""
        hidden = [one for began_ns, one in self._unreadable.values() if began_ns <= until_ns]
        lines = dict.fromkeys(line for began_ns, line in self._began.values() if began_ns <= until_ns)
        return [*(Unreadable(line, _REASON, _STEP) for line in lines), *hidden_logs(hidden)]
