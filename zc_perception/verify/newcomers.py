"""Nodes that begin while others are measured: nobody looked at them, so nothing is known of what they did."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from zc_perception.observe.frame_log_reading import FoundFrameLogs, UnreadableProcess, find_frame_logs
from zc_perception.verify.evidence.processes import PROC
from zc_perception.verify.evidence.unreadable import Unreadable
from zc_perception.verify.workload import Command, describe, hidden_logs, identity_of

_REASON, _STEP = 'it began while others were measured, and was not looked at', 'measure once more'


class Newcomers:
    """Found at each :meth:`look`, also if they have ended by the next.

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
