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
The commands of GStreamer's ``unixfd`` elements, byte for byte.

Source: gst-plugins-bad's ``gst/unixfd``, ``gstmeta.c`` and ``gstvideometa.c`` of GStreamer 1.26.
Each command is a header of two 32-bit numbers, the command and the size of what follows, in the
byte order of the host. A reader takes a command in two calls, without a loop: each has to be sent
by one ``sendmsg``. The numbers of formats are those of ``video-format.h``, whose ABI doesn't
change.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
import struct

from zc_perception.link.shared_memory.protocol import ProtocolError
from zc_perception.pixel.fourcc import pixel_format
from zc_perception.pixel.gstreamer_caps import BufferPlanes
from zc_perception.pixel.layout import ImageLayout

_HEADER = struct.Struct('=II')
_BUFFER = struct.Struct('=QQQQQQIBBH')
_ID = struct.Struct('=Q')
RELEASE_SIZE = _HEADER.size + _ID.size
_NOT_KNOWN = (1 << 64) - 1
_META = b'GstVideoMeta'
VIDEO_FORMATS = {
    'I420': 2,
    'YV12': 3,
    'YUY2': 4,
    'UYVY': 5,
    'RGBx': 7,
    'BGRx': 8,
    'xRGB': 9,
    'xBGR': 10,
    'RGBA': 11,
    'BGRA': 12,
    'ARGB': 13,
    'ABGR': 14,
    'RGB': 15,
    'BGR': 16,
    'Y42B': 18,
    'YVYU': 19,
    'Y444': 20,
    'NV12': 23,
    'NV21': 24,
    'GRAY8': 25,
    'GRAY16_LE': 27,
    'RGB16': 29,
    'BGR16': 30,
    'NV16': 51,
    'NV24': 52,
    'NV61': 60,
    'P010_10LE': 62,
    'VYUY': 64,
    'NV12_10LE40': 81,
    'P016_LE': 90,
    'P012_LE': 92,
}
"""``GstVideoFormat`` by its name."""


class Command(IntEnum):
    """What a command says."""

    NEW_BUFFER = 0
    RELEASE_BUFFER = 1
    CAPS = 2
    EOS = 3


class MemoryType(IntEnum):
    """What the descriptors of a buffer are."""

    MEMFD = 0
    DMABUF = 1


def pack(command: Command, payload: bytes = b'') -> bytes:
    """Return a whole command."""
    return _HEADER.pack(command, len(payload)) + payload


def pack_caps(text: str) -> bytes:
    """Pack CAPS."""
    return pack(Command.CAPS, text.encode() + b'\0')


def pack_buffer(
    number: int, pts_ns: int, sequence: int, kind: MemoryType, sizes: Sequence[int], meta: bytes
) -> bytes:
    """
    Pack NEW_BUFFER; a descriptor for each of *sizes* goes with it.

    :param number: by which the reader gives it back.
    :param pts_ns: in CLOCK_MONOTONIC.
    :param meta: a serialised ``GstVideoMeta``; empty: none.
    """
    head = _BUFFER.pack(
        number,
        pts_ns,
        _NOT_KNOWN,
        _NOT_KNOWN,
        sequence,
        sequence + 1,
        0,
        kind,
        len(sizes),
        bool(meta),
    )
    memories = b''.join(struct.pack('=QQ', size, 0) for size in sizes)
    return pack(Command.NEW_BUFFER, head + memories + meta)


def video_meta(layout: ImageLayout, where: BufferPlanes) -> bytes:
    """Return a serialised ``GstVideoMeta``: where the planes lie."""
    planes = len(layout.planes)
    number = VIDEO_FORMATS.get(pixel_format(layout.fourcc).gstreamer or '', 0)
    payload = struct.pack('=iiIII', 0, number, layout.width, layout.height, planes)
    payload += struct.pack(f'={planes}Q{planes}i', *where.offsets, *where.strides)
    # No alignment is promised: of the picture's four sides, then of each stride.
    payload += struct.pack(f'=4I{planes}I', *[0] * (4 + planes))
    # Version 0 of the format.
    body = _META + b'\0' + b'\0' + payload
    return struct.pack('=II', 8 + len(body), len(_META)) + body


def parse_release(data: bytes | bytearray) -> int | None:
    """
    Return the number of the buffer that RELEASE_BUFFER at the begin of *data* gives back.

    ``None``: not all of it is there.

    :raises ProtocolError: it is something else.
    """
    if len(data) >= _HEADER.size:
        command, size = _HEADER.unpack_from(data)
        if (command, size) != (Command.RELEASE_BUFFER, _ID.size):
            raise ProtocolError(
                'command', (f'a reader sent command {command} of {size} bytes; it may only say '
                            'RELEASE_BUFFER')
            )  # fmt: skip
    return int(_ID.unpack_from(data, _HEADER.size)[0]) if len(data) >= RELEASE_SIZE else None
