"""The dma-bufs and memfds of the system: which there are, what is attached to them, and who holds them. Three sources tell it.

- debugfs ``dma_buf/bufinfo``: every dma-buf, and the only file that names the devices attached to it, and the fences in its reservation
  object: also those of jobs that have ended, until the next job replaces them. Sizes and inodes are decimal, padded with zeros. Sources:
  drivers/dma-buf/dma-buf.c, ``dma_buf_debug_show``; dma-resv.c, ``dma_resv_describe``.
- sysfs ``/sys/kernel/dmabuf/buffers``: exporter and size of each dma-buf, where a kernel has them (5.13 to 6.18, if configured).
  Attachments were never in a released kernel's directory, whatever older documents say. Source:
  Documentation/ABI/testing/sysfs-kernel-dmabuf-buffers.
- ``/proc/PID/fd`` and ``fdinfo``: who holds which buffer. Source: Documentation/filesystems/proc.rst, *DMA Buffer files*: ``size``,
  ``count``, ``ino``, ``exp_name``, and ``name`` if it has one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zc_perception.observe.processes import PROC, open_files, who
from zc_perception.verify.evidence import Unreadable, unreadable_file

DEBUGFS = Path('/sys/kernel/debug')
_NO_BUFINFO = (
    'mount debugfs (mount -t debugfs none /sys/kernel/debug) of a kernel with CONFIG_DEBUG_FS'
)
_OBJECT = re.compile(r'^(\d{8,})\t[0-9a-f]{8}\t[0-9a-f]{8}\t\d+\t(.*?)\t(\d{8,})(?:\t.*)?$')
# Linux 5.15 tells neither what a fence is for nor its number.
_READ_FENCE = re.compile(r'^\t[Rr]ead fence:(\S+) .*\bseq (\d+) ')


@dataclass
class BufferObject:
    """One dma-buf.

    :ivar attached: names of the devices attached to it, one for each attachment.
    :ivar reads: fences of jobs that read it: the driver's name, and the fence's number.
    """

    inode: int
    size: int
    exporter: str
    attached: list[str] = field(default_factory=list)
    reads: list[tuple[str, int]] = field(default_factory=list)


def parse_bufinfo(text: str) -> dict[int, BufferObject] | None:
    """By inode; ``None``: this is not a ``bufinfo``."""
    found: dict[int, BufferObject] = {}
    current: BufferObject | None = None
    listing = False
    known = False
    for line in text.splitlines():
        if match := _OBJECT.match(line):
            current = BufferObject(int(match[3]), int(match[1]), match[2])
            found[current.inode] = current
            listing = False
        elif line.strip() == 'Attached Devices:':
            listing = True
        elif current is not None and not listing and (fence := _READ_FENCE.match(line)):
            current.reads.append((fence[1], int(fence[2])))
        elif listing and current is not None and line.startswith('\t') and line.strip():
            current.attached.append(line.strip())
        else:
            listing = False
            known = known or line.strip() == 'Dma-buf Objects:'
    return found if known or found else None


def read_bufinfo(debugfs: Path = DEBUGFS) -> Mapping[int, BufferObject] | Unreadable:
    """All dma-bufs by inode, with their attachments."""
    path = debugfs / 'dma_buf' / 'bufinfo'
    try:
        text = path.read_text(encoding='utf-8', errors='replace')
    except OSError as error:
        return unreadable_file(path, error, _NO_BUFINFO, 'bufinfo')
    found = parse_bufinfo(text)
    if found is None:
        return Unreadable(
            'bufinfo',
            f"{path} is not what the kernel's dma-buf code writes",
            'report the kernel version',
        )
    return found


SYSFS = Path('/sys')
_NO_STATISTICS = 'nothing: bufinfo and fdinfo say the same; kernels from 5.13 to 6.18 have it with CONFIG_DMABUF_SYSFS_STATS'


def read_exporters(sysfs: Path = SYSFS) -> Mapping[int, str] | Unreadable:
    """Exporters of all dma-bufs, by inode. One that goes meanwhile is left out."""
    folder = sysfs / 'kernel' / 'dmabuf' / 'buffers'
    try:
        entries = os.listdir(folder)
    except OSError as error:
        return unreadable_file(folder, error, _NO_STATISTICS, 'sysfs dmabuf statistics')
    found = {}
    for entry in entries:
        if not entry.isdigit():
            continue
        try:
            exporter = (folder / entry / 'exporter_name').read_text(errors='replace').strip()
        except PermissionError as error:
            return unreadable_file(
                folder / entry, error, _NO_STATISTICS, 'sysfs dmabuf statistics'
            )
        except OSError:
            continue
        found[int(entry)] = exporter
    return found


_ENDED = 'start the process again'
DMABUF, MEMFD = 'dma-buf', 'memfd'


@dataclass(frozen=True)
class HeldBuffer:
    """A descriptor of a buffer in a process.

    :ivar kind: :data:`DMABUF` or :data:`MEMFD`.
    :ivar device: ``st_dev``.
    :ivar exporter: of a dma-buf; empty where the process's fdinfo says none.
    :ivar name: what its link in ``/proc/PID/fd`` says.
    """

    pid: int
    fd: int
    kind: str
    device: int
    inode: int
    size: int = 0
    exporter: str = ''
    name: str = ''


@dataclass(frozen=True)
class Holders:
    """Descriptors of buffers in processes, and the processes whose descriptors may not be seen."""

    held: tuple[HeldBuffer, ...]
    unreadable: tuple[Unreadable, ...]

    def exporters(self) -> Mapping[int, str]:
        """By inode of dma-bufs."""
        return {
            one.inode: one.exporter for one in self.held if one.kind == DMABUF and one.exporter
        }


def parse_fdinfo(text: str) -> dict[str, str]:
    """``key: value`` lines."""
    pairs = (line.partition(':') for line in text.splitlines())
    return {key.strip(): value.strip() for key, separator, value in pairs if separator}


def buffers_of(pid: int, proc: Path = PROC) -> list[HeldBuffer] | Unreadable:
    """The buffers that a process has open: dma-bufs and memfds."""
    try:
        folder, entries = open_files(pid, proc)
    except OSError as error:
        return unreadable_file(
            proc / str(pid) / 'fd', error, _ENDED, f'open files of {who(pid, proc)}'
        )
    found = []
    for entry in entries:
        link = folder / 'fd' / entry
        try:
            target = os.readlink(link)
            if not target.startswith(('/dmabuf:', '/memfd:')):
                continue
            status = os.stat(link)
            info = parse_fdinfo((folder / 'fdinfo' / entry).read_text(errors='replace'))
        except PermissionError as error:
            return unreadable_file(link, error, _ENDED, f'open files of {who(pid, proc)}')
        except OSError:
            continue  # closed meanwhile
        kind = MEMFD if target.startswith('/memfd:') else DMABUF
        inode = (
            int(info['ino']) if info.get('ino', '').isdigit() and kind == DMABUF else status.st_ino
        )
        size = int(info['size']) if info.get('size', '').isdigit() else status.st_size
        found.append(
            HeldBuffer(
                pid, int(entry), kind, status.st_dev, inode, size, info.get('exp_name', ''), target
            )
        )
    return found


def read_holders(pids: Iterable[int], proc: Path = PROC) -> Holders:
    """The buffers that these processes have open."""
    held: list[HeldBuffer] = []
    unreadable = []
    for pid in pids:
        found = buffers_of(pid, proc)
        if isinstance(found, Unreadable):
            unreadable.append(found)
        else:
            held += found
    return Holders(tuple(held), tuple(unreadable))
