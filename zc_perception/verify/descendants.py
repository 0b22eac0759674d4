"""Processes that descend from this one, whatever sessions and environments they made for themselves."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import NamedTuple

from zc_perception.verify.evidence.processes import PROC, all_pids

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
    """Those that began since it was made. Until :meth:`close` orphans among them become children of this process, which knows them so."""

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
        """Those that came as orphans and have ended; *but* not this child, whose status somebody else takes."""
        own = os.getpid()
        for pid in all_pids():
            state = process_state(pid)
            if pid != but and state is not None and state.ended and state.parent == own and self._before.get(pid) != state.start:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def close(self) -> None:
        """Orphans go where they went before."""
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, self._was, 0, 0, 0)
