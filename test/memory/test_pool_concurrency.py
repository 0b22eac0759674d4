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

"""The pool between threads, across fork, and with leases that nobody releases."""

from __future__ import annotations

from collections.abc import Callable
import fcntl
import gc
import os
import signal
import threading
from unittest import mock

from pool_kit import acquired, closes, counted_pool, leased, PATIENCE_S, stop_clock, TIMEOUT_S
import pytest
from waiting import until

from zc_perception.errors import StaleFrameError
from zc_perception.frame import Frame
from zc_perception.memory import pool as pool_module
from zc_perception.memory.fence import EventFence, Waker
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool, REAPER, Slot, SlotState

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]
MakeFrame = Callable[..., Frame]


def wait_in_thread(pool: BufferPool) -> tuple[threading.Thread, list[Slot | None]]:
    """Return a producer that is already waiting when this returns."""
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
    """By itself: the look that it takes now and then comes too late here."""
    monkeypatch.setattr(pool_module, '_LOOK_AGAIN_S', 1000.0)
    pass_time = stop_clock(monkeypatch) if event == 'timeout' else None
    pool, _ = counted_pool(1, release_timeout_s=TIMEOUT_S if pass_time else 600.0)
    slot, fence = acquired(pool), EventFence()
    lease = leased(pool, slot) if event != 'discard' else None
    if lease is not None and event in ('fence', 'timeout'):
        pool.release(lease, fence)
    thread, got = wait_in_thread(pool)
    if event in ('fence', 'later fence'):
        if lease is not None and event == 'later fence':
            pool.release(lease, fence)
        fence.signal()
    elif event == 'release' and lease is not None:
        pool.release(lease)
    elif event == 'abandon' and lease is not None:
        pool.abandon(lease)
    elif event == 'revoke':
        pool.revoke('npu')
    elif event == 'discard':
        pool.discard(slot)
    elif pass_time:
        pass_time(2 * TIMEOUT_S)
    assert woken(thread) and got[0] is not None
    assert pool.statistics().exhausted == 0, 'waiting is not dropping'
    assert (got[0] is slot) == (event != 'timeout')
    pool.close()


def test_closing_wakes_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, '_LOOK_AGAIN_S', 1000.0)
    pool, _ = counted_pool(1)
    lease = leased(pool)
    waits = [wait_in_thread(pool) for _ in range(3)]
    pool.close()
    assert all(woken(thread) and got == [None] for thread, got in waits)
    pool.release(lease)
    assert closes(lease.slot) == 1


@pytest.mark.parametrize('fence_is', ['pending', 'a closed number', 'a dead end'])
def test_a_wait_does_not_spin(fence_is: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    poll(2) returns at once, again and again, for a closed descriptor.

    It does the same for a pipe without a writer.
    """
    pool, _ = counted_pool(1)
    fence = EventFence()
    if fence_is != 'pending':
        reader, writer = os.pipe()
        # A high one, that no descriptor which is opened meanwhile takes.
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
    """
    Every call of a copy ends at once, though the lock was held when the child was made.

    Giving back does nothing, asking raises.
    """
    heard: list[Slot] = []
    pool = make_pool(slots=3, on_free=heard.append)
    pool.add_retire_listener(heard.append)
    lease, filling = leased(pool), acquired(pool)
    pool.abandon(leased(pool))
    with pool._lock:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(60)
                for ask in (pool.acquire, lambda: pool.lease(lease.slot, 1, 'x')):
                    with pytest.raises(
                        StaleFrameError,
                        match='belongs to the process that made it; a forked child makes its own',
                    ):
                        ask()
                pool.collect()
                pool.discard(filling)
                pool.abandon(lease)
                pool.release(lease)
                assert pool.revoke('npu') == 0
                pool.close()
                pool.set_quota('npu', 1)
                assert (
                    pool.statistics().holders == {'npu': 2}
                    and len(pool.slots) == 3
                    and 'npu holds 2' in pool.describe_holders()
                )
                assert lease.slot.buffers[0].mapping()[0] == 0 and heard == []
                own, _ = counted_pool(2)
                own.release(leased(own))
                own.close()
                status = 0
            finally:
                os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pool.collect()
    assert pool.statistics().states == {
        SlotState.LEASED: 1,
        SlotState.FILLING: 1,
        SlotState.FREE: 1,
    }
    pool.release(lease)


def test_a_forked_child_has_a_reaper_of_its_own() -> None:
    """The parent's thread isn't there, and its lock may be held for ever."""
    pool, _ = counted_pool(1)
    lease = leased(pool)
    pool.close()
    with REAPER._lock:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(60)
                own, memory = counted_pool(1)
                fence = EventFence()
                own.release(leased(own), fence)
                own.close()
                fence.signal()
                until(lambda: memory.closes == [1], 'the child finishes its own pool')
                status = 0
            finally:
                os._exit(status)
    _, result = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(result) == 0
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
