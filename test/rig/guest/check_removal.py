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
The card goes away and comes back while files of it are open.

What they had ends at once, with ENODEV, and nothing is left of it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
import threading

from waiting import until

from zc_perception.npu.axl import abi

from .harness import check, equal, expect_nothing_left, raises
from .kernel_api import (
    bufinfo,
    heap_buffer,
    is_readable,
    LatePage,
    live,
    parameters,
    pulled,
    replug,
    unbound,
)
from .npu_client import device_path, make_image, Npu, RESULT_SIZE


@check
def a_pulled_card_ends_jobs_and_imports_of_open_files() -> None:
    npu, idle = Npu(), Npu()
    with make_image('NV12', 64, 48) as image, heap_buffer(RESULT_SIZE) as result:
        inode, node = image.planes[0].buffer.inode, device_path()
        handle = npu.import_planes(image.argument()).handle
        idle.import_planes(image.argument())
        with parameters(hold=1, latency_us=0):
            fences = [npu.submit(handle, result.fd).fence for _ in range(3)]
            waiting = npu.submit2(handle, result.fd, in_fence=fences[0]).fence
            npu.release(handle)
            with pulled():
                # remove() returned: the device is done with everything.
                equal(
                    (live()['attachments'], live()['imports'], live()['jobs']),
                    (0, 0, 0),
                    'attachments, imports, jobs',
                )
                equal([is_readable(fence) for fence in (*fences, waiting)], [True] * 4, 'fences')
                equal(
                    [Npu.status(fence) for fence in (*fences, waiting)],
                    [-errno.ENODEV] * 4,
                    'status',
                )
                equal(
                    (bufinfo()[inode].attached, bufinfo()[result.inode].attached),
                    ([], []),
                    'attached devices',
                )
                with raises(errno.ENODEV):
                    npu.import_planes(image.argument())
                with raises(errno.ENODEV):
                    npu.submit(handle, result.fd)
                with raises(errno.ENODEV):
                    idle.release(1)
                assert not os.path.exists(node), 'the node is still there'
        with Npu() as again:
            equal(
                again.run(again.import_planes(image.argument()).handle).crcs(),
                image.crcs(),
                'CRCs by the card that came back',
            )
            with raises(errno.ENODEV):  # the same address, another card
                npu.import_planes(image.argument())
        for fence in (*fences, waiting):
            os.close(fence)
    npu.close()
    idle.close()
    expect_nothing_left()


@check
def a_pulled_card_that_nobody_closes_can_come_back_and_go_again() -> None:
    files = []
    with make_image('NV12', 64, 48) as image:
        for _ in range(3):
            npu = Npu()
            npu.import_planes(image.argument())
            files.append(npu)
            replug()
        equal(live()['attachments'], 0, 'attachments')
    for npu in files:
        npu.close()


@check
def a_card_waits_for_ioctls_that_use_it() -> None:
    """Remove the card while an ioctl waits for its argument's memory: the removal waits."""
    outcome: list[int] = []
    removed = threading.Event()

    def import_late(npu: Npu, page: LatePage) -> None:
        try:
            npu.call_at(abi.REQUESTS.import_planes, page.address)
            outcome.append(0)
        except OSError as error:
            outcome.append(error.errno or -1)

    def remove() -> None:
        with unbound():
            removed.set()

    with LatePage() as page, make_image('NV12', 64, 48) as image, Npu() as npu:
        calling = threading.Thread(target=import_late, args=(npu, page))
        calling.start()
        page.await_fault()
        removing = threading.Thread(target=remove)
        removing.start()
        assert not removed.wait(0.2), 'the card was removed while an ioctl used it'
        page.fill(bytes(image.argument()))
        calling.join(60.0)
        removing.join(60.0)
        equal(
            (outcome, removed.is_set()),
            ([0], True),
            'the ioctl that came first worked, and the card went',
        )
        equal(live()['attachments'], 0, 'attachments')


@check
def an_unbound_driver_and_busy_files_don_t_meet() -> None:
    """Ioctls, closes and unbinding at the same time: each ioctl works or says ENODEV."""
    stop = threading.Event()
    odd: list[object] = []
    done = [0]

    def keep_busy() -> None:
        with make_image('NV12', 64, 48) as image, heap_buffer(RESULT_SIZE) as result:
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
                            done[0] += 1
                except ValueError:  # no node at the moment
                    continue
                except OSError as error:
                    if error.errno not in (errno.ENODEV, errno.ENOENT, errno.ENXIO):
                        odd.append(error)

    threads = [threading.Thread(target=keep_busy) for _ in range(2)]
    with parameters(latency_us=0):
        for thread in threads:
            thread.start()
        for _ in range(30):
            before = done[0]
            until(lambda before=before: done[0] > before + 2, 'jobs run', 60.0)
            with unbound():
                assert not list(Path('/dev').glob('metis-*')), 'the node is still there'
        stop.set()
        for thread in threads:
            thread.join(60.0)
    equal(odd, [], 'what should not have happened')
