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
Declare camera v4l2, and tell ``zc_doctor`` which pool this camera would make.

The camera's own modules are imported only when they are needed, because every capture node imports
this module when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
import importlib
from typing import Any, TYPE_CHECKING

from zc_perception.camera.camera import Camera, CameraOptions, estimated, plan
from zc_perception.errors import FormatError
from zc_perception.machine.checks import Check, Finding, Needs, NodeNeed
from zc_perception.memory.heaps import HeapUse, OfferedHeaps
from zc_perception.negotiation.constraints import Size
from zc_perception.parameters import ParameterSpec
from zc_perception.pixel.format_names import from_v4l2
from zc_perception.pixel.fourcc import NV12

if TYPE_CHECKING:
    from zc_perception.camera.camera import Agree, PlannedPool
    from zc_perception.machine.system import System

QUEUED = 3
"""The number of buffers that the driver holds: two that it fills, and one that is full."""
MOST_BUFFERS = 32
"""The number of buffers to request at most: some drivers refuse more."""


def _module(name: str) -> Any:
    """Import another module of this folder late, because some of them import this module."""
    return importlib.import_module(f'zc_perception.camera.v4l2.{name}')


def reserve_of(minimum: int) -> int:
    """
    Return the number of slots that the driver holds.

    :param minimum: how many queued buffers the driver needs by its own report; 0: no report.
    """
    return max(QUEUED, minimum + 1)


class V4l2(Camera):
    """
    The declarations of camera v4l2.

    :class:`~zc_perception.camera.v4l2.camera.V4l2Camera` is the camera itself.
    """

    PARAMETERS = (
        ParameterSpec('device', '/dev/video0', ('device node. A camera that was lost is found '
                                                'again at any device node.')),
        ParameterSpec('input', -1, ("number of the device's input to use (inputs are for example "
                                    'HDMI and SDI). -1: the input is not changed.'), '', -1, 63),
        ParameterSpec('pixel_format', 'auto', "the driver's fourcc, such as NV12, YUYV, MJPG. "
                                              'auto: the cheapest format that all consumers '
                      'accept and that keeps the framerate.'),
        ParameterSpec('memory', 'auto', ("export: the driver's own buffers. import: buffers of a "
                                         'heap, see parameter heap. auto: import only if export '
                                         'is not possible.'),
                      choices=('auto', 'export', 'import')),
    )  # fmt: skip
    CHECKS = (
        Check(
            'cameras.devices',
            'the driver, card, formats, sizes and rates of each /dev/video*, and who uses it',
            'zc_perception.camera.v4l2.checks:camera_devices',
        ),
    )
    MEMORY = "the driver's buffers"
    HELD = reserve_of(0)

    @classmethod
    def open(cls, options: CameraOptions) -> Camera:  # noqa: A003
        camera: Camera = _module('camera').V4l2Camera.open(options)
        return camera

    @classmethod
    def examine(cls, system: System, needs: Needs, camera: NodeNeed) -> Finding:
        found: Finding = _module('checks').configured(system, needs, camera)
        return found

    @classmethod
    def heap_use(cls, values: Mapping[str, Any]) -> HeapUse | None:
        return HeapUse.CAMERA_IMPORT if values['memory'] == 'import' else None

    @classmethod
    def picture_size(cls, system: System, values: Mapping[str, Any]) -> Size:
        if values['width'] and values['height']:
            return super().picture_size(system, values)
        size: Size = _module('checks').picture_size(system, values)
        return size

    @classmethod
    def planned_pool(
        cls, system: System, values: Mapping[str, Any], heaps: OfferedHeaps | None, agree: Agree
    ) -> PlannedPool | None:
        """
        Plan the pool by the driver's answers, or estimate it if the driver can't be queried.

        ``zc_doctor``'s check of the camera reports why the driver can't be queried.
        """
        found: PlannedPool | None = _module('checks').driver_pool(system, values, heaps, agree)
        size = cls.picture_size(system, values)
        if found is not None or not all(size):
            return found
        fourcc = NV12
        # FormatError: pixel_format is 'auto', a fourcc of JPEGs, or unknown to this package
        with contextlib.suppress(FormatError):
            fourcc = from_v4l2(values['pixel_format']).fourcc
        known = estimated(size, cls.MEMORY, cls.HELD, fourcc, MOST_BUFFERS)
        return plan(known, agree, own_heap=heaps is not None)
