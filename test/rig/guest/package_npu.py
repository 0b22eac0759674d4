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
The package's accelerator and scheduler on a real kernel: right results in order.

The card computes each result from the frame's own bytes, so that a result of another frame, or of
pixels that came too late, is wrong.
"""

from __future__ import annotations

from zc_perception.frame import Frame, FrameData

from .harness import check, equal
from .kernel_api import fence_info, heaps_there, parameters
from .package_kit import accelerator, crcs, device_crcs, frames, LAYOUTS


@check
def the_device_sees_what_was_written_for_every_heap_and_layout() -> None:
    with accelerator() as npu:
        for heap in heaps_there():
            for name, layout in LAYOUTS.items():
                with frames(layout, heap) as make, make() as frame:
                    equal(device_crcs(npu, frame), crcs(frame), f'CRCs, {heap}, {name}')


@check
def a_frame_is_not_read_before_its_acquire_fence() -> None:
    with accelerator() as npu, frames(LAYOUTS['tight'], slots=4) as make:
        first, second = make(), make()
        with parameters(latency_us=2000000):
            blocker = npu.submit(npu.import_frame(first), first)
        late = FrameData(**{**vars(second.data), 'acquire_fence': blocker.fence})
        frame = Frame(late, second._held())
        job = npu.submit(npu.import_frame(frame), frame)
        assert not job.fence.wait(0.02), 'the job did not wait'
        assert job.fence.wait(60.0) and blocker.fence.wait(0)
        ends = [fence_info(one.fence.fileno()).timestamp_ns for one in (blocker, job)]
        assert ends == sorted(ends), 'fence timestamps'
        job.close()
        blocker.close()
        frame._lease = None
        first.release()
        second.release()
