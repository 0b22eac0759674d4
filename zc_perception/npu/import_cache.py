"""Remembers which buffers a device has imported, so that the steady state imports nothing.

The key is (device-open epoch, direction, fourcc, modifier, width, height, per plane (st_dev, st_ino, offset, stride)). An entry owns
duplicates of the descriptors: as long as it is a key, the kernel can't give its inode number to another buffer.

A duplicate and an import keep the memory, too, so an entry has to go when the buffer's owner gives it up: a pool that retires a slot, is
reconfigured or closed, a link whose producer is gone. All of them close their :class:`DmaBuf`, on whichever thread, and the buffer itself
tells the cache (:meth:`DmaBuf.tell_end`): nobody has to remember to connect a pool with a cache. What was told waits in a queue for the
cache's own thread.
"""

from __future__ import annotations

import queue
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from zc_perception.errors import AcceleratorError
from zc_perception.memory.dmabuf import BufferIdentity, DmaBuf
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.pixel.layout import ImageLayout

CacheKey = tuple[Hashable, ...]


def import_key(epoch: int, direction: int, layout: ImageLayout, buffers: Sequence[DmaBuf]) -> CacheKey:
    """The key of one image."""
    planes = tuple((buffers[p.buffer].identity, p.offset, p.stride) for p in layout.planes)
    return epoch, direction, layout.fourcc, layout.modifier, layout.width, layout.height, planes


@dataclass(frozen=True)
class CachedImport:
    """One import. ``identities`` are those of its buffers."""

    handle: int
    identities: frozenset[BufferIdentity]
    keepers: tuple[OwnedFd, ...]


class ImportCache:
    """Least recently used goes first. One thread; buffers may end on any other.

    ``release_errors`` counts imports of ended buffers that the device refused to release, ``last_release_error`` says why.

    :param release: gives a handle back to the device.
    :param limit: entries kept; more than any sensible pool has slots.
    """

    def __init__(self, release: Callable[[int], None], limit: int = 64) -> None:
        self._release = release
        self._limit = limit
        self._entries: OrderedDict[CacheKey, CachedImport] = OrderedDict()
        self._ended: queue.SimpleQueue[BufferIdentity] = queue.SimpleQueue()
        self.hits = 0
        self.misses = 0
        self.release_errors = 0
        self.last_release_error = ''

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: CacheKey, buffers: Sequence[DmaBuf], make: Callable[[], int]) -> int:
        """The handle for *key*, imported by *make* at the first time. Forgets what has ended first."""
        self.forget_ended()
        entry = self._entries.get(key)
        if entry is not None:
            self.hits += 1
            self._entries.move_to_end(key)
            return entry.handle
        self.misses += 1
        keepers = tuple(b.dup() for b in buffers)
        try:
            handle = make()
        except BaseException:
            for keeper in keepers:
                keeper.close()
            raise
        self._entries[key] = CachedImport(handle, frozenset(b.identity for b in buffers), keepers)
        for buffer in buffers:
            buffer.tell_end(self._ended.put)
        while len(self._entries) > self._limit:
            self._drop(next(iter(self._entries)))
        return handle

    def _drop(self, key: CacheKey) -> None:
        entry = self._entries.pop(key)
        try:
            self._release(entry.handle)
        finally:
            for keeper in entry.keepers:
                keeper.close()

    def _keys(self, identity: BufferIdentity) -> list[CacheKey]:
        return [key for key, entry in self._entries.items() if identity in entry.identities]

    def forget(self, identity: BufferIdentity) -> None:
        """Release every import of a buffer now."""
        for key in self._keys(identity):
            self._drop(key)

    def forget_ended(self) -> None:
        """Release the imports of all buffers that have ended since. Cheap when there are none.

        A refusal of the device is counted, not raised: the frame that is being imported now has no part in it.
        """
        while not self._ended.empty():
            for key in self._keys(self._ended.get_nowait()):
                try:
                    self._drop(key)
                except AcceleratorError as error:
                    self.release_errors += 1
                    self.last_release_error = str(error)

    def clear(self) -> None:
        """Release everything."""
        while self._entries:
            self._drop(next(iter(self._entries)))
