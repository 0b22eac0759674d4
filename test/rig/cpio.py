"""A writer for the one archive format that the kernel unpacks as its initramfs: cpio "newc".

Own code because neither ``cpio`` nor any Python module for it is on a plain Debian; the format is
Documentation/driver-api/early-userspace/buffer-format.rst in the kernel tree.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass

_MAGIC = b'070701'
_TRAILER = 'TRAILER!!!'


@dataclass(frozen=True)
class Entry:
    """One member: a path without leading slash, a full ``st_mode`` and the content."""

    path: str
    mode: int
    data: bytes = b''

    @classmethod
    def folder(cls, path: str) -> Entry:
        """Return a folder that everybody may enter."""
        return cls(path, stat.S_IFDIR | 0o755)

    @classmethod
    def file(cls, path: str, data: bytes, *, executable: bool = False) -> Entry:
        """Return a regular file."""
        return cls(path, stat.S_IFREG | (0o755 if executable else 0o644), data)


def archive(entries: Iterable[Entry]) -> bytes:
    """Return the archive with `entries` in their order; a folder must come before what it holds."""
    out = bytearray()
    inode = 0
    for inode, entry in enumerate(entries, start=1):
        _append(out, inode, entry)
    _append(out, inode + 1, Entry(_TRAILER, 0))
    return bytes(out)


def _append(out: bytearray, inode: int, entry: Entry) -> None:
    name = entry.path.encode() + b'\0'
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    # ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check
    fields = (inode, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, 0, 0, len(name), 0)
    out += _MAGIC + b''.join(b'%08x' % field for field in fields) + name
    out += bytes(-len(out) % 4)
    out += entry.data
    out += bytes(-len(out) % 4)
