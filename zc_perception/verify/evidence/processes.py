"""Processes and their threads, by ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

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
