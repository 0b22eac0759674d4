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
The package's accelerator and scheduler on a real kernel.

Results are right and in order, whatever the card and its driver do.

The card computes each result from the frame's own bytes: a result of another frame, or of pixels
that came too late, is a wrong one.
"""

from __future__ import annotations

import errno
import threading

from zc_perception.errors import AcceleratorError
from zc_perception.frame import Frame, FrameData
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.heaps import open_heap
from zc_perception.memory.ledger import CopyLedger
from zc_perception.npu.axl.accelerator import AxlAccelerator
from zc_perception.npu.axl.checks import Importable, probe_shipped_attach
from zc_perception.npu.axl.device import AxlError
from zc_perception.npu.manifest import load_manifest
from zc_perception.npu.metis_card import choose_card, find_cards
from zc_perception.npu.selection import open_accelerator

from .harness import check, equal, settles
from .kernel_api import bufinfo, fence_info, heaps_there, live, NPU, parameters, pulled
from .package_kit import (
    accelerator,
    crcs,
    device_crcs,
    frames,
    jobs_held,
    LAYOUTS,
    opened_accelerator,
    PAGE,
    recorded,
    refused,
)


def bufinfo_attached() -> list[int]:
    """Buffers that the card is attached to."""
    return [inode for inode, info in bufinfo().items() if NPU in info.attached]


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
        # One buffer after the other is spare: the last that came back goes first.
        equal(recording().mappings(*inodes), 1, 'mappings of results')
        equal(recording().bad_closes, 0, 'descriptors closed twice')


# Which card, and which driver.


@check
def the_card_is_found_by_node_name_and_pci_address() -> None:
    (card,) = find_cards()
    equal((card.path, card.pci_address), ('/dev/metis-0:1:0', '0000:01:00.0'), 'the card')
    for wanted in ('', '0', 'metis-0:1:0', '0:1:0', '0000:01:00.0', '01:00.0', card.path):
        equal(choose_card(wanted), card, f"the card that '{wanted}' means")
    with refused(
        AcceleratorError, "no Metis card '02:00.0'", '/dev/metis-0:1:0 (PCI 0000:01:00.0)'
    ):
        choose_card('02:00.0')
    with accelerator(device='01:00.0') as npu:
        facts = npu.facts()
        equal(
            (facts['device'], facts['pci_address'], facts['driver_level']),
            (card.path, '0000:01:00.0', 2),
            'facts',
        )
        # QEMU's function is no PCI Express one: unknown is said, and is not good.
        assert str(facts['pcie_link']).startswith('unknown (0000:01:00.0 shows no PCIe link'), (
            facts
        )
        assert sum("PCIe link can't be read" in notice for notice in npu.notices()) == 1, (
            npu.notices()
        )


@check
def the_shipped_driver_says_which_heaps_it_can_import() -> None:
    (card,) = find_cards()
    answers = {}
    with parameters(shipped=1):
        for name in (*heaps_there(), 'memfd'):
            heap, _ = open_heap(name)
            buffer = heap.allocate(PAGE)
            found = probe_shipped_attach(card.path, buffer)
            answers[name] = (found.answer, found.number)
            equal((bufinfo_attached(), live()['attachments']), ([], 0), 'attached afterwards')
            with parameters(shipped_error=errno.ENOMEM):
                equal(probe_shipped_attach(card.path, buffer).number, errno.ENOMEM, 'errno')
            with pulled():
                equal(
                    probe_shipped_attach(card.path, buffer).answer,
                    Importable.UNKNOWN,
                    'answer without a card',
                )
            buffer.close()
            heap.close()
    yes, no = (Importable.YES, 0), (Importable.NO, errno.EINVAL)
    equal(answers, {**dict.fromkeys(heaps_there(), yes), 'memfd': no}, 'answers')


@check
def a_driver_without_our_ioctls_makes_auto_go_on_and_says_so_in_one_line() -> None:
    for variant in ({'shipped': 1}, {'abi_level': 0}):
        with parameters(**variant):
            with refused(
                AcceleratorError,
                '/dev/metis-0:1:0',
                'no import and submit ioctls (ENOTTY)',
                'axruntime',
                'onnx',
            ):
                AxlAccelerator(AxlAccelerator.own({}))
            selection = open_accelerator('auto', load_manifest('hog'), {}, CopyLedger())
            equal(selection.accelerator.capabilities().name, 'onnx', 'accelerator')
            (why,) = [reason for reason in selection.reasons if "'axl'" in reason]
            assert 'no import and submit ioctls (ENOTTY)' in why and '\n' not in why, why
            selection.accelerator.close()
            settles(
                lambda: [
                    t.name for t in threading.enumerate() if t is not threading.main_thread()
                ],
                [],
                'threads',
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
