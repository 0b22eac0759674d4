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
How GStreamer describes a picture of ours: its caps, and where the planes lie in its buffer.

Source: GStreamer's *video-info.c* for the default strides and offsets, the *DMA buffers* design
for caps with a ``drm-format``.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

from zc_perception.errors import FormatError
from zc_perception.pixel.colorimetry import Colorimetry, gstreamer_colorimetry
from zc_perception.pixel.drm_format import drm_format_string
from zc_perception.pixel.format_names import DMA_DRM, gstreamer_format, gstreamer_name
from zc_perception.pixel.fourcc import fourcc_code, fourcc_name
from zc_perception.pixel.layout import ImageLayout, PlaneLayout
from zc_perception.pixel.modifier import INVALID, LINEAR

_TEN_BITS_PACKED = fourcc_code('NV15')
_MOST_DENOMINATOR = 1001


class BufferPlanes(NamedTuple):
    """
    One picture's memories, and its planes.

    Offsets count from the beginning of the first memory; the memories follow each other.
    """

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    strides: tuple[int, ...]


def buffer_planes(layout: ImageLayout) -> BufferPlanes:
    """
    Describe how a ``GstBuffer`` over a picture's buffers lies in memory.

    Bytes behind the last plane of a buffer are left out.
    """
    sizes = [layout.buffer_size(index) for index in range(layout.num_buffers)]
    begins = [sum(sizes[:index]) for index in range(len(sizes))]
    return BufferPlanes(
        tuple(sizes),
        tuple(begins[plane.buffer] + plane.offset for plane in layout.planes),
        tuple(plane.stride for plane in layout.planes),
    )


def default_layout(layout: ImageLayout) -> ImageLayout:
    """
    Return the layout that GStreamer assumes for the picture where nothing else is said.

    All planes lie in one buffer, and each row is a multiple of 4 bytes.
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
    """Tell whether GStreamer finds a linear picture's planes without being told."""
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
    Return caps of pictures.

    They are ``video/x-raw`` where GStreamer has a name for the format, else caps with a
    ``drm-format``.

    :param framerate: 0: it varies, or nobody knows.
    :param dmabuf: the memory is dma-bufs; only caps of dma-bufs can have a ``drm-format``.
    :param drm: write the ``drm-format`` in any case.
    :raises FormatError: GStreamer has no caps for these pictures.
    """
    name = DMA_DRM if drm else _format(layout, dmabuf)
    described = f'format=(string){name}'
    if name == DMA_DRM:
        if not dmabuf or layout.modifier == INVALID:
            why = 'no dma-buf' if not dmabuf else 'of a layout that nobody names'
            raise FormatError(
                f'{layout.describe()} is {why}, and needs caps with a drm-format in GStreamer; '
                'choose a linear pixel_format that GStreamer has a name for, such as NV12'
            )
        described += f', drm-format=(string){drm_format_string(layout.fourcc, layout.modifier)}'
    feature = '(memory:DMABuf)' if name == DMA_DRM else ''
    rate = Fraction(framerate).limit_denominator(_MOST_DENOMINATOR)
    return (
        f'video/x-raw{feature}, {described}, width=(int){layout.width}, '
        f'height=(int){layout.height}, '
        f'framerate=(fraction){rate.numerator}/{rate.denominator}, '
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
