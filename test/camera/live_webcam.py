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

"""A webcam in real time: a driver's double that gives JPEGs of the drawn road when due."""

from __future__ import annotations

from collections.abc import Sequence
import select
import time
from typing import Any

from camera.camera_options import camera_options
from camera.jpeg_kit import jpeg
from camera.v4l2_double import DriverDouble
import cv2
import numpy as np

from zc_perception.camera.road_scene import RoadScene
from zc_perception.camera.v4l2 import choice as memory_module
from zc_perception.camera.v4l2.camera import V4l2Camera
from zc_perception.camera.v4l2.device import V4l2Device
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.owned_fd import OwnedFd


def road_pictures(
    width: int, height: int, frames: int, sampling: str = '422', quality: int = 60, seed: int = 11
) -> list[bytes]:
    """Return *frames* JPEGs of the drawn road like a webcam's: full range, halved chroma."""
    scene = RoadScene(width, height, seed)
    luma, chroma = (
        np.empty((height, width), np.uint8),
        np.empty((height // 2, width // 2, 2), np.uint8),
    )
    found = []
    for number in range(frames):
        scene.draw(number, luma, chroma)
        found.append(
            jpeg(
                np.asarray(cv2.cvtColorTwoPlane(luma, chroma, cv2.COLOR_YUV2BGR_NV12), np.uint8),
                sampling,
                quality,
            )
        )
    return found


class LiveWebcam(DriverDouble):
    """Fill a buffer every 1/*hz* s with the next of *pictures*; drop it if none is queued."""

    def __init__(
        self, *formats: str, pictures: Sequence[bytes], size: tuple[int, int], hz: float = 30.0
    ) -> None:
        self.sizes = (size,)
        super().__init__(*formats)
        self.size = size
        self.pictures = list(pictures)
        self.contents = [b'']
        self.period = 1.0 / hz
        self.due_at = 0.0

    @property
    def now(self) -> float:
        return time.monotonic()

    @now.setter
    def now(self, value: float) -> None:
        pass

    def poll(self, wake: OwnedFd, timeout_ms: int) -> int:
        if self.events or not self.streaming or self.broken:
            return super().poll(wake, timeout_ms)
        wait = min(timeout_ms / 1000, max(0.0, self.due_at - time.monotonic()))
        if select.select([wake.fileno()], [], [], wait)[0] or time.monotonic() < self.due_at:
            return 0
        late = int((time.monotonic() - self.due_at) / self.period) if self.due_at else 0
        self.due_at = (self.due_at or time.monotonic()) + (1 + late) * self.period
        self.sequence += late
        if not self.queued:
            self.sequence += 1
            return 0
        self.contents = [self.pictures[self.sequence % len(self.pictures)]]
        return super().poll(wake, timeout_ms)

    def camera(self, ledger: CopyLedger, **options: Any) -> V4l2Camera:
        made = camera_options(
            width=self.size[0], height=self.size[1], framerate=30.0, ledger=ledger, **options
        )
        return V4l2Camera(made, open_device=lambda path: V4l2Device(self))


def exports_are_memfds(monkeypatch: Any) -> None:
    """Export buffers as memfds: doubles lack the ioctl for the CPU's access to dma-bufs."""
    monkeypatch.setattr(
        memory_module, 'DmaBuf', lambda fd, kind, heap: DmaBuf(fd, BufferKind.MEMFD, heap)
    )
