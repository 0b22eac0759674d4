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
Declare cameras gstreamer and argus, which both take frames from a GStreamer pipeline.

The cameras' own modules are imported only when they are needed, because every capture node imports
this module when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import importlib
from typing import Any, ClassVar

from zc_perception.camera.camera import Camera, CameraOptions, PIPELINE_BUFFERS
from zc_perception.errors import ConfigError
from zc_perception.machine.checks import Check, Finding, Needs, NodeNeed, skip
from zc_perception.machine.system import System
from zc_perception.parameters import ParameterSpec

RESERVE = 2
"""Slots that the camera needs itself: one is being filled, one is being handed to the node."""


class GStreamerKind(Camera):
    """
    The declarations of camera gstreamer.

    :class:`~zc_perception.camera.gstreamer.camera.GStreamerCamera` is the camera itself.
    """

    PARAMETERS: ClassVar[Sequence[ParameterSpec]] = (
        ParameterSpec('pipeline', '', 'the pipeline, as for gst-launch-1.0, without a sink.'),
        PIPELINE_BUFFERS,
        ParameterSpec('assume_linear', False, ('treat old memory:DMABuf caps, which do not '
                                               'name the layout, as LINEAR.')),
        ParameterSpec('require_dmabuf', False, ('refuse a pipeline whose frames would have to '
                                                'be copied.')),
    )  # fmt: skip
    CHECKS: ClassVar[Sequence[Check]] = (
        Check(
            'gstreamer.library',
            'whether GStreamer loads, and its version',
            'zc_perception.camera.gstreamer.camera:gstreamer_library',
        ),
        Check(
            'gstreamer.elements',
            'which of the GStreamer elements that cameras use are installed',
            'zc_perception.camera.gstreamer.camera:gstreamer_elements',
        ),
        Check(
            'gstreamer.pipeline',
            "whether the parameter file's pipelines can be made",
            'zc_perception.camera.gstreamer.camera:gstreamer_pipelines',
        ),
    )
    MEMORY = "the pipeline's buffers"
    HELD = RESERVE
    SLOW = True
    CAMERA: ClassVar[tuple[str, str]] = (
        'zc_perception.camera.gstreamer.camera',
        'GStreamerCamera',
    )
    """Module and name of the camera's class."""

    @classmethod
    def _class(cls) -> type[Camera]:
        module, name = cls.CAMERA
        found: type[Camera] = getattr(importlib.import_module(module), name)
        return found

    @classmethod
    def open(cls, options: CameraOptions) -> Camera:  # noqa: A003
        return cls._class().open(options)

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        super().check(values)
        if not values['pipeline'].strip():
            raise ConfigError(
                "parameter 'pipeline' is empty; set it, for example to 'v4l2src "
                "device=/dev/video0 io-mode=dmabuf'"
            )

    @classmethod
    def try_out(cls, options: CameraOptions) -> None:
        cls._class().try_out(options)

    @classmethod
    def examine(cls, system: System, needs: Needs, camera: NodeNeed) -> Finding:
        return skip(f'camera {camera.kind}: see check gstreamer.pipeline', camera.node)


class ArgusKind(GStreamerKind):
    """
    The declarations of camera argus.

    :class:`~zc_perception.camera.argus.ArgusCamera` is the camera itself.
    """

    PARAMETERS = (
        ParameterSpec('pipeline', '', ('the pipeline, written as for gst-launch-1.0, without a '
                                       'sink. Empty: read sensor number sensor_id.')),
        PIPELINE_BUFFERS,
        ParameterSpec('sensor_id', 0, 'number of the sensor.', '', 0, 63),
        ParameterSpec('sensor_mode', -1, 'number of the sensor mode. -1: Argus chooses.', '',
                      -1, 63),
    )  # fmt: skip
    MEMORY = 'NvBufSurface'
    CHECKS = (
        *GStreamerKind.CHECKS,
        Check(
            'jetson.release',
            'the Jetson Linux release',
            'zc_perception.camera.argus:jetson_release',
        ),
        Check(
            'jetson.nvbufsurface',
            'whether libnvbufsurface loads, and this package knows its structs',
            'zc_perception.camera.argus:nvbufsurface',
        ),
        Check(
            'jetson.vic',
            "whether the video image compositor's library loads",
            'zc_perception.camera.argus:vic',
        ),
    )
    CAMERA = ('zc_perception.camera.argus', 'ArgusCamera')

    @classmethod
    def check(cls, values: Mapping[str, Any]) -> None:
        """
        Check nothing, unlike the base classes.

        Parameter ``heap`` has no effect, because Argus allocates the images. Parameter
        ``pipeline`` may be empty, because this class then makes the pipeline.
        """
