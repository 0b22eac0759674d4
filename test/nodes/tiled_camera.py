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
A camera whose images no CPU can read, and a program that reads them as a device does.

It stands in for a sensor with a vendor's tiles: :func:`content` has no rows. As a program,
``tiled_camera.py MODIFIER COUNT`` prints a viewer's result as one JSON object; it ends after COUNT
frames or with its standard input.
"""

from __future__ import annotations

from dataclasses import replace
import json
import sys
import threading
import time

import rclpy

from zc_perception import Frame, FrameSubscription
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.frame import Header
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import BufferConstraints, NO_CPU
from zc_perception.negotiation.settings import AllocationRequest
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout
from zc_perception.pixel.modifier import INVALID, LINEAR

SIZE = (128, 96)
NVIDIA_BLOCK = 3 << 56 | 0x10


def content(sequence: int, size: int) -> bytes:
    """Return the bytes in the buffer of frame *sequence*."""
    cycle = bytes((sequence + step * 7) % 251 for step in range(251))
    return (cycle * (size // 251 + 1))[:size]


class TiledCamera(SyntheticCamera):
    """A live camera of one modifier; with *converts* it offers LINEAR, too, at a higher cost."""

    def __init__(self, modifier: int = INVALID, *, converts: bool = False) -> None:
        super().__init__(
            *SIZE,
            60.0,
            'lens',
            seed=1,
            pattern='counter',
            heap=SealedMemfd(),
            now_ns=time.time_ns,
            ledger=CopyLedger(),
        )
        self._modifier = modifier
        self._converts = converts
        self._tiled: BufferPool | None = None

    @property
    def device(self) -> str:
        return 'tiled camera'

    def constraints(self) -> BufferConstraints:
        formats = ((NV12, self._modifier), *(((NV12, LINEAR),) if self._converts else ()))
        return replace(
            super().constraints(), participant='tiled camera', formats=formats, cpu_access=NO_CPU
        )

    def allocate(self, request: AllocationRequest) -> None:
        if request.modifiers[0] == LINEAR:
            super().allocate(request)
            return
        layout = replace(compute_layout(NV12, *SIZE), modifier=self._modifier)
        heap = SealedMemfd()

        def allocate() -> tuple[DmaBuf, ...]:
            return (heap.allocate(layout.buffer_size(0)),)

        self._pool = self._tiled = BufferPool(
            layout, allocate, request.slots, name='camera', reserve=2
        )

    def capture(self) -> Frame | None:
        pool = self._tiled
        if pool is None:
            return super().capture()
        if not self._wait_for_turn():
            return None
        slot = pool.acquire()
        if slot is None:
            self._skip()
            return None
        memory = slot.buffers[0].memory(write=True)
        memory[:] = content(self._sequence, len(memory))
        frame = Frame.publish_slot(
            pool,
            slot,
            header=Header(time.time_ns(), 'lens'),
            colorimetry=BT601_LIMITED,
            sequence=self._sequence,
            captured_ns=time.monotonic_ns(),
        )
        self._sequence += 1
        self._captured += 1
        return frame


def main() -> None:
    modifier, count = int(sys.argv[1]), int(sys.argv[2])
    rclpy.init()
    node = rclpy.create_node('viewer')
    good: list[bool] = []

    def look(frame: Frame) -> None:
        memory = frame.data.buffers[0].memory()
        good.append(
            frame.data.modifier == modifier
            and bytes(memory) == content(frame.data.sequence, len(memory))
        )

    frames = FrameSubscription(
        node,
        'image_raw',
        look,
        constraints=BufferConstraints('viewer', formats=((NV12, modifier),)),
    )
    threading.Thread(
        target=lambda: (sys.stdin.read(), good.extend([False] * count)), daemon=True
    ).start()
    print('listening', flush=True)
    while len(good) < count:
        rclpy.spin_once(node, timeout_sec=0.1)
    # The announcement file may connect this viewer before the graph shows the publisher.
    end = time.monotonic() + 60.0
    while frames.statistics().rung == 'unmatched' and time.monotonic() < end:
        rclpy.spin_once(node, timeout_sec=0.1)
    link = frames.statistics()
    print(
        json.dumps({'good': good[:count].count(True), 'rung': link.rung, 'reason': link.reason}),
        flush=True,
    )
    frames.destroy()
    node.destroy_node()
    rclpy.shutdown()


if __name__ == '__main__':
    main()
