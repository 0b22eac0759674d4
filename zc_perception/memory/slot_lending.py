"""What goes out of a pool and comes back: slots to the producer, leases to consumers, fences and finalizers on the way back.

:class:`~zc_perception.memory.pool.BufferPool` adds how slots are configured, how all of them end, and what the pool says about them.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence

from zc_perception.errors import ConfigError, StaleFrameError
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import Fence
from zc_perception.memory.holders import Account, HolderAccounts
from zc_perception.memory.pool_events import PoolEvents
from zc_perception.memory.replacement import Replacement
from zc_perception.memory.slot import Lease, Slot, SlotState, close_buffers
from zc_perception.memory.slot_source import SlotSource
from zc_perception.memory.slot_table import SlotTable
from zc_perception.memory.waker import Waker

Quarantine = Callable[[Sequence[DmaBuf]], Fence]

QUARANTINE_S = 10.0
# A wait looks again after this time at the latest.
_LOOK_AGAIN_S = 1.0
_FREE, _FILLING, _LEASED, _RETIRED = SlotState.FREE, SlotState.FILLING, SlotState.LEASED, SlotState.RETIRED


class SlotLending:
    """The half of a pool that producers and consumers use for every frame.

    :param source: makes slots.
    :param slots: how many, as the constructor's caller asked for.
    """

    def __init__(self, name: str, source: SlotSource, slots: int, release_timeout_s: float, reserve: int, events: PoolEvents) -> None:
        self.name = name
        self._release_timeout_s = release_timeout_s
        self._forked = False
        self._lock = threading.Lock()
        self._accounts = HolderAccounts(name, reserve)
        self._events = events
        self._lease_numbers = itertools.count(1)
        self._abandoned_leases: queue.SimpleQueue[tuple[Lease, bool]] = queue.SimpleQueue()
        # Whom to tell, once the lock is given back, that they may be handed a frame again.
        self._rooms: list[Callable[[], object]] = []
        self._exhausted = self._abandoned = self._revoked = 0
        self._waiters = 0
        # Ends the waits in acquire(); of a closed pool, the reaper's.
        self._waker: Waker | None = None
        self._replacement = Replacement()
        self._source = source
        self._table = SlotTable(source.slots(slots))

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
            raise ConfigError(f'pool of {self.name}: there is no slot {index}; its {count} slots are 0 to {count - 1}')
        if wait_s > 0.0:
            raise ConfigError(f"pool of {self.name}: slot {index} can't be waited for; wait for any, or acquire what a driver has filled")

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
                    retry_at = [self._replacement.retry_at] if self._table.missing else []
                now = time.monotonic()
                if now >= deadline:
                    return None
                look_again_at = min([now + _LOOK_AGAIN_S, deadline, *(p.deadline for p in pending), *retry_at])
                waker.wait(max(0.001, look_again_at - now), [p.fence for p in pending])
        finally:
            with self._lock:
                self._waiters -= 1
                if self._waiters:
                    waker.wake()  # it is another one's turn to look at the fences
                elif self._waker is waker:
                    self._waker = None

    def lease(self, slot: Slot, generation: int, holder: str) -> Lease | None:
        """One more lease on a slot that is being filled or is leased, or ``None`` (counted) when *holder* is at its quota.

        :raises StaleFrameError: that generation has been given back already; the slot is another pool's; in a forked child.
        """
        if self._forked:
            raise self._not_ours()
        with self._lock:
            if slot.generation != generation or (slot.state is not _FILLING and slot.state is not _LEASED):
                raise self._stale(slot, generation)
            if not self._source.made(slot):
                raise StaleFrameError(f'{slot!r} is not of the pool of {self.name}; lease it from its own pool')
            account = self._accounts.take(holder)
            if account is None:
                return None
            slot.state = _LEASED
            lease = Lease(self, slot, generation, next(self._lease_numbers), account, time.monotonic())
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
            twin = Lease(self, slot, lease.generation, next(self._lease_numbers), lease.account, lease.since)
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
            waits = window is not None and account.frames > window and not lease.handed and not lease.ended
            if waits and sum(1 for slot in self._table if _is_handed(slot, account)) >= (window or 0):
                account.waits = True
                return False
            lease.handed = True
            return True

    def in_hand(self, holder: str) -> tuple[tuple[int, float], ...]:
        """The frames that were handed to *holder* and that it hasn't released: the sequence of each and for how many seconds."""
        with self._lock:
            now = time.monotonic()
            found = {
                slot.buffer_uid: (slot.sequence, now - lease.since)
                for slot in self._table
                for lease in slot.leases.values()
                if lease.handed and lease.account.holder == holder
            }
        return tuple(sorted(found.values()))

    def _stale(self, slot: Slot, generation: int) -> StaleFrameError:
        what = 'is gone' if generation <= slot.generation else 'never was'
        return StaleFrameError(
            f'{self.name} slot {slot.index}: generation {generation} {what} (now {slot.generation}, {slot.state.value}); '
            'use the newest frame'
        )

    def _not_ours(self) -> StaleFrameError:
        return StaleFrameError(f'the pool of {self.name} belongs to the process that made it; a forked child makes its own')

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
        twins = (other for other in lease.slot.leases.values() if other.twin is False and other.account is lease.account)
        heir = next(twins, None)
        if heir is None:
            return False
        heir.twin, heir.handed = True, lease.handed
        return True

    def _tell_rooms(self) -> None:
        """No lock held."""
        while self._rooms:
            try:
                room = self._rooms.pop()
            except IndexError:  # somebody else is doing it
                return
            room()

    def _not_good(self, lease: Lease, fence: Fence | None) -> StaleFrameError:
        """Lock held. The fence is ours, unless it is the very one that came with the first release."""
        if fence is not None and all(fence is not pending.fence for pending in lease.slot.fences):
            fence.close()
        if lease.pool is not self:
            return StaleFrameError(f'{lease!r} is of the pool of {lease.pool.name}, not of {self.name}; release it there')
        return StaleFrameError(f'{self.name} slot {lease.slot.index}: the lease of {lease.holder} was {lease.ended or "ended"} before')

    def discard(self, slot: Slot, generation: int | None = None) -> None:
        """Give a slot back that was acquired but not published. Does nothing when the pool was closed meanwhile.

        :param generation: the one that was acquired, to be sure that nobody else has acquired the slot since.
        :raises StaleFrameError: it isn't being filled, or is another pool's.
        """
        if self._forked:
            return
        with self._lock:
            if not self._source.made(slot):
                raise StaleFrameError(f'{slot!r} is not of the pool of {self.name}; discard it in its own pool')
            if slot.state is _RETIRED:
                return
            if slot.state is not _FILLING:
                raise StaleFrameError(f'{self.name} slot {slot.index} is {slot.state.value}; only one being filled can be discarded')
            if generation is not None and generation != slot.generation:
                raise self._stale(slot, generation)
            reached = self._table.settle(slot)
            if self._waker is not None:
                self._waker.wake()
        self._tell(slot, reached)

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

    def revoke(self, holder: str, quarantine: Quarantine | None = None, *, timeout_s: float = QUARANTINE_S) -> int:
        """Take back every lease of a holder that died, and forget its quota. Releasing one of them raises StaleFrameError afterwards.

        :param quarantine: makes the fence, owned here from then on, that signals when no device of the dead process uses the buffers any
            more. Called without the lock, once for each slot. Where it raises, the slot is retired when its other holders are done.
        :param timeout_s: how long that fence may be pending before the slot is retired and replaced.
        :returns: how many leases it had.
        """
        if self._forked:
            return 0
        with self._lock:
            leases = [lease for slot in self._table for lease in slot.leases.values() if lease.holder == holder]
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
                    self._events.failed(error, f'the quarantine of {slot!r}')
        finally:
            for uid, slot in pinned.items():
                self._unpin(slot, fences.get(uid), time.monotonic() + timeout_s, condemn=uid not in fences)
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

    def _tell(self, slot: Slot, reached: SlotState) -> None:
        if reached is _FREE:
            self._events.freed(slot)
        elif reached is _RETIRED:
            self._events.ended((slot,))

    @property
    def waiting(self) -> bool:
        """Whether a slot waits for release fences, so that :meth:`collect` is worth calling soon."""
        return bool(self._table.waiting)

    def collect(self) -> None:
        """Take back what came free without a call: for producers that don't :meth:`acquire` for a while."""
        table = self._table
        if (table.waiting or table.missing or not self._abandoned_leases.empty()) and not self._forked:
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
            source = self._source
            wanted = self._replacement.begin(self._table.missing)
        self._events.ended(ended)
        for slot in freed:
            self._events.freed(slot)
        if self._rooms:
            self._tell_rooms()
        if wanted:
            self._replace(source, wanted)

    def _replace(self, source: SlotSource, wanted: list[int]) -> None:
        """Fresh slots in place of retired ones. Without memory for them the pool goes on with the others, and tries again later."""
        failure: Exception | None = None
        try:
            for index in wanted:
                fresh = source.slot(index)
                with self._lock:
                    welcome = source is self._source and index in self._table.missing
                    if welcome:
                        self._table.replace(fresh)
                        if self._waker is not None:
                            self._waker.wake()
                if welcome:
                    self._events.freed(fresh)
                else:
                    close_buffers(fresh.buffers)
        except Exception as error:
            failure = error
        finally:
            with self._lock:
                self._replacement.end(failure)


def _is_handed(slot: Slot, account: Account) -> bool:
    """Whether a holder has got the frame in *slot*."""
    return any(lease.handed and lease.account is account for lease in slot.leases.values())
