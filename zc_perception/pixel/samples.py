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
The samples of frames as single planes, and planes at another size.

Every conversion of :mod:`~zc_perception.pixel.conversion` is made of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.errors import LayoutError
from zc_perception.pixel.fourcc import PixelFormat
from zc_perception.pixel.layout import check_dimensions, compute_layout

Pixels = NDArray[np.uint8]
Planes = Sequence[NDArray[Any]]
Size = tuple[int, int]


class Checked:
    """
    Refuses planes of another format or size.

    OpenCV would answer them with memory of its own, or misread them.
    """

    def __init__(self, fmt: PixelFormat, width: int, height: int) -> None:
        check_dimensions(fmt, width, height)
        self._text = f'{fmt.name.strip()} {width}x{height}'
        arrays = compute_layout(fmt.code, width, height).arrays
        self._arrays = [(array.shape, np.dtype(array.sample)) for array in arrays]

    def __call__(self, planes: Planes) -> Sequence[NDArray[Any]]:
        found = planes[:]
        fits = len(found) == len(self._arrays)
        for plane, (shape, dtype) in zip(found, self._arrays, strict=False):
            fits = fits and plane.shape == shape and plane.dtype == dtype
        if not fits:
            has, wants = (
                [f'{dtype} {shape}' for shape, dtype in these]
                for these in ([(p.shape, p.dtype) for p in found], self._arrays)
            )
            raise LayoutError(
                f'planes are {" and ".join(has)}; this conversion was made for {self._text}, '
                f'{" and ".join(wants)}: '
                'make another for frames of another size or format'
            )
        return found


class Resized:
    """
    One plane at another size and in 8 bits.

    What is that already stays where it is.

    :param shape: of the plane: rows, columns and, if it has several, components.
    :param wide: whether its samples have 16 bits.
    """

    def __init__(
        self, shape: Sequence[int], size: Size, interpolation: int, *, wide: bool = False
    ) -> None:
        rows, columns, *components = shape
        self._size = size
        self._filter = interpolation
        self._scaled = (columns, rows) != size
        # The mean of two rows, for which OpenCV's resizing takes twelve times as long.
        self._two_rows = interpolation == cv2.INTER_AREA and (columns, rows) == (
            size[0],
            2 * size[1],
        )
        result = (size[1], size[0], *components)
        # Where a filter mixes samples, they are of 8 bits before: the picture is the one that NV12
        # gives. Where it only picks some, it comes first, and fewer are left to cut down.
        between = self._scaled and interpolation not in (
            cv2.INTER_NEAREST,
            cv2.INTER_NEAREST_EXACT,
        )
        self._before = np.empty(tuple(shape), np.uint8) if wide and between else None
        wide = wide and not between
        self._memory = np.empty(result, np.uint16 if wide else np.uint8) if self._scaled else None
        self._narrow = np.empty(result, np.uint8) if wide else None

    def __call__(self, plane: NDArray[Any], out: Pixels | None = None) -> Pixels:
        """
        Return the resized plane, which is *out* if that is given.

        With *out*, it is there.
        """
        if self._before is not None:
            plane = narrowed(plane, self._before)
        if self._scaled:
            target = self._memory if out is None or self._narrow is not None else out
            if self._two_rows:
                cv2.addWeighted(plane[0::2], 0.5, plane[1::2], 0.5, 0.0, dst=target)
            else:
                cv2.resize(plane, self._size, dst=target, interpolation=self._filter)
            assert target is not None
            plane = target
        if self._narrow is not None:
            plane = narrowed(plane, self._narrow if out is None else out)
        if out is not None and plane is not out:
            np.copyto(out, plane)
        return plane


def cut_to(size: Size, fmt: PixelFormat, planes: Planes) -> Planes:
    """Return the left upper part of an image's planes, of *size* pixels."""
    width, height = size
    return [
        plane[: part.rows(height), : width // part.horizontal]
        for plane, part in zip(planes, fmt.planes, strict=True)
    ]


def narrowed(plane: NDArray[np.uint16], out: Pixels) -> Pixels:
    """Narrow 16 bits to 8, rounded: the high byte alone would darken."""
    cv2.convertScaleAbs(plane, dst=out, alpha=1 / 256)
    return out


class Yuv(NamedTuple):
    """
    How the samples of a Y'CbCr format lie.

    :param packed: luma and chroma in one plane, in turn.
    :param luma_first: of a packed one.
    :param planar: U and V have a plane each; otherwise one plane has pairs.
    :param v_first: V before U.
    :param horizontal: luma samples of a row that share a chroma sample.
    :param vertical: rows that do.
    :param wide: 16 bits each.
    """

    packed: bool
    luma_first: bool
    planar: bool
    v_first: bool
    horizontal: int
    vertical: int
    wide: bool


def yuv_of(fmt: PixelFormat) -> Yuv:
    components = ''.join(''.join(plane) for plane in fmt.components)
    return Yuv(
        packed=len(fmt.planes) == 1,
        luma_first=components[0] == 'Y',
        planar=len(fmt.planes) == 3,
        v_first=components.index('V') < components.index('U'),
        horizontal=fmt.horizontal,
        vertical=fmt.vertical,
        wide=fmt.bits > 8,
    )


class Apart:
    """
    Splits a picture into luma and chroma; chroma is one plane of pairs or two planes.

    The planes are views, except for packed formats: their samples are copied.
    """

    def __init__(self, yuv: Yuv, width: int, height: int) -> None:
        self._yuv = yuv
        self._halves = (
            [np.empty((height, width), np.uint8) for _ in range(2)] if yuv.packed else []
        )
        self._pairs = (height, width // 2, 2)

    def __call__(self, planes: Planes) -> tuple[NDArray[Any], list[NDArray[Any]]]:
        if not self._yuv.packed:
            return planes[0], list(planes[1:])
        cv2.split(two_by_two(planes[0]), self._halves)
        luma, chroma = self._halves if self._yuv.luma_first else self._halves[::-1]
        return luma, [chroma.reshape(self._pairs)]


def two_by_two(packed: Pixels) -> Pixels:
    """
    View (rows, columns / 2, 4) as (rows, columns, 2).

    Each pixel has its luma and one of the two chroma samples.
    """
    return packed.reshape(packed.shape[0], packed.shape[1] * 2, 2)


class Filters:
    """How to resize planes to a picture."""

    def __init__(self, source: Size, size: Size) -> None:
        # Source samples per sample of the picture, across and down; 0 where that is no whole
        # number.
        self._ratios = [
            0 if whole % part else whole // part for whole, part in zip(source, size, strict=True)
        ]
        self._enlarged = size[0] > source[0] or size[1] > source[1]
        # At an odd ratio linear interpolation reads the one sample in the middle: the same
        # picture, a third of the time.
        odd = all(ratio % 2 for ratio in self._ratios)
        self.luma: int = cv2.INTER_NEAREST_EXACT if odd else cv2.INTER_LINEAR

    def chroma(self, horizontal: int, vertical: int) -> int:
        """
        Resize chroma; a luma sample has the colour of the chroma sample that it lies in.

        The same holds for the picture's pixel, unless it lies between two samples. The rule is the
        same for 4:4:4: a scene gives the same picture in every format.
        """
        between = any(
            ratio and ratio % (2 * shared) == 0
            for ratio, shared in zip(self._ratios, (horizontal, vertical), strict=True)
        )
        return int(cv2.INTER_LINEAR if self._enlarged or between else cv2.INTER_NEAREST_EXACT)
