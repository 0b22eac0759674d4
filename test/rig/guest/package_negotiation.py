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
Agreed buffers: a real card imports them in another process, and which heap they come from.

It uses real heaps and a real card, with and without an IOMMU. The heap of contiguous memory stays
once it exists, and the accelerator takes its result buffers from it. So these checks run last:
checks run in the order of importing their modules.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, closing
from dataclasses import replace
import os
from pathlib import Path
import time
from typing import Any

from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.doctor.needs import needs_of, pool_need
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.protocol import Requirements
from zc_perception.machine.system import System
from zc_perception.memory.heaps import working_heaps
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints, Placement
from zc_perception.negotiation.session import Consumer, Verdict
from zc_perception.npu.axl.accelerator import AxlAccelerator
from zc_perception.npu.axl.device import AxlError
from zc_perception.npu.metis_card import read_iommu
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

from .camera_kit import agreed, next_frame
from .harness import check, check_each, equal
from .kernel_api import bufinfo, identity, NotHere, NPU, parameters
from .link_kit import connected, PATIENCE_S, receive, Remote, served
from .package_kit import accelerator, buffers, crcs, device_crcs, kernel_crcs, MANIFEST

SYSTEM, CMA = 'dma_heap/system', 'dma_heap/linux,cma'
SIZE = (336, 240)
FRAMES = 5
#: By heap and name: the consumer's constraints, and the (stride, rows) of luma and chroma.
ASKED: dict[str, tuple[dict[str, Any], list[list[int]]]] = {
    'udmabuf: an odd stride': ({'stride_align': 347}, [[347, 240], [347, 120]]),
    'dma_heap/system: both, a buffer for each plane': (
        {'stride_align': 208, 'height_align': 32, 'placement': Placement.BUFFER_PER_PLANE},
        [[416, 256], [416, 128]],
    ),
}
_NODE = Path('/dev/dma_heap/linux,cma')
_TRIES = 16


def _synthetic(heap: str) -> AbstractContextManager[SyntheticCamera]:
    """Return a camera that offers all heaps that work, or the named one."""
    options = {'heap': working_heaps(heap), 'now_ns': time.time_ns, 'ledger': CopyLedger()}
    return closing(SyntheticCamera(*SIZE, 30.0, 'cam', seed=1, pattern='counter', **options))


class CardReader:
    """A consumer with an open card in another process, which reads each frame twice."""

    def __init__(self, asked: str) -> None:
        self._npu = AxlAccelerator(AxlAccelerator.own({'timeout': PATIENCE_S}))
        self._npu.load(MANIFEST)
        self._constraints = replace(self._npu.constraints(), **ASKED[asked][0])

    def connect(self, path: str) -> None:
        """Connect with its constraints; the camera must accept."""
        self._client = SharedMemoryClient(
            Path(path), name='reader', requirements=Requirements.of(self._constraints),
            trial_import=lambda settings, slot: self._npu.trial_import(settings.layout, slot),
        )  # fmt: skip
        connected(self._client)

    def read(self) -> dict[str, Any]:
        """Return the next frame's memory, and the CRCs by card and by CPU."""
        with receive(self._client) as frame:
            planes = frame.data.planes
            return {
                'planes': [[plane.stride, plane.size // plane.stride] for plane in planes],
                'crcs': [device_crcs(self._npu, frame), crcs(frame)],
                'imports': self._npu.imports,
            }

    def close(self) -> None:
        self._client.close()
        self._npu.close()


@check_each(*ASKED)
def in_another_process_the_card_and_the_cpu_read_what_was_written(variant: str) -> None:
    options, planes = ASKED[variant]
    with (
        Remote(lambda: CardReader(variant)) as reader,
        _synthetic(variant.partition(': ')[0]) as camera,
        served(None) as server,
    ):
        session = agreed(camera, [BufferConstraints('reader', **options)])
        server.set_pool(camera.pool, session.settings.heap)
        reader.call('connect', str(server.path))
        used = set()
        for _ in range(FRAMES):
            with next_frame(camera) as frame:
                server.publish(frame)
                used.update(buffer.identity.inode for buffer in frame.data.buffers)
                seen = reader.call('read')
                equal(seen['planes'], planes, 'strides and rows')
                equal([*seen['crcs'], kernel_crcs(frame)], [crcs(frame)] * 3, 'what they read')
        found = bufinfo()
        inodes = [buffer.identity.inode for slot in camera.slots for buffer in slot.buffers]
        attached = {inode for inode in inodes if NPU in found[inode].attached}
        equal(attached, used, 'what the card is attached to')
        equal(seen['imports'] * camera.slots[0].layout.num_buffers, len(used), 'its imports')


def _agree(
    expected: str, because: str, heap: str = 'auto', seen: Verdict = Verdict.ACCEPTED
) -> None:
    """
    Check which heap is chosen.

    Every buffer must be of the kernel's exporter for it, and an accepted card must see what the
    CPU wrote.
    """
    capture = {'camera': 'synthetic', 'width': SIZE[0], 'height': SIZE[1], 'heap': heap}
    needs = needs_of(
        [('/capture', capture), ('/inference', {'accelerator': 'axl'})], 'vehicle.yaml'
    )
    foreseen = pool_need(System(), needs, needs.cameras[0]).memory
    equal(foreseen, expected, 'what the doctor expects')
    with accelerator() as npu, _synthetic(heap) as camera:
        consumer = Consumer(
            npu.constraints(), lambda settings, slot: npu.trial_import(settings.layout, slot)
        )
        session = agreed(camera, [], [consumer])
        line = session.describe()
        equal(camera.heap_name, expected, f'heap ({line})')
        inodes = [buffer.identity.inode for slot in camera.slots for buffer in slot.buffers]
        exporters = {bufinfo()[inode].exporter for inode in inodes}
        equal(exporters, {expected.rpartition('/')[2]}, 'exporters in the kernel')
        assert session.why.startswith(f'heap {expected} because '), session.why
        assert because in session.why, session.why
        equal(session.outcomes()[npu.constraints().participant].verdict, seen, line)
        if seen is Verdict.ACCEPTED:
            with next_frame(camera) as frame:
                equal(device_crcs(npu, frame), crcs(frame), 'what the device sees')


@check
def a_card_behind_no_iommu_gets_contiguous_memory() -> None:
    if not _NODE.parent.exists():
        raise NotHere('this kernel has no dma-heaps')
    if not _NODE.exists():
        # This kernel is built without CMA. The heap stays.
        module = Path(os.environ['RIG_MODULE']).with_name('contiguous_heap.ko')
        os.spawnlp(os.P_WAIT, os.environ['RIG_BUSYBOX'], 'busybox', 'insmod', str(module))
    assert _NODE.exists(), 'the module does not load'
    layout = compute_layout(NV12, *SIZE, stride_align=64, offset_align=64)
    with parameters(untranslated=1), identity():
        assert read_iommu(NPU).needs_contiguous, read_iommu(NPU)
        needs = f'axl /dev/metis-0:1:0 needs contiguous memory ({read_iommu(NPU).text})'
        _agree(CMA, f"{needs}, which heap '{SYSTEM}' is not")
        # A heap that the user named stays. The card is refused by name before any import, and the
        # camera goes on.
        _agree(SYSTEM, f"parameter 'heap' is '{SYSTEM}'", heap=SYSTEM, seen=Verdict.REFUSED)
        # Scattered pages fail now; some buffers may be contiguous by chance.
        failed = 0
        with (
            accelerator(import_cache=False) as npu,
            buffers(SYSTEM, *[layout.buffer_size(0)] * _TRIES) as made,
        ):
            for buffer in made:
                try:
                    npu.trial_import(layout, (buffer,))
                except AxlError as error:
                    assert 'contiguous' in str(error), error
                    failed += 1
        assert failed, 'every buffer of the system heap was contiguous'
    assert read_iommu(NPU).translates, read_iommu(NPU)
    _agree(SYSTEM, 'it is the first of')
