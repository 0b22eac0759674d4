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
Buffers that the CPU and a device share: SYNCs, fences of a driver, and pools.

It checks which DMA_BUF_IOCTL_SYNCs a mapping makes and what ends their wait. It checks the
package's view of sync_files and reservation objects, and when a slot and a pool are free again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, ExitStack
from dataclasses import dataclass
import errno
import fcntl
import gc
import os
import signal
import struct
import time

from waiting import until

from zc_perception.errors import AcceleratorError
from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import CpuAccess, DmaBuf
from zc_perception.memory.fence import Fence, SyncFile
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool, PoolStatistics, REAPER, Slot
from zc_perception.npu.axl.device import AxlDevice

from .harness import check, check_with_a_heap, equal
from .kernel_api import (
    any_heap,
    bufinfo,
    fence_info,
    is_readable,
    live,
    parameters,
    shadow_buffer,
    SYNC_READ,
    SYNC_WRITE,
)
from .package_kit import (
    accelerator,
    adopted,
    buffers,
    card,
    device_crcs,
    jobs_held,
    LAYOUT,
    LAYOUTS,
    level_crcs,
    PAGE,
    pool_of,
    publish,
    recorded,
    refused,
    result_crcs,
    RESULT_SIZE,
    start,
)

READ, WRITE, END = 1, 2, 4
_INTERRUPTED = (-errno.EINTR, -512)  # the second is ERESTARTSYS, which reaches us as the first


class _Planned(Exception):
    pass


@contextmanager
def _one_frame(heap: str) -> Iterator[tuple[Frame, list[int]]]:
    """Yield a frame with two buffers, mapped before, and their inodes."""
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
    """Use an exporter whose device has its own pages: without END it reads the old ones."""
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
    """Send a signal every 30 ms; the handler notes the time, and calls `then` at the last."""
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
    Submit a job between our look at the fences and START, so that the kernel itself waits.

    The result is EINTR, which its documentation says to repeat.
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


# Fences that a buffer's users wait for, and the state of a sync_file.


@dataclass
class Bench:
    """A device, and three buffers: one that it reads, one that it writes, one unrelated."""

    device: AxlDevice
    source: DmaBuf
    result: DmaBuf
    other: DmaBuf

    def start(self, latency_us: int = 0, **options: int) -> SyncFile:
        """Start a job with this latency, and these parameters of the device."""
        with parameters(latency_us=latency_us, **options):
            return start(self.device, [self.source], self.result)


@contextmanager
def bench(heap: str) -> Iterator[Bench]:
    """Yield the device and its buffers in *heap*; the other buffer is of another exporter."""
    with (
        card() as device,
        buffers(heap, LAYOUT.buffer_size(0), RESULT_SIZE) as (source, result),
        closing(adopted(shadow_buffer(PAGE))) as other,
    ):
        yield Bench(device, source, result, other)


def _pending(fence: Fence | None) -> bool:
    assert fence is not None, 'no fence'
    pending = not fence.wait(0.0)
    equal(is_readable(fence.fileno()), not pending, 'what poll() says')
    fence.close()
    return pending


def _exported_pending(buffer: DmaBuf, access: CpuAccess) -> bool:
    """Return the package's answer; None is no fence, so nothing to wait for."""
    fence = buffer.export_fence(access)
    return False if fence is None else _pending(fence)


def _kernel_pending(buffer: DmaBuf, flags: int) -> bool:
    argument = bytearray(struct.pack('Ii', flags, -1))
    fcntl.ioctl(buffer.fileno(), 0xC0086202, argument)
    with OwnedFd(struct.unpack('Ii', argument)[1]) as fd:
        return not is_readable(fd.fileno())


def _finish(fence: Fence) -> None:
    assert fence.wait(20.0), 'the job did not end'
    fence.check()
    fence.close()


@check_with_a_heap
def a_job_in_flight_is_a_pending_fence_of_its_buffers(heap: str) -> None:
    with bench(heap) as b, jobs_held() as let_go:
        job = b.start()
        got = {
            'a writer of the image': _exported_pending(b.source, CpuAccess.WRITE),
            'a reader of the image': _exported_pending(b.source, CpuAccess.READ),
            'a reader of the result': _exported_pending(b.result, CpuAccess.READ),
            'a writer of the result': _exported_pending(b.result, CpuAccess.WRITE),
            'both, of the image': _exported_pending(b.source, CpuAccess.READ | CpuAccess.WRITE),
            'a reader of another buffer': _exported_pending(b.other, CpuAccess.READ),
            'a writer of another buffer': _exported_pending(b.other, CpuAccess.WRITE),
        }
        waits = {
            'a writer of the image',
            'both, of the image',
            'a reader of the result',
            'a writer of the result',
        }
        equal({who for who, pending in got.items() if pending}, waits, 'who has to wait')
        exported = b.source.export_fence(CpuAccess.WRITE)
        assert exported is not None and not exported.wait(0.01)
        let_go()
        assert exported.wait(60.0), 'the exported fence'
        assert job.wait(0.0), 'the exported fence signalled before the job'
        exported.check()
        exported.close()
        equal(
            [_exported_pending(buffer, CpuAccess.WRITE) for buffer in (b.source, b.result)],
            [False, False],
            'pending after the job',
        )
        job.close()


@check_with_a_heap
def an_imported_fence_is_what_the_users_of_that_buffer_wait_for(heap: str) -> None:
    for access, reader_waits in ((CpuAccess.READ, False), (CpuAccess.WRITE, True)):
        with bench(heap) as b, jobs_held() as let_go:
            job = b.start()
            b.other.import_fence(job, access)
            assert not job.wait(0.0), 'importing consumed the fence'
            for pending in (
                _exported_pending(b.other, CpuAccess.READ),
                _kernel_pending(b.other, SYNC_READ),
            ):
                equal(pending, reader_waits, f'whether a reader has to wait, fence of {access!r}')
            for pending in (
                _exported_pending(b.other, CpuAccess.WRITE),
                _kernel_pending(b.other, SYNC_WRITE),
            ):
                equal(pending, True, f'whether a writer has to wait, fence of {access!r}')
            with refused(AcceleratorError):
                b.other.begin_cpu_access(CpuAccess.READ | CpuAccess.WRITE, 0.05)
            let_go()
            b.other.begin_cpu_access(CpuAccess.READ | CpuAccess.WRITE)
            equal(job.wait(0.0), True, 'whether SYNC START waited for the imported fence')
            b.other.end_cpu_access(CpuAccess.READ | CpuAccess.WRITE)
            _finish(job)


@check_with_a_heap
def a_sync_file_s_status_is_its_job_s(heap: str) -> None:
    with bench(heap) as b, jobs_held() as let_go:
        before = time.monotonic_ns()
        job = b.start()
        equal(job.status(), 0, 'a pending one')
        with refused(AcceleratorError):
            job.check()
        going = time.monotonic_ns()
        let_go()
        assert job.wait(60.0)
        raw = fence_info(job.fileno())
        equal(
            (job.status(), raw.status, raw.driver, raw.timeline),
            (1, 1, 'axl', 'metis-0'),
            'the fence',
        )
        assert before < going <= raw.timestamp_ns <= time.monotonic_ns(), (
            f'{going} .. {raw.timestamp_ns}'
        )
        equal(os.get_inheritable(job.fileno()), False, 'inherited by child programs')
        _finish(job)


@check
def an_error_stays_visible_through_merge_and_export() -> None:
    with bench(any_heap()) as b, card() as second, buffers(any_heap(), RESULT_SIZE) as (result,):
        failing = b.start(latency_us=100000, fail_every=1)
        with parameters(latency_us=200000):
            good = start(second, [b.source], result)
        merged = SyncFile.merge('one of them fails', good, failing)
        assert failing.wait(60.0) and is_readable(failing.fileno()), (
            'an error fence polls readable'
        )
        equal(failing.status(), -errno.EIO, 'status')
        with refused(AcceleratorError, 'Input/output error'):
            failing.check()
        assert merged.wait(60.0)
        with refused(AcceleratorError, 'Input/output error'):
            merged.check()
        good.check()
        late = SyncFile.merge('both have ended', good, failing)
        assert late.wait(0.0)
        with refused(AcceleratorError, 'Input/output error'):
            late.check()
        for fence in (failing, good, merged, late):
            fence.close()


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
    """Check repeatedly that the slot stays taken while a device still reads it."""
    for _ in range(50):
        assert pool.acquire() is None, 'the slot is free although the device still reads'
        time.sleep(0.004)


def _overwrite_as_soon_as_possible(pool: BufferPool) -> Slot:
    """Write the first free slot's next frame at once: like DMA, don't wait for the device."""
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


# Closed pools, without any further call.


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
