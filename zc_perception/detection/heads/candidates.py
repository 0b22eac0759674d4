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
Turn a head's candidates (boxes whose score reaches the threshold) into detections.

Non-maximum suppression (NMS) removes duplicates. Then the remaining boxes are mapped to source
pixels. :func:`keep` keeps exactly the same boxes as ``cv2.dnn.NMSBoxes``, for each class or for
all classes together.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads.score_filter import Threshold, Values
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.native import compiled

# Candidates are compared in batches of this size, best first. A low score threshold gives
# thousands of candidates, but often the first batches already give enough boxes.
_CHUNK = 2048
# Above this number of boxes, _keep() first guesses which boxes are duplicates and removes them in
# rounds. For fewer boxes it is quicker to let OpenCV alone suppress duplicates.
_FEW = 550
# The highest number of rounds in which _keep() guesses duplicates.
_ROUNDS = 3
# _keep() stops guessing duplicates when a round removes fewer boxes than a quarter of those that
# it leaves.
_LITTLE = 4
# OpenCV treats two boxes whose sides are shorter than this as the same object, wherever they are.
_NO_SIZE = 1e-7
# To compare only boxes of the same class, all boxes of a class are shifted to an area of their
# own. The boxes are shifted only if all boxes together extend over fewer pixels than _WIDE:
# float64 would round larger coordinates until boxes coincide.
_WIDE = 2.0**20
_INDEX_BITS = 31
# The number of entries of a hash table of grid squares, see _leaders().
_TABLE = 1 << 13
# A box's doubled centre (x0 + x1, y0 + y1) times one of these factors gives the position of the
# centre in the grid of _leaders(), in squares. The index of the factor is half the exponent of the
# box's area as a float32. With this factor, a square box is 1.5 to 3 squares of the grid wide.
_PER_HALF_PIXEL = 0.75 / 2.0 ** (np.arange(128) - 63.0)
# How far each round of _keep() shifts the grid of _leaders(), in squares.
_TURNS = (0.0, 0.5, 0.21)


class Candidates(NamedTuple):
    """
    The boxes whose score reaches the threshold.

    Corners are (4, n) x0, y0, x1, y1 in input pixels; the other arrays have shape (n). For rows,
    see :attr:`Detections.rows`.
    """

    corners: NDArray[np.float32]
    scores: NDArray[np.float32]
    classes: NDArray[np.intp]
    rows: NDArray[np.intp]

    def chosen(self, which: NDArray[np.bool_] | NDArray[np.intp]) -> Candidates:
        """Return some of the candidates, chosen by a mask or by indices."""
        return Candidates(
            self.corners[:, which], self.scores[which], self.classes[which], self.rows[which]
        )

    def wanted(self, limits: DecodeLimits, class_agnostic: bool) -> NDArray[np.bool_] | None:
        """
        Return a mask of the candidates of the wanted classes; ``None``: none may be left out.

        If *class_agnostic*, an unwanted candidate may suppress a wanted one.
        """
        return None if limits.classes is None or class_agnostic else limits.classes[self.classes]


# cv2.dnn.NMSBoxes, which suppresses duplicates, also drops boxes whose score isn't above zero. If
# the score threshold is above this number, all candidates have scores above zero, even as float32.
# Then _keep_few() can call cv2.dnn.NMSBoxes without losing a box.
_ABOVE_ZERO = 1e-30
_NO_ROWS = np.zeros(0, np.intp)
NONE = Candidates(np.zeros((4, 0), np.float32), np.zeros(0, np.float32), _NO_ROWS, _NO_ROWS)


def from_centres(centres: NDArray[np.float32], sizes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (4, n) x0, y0, x1, y1 of boxes with these centres and sizes, both (2, n)."""
    half = sizes * np.float32(0.5)
    return np.concatenate((centres - half, centres + half))


def detections(
    candidates: Candidates, box: Letterbox, limits: DecodeLimits, class_agnostic: bool
) -> Detections:
    """
    Suppress duplicates; return the remaining boxes in source pixels, best first.

    Candidates with equal scores keep their order. Before suppression, a box is dropped if a corner
    isn't finite, if its area is 0, or if it lies wholly outside the picture. Suppression compares
    boxes in input pixels and before clipping, as the programs do that measure a model's accuracy.

    :param class_agnostic: whether boxes of different classes suppress each other.
    """
    wanted = candidates.wanted(limits, class_agnostic)
    if wanted is not None:
        candidates = candidates.chosen(wanted)
    corners, scores, classes, rows = candidates
    if not len(scores):
        return Detections.empty()
    if compiled is not None:
        return _compiled(candidates, box, limits, class_agnostic)
    kinds = None if class_agnostic else classes
    sizes = corners[2:] - corners[:2]
    low, high = corners.min(axis=1).tolist(), corners.max(axis=1).tolist()
    wide = max(high[2:]) - min(low[:2])
    # Check all boxes at once by minimum and maximum: if a number is NaN, both are NaN, and the
    # comparisons are false.
    fine = wide < _WIDE and bool(sizes.min() >= _NO_SIZE) and box.meets(low, high)
    if not fine:
        return _of_fine(candidates, box, limits, class_agnostic)
    if len(scores) <= _FEW and limits.score > _ABOVE_ZERO:
        order = _keep_few(corners[:2], sizes, scores, kinds, np.float32(limits.iou), wide)[
            : limits.count
        ]
    else:
        order = keep(corners, scores, kinds, limits.iou, limits.count)
    return in_source(
        Candidates(
            corners.take(order, axis=1), scores.take(order), classes.take(order), rows.take(order)
        ),
        box,
    )


def _compiled(
    candidates: Candidates, box: Letterbox, limits: DecodeLimits, class_agnostic: bool
) -> Detections:
    corners, scores, classes, rows = candidates
    count = min(limits.count, len(scores))
    places, sources = np.empty(count, np.intp), np.empty((count, 4), np.float32)
    kinds = None if class_agnostic else np.ascontiguousarray(classes)
    kept = compiled.suppress(  # type: ignore[union-attr]
        np.ascontiguousarray(corners), np.ascontiguousarray(scores), kinds, box.numbers,
        limits.iou, places, sources,
    )  # fmt: skip
    places = places[:kept]
    return Detections(sources[:kept], scores.take(places), classes.take(places), rows.take(places))


class CompiledRows:
    """
    Decode a table with a box's centre, size and scores in each row, in one call of compiled code.

    The call gives the same result as three steps in Python: the score filter,
    :func:`from_centres` and :func:`detections`. Only one thread at a time may use a
    :class:`CompiledRows`.

    :param tensor: the output tensor, with one scale for all values.
    """

    def __init__(self, tensor: RawTensor, cells: int) -> None:
        self._threshold = Threshold(tensor, False)
        self._real = float(tensor.scale), float(tensor.zero_point)
        self._limits: DecodeLimits | None = None
        self._numbers: tuple[float, ...] = ()
        self._room = (
            np.empty(cells, np.intp),
            np.empty(cells, np.intp),
            np.empty(cells, tensor.values.dtype),
        )

    def detections(
        self,
        scores: Values,
        boxes: Values,
        box: Letterbox,
        limits: DecodeLimits,
        class_agnostic: bool,
    ) -> Detections | None:
        """
        Return the detections, or ``None`` if compiled code can't read the arrays' layout.

        :param scores: (n, classes) probabilities.
        :param boxes: (n, 4) centre and size in input pixels.
        """
        count = limits.count
        if not limits.score <= 1 or scores.size == 0:
            return Detections.empty()
        if limits is not self._limits:
            least = float(self._threshold.raw(limits.score))
            self._numbers = least, limits.score, *self._real, limits.iou
            self._limits = limits
        sources, kept = np.empty((count, 4), np.float32), np.empty(count, np.float32)
        classes, cells = np.empty(count, np.intp), np.empty(count, np.intp)
        stay = compiled.decode(  # type: ignore[union-attr]
            scores, boxes, self._numbers, box.numbers, class_agnostic, *self._room, sources,
            kept, classes, cells,
        )  # fmt: skip
        return (
            None
            if stay < 0
            else Detections(sources[:stay], kept[:stay], classes[:stay], cells[:stay])
        )


def compiled_rows(tensor: RawTensor, cells: int) -> CompiledRows | None:
    """Return a :class:`CompiledRows`, or ``None`` if the package's C code isn't available."""
    return None if compiled is None else CompiledRows(tensor, cells)


def _of_fine(
    candidates: Candidates, box: Letterbox, limits: DecodeLimits, class_agnostic: bool
) -> Detections:
    corners, scores, classes, _ = candidates
    sizes = corners[2:] - corners[:2]
    start, end = box.picture
    # Drop boxes of size 0 and boxes outside the picture. The comparisons also drop boxes with NaN
    # (comparisons with NaN are false) and infinite boxes (their area isn't finite).
    inside: NDArray[np.bool_] = sizes > 0
    inside &= corners[2:] > start
    inside &= corners[:2] < end
    inside[0] &= sizes[0] * sizes[1] < np.inf
    if not inside.all():
        fine = inside[0] & inside[1]
        candidates = candidates.chosen(fine)
        corners, scores, classes, _ = candidates
    order = keep(corners, scores, None if class_agnostic else classes, limits.iou, limits.count)
    return in_source(candidates.chosen(order), box)


def in_source(chosen: Candidates, box: Letterbox) -> Detections:
    """Map candidates to source pixels and clip them; drop boxes that are empty after clipping."""
    boxes = box.to_source(chosen.corners.T)
    found = Detections(boxes, chosen.scores, chosen.classes, chosen.rows)
    ahead = boxes[:, 2:] > boxes[:, :2]
    if np.count_nonzero(ahead) == ahead.size:  # quicker than all()
        return found
    area: NDArray[np.bool_] = np.asarray(ahead.all(axis=1))
    return found.chosen(area)


def keep(
    corners: NDArray[np.float32],
    scores: NDArray[np.float32],
    classes: NDArray[np.intp] | None,
    iou_threshold: float,
    limit: int,
) -> NDArray[np.intp]:
    """
    Suppress duplicates; return the indices of the remaining boxes, best first.

    Boxes with equal scores keep their order. Overlaps are computed as OpenCV does: sizes are
    float32 differences of the corners, further steps use float64, and the overlap is rounded to
    float32.

    :param corners: (4, n) x0, y0, x1, y1, finite.
    :param scores: (n), finite.
    :param classes: (n), not negative; a box suppresses only boxes of its own class. ``None``: a
        box suppresses boxes of all classes.
    :param iou_threshold: boxes whose IoU is greater than this count as the same object.
    :param limit: the highest number of indices.
    """
    count = len(scores)
    if count == 0:
        return np.zeros(0, np.intp)
    threshold = np.float32(iou_threshold)
    boxes = np.empty((5, count))
    boxes[:2] = corners[:2]
    np.subtract(corners[2:], corners[:2], out=boxes[2:4], dtype=np.float32)
    # _few() hands the scores to cv2.dnn.NMSBoxes, which drops boxes whose score isn't above zero.
    # _keep() hands ranks in place of scores to cv2.dnn.NMSBoxes, so such boxes aren't dropped.
    if count <= _FEW and boxes[2:4].min() >= _NO_SIZE and scores.min() > 0:
        return _few(boxes, scores, classes, threshold)[:limit]
    order = _best_first(scores)
    boxes = boxes.take(order, axis=1)
    np.multiply(boxes[2], boxes[3], out=boxes[4])
    if classes is not None:
        classes = classes.take(order)
    if count <= _CHUNK:
        return order[_keep(boxes, classes, threshold)[:limit]]
    kept = order[:0]
    for start in range(0, count, _CHUNK):
        # Add the boxes kept so far to each batch. A kept box doesn't suppress another kept box, so
        # kept boxes only remove boxes of the new batch.
        some = np.concatenate((kept, np.arange(start, min(start + _CHUNK, count))))
        kept = some[
            _keep(boxes.take(some, axis=1), None if classes is None else classes[some], threshold)
        ]
        if len(kept) >= limit:
            break
    return order[kept[:limit]]


def _best_first(scores: NDArray[np.float32]) -> NDArray[np.intp]:
    """
    Return the boxes' indices, sorted by falling score; for equal scores, by index.

    For each box, one integer combines the score's inverted bits with the index, because sorting
    integers is several times quicker than sorting indices by score. The bits of a float sort like
    the float itself, after a correction for negative numbers.
    """
    bits = (scores + np.float32(0)).view(np.int32)
    keys = (~(bits ^ ((bits >> 31) & 0x7FFFFFFF))).astype(np.int64)
    keys <<= _INDEX_BITS
    keys |= np.arange(len(scores))
    keys.sort()
    keys &= (1 << _INDEX_BITS) - 1
    order: NDArray[np.intp] = keys.astype(np.intp, copy=False)
    return order


def _keep(
    boxes: NDArray[np.float64], classes: NDArray[np.intp] | None, threshold: np.float32
) -> NDArray[np.intp]:
    """
    Suppress duplicates; return the indices of the kept boxes, in ascending order.

    Suppression has one correct result: kept boxes don't suppress each other, and each removed box
    is suppressed by a better box that is kept. So this function may first guess which boxes are
    removed. At the end it checks each guess: the box that suppressed the removed box must itself
    be kept.

    :param boxes: (5, n) x, y, width, height, area, best first.
    """
    count = boxes.shape[1]
    # OpenCV treats all tiny boxes as the same object, wherever they are. So _keep_few(), which
    # shifts the boxes of each class to an area of their own, would not help: call OpenCV once for
    # each class.
    if boxes[2:4].min() < _NO_SIZE:
        return _class_by_class(boxes, _falling(count), classes, threshold)
    suppressors = np.arange(count)
    left, rest, kinds = suppressors.copy(), boxes, classes
    for turn in range(_ROUNDS):
        if len(left) <= _FEW:
            break
        leaders = _leaders(rest, kinds, turn)
        out = _overlaps(rest, rest.take(leaders, axis=1)) > threshold
        out &= leaders < np.arange(len(left))
        if kinds is not None:
            out &= kinds == kinds.take(leaders)
        gone = out.nonzero()[0]
        suppressors[left[gone]] = left[leaders[gone]]
        stay = (~out).nonzero()[0]
        left, rest = left[stay], rest.take(stay, axis=1)
        kinds = None if kinds is None else kinds[stay]
        if len(gone) < len(stay) // _LITTLE:
            break
    if len(left) > count // 2:
        # The guesses removed few boxes. To check these guesses would cost more than they save.
        return _few(boxes, _falling(count), classes, threshold)
    # A box A that suppressed boxes may itself have been removed later, by a box B. Then check
    # whether B also suppresses the boxes that A suppressed.
    last = suppressors.take(suppressors).take(suppressors)
    moved = (last != suppressors).nonzero()[0]
    unsure = moved[:0]
    if len(moved):
        still = _overlaps(boxes.take(moved, axis=1), boxes.take(last[moved], axis=1)) > threshold
        suppressors[moved[still]] = last[moved[still]]
        unsure = moved[~still]
    while True:
        if len(unsure):
            left = np.sort(np.concatenate((left, unsure)))
            rest, kinds = boxes.take(left, axis=1), None if classes is None else classes[left]
        kept: NDArray[np.intp] = left[_few(rest, _falling(len(left)), kinds, threshold)]
        proven = np.zeros(count, bool)
        proven[kept] = True
        proven = proven.take(suppressors)
        proven[left] = True
        if proven.all():
            return kept
        unsure = (~proven).nonzero()[0]


@np.errstate(over='ignore', invalid='ignore')
def _leaders(
    boxes: NDArray[np.float64], classes: NDArray[np.intp] | None, turn: int
) -> NDArray[np.intp]:
    """
    Guess for each box the index of a better box that suppresses it.

    The guess is the best box whose centre lies in the same square of a grid. The size of the
    squares depends on the boxes' size. A second, shifted grid is applied to the results, because
    the boxes of an object on a line of the first grid lie in several squares. Squares are
    identified by a hash of their position.

    :param turn: the number of the round; each round shifts its grids differently.
    """
    count = boxes.shape[1]
    doubled = boxes[:2] * 2
    doubled += boxes[2:4]
    octaves = boxes[4].astype(np.float32).view(np.int32)
    first = _best_in_squares(doubled, octaves, classes, np.arange(count), _TURNS[turn])
    some = (first == np.arange(count)).nonzero()[0]
    second = np.empty(count, np.intp)
    second[some] = _best_in_squares(
        doubled.take(some, axis=1),
        octaves[some] - (1 << 23),
        None if classes is None else classes[some],
        some,
        _TURNS[turn] + 1 / 3,
    )
    return np.asarray(second.take(first))


def _best_in_squares(
    doubled: NDArray[np.float64],
    areas: NDArray[np.int32],
    classes: NDArray[np.intp] | None,
    places: NDArray[np.intp],
    shift: float,
) -> NDArray[np.intp]:
    octaves = areas >> 24
    squares = doubled * _PER_HALF_PIXEL.take(octaves, mode='clip')
    squares += shift + 1000
    cells = squares.astype(np.int64)
    keys = cells[0]
    keys += cells[1] * 97
    keys += octaves * 3571
    if classes is not None:
        keys += classes * 1031
    keys &= _TABLE - 1
    table = np.empty(_TABLE, np.intp)
    # Write the best box last: of several values written to one element, the last one stays.
    table[keys[::-1]] = places[::-1]
    return np.asarray(table.take(keys))


def _falling(count: int) -> NDArray[np.float32]:
    """Return descending scores for boxes that are already sorted, best first."""
    return np.arange(count, 0, -1, dtype=np.float32)


def _few(
    boxes: NDArray[np.float64],
    scores: NDArray[np.float32],
    classes: NDArray[np.intp] | None,
    threshold: np.float32,
) -> NDArray[np.intp]:
    """
    Suppress duplicates with OpenCV alone; return the indices of the kept boxes, best first.

    :param boxes: (4 or more, n) rows of x, y, width and height; other rows are ignored.
    :param scores: (n,) values above zero.
    """
    if classes is None:
        return _opencv(boxes, scores, threshold)
    places, sizes = boxes[:2], boxes[2:4]
    wide = float(places.max()) - float(places.min()) + float(sizes.max())
    if not wide < _WIDE:
        return _class_by_class(boxes, scores, classes, threshold)
    return _keep_few(places, sizes, scores, classes, threshold, wide)


def _keep_few(
    places: NDArray[np.floating],
    sizes: NDArray[np.float32] | NDArray[np.float64],
    scores: NDArray[np.float32],
    classes: NDArray[np.intp] | None,
    threshold: np.float32,
    wide: float,
) -> NDArray[np.intp]:
    """
    Suppress duplicates with OpenCV alone; return the indices of the kept boxes, best first.

    The boxes of each class are shifted by a distance of their own, so that boxes of different
    classes don't overlap.

    :param places: (2, n) x0 and y0 of the boxes.
    :param sizes: (2, n) their widths and heights, at least ``_NO_SIZE``.
    :param wide: at least the extent of all boxes together, and below ``_WIDE``; the shifts of two
        classes differ by more than this.
    """
    if classes is not None:
        # Shift each class by a multiple of a power of two, so that coordinates are not rounded.
        places = places + classes * math.ldexp(1.0, math.frexp(wide + 1.0)[1])
    return _opencv(np.concatenate((places, sizes), dtype=np.float64), scores, threshold)


def _class_by_class(
    boxes: NDArray[np.float64],
    scores: NDArray[np.float32],
    classes: NDArray[np.intp] | None,
    threshold: np.float32,
) -> NDArray[np.intp]:
    """
    Suppress duplicates like :func:`_few`, but in a separate run for each class.

    :func:`_keep_few` shifts the boxes of each class instead. If the boxes are spread over
    ``_WIDE`` pixels or more, such a shift would round coordinates.
    """
    if classes is None:
        return _opencv(boxes, scores, threshold)
    order = _best_first(scores)
    order = order.take(classes.take(order).argsort(kind='stable'))
    ordered = classes.take(order)
    ends = [*(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(order)]
    kept, start = [], 0
    for end in ends:
        some = order[start:end]
        kept.append(
            some
            if end - start == 1
            else some[_opencv(boxes.take(some, axis=1), _falling(end - start), threshold)]
        )
        start = end
    chosen = np.sort(np.concatenate(kept))
    result: NDArray[np.intp] = chosen.take(_best_first(scores.take(chosen)))
    return result


def _overlaps(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the IoU of each pair of boxes, with each step rounded as in OpenCV's rectOverlap."""
    ahead = b[:2] - a[:2]
    sides = np.minimum(a[2:4] - np.maximum(ahead, 0), b[2:4] + np.minimum(ahead, 0))
    np.maximum(sides, 0, out=sides)
    shared = sides[0] * sides[1]
    union = a[4] + b[4]
    union -= shared
    shared /= union
    overlaps: NDArray[np.float32] = np.float32(1) - (1.0 - shared).astype(np.float32)
    return overlaps


def _opencv(
    boxes: NDArray[np.float64], scores: NDArray[np.float32], threshold: np.float32
) -> NDArray[np.intp]:
    # OpenCV's Python binding reads an array number by number; a list of lists is quicker.
    opencv: Any = cv2.dnn.NMSBoxes
    found = opencv(boxes[:4].T.tolist(), scores, 0.0, float(threshold))
    return np.asarray(found, np.intp).reshape(-1)


# Oriented boxes are compared in batches of this size. This limits the memory, and it ends the work
# soon after enough boxes are found.
_TURNED_CHUNK = 256
# As in Ultralytics' probiou: _SMALL prevents a division by zero, and a distance between two boxes
# that is above _FARTHEST counts as _FARTHEST.
_SMALL = 1e-7
_FARTHEST = 100.0
Turned = NDArray[np.float64]


def oriented(
    candidates: Candidates,
    angles: NDArray[np.float32],
    box: Letterbox,
    limits: DecodeLimits,
    *,
    about: NDArray[np.float32] | None = None,
    suppressed: bool = False,
    class_agnostic: bool = False,
) -> Detections:
    """
    Suppress duplicates of oriented boxes; return the remaining ones in source pixels, best first.

    Candidates with equal scores keep their order.

    If the letterbox scales width and height differently, a turned box would not stay a rectangle.
    So each side is scaled by the scale in its own direction.

    :param candidates: the candidates, with the corners of the boxes before they are turned.
    :param angles: (n) radians, clockwise on the screen (from x to y).
    :param about: (2, n) points about which the boxes are turned; ``None``: the boxes' centres.
    :param suppressed: whether the model has already removed duplicates.
    """
    wanted = candidates.wanted(limits, class_agnostic)
    if wanted is not None:
        candidates, angles = candidates.chosen(wanted), angles[wanted]
        about = None if about is None else about[:, wanted]
    low, high = (
        candidates.corners[:2].astype(np.float64),
        candidates.corners[2:].astype(np.float64),
    )
    centres, sizes = (low + high) / 2, high - low
    angles = angles.astype(np.float64)
    cos, sin = np.cos(angles), np.sin(angles)
    if about is not None:
        x, y = centres - about
        centres = about + np.stack((x * cos - y * sin, x * sin + y * cos))
    reach = np.abs(np.stack((sizes[0] * cos, sizes[0] * sin)))
    reach = (reach + np.abs(np.stack((sizes[1] * sin, sizes[1] * cos)))) / 2
    start, end = box.picture
    # This also drops boxes with NaN, because comparisons with NaN are false.
    fine = ((sizes > 0) & (centres + reach > start) & (centres - reach < end)).all(axis=0)
    fine &= np.isfinite(sizes.prod(axis=0)) & np.isfinite(reach).all(axis=0)
    turned: Turned = np.concatenate((centres, sizes, angles[None])).T
    order = np.argsort(-candidates.scores, kind='stable')
    order = order[fine[order]]
    if suppressed:
        order = order[: limits.count]
    else:
        kinds = np.zeros_like(candidates.classes) if class_agnostic else candidates.classes
        order = order[_kept(turned[order], kinds[order], limits)]
    hulls = np.concatenate((centres - reach, centres + reach))[:, order].T
    boxes = box.to_source(hulls.astype(np.float32))
    found = Detections(
        boxes,
        candidates.scores[order],
        candidates.classes[order],
        candidates.rows[order],
        turned=_in_source(turned[order], box),
    )
    return found.chosen(np.asarray((boxes[:, 2:] > boxes[:, :2]).all(axis=1)))


def overlaps(one: Turned, others: Turned) -> NDArray[np.float64]:
    """
    Return (n, m): how much oriented boxes (n, 5) and (m, 5) overlap, from 0 to nearly 1.

    This is the similarity of two Gaussians (ProbIoU, Llerena et al., 2021), not exact geometry.
    """
    (x1, y1, a1, b1, c1), (x2, y2, a2, b2, c2) = _gaussian(one[:, None]), _gaussian(others[None])
    a, b, c, x, y = a1 + a2, b1 + b2, c1 + c2, x1 - x2, y1 - y2
    area = a * b - c * c
    apart = (a * y * y + b * x * x) / (4 * (area + _SMALL)) - c * x * y / (2 * (area + _SMALL))
    both = np.maximum(a1 * b1 - c1 * c1, 0) * np.maximum(a2 * b2 - c2 * c2, 0)
    apart += np.log(area / (4 * np.sqrt(both) + _SMALL) + _SMALL) / 2
    result: NDArray[np.float64] = 1 - np.sqrt(
        1 - np.exp(-np.clip(apart, _SMALL, _FARTHEST)) + _SMALL
    )
    return result


def _gaussian(turned: Turned) -> tuple[NDArray[np.float64], ...]:
    """Return the Gaussian for each oriented box: centre x, y, and the covariances xx, yy, xy."""
    x, y, width, height, angle = np.moveaxis(turned, -1, 0)
    a, b, cos, sin = width**2 / 12, height**2 / 12, np.cos(angle), np.sin(angle)
    return x, y, a * cos**2 + b * sin**2, a * sin**2 + b * cos**2, (a - b) * cos * sin


def _kept(turned: Turned, kinds: NDArray[np.intp], limits: DecodeLimits) -> NDArray[np.intp]:
    """
    Suppress duplicates among oriented boxes; return the indices of the kept boxes, best first.

    As in Ultralytics, a box is removed if a better box overlaps it, even if the better box is
    itself removed.

    :param turned: the boxes, best first.
    :param kinds: the class of each box; a box suppresses only boxes of its own class.
    """
    kept: list[int] = []
    for start in range(0, len(turned), _TURNED_CHUNK):
        end = min(start + _TURNED_CHUNK, len(turned))
        some = slice(start, end)
        out = overlaps(turned[some], turned[:end]) > limits.iou
        out &= kinds[some, None] == kinds[:end]
        out &= np.arange(end) < np.arange(start, end)[:, None]
        kept += (np.flatnonzero(~out.any(axis=1)) + start).tolist()
        if len(kept) >= limits.count:
            break
    return np.array(kept[: limits.count], np.intp)


def _in_source(turned: Turned, box: Letterbox) -> NDArray[np.float32]:
    """
    Map oriented boxes (n, 5) to source pixels, without clipping: the result must be rectangles.

    Angles are normalised to the range from -pi/2 to below pi/2: a turn by pi gives the same box.
    """
    scale = np.array((box.source_width / box.width, box.source_height / box.height))
    centres = (turned[:, :2] - (box.left, box.top)) * scale
    cos, sin = np.cos(turned[:, 4]), np.sin(turned[:, 4])
    along, across = scale * np.stack((cos, sin), axis=1), scale * np.stack((-sin, cos), axis=1)
    sizes = turned[:, 2:4] * np.stack((np.hypot(*along.T), np.hypot(*across.T)), axis=1)
    angles = np.arctan2(along[:, 1], along[:, 0])
    angles = (angles + math.pi / 2) % math.pi - math.pi / 2
    result: NDArray[np.float32] = np.concatenate((centres, sizes, angles[:, None]), axis=1).astype(
        np.float32
    )
    return result
