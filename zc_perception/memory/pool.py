"""A producer's buffers and who holds them.

A slot goes free → filling → leased → (waiting for release fences) → free. Every reuse bumps its generation, so that a stale lease
or descriptor is recognised. The producer never waits for a consumer: with no free slot it drops the new frame, counts it, and can
say who holds the others.

Thread-safety: every public method may be called from any thread. The allocator, ``on_free``, retire listeners and quarantines are called
without the lock. Finalizers take no lock: an abandoned lease only goes onto a ``SimpleQueue`` that the next call drains. Fork: the child's
copy owns no slot and no lease; there giving something back does nothing and asking for something raises StaleFrameError.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable

from zc_perception.errors import ConfigError
from zc_perception.memory.pool_events import PoolEvents
from zc_perception.memory.pool_statistics import Holding, PoolStatistics, describe_holders, holdings
from zc_perception.memory.reaper import REAPER, Remainder
from zc_perception.memory.slot import Buffers, Lease, Slot, SlotState, close_buffers
from zc_perception.memory.slot_lending import Quarantine, SlotLending
from zc_perception.memory.slot_source import Allocate, SlotSource
from zc_perception.pixel.layout import ImageLayout

__all__ = ['DEFAULT_SLOTS', 'Allocate', 'BufferPool', 'Buffers', 'Holding', 'Lease', 'PoolStatistics', 'Quarantine', 'Slot', 'SlotState']

DEFAULT_SLOTS = 3


class BufferPool(SlotLending):
    """A fixed number of slots of one layout.

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
            raise ConfigError(f'pool of {name}: a release timeout of {release_timeout_s} s; a number of seconds above 0 is needed')
        if reserve < 0 or reserve > max(slots, 1):
            raise ConfigError(f'pool of {name}: {reserve} of {slots} slots reserved for the producer; 0 to {slots} can be')
        super().__init__(name, SlotSource.first(name, layout, allocate), slots, release_timeout_s, reserve, PoolEvents(on_free))
        _POOLS.add(self)

    @property
    def layout(self) -> ImageLayout:
        """That of slots which are made from now on. A frame has its own slot's."""
        return self._source.layout

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All slots of the present configuration, for trial imports before the first frame."""
        with self._lock:
            return tuple(self._table.slots)

    def add_retire_listener(self, callback: Callable[[Slot], None]) -> Callable[[], None]:
        """Call *callback* once for each slot whose buffers end: retired, reconfigured or closed. Import caches forget them then.

        The buffers are still open during the call and closed right after it. It comes on whichever thread ended the slot, without the lock,
        never from a finalizer. What it raises is counted in the statistics.

        :returns: what removes it again.
        """
        return self._events.add_retire_listener(callback)

    def set_quota(
        self, holder: str, frames: int | None, *, depth: int = 0, overcommit: bool = False, on_room: Callable[[], object] | None = None
    ) -> None:
        """*holder* may have at most *frames* in hand at a time, and the *depth* newest ones may wait for it besides; ``None`` for no limit
        of its own, and when that consumer is gone.

        The same newest frames wait for everybody, so only the greatest depth is taken from the slots.

        :param overcommit: promise more than there is: the producer may find no free slot then.
        :param on_room: called, without the lock, when :meth:`hand_out` has refused it a frame and wouldn't any more.
        :raises ConfigError: negative, or all quotas and the reserve together are more than the slots.
        """
        with self._lock:
            room = self._accounts.set_quota(holder, frames, depth, len(self._table.slots), overcommit, on_room)
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
            granted = self._accounts.grant(holder, window, depth, len(self._table.slots), on_room, alone=alone, whole=whole)
            if granted[0]:
                self._accounts.accounts[holder].lossless = lossless
            return granted

    def free_name(self, wanted: str) -> str:
        """*wanted*, or that with a number if somebody of that name has leases or a quota already."""
        with self._lock:
            accounts = self._accounts.accounts
            names = itertools.chain([wanted], (f'{wanted}#{number}' for number in itertools.count(2)))
            return next(name for name in names if name not in accounts)

    @property
    def unpromised(self) -> int:
        """How many slots are left for quotas; below 0 after an overcommit."""
        with self._lock:
            return len(self._table.slots) - self._accounts.reserve - self._accounts.promised

    def reconfigure(self, layout: ImageLayout, allocate: Allocate, slots: int | None = None, *, overcommit: bool = False) -> None:
        """Go on with fresh slots of another layout. Allocates first: when that fails, everything stays as it is.

        Frames of the old slots stay readable, and one that is being filled can still be published or discarded; each old slot ends, and its
        listeners hear of it, when nobody uses it any more. Until then it is memory on top: ``statistics().ending``. As after the
        constructor, ``on_free`` isn't called for the fresh slots.

        :param slots: as many as before unless given.
        :param overcommit: accept fewer slots than quotas and reserve need.
        :raises ConfigError: the pool is closed; too few slots for the quotas; a number that makes no sense.
        :raises AllocationError: no memory.
        :raises LayoutError: the layout doesn't fit the allocated buffers.
        """
        if self._forked:
            raise self._not_ours()
        with self._lock:
            count = len(self._table.slots) if slots is None else slots
            self._check_reconfiguration(count, overcommit)
            source = self._source.next(layout, allocate)
        fresh = source.slots(count)
        try:
            with self._lock:
                self._check_reconfiguration(count, overcommit)
                self._source = source
                ended = self._table.reconfigure(fresh)
                if self._waker is not None:
                    self._waker.wake(len(fresh))
        except ConfigError:
            for slot in fresh:
                close_buffers(slot.buffers)
            raise
        self._events.ended(ended)

    def _check_reconfiguration(self, slots: int, overcommit: bool) -> None:
        if self._table.closed:
            raise ConfigError(f'the pool of {self.name} is closed; make a new one')
        if not overcommit:
            self._accounts.check_room(slots)

    def holdings(self) -> tuple[Holding, ...]:
        """Who holds what and since when, the oldest lease first."""
        with self._lock:
            return holdings(self._table.slots, self._table.ending.values(), time.monotonic())

    def describe_holders(self) -> str:
        """One line for the log when a frame had to be dropped: who holds how many slots, which generations, and for how long."""
        with self._lock:
            now, table = time.monotonic(), self._table
            return describe_holders(self.name, table.slots, holdings(table.slots, table.ending.values(), now), now)

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
                ending=len(table.ending),
                quotas=accounts.quotas,
                reserve=accounts.reserve,
                refused=accounts.refused_total,
                fence_errors=table.fence_errors,
                revoked=self._revoked,
                replacement_failures=self._replacement.failures,
                callback_failures=self._events.failures,
                last_failure=self._events.last_failure or self._replacement.last_failure,
            )

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
        self._events.ended(ended)

    def reap(self) -> Remainder:
        """For the reaper, once the pool is closed."""
        self.collect()
        with self._lock:
            pending = self._table.pending_fences()
            left = len(self._table.in_use)
            if not left:
                self._waker = None
            return Remainder(left, [p.fence for p in pending], min((p.deadline for p in pending), default=None))

    def _after_fork(self) -> None:
        """In the child: the lock may be held by a thread that exists only in the parent."""
        self._forked = True
        self._lock = threading.Lock()


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
