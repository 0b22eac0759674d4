"""A producer's buffers and who holds them.

A slot goes free → filling → leased → (waiting for release fences) → free. Every reuse bumps its generation, so that a stale lease
or descriptor is recognised. The producer never waits for a consumer: with no free slot it drops the new frame, counts it, and can
say who holds the others.

Thread-safety: every public method may be called from any thread. Finalizers take no lock: an abandoned lease only goes onto a
``SimpleQueue`` that the next call drains.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from zc_perception.errors import AllocationError, ConfigError, StaleFrameError
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import Fence
from zc_perception.pixel.layout import ImageLayout, validate_layout

Buffers = tuple[DmaBuf, ...]


class SlotState(Enum):
    """Where a slot is in its cycle."""

    FREE = 'free'
    FILLING = 'filling'
    LEASED = 'leased'
    WAITING = 'waiting'
    RETIRED = 'retired'


@dataclass(eq=False)
class Slot:
    """One frame's worth of buffers. Only its pool changes it."""

    index: int
    buffers: Buffers
    buffer_uid: int
    generation: int = 0
    state: SlotState = SlotState.FREE
    holders: dict[int, str] = field(default_factory=dict)
    fences: list[Fence] = field(default_factory=list)
    fence_deadline: float = 0.0


@dataclass(frozen=True)
class Lease:
    """The right to use one generation of a slot, until :meth:`BufferPool.release`."""

    pool: BufferPool
    slot: Slot
    generation: int
    number: int
    holder: str


@dataclass(frozen=True)
class PoolStatistics:
    """A snapshot for diagnostics."""

    slots: int
    states: dict[SlotState, int]
    holders: dict[str, int]
    exhausted: int
    refused_by_quota: dict[str, int]
    abandoned: int
    retired: int


class BufferPool:
    """A fixed number of slots of one layout.

    :param layout: where each plane lies in a slot's buffers.
    :param allocate: makes the buffers of one slot; called once per slot now, and again to replace a retired one.
    :param slots: how many; 3 is triple buffering.
    :param name: the producer's name, for messages.
    :param release_timeout_s: a slot whose release fences are pending for longer is retired and replaced, never reused.
    :param on_free: called, without the lock, whenever a slot becomes free: a V4L2 camera queues its buffer again.
    :raises ConfigError: less than one slot.
    :raises LayoutError: the layout doesn't fit the allocated buffers.
    """

    def __init__(
        self,
        layout: ImageLayout,
        allocate: Callable[[], Buffers],
        slots: int,
        *,
        name: str,
        release_timeout_s: float = 1.0,
        on_free: Callable[[Slot], None] | None = None,
    ) -> None:
        if slots < 1:
            raise ConfigError(f'pool of {name}: {slots} slots; at least 1 is needed, 3 or more are sensible')
        self.layout = layout
        self.name = name
        self._allocate = allocate
        self._release_timeout_s = release_timeout_s
        self._on_free = on_free
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._free_condition = threading.Condition(self._lock)
        self._uid = random.SystemRandom().getrandbits(31) << 32
        self._serial = 0
        self._next_lease = 0
        self._abandoned_leases: queue.SimpleQueue[Lease] = queue.SimpleQueue()
        self._quotas: dict[str, int] = {}
        self._held: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._exhausted = 0
        self._abandoned = 0
        self._retired = 0
        self._closed = False
        self._slots: list[Slot] = []
        try:
            for index in range(slots):
                self._slots.append(self._new_slot(index))
        except BaseException:
            self.close()
            raise

    def _new_slot(self, index: int) -> Slot:
        buffers = self._allocate()
        try:
            validate_layout(self.layout, [b.size for b in buffers])
        except BaseException:
            for buffer in buffers:
                buffer.close()
            raise
        self._serial += 1
        return Slot(index, buffers, self._uid | self._serial)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All slots, for trial imports before the first frame."""
        with self._lock:
            return tuple(self._slots)

    def set_quota(self, holder: str, frames: int | None) -> None:
        """At most *frames* leases at a time for *holder*; ``None`` for no limit of its own."""
        with self._lock:
            if frames is None:
                self._quotas.pop(holder, None)
            else:
                self._quotas[holder] = frames

    def acquire(self, index: int | None = None, *, wait_s: float = 0.0) -> Slot | None:
        """A free slot to fill, or ``None`` (counted as exhausted) when there is none.

        :param index: this very slot: a driver has filled its buffer.
        :param wait_s: how long a source that isn't live (a file) may wait for one. Live producers never wait.
        """
        deadline = time.monotonic() + wait_s
        while True:
            self.collect()
            with self._lock:
                slot = self._take_free(index)
                remaining = deadline - time.monotonic()
                if slot is not None or remaining <= 0 or self._closed:
                    self._exhausted += slot is None and wait_s == 0.0
                    return slot
                # Fences and abandoned leases can't notify, hence the bound.
                self._free_condition.wait(min(remaining, 0.05))

    def _take_free(self, index: int | None) -> Slot | None:
        """Lock held."""
        for slot in self._slots:
            if slot.state is SlotState.FREE and index in (None, slot.index):
                slot.state = SlotState.FILLING
                slot.generation += 1
                return slot
        return None

    def lease(self, slot: Slot, generation: int, holder: str) -> Lease | None:
        """One more lease on a slot that is being filled or is leased, or ``None`` (counted) when *holder* is at its quota.

        :raises StaleFrameError: that generation has been given back already.
        """
        with self._lock:
            if slot.generation != generation or slot.state not in (SlotState.FILLING, SlotState.LEASED):
                raise StaleFrameError(
                    f'{self.name} slot {slot.index}: generation {generation} is gone (now {slot.generation}, {slot.state.value}); '
                    'use the newest frame'
                )
            quota = self._quotas.get(holder)
            if quota is not None and self._held[holder] >= quota:
                self._refused[holder] += 1
                return None
            slot.state = SlotState.LEASED
            self._next_lease += 1
            slot.holders[self._next_lease] = holder
            self._held[holder] += 1
            return Lease(self, slot, generation, self._next_lease, holder)

    def release(self, lease: Lease, fence: Fence | None = None) -> None:
        """Drop a lease. With *fence*, whose ownership passes here, the slot is free only once that has signalled.

        :raises StaleFrameError: dropped before.
        """
        if os.getpid() != self._pid:
            return  # A forked child owns no leases, and the lock may be held by a thread that it doesn't have.
        with self._lock:
            freed = self._drop(lease, fence)
        self._notify_free(freed)

    def discard(self, slot: Slot) -> None:
        """Give a slot back that was acquired but not published. Does nothing when the pool was closed meanwhile.

        :raises StaleFrameError: it isn't being filled.
        """
        with self._lock:
            if slot.state is SlotState.RETIRED:
                return
            if slot.state is not SlotState.FILLING:
                raise StaleFrameError(f'{self.name} slot {slot.index} is {slot.state.value}; only one being filled can be discarded')
            freed = self._settle(slot)
        self._notify_free(freed)

    def abandon(self, lease: Lease) -> None:
        """For finalizers: drop *lease* at the next opportunity, taking no lock now."""
        self._abandoned_leases.put(lease)

    def _drop(self, lease: Lease, fence: Fence | None) -> list[Slot]:
        slot = lease.slot
        if slot.generation != lease.generation or lease.number not in slot.holders:
            raise StaleFrameError(f'{self.name} slot {slot.index}: the lease of {lease.holder} was released before')
        del slot.holders[lease.number]
        self._held[lease.holder] -= 1
        if fence is not None:
            slot.fences.append(fence)
            slot.fence_deadline = time.monotonic() + self._release_timeout_s
        return [] if slot.holders else self._settle(slot)

    def _settle(self, slot: Slot) -> list[Slot]:
        """Lock held: the slot has no holder left; free it, or let it wait for its fences."""
        pending = []
        for fence in slot.fences:
            if fence.wait(0.0):
                fence.close()
            else:
                pending.append(fence)
        slot.fences[:] = pending
        if pending:
            slot.state = SlotState.WAITING
            return []
        if self._closed:
            slot.state = SlotState.RETIRED
            self._close_buffers(slot)
            return []
        slot.state = SlotState.FREE
        self._free_condition.notify()
        return [slot]

    def _collect(self) -> list[Slot]:
        """Take back abandoned leases and slots whose fences have signalled; retire those that never will."""
        freed: list[Slot] = []
        with self._lock:
            while not self._abandoned_leases.empty():
                lease = self._abandoned_leases.get_nowait()
                self._abandoned += 1
                freed += self._drop(lease, None)
            now = time.monotonic()
            for slot in self._slots:
                if slot.state is SlotState.WAITING:
                    freed += self._settle(slot)
                    if slot.state is SlotState.WAITING and now > slot.fence_deadline:
                        self._retire(slot)
                if slot.state is SlotState.RETIRED and not self._closed:
                    freed += self._replace(slot)
        return freed

    @property
    def waiting(self) -> bool:
        """Whether a slot waits for release fences, so that :meth:`collect` is worth calling soon."""
        return any(slot.state is SlotState.WAITING for slot in self._slots)

    def collect(self) -> None:
        """Take back what came free without a call: for producers that don't :meth:`acquire` for a while."""
        self._notify_free(self._collect())

    def _retire(self, slot: Slot) -> None:
        """Lock held: a device may still write there; its buffers are closed here but never handed out again."""
        slot.state = SlotState.RETIRED
        for fence in slot.fences:
            fence.close()
        slot.fences.clear()
        self._close_buffers(slot)
        self._retired += 1

    def _replace(self, slot: Slot) -> list[Slot]:
        """Lock held: a fresh slot in place of a retired one. Without memory for it the pool goes on with the others and tries later."""
        try:
            fresh = self._new_slot(slot.index)
        except AllocationError:
            return []
        self._slots[self._slots.index(slot)] = fresh
        self._free_condition.notify()
        return [fresh]

    def _notify_free(self, slots: list[Slot]) -> None:
        if self._on_free is not None:
            for slot in slots:
                self._on_free(slot)

    @staticmethod
    def _close_buffers(slot: Slot) -> None:
        for buffer in slot.buffers:
            # Someone still looks through the mapping, such as a job that was given up: it ends with the last view.
            with contextlib.suppress(BufferError):
                buffer.close()

    def statistics(self) -> PoolStatistics:
        """A snapshot."""
        with self._lock:
            return PoolStatistics(
                slots=len(self._slots),
                states=dict(Counter(s.state for s in self._slots)),
                holders={holder: count for holder, count in self._held.items() if count},
                exhausted=self._exhausted,
                refused_by_quota=dict(self._refused),
                abandoned=self._abandoned,
                retired=self._retired,
            )

    def close(self) -> None:
        """Close all free slots' buffers now and the others' when their last lease is dropped: leased frames stay readable."""
        if os.getpid() != self._pid:
            return
        self._collect()
        with self._lock:
            self._closed = True
            for slot in self._slots:
                if slot.state in (SlotState.FREE, SlotState.FILLING):
                    slot.state = SlotState.RETIRED
                    self._close_buffers(slot)
            self._free_condition.notify_all()
