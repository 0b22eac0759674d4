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
DRM fourccs, the names of pixel formats that this package uses everywhere.

A DRM name lists components from the most to the least significant bits of a little-endian word. So
DRM's ``RG24`` is B, G, R in memory, which V4L2 calls ``BGR3`` and ROS ``bgr8``. The memory order
is the same on every CPU and device.

Sources: the kernel's ``include/uapi/drm/drm_fourcc.h`` for codes and memory order,
``videodev2.h`` for V4L2's names, ``video-info-dma.c`` for GStreamer's names.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zc_perception.errors import FormatError, nearest


def fourcc_code(name: str) -> int:
    """Return the 32-bit code of a name; raise FormatError if it isn't four ASCII characters."""
    if len(name) != 4 or not name.isascii():
        raise FormatError(f"fourcc '{name}' must be four ASCII characters, such as 'NV12'")
    return int.from_bytes(name.encode('ascii'), 'little')


def fourcc_name(code: int) -> str:
    """Return the four characters of *code*, with ``?`` for unprintable ones."""
    raw = (code & 0xFFFFFFFF).to_bytes(4, 'little')
    return ''.join(chr(b) if 32 <= b < 127 else '?' for b in raw)


@dataclass(frozen=True)
class PlaneFormat:
    """
    One plane of a format.

    A plane consists of elements of ``element_bytes`` bytes. Each covers ``horizontal`` ×
    ``vertical`` image pixels: NV12's chroma plane has one 2-byte element (U, V) for 2×2 pixels,
    YUYV's only plane has one 4-byte element for 2×1 pixels. ``components`` are an element's
    channels in memory order, from the least significant bit: Y, U, V, R, G, B, A; X is padding.
    """

    element_bytes: int
    horizontal: int = 1
    vertical: int = 1
    components: tuple[str, ...] = ()

    def row_bytes(self, width: int) -> int:
        """Return the bytes of a row, without padding, for an image *width* pixels wide."""
        return -(-width // self.horizontal) * self.element_bytes

    def rows(self, height: int) -> int:
        """Return the plane's number of rows for an image *height* pixels high."""
        return -(-height // self.vertical)


@dataclass(frozen=True)
class PixelFormat:
    """
    A DRM format, and the names of its LINEAR layout in other systems (``None``: no name).

    ``bits`` is the size of one component (for RG16 it is 5, though green has 6). ``v4l2`` is
    V4L2's fourcc for all planes in one buffer, ``v4l2_multiplanar`` for one buffer per plane.
    """

    name: str
    planes: tuple[PlaneFormat, ...]
    bits: int = 8
    v4l2: str | None = None
    v4l2_multiplanar: str | None = None
    gstreamer: str | None = None
    ros: str | None = None
    code: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, 'code', fourcc_code(self.name))

    @property
    def horizontal(self) -> int:
        """Widths must be a multiple of this (2 for 4:2:0 and 4:2:2)."""
        return max(p.horizontal for p in self.planes)

    @property
    def vertical(self) -> int:
        """Heights must be a multiple of this (2 for 4:2:0)."""
        return max(p.vertical for p in self.planes)

    @property
    def components(self) -> tuple[tuple[str, ...], ...]:
        """For each plane, the channels in memory order: NV12 → ``(('Y',), ('U', 'V'))``."""
        return tuple(p.components for p in self.planes)

    @property
    def is_yuv(self) -> bool:
        """Whether samples are Y'CbCr, so that a colorimetry's matrix applies to them."""
        return any('U' in p.components for p in self.planes)

    @property
    def is_grey(self) -> bool:
        """Whether each pixel has a single sample, its brightness."""
        return self.components == (('R',),)


def _plane(
    components: str, element_bytes: int, horizontal: int = 1, vertical: int = 1
) -> PlaneFormat:
    return PlaneFormat(element_bytes, horizontal, vertical, tuple(components))


def _two(
    chroma: str, horizontal: int, vertical: int, sample_bytes: int = 1
) -> tuple[PlaneFormat, ...]:
    return _plane('Y', sample_bytes), _plane(chroma, 2 * sample_bytes, horizontal, vertical)


def _three(chroma: str, horizontal: int, vertical: int) -> tuple[PlaneFormat, ...]:
    return _plane('Y', 1), *(_plane(c, 1, horizontal, vertical) for c in chroma)


def _packed(components: str, element_bytes: int, horizontal: int = 1) -> tuple[PlaneFormat, ...]:
    return (_plane(components, element_bytes, horizontal),)


_TABLE = (
    PixelFormat('NV12', _two('UV', 2, 2), v4l2='NV12', v4l2_multiplanar='NM12', gstreamer='NV12',
                ros='nv12'),
    PixelFormat('NV21', _two('VU', 2, 2), v4l2='NV21', v4l2_multiplanar='NM21', gstreamer='NV21',
                ros='nv21'),
    PixelFormat('NV16', _two('UV', 2, 1), v4l2='NV16', v4l2_multiplanar='NM16', gstreamer='NV16'),
    PixelFormat('NV61', _two('VU', 2, 1), v4l2='NV61', v4l2_multiplanar='NM61', gstreamer='NV61'),
    PixelFormat('NV24', _two('UV', 1, 1), v4l2='NV24', gstreamer='NV24', ros='nv24'),
    PixelFormat('NV42', _two('VU', 1, 1), v4l2='NV42'),
    PixelFormat('NV15', (_plane('YYYY', 5, 4), _plane('UVUV', 5, 4, 2)), bits=10,
                gstreamer='NV12_10LE40'),
    PixelFormat('P010', _two('UV', 2, 2, 2), bits=10, v4l2='P010', gstreamer='P010_10LE'),
    PixelFormat('P012', _two('UV', 2, 2, 2), bits=12, v4l2='P012', v4l2_multiplanar='PM12',
                gstreamer='P012_LE'),
    PixelFormat('P016', _two('UV', 2, 2, 2), bits=16, gstreamer='P016_LE'),
    PixelFormat('P210', _two('UV', 2, 1, 2), bits=10),
    PixelFormat('YUYV', _packed('YUYV', 4, 2), v4l2='YUYV', gstreamer='YUY2', ros='yuyv'),
    PixelFormat('YVYU', _packed('YVYU', 4, 2), v4l2='YVYU', gstreamer='YVYU'),
    PixelFormat('UYVY', _packed('UYVY', 4, 2), v4l2='UYVY', gstreamer='UYVY', ros='uyvy'),
    PixelFormat('VYUY', _packed('VYUY', 4, 2), v4l2='VYUY', gstreamer='VYUY'),
    PixelFormat('YU12', _three('UV', 2, 2), v4l2='YU12', v4l2_multiplanar='YM12',
                gstreamer='I420'),
    PixelFormat('YV12', _three('VU', 2, 2), v4l2='YV12', v4l2_multiplanar='YM21',
                gstreamer='YV12'),
    PixelFormat('YU16', _three('UV', 2, 1), v4l2='422P', v4l2_multiplanar='YM16',
                gstreamer='Y42B'),
    PixelFormat('YV16', _three('VU', 2, 1), v4l2_multiplanar='YM61'),
    PixelFormat('YU24', _three('UV', 1, 1), v4l2_multiplanar='YM24', gstreamer='Y444'),
    PixelFormat('YV24', _three('VU', 1, 1), v4l2_multiplanar='YM42'),
    PixelFormat('R8  ', _packed('R', 1), v4l2='GREY', gstreamer='GRAY8', ros='mono8'),
    PixelFormat('R16 ', _packed('R', 2), bits=16, v4l2='Y16 ', gstreamer='GRAY16_LE',
                ros='mono16'),
    PixelFormat('RG24', _packed('BGR', 3), v4l2='BGR3', gstreamer='BGR', ros='bgr8'),
    PixelFormat('BG24', _packed('RGB', 3), v4l2='RGB3', gstreamer='RGB', ros='rgb8'),
    PixelFormat('XR24', _packed('BGRX', 4), v4l2='XR24', gstreamer='BGRx'),
    PixelFormat('AR24', _packed('BGRA', 4), v4l2='AR24', gstreamer='BGRA', ros='bgra8'),
    PixelFormat('XB24', _packed('RGBX', 4), v4l2='XB24', gstreamer='RGBx'),
    PixelFormat('AB24', _packed('RGBA', 4), v4l2='AB24', gstreamer='RGBA', ros='rgba8'),
    PixelFormat('RX24', _packed('XBGR', 4), v4l2='RX24', gstreamer='xBGR'),
    PixelFormat('RA24', _packed('ABGR', 4), v4l2='RA24', gstreamer='ABGR'),
    PixelFormat('BX24', _packed('XRGB', 4), v4l2='BX24', gstreamer='xRGB'),
    PixelFormat('BA24', _packed('ARGB', 4), v4l2='BA24', gstreamer='ARGB'),
    PixelFormat('RG16', _packed('BGR', 2), bits=5, v4l2='RGBP', gstreamer='RGB16'),
    PixelFormat('BG16', _packed('RGB', 2), bits=5, gstreamer='BGR16'),
)  # fmt: skip
FORMATS: dict[int, PixelFormat] = {f.code: f for f in _TABLE}
NV12 = fourcc_code('NV12')


def pixel_format(code: int) -> PixelFormat:
    """Return the format with this DRM fourcc; raise FormatError if :data:`FORMATS` lacks it."""
    try:
        return FORMATS[code]
    except KeyError:
        known = ', '.join(f.name.strip() for f in _TABLE)
        raise FormatError(
            f"pixel format '{fourcc_name(code)}' (0x{code:08x}) is not known; known are {known}"
        ) from None


def format_by_name(name: str) -> PixelFormat:
    """Return the format with a DRM name such as ``NV12``; raise FormatError if there is none."""
    for entry in _TABLE:
        if entry.name.strip() == name.rstrip(' '):
            return entry
    raise FormatError(
        f"pixel format '{name}' is not known{nearest(name, [f.name.strip() for f in _TABLE])}"
    )
