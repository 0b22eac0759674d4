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
Convert pixels of any LINEAR format to colour pictures and to luma.

This module and :mod:`~zc_perception.pixel.nv12` are the only places that know how to read a
format; :data:`~zc_perception.pixel.readable.READABLE` says which formats they read. Code that
needs pixels asks here and never looks at planes by itself: NV12 and NV21 differ only in the order
of two bytes, and a picture with the wrong order looks plausible.

Each converter is made for one format, size and colorimetry. It allocates its memory once, and
refuses planes of anything else. Where the picture gets smaller, planes are resized first and
colours are converted after: that reads and computes a fraction of what converting the full frame
would. Chroma is brought to the picture's size: at half of it, as 4:2:0 asks for, the picture would
lose colour detail that the frame has. ``zc_bench decode`` measures the speed, and the difference
from converting the full frame first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.errors import LayoutError
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import PixelFormat
from zc_perception.pixel.readable import check_readable, full_range_table, rgb_matrix, rgb_range
from zc_perception.pixel.samples import (
    Apart,
    Checked,
    Filters,
    Pixels,
    Planes,
    Resized,
    Size,
    two_by_two,
    Yuv,
    yuv_of,
)

# OpenCV converts this many columns at once (two vectors of 64 bytes, AVX-512; others have less),
# and those that are left over one by one: at 360 columns nine tenths of the time.
_COLUMNS = 128


def _codes(layout: str) -> dict[tuple[bool, int], int]:
    """Return OpenCV's conversions from *layout*, by (bgr, channels)."""
    orders = {(False, 3): 'RGB', (True, 3): 'BGR', (False, 4): 'RGBA', (True, 4): 'BGRA'}
    return {key: getattr(cv2, f'COLOR_YUV2{order}_{layout}') for key, order in orders.items()}


_NV12_CODES, _NV21_CODES = _codes('NV12'), _codes('NV21')
_PACKED_CODES = {'YUYV': _codes('YUY2'), 'YVYU': _codes('YVYU'), 'UYVY': _codes('UYVY')}
# No conversion of OpenCV's: the same order, and one that it has none for.
_AS_IT_IS, _ANY_ORDER = -1, -2
# 5 and 6 bits to 8, so that all ones become 255; OpenCV leaves the low bits at 0.
_WIDEN = np.stack([np.arange(256) | np.arange(256) >> bits for bits in (5, 6, 5)], axis=-1).astype(
    np.uint8
)[None]


class ToPicture:
    """
    Makes R, G, B pictures, in memory that is allocated once, or in the caller's.

    :param colorimetry: of the frames. Of grey and of R, G, B it is
        :func:`~zc_perception.pixel.readable.rgb_range` alone.
    :param size: width and height of the picture; ``None``: the frame's.
    :param channels: 3, or 4 for a last one of 255.
    :param bgr: channel order B, G, R instead of R, G, B.
    :raises FormatError: see :func:`check_readable`.
    :raises LayoutError: a size that the format can't have.
    """

    def __init__(
        self,
        fourcc: int,
        width: int,
        height: int,
        colorimetry: Colorimetry,
        *,
        size: Size | None = None,
        channels: int = 3,
        bgr: bool = False,
    ) -> None:
        fmt = check_readable(fourcc, colorimetry)
        self._check = Checked(fmt, width, height)
        self._size = size or (width, height)
        self._shape = (self._size[1], self._size[0], channels)
        self._picture: Pixels | None = None
        self._way: _Way
        if not fmt.is_yuv:
            self._way = _FromRgb(
                fmt, (width, height), self._size, channels, bgr, rgb_range(fmt, colorimetry)
            )
            return
        yuv = yuv_of(fmt)
        # OpenCV's own conversions know BT.601 limited alone, and no scaling.
        plain = (colorimetry.matrix, colorimetry.range) == (
            BT601_LIMITED.matrix,
            BT601_LIMITED.range,
        ) and self._size == (width, height)
        if plain and (yuv.horizontal, yuv.vertical) == (2, 1) and fmt.name != 'VYUY':
            self._way = _Packed(fmt, yuv, width, height, channels, bgr)
        elif plain and yuv.vertical == 2:
            self._way = _TwoPlanes(yuv, width, height, channels, bgr)
        else:
            matrix = rgb_matrix(colorimetry)
            self._way = _ByMatrix(
                yuv, (width, height), self._size, channels, matrix[::-1] if bgr else matrix
            )

    def convert(self, planes: Planes, out: Pixels | None = None) -> Pixels:
        """
        Convert *planes* to a picture (height, width, channels).

        Without *out*, the next call overwrites the result.

        :param planes: a frame's planes, as :meth:`zc_perception.frame.Frame.map` returns them; any
            row stride.
        :param out: where the picture goes; any row stride.
        :raises LayoutError: planes or *out* have another size or type.
        """
        found = self._check(planes)
        if out is None:
            if self._picture is None:
                self._picture = np.empty(self._shape, np.uint8)
            out = self._picture
        elif out.shape != self._shape or out.dtype != np.uint8:
            raise LayoutError(
                f'the picture is {out.dtype} {out.shape}; this conversion writes uint8 '
                f'{self._shape}'
            )
        self._way.write(found, out)
        return out


class _Way:
    """One way from planes to a picture."""

    def write(self, planes: Planes, out: Pixels) -> None:
        """Fill *out*."""
        raise NotImplementedError


class _Aligned:
    """
    Runs one of OpenCV's conversions over all columns of its vector width, and then the rest.

    The rest is padded to the vector width in scratch memory.

    :param parts: per input, the columns that share an element of it, and its elements' components;
        none for 1.
    """

    def __init__(
        self,
        width: int,
        height: int,
        channels: int,
        parts: Sequence[tuple[int, int, tuple[int, ...]]],
    ) -> None:
        self._split = width // _COLUMNS * _COLUMNS
        self._rest = width - self._split
        self._shares = [horizontal for horizontal, _, _ in parts]
        if self._rest:
            self._inputs = [
                np.zeros((height // down, _COLUMNS // across, *more), np.uint8)
                for across, down, more in parts
            ]
            self._output = np.empty((height, _COLUMNS, channels), np.uint8)

    def run(self, convert: Any, inputs: Sequence[Pixels], out: Pixels) -> None:
        """
        Run the conversion.

        :param convert: takes inputs and output.
        """
        split = self._split
        if not self._rest:
            convert(inputs, out)
            return
        if split:
            convert(
                [
                    given[:, : split // across]
                    for given, across in zip(inputs, self._shares, strict=True)
                ],
                out[:, :split],
            )
        for given, across, memory in zip(inputs, self._shares, self._inputs, strict=True):
            done = split // across
            np.copyto(memory[:, : self._rest // across], given[:, done:])
        convert(self._inputs, self._output)
        np.copyto(out[:, split:], self._output[:, : self._rest])


class _TwoPlanes(_Way):
    """
    4:2:0 of the picture's size, BT.601 limited.

    Luma below black is black here, where the matrix alone would go on.
    """

    def __init__(self, yuv: Yuv, width: int, height: int, channels: int, bgr: bool) -> None:
        half = height // 2, width // 2
        swapped = yuv.v_first and not yuv.planar
        self._v_first = yuv.v_first
        self._code = (_NV21_CODES if swapped else _NV12_CODES)[bgr, channels]
        self._pairs = np.empty((*half, 2), np.uint8) if yuv.planar else None
        self._luma = Resized((height, width), (width, height), cv2.INTER_NEAREST, wide=yuv.wide)
        self._chroma = Resized((*half, 2), half[::-1], cv2.INTER_NEAREST, wide=yuv.wide)
        self._aligned = _Aligned(width, height, channels, [(1, 1, ()), (2, 2, (2,))])

    def write(self, planes: Planes, out: Pixels) -> None:
        chroma = planes[1]
        if self._pairs is not None:
            cv2.merge(planes[:0:-1] if self._v_first else planes[1:], dst=self._pairs)
            chroma = self._pairs
        self._aligned.run(self._convert, [self._luma(planes[0]), self._chroma(chroma)], out)

    def _convert(self, inputs: Sequence[Pixels], out: Pixels) -> None:
        cv2.cvtColorTwoPlane(inputs[0], inputs[1], self._code, dst=out)


class _Packed(_Way):
    """
    4:2:2 of the picture's size, BT.601 limited.

    Planes are put into YUYV first, which is quicker than a matrix.
    """

    def __init__(
        self, fmt: PixelFormat, yuv: Yuv, width: int, height: int, channels: int, bgr: bool
    ) -> None:
        self._planar, self._v_first = yuv.planar, yuv.v_first
        name = fmt.name if yuv.packed else 'YVYU' if yuv.v_first and not yuv.planar else 'YUYV'
        self._code = _PACKED_CODES[name][bgr, channels]
        self._packed = None if yuv.packed else np.empty((height, width, 2), np.uint8)
        self._pairs = np.empty((height, width // 2, 2), np.uint8) if yuv.planar else None
        self._rows = (height, width)
        self._luma = Resized((height, width), (width, height), cv2.INTER_NEAREST, wide=yuv.wide)
        self._chroma = Resized(
            (height, width // 2, 2), (width // 2, height), cv2.INTER_NEAREST, wide=yuv.wide
        )
        self._aligned = _Aligned(width, height, channels, [(1, 1, (2,))])

    def write(self, planes: Planes, out: Pixels) -> None:
        if self._packed is None:
            packed = two_by_two(planes[0])
        else:
            chroma = planes[1]
            if self._pairs is not None:
                cv2.merge(planes[:0:-1] if self._v_first else planes[1:], dst=self._pairs)
                chroma = self._pairs
            cv2.merge(
                [self._luma(planes[0]), self._chroma(chroma).reshape(self._rows)], dst=self._packed
            )
            packed = self._packed
        self._aligned.run(self._convert, [packed], out)

    def _convert(self, inputs: Sequence[Pixels], out: Pixels) -> None:
        cv2.cvtColor(inputs[0], self._code, dst=out)


class _ByMatrix(_Way):
    """Any Y'CbCr format, size and colorimetry."""

    def __init__(
        self, yuv: Yuv, source: Size, size: Size, channels: int, matrix: NDArray[np.float64]
    ) -> None:
        self._yuv = yuv
        self._matrix = matrix
        width, height = source
        filters = Filters(source, size)
        across, down = width // yuv.horizontal, height // yuv.vertical
        chroma_filter = filters.chroma(yuv.horizontal, yuv.vertical)
        shape = (size[1], size[0])
        # The nearest samples of a packed format can be taken out of it; for others it comes apart
        # first.
        self._nearest = (
            yuv.packed
            and source != size
            and filters.luma == chroma_filter == cv2.INTER_NEAREST_EXACT
        )
        if self._nearest:
            self._size = size
            self._two, self._four = (
                np.empty((*shape, 2), np.uint8),
                np.empty((*shape, 4), np.uint8),
            )
            self._twos, self._fours = (
                [np.empty(shape, np.uint8) for _ in range(count)] for count in (2, 4)
            )
        else:
            self._apart = Apart(yuv, width, height)
            self._luma = Resized((height, width), size, filters.luma, wide=yuv.wide)
            chroma = [(down, across)] * 2 if yuv.planar else [(down, across, 2)]
            self._chroma = [Resized(each, size, chroma_filter, wide=yuv.wide) for each in chroma]
            self._halves = [np.empty(shape, np.uint8) for _ in range(2)]
        self._ycc = np.empty((*shape, 3), np.uint8)
        self._rgb = np.empty((*shape, 3), np.uint8) if channels == 4 else None

    def write(self, planes: Planes, out: Pixels) -> None:
        luma, chroma = self._nearest_samples(planes[0]) if self._nearest else self._samples(planes)
        # Three single planes are merged four times as quickly as one and a pair.
        cv2.merge([luma, *(chroma[::-1] if self._yuv.v_first else chroma)], dst=self._ycc)
        if self._rgb is None:
            cv2.transform(self._ycc, self._matrix, dst=out)
        else:
            cv2.transform(self._ycc, self._matrix, dst=self._rgb)
            cv2.cvtColor(self._rgb, cv2.COLOR_RGB2RGBA, dst=out)

    def _samples(self, planes: Planes) -> tuple[Pixels, list[Pixels]]:
        luma, chroma = self._apart(planes)
        small = [resized(plane) for resized, plane in zip(self._chroma, chroma, strict=True)]
        if len(small) == 1:
            cv2.split(small[0], self._halves)
            small = self._halves
        return self._luma(luma), small

    def _nearest_samples(self, packed: Pixels) -> tuple[Pixels, list[Pixels]]:
        cv2.resize(
            two_by_two(packed), self._size, dst=self._two, interpolation=cv2.INTER_NEAREST_EXACT
        )
        cv2.resize(packed, self._size, dst=self._four, interpolation=cv2.INTER_NEAREST_EXACT)
        cv2.split(self._two, self._twos)
        cv2.split(self._four, self._fours)
        luma, chroma = (0, 1) if self._yuv.luma_first else (1, 0)
        return self._twos[luma], self._fours[chroma::2]


class _FromRgb(_Way):
    """Grey, and R, G, B in any order."""

    def __init__(
        self, fmt: PixelFormat, source: Size, size: Size, channels: int, bgr: bool, span: Range
    ) -> None:
        components = fmt.components[0]
        wanted = [*('BGR' if bgr else 'RGB'), 'A'][:channels]
        self._channels = channels
        self._word = fmt.bits == 5
        self._grey = len(components) == 1
        self._table = full_range_table() if span is Range.LIMITED else None
        word_code = cv2.COLOR_BGR5652BGR if (components[0] == 'B') == bgr else cv2.COLOR_BGR5652RGB
        grey_code = cv2.COLOR_GRAY2BGR if channels == 3 else cv2.COLOR_GRAY2BGRA
        self._code = (
            word_code
            if self._word
            else grey_code
            if self._grey
            else _order_code(components, wanted)
        )
        self._moves = _moves(components, wanted) if self._code == _ANY_ORDER else []
        shape: tuple[int, ...] = (
            source[::-1] if self._grey else (*source[::-1], 3 if self._word else len(components))
        )
        self._resized = Resized(shape, size, Filters(source, size).luma, wide=fmt.bits == 16)
        self._wide = np.empty((*source[::-1], 3), np.uint8) if self._word else None
        # Padding where alpha is wanted, and alpha that is not 255.
        self._opaque = channels == 4 and not self._grey
        self._three = np.empty((*size[::-1], 3), np.uint8) if self._opaque else None

    def write(self, planes: Planes, out: Pixels) -> None:
        if self._wide is not None:
            cv2.cvtColor(
                planes[0].view(np.uint8).reshape(*planes[0].shape, 2), self._code, dst=self._wide
            )
            cv2.LUT(self._wide, _WIDEN, dst=self._wide)
        picture = self._resized(planes[0] if self._wide is None else self._wide)
        target = out if self._three is None else self._three
        if self._wide is not None:
            np.copyto(target, picture)
        elif self._code == _ANY_ORDER:
            cv2.mixChannels([picture], [target], self._moves)
        elif self._code == _AS_IT_IS:
            np.copyto(target, picture)
        else:
            cv2.cvtColor(picture, self._code, dst=target)
        if self._table is not None:
            cv2.LUT(target, self._table, dst=target)
        if self._three is not None:
            cv2.cvtColor(self._three, cv2.COLOR_RGB2RGBA, dst=out)


def _order_code(components: Sequence[str], wanted: Sequence[str]) -> int:
    """Return OpenCV's conversion that picks *wanted*'s colours."""
    if components[0] in 'XA':
        return _ANY_ORDER
    same = list(components[:3]) == list(wanted[:3])
    if len(components) == 3:
        return _AS_IT_IS if same else int(cv2.COLOR_BGR2RGB)
    return int(cv2.COLOR_BGRA2BGR if same else cv2.COLOR_BGRA2RGB)


def _moves(components: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Return the source and destination channels for ``mixChannels``."""
    return [
        number
        for place, name in enumerate(wanted[:3])
        for number in (components.index(name), place)
    ]


class ToLuma:
    """
    Makes the grey picture of frames: luma as it is, or what BT.601 makes of R, G, B.

    Its range is the frame's.

    :raises FormatError: see :func:`check_readable`.
    :raises LayoutError: a size that the format can't have.
    """

    def __init__(self, fourcc: int, width: int, height: int, colorimetry: Colorimetry) -> None:
        fmt = check_readable(fourcc, colorimetry)
        self._check = Checked(fmt, width, height)
        self._shape = (height, width)
        self._yuv = yuv_of(fmt) if fmt.is_yuv else None
        colour = self._yuv is None and len(fmt.components[0]) > 1
        # R, G, B of limited range stay that.
        self._colours = (
            ToPicture(fourcc, width, height, Colorimetry(Matrix.RGB, Range.FULL), bgr=True)
            if colour
            else None
        )
        packed = self._yuv is not None and self._yuv.packed
        self._resized = Resized(self._shape, (width, height), cv2.INTER_NEAREST, wide=fmt.bits > 8)
        self._grey = np.empty(self._shape, np.uint8) if packed or colour else None

    def convert(self, planes: Planes, out: Pixels | None = None) -> Pixels:
        """
        Convert *planes* to a grey picture (height, width).

        Without *out*, the result is the frame's own plane where it has one; otherwise the next
        call overwrites the result.

        :raises LayoutError: planes or *out* have another size or type.
        """
        found = self._check(planes)
        if out is not None and (out.shape != self._shape or out.dtype != np.uint8):
            raise LayoutError(
                f'the picture is {out.dtype} {out.shape}; this conversion writes uint8 '
                f'{self._shape}'
            )
        if self._grey is None:
            return self._resized(found[0], out)
        target = self._grey if out is None else out
        if self._colours is not None:
            cv2.cvtColor(self._colours.convert(found), cv2.COLOR_BGR2GRAY, dst=target)
        else:
            assert self._yuv is not None
            cv2.extractChannel(two_by_two(found[0]), 0 if self._yuv.luma_first else 1, dst=target)
        return target
