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
What is held ends when it should, however the holder goes.

Release in flight, close, SIGKILL, module removal.
"""

from __future__ import annotations

from collections.abc import Callable
import ctypes
import errno
import os
from pathlib import Path
import signal
import time

from waiting import until

from .harness import check, equal, expect_nothing_left, raises
from .kernel_api import (
    bufinfo,
    heap_buffer,
    is_readable,
    libc,
    live,
    parameters,
    shadow_buffer,
    SYSCALLS,
    trace_events,
    tracing,
)
from .npu_client import make_image, Npu, RESULT_SIZE, scene


@check
def a_release_in_flight_waits_for_the_job() -> None:
    with tracing('axl'), scene() as (npu, image, handle, result):
        inode = image.planes[0].buffer.inode
        with parameters(latency_us=2000000):
            jobs = [npu.submit(handle, result.fd), npu.submit(handle, result.fd)]
            npu.release(handle)
            with raises(errno.ENOENT):
                npu.release(handle)
            with raises(errno.ENOENT):
                npu.submit(handle, result.fd)
            jobs[0].wait()
            equal(len(bufinfo()[inode].attached), 1, 'attachments while a job runs')
            equal(trace_events('axl_dmabuf_release'), [], 'release events while a job runs')
            equal(jobs[1].wait().status, 1, 'status of a job whose handle was released')
        until(lambda: not bufinfo()[inode].attached, 'the attachment goes')
        equal(len(trace_events('axl_dmabuf_release')), 1, 'release events')


@check
def a_buffer_closed_in_flight_stays_for_the_job() -> None:
    with Npu() as npu, heap_buffer(RESULT_SIZE) as result:
        image = make_image('NV12', 64, 48)
        handle = npu.import_planes(image.argument()).handle
        inode, right = image.planes[0].buffer.inode, image.crcs()
        image.close()
        assert inode in bufinfo(), 'the import does not hold the buffer'
        equal(npu.run(handle).crcs(), right, 'CRCs')
        npu.release(handle)
        until(lambda: inode not in bufinfo(), 'the buffer goes')
        del result


@check
def close_ends_imports_and_jobs() -> None:
    with make_image('NV12', 64, 48) as image, heap_buffer(RESULT_SIZE) as result:
        npu = Npu()
        handles = [npu.import_planes(image.argument()).handle for _ in range(5)]
        with parameters(hang_every=1):
            fences = [
                npu.submit(handle, result.fd, timeout_us=60000000).fence for handle in handles[:4]
            ]
            npu.close()
        # At once: close() returns when the device is done with the buffers.
        equal(live()['attachments'], 0, 'attachments after close()')
        equal([is_readable(fence) for fence in fences], [True] * 4, 'fences')
        for fence in fences:
            os.close(fence)


def _in_child(work: Callable[[], None]) -> int:
    """Run `work` in a child that then waits to be killed; return its pid once the work is done."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os.write(writing, b'1')
            time.sleep(600)
        finally:
            os._exit(1)
    os.close(writing)
    done = os.read(reading, 1)
    os.close(reading)
    equal(done, b'1', 'the child')
    return pid


@check
def sigkill_leaves_nothing_behind() -> None:
    before = set(bufinfo())

    def hold_everything() -> None:
        npu = Npu()
        image = make_image('NV12', 640, 360, separate=True)
        shadow = make_image('NV12', 64, 48, allocate=shadow_buffer)
        result = heap_buffer(RESULT_SIZE)
        handles = [npu.import_planes(item.argument()).handle for item in (image, shadow, image)]
        first = npu.submit2(handles[0], result.fd, timeout_us=60000000)
        for handle in handles[1:]:
            npu.submit2(handle, result.fd, in_fence=first.fence, timeout_us=60000000)
        npu.release(handles[0])

    with parameters(hang_every=1):
        pid = _in_child(hold_everything)
        held = live()
        equal((held['imports'], held['jobs']), (3, 3), 'imports and jobs of the child')
        assert set(bufinfo()) - before, 'the child holds no buffers'
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    until(lambda: set(bufinfo()) == before, 'the buffers of the dead process go')
    expect_nothing_left()


@check
def sigkill_while_busy_leaves_nothing_behind() -> None:
    before = set(bufinfo())

    def keep_submitting() -> None:
        npu, image, result = Npu(), make_image('NV12', 64, 48), heap_buffer(RESULT_SIZE)
        if os.fork() == 0:
            while True:
                handle = npu.import_planes(image.argument()).handle
                job = npu.submit(handle, result.fd)
                npu.release(handle)
                job.wait()
        os.setsid()

    def children() -> list[int]:
        return [
            int(entry.name)
            for entry in Path('/proc').iterdir()
            if entry.name.isdigit() and _parent(entry) in pids
        ]

    with parameters(latency_us=500):
        for _ in range(5):
            pids = [_in_child(keep_submitting)]
            time.sleep(0.1)
            pids += children()
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pids[0], 0)
    until(lambda: set(bufinfo()) == before, 'the buffers of the dead processes go')
    expect_nothing_left()


def _parent(entry: Path) -> int:
    try:
        return int((entry / 'stat').read_text().rpartition(') ')[2].split()[1])
    except OSError:
        return 0


_MODULE = b'metis_virtual'


def _remove_module() -> None:
    if libc.syscall(SYSCALLS['delete_module'], _MODULE, os.O_NONBLOCK):
        raise OSError(ctypes.get_errno(), 'delete_module')


def _insert_module() -> None:
    fd = os.open(os.environ['RIG_MODULE'], os.O_RDONLY)
    try:
        if libc.syscall(SYSCALLS['finit_module'], fd, b'', 0):
            raise OSError(ctypes.get_errno(), 'finit_module')
    finally:
        os.close(fd)


@check
def the_module_stays_while_something_of_it_is_used() -> None:
    npu = Npu()
    with raises(errno.EAGAIN, errno.EBUSY):
        _remove_module()
    image, result = make_image('NV12', 64, 48), heap_buffer(RESULT_SIZE)
    with parameters(hang_every=1):
        job = npu.submit(
            npu.import_planes(image.argument()).handle, result.fd, timeout_us=60000000
        )
    image.close()
    result.close()
    npu.close()
    with raises(errno.EAGAIN, errno.EBUSY):  # a fence
        _remove_module()
    equal(job.wait().status, -errno.ECANCELED, 'status')
    with shadow_buffer(4096), raises(errno.EAGAIN, errno.EBUSY):  # a buffer of its exporter
        _remove_module()


@check
def the_module_can_be_removed_and_loaded_again() -> None:
    for _ in range(3):
        expect_nothing_left()
        until(_removable, 'the module can be removed')
        _insert_module()
        with Npu() as npu, make_image('NV12', 64, 48, allocate=shadow_buffer) as image:
            handle = npu.import_planes(image.argument()).handle
            equal(npu.run(handle).crcs(), image.crcs(), 'CRCs after loading again')


def _removable() -> bool:
    try:
        _remove_module()
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EBUSY):
            raise
        return False
    return True
