"""Where the frames of watched nodes lie, and their cameras: what a look at other processes has to look for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from zc_perception.verify.evidence.fdinfo import DMABUF, MEMFD
from zc_perception.verify.evidence.mappings import FrameMemory
from zc_perception.verify.evidence.processes import PROC
from zc_perception.verify.observation import CAPTURE
from zc_perception.verify.watched_node import WatchedNode


def identities_of(nodes: Iterable[WatchedNode]) -> set[tuple[int, int]]:
    """(st_dev, inode) of the buffers in the nodes' pools and records."""
    found = set()
    for node in nodes:
        found |= {(record.st_dev, inode) for record in node.records for inode in record.inodes}
        found |= {(device, inode) for device, inode in (node.before or node.facts()).get('pool', ())}
    return found


class Cameras:
    """The video devices of the nodes, by the paths that these know them by: in a container another one may have the same.

    :ivar paths: names that their mappings have.
    :ivar numbers: device numbers, as the kernel has them within itself (12 bits major, 20 bits minor).
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._found: dict[tuple[int, str], bool] = {}
        self.paths: set[str] = set()
        self.numbers: set[int] = set()

    @property
    def lost(self) -> frozenset[str]:
        """Paths whose device was never found."""
        return frozenset(path for (_, path), found in self._found.items() if not found)

    def look(self, nodes: Iterable[WatchedNode]) -> None:
        """Again: a camera may come and go."""
        for pid, path in _places(nodes):
            self.paths |= {path, os.path.realpath(path)}
            there = Path(f'{self._proc}/{pid}/root{path}')
            with contextlib.suppress(OSError):
                self.paths.add(os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(there))))
            try:
                number = os.stat(there).st_rdev
            except OSError:
                self._found.setdefault((pid, path), False)
                continue
            self._found[pid, path] = True
            self.numbers.add(os.major(number) << 20 | os.minor(number))


def _places(nodes: Iterable[WatchedNode]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if node.log.role == CAPTURE:
            path = node.facts().get('device', '').partition(' ')[0]
            if path.startswith('/dev/'):
                yield node.log.pid, path


def memory_of(nodes: Iterable[WatchedNode], kinds: Mapping[tuple[int, int], str], cameras: Cameras) -> FrameMemory:
    """What to look for in maps.

    :param kinds: of buffers, as far as known. What nobody holds any more may have been either.
    """
    frames = identities_of(nodes)
    dmabufs = frozenset(inode for device, inode in frames if kinds.get((device, inode)) != MEMFD)
    memfds = frozenset(identity for identity in frames if kinds.get(identity) != DMABUF)
    return FrameMemory(dmabufs, memfds, frozenset(cameras.paths))
