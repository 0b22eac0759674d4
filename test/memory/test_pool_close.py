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

"""A closed pool finishes by itself."""

from __future__ import annotations

from collections.abc import Iterator
import threading
import time
from unittest import mock

from pool_kit import acquired, closes, counted_pool, leased, PATIENCE_S, stop_clock, TIMEOUT_S
import pytest
from waiting import until

from zc_perception.errors import StaleFrameError
from zc_perception.memory import pool as pool_module
from zc_perception.memory.fence import EventFence, Waker
from zc_perception.memory.pool import BufferPool, Lease, Reaper


@pytest.fixture(autouse=True)
def reaper(no_fd_leak: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reaper]:
    own = Reaper()
    monkeypatch.setattr(pool_module, 'REAPER', own)
    threads: list[threading.Thread] = []
    watch = own.watch
    monkeypatch.setattr(
        own,
        'watch',
        lambda pool: (watch(pool), threads.append(own._thread or threading.Thread()))[0],
    )
    yield own
    until(lambda: not own.running, 'the end of the reaper')
    until(lambda: not any(thread.is_alive() for thread in threads), 'the end of its thread')


def ends(pool: BufferPool) -> threading.Event:
    event = threading.Event()
    pool.add_retire_listener(lambda slot: event.set())
    return event


def closed(lease: Lease) -> bool:
    return closes(lease.slot) == 1


def test_a_fence_that_never_signals_ends_its_slot_after_the_timeout_without_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pass_time = stop_clock(monkeypatch)
    pool, memory = counted_pool(1, release_timeout_s=TIMEOUT_S)
    pool.release(leased(pool), EventFence())
    ended = ends(pool)
    pool.close()
    time.sleep(
        5 * TIMEOUT_S
    )  # the checks after closing are over: only the deadline wakes the reaper now
    assert memory.closes == [0] and not ended.is_set()
    pass_time(2 * TIMEOUT_S)
    assert ended.wait(PATIENCE_S)
    until(lambda: memory.closes == [1], 'the buffers are closed')
    assert (pool.statistics().retired, len(memory.made)) == (1, 1), (
        'and nothing is allocated in its place'
    )


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


def test_a_closed_pool_hands_out_nothing_and_shares_what_is_out() -> None:
    pool, _ = counted_pool(2)
    lease, filling = leased(pool), acquired(pool)
    pool.close()
    assert pool.acquire() is None and pool.acquire(wait_s=30.0) is None
    assert pool.statistics().exhausted == 0, 'that is not a drop'
    with pytest.raises(StaleFrameError, match='retired'):
        pool.lease(filling, filling.generation, 'npu')
    pool.discard(filling)
    shared = leased(pool, lease.slot, 'overlay')
    pool.release(lease)
    assert not closed(shared)
    pool.release(shared)
    assert closed(shared)
