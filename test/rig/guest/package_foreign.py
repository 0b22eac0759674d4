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
Buffers of a foreign library: real dma-bufs, which the card reads as they are.

They are recognised by what they refer to.
"""

from __future__ import annotations

import time

from zc_perception.frame import Frame, Header
from zc_perception.link.foreign_images import ForeignImages
from zc_perception.memory.dmabuf import BufferKind, CpuAccess
from zc_perception.memory.heaps import open_heap
from zc_perception.memory.pool import ForeignBufferPool, HeldBuffers
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12, pixel_format
from zc_perception.pixel.layout import compute_layout
from zc_perception.pixel.modifier import LINEAR

from .harness import check_each, equal
from .package_kit import accelerator, crcs, device_crcs

_SIZE = (336, 240)


@check_each('dma_heap/system', 'udmabuf')
def a_library_s_dma_bufs_become_frames_that_the_card_reads_as_they_are(name: str) -> None:
    heap, _ = open_heap(name)
    layout = compute_layout(NV12, *_SIZE, stride_align=256)
    library = [heap.allocate(layout.buffer_size(0)) for _ in range(3)]
    places = {
        'strides': [plane.stride for plane in layout.planes],
        'offsets': [plane.offset for plane in layout.planes],
    }
    images = ForeignImages(
        pixel_format(NV12),
        _SIZE,
        [buffer.fileno() for buffer in library[:2]],
        modifier=LINEAR,
        **places,
    )
    equal(images.layout, layout, 'layout')
    equal(images.heap, f'foreign/{name.rpartition("/")[2]}', 'heap')
    held, back = HeldBuffers(), []
    pool = ForeignBufferPool(images.layout, images.known(), name='library', on_free=held.free)
    pool.add_retire_listener(held.ended)
    with accelerator() as npu:
        for number in (0, 1, 2, 1, 2, 0):  # the third one comes by later
            fds = (library[number].fileno(),)
            with library[number].cpu_access(CpuAccess.WRITE) as memory:
                memory[:] = bytes(
                    (number * 31 + place * 7 + place // 256) % 251 for place in range(256)
                ) * (len(memory) // 256)
            slot = pool.slot_of(images.identities(fds)) or pool.adopt(images.buffers(fds))
            assert slot is not None and pool.acquire(slot.index) is slot
            held.hold(slot, lambda number=number: back.append(number))
            frame = Frame.publish_slot(
                pool,
                slot,
                header=Header(0, ''),
                colorimetry=BT601_LIMITED,
                sequence=number,
                captured_ns=time.monotonic_ns(),
            )
            with frame:
                equal(frame.data.buffers[0].kind, BufferKind.DMABUF, 'kind')
                equal(
                    frame.data.buffers[0].identity, library[number].identity, 'which memory it is'
                )
                equal(device_crcs(npu, frame), crcs(frame), 'what the device sees')
    equal(back, [0, 1, 2, 1, 2, 0], 'what came back to the library')
    equal(len(pool.slots), 3, 'slots')
    held.begin_close()
    pool.close()
    held.end_close()
    for buffer in library:
        buffer.close()
    heap.close()
