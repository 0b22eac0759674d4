"""A pool over buffers that somebody else allocates, hands out in an order of their own, and may replace at any time.

A GStreamer element's buffers are like that: how many there are shows only as they come by. A
buffer is known again by what its descriptors refer to, so that one buffer is one slot for as long
as it lives, and devices keep their imports of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
import os
import threading
from typing import NamedTuple

from zc_perception.errors import AllocationError
from zc_perception.memory.dmabuf import BufferIdentity, DmaBuf
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import (
    BufferPool,
    Buffers,
    close_buffers,
    MAX_SLOTS,
    Slot,
    SlotState,
)
from zc_perception.pixel.layout import ImageLayout

Identities = tuple[BufferIdentity, ...]


def identities_of(buffers: Buffers) -> Identities:
    """What the buffers of one frame are, whoever holds descriptors of them."""
    return tuple(buffer.identity for buffer in buffers)


class BorrowedMemory(NamedTuple):
    """A part of what somebody else's descriptor refers to. The descriptor is never closed here, only duplicated.

    :param offset: where the part begins, in bytes.
    :param size: its bytes.
    """

    number: int
    offset: int
    size: int

    def identity(self) -> BufferIdentity:
        """What it refers to. The number alone says nothing: it is another buffer's as soon as its owner has closed it."""
        status = os.fstat(self.number)
        return BufferIdentity(status.st_dev, status.st_ino)


def own_descriptors(parts: Iterable[BorrowedMemory], heap: str | None = None) -> Buffers:
    """Descriptors of our own, one for each part, or none at all.

    :param heap: the allocator's name where it is known.
    :raises AllocationError: one is neither a dma-buf nor memory that can't change its size.
    """
    made: list[DmaBuf] = []
    try:
        for part in parts:
            made.append(DmaBuf.from_fd(OwnedFd.duplicate(part.number), heap=heap, lent=True))
    except BaseException:
        close_buffers(made)
        raise
    return tuple(made)


class HeldBuffers:
    """For each slot in use: the calls that give its buffers back to their owner. Whoever uses the slot last makes them, on its own thread.

    The lock guards the table of calls. The calls are made without it. Pass :meth:`free` to the
    pool as ``on_free``, and :meth:`ended` to its ``add_retire_listener``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, list[Callable[[], object]]] = {}
        self._parked: list[Callable[[], object]] = []
        self._closing = False

    def hold(self, slot: Slot, give_back: Callable[[], object]) -> None:
        """A slot is in use from now on: call *give_back* when it isn't any more."""
        with self._lock:
            self._held[slot.buffer_uid] = [give_back]

    def hold_too(self, slot: Slot, give_back: Callable[[], object]) -> bool:
        """For a slot that is in use already: call *give_back* as well when it isn't any more. ``False``: it isn't in use."""
        with self._lock:
            held = self._held.get(slot.buffer_uid)
            if held is None:
                return False
            held.append(give_back)
            return True

    def free(self, slot: Slot) -> None:
        """Nobody has the slot any more: its owner may fill the buffers again."""
        with self._lock:
            held = self._held.pop(slot.buffer_uid, [])
        for give_back in held:
            give_back()

    def ended(self, slot: Slot) -> None:
        """Of a retired slot a device may still read: its buffers are kept from their owner until :meth:`end_close`."""
        if self._closing:
            self.free(slot)
        else:
            with self._lock:
                self._parked += self._held.pop(slot.buffer_uid, [])

    def begin_close(self) -> None:
        """The pool is about to be closed: from now on a slot that ends is given back at once."""
        self._closing = True

    def end_close(self) -> None:
        """No device reads any more, as far as anybody can tell."""
        parked, self._parked = self._parked, []
        for give_back in parked:
            give_back()


class ForeignBufferPool(BufferPool):
    """A pool over buffers that a source has allocated, such as a GStreamer pipeline, and that the source may replace.

    Which buffers there are shows as frames come. :meth:`slot_of` finds the slot of buffers that
    came before, :meth:`adopt` makes a slot for new ones. Once there are *most* slots, new buffers
    take the place of the free slot that was unused for the longest time: a source that makes new
    buffers for ever doesn't keep all of them in memory. A retired slot stays empty until new
    buffers come, because the pool can't ask the source for any.

    The producer's thread calls these two. Everything else is as in :class:`BufferPool`.

    :param layout: that of every frame.
    :param known: the buffers of the frames that are known already, one slot for each; owned from
        here on.
    :param name: the producer's name, for messages.
    :param on_free: gets each slot that becomes free: what keeps the buffer from its owner is let
        go.
    :param reserve: slots that no quota may promise.
    :param most: how many slots there may be, up to 64; as many as are known, at least.
    :raises ConfigError: none or more than 64 buffers.
    :raises LayoutError: the layout doesn't fit, or two frames share a buffer.
    """

    def __init__(
        self,
        layout: ImageLayout,
        known: Sequence[Buffers],
        *,
        name: str,
        on_free: Callable[[Slot], None],
        reserve: int = 0,
        most: int = MAX_SLOTS,
    ) -> None:
        waiting = list(known)

        def allocate() -> Buffers:
            if not waiting:
                raise AllocationError(
                    f'the buffers of {name} are not ours to allocate; a retired one is '
                    'replaced by the next new one'
                )
            return waiting.pop(0)

        try:
            super().__init__(
                layout, allocate, len(waiting), name=name, on_free=on_free, reserve=reserve
            )
        except BaseException:
            for buffers in waiting:
                close_buffers(buffers)
            raise
        self._slots_by_identity = {identities_of(slot.buffers): slot for slot in self.slots}
        self._most = min(max(most, len(known)), MAX_SLOTS)
        self.replaced = 0

    def slot_of(self, identities: Identities) -> Slot | None:
        """The slot whose buffers these are; ``None`` for buffers that aren't known, any more or yet."""
        slot = self._slots_by_identity.get(identities)
        if slot is not None and slot.state is SlotState.RETIRED:
            del self._slots_by_identity[identities]
            return None
        return slot

    def adopt(self, buffers: Buffers) -> Slot | None:
        """A slot for a frame's *buffers*, which weren't known. Acquire it next.

        :param buffers: owned from here on, and closed when there is no place or this raises.
        :returns: ``None`` (counted as exhausted) while every slot is in use and there may be no
            more.
        :raises LayoutError: the layout doesn't fit them, or one of them is part of another slot.
        """
        fresh, ended = self.insert(buffers, self._most)
        if ended is not None:
            self.replaced += 1
            self._slots_by_identity.pop(identities_of(ended.buffers), None)
        if fresh is not None:
            self._slots_by_identity[identities_of(fresh.buffers)] = fresh
        return fresh
