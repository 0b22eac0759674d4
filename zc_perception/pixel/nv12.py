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

"""Writing frames of any readable format, and colour pictures, into NV12 planes."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.errors import LayoutError
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Range
from zc_perception.pixel.conversion import ToPicture
from zc_perception.pixel.fourcc import NV12, pixel_format, PixelFormat
from zc_perception.pixel.layout import check_dimensions
from zc_perception.pixel.readable import check_readable, limited_range_table, rgb_range
from zc_perception.pixel.samples import Apart, Checked, Pixels, Planes, Resized, Size, Yuv, yuv_of

# By whether red comes first, and whether alpha follows.
_CODES = {
    (False, False): cv2.COLOR_BGR2YUV_I420,
    (True, False): cv2.COLOR_RGB2YUV_I420,
    (False, True): cv2.COLOR_BGRA2YUV_I420,
    (True, True): cv2.COLOR_RGBA2YUV_I420,
}


def even(size: int) -> int:
    """Return *size* without an odd last row or column, which NV12 can't have."""
    return size & ~1


class Nv12Writer:
    """
    Converts pictures of one size to BT.601 limited, into planes that the caller owns.

    It converts as OpenCV does. Its scratch memory is allocated once.

    :raises LayoutError: a size that NV12 can't have.
    """

    def __init__(self, width: int, height: int) -> None:
        check_dimensions(pixel_format(NV12), width, height)
        self._shapes = {
            'picture': (height, width, 3),
            'luma': (height, width),
            'chroma': (height // 2, width // 2, 2),
        }
        self._height = height
        self._planar = np.empty((height * 3 // 2, width), np.uint8)
        half, quarter = (height // 2, width // 2), height * width // 4
        flat = self._planar[height:].reshape(-1)
        self._half_planes = [flat[:quarter].reshape(half), flat[quarter:][:quarter].reshape(half)]

    def write(
        self,
        picture: NDArray[np.uint8],
        luma: NDArray[np.uint8],
        chroma: NDArray[np.uint8],
        *,
        rgb: bool = False,
    ) -> None:
        """
        Write *picture* into *luma* and *chroma*, which may have any row stride.

        *picture* is (height, width, 3): B G R, or with *rgb* R G B. It may have a fourth channel,
        alpha, which is ignored: a transparent pixel keeps its colour.

        :raises LayoutError: an array isn't ``uint8`` of the writer's size, or a plane is
            read-only.
        """
        alpha = picture.shape[2:] == (4,)
        shapes = self._shapes | {'picture': (*self._shapes['luma'], 4 if alpha else 3)}
        for (name, shape), array in zip(shapes.items(), (picture, luma, chroma), strict=True):
            # OpenCV answers a destination of the wrong shape with a new array, and the planes
            # would keep the picture before.
            if array.shape != shape or array.dtype != np.uint8:
                raise LayoutError(
                    f'{name} is {array.dtype} {array.shape}; this writer needs uint8 {shape}'
                )
            if array is not picture and not array.flags.writeable:
                raise LayoutError(f'{name} is read-only; map the frame with write=True')
        cv2.cvtColor(picture, _CODES[rgb, alpha], dst=self._planar)
        np.copyto(luma, self._planar[: self._height])
        cv2.merge(self._half_planes, dst=chroma)


class ToNv12:
    """
    Makes NV12 of frames.

    Luma and chroma keep their matrix and range; grey and R, G, B become BT.601 limited.

    :param size: width and height to scale to; ``None``: the frame's. Both have to be even.
    :raises FormatError: see :func:`check_readable`.
    :raises LayoutError: a size that the format or NV12 can't have.
    """

    def __init__(
        self,
        fourcc: int,
        width: int,
        height: int,
        colorimetry: Colorimetry,
        *,
        size: Size | None = None,
    ) -> None:
        fmt = check_readable(fourcc, colorimetry)
        self._check = Checked(fmt, width, height)
        self._size = size or (width, height)
        check_dimensions(pixel_format(NV12), *self._size)
        self.colorimetry = colorimetry if fmt.is_yuv else BT601_LIMITED
        shapes = (self._size[1], self._size[0]), (self._size[1] // 2, self._size[0] // 2, 2)
        self._shapes = shapes
        self._way: _Nv12Way
        if fmt.is_yuv:
            self._way = _YuvToNv12(yuv_of(fmt), (width, height), self._size)
        elif fmt.is_grey:
            self._way = _GreyToNv12(fmt, (width, height), self._size, colorimetry.range)
        else:
            self._way = _RgbToNv12(fmt, (width, height), self._size, colorimetry)

    def convert(self, planes: Planes, luma: Pixels, chroma: Pixels) -> None:
        """
        Convert in one pass into *luma* and *chroma*, which may have any row stride.

        *luma* is (height, width), *chroma* is (height / 2, width / 2, 2).

        :raises LayoutError: planes have another size or type, or a target can't be written.
        """
        found = self._check(planes)
        for name, target, shape in zip(
            ('luma', 'chroma'), (luma, chroma), self._shapes, strict=True
        ):
            # OpenCV answers a destination of the wrong shape with a new array, and the planes
            # would keep the picture before.
            if target.shape != shape or target.dtype != np.uint8 or not target.flags.writeable:
                kind = 'uint8' if target.flags.writeable else 'read-only'
                raise LayoutError(
                    f'{name} is {kind} {target.shape}; this conversion writes uint8 {shape}'
                )
        self._way.write(found, luma, chroma)


class _Nv12Way:
    """One way from planes to NV12."""

    def write(self, planes: Planes, luma: Pixels, chroma: Pixels) -> None:
        """Fill both."""
        raise NotImplementedError


def _area(source: Size, size: Size) -> int:
    return int(
        cv2.INTER_AREA if size[0] <= source[0] and size[1] <= source[1] else cv2.INTER_LINEAR
    )


class _YuvToNv12(_Nv12Way):
    """Scales Y'CbCr planes and brings chroma to NV12's resolution."""

    def __init__(self, yuv: Yuv, source: Size, size: Size) -> None:
        width, height = source
        self._v_first = yuv.v_first
        self._apart = Apart(yuv, width, height)
        self._luma = Resized((height, width), size, _area(source, size), wide=yuv.wide)
        samples, half = (
            (width // yuv.horizontal, height // yuv.vertical),
            (size[0] // 2, size[1] // 2),
        )
        self._pairs = not yuv.planar
        # A pair of planes is resized more quickly than a plane of pairs.
        self._direct = (
            Resized((*samples[::-1], 2), half, cv2.INTER_NEAREST, wide=yuv.wide)
            if self._pairs and samples == half
            else None
        )
        if self._direct is not None:
            self._order = [0, 1, 1, 0] if yuv.v_first else []
            return
        self._split = (
            [np.empty(samples[::-1], np.uint16 if yuv.wide else np.uint8) for _ in range(2)]
            if self._pairs
            else []
        )
        self._chroma = [
            Resized(samples[::-1], half, _area(samples, half), wide=yuv.wide) for _ in range(2)
        ]

    def write(self, planes: Planes, luma: Pixels, chroma: Pixels) -> None:
        own_luma, own_chroma = self._apart(planes)
        self._luma(own_luma, luma)
        if self._direct is not None:
            if self._order:
                cv2.mixChannels([self._direct(own_chroma[0])], [chroma], self._order)
            else:
                self._direct(own_chroma[0], chroma)
            return
        if self._pairs:
            cv2.split(own_chroma[0], self._split)
            own_chroma = self._split
        halves = [resized(plane) for resized, plane in zip(self._chroma, own_chroma, strict=True)]
        cv2.merge(halves[::-1] if self._v_first else halves, dst=chroma)


class _GreyToNv12(_Nv12Way):
    """Scales grey to luma; chroma is constant."""

    def __init__(self, fmt: PixelFormat, source: Size, size: Size, span: Range) -> None:
        self._resized = Resized(source[::-1], size, _area(source, size), wide=fmt.bits > 8)
        self._table = limited_range_table() if span is Range.FULL else None

    def write(self, planes: Planes, luma: Pixels, chroma: Pixels) -> None:
        if self._table is None:
            self._resized(planes[0], luma)
        else:
            cv2.LUT(self._resized(planes[0]), self._table, dst=luma)
        chroma[:] = 128


class _RgbToNv12(_Nv12Way):
    def __init__(
        self, fmt: PixelFormat, source: Size, size: Size, colorimetry: Colorimetry
    ) -> None:
        components = fmt.components[0]
        self._rgb = components[0] == 'R'
        plain = (
            components[0] in 'RB' and fmt.bits == 8 and rgb_range(fmt, colorimetry) is Range.FULL
        )
        # Nv12Writer takes B, G, R and R, G, B, with a fourth channel and without.
        self._resized = (
            Resized((*source[::-1], len(components)), size, _area(source, size)) if plain else None
        )
        self._picture = (
            None
            if plain
            else ToPicture(fmt.code, *source, colorimetry, size=size, bgr=not self._rgb)
        )
        self._writer = Nv12Writer(*size)

    def write(self, planes: Planes, luma: Pixels, chroma: Pixels) -> None:
        if self._resized is not None:
            picture = self._resized(planes[0])
        else:
            assert self._picture is not None
            picture = self._picture.convert(planes)
        self._writer.write(picture, luma, chroma, rgb=self._rgb)
