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

"""Which DMA_BUF_IOCTL_SYNCs a mapping makes, what they wait for, and what ends that wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import errno
import signal
import time

from zc_perception.errors import AcceleratorError
from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.pool import BufferPool

from .harness import check, check_with_a_heap, equal
from .kernel_api import parameters, shadow_buffer
from .package_kit import (
    adopted,
    buffers,
    card,
    jobs_held,
    LAYOUT,
    LAYOUTS,
    level_crcs,
    pool_of,
    publish,
    recorded,
    refused,
    result_crcs,
    RESULT_SIZE,
    start,
)

READ, WRITE, END = 1, 2, 4
_INTERRUPTED = (
    -errno.EINTR,
    -512,
)  # the second is ERESTARTSYS, which becomes the first on the way to user space


class _Planned(Exception):
    pass


@contextmanager
def _one_frame(heap: str) -> Iterator[tuple[Frame, list[int]]]:
    """Yield a frame with two buffers, and their inodes; mapped before."""
    with pool_of(heap, LAYOUTS['two buffers'], slots=1) as pool, publish(pool, level=1) as frame:
        yield frame, [b.identity.inode for b in frame.data.buffers]


@check_with_a_heap
def every_map_makes_one_start_and_one_end_per_buffer(heap: str) -> None:
    with _one_frame(heap) as (frame, inodes), recorded() as recording:
        for write, flags in ((False, READ), (True, READ | WRITE), (False, READ)):
            before = {inode: len(recording().syncs(inode)) for inode in inodes}
            with frame.map(write=write):
                inside = [recording().flags(inode)[slice(before[inode], None)] for inode in inodes]
            after = [recording().flags(inode)[slice(before[inode], None)] for inode in inodes]
            equal(inside, [[flags], [flags]], f'SYNCs within the block, write={write}')
            equal(after, [[flags, flags | END]] * 2, f'SYNCs after the block, write={write}')


@check
def what_a_block_wrote_before_it_raised_reaches_the_device() -> None:
    """
    Use an exporter whose device has pages of its own.

    Without the END that belongs to the block it would read the old ones.
    """
    made = [adopted(shadow_buffer(LAYOUT.buffer_size(0)), writable=True)]
    with card() as device, buffers('udmabuf', RESULT_SIZE) as (result,):
        pool = BufferPool(LAYOUT, lambda: (made.pop(),), 1, name='camera')
        with publish(pool, level=20) as frame:
            try:
                with frame.map(write=True) as planes:
                    for plane in planes:
                        plane[...] = 21
                    del plane
                    raise _Planned
            except _Planned:
                pass
            job = start(device, frame.data.buffers, result)
            assert job.wait(20.0)
            job.close()
            equal(result_crcs(result), level_crcs(21), 'what the device saw')
        pool.close()


@contextmanager
def _signals(count: int, then: Callable[[], None]) -> Iterator[list[float]]:
    """
    Send a signal every 30 ms.

    Its handler notes the time, and does something at the last of `count`.
    """
    hits: list[float] = []

    def handler(*_: object) -> None:
        hits.append(time.monotonic())
        if len(hits) == count:
            then()

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)
    try:
        yield hits
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@check_with_a_heap
def signals_do_not_end_the_wait_for_the_device(heap: str) -> None:
    with (
        card() as device,
        buffers(heap, LAYOUT.buffer_size(0), RESULT_SIZE) as (source, result),
        recorded() as recording,
    ):
        with jobs_held() as let_go:
            job = start(device, [source], result)
            with _signals(5, let_go) as hits:
                result.begin_cpu_access(CpuAccess.READ)
        assert job.wait(0.0), 'the CPU was let in before the device was done'
        result.end_cpu_access(CpuAccess.READ)
        assert len(hits) >= 5, hits
        equal(recording().flags(result.identity.inode), [READ, READ | END], 'SYNCs')
        job.close()


@check_with_a_heap
def a_sync_that_a_signal_interrupts_is_repeated(heap: str) -> None:
    """
    Let a job come between our look at the fences and START: the kernel itself waits.

    The result is EINTR, by its documentation to be repeated.
    """
    with (
        card() as device,
        buffers(heap, LAYOUT.buffer_size(0), RESULT_SIZE) as (source, result),
        recorded() as recording,
    ):
        result.wait_for_devices = lambda *_: True  # type: ignore[method-assign]
        with jobs_held() as let_go:
            job = start(device, [source], result)
            with _signals(5, let_go):
                result.begin_cpu_access(CpuAccess.READ)
        assert job.wait(0.0), 'START did not wait for the device'
        result.end_cpu_access(CpuAccess.READ)
        seen = recording()
        job.close()
    interrupted = [
        sync
        for number in _INTERRUPTED
        for sync in seen.syncs(result.identity.inode, result=number)
    ]
    equal({sync.flags for sync in interrupted}, {READ}, 'what was interrupted')
    equal(seen.flags(result.identity.inode), [READ, READ | END], 'SYNCs that succeeded')


@check_with_a_heap
def a_device_that_hangs_does_not_hang_the_cpu(heap: str) -> None:
    with (
        card() as device,
        buffers(heap, LAYOUT.buffer_size(0), RESULT_SIZE) as (source, result),
        recorded() as recording,
    ):
        with parameters(hang_every=1):
            job = start(device, [source], result)
        for buffer, access in (
            (result, CpuAccess.READ),
            (source, CpuAccess.READ | CpuAccess.WRITE),
        ):
            with refused(AcceleratorError, 'in use by a device'):
                buffer.begin_cpu_access(access, 0.05)
        source.begin_cpu_access(CpuAccess.READ, 0.05)  # a reader does not wait for a reader
        source.end_cpu_access(CpuAccess.READ)
        equal(
            recording().flags(result.identity.inode),
            [],
            'SYNCs of the buffer that the device writes',
        )
        equal(
            recording().flags(source.identity.inode),
            [READ, READ | END],
            'SYNCs of the buffer that it reads',
        )
        job.close()
