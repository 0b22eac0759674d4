"""Which programs have a device open."""

from __future__ import annotations

import glob
import os


def programs_using(path: str) -> list[str]:
    """Who has the device node open, as ``name (pid)``, as far as this user may look."""
    try:
        wanted = os.stat(path).st_rdev
    except OSError:
        return []
    found = set()
    for entry in glob.glob('/proc/[0-9]*/fd/*'):
        try:
            # Only nodes are of interest; a stat of a pipe or socket would be as good as none.
            if os.readlink(entry).startswith('/dev/') and os.stat(entry).st_rdev == wanted:
                found.add(int(entry.split('/')[2]))
        except OSError:
            continue
    return [
        'this process' if pid == os.getpid() else f'{_name(pid)} ({pid})' for pid in sorted(found)
    ]


def _name(pid: int) -> str:
    try:
        with open(f'/proc/{pid}/comm', encoding='utf-8', errors='replace') as file:
            return file.read().strip()
    except OSError:
        return 'process'
