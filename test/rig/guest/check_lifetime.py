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

"""Resources end in time: release, close, SIGKILL, removal of the card, races."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
import ctypes
import errno
import os
from pathlib import Path
import random
import socket
import threading
import time

from waiting import until

from zc_perception.npu.axl import abi

from . import kernel_api as kernel
from .harness import check, Child, equal, expect_nothing_left, fails, raises
from .npu_client import device_path, make_image, Npu, RESULT_SIZE, scene


@check
def a_release_in_flight_waits_for_the_job() -> None:
    with kernel.recording(), scene() as (npu, image, handle, result):
        inode = image.planes[0].buffer.inode
        with kernel.parameters(latency_us=2000000):
            jobs = [npu.submit(handle, result.fd), npu.submit(handle, result.fd)]
            npu.release(handle)
            fails(errno.ENOENT, npu.release, handle)
            fails(errno.ENOENT, npu.submit, handle, result.fd)
            jobs[0].wait()
            equal(len(kernel.bufinfo()[inode].attached), 1, 'attachments while a job runs')
            equal(kernel.trace_events('axl_dmabuf_release'), [], 'release events while a job runs')
            equal(jobs[1].wait().status, 1, 'status of a job whose handle was released')
        until(lambda: not kernel.bufinfo()[inode].attached, 'the attachment goes')
        equal(len(kernel.trace_events('axl_dmabuf_release')), 1, 'release events')


@check
def close_ends_imports_and_jobs() -> None:
    with make_image() as image, kernel.heap_buffer(RESULT_SIZE) as result:
        npu = Npu()
        handles = [npu.import_planes(image.argument()).handle for _ in range(5)]
        with kernel.parameters(hang_every=1):
            fences = [
                npu.submit(handle, result.fd, timeout_us=60000000).fence for handle in handles[:4]
            ]
            npu.close()
        # close() returns when the device has finished with the buffers, so check at once.
        equal(kernel.live()['attachments'], 0, 'attachments after close()')
        equal([kernel.is_readable(fence) for fence in fences], [True] * 4, 'fences')
        for fence in fences:
            os.close(fence)


@check
def sigkill_leaves_nothing_behind() -> None:
    before = set(kernel.bufinfo())

    def hold_everything(theirs: socket.socket) -> None:
        npu = Npu()
        image = make_image('NV12', 640, 360, separate=True)
        shadow = make_image(allocate=kernel.shadow_buffer)
        result = kernel.heap_buffer(RESULT_SIZE)
        handles = [npu.import_planes(item.argument()).handle for item in (image, shadow, image)]
        first = npu.submit2(handles[0], result.fd, timeout_us=60000000)
        for handle in handles[1:]:
            npu.submit2(handle, result.fd, in_fence=first.fence, timeout_us=60000000)
        npu.release(handles[0])
        theirs.send(b'1')
        theirs.recv(1)

    with kernel.parameters(hang_every=1):
        child = Child(hold_everything)
        child.answer()
        held = kernel.live()
        equal((held['imports'], held['jobs']), (3, 3), 'imports and jobs of the child')
        assert set(kernel.bufinfo()) - before, 'the child holds no buffers'
        child.kill()
    until(lambda: set(kernel.bufinfo()) == before, 'the buffers of the dead process go')
    expect_nothing_left()


def _remove_module() -> None:
    if kernel.libc.syscall(kernel.SYSCALLS['delete_module'], b'metis_virtual', os.O_NONBLOCK):
        raise OSError(ctypes.get_errno(), 'delete_module')


@check
def the_module_stays_while_something_of_it_is_used() -> None:
    with scene() as (npu, _image, handle, result):
        with raises(errno.EAGAIN, errno.EBUSY):
            _remove_module()
        with kernel.parameters(hang_every=1):
            job = npu.submit(handle, result.fd, timeout_us=60000000)
    with raises(errno.EAGAIN, errno.EBUSY):  # its fence pins the module
        _remove_module()
    equal(job.wait().status, -errno.ECANCELED, 'status')
    with kernel.shadow_buffer(4096), raises(errno.EAGAIN, errno.EBUSY):  # its buffer pins it, too
        _remove_module()


@check
def a_pulled_card_ends_jobs_and_imports_of_open_files() -> None:
    npu, idle = Npu(), Npu()
    with make_image() as image, kernel.heap_buffer(RESULT_SIZE) as result:
        inode, node = image.planes[0].buffer.inode, device_path()
        handle = npu.import_planes(image.argument()).handle
        idle.import_planes(image.argument())
        with kernel.parameters(hold=1, latency_us=0):
            fences = [npu.submit(handle, result.fd).fence for _ in range(3)]
            fences.append(npu.submit2(handle, result.fd, in_fence=fences[0]).fence)
            npu.release(handle)
            with kernel.pulled():
                # remove() has returned, so the device has finished with everything.
                held = [kernel.live()[what] for what in ('attachments', 'imports', 'jobs')]
                equal(held, [0, 0, 0], 'attachments, imports, jobs')
                ended = [kernel.is_readable(fence) for fence in fences]
                statuses = [kernel.fence_info(fence).status for fence in fences]
                equal((ended, statuses), ([True] * 4, [-errno.ENODEV] * 4), 'fences')
                attached = [kernel.bufinfo()[each].attached for each in (inode, result.inode)]
                equal(attached, [[], []], 'attached devices')
                fails(errno.ENODEV, npu.import_planes, image.argument())
                fails(errno.ENODEV, npu.submit, handle, result.fd)
                fails(errno.ENODEV, idle.release, 1)
                assert not os.path.exists(node), 'the node is still there'
        with Npu() as again:
            found = again.run(again.import_planes(image.argument()).handle).crcs()
            equal(found, image.crcs(), 'CRCs by the card that came back')
            # The same address, another card.
            fails(errno.ENODEV, npu.import_planes, image.argument())
        for fence in fences:
            os.close(fence)
    npu.close()
    idle.close()
    expect_nothing_left()


@check
def a_card_waits_for_ioctls_that_use_it() -> None:
    """Remove the card while an ioctl waits for its argument's memory: the removal waits."""
    removed = threading.Event()

    def remove() -> None:
        with kernel.unbound():
            removed.set()

    # The page is closed before the threads are waited for, also after a failure.
    with (
        ThreadPoolExecutor() as threads,
        kernel.LatePage() as page,
        make_image() as image,
        Npu() as npu,
    ):
        calling = threads.submit(npu.call_at, abi.REQUESTS.import_planes, page.address)
        page.await_fault()
        removing = threads.submit(remove)
        assert not removed.wait(0.2), 'the card was removed while an ioctl used it'
        page.fill(bytes(image.argument()))
        calling.result(60.0)
        removing.result(60.0)
        equal(kernel.live()['attachments'], 0, 'attachments')


@check
def an_unbound_driver_and_busy_files_don_t_meet() -> None:
    """Run ioctls, closes and unbinding at once: each ioctl succeeds or fails with ENODEV."""
    stop = threading.Event()
    odd: list[object] = []
    done = 0

    def keep_busy() -> None:
        nonlocal done
        with make_image() as image, kernel.heap_buffer(RESULT_SIZE) as result:
            while not stop.is_set():
                try:
                    with Npu() as npu:
                        while not stop.is_set():
                            handle = npu.import_planes(image.argument()).handle
                            for _ in range(3):  # most of the time is spent in ioctls that attach
                                npu.release(npu.import_planes(image.argument()).handle)
                            status = npu.submit(handle, result.fd).wait().status
                            if status not in (1, -errno.ENODEV):
                                odd.append(status)
                            npu.release(handle)
                            done += 1
                except ValueError:  # no node at the moment
                    continue
                except OSError as error:
                    if error.errno not in (errno.ENODEV, errno.ENOENT, errno.ENXIO):
                        odd.append(error)

    with kernel.parameters(latency_us=0), ThreadPoolExecutor() as threads:
        workers = [threads.submit(keep_busy) for _ in range(2)]
        try:
            for _ in range(10):
                before = done
                until(lambda before=before: done > before + 2, 'jobs run', 60.0)
                with kernel.unbound():
                    assert not list(Path('/dev').glob('metis-*')), 'the node is still there'
        finally:
            stop.set()
    equal(([worker.result() for worker in workers], odd), ([None] * 2, []), 'what is odd')


_SECONDS = 1.0
#: Enough on the slowest machine, too.
_LEAST_JOBS = 11


@check
def threads_race_on_the_same_handles() -> None:
    end = time.monotonic() + _SECONDS
    jobs = 0
    with (
        Npu() as npu,
        make_image() as image,
        kernel.heap_buffer(RESULT_SIZE) as result,
        kernel.parameters(latency_us=100),
        ThreadPoolExecutor() as threads,
    ):

        def work(seed: int) -> None:
            nonlocal jobs
            chance = random.Random(seed)
            while time.monotonic() < end or jobs < _LEAST_JOBS:
                try:
                    action, handle = chance.randrange(3), chance.randrange(1, 400)
                    if action == 0:
                        npu.import_planes(image.argument())
                    elif action == 1:
                        npu.release(handle)
                    else:
                        job = npu.submit2(handle, result.fd)
                        jobs += 1
                        equal(job.wait().status, 1, 'status')
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.EBUSY):
                        raise

        for worker in [threads.submit(work, seed) for seed in range(4)]:
            worker.result(600.0)
    expect_nothing_left()
