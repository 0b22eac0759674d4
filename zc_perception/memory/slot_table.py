"""The states of a pool's slots. Everything here runs under the pool's lock, calls nobody and closes no buffer."""

from __future__ import annotations

import time
from collections.abc import Iterator

from zc_perception.memory.fence import Fence
from zc_perception.memory.slot import Lease, PendingFence, Slot, SlotState

_FREE, _FILLING, _LEASED, _WAITING, _RETIRED = SlotState.FREE, SlotState.FILLING, SlotState.LEASED, SlotState.WAITING, SlotState.RETIRED


class SlotTable:
    """Slots of the present configuration by index, and those of earlier ones that are still in use.

    :param slots: the first configuration's, all free.
    """

    def __init__(self, slots: list[Slot]) -> None:
        self.slots = slots
        self.waiting: dict[int, Slot] = {}
        self.ending: dict[int, Slot] = {}
        # Indices whose slot was retired and is to be replaced.
        self.missing: set[int] = set()
        self.closed = False
        self.retired = 0
        self.fence_errors = 0
        # One bit for each free index: taking the lowest or a certain one costs the same with 64 slots as with 3.
        self._free = (1 << len(slots)) - 1
        self._last_generations: dict[int, int] = {}

    def __iter__(self) -> Iterator[Slot]:
        """All slots, of whichever configuration."""
        yield from self.slots
        yield from self.ending.values()

    @property
    def in_use(self) -> list[Slot]:
        """Slots that haven't ended yet."""
        return [slot for slot in self if slot.state is not _RETIRED]

    def take(self, index: int | None) -> Slot | None:
        """A free slot, now being filled. Without *index* the lowest: the memory that was used last."""
        free = self._free
        bit = free & -free if index is None else free & 1 << index
        if not bit:
            return None
        self._free = free ^ bit
        slot = self.slots[bit.bit_length() - 1]
        slot.state = _FILLING
        slot.generation += 1
        slot.since = time.monotonic()
        return slot

    def drop(self, lease: Lease, how: str) -> SlotState | None:
        """End a good lease. Returns the state that its slot has reached, or ``None`` while others hold it."""
        slot = lease.slot
        del slot.leases[lease.number]
        lease.ended = how
        return None if slot.leases or slot.pins else self.settle(slot)

    @staticmethod
    def add_fence(slot: Slot, fence: Fence, deadline: float) -> None:
        """Keep *slot* from being reused before *fence* has signalled."""
        if all(fence is not pending.fence for pending in slot.fences):
            slot.fences.append(PendingFence(fence, deadline))

    def settle(self, slot: Slot) -> SlotState:
        """Free a slot that nobody holds, let it wait for its fences, or end it: RETIRED says that its buffers are the caller's to close."""
        overdue = bool(slot.fences) and self._look_at_fences(slot) < time.monotonic()
        if overdue or (slot.condemned and not slot.fences):
            return self._retire(slot)
        if slot.fences:
            slot.state = _WAITING
            self.waiting[slot.buffer_uid] = slot
            return _WAITING
        if self.closed or (self.ending and slot.buffer_uid in self.ending):
            return self._end(slot)
        if slot.state is _WAITING:
            del self.waiting[slot.buffer_uid]
        slot.state = _FREE
        self._free |= 1 << slot.index
        return _FREE

    def _look_at_fences(self, slot: Slot) -> float:
        """Drop the fences that have signalled; the earliest deadline of the others."""
        pending = []
        for fence in slot.fences:
            if fence.signalled():
                self.fence_errors += fence.failed()
                fence.close()
            else:
                pending.append(fence)
        slot.fences[:] = pending
        return min((fence.deadline for fence in pending), default=float('inf'))

    def settle_waiting(self) -> tuple[list[Slot], list[Slot]]:
        """Look at all fences; returns the slots that are free now, and those that ended."""
        freed, ended = [], []
        for slot in list(self.waiting.values()):
            reached = self.settle(slot)
            if reached is _FREE:
                freed.append(slot)
            elif reached is _RETIRED:
                ended.append(slot)
        return freed, ended

    def pending_fences(self) -> list[PendingFence]:
        """What slots wait for."""
        return [pending for slot in self.waiting.values() for pending in slot.fences]

    def _retire(self, slot: Slot) -> SlotState:
        """A device may still use its buffers: this process gives them up, and never hands them out again."""
        self.retired += 1
        if not self.closed and slot.buffer_uid not in self.ending:
            self.missing.add(slot.index)
        return self._end(slot)

    def _end(self, slot: Slot) -> SlotState:
        slot.state = _RETIRED
        self.waiting.pop(slot.buffer_uid, None)
        self.ending.pop(slot.buffer_uid, None)
        for pending in slot.fences:
            pending.close()
        slot.fences.clear()
        return _RETIRED

    def replace(self, fresh: Slot) -> None:
        """Put *fresh* in the place of a retired slot."""
        fresh.generation = self.slots[fresh.index].generation
        self.slots[fresh.index] = fresh
        self.missing.discard(fresh.index)
        self._free |= 1 << fresh.index

    def reconfigure(self, fresh: list[Slot]) -> list[Slot]:
        """Use *fresh* from now on. Returns the slots that ended at once; those that somebody fills, holds or waits for end later."""
        ended = []
        for slot in self.slots:
            self._last_generations[slot.index] = slot.generation
            if slot.state is _FREE:
                self._end(slot)
                ended.append(slot)
            elif slot.state is not _RETIRED:
                self.ending[slot.buffer_uid] = slot
        for slot in fresh:
            slot.generation = self._last_generations.get(slot.index, 0)
        self.slots = fresh
        self.missing.clear()
        self._free = (1 << len(fresh)) - 1
        return ended

    def close(self) -> list[Slot]:
        """Hand nothing out any more. Returns the slots that ended at once."""
        self.closed = True
        self._free = 0
        self.missing.clear()
        ended = [slot for slot in self if slot.state in (_FREE, _FILLING)]
        for slot in ended:
            self._end(slot)
        return ended
