"""The nodes that are to be measured: those that run, or those that a command starts."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from zc_perception.errors import ConfigError
from zc_perception.observe.frame_log_reading import FoundFrameLogs, FrameLogReader, find_frame_logs
from zc_perception.verify.evidence.processes import PROC
from zc_perception.verify.observation import INFERENCE

_MARK = 'ZC_VERIFY_COMMAND'
_POLL_S = 0.25
#: Frames of each inference node before a command counts as running.
_FLOWING = 5
_PATIENCE_S = (15.0, 5.0, 5.0)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


class Command:
    """A command in a session of its own, so that a Ctrl-C of the terminal does not reach it before it has been measured.

    What it starts is known by a variable in the environment that it inherits: a launch system puts processes into other sessions.
    """

    def __init__(self, words: Sequence[str], output: Path) -> None:
        self.words = list(words)
        self._mark = f'{_MARK}={os.getpid()}-{time.monotonic_ns()}'.encode()
        name, _, value = self._mark.decode().partition('=')
        self._output = output.open('wb')
        try:
            self._process = subprocess.Popen(
                self.words, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, name: value},
            )  # fmt: skip
        except OSError as error:
            self._output.close()
            raise ConfigError(f'the command {self.words[0]!r} cannot be started: {error.strerror}; give one that is in PATH') from error

    def started(self, pid: int, proc: Path = PROC) -> bool:
        """Whether a process is the command or was started by it."""
        try:
            if self._mark in (proc / str(pid) / 'environ').read_bytes().split(b'\0'):
                return True
            session = (proc / str(pid) / 'stat').read_text(errors='replace').rpartition(')')[2].split()[3]
        except (OSError, IndexError):
            return False
        return session == str(self._process.pid)

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self._process.poll() is not None

    def stop(self) -> int:
        """End it as Ctrl-C would, then harder, and whatever it left; its exit status."""
        for number, patience in zip(_SIGNALS, _PATIENCE_S, strict=True):
            if self._process.poll() is None:
                (self._process.send_signal if number == signal.SIGINT else self._signal_all)(number)
            try:
                self._process.wait(patience)
                break
            except subprocess.TimeoutExpired:
                continue
        self._signal_all(signal.SIGTERM)
        self._output.close()
        return self._process.returncode if self._process.returncode is not None else -signal.SIGKILL

    def _signal_all(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return


def running_nodes(pids: Collection[int] | None, proc: Path = PROC) -> FoundFrameLogs:
    """The logs of the nodes that run and have not ended; of these processes, or of all."""
    found = find_frame_logs(proc, pids)
    return FoundFrameLogs([log for log in found if log.alive], found.unreadable)


def wait_for_frames(command: Command, seconds: float, wait: Callable[[float], bool], proc: Path = PROC) -> FoundFrameLogs:
    """The nodes that a command started, once frames flow through all that infer; after *seconds* those that there are."""
    known: dict[tuple[int, str, int], FrameLogReader] = {}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not command.ended:
        if wait(_POLL_S):
            break
        fresh = False
        for log in find_frame_logs(proc):
            identity = log.pid, log.node, log.started_ns
            if identity in known or not command.started(log.pid, proc):
                log.close()
            else:
                known[identity] = log
                fresh = True
        inferring = [log for log in known.values() if log.role == INFERENCE]
        if inferring and not fresh and all(log.written >= _FLOWING for log in inferring):
            break
    return FoundFrameLogs(sorted(known.values(), key=lambda log: (log.pid, log.node)))


def describe(log: FrameLogReader) -> str:
    """A node in a line."""
    return f'{log.role} {log.node} (process {log.pid})'
