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
Convert a frame's planes to a network's input tensor; each byte is written once per frame.

:class:`PlanesToTensor` makes the tensor of an ONNX file, in memory of its own.
:class:`PlanesToQuantised` writes the quantised tensor of a compiled model (int8, NHWC, padded)
directly into the caller's memory, which may be a mapped dma-buf. That class also takes pixels that
hardware has already scaled.
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

_FLIP = 128  # int8 is uint8 with the first bit flipped: v ^ 0x80 = v - 128


class PlanesToTensor:
    """
    Resize planes, then convert colours, see :mod:`~zc_perception.pixel.conversion`.

    :param box: geometry.
    :param fourcc: of the frames.
    :param colorimetry: of the frames.
    :param tables: (channels, 256) the tensor's value for each sample of each channel; a single
        channel is luma.
    :param pad: the sample of the letterbox's border, 0..255.
    :param bgr: channel order B, G, R instead of R, G, B.
    :param nhwc: channels last instead of first.
    :raises FormatError: the format or the colorimetry has no conversion.
    :raises LayoutError: the format can't have the source's size.
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
        Return the tensor of a frame.

        The next call overwrites the returned tensor.

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
    The input tensor that a compiled model takes.

    A sample x of 0..255 stands for the real number ``low + x * (high - low) / 255``, and is
    written as ``clip(round(real / scale + zero_point), -128, 127)``, rounded half to even as numpy
    does. Elements without a sample hold a real 0, which is the zero point clipped to int8 (the
    zero point of a compiled YOLOv8n is −130).

    :param width: width of the network's input, without padding.
    :param height: height of the network's input, without padding.
    :param channels: 3, or 4 for a model whose fourth channel is always real 0.
    :param padding: the numbers of padding elements before and after rows, columns and channels.
    :param low: the real value of sample 0.
    :param high: the real value of sample 255.
    :param bgr: channel order B, G, R instead of R, G, B.
    :param pad: sample of the letterbox's border, 0..255.
    :raises ConfigError: no compiled model can have this scale, zero point or padding.
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
            ('zero_point', not -(2**31) <= self.zero_point < 2**31, 'a number of 32 bits'),
            ('padding', min(min(p) for p in self.padding) < 0, '0 or more each'),
        ):
            if wrong:
                raise ConfigError(
                    f"the model's input: {name} is {getattr(self, name)}, allowed is {allowed}"
                )

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of rows, columns and channels, with padding."""
        rows, columns, channels = (before + after for before, after in self.padding)
        return self.height + rows, self.width + columns, self.channels + channels

    @property
    def zero(self) -> int:
        """The element's value for a real 0."""
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
    Return the k for which *table* is ``clip(x - 128 + k)``.

    Nearly every model has such a k; for most models it is 0.
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
    Quantise samples with OpenCV's vector instructions.

    A table look-up takes five times as long.

    :param shape: the shape of the pictures. If there are 4 channels, the last one is overwritten
        with *zero*.
    """

    def __init__(self, spec: QuantisedTensorSpec, shape: tuple[int, int, int]) -> None:
        table = spec.table()
        constant = added_constant(table)
        self._scratch = np.empty(shape, np.uint8)
        self._table = None if constant is not None else table.view(np.uint8)
        self._constant = constant or 0
        # Adding this number to the last channel always gives 255, because the sum saturates;
        # subtracting it gives 0.
        self._saturating = np.array([abs(self._constant)] * 3 + [255], np.float64)
        last = int(table.view(np.uint8)[255]) if constant is None else 0 if constant < 0 else 255
        sample = 0 if constant is None else _FLIP
        self._flips = np.array([sample, sample, sample, last ^ spec.zero % 256], np.float64)

    def write(self, picture: Pixels, out: Pixels, *, opaque: bool) -> None:
        """
        Quantise in one pass into *out*, of the same shape with any row stride.

        If several passes are needed, all but the last write into scratch memory.

        :param opaque: whether a fourth channel is known to be 255.
        """
        if self._constant or not opaque:
            saturate = cv2.subtract if self._constant < 0 else cv2.add
            picture = self._into_scratch(saturate(picture, self._saturating, dst=self._scratch))
        if self._table is not None:
            picture = self._into_scratch(cv2.LUT(picture, self._table, dst=self._scratch))
        if cv2.bitwise_xor(picture, self._flips, dst=out) is not out:
            raise AssertionError('OpenCV wrote to memory of its own instead of the tensor')

    def _into_scratch(self, result: object) -> Pixels:
        if result is not self._scratch:
            raise AssertionError('OpenCV wrote to memory of its own instead of the scratch')
        return self._scratch


class PlanesToQuantised:
    """
    Fill tensors, each of which must first be prepared once.

    :param box: geometry; its input is the spec's width and height.
    :param spec: the input tensor that the model takes.
    :param fourcc: of the frames.
    :param colorimetry: of the frames.
    :raises ConfigError: geometry and spec don't fit.
    :raises FormatError: the format or the colorimetry has no conversion.
    :raises LayoutError: the format can't have the source's size.
    """

    def __init__(
        self, box: Letterbox, spec: QuantisedTensorSpec, fourcc: int, colorimetry: Colorimetry
    ) -> None:
        if (box.input_width, box.input_height) != (spec.width, spec.height):
            raise ConfigError(
                f'the letterbox is for an input of {box.input_width}x{box.input_height}, the '
                f"model's is {spec.width}x{spec.height}"
            )
        (above, _), (left, _), (before, _) = spec.padding
        self.spec = spec
        self._picture_rows = slice(above, above + spec.height)
        self._picture_columns = slice(left, left + spec.width)
        self._samples = slice(before, before + 3)
        self._rows = slice(above + box.top, above + box.top + box.height)
        self._columns = slice(left + box.left, left + box.left + box.width)
        total = spec.shape[2]
        # The samples' channels and one constant channel after them are written together; other
        # channels keep their prepared values.
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
        Write the parts of a tensor that are the same for every frame.

        These are padding, constant channels, and the letterbox's border. Call this method once for
        each buffer.

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
        :param out: a prepared int8 array of :attr:`QuantisedTensorSpec.shape`; there may be gaps
            between rows, but not between a row's elements.
        :raises LayoutError: an array has a wrong size or type.
        """
        self._check(out)
        self._write(self._picture.convert(planes), out, opaque=True)

    def convert_rgba(self, rgba: Pixels, out: Tensor) -> None:
        """
        Quantise pixels that already have the letterbox's inner size into *out*.

        :meth:`convert` also does this, after it has scaled a frame.

        :param rgba: (letterbox's height, width, 4): R, G, B and anything, any row stride.
        :param out: as in :meth:`convert`.
        :raises LayoutError: an array has a wrong size or type.
        """
        self._check(out)
        if rgba.shape != (*self._inner, 4) or rgba.dtype != np.uint8:
            raise LayoutError(
                f"pixels are {rgba.dtype} {rgba.shape}; the letterbox's are uint8 "
                f'{(*self._inner, 4)}: scale them to that'
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
        Check the destination.

        If OpenCV can't write to a destination, it returns memory of its own, and the tensor would
        still hold the frame before.
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
                f'takes int8 {shape} with elements side by side'
            )
        if not out.flags.writeable:
            raise LayoutError('the tensor is read-only; map its buffer for writing')
