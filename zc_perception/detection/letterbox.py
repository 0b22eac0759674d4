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

"""Compute where a source image lies in a network's input, and map boxes back to the image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import ConfigError


class Region(NamedTuple):
    """A rectangle of a frame, in pixels."""

    x: int
    y: int
    width: int
    height: int


class Ran(NamedTuple):
    """
    One run of the model on a region of a frame.

    :param region: the model's input was this part of the frame.
    :param which: which of the frame's detections this run found: their n indices.
    :param rows: the row number in *outputs* of each of these n detections.
    """

    region: Region
    outputs: Sequence[RawTensor]
    which: NDArray[np.intp]
    rows: NDArray[np.intp]


@dataclass(frozen=True)
class Letterbox:
    """
    The position and size of the resized source picture in the network's input, in pixels.

    Position and size are even, so that the chroma plane of a 4:2:0 frame can be resized
    separately. Mapping boxes back is exact, because it uses the rounded sizes, not the scale.
    """

    source_width: int
    source_height: int
    input_width: int
    input_height: int
    width: int
    height: int
    left: int
    top: int

    @classmethod
    def fit(
        cls,
        source_width: int,
        source_height: int,
        input_width: int,
        input_height: int,
        *,
        stretch: bool = False,
    ) -> Letterbox:
        """
        Return a letterbox in which the picture is as large as possible, and in the middle.

        The picture keeps its aspect ratio. With *stretch* the picture fills the whole input
        instead. An input of odd width or height has a border in its last column or row.

        :raises ConfigError: a size is below 2.
        """
        if min(source_width, source_height, input_width, input_height) < 2:
            raise ConfigError(
                f'letterbox {source_width}x{source_height} into {input_width}x{input_height}: '
                'every size must be at least 2'
            )
        even_width, even_height = input_width // 2 * 2, input_height // 2 * 2
        if stretch:
            return cls(
                source_width,
                source_height,
                input_width,
                input_height,
                even_width,
                even_height,
                0,
                0,
            )
        scale = min(input_width / source_width, input_height / source_height)
        width = min(even_width, max(2, round(source_width * scale / 2) * 2))
        height = min(even_height, max(2, round(source_height * scale / 2) * 2))
        left = (input_width - width) // 4 * 2
        top = (input_height - height) // 4 * 2
        return cls(
            source_width, source_height, input_width, input_height, width, height, left, top
        )

    def to_source(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """
        Map boxes from input pixels to source pixels, clipped to the image.

        Boxes are (n, 4) x0, y0, x1, y1. The result is computed in float64 and rounded once, so it
        is the float32 nearest to the true coordinate.
        """
        offset, source, size = self._axes
        # Multiply before dividing, so that whole pixels of the source come back as whole numbers.
        moved = boxes - offset
        moved *= source
        moved /= size
        np.maximum(moved, 0.0, out=moved)
        np.minimum(moved, source, out=moved)
        return moved.astype(np.float32)

    def runs(self, outputs: Sequence[RawTensor], rows: NDArray[np.intp]) -> Iterator[Ran]:
        """
        Yield each run of the model on the frame; without tiles (``Tiling``) there is one run.

        :param rows: :attr:`Detections.rows`, the row numbers of the detections.
        """
        region = Region(0, 0, self.source_width, self.source_height)
        yield Ran(region, outputs, np.arange(len(rows)), rows)

    def meets(self, low: Sequence[float], high: Sequence[float]) -> bool:
        """
        Return whether the extremes of a set of boxes prove that every box overlaps the picture.

        ``False``: a box may lie outside the picture, or a box has a NaN.

        :param low: the minimum of x0, y0, x1, y1 over all boxes, in input pixels; NaN if a box
            has NaN.
        :param high: the maximum of x0, y0, x1, y1 over all boxes, in input pixels; NaN if a box
            has NaN.
        """
        return (
            low[2] > self.left
            and low[3] > self.top
            and high[0] < self.left + self.width
            and high[1] < self.top + self.height
        )

    @cached_property
    def picture(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The top left and bottom right corner of the picture, each (2, 1), in input pixels."""
        start = np.array([[self.left], [self.top]], np.float32)
        return start, start + np.array([[self.width], [self.height]], np.float32)

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """Left, top, width and height of the picture, and the source's size, for the C code."""
        numbers = self.left, self.top, self.width, self.height
        return tuple(map(float, (*numbers, self.source_width, self.source_height)))

    @cached_property
    def _axes(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        pairs = (
            (self.left, self.top),
            (self.source_width, self.source_height),
            (self.width, self.height),
        )
        offset, source, size = (np.array(pair * 2, np.float64) for pair in pairs)
        return offset, source, size
