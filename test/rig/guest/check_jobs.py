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

"""Jobs and their fences: arguments, order, failures, hangs, reservation objects, other drivers."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import time

from zc_perception.npu.axl import abi

from . import kernel_api as kernel
from .harness import check, equal, fails, settles
from .npu_client import Job, no_dmabufs, Npu, read_result, RESULT_SIZE, scene, two_files


@check
def submit_rejects_bad_arguments() -> None:
    with scene() as (npu, _image, handle, result), no_dmabufs() as wrong_fds:
        for wrong in (0, handle + 1):
            fails(errno.ENOENT, npu.submit, wrong, result.fd)
            fails(errno.ENOENT, npu.submit2, wrong, result.fd)
        for fd, number in wrong_fds.items():
            fails(number, npu.submit, handle, fd)
        padded = abi.AxlSubmit(input_handle=handle, result_fd=result.fd, pad=1)
        fails(errno.EINVAL, npu.call, abi.REQUESTS.submit, padded)
        size = ctypes.sizeof(abi.AxlSubmit2)
        for members in ({'flags': 1}, {'struct_size': size - 8}, {'struct_size': 0}):
            members = {'struct_size': size, **members}
            argument = abi.AxlSubmit2(
                input_handle=handle, in_fence_fd=-1, result_fd=result.fd, **members
            )
            fails(errno.EINVAL, npu.call, abi.REQUESTS.submit2, argument)
        output = npu.import_fd(result.fd, (16, 16), flags=abi.ImportFlags.FROM_DEVICE).handle
        fails(errno.EINVAL, npu.submit, output, result.fd)
        equal(kernel.live()['jobs'], 0, 'jobs after so many mistakes')


@check
def jobs_end_in_the_order_of_their_seqno() -> None:
    with kernel.recording(), scene() as (npu, _image, handle, result):
        jobs = [npu.submit2(handle, result.fd) for _ in range(4)]
        equal([job.seqno for job in jobs], [1, 2, 3, 4], 'seqno')
        ends = [job.wait() for job in jobs]
        stamps = [info.timestamp_ns for info in ends]
        equal(stamps, sorted(stamps), 'order of the ends')
        submitted, completed = map(kernel.trace_events, ('axl_submit', 'axl_complete'))
        for events in (submitted, completed):
            equal([event['seqno'] for event in events], ['1', '2', '3', '4'], 'seqno in the trace')
        equal({event['status'] for event in completed}, {'0'}, 'status in the trace')


@check
def more_jobs_than_max_in_flight_are_busy() -> None:
    with two_files() as (npu, handle, other, other_handle, _, result):
        with kernel.parameters(max_in_flight=2):
            with kernel.parameters(hang_every=1):
                fences = [npu.submit(handle, result.fd).fence for _ in range(2)]
            for _ in range(3):
                fails(errno.EBUSY, npu.submit, handle, result.fd)
            # Each open file has a queue of its own.
            equal(other.submit(other_handle, result.fd).wait().status, 1, 'status in another file')
        npu.close()
        for fence in fences:
            os.close(fence)


def _expect_timeout(job: Job, timeout_us: int) -> None:
    info = job.wait()
    equal(info.status, -errno.ETIMEDOUT, 'status')
    waited = info.timestamp_ns // 1000 - job.submit_us
    assert timeout_us <= waited < 9000000, f'the timeout of {timeout_us} us took {waited} us'


@check
def a_hang_ends_with_its_timeout() -> None:
    with scene() as (npu, _image, handle, result):
        with kernel.parameters(hang_every=2):
            good, hung, late = (
                npu.submit(handle, result.fd, timeout_us=time_us)
                for time_us in (20000000, 80000, 20000000)
            )
            equal(good.wait().status, 1, 'status before')
            _expect_timeout(hung, 80000)
            equal(late.wait().status, 1, 'status of the next job')
        equal(read_result(result).seqno, 3, 'seqno of the last result')


def _now_us() -> int:
    return time.monotonic_ns() // 1000


@check
def a_fence_tells_when_its_job_ended() -> None:
    with scene() as (npu, _image, handle, result):
        with kernel.parameters(latency_us=2000000):
            before = _now_us()
            job = npu.submit(handle, result.fd)
            after = _now_us()
            assert not kernel.is_readable(job.fence), 'the fence is readable at once'
            pending = kernel.fence_info(job.fence)
        names = pending.status, pending.driver, pending.timeline
        equal(names, (0, 'axl', 'metis-0'), 'pending fence')
        assert before <= job.submit_us <= after, (before, job.submit_us, after)
        equal(job.completion_us, 0, 'completion_us')
        done = kernel.wait_fence(job.fence)
        equal((done.status, done.driver, done.timeline), (1, 'axl', 'metis-0'), 'signalled fence')
        end_us = done.timestamp_ns // 1000
        assert job.submit_us + 2000000 <= end_us <= _now_us(), (job.submit_us, end_us)
        os.close(job.fence)


@check
def an_acquire_fence_is_waited_for() -> None:
    with two_files(width=160, height=96) as (npu, handle, other, other_handle, image, result):
        with kernel.parameters(latency_us=2000000):
            producer = other.submit2(other_handle, result.fd)
        with kernel.parameters(latency_us=0, reservation_fences=0):
            consumer = npu.submit2(handle, result.fd, in_fence=producer.fence)
            assert not kernel.is_readable(consumer.fence, 50), 'the job did not wait for its fence'
            # The job sees a write during its wait, because it has not read yet.
            image.planes[0].buffer.memory()[0:4] = b'late'
            first, second = kernel.wait_fence(producer.fence), consumer.wait()
        equal((first.status, second.status), (1, 1), 'status')
        assert first.timestamp_ns <= second.timestamp_ns, 'the consumer ended before the producer'
        equal(read_result(result).crcs(), image.crcs(), 'CRCs')
        equal(image.planes[0].buffer.read(4), b'late', 'first pixels')
        again = npu.submit2(handle, result.fd, in_fence=producer.fence)
        equal(again.wait().status, 1, 'status with a fence that has long signalled')
        os.close(producer.fence)


@check
def an_acquire_fence_that_fails_or_never_comes_fails_the_job() -> None:
    with two_files() as (npu, handle, other, other_handle, _, result):
        with kernel.parameters(fail_every=1):
            failed = other.submit2(other_handle, result.fd)
            kernel.wait_fence(failed.fence)
        with kernel.parameters(latency_us=50000):
            job = npu.submit2(handle, result.fd, in_fence=failed.fence)
            equal(job.wait().status, -errno.EIO, 'status')
        with kernel.parameters(hang_every=1):
            stuck = other.submit2(other_handle, result.fd, timeout_us=20000000)
            time.sleep(0.02)
        _expect_timeout(npu.submit2(handle, result.fd, stuck.fence, timeout_us=60000), 60000)
        other.close()
        canceled = kernel.wait_fence(stuck.fence).status
        equal(canceled, -errno.ECANCELED, 'status of the job whose file was closed')
        for fence in (failed.fence, stuck.fence):
            os.close(fence)
        equal(result.read(RESULT_SIZE), bytes(RESULT_SIZE), 'result buffer')


@check
def acquire_fences_must_be_sync_files() -> None:
    with scene() as (npu, image, handle, result), no_dmabufs(-2) as wrong:
        for fd, number in {**wrong, image.planes[0].buffer.fd: errno.EINVAL}.items():
            fails(number, npu.submit2, handle, result.fd, in_fence=fd)


@check
def jobs_put_fences_into_reservation_objects() -> None:
    with scene(separate=True) as (npu, image, handle, result):
        inputs = image.buffers()
        with kernel.parameters(latency_us=2000000):
            job = npu.submit(handle, result.fd)
            attached = kernel.bufinfo()[result.inode].attached
            equal(attached, [kernel.NPU], 'what is attached to the result')
            # A writer has to wait for our reading, a reader does not.
            fences = [
                buffer.reservation_fence(flags)
                for buffer in inputs
                for flags in (kernel.SYNC_WRITE, kernel.SYNC_READ)
            ]
            fences.append(result.reservation_fence(kernel.SYNC_READ))
            free = [kernel.is_readable(fence) for fence in fences]
            equal(free, [False, True] * 2 + [False], 'inputs free for writer, reader; result')
            started = time.monotonic()
            result.sync(kernel.SYNC_READ)
            result.sync(kernel.SYNC_READ | kernel.SYNC_END)
            assert time.monotonic() - started > 0.03, 'SYNC START did not wait for the device'
            equal(kernel.is_readable(job.fence), True, 'the fence after SYNC START')
        for fd in (*fences, job.fence):
            equal(kernel.wait_fence(fd).status, 1, 'status')
            os.close(fd)
        settles(
            lambda: kernel.bufinfo()[result.inode].attached, [], 'what is attached to the result'
        )


@check
def a_fence_outlives_the_device_file() -> None:
    with scene() as (npu, _image, handle, result):
        with kernel.parameters(latency_us=5000000):
            jobs = [npu.submit(handle, result.fd, timeout_us=9000000) for _ in range(3)]
            npu.close()
        # If it had waited for the jobs, they would have succeeded.
        ends = [job.wait() for job in jobs]
        equal([info.status for info in ends], [-errno.ECANCELED] * 3, 'status')
        stamps = [info.timestamp_ns for info in ends]
        equal(stamps, sorted(stamps), 'order')


# From the shipped driver's header, which differs from the package: _IOWR('U', 5, int) and 6.
ATTACH, DETACH = 0xC0045505, 0xC0045506


@check
def jobs_that_run_side_by_side_have_timelines_of_their_own() -> None:
    """Use several timelines: the kernel keeps only the last fence of each, which may end early."""
    with (
        kernel.parameters(out_of_order=1, latency_us=500000),
        scene() as (npu, _image, handle, result),
    ):
        fences = [npu.submit2(handle, result.fd).fence for _ in range(4)]
        first, last = fences[0], fences[3]
        merged = kernel.merge_fences(first, last)
        assert kernel.is_readable(last, 10000) and not kernel.is_readable(first), 'no overtaking'
        assert not kernel.is_readable(merged), 'merged, but only the last counts'
        assert kernel.is_readable(merged, 10000) and kernel.is_readable(first)
        for fence in (merged, *fences):
            os.close(fence)


def _call(npu: Npu, request: int, fd: int) -> None:
    fcntl.ioctl(npu.fd, request, ctypes.c_int(fd))


@check
def the_shipped_driver_attaches_one_buffer_and_knows_nothing_else() -> None:
    with (
        kernel.parameters(shipped=1),
        kernel.heap_buffer(4096) as first,
        kernel.udmabuf_buffer(4096) as second,
        no_dmabufs() as wrong,
    ):
        with Npu() as npu:
            for buffer in (first, second):
                _call(npu, ATTACH, buffer.fd)
                equal(kernel.bufinfo()[buffer.inode].attached, [kernel.NPU], 'attached devices')
                _call(npu, DETACH, buffer.fd)
                equal(kernel.bufinfo()[buffer.inode].attached, [], 'attached after detaching')
            for fd, number in wrong.items():
                fails(number, _call, npu, ATTACH, fd)
            with kernel.parameters(shipped_error=errno.ENOMEM):
                fails(errno.ENOMEM, _call, npu, ATTACH, first.fd)
            for name in abi.IOCTL_NUMBERS:
                request = getattr(abi.REQUESTS, name)
                fails(errno.ENOTTY, fcntl.ioctl, npu.fd, request, bytearray(256))
            _call(npu, ATTACH, first.fd)
        equal(kernel.bufinfo()[first.inode].attached, [], 'attached devices after close()')
    with Npu() as npu, kernel.heap_buffer(4096) as first:
        fails(errno.ENOTTY, _call, npu, ATTACH, first.fd)
