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
Convert frames of the formats in :data:`~zc_perception.pixel.readable.READABLE`.

The results are colour pictures (:class:`ToPicture`), grey pictures (:class:`ToLuma`) or NV12
(:class:`ToNv12`). All code that needs pixels uses this module and doesn't read planes itself: NV12
and NV21 differ only in the order of two bytes, and a picture with the wrong order looks plausible.

Each converter is made for one format, size and colorimetry. It allocates its memory once, and
refuses planes of another format or size. If the picture is smaller than the frame, planes are
resized before colours are converted, because then fewer pixels are converted. Chroma is resized to
the full size of the picture, not to half of it as in 4:2:0, so that the frame's colour detail
isn't lost.
``zc_bench decode`` measures the speed, and how far these pictures differ from pictures that are
resized after the colours of the full frame were converted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.errors import LayoutError
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import NV12, pixel_format, PixelFormat
from zc_perception.pixel.layout import check_dimensions, compute_layout
from zc_perception.pixel.readable import (
    check_readable,
    full_range_table,
    limited_range_table,
    rgb_matrix,
    rgb_range,
)

Pixels = NDArray[np.uint8]
Planes = Sequence[NDArray[Any]]
Size = tuple[int, int]


class Checked:
    """
    Check planes before OpenCV converts them; raise LayoutError for another format or size.

    OpenCV wouldn't refuse such planes: it would misread them, or write its result not to the
    array that the caller gave, but to a new one.
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
                f'planes are {" and ".join(has)}; this conversion was made for {self._text} '
                f'({" and ".join(wants)}): make another conversion for these frames'
            )
        return found


class Resized:
    """
    Resize a plane and narrow its samples to 8 bits, in memory that is allocated once.

    A plane that already has *size* and 8 bits is not copied.

    :param shape: the plane's rows, columns and, if there are several, components.
    :param wide: whether the plane's samples have 16 bits.
    """

    def __init__(
        self, shape: Sequence[int], size: Size, interpolation: int, *, wide: bool = False
    ) -> None:
        rows, columns, *components = shape
        self._size = size
        self._filter = interpolation
        self._scaled = (columns, rows) != size
        # Whether each result row is the mean of two rows. For this, OpenCV's resize() takes twelve
        # times as long as addWeighted().
        self._two_rows = interpolation == cv2.INTER_AREA and (columns, rows) == (
            size[0],
            2 * size[1],
        )
        result = (size[1], size[0], *components)
        # If the filter mixes samples, narrow them to 8 bits first, so that the result is the same
        # as for an 8-bit format. If it only picks samples, resize first, so that fewer samples are
        # narrowed.
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
        Return the resized plane; also write it into *out*, if given.

        The result is *plane* itself if the size doesn't change and samples have 8 bits.
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
    """Return views of the upper left *size* (width, height) of an image's planes."""
    width, height = size
    return [
        plane[: part.rows(height), : width // part.horizontal]
        for plane, part in zip(planes, fmt.planes, strict=True)
    ]


def narrowed(plane: NDArray[np.uint16], out: Pixels) -> Pixels:
    """Narrow 16-bit samples to 8 bits, rounded; truncating would make the picture darker."""
    cv2.convertScaleAbs(plane, dst=out, alpha=1 / 256)
    return out


class Yuv(NamedTuple):
    """
    The order and subsampling of a Y'CbCr format's samples.

    :param packed: whether luma and chroma alternate in one plane.
    :param luma_first: whether luma comes before chroma in a packed format.
    :param planar: whether U and V have separate planes; if not, one plane has pairs of U and V.
    :param v_first: whether V comes before U.
    :param horizontal: how many luma samples in a row share a chroma sample.
    :param vertical: how many rows share a chroma sample.
    :param wide: whether each sample has 16 bits.
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
    """Split a frame into luma and chroma planes: views, or copies if the format is packed."""

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
    """View a packed plane as (rows, columns, 2): each pixel's luma and one chroma sample."""
    return packed.reshape(packed.shape[0], packed.shape[1] * 2, 2)


class Filters:
    """Choose OpenCV's filters for resizing a frame's planes to a picture's size."""

    def __init__(self, source: Size, size: Size) -> None:
        # How many source pixels one picture pixel covers, across and down; 0: no whole number.
        self._ratios = [
            0 if whole % part else whole // part for whole, part in zip(source, size, strict=True)
        ]
        self._enlarged = size[0] > source[0] or size[1] > source[1]
        # At an odd ratio, linear interpolation reads only the sample in the middle. Picking the
        # nearest sample gives the same picture in a third of the time.
        odd = all(ratio % 2 for ratio in self._ratios)
        self.luma: int = cv2.INTER_NEAREST_EXACT if odd else cv2.INTER_LINEAR

    def chroma(self, horizontal: int, vertical: int) -> int:
        """
        Return the filter for chroma, for a format whose chroma has these subsampling factors.

        Chroma is interpolated if the picture's pixels lie exactly between two chroma samples, or
        if the picture is enlarged. Otherwise each pixel takes the colour of the nearest chroma
        sample. The rule is the same for 4:4:4, so that a scene gives the same picture in every
        format.
        """
        between = any(
            ratio and ratio % (2 * shared) == 0
            for ratio, shared in zip(self._ratios, (horizontal, vertical), strict=True)
        )
        return int(cv2.INTER_LINEAR if self._enlarged or between else cv2.INTER_NEAREST_EXACT)


# OpenCV converts at most this many columns at once (two vectors of 64 bytes with AVX-512; other
# processors have smaller vectors). It converts the remaining columns one by one. In a picture of
# 360 columns, the remaining 104 take nine tenths of the conversion's time.
_COLUMNS = 128


def _codes(layout: str) -> dict[tuple[bool, int], int]:
    """
    Return OpenCV's codes to convert the format *layout* to a picture.

    The key is a pair: whether the picture's order is B, G, R; and its number of channels.
    """
    orders = {(False, 3): 'RGB', (True, 3): 'BGR', (False, 4): 'RGBA', (True, 4): 'BGRA'}
    return {key: getattr(cv2, f'COLOR_YUV2{order}_{layout}') for key, order in orders.items()}


_NV12_CODES, _NV21_CODES = _codes('NV12'), _codes('NV21')
_PACKED_CODES = {'YUYV': _codes('YUY2'), 'YVYU': _codes('YVYU'), 'UYVY': _codes('UYVY')}
# These two numbers stand in place of an OpenCV conversion code. _AS_IT_IS: the components already
# have the wanted order. _ANY_ORDER: OpenCV has no code for this order: use cv2.mixChannels.
_AS_IT_IS, _ANY_ORDER = -1, -2
# A table for RGB565 that repeats the high bits in the low bits, so that the largest value becomes
# 255; OpenCV leaves the low bits at 0.
_WIDEN = np.stack([np.arange(256) | np.arange(256) >> bits for bits in (5, 6, 5)], axis=-1).astype(
    np.uint8
)[None]


class ToPicture:
    """
    Convert frames to R, G, B pictures, in the converter's memory or the caller's.

    :param colorimetry: the frames' colorimetry. For grey and R, G, B frames, only its range is
        used, see :func:`~zc_perception.pixel.readable.rgb_range`.
    :param size: width and height of the picture; ``None``: the frame's size.
    :param channels: 3, or 4 for a picture whose last channel is 255.
    :param bgr: whether the channels' order is B, G, R instead of R, G, B.
    :raises FormatError: see :func:`check_readable`.
    :raises LayoutError: frames of this format can't have this *width* and *height*.
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
        # OpenCV's own conversions support only BT.601, limited range, and they don't scale.
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
        :param out: the array to write to, with any row stride.
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
    """The base class of the classes that convert a frame's planes to a picture."""

    def write(self, planes: Planes, out: Pixels) -> None:
        raise NotImplementedError


class _Aligned:
    """
    Run an OpenCV conversion, but avoid OpenCV's slow path, see ``_COLUMNS``.

    First the columns up to a multiple of ``_COLUMNS`` are converted. Then the remaining columns
    are copied to scratch memory that is ``_COLUMNS`` wide, and converted there.

    :param parts: for each input three values: how many columns share an element, how many rows
        share it, and ``(n,)`` if an element has n components, or ``()`` if it has one.
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
        """Convert *inputs* to *out*; call *convert* once, or twice if columns remain."""
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
    Convert 4:2:0 frames of BT.601, limited range, without scaling, by OpenCV's own conversion.

    OpenCV treats luma below 16 as 16; :class:`_ByMatrix` doesn't.
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
    Convert 4:2:2 frames of BT.601, limited range, without scaling, by OpenCV's own conversion.

    Separate planes are first merged into a packed plane; this is still faster than
    :class:`_ByMatrix`.
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
    """Convert frames of any Y'CbCr format, size and colorimetry by a matrix product."""

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
        # A packed plane can be resized directly by picking the nearest samples. All other filters
        # need luma and chroma as separate planes.
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
        # Merge three planes: OpenCV does this four times as fast as merging luma and a plane of
        # pairs.
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
    """Convert grey frames, and frames of R, G, B in any order."""

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
        # The result's fourth channel must be 255; the frame's fourth channel is padding or alpha.
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
    """Return OpenCV's conversion code from *components* to the colour order of *wanted*."""
    if components[0] in 'XA':
        return _ANY_ORDER
    same = list(components[:3]) == list(wanted[:3])
    if len(components) == 3:
        return _AS_IT_IS if same else int(cv2.COLOR_BGR2RGB)
    return int(cv2.COLOR_BGRA2BGR if same else cv2.COLOR_BGRA2RGB)


def _moves(components: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Return pairs of source and destination channel, in one flat list for ``mixChannels``."""
    return [
        number
        for place, name in enumerate(wanted[:3])
        for number in (components.index(name), place)
    ]


class ToLuma:
    """
    Convert frames to grey pictures.

    Luma and grey samples are copied. If the frame has R, G and B instead, BT.601's luma is
    computed from them. The picture has the same range as the frame.

    :raises FormatError: see :func:`check_readable`.
    :raises LayoutError: frames of this format can't have this *width* and *height*.
    """

    def __init__(self, fourcc: int, width: int, height: int, colorimetry: Colorimetry) -> None:
        fmt = check_readable(fourcc, colorimetry)
        self._check = Checked(fmt, width, height)
        self._shape = (height, width)
        self._yuv = yuv_of(fmt) if fmt.is_yuv else None
        colour = self._yuv is None and len(fmt.components[0]) > 1
        # The grey picture keeps the frame's range. ToPicture would expand a limited range, so tell
        # it that the frame has full range.
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

        Without *out*, the result is the frame's first plane itself if that plane has only luma or
        grey samples, of 8 bits. For other planes, the next call without *out* overwrites the
        result.

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


# OpenCV's codes to convert a colour picture to I420. Key: (whether red comes first, whether the
# picture has alpha).
_CODES = {
    (False, False): cv2.COLOR_BGR2YUV_I420,
    (True, False): cv2.COLOR_RGB2YUV_I420,
    (False, True): cv2.COLOR_BGRA2YUV_I420,
    (True, True): cv2.COLOR_RGBA2YUV_I420,
}


def even(size: int) -> int:
    """Round *size* down to an even number, because NV12 has only even widths and heights."""
    return size & ~1


class Nv12Writer:
    """
    Convert colour pictures of one size to NV12 (BT.601, limited range), into the caller's planes.

    The samples are the same as in OpenCV's conversion to I420. The scratch memory is allocated
    once.

    :raises LayoutError: NV12 frames can't have this *width* and *height*.
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

        *picture* has the shape (height, width, 3). Its channels are B, G, R, or R, G, B if *rgb*
        is true. It may have a fourth channel, alpha, which is ignored: a transparent pixel keeps
        its colour.

        :raises LayoutError: an array isn't ``uint8`` of the writer's size, or a plane is
            read-only.
        """
        alpha = picture.shape[2:] == (4,)
        shapes = self._shapes | {'picture': (*self._shapes['luma'], 4 if alpha else 3)}
        for (name, shape), array in zip(shapes.items(), (picture, luma, chroma), strict=True):
            # If *luma* or *chroma* has the wrong shape, OpenCV writes into a new array instead. So
            # *luma* or *chroma* would keep the previous picture.
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
    Convert frames to NV12, with or without scaling.

    Y'CbCr frames keep their matrix and range; grey and R, G, B become BT.601, limited range.

    :param size: width and height to scale to, both even; ``None``: the frame's size.
    :raises FormatError: see :func:`check_readable`.
    :raises LayoutError: frames of the format *fourcc* can't have this *width* and *height*, or
        NV12 frames can't have this *size*.
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
        Convert a frame's *planes* to NV12 in *luma* and *chroma*, which may have any row stride.

        *luma* is (height, width), *chroma* is (height / 2, width / 2, 2).

        :raises LayoutError: planes have another size or type, or a target can't be written.
        """
        found = self._check(planes)
        for name, target, shape in zip(
            ('luma', 'chroma'), (luma, chroma), self._shapes, strict=True
        ):
            # If *luma* or *chroma* has the wrong shape, OpenCV writes into a new array instead. So
            # *luma* or *chroma* would keep the previous picture.
            if target.shape != shape or target.dtype != np.uint8 or not target.flags.writeable:
                kind = target.dtype if target.flags.writeable else 'read-only'
                raise LayoutError(
                    f'{name} is {kind} {target.shape}; this conversion writes uint8 {shape}'
                )
        self._way.write(found, luma, chroma)


class _Nv12Way:
    """The base class of the classes that convert a frame's planes to NV12."""

    def write(self, planes: Planes, luma: Pixels, chroma: Pixels) -> None:
        raise NotImplementedError


def _area(source: Size, size: Size) -> int:
    return int(
        cv2.INTER_AREA if size[0] <= source[0] and size[1] <= source[1] else cv2.INTER_LINEAR
    )


class _YuvToNv12(_Nv12Way):
    """Scale Y'CbCr planes; chroma is scaled to NV12's resolution, half of luma's."""

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
        # A plane of (U, V) pairs that needs no resizing is used directly. Otherwise the pairs are
        # split first: OpenCV resizes two planes, of U and of V, faster than one plane of pairs.
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
    """Scale a grey plane to luma; all chroma samples are 128."""

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
        # Nv12Writer takes B, G, R and R, G, B, with and without a fourth channel. So frames in
        # these orders are only resized; ToPicture converts all other frames first.
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
