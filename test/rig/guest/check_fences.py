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

"""Fences: a job's sync_file, acquire fences, and the fences in reservation objects."""

from __future__ import annotations

import errno
import os
import time

from .harness import check, equal, raises
from .kernel_api import (
    fence_info,
    heap_buffer,
    is_readable,
    parameters,
    SYNC_END,
    SYNC_READ,
    SYNC_WRITE,
    wait_fence,
)
from .npu_client import make_image, Npu, read_result, RESULT_SIZE, scene


def _now_us() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


@check
def a_fence_tells_when_its_job_ended() -> None:
    with scene() as (npu, _image, handle, result):
        with parameters(latency_us=2000000):
            before = _now_us()
            job = npu.submit(handle, result.fd)
            after = _now_us()
            assert not is_readable(job.fence), 'the fence is readable at once'
            pending = fence_info(job.fence)
        equal(
            (pending.status, pending.driver, pending.timeline),
            (0, 'axl', 'metis-0'),
            'pending fence',
        )
        assert before <= job.submit_us <= after, (
            f'submit_us {job.submit_us} is not within {before}..{after}'
        )
        equal(job.completion_us, 0, 'completion_us')
        done = wait_fence(job.fence)
        equal((done.status, done.driver, done.timeline), (1, 'axl', 'metis-0'), 'signalled fence')
        end_us = done.timestamp_ns // 1000
        assert job.submit_us + 2000000 <= end_us <= _now_us(), (
            f'timestamp {end_us}, submitted {job.submit_us}'
        )
        os.close(job.fence)


@check
def fences_are_close_on_exec() -> None:
    with Npu() as npu, make_image('NV12', 64, 48) as image, heap_buffer(RESULT_SIZE) as result:
        job = npu.submit(npu.import_planes(image.argument()).handle, result.fd)
        assert not os.get_inheritable(job.fence), 'a child program would inherit the fence'
        job.wait()


@check
def an_acquire_fence_is_waited_for() -> None:
    with (
        Npu() as npu,
        Npu() as other,
        make_image('NV12', 160, 96) as image,
        heap_buffer(RESULT_SIZE) as result,
    ):
        handle, other_handle = (
            npu.import_planes(image.argument()).handle,
            other.import_planes(image.argument()).handle,
        )
        with parameters(latency_us=2000000):
            producer = other.submit2(other_handle, result.fd)
        with parameters(latency_us=0, reservation_fences=0):
            consumer = npu.submit2(handle, result.fd, in_fence=producer.fence)
            assert not is_readable(consumer.fence, 50), (
                'the job did not wait for its acquire fence'
            )
            # Written while it waits, seen because it has not read before.
            image.planes[0].buffer.memory()[0:4] = b'late'
            first, second = wait_fence(producer.fence), consumer.wait()
        equal((first.status, second.status), (1, 1), 'status')
        assert first.timestamp_ns <= second.timestamp_ns, 'the consumer ended before the producer'
        equal(read_result(result).crcs(), image.crcs(), 'CRCs')
        equal(image.planes[0].buffer.read(4), b'late', 'first pixels')
        again = npu.submit2(handle, result.fd, in_fence=producer.fence)
        equal(again.wait().status, 1, 'status with a fence that has long signalled')
        os.close(producer.fence)


@check
def an_error_of_the_acquire_fence_is_passed_on() -> None:
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
        with parameters(fail_every=1):
            failed = other.submit2(other_handle, result.fd)
            wait_fence(failed.fence)
        with parameters(latency_us=50000):
            equal(
                npu.submit2(handle, result.fd, in_fence=failed.fence).wait().status,
                -errno.EIO,
                'status',
            )
        os.close(failed.fence)
        equal(result.read(RESULT_SIZE), bytes(RESULT_SIZE), 'result buffer')


@check
def an_acquire_fence_that_never_comes_is_a_timeout() -> None:
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
        with parameters(hang_every=1):
            stuck = other.submit2(other_handle, result.fd, timeout_us=20000000)
            time.sleep(0.02)
        job = npu.submit2(handle, result.fd, in_fence=stuck.fence, timeout_us=60000)
        info = job.wait()
        equal(info.status, -errno.ETIMEDOUT, 'status')
        waited = info.timestamp_ns // 1000 - job.submit_us
        assert 60000 <= waited < 9000000, f'the timeout of 60000 us took {waited} us'
        other.close()
        equal(
            wait_fence(stuck.fence).status,
            -errno.ECANCELED,
            'status of the job whose file was closed',
        )
        os.close(stuck.fence)


@check
def acquire_fences_must_be_sync_files() -> None:
    with scene() as (npu, image, handle, result):
        eventfd = os.memfd_create('no fence')
        for fd, number in (
            (eventfd, errno.EINVAL),
            (image.planes[0].buffer.fd, errno.EINVAL),
            (-2, errno.EBADF),
            (9999, errno.EBADF),
        ):
            with raises(number):
                npu.submit2(handle, result.fd, in_fence=fd)
        os.close(eventfd)


@check
def jobs_put_fences_into_reservation_objects() -> None:
    with scene('NV12', 64, 48, separate=True) as (npu, image, handle, result):
        inputs = image.buffers()
        with parameters(latency_us=2000000):
            job = npu.submit(handle, result.fd)
            # A writer has to wait for our reading, a reader has not.
            fences = [
                (buffer.reservation_fence(SYNC_WRITE), buffer.reservation_fence(SYNC_READ))
                for buffer in inputs
            ]
            written = result.reservation_fence(SYNC_READ)
            for writer, reader in fences:
                equal(
                    (is_readable(writer), is_readable(reader)),
                    (False, True),
                    'input free for (writer, reader)',
                )
            equal(is_readable(written), False, 'result free for a reader')
            started = time.monotonic()
            result.sync(SYNC_READ)
            result.sync(SYNC_READ | SYNC_END)
            assert time.monotonic() - started > 0.03, 'SYNC START did not wait for the device'
            equal(is_readable(job.fence), True, 'the fence after SYNC START')
        for fd in (*(fd for pair in fences for fd in pair), written, job.fence):
            equal(wait_fence(fd).status, 1, 'status')
            os.close(fd)


@check
def reservation_fences_can_be_switched_off() -> None:
    with scene() as (npu, image, handle, result):
        with parameters(hold=1, reservation_fences=0):
            job = npu.submit(handle, result.fd)
            for buffer in (result, *image.buffers()):
                fence = buffer.reservation_fence(SYNC_WRITE)
                equal(is_readable(fence), True, 'buffer free for a writer')
                os.close(fence)
            equal(is_readable(job.fence), False, 'job ended')
        equal(job.wait().status, 1, 'status')


@check
def a_fence_outlives_the_device_file() -> None:
    with scene() as (npu, _image, handle, result):
        with parameters(latency_us=5000000):
            jobs = [npu.submit(handle, result.fd, timeout_us=9000000) for _ in range(3)]
            npu.close()
        # Had it waited for the jobs, they would have ended well.
        ends = [job.wait() for job in jobs]
        equal([info.status for info in ends], [-errno.ECANCELED] * 3, 'status')
        stamps = [info.timestamp_ns for info in ends]
        equal(stamps, sorted(stamps), 'order')
