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
Fences of a real driver, through the package's own calls.

They are in sync_files and in the reservation objects of buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
import errno
import fcntl
import os
import struct
import time

from zc_perception.errors import AcceleratorError
from zc_perception.memory.dmabuf import CpuAccess, DmaBuf
from zc_perception.memory.fence import Fence, SyncFile
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.npu.axl.device import AxlDevice

from .harness import check, check_with_a_heap, equal
from .kernel_api import (
    any_heap,
    fence_info,
    is_readable,
    parameters,
    shadow_buffer,
    SYNC_READ,
    SYNC_WRITE,
)
from .package_kit import (
    adopted,
    buffers,
    card,
    jobs_held,
    LAYOUT,
    PAGE,
    refused,
    RESULT_SIZE,
    start,
)

READ, WRITE = CpuAccess.READ, CpuAccess.WRITE
BOTH = CpuAccess.READ | CpuAccess.WRITE


@dataclass
class Bench:
    """A device, a buffer that it reads, one that it writes, one that it has nothing to do with."""

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
    """Return what the package says; None stands for no fence, so nothing to wait for."""
    fence = buffer.export_fence(access)
    return False if fence is None else _pending(fence)


def _kernel_pending(buffer: DmaBuf, flags: int) -> bool:
    """Return what the kernel says, asked without the package."""
    argument = bytearray(struct.pack('Ii', flags, -1))
    fcntl.ioctl(buffer.fileno(), 0xC0086202, argument)
    with OwnedFd(struct.unpack('Ii', argument)[1]) as fd:
        return not is_readable(fd.fileno())


def _finish(fence: Fence) -> None:
    assert fence.wait(20.0), 'the job did not end'
    fence.check()
    fence.close()


# What a buffer's users have to wait for.


@check_with_a_heap
def a_job_in_flight_is_a_pending_fence_of_its_buffers(heap: str) -> None:
    with bench(heap) as b, jobs_held() as let_go:
        job = b.start()
        got = {
            'a writer of the image': _exported_pending(b.source, WRITE),
            'a reader of the image': _exported_pending(b.source, READ),
            'a reader of the result': _exported_pending(b.result, READ),
            'a writer of the result': _exported_pending(b.result, WRITE),
            'both, of the image': _exported_pending(b.source, BOTH),
            'a reader of another buffer': _exported_pending(b.other, READ),
            'a writer of another buffer': _exported_pending(b.other, WRITE),
        }
        waits = {
            'a writer of the image',
            'both, of the image',
            'a reader of the result',
            'a writer of the result',
        }
        equal({who for who, pending in got.items() if pending}, waits, 'who has to wait')
        exported = b.source.export_fence(WRITE)
        assert exported is not None and not exported.wait(0.01)
        let_go()
        assert exported.wait(60.0), 'the exported fence'
        assert job.wait(0.0), 'the exported fence signalled before the job'
        exported.check()
        exported.close()
        equal(
            [_exported_pending(buffer, WRITE) for buffer in (b.source, b.result)],
            [False, False],
            'pending after the job',
        )
        job.close()


@check_with_a_heap
def an_imported_fence_is_what_the_users_of_that_buffer_wait_for(heap: str) -> None:
    for access, reader_waits in ((READ, False), (WRITE, True)):
        with bench(heap) as b, jobs_held() as let_go:
            job = b.start()
            b.other.import_fence(job, access)
            assert not job.wait(0.0), 'importing consumed the fence'
            for pending in (_exported_pending(b.other, READ), _kernel_pending(b.other, SYNC_READ)):
                equal(pending, reader_waits, f'whether a reader has to wait, fence of {access!r}')
            for pending in (
                _exported_pending(b.other, WRITE),
                _kernel_pending(b.other, SYNC_WRITE),
            ):
                equal(pending, True, f'whether a writer has to wait, fence of {access!r}')
            with refused(AcceleratorError):
                b.other.begin_cpu_access(BOTH, 0.05)
            let_go()
            b.other.begin_cpu_access(BOTH)
            equal(job.wait(0.0), True, 'whether SYNC START waited for the imported fence')
            b.other.end_cpu_access(BOTH)
            _finish(job)


# What a sync_file says.


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


# Buffers of a dead consumer.
