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

"""Negotiated buffers: a real device imports each on trial, here and in another process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
import zlib

import numpy as np

from zc_perception.frame import Frame
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.protocol import Requirements
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.heaps import open_heap
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import BufferConstraints, Placement
from zc_perception.negotiation.session import BufferSession, Consumer, Outcome
from zc_perception.negotiation.settings import Allocation, AllocationRequest, BufferSettings
from zc_perception.npu.axl.accelerator import AxlAccelerator
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import LINEAR

from .harness import check_each, equal
from .kernel_api import any_heap, bufinfo, live, NPU
from .link_kit import connected, next_received, PATIENCE_S, Remote, served
from .package_kit import (
    accelerator,
    allocate,
    crcs,
    device_crcs,
    kernel_crcs,
    MANIFEST,
    maps_lines,
    publish,
)

SIZE, SLOTS = (336, 240), 3


class HeapCamera:
    """
    A camera that allocates the agreed buffers from a real heap, with random pixels.

    It also returns the outcomes of its consumers.

    :ivar pool: exists from :meth:`allocate` on, as the settings do.
    """

    pool: BufferPool
    settings: BufferSettings

    def __init__(self, heap: str, *stand_ins: BufferConstraints, **camera: Any) -> None:
        own = BufferConstraints(
            'camera',
            formats=((NV12, LINEAR),),
            heaps=(heap,),
            cpu_access=CpuAccess.WRITE,
            **camera,
        )
        self.session = BufferSession(own, SIZE, wanted_slots=SLOTS, stand_ins=stand_ins)
        self._sequence = 0

    def allocate(self, *consumers: Consumer) -> BufferSettings:
        self.settings = self.session.allocate(consumers, self._allocate)
        return self.settings

    def _allocate(self, request: AllocationRequest) -> Allocation:
        assert request.heap is not None
        layout = request.layout()
        with closing(open_heap(request.heap.name)[0]) as heap:
            self.pool = BufferPool(
                layout, partial(allocate, heap, layout), request.slots, name='camera', reserve=1
            )
        return Allocation(layout, tuple(slot.buffers for slot in self.pool.slots))

    def outcome(self, consumer: Consumer) -> Outcome:
        return self.session.outcomes()[consumer.constraints.participant]

    def inodes(self) -> list[int]:
        return [buffer.identity.inode for slot in self.pool.slots for buffer in slot.buffers]

    def attached(self) -> list[list[str]]:
        found = bufinfo()
        return [found[inode].attached for inode in self.inodes()]

    def frame(self) -> tuple[Frame, list[int]]:
        """Return the next frame and the CRCs of the written pixels, computed before writing."""
        self._sequence += 1
        frame = publish(self.pool, sequence=self._sequence)
        chance, right = np.random.default_rng(self._sequence), []
        with frame.map(write=True) as planes:
            for plane in planes:
                content = chance.integers(0, 256, plane.shape, np.uint8)
                plane[:] = content
                right.append(zlib.crc32(content.tobytes()))
        return frame, right


@contextmanager
def heap_camera(heap: str, *stand_ins: BufferConstraints, **camera: Any) -> Iterator[HeapCamera]:
    """Yield a :class:`HeapCamera` without allocated buffers."""
    made = HeapCamera(heap, *stand_ins, **camera)
    try:
        yield made
    finally:
        made.pool.close()


def importer(npu: AxlAccelerator) -> Consumer:
    return Consumer(
        npu.constraints(), lambda settings, buffers: npu.trial_import(settings.layout, buffers)
    )


@check_each(*(placement.value for placement in Placement))
def every_buffer_is_imported_before_the_first_frame_and_never_again(placement: str) -> None:
    with accelerator() as npu, heap_camera(any_heap(), placement=Placement(placement)) as made:
        settings = made.allocate(importer(npu))
        equal(
            (settings.slots, settings.layout.num_buffers),
            (3, 2 if 'each' in placement else 1),
            'slots, buffers of each',
        )
        inodes = made.inodes()
        equal(made.attached(), [[NPU]] * len(inodes), 'who is attached to each buffer')
        equal((npu.imports, live()['imports']), (3, 3), 'imports here and in the driver')
        equal(
            [maps_lines(inode) for inode in inodes], [[]] * len(inodes), 'mappings after the trial'
        )
        for _ in range(9):
            frame, right = made.frame()
            equal((device_crcs(npu, frame), crcs(frame)), (right, right), 'pixels')
            frame.release()
        equal(npu.imports, 3, 'imports after 9 frames')


FRAMES = 5
#: By name: the consumer's constraints, and the (stride, rows) of luma and chroma that it gets.
ASKED: dict[str, tuple[dict[str, Any], list[list[int]]]] = {
    'an odd stride': ({'stride_align': 347}, [[347, 240], [347, 120]]),
    'both, a buffer for each plane': (
        {'stride_align': 208, 'height_align': 32, 'placement': Placement.BUFFER_PER_PLANE},
        [[416, 256], [416, 128]],
    ),
}


def _geometry(frame: Frame) -> list[list[int]]:
    return [[plane.stride, plane.size // plane.stride] for plane in frame.data.planes]


_VARIANTS = [
    f'{heap}: {name}' for heap, name in zip(('udmabuf', 'dma_heap/system'), ASKED, strict=True)
]


class CardReader:
    """A consumer with an open card in another process, which reads each frame twice."""

    def __init__(self) -> None:
        self._client: SharedMemoryClient | None = None
        self._npu: AxlAccelerator | None = None

    def connect(self, path: str, options: dict[str, Any]) -> None:
        """Connect with its constraints; the camera must accept."""
        npu = self._npu = AxlAccelerator(AxlAccelerator.own({'timeout': PATIENCE_S}))
        npu.load(MANIFEST)
        if 'placement' in options:
            options = options | {'placement': Placement(options['placement'])}
        requirements = Requirements.of(replace(npu.constraints(), **options))
        self._client = SharedMemoryClient(
            Path(path), name='reader', requirements=requirements,
            trial_import=lambda settings, slot: npu.trial_import(settings.layout, slot),
        )  # fmt: skip
        connected(self._client)

    def read(self) -> dict[str, Any]:
        """Return the next frame's memory, and the CRCs by card and by CPU."""
        assert self._client is not None and self._npu is not None
        with next_received(self._client) as frame:
            return {
                'sequence': frame.data.sequence,
                'planes': _geometry(frame),
                'card': device_crcs(self._npu, frame),
                'cpu': crcs(frame),
                'imports': self._npu.imports,
            }

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._npu is not None:
            self._npu.close()


@check_each(*_VARIANTS)
def in_another_process_the_card_and_the_cpu_read_what_was_written(variant: str) -> None:
    heap, _, name = variant.partition(': ')
    options, planes = ASKED[name]
    said = {
        key: value.value if isinstance(value, Placement) else value
        for key, value in options.items()
    }
    with (
        Remote(CardReader) as reader,
        heap_camera(heap, BufferConstraints('reader', **options)) as camera,
        served(None) as server,
    ):
        camera.allocate()
        server.set_pool(camera.pool, camera.settings.heap)
        reader.call('connect', str(server.path), said)
        equal(server.consumers, 1, 'consumers')
        inodes = set()
        for sequence in range(1, FRAMES + 1):
            frame, right = camera.frame()
            with frame:
                server.publish(frame)
                inodes.add(frame.data.buffers[0].identity.inode)
                seen = reader.call('read')
                equal(
                    (seen['sequence'], seen['planes']),
                    (sequence, planes),
                    'sequence, strides and rows',
                )
                equal(
                    (seen['card'], seen['cpu'], kernel_crcs(frame)),
                    (right,) * 3,
                    'what card, CPU and kernel read',
                )
        equal(seen['imports'], len(inodes), 'imports of the other process')
        equal(
            sum(NPU in devices for devices in camera.attached()),
            len(inodes) * camera.settings.layout.num_buffers,
            'attachments',
        )
