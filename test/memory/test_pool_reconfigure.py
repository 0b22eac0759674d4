"""A camera changes its format while consumers hold frames; and a consumer dies while it does."""

from __future__ import annotations

import time

import pytest
from pool_kit import SMALL, TIMEOUT_S, CountingAllocator, acquired, closes, counted_pool, leased, stop_clock

from zc_perception.errors import AllocationError, ConfigError, LayoutError, StaleFrameError
from zc_perception.memory.fence import DeadlineFence, EventFence
from zc_perception.memory.pool import BufferPool, Slot, SlotState, quarantine_fence
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

pytestmark = pytest.mark.usefixtures('no_fd_leak')
LARGE = compute_layout(NV12, 64, 48)


def listening(pool: BufferPool) -> list[Slot]:
    heard: list[Slot] = []

    def hear(slot: Slot) -> None:
        assert closes(slot) == 0, 'the buffers are still open'
        assert not pool._lock.locked(), 'listeners are called without the lock'
        heard.append(slot)

    pool.add_retire_listener(hear)
    return heard


def test_old_frames_stay_readable_and_new_slots_are_there_at_once() -> None:
    pool, memory = counted_pool(3)
    heard = listening(pool)
    old = pool.slots
    lease = leased(pool)
    lease.slot.buffers[0].mapping()[5] = 42
    large = CountingAllocator(LARGE)
    pool.reconfigure(LARGE, large)
    assert [slot.index for slot in heard] == [1, 2] and memory.closes == [0, 1, 1]
    assert pool.layout is LARGE and lease.slot.layout is SMALL and lease.slot.buffers[0].mapping()[5] == 42
    assert len(pool.slots) == 3 and all(slot.layout is LARGE and slot.buffers[0].size >= LARGE.buffer_size(0) for slot in pool.slots)
    assert not {slot.buffer_uid for slot in pool.slots} & {slot.buffer_uid for slot in old}
    assert (pool.statistics().states, pool.statistics().ending) == ({SlotState.FREE: 3}, 1)
    assert pool.statistics().holders == {'npu': 1}
    shared = pool.lease(lease.slot, lease.generation, 'overlay')
    assert shared is not None, 'an old frame can still be shared'
    pool.release(lease)
    assert len(heard) == 2
    pool.release(shared)
    assert heard[2] is lease.slot and memory.closes == [1, 1, 1] and pool.statistics().ending == 0
    assert [acquired(pool).layout for _ in range(3)] == [LARGE] * 3 and pool.acquire() is None
    pool.close()
    assert large.closes == [1] * 3 and len(heard) == 6


def test_what_is_being_filled_can_still_be_published_or_discarded() -> None:
    pool, memory = counted_pool(2)
    published, discarded = acquired(pool), acquired(pool)
    pool.reconfigure(LARGE, CountingAllocator(LARGE))
    assert memory.closes == [0, 0]
    lease = leased(pool, published)
    pool.discard(discarded)
    assert memory.closes == [0, 1]
    pool.release(lease)
    assert memory.closes == [1, 1]
    pool.close()


def test_an_old_slot_waits_for_its_fences_and_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    pass_time = stop_clock(monkeypatch)
    pool, memory = counted_pool(2, release_timeout_s=TIMEOUT_S)
    fences = [EventFence(), EventFence()]
    for lease, fence in zip([leased(pool), leased(pool)], fences, strict=True):
        pool.release(lease, fence)
    large = CountingAllocator(LARGE)
    pool.reconfigure(LARGE, large, 1)
    fences[1].signal()
    pool.collect()
    assert memory.closes == [0, 1]
    pass_time(2 * TIMEOUT_S)
    pool.collect()
    assert memory.closes == [1, 1]
    assert (len(large.made), pool.statistics().ending, pool.statistics().slots) == (1, 0, 1)
    pool.close()


def test_freed_old_slots_are_not_reported_to_the_driver() -> None:
    freed: list[Slot] = []
    pool, _ = counted_pool(2, on_free=freed.append)
    lease = leased(pool)
    pool.reconfigure(LARGE, CountingAllocator(LARGE))
    pool.release(lease)
    assert freed == [], 'the driver knows neither the old buffer any more nor anything of the fresh ones'
    pool.discard(acquired(pool))
    assert freed == [pool.slots[0]]
    pool.close()


@pytest.mark.parametrize('failure', ['no memory', 'too small'])
def test_without_memory_everything_stays_as_it_is(failure: str) -> None:
    pool, memory = counted_pool(3)
    heard, before, lease = listening(pool), pool.slots, leased(pool)
    large = CountingAllocator(SMALL if failure == 'too small' else LARGE)
    large.allocations_left = 2
    with pytest.raises(LayoutError if failure == 'too small' else AllocationError):
        pool.reconfigure(LARGE, large)
    assert large.closes == ([1] if failure == 'too small' else [1, 1])
    assert (pool.layout, pool.slots, heard, memory.closes) == (SMALL, before, [], [0, 0, 0])
    pool.release(lease)
    assert [acquired(pool) for _ in range(3)] == list(before)
    pool.close()


def test_memory_is_bounded_by_what_consumers_hold() -> None:
    pool, memory = counted_pool(3)
    kept = []
    for _ in range(5):
        kept.append(leased(pool))
        pool.reconfigure(SMALL, memory)
    assert memory.closes.count(0) == 5 + 3 and pool.statistics().ending == 5
    assert all(holding.ending for holding in pool.holdings())
    assert 'of an earlier configuration' in pool.describe_holders()
    for lease in kept:
        pool.release(lease)
    assert memory.closes.count(0) == 3 and set(memory.closes) == {0, 1}
    pool.close()


def test_generations_go_on_through_fewer_and_more_slots() -> None:
    pool, memory = counted_pool(3)
    for _ in range(2):
        for slot in [acquired(pool) for _ in range(3)]:
            pool.discard(slot)
    pool.reconfigure(SMALL, memory, 1)
    pool.reconfigure(SMALL, memory, 3)
    assert [acquired(pool).generation for _ in range(3)] == [3, 3, 3]
    pool.close()


def test_a_reconfiguration_ends_the_search_for_a_replacement() -> None:
    """A slot of the old layout that could not be replaced must not come back in the new one."""
    pool, memory = counted_pool(2, release_timeout_s=TIMEOUT_S)
    pool.release(leased(pool), EventFence())
    memory.run_out()
    time.sleep(1.5 * TIMEOUT_S)
    pool.collect()
    large = CountingAllocator(LARGE)
    pool.reconfigure(LARGE, large)
    time.sleep(1.5 * TIMEOUT_S)
    pool.collect()
    assert len(large.made) == 2 and pool.statistics().states == {SlotState.FREE: 2} and pool.statistics().ending == 0
    pool.close()
    assert memory.closes == [1, 1] and large.closes == [1, 1]


@pytest.mark.parametrize('also_missing', [False, True])
def test_a_replacement_that_comes_after_a_reconfiguration_is_thrown_away(also_missing: bool) -> None:
    """It has the old layout, even where the new configuration lacks the same slot."""
    pool, memory = counted_pool(1, release_timeout_s=TIMEOUT_S)
    large = CountingAllocator(LARGE)
    plain = CountingAllocator.__call__
    calls = []

    def reconfigure_meanwhile() -> tuple[object, ...]:
        calls.append(None)
        pool.reconfigure(LARGE, large)
        if also_missing:
            leased(pool)
            pool.revoke('npu', lambda buffers: 1 / 0)  # type: ignore
        return plain(memory)

    pool._source._allocate = reconfigure_meanwhile  # type: ignore
    pool.release(leased(pool), EventFence())
    time.sleep(1.5 * TIMEOUT_S)
    slot = pool.acquire(wait_s=30.0)
    assert slot is not None and slot.layout is LARGE
    assert len(calls) == 1 and memory.closes == [1, 1] and large.closes == ([1, 0] if also_missing else [0])
    pool.close()


def test_too_few_slots_for_the_quotas_are_refused_before_anything_is_allocated() -> None:
    pool, _ = counted_pool(4, reserve=1)
    pool.set_quota('npu', 2)
    large = CountingAllocator(LARGE)
    with pytest.raises(ConfigError, match=r'2 slots are too few for the quotas \(npu 2\) and the 1 reserved for the producer; use 3 slots'):
        pool.reconfigure(LARGE, large, 2)
    assert large.made == []
    pool.reconfigure(LARGE, large, 2, overcommit=True)
    assert pool.unpromised == -1
    pool.close()


@pytest.mark.parametrize('slots', [0, 65])
def test_a_reconfiguration_has_slots_too(slots: int) -> None:
    pool, _ = counted_pool(3)
    with pytest.raises(ConfigError, match=f'{slots} slots'):
        pool.reconfigure(LARGE, CountingAllocator(LARGE), slots)
    pool.close()


def test_a_closed_pool_can_not_be_reconfigured() -> None:
    pool, _ = counted_pool(3)
    pool.close()
    large = CountingAllocator(LARGE)
    with pytest.raises(ConfigError, match='the pool of camera is closed; make a new one'):
        pool.reconfigure(LARGE, large)
    assert large.made == []


def test_a_pool_that_is_closed_during_its_reconfiguration_stays_closed() -> None:
    pool, _ = counted_pool(1)
    large = CountingAllocator(LARGE)

    def close_meanwhile() -> tuple[object, ...]:
        pool.close()
        return CountingAllocator.__call__(large)

    with pytest.raises(ConfigError, match='is closed'):
        pool.reconfigure(LARGE, close_meanwhile)  # type: ignore
    assert large.closes == [1]


def test_a_dead_holder_s_slots_wait_for_their_quarantine() -> None:
    pool, _ = counted_pool(3)
    shared, own, other = acquired(pool), acquired(pool), acquired(pool)
    dead = [leased(pool, shared, 'dead'), leased(pool, own, 'dead'), leased(pool, own, 'dead')]
    alive = [leased(pool, shared, 'npu'), leased(pool, other, 'npu')]
    pool.set_quota('dead', 3)
    made: dict[int, EventFence] = {}

    def quarantine(buffers: object) -> EventFence:
        assert not pool._lock.locked(), 'its ioctls are made without the lock'
        assert pool.acquire() is None, 'nothing is free before the quarantine is there'
        fence = EventFence()
        made[next(slot.index for slot in pool.slots if slot.buffers is buffers)] = fence
        return fence

    assert pool.revoke('dead', quarantine) == 3
    assert sorted(made) == [0, 1], 'one for each slot that it held'
    assert pool.statistics().states == {SlotState.LEASED: 2, SlotState.WAITING: 1}
    assert (pool.statistics().holders, pool.statistics().quotas, pool.statistics().revoked) == ({'npu': 2}, {}, 3)
    for lease in dead:
        with pytest.raises(StaleFrameError, match='the lease of dead was revoked before'):
            pool.release(lease)
    made[1].signal()
    assert pool.acquire() is own
    pool.release(alive[0])
    assert pool.acquire() is None, 'the quarantine of the shared slot is pending'
    made[0].signal()
    assert pool.acquire() is shared
    assert pool.revoke('dead', quarantine) == 0
    pool.release(alive[1])
    pool.close()


def test_the_quarantine_has_a_time_of_its_own() -> None:
    """It may last for as long as a device's job: longer than a release fence. A V4L2 buffer could not be replaced after it."""
    pool, _ = counted_pool(1, release_timeout_s=TIMEOUT_S)
    lease = leased(pool)
    pool.revoke('npu', lambda buffers: quarantine_fence(buffers, 3 * TIMEOUT_S))
    time.sleep(1.5 * TIMEOUT_S)
    pool.collect()
    assert pool.statistics().retired == 0
    assert pool.acquire(wait_s=30.0) is lease.slot
    pool.close()


def test_a_quarantine_that_never_ends_costs_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    pass_time = stop_clock(monkeypatch)
    pool, memory = counted_pool(1)
    lease = leased(pool)
    pool.revoke('npu', lambda buffers: EventFence(), timeout_s=TIMEOUT_S)
    assert pool.acquire() is None
    pass_time(2 * TIMEOUT_S)
    fresh = acquired(pool)
    assert fresh is not lease.slot and memory.closes == [1, 0]
    pool.close()


def test_a_slot_whose_quarantine_can_not_be_made_is_never_reused() -> None:
    pool, memory = counted_pool(2)
    slot = acquired(pool)
    dead, alive = leased(pool, slot, 'dead'), leased(pool, slot, 'npu')

    def impossible(buffers: object) -> EventFence:
        raise OSError(24, 'Too many open files')

    assert pool.revoke('dead', impossible) == 1
    assert 'Too many open files' in pool.statistics().last_failure
    assert slot.state is SlotState.LEASED, 'its other holder keeps it'
    fence = EventFence()
    pool.release(alive, fence)
    assert (slot.state, memory.closes[0]) == (SlotState.WAITING, 0), "and so does that one's job"
    fence.signal()
    pool.collect()
    assert (slot.state, memory.closes[0], dead.ended) == (SlotState.RETIRED, 1, 'revoked')
    assert acquired(pool).buffer_uid != slot.buffer_uid
    pool.close()


def test_an_interrupt_during_a_quarantine_loses_no_slot() -> None:
    pool, memory = counted_pool(2)
    leases = [leased(pool), leased(pool)]

    def interrupted(buffers: object) -> EventFence:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.revoke('npu', interrupted)
    assert len({acquired(pool).buffer_uid for _ in leases} - {lease.slot.buffer_uid for lease in leases}) == 2
    assert memory.closes == [1, 1, 0, 0]
    pool.close()


def test_a_frame_forgotten_by_a_holder_that_was_revoked_is_taken_back_once() -> None:
    pool, _ = counted_pool(1)
    lease = leased(pool)
    pool.abandon(lease)
    assert pool.revoke('npu', lambda buffers: DeadlineFence(0.0)) == 1
    slot = pool.acquire(wait_s=30.0)
    assert slot is lease.slot
    newer = leased(pool, slot)
    pool.collect()
    assert (pool.statistics().abandoned, newer.ended, pool.statistics().holders) == (0, '', {'npu': 1})
    pool.release(newer)
    pool.close()


def test_revoking_reaches_frames_of_an_earlier_configuration() -> None:
    pool, memory = counted_pool(1)
    leased(pool)
    pool.reconfigure(LARGE, CountingAllocator(LARGE))
    fence = EventFence()
    assert pool.revoke('npu', lambda buffers: fence) == 1
    assert memory.closes == [0]
    fence.signal()
    pool.collect()
    assert memory.closes == [1] and pool.statistics().ending == 0
    pool.close()
