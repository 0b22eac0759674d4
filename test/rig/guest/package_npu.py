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
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.npu.axl.device import AxlError
from zc_perception.npu.metis_card import choose_card, find_cards

from .harness import check, equal
from .kernel_api import fence_info, heaps_there, parameters
from .package_kit import (
    accelerator,
    crcs,
    device_crcs,
    frames,
    jobs_held,
    LAYOUTS,
    opened_accelerator,
    recorded,
    refused,
)


@check
def an_accelerator_ends_with_its_jobs_in_flight() -> None:
    with frames(LAYOUTS['tight'], slots=4) as make, jobs_held():
        npu = opened_accelerator()
        held = [make() for _ in range(4)]
        jobs = [npu.submit(npu.import_frame(frame), frame) for frame in held]
        npu.close()
        for job in jobs:
            assert job.fence.wait(0.0), 'close() did not end the job'
            with refused(AxlError, 'ECANCELED', 'closed while the job was in flight'):
                job.outputs()
            job.close()
        for frame in held:
            frame.release()


@check
def a_result_is_mapped_once_and_read_between_syncs() -> None:
    with accelerator() as npu, frames(LAYOUTS['tight'], slots=6) as make, recorded() as recording:
        inodes = [result.buffer.identity.inode for result in npu._results._all]  # type: ignore
        for number in range(12):
            with make() as frame:
                job = npu.submit(npu.import_frame(frame), frame)
                assert job.fence.wait(60.0)
                job.outputs()
                job.outputs()
                equal(
                    recording().flags(*inodes),
                    [1, 5] * number + [1],
                    'SYNCs of results, in the middle of a frame',
                )
                job.close()
                npu.tidy()
        equal(
            recording().flags(*inodes),
            [int(CpuAccess.READ), int(CpuAccess.READ) | 4] * 12,
            'SYNCs of results',
        )
        # One buffer after the other is spare: the last one returned is used first.
        equal(recording().mappings(*inodes), 1, 'mappings of results')
        equal(recording().bad_closes, 0, 'descriptors closed twice')


@check
def the_card_is_found_by_its_node_and_pci_address() -> None:
    (card,) = find_cards()
    equal((card.path, card.pci_address), ('/dev/metis-0:1:0', '0000:01:00.0'), 'the card')
    equal(choose_card('01:00.0'), card, 'the card of that address')
    with accelerator(device='01:00.0') as npu:
        # QEMU's function is not PCI Express: the notice says that the link is unknown.
        assert sum("PCIe link can't be read" in notice for notice in npu.notices()) == 1, (
            npu.notices()
        )


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
