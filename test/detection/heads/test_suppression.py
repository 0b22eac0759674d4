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

"""Non-maximum suppression keeps exactly what OpenCV's keeps, class by class."""

from __future__ import annotations

from dataclasses import replace

import cv2
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.detection.detections import box_iou
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.candidates import Candidates, detections, keep, oriented
from zc_perception.detection.heads.score_filter import (
    activated,
    CellMajorFilter,
    ChannelMajorFilter,
    make_score_filter,
    numpy_filter,
)
from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor

Case = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.intp]]


def crowd(
    random: np.random.Generator, objects: int, each: int, classes: int, spread: float, coarse: bool
) -> Case:
    """
    Return boxes as a network yields them: many of one class around each object.

    *coarse*: many places and scores are equal. One can be added to each score exactly in OpenCV's
    float32.
    """
    sizes = np.exp(random.normal(3.5, 0.8, (objects, 2)))
    centres = random.uniform(-20, 660, (objects, 2))
    own = np.repeat(np.arange(objects), each)
    middles = centres[own] + random.normal(0, spread, (len(own), 2)) * sizes[own]
    spans = sizes[own] * np.exp(random.normal(0, spread, (len(own), 2)))
    boxes = np.concatenate([middles - spans / 2, middles + spans / 2], axis=1)
    scores = random.uniform(0.1, 1, len(own))
    if coarse:
        boxes[:, :2] = np.round(boxes[:, :2] / 8) * 8
        boxes[:, 2:] = np.maximum(np.round(boxes[:, 2:] / 8) * 8, boxes[:, :2] + 8)
        scores = np.round(scores * 8) / 8
    shuffled = random.permutation(len(own))
    return (
        boxes[shuffled].astype(np.float32),
        (np.round(scores[shuffled] * 4096) / 4096).astype(np.float32),
        random.integers(0, classes, objects)[own][shuffled].astype(np.intp),
    )


def kept_of(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    classes: NDArray[np.intp] | None,
    threshold: float,
    limit: int = 10**6,
) -> list[int]:
    return keep(np.ascontiguousarray(boxes.T), scores, classes, threshold, limit).tolist()


def opencv(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    classes: NDArray[np.intp] | None,
    threshold: float,
) -> list[int]:
    """Return OpenCV's indices, class by class; best first, equal scores in input order."""
    groups = np.zeros(len(scores), np.intp) if classes is None else classes
    kept: list[int] = []
    for number in np.unique(groups):
        own = np.flatnonzero(groups == number)
        sides = boxes[own, 2:] - boxes[own, :2]
        rectangles = np.concatenate([boxes[own, :2], sides], axis=1).astype(np.float64)
        # OpenCV takes only scores above zero.
        found = cv2.dnn.NMSBoxes(rectangles.tolist(), (scores[own] + 1).tolist(), 0.0, threshold)
        kept += own[np.asarray(found, np.intp).reshape(-1)].tolist()
    return sorted(kept, key=lambda index: (-scores[index], index))


@pytest.mark.parametrize('classes', [1, 80, 5000])
@pytest.mark.parametrize('limit', [50, 10**6])
def test_thousands_of_candidates_in_pieces_keep_the_same(classes: int, limit: int) -> None:
    boxes, scores, numbers = crowd(np.random.default_rng(classes), 500, 10, classes, 0.3, False)
    kept = kept_of(boxes, scores, numbers, 0.45, limit)
    assert kept == opencv(boxes, scores, numbers, 0.45)[:limit]


@given(
    st.integers(0, 2**32), st.integers(1, 80), st.integers(1, 30), st.sampled_from([1, 2, 10, 80]),
    st.floats(0.0, 0.4), st.floats(0.0, 1.0), st.booleans(),
)  # fmt: skip
def test_any_crowd_keeps_what_opencv_keeps(
    seed: int, objects: int, each: int, classes: int, spread: float, threshold: float, coarse: bool
) -> None:
    boxes, scores, numbers = crowd(
        np.random.default_rng(seed), objects, each, classes, spread, coarse
    )
    for groups in (numbers, None):
        kept = kept_of(boxes, scores, groups, threshold)
        assert kept == opencv(boxes, scores, groups, threshold)


@pytest.mark.parametrize('step', [0.1, 0.35])
@pytest.mark.parametrize('turned', [False, True])
def test_a_box_that_a_suppressed_one_would_suppress_stays(step: float, turned: bool) -> None:
    """Chains in which each box overlaps the next: a suppressed box must not suppress others."""
    number = np.arange(600)
    x, y = number % 300 * step * 40, number // 300 * 100
    corners = [y, x, y + 40, x + 40] if turned else [x, y, x + 40, y + 40]
    boxes = np.stack(corners, axis=1).astype(np.float32)
    scores = (1 - number / 4096).astype(np.float32)
    for classes in (None, number // 300):
        assert kept_of(boxes, scores, classes, 0.45) == opencv(boxes, scores, classes, 0.45)


def test_classes_stay_apart_left_of_and_above_the_picture() -> None:
    """Boxes are moved apart by class before one suppression; two must not meet by that."""
    boxes = np.array(
        [[81, 0, 101, 10], [-20, 0, 0, 10], [-20, -10, 0, 0], [-900, 0, -880, 10]], np.float32
    )
    scores = np.array([0.9, 0.8, 0.7, 0.6], np.float32)
    for shift in (0, -101, -1000, 1000):
        moved = boxes + np.float32(shift) * np.array([1, 0, 1, 0], np.float32)
        assert len(kept_of(moved, scores, np.array([0, 1, 2, 3]), 0.3)) == 4


def test_boxes_of_no_size_are_what_opencv_takes_them_for() -> None:
    boxes, scores, classes = crowd(np.random.default_rng(3), 30, 10, 30, 0.3, True)
    boxes[::7, 2:] = boxes[::7, :2]
    boxes[::11, 2] = boxes[::11, 0]
    assert kept_of(boxes, scores, classes, 0.45) == opencv(boxes, scores, classes, 0.45)


def test_iou_of_known_boxes() -> None:
    a = np.array([(0, 0, 10, 10), (0, 0, 4, 2)], float)
    b = np.array([(0, 0, 10, 10), (5, 0, 15, 10), (10, 0, 20, 10), (2, 1, 6, 3)], float)
    expected = [[1, 50 / 150, 0, 8 / 100], [8 / 100, 0, 0, 2 / 14]]
    np.testing.assert_allclose(box_iou(a, b), expected)
    # Empty boxes overlap nothing.
    point = np.array([(3, 3, 3, 3)], float)
    assert box_iou(point, point) == 0
    assert box_iou(np.array([(5, 5, 1, 1)], float), np.array([(0, 0, 9, 9)], float)) == 0
    assert box_iou(np.empty((0, 4)), point).shape == (0, 1)


BOX = Letterbox.fit(640, 640, 640, 640)
LIMITS = DecodeLimits(0.25, 0.45, 1000)
SCORES = np.array([0.9, 0.8, 0.7, 0.6, 0.5], np.float32)


@pytest.mark.parametrize('copies', [1, 300])
@pytest.mark.parametrize('size', [2.0**20, 1e15, 1e18])
def test_a_box_far_larger_than_the_picture(size: float, copies: int) -> None:
    """Test both algorithms: one suppresses few candidates, the other many."""
    rows, kinds = np.zeros((5, 84), np.float32), [2, 2, 79, 79, 0]
    rows[:, :2] = [[100, 100], [170, 100], [300, 300], [360, 300], [320, 320]]
    rows[:, 2:4], rows[np.arange(5), 4 + np.array(kinds)] = 50, SCORES
    rows[4, 2:4] = size
    outputs = [RawTensor(np.tile(rows, (copies, 1))[None])]
    found = make_head(HeadSpec('yolov8', 80)).decode(outputs, BOX, LIMITS)
    assert found.scores.tolist() == SCORES.tolist() and found.classes.tolist() == kinds


@pytest.mark.parametrize('turned', [False, True])
@pytest.mark.parametrize('class_agnostic', [False, True])
def test_unwanted_classes_are_left_out_first_unless_they_suppress_others(
    class_agnostic: bool, turned: bool
) -> None:
    random = np.random.default_rng(6)
    boxes, scores, kinds = crowd(random, 20, 30, 3, 0.1, coarse=False)
    some = Candidates(np.ascontiguousarray(boxes.T), scores, kinds, np.arange(len(scores)))
    angles = random.normal(0, 0.1, len(scores)).astype(np.float32)

    def rows(candidates: Candidates, limits: DecodeLimits, agnostic: bool) -> list[int]:
        found = (
            oriented(candidates, angles[candidates.rows], BOX, limits, class_agnostic=agnostic)
            if turned
            else detections(candidates, BOX, limits, agnostic)
        )
        return found.rows.tolist()

    wanted = replace(LIMITS, classes=np.array([False, True, False]))
    # with class_agnostic, the candidates of the other classes still suppress, and so may stay
    alone = some if class_agnostic else some.chosen(kinds == 1)
    assert rows(some, wanted, class_agnostic) == rows(alone, LIMITS, class_agnostic)


def brute_force(
    real: NDArray[np.float32], score: float, by_sigmoid: bool
) -> tuple[list[int], list[int], list[float]]:
    cells, classes, scores = [], [], []
    for cell, row in enumerate(real):
        finite = np.where(np.isfinite(row), row, -np.inf)
        best = int(finite.argmax())
        value = activated(finite[slice(best, best + 1)], by_sigmoid)[0]
        if np.isfinite(finite[best]) and value >= np.float32(score):
            cells.append(cell)
            classes.append(best)
            scores.append(float(value))
    return cells, classes, scores


@pytest.mark.parametrize('channels_first', [False, True])
@pytest.mark.parametrize('dtype', ['float32', 'int8', 'int16'])
@given(
    st.integers(0, 2**32), st.integers(1, 100), st.integers(0, 12), st.integers(1, 12),
    st.floats(0, 1) | st.integers(0, 9), st.booleans(), st.booleans(),
)  # fmt: skip
def test_filters_find_what_a_loop_finds(
    channels_first: bool, dtype: str, seed: int, classes: int, rows: int, columns: int,
    score: float, by_sigmoid: bool, quiet: bool,
) -> None:  # fmt: skip
    """
    Few levels make equal scores common; NaN and infinities are among them.

    The arrays are views with gaps. For integers the threshold equals a cell's score, which must
    count.
    """
    random = np.random.default_rng(seed)
    shape = (classes, rows, columns) if channels_first else (rows, columns + 2, classes + 3)
    if dtype == 'float32':
        pool = np.array([-np.inf, np.inf, np.nan, -2, -1, 0, 0.25, 0.5, 1, 3], np.float32)
        shares = [0.02, 0.02, 0.02, 0.9, *[0.04 / 6] * 6] if quiet else None
        values = random.choice(pool, shape, p=shares).astype(np.float32)
        tensor = RawTensor(values)
    else:
        limits = np.iinfo(dtype)
        highest = limits.min + 30 if quiet else limits.max
        values = random.integers(limits.min, highest, shape, dtype=dtype, endpoint=True)
        scale, zero_point = float(random.uniform(0.005, 0.1)), int(random.integers(-20, 20))
        tensor = RawTensor(values, scale, zero_point)
    inside = values[:, 1:, 2:][:, :columns, :classes]
    view = values.transpose(1, 2, 0) if channels_first else inside
    with np.errstate(all='ignore'):
        real = tensor.read(view).reshape(-1, classes)
        if isinstance(score, int):
            every = brute_force(real, 0.0, by_sigmoid)[2]
            score = every[score % len(every)] if every else 0.0
        expected = brute_force(real, score, by_sigmoid)
        chosen = numpy_filter(tensor, view, by_sigmoid)
        # In a single row both orders of memory are the same.
        kind = ChannelMajorFilter if channels_first else CellMajorFilter
        assert rows < 2 or isinstance(chosen, kind)
        # Few and many cells use different algorithms. With ``many=1`` the second call takes the
        # other one, if a cell was found.
        for made in (
            chosen,
            ChannelMajorFilter(tensor, by_sigmoid, many=1),
            make_score_filter(tensor, view, by_sigmoid),
        ):
            for _ in range(3):
                found = made.find(view, score)
                for name, own in zip(('cells', 'classes', 'scores'), expected, strict=True):
                    assert getattr(found, name).tolist() == own
