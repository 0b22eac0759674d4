"""Who can touch a frame with the CPU: ``/proc/PID/maps`` of all processes.

A dma-buf has no ``read()``: who has not mapped it can't copy from it in user space.

Source: proc_pid_maps(5). A dma-buf's lines are called ``/dmabuf:NAME`` and have its inode, in decimal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from zc_perception.observe.privileges import as_root
from zc_perception.verify.evidence.processes import PROC, all_pids, command_name
from zc_perception.verify.evidence.unreadable import Unreadable, unreadable_file

# The whole text at once, as bytes: hundreds of lines of hundreds of processes are looked through again and again.
_WORTH = (b' /dmabuf:', b' /memfd:', b' /dev/')
_LINE = re.compile(
    rb'^([0-9a-f]+)-([0-9a-f]+) (\S{4}) [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) (\d+)[ \t]+((?:/dmabuf:|/memfd:|/dev/)[^\n]*)$', re.MULTILINE
)


@dataclass(frozen=True)
class Mapping:
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

    def matches(self, mapping: Mapping) -> bool:
        """Whether a mapping shows frames."""
        if mapping.name.startswith('/dev/'):
            return mapping.name.removesuffix(' (deleted)') in self.cameras
        if mapping.name.startswith('/memfd:'):
            return (mapping.device, mapping.inode) in self.memfds
        return mapping.inode in self.dmabufs


@dataclass(frozen=True)
class MapsScan:
    """One look at the maps of processes; :ivar scanned: how many could be read."""

    mappings: tuple[Mapping, ...]
    scanned: int
    unreadable: tuple[Unreadable, ...]


def parse_maps(pid: int, text: bytes) -> list[Mapping]:
    """The lines that may show a frame's memory: dma-bufs, memfds, devices."""
    if not any(word in text for word in _WORTH):
        return []
    found = []
    for match in _LINE.finditer(text):
        device = os.makedev(int(match[4], 16), int(match[5], 16))
        name = match[7].decode(errors='replace')
        found.append(Mapping(pid, int(match[1], 16), int(match[2], 16), match[3].decode(), device, int(match[6]), name))
    return found


def scan_maps(memory: FrameMemory, pids: Iterable[int] | None = None, proc: Path = PROC, skip: Collection[int] = ()) -> MapsScan:
    """Look for mappings of frames in these processes, or in all.

    :param skip: processes not to look at.
    """
    found: list[Mapping] = []
    unreadable = []
    scanned = 0
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
        scanned += 1
        found += [mapping for mapping in parse_maps(pid, text) if memory.matches(mapping)]
    return MapsScan(tuple(found), scanned, tuple(unreadable))
