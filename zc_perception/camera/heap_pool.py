"""The pool of a producer whose frames the CPU writes, in buffers of a heap as its consumers agreed on them."""

from __future__ import annotations

from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import OfferedHeaps
from zc_perception.memory.pool import BufferPool, mapped
from zc_perception.negotiation.settings import BufferSettings


def heap_pool(settings: BufferSettings, heaps: OfferedHeaps, *, name: str, reserve: int) -> BufferPool:
    """As many slots as *settings* say, mapped for the CPU.

    :param heaps: that of the settings is chosen there; they have to stay open as long as the pool.
    :param name: the producer's, for messages.
    :param reserve: slots that the producer needs for itself, where there are as many.
    :raises AllocationError: no memory, or the heap can't be opened any more.
    """
    if settings.heap is not None:
        heaps.choose(settings.heap.name)
    sizes = settings.sizes()

    def allocate() -> tuple[DmaBuf, ...]:
        return tuple(map(heaps.allocate, sizes))

    return BufferPool(settings.layout, mapped(allocate), settings.slots, name=name, reserve=min(reserve, settings.slots))
