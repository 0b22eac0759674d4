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
Buffers that the CPU and a device share: identity, rights, SYNCs, and fences of a driver.

It checks which DMA_BUF_IOCTL_SYNCs a mapping makes and what ends their wait, the package's view of
sync_files and reservation objects, and what the accelerator sees of the pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
import errno
import os
import signal

import numpy as np

from zc_perception.errors import AcceleratorError, AllocationError
from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import BufferIdentity, BufferKind, CpuAccess, DmaBuf, is_dmabuf
from zc_perception.memory.fence import SyncFile
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.npu.axl.abi import ImportFlags
from zc_perception.npu.axl.device import AxlDevice, AxlError

from . import kernel_api as kernel
from . import package_kit as kit
from .camera_kit import streaming
from .graph_variants import SINGLE_DMA
from .harness import check, check_each, equal, raises

SIZES = (1, kit.PAGE - 1, kit.PAGE, kit.PAGE + 1, 640 * 360 * 3 // 2)
BOTH = CpuAccess.READ | CpuAccess.WRITE
_INTERRUPTED = (-errno.EINTR, -512)  # the second is ERESTARTSYS, which reaches us as the first


@check_each(*kernel.HEAP_EXPORTERS)
def a_buffer_is_a_zeroed_dma_buf_of_whole_pages(heap: str) -> None:
    with kit.buffers(heap, *SIZES) as made:
        for size, buffer in zip(SIZES, made, strict=True):
            with buffer.dup() as fd:
                assert is_dmabuf(fd), f'{buffer} is no dma-buf'
            wanted = -(-size // kit.PAGE) * kit.PAGE
            info = kernel.bufinfo()[buffer.identity.inode]
            equal((buffer.kind, buffer.size, info.size), (BufferKind.DMABUF, wanted, wanted), heap)
            exporters = {buffer.exporter(), info.exporter}
            equal(exporters, {kernel.HEAP_EXPORTERS[heap]}, 'exporter')
            equal(os.get_inheritable(buffer.fileno()), False, 'inherited by child programs')
            status = os.fstat(buffer.fileno())
            equal(buffer.identity, BufferIdentity(status.st_dev, status.st_ino), 'identity')
            # A read-only descriptor can't be reopened for writing.
            with raises(errno.ENXIO):
                os.open(f'/proc/self/fd/{buffer.fileno()}', os.O_RDWR)
            equal(bytes(buffer.mapping()), bytes(wanted), 'first content')


@check
def a_buffer_of_a_camera_can_not_be_written() -> None:
    with streaming(SINGLE_DMA) as camera, kit.card() as device:
        buffer, layout = camera.slots[0].buffers[0], camera.slots[0].layout
        assert not buffer.writable
        with kit.refused(TypeError), buffer.cpu_access(CpuAccess.READ) as memory:
            memory[0] = 1
        ((_, size, permissions),) = kit.maps_lines(buffer.identity.inode)
        equal((size, permissions), (buffer.size, 'r--s'), 'size and permissions')
        with kit.refused(AllocationError, 'read-only'), buffer.cpu_access(CpuAccess.WRITE):
            pass
        with kit.refused(AllocationError, 'read-only'):
            DmaBuf.from_fd(buffer.dup(), writable=True)
        with kit.refused(AxlError, 'EACCES'):
            device.import_planes(layout, [buffer], ImportFlags.BIDIRECTIONAL)
        device.release_import(device.import_planes(layout, [buffer], ImportFlags.TO_DEVICE))


@check
def every_map_makes_one_start_and_one_end_per_buffer() -> None:
    with (
        kit.pool_of(kernel.any_heap(), kit.LAYOUTS['two buffers'], slots=1) as pool,
        kit.publish(pool, level=1) as frame,
    ):
        inodes = [buffer.identity.inode for buffer in frame.data.buffers]
        read = kernel.SYNC_READ
        for write, flags in ((False, read), (True, read | kernel.SYNC_WRITE)):
            with kit.recorded() as recording:
                with frame.map(write=write):
                    inside = [recording().flags(inode) for inode in inodes]
                after = [recording().flags(inode) for inode in inodes]
            equal(inside, [[flags]] * 2, f'SYNCs within the block, write={write}')
            equal(after, [[flags, flags | kernel.SYNC_END]] * 2, f'SYNCs after it, write={write}')


@dataclass
class Bench:
    """A device, and three buffers: one that it reads, one that it writes, one unrelated."""

    device: AxlDevice
    source: DmaBuf
    result: DmaBuf
    other: DmaBuf

    def start(self, latency_us: int = 0, **options: int) -> SyncFile:
        """Start a job with this latency, and these parameters of the device."""
        with kernel.parameters(latency_us=latency_us, **options):
            return kit.start(self.device, [self.source], self.result)


@contextmanager
def bench() -> Iterator[Bench]:
    """Yield the device and its buffers; the other buffer is of another exporter."""
    sizes = kit.LAYOUT.buffer_size(0), kit.RESULT_SIZE
    with (
        kit.card() as device,
        kit.buffers(kernel.any_heap(), *sizes) as (source, result),
        closing(DmaBuf.from_fd(OwnedFd(kernel.shadow_buffer(kit.PAGE).fd))) as other,
    ):
        yield Bench(device, source, result, other)


@check
def a_sync_that_a_signal_interrupts_is_repeated() -> None:
    """
    Submit a job between our look at the fences and START, so that the kernel itself waits.

    The result is EINTR, which its documentation says to repeat.
    """
    hits: list[int] = []
    with bench() as b, kit.recorded() as recording:
        b.result.wait_for_devices = lambda *_: True  # type: ignore[method-assign]
        with kit.jobs_held() as let_go:

            def handler(*_: object) -> None:
                hits.append(1)
                if len(hits) == 5:
                    let_go()

            job = b.start()
            before = signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)
            try:
                b.result.begin_cpu_access(CpuAccess.READ)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
        assert job.wait(0.0), 'START did not wait for the device'
        b.result.end_cpu_access(CpuAccess.READ)
        seen, inode = recording(), b.result.identity.inode
        job.close()
    interrupted = {flags for code in _INTERRUPTED for _, flags in seen.syncs(inode, result=code)}
    equal(interrupted, {kernel.SYNC_READ}, 'what was interrupted')
    once = [kernel.SYNC_READ, kernel.SYNC_READ | kernel.SYNC_END]
    equal(seen.flags(inode), once, 'SYNCs that succeeded')


# Fences that a buffer's users wait for, and the state of a sync_file.


def _pending(buffer: DmaBuf, access: CpuAccess) -> bool:
    """Return the package's answer; no fence is nothing to wait for."""
    fence = buffer.export_fence(access)
    if fence is None:
        return False
    with closing(fence):
        pending = not fence.wait(0.0)
        equal(kernel.is_readable(fence.fileno()), not pending, 'what poll() says')
    return pending


@check
def a_job_in_flight_is_a_pending_fence_of_its_buffers() -> None:
    with bench() as b, kit.jobs_held() as let_go:
        job = b.start()
        equal(job.status(), 0, 'status of a pending job')
        equal(os.get_inheritable(job.fileno()), False, 'inherited by child programs')
        ways = CpuAccess.READ, CpuAccess.WRITE, BOTH
        for buffer, waits in (
            (b.source, [False, True, True]), (b.result, [True] * 3), (b.other, [False] * 3)
        ):  # fmt: skip
            equal([_pending(buffer, way) for way in ways], waits, 'reader, writer, both: pending')
        exported = b.source.export_fence(CpuAccess.WRITE)
        assert exported is not None and not exported.wait(0.01)
        for buffer, access in ((b.result, CpuAccess.READ), (b.source, BOTH)):
            with kit.refused(AcceleratorError, 'in use by a device'):
                buffer.begin_cpu_access(access, 0.05)
        b.source.begin_cpu_access(CpuAccess.READ, 0.05)  # a reader does not wait for a reader
        b.source.end_cpu_access(CpuAccess.READ)
        let_go()
        assert exported.wait(60.0), 'the exported fence'
        assert job.wait(0.0), 'the exported fence signalled before the job'
        exported.check()
        exported.close()
        after = [_pending(buffer, CpuAccess.WRITE) for buffer in (b.source, b.result)]
        equal(after, [False, False], 'pending after the job')
        equal(job.status(), 1, 'status of a job that has ended')
        job.close()


@check
def an_imported_fence_is_what_the_users_of_that_buffer_wait_for() -> None:
    for access, reader_waits in ((CpuAccess.READ, False), (CpuAccess.WRITE, True)):
        with bench() as b, kit.jobs_held() as let_go:
            job = b.start()
            b.other.import_fence(job, access)
            assert not job.wait(0.0), 'importing consumed the fence'
            for flags, waits in ((kernel.SYNC_READ, reader_waits), (kernel.SYNC_WRITE, True)):
                with kernel.Buffer(os.dup(b.other.fileno())) as raw:
                    fence = raw.reservation_fence(flags)
                seen = _pending(b.other, CpuAccess(flags)), not kernel.is_readable(fence)
                os.close(fence)
                equal(seen, (waits, waits), f'who with {flags} has to wait, fence of {access!r}')
            with kit.refused(AcceleratorError):
                b.other.begin_cpu_access(BOTH, 0.05)
            let_go()
            b.other.begin_cpu_access(BOTH)
            equal(job.wait(0.0), True, 'whether SYNC START waited for the imported fence')
            b.other.end_cpu_access(BOTH)
            job.close()


@check
def an_error_stays_visible_through_merge_and_export() -> None:
    with (
        bench() as b,
        kit.card() as second,
        kit.buffers(kernel.any_heap(), kit.RESULT_SIZE) as (result,),
    ):
        failing = b.start(latency_us=100000, fail_every=1)
        with kernel.parameters(latency_us=200000):
            good = kit.start(second, [b.source], result)
        merged = SyncFile.merge('one of them fails', good, failing)
        assert failing.wait(60.0) and kernel.is_readable(failing.fileno()), 'it polls readable'
        equal(failing.status(), -errno.EIO, 'status')
        with kit.refused(AcceleratorError, 'Input/output error'):
            failing.check()
        assert merged.wait(60.0)
        good.check()
        late = SyncFile.merge('both have ended', good, failing)
        assert late.wait(0.0)
        for both in (merged, late):
            with kit.refused(AcceleratorError, 'Input/output error'):
                both.check()
        for fence in (failing, good, merged, late):
            fence.close()


def _scribble(frame: Frame) -> None:
    chance = np.random.default_rng(1)
    with frame.map(write=True) as planes:
        for plane in planes:
            plane[:] = chance.integers(0, 256, plane.shape, np.uint8)


@check
def the_device_sees_what_was_written_for_every_heap_and_layout() -> None:
    with kit.accelerator() as npu:
        for heap in kernel.heaps_there():
            for name, layout in kit.LAYOUTS.items():
                with kit.pool_of(heap, layout) as pool, kit.publish(pool) as frame:
                    _scribble(frame)
                    equal(kit.device_crcs(npu, frame), kit.crcs(frame), f'CRCs, {heap}, {name}')


@check
def a_frame_is_not_read_before_its_acquire_fence() -> None:
    with (
        kit.accelerator() as npu,
        kit.pool_of(kernel.any_heap(), kit.LAYOUT) as pool,
        kit.publish(pool) as first,
    ):
        with kernel.parameters(latency_us=2000000):
            blocker = npu.submit(npu.import_frame(first), first)
        with kit.publish(pool, acquire_fence=blocker.fence.dup()) as frame:
            job = npu.submit(npu.import_frame(frame), frame)
            assert not job.fence.wait(0.02), 'the job did not wait'
            assert job.fence.wait(60.0) and blocker.fence.wait(0)
            ends = [kernel.fence_info(one.fence.fileno()).timestamp_ns for one in (blocker, job)]
            assert ends == sorted(ends), 'fence timestamps'
            job.close()
        blocker.close()
