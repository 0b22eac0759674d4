"""Processes and their threads, by ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from zc_perception.verify.evidence.kernel_event import KernelEvent

PROC = Path('/proc')


def all_pids(proc: Path = PROC) -> list[int]:
    """Of all processes that may be seen here."""
    try:
        return sorted(int(entry) for entry in os.listdir(proc) if entry.isdigit())
    except OSError:
        return []


def threads_of(pid: int, proc: Path = PROC) -> list[int]:
    """A process's threads; none where it has ended."""
    try:
        return sorted(int(entry) for entry in os.listdir(proc / str(pid) / 'task') if entry.isdigit())
    except OSError:
        return []


def folders_of(pid: int, proc: Path = PROC) -> Iterator[Path]:
    """Where a process's memory and open files may be shown: its own folder, then those of its other threads.

    If a process's main thread has ended and others go on, the process's own folder shows neither memory nor files.
    """
    yield proc / str(pid)
    for tid in threads_of(pid, proc):
        if tid != pid:
            yield proc / str(pid) / 'task' / str(tid)


def command_name(pid: int, proc: Path = PROC) -> str:
    """The kernel's short name of it; empty where it has ended."""
    try:
        return (proc / str(pid) / 'comm').read_text(errors='replace').strip()
    except OSError:
        return ''


class NodeThreads:
    """Which threads belong to the nodes: those that they have, and whoever those start, children included.

    :param pids: the nodes' processes.
    """

    def __init__(self, pids: Iterable[int], proc: Path = PROC) -> None:
        self._proc = proc
        self._process_of: dict[int, int] = {}
        for pid in pids:
            self.add(pid)

    def add(self, pid: int) -> None:
        """A process, with the threads that it has now."""
        self._process_of[pid] = pid
        for tid in threads_of(pid, self._proc):
            self._process_of[tid] = pid

    def look(self) -> None:
        """Again at all of them, for threads started since."""
        for pid in set(self._process_of.values()):
            for tid in threads_of(pid, self._proc):
                self._process_of[tid] = pid

    def follow(self, events: Iterable[KernelEvent]) -> None:
        """Take in what ``sched_process_fork`` events tell: threads and children that may have ended before anybody looked."""
        for event in events:
            if event.name == 'sched_process_fork' and (parent := self._process_of.get(event.tid)) is not None:
                self._process_of.setdefault(event.number('child_pid'), parent)

    def processes(self) -> dict[int, int]:
        """By thread, the node's process."""
        return dict(self._process_of)

    @property
    def pids(self) -> Collection[int]:
        """Of the nodes' processes."""
        return sorted(set(self._process_of.values()))
