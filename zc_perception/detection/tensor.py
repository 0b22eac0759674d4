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
Convert a frame's planes to a network's input tensor; write each tensor byte once per frame.

:class:`PlanesToTensor` makes the tensor of an ONNX file and owns the tensor's memory.
:class:`PlanesToQuantised` writes the tensor of a compiled model (int8, NHWC, padded) directly into
the caller's memory, which may be a mapped dma-buf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import math
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.letterbox import Letterbox
from zc_perception.errors import ConfigError, LayoutError
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.conversion import Pixels, Planes, ToPicture

Padding = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
Tensor = NDArray[np.int8]

_FLIP = 128  # a uint8 v with its highest bit flipped has the bits of the int8 v - 128


class PlanesToTensor:
    """
    Resize and convert a frame's planes, then look up each sample's value in a table.

    :param box: the size of the frames, and the place of the picture in the network's input.
    :param fourcc: the frames' format.
    :param tables: an array (channels, 256). It has, for each channel, the tensor's value for each
        value of a sample. With a single channel, the tensor is grey.
    :param pad: the sample that fills the letterbox's border, 0..255.
    :param bgr: channel order B, G, R instead of R, G, B.
    :param nhwc: channels last instead of first.
    :raises FormatError: the format or the colorimetry has no conversion.
    :raises LayoutError: a frame of this format can't have the source size of *box*.
    """

    def __init__(
        self,
        box: Letterbox,
        fourcc: int,
        colorimetry: Colorimetry,
        tables: NDArray[Any],
        *,
        pad: int,
        bgr: bool = False,
        nhwc: bool = False,
    ) -> None:
        size = (box.width, box.height)
        self._picture = ToPicture(
            fourcc, box.source_width, box.source_height, colorimetry, size=size, bgr=bgr
        )
        channels = len(tables)
        self._tensor = np.empty((1, box.input_height, box.input_width, channels), tables.dtype)
        self._tensor[:] = tables[:, pad]
        if not nhwc:
            self._tensor = np.ascontiguousarray(self._tensor.transpose(0, 3, 1, 2))
        # OpenCV has no float16, but its table look-up works for any type of two bytes.
        bits = {1: np.uint8, 2: np.uint16, 4: np.float32}[tables.itemsize]
        rows = slice(box.top, box.top + box.height), slice(box.left, box.left + box.width)
        inner = self._tensor.view(bits)[0]
        self._luma = np.empty(size[::-1], np.uint8) if channels == 1 else None
        self._planes = None
        if nhwc and channels == 3:
            self._targets = [inner[rows]]
            self._tables = [np.ascontiguousarray(tables.T).view(bits).reshape(1, 256, 3)]
            return
        self._targets = [inner[(*rows, c) if nhwc else (c, *rows)] for c in range(channels)]
        self._tables = [table.view(bits) for table in np.ascontiguousarray(tables)]
        if channels == 3:
            self._planes = [np.empty(size[::-1], np.uint8) for _ in range(3)]

    def convert(self, planes: Planes) -> NDArray[Any]:
        """
        Return a frame's tensor, which the next call overwrites.

        :param planes: the frame's planes, with any row stride.
        :raises LayoutError: the planes have a wrong size or type.
        """
        picture = self._picture.convert(planes)
        pictures: Sequence[Pixels] = [picture]
        if self._luma is not None:
            cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY, dst=self._luma)
            pictures = [self._luma]
        elif self._planes is not None:
            cv2.split(picture, self._planes)
            pictures = self._planes
        for samples, table, target in zip(pictures, self._tables, self._targets, strict=True):
            cv2.LUT(samples, table, dst=target)
        return self._tensor


@dataclass(frozen=True)
class QuantisedTensorSpec:
    """
    The size, padding and quantisation of a compiled model's input tensor.

    A sample x of 0..255 stands for the real number ``low + x * (high - low) / 255``, and is
    written as ``clip(round(real / scale + zero_point), -128, 127)``, rounded half to even as numpy
    does. Padding is written as the real number 0: the zero point, clipped to int8 (a compiled
    YOLOv8n has the zero point −130).

    :param width: the width of the network's input in pixels, without padding.
    :param height: the height of the network's input in pixels, without padding.
    :param channels: 3, or 4 for a model whose fourth channel is always real 0.
    :param padding: for rows, columns and channels, the numbers of elements before and after.
    :param bgr: channel order B, G, R instead of R, G, B.
    :param pad: the sample that fills the letterbox's border, 0..255.
    :raises ConfigError: the scale, zero point or padding is out of range.
    """

    width: int
    height: int
    channels: int = 4
    scale: float = 1 / 255
    zero_point: int = -128
    padding: Padding = ((0, 0), (0, 0), (0, 0))
    low: float = 0.0
    high: float = 1.0
    bgr: bool = False
    pad: int = 114

    def __post_init__(self) -> None:
        for name, wrong, allowed in (
            ('scale', not (math.isfinite(self.scale) and self.scale > 0), 'a number above 0'),
            ('zero_point', not -(2**31) <= self.zero_point < 2**31, 'a signed 32-bit integer'),
            ('padding', min(min(p) for p in self.padding) < 0, '0 or more each'),
        ):
            if wrong:
                raise ConfigError(
                    f"the model's input: {name} is {getattr(self, name)}; it must be {allowed}"
                )

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of rows, columns and channels, with padding."""
        rows, columns, channels = (before + after for before, after in self.padding)
        return self.height + rows, self.width + columns, self.channels + channels

    @property
    def zero(self) -> int:
        """The int8 value that stands for the real number 0."""
        return max(-128, min(127, self.zero_point))

    def table(self) -> Tensor:
        """Return the tensor's value for each of the 256 values of a sample."""
        real = self.low + np.arange(256) * ((self.high - self.low) / 255)
        written: Tensor = np.clip(np.rint(real / self.scale + self.zero_point), -128, 127).astype(
            np.int8
        )
        return written


def added_constant(table: Tensor) -> int | None:
    """
    Return k such that *table* maps each x to ``clip(x - 128 + k, -128, 127)``; ``None``: no k.

    Nearly every model has such a k (most often 0). Adding k is quicker than looking up a table.
    """
    written = table.astype(np.int16) + _FLIP
    middle = np.flatnonzero((written > 0) & (written < 255))
    if not len(middle):
        return None
    constant = int(written[middle[0]] - middle[0])
    return (
        constant if np.array_equal(np.clip(np.arange(256) + constant, 0, 255), written) else None
    )


class _Quantiser:
    """
    Quantise samples with OpenCV's additions, which take a fifth of a table look-up's time.

    :param shape: (rows, columns, channels) of the pictures. A fourth channel is overwritten with
        the value that stands for the real number 0.
    """

    def __init__(self, spec: QuantisedTensorSpec, shape: tuple[int, int, int]) -> None:
        table = spec.table()
        constant = added_constant(table)
        self._scratch = np.empty(shape, np.uint8)
        self._table = None if constant is not None else table.view(np.uint8)
        self._constant = constant or 0
        # Sums saturate: adding 255 to the fourth channel always gives 255, subtracting it gives 0.
        self._saturating = np.array([abs(self._constant)] * 3 + [255], np.float64)
        last = int(table.view(np.uint8)[255]) if constant is None else 0 if constant < 0 else 255
        sample = 0 if constant is None else _FLIP
        self._flips = np.array([sample, sample, sample, last ^ spec.zero % 256], np.float64)

    def write(self, picture: Pixels, out: Pixels, *, opaque: bool) -> None:
        """
        Quantise *picture* into *out*, which has the same shape and any row stride.

        Each byte of *out* is written once; if several passes are needed, the earlier ones write
        into scratch memory.

        :param opaque: whether a fourth channel of *picture* is known to be 255 everywhere.
        """
        if self._constant or not opaque:
            saturate = cv2.subtract if self._constant < 0 else cv2.add
            picture = self._into_scratch(saturate(picture, self._saturating, dst=self._scratch))
        if self._table is not None:
            picture = self._into_scratch(cv2.LUT(picture, self._table, dst=self._scratch))
        if cv2.bitwise_xor(picture, self._flips, dst=out) is not out:
            raise AssertionError('OpenCV wrote to a new array instead of the tensor')

    def _into_scratch(self, result: object) -> Pixels:
        if result is not self._scratch:
            raise AssertionError('OpenCV wrote to a new array instead of the scratch memory')
        return self._scratch


class PlanesToQuantised:
    """
    Write frames into a compiled model's input tensors; first call :meth:`prepare` for each tensor.

    :param box: the size of the frames, and the place of the picture in the network's input.
    :param spec: the size, padding and quantisation of the model's input tensor.
    :param fourcc: the frames' format.
    :raises ConfigError: *box* and *spec* have different sizes of the network's input.
    :raises FormatError: the format or the colorimetry has no conversion.
    :raises LayoutError: a frame of this format can't have the source size of *box*.
    """

    def __init__(
        self, box: Letterbox, spec: QuantisedTensorSpec, fourcc: int, colorimetry: Colorimetry
    ) -> None:
        if (box.input_width, box.input_height) != (spec.width, spec.height):
            raise ConfigError(
                f'the letterbox is for an input of {box.input_width}x{box.input_height}, the '
                f"model's input is {spec.width}x{spec.height}"
            )
        (above, _), (left, _), (before, _) = spec.padding
        self.spec = spec
        self._picture_rows = slice(above, above + spec.height)
        self._picture_columns = slice(left, left + spec.width)
        self._samples = slice(before, before + 3)
        self._rows = slice(above + box.top, above + box.top + box.height)
        self._columns = slice(left + box.left, left + box.left + box.width)
        total = spec.shape[2]
        # If the tensor has only the 3 colour channels and at most one constant channel after
        # them, whole pixels are written. Otherwise only the colour channels are written, and the
        # other channels keep the values that prepare() wrote.
        self._channels = total if total in (3, 4) and before == 0 else 3
        self._whole = total == self._channels
        shape = (box.height, box.width, self._channels)
        self._inner = shape[:2]
        source = box.source_width, box.source_height
        size = box.width, box.height
        self._picture = ToPicture(
            fourcc, *source, colorimetry, size=size, channels=self._channels, bgr=spec.bgr
        )
        self._quantiser = _Quantiser(spec, shape)
        self._narrow = None if self._whole else np.empty(shape, np.uint8)
        self._swapped = np.empty(shape, np.uint8) if spec.bgr or self._channels == 3 else None

    def prepare(self, out: Tensor) -> None:
        """
        Write padding, constant channels and the letterbox's border; call once for each buffer.

        These are the same for every frame, so :meth:`convert` doesn't write them again.

        :param out: as in :meth:`convert`.
        :raises LayoutError: *out* has a wrong size or type.
        """
        self._check(out)
        out[:] = self.spec.zero
        out[self._picture_rows, self._picture_columns, self._samples] = self.spec.table()[
            self.spec.pad
        ]

    def convert(self, planes: Planes, out: Tensor) -> None:
        """
        Scale, convert and quantise one frame into *out*.

        :param planes: the frame's planes, with any row stride.
        :param out: an int8 array of :attr:`QuantisedTensorSpec.shape`, which :meth:`prepare` has
            written to; there may be gaps between rows, but not between a row's elements.
        :raises LayoutError: an array has a wrong size or type.
        """
        self._check(out)
        self._write(self._picture.convert(planes), out, opaque=True)

    def convert_rgba(self, rgba: Pixels, out: Tensor) -> None:
        """
        Quantise RGBA pixels, already scaled by hardware to the letterbox's size, into *out*.

        :param rgba: (height, width, 4) of the letterbox's picture, with any row stride. The
            fourth channel is ignored.
        :param out: as in :meth:`convert`.
        :raises LayoutError: an array has a wrong size or type.
        """
        self._check(out)
        if rgba.shape != (*self._inner, 4) or rgba.dtype != np.uint8:
            raise LayoutError(
                f'pixels are {rgba.dtype} {rgba.shape}; the letterbox needs uint8 '
                f'{(*self._inner, 4)}: scale the pixels to this size'
            )
        if self._swapped is None:
            self._write(rgba, out, opaque=False)
            return
        codes = {
            (3, False): cv2.COLOR_RGBA2RGB,
            (3, True): cv2.COLOR_RGBA2BGR,
            (4, True): cv2.COLOR_RGBA2BGRA,
        }
        cv2.cvtColor(rgba, codes[self._channels, self.spec.bgr], dst=self._swapped)
        self._write(self._swapped, out, opaque=self._channels == 3)

    def _write(self, picture: Pixels, out: Tensor, *, opaque: bool) -> None:
        inner = out.view(np.uint8)[self._rows, self._columns]
        if self._narrow is None:
            self._quantiser.write(picture, inner, opaque=opaque)
        else:
            self._quantiser.write(picture, self._narrow, opaque=opaque)
            np.copyto(inner[..., self._samples], self._narrow)

    def _check(self, out: Tensor) -> None:
        """
        Refuse memory that OpenCV can't write to.

        For such memory OpenCV makes a new array, so the tensor would keep the previous frame.
        """
        shape = self.spec.shape
        if (
            out.shape != shape
            or out.dtype != np.int8
            or out.strides[1:] != (shape[2], 1)
            or out.strides[0] < 0
        ):
            raise LayoutError(
                f'the tensor is {out.dtype} {out.shape} with strides {out.strides}; the model '
                f'takes int8 {shape} without gaps between the elements of a row'
            )
        if not out.flags.writeable:
            raise LayoutError('the tensor is read-only; map its buffer for writing')
