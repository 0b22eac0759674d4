# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""
A pool over buffers that something else allocates, orders, and may replace at any time.

A GStreamer element's buffers are an example: their number shows only as they come by. A buffer is
recognised by what its descriptors refer to. So one buffer is one slot for as long as it lives, and
devices keep their imports of it.
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
    """Return the identities of one frame's buffers, the same for all descriptors of them."""
    return tuple(buffer.identity for buffer in buffers)


class BorrowedMemory(NamedTuple):
    """
    A part of the memory that a borrowed descriptor refers to.

    The descriptor is never closed here, only duplicated.

    :param offset: where the part begins, in bytes.
    :param size: its bytes.
    """

    number: int
    offset: int
    size: int

    def identity(self) -> BufferIdentity:
        """
        Identify the memory that it refers to.

        The descriptor's number alone says nothing: it may be another buffer's as soon as its owner
        has closed it.
        """
        status = os.fstat(self.number)
        return BufferIdentity(status.st_dev, status.st_ino)


def own_descriptors(parts: Iterable[BorrowedMemory], heap: str | None = None) -> Buffers:
    """
    Return descriptors of our own, one for each part, or none at all.

    :param heap: the allocator's name where it is known.
    :raises AllocationError: a part is neither a dma-buf nor memory whose size can't change.
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
    """
    For each slot in use: the calls that give its buffers back to their owner.

    The last user of the slot makes these calls, on its own thread. The lock guards the table of
    calls. The calls are made without it. Pass :meth:`free` to the pool as ``on_free``, and
    :meth:`ended` to its ``add_retire_listener``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, list[Callable[[], object]]] = {}
        self._parked: list[Callable[[], object]] = []
        self._closing = False

    def hold(self, slot: Slot, give_back: Callable[[], object]) -> None:
        """Register a slot that is in use; *give_back* is called when it isn't any more."""
        with self._lock:
            self._held[slot.buffer_uid] = [give_back]

    def hold_too(self, slot: Slot, give_back: Callable[[], object]) -> bool:
        """
        Register one more *give_back* for a slot that is in use already.

        ``False``: it isn't in use.
        """
        with self._lock:
            held = self._held.get(slot.buffer_uid)
            if held is None:
                return False
            held.append(give_back)
            return True

    def free(self, slot: Slot) -> None:
        """Give back a slot that nothing uses any more: its owner may fill the buffers again."""
        with self._lock:
            held = self._held.pop(slot.buffer_uid, [])
        for give_back in held:
            give_back()

    def ended(self, slot: Slot) -> None:
        """
        Keep a retired slot's buffers from their owner until :meth:`end_close`.

        A device may still read them.
        """
        if self._closing:
            self.free(slot)
        else:
            with self._lock:
                self._parked += self._held.pop(slot.buffer_uid, [])

    def begin_close(self) -> None:
        """Give back each slot that ends from now on at once: the pool will be closed."""
        self._closing = True

    def end_close(self) -> None:
        """Give back the rest: as far as is known, no device reads any more."""
        parked, self._parked = self._parked, []
        for give_back in parked:
            give_back()


class ForeignBufferPool(BufferPool):
    """
    A pool over buffers that a source has allocated, and that the source may replace.

    A GStreamer pipeline is such a source. Which buffers there are shows as frames come.
    :meth:`slot_of` finds the slot of buffers that came before, :meth:`adopt` makes a slot for new
    ones. Once there are *most* slots, new buffers take the place of the free slot that was unused
    for the longest time: so a source that makes new buffers for ever doesn't keep all of them in
    memory. A retired slot stays empty until new buffers come, because the pool can't ask the
    source for any.

    The producer's thread calls these two. Everything else is as in :class:`BufferPool`.

    :param layout: the layout of every frame.
    :param known: the buffers of the frames that are known already, one slot for each; owned from
        here on.
    :param name: the producer's name, for messages.
    :param on_free: gets each slot that becomes free, and gives the buffers back to their owner.
    :param reserve: slots that no quota may promise.
    :param most: how many slots there may be, up to 64; at least the number that is known.
    :raises ConfigError: no buffers, or more than 64.
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
        """Return the slot of these buffers; ``None`` if they aren't known."""
        slot = self._slots_by_identity.get(identities)
        if slot is not None and slot.state is SlotState.RETIRED:
            del self._slots_by_identity[identities]
            return None
        return slot

    def adopt(self, buffers: Buffers) -> Slot | None:
        """
        Make a slot for a frame's *buffers*, which weren't known.

        Acquire it next.

        :param buffers: owned from here on, and closed when there is no place or this raises.
        :returns: ``None`` (counted as exhausted) while every slot is in use and no more slots are
            allowed.
        :raises LayoutError: the layout doesn't fit them, or one of them is part of another slot.
        """
        fresh, ended = self.insert(buffers, self._most)
        if ended is not None:
            self.replaced += 1
            self._slots_by_identity.pop(identities_of(ended.buffers), None)
        if fresh is not None:
            self._slots_by_identity[identities_of(fresh.buffers)] = fresh
        return fresh
