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
A consumer has died.

Its frames are taken back, and rest until no device of it can still read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import errno
import os
import time

from doubles.sync_kernel import KernelFence, SyncKernel
from pool_kit import acquired, counted_pool, leased, stop_clock, TIMEOUT_S
import pytest

from zc_perception.errors import StaleFrameError
from zc_perception.memory.dmabuf import BufferKind, CpuAccess, DmaBuf
from zc_perception.memory.fence import DeadlineFence, EventFence, SyncFile
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import quarantine_fence, SlotState

pytestmark = pytest.mark.usefixtures('no_fd_leak')


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
    assert (pool.statistics().holders, pool.statistics().quotas, pool.statistics().revoked) == (
        {'npu': 2},
        {},
        3,
    )
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
    assert (
        len(
            {acquired(pool).buffer_uid for _ in leases}
            - {lease.slot.buffer_uid for lease in leases}
        )
        == 2
    )
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
    assert (pool.statistics().abandoned, newer.ended, pool.statistics().holders) == (
        0,
        '',
        {'npu': 1},
    )
    pool.release(newer)
    pool.close()


# What has to signal before the buffers are used again

LONG_S = 3600.0


class Scripted(DmaBuf):
    """A dma-buf whose export answers what it is told."""

    def __init__(self, answer: Callable[[], SyncFile | None]) -> None:
        super().__init__(
            OwnedFd(os.memfd_create('stand_in')), BufferKind.DMABUF, 'dma_heap/system'
        )
        self.answer = answer
        self.asked: list[CpuAccess] = []

    def export_fence(self, access: CpuAccess) -> SyncFile | None:
        self.asked.append(access)
        return self.answer()


def _raise(number: int) -> SyncFile | None:
    raise OSError(number, os.strerror(number))


def _pending(kernel: SyncKernel, given: list[SyncFile]) -> SyncFile:
    """Return a fence that doesn't signal, kept in *given* so that only close() closes it."""
    given.append(kernel.sync_file(KernelFence(b'metis-0')))
    return given[-1]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncKernel]:
    double = SyncKernel(monkeypatch)
    yield double
    double.close()


@pytest.fixture
def make() -> Iterator[Callable[..., list[Scripted]]]:
    made: list[Scripted] = []

    def scripted(*answers: Callable[[], SyncFile | None]) -> list[Scripted]:
        made.extend(Scripted(answer) for answer in answers)
        return made

    yield scripted
    for buffer in made:
        buffer.close()


def test_a_pending_fence_is_what_is_waited_for(
    kernel: SyncKernel, make: Callable[..., list[Scripted]]
) -> None:
    job = KernelFence(b'metis-0')
    buffers = make(lambda: kernel.sync_file(job))
    fence = quarantine_fence(buffers, 0.0)
    assert isinstance(fence, SyncFile) and not fence.wait(0.0)
    assert buffers[0].asked == [CpuAccess.WRITE], (
        'readers count too: the frame is going to be written'
    )
    kernel.signal(job)
    assert fence.wait(0.0)
    fence.close()


def test_all_buffers_of_the_frame_count(
    kernel: SyncKernel, make: Callable[..., list[Scripted]]
) -> None:
    jobs = [KernelFence(b'metis-0'), KernelFence(b'vi'), KernelFence(b'vic')]
    idle = KernelFence(b'stub', b'stub', 1, 1)
    fence = quarantine_fence(
        make(*(lambda job=job: kernel.sync_file(job) for job in (*jobs, idle))), 0.0
    )
    for job in jobs:
        assert isinstance(fence, SyncFile) and not fence.wait(0.0)
        kernel.signal(job)
    assert fence.wait(0.0)
    assert len(kernel.merges) == 2, 'one for each pending fence but the first'
    fence.close()


def test_nothing_pending_may_mean_that_the_driver_adds_no_fences(
    kernel: SyncKernel, make: Callable[..., list[Scripted]]
) -> None:
    before = time.monotonic_ns()
    fence = quarantine_fence(
        make(lambda: kernel.sync_file(KernelFence(b'stub', b'stub', 1, 1)), lambda: None), LONG_S
    )
    assert isinstance(fence, DeadlineFence) and not fence.wait(0.0)
    assert before + LONG_S * 1e9 <= fence.deadline_ns <= time.monotonic_ns() + LONG_S * 1e9
    fence.close()


def test_a_memfd_needs_none_because_no_device_takes_it(
    make: Callable[..., list[Scripted]],
) -> None:
    memory = SealedMemfd().allocate(4096)
    fence = quarantine_fence([memory], LONG_S)
    assert fence.wait(0.0)
    fence.close()
    mixed = quarantine_fence([memory, *make(lambda: None)], LONG_S)
    assert not mixed.wait(0.0)
    mixed.close()
    memory.close()


@pytest.mark.parametrize('number', [errno.EMFILE, errno.ENOMEM])
@pytest.mark.parametrize('position', [0, 1])
def test_fences_that_can_not_be_had_are_replaced_by_time(
    number: int, position: int, kernel: SyncKernel, make: Callable[..., list[Scripted]]
) -> None:
    given: list[SyncFile] = []
    answers: list[Callable[[], SyncFile | None]] = [lambda: _pending(kernel, given)] * 2
    answers.insert(position, lambda: _raise(number))
    fence = quarantine_fence(make(*answers), LONG_S)
    assert isinstance(fence, DeadlineFence) and not fence.wait(0.0)
    assert len(given) == position and all(f._fd.closed for f in given)
    fence.close()


def test_a_merge_that_fails_leaves_nothing_open(
    kernel: SyncKernel, make: Callable[..., list[Scripted]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        SyncFile, 'merge', classmethod(lambda cls, name, first, second: _raise(errno.EMFILE))
    )
    given: list[SyncFile] = []
    fence = quarantine_fence(make(*[lambda: _pending(kernel, given)] * 2), LONG_S)
    assert isinstance(fence, DeadlineFence)
    assert len(given) == 2 and all(f._fd.closed for f in given)
    fence.close()
