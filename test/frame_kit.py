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

"""Small frames in memfds: pools of any layout, and the next frame of one."""

from __future__ import annotations

from collections.abc import Iterable
import time
from typing import Any

import numpy as np

from zc_perception.frame import Frame, Header
from zc_perception.frame_queue import KeepLastQueue
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.pool import BufferPool, Slot
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout, ImageLayout


def nv12(width: int = 32, height: int = 16, **options: Any) -> ImageLayout:
    return compute_layout(NV12, width, height, **options)


def pool_of(
    layout: ImageLayout, slots: int, *, heap: Any = None, name: str = 'camera', **options: Any
) -> BufferPool:
    """Return a pool on *heap*, by default memfd; *options* are BufferPool's."""
    heap = heap or SealedMemfd()

    def allocate() -> tuple[DmaBuf, ...]:
        return tuple(heap.allocate(layout.buffer_size(i)) for i in range(layout.num_buffers))

    return BufferPool(layout, allocate, slots, name=name, **options)


def next_frame(
    pool: BufferPool, sequence: int = 0, slot: Slot | None = None, **options: Any
) -> Frame:
    """
    Return a frame in *slot*, or in the pool's next slot, which has to be free.

    *options* are those of ``Frame.publish_slot``. The stamp is one second plus *sequence* ns.
    """
    slot = slot or pool.acquire()
    assert slot is not None, f'no free slot: {pool.describe_holders()}'
    header = Header(1_000_000_000 + sequence, '')
    values = {'header': header, 'colorimetry': BT601_LIMITED, 'captured_ns': time.monotonic_ns()}
    return Frame.publish_slot(pool, slot, sequence=sequence, **(values | options))


def written_frame(
    pool: BufferPool, planes: Iterable[Any], sequence: int = 0, **options: Any
) -> Frame:
    frame = next_frame(pool, sequence, **options)
    with frame.map(write=True) as targets:
        for target, plane in zip(targets, planes, strict=True):
            np.copyto(target, plane)
    return frame


class FrameQueue(KeepLastQueue[Frame]):
    def __init__(self, depth: int | None) -> None:
        super().__init__(depth, Frame.release, gate=Frame.hand_out)
