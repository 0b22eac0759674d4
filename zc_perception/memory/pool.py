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
Pools track which consumers hold a producer's buffers, and when a buffer may be reused.

Read the docstring of :class:`BufferPool` first. The classes before it are its parts: a
:class:`Slot`, the :class:`Lease` on a slot, and the :class:`Holder` that has leases.
:class:`ForeignBufferPool` is a pool over buffers that a source, such as a GStreamer element,
allocates and may replace at any time.

Sources for :func:`quarantine_fence`: what the kernel's manual *Buffer Sharing and Synchronization*
says about reservation objects; ``DMA_BUF_IOCTL_EXPORT_SYNC_FILE`` in dma-buf.h.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
import contextlib
from dataclasses import dataclass, field
from enum import Enum
import functools
import itertools
import os
import queue
import random
import threading
import time
from typing import NamedTuple
import weakref

from zc_perception.backoff import BackOff
from zc_perception.errors import ConfigError, LayoutError, one_line, StaleFrameError
from zc_perception.forking import in_child, Turn
from zc_perception.memory.dmabuf import (
    BufferIdentity,
    BufferKind,
    CpuAccess,
    DmaBuf,
    pending_fence,
)
from zc_perception.memory.fence import check_timeout, DeadlineFence, Fence, Waker
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.pixel.layout import ImageLayout, validate_layout

Buffers = tuple[DmaBuf, ...]
Allocate = Callable[[], Buffers]
Quarantine = Callable[[Sequence[DmaBuf]], Fence]

DEFAULT_SLOTS = 3
MAX_SLOTS = 64
QUARANTINE_S = 10.0
SPARE = 2
""":meth:`BufferPool.grant` leaves this many slots for later holders, where possible."""
# A thread that waits for a free slot checks for one at least this often.
_LOOK_AGAIN_S = 1.0
# How long to wait before calling the allocator again, in seconds: after its first failure, and
# after many failures in a row. The wait grows, because each search of the allocator for contiguous
# memory is slow.
FIRST_RETRY_S, LAST_RETRY_S = 0.01, 1.0
_NO_LIMIT = 1 << 30


class SlotState(Enum):
    """The state of a slot; :class:`BufferPool` explains the order of states."""

    FREE = 'free'
    FILLING = 'filling'
    LEASED = 'leased'
    WAITING = 'waiting'
    RETIRED = 'retired'


_FREE, _FILLING, _LEASED, _WAITING, _RETIRED = SlotState


class PendingFence(NamedTuple):
    """
    A release fence; if it is pending after *deadline*, its slot is retired.

    A fence may be an object of foreign code. If its ``wait`` raises, it counts as pending.

    :param deadline: a time of CLOCK_MONOTONIC, in seconds.
    """

    fence: Fence
    deadline: float


@dataclass(eq=False, slots=True)
class Slot:
    """
    The buffers of one frame. Only the pool changes a slot.

    :param index: the slot's place in the pool; for a driver's buffers also the driver's index.
    :param buffer_uid: identifies these buffers; buffers that replace them have another uid.
    :param layout: where each plane lies in the buffers.
    :param generation: counts the uses of this index; it continues when the buffers are replaced.
    :param leases: the leases that keep the slot from being reused, with their numbers as keys.
    :param fences: release fences of leases that have ended.
    :param pins: number of :meth:`BufferPool.revoke` calls that are making a quarantine fence now:
        a fence that signals when no device of a dead consumer uses the buffers any more.
    :param condemned: whether a quarantine fence could not be made, so that it is unknown when a
        dead consumer's device stops using the buffers.
    :param since: CLOCK_MONOTONIC second of the last :meth:`BufferPool.acquire`.
    :param sequence: the sequence number that the camera gave to the last frame that was published
        in the slot.
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


@dataclass(eq=False, slots=True)
class Holder:
    """
    A consumer's account in a pool. Only the pool changes it.

    :param frames: the number of the consumer's leases: for frames that it holds, and for frames
        that wait for it.
    :param number: how many frames the consumer may hold at a time; ``None``: no limit was agreed.
    :param depth: how many of the newest frames may wait for it in addition to *number*.
    :param limit: *number* plus *depth*.
    :param lossless: whether a producer that isn't live, such as the reader of a file, waits for
        this holder, so that the holder loses no frame.
    :param refused: how many leases it was refused because of *limit*.
    :param wants: whether a frame waits because the consumer holds *number* frames already.
    :param on_room: called when the consumer may be handed a frame again.
    """

    name: str
    frames: int = 0
    number: int | None = None
    depth: int = 0
    limit: int = _NO_LIMIT
    lossless: bool = False
    refused: int = 0
    wants: bool = False
    on_room: Callable[[], object] | None = None


class Lease:
    """
    The right to use a slot's frame, until :meth:`BufferPool.release`.

    Only the pool makes and ends leases.

    :param number: unique in its pool.
    :param since: CLOCK_MONOTONIC second at which the lease began.

    ``uses``: how many more calls of :meth:`BufferPool.release` it takes to end the lease, see
    :meth:`BufferPool.again`. ``handed``: whether the holder got the frame; until then, the frame
    waits for the holder. ``ended``: how the lease ended (``released``, …); empty while it is
    valid.
    """

    __slots__ = (
        'account', 'ended', 'generation', 'handed', 'number', 'pool', 'since', 'slot', 'uses'
    )  # fmt: skip

    def __init__(
        self,
        pool: BufferPool,
        slot: Slot,
        generation: int,
        number: int,
        account: Holder,
        since: float,
    ) -> None:
        self.pool = pool
        self.slot = slot
        self.generation = generation
        self.number = number
        self.account = account
        self.since = since
        self.uses = 1
        self.handed = False
        self.ended = ''

    @property
    def holder(self) -> str:
        """The name of the lease's holder."""
        return self.account.name

    def __repr__(self) -> str:
        return (
            f'Lease({self.holder}, slot {self.slot.index}, generation {self.generation}, '
            f'{self.ended or "good"})'
        )


def close_buffers(buffers: Sequence[DmaBuf]) -> None:
    """
    Close this process's descriptors and mappings of *buffers*.

    The kernel frees the memory when no device and no other process uses it any more.
    """
    for buffer in buffers:
        # A job that was given up may still use arrays over the memory, so closing raises
        # BufferError; the mapping then ends with the last array.
        with contextlib.suppress(BufferError, OSError):
            buffer.close()


@dataclass(frozen=True)
class PoolStatistics:
    """
    A snapshot for diagnostics. Counters count since the pool was made.

    :param slots: the number of slots, including slots that are being replaced.
    :param states: the number of slots in each state.
    :param holders: for each holder, the number of its leases.
    :param exhausted: frames for which no slot was free.
    :param refused_by_quota: for each holder, how many leases it was refused since its quota began.
    :param abandoned: leases that their owners did not release.
    :param retired: slots given up because a fence stayed pending, or :meth:`BufferPool.revoke`
        could make no quarantine fence.
    :param quotas: for each holder, how many frames it may lease, plus how many may wait until the
        holder takes them.
    :param reserve: the number of slots that the producer keeps for itself.
    :param refused: all leases that were refused because of a quota.
    :param fence_errors: release fences that signalled an error.
    :param revoked: leases taken back from dead holders.
    :param failures: failed replacements of retired slots, plus exceptions of ``on_free``, retire
        listeners and functions that make quarantine fences.
    :param last_failure: the text of the latest failure; empty: there was none.
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
    """A lease's holder, slot index, generation and age in seconds."""

    holder: str
    index: int
    generation: int
    held_s: float


def mapped(allocate: Allocate) -> Allocate:
    """
    Return a function that calls *allocate*, and maps the allocated buffers for the CPU.

    A producer that fills buffers with the CPU needs this: mapping needs a descriptor, and at the
    first use of a slot the process might have none left.
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


class Remainder(NamedTuple):
    """
    The slots of a closed pool that are still in use.

    :param slots: number of slots with a lease or a pending fence.
    :param fences: the pending fences; call :meth:`BufferPool.reap` again when one signals.
    :param deadline: the earliest deadline of these fences, in seconds of CLOCK_MONOTONIC; call
        :meth:`BufferPool.reap` again at that time at the latest. ``None``: no fence is pending.
    """

    slots: int
    fences: Sequence[Fence]
    deadline: float | None


class Reaper:
    """
    Ends the slots of closed pools whose frames are released only after the close. Thread-safe.

    One thread serves all closed pools of the process. It runs only while one of these pools has a
    frame in use or waits for a fence.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start anew in a forked child, where no thread runs and the old lock may stay locked."""
        self._lock = threading.Lock()
        self._pools: list[BufferPool] = []
        self._thread: threading.Thread | None = None
        self._waker: Waker | None = None

    @property
    def running(self) -> bool:
        """Whether a closed pool still has slots in use."""
        return self._thread is not None

    def watch(self, pool: BufferPool) -> Waker | None:
        """
        Let the reaper call *pool*'s :meth:`BufferPool.reap` until no slot is in use any more.

        The caller holds the pool's lock.

        :returns: a waker, which the pool has to wake when one of its slots changes; ``None``
            while the interpreter ends.
        """
        with self._lock:
            if self._thread is None:
                self._waker = Waker()
                self._thread = threading.Thread(
                    target=self._run, args=(self._waker,), name='pool-reaper', daemon=True
                )
                try:
                    self._thread.start()
                except RuntimeError:  # while the interpreter ends, no thread can start
                    self._thread = self._waker = None
                    return None
            self._pools.append(pool)
            if self._waker is not None:
                self._waker.wake()
            return self._waker

    def _run(self, waker: Waker) -> None:
        try:
            while self._turn(waker):
                pass
        except BaseException:
            with self._lock:
                self._end()
            raise

    def _end(self) -> None:
        """Forget the thread and all pools: the thread ends now. The caller holds the lock."""
        self._pools, self._thread, self._waker = [], None, None

    def _turn(self, waker: Waker) -> bool:
        """
        Reap every pool once, then wait for the pools' fences; return ``False`` if no pool is left.

        This is a method of its own, so that no local variable of :meth:`_run` keeps a finished
        pool alive.
        """
        with self._lock:
            pools = list(self._pools)
        looks = [(pool, pool.reap()) for pool in pools]
        finished = [pool for pool, look in looks if not look.slots]
        with self._lock:
            self._pools = [
                pool for pool in self._pools if not any(pool is other for other in finished)
            ]
            if not self._pools:
                self._end()
                return False
        # If watch() added a pool after the lock was released, it has also called waker.wake(). So
        # waker.wait() returns at once.
        fences = [fence for _, look in looks for fence in look.fences]
        deadlines = [look.deadline for _, look in looks if look.deadline is not None]
        del pools, looks, finished
        waker.wait(max(0.0, min(deadlines) - time.monotonic()) if deadlines else None, fences)
        return True


REAPER = Reaper()
in_child(Turn.THREADS, REAPER.reset)


class BufferPool:
    """
    A fixed number of slots of one layout: one producer fills them, many consumers read them.

    **Ownership.** The pool owns its slots and their buffers. When a slot *ends*, the pool closes
    the slot's buffers. A consumer owns a :class:`Lease`, the right to use the frame of one slot. A
    release fence belongs to the pool from the call of :meth:`release` on.

    **States of a slot:** free → filling → leased → waiting for release fences → free.

    1. :meth:`acquire` hands a free slot to the producer and increments the slot's generation, so
    that the pool recognises old leases. If no slot is free, the producer drops the new frame, and
    the pool counts it; :meth:`describe_holders` lists the holders for the log. With *wait_s*, the
    producer waits for a free slot. A reader of a file can wait, a camera can't. :meth:`discard`
    takes back a slot that was not published.
    2. :meth:`lease` makes a lease for a consumer, while the slot is being filled or leased. The
    frame waits for this consumer until :meth:`hand_out`; from then on the consumer holds it.
    3. :meth:`release` ends a lease; finalizers call :meth:`abandon` instead. :meth:`revoke` ends
    all leases of a dead holder. As the holder's devices may still read its slots, each of these
    gets a quarantine fence (:func:`quarantine_fence`).
    4. A slot without leases and fences is free, and ``on_free`` is called. A slot whose fence is
    pending for too long is *retired*: retire listeners are called, its buffers are closed, and a
    new slot takes its place.

    :meth:`close` ends all slots. A slot that is still in use ends with its last lease and fence.

    **Quotas.** :meth:`grant` promises a consumer a *number* of frames that it may hold. A consumer
    that holds that many frames gets no other frame until it releases one; then ``on_room`` is
    called. Until then, up to *depth* of the newest frames wait for it. Beyond number plus depth,
    leases are refused and counted; other consumers aren't affected. Numbers add up, because each
    consumer may hold different frames. Depths don't add up: the same newest frames wait for all
    consumers, so only the greatest depth takes slots. The promises never exceed the existing
    slots. The pool forgets a consumer that has neither leases nor a promise, so that the table of
    consumers doesn't grow while consumers come and go for hours.

    **Threads.** Any thread may call any public method. An open pool has no thread of its own.
    So :meth:`acquire` first calls :meth:`collect`, which releases abandoned leases and frees the
    slots whose fences have signalled. :class:`Reaper`'s thread does this for a closed pool.

    **Locks.** One lock guards the whole pool. While it is held, fences are only polled, and no
    callback is called. Callbacks (``on_free``, retire listeners, ``on_room``) are queued, and the
    next thread that has released the lock calls them (:meth:`_tell`). The allocator, and
    the functions that make quarantine fences, are called without the lock, too. Only the reaper's
    lock may be taken while the pool's lock is held. Finalizers take no lock: :meth:`abandon` puts
    the lease onto a ``SimpleQueue`` that the next :meth:`collect` empties.

    **Fork.** A forked child's copy of the pool owns no slot and no lease: releasing does nothing,
    and acquiring or leasing raises StaleFrameError.

    :param layout: where each plane lies in a slot's buffers.
    :param allocate: makes the buffers of one slot; the constructor calls it once for each slot,
        and the pool calls it again to replace a retired slot.
    :param slots: the number of slots, 1 to 64; 3 is triple buffering.
    :param name: the producer's name, for messages.
    :param release_timeout_s: a slot whose release fence is pending for longer is retired and
        replaced, never reused.
    :param on_free: called, without the lock, whenever a slot becomes free. A V4L2 camera, for
        example, then queues the slot's buffer again.
    :param reserve: the number of slots that no consumer is promised, because the driver needs
        them queued or the producer is filling them.
    :raises ConfigError: a number is outside its range.
    :raises LayoutError: the layout doesn't fit the allocated buffers, or slots share memory.
    """

    # Compiled code (native/frames.h) uses some of these fields. ``__slots__`` gives them fixed
    # places in memory.
    __slots__ = (
        '__dict__', '__weakref__', '_abandoned_leases', '_closed', '_forked', '_free', '_holders',
        '_lease_numbers', '_lock', '_missing', '_news', '_on_free', '_slots', '_uid', '_waiting',
        '_waker', 'name',
    )  # fmt: skip
    # Whether retired slots are replaced by new ones.
    _allocates = True

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
                f'pool of {name}: a release timeout of {release_timeout_s} s; '
                'a number of seconds above 0 is needed'
            )
        if reserve < 0 or reserve > max(slots, 1):
            raise ConfigError(
                f'pool of {name}: {reserve} of {slots} slots reserved for the producer; '
                f'0 to {slots} are allowed'
            )
        if not 1 <= slots <= MAX_SLOTS:
            raise ConfigError(
                f'pool of {name}: {slots} slots; at least 1 is needed, 3 or more are sensible, '
                f'{MAX_SLOTS} are the most'
            )
        self.name = name
        self.layout = layout
        self._allocate = allocate
        self._release_timeout_s = release_timeout_s
        self._on_free = on_free
        self._reserve = reserve
        self._forked = False
        self._closed = False
        self._lock = threading.Lock()
        # The upper half of every buffer_uid. It is random, so that no two pools of a host have
        # the same buffer_uid.
        self._uid = random.SystemRandom().getrandbits(31)
        self._serials = itertools.count(1)
        self._lease_numbers = itertools.count(1)
        self._holders: dict[str, Holder] = {}
        self._abandoned_leases: queue.SimpleQueue[tuple[Lease, bool]] = queue.SimpleQueue()
        # Callbacks that _tell() has to call.
        self._news: deque[Callable[[], object]] = deque()
        self._retire_listeners: dict[int, Callable[[Slot], None]] = {}
        self._listener_numbers = itertools.count()
        self._exhausted = self._abandoned = self._revoked = self._failures = 0
        self._refused = self._retired = self._fence_errors = 0
        self._last_failure = ''
        self._waiters = 0
        # Wakes a thread that waits in acquire(); after close(), wakes the reaper.
        self._waker: Waker | None = None
        # Whether a thread is replacing retired slots now; only one thread at a time may do so.
        # After the allocator has failed, _retry has the time of the next attempt.
        self._replacing = False
        self._retry = BackOff(FIRST_RETRY_S, LAST_RETRY_S)
        self._slots: list[Slot] = []
        try:
            for index in range(slots):
                fresh = self._fresh(index, self._allocate())
                own = {buffer.identity for buffer in fresh.buffers}
                for other in self._slots:
                    if shared := own & {buffer.identity for buffer in other.buffers}:
                        close_buffers(fresh.buffers)
                        raise LayoutError(
                            f'pool of {name}: slots {other.index} and {index} share the buffer '
                            f'with inode {min(identity.inode for identity in shared)}; '
                            'the allocator has to make new buffers for each slot'
                        )
                self._slots.append(fresh)
        except BaseException:
            for slot in self._slots:
                close_buffers(slot.buffers)
            raise
        # _waiting: slots that wait for fences, with buffer_uid as key. _missing: the indexes of
        # retired slots, which have to be replaced.
        self._waiting: dict[int, Slot] = {}
        self._missing: set[int] = set()
        # One bit for each free slot: taking the lowest or a given one takes constant time.
        self._free = (1 << slots) - 1
        _POOLS.add(self)

    def _fresh(self, index: int, buffers: Buffers) -> Slot:
        """Make a slot over *buffers*, which are closed if an error is raised."""
        try:
            validate_layout(self.layout, [buffer.size for buffer in buffers])
        except BaseException:
            close_buffers(buffers)
            raise
        return Slot(index, buffers, self._uid << 32 | next(self._serials), self.layout)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All slots; consumers try to import the slots' buffers before the first frame."""
        with self._lock:
            return tuple(self._slots)

    def add_retire_listener(self, callback: Callable[[Slot], None]) -> Callable[[], None]:
        """
        Call *callback* once for each slot that ends: retired, replaced or closed.

        Import caches then forget the slot's buffers, which are closed right after the call. The
        call comes on the thread that ended the slot, without the lock, never from a finalizer.
        Exceptions of *callback* are counted as failures.

        :returns: a function that removes the listener again.
        """
        number = next(self._listener_numbers)
        self._retire_listeners[number] = callback

        def remove() -> None:
            self._retire_listeners.pop(number, None)

        return remove

    # Methods that the producer calls.

    def acquire(self, index: int | None = None, *, wait_s: float = 0.0) -> Slot | None:
        """
        Take a free slot to fill; return ``None`` if there is none, or the pool is closed.

        A call that returns ``None`` is counted as ``exhausted``, unless *wait_s* was given or the
        pool is closed. Without *index*, the lowest free slot is taken, so that the same memory is
        reused soon.

        :param index: the slot whose buffer a driver has filled.
        :param wait_s: how long to wait at most, for a source that isn't live, such as a file. The
            wait ends when a slot is free and each ``lossless`` holder, which must lose no frame,
            has fewer frames than its limit. Live producers pass 0.
        :raises ConfigError: there is no slot *index*, or both *index* and *wait_s* are given.
        :raises StaleFrameError: in a forked child.
        """
        if self._forked:
            raise self._not_ours()
        waits = wait_s > 0.0
        if index is not None:
            count = len(self._slots)
            if not 0 <= index < count:
                raise ConfigError(
                    f'pool of {self.name}: there is no slot {index}; '
                    f'its {count} slots are 0 to {count - 1}'
                )
            if waits:
                raise ConfigError(
                    f"pool of {self.name}: slot {index} can't be waited for; wait for any slot, "
                    'or acquire this slot without wait_s'
                )
        deadline = time.monotonic() + wait_s if waits else 0.0
        waker: Waker | None = None
        try:
            while True:
                if self._waiting or self._missing or not self._abandoned_leases.empty():
                    self.collect()
                with self._lock:
                    free = self._free
                    bit = free & -free if index is None else free & 1 << index
                    if bit and not (
                        waits
                        and any(h.lossless and h.frames >= h.limit for h in self._holders.values())
                    ):
                        self._free ^= bit
                        slot = self._slots[bit.bit_length() - 1]
                        slot.state = _FILLING
                        slot.generation += 1
                        slot.since = time.monotonic()
                        return slot
                    if self._closed:
                        return None
                    if not waits:
                        self._exhausted += 1
                        return None
                    now = time.monotonic()
                    if now >= deadline:
                        return None
                    if waker is None:
                        self._waiters += 1
                        waker = self._waker = self._waker or Waker()
                    pending = self._pending_fences()
                    retry_at = [self._retry.due] if self._missing and self._allocates else []
                    look_again_at = min(
                        now + _LOOK_AGAIN_S, deadline, *(p.deadline for p in pending), *retry_at
                    )
                waker.wait(max(0.001, look_again_at - now), [p.fence for p in pending])
        finally:
            if waker is not None:
                with self._lock:
                    self._waiters -= 1
                    if self._waiters:
                        waker.wake()  # another waiting thread has to watch the fences now
                    elif self._waker is waker:
                        self._waker = None

    def discard(self, slot: Slot, generation: int | None = None) -> None:
        """
        Give back a slot that was acquired but not published; do nothing if the pool was closed.

        :param generation: the generation that :meth:`acquire` gave the slot. If the slot was
            acquired again afterwards, the call fails. ``None``: not checked.
        :raises StaleFrameError: the slot isn't being filled, has another generation, or belongs to
            another pool.
        """
        if self._forked:
            return
        with self._lock:
            if slot.buffer_uid >> 32 != self._uid:
                raise StaleFrameError(
                    f'{slot!r} is not of the pool of {self.name}; discard it in its own pool'
                )
            if slot.state is _RETIRED:
                return
            if slot.state is not _FILLING:
                raise StaleFrameError(
                    f'{self.name} slot {slot.index} is {slot.state.value}; '
                    'only a slot that is being filled can be discarded'
                )
            if generation is not None and generation != slot.generation:
                raise self._stale(slot, generation)
            self._settle(slot)
        self._tell()

    # Methods that consumers call.

    def lease(self, slot: Slot, generation: int, holder: str) -> Lease | None:
        """
        Make one more lease on a slot that is being filled or is leased.

        :returns: the lease; ``None``, and the pool counts a refusal, if *holder* already has all
            leases of its quota: the frames that it may hold plus those that may wait for it.
        :raises StaleFrameError: this generation isn't in use any more, the slot belongs to another
            pool, or this process is a forked child.
        """
        if self._forked:
            raise self._not_ours()
        with self._lock:
            if slot.generation != generation or (
                slot.state is not _FILLING and slot.state is not _LEASED
            ):
                raise self._stale(slot, generation)
            if slot.buffer_uid >> 32 != self._uid:
                raise StaleFrameError(
                    f'{slot!r} is not of the pool of {self.name}; lease it from its own pool'
                )
            account = self._holders.get(holder)
            if account is None:
                account = self._holders[holder] = Holder(holder)
            elif account.frames >= account.limit:
                account.refused += 1
                self._refused += 1
                return None
            account.frames += 1
            slot.state = _LEASED
            number = next(self._lease_numbers)
            lease = Lease(self, slot, generation, number, account, time.monotonic())
            slot.leases[number] = lease
            return lease

    def again(self, lease: Lease) -> Lease:
        """
        Make *lease* need one more call of :meth:`release` before it ends.

        The lease still counts as one frame.

        :raises StaleFrameError: the lease has ended, or this process is a forked child.
        """
        if self._forked:
            raise self._not_ours()
        with self._lock:
            if lease.slot.leases.get(lease.number) is not lease or lease.pool is not self:
                raise self._not_good(lease, None)
            lease.uses += 1
            return lease

    def hand_out(self, lease: Lease) -> bool:
        """
        Hand the waiting frame of *lease* to the lease's holder.

        Only one thread at a time may call this for the same holder.

        :returns: ``False`` if the holder holds as many frames as it may; the pool will call
            ``on_room`` when this method may be called again.
        """
        account = lease.account
        number = account.number
        if number is None or account.frames <= number:
            # The usual case: the held and waiting frames together are no more than the holder may
            # hold, so no lock is needed.
            lease.handed = True
            return True
        with self._lock:
            if not lease.handed and not lease.ended:
                held = sum(
                    other.handed and other.account is account
                    for slot in self._slots
                    for other in slot.leases.values()
                )
                if held >= number:
                    account.wants = True
                    return False
                lease.handed = True
            return True

    def release(self, lease: Lease, fence: Fence | None = None) -> None:
        """
        Release a lease.

        With *fence*, the slot becomes free only after the fence has signalled. Each call of
        :meth:`again` makes one more call of this method necessary before the lease ends.

        :param fence: the pool owns it from this call on, even if the call raises.
        :raises StaleFrameError: the lease was released or revoked before, or belongs to another
            pool.
        """
        if self._forked:
            return
        slot = lease.slot
        with self._lock:
            if slot.leases.get(lease.number) is not lease or lease.pool is not self:
                raise self._not_good(lease, fence)
            if fence is not None:
                self._add_fence(slot, fence, time.monotonic() + self._release_timeout_s)
            lease.uses -= 1
            if lease.uses:
                return
            self._drop(lease, 'released')
        if self._news:
            self._tell()

    def abandon(self, lease: Lease, *, forgotten: bool = True) -> None:
        """
        Let the next :meth:`collect` release *lease*; finalizers call this, as it takes no lock.

        :param forgotten: whether to count the lease as abandoned, because its owner forgot to
            release it.
        """
        if self._forked:
            return
        self._abandoned_leases.put((lease, forgotten))
        waker = self._waker
        if waker is not None:
            waker.wake()

    def _drop(self, lease: Lease, how: str) -> None:
        """End the lease; *how* is the reason, for messages. The caller holds the lock."""
        slot, account = lease.slot, lease.account
        del slot.leases[lease.number]
        lease.ended = how
        account.frames -= 1
        if account.wants and lease.handed:
            account.wants = False
            if account.on_room is not None:
                self._news.append(account.on_room)
        elif account.number is None and not account.frames:
            self._holders.pop(account.name, None)
        if account.lossless:
            self._wake()
        if not slot.leases and not slot.pins:
            self._settle(slot)

    @staticmethod
    def _add_fence(slot: Slot, fence: Fence, deadline: float) -> None:
        """Reuse *slot* only after *fence* has signalled. The caller holds the lock."""
        if all(fence is not pending.fence for pending in slot.fences):
            slot.fences.append(PendingFence(fence, deadline))

    def revoke(
        self, holder: str, quarantine: Quarantine | None = None, *, timeout_s: float = QUARANTINE_S
    ) -> int:
        """
        End every lease of a holder that died, and forget how many frames it was promised.

        A later release of such a lease raises StaleFrameError.

        :param quarantine: makes a fence that signals when no device of the dead process uses the
            buffers any more; the pool owns the fence. Called without the lock, once for each slot.
            If the call raises, the slot is retired when its other leases end.
        :param timeout_s: if the fence is pending for longer, the slot is retired and replaced.
        :returns: how many leases the holder had.
        """
        if self._forked:
            return 0
        with self._lock:
            leases = [
                lease
                for slot in self._slots
                for lease in slot.leases.values()
                if lease.account.name == holder
            ]
            pinned = {lease.slot.buffer_uid: lease.slot for lease in leases}
            for slot in pinned.values():
                slot.pins += 1  # the slot must not become free before its quarantine fence is made
            for lease in leases:
                self._drop(lease, 'revoked')
            self._revoked += len(leases)
            if (room := self._promise(holder, None)) is not None:
                self._news.append(room)
        self._tell()
        fences: dict[int, Fence | None] = {}
        try:
            for uid, slot in pinned.items():
                try:
                    fences[uid] = None if quarantine is None else quarantine(slot.buffers)
                except Exception as error:
                    self._count_failure(error, f'the quarantine of {slot!r}')
        finally:
            with self._lock:
                deadline = time.monotonic() + timeout_s
                for uid, slot in pinned.items():
                    slot.pins -= 1
                    slot.condemned |= uid not in fences
                    fence = fences.get(uid)
                    if fence is not None:
                        self._add_fence(slot, fence, deadline)
                    if not slot.leases and not slot.pins:
                        self._settle(slot)
            self._tell()
        return len(leases)

    # Methods that free or retire a slot after its use.

    def _settle(self, slot: Slot) -> None:
        """Free the slot, let it wait for its fences, or retire it. The caller holds the lock."""
        if slot.fences:
            pending = []
            for entry in slot.fences:
                try:
                    signalled = entry.fence.wait(0.0)
                except Exception:
                    # Foreign code may have closed the fence. The device may still use the buffers.
                    signalled = False
                if not signalled:
                    pending.append(entry)
                    continue
                try:
                    entry.fence.check()
                except Exception:
                    # The fence signalled an error, but the device is done with the buffer.
                    self._fence_errors += 1
                with contextlib.suppress(Exception):
                    entry.fence.close()
            slot.fences[:] = pending
            overdue = pending and min(p.deadline for p in pending) < time.monotonic()
            if pending and not overdue:
                if slot.state is not _WAITING:
                    slot.state = _WAITING
                    self._waiting[slot.buffer_uid] = slot
                    self._wake()  # a thread that waits for a slot must watch this fence, too
                return
        if slot.fences or slot.condemned:
            # A device may still use the slot's buffers, so never hand them out again.
            self._retired += 1
            if not self._closed:
                self._missing.add(slot.index)
            self._end(slot)
        elif self._closed:
            self._end(slot)
        else:
            if slot.state is _WAITING:
                del self._waiting[slot.buffer_uid]
            slot.state = _FREE
            self._free |= 1 << slot.index
            if self._on_free is not None or self._waker is not None:
                self._note_free(slot)

    def _end(self, slot: Slot) -> None:
        """Retire the slot; :meth:`_tell` then closes its buffers. The caller holds the lock."""
        slot.state = _RETIRED
        self._waiting.pop(slot.buffer_uid, None)
        for entry in slot.fences:
            with contextlib.suppress(Exception):
                entry.fence.close()
        slot.fences.clear()
        self._news.append(functools.partial(self._tell_ended, slot))
        self._wake()

    def _note_free(self, slot: Slot) -> None:
        """Queue ``on_free`` and wake a thread that waits for a slot. The caller holds the lock."""
        if self._on_free is not None:
            self._news.append(functools.partial(self._call, self._on_free, slot, 'on_free'))
        if self._waker is not None:
            self._waker.wake()

    def _wake(self) -> None:
        """Wake a thread that waits for a slot, or the reaper. The caller holds the lock."""
        if self._waker is not None:
            self._waker.wake()

    def _pending_fences(self) -> list[PendingFence]:
        return [pending for slot in self._waiting.values() for pending in slot.fences]

    @property
    def waiting(self) -> bool:
        """Whether a slot waits for release fences; if so, call :meth:`collect` soon."""
        return bool(self._waiting)

    def collect(self) -> None:
        """
        Release abandoned leases, and free the slots whose fences have signalled.

        Slots whose fences were pending for too long are retired, and retired slots are replaced.
        :meth:`acquire` calls this method. A producer that doesn't acquire for a while calls it
        itself.
        """
        if self._forked or not (
            self._waiting or self._missing or not self._abandoned_leases.empty()
        ):
            return
        with self._lock:
            while not self._abandoned_leases.empty():
                lease, forgotten = self._abandoned_leases.get_nowait()
                if lease.slot.leases.get(lease.number) is lease:
                    self._abandoned += forgotten
                    lease.uses -= 1
                    if not lease.uses:
                        self._drop(lease, 'abandoned' if forgotten else 'released')
            for slot in list(self._waiting.values()):
                self._settle(slot)
            replaces = (
                self._allocates
                and bool(self._missing)
                and not self._replacing
                and not self._retry.remaining_s
            )
            self._replacing |= replaces
            wanted = sorted(self._missing) if replaces else []
        self._tell()
        if wanted:
            self._replace(wanted)

    def _replace(self, wanted: list[int]) -> None:
        """
        Make new slots in place of retired ones.

        If the allocator fails, the pool continues with its other slots, and tries again later.
        """
        failed = True
        try:
            for index in wanted:
                fresh = self._fresh(index, self._allocate())
                with self._lock:
                    welcome = index in self._missing
                    if welcome:
                        self._put(fresh)
                        self._note_free(fresh)
                if not welcome:
                    close_buffers(fresh.buffers)
                self._tell()
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

    def _put(self, fresh: Slot) -> None:
        """
        Add slot *fresh*, or put it in place of the ended slot that has the same index.

        The caller holds the lock.
        """
        if fresh.index == len(self._slots):
            self._slots.append(fresh)
        else:
            fresh.generation = self._slots[fresh.index].generation
            self._slots[fresh.index] = fresh
        self._missing.discard(fresh.index)
        self._free |= 1 << fresh.index

    def insert(self, buffers: Buffers, most: int) -> tuple[Slot | None, Slot | None]:
        """
        Make a free slot over *buffers*, which a source has allocated; the caller acquires it next.

        The new slot replaces a retired one. If none is retired and the pool has fewer than *most*
        slots, the new slot is added. Else it replaces the free slot that was unused for the
        longest time.

        :param buffers: owned by the pool, and closed if no slot is returned or the call raises.
        :returns: the new slot, and the free slot that it replaced or ``None``. If all slots are in
            use, the call returns (``None``, ``None``) and counts the frame as ``exhausted``.
        :raises LayoutError: the layout doesn't fit the buffers, or another slot has one of them.
        """
        fresh, ended = None, None
        own = {buffer.identity for buffer in buffers}
        with self._lock:
            for slot in self._slots:
                if slot.state is not _RETIRED and own & {b.identity for b in slot.buffers}:
                    close_buffers(buffers)
                    raise LayoutError(
                        f'a new frame of {self.name} is partly in the buffers of {slot!r}; '
                        'frames must not share buffers'
                    )
            free = [slot for slot in self._slots if slot.state is _FREE]
            if self._missing:
                fresh = self._fresh(min(self._missing), buffers)
            elif len(self._slots) < most and not self._closed:
                fresh = self._fresh(len(self._slots), buffers)
            elif free:
                ended = min(free, key=lambda slot: slot.since)
                fresh = self._fresh(ended.index, buffers)
                self._end(ended)
            if fresh is None:
                self._exhausted += 1
            else:
                self._put(fresh)
        if fresh is None:
            close_buffers(buffers)
        self._tell()
        return fresh, ended

    # Listeners and callbacks. They are always called without the lock.

    def _tell(self) -> None:
        """Call the queued callbacks. The caller must not hold the lock."""
        while self._news:
            try:
                call = self._news.popleft()
            except IndexError:  # another thread took the last callback
                return
            call()

    def _tell_ended(self, slot: Slot) -> None:
        # Tell import caches before the buffers are closed: once they are closed, a new buffer
        # could get the same inode.
        for listener in tuple(self._retire_listeners.values()):
            self._call(listener, slot, 'a retire listener')
        close_buffers(slot.buffers)

    def _call(self, callback: Callable[[Slot], None], slot: Slot, what: str) -> None:
        """Call *callback*; count an exception, don't raise it: the caller didn't cause it."""
        try:
            callback(slot)
        except Exception as error:
            self._count_failure(error, f'{what} for {slot!r}')

    def _count_failure(self, error: Exception, what: str = '') -> None:
        with self._lock:
            self._failures += 1
            self._last_failure = f'{what}: {one_line(error)}' if what else one_line(error)

    # Methods that make errors for the caller to raise.

    def _stale(self, slot: Slot, generation: int) -> StaleFrameError:
        what = 'is gone' if generation <= slot.generation else 'never existed'
        return StaleFrameError(
            f'{self.name}: generation {generation} of slot {slot.index} {what} (the slot has '
            f'generation {slot.generation} and is {slot.state.value}); use the newest frame'
        )

    def _not_ours(self) -> StaleFrameError:
        return StaleFrameError(
            f'the pool of {self.name} belongs to the process that made it; '
            'a forked child has to make a pool of its own'
        )

    def _not_good(self, lease: Lease, fence: Fence | None) -> StaleFrameError:
        """
        Return the error for a lease that has ended or belongs to another pool.

        The caller holds the lock. Close *fence*, unless the pool got it with an earlier release.
        """
        if fence is not None and all(fence is not pending.fence for pending in lease.slot.fences):
            fence.close()
        if lease.pool is not self:
            return StaleFrameError(
                f'{lease!r} is of the pool of {lease.pool.name}, not of {self.name}; '
                'release it in its own pool'
            )
        return StaleFrameError(
            f'{self.name} slot {lease.slot.index}: the lease of {lease.holder} was '
            f'already {lease.ended or "ended"}'
        )

    # Methods that limit how many frames each consumer may hold.

    def set_quota(
        self,
        holder: str,
        number: int | None,
        *,
        depth: int = 0,
        on_room: Callable[[], object] | None = None,
        lossless: bool = False,
    ) -> None:
        """
        Let *holder* hold *number* frames at a time, and let the *depth* newest frames wait for it.

        Unlike :meth:`grant`, this method doesn't check whether the pool has enough slots.

        :param number: ``None``: no limit. Pass ``None`` also when the consumer is gone.
        :param on_room: called, without the lock, when :meth:`hand_out` would succeed again after a
            refusal.
        :param lossless: whether :meth:`acquire` with *wait_s* waits for this holder, so that it
            loses no frame.
        """
        with self._lock:
            room = self._promise(holder, number, depth, on_room, lossless)
        if room is not None:
            room()

    def _promise(
        self,
        name: str,
        number: int | None,
        depth: int = 0,
        on_room: Callable[[], object] | None = None,
        lossless: bool = False,
    ) -> Callable[[], object] | None:
        """
        Set how many frames holder *name* may hold, and how many may wait for it.

        The caller holds the lock.

        :returns: the holder's callback ``on_room`` if a frame waited for room and may now be
            handed out; the caller has to call it without the lock. ``None``: no frame waited.
        """
        account = self._holders.get(name)
        if account is None:
            if number is None:
                return None
            account = self._holders[name] = Holder(name)
        wants, account.wants = account.wants, False
        room = (on_room or account.on_room) if wants else None
        account.number, account.depth, account.on_room = number, depth, on_room
        account.limit = _NO_LIMIT if number is None else number + depth
        account.lossless = lossless
        if number is None:
            account.refused = 0
            if not account.frames:
                del self._holders[name]
        return room

    def grant(
        self,
        holder: str,
        number: int,
        depth: int,
        *,
        on_room: Callable[[], object] | None = None,
        lossless: bool = False,
        alone: bool = False,
    ) -> tuple[int, int]:
        """
        Promise *holder* slots, as many as possible of those that it wants.

        Grant the whole *number* if so many slots are left. Otherwise grant fewer, to leave two
        slots for later holders; but grant at least two if two are left. Grant *depth* only as far
        as two slots are left then, because waiting frames are needed less than frames in use.

        :param number: how many frames the holder wants to hold at a time; at least 1 is granted.
        :param depth: how many frames shall wait for it; at least 1 is granted.
        :param on_room: as in :meth:`set_quota`; *lossless* as well.
        :param alone: whether to grant 1 and 1 in any case if no other holder has a promise.
        :returns: the granted number and depth; (0, 0), without a promise, if there are too few
            slots for 1 and 1.
        """
        with self._lock:
            numbers, deepest = self._promises(holder)
            left = len(self._slots) - self._reserve - numbers - deepest
            # The newest frames wait for each holder. These are the same frames for all holders, so
            # only the greatest depth takes slots.
            room = left if deepest else left - 1
            if room < 1:
                if not alone or numbers or deepest:
                    return 0, 0
                number, depth = 1, 1
            else:
                if number > room:
                    number = max(min(SPARE, room), room - SPARE)
                depth = min(depth, max(1, deepest, deepest + left - number - SPARE))
            tell = self._promise(holder, number, depth, on_room, lossless)
        if tell is not None:
            tell()
        return number, depth

    def _promises(self, but: str = '') -> tuple[int, int]:
        """
        Return how many frames all holders together may hold, and the greatest depth of any holder.

        The caller holds the lock.

        :param but: the holder to leave out.
        """
        promised = [
            (account.number, account.depth)
            for account in self._holders.values()
            if account.number is not None and account.name != but
        ]
        return sum(number for number, _ in promised), max((d for _, d in promised), default=0)

    def free_name(self, wanted: str) -> str:
        """Return *wanted*, with a number added if a holder with this name exists already."""
        with self._lock:
            names = itertools.chain(
                [wanted], (f'{wanted}#{number}' for number in itertools.count(2))
            )
            return next(name for name in names if name not in self._holders)

    @property
    def unpromised(self) -> int:
        """Number of slots not promised to holders; negative: holders were promised too many."""
        with self._lock:
            return len(self._slots) - self._reserve - sum(self._promises())

    @property
    def too_few(self) -> str:
        """Why a holder was granted fewer slots than it asked for, and the user's next step."""
        return (
            f'only {max(0, self.unpromised)} of {len(self.slots)} slots can still be promised to '
            "a consumer; raise 'slots', or end other consumers"
        )

    # Methods that report the pool's state.

    def holdings(self) -> tuple[Holding, ...]:
        """Return all leases, the oldest first."""
        with self._lock:
            return self._holdings(time.monotonic())

    def _holdings(self, now: float) -> tuple[Holding, ...]:
        found = [
            Holding(lease.holder, slot.index, lease.generation, now - lease.since)
            for slot in self._slots
            for lease in slot.leases.values()
        ]
        return tuple(sorted(found, key=lambda holding: -holding.held_s))

    def describe_holders(self) -> str:
        """
        Return one line for the log when a frame is dropped: who holds which slot, for how long.

        For example::

            camera: 0 of 3 slots free; npu holds 2 (slot 0 generation 7 for 1.25 s, slot 1
            generation 8 for 0.03 s); slot 2 generation 9 waits for 1 release fence
        """
        with self._lock:
            now, slots = time.monotonic(), self._slots
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
                    plural = 's' if len(slot.fences) != 1 else ''
                    parts.append(f'{place} waits for {len(slot.fences)} release fence{plural}')
                elif slot.state is _RETIRED:
                    parts.append(f'{place} is retired')
            return '; '.join(parts)

    def in_hand(self, holder: str) -> tuple[tuple[int, float], ...]:
        """Return each frame that *holder* holds: (sequence number, age of the lease in s)."""
        with self._lock:
            now = time.monotonic()
            found = [
                (slot.sequence, now - lease.since)
                for slot in self._slots
                for lease in slot.leases.values()
                if lease.handed and lease.account.name == holder
            ]
        return tuple(sorted(found))

    @property
    def troubles(self) -> int:
        """Sum of the counters of frames without a slot, refused leases and faults."""
        return (
            self._exhausted
            + self._abandoned
            + self._retired
            + self._fence_errors
            + self._failures
            + self._refused
        )

    def statistics(self) -> PoolStatistics:
        """Return a snapshot of counters and holders."""
        with self._lock:
            holders = list(self._holders.values())
            return PoolStatistics(
                slots=len(self._slots),
                states=dict(Counter(slot.state for slot in self._slots)),
                holders={each.name: each.frames for each in holders if each.frames},
                exhausted=self._exhausted,
                refused_by_quota={each.name: each.refused for each in holders if each.refused},
                abandoned=self._abandoned,
                retired=self._retired,
                quotas={each.name: each.limit for each in holders if each.number is not None},
                reserve=self._reserve,
                refused=self._refused,
                fence_errors=self._fence_errors,
                revoked=self._revoked,
                failures=self._failures,
                last_failure=self._last_failure,
            )

    # Methods that close the pool.

    def close(self) -> None:
        """
        Close the pool: no slot is handed out any more. Idempotent.

        The buffers of free slots are closed now. Leased frames stay readable: :class:`Reaper`
        closes their buffers after their last lease has ended and their last fence has signalled
        or timed out.
        """
        if self._forked:
            return
        self.collect()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._free = 0
            self._missing.clear()
            for slot in self._slots:
                if slot.state is _FREE or slot.state is _FILLING:
                    self._end(slot)
            if self._waker is not None:
                self._waker.wake(self._waiters)
            used = any(slot.state is not _RETIRED for slot in self._slots)
            self._waker = REAPER.watch(self) if used else None
        self._tell()

    def reap(self) -> Remainder:
        """End a closed pool's unused slots; return what is still in use. The reaper calls this."""
        self.collect()
        with self._lock:
            pending = self._pending_fences()
            left = sum(slot.state is not _RETIRED for slot in self._slots)
            if not left:
                self._waker = None
            return Remainder(
                left, [p.fence for p in pending], min((p.deadline for p in pending), default=None)
            )

    def _after_fork(self) -> None:
        """Replace the lock in a forked child: a thread of the parent may have held it."""
        self._forked = True
        self._lock = threading.Lock()


def quarantine_fence(buffers: Sequence[DmaBuf], timeout_s: float) -> Fence:
    """
    Return a fence that signals when a dead process's devices no longer use one frame's *buffers*.

    The caller owns the fence.

    If the buffers have pending fences now, the result is a sync_file of all these fences. If none
    is pending, a device may still be busy, because most drivers add no fences. In this case, the
    result is a :class:`DeadlineFence` of *timeout_s*. A DeadlineFence is the result, too, if the
    kernel can't export fences (before 6.0), or if no descriptor is left for the export. If all
    buffers are memfds, the fence signals at once, because no device uses a memfd.

    :param timeout_s: for how many seconds a device's job may run at most: the longest submit
        timeout of all devices.
    :raises ValueError: the timeout is negative, infinite or NaN.
    """
    check_timeout(timeout_s)
    if all(buffer.kind is BufferKind.MEMFD for buffer in buffers):
        return DeadlineFence(0.0)
    pending: Fence | None = None
    with contextlib.suppress(OSError):
        pending = pending_fence(buffers, CpuAccess.WRITE, errors=False)
    return pending or DeadlineFence(timeout_s)


# All pools of the process; a forked child marks its copies of them as forked.
_POOLS: weakref.WeakSet[BufferPool] = weakref.WeakSet()


def live_pools() -> list[BufferPool]:
    """Return this process's pools that are still referenced, including closed ones."""
    while True:
        # RuntimeError: another thread has made a pool during the iteration
        with contextlib.suppress(RuntimeError):
            return list(_POOLS)


def _forked() -> None:
    for pool in live_pools():
        pool._after_fork()


in_child(Turn.POOLS, _forked)


Identities = tuple[BufferIdentity, ...]


def identities_of(buffers: Buffers) -> Identities:
    """
    Return the identities of one frame's buffers.

    A duplicate of a descriptor has the same identity.
    """
    return tuple(buffer.identity for buffer in buffers)


class BorrowedMemory(NamedTuple):
    """
    A part of a descriptor's memory; another object owns and closes the descriptor.

    :param number: the descriptor's number.
    :param offset: where the part begins, in bytes; *size* is in bytes, too.
    """

    number: int
    offset: int
    size: int

    def identity(self) -> BufferIdentity:
        """
        Return the identity of the descriptor's memory.

        The descriptor's number is no identity: the system may reuse the number after the owner has
        closed the descriptor.
        """
        status = os.fstat(self.number)
        return BufferIdentity(status.st_dev, status.st_ino)


def own_descriptors(parts: Iterable[BorrowedMemory], heap: str | None = None) -> Buffers:
    """
    Make a buffer from a duplicate of each part's descriptor; after an error, close all duplicates.

    :param heap: the allocator's name, if known.
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
    Stores, for each use of a slot, callbacks that return the slot's buffers to the buffers' owner.

    No callback is called while this object's lock is held. Pass :meth:`free` to the pool as
    ``on_free``, and :meth:`ended` to the pool's method ``add_retire_listener``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By buffer_uid: a list of callbacks for each use of the slot, the oldest use first. There
        # may be two uses, because the slot may be in use again before the pool has called free()
        # for the previous use.
        self._held: dict[int, list[list[Callable[[], object]]]] = {}
        self._parked: list[Callable[[], object]] = []
        self._closing = False

    def hold(self, slot: Slot, give_back: Callable[[], object]) -> None:
        """Register a new use of a slot; *give_back* is called when this use has ended."""
        with self._lock:
            self._held.setdefault(slot.buffer_uid, []).append([give_back])

    def hold_too(self, slot: Slot, give_back: Callable[[], object]) -> bool:
        """
        Register one more *give_back* for a slot that is in use already.

        Return ``False`` if the slot isn't in use.
        """
        with self._lock:
            uses = self._held.get(slot.buffer_uid)
            if not uses:
                return False
            uses[-1].append(give_back)
            return True

    def free(self, slot: Slot) -> None:
        """Give back the buffers of the slot's oldest use. Call this when a use has ended."""
        with self._lock:
            uses = self._held.get(slot.buffer_uid)
            held = uses.pop(0) if uses else []
        for give_back in held:
            give_back()

    def ended(self, slot: Slot) -> None:
        """
        Keep the buffers of a retired slot until :meth:`end_close`; a device may still read them.

        After :meth:`begin_close`, give them back at once.
        """
        with self._lock:
            held = list(itertools.chain(*self._held.pop(slot.buffer_uid, [])))
            if not self._closing:
                self._parked += held
                return
        for give_back in held:
            give_back()

    def begin_close(self) -> None:
        """Let :meth:`ended` give buffers back at once from now on; the pool is being closed."""
        self._closing = True

    def end_close(self) -> None:
        """Give back the buffers of retired slots; call it when no device reads them any more."""
        parked, self._parked = self._parked, []
        for give_back in parked:
            give_back()


class ForeignBufferPool(BufferPool):
    """
    A pool over buffers that a source, such as a GStreamer pipeline, allocates and may replace.

    :meth:`slot_of` finds the slot of a frame's buffers; :meth:`adopt` makes one for new buffers.
    Only the producer's thread calls these two methods. Once there are *most* slots, the slot of
    new buffers replaces the free slot that was unused for the longest time, so that a source that
    always makes new buffers doesn't fill the memory. A retired slot stays empty until new buffers
    arrive, because the pool can't allocate buffers.

    :param layout: the layout of every frame.
    :param known: the buffers of each frame that the source has now; each frame gets a slot, and
        the pool owns the buffers.
    :param name: the producer's name, for messages.
    :param on_free: gets each slot that becomes free, and gives the buffers back to their owner.
    :param reserve: as for :class:`BufferPool`.
    :param most: the largest number of slots, up to 64; at least the number of *known* frames.
    :raises ConfigError: the number of *known* frames is 0 or above 64, or *reserve* is outside its
        range.
    :raises LayoutError: the layout doesn't fit, or two frames share a buffer.
    """

    _allocates = False

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
        try:
            super().__init__(
                layout,
                lambda: waiting.pop(0),
                len(waiting),
                name=name,
                on_free=on_free,
                reserve=reserve,
            )
        except BaseException:
            for buffers in waiting:
                close_buffers(buffers)
            raise
        self._slots_by_identity = {identities_of(slot.buffers): slot for slot in self.slots}
        self._most = min(max(most, len(known)), MAX_SLOTS)
        self.replaced = 0

    def slot_of(self, identities: Identities) -> Slot | None:
        """Return the slot of the buffers with these identities; ``None``: the buffers are new."""
        slot = self._slots_by_identity.get(identities)
        if slot is not None and slot.state is SlotState.RETIRED:
            del self._slots_by_identity[identities]
            return None
        return slot

    def adopt(self, buffers: Buffers) -> Slot | None:
        """
        Make a free slot for a frame's new *buffers*; the caller acquires it next.

        :param buffers: owned by the pool, and closed if no slot is returned or the call raises.
        :returns: the slot. If all *most* slots are in use, the call returns ``None`` and counts
            the frame as ``exhausted``.
        :raises LayoutError: the layout doesn't fit the buffers, or another slot has one of them.
        """
        fresh, ended = self.insert(buffers, self._most)
        if ended is not None:
            self.replaced += 1
            self._slots_by_identity.pop(identities_of(ended.buffers), None)
        if fresh is not None:
            self._slots_by_identity[identities_of(fresh.buffers)] = fresh
        return fresh
