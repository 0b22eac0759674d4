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

"""Who may hold how much, who does, and what the pool says about it."""

from __future__ import annotations

from collections.abc import Callable
import threading
import time

from pool_kit import acquired, counted_pool, leased
import pytest

from zc_perception.memory.fence import EventFence
from zc_perception.memory.pool import BufferPool

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]


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
        'camera: 1 of 5 slots free; npu holds 2 (slot 0 generation 1 for 1.25 s, slot 1 '
        'generation 1 for 0.25 s); '
        'overlay holds 1 (slot 0 generation 1 for 1.25 s); slot 2 generation 1 waits for 1 '
        'release fence; '
        'slot 3 generation 1 is being filled for 0.25 s'
    )
    assert [(h.holder, h.index, h.generation, h.held_s) for h in pool.holdings()] == [
        ('npu', 0, 1, 1.25), ('overlay', 0, 1, 1.25), ('npu', 1, 1, 0.25),
    ]  # fmt: skip
    for lease in leases:
        pool.release(lease)
    pool.slots[2].fences[0].fence.signal()  # type: ignore
    pool.close()


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


def test_the_newest_frames_wait_for_everybody_in_the_same_slots(make_pool: MakePool) -> None:
    pool = make_pool(slots=8, reserve=2)
    assert [pool.grant(f'viewer {number}', 1, 1) for number in range(6)] == [(1, 1)] * 5 + [(0, 0)]
    assert pool.unpromised == 0
    pool.set_quota('viewer 3', None)
    assert pool.grant('deep', 1, 10) == (1, 1), 'no slot is left for a greater depth'


def test_a_second_viewer_holds_as_many_as_the_first_while_there_are_as_many(
    make_pool: MakePool,
) -> None:
    pool = make_pool(slots=8, reserve=2)
    granted = [pool.grant(f'viewer {number}', 2, 1) for number in range(4)]
    assert granted == [(2, 1), (2, 1), (1, 1), (0, 0)] and pool.unpromised == 0


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


def test_leases_that_were_forgotten_make_room_again(make_pool: MakePool) -> None:
    pool, told = make_pool(slots=3), []
    pool.set_quota('viewer', 1, depth=1, on_room=lambda: told.append(1))
    first, second = leased(pool, acquired(pool), 'viewer'), leased(pool, acquired(pool), 'viewer')
    assert pool.hand_out(first) and not pool.hand_out(second)
    pool.abandon(first)
    assert told == []
    slot = acquired(pool)
    assert told == [1] and pool.hand_out(second)
    pool.discard(slot)
    pool.release(second)


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
