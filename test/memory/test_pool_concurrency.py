"""The pool between threads, across fork, and with leases that nobody releases."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Callable

import pytest

from zc_perception.frame import Frame
from zc_perception.memory.pool import BufferPool, Lease, Slot, SlotState

pytestmark = pytest.mark.usefixtures('no_fd_leak')
MakePool = Callable[..., BufferPool]
MakeFrame = Callable[..., Frame]


def leased(pool: BufferPool) -> Lease:
    slot = pool.acquire()
    assert slot is not None
    lease = pool.lease(slot, slot.generation, 'npu')
    assert lease is not None
    return lease


def test_a_waiting_producer_is_woken_by_a_release(make_pool: MakePool) -> None:
    pool = make_pool(slots=1)
    lease = leased(pool)
    releaser = threading.Timer(0.03, pool.release, (lease,))
    releaser.start()
    started = time.monotonic()
    assert pool.acquire(wait_s=30.0) is lease.slot
    assert time.monotonic() - started < 15.0
    releaser.join()
    assert pool.statistics().exhausted == 0, 'waiting is not dropping'


def test_a_wait_for_a_slot_is_bounded(make_pool: MakePool) -> None:
    pool = make_pool(slots=1)
    lease = leased(pool)
    started = time.monotonic()
    assert pool.acquire(wait_s=0.06) is None
    assert time.monotonic() - started >= 0.06
    pool.release(lease)


def test_closing_ends_a_wait(make_pool: MakePool) -> None:
    pool = make_pool(slots=1)
    lease = leased(pool)
    closer = threading.Timer(0.03, pool.close)
    closer.start()
    started = time.monotonic()
    assert pool.acquire(wait_s=30.0) is None
    assert time.monotonic() - started < 15.0
    closer.join()
    pool.release(lease)


def test_a_forgotten_frame_comes_back_and_is_counted(make_pool: MakePool, make_frame: MakeFrame) -> None:
    pool = make_pool(slots=1)
    frame = make_frame(pool)
    del frame
    gc.collect()
    assert pool.acquire() is not None
    assert pool.statistics().abandoned == 1


def test_a_frame_forgotten_in_a_cycle_comes_back(make_pool: MakePool, make_frame: MakeFrame) -> None:
    pool = make_pool(slots=1)
    cycle: list[object] = [make_frame(pool)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert pool.acquire() is not None


def test_a_finalizer_takes_no_lock(make_pool: MakePool, make_frame: MakeFrame) -> None:
    """The collector runs at any allocation, so also in a thread that is inside the pool."""
    pool = make_pool(slots=1)
    frame: Frame | None = make_frame(pool)

    def forget() -> None:
        nonlocal frame
        frame = None
        gc.collect()

    with pool._lock:
        thread = threading.Thread(target=forget, daemon=True)
        thread.start()
        thread.join(10.0)
        assert not thread.is_alive(), 'the finalizer waits for the lock'
    assert pool.acquire() is not None


def test_a_released_frame_is_not_counted_as_abandoned(make_pool: MakePool, make_frame: MakeFrame) -> None:
    pool = make_pool(slots=1)
    frame = make_frame(pool)
    frame.release()
    del frame
    pool.collect()
    assert pool.statistics().abandoned == 0


def test_a_forked_child_releases_nothing(make_pool: MakePool, make_frame: MakeFrame) -> None:
    """The child's copy of the lock may be held by a thread that it doesn't have: releasing and closing must not even try."""
    pool = make_pool(slots=2)
    frame = make_frame(pool, fill=lambda luma, chroma: luma.fill(77))
    lease = leased(pool)
    pool._lock.acquire()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            pool.release(lease)
            frame.release()
            pool.close()
            status = 0
        finally:
            os._exit(status)
    pool._lock.release()
    deadline = time.monotonic() + 20.0
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.002)
    if ended == (0, 0):
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert ended == (child, 0), 'the child failed or hung'
    assert pool.statistics().states == {SlotState.LEASED: 2}
    with frame.map() as planes:
        assert int(planes[0][0, 0]) == 77
    frame.release()
    pool.release(lease)
    assert pool.statistics().states == {SlotState.FREE: 2}


def test_threads_never_share_a_slot_and_lose_none(make_pool: MakePool) -> None:
    pool = make_pool(slots=4)
    owners: dict[Slot, int] = {}
    errors: list[str] = []
    turns = 300

    def produce(number: int) -> None:
        choice = random.Random(number)
        for _ in range(turns):
            slot = pool.acquire(wait_s=10.0)
            if slot is None:
                errors.append('no slot within 10 s')
                return
            if owners.setdefault(slot, number) != number:
                errors.append(f'slot {slot.index} was handed out twice')
            generation = slot.generation
            lease = pool.lease(slot, generation, f'thread {number}')
            second = pool.lease(slot, generation, f'thread {number}')
            if slot.generation != generation or lease is None or second is None:
                errors.append(f'slot {slot.index} changed under its owner')
                return
            pool.release(lease)
            del owners[slot]
            if choice.random() < 0.5:
                pool.release(second)
            else:
                pool.abandon(second)

    threads = [threading.Thread(target=produce, args=(number,), daemon=True) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    pool.collect()
    statistics = pool.statistics()
    assert errors == []
    assert statistics.states == {SlotState.FREE: 4}
    assert statistics.holders == {}
    assert sum(slot.generation for slot in pool.slots) == 6 * turns
