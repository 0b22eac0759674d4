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
Find the cells whose score reaches a threshold.

The threshold is converted into the tensor's raw type (:func:`raw_threshold`), so that raw values
can be compared with it and only candidates are dequantised. :func:`make_score_filter` returns a
filter for class scores. :class:`ObjectFilter` is for heads whose score is the objectness times the
class score.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.native import compiled

Values = NDArray[Any]
# real_threshold() and raw_threshold() lower their bounds by this share. It is more than float32's
# rounding error, so no value that reaches the score lies below its bound.
_MARGIN = 2.0**-20
# This number is also subtracted from each threshold, because near zero float32 has no relative
# precision.
_TINY = 1e-30
# The search for a raw threshold tries at most this many raw values above its first estimate. For
# 8-bit types these are all values.
_STEPS = 255
_WORD = 64
# If the last frame had this many candidates or more, comparing every value with the threshold is
# quicker than finding the best class of each cell.
_MANY = 600
# Float32 output with _MANY_NUMBERS numbers or more has more than 256 different values, unless the
# network computes it from 8-bit numbers. Output with fewer different values than _FEWEST_STEPS is
# nearly constant, and doesn't show whether the network is quantised.
_MANY_NUMBERS, _FEWEST_STEPS = 4096, 16


def sigmoid(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return 1 / (1 + exp(−x)) in float32; callers switch overflow warnings off."""
    result: NDArray[np.float32] = np.float32(1) / (np.float32(1) + np.exp(-logits))
    return result


def activated(logits: NDArray[np.float32], by_sigmoid: bool) -> NDArray[np.float32]:
    """Apply the sigmoid if *by_sigmoid*, else limit scores to 1: rounding may put some above 1."""
    return sigmoid(logits) if by_sigmoid else np.minimum(logits, np.float32(1))


def logit(score: float) -> float:
    """Return the sigmoid's inverse, which is infinite at 0 and 1."""
    if not 0 < score < 1:
        return -math.inf if score <= 0 else math.inf
    return math.log(score) - math.log1p(-score)


def real_threshold(score: float, by_sigmoid: bool) -> float:
    """Return a lower bound of the values (logits, if *by_sigmoid*) that reach *score*."""
    score = float(np.float32(score))
    low = score - abs(score) * _MARGIN - _TINY
    if by_sigmoid:
        low = logit(low)
    return low - abs(low) * _MARGIN if math.isfinite(low) else low


def raw_threshold(tensor: RawTensor, score: float, by_sigmoid: bool) -> Values:
    """
    Return a lower bound, in the tensor's type, of the raw values that reach *score*.

    Values below the bound don't reach the score. Callers dequantise all other values and check
    them again, because for floats and wide integers the bound is slightly too low. If no value of
    the type reaches the score, the bound is the type's highest value.
    """
    low = real_threshold(score, by_sigmoid)
    kind = tensor.values.dtype
    if kind.kind == 'f':
        return np.array(low, kind)
    limits = np.iinfo(kind)
    place = min(max(low / float(tensor.scale), -1e12), 1e12) + tensor.zero_point
    place = math.floor(place - (abs(place) + abs(tensor.zero_point)) * _MARGIN)
    least = min(max(place, limits.min), limits.max)
    steps = np.arange(least, min(least + _STEPS, limits.max) + 1).astype(kind)
    enough = np.flatnonzero(activated(tensor.read(steps), by_sigmoid) >= np.float32(score))
    return np.array(steps[enough[0] if len(enough) else -1])


def out_of_reach(
    tensor: RawTensor, score: float, by_sigmoid: bool | None, *, has_boxes: bool = False
) -> str:
    """
    Explain why a quantised tensor can't hold any score from *score* to 1; empty text: it can.

    A head finds nothing in a tensor that can't hold such a score.

    :param has_boxes: whether the tensor also has many boxes. If so, float32 values count as
        quantised when few of them differ.
    """
    kind = tensor.values.dtype
    if kind.kind == 'f':
        if not has_boxes or by_sigmoid or tensor.values.size < _MANY_NUMBERS:
            return ''
        # Don't use numpy.unique: it would import numpy.ma, and each start would take longer.
        ordered = np.sort(tensor.values, axis=None)
        every = ordered[np.diff(ordered, prepend=np.float32(-np.inf)) > 0]
        if not _FEWEST_STEPS <= len(every) <= 1 << 8:
            return ''
        step = float(np.diff(every).min())
    elif kind.itemsize > 2 or np.ndim(tensor.scale):
        return ''
    else:
        limits = np.iinfo(kind)
        every = tensor.read(np.arange(limits.min, limits.max + 1).astype(kind))
        step = float(tensor.scale)
    scores = sigmoid(every) if by_sigmoid else every
    if bool(((scores >= np.float32(score)) & (scores <= np.float32(1.01))).any()):
        return ''
    return (
        f'scores in steps of {step:g} ({kind}), so that no score can lie between the '
        f'score threshold {score:g} and 1: boxes and '
        'scores share one scale; export scores as a separate output, or without '
        'quantising the outputs'
    )


_OVERFLOW = (
    "{} that are not finite (nan, inf): the model's numbers overflow; export the model in float32 "
    '(yolo export … half=False)'
)


def not_finite(boxes: NDArray[np.float32]) -> str:
    """Explain that most boxes (4, n) have numbers that aren't finite; empty text if they don't."""
    wrong = ~np.isfinite(boxes).all(axis=0)
    return _OVERFLOW.format('boxes') if np.count_nonzero(wrong) * 2 > wrong.size else ''


def logits(scores: NDArray[np.float32], by_sigmoid: bool | None) -> str:
    """Explain why numbers can't be scores from 0 to 1; return an empty text if they can."""
    if by_sigmoid or not scores.size or (scores.min() >= -0.01 and scores.max() <= 1.01):
        return ''
    if not np.isfinite(scores).all():
        return _OVERFLOW.format('scores')
    return (
        f'scores from {scores.min():.4g} to {scores.max():.4g}: these are logits (set '
        'sigmoid: true), or the model needs another head'
    )


class Found(NamedTuple):
    """The found cells as ascending flat indices, with each cell's best class and score."""

    cells: NDArray[np.intp]
    classes: NDArray[np.intp]
    scores: NDArray[np.float32]


NOTHING = Found(np.zeros(0, np.intp), np.zeros(0, np.intp), np.zeros(0, np.float32))


def make_score_filter(
    tensor: RawTensor, values: Values, sigmoid: bool
) -> CompiledFilter | ChannelMajorFilter | CellMajorFilter:
    """
    Return the quickest filter for the memory layout of the values.

    Only one thread at a time may use the filter. Its method ``find`` takes values of the same
    layout. A number that isn't finite doesn't count as a score. If classes have equal scores, the
    first one wins.

    :param tensor: a tensor that has one scale for all values.
    :param values: (cells, classes) or (rows, columns, classes), a view of the class scores in
        *tensor*.
    """
    if compiled is not None:
        return CompiledFilter(tensor, values, sigmoid)
    return numpy_filter(tensor, values, sigmoid)


def numpy_filter(
    tensor: RawTensor, values: Values, sigmoid: bool
) -> ChannelMajorFilter | CellMajorFilter:
    """Do the same as :func:`make_score_filter`, without compiled code."""
    strides = [abs(stride) for stride in values.strides]
    if strides[-1] > max(strides[:-1]):
        return ChannelMajorFilter(tensor, sigmoid)
    return CellMajorFilter(tensor, values, sigmoid)


class Threshold:
    """Converts a minimum score to a bound of the tensor's raw values, and caches this bound."""

    def __init__(self, tensor: RawTensor, sigmoid: bool) -> None:
        self._tensor, self._sigmoid = tensor.without_values(), sigmoid
        self._score = math.nan
        self._raw: Values = np.zeros(())

    def raw(self, score: float) -> Values:
        if score != self._score:
            self._score, self._raw = score, raw_threshold(self._tensor, score, self._sigmoid)
        return self._raw


def _settle(
    best: NDArray[np.float32],
    cells: NDArray[np.intp],
    classes: NDArray[np.intp],
    score: float,
    sigmoid: bool,
    high: float | None = None,
) -> Found:
    """
    Compute scores from the real values *best*, and drop candidates below *score*.

    A raw threshold is only a lower bound, so it may let such candidates through.
    """
    # Usually no cell is dropped. Find this out quickly from the minimum and the maximum of *best*.
    # If a value is NaN, both are NaN, and the comparisons fail.
    if not len(best):
        return NOTHING
    low, high = float(best.min()), float(best.max()) if high is None else high
    scores = best if high <= 1 and not sigmoid else activated(best, sigmoid)
    if low > -np.inf and high < np.inf and (scores.min() if sigmoid else low) >= np.float32(score):
        return Found(cells, classes, scores)
    enough = (scores >= np.float32(score)) & (np.abs(best) < np.inf)
    return Found(cells[enough], classes[enough], scores[enough])


class _Comparison:
    """
    Finds the values that reach a threshold.

    All values are compared with the threshold. Then 64 results are tested at once, because most
    groups of 64 contain no value that reaches it.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        size = math.prod(shape)
        self._answers = np.zeros(-(-size // _WORD) * _WORD, bool)
        self._mask = self._answers[:size].reshape(shape)
        self._words = self._answers.reshape(-1, _WORD)

    def places(self, values: Values, least: Values) -> NDArray[np.intp]:
        """Return the flat, ascending indices of the values that reach *least*."""
        np.greater_equal(values, least, out=self._mask)
        words = (np.packbits(self._answers).view(np.uint64) != 0).nonzero()[0]
        inside = self._words.take(words, axis=0).reshape(-1).nonzero()[0]
        places: NDArray[np.intp] = words.take(inside >> 6) * _WORD + (inside & (_WORD - 1))
        return places


class CompiledFilter:
    """
    A filter in compiled code.

    It reads values in which all cells of a class, or all classes of a cell, are adjacent in
    memory. For other values it calls a filter in NumPy.
    """

    def __init__(self, tensor: RawTensor, values: Values, sigmoid: bool) -> None:
        self._tensor, self._sigmoid = tensor.without_values(), sigmoid
        self._threshold = Threshold(tensor, sigmoid)
        size = math.prod(values.shape[:-1])
        self._cells, self._classes = np.empty(size, np.intp), np.empty(size, np.intp)
        self._best = np.empty(size, tensor.values.dtype)
        self._other: ChannelMajorFilter | CellMajorFilter | None = None

    def find(self, values: Values, score: float) -> Found:
        if not score <= 1 or values.size == 0:
            return NOTHING
        cells, classes, best = self._cells, self._classes, self._best
        count = compiled.find(  # type: ignore[union-attr]
            values, float(self._threshold.raw(score)), cells, classes, best
        )
        if count < 0:  # the compiled code doesn't support this type or layout
            self._other = self._other or numpy_filter(self._tensor, values, self._sigmoid)
            return self._other.find(values, score)
        # Return copies, because the next frame's results overwrite these arrays.
        return _settle(
            self._tensor.read(best[:count].copy()), cells[:count].copy(), classes[:count].copy(),
            score, self._sigmoid,
        )  # fmt: skip


class ChannelMajorFilter:
    """
    A filter for values in which all cells of a class are adjacent in memory.

    Usually the filter computes each cell's maximum over the classes. If *many* or more cells of
    the previous frame reached the threshold, but fewer than half of all cells, the filter compares
    every value with the threshold. This is then quicker, and gives the same result.

    :param many: the least number of cells for which the filter compares every value.
    """

    def __init__(self, tensor: RawTensor, sigmoid: bool, many: int = _MANY) -> None:
        self._tensor, self._sigmoid = tensor.without_values(), sigmoid
        self._many, self._last = many, 0
        self._comparison: _Comparison | None = None
        self._threshold = Threshold(tensor, sigmoid)

    def find(self, values: Values, score: float) -> Found:
        if not score <= 1 or values.size == 0:
            return NOTHING
        rows = (
            values.T
            if values.ndim == 2
            else np.moveaxis(values, -1, 0).reshape(values.shape[-1], -1)
        )
        found = (
            self._compared(rows, score)
            if self._many <= self._last < rows.shape[1] // 2
            else self._highest(rows, score)
        )
        self._last = len(found.cells)
        return found

    def _compared(self, rows: Values, score: float) -> Found:
        if self._comparison is None:
            self._comparison = _Comparison(rows.shape)
        places = self._comparison.places(rows, self._threshold.raw(score))
        if not len(places):
            return NOTHING
        count, cells_each = rows.shape
        if len(places) > cells_each:
            return self._highest(rows, score)
        classes = places // cells_each
        places -= classes * cells_each
        order = places * count + classes
        order.sort()
        cells = order // count
        classes = order - cells * count
        best = self._tensor.read(rows[classes, cells])
        if not (cells[1:] != cells[:-1]).all():
            cells, classes, best = _best_of_each(cells, classes, best)
        return _settle(best, cells, classes, score, self._sigmoid)

    def _highest(self, rows: Values, score: float) -> Found:
        best: Values = rows[0] if len(rows) == 1 else np.maximum.reduce(rows, axis=0)
        # This also chooses cells whose maximum is NaN (a comparison with NaN is false): another of
        # their classes may reach the score.
        cells = (~(best < self._threshold.raw(score))).nonzero()[0]
        if not len(cells):
            return NOTHING
        best, columns = best.take(cells), rows[:, cells]
        if self._tensor.quantised:
            return _settle(
                self._tensor.read(best), cells, columns.argmax(axis=0), score, self._sigmoid
            )
        high = float(best.max())
        if not high < np.inf:
            columns = np.where(np.abs(columns) < np.inf, columns, -np.inf)
            best = columns.max(axis=0)
            high = float(best.max())
        return _settle(best, cells, columns.argmax(axis=0), score, self._sigmoid, high)


class CellMajorFilter:
    """
    A filter for tensors in which the values of one cell's classes are adjacent in memory.

    The filter compares every value with the threshold.
    """

    def __init__(self, tensor: RawTensor, values: Values, sigmoid: bool) -> None:
        self._tensor, self._sigmoid = tensor.without_values(), sigmoid
        self._threshold = Threshold(tensor, sigmoid)
        self._comparison = _Comparison(values.shape)

    def find(self, values: Values, score: float) -> Found:
        if not score <= 1 or values.size == 0:
            return NOTHING
        hits = self._comparison.places(values, self._threshold.raw(score))
        if not len(hits):
            return NOTHING
        count = values.shape[-1]
        if len(hits) * count > values.size:
            return self._of_all(values.reshape(-1, count), score)
        cells = hits // count
        classes = hits - cells * count
        if len(values.shape) == 3:
            rows = cells // values.shape[1]
            raw = values[rows, cells - rows * values.shape[1], classes]
        else:
            raw = values[cells, classes]
        best = self._tensor.read(raw)
        if not (cells[1:] != cells[:-1]).all():
            cells, classes, best = _best_of_each(cells, classes, best)
        return _settle(best, cells, classes, score, self._sigmoid)

    def _of_all(self, rows: Values, score: float) -> Found:
        """Find each cell's best class. This is quicker than to read each hit if there are many."""
        numbers = (
            rows if self._tensor.quantised else np.where(np.abs(rows) < np.inf, rows, -np.inf)
        )
        classes = numbers.argmax(axis=1)
        best = numbers[np.arange(len(numbers)), classes]
        cells = (best >= self._threshold.raw(score)).nonzero()[0]
        return _settle(self._tensor.read(best[cells]), cells, classes[cells], score, self._sigmoid)


def _best_of_each(
    cells: NDArray[np.intp], classes: NDArray[np.intp], values: NDArray[np.float32]
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """Keep for each cell the class with the highest value; of equal values, the first class."""
    order = np.lexsort((-np.where(np.abs(values) < np.inf, values, -np.inf), cells))
    ordered = cells[order]
    first = order[np.concatenate(([True], ordered[1:] != ordered[:-1]))]
    return cells[first], classes[first], values[first]


class ObjectFilter:
    """
    Find the cells whose objectness times best class score reaches a threshold.

    The objectness alone must also reach the threshold. Only one thread at a time may use a filter.

    :param objects: the output tensor with the objectness.
    :param classes: the output tensor with the classes.
    """

    def __init__(self, objects: RawTensor, classes: RawTensor, sigmoid: bool) -> None:
        self._objects, self._classes = objects.without_values(), classes.without_values()
        self._sigmoid = sigmoid
        self._threshold = Threshold(objects, sigmoid)

    def find(self, objects: Values, classes: Values, score: float) -> Found:
        """
        Find the cells whose objectness times best class score reaches *score*.

        The objectness alone must also reach *score*.

        :param objects: (...) one objectness for each cell.
        :param classes: (..., classes) the class scores of each cell.
        """
        if not score <= 1:
            return NOTHING
        cells = np.flatnonzero(objects >= self._threshold.raw(score))
        if not len(cells):
            return NOTHING
        at = np.unravel_index(cells, objects.shape)
        object_logits = self._objects.read(objects[at])
        logits = self._classes.read(classes[at])
        if not self._classes.quantised:
            logits = np.where(np.abs(logits) < np.inf, logits, -np.inf)
        best = logits.argmax(axis=1)
        logits = logits[np.arange(len(cells)), best]
        object_scores = activated(object_logits, self._sigmoid)
        scores = object_scores * activated(logits, self._sigmoid)
        least = np.float32(score)
        fine = (
            (object_scores >= least)
            & (scores >= least)
            & (np.abs(object_logits) < np.inf)
            & (np.abs(logits) < np.inf)
        )
        return Found(cells[fine], best[fine], scores[fine])
