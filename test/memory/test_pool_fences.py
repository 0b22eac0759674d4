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

"""Slots that wait for release fences: states, time-outs, replacements."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
from pool_kit import acquired, after_timeout, counted_pool, leased, stop_clock, TIMEOUT_S
import pytest

from zc_perception import backoff
from zc_perception.errors import AllocationError, StaleFrameError
from zc_perception.memory.fence import EventFence
from zc_perception.memory.pool import BufferPool, FIRST_RETRY_S, LAST_RETRY_S, SlotState

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]


def test_a_slot_is_retired_while_a_late_job_still_reads_its_mapping(make_pool: MakePool) -> None:
    """
    Closing a mapping that has views raises BufferError.

    The producer must not see it, and the reader must not lose its bytes.
    """
    pool, fence = make_pool(slots=1, release_timeout_s=TIMEOUT_S), EventFence()
    slot = acquired(pool)
    slot.buffers[0].mapping()[0] = 42
    view = np.frombuffer(slot.buffers[0].mapping(), np.uint8)
    pool.release(leased(pool, slot), fence)
    after_timeout()
    assert acquired(pool) is not slot
    assert view[0] == 42


@pytest.mark.parametrize(
    'failure',
    [AllocationError('no memory'), OSError(12, 'Cannot allocate memory'), ValueError('a bug')],
    ids=repr,
)
def test_a_replacement_that_can_not_be_allocated_is_tried_again(failure: Exception) -> None:
    """Whatever the allocator raises, the pool goes on with the other slots."""
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
    pool.close()


def test_the_allocator_and_the_listeners_may_use_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    They are called without the lock.

    An allocator may ask for statistics, and a listener may look at who holds what.
    """
    pass_time = stop_clock(monkeypatch)
    pool, memory = counted_pool(1, release_timeout_s=TIMEOUT_S)
    heard: list[str] = []
    pool.add_retire_listener(lambda slot: heard.append(pool.describe_holders()))
    # Another look at the pool meanwhile begins no second replacement.
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
    # A pool that is closed meanwhile wants no replacement any more.
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
    pool.close()


def test_the_earliest_fence_decides_when_a_slot_is_given_up() -> None:
    """A later release with another fence doesn't give a hanging device more time."""
    pool, _ = counted_pool(1, release_timeout_s=TIMEOUT_S)
    slot = acquired(pool)
    first, second = leased(pool, slot), leased(pool, slot, 'overlay')
    pool.release(first, EventFence())
    after_timeout()
    pool.release(second, EventFence())
    assert (slot.state, pool.statistics().retired) == (SlotState.RETIRED, 1)
    pool.close()


def test_error_fences_are_counted() -> None:
    pool, _ = counted_pool(1)
    for error in (None, RuntimeError('device reset')):
        fence = EventFence()
        fence.signal(error)
        pool.release(leased(pool), fence)
    assert pool.statistics().fence_errors == 1
    pool.close()


def test_a_fence_of_a_refused_release_is_closed_too() -> None:
    """
    Its ownership has passed.

    Only the very fence that came with the first release is still needed.
    """
    pool, _ = counted_pool(1)
    lease, first, second = leased(pool), EventFence(), EventFence()
    pool.release(lease, first)
    for fence in (second, first):
        with pytest.raises(StaleFrameError, match='was released before'):
            pool.release(lease, fence)
    with pytest.raises(ValueError, match='closed'):
        second.fileno()
    assert pool.acquire() is None
    first.signal()
    assert pool.acquire() is lease.slot
    pool.close()


def test_failures_make_the_pauses_longer_and_a_success_makes_them_short_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(backoff, 'time', SimpleNamespace(monotonic=lambda: now[0]))
    pool, memory = counted_pool(1, release_timeout_s=TIMEOUT_S)
    pool.release(leased(pool), EventFence())
    memory.run_out()
    after_timeout()
    pauses = []
    for failures in range(1, 11):
        pool.collect()
        pauses.append(pool._retry.due - now[0])
        now[0] += 0.9 * pauses[-1]
        pool.collect()
        assert pool.statistics().failures == failures, 'too early for another attempt'
        now[0] += 0.2 * pauses[-1]
    assert pauses[:3] == pytest.approx([FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S])
    assert (
        max(pauses) == pytest.approx(LAST_RETRY_S)
        and pool.statistics().last_failure == 'no memory'
    )
    memory.failure = None
    pool.release(leased(pool), EventFence())
    memory.run_out()
    after_timeout()
    pool.collect()
    assert pool._retry.due - now[0] == pytest.approx(FIRST_RETRY_S)
    pool.close()
