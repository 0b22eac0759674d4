"""Sealed memory under the name of another heap."""

from __future__ import annotations

from zc_perception.errors import AllocationError
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import SealedMemfd


class NamedHeap(SealedMemfd):
    """
    Counts those that are open.

    :param room: bytes that it has.
    """

    open = 0

    def __init__(self, name: str, room: int = 1 << 30) -> None:
        self.name = name
        self._room = room
        NamedHeap.open += 1

    def allocate(self, size: int) -> DmaBuf:
        """See :class:`Heap`."""
        self._room -= size
        if self._room < 0:
            raise AllocationError(
                f'{self.name} could not allocate {size} bytes: Cannot allocate memory'
            )
        return super().allocate(size)

    def close(self) -> None:
        """See :class:`Heap`."""
        NamedHeap.open -= 1
