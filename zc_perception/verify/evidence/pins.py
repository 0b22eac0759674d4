"""Pages that a process may hold without a mapping: :func:`find_pins`.

vmsplice(2) puts the pages of a mapping into a pipe, and io_uring keeps the pages of registered buffers. Both hold the pages themselves, not
a copy of them. They stay readable after the mapping is gone, and show what a device writes later. No event and no file tells which pages
these are. So each pipe with at least a page's bytes in it, and each ring with registered buffers, may be such a way.

Not found are pipes and pages that wait in a socket's queue, and pages that another driver keeps.

Source: vmsplice(2), ioctl FIONREAD of pipe(7), io_uring_register(2), ``io_uring_show_fdinfo``.
"""

from __future__ import annotations

import array
import fcntl
import os
import stat
import termios
from collections.abc import Iterable
from pathlib import Path

from zc_perception.verify.evidence.buffers import parse_fdinfo
from zc_perception.verify.evidence.processes import PROC, all_pids, command_name, folders_of

PAGE = os.sysconf('SC_PAGE_SIZE')
_RING = 'anon_inode:[io_uring]'


def find_pins(pids: Iterable[int] | None = None, proc: Path = PROC) -> list[str]:
    """A line for each pipe and ring that may hold pages, with one of the processes that have it.

    :param pids: look at these only.
    """
    pipes: dict[tuple[int, int], int] = {}
    found = []
    for pid in all_pids(proc) if pids is None else pids:
        for folder, entry in _open_files(pid, proc):
            link = folder / 'fd' / entry
            try:
                target = os.readlink(link)
                if target == _RING:
                    buffers = parse_fdinfo((folder / 'fdinfo' / entry).read_text(errors='replace')).get('UserBufs', '0')
                    if buffers != '0':
                        found.append(f'{_who(pid, proc)} has an io_uring with {buffers} registered buffers')
                elif target.startswith(('pipe:', '/')) and stat.S_ISFIFO((status := os.stat(link)).st_mode):
                    identity = status.st_dev, status.st_ino
                    if identity not in pipes:
                        pipes[identity] = _unread(link)
                        if pipes[identity] >= PAGE:
                            found.append(f'{_who(pid, proc)} has a pipe with {pipes[identity]} bytes in it')
            except OSError:
                continue  # closed meanwhile, or hidden as its mappings are, which their reader tells
    return found


def _open_files(pid: int, proc: Path) -> list[tuple[Path, str]]:
    for folder in folders_of(pid, proc):
        try:
            if entries := os.listdir(folder / 'fd'):
                return [(folder, entry) for entry in entries]
        except OSError:
            continue
    return []


def _unread(link: Path) -> int:
    """Bytes in a pipe. Nothing is read out of it."""
    fd = os.open(link, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        count = array.array('i', [0])
        fcntl.ioctl(fd, termios.FIONREAD, count)
        return count[0]
    finally:
        os.close(fd)


def _who(pid: int, proc: Path) -> str:
    return f'process {pid} ({command_name(pid, proc)})'
