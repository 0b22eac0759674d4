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
The table of camera kinds (the values of parameter ``camera``), each with its class.

Other packages add kinds by entry points of the group ``zc_perception.cameras``. The entry point's
name is the kind; its value ``module:Class`` names a class derived from
:class:`~zc_perception.camera.camera.Camera`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zc_perception.kinds import CAMERA_GROUP, Kinds

if TYPE_CHECKING:
    from zc_perception.camera.camera import Camera

CAMERAS: Kinds[Camera] = Kinds(
    'camera',
    CAMERA_GROUP,
    {
        'synthetic': 'zc_perception.camera.synthetic:SyntheticCamera',
        'replay': 'zc_perception.camera.replay.camera:ReplayCamera',
        'v4l2': 'zc_perception.camera.v4l2.kind:V4l2',
        'gstreamer': 'zc_perception.camera.gstreamer.kind:GStreamerKind',
        'argus': 'zc_perception.camera.gstreamer.kind:ArgusKind',
        'libcamera': 'zc_perception.camera.libcamera:LibcameraCamera',
    },
    'zc_perception.camera.camera:Camera',
)
