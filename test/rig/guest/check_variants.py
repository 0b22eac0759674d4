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

"""Other cards and drivers: one whose jobs overtake each other, and today's shipped one."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os

from zc_perception.npu.axl import abi

from .harness import check, equal, raises
from .kernel_api import (
    bufinfo,
    heap_buffer,
    is_readable,
    merge_fences,
    NPU,
    parameters,
    udmabuf_buffer,
)
from .npu_client import make_image, Npu, read_result, RESULT_SIZE

# As the shipped driver's header has them, not as the package does: _IOWR('U', 5, int) and 6.
ATTACH, DETACH = 0xC0045505, 0xC0045506


@check
def jobs_that_run_side_by_side_overtake_each_other() -> None:
    with parameters(out_of_order=1, latency_us=500000):
        images = [make_image('NV12', 64, 48, seed=seed) for seed in range(4)]
        results = [heap_buffer(RESULT_SIZE) for _ in images]
        with Npu() as npu:
            handles = [npu.import_planes(image.argument()).handle for image in images]
            jobs = [
                npu.submit2(handle, result.fd)
                for handle, result in zip(handles, results, strict=True)
            ]
            infos = [job.wait() for job in jobs]
            stamps = [info.timestamp_ns for info in infos]
            equal([info.status for info in infos], [1] * 4, 'status')
            equal(stamps, sorted(stamps, reverse=True), 'the first job ends last')
            for image, result, job in zip(images, results, jobs, strict=True):
                got = read_result(result)
                equal(
                    (got.seqno, got.crcs()),
                    (job.seqno, image.crcs()),
                    'each result is of its own image',
                )
        for buffer in (*images, *results):
            buffer.close()


@check
def jobs_that_run_side_by_side_have_timelines_of_their_own() -> None:
    """Use several timelines: of one, the kernel keeps only the last fence, too early an end."""
    images = make_image('NV12', 64, 48)
    with (
        parameters(out_of_order=1, latency_us=500000),
        Npu() as npu,
        images as image,
        heap_buffer(RESULT_SIZE) as result,
    ):
        handle = npu.import_planes(image.argument()).handle
        jobs = [npu.submit2(handle, result.fd) for _ in range(4)]
        merged = merge_fences(jobs[0].fence, jobs[3].fence)
        assert is_readable(jobs[3].fence, 10000) and not is_readable(jobs[0].fence), (
            'the last did not overtake the first'
        )
        assert not is_readable(merged), 'merged, but only the last counts'
        assert is_readable(merged, 10000) and is_readable(jobs[0].fence)
        for fence in (merged, *(job.fence for job in jobs)):
            os.close(fence)


def _call(npu: Npu, request: int, fd: int) -> None:
    fcntl.ioctl(npu.fd, request, ctypes.c_int(fd))


@check
def the_shipped_driver_attaches_one_buffer_and_knows_nothing_else() -> None:
    memory = os.memfd_create('no dma-buf')
    with parameters(shipped=1), heap_buffer(4096) as first, udmabuf_buffer(4096) as second:
        with Npu() as npu:
            for buffer in (first, second):
                _call(npu, ATTACH, buffer.fd)
                equal(bufinfo()[buffer.inode].attached, [NPU], 'attached devices')
                _call(npu, DETACH, buffer.fd)
                equal(bufinfo()[buffer.inode].attached, [], 'attached devices after detaching')
            for fd, number in ((memory, errno.EINVAL), (9999, errno.EBADF)):
                with raises(number):
                    _call(npu, ATTACH, fd)
            with parameters(shipped_error=errno.ENOMEM), raises(errno.ENOMEM):
                _call(npu, ATTACH, first.fd)
            for name in abi.IOCTL_NUMBERS:
                with raises(errno.ENOTTY):
                    fcntl.ioctl(npu.fd, getattr(abi.REQUESTS, name), bytearray(256))
            _call(npu, ATTACH, first.fd)
        equal(bufinfo()[first.inode].attached, [], 'attached devices after close()')
    os.close(memory)
    with Npu() as npu, heap_buffer(4096) as first, raises(errno.ENOTTY):
        _call(npu, ATTACH, first.fd)
