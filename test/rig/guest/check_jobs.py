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

"""Jobs: arguments, order, depth, failures, hangs, and many of them."""

from __future__ import annotations

import ctypes
import errno
import os

from zc_perception.npu.axl import abi

from .harness import check, equal, expect_nothing_left, raises, settles
from .kernel_api import bufinfo, heap_buffer, is_readable, live, parameters, trace_events, tracing
from .npu_client import make_image, Npu, read_result, RESULT_SIZE, scene


@check
def submit_rejects_bad_arguments() -> None:
    with scene() as (npu, _image, handle, result):
        for wrong in (0, handle + 1):
            with raises(errno.ENOENT):
                npu.submit(wrong, result.fd)
            with raises(errno.ENOENT):
                npu.submit2(wrong, result.fd)
        for fd in (-1, 9999):
            with raises(errno.EBADF):
                npu.submit(handle, fd)
        other = os.memfd_create('no dma-buf')
        with raises(errno.EINVAL):
            npu.submit(handle, other)
        os.close(other)
        with raises(errno.EINVAL):
            npu.call(
                abi.REQUESTS.submit, abi.AxlSubmit(input_handle=handle, result_fd=result.fd, pad=1)
            )
        size = ctypes.sizeof(abi.AxlSubmit2)
        for members in ({'flags': 1}, {'struct_size': size - 8}, {'struct_size': 0}):
            members = {'struct_size': size, **members}
            argument = abi.AxlSubmit2(
                input_handle=handle, in_fence_fd=-1, result_fd=result.fd, **members
            )
            with raises(errno.EINVAL):
                npu.call(abi.REQUESTS.submit2, argument)
        output = npu.import_fd(result.fd, (16, 16), flags=abi.ImportFlags.FROM_DEVICE).handle
        with raises(errno.EINVAL):
            npu.submit(output, result.fd)
        equal(live()['jobs'], 0, 'jobs after so many mistakes')


@check
def a_bidirectional_import_can_be_read() -> None:
    with Npu() as npu, make_image('NV12', 64, 48) as image:
        handle = npu.import_planes(image.argument(abi.ImportFlags.BIDIRECTIONAL)).handle
        equal(npu.run(handle).crcs(), image.crcs(), 'CRCs')


@check
def the_result_buffer_is_attached_while_the_job_runs() -> None:
    with scene() as (npu, _image, handle, result):
        with parameters(hold=1):
            job = npu.submit(handle, result.fd)
            equal(len(bufinfo()[result.inode].attached), 1, 'attachments of the result')
        job.wait()
        npu.release(handle)
        settles(lambda: bufinfo()[result.inode].attached, [], 'attached devices')


@check
def jobs_end_in_the_order_of_their_seqno() -> None:
    with tracing('axl'), scene() as (npu, _image, handle, result):
        jobs = [npu.submit2(handle, result.fd) for _ in range(4)]
        equal([job.seqno for job in jobs], [1, 2, 3, 4], 'seqno')
        ends = [job.wait() for job in jobs]
        stamps = [info.timestamp_ns for info in ends]
        equal(stamps, sorted(stamps), 'order of the ends')
        for name in ('axl_submit', 'axl_complete'):
            equal(
                [event['seqno'] for event in trace_events(name)],
                ['1', '2', '3', '4'],
                f'seqno of {name}',
            )
        equal(
            {event['status'] for event in trace_events('axl_complete')},
            {'0'},
            'status in the trace',
        )


@check
def more_jobs_than_max_in_flight_are_busy() -> None:
    with (
        Npu() as npu,
        Npu() as other,
        make_image('NV12', 64, 48) as image,
        heap_buffer(RESULT_SIZE) as result,
    ):
        handle, other_handle = (
            npu.import_planes(image.argument()).handle,
            other.import_planes(image.argument()).handle,
        )
        with parameters(max_in_flight=2):
            with parameters(hang_every=1):
                fences = [npu.submit(handle, result.fd).fence for _ in range(2)]
            for _ in range(3):
                with raises(errno.EBUSY):
                    npu.submit(handle, result.fd)
            # The queue is that of the open file.
            equal(other.submit(other_handle, result.fd).wait().status, 1, 'status in another file')
        npu.close()
        for fence in fences:
            os.close(fence)


@check
def who_sees_a_fence_may_submit_again() -> None:
    with (
        scene('R8', 16, 16) as (npu, _image, handle, result),
        parameters(max_in_flight=1, latency_us=0),
    ):
        for _ in range(100):
            npu.submit(handle, result.fd).wait()


@check
def an_injected_error_is_on_the_fence_alone() -> None:
    with scene() as (npu, _image, handle, result):
        with parameters(fail_every=2):
            states = [npu.submit(handle, result.fd).wait().status for _ in range(4)]
        equal(states, [1, -errno.EIO, 1, -errno.EIO], 'status')
        equal(read_result(result).seqno, 3, 'seqno of the last good result')


@check
def a_hang_ends_with_its_timeout() -> None:
    with scene() as (npu, _image, handle, result):
        with parameters(hang_every=2):
            good, hung, late = (
                npu.submit(handle, result.fd, timeout_us=time_us)
                for time_us in (20000000, 80000, 20000000)
            )
            equal(good.wait().status, 1, 'status before')
            info = hung.wait()
            equal(info.status, -errno.ETIMEDOUT, 'status')
            waited = info.timestamp_ns // 1000 - hung.submit_us
            assert 80000 <= waited < 9000000, f'the timeout of 80000 us took {waited} us'
            equal(late.wait().status, 1, 'status of the next job')
        equal(read_result(result).seqno, 3, 'seqno of the last result')


@check
def a_job_that_is_too_slow_is_a_timeout() -> None:
    with scene() as (npu, _image, handle, result):
        with parameters(latency_us=300000):
            equal(
                npu.submit(handle, result.fd, timeout_us=20000).wait().status,
                -errno.ETIMEDOUT,
                'status',
            )
            with parameters(default_timeout_us=20000):
                equal(
                    npu.submit(handle, result.fd, timeout_us=0).wait().status,
                    -errno.ETIMEDOUT,
                    'status with the default',
                )
            # The time in the queue counts as well.
            with parameters(latency_us=2000000):
                first, second = (
                    npu.submit(handle, result.fd),
                    npu.submit(handle, result.fd, 2300000),
                )
            equal(
                (first.wait().status, second.wait().status), (1, -errno.ETIMEDOUT), 'status of two'
            )
        with parameters(latency_us=0):
            job = npu.submit(handle, result.fd, timeout_us=1)
            equal(job.wait().status, -errno.ETIMEDOUT, 'status with no time at all')


@check
def a_thousand_jobs() -> None:
    with parameters(latency_us=0), scene('NV12', 160, 96) as (npu, image, handle, result):
        right = image.crcs()
        waiting: list[int] = []
        for number in range(1, 1001):
            waiting.append(npu.submit2(handle, result.fd, timeout_us=30000000).fence)
            if len(waiting) == 4 or number == 1000:
                while waiting:
                    assert is_readable(waiting[0], 30000), f'job {number} did not end'
                    os.close(waiting.pop(0))
                got = read_result(result)
                equal((got.seqno, got.crcs()), (number, right), 'result')
        npu.release(handle)
    expect_nothing_left()
