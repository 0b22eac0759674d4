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
Which heap a camera's buffers come from, agreed on as a capture node does.

It uses real heaps and a real card, with and without an IOMMU. The heap of contiguous memory stays
once it exists, and the accelerator takes its result buffers from it. So these checks run last:
checks run in the order of importing their modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
import os
from pathlib import Path
import time

from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.doctor.needs import needs_of, pool_need
from zc_perception.machine.system import System
from zc_perception.memory.heaps import open_heap, working_heaps
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import parse_stand_ins
from zc_perception.negotiation.session import Verdict
from zc_perception.npu.axl.device import AxlError
from zc_perception.npu.metis_card import read_iommu
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

from .camera_kit import agreed, next_frame, opened
from .graph_variants import SINGLE
from .harness import check, equal
from .kernel_api import bufinfo, identity, NotHere, NPU, parameters
from .package_kit import accelerator, crcs, device_crcs
from .package_negotiation import importer

SYSTEM, CMA, UDMABUF = 'dma_heap/system', 'dma_heap/linux,cma', 'udmabuf'
SIZE = (336, 240)
_NODE = Path('/dev/dma_heap/linux,cma')
_TRIES = 16


def _contiguous_heap() -> None:
    """Make a contiguous heap, which stays: this kernel is built without CMA."""
    if not _NODE.parent.exists():
        raise NotHere('this kernel has no dma-heaps')
    if not _NODE.exists():
        module = Path(os.environ['RIG_MODULE']).with_name('contiguous_heap.ko')
        os.spawnlp(os.P_WAIT, os.environ['RIG_BUSYBOX'], 'busybox', 'insmod', str(module))
    assert _NODE.exists(), 'the module does not load'


def _synthetic(heap: str) -> AbstractContextManager[SyntheticCamera]:
    """Return a camera that offers all heaps that work, or the named one."""
    options = {'heap': working_heaps(heap), 'now_ns': time.time_ns, 'ledger': CopyLedger()}
    return closing(SyntheticCamera(*SIZE, 30.0, 'cam', seed=1, pattern='bars', **options))


def _agree(
    participants: Sequence[str],
    expected: str,
    because: str,
    heap: str = 'auto',
    seen: Verdict = Verdict.ACCEPTED,
) -> None:
    """
    Check which heap is chosen.

    Every buffer must be of the kernel's exporter for it, and an accepted card must see what the
    CPU wrote.
    """
    equal(_doctors(participants, heap), expected, 'what the doctor expects')
    with accelerator() as npu, _synthetic(heap) as camera:
        session = agreed(camera, parse_stand_ins(participants), [importer(npu)])
        line = session.describe()
        equal(camera.heap_name, expected, f'heap ({line})')
        exporters = {
            bufinfo()[buffer.identity.inode].exporter
            for slot in camera.slots
            for buffer in slot.buffers
        }
        equal(exporters, {expected.rpartition('/')[2]}, 'exporters in the kernel')
        assert session.why.startswith(f'heap {expected} because ') and because in session.why, (
            session.why
        )
        equal(session.outcomes()[npu.constraints().participant].verdict, seen, line)
        if seen is Verdict.ACCEPTED:
            with next_frame(camera) as frame:
                equal(device_crcs(npu, frame), crcs(frame), 'what the device sees')


def _doctors(participants: Sequence[str], heap: str) -> str:
    """Return the heap that the doctor assumes for the same camera and accelerator."""
    capture = {
        'camera': 'synthetic',
        'width': SIZE[0],
        'height': SIZE[1],
        'heap': heap,
        'participants': list(participants),
    }
    needs = needs_of(
        [('/capture', capture), ('/inference', {'accelerator': 'axl'})], 'vehicle.yaml'
    )
    return pool_need(System(), needs, needs.cameras[0]).memory


@check
def a_card_behind_no_iommu_gets_contiguous_memory() -> None:
    _contiguous_heap()
    with parameters(untranslated=1), identity():
        assert read_iommu(NPU).needs_contiguous, read_iommu(NPU)
        passes = f'({read_iommu(NPU).text})'
        _agree(
            [],
            CMA,
            f"axl /dev/metis-0:1:0 needs contiguous memory {passes}, which heap '{SYSTEM}' is not",
        )
        # A heap that the user named stays. The card is refused by name before any import, and the
        # camera goes on.
        _agree([], SYSTEM, f"parameter 'heap' is '{SYSTEM}'", heap=SYSTEM, seen=Verdict.REFUSED)
        _expect_scattered_to_fail()
    assert read_iommu(NPU).translates, read_iommu(NPU)
    _agree([], SYSTEM, 'it comes first of')


def _expect_scattered_to_fail() -> None:
    """Check that scattered pages fail now; some buffers may be contiguous by chance."""
    layout = compute_layout(NV12, *SIZE, stride_align=64, offset_align=64)
    heap, _ = open_heap(SYSTEM)
    buffers = [heap.allocate(layout.buffer_size(0)) for _ in range(_TRIES)]
    heap.close()
    failed = 0
    with accelerator(import_cache=False) as npu:
        for buffer in buffers:
            try:
                npu.trial_import(layout, (buffer,))
            except AxlError as error:
                assert 'contiguous' in str(error), error
                failed += 1
            buffer.close()
    assert failed, 'every buffer of the system heap was contiguous'


@check
def a_camera_that_imports_offers_the_heaps_that_its_driver_takes() -> None:
    _contiguous_heap()
    with (
        closing(opened(SINGLE, memory='import', pixel_format='NV12')) as camera,
        accelerator() as npu,
    ):
        equal(camera.constraints().heaps, (SYSTEM, CMA, UDMABUF), 'heaps on offer')
        session = agreed(camera, parse_stand_ins(['isp: NV12; contiguous']), [importer(npu)])
        verdicts = {outcome.verdict for outcome in session.outcomes().values()}
        equal(
            (camera.heap_name, verdicts),
            (CMA, {Verdict.ACCEPTED, Verdict.STAND_IN}),
            session.describe(),
        )
        with next_frame(camera) as frame:
            equal(device_crcs(npu, frame), crcs(frame), 'what the device sees')
