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

"""Pools of real buffers that a device reads: when a slot is free again, and when all is gone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
import gc
import time

from waiting import until

from zc_perception.memory.pool import BufferPool, PoolStatistics, REAPER, Slot

from .harness import check, check_with_a_heap, equal
from .kernel_api import any_heap, bufinfo, live, parameters
from .package_kit import (
    accelerator,
    buffers,
    card,
    device_crcs,
    jobs_held,
    LAYOUT,
    level_crcs,
    pool_of,
    publish,
    result_crcs,
    RESULT_SIZE,
    start,
)


def _inodes(slots: Sequence[Slot]) -> set[int]:
    return {buffer.identity.inode for slot in slots for buffer in slot.buffers}


def _collected(pool: BufferPool) -> PoolStatistics:
    pool.collect()
    return pool.statistics()


@check_with_a_heap
def a_slot_is_not_reused_before_its_release_fence(heap: str) -> None:
    with (
        card() as device,
        pool_of(heap, LAYOUT, slots=1, release_timeout_s=20.0) as pool,
        buffers(heap, RESULT_SIZE) as (result,),
    ):
        for level in (10, 20, 30):
            frame = publish(pool, level=level)
            with jobs_held():
                job = start(device, frame.data.buffers, result)
                frame.release(job.dup())
                _stays_taken(pool)
            _overwrite_as_soon_as_possible(pool)
            assert job.wait(0.0), 'the slot was free before the device was done with it'
            equal(result_crcs(result), level_crcs(level), 'what the device saw')
            job.close()
        equal(pool.statistics().retired, 0, 'retired slots')


def _stays_taken(pool: BufferPool) -> None:
    """No slot comes free while a device still reads the only one, however often one looks."""
    for _ in range(50):
        assert pool.acquire() is None, 'the slot is free although the device still reads'
        time.sleep(0.004)


def _overwrite_as_soon_as_possible(pool: BufferPool) -> Slot:
    """
    Write the next frame into the first slot that comes free.

    It doesn't wait for the device as a CPU should: a camera's DMA doesn't either.
    """
    slot: Slot = until(
        pool.acquire,
        lambda: f'a slot comes free: {pool.statistics()}',
        pause=lambda: time.sleep(0.001),
    )
    for buffer in slot.buffers:
        if buffer.writable:
            buffer.mapping()[:] = b'\xff' * buffer.size
    publish(pool, slot).release()
    return slot


@check
def a_slot_with_a_hung_job_is_replaced_and_never_used_again() -> None:
    heap = any_heap()
    with (
        accelerator(timeout=5.0) as npu,
        pool_of(heap, LAYOUT, slots=2, release_timeout_s=0.2) as pool,
    ):
        gone: list[Slot] = []
        remove = pool.add_retire_listener(gone.append)
        frame = publish(pool, level=77)
        stuck, uid = frame.data.buffers[0].identity.inode, frame.data.buffer_uid
        with parameters(hang_every=1):
            job = npu.submit(npu.import_frame(frame), frame)
        frame.release(job.abandon())
        until(lambda: _collected(pool).retired == 1, 'the slot is retired')
        equal(
            [[b.identity.inode for b in slot.buffers] for slot in gone],
            [[stuck]],
            'slots told to the listener',
        )
        assert stuck not in _inodes(pool.slots) and len(pool.slots) == 2, (
            'the retired buffer is still in the pool'
        )
        assert stuck in bufinfo() and live()['jobs'] == 1, 'the device has let go already'
        seen = set()
        for turn in range(20):
            with publish(pool, sequence=turn, level=turn) as fresh:
                seen.add(fresh.data.buffers[0].identity.inode)
                assert fresh.data.buffer_uid != uid
        assert stuck not in seen and seen <= _inodes(pool.slots), (
            stuck,
            seen,
            pool.slots,
            _inodes(pool.slots),
            pool.statistics(),
        )
        until(lambda: live()['jobs'] == 0, 'the driver gives the job up', 60.0)
        assert stuck in bufinfo(), 'the import cache should still hold it here'
        npu.tidy()
        until(lambda: stuck not in bufinfo(), 'the retired buffer goes')
        remove()
        with publish(pool, level=5) as fresh:
            equal(device_crcs(npu, fresh), level_crcs(5), 'what the device sees afterwards')
        equal((npu.facts()['jobs'], npu.facts()['jobs_given_up']), (0, 0), 'result buffers in use')


# Closed pools, which nobody calls any more.


@check_with_a_heap
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
