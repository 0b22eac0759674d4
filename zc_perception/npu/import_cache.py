"""Remembers which buffers a device has imported, so that the steady state imports nothing.

The key is (device-open epoch, direction, fourcc, modifier, width, height, per plane (st_dev, st_ino, offset, stride)). An entry owns
duplicates of the descriptors: as long as it is a key, the kernel can't give its inode number to another buffer.

A duplicate and an import keep the memory, too, so an entry has to go when the buffer's owner gives it up: a pool that retires or
replaces a slot or is closed, a link whose producer is gone. All of them close their :class:`DmaBuf`, on whichever thread, and the
buffer itself tells the cache (:meth:`DmaBuf.tell_end`): nobody has to remember to connect a pool with a cache. What was told waits in
a queue for the cache's own thread.

An import that a job in flight reads is not taken away from it, whoever asks: :class:`ImportsInUse` releases it after its last job.
"""

from __future__ import annotations

import queue
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zc_perception.errors import AcceleratorError, DeviceLostError
from zc_perception.memory.dmabuf import BufferIdentity, DmaBuf
from zc_perception.memory.owned_fd import OwnedFd

if TYPE_CHECKING:
    from zc_perception.pixel.layout import ImageLayout

CacheKey = tuple[Hashable, ...]

ENTRIES = 512
"""More than cameras have buffers; each entry is a descriptor or more, and a range of device addresses."""


def import_key(
    epoch: int, direction: int, layout: ImageLayout, buffers: Sequence[DmaBuf]
) -> CacheKey:
    """The key of one image."""
    planes = tuple((buffers[p.buffer].identity, p.offset, p.stride) for p in layout.planes)
    return epoch, direction, layout.fourcc, layout.modifier, layout.width, layout.height, planes


class ImportsInUse:
    """Knows which jobs read which handle, and gives a handle back to the device after its last job. One thread uses it.

    ``release_errors`` counts handles that the device refused to take back, and ``last_release_error`` says why. Nothing is raised,
    because no frame has a part in it.
    """

    def __init__(self, release: Callable[[int], None]) -> None:
        self._release = release
        self._jobs: Counter[int] = Counter()
        self._waiting: set[int] = set()
        self.release_errors = 0
        self.last_release_error = ''

    def hold(self, handle: int) -> None:
        """A job reads it from now on."""
        self._jobs[handle] += 1

    def let_go(self, handle: int) -> None:
        """That job has ended; after the last one what was to be released is."""
        self._jobs[handle] -= 1
        if self._jobs[handle] <= 0:
            del self._jobs[handle]
            if handle in self._waiting:
                self._waiting.remove(handle)
                self._give_back(handle)

    def release(self, handle: int) -> None:
        """Release it, now or after its last job."""
        if handle in self._jobs:
            self._waiting.add(handle)
        else:
            self._give_back(handle)

    def _give_back(self, handle: int) -> None:
        try:
            self._release(handle)
        except DeviceLostError:
            pass  # it took all its handles with it
        except AcceleratorError as error:
            self.release_errors += 1
            self.last_release_error = str(error)


@dataclass(frozen=True)
class CachedImport:
    """One import. ``identities`` are those of its buffers."""

    handle: int
    identities: frozenset[BufferIdentity]
    keepers: tuple[OwnedFd, ...]


class ImportCache:
    """Keeps a device's imports of buffers, so that each buffer is imported once and not with every frame.

    With more than ``limit`` entries, the one that was unused for the longest time goes.

    One thread uses it. A buffer may end on any thread: its identity is queued, and the next :meth:`get` gives its import back.

    :param release: gives a handle back to the device, and doesn't raise.
    :param limit: entries kept.
    """

    def __init__(self, release: Callable[[int], object], limit: int = ENTRIES) -> None:
        self._release = release
        self._entries: OrderedDict[CacheKey, CachedImport] = OrderedDict()
        self._ended: queue.SimpleQueue[BufferIdentity] = queue.SimpleQueue()
        self.limit = limit

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: CacheKey, buffers: Sequence[DmaBuf], make: Callable[[], int]) -> int:
        """The handle for *key*, imported by *make* at the first time. Forgets what has ended first."""
        self.forget_ended()
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            return entry.handle
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
        if len(self._entries) > self.limit:
            self._drop(next(iter(self._entries)))
        return handle

    def _drop(self, key: CacheKey) -> None:
        entry = self._entries.pop(key)
        self._release(entry.handle)
        for keeper in entry.keepers:
            keeper.close()

    def forget(self, identity: BufferIdentity) -> None:
        """Release every import of a buffer: now, or after the job that reads it."""
        for key in [key for key, entry in self._entries.items() if identity in entry.identities]:
            self._drop(key)

    def forget_ended(self) -> None:
        """Release the imports of all buffers that have ended since. Cheap when there are none."""
        while not self._ended.empty():
            self.forget(self._ended.get_nowait())

    def clear(self) -> None:
        """Release everything."""
        while self._entries:
            self._drop(next(iter(self._entries)))
