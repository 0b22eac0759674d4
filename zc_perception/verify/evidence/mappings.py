"""Who can touch a frame with the CPU: ``/proc/PID/maps`` of all processes, and the memfds that frames of udmabuf may be made of.

A dma-buf has no ``read()``: who has not mapped it can't copy from it in user space. A buffer of udmabuf is made of a memfd's pages, which
any holder of that memfd can map. Nothing in the kernel tells which memfd it is, so :func:`find_memfds` only finds those that may be: of the
same size. No event tells of a mapping of a memfd that comes and goes between two looks.

Source: proc_pid_maps(5). A dma-buf's lines are called ``/dmabuf:NAME`` and have its inode, in decimal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from zc_perception.observe.frame_log_layout import NAME
from zc_perception.observe.privileges import as_root
from zc_perception.verify.evidence.buffers import MEMFD, buffers_of
from zc_perception.verify.evidence.processes import PROC, all_pids, command_name
from zc_perception.verify.evidence.unreadable import Unreadable, unreadable_file

# The whole text at once, as bytes: hundreds of lines of hundreds of processes are looked through again and again.
_WORTH = (b' /dmabuf:', b' /memfd:', b' /dev/')
_LINE = re.compile(
    rb'^([0-9a-f]+)-([0-9a-f]+) (\S{4}) [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) (\d+)[ \t]+((?:/dmabuf:|/memfd:|/dev/)[^\n]*)$', re.MULTILINE
)


@dataclass(frozen=True)
class MemoryMapping:
    """One mapping of a frame's memory, or of a camera.

    :ivar device: ``st_dev`` of the inode.
    :ivar name: as ``maps`` shows it.
    """

    pid: int
    start: int
    end: int
    permissions: str
    device: int
    inode: int
    name: str

    def __contains__(self, address: object) -> bool:
        return isinstance(address, int) and self.start <= address < self.end

    def __str__(self) -> str:
        return f'process {self.pid}: {self.start:x}-{self.end:x} {self.permissions} {self.name} (inode {self.inode})'


@dataclass(frozen=True)
class FrameMemory:
    """What to look for.

    :param dmabufs: inodes.
    :param memfds: (st_dev, inode).
    :param cameras: paths of video devices, such as ``/dev/video0``.
    """

    dmabufs: frozenset[int] = frozenset()
    memfds: frozenset[tuple[int, int]] = frozenset()
    cameras: frozenset[str] = frozenset()

    def matches(self, mapping: MemoryMapping) -> bool:
        """Whether a mapping shows frames."""
        if mapping.name.startswith('/dev/'):
            return mapping.name.removesuffix(' (deleted)') in self.cameras
        if mapping.name.startswith('/memfd:'):
            return (mapping.device, mapping.inode) in self.memfds
        return mapping.inode in self.dmabufs


@dataclass(frozen=True)
class MapsScan:
    """One look at the maps of processes."""

    mappings: tuple[MemoryMapping, ...]
    unreadable: tuple[Unreadable, ...]


def parse_maps(pid: int, text: bytes) -> list[MemoryMapping]:
    """The lines that may show a frame's memory: dma-bufs, memfds, devices."""
    if not any(word in text for word in _WORTH):
        return []
    found = []
    for match in _LINE.finditer(text):
        device = os.makedev(int(match[4], 16), int(match[5], 16))
        name = match[7].decode(errors='replace')
        found.append(MemoryMapping(pid, int(match[1], 16), int(match[2], 16), match[3].decode(), device, int(match[6]), name))
    return found


def scan_maps(memory: FrameMemory, pids: Iterable[int] | None = None, proc: Path = PROC, skip: Collection[int] = ()) -> MapsScan:
    """Look for mappings of frames in these processes, or in all.

    :param skip: processes not to look at.
    """
    found: list[MemoryMapping] = []
    unreadable = []
    for pid in all_pids(proc) if pids is None else pids:
        if pid in skip:
            continue
        path = proc / str(pid) / 'maps'
        try:
            text = path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError as error:
            unreadable.append(unreadable_file(path, error, as_root(), f'mappings of process {pid} ({command_name(pid, proc)})'))
            continue
        found += [mapping for mapping in parse_maps(pid, text) if memory.matches(mapping)]
    return MapsScan(tuple(found), tuple(unreadable))


UDMABUF = 'udmabuf'
_LOG = f'/memfd:{NAME}'


def find_memfds(
    sizes: Collection[int],
    pids: Iterable[int] | None = None,
    proc: Path = PROC,
    skip: Collection[int] = (),
    but: Collection[tuple[int, int]] = (),
) -> list[str]:
    """Memfds of one of these *sizes* in bytes that processes hold or map: a line for each process and memfd.

    :param pids: look at these only.
    :param skip: processes not to look at.
    :param but: (st_dev, inode) of memfds that are known for something else.
    """
    found: dict[tuple[int, int, int], str] = {}
    for pid in all_pids(proc) if pids is None else pids:
        if pid in skip:
            continue
        held = buffers_of(pid, proc)
        for one in () if isinstance(held, Unreadable) else held:
            if one.kind == MEMFD and one.size in sizes and not _is_log(proc / str(pid) / 'fd' / str(one.fd)):
                found.setdefault(
                    (pid, one.device, one.inode), f'process {pid} ({command_name(pid, proc)}) holds memfd {one.inode} of {one.size} bytes'
                )
        try:
            text = (proc / str(pid) / 'maps').read_bytes()
        except OSError:
            continue  # told by the reader of mappings
        for mapping in parse_maps(pid, text):
            size = _size(mapping, proc)
            if mapping.name.startswith('/memfd:') and not mapping.name.startswith(_LOG) and size in sizes:
                line = f'process {pid} ({command_name(pid, proc)}) maps memfd {mapping.inode} of {size} bytes'
                found[pid, mapping.device, mapping.inode] = line
    return [line for (_, *identity), line in found.items() if tuple(identity) not in but]


def _is_log(link: Path) -> bool:
    try:
        return os.readlink(link).startswith(_LOG)
    except OSError:
        return False


def _size(mapping: MemoryMapping, proc: Path) -> int:
    """Of the whole file, where that may be seen."""
    try:
        return os.stat(proc / str(mapping.pid) / 'map_files' / f'{mapping.start:x}-{mapping.end:x}').st_size
    except OSError:
        return mapping.end - mapping.start
