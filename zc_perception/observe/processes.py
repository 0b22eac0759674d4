"""Processes and their threads, by ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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
        return sorted(
            int(entry) for entry in os.listdir(proc / str(pid) / 'task') if entry.isdigit()
        )
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


def open_files(pid: int, proc: Path = PROC) -> tuple[Path, list[str]]:
    """The one of these folders that shows a process's open files, and their numbers; none where it has ended.

    :raises OSError: they may not be listed.
    """
    for folder in folders_of(pid, proc):
        try:
            if entries := os.listdir(folder / 'fd'):
                return folder, entries
        except (FileNotFoundError, ProcessLookupError):
            continue
    return proc / str(pid), []


def command_name(pid: int, proc: Path = PROC) -> str:
    """The kernel's short name of it; empty where it has ended."""
    try:
        return (proc / str(pid) / 'comm').read_text(errors='replace').strip()
    except OSError:
        return ''


def who(pid: int, proc: Path = PROC) -> str:
    """A process, for a message."""
    return f'process {pid} ({command_name(pid, proc)})'


class ProcessState(NamedTuple):
    """Of ``/proc/PID/stat``.

    :ivar start: in clock ticks since the machine began: tells two processes with the same pid apart.
    """

    state: str
    parent: int
    start: int

    @property
    def ended(self) -> bool:
        """Whether only its zombie is left."""
        return self.state in 'ZX'


def process_state(pid: int, proc: Path = PROC) -> ProcessState | None:
    """``None``: there is no such process."""
    try:
        words = (proc / str(pid) / 'stat').read_text(errors='replace').rpartition(')')[2].split()
        return ProcessState(words[0], int(words[1]), int(words[19]))
    except (OSError, ValueError, IndexError):
        return None
