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
Translate formats to and from the names in V4L2, GStreamer, NvBufSurface and ROS.

V4L2's fourccs look like DRM's but may have other meanings: V4L2's ``RG16`` is Bayer, DRM's
``RG16`` is V4L2's ``RGBP``. V4L2's NV12, NM12, YUYV … are LINEAR. V4L2's fourcc of a tiled format
is translated to a DRM fourcc with a modifier, if DRM has a modifier for the same tiles. Otherwise
it is refused, and the message says why.

A ``drm-format`` of GStreamer is a DRM fourcc with a modifier, such as
``NV12:0x0100000000000002``. Each format has exactly one string: all four characters of the fourcc
with trailing blanks (``'R8  '``), and all sixteen digits of the modifier, which is left out if it
is LINEAR. The fourcc is DRM's, not GStreamer's name: ``AR24``, not ``BGRA``. GStreamer has no
string for an unknown layout (modifier INVALID). In announcements and parameters, this package
writes ``NV12:INVALID`` for it. GStreamer refuses this text, and so never misreads it.

Sources: GStreamer's *DMA buffers* design, ``gst_video_dma_drm_fourcc_to_string()``, and
*video-info.c* for the default strides and offsets.
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
import re
from typing import NamedTuple

from zc_perception.errors import FormatError, nearest
from zc_perception.pixel.colorimetry import (
    Colorimetry,
    gstreamer_colorimetry,
    Matrix,
    Range,
    RGB_FULL,
)
from zc_perception.pixel.fourcc import FORMATS, fourcc_code, fourcc_name, pixel_format, PixelFormat
from zc_perception.pixel.layout import ImageLayout, PlaneLayout
from zc_perception.pixel.modifier import check_modifier, INVALID, KnownModifier, LINEAR

_IMPLICIT = 'INVALID'
_FOURCC = re.compile('(?=.{4}$)[A-Z0-9]+ *', re.ASCII)
_MODIFIER = re.compile('0x[0-9a-fA-F]{16}', re.ASCII)
# Some of GStreamer's names look like a fourcc, and users write them in place of one. With these
# tables, messages suggest the right fourcc.
_DRM_NAMES = {f.name for f in FORMATS.values()}
_GSTREAMER_NAMES = {f.gstreamer: f.name for f in FORMATS.values() if f.gstreamer}


def drm_format_string(fourcc: int, modifier: int, *, implicit: bool = False) -> str:
    """
    Return the ``drm-format`` string, such as ``NV12`` or ``NV12:0x0100000000000002``.

    The fourcc may be one that this package can't use: lists of formats are passed on unchanged,
    and may have such a fourcc.

    :param implicit: whether an INVALID modifier is allowed. It is written as ``NV12:INVALID``,
        which isn't valid in caps.
    :raises FormatError: the fourcc has other characters than capitals, digits and trailing blanks,
        the modifier has more than 64 bits, or it is INVALID without *implicit*.
    """
    name = fourcc_name(fourcc)
    if not 0 <= fourcc < 1 << 32 or not _FOURCC.fullmatch(name):
        raise FormatError(
            f"fourcc 0x{fourcc:08x} ('{name}') has no drm-format string: only capitals, digits "
            'and trailing blanks are allowed'
        )
    _refuse_gstreamer_name(name, name)
    if check_modifier(modifier) == LINEAR:
        return name
    if modifier == INVALID:
        if implicit:
            return f'{name}:{_IMPLICIT}'
        raise FormatError(
            f"'{name.strip()}' with an INVALID (implicit) modifier has no drm-format string: "
            'ask the allocator for the real modifier first'
        )
    return f'{name}:0x{modifier:016x}'


def parse_drm_format(text: str, *, implicit: bool = False) -> tuple[int, int]:
    """
    Return ``(fourcc, modifier)`` of a ``drm-format`` string.

    The fourcc may be one that this package doesn't know.

    :param implicit: whether ``NV12:INVALID`` is accepted.
    :raises FormatError: the string is a GStreamer name (the message suggests the DRM fourcc), or
        its modifier isn't ``0x`` and 16 digits, or these digits mean LINEAR or INVALID.
    """
    name, colon, value = text.partition(':')
    fourcc = _parse_fourcc(name, text)
    if not colon:
        return fourcc, LINEAR
    if implicit and value == _IMPLICIT:
        return fourcc, INVALID
    if not _MODIFIER.fullmatch(value):
        raise FormatError(
            f"drm-format '{text}': the modifier must be '0x' and 16 hexadecimal digits, as in "
            "'NV12:0x0100000000000002'"
        )
    modifier = int(value, 16)
    if modifier == LINEAR:
        raise FormatError(
            f"drm-format '{text}': a LINEAR modifier must be left out; write '{name}'"
        )
    if modifier == INVALID:
        advice = f"write '{name}:{_IMPLICIT}'" if implicit else 'leave this format out'
        raise FormatError(
            f"drm-format '{text}': these digits mean INVALID (an unknown layout), which is no "
            f'modifier; {advice}'
        )
    return fourcc, modifier


def _parse_fourcc(name: str, text: str) -> int:
    _refuse_gstreamer_name(name, text)
    if _FOURCC.fullmatch(name):
        return fourcc_code(name)
    padded = f'{name:<4}'
    if len(name) < 4 and _FOURCC.fullmatch(padded):
        raise FormatError(
            f"drm-format '{text}': a fourcc has four characters; write '{padded}' with its "
            'trailing blanks'
        )
    raise FormatError(
        f"drm-format '{text}': '{name}' is no DRM fourcc (four characters: capitals and digits)"
        + nearest(name, _DRM_NAMES)
    )


def _refuse_gstreamer_name(name: str, text: str) -> None:
    if name in _GSTREAMER_NAMES and name not in _DRM_NAMES:
        raise FormatError(
            f"drm-format '{text}': '{name}' is GStreamer's name; the DRM fourcc is "
            f"'{_GSTREAMER_NAMES[name]}'"
        )


DMA_DRM = 'DMA_DRM'
_NV12, _NV15 = fourcc_code('NV12'), fourcc_code('NV15')


class V4l2Format(NamedTuple):
    """A V4L2 fourcc's DRM fourcc and modifier, and whether each plane has its own buffer."""

    fourcc: int
    modifier: int
    multiplanar: bool


_V4L2_TILED = {
    name: V4l2Format(fourcc, int(modifier), multiplanar)
    for name, fourcc, modifier, multiplanar in (
        # V4L2 calls this format NV12_4L4; GStreamer translates it to the same modifier.
        ('VT12', _NV12, KnownModifier.VIVANTE_TILED, False),
        # V4L2 calls this format NV15_4L4; GStreamer translates it to the same modifier.
        ('VT15', _NV15, KnownModifier.VIVANTE_TILED, False),
        # V4L2 calls this format NV12_32L32, and also SUNXI_TILED_NV12.
        ('ST12', _NV12, KnownModifier.ALLWINNER_TILED, False),
        ('TM12', _NV12, KnownModifier.SAMSUNG_64_32_TILE, True),  # V4L2_PIX_FMT_NV12MT
        ('MM21', _NV12, KnownModifier.MTK_16L_32S_TILE, True),
        # NV12, compressed by Qualcomm's UBWC.
        ('Q08C', _NV12, KnownModifier.QCOM_COMPRESSED, False),
    )
}
_V4L2_BY_NAME = (
    {f.v4l2: V4l2Format(f.code, LINEAR, False) for f in FORMATS.values() if f.v4l2}
    | {f.v4l2_multiplanar: V4l2Format(f.code, LINEAR, True) for f in FORMATS.values()
       if f.v4l2_multiplanar}
    | _V4L2_TILED
)  # fmt: skip
_NO_MODIFIER = 'no DRM modifier describes its tiles; capture V4L2 NV12 or NM12'
_COMPRESSED_STREAM = 'it is a compressed stream, not pixels; let a decoder decode it first'
_BAYER = 'it is raw Bayer data; let an ISP convert it first'
_V4L2_REFUSED = {
    'HM12': _NO_MODIFIER,  # V4L2_PIX_FMT_NV12_16L16
    'VM12': _NO_MODIFIER,  # V4L2_PIX_FMT_NV12MT_16X16
    'NA12': _NO_MODIFIER,  # V4L2_PIX_FMT_NV12M_8L128
    'AT12': _NO_MODIFIER,  # V4L2_PIX_FMT_NV12_8L128
    'T010': _NO_MODIFIER,  # V4L2_PIX_FMT_P010_4L4
    'MT21': ("its blocks are compressed, and no DRM modifier says how; let MediaTek's image "
             'processor (MDP) convert it to NV12'),
    'MT2T': ('its 10-bit samples are tiled, and V4L2 does not say which DRM modifier describes '
             "the tiles; let MediaTek's image processor (MDP) convert it"),
    'MT2R': ('its 10-bit samples are tiled, and V4L2 does not say which DRM modifier describes '
             "the tiles; let MediaTek's image processor (MDP) convert it"),
    'Q10C': ("it is Qualcomm's compressed 10-bit format, which has no DRM fourcc; capture NV12 "
             'or P010'),
    'RGB4': "whether its fourth byte is alpha depends on the driver; use 'BX24' or 'BA24'",
    'BGR4': "whether its fourth byte is alpha depends on the driver; use 'XR24' or 'AR24'",
    **dict.fromkeys(('MJPG', 'JPEG', 'H264', 'HEVC', 'VP80', 'VP90', 'MPEG'), _COMPRESSED_STREAM),
    **dict.fromkeys(('BA81', 'GBRG', 'GRBG', 'RGGB', 'BG10', 'GB10', 'BA10', 'RG10', 'BG12',
                     'GB12', 'BA12', 'RG12', 'BYR2', 'GB16', 'GR16', 'RG16'), _BAYER),
}  # fmt: skip


def from_v4l2(name: str | int) -> V4l2Format:
    """
    Translate a V4L2 fourcc, given by its characters or its number.

    :raises FormatError: the format is unknown, compressed, Bayer, or tiled without a DRM modifier.
        The message has the reason.
    """
    name = fourcc_name(name) if isinstance(name, int) else f'{name:<4}'
    if name in _V4L2_BY_NAME:
        return _V4L2_BY_NAME[name]
    if name in _V4L2_REFUSED:
        raise FormatError(f"V4L2 format '{name}' can't be used: {_V4L2_REFUSED[name]}")
    drm = next((f for f in FORMATS.values() if f.name == name and f.v4l2), None)
    hint = f"; DRM's '{name}' is V4L2's '{drm.v4l2}'" if drm else nearest(name, _V4L2_BY_NAME)
    raise FormatError(f"V4L2 format '{name.strip()}' is not known{hint}")


_GSTREAMER_TILED = {
    (_NV12, int(KnownModifier.VIVANTE_TILED)): 'NV12_4L4',
    (_NV12, int(KnownModifier.SAMSUNG_64_32_TILE)): 'NV12_64Z32',
    (_NV12, int(KnownModifier.ALLWINNER_TILED)): 'NV12_32L32',
    (_NV12, int(KnownModifier.MTK_16L_32S_TILE)): 'NV12_16L32S',
    (_NV15, int(KnownModifier.VIVANTE_TILED)): 'NV12_10LE40_4L4',
}
_GSTREAMER_BY_NAME = {f.gstreamer: (f.code, LINEAR) for f in FORMATS.values() if f.gstreamer} | {
    name: pair for pair, name in _GSTREAMER_TILED.items()
}


def gstreamer_name(fourcc: int) -> str:
    """Return GStreamer's ``format`` for LINEAR images; FormatError: GStreamer has no such name."""
    name = pixel_format(fourcc).gstreamer
    if name is None:
        raise FormatError(
            f"'{fourcc_name(fourcc).strip()}' has no GStreamer format; GStreamer can get images "
            f'of this format only as dma-bufs ({DMA_DRM})'
        )
    return name


def gstreamer_format(fourcc: int, modifier: int) -> str:
    """
    Return GStreamer's ``format`` for a format with a modifier.

    LINEAR formats and a few tilings have their own names; the result for all others is
    ``DMA_DRM``.

    :raises FormatError: the layout is LINEAR, and GStreamer has no name for the format.
    """
    return (
        gstreamer_name(fourcc)
        if modifier == LINEAR
        else _GSTREAMER_TILED.get((fourcc, modifier), DMA_DRM)
    )


def from_gstreamer(name: str) -> tuple[int, int]:
    """
    Return ``(fourcc, modifier)`` of a GStreamer ``format``.

    :raises FormatError: no DRM fourcc is known for the name, or it is ``DMA_DRM``, for which the
        caps have the format in the field ``drm-format``.
    """
    if name == DMA_DRM:
        raise FormatError(
            f"GStreamer format '{DMA_DRM}' does not name a pixel format; the field drm-format of "
            'the caps names it'
        )
    if name not in _GSTREAMER_BY_NAME:
        raise FormatError(
            f"GStreamer format '{name}' has no DRM fourcc in this package"
            f'{nearest(name, _GSTREAMER_BY_NAME)}'
        )
    return _GSTREAMER_BY_NAME[name]


# Names of ROS 2 Humble (sensor_msgs/image_encodings.hpp) that later releases deprecate. They are
# read but never written.
_ROS_OLD_NAMES = {'yuv422': 'UYVY', 'yuv422_yuy2': 'YUYV'}
ROS_FORMATS = {f.ros: f.code for f in FORMATS.values() if f.ros} | {
    k: fourcc_code(v) for k, v in _ROS_OLD_NAMES.items()
}


def ros_encoding(fourcc: int) -> str:
    """
    Return a format's ``encoding`` in a ``sensor_msgs/Image``.

    ``nv12`` is this package's own name, because sensor_msgs names NV21 but not NV12.

    :raises FormatError: ROS has no name for the format; convert the image to ``rgb8``.
    """
    name = pixel_format(fourcc).ros
    if name is None:
        raise FormatError(
            f"'{fourcc_name(fourcc).strip()}' has no ROS image encoding; convert it, to rgb8 "
            'for instance'
        )
    return name


def from_ros_encoding(text: str) -> int:
    """Return the DRM fourcc of a ROS ``encoding``; FormatError: ``32FC1`` and others have none."""
    if text not in ROS_FORMATS:
        raise FormatError(
            f"image encoding '{text}' has no DRM fourcc in this package"
            f'{nearest(text, ROS_FORMATS)}'
        )
    return ROS_FORMATS[text]


def named_format(name: str) -> PixelFormat:
    """
    Return the format that a user has named by DRM fourcc (``NV12``) or ROS encoding (``rgb8``).

    :raises FormatError: the name is not known. The message lists all names.
    """
    own = {f.name.strip(): f for f in FORMATS.values()}
    found = own.get(name) or (FORMATS[ROS_FORMATS[name]] if name in ROS_FORMATS else None)
    if found is None:
        hint = nearest(str(name), [*own, *ROS_FORMATS])
        raise FormatError(
            f"pixel format '{name}' is not known{hint}; known are {', '.join(own)}; and the names "
            f'of ROS: {", ".join(ROS_FORMATS)}'
        )
    return found


# The members of L4T R35's ``NvBufSurfaceColorFormat`` that have a DRM fourcc. Y'CbCr formats
# without a suffix are BT.601, limited range; ``_ER`` means full range.
NvBufSurfaceFormat = IntEnum(
    'NvBufSurfaceFormat',
    'GRAY8 YUV420 YVU420 YUV420_ER YVU420_ER NV12 NV12_ER NV21 NV21_ER UYVY UYVY_ER VYUY VYUY_ER '
    'YUYV YUYV_ER YVYU YVYU_ER YUV444 RGBA BGRA ARGB ABGR RGBX BGRX XRGB XBGR RGB BGR NV12_10LE '
    'NV12_12LE YUV420_709 YUV420_709_ER NV12_709 NV12_709_ER YUV420_2020 NV12_2020 NV12_10LE_ER '
    'NV12_10LE_709 NV12_10LE_709_ER NV12_10LE_2020',
)


_NVBUF_YUV = {'YUV420': 'YU12', 'YVU420': 'YV12', 'NV12': 'NV12', 'NV21': 'NV21', 'UYVY': 'UYVY',
              'VYUY': 'VYUY', 'YUYV': 'YUYV', 'YVYU': 'YVYU', 'YUV444': 'YU24',
              'NV12_10LE': 'P010', 'NV12_12LE': 'P012'}  # fmt: skip
_NVBUF_RGB = {'GRAY8': 'R8  ', 'RGBA': 'AB24', 'BGRA': 'AR24', 'ARGB': 'BA24', 'ABGR': 'RA24',
              'RGBX': 'XB24', 'BGRX': 'XR24', 'XRGB': 'BX24', 'XBGR': 'RX24',
              'RGB': 'BG24', 'BGR': 'RG24'}  # fmt: skip
_NVBUF_SUFFIXES = {
    '': (Matrix.BT601, Range.LIMITED), '_ER': (Matrix.BT601, Range.FULL),
    '_709': (Matrix.BT709, Range.LIMITED), '_709_ER': (Matrix.BT709, Range.FULL),
    '_2020': (Matrix.BT2020, Range.LIMITED),
}  # fmt: skip
_NVBUF_BY_PAIR: dict[tuple[int, Matrix, Range], NvBufSurfaceFormat] = {
    (fourcc_code(fourcc), *colours): NvBufSurfaceFormat[base + suffix]
    for base, fourcc in _NVBUF_YUV.items()
    for suffix, colours in _NVBUF_SUFFIXES.items()
    if base + suffix in NvBufSurfaceFormat.__members__
}
_NVBUF_BY_FOURCC = {
    fourcc_code(fourcc): NvBufSurfaceFormat[name] for name, fourcc in _NVBUF_RGB.items()
}


def nvbufsurface_format(fourcc: int, colorimetry: Colorimetry) -> NvBufSurfaceFormat:
    """
    Return NvBufSurface's colour format, which for Y'CbCr also depends on matrix and range.

    :raises FormatError: NvBufSurface doesn't have the format, or not with this matrix and range.
    """
    if fourcc in _NVBUF_BY_FOURCC:
        return _NVBUF_BY_FOURCC[fourcc]
    found = _NVBUF_BY_PAIR.get((fourcc, colorimetry.matrix, colorimetry.range))
    if found is not None:
        return found
    name = pixel_format(fourcc).name.strip()
    there = [f'{m.value} {r.value}' for f, m, r in _NVBUF_BY_PAIR if f == fourcc]
    why = (
        f'known are {", ".join(there)}'
        if there
        else 'newer versions of NvBufSurface may have such a format'
    )
    raise FormatError(
        f"no NvBufSurface colour format for '{name}' {colorimetry.matrix.value} "
        f'{colorimetry.range.value}: {why}'
    )


def from_nvbufsurface(value: int) -> tuple[int, Colorimetry]:
    """
    Return ``(fourcc, colorimetry)`` of NvBufSurface's colour format.

    The modifier isn't part of it: the surface's field ``layout`` decides the modifier.

    :raises FormatError: no DRM fourcc is known for the value.
    """
    for (fourcc, matrix, span), known in _NVBUF_BY_PAIR.items():
        if known == value:
            return fourcc, Colorimetry(matrix, span)
    for fourcc, known in _NVBUF_BY_FOURCC.items():
        if known == value:
            return fourcc, RGB_FULL
    raise FormatError(
        f'NvBufSurface colour format {value} has no DRM fourcc in this package; only the formats '
        f'{min(NvBufSurfaceFormat)} .. {max(NvBufSurfaceFormat)} have one'
    )


_TEN_BITS_PACKED = fourcc_code('NV15')
_MOST_DENOMINATOR = 1001


class BufferPlanes(NamedTuple):
    """
    The used bytes of a picture's buffers, and the offsets and strides of the picture's planes.

    Each buffer's size counts only up to the end of the last plane in the buffer.

    As in a ``GstBuffer``, offsets count from the beginning of the first buffer, as if the buffers
    followed each other in memory.
    """

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    strides: tuple[int, ...]


def buffer_planes(layout: ImageLayout) -> BufferPlanes:
    """Return the sizes, offsets and strides for a ``GstBuffer`` made of a picture's buffers."""
    sizes = [layout.buffer_size(index) for index in range(layout.num_buffers)]
    begins = [sum(sizes[:index]) for index in range(len(sizes))]
    return BufferPlanes(
        tuple(sizes),
        tuple(begins[plane.buffer] + plane.offset for plane in layout.planes),
        tuple(plane.stride for plane in layout.planes),
    )


def default_layout(layout: ImageLayout) -> ImageLayout:
    """
    Return the layout that GStreamer assumes for a buffer without a ``GstVideoMeta``.

    All planes are in one buffer without gaps. Strides are multiples of 4 bytes, except for NV15.
    """
    planes, offset = [], 0
    for plane in layout.format.planes:
        stride = plane.row_bytes(layout.width)
        if layout.fourcc != _TEN_BITS_PACKED:
            stride = -(-stride // 4) * 4
        size = stride * plane.rows(layout.height)
        planes.append(PlaneLayout(0, offset, stride, size))
        offset += size
    return replace(layout, planes=tuple(planes))


def is_default(layout: ImageLayout) -> bool:
    """Return whether a LINEAR picture has GStreamer's default offsets and strides."""
    return buffer_planes(layout)[1:] == buffer_planes(default_layout(layout))[1:]


def frame_caps(
    layout: ImageLayout,
    colorimetry: Colorimetry,
    framerate: float = 0.0,
    *,
    dmabuf: bool,
    drm: bool = False,
) -> str:
    """
    Return GStreamer's caps for pictures of this layout.

    If GStreamer has no name for the format, the caps have a ``drm-format``.

    :param framerate: frames per second; 0: the rate varies or isn't known.
    :param dmabuf: whether the buffers are dma-bufs; only then can caps have a ``drm-format``.
    :param drm: whether to write the ``drm-format`` even if GStreamer has a name for the format.
    :raises FormatError: caps can't describe these pictures.
    """
    name = DMA_DRM if drm else _format(layout, dmabuf)
    described = f'format=(string){name}'
    if name == DMA_DRM:
        if not dmabuf or layout.modifier == INVALID:
            why = 'these buffers are no dma-bufs' if not dmabuf else 'the modifier is INVALID'
            raise FormatError(
                f'GStreamer caps for {layout.describe()} need a drm-format, but {why}; '
                'choose a linear pixel_format that GStreamer has a name for, such as NV12'
            )
        described += f', drm-format=(string){drm_format_string(layout.fourcc, layout.modifier)}'
    feature = '(memory:DMABuf)' if name == DMA_DRM else ''
    from fractions import Fraction  # imported late: slow to load, and few nodes need it

    rate = Fraction(framerate).limit_denominator(_MOST_DENOMINATOR)
    return (
        f'video/x-raw{feature}, {described}, width=(int){layout.width}, '
        f'height=(int){layout.height}, framerate=(fraction){rate.numerator}/{rate.denominator}, '
        f'colorimetry=(string){gstreamer_colorimetry(colorimetry)}'
    )


def _format(layout: ImageLayout, dmabuf: bool) -> str:
    if layout.modifier == LINEAR:
        try:
            return gstreamer_name(layout.fourcc)
        except FormatError:
            if dmabuf:
                return DMA_DRM
            raise FormatError(
                f"'{fourcc_name(layout.fourcc).strip()}' has no name in GStreamer; choose "
                'another pixel_format, such as NV12'
            ) from None
    return gstreamer_format(layout.fourcc, layout.modifier)
