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
Slow float64 decoders, cell by cell, from the published formulas; and outputs for them.

The outputs are as devices write them: quantised, with garbage in the padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
import math
from typing import NamedTuple

from hypothesis import assume
import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import box_iou, Detections
from zc_perception.detection.heads.spec import DecodeLimits, Head
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor

Array = NDArray[np.float64]
INPUT, STRIDES = (96, 64), (8, 16, 32)
GRIDS = tuple((INPUT[1] // stride, INPUT[0] // stride) for stride in STRIDES)
NEAR = 1e-5  # results closer than this may differ by rounding
TOLERANCE = 2e-3  # of corners, in pixels


class Box(NamedTuple):
    """Corners in the input's pixels."""

    score: float
    number: int
    x0: float
    y0: float
    x1: float
    y1: float


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def probability(value: float, by_sigmoid: bool) -> float:
    return sigmoid(value) if by_sigmoid else min(value, 1.0)


def centred(score: float, number: int, cx: float, cy: float, w: float, h: float) -> Box:
    return Box(score, number, cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2)


def best_class(values: Sequence[float]) -> tuple[int, float]:
    """Return index and value of the first maximum of the finite values; else (−1, −inf)."""
    best, highest = -1, -math.inf
    for number, value in enumerate(values):
        if math.isfinite(value) and value > highest:
            best, highest = number, value
    return best, highest


def expected_bin(logits: Sequence[float]) -> float:
    top = max(logits)
    shares = [math.exp(x - top) for x in logits]
    return sum(i * share for i, share in enumerate(shares)) / sum(shares)


def yolov8_levels(
    boxes: Sequence[Array],
    classes: Sequence[Array],
    strides: Sequence[int],
    bins: int,
    by_sigmoid: bool,
) -> Iterator[Box]:
    """Decode arrays (rows, columns, 4 * bins) and (rows, columns, classes) of each level."""
    for box, score, stride in zip(boxes, classes, strides, strict=True):
        for row, column in np.ndindex(*box.shape[:2]):
            number, logit = best_class(score[row, column].tolist())
            sides = box[row, column].reshape(4, bins).tolist()
            left, top, right, bottom = (expected_bin(s) if bins > 1 else s[0] for s in sides)
            x, y = column + 0.5, row + 0.5
            corners = (x - left, y - top, x + right, y + bottom)
            yield Box(
                probability(logit, by_sigmoid), number, *(corner * stride for corner in corners)
            )


def yolov8_rows(rows: Array, by_sigmoid: bool = False) -> Iterator[Box]:
    for row in rows.tolist():
        number, value = best_class(row[4:])
        yield centred(probability(value, by_sigmoid), number, *row[:4])


def yolov5_levels(
    levels: Sequence[Array],
    strides: Sequence[int],
    anchors: Sequence[Sequence[tuple[float, float]]],
    by_sigmoid: bool,
) -> Iterator[Box]:
    """Decode arrays (rows, columns, anchors, 5 + classes) of each level."""
    for level, stride, sizes in zip(levels, strides, anchors, strict=True):
        for row, column, anchor in np.ndindex(*level.shape[:3]):
            values = level[row, column, anchor].tolist()
            number, value = best_class(values[5:])
            x, y, w, h = (sigmoid(v) if by_sigmoid else v for v in values[:4])
            score = probability(values[4], by_sigmoid) * probability(value, by_sigmoid)
            width, height = sizes[anchor]
            centre = ((2 * x - 0.5 + column) * stride, (2 * y - 0.5 + row) * stride)
            yield centred(score, number, *centre, (2 * w) ** 2 * width, (2 * h) ** 2 * height)


def yolox_levels(
    levels: Sequence[Array], strides: Sequence[int], by_sigmoid: bool
) -> Iterator[Box]:
    """Decode arrays (rows, columns, 5 + classes) of each level."""
    for level, stride in zip(levels, strides, strict=True):
        for row, column in np.ndindex(*level.shape[:2]):
            values = level[row, column].tolist()
            number, value = best_class(values[5:])
            score = probability(values[4], by_sigmoid) * probability(value, by_sigmoid)
            centre = ((values[0] + column) * stride, (values[1] + row) * stride)
            yield centred(
                score, number, *centre, math.exp(values[2]) * stride, math.exp(values[3]) * stride
            )


def ssd_scores(
    logits: Sequence[float], background: int, softmax: bool, by_sigmoid: bool
) -> tuple[int, float]:
    if softmax:
        top = max(logits)
        total = sum(math.exp(x - top) for x in logits)
        scores = [math.exp(x - top) / total for x in logits]
    else:
        scores = [probability(x, by_sigmoid) for x in logits]
    if background >= 0:
        del scores[background]
    return best_class(scores)


def ssd_box(
    score: float,
    number: int,
    deltas: Sequence[float],
    prior: Sequence[float],
    variances: tuple[float, float],
) -> Box:
    """Decode deltas x, y, w, h; prior and result are in input pixels."""
    cx = prior[0] + deltas[0] * variances[0] * prior[2]
    cy = prior[1] + deltas[1] * variances[0] * prior[3]
    width, height = (prior[i] * math.exp(deltas[i] * variances[1]) for i in (2, 3))
    return centred(score, number, cx, cy, width, height)


def in_source(boxes: Sequence[Box], box: Letterbox) -> list[Box]:
    """Move boxes into the source, clip them, and leave out those without an area."""
    moved = []
    for one in boxes:
        x0, x1 = ((x - box.left) * box.source_width / box.width for x in (one.x0, one.x1))
        y0, y1 = ((y - box.top) * box.source_height / box.height for y in (one.y0, one.y1))
        x0, x1 = (min(max(x, 0.0), box.source_width) for x in (x0, x1))
        y0, y1 = (min(max(y, 0.0), box.source_height) for y in (y0, y1))
        if x1 > x0 and y1 > y0:
            moved.append(Box(one.score, one.number, x0, y0, x1, y1))
    return moved


def suppressed(
    boxes: Sequence[Box], threshold: float, agnostic: bool = False
) -> tuple[list[Box], float]:
    """Suppress greedily; also return how close any decision was to its opposite."""
    ranked = sorted(boxes, key=lambda one: -one.score)
    corners = np.array([one[2:] for one in ranked], np.float64).reshape(-1, 4)
    overlaps = box_iou(corners, corners)
    kept: list[int] = []
    nearest = 1.0
    for i, one in enumerate(ranked):
        alive = True
        for j in kept:
            if agnostic or ranked[j].number == one.number:
                nearest = min(nearest, abs(overlaps[i, j] - threshold))
                if overlaps[i, j] > threshold:
                    nearest = min(nearest, ranked[j].score - one.score)
                    alive = False
        if alive:
            kept.append(i)
    return [ranked[i] for i in kept], nearest


def assert_same(found: Detections, expected: Sequence[Box]) -> None:
    """Check for the same boxes; ignore slivers and the order of equal scores."""
    assert (np.diff(found.scores) <= 0).all(), 'best first'
    left = list(expected)
    columns = found.scores.tolist(), found.classes.tolist(), found.boxes.tolist()
    for score, number, corners in zip(*columns, strict=True):
        one = Box(score, number, *corners)
        match = next((other for other in left if _same(one, other)), None)
        if match is None:
            assert _sliver(one), f'{one} is none of {left[:5]}'
        else:
            left.remove(match)
    assert all(map(_sliver, left)), left[:5]


def _same(one: Box, other: Box) -> bool:
    return (
        one.number == other.number
        and abs(one.score - other.score) <= 3e-6
        and all(abs(a - b) <= TOLERANCE for a, b in zip(one[2:], other[2:], strict=True))
    )


def _sliver(box: Box) -> bool:
    return min(box.x1 - box.x0, box.y1 - box.y0) <= TOLERANCE


def scored(boxes: Iterable[Box], score: float, box: Letterbox) -> list[Box]:
    """Return the boxes that reach a score, in the source; reject examples with one near it."""
    every = list(boxes)
    assume(all(abs(one.score - score) > NEAR for one in every))
    return in_source([one for one in every if one.score >= score], box)


def check(
    head: Head,
    outputs: Sequence[RawTensor],
    box: Letterbox,
    score: float,
    expected: Sequence[Box],
) -> None:
    """Check the decoded boxes twice: nothing may be left of the first time."""
    for _ in range(2):  # an overlap limit of 1 suppresses nothing
        assert_same(head.decode(outputs, box, DecodeLimits(score, 1.0, 10_000)), expected)


def quantised(
    real: NDArray[np.floating],
    random: np.random.Generator,
    *,
    scale: float,
    zero_point: int,
    dtype: str = 'int8',
) -> RawTensor:
    """Quantise to (1, rows, columns, channels), as a view into a larger buffer."""
    limits = np.iinfo(dtype)
    before, after = random.integers(0, 3, 3), random.integers(0, 20, 3)
    shape = np.array(real.shape[1:])
    buffer = random.integers(
        limits.min, limits.max, (1, *(shape + before + after)), dtype=dtype, endpoint=True
    )
    inner = buffer[(slice(None), *map(slice, before, before + shape))]
    inner[...] = np.clip(np.round(real / scale + zero_point), limits.min, limits.max)
    return RawTensor(inner, scale, zero_point, 'nhwc')


def as_nchw(tensor: RawTensor) -> RawTensor:
    values = np.ascontiguousarray(tensor.values.transpose(0, 3, 1, 2))
    return RawTensor(values, tensor.scale, tensor.zero_point, 'nchw')


def dequantised(tensor: RawTensor) -> Array:
    values = tensor.values[0].astype(np.float64)
    if tensor.layout == 'nchw':
        values = values.transpose(1, 2, 0)
    return (
        values
        if tensor.values.dtype == np.float32
        else (values - tensor.zero_point) * float(tensor.scale)
    )
