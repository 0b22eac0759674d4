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

"""Negotiated buffers that a real device imports on trial, before the first frame."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
import zlib

import numpy as np

from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.heaps import open_heap
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import BufferConstraints, Placement
from zc_perception.negotiation.session import BufferSession, Consumer, Outcome, Verdict
from zc_perception.negotiation.settings import (
    Allocation,
    AllocationRequest,
    Buffers,
    BufferSettings,
    Undo,
)
from zc_perception.npu.axl.accelerator import AxlAccelerator
from zc_perception.pixel.fourcc import fourcc_code, NV12
from zc_perception.pixel.modifier import LINEAR

from .harness import check_each, equal
from .kernel_api import bufinfo, live, NPU, parameters
from .package_kit import accelerator, allocate, crcs, device_crcs, HEAPS, maps_lines, publish

SIZE, SLOTS = (336, 240), 3


class HeapCamera:
    """
    A camera that allocates from a real heap what is agreed on, and publishes random pixels.

    It also tells what becomes of its consumers.

    :ivar pool: there from :meth:`allocate` on, as the settings are.
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
        """Agree with these."""
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
        """Return what became of a consumer."""
        return self.session.outcomes()[consumer.constraints.participant]

    def inodes(self) -> list[int]:
        """Of all buffers."""
        return [buffer.identity.inode for slot in self.pool.slots for buffer in slot.buffers]

    def attached(self) -> list[list[str]]:
        """Which devices the kernel lists, buffer by buffer."""
        found = bufinfo()
        return [found[inode].attached for inode in self.inodes()]

    def frame(self) -> tuple[Frame, list[int]]:
        """
        Return the next frame, and the CRCs of what was written.

        Nothing has read that from its memory.
        """
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
    """See :class:`HeapCamera`; nothing is allocated yet."""
    made = HeapCamera(heap, *stand_ins, **camera)
    try:
        yield made
    finally:
        made.pool.close()


def importer(npu: AxlAccelerator, constraints: BufferConstraints | None = None) -> Consumer:
    """Return a consumer with that card."""
    return Consumer(
        constraints or npu.constraints(),
        lambda settings, buffers: npu.trial_import(settings.layout, buffers),
    )


def _blind(participant: str) -> BufferConstraints:
    """One who promises to take anything, and learns only from the import that it can't."""
    return BufferConstraints(participant, slots=1)


@check_each(*(f'{heap}, {placement.value}' for heap in HEAPS for placement in Placement))
def every_buffer_is_imported_before_the_first_frame_and_never_again(variant: str) -> None:
    heap, _, placement = variant.partition(', ')
    with accelerator() as npu, heap_camera(heap, placement=Placement(placement)) as made:
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


@check_each(*HEAPS)
def without_a_cache_a_trial_leaves_nothing_attached(heap: str) -> None:
    with accelerator(import_cache=False) as npu, heap_camera(heap) as made:
        made.allocate(importer(npu))
        equal(
            (npu.trial_imports, npu.imports, live()['imports']),
            (3, 0, 0),
            'trial imports, imports, imports that are left',
        )
        equal(made.attached(), [[]] * 3, 'who is attached to each buffer')


@check_each(*HEAPS)
def imports_that_were_kept_are_given_back_when_a_later_slot_fails(heap: str) -> None:
    with accelerator() as npu, heap_camera(heap) as made:
        tried: list[Buffers] = []

        def trial(settings: BufferSettings, buffers: Buffers) -> Undo | None:
            tried.append(buffers)
            if len(tried) == 3:
                raise OSError('broken')
            return npu.trial_import(settings.layout, buffers)

        consumer = Consumer(npu.constraints(), trial)
        made.allocate(consumer)
        equal(
            str(made.outcome(consumer)),
            'fell back: trial import of slot 2 of 3 failed: broken',
            'outcome',
        )
        equal(
            (npu.imports, len(npu._cache), live()['imports']),
            (2, 0, 0),
            'imports, cached ones, those that are left',
        )  # type: ignore[arg-type]


@check_each(*HEAPS)
def a_layout_that_only_the_driver_knows_to_refuse_shows_in_the_trial(heap: str) -> None:
    """Use an older driver, which doesn't tell strides: constraints fit, the import doesn't."""
    with parameters(abi_level=1), accelerator() as npu:
        consumer = importer(npu)
        with heap_camera(heap, BufferConstraints('wide', stride_align=512)) as made:
            made.allocate(consumer)
            outcome = made.outcome(consumer)
            assert (
                outcome.verdict is Verdict.FELL_BACK and 'only tight LINEAR' in outcome.reason
            ), outcome
        with heap_camera(heap) as made:
            made.allocate(consumer)
            equal(
                (made.outcome(consumer).verdict, made.attached()),
                (Verdict.ACCEPTED, [[NPU]] * 3),
                'of tight buffers',
            )


@check_each(*HEAPS)
def a_late_joiner_imports_what_is_there(heap: str) -> None:
    with accelerator() as npu, heap_camera(heap, slots=1) as made:
        made.allocate(Consumer(_blind('reader')))
        equal(made.attached(), [[]] * 3, 'who is attached before')
        equal(
            made.session.join(importer(npu, replace(npu.constraints(), slots=1))),
            Outcome(Verdict.ACCEPTED),
            'the joiner',
        )
        equal(made.attached(), [[NPU]] * 3, 'who is attached afterwards')
        outcome = made.session.join(
            Consumer(BufferConstraints('stranger', formats=((fourcc_code('YUYV'), LINEAR),)))
        )
        assert outcome.verdict is Verdict.REFUSED and 'YUYV' in outcome.reason, outcome
        equal(made.outcome(importer(npu)).verdict, Verdict.ACCEPTED, 'the one before')
