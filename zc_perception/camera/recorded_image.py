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
A frame as a ``sensor_msgs/Image`` of a recording, which keeps every bit and what the bits mean.

The encoding is ROS's where ROS has one, else the DRM format's name, such as ``NV12`` or ``P010``.
Rows and planes follow each other without padding. What ROS has no field for stands in the
channel's metadata: ``fourcc``, ``matrix``, ``range`` and ``transfer`` (as in
pixel/colorimetry.py), and
``planes``, how the producer's buffers held the frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
import json
import struct

from zc_perception.camera.mcap_file import Topic
from zc_perception.errors import ConfigError, FormatError
from zc_perception.frame import Header
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range, Transfer
from zc_perception.pixel.fourcc import format_by_name
from zc_perception.pixel.layout import compute_layout, ImageLayout

IMAGE = 'sensor_msgs/msg/Image'
_RULE = '=' * 80
_DEFINITION = f"""\
std_msgs/Header header
uint32 height
uint32 width
string encoding
uint8 is_bigendian
uint32 step
uint8[] data
{_RULE}
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
{_RULE}
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
"""
_ENCAPSULATION = b'\0\1\0\0'


def tight_layout(fourcc: int, width: int, height: int) -> ImageLayout:
    """Return how a recording holds such frames: rows and planes one after the other."""
    return compute_layout(fourcc, width, height, stride_align=1, offset_align=1)


@dataclass(frozen=True)
class RecordedFormat:
    """
    What all frames of one channel have in common.

    :param layout: the producer's; LINEAR.
    """

    layout: ImageLayout
    colorimetry: Colorimetry

    @cached_property
    def tight(self) -> ImageLayout:
        """How the frames lie in the recording."""
        return tight_layout(self.layout.fourcc, self.layout.width, self.layout.height)

    @property
    def frame_bytes(self) -> int:
        """Of a frame's pixels in the recording."""
        return self.tight.buffer_size(0)

    def topic(self, name: str) -> Topic:
        """Return the channel of such frames."""
        colours = self.colorimetry
        planes = [[p.buffer, p.offset, p.stride, p.size] for p in self.layout.planes]
        metadata = {
            'offered_qos_profiles': '',
            'fourcc': self.layout.format.name.strip(),
            'matrix': colours.matrix.value,
            'range': colours.range.value,
            'transfer': colours.transfer.value,
            'planes': json.dumps(planes),
        }
        return Topic(name, IMAGE, _DEFINITION, tuple(metadata.items()))

    def message_head(self, header: Header) -> bytes:
        """
        Return the bytes before a frame's pixels.

        They are a serialised message (CDR) without its data.
        """
        layout = self.tight
        encoding = layout.format.ros or layout.format.name.strip()
        stamp = struct.pack('<iI', *divmod(header.stamp_ns, 1_000_000_000))
        body = stamp + _text(header.frame_id)
        body += bytes(-len(body) % 4) + struct.pack('<II', layout.height, layout.width)
        body += _text(encoding) + b'\0'
        body += bytes(-len(body) % 4)
        body += struct.pack('<II', layout.planes[0].stride, self.frame_bytes)
        return _ENCAPSULATION + body


def _text(text: str) -> bytes:
    encoded = text.encode() + b'\0'
    return struct.pack('<I', len(encoded)) + encoded


def recorded_format(metadata: Mapping[str, str], source: str) -> tuple[int, Colorimetry] | None:
    """
    Return the fourcc and colorimetry of a channel's frames; ``None``: another program's channel.

    :param source: for messages.
    :raises ConfigError: a format that can't be.
    """
    if 'fourcc' not in metadata:
        return None
    try:
        return format_by_name(metadata['fourcc']).code, Colorimetry(
            Matrix(metadata['matrix']), Range(metadata['range']), Transfer(metadata['transfer'])
        )
    except (KeyError, ValueError, FormatError) as error:
        raise ConfigError(f"recording '{source}': its format can't be used: {error}") from error
