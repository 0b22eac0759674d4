"""Who may hold how much, who does, and what the pool says about it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from pool_kit import acquired, counted_pool, leased

from zc_perception.errors import ConfigError
from zc_perception.memory.fence import EventFence
from zc_perception.memory.pool import BufferPool

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]


def test_quotas_and_the_reserve_fit_into_the_slots(make_pool: MakePool) -> None:
    """quotas + in flight + what the driver needs queued ≤ slots."""
    pool = make_pool(slots=6, reserve=3)
    assert pool.unpromised == 3
    pool.set_quota('npu', 2)
    message = (
        "quota of 2 leases for 'rviz' is more than is left: of 6 slots 2 are promised to others and 3 reserved .* at most 1, or configure"
    )
    with pytest.raises(ConfigError, match=message):
        pool.set_quota('rviz', 2)
    pool.set_quota('rviz', 1)
    assert pool.unpromised == 0
    assert (pool.statistics().quotas, pool.statistics().reserve) == ({'npu': 2, 'rviz': 1}, 3)


def test_a_holder_s_own_quota_is_replaced_not_added(make_pool: MakePool) -> None:
    pool = make_pool(slots=3)
    pool.set_quota('npu', 3)
    pool.set_quota('npu', 2)
    pool.set_quota('npu', 3)
    with pytest.raises(ConfigError, match='at most 3'):
        pool.set_quota('npu', 4)
    assert pool.statistics().quotas == {'npu': 3}


def test_a_quota_ends_with_its_consumer(make_pool: MakePool) -> None:
    pool = make_pool(slots=2)
    pool.set_quota('npu', 2)
    pool.set_quota('npu', None)
    pool.set_quota('overlay', 2)
    assert pool.unpromised == 0


def test_overcommitting_is_possible_when_asked_for(make_pool: MakePool) -> None:
    pool = make_pool(slots=2)
    pool.set_quota('npu', 5, overcommit=True)
    assert pool.unpromised == -3


def test_a_negative_quota_is_refused(make_pool: MakePool) -> None:
    pool = make_pool(slots=3)
    with pytest.raises(ConfigError, match="a quota of -1 leases for 'npu'; 0 or more, or None"):
        pool.set_quota('npu', -1)
    assert pool.statistics().quotas == {}


def test_a_quota_of_nothing_gets_nothing(make_pool: MakePool) -> None:
    pool = make_pool(slots=3)
    pool.set_quota('npu', 0)
    slot = acquired(pool)
    assert pool.lease(slot, slot.generation, 'npu') is None
    assert pool.statistics().refused == 1
    pool.discard(slot)


def test_thousands_of_consumers_that_came_and_went_leave_nothing_behind(make_pool: MakePool) -> None:
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
    assert (statistics.holders, statistics.quotas, statistics.refused_by_quota) == ({'keeper': 1}, {}, {})
    assert (statistics.refused, statistics.revoked) == (3000, 1500)
    accounts = pool._accounts
    assert (len(accounts.held), len(accounts.quotas), len(accounts.refused), len(slot.leases)) == (1, 0, 0, 1)
    pool.release(keeper)


def test_without_a_free_slot_one_line_says_who_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, 'monotonic', lambda: now[0])
    pool, _ = counted_pool(5)
    first, second = acquired(pool), acquired(pool)
    leases = [leased(pool, first, 'npu'), leased(pool, first, 'overlay')]
    now[0] += 1.0
    leases.append(leased(pool, second, 'npu'))
    pool.release(leased(pool), EventFence())
    acquired(pool)
    now[0] += 0.25
    assert pool.describe_holders() == (
        'camera: 1 of 5 slots free; npu holds 2 (slot 0 generation 1 for 1.25 s, slot 1 generation 1 for 0.25 s); '
        'overlay holds 1 (slot 0 generation 1 for 1.25 s); slot 2 generation 1 waits for 1 release fence; '
        'slot 3 generation 1 is being filled for 0.25 s'
    )
    assert [(h.holder, h.index, h.generation, h.held_s, h.ending) for h in pool.holdings()] == [
        ('npu', 0, 1, 1.25, False), ('overlay', 0, 1, 1.25, False), ('npu', 1, 1, 0.25, False),
    ]  # fmt: skip
    for lease in leases:
        pool.release(lease)
    pool._table.slots[2].fences[0].fence.signal()  # type: ignore
    pool.close()


def test_what_listeners_raise_is_counted_and_harms_nobody() -> None:
    pool, memory = counted_pool(2, on_free=lambda slot: 1 / 0)
    heard: list[int] = []
    pool.add_retire_listener(lambda slot: [][1])
    pool.add_retire_listener(lambda slot: heard.append(slot.index))
    pool.release(leased(pool))
    statistics = pool.statistics()
    assert statistics.callback_failures == 1
    assert statistics.last_failure == 'on_free for Slot(0, generation 1, free): ZeroDivisionError: division by zero'
    pool.close()
    assert (heard, memory.closes) == ([0, 1], [1, 1])
    assert pool.statistics().callback_failures == 3


def test_a_listener_that_was_removed_hears_nothing() -> None:
    pool, _ = counted_pool(1)
    heard: list[str] = []
    removers = [pool.add_retire_listener(lambda slot, name=name: heard.append(name)) for name in 'abc']  # type: ignore
    removers[1]()
    removers[1]()
    pool.close()
    assert heard == ['a', 'c']
