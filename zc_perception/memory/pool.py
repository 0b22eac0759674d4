"""A producer's buffers, who holds them, and when they may be used again.

:class:`BufferPool` tells the whole story: read its comment first. Before it in this file stands what it is made of: a :class:`Slot` and a
:class:`Lease` on it, the :class:`SlotSource` that makes slots, and the :class:`SlotTable` that leads each slot from one state to the next.

Source for :func:`quarantine_fence`: the kernel's *Buffer Sharing and Synchronization* on reservation objects;
``DMA_BUF_IOCTL_EXPORT_SYNC_FILE`` in dma-buf.h.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from zc_perception.backoff import BackOff
from zc_perception.errors import ConfigError, LayoutError, StaleFrameError, one_line
from zc_perception.memory.dmabuf import BufferKind, CpuAccess, DmaBuf
from zc_perception.memory.fence import DeadlineFence, Fence, SyncFile, Waker, check_timeout
from zc_perception.memory.holders import Account, HolderAccounts
from zc_perception.memory.reaper import REAPER, Remainder
from zc_perception.pixel.layout import ImageLayout, validate_layout

Buffers = tuple[DmaBuf, ...]
Allocate = Callable[[], Buffers]
Quarantine = Callable[[Sequence[DmaBuf]], Fence]

DEFAULT_SLOTS = 3
MAX_SLOTS = 64
QUARANTINE_S = 10.0
# A wait looks again after this time at the latest.
_LOOK_AGAIN_S = 1.0
# How long to leave an allocator alone that had no buffers: at first, and at most. Looking for contiguous memory is slow.
FIRST_RETRY_S, LAST_RETRY_S = 0.01, 1.0


class SlotState(Enum):
    """Where a slot is in its cycle."""

    FREE = 'free'
    FILLING = 'filling'
    LEASED = 'leased'
    WAITING = 'waiting'
    RETIRED = 'retired'


_FREE, _FILLING, _LEASED, _WAITING, _RETIRED = (
    SlotState.FREE,
    SlotState.FILLING,
    SlotState.LEASED,
    SlotState.WAITING,
    SlotState.RETIRED,
)


class PendingFence(NamedTuple):
    """A release fence, and the CLOCK_MONOTONIC second at which its slot is given up.

    A fence may be anybody's object. If it raises, its slot is given up, and the pool goes on.
    """

    fence: Fence
    deadline: float

    def signalled(self) -> bool:
        """Whether it signalled; success or error. One that can't be looked at, such as one that its giver closed, never does."""
        try:
            return self.fence.wait(0.0)
        except Exception:
            return False

    def failed(self) -> bool:
        """Whether what it signalled is an error. The device is done with the buffer all the same."""
        try:
            self.fence.check()
        except Exception:
            return True
        return False

    def close(self) -> None:
        """End the fence, whatever state its giver left it in."""
        with contextlib.suppress(Exception):
            self.fence.close()


@dataclass(eq=False)
class Slot:
    """One frame's worth of buffers. Only its pool changes it.

    :param index: its place in the pool; the index of a driver's buffer.
    :param buffer_uid: names these buffers and no others; what replaces them has another one.
    :param layout: where each plane lies in the buffers.
    :param generation: counts the uses of this place; it never goes back, not even when the buffers are replaced.
    :param leases: by number, what keeps it from being reused.
    :param fences: release fences of leases that were dropped.
    :param pins: how many :meth:`BufferPool.revoke` calls are still making a quarantine for it.
    :param condemned: its quarantine could not be made, so that nobody can say when a dead consumer's device is done.
    :param since: CLOCK_MONOTONIC second of the last :meth:`BufferPool.acquire`.
    :param sequence: the camera's number of the frame that was published in it last.
    """

    index: int
    buffers: Buffers
    buffer_uid: int
    layout: ImageLayout
    generation: int = 0
    state: SlotState = SlotState.FREE
    leases: dict[int, Lease] = field(default_factory=dict)
    fences: list[PendingFence] = field(default_factory=list)
    pins: int = 0
    condemned: bool = False
    since: float = 0.0
    sequence: int = 0

    def __repr__(self) -> str:
        return f'Slot({self.index}, generation {self.generation}, {self.state.value})'


class Lease:
    """The right to use one generation of a slot, until :meth:`BufferPool.release`. Only its pool makes and ends one.

    :param account: whose it is, for quotas and messages.
    :param number: unique in its pool.
    :param since: CLOCK_MONOTONIC second at which it began.

    ``ended``: empty while it is good, then what ended it. ``handed``: whether its holder has got the frame; before that, the frame waits
    for it. ``twin``: a holder may have several leases of one frame (:meth:`BufferPool.again`), of which one counts. ``True``: this one
    counts. ``False``: another one does. ``None``: it is the holder's only one, and counts.
    """

    __slots__ = (
        'account',
        'ended',
        'generation',
        'handed',
        'number',
        'pool',
        'since',
        'slot',
        'twin',
    )

    def __init__(
        self,
        pool: BufferPool,
        slot: Slot,
        generation: int,
        number: int,
        account: Account,
        since: float,
    ) -> None:
        self.pool = pool
        self.slot = slot
        self.generation = generation
        self.number = number
        self.account = account
        self.since = since
        self.ended = ''
        self.handed = False
        self.twin: bool | None = None

    @property
    def holder(self) -> str:
        """The name of whoever holds it."""
        return self.account.holder

    def __repr__(self) -> str:
        return f'Lease({self.holder}, slot {self.slot.index}, generation {self.generation}, {self.ended or "good"})'


def close_buffers(buffers: Sequence[DmaBuf]) -> None:
    """Close this process's descriptors and mappings. The memory goes once no device and no other process has it any more."""
    for buffer in buffers:
        # Someone still looks through the mapping, such as a job that was given up: it ends with the last view.
        with contextlib.suppress(BufferError, OSError):
            buffer.close()


@dataclass(frozen=True)
class PoolStatistics:
    """A snapshot for diagnostics.

    :param slots: how many the pool has; replacements under way count.
    :param states: how many of them are in which state.
    :param holders: leases by holder.
    :param exhausted: frames that found no free slot.
    :param refused_by_quota: by holder, for as long as it has a quota.
    :param abandoned: leases that nobody released.
    :param retired: slots given up because a release fence stayed pending, or a quarantine could not be made.
    :param quotas: what is promised to whom.
    :param reserve: what the producer keeps for itself.
    :param refused: all refusals ever.
    :param fence_errors: release fences that signalled an error.
    :param revoked: leases taken back from dead holders.
    :param failures: how often no buffers could be had for a retired slot, and exceptions out of ``on_free``, retire listeners and
        quarantines.
    :param last_failure: the text of the latest; empty without.
    """

    slots: int
    states: dict[SlotState, int]
    holders: dict[str, int]
    exhausted: int
    refused_by_quota: dict[str, int]
    abandoned: int
    retired: int
    quotas: dict[str, int] = field(default_factory=dict)
    reserve: int = 0
    refused: int = 0
    fence_errors: int = 0
    revoked: int = 0
    failures: int = 0
    last_failure: str = ''


@dataclass(frozen=True)
class Holding:
    """One lease as others see it, and for how long it has been held."""

    holder: str
    index: int
    generation: int
    held_s: float


def mapped(allocate: Allocate) -> Allocate:
    """*allocate*, which maps the buffers for the CPU as well, for a producer that uses them by the CPU: a mapping takes a descriptor, and
    at the first use of a slot there may be none left.
    """

    def allocate_mapped() -> Buffers:
        buffers = allocate()
        try:
            for buffer in buffers:
                buffer.mapping()
        except BaseException:
            close_buffers(buffers)
            raise
        return buffers

    return allocate_mapped


class SlotSource:
    """Makes a pool's slots.

    ``uid`` is the upper half of every ``buffer_uid`` of the pool. It is random: no two pools of a host use the same names.
    """

    def __init__(self, pool_name: str, layout: ImageLayout, allocate: Allocate) -> None:
        self.pool_name = pool_name
        self.layout = layout
        self.uid = random.SystemRandom().getrandbits(31)
        self._allocate = allocate
        self._serials = itertools.count(1)

    def made(self, slot: Slot) -> bool:
        """Whether *slot* is of this pool."""
        return slot.buffer_uid >> 32 == self.uid

    def slot(self, index: int, buffers: Buffers | None = None) -> Slot:
        """One slot with fresh buffers, or over *buffers*, which are owned from here on and closed when this raises.

        :raises AllocationError: there is no memory; or whatever else the allocator raises.
        :raises LayoutError: the layout doesn't fit the buffers.
        """
        buffers = buffers or self._allocate()
        try:
            validate_layout(self.layout, [buffer.size for buffer in buffers])
        except BaseException:
            close_buffers(buffers)
            raise
        return Slot(index, buffers, self.uid << 32 | next(self._serials), self.layout)

    def _check_own_memory(self, made: list[Slot]) -> None:
        """Two slots in the same memory would each write the other's frames."""
        own = {buffer.identity for buffer in made[-1].buffers}
        for other in made[:-1]:
            if shared := own & {buffer.identity for buffer in other.buffers}:
                raise LayoutError(
                    f'pool of {self.pool_name}: slots {other.index} and {made[-1].index} share the buffer with inode '
                    f'{min(identity.inode for identity in shared)}; the allocator has to make new ones for each slot'
                )

    def slots(self, count: int) -> list[Slot]:
        """All slots, or none: what was allocated before a failure is closed again. Raises as :meth:`slot`.

        :raises ConfigError: *count* is not 1 to 64.
        """
        if not 1 <= count <= MAX_SLOTS:
            raise ConfigError(
                f'pool of {self.pool_name}: {count} slots; at least 1 is needed, 3 or more are sensible, {MAX_SLOTS} are the most'
            )
        made: list[Slot] = []
        try:
            for index in range(count):
                made.append(self.slot(index))
                self._check_own_memory(made)
        except BaseException:
            for slot in made:
                close_buffers(slot.buffers)
            raise
        return made


class SlotTable:
    """The slots by index. It leads each from state to state.

    Its pool holds its lock around every call. Nothing here calls a listener or closes a buffer: the pool does that afterwards.

    :param slots: all free.
    """

    def __init__(self, slots: list[Slot]) -> None:
        self.slots = slots
        self.waiting: dict[int, Slot] = {}
        # Indices whose slot was retired and is to be replaced.
        self.missing: set[int] = set()
        self.closed = False
        self.retired = 0
        self.fence_errors = 0
        # One bit for each free index: taking the lowest or a certain one costs the same with 64 slots as with 3.
        self._free = (1 << len(slots)) - 1

    @property
    def in_use(self) -> list[Slot]:
        """Slots that haven't ended yet."""
        return [slot for slot in self.slots if slot.state is not _RETIRED]

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
        if self.closed:
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
        if not self.closed:
            self.missing.add(slot.index)
        return self._end(slot)

    def _end(self, slot: Slot) -> SlotState:
        slot.state = _RETIRED
        self.waiting.pop(slot.buffer_uid, None)
        for pending in slot.fences:
            pending.close()
        slot.fences.clear()
        return _RETIRED

    def place(self, most: int) -> tuple[int | None, Slot | None]:
        """The index for one more slot where there may be *most*, and the free slot that has to end for it."""
        if self.closed:
            return None, None
        if self.missing:
            return min(self.missing), None
        if len(self.slots) < most:
            return len(self.slots), None
        ended = min(
            (slot for slot in self.slots if slot.state is _FREE),
            key=lambda slot: slot.since,
            default=None,
        )
        return (None, None) if ended is None else (ended.index, ended)

    def replace(self, fresh: Slot) -> None:
        """Put *fresh* in the place of a retired slot, or of a free one, which ends, or behind all others."""
        if fresh.index == len(self.slots):
            self.slots.append(fresh)
        else:
            old = self.slots[fresh.index]
            if old.state is _FREE:
                self._end(old)
            fresh.generation = old.generation
            self.slots[fresh.index] = fresh
        self.missing.discard(fresh.index)
        self._free |= 1 << fresh.index

    def close(self) -> list[Slot]:
        """Hand nothing out any more. Returns the slots that ended at once."""
        self.closed = True
        self._free = 0
        self.missing.clear()
        ended = [slot for slot in self.slots if slot.state in (_FREE, _FILLING)]
        for slot in ended:
            self._end(slot)
        return ended


class BufferPool:
    """A fixed number of slots of one layout: one producer fills them, and any number of consumers hold them.

    **Who owns what.** The pool owns its slots, and their buffers until a slot *ends*: then it closes them. A consumer owns a
    :class:`Lease`, the right to use one generation of one slot. A release fence belongs to the pool from the call on that brings it, and
    lies in its slot until it has signalled. Who may hold how many frames is the matter of :class:`HolderAccounts`.

    **The way of a slot:** free → filling → leased → waiting for release fences → free.

    1. :meth:`acquire` hands a free slot to the producer, and its generation goes up by one. So a lease or a descriptor of an earlier use is
       recognised. With no free slot the producer gets none: it drops the new frame, which is counted, and :meth:`describe_holders` says who
       holds the others. It never waits for a consumer, unless it asks to (a file can wait, a camera can't). :meth:`discard` takes a slot
       back that was not published.
    2. :meth:`lease` makes one lease for each consumer, as long as the slot is being filled or leased. A consumer that has as many as it may
       gets none, which is counted, and nobody else notices.
    3. A lease waits until :meth:`hand_out` hands it to its holder. That is refused while the holder's window is full; ``on_room`` tells
       when to ask again.
    4. :meth:`release` ends a lease, and :meth:`abandon` does so for finalizers. :meth:`revoke` ends all leases of a holder that died, and
       has a quarantine made: a fence for each of its slots, because its devices may still read (:func:`quarantine_fence`).
    5. Without leases and fences the slot is free: ``on_free`` is called. A slot whose fence is pending for too long is *retired*: retire
       listeners hear of it, its buffers are closed, and a fresh slot takes its place.

    :meth:`close` ends all slots. A slot that somebody still uses then ends with its last lease and fence.

    **Threads.** Every public method may be called from any thread. An open pool has no thread of its own: every :meth:`acquire` first looks
    what came free (:meth:`collect`). A closed one is finished by the reaper's thread (:mod:`~zc_perception.memory.reaper`).

    **Locks.** One lock guards everything in here. Under it fences are only looked at, and nobody is called: the allocator, ``on_free``,
    retire listeners, ``on_room`` and quarantines are called after it has been given back. Only the reaper's lock is ever taken while it is
    held. Finalizers take no lock: an abandoned lease goes onto a ``SimpleQueue`` that the next call empties.

    **Fork.** The child's copy owns no slot and no lease: there giving something back does nothing, and asking for something raises
    StaleFrameError.

    :param layout: where each plane lies in a slot's buffers.
    :param allocate: makes the buffers of one slot; called once per slot now, and again to replace a retired one.
    :param slots: how many, 1 to 64; 3 is triple buffering.
    :param name: the producer's name, for messages.
    :param release_timeout_s: a slot whose release fence is pending for longer is retired and replaced, never reused.
    :param on_free: called, without the lock, whenever a slot becomes free: a V4L2 camera queues its buffer again.
    :param reserve: slots that no quota may promise: those that the driver needs queued, and those that the producer has in flight.
    :raises ConfigError: a number that makes no sense.
    :raises LayoutError: the layout doesn't fit the allocated buffers.
    """

    def __init__(
        self,
        layout: ImageLayout,
        allocate: Allocate,
        slots: int = DEFAULT_SLOTS,
        *,
        name: str,
        release_timeout_s: float = 1.0,
        on_free: Callable[[Slot], None] | None = None,
        reserve: int = 0,
    ) -> None:
        if not 0.0 < release_timeout_s < float('inf'):
            raise ConfigError(
                f'pool of {name}: a release timeout of {release_timeout_s} s; a number of seconds above 0 is needed'
            )
        if reserve < 0 or reserve > max(slots, 1):
            raise ConfigError(
                f'pool of {name}: {reserve} of {slots} slots reserved for the producer; 0 to {slots} can be'
            )
        self.name = name
        self._release_timeout_s = release_timeout_s
        self._on_free = on_free
        self._forked = False
        self._lock = threading.Lock()
        self._accounts = HolderAccounts(reserve)
        self._lease_numbers = itertools.count(1)
        self._abandoned_leases: queue.SimpleQueue[tuple[Lease, bool]] = queue.SimpleQueue()
        # Whom to tell, once the lock is given back, that they may be handed a frame again.
        self._rooms: list[Callable[[], object]] = []
        self._retire_listeners: dict[int, Callable[[Slot], None]] = {}
        self._listener_numbers = itertools.count()
        self._exhausted = self._abandoned = self._revoked = self._failures = 0
        self._last_failure = ''
        self._waiters = 0
        # Ends the waits in acquire(); of a closed pool, the reaper's.
        self._waker: Waker | None = None
        # Retired slots are replaced by one thread at a time, and after an allocator has failed, not again for a while.
        self._replacing = False
        self._retry = BackOff(FIRST_RETRY_S, LAST_RETRY_S)
        self._source = SlotSource(name, layout, allocate)
        self._table = SlotTable(self._source.slots(slots))
        _POOLS.add(self)

    @property
    def layout(self) -> ImageLayout:
        """That of every slot."""
        return self._source.layout

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All slots, for trial imports before the first frame."""
        with self._lock:
            return tuple(self._table.slots)

    def add_retire_listener(self, callback: Callable[[Slot], None]) -> Callable[[], None]:
        """Call *callback* once for each slot whose buffers end: retired, replaced or closed. Import caches forget them then.

        The buffers are still open during the call and closed right after it. It comes on whichever thread ended the slot, without the lock,
        never from a finalizer. What it raises is counted in the statistics.

        :returns: what removes it again.
        """
        number = next(self._listener_numbers)
        self._retire_listeners[number] = callback

        def remove() -> None:
            self._retire_listeners.pop(number, None)

        return remove

    # What the producer does.

    def acquire(self, index: int | None = None, *, wait_s: float = 0.0) -> Slot | None:
        """A free slot to fill, or ``None`` (counted as exhausted) when there is none.

        :param index: this very slot: a driver has filled its buffer.
        :param wait_s: how long a source that isn't live (a file) may wait for any slot. Live producers never wait.
        :raises ConfigError: there is no slot *index*, or it is to be waited for.
        :raises StaleFrameError: in a forked child.
        """
        if self._forked:
            raise self._not_ours()
        if index is not None:
            self._check_index(index, wait_s)
        self.collect()
        with self._lock:
            slot = None if wait_s > 0.0 and self._accounts.must_wait else self._table.take(index)
            if slot is not None or self._table.closed:
                return slot
            if not wait_s > 0.0:
                self._exhausted += 1
                return None
        return self._wait_for_slot(time.monotonic() + wait_s)

    def _check_index(self, index: int, wait_s: float) -> None:
        count = len(self._table.slots)
        if not 0 <= index < count:
            raise ConfigError(
                f'pool of {self.name}: there is no slot {index}; its {count} slots are 0 to {count - 1}'
            )
        if wait_s > 0.0:
            raise ConfigError(
                f"pool of {self.name}: slot {index} can't be waited for; wait for any, or acquire what a driver has filled"
            )

    def _wait_for_slot(self, deadline: float) -> Slot | None:
        with self._lock:
            if self._table.closed:
                return None
            self._waiters += 1
            if self._waker is None:
                self._waker = Waker()
            waker = self._waker
        try:
            while True:
                self.collect()
                with self._lock:
                    slot = None if self._accounts.must_wait else self._table.take(None)
                    if slot is not None or self._table.closed:
                        return slot
                    pending = self._table.pending_fences()
                    retry_at = [self._retry.due] if self._table.missing else []
                now = time.monotonic()
                if now >= deadline:
                    return None
                look_again_at = min(
                    [now + _LOOK_AGAIN_S, deadline, *(p.deadline for p in pending), *retry_at]
                )
                waker.wait(max(0.001, look_again_at - now), [p.fence for p in pending])
        finally:
            with self._lock:
                self._waiters -= 1
                if self._waiters:
                    waker.wake()  # it is another one's turn to look at the fences
                elif self._waker is waker:
                    self._waker = None

    def discard(self, slot: Slot, generation: int | None = None) -> None:
        """Give a slot back that was acquired but not published. Does nothing when the pool was closed meanwhile.

        :param generation: the one that was acquired, to be sure that nobody else has acquired the slot since.
        :raises StaleFrameError: it isn't being filled, or is another pool's.
        """
        if self._forked:
            return
        with self._lock:
            if not self._source.made(slot):
                raise StaleFrameError(
                    f'{slot!r} is not of the pool of {self.name}; discard it in its own pool'
                )
            if slot.state is _RETIRED:
                return
            if slot.state is not _FILLING:
                raise StaleFrameError(
                    f'{self.name} slot {slot.index} is {slot.state.value}; only one being filled can be discarded'
                )
            if generation is not None and generation != slot.generation:
                raise self._stale(slot, generation)
            reached = self._table.settle(slot)
            if self._waker is not None:
                self._waker.wake()
        self._tell(slot, reached)

    # What consumers do.

    def lease(self, slot: Slot, generation: int, holder: str) -> Lease | None:
        """One more lease on a slot that is being filled or is leased, or ``None`` (counted) when *holder* is at its quota.

        :raises StaleFrameError: that generation has been given back already; the slot is another pool's; in a forked child.
        """
        if self._forked:
            raise self._not_ours()
        with self._lock:
            if slot.generation != generation or (
                slot.state is not _FILLING and slot.state is not _LEASED
            ):
                raise self._stale(slot, generation)
            if not self._source.made(slot):
                raise StaleFrameError(
                    f'{slot!r} is not of the pool of {self.name}; lease it from its own pool'
                )
            account = self._accounts.take(holder)
            if account is None:
                return None
            slot.state = _LEASED
            lease = Lease(
                self, slot, generation, next(self._lease_numbers), account, time.monotonic()
            )
            slot.leases[lease.number] = lease
            return lease

    def again(self, lease: Lease) -> Lease:
        """One more lease for the holder of *lease*, which doesn't count: it holds that frame already.

        :raises StaleFrameError: *lease* has ended; in a forked child.
        """
        if self._forked:
            raise self._not_ours()
        slot = lease.slot
        with self._lock:
            if slot.leases.get(lease.number) is not lease or lease.pool is not self:
                raise self._not_good(lease, None)
            twin = Lease(
                self, slot, lease.generation, next(self._lease_numbers), lease.account, lease.since
            )
            slot.leases[twin.number] = twin
            lease.twin, twin.twin = lease.twin is not False, False
            return twin

    def hand_out(self, lease: Lease) -> bool:
        """The holder gets what has been waiting for it; ``False`` while its window is full: its ``on_room`` says when to ask again.

        One thread at a time asks for a holder.
        """
        account = lease.account
        with self._lock:
            window = account.window
            waits = (
                window is not None
                and account.frames > window
                and not lease.handed
                and not lease.ended
            )
            if waits and self._frames_in_hand(account) >= (window or 0):
                account.waits = True
                return False
            lease.handed = True
            return True

    def _frames_in_hand(self, account: Account) -> int:
        """Lock held."""
        return sum(
            any(lease.handed and lease.account is account for lease in slot.leases.values())
            for slot in self._table.slots
        )

    def release(self, lease: Lease, fence: Fence | None = None) -> None:
        """Drop a lease. With *fence*, whose ownership passes here in any case, the slot is free only once that has signalled.

        :raises StaleFrameError: dropped or revoked before, or another pool's.
        """
        if self._forked:
            return
        slot = lease.slot
        with self._lock:
            if slot.leases.get(lease.number) is not lease or lease.pool is not self:
                raise self._not_good(lease, fence)
            if fence is not None:
                self._table.add_fence(slot, fence, time.monotonic() + self._release_timeout_s)
            reached = self._drop(lease, 'released')
        if reached is not None:
            self._tell(slot, reached)
        if self._rooms:
            self._tell_rooms()

    def abandon(self, lease: Lease, *, forgotten: bool = True) -> None:
        """For finalizers: drop *lease* at the next opportunity, taking no lock now.

        :param forgotten: whether that is to be counted: its owner should have released it.
        """
        if self._forked:
            return
        self._abandoned_leases.put((lease, forgotten))
        waker = self._waker
        if waker is not None:
            waker.wake()

    def _drop(self, lease: Lease, how: str) -> SlotState | None:
        """Lock held; :meth:`_tell_rooms` is to be called without it."""
        account = lease.account
        if lease.twin is None or not self._inherited(lease):
            room = self._accounts.give_back(account, lease.handed)
            if room is not None:
                self._rooms.append(room)
        reached = self._table.drop(lease, how)
        if self._waker is not None and (reached is not None or account.lossless):
            self._waker.wake()
        return reached

    @staticmethod
    def _inherited(lease: Lease) -> bool:
        """Lock held: whether the holder of a twin has the frame by another lease, which counts from now on."""
        if not lease.twin:
            return True
        twins = (
            other
            for other in lease.slot.leases.values()
            if other.twin is False and other.account is lease.account
        )
        heir = next(twins, None)
        if heir is None:
            return False
        heir.twin, heir.handed = True, lease.handed
        return True

    # What is done when a consumer has died.

    def revoke(
        self, holder: str, quarantine: Quarantine | None = None, *, timeout_s: float = QUARANTINE_S
    ) -> int:
        """Take back every lease of a holder that died, and forget its quota. Releasing one of them raises StaleFrameError afterwards.

        :param quarantine: makes the fence, owned here from then on, that signals when no device of the dead process uses the buffers any
            more. Called without the lock, once for each slot. Where it raises, the slot is retired when its other holders are done.
        :param timeout_s: how long that fence may be pending before the slot is retired and replaced.
        :returns: how many leases it had.
        """
        if self._forked:
            return 0
        with self._lock:
            leases = [
                lease
                for slot in self._table.slots
                for lease in slot.leases.values()
                if lease.holder == holder
            ]
            pinned = {lease.slot.buffer_uid: lease.slot for lease in leases}
            for slot in pinned.values():
                slot.pins += 1  # it must not become free before its quarantine is there
            for lease in leases:
                self._drop(lease, 'revoked')
            self._revoked += len(leases)
            self._accounts.forget(holder)
        self._tell_rooms()
        fences: dict[int, Fence | None] = {}
        try:
            for uid, slot in pinned.items():
                try:
                    fences[uid] = None if quarantine is None else quarantine(slot.buffers)
                except Exception as error:
                    self._count_failure(error, f'the quarantine of {slot!r}')
        finally:
            for uid, slot in pinned.items():
                self._unpin(
                    slot, fences.get(uid), time.monotonic() + timeout_s, condemn=uid not in fences
                )
        return len(leases)

    def _unpin(self, slot: Slot, fence: Fence | None, deadline: float, *, condemn: bool) -> None:
        with self._lock:
            slot.pins -= 1
            slot.condemned |= condemn
            if fence is not None:
                self._table.add_fence(slot, fence, deadline)
            if slot.leases or slot.pins:
                return
            reached = self._table.settle(slot)
            if self._waker is not None:
                self._waker.wake()
        self._tell(slot, reached)

    # What came free without a call.

    @property
    def waiting(self) -> bool:
        """Whether a slot waits for release fences, so that :meth:`collect` is worth calling soon."""
        return bool(self._table.waiting)

    def collect(self) -> None:
        """Take back what came free without a call: for producers that don't :meth:`acquire` for a while."""
        table = self._table
        if (
            table.waiting or table.missing or not self._abandoned_leases.empty()
        ) and not self._forked:
            self._collect()

    def _collect(self) -> None:
        """Take back abandoned leases and slots whose fences have signalled, retire those that never will, and replace retired ones."""
        freed, ended = [], []
        with self._lock:
            while not self._abandoned_leases.empty():
                lease, forgotten = self._abandoned_leases.get_nowait()
                if lease.slot.leases.get(lease.number) is lease:
                    self._abandoned += forgotten
                    reached = self._drop(lease, 'abandoned' if forgotten else 'released')
                    if reached is _FREE:
                        freed.append(lease.slot)
                    elif reached is _RETIRED:
                        ended.append(lease.slot)
            signalled, over = self._table.settle_waiting()
            freed += signalled
            ended += over
            if self._waker is not None and (freed or ended):
                self._waker.wake(len(freed) + len(ended))
            wanted = (
                [] if self._replacing or self._retry.remaining_s else sorted(self._table.missing)
            )
            if wanted:
                self._replacing = True
        self._tell_ended(ended)
        for slot in freed:
            self._tell_freed(slot)
        if self._rooms:
            self._tell_rooms()
        if wanted:
            self._replace(wanted)

    def _replace(self, wanted: list[int]) -> None:
        """Fresh slots in place of retired ones. Without memory for them the pool goes on with the others, and tries again later."""
        failed = True
        try:
            for index in wanted:
                fresh = self._source.slot(index)
                with self._lock:
                    welcome = index in self._table.missing
                    if welcome:
                        self._table.replace(fresh)
                        if self._waker is not None:
                            self._waker.wake()
                if welcome:
                    self._tell_freed(fresh)
                else:
                    close_buffers(fresh.buffers)
            failed = False
        except Exception as error:
            self._count_failure(error)
        finally:
            with self._lock:
                self._replacing = False
                if failed:
                    self._retry.failed()
                else:
                    self._retry.start_over()

    # Who is told. Always without the lock.

    def _tell(self, slot: Slot, reached: SlotState) -> None:
        if reached is _FREE:
            self._tell_freed(slot)
        elif reached is _RETIRED:
            self._tell_ended((slot,))

    def _tell_freed(self, slot: Slot) -> None:
        if self._on_free is not None:
            self._call(self._on_free, slot, 'on_free')

    def _tell_ended(self, slots: Iterable[Slot]) -> None:
        """These slots' buffers end. Whoever caches something by them forgets it while their inodes still are taken."""
        for slot in slots:
            for listener in tuple(self._retire_listeners.values()):
                self._call(listener, slot, 'a retire listener')
            close_buffers(slot.buffers)

    def _call(self, callback: Callable[[Slot], None], slot: Slot, what: str) -> None:
        """What it raises is counted: it is neither the consumer's nor the producer's fault."""
        try:
            callback(slot)
        except Exception as error:
            self._count_failure(error, f'{what} for {slot!r}')

    def _count_failure(self, error: Exception, what: str = '') -> None:
        with self._lock:
            self._failures += 1
            self._last_failure = f'{what}: {one_line(error)}' if what else one_line(error)

    def _tell_rooms(self) -> None:
        """No lock held."""
        while self._rooms:
            try:
                room = self._rooms.pop()
            except IndexError:  # somebody else is doing it
                return
            room()

    # Errors, for the caller to raise.

    def _stale(self, slot: Slot, generation: int) -> StaleFrameError:
        what = 'is gone' if generation <= slot.generation else 'never was'
        return StaleFrameError(
            f'{self.name} slot {slot.index}: generation {generation} {what} (now {slot.generation}, {slot.state.value}); '
            'use the newest frame'
        )

    def _not_ours(self) -> StaleFrameError:
        return StaleFrameError(
            f'the pool of {self.name} belongs to the process that made it; a forked child makes its own'
        )

    def _not_good(self, lease: Lease, fence: Fence | None) -> StaleFrameError:
        """Lock held. The fence is ours, unless it is the very one that came with the first release."""
        if fence is not None and all(fence is not pending.fence for pending in lease.slot.fences):
            fence.close()
        if lease.pool is not self:
            return StaleFrameError(
                f'{lease!r} is of the pool of {lease.pool.name}, not of {self.name}; release it there'
            )
        return StaleFrameError(
            f'{self.name} slot {lease.slot.index}: the lease of {lease.holder} was {lease.ended or "ended"} before'
        )

    # How many frames each holder may have.

    def set_quota(
        self,
        holder: str,
        frames: int | None,
        *,
        depth: int = 0,
        on_room: Callable[[], object] | None = None,
    ) -> None:
        """*holder* may have at most *frames* in hand at a time, and the *depth* newest ones may wait for it besides; ``None`` for no limit
        of its own, and when that consumer is gone.

        The same newest frames wait for everybody, so only the greatest depth is taken from the slots. Nobody checks that there are as many:
        :meth:`grant` does.

        :param on_room: called, without the lock, when :meth:`hand_out` has refused it a frame and wouldn't any more.
        """
        with self._lock:
            room = self._accounts.set_quota(holder, frames, depth, on_room)
        if room is not None:
            room()

    def grant(
        self,
        holder: str,
        window: int,
        depth: int,
        *,
        on_room: Callable[[], object] | None = None,
        lossless: bool = False,
        alone: bool = False,
        whole: bool = False,
    ) -> tuple[int, int]:
        """As much of *window* and *depth* as fits what is left, at least one of each; (0, 0), and no quota, if not even that does.

        A window that fits is granted whole, but one of 2 only with *whole*. Otherwise two slots are left for whoever comes next, where
        that is possible.

        :param lossless: a producer that can wait (:meth:`acquire`) does so rather than that this holder loses a frame.
        :param alone: grant one of each in any case to the only one who was promised something.
        :param whole: this holder took part in the agreement, which has counted its window.
        """
        with self._lock:
            granted = self._accounts.grant(
                holder, window, depth, len(self._table.slots), on_room, alone=alone, whole=whole
            )
            if granted[0]:
                self._accounts.accounts[holder].lossless = lossless
            return granted

    def free_name(self, wanted: str) -> str:
        """*wanted*, or that with a number if somebody of that name has leases or a quota already."""
        with self._lock:
            accounts = self._accounts.accounts
            names = itertools.chain(
                [wanted], (f'{wanted}#{number}' for number in itertools.count(2))
            )
            return next(name for name in names if name not in accounts)

    @property
    def unpromised(self) -> int:
        """How many slots are left for quotas; below 0 where more were promised than there are."""
        with self._lock:
            return len(self._table.slots) - self._accounts.reserve - self._accounts.promised

    # Slots over buffers that others allocate.

    def insert(self, buffers: Buffers, most: int) -> tuple[Slot | None, Slot | None]:
        """Make a slot over *buffers*, which somebody else has allocated. Acquire it next.

        While there are fewer than *most* slots, it is one more. Then it takes the place of a retired slot, or of the free slot that was
        unused for the longest time, which ends.

        :param buffers: owned from here on, and closed when there is no place or this raises.
        :returns: the slot, and the one that ended for it; ``None`` twice, and counted as exhausted, while every slot is in use.
        :raises LayoutError: the layout doesn't fit them, or one of them is part of another slot.
        """
        fresh, ended = None, None
        try:
            with self._lock:
                self._check_apart(buffers)
                index, ended = self._table.place(most)
                if index is None:
                    self._exhausted += 1
                else:
                    fresh = self._source.slot(index, buffers)
                    self._table.replace(fresh)
        except LayoutError:
            close_buffers(buffers)
            raise
        if fresh is None:
            close_buffers(buffers)
        elif ended is not None:
            self._tell_ended((ended,))
        return fresh, ended

    def _check_apart(self, buffers: Buffers) -> None:
        """Lock held."""
        ours = {buffer.identity for buffer in buffers}
        for slot in self._table.in_use:
            if ours & {buffer.identity for buffer in slot.buffers}:
                raise LayoutError(
                    f'a new frame of {self.name} is partly in the buffers of {slot!r}; frames must not share buffers'
                )

    # What the pool says about itself.

    def holdings(self) -> tuple[Holding, ...]:
        """Who holds what and since when, the oldest lease first."""
        with self._lock:
            return self._holdings(time.monotonic())

    def _holdings(self, now: float) -> tuple[Holding, ...]:
        """Lock held."""
        found = [
            Holding(lease.holder, slot.index, lease.generation, now - lease.since)
            for slot in self._table.slots
            for lease in slot.leases.values()
        ]
        return tuple(sorted(found, key=lambda holding: -holding.held_s))

    def describe_holders(self) -> str:
        """One line for the log when a frame had to be dropped: who holds how many slots, which generations, and for how long.

        For example ``camera: 0 of 3 slots free; npu holds 2 (slot 0 generation 7 for 1.25 s, slot 1 generation 8 for 0.03 s); slot 2
        generation 9 waits for 1 release fence``.
        """
        with self._lock:
            now, slots = time.monotonic(), self._table.slots
            by_holder: dict[str, list[str]] = {}
            for lease in self._holdings(now):
                where = (
                    f'slot {lease.index} generation {lease.generation} for {lease.held_s:.2f} s'
                )
                by_holder.setdefault(lease.holder, []).append(where)
            free = sum(slot.state is _FREE for slot in slots)
            parts = [f'{self.name}: {free} of {len(slots)} slots free']
            parts += [
                f'{holder} holds {len(where)} ({", ".join(where)})'
                for holder, where in by_holder.items()
            ]
            for slot in slots:
                place = f'slot {slot.index} generation {slot.generation}'
                if slot.state is _FILLING:
                    parts.append(f'{place} is being filled for {now - slot.since:.2f} s')
                elif slot.state is _WAITING:
                    parts.append(
                        f'{place} waits for {len(slot.fences)} release fence{"s" if len(slot.fences) != 1 else ""}'
                    )
                elif slot.state is _RETIRED:
                    parts.append(f'{place} is retired')
            return '; '.join(parts)

    def in_hand(self, holder: str) -> tuple[tuple[int, float], ...]:
        """The frames that were handed to *holder* and that it hasn't released: the sequence of each and for how many seconds."""
        with self._lock:
            now = time.monotonic()
            found = {
                slot.buffer_uid: (slot.sequence, now - lease.since)
                for slot in self._table.slots
                for lease in slot.leases.values()
                if lease.handed and lease.account.holder == holder
            }
        return tuple(sorted(found.values()))

    def statistics(self) -> PoolStatistics:
        """A snapshot."""
        with self._lock:
            table, accounts = self._table, self._accounts
            return PoolStatistics(
                slots=len(table.slots),
                states=dict(Counter(slot.state for slot in table.slots)),
                holders=accounts.held,
                exhausted=self._exhausted,
                refused_by_quota=accounts.refused,
                abandoned=self._abandoned,
                retired=table.retired,
                quotas=accounts.quotas,
                reserve=accounts.reserve,
                refused=accounts.refused_total,
                fence_errors=table.fence_errors,
                revoked=self._revoked,
                failures=self._failures,
                last_failure=self._last_failure,
            )

    # The end.

    def close(self) -> None:
        """Hand nothing out any more. Free slots' buffers end now, the others' when their last lease is dropped and their last fence has
        signalled or timed out, also when nobody calls the pool again (:mod:`~zc_perception.memory.reaper`): leased frames stay readable.
        """
        if self._forked:
            return
        self.collect()
        with self._lock:
            if self._table.closed:
                return
            ended = self._table.close()
            if self._waker is not None:
                self._waker.wake(self._waiters)
            self._waker = REAPER.watch(self) if self._table.in_use else None
        self._tell_ended(ended)

    def reap(self) -> Remainder:
        """For the reaper, once the pool is closed."""
        self.collect()
        with self._lock:
            pending = self._table.pending_fences()
            left = len(self._table.in_use)
            if not left:
                self._waker = None
            return Remainder(
                left, [p.fence for p in pending], min((p.deadline for p in pending), default=None)
            )

    def _after_fork(self) -> None:
        """In the child: the lock may be held by a thread that exists only in the parent."""
        self._forked = True
        self._lock = threading.Lock()


def quarantine_fence(buffers: Sequence[DmaBuf], timeout_s: float) -> Fence:
    """What has to signal before *buffers*, those of one frame, may be reused. The caller owns it.

    Where devices are busy with them right now, that is a sync_file of all their fences: their drivers add fences, to every buffer of a
    job. Where nothing is pending that means nothing, because most drivers add none; there, on kernels without the ioctl, and when the
    fences can't be had (no descriptor left), it is a :class:`DeadlineFence` of *timeout_s*. A frame of memfds alone is over at once: no
    device takes one, and the process that read it is gone.

    :param timeout_s: seconds that a job may run, the longest submit timeout of all.
    :raises ValueError: the timeout is negative, infinite or NaN.
    """
    check_timeout(timeout_s)
    if all(buffer.kind is BufferKind.MEMFD for buffer in buffers):
        return DeadlineFence(0.0)
    merged: SyncFile | None = None
    try:
        for buffer in buffers:
            fence = buffer.export_fence(CpuAccess.WRITE)
            if fence is None:
                continue
            if fence.wait(0.0):
                fence.close()
            elif merged is None:
                merged = fence
            else:
                merged = _merge(merged, fence)
    except OSError:
        if merged is not None:
            merged.close()
        merged = None
    return DeadlineFence(timeout_s) if merged is None else merged


def _merge(first: SyncFile, second: SyncFile) -> SyncFile:
    try:
        return SyncFile.merge('zc_quarantine', first, second)
    finally:
        first.close()
        second.close()


# The child's copies are told that they are copies.
_POOLS: weakref.WeakSet[BufferPool] = weakref.WeakSet()


def live_pools() -> list[BufferPool]:
    """The pools of this process that somebody still has, also closed ones with leases."""
    while True:
        with contextlib.suppress(RuntimeError):  # one was made meanwhile
            return list(_POOLS)


def _after_fork_in_child() -> None:
    for pool in _POOLS:
        pool._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
