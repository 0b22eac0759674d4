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

"""Many threads and processes on few handles: what the locks are for."""

from __future__ import annotations

import errno
import os
import random
import time

from .harness import check, equal, expect_nothing_left, together
from .kernel_api import heap_buffer, live, parameters
from .npu_client import make_image, Npu, RESULT_SIZE

_SECONDS = 2.0
#: On the slowest machine, too.
_LEAST_JOBS = 11


@check
def threads_race_on_the_same_handles() -> None:
    end = time.monotonic() + _SECONDS
    jobs = 0
    with Npu() as npu, make_image('NV12', 64, 48) as image, heap_buffer(RESULT_SIZE) as result:

        def worker(seed: int) -> None:
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

        with parameters(latency_us=100):
            together([lambda seed=seed: worker(seed) for seed in range(4)], 600.0)  # type: ignore
    expect_nothing_left()


@check
def processes_share_the_device() -> None:
    pids = []
    for seed in range(3):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with Npu() as npu, make_image('NV12', 160, 96, seed=seed) as image:
                    handle = npu.import_planes(image.argument()).handle
                    right = image.crcs()
                    for _ in range(20):
                        equal(npu.run(handle).crcs(), right, 'CRCs')
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    equal([os.waitpid(pid, 0)[1] for pid in pids], [0] * 3, 'exit status of the processes')


@check
def an_open_file_shared_by_fork_ends_with_its_last_holder() -> None:
    with Npu() as npu, make_image('NV12', 64, 48) as image:
        handle = npu.import_planes(image.argument()).handle
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        equal(live()['imports'], 1, 'imports after a child that shared the file has gone')
        equal(npu.run(handle).crcs(), image.crcs(), 'CRCs')
