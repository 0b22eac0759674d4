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

"""Options to open a camera; a test names only those that matter to it."""

from __future__ import annotations

import time
from typing import Any

from zc_perception.camera.camera import CameraOptions
from zc_perception.errors import AllocationError
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger

PARAMETERS: dict[str, Any] = {
    'width': 0, 'height': 0, 'framerate': 0.0, 'frame_id': 'cam', 'heap': 'auto', 'silent': 0.0,
    'device': '/dev/video0', 'input': -1, 'pixel_format': 'auto', 'memory': 'auto',
    'video': '', 'loop': False, 'keep_all': True, 'replay_topic': '', 'replay_rate': 1.0,
    'replay_start': 0.0, 'stamps': 'now',
    'pipeline': '', 'pipeline_buffers': 8, 'assume_linear': False, 'require_dmabuf': False,
    'sensor_id': 0, 'sensor_mode': -1, 'libcamera_id': '',
}  # fmt: skip
_OTHERS = ('now_ns', 'ledger', 'clock', 'stopping', 'consumers', 'identity', 'before')


def camera_options(**values: Any) -> CameraOptions:
    """Return options with *values*: fields of :class:`CameraOptions`, and parameters by name."""
    fields = {name: values.pop(name) for name in _OTHERS if name in values}
    assert values.keys() <= PARAMETERS.keys(), values.keys() - PARAMETERS.keys()
    return CameraOptions(
        PARAMETERS | values, **{'now_ns': time.time_ns, 'ledger': CopyLedger(), **fields}
    )


class NamedHeap(SealedMemfd):
    """Count heaps that are open; *room* is the heap's size in bytes."""

    open = 0  # noqa: A003

    def __init__(self, name: str, room: int = 1 << 30) -> None:
        self.name = name
        self._room = room
        NamedHeap.open += 1

    def allocate(self, size: int) -> DmaBuf:
        self._room -= size
        if self._room < 0:
            raise AllocationError(
                f'{self.name} could not allocate {size} bytes: Cannot allocate memory'
            )
        return super().allocate(size)

    def close(self) -> None:
        NamedHeap.open -= 1
