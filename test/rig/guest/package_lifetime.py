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
What is never closed: frames, buffers and fences that are forgotten.

They are forgotten in threads, over forks, and by a process that is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, ExitStack
import ctypes
import gc
import os
import socket
import threading
from typing import Any

from long_form import LONG
from waiting import until

from zc_perception.errors import FrameReleasedError, StaleFrameError
from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import DeadlineFence, EventFence, SyncFile
from zc_perception.memory.pool import BufferPool, REAPER, Slot, SlotState

from .harness import check_each, equal, together
from .kernel_api import any_heap, bufinfo
from .package_kit import (
    buffers,
    card,
    Child,
    HEAPS,
    jobs_held,
    LAYOUT,
    pool_of,
    publish,
    recorded,
    refused,
    RESULT_SIZE,
    start,
    wait_for,
)

THREADS, TURNS, FORKS = (4, 150, 5) if LONG else (4, 60, 2)
#: What a forked child still has when it ends.
_inherited: list[Any] = []


@contextmanager
def _collector_everywhere() -> Iterator[None]:
    """
    Run the collector at every few allocations.

    So finalizers run in the middle of everything.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()  # what is older is not looked at: each run takes microseconds
    gc.set_threshold(15, 2, 2)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _acquired(pool: BufferPool) -> Slot:
    """Return a slot; what was forgotten before has to come back for that."""
    slot: Slot = until(
        pool.acquire, lambda: f'forgotten frames come back: {pool.statistics()}', pause=gc.collect
    )
    return slot


def _forget(pool: BufferPool, fence: SyncFile, turn: int) -> None:
    """
    Lose two frames, a buffer, three fences and sometimes a view.

    They are in a knot that only the collector unties.
    """
    frame = publish(pool, _acquired(pool), sequence=turn)
    fences = [fence.dup(), EventFence(), DeadlineFence(9.0)]
    knot: list[Any] = [
        frame,
        frame.deliver('reader'),
        DmaBuf.from_fd(frame.data.buffers[0].dup()),
        *fences,
    ]
    knot[5].fileno()
    if turn % 3 == 0:
        with frame.map() as planes:
            knot.append(planes[0][1:])
    if turn % 4 == 0:
        knot[2].mapping()
    knot.append(knot)


def _expect_everything_back(pool: BufferPool, leases: int) -> None:
    gc.collect()
    pool.collect()
    found = pool.statistics()
    equal((found.states, found.holders), ({SlotState.FREE: found.slots}, {}), 'slots and holders')
    equal(found.abandoned, leases, 'abandoned leases')


@check_each(*HEAPS)
def thousands_of_forgotten_things_are_taken_back(heap: str) -> None:
    with (
        card() as device,
        pool_of(heap, LAYOUT, slots=16) as pool,
        buffers(heap, RESULT_SIZE) as (result,),
        recorded() as recording,
    ):
        fence = start(device, pool.slots[0].buffers, result)

        def worker() -> None:
            for turn in range(TURNS):
                _forget(pool, fence, turn)

        with _collector_everywhere():
            together([worker] * THREADS)
            _expect_everything_back(pool, 2 * THREADS * TURNS)
        fence.close()
        equal(recording().bad_closes, 0, 'closes of descriptors that were not open')


# Closed pools, which nobody calls any more.


@check_each(*HEAPS)
def a_closed_pool_ends_by_itself_when_device_and_consumer_are_done(heap: str) -> None:
    with card() as device, buffers(heap, RESULT_SIZE) as (result,), ExitStack() as gate:
        with pool_of(heap, LAYOUT, slots=3, release_timeout_s=20.0) as pool:
            held, read, forgotten = (publish(pool, level=level) for level in (1, 2, 3))
            inodes = [frame.data.buffers[0].identity.inode for frame in (held, read, forgotten)]
            let_go = gate.enter_context(jobs_held())
            job = start(device, read.data.buffers, result)
            read.release(job.dup())
        del read, pool, forgotten
        gc.collect()
        equal(set(inodes[:2]) <= set(bufinfo()), True, 'buffers in use are there')
        with held.map() as planes:
            equal(int(planes[0].max()), 1, 'pixels of a held frame')
        let_go()
        assert job.wait(60.0)
        job.close()
        until(
            lambda: set(inodes) & set(bufinfo()) == {inodes[0]},
            'the buffers go that the device and the collector had',
        )
        held.release()
        del held
        until(lambda: not set(inodes) & set(bufinfo()), 'the last buffer goes')
        until(lambda: not REAPER.running, 'nothing looks after the pool any more')


# Forks.


def _end_at_once(frames: list[Frame]) -> None:
    os._exit(0)


def _end_normally(frames: list[Frame]) -> None:
    """End as a program does: exit functions, then what modules still have is torn down."""
    _inherited.extend(frames)
    frames.clear()
    ctypes.pythonapi.Py_Exit(0)


def _end_after_trying_everything(frames: list[Frame]) -> None:
    """Try everything: nothing of the parent's can be given back or used, and nothing hangs."""
    pool = frames[0]._lease.pool  # type: ignore[union-attr]
    assert isinstance(pool, BufferPool)
    code = 1
    try:
        with refused(StaleFrameError):
            pool.acquire()
        for frame in frames:
            for _ in range(2):
                assert frame.released
                with refused(FrameReleasedError), frame.map():
                    pass
                frame.release()  # clean-up code runs in the child too: it has nothing to give back
        frames.clear()
        gc.collect()
        pool.collect()
        pool.close()
        code = 0
    except BaseException as error:
        os.write(2, f'in the forked child: {error!r}\n'.encode())
    finally:
        os._exit(code)


_ENDS: dict[str, Callable[[list[Frame]], None]] = {
    'os._exit': _end_at_once,
    'a normal exit': _end_normally,
    'everything tried': _end_after_trying_everything,
}


@check_each(*_ENDS)
def a_fork_in_the_middle_takes_nothing_and_does_not_hang(end: str) -> None:
    with (
        card() as device,
        pool_of(any_heap(), LAYOUT, slots=8) as pool,
        buffers('udmabuf', RESULT_SIZE) as (result,),
    ):
        fence = start(device, pool.slots[0].buffers, result)
        held = [publish(pool, sequence=1000 + i, level=40 + i) for i in range(2)]
        stop, turns = threading.Event(), [0] * 3

        def worker(number: int) -> None:
            while not stop.is_set():
                _forget(pool, fence, turns[number])
                turns[number] += 1

        def fork() -> None:
            try:
                for _ in range(FORKS):
                    before = sum(turns)
                    pid = os.fork()
                    if pid == 0:
                        gc.set_threshold(0)
                        _ENDS[end](held)
                    equal(wait_for(pid), 0, 'exit status of the child')
                    until(lambda before=before: sum(turns) > before + 3, 'the threads go on', 60.0)
            finally:
                stop.set()

        with recorded() as recording, _collector_everywhere():
            together([fork, *(lambda number=number: worker(number) for number in range(3))])
            equal(recording().bad_closes, 0, 'closes of descriptors that were not open')
            for i, frame in enumerate(held):
                with frame.map() as planes:
                    equal(
                        (int(planes[0].min()), int(planes[1].max())),
                        (40 + i, 40 + i),
                        'pixels of a frame held over the forks',
                    )
                frame.release()
            _expect_everything_back(pool, 2 * sum(turns))
        fence.close()


@check_each(*HEAPS)
def a_process_killed_in_the_middle_leaves_nothing(heap: str) -> None:
    before = set(bufinfo())

    def churn(theirs: socket.socket) -> None:
        with (
            card() as device,
            pool_of(heap, LAYOUT, slots=6) as pool,
            buffers(heap, RESULT_SIZE) as (result,),
        ):
            fence = start(device, pool.slots[0].buffers, result)
            for turn in range(1_000_000):
                _forget(pool, fence, turn)
                if turn == 30:
                    theirs.send(b'busy')

    child = Child(churn)
    equal(child.answer(), b'busy', 'the child')
    assert len(set(bufinfo()) - before) >= 7, 'the child has no buffers'
    child.kill()
    until(lambda: set(bufinfo()) == before, 'its buffers go')
