"""Real buffers of real heaps for the checks: allocated when asked for, and given back at once."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType

from zc_perception.doctor.heap_nodes import heap_nodes
from zc_perception.doctor.system import System
from zc_perception.errors import ZcError
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.heaps import Heap

PAGE = 4096


class TrialBuffer:
    """Closes a buffer, and the heap that it is from."""

    def __init__(self, heap: Heap, buffer: DmaBuf) -> None:
        self._heap = heap
        self.buffer = buffer

    def __enter__(self) -> DmaBuf:
        return self.buffer

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.buffer.close()
        self._heap.close()


def allocate(system: System, name: str, size: int = PAGE) -> TrialBuffer:
    """A buffer of a heap, for a ``with`` block.

    :raises ZcError: the heap can't be opened, or has no memory.
    """
    heap = system.open_heap(name)
    try:
        return TrialBuffer(heap, heap.allocate(size))
    except BaseException:
        heap.close()
        raise


def first_dmabuf(system: System) -> TrialBuffer | None:
    """A page of the first heap that gives a dma-buf: the scattered ones first, since the contiguous pool is small."""
    names = sorted(heap_nodes(system), key=lambda name: (name != 'dma_heap/system', 'cma' in name, name))
    for name in names:
        with suppress(ZcError, OSError):
            trial = allocate(system, name)
            if trial.buffer.kind is BufferKind.DMABUF:
                return trial
            with trial:
                continue
    return None


def trial_heaps(system: System) -> list[str]:
    """The heaps that are tried: all that the machine has, and the memfd that stands in for them."""
    return [*heap_nodes(system), 'memfd']
