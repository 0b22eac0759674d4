"""Slots, leases, quotas and release fences of one pool, in one thread. Threads, forks and finalizers: test_pool_concurrency.py."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from zc_perception.errors import AllocationError, ConfigError, LayoutError, StaleFrameError
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import EventFence
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.pool import BufferPool, Lease, Slot, SlotState
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]
TIMEOUT_S = 0.02


def acquired(pool: BufferPool) -> Slot:
    slot = pool.acquire()
    assert slot is not None
    return slot


def leased(pool: BufferPool, slot: Slot, holder: str = 'npu') -> Lease:
    lease = pool.lease(slot, slot.generation, holder)
    assert lease is not None
    return lease


def after_timeout() -> None:
    time.sleep(1.5 * TIMEOUT_S)


def test_a_slot_goes_through_its_states(make_pool: MakePool) -> None:
    pool = make_pool(slots=1)
    states = [pool.slots[0].state]
    slot = acquired(pool)
    states.append(slot.state)
    lease = leased(pool, slot)
    states.append(slot.state)
    fence = EventFence()
    pool.release(lease, fence)
    states.append(slot.state)
    fence.signal()
    pool.collect()
    states.append(slot.state)
    assert states == [SlotState.FREE, SlotState.FILLING, SlotState.LEASED, SlotState.WAITING, SlotState.FREE]


def test_a_slot_is_free_when_its_last_lease_is_dropped(make_pool: MakePool) -> None:
    pool = make_pool(slots=1)
    slot = acquired(pool)
    first, second = leased(pool, slot, 'npu'), leased(pool, slot, 'overlay')
    pool.release(second)
    assert pool.acquire() is None
    pool.release(first)
    assert pool.acquire() is slot


def test_every_reuse_has_a_generation_of_its_own(make_pool: MakePool) -> None:
    pool = make_pool(slots=1)
    generations = []
    for _ in range(3):
        slot = acquired(pool)
        generations.append(slot.generation)
        pool.release(leased(pool, slot))
    assert len(set(generations)) == 3


def test_a_stale_descriptor_gets_no_lease(make_pool: MakePool) -> None:
    pool = make_pool(slots=1)
    slot = acquired(pool)
    old = slot.generation
    pool.release(leased(pool, slot))
    with pytest.raises(StaleFrameError, match=f'camera slot 0: generation {old} is gone'):
        pool.lease(slot, old, 'npu')
    acquired(pool)
    with pytest.raises(StaleFrameError, match=f'generation {old} is gone'):
        pool.lease(slot, old, 'npu')


def test_a_lease_is_released_once(make_pool: MakePool) -> None:
    pool = make_pool(slots=1)
    slot = acquired(pool)
    lease, other = leased(pool, slot), leased(pool, slot)
    pool.release(lease)
    with pytest.raises(StaleFrameError, match='the lease of npu was released before'):
        pool.release(lease)
    pool.release(other)
    # Not even when the same slot has a new generation and new holders.
    newer = leased(pool, acquired(pool))
    with pytest.raises(StaleFrameError):
        pool.release(lease)
    assert pool.statistics().holders == {'npu': 1}
    pool.release(newer)


def test_without_a_free_slot_the_new_frame_is_dropped_and_the_holders_are_named(make_pool: MakePool) -> None:
    pool = make_pool(slots=2)
    leases = [leased(pool, acquired(pool), holder) for holder in ('npu', 'overlay')]
    leases.append(leased(pool, leases[1].slot, 'npu'))
    assert pool.acquire() is None and pool.acquire() is None
    statistics = pool.statistics()
    assert (statistics.exhausted, statistics.holders) == (2, {'npu': 2, 'overlay': 1})
    assert statistics.states == {SlotState.LEASED: 2}
    for lease in leases:
        pool.release(lease)
    assert pool.statistics().holders == {}


def test_a_driver_can_take_the_very_slot_that_it_filled(make_pool: MakePool) -> None:
    pool = make_pool(slots=3)
    slot = pool.acquire(2)
    assert slot is not None and slot.index == 2
    assert pool.acquire(2) is None
    assert {acquired(pool).index, acquired(pool).index} == {0, 1}


def test_above_its_quota_only_that_holder_goes_without(make_pool: MakePool) -> None:
    pool = make_pool(slots=3)
    pool.set_quota('slow', 1)
    first, second = acquired(pool), acquired(pool)
    kept = [leased(pool, first, 'slow'), leased(pool, first, 'npu'), leased(pool, second, 'npu')]
    assert pool.lease(second, second.generation, 'slow') is None
    assert pool.statistics().refused_by_quota == {'slow': 1}
    pool.release(kept[0])
    kept[0] = leased(pool, second, 'slow')
    pool.set_quota('slow', None)
    kept.append(leased(pool, first, 'slow'))
    for lease in kept:
        pool.release(lease)


def test_a_discarded_slot_is_free_at_once(make_pool: MakePool) -> None:
    pool = make_pool(slots=1)
    slot = acquired(pool)
    pool.discard(slot)
    assert pool.acquire() is slot


@pytest.mark.parametrize('state', ['free', 'leased', 'waiting'])
def test_only_a_slot_that_is_being_filled_can_be_discarded(make_pool: MakePool, state: str) -> None:
    """It would free a slot under its readers, or tell the driver of a free slot twice."""
    told: list[Slot] = []
    pool, fence = make_pool(slots=1, on_free=told.append), EventFence()
    slot = acquired(pool)
    lease = leased(pool, slot)
    if state == 'free':
        pool.release(lease)
    elif state == 'waiting':
        pool.release(lease, fence)
    told.clear()
    with pytest.raises(StaleFrameError, match=f'slot 0 is {state}'):
        pool.discard(slot)
    assert (slot.state.value, told) == (state, [])
    if state == 'leased':
        pool.release(lease)
    fence.signal()
    pool.collect()
    fence.close()


def test_a_slot_waits_for_all_release_fences(make_pool: MakePool) -> None:
    pool = make_pool(slots=1)
    slot = acquired(pool)
    leases, fences = [leased(pool, slot) for _ in range(2)], [EventFence(), EventFence()]
    for lease, fence in zip(leases, fences, strict=True):
        pool.release(lease, fence)
    assert pool.acquire() is None
    fences[1].signal()
    assert pool.acquire() is None
    fences[0].signal()
    assert pool.acquire() is slot
    for fence in fences:
        with pytest.raises(ValueError, match='closed'):
            fence.fileno()


def test_an_error_is_a_signal_too(make_pool: MakePool) -> None:
    pool, fence = make_pool(slots=1), EventFence()
    slot = acquired(pool)
    fence.signal(RuntimeError('device reset'))
    pool.release(leased(pool, slot), fence)
    assert pool.acquire() is slot


def test_a_slot_whose_fence_never_signals_is_replaced_and_never_reused(make_pool: MakePool) -> None:
    pool, fence = make_pool(slots=1, release_timeout_s=TIMEOUT_S), EventFence()
    slot = acquired(pool)
    old_identity, old_uid = slot.buffers[0].identity, slot.buffer_uid
    pool.release(leased(pool, slot), fence)
    after_timeout()
    fresh = acquired(pool)
    assert fresh is not slot and fresh.index == slot.index
    assert fresh.buffer_uid != old_uid and fresh.buffers[0].identity != old_identity
    assert (slot.state, pool.statistics().retired, pool.statistics().slots) == (SlotState.RETIRED, 1, 1)
    fence.signal()
    pool.discard(fresh)
    assert pool.acquire() is fresh


def test_a_fence_that_signals_late_but_before_anybody_looked_saves_its_slot(make_pool: MakePool) -> None:
    pool, fence = make_pool(slots=1, release_timeout_s=TIMEOUT_S), EventFence()
    slot = acquired(pool)
    pool.release(leased(pool, slot), fence)
    after_timeout()
    fence.signal()
    assert pool.acquire() is slot
    assert pool.statistics().retired == 0


def test_a_slot_is_retired_while_a_late_job_still_reads_its_mapping(make_pool: MakePool) -> None:
    """Closing a mapping that has views raises BufferError: the producer must not see it, and the reader must not lose its bytes."""
    pool, fence = make_pool(slots=1, release_timeout_s=TIMEOUT_S), EventFence()
    slot = acquired(pool)
    slot.buffers[0].mapping()[0] = 42
    view = np.frombuffer(slot.buffers[0].mapping(), np.uint8)
    pool.release(leased(pool, slot), fence)
    after_timeout()
    assert acquired(pool) is not slot
    assert view[0] == 42


def test_freed_slots_are_reported_the_replacement_of_a_retired_one_too(make_pool: MakePool) -> None:
    freed: list[int] = []
    pool = make_pool(slots=1, release_timeout_s=TIMEOUT_S, on_free=lambda slot: freed.append(slot.buffer_uid))
    slot = acquired(pool)
    pool.release(leased(pool, slot))
    pool.discard(acquired(pool))
    pool.release(leased(pool, acquired(pool)), EventFence())
    assert freed == [slot.buffer_uid] * 2
    after_timeout()
    pool.collect()
    assert freed[2:] == [pool.slots[0].buffer_uid] != [slot.buffer_uid]


def test_a_replacement_that_can_not_be_allocated_is_tried_again() -> None:
    layout, heap, memory_left = compute_layout(NV12, 64, 48), SealedMemfd(), [True]

    def allocate() -> tuple[DmaBuf, ...]:
        if not memory_left:
            raise AllocationError('no memory')
        return (heap.allocate(layout.buffer_size(0)),)

    pool = BufferPool(layout, allocate, 2, name='camera', release_timeout_s=TIMEOUT_S)
    slot = acquired(pool)
    pool.release(leased(pool, slot), EventFence())
    memory_left.clear()
    after_timeout()
    other = acquired(pool)
    assert other.index == 1 and pool.acquire() is None
    assert pool.statistics().states == {SlotState.RETIRED: 1, SlotState.FILLING: 1}
    memory_left.append(True)
    assert acquired(pool).index == 0
    pool.close()


def test_buffers_must_hold_the_layout() -> None:
    layout = compute_layout(NV12, 640, 480)
    with pytest.raises(LayoutError, match='plane 1: ends at byte'):
        BufferPool(layout, lambda: (SealedMemfd().allocate(640 * 480),), 2, name='camera')


def test_a_failing_allocation_frees_the_slots_before_it() -> None:
    layout, heap, left = compute_layout(NV12, 64, 48), SealedMemfd(), [1, 1]

    def allocate() -> tuple[DmaBuf, ...]:
        if not left:
            raise AllocationError('no memory')
        left.pop()
        return (heap.allocate(layout.buffer_size(0)),)

    with pytest.raises(AllocationError, match='no memory'):
        BufferPool(layout, allocate, 3, name='camera')


def test_a_pool_has_slots(make_pool: MakePool) -> None:
    with pytest.raises(ConfigError, match='pool of camera: 0 slots; at least 1'):
        make_pool(slots=0)


def test_closing_keeps_leased_buffers_open_until_their_release(make_pool: MakePool) -> None:
    pool = make_pool(slots=3)
    slot, filling, free = acquired(pool), acquired(pool), pool.slots[2]
    lease = leased(pool, slot)
    slot.buffers[0].mapping()[7] = 99
    pool.close()
    assert slot.buffers[0].mapping()[7] == 99
    for closed in (filling, free):
        with pytest.raises(ValueError, match='closed'):
            closed.buffers[0].fileno()
    assert pool.acquire() is None
    pool.release(lease)
    with pytest.raises(ValueError, match='closed'):
        slot.buffers[0].fileno()


def test_what_is_being_filled_when_the_pool_closes_can_be_discarded_but_not_published(make_pool: MakePool) -> None:
    pool = make_pool(slots=1)
    slot = acquired(pool)
    pool.close()
    with pytest.raises(StaleFrameError, match='retired'):
        pool.lease(slot, slot.generation, 'npu')
    pool.discard(slot)
    assert pool.acquire() is None


def test_a_closed_pool_allocates_nothing_for_a_slot_that_times_out(make_pool: MakePool) -> None:
    pool, fence = make_pool(slots=1, release_timeout_s=TIMEOUT_S), EventFence()
    pool.release(leased(pool, acquired(pool)), fence)
    pool.close()
    after_timeout()
    pool.collect()
    assert pool.statistics().states == {SlotState.RETIRED: 1}
    assert pool.acquire() is None
