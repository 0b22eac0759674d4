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

"""Slots, leases, quotas, holders and release fences of one pool; threads, forks, finalizers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
import errno
import fcntl
import gc
import os
import threading
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

from doubles.sync_kernel import KernelFence, SyncKernel
import numpy as np
from pool_kit import (
    acquired,
    after_timeout,
    closes,
    counted_pool,
    CountingAllocator,
    leased,
    PATIENCE_S,
    SMALL,
    stop_clock,
    TIMEOUT_S,
)
from processes import passes_in_child
import pytest
from waiting import until

from zc_perception.errors import AllocationError, ConfigError, LayoutError, StaleFrameError
from zc_perception.frame import Frame
from zc_perception.memory import pool as pool_module
from zc_perception.memory.dmabuf import BufferKind, CpuAccess, DmaBuf
from zc_perception.memory.fence import DeadlineFence, EventFence, SyncFile, Waker
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import (
    BufferPool,
    Buffers,
    ForeignBufferPool,
    HeldBuffers,
    identities_of,
    quarantine_fence,
    REAPER,
    Reaper,
    Slot,
    SlotState,
)
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]


def test_buffers_must_hold_the_layout() -> None:
    layout = compute_layout(NV12, 640, 480)
    with pytest.raises(LayoutError, match='plane 1 ends at byte'):
        BufferPool(layout, lambda: (SealedMemfd().allocate(640 * 480),), 2, name='camera')


def test_a_failing_allocation_frees_the_slots_before_it() -> None:
    memory = CountingAllocator()
    allocate = mock.Mock(side_effect=[memory(), memory(), AllocationError('no memory')])
    with pytest.raises(AllocationError, match='no memory'):
        BufferPool(SMALL, allocate, 3, name='camera')
    assert memory.closes == [1, 1]


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'slots': 0}, 'pool of camera: 0 slots; at least 1'),
        ({'slots': 65}, '65 slots; .* 64 are the most'),
        ({'reserve': -1}, '-1 of 3 slots reserved'),
        ({'release_timeout_s': 0.0}, r'a release timeout of 0.0 s'),
        ({'release_timeout_s': float('nan')}, r'a release timeout of nan s'),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: dict[str, float], message: str) -> None:
    memory = CountingAllocator()
    with pytest.raises(ConfigError, match=message):
        BufferPool(SMALL, memory, **{'slots': 3, 'name': 'camera', **options})  # type: ignore
    assert memory.made == []


@pytest.mark.parametrize(
    ('use', 'error', 'message'),
    [
        (
            lambda pool, other: pool.release(leased(other)),
            StaleFrameError,
            'is of the pool of other, not of camera',
        ),
        (
            lambda pool, other: pool.lease(acquired(other), 1, 'npu'),
            StaleFrameError,
            'is not of the pool of camera; lease it from its own',
        ),
        (
            lambda pool, _: [pool.discard(pool.slots[0]) for _ in [acquired(pool), 1]],
            StaleFrameError,
            'slot 0 is free; only a slot',
        ),
        (
            lambda pool, _: pool.lease(acquired(pool), 7, 'npu'),
            StaleFrameError,
            r'generation 7 of slot 0 never existed \(the slot has generation 1 and is filling\)',
        ),
        (
            lambda pool, _: pool.acquire(3),
            ConfigError,
            'there is no slot 3; its 3 slots are 0 to 2',
        ),
        (lambda pool, _: pool.acquire(1, wait_s=1.0), ConfigError, "slot 1 can't be waited for"),
    ],
    ids=[
        'lease of another pool',
        'slot of another pool',
        'discard twice',
        'future lease',
        'index too high',
        'index and wait',
    ],
)
def test_wrong_use_is_an_error_that_says_what(
    make_pool: MakePool,
    use: Callable[[BufferPool, BufferPool], object],
    error: type[Exception],
    message: str,
) -> None:
    pool, other = make_pool(), make_pool(name='other')
    with pytest.raises(error, match=message):
        use(pool, other)
    pool.release(leased(pool, pool.acquire(2)))
    other.revoke('npu')


def test_slots_in_the_same_memory_are_refused() -> None:
    image = compute_layout(NV12, 64, 48)
    with pytest.raises(LayoutError, match='slots 0 and 1 share the buffer with inode'):
        memory = SealedMemfd().allocate(image.buffer_size(0))
        again = lambda: (DmaBuf(memory.dup(), memory.kind, memory.heap),)  # noqa: E731
        BufferPool(image, again, 3, name='camera')
    memory.close()


def test_a_slot_is_retired_while_a_late_job_still_reads_its_mapping(make_pool: MakePool) -> None:
    """Closing a mapping that has views raises BufferError."""
    pool, fence = make_pool(slots=1, release_timeout_s=TIMEOUT_S), EventFence()
    slot = acquired(pool)
    slot.buffers[0].mapping()[0] = 42
    view = np.frombuffer(slot.buffers[0].mapping(), np.uint8)
    pool.release(leased(pool, slot), fence)
    after_timeout()
    assert acquired(pool) is not slot
    assert view[0] == 42


def test_a_replacement_that_can_not_be_allocated_is_tried_again() -> None:
    """Whatever the allocator raises, the pool goes on with the other slots."""
    failure = ValueError('a bug')
    pool, memory = counted_pool(2, release_timeout_s=TIMEOUT_S)
    pool.release(leased(pool), EventFence())
    memory.failure = failure
    after_timeout()
    other = acquired(pool)
    assert other.index == 1 and pool.acquire() is None
    statistics = pool.statistics()
    assert statistics.states == {SlotState.RETIRED: 1, SlotState.FILLING: 1}
    assert statistics.failures >= 1 and str(failure) in statistics.last_failure
    memory.failure = None
    fresh = pool.acquire(wait_s=30.0)
    assert fresh is not None and fresh.index == 0


def test_the_allocator_and_the_listeners_may_use_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool calls them without holding its lock."""
    pass_time = stop_clock(monkeypatch)
    pool, memory = counted_pool(1, release_timeout_s=TIMEOUT_S)
    heard: list[str] = []
    pool.add_retire_listener(lambda slot: heard.append(pool.describe_holders()))
    # A second look at the pool during this starts no second replacement.
    pool._allocate = lambda: (
        heard.append(repr(pool.statistics().states)),
        pool.collect(),
        memory(),
    )[2]
    pool.release(leased(pool), EventFence())
    pass_time(2 * TIMEOUT_S)
    fresh = acquired(pool)
    assert heard == [
        'camera: 0 of 1 slots free; slot 0 generation 1 is retired',
        "{<SlotState.RETIRED: 'retired'>: 1}",
    ]
    # A pool that is closed meanwhile drops the replacement.
    pool._allocate = lambda: (memory(), pool.close())[0]
    pool.release(leased(pool, fresh), EventFence())
    pass_time(2 * TIMEOUT_S)
    pool.collect()
    assert memory.closes == [1, 1, 1]


@pytest.mark.parametrize('broken', ['closed by its giver', 'raising'])
def test_a_fence_that_can_not_be_looked_at_costs_its_slot_not_the_pool(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_time = stop_clock(monkeypatch)
    pool, memory = counted_pool(2, release_timeout_s=TIMEOUT_S)
    fence = EventFence()
    lease = leased(pool)
    pool.release(lease, fence)
    if broken == 'raising':
        fence.wait = fence.close = lambda *_: 1 / 0  # type: ignore
    fence._fd.close()
    assert acquired(pool).index == 1, 'the pool goes on'
    pass_time(2 * TIMEOUT_S)
    assert acquired(pool).index == 0
    assert lease.slot.state is SlotState.RETIRED and memory.closes == [1, 0, 0]


def test_error_fences_are_counted() -> None:
    pool, _ = counted_pool(1)
    for error in (None, RuntimeError('device reset')):
        fence = EventFence()
        fence.signal(error)
        pool.release(leased(pool), fence)
    assert pool.statistics().fence_errors == pool.troubles == 1


def test_a_lease_that_a_finalizer_drops_counts_as_forgotten_unless_it_says_otherwise() -> None:
    pool, _ = counted_pool(1)
    pool.abandon(leased(pool), forgotten=False)
    pool.collect()
    assert pool.statistics().abandoned == 0
    pool.abandon(leased(pool))
    pool.collect()
    assert pool.statistics().abandoned == 1
    # One that was released before is not the newer lease of the same slot.
    old = leased(pool)
    pool.release(old)
    newer = leased(pool)
    pool.abandon(old)
    pool.collect()
    assert newer.ended == '' and newer.slot is old.slot and newer.slot.state is SlotState.LEASED
    assert (pool.statistics().holders, pool.statistics().abandoned) == ({'npu': 1}, 1)
    pool.release(newer)


def test_a_fence_of_a_refused_release_is_closed_too() -> None:
    """The pool got it with the call; only the fence of the first release is still needed."""
    pool, _ = counted_pool(1)
    lease, first, second = leased(pool), EventFence(), EventFence()
    pool.release(lease, first)
    for fence in (second, first):
        with pytest.raises(StaleFrameError, match='already released'):
            pool.release(lease, fence)
    with pytest.raises(ValueError, match='closed'):
        second.fileno()
    assert pool.acquire() is None
    first.signal()
    assert pool.acquire() is lease.slot


def test_a_holder_s_own_quota_is_replaced_not_added_and_ends_with_it(make_pool: MakePool) -> None:
    pool = make_pool(slots=6, reserve=1)
    pool.set_quota('npu', 3)
    pool.set_quota('npu', 2, depth=1)
    pool.set_quota('rviz', 1, depth=2)
    assert pool.unpromised == 0, 'windows add up, the newest frames wait for both'
    assert (pool.statistics().quotas, pool.statistics().reserve) == ({'npu': 3, 'rviz': 3}, 1)
    pool.set_quota('rviz', None)
    assert pool.unpromised == 2
    pool.set_quota('stereo', 5)
    assert pool.unpromised == -3, 'nobody checks'


def test_thousands_of_consumers_that_came_and_went_leave_nothing_behind(
    make_pool: MakePool,
) -> None:
    pool = make_pool(slots=1)
    slot = acquired(pool)
    keeper = leased(pool, slot, 'keeper')
    for number in range(3000):
        holder = f'consumer {number}'
        pool.set_quota(holder, 0)
        assert pool.lease(slot, slot.generation, holder) is None
        pool.set_quota(holder, 1)
        lease = leased(pool, slot, holder)
        if number % 2:
            pool.release(lease)
            pool.set_quota(holder, None)
        else:
            assert pool.revoke(holder) == 1
    statistics = pool.statistics()
    assert (statistics.holders, statistics.quotas, statistics.refused_by_quota) == (
        {'keeper': 1},
        {},
        {},
    )
    assert (statistics.refused, statistics.revoked) == (3000, 1500)
    assert (list(pool._holders), len(slot.leases)) == (['keeper'], 1)
    pool.release(keeper)


def test_without_a_free_slot_one_line_says_who_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pass_time = stop_clock(monkeypatch)
    pool, _ = counted_pool(5)
    first, second = acquired(pool), acquired(pool)
    leases = [leased(pool, first, 'npu'), leased(pool, first, 'overlay')]
    pass_time(1.0)
    leases.append(leased(pool, second, 'npu'))
    pool.release(leased(pool), EventFence())
    acquired(pool)
    pass_time(0.25)
    assert pool.describe_holders() == (
        'camera: 1 of 5 slots free; npu holds 2 (slot 0 generation 1 for 1.25 s, slot 1 '
        'generation 1 for 0.25 s); '
        'overlay holds 1 (slot 0 generation 1 for 1.25 s); slot 2 generation 1 waits for 1 '
        'release fence; '
        'slot 3 generation 1 is being filled for 0.25 s'
    )
    assert [(h.holder, h.index, h.generation, round(h.held_s, 2)) for h in pool.holdings()] == [
        ('npu', 0, 1, 1.25), ('overlay', 0, 1, 1.25), ('npu', 1, 1, 0.25),
    ]  # fmt: skip
    for lease in leases:
        pool.release(lease)
    pool.slots[2].fences[0].fence.signal()  # type: ignore


def test_what_listeners_raise_is_counted_and_harms_nobody() -> None:
    pool, memory = counted_pool(2, on_free=lambda slot: 1 / 0)
    heard: list[int] = []
    pool.add_retire_listener(lambda slot: [][1])
    pool.add_retire_listener(lambda slot: heard.append(slot.index))
    pool.release(leased(pool))
    statistics = pool.statistics()
    assert statistics.failures == 1
    assert (
        statistics.last_failure
        == 'on_free for Slot(0, generation 1, free): ZeroDivisionError: division by zero'
    )
    pool.close()
    assert (heard, memory.closes) == ([0, 1], [1, 1])
    assert pool.statistics().failures == 3


@pytest.mark.parametrize(('window', 'depth', 'free', 'granted'), [
    (1, 1, 2, (1, 1)), (1, 1, 1, (0, 0)), (4, 4, 10, (4, 4)), (4, 4, 9, (4, 3)), (4, 4, 7, (4, 1)),
    (4, 4, 5, (4, 1)), (4, 4, 4, (2, 1)),
    (4, 4, 2, (1, 1)), (64, 64, 3, (2, 1)), (64, 64, 8, (5, 1)), (1, 9, 8, (1, 5)),
    (1, 9, 3, (1, 1)), (1, 1, -3, (0, 0)),
    (2, 1, 3, (2, 1)),
])  # fmt: skip
def test_what_is_granted_fits_what_is_free_and_leaves_something_where_it_can(
    make_pool: MakePool, window: int, depth: int, free: int, granted: tuple[int, int]
) -> None:
    pool = make_pool(slots=12, reserve=12 - free) if free > 0 else make_pool(slots=1, reserve=1)
    assert pool.grant('viewer', window, depth) == granted
    assert pool.statistics().quotas == ({'viewer': sum(granted)} if granted[0] else {})


def test_the_only_one_gets_something_in_any_case_if_asked_for(make_pool: MakePool) -> None:
    pool = make_pool(slots=2, reserve=2)
    assert pool.grant('other process', 1, 1) == (0, 0)
    assert pool.grant('here', 3, 3, alone=True) == (1, 1)
    assert pool.grant('another', 1, 1, alone=True) == (0, 0)


def test_no_more_is_handed_out_than_the_window_and_the_holder_is_told_once_there_is_room(
    make_pool: MakePool,
) -> None:
    pool, told = make_pool(slots=6), []
    pool.set_quota('viewer', 2, depth=2, on_room=lambda: told.append(pool.unpromised))
    leases = [leased(pool, acquired(pool), 'viewer') for _ in range(4)]
    fifth = acquired(pool)
    assert pool.lease(fifth, fifth.generation, 'viewer') is None
    assert [pool.hand_out(lease) for lease in leases] == [True, True, False, False]
    assert pool.hand_out(leases[0]), 'it has it already'
    assert len(pool.in_hand('viewer')) == 2
    pool.release(leases[3])
    assert told == [], 'one that waits makes no room in the hand'
    pool.release(leases[0])
    assert told == [2], 'told without the lock'
    assert pool.hand_out(leases[2])
    pool.release(leases[1])
    assert told == [2], 'nothing had to wait'
    pool.release(leases[2])
    pool.discard(fifth)


def test_a_producer_that_can_wait_waits_for_who_is_to_lose_nothing(make_pool: MakePool) -> None:
    pool = make_pool(slots=5)
    assert pool.grant('recorder', 1, 1, lossless=True) == (1, 1)
    leases = [leased(pool, acquired(pool), 'recorder') for _ in range(2)]
    assert pool.acquire(wait_s=0.01) is None, 'its frame would be lost'
    threading.Timer(0.1, pool.release, [leases.pop()]).start()
    slot = pool.acquire(wait_s=20.0)
    assert slot is not None
    pool.discard(slot)
    pool.release(leases.pop())


def test_a_quarantine_is_made_without_the_lock_and_before_anything_is_free() -> None:
    pool, _ = counted_pool(1)
    leased(pool)
    fence = EventFence()

    def quarantine(buffers: object) -> EventFence:
        assert not pool._lock.locked() and pool.acquire() is None
        return fence

    assert pool.revoke('npu', quarantine) == pool.statistics().revoked == 1
    assert pool.acquire() is None
    fence.signal()
    assert pool.acquire() is not None


def test_an_interrupt_during_a_quarantine_loses_no_slot() -> None:
    pool, memory = counted_pool(2)
    before = {leased(pool).slot.buffer_uid for _ in range(2)}
    with pytest.raises(KeyboardInterrupt):
        pool.revoke('npu', mock.Mock(side_effect=KeyboardInterrupt))
    after = {acquired(pool).buffer_uid for _ in range(2)}
    assert len(after) == 2 and not after & before
    assert memory.closes == [1, 1, 0, 0]


# Fences that must signal before the buffers are used again

LONG_S = 3600.0


def exporting(answer: Callable[[CpuAccess], SyncFile | None] | Exception) -> Any:
    """Return what stands for a dma-buf, whose export gives or raises this answer."""
    return SimpleNamespace(kind=BufferKind.DMABUF, export_fence=mock.Mock(side_effect=answer))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncKernel]:
    double = SyncKernel(monkeypatch)
    yield double
    double.close()


def test_a_pending_fence_is_what_is_waited_for(kernel: SyncKernel) -> None:
    job = KernelFence()
    buffers = [exporting(lambda access: kernel.sync_file(job))]
    with pytest.raises(ValueError, match='give a finite number of seconds'):
        quarantine_fence(buffers, -1.0)
    fence = quarantine_fence(buffers, 0.0)
    assert isinstance(fence, SyncFile) and not fence.wait(0.0)
    assert buffers[0].export_fence.call_args_list == [mock.call(CpuAccess.WRITE)], (
        'readers count too: the frame is going to be written'
    )
    kernel.signal(job)
    assert fence.wait(0.0)
    fence.close()
    kernel.signal(failed := KernelFence(), -errno.EIO)
    over = quarantine_fence([exporting(lambda access: kernel.sync_file(failed))], 0.0)
    assert isinstance(over, DeadlineFence), 'a job that has failed reads no more'
    over.close()


def test_nothing_pending_may_mean_that_the_driver_adds_no_fences(kernel: SyncKernel) -> None:
    before = time.monotonic_ns()
    stub = exporting(lambda access: kernel.sync_file(KernelFence(1)))
    fence = quarantine_fence([stub, exporting(lambda access: None)], LONG_S)
    assert isinstance(fence, DeadlineFence) and not fence.wait(0.0)
    assert before + LONG_S * 1e9 <= fence.deadline_ns <= time.monotonic_ns() + LONG_S * 1e9
    fence.close()


@pytest.mark.parametrize('failing', [0, 1, 'merge'])
def test_fences_that_can_not_be_had_are_replaced_by_time_and_closed(
    failing: int | str, kernel: SyncKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[SyncFile] = []  # kept, so that only close() closes them

    def pending(access: CpuAccess) -> SyncFile:
        given.append(kernel.sync_file(KernelFence()))
        return given[-1]

    no_descriptor = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    buffers = [exporting(pending), exporting(pending)]
    if failing == 'merge':
        monkeypatch.setattr(SyncFile, 'merge', mock.Mock(side_effect=no_descriptor))
    else:
        buffers.insert(int(failing), exporting(no_descriptor))
    fence = quarantine_fence(buffers, LONG_S)
    assert isinstance(fence, DeadlineFence) and not fence.wait(0.0)
    assert len(given) == (2 if failing == 'merge' else failing)
    assert all(f._fd.closed for f in given)
    fence.close()


MakeFrame = Callable[..., Frame]


def wait_in_thread(pool: BufferPool) -> tuple[threading.Thread, list[Slot | None]]:
    got: list[Slot | None] = []
    looked, wait = threading.Event(), Waker.wait
    thread = threading.Thread(
        target=lambda: got.append(pool.acquire(wait_s=2 * PATIENCE_S)), daemon=True
    )
    with mock.patch.object(
        Waker, 'wait', lambda self, *arguments: (looked.set(), wait(self, *arguments))[1]
    ):
        thread.start()
        assert looked.wait(PATIENCE_S)
    return thread, got


def woken(thread: threading.Thread) -> bool:
    thread.join(PATIENCE_S)
    return not thread.is_alive()


@pytest.mark.parametrize(
    'event', ['release', 'fence', 'later fence', 'abandon', 'revoke', 'timeout', 'discard']
)
def test_whatever_frees_a_slot_wakes_a_waiting_producer(
    event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must wake by the event: the periodic look comes too late here."""
    monkeypatch.setattr(pool_module, '_LOOK_AGAIN_S', 1000.0)
    pass_time = stop_clock(monkeypatch) if event == 'timeout' else time.sleep
    pool, _ = counted_pool(1, release_timeout_s=TIMEOUT_S if event == 'timeout' else 600.0)
    slot, fence = acquired(pool), EventFence()
    lease = None if event == 'discard' else leased(pool, slot)
    if event in ('fence', 'timeout'):
        pool.release(lease, fence)
    thread, got = wait_in_thread(pool)
    {
        'release': lambda: pool.release(lease),
        'fence': fence.signal,
        'later fence': lambda: (pool.release(lease, fence), fence.signal()),
        'abandon': lambda: pool.abandon(lease),
        'revoke': lambda: pool.revoke('npu'),
        'timeout': lambda: pass_time(2 * TIMEOUT_S),
        'discard': lambda: pool.discard(slot),
    }[event]()
    assert woken(thread) and got[0] is not None
    assert pool.statistics().exhausted == 0, 'waiting is not dropping'
    assert (got[0] is slot) == (event != 'timeout')


def test_closing_wakes_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, '_LOOK_AGAIN_S', 1000.0)
    pool, _ = counted_pool(1)
    lease = leased(pool)
    waits = [wait_in_thread(pool) for _ in range(3)]
    pool.close()
    assert all(woken(thread) and got == [None] for thread, got in waits)
    shared = leased(pool, lease.slot, 'overlay')
    pool.release(lease)
    assert closes(shared.slot) == 0
    pool.release(shared)
    assert closes(shared.slot) == 1


def test_a_closed_pool_hands_out_nothing() -> None:
    pool, _ = counted_pool(1)
    filling = acquired(pool)
    pool.close()
    assert pool.acquire() is None and pool.acquire(wait_s=2 * PATIENCE_S) is None
    assert pool.statistics().exhausted == 0, 'that is not a drop'
    with pytest.raises(StaleFrameError, match='retired'):
        pool.lease(filling, filling.generation, 'npu')
    pool.discard(filling)


@pytest.mark.parametrize('fence_is', ['pending', 'a closed number', 'a dead end'])
def test_a_wait_does_not_spin(fence_is: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a closed descriptor poll(2) returns at once, so a careless loop would spin."""
    pool, _ = counted_pool(1)
    fence = EventFence()
    if fence_is != 'pending':
        reader, writer = os.pipe()
        # A high number, which no newly opened descriptor takes.
        number = fcntl.fcntl(reader, fcntl.F_DUPFD_CLOEXEC, 900)
        os.close(reader)
        os.close(writer)
        fence.close()
        fence._fd = OwnedFd(number)
    if fence_is == 'a closed number':
        os.close(number)
    pool.release(leased(pool), fence)
    looks: list[None] = []
    collect = BufferPool.collect
    monkeypatch.setattr(BufferPool, 'collect', lambda self: (looks.append(None), collect(self))[1])
    assert pool.acquire(wait_s=0.3) is None
    assert len(looks) <= 12, 'it polls the fence, or where that is impossible looks every 50 ms'
    if fence_is == 'a closed number':
        fence._fd.detach()
    pool.slots[0].fences[0].fence.close()
    pool.slots[0].fences.clear()
    pool.close()


def test_a_forked_child_asks_for_nothing_and_never_hangs(make_pool: MakePool) -> None:
    """Every call of the copy ends at once, though the lock was held during the fork."""
    heard: list[Slot] = []
    pool = make_pool(slots=3, on_free=heard.append)
    pool.add_retire_listener(heard.append)
    lease, filling = leased(pool), acquired(pool)
    pool.abandon(leased(pool))
    refused = 'belongs to the process that made it; a forked child has to make a pool of its own'

    def child() -> None:
        for ask in (pool.acquire, lambda: pool.lease(lease.slot, 1, 'x')):
            with pytest.raises(StaleFrameError, match=refused):
                ask()
        pool.collect()
        pool.discard(filling)
        pool.abandon(lease)
        pool.release(lease)
        assert pool.revoke('npu') == 0
        pool.close()
        pool.set_quota('npu', 1)
        assert pool.statistics().holders == {'npu': 2} and len(pool.slots) == 3
        assert 'npu holds 2' in pool.describe_holders()
        assert lease.slot.buffers[0].mapping()[0] == 0 and heard == []
        own, _ = counted_pool(2)
        own.release(leased(own))
        own.close()

    with pool._lock:
        assert passes_in_child(child)
    pool.collect()
    assert Counter(slot.state for slot in pool.slots) == Counter(
        [SlotState.LEASED, SlotState.FILLING, SlotState.FREE]
    )
    pool.release(lease)


def test_a_forked_child_has_a_reaper_of_its_own() -> None:
    """The parent's thread isn't in the child, and its lock may be held for ever."""
    pool, _ = counted_pool(1)
    lease = leased(pool)
    pool.close()

    def child() -> None:
        own, memory = counted_pool(1)
        fence = EventFence()
        own.release(leased(own), fence)
        own.close()
        fence.signal()
        until(lambda: memory.closes == [1], 'the child finishes its own pool')

    with REAPER._lock:
        assert passes_in_child(child)
    assert pool.statistics().states == {SlotState.LEASED: 1}
    pool.release(lease)


def test_listeners_are_never_called_from_a_finalizer(
    make_pool: MakePool, make_frame: MakeFrame
) -> None:
    pool = make_pool(slots=1)
    told: list[bool] = []
    pool.add_retire_listener(
        lambda slot: told.append(threading.current_thread().name == 'pool-reaper')
    )
    frame = make_frame(pool)
    pool.close()
    del frame
    gc.collect()
    until(lambda: told == [True], 'the reaper tells')


# A closed pool finishes by itself.


@pytest.fixture
def reaper(no_fd_leak: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reaper]:
    """Yield a reaper of the test's own, which must have ended with the test."""
    own = Reaper()
    monkeypatch.setattr(pool_module, 'REAPER', own)
    before = set(threading.enumerate())
    yield own
    until(lambda: not own.running, 'the end of the reaper')
    until(lambda: set(threading.enumerate()) <= before, 'the end of its thread')


@pytest.mark.usefixtures('reaper')
def test_a_fence_that_never_signals_ends_its_slot_after_the_timeout_without_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pass_time = stop_clock(monkeypatch)
    pool, memory = counted_pool(1, release_timeout_s=TIMEOUT_S)
    pool.release(leased(pool), EventFence())
    ended = threading.Event()
    pool.add_retire_listener(lambda slot: ended.set())
    pool.close()
    # After this the checks that follow the closing are over: only the deadline wakes the reaper.
    time.sleep(5 * TIMEOUT_S)
    assert memory.closes == [0] and not ended.is_set()
    pass_time(2 * TIMEOUT_S)
    assert ended.wait(PATIENCE_S)
    until(lambda: memory.closes == [1], 'the buffers are closed')
    assert (pool.statistics().retired, len(memory.made)) == (1, 1), 'nothing takes its place'


@pytest.mark.parametrize('fence_is', ['absent', 'pending', 'closed by its giver'])
def test_a_lease_that_is_dropped_after_the_close_ends_its_slot(
    fence_is: str, reaper: Reaper
) -> None:
    pool, memory = counted_pool(
        2, release_timeout_s=TIMEOUT_S if fence_is == 'closed by its giver' else 60.0
    )
    lease, fence = leased(pool), EventFence()
    pool.close()
    assert memory.closes == [0, 1] and reaper.running
    if fence_is == 'absent':
        pool.release(lease)
        assert memory.closes == [1, 1]
        fence.close()
        return
    pool.release(lease, fence)
    if fence_is == 'pending':
        assert memory.closes == [0, 1]
        fence.signal()
    else:
        fence.close()
    until(lambda: memory.closes == [1, 1], 'the buffers are closed')


@pytest.mark.usefixtures('reaper')
def test_a_pool_that_is_closed_while_the_reaper_sleeps_is_finished_too() -> None:
    (first, _), (second, memory) = counted_pool(1), counted_pool(1)
    lease, fence = leased(first), EventFence()
    second.release(leased(second), fence)
    asleep, wait = threading.Event(), Waker.wait
    with mock.patch.object(
        Waker, 'wait', lambda self, *arguments: (asleep.set(), wait(self, *arguments))[1]
    ):
        first.close()
        assert asleep.wait(PATIENCE_S)
    second.close()
    fence.signal()
    until(lambda: memory.closes == [1], 'the second pool, while the first waits for ever')
    first.release(lease)


@pytest.mark.usefixtures('reaper')
def test_an_idle_wait_for_the_last_frame_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread sleeps until an event; it doesn't poll."""
    pool, _ = counted_pool(1)
    lease = leased(pool)
    turns: list[None] = []
    reap = BufferPool.reap
    monkeypatch.setattr(BufferPool, 'reap', lambda self: (turns.append(None), reap(self))[1])
    pool.close()
    until(lambda: bool(turns), 'the first look')
    time.sleep(0.3)
    assert len(turns) <= 3, 'the first look, and at most one for each token'
    pool.release(lease)


# Pools over buffers that a source has allocated.

LAYOUT = compute_layout(NV12, 64, 48)


def buffers() -> Buffers:
    return (SealedMemfd().allocate(LAYOUT.buffer_size(0)),)


def again(of: Buffers) -> Buffers:
    return tuple(DmaBuf(buffer.dup(), BufferKind.MEMFD, 'memfd') for buffer in of)


def foreign(known: list[Buffers], **options: int) -> ForeignBufferPool:
    return ForeignBufferPool(LAYOUT, known, name='camera', on_free=lambda slot: None, **options)


def test_an_unknown_buffer_gets_a_slot_of_its_own_until_there_are_enough() -> None:
    pool = foreign([buffers(), buffers()], most=3)
    new = buffers()
    slot = pool.adopt(new)
    assert slot is pool.slots[2] is pool.slot_of(identities_of(new)) and slot.buffers is new
    # The pool is full: the free slot that was unused for the longest time makes room.
    for index in (0, 2, 1):
        pool.discard(pool.acquire(index))
    oldest, old, after = pool.slots[0], identities_of(pool.slots[0].buffers), buffers()
    assert pool.replaced == 0
    assert pool.adopt(after) is pool.slots[0] is pool.slot_of(identities_of(after))
    assert pool.replaced == 1 and oldest.state is SlotState.RETIRED
    assert pool.slot_of(old) is None and len(pool.slots) == 3


def test_what_is_in_use_is_never_replaced() -> None:
    pool = foreign([buffers()], most=1)
    lease = leased(pool)
    assert pool.adopt(buffers()) is None
    assert pool.statistics().exhausted == 1 and pool.slots == (lease.slot,)
    pool.release(lease)
    assert pool.adopt(buffers()) is not None


def test_a_retired_slot_waits_for_new_buffers_and_is_no_failure() -> None:
    pool = foreign([buffers(), buffers()])
    lease = leased(pool, pool.acquire(1))
    lease.slot.condemned = True
    pool.release(lease)
    for _ in range(3):
        pool._retry.due = 0.0
        pool.collect()
    found = pool.statistics()
    assert (found.retired, found.failures, found.last_failure) == (1, 0, '')
    assert pool.adopt(buffers()) is pool.slots[1]


def test_foreign_buffers_that_are_shared_or_too_small_are_refused_and_closed() -> None:
    known = [buffers(), buffers()]
    pool = foreign(known)
    with pytest.raises(LayoutError, match='must not share buffers'):
        pool.adopt((*again(known[0]), *buffers()))
    with pytest.raises(LayoutError, match='plane'):
        pool.adopt((SealedMemfd().allocate(1),))
    assert len(pool.slots) == 2
    first = buffers()
    with pytest.raises(LayoutError, match='share the buffer'):
        foreign([first, again(first)])
    with pytest.raises(ConfigError, match='at least 1'):
        foreign([])


class Held:
    """A pool whose buffers go back to their owner, and a list of the returned ones."""

    def __init__(self) -> None:
        self.buffers = HeldBuffers()
        self.given_back: list[str] = []
        self.pool = ForeignBufferPool(
            LAYOUT, [buffers(), buffers()], name='camera', on_free=self.buffers.free
        )
        self.pool.add_retire_listener(self.buffers.ended)

    def publish(self, index: int, name: str) -> Slot:
        slot = self.pool.acquire(index)
        assert slot is not None
        self.buffers.hold(slot, lambda: self.given_back.append(name))
        return slot

    def close(self) -> None:
        self.buffers.begin_close()
        self.pool.close()
        self.buffers.end_close()


def test_a_buffer_goes_back_to_its_owner_once_when_the_last_one_has_released_it() -> None:
    held = Held()
    slot = held.publish(0, 'first')
    leases = [leased(held.pool, slot, holder) for holder in ('npu', 'viewer')]
    assert held.buffers.hold_too(slot, lambda: held.given_back.append('again'))
    for lease in leases:
        assert held.given_back == []
        held.pool.release(lease)
    assert held.given_back == ['first', 'again']
    assert not held.buffers.hold_too(slot, lambda: held.given_back.append('too late'))
    held.pool.discard(held.publish(0, 'unsent'))
    assert held.given_back == ['first', 'again', 'unsent']
    held.pool.close()


def test_a_buffer_that_is_published_again_before_its_owner_is_told_goes_back_twice() -> None:
    held, told = Held(), list[Slot]()
    held.pool._on_free = told.append
    held.pool.release(leased(held.pool, held.publish(0, 'first')))
    lease = leased(held.pool, held.publish(0, 'second'))
    held.buffers.free(told.pop())
    assert held.given_back == ['first']
    assert held.buffers.hold_too(lease.slot, lambda: held.given_back.append('again'))
    held.pool.release(lease)
    held.buffers.free(told.pop())
    assert held.given_back == ['first', 'second', 'again']
    held.pool.release(leased(held.pool, held.publish(0, 'third')))
    lease = leased(held.pool, held.publish(0, 'fourth'))
    held.close()
    held.buffers.free(told.pop())
    assert held.given_back[3:] == ['third']
    held.pool.release(lease)
    assert held.given_back[3:] == ['third', 'fourth']


def test_a_buffer_that_a_device_may_still_read_goes_back_at_the_end() -> None:
    held = Held()
    held.pool._release_timeout_s = 0.0
    slot = held.publish(1, 'late')
    held.pool.release(leased(held.pool, slot), EventFence())
    held.pool.collect()
    assert slot.state is SlotState.RETIRED and held.given_back == []
    held.close()
    assert held.given_back == ['late']
