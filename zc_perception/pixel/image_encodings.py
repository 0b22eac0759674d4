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
The encodings of pictures that come as plain bytes: one table for topics and recordings.

Names are those of ``sensor_msgs/image_encodings.hpp``.
"""

from __future__ import annotations

from typing import NamedTuple

import cv2

from zc_perception.errors import FormatError, nearest
from zc_perception.pixel.format_names import from_ros_encoding, ROS_FORMATS


class Encoding(NamedTuple):
    """
    What the samples of an encoding are.

    :param fourcc: their format; of Bayer grey, because each pixel has one sample.
    :param demosaic: OpenCV's conversion of Bayer to B, G, R; ``None`` for all others.
    """

    fourcc: int
    demosaic: int | None = None


# ROS and GStreamer name a Bayer pattern by the first two pixels of the first two rows, OpenCV by
# the second and third pixel of the second and third row.
_BAYER = {
    'rggb': cv2.COLOR_BayerBG2BGR,
    'bggr': cv2.COLOR_BayerRG2BGR,
    'gbrg': cv2.COLOR_BayerGR2BGR,
    'grbg': cv2.COLOR_BayerGB2BGR,
}
# What users of cv_bridge mean by the types of OpenCV.
_MEANT = {'8UC1': 'mono8', '8UC3': 'bgr8'}
NATIVE = 'native'
OUTPUT_ENCODINGS = ('rgb8', 'bgr8', 'mono8', 'nv12', NATIVE)
"""
What plain subscribers may get. ``native``: the frame's own bytes, where an encoding means the
same.
"""
DEPTHS = ('16UC1', '32FC1')
"""What has distances and no brightness."""

ENCODINGS: dict[str, Encoding] = (
    {name: Encoding(fourcc) for name, fourcc in ROS_FORMATS.items()}
    | {name: Encoding(from_ros_encoding(same)) for name, same in _MEANT.items()}
    | {
        f'bayer_{pattern}{bits}': Encoding(from_ros_encoding(f'mono{bits}'), code)
        for bits in (8, 16)
        for pattern, code in _BAYER.items()
    }
)
"""What can be read, by name."""


def encoding_named(name: str) -> Encoding:
    """
    Return the entry of *name*.

    :raises FormatError: there is none. The message lists the names that exist.
    """
    found = ENCODINGS.get(name)
    if found is None:
        why = ', it has depths and no colours' if name in DEPTHS else nearest(name, ENCODINGS)
        raise FormatError(
            f"encoding '{name[:40]}' can't be read as a picture{why}; "
            f'known are {", ".join(ENCODINGS)}'
        )
    return found
