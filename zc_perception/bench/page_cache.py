"""Takes files out of the page cache, and says how much of them is left in it: what a program's first start since boot finds.

Of a file that another process has mapped the kernel keeps those pages, whoever asks (posix_fadvise(2), mincore(2)).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

_PAGE = mmap.PAGESIZE


def evict(paths: Iterable[Path]) -> None:
    """Write back and drop. What can't be opened stays as it is. Needs no privilege, and leaves all other files of the machine alone."""
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            pass
        finally:
            os.close(fd)


def cached_bytes(path: Path) -> int:
    """How much of a file is in the page cache; 0 if that can't be seen."""
    try:
        # ctypes takes the address of writable memory only; a private mapping of a file that is open for reading may be written to.
        with path.open('rb') as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as memory:
            return _resident(memory)
    except (OSError, ValueError):
        return 0


def _resident(memory: mmap.mmap) -> int:
    first = ctypes.c_char.from_buffer(memory)
    try:
        pages = (len(memory) + _PAGE - 1) // _PAGE
        vector = (ctypes.c_ubyte * pages)()
        if ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(memory)), vector) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return sum(byte & 1 for byte in vector) * _PAGE
    finally:
        del first
