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

"""Non-maximum suppression keeps exactly what OpenCV's does, class by class."""

from __future__ import annotations

import cv2
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.detection.detections import box_iou
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.candidates import keep
from zc_perception.detection.heads.score_filter import (
    activated,
    CellMajorFilter,
    ChannelMajorFilter,
    make_score_filter,
    numpy_filter,
    raw_threshold,
)
from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor

Case = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.intp]]


def clusters(
    random: np.random.Generator, *, count: int, classes: int, places: int, coarse: bool
) -> Case:
    """
    Return boxes around few places, so that many overlap.

    Coarse: whole pixels and few scores, so that many are equal or at the threshold.
    """
    centres = random.uniform(-50, 700, (places, 2))[
        random.integers(0, places, count)
    ] + random.normal(0, 10, (count, 2))
    sizes = random.uniform(5, 120, (places, 2))[
        random.integers(0, places, count)
    ] * random.uniform(0.7, 1.3, (count, 2))
    boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)
    scores = random.uniform(0, 1, count)
    if coarse:
        boxes[:, :2] = np.round(boxes[:, :2] / 8) * 8
        boxes[:, 2:] = np.maximum(np.round(boxes[:, 2:] / 8) * 8, boxes[:, :2] + 8)
        scores = np.round(scores * 8) / 8
        copies = random.integers(0, count, (2, count // 4))
        boxes[copies[0]] = boxes[copies[1]]
    return (
        boxes.astype(np.float32),
        scores.astype(np.float32),
        random.integers(0, classes, count).astype(np.intp),
    )


def kept_of(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    classes: NDArray[np.intp] | None,
    threshold: float,
    limit: int = 1000,
) -> NDArray[np.intp]:
    """:func:`keep`, of boxes (n, 4)."""
    return keep(np.ascontiguousarray(boxes.T), scores, classes, threshold, limit)


def opencv(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    classes: NDArray[np.intp] | None,
    threshold: float,
) -> list[int]:
    """Its own indices, class by class; best first, of equal scores the first."""
    groups = np.zeros(len(scores), np.intp) if classes is None else classes
    kept: list[int] = []
    for number in np.unique(groups):
        own = np.flatnonzero(groups == number)
        rectangles = np.concatenate(
            [boxes[own, :2], boxes[own, 2:] - boxes[own, :2]], axis=1
        ).astype(np.float64)
        # It takes only scores above zero.
        found = cv2.dnn.NMSBoxes(rectangles.tolist(), (scores[own] + 1).tolist(), 0.0, threshold)
        kept += own[np.asarray(found, np.intp).reshape(-1)].tolist()
    return sorted(kept, key=lambda index: (-scores[index], index))


@pytest.mark.parametrize('coarse', [False, True])
@pytest.mark.parametrize('threshold', [0.0, 0.3, 0.45, 0.5, 0.75, 1.0])
def test_it_is_opencv_s_own_suppression_on_thousands_of_cases(
    coarse: bool, threshold: float
) -> None:
    random = np.random.default_rng(int(threshold * 100) + coarse)
    for case in range(200):
        count = int(random.integers(1, 420 if case % 5 == 0 else 60))
        classes = int(random.choice([1, 2, 5, 30, 80]))
        boxes, scores, numbers = clusters(
            random, count=count, classes=classes, places=int(random.integers(1, 40)), coarse=coarse
        )
        if coarse:  # in eighths more exact than float32 rounds (1 + score)
            scores = np.round(scores * 64) / 64
        for groups in (numbers, None):
            kept = kept_of(boxes, scores, groups, threshold, 10**6)
            assert kept.tolist() == opencv(boxes, scores, groups, threshold), (
                case,
                groups is None,
            )


@pytest.mark.parametrize('classes', [1, 7, 80, 300, 5000])
@pytest.mark.parametrize('limit', [1, 50, 10**6])
def test_thousands_of_candidates_in_pieces_keep_the_same(classes: int, limit: int) -> None:
    random = np.random.default_rng(classes)
    boxes, scores, numbers = clusters(
        random, count=5000, classes=classes, places=150, coarse=False
    )
    scores = np.round(scores * 4096) / np.float32(4096)
    kept = kept_of(boxes, scores, numbers, 0.45, limit)
    assert kept.tolist() == opencv(boxes, scores, numbers, 0.45)[:limit]


def crowd(
    random: np.random.Generator, *, objects: int, each: int, classes: int, spread: float
) -> Case:
    """
    Return boxes as a network yields them.

    There are many boxes around each object, of one class and hardly different; objects are side by
    side, and one is on another.

    Scores are such that OpenCV's float32 has room for 1 more.
    """
    sizes = np.exp(random.normal(3.5, 0.8, (objects, 2)))
    centres = random.uniform(-20, 660, (objects, 2))
    own = np.repeat(np.arange(objects), each)
    middles = centres[own] + random.normal(0, spread, (len(own), 2)) * sizes[own]
    spans = sizes[own] * np.exp(random.normal(0, spread, (len(own), 2)))
    boxes = np.concatenate([middles - spans / 2, middles + spans / 2], axis=1).astype(np.float32)
    scores = (np.round(random.uniform(0.1, 1, len(own)) * 4096) / 4096).astype(np.float32)
    shuffled = random.permutation(len(own))
    return (
        boxes[shuffled],
        scores[shuffled],
        random.integers(0, classes, objects)[own][shuffled].astype(np.intp),
    )


@given(
    st.integers(0, 2**32),
    st.integers(1, 80),
    st.integers(7, 30),
    st.sampled_from([1, 2, 10]),
    st.floats(0.0, 0.4),
    st.floats(0.0, 1.0),
)
def test_any_crowd_keeps_the_same(
    seed: int, objects: int, each: int, classes: int, spread: float, threshold: float
) -> None:
    boxes, scores, numbers = crowd(
        np.random.default_rng(seed), objects=objects, each=each, classes=classes, spread=spread
    )
    kept = kept_of(boxes, scores, numbers, threshold, 10**6)
    assert kept.tolist() == opencv(boxes, scores, numbers, threshold)


@pytest.mark.parametrize('step', [0.02, 0.1, 0.2, 0.35, 0.5])
@pytest.mark.parametrize('turned', [False, True])
def test_a_box_that_a_suppressed_one_would_suppress_stays(step: float, turned: bool) -> None:
    """
    Chains in which each overlaps the next, best first.

    What is left out for one that doesn't stay itself comes back.
    """
    count = 600
    places = (np.arange(count) % 300) * step * 40
    boxes = np.stack([places, np.zeros(count), places + 40, np.full(count, 40.0)]).astype(
        np.float32
    )
    boxes[[1, 3]] += (np.arange(count) // 300 * 100).astype(np.float32)
    if turned:
        boxes = np.ascontiguousarray(boxes[[1, 0, 3, 2]])
    scores = (1 - np.arange(count) / 4096).astype(np.float32)
    for classes in (None, np.arange(count) // 300):
        assert keep(boxes, scores, classes, 0.45, 1000).tolist() == opencv(
            boxes.T, scores, classes, 0.45
        )


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('scale', [1e-4, 1e-2, 1e3, 1e15])
def test_units_do_not_matter(scale: float) -> None:
    boxes, scores, classes = crowd(
        np.random.default_rng(9), objects=60, each=15, classes=5, spread=0.1
    )
    boxes *= np.float32(scale)
    for groups in (classes, None):
        assert kept_of(boxes, scores, groups, 0.45, 10**6).tolist() == opencv(
            boxes, scores, groups, 0.45
        )


def test_boxes_of_different_classes_do_not_suppress_each_other() -> None:
    same = np.array([[10, 10, 50, 50]] * 3, np.float32)
    scores, classes = np.array([0.5, 0.9, 0.7], np.float32), np.array([0, 1, 0])
    assert kept_of(same, scores, classes, 0.5).tolist() == [1, 2]
    assert kept_of(same, scores, None, 0.5).tolist() == [1]


def test_classes_stay_apart_left_of_and_above_the_picture() -> None:
    """
    Suppression of all classes at once moves boxes by class.

    Two must not be moved onto each other.
    """
    boxes = np.array(
        [[81, 0, 101, 10], [-20, 0, 0, 10], [-20, -10, 0, 0], [-900, 0, -880, 10]], np.float32
    )
    scores = np.array([0.9, 0.8, 0.7, 0.6], np.float32)
    for shift in (0, -101, -1000, 1000):
        moved = boxes + np.float32(shift) * np.array([1, 0, 1, 0], np.float32)
        assert len(kept_of(moved, scores, np.array([0, 1, 2, 3]), 0.3)) == 4


def test_of_equal_scores_the_first_stays() -> None:
    boxes = np.array([[10, 10, 50, 50]] * 200, np.float32)
    kept = kept_of(boxes, np.full(200, 0.5, np.float32), np.arange(200) % 40, 0.5, 1000)
    assert kept.tolist() == list(range(40))


@pytest.mark.parametrize('scores', [(0.0, 0.0, -0.0), (0.0, -1.0, -2.0), (-3.0, -2.0, -1.0)])
def test_scores_that_are_not_above_zero_are_scores(scores: tuple[float, ...]) -> None:
    boxes = np.array([[0, 0, 9, 9], [20, 0, 29, 9], [0, 0, 9, 10]] * 60, np.float32)
    values = np.array(scores * 60, np.float32)
    for classes in (None, np.arange(180) % 9, np.zeros(180, np.intp)):
        kept = kept_of(boxes, values, classes, 0.5, 1000)
        groups = np.zeros(180, np.intp) if classes is None else classes
        expected, seen = [], set()
        for index in sorted(range(180), key=lambda i: (-values[i], i)):
            mark = (groups[index], index % 3 == 1)
            if mark not in seen:
                expected.append(index)
                seen.add(mark)
        assert kept.tolist() == expected


def test_boxes_of_no_size_are_what_opencv_takes_them_for() -> None:
    random = np.random.default_rng(3)
    boxes, scores, classes = clusters(random, count=300, classes=30, places=10, coarse=True)
    boxes[::7, 2:] = boxes[::7, :2]
    boxes[::11, 2] = boxes[::11, 0]
    assert kept_of(boxes, scores, classes, 0.45, 1000).tolist() == opencv(
        boxes, scores, classes, 0.45
    )


# How much boxes overlap.


def test_iou_of_known_boxes() -> None:
    a = np.array([(0, 0, 10, 10), (0, 0, 4, 2)], float)
    b = np.array([(0, 0, 10, 10), (5, 0, 15, 10), (10, 0, 20, 10), (2, 1, 6, 3)], float)
    expected = [[1, 50 / 150, 0, 8 / 100], [8 / 100, 0, 0, 2 / 14]]
    np.testing.assert_allclose(box_iou(a, b), expected)


def test_iou_of_empty_boxes_is_zero() -> None:
    point = np.array([(3, 3, 3, 3)], float)
    assert box_iou(point, point) == 0
    assert box_iou(np.array([(5, 5, 1, 1)], float), np.array([(0, 0, 9, 9)], float)) == 0
    assert box_iou(np.empty((0, 4)), point).shape == (0, 1)


def test_iou_refuses_other_shapes() -> None:
    with pytest.raises(ValueError, match=r'\(n, 4\)'):
        box_iou(np.zeros(4), np.zeros((1, 4)))


# One box of absurd but finite size takes nothing away from the others.


BOX = Letterbox.fit(640, 640, 640, 640)
LIMITS = DecodeLimits(0.25, 0.45, 1000)
SCORES = np.array([0.9, 0.8, 0.7, 0.6, 0.5], np.float32)


@pytest.mark.parametrize('copies', [1, 300])
@pytest.mark.parametrize('size', [1e6, 2.0**20, 1e7, 1e12, 1e15, 1e16, 1e18])
def test_a_box_far_larger_than_the_picture(size: float, copies: int) -> None:
    """Few candidates, and so many that they are suppressed in another way."""
    rows = np.zeros((5, 84), np.float32)
    for row, (x, y, kind) in zip(
        rows,
        ((100, 100, 2), (170, 100, 2), (300, 300, 79), (360, 300, 79), (320, 320, 0)),
        strict=True,
    ):
        row[:4], row[4 + kind] = (x, y, 50, 50), 1
    rows[4, 2:4] = size
    rows[:, 4:] *= SCORES[:, None]
    found = make_head(HeadSpec('yolov8', 80)).decode(
        [RawTensor(np.tile(rows, (copies, 1))[None])], BOX, LIMITS
    )
    assert found.scores.tolist() == SCORES.tolist()
    assert found.classes.tolist() == [2, 2, 79, 79, 0]


@pytest.mark.parametrize('logit', [5.0, 20.0, 33.0, 40.0])
def test_a_saturated_size_of_a_yolox(logit: float) -> None:
    rows = np.zeros((8400, 85), np.float32)
    for cell, kind, score in ((1000, 2, 0.9), (1020, 2, 0.8), (3000, 79, 0.7), (3020, 79, 0.6)):
        rows[cell, :5] = 0.5, 0.5, 2, 2, 1
        rows[cell, 5 + kind] = score
    rows[8000, :5] = 0, 0, logit, logit, 1
    rows[8000, 5] = 0.5
    found = make_head(HeadSpec('yolox', 80)).decode([RawTensor(rows[None])], BOX, LIMITS)
    assert found.scores.tolist() == SCORES.tolist()


# A threshold in raw numbers lets through exactly what reaches the score in float arithmetic.


SIXTEEN = ('int16', 'uint16')


@st.composite
def every_value(draw: st.DrawFn) -> tuple[RawTensor, bool, NDArray[np.float32]]:
    """
    Return a tensor with each value that its type has, and each one's score.

    The score is that of the float path.
    """
    dtype = draw(st.sampled_from(['int8', 'uint8', *SIXTEEN]))
    limits = np.iinfo(dtype)
    scale = draw(st.floats(1e-6, 10, allow_subnormal=False))
    zero_point = draw(st.integers(int(limits.min) - 300, int(limits.max) + 300))
    tensor = RawTensor(np.arange(limits.min, limits.max + 1).astype(dtype), scale, zero_point)
    by_sigmoid = draw(st.booleans())
    with np.errstate(over='ignore'):
        return tensor, by_sigmoid, activated(tensor.real(), by_sigmoid)


@given(
    every_value(),
    st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0, 0.25, 0.5, 1e-30, 1 - 1e-9])),
)
def test_nothing_below_the_raw_threshold_reaches_the_score(
    case: tuple[RawTensor, bool, NDArray[np.float32]], score: float
) -> None:
    check(*case, score)


@given(every_value(), st.integers(0, 2**16))
def test_a_score_at_the_threshold_counts(
    case: tuple[RawTensor, bool, NDArray[np.float32]], which: int
) -> None:
    tensor, by_sigmoid, scores = case
    score = float(scores[which % len(scores)])
    if 0 <= score <= 1:
        check(tensor, by_sigmoid, scores, score)


def check(tensor: RawTensor, by_sigmoid: bool, scores: NDArray[np.float32], score: float) -> None:
    with np.errstate(over='ignore'):
        raw = raw_threshold(tensor, score, by_sigmoid)
    assert raw.dtype == tensor.values.dtype and raw.ndim == 0
    enough = scores >= np.float32(score)
    assert not enough[tensor.values < raw].any()
    if tensor.values.itemsize == 1 and enough.any():
        assert (tensor.values[enough] >= raw).all() and enough[tensor.values == raw].all(), (
            'exact for 8 bits'
        )
    # What the filters do with it, in both orders of memory: exactly the float path's cells.
    with np.errstate(over='ignore'):
        for classes in (1, 2):
            values = np.stack([tensor.values] * classes, axis=1)
            for made in (
                CellMajorFilter(tensor, values, by_sigmoid),
                ChannelMajorFilter(tensor, by_sigmoid),
            ):
                found = made.find(values, score)
                assert np.array_equal(found.cells, np.flatnonzero(enough))
                assert np.array_equal(found.scores, scores[enough]) and not found.classes.any()


@given(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.floats(1e-9, 1),
    st.floats(0, 1),
    st.booleans(),
)
def test_wide_integers(
    value: int, zero_point: int, scale: float, score: float, by_sigmoid: bool
) -> None:
    near = np.clip(np.arange(value - 20, value + 20), -(2**31), 2**31 - 1).astype(np.int32)
    tensor = RawTensor(near, scale, zero_point)
    with np.errstate(over='ignore'):
        raw = raw_threshold(tensor, score, by_sigmoid)
        assert not (activated(tensor.real(), by_sigmoid)[near < raw] >= np.float32(score)).any()


@given(
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20),
    st.floats(0, 1),
    st.booleans(),
)
def test_floats(values: list[float], score: float, by_sigmoid: bool) -> None:
    tensor = RawTensor(np.array(values, np.float32))
    with np.errstate(over='ignore'):
        raw = raw_threshold(tensor, score, by_sigmoid)
        assert not (
            activated(tensor.real(), by_sigmoid)[tensor.values < raw] >= np.float32(score)
        ).any()
        # One far too low would be right, and slow: all cells would be looked at.
        assert float(activated(raw, by_sigmoid)) == pytest.approx(score, rel=1e-4)


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
@pytest.mark.parametrize('dtype', ['float32', 'int8', 'uint8', 'int16'])
@given(
    st.integers(0, 2**32),
    st.integers(1, 100),
    st.integers(0, 12),
    st.integers(1, 12),
    st.floats(0, 1),
    st.booleans(),
    st.booleans(),
)
def test_filters_find_what_a_loop_finds(
    channels_first: bool,
    dtype: str,
    seed: int,
    classes: int,
    rows: int,
    columns: int,
    score: float,
    by_sigmoid: bool,
    quiet: bool,
) -> None:
    """
    Few levels, so that equal scores are common; not numbers and infinities among them.

    Views with gaps.
    """
    random = np.random.default_rng(seed)
    shape = (classes, rows, columns) if channels_first else (rows, columns + 2, classes + 3)
    if dtype == 'float32':
        pool = np.array([-np.inf, np.inf, np.nan, -2, -1, 0, 0.25, 0.5, 1, 3], np.float32)
        values = random.choice(
            pool, shape, p=[0.02, 0.02, 0.02, 0.9, *[0.04 / 6] * 6] if quiet else None
        ).astype(np.float32)
        tensor = RawTensor(values)
    else:
        limits = np.iinfo(dtype)
        values = random.integers(
            limits.min,
            limits.max if not quiet else limits.min + 30,
            shape,
            dtype=dtype,
            endpoint=True,
        )
        tensor = RawTensor(
            values, float(random.uniform(0.005, 0.1)), int(random.integers(-20, 20))
        )
    view = (
        values.transpose(1, 2, 0)
        if channels_first
        else values[:, slice(1, columns + 1), slice(2, classes + 2)]
    )
    with np.errstate(all='ignore'):
        expected = brute_force(tensor.read(view).reshape(-1, classes), score, by_sigmoid)
        chosen = numpy_filter(tensor, view, by_sigmoid)
        # In a single row both orders of memory are the same.
        assert rows < 2 or isinstance(
            chosen, ChannelMajorFilter if channels_first else CellMajorFilter
        )
        # Few and many cells are found in different ways: with 1 as many, the second time is the
        # other way if there was any.
        for made in (
            chosen,
            ChannelMajorFilter(tensor, by_sigmoid, many=1),
            make_score_filter(tensor, view, by_sigmoid),
        ):
            for _ in range(3):
                found = made.find(view, score)
                assert (
                    found.cells.tolist(),
                    found.classes.tolist(),
                    found.scores.tolist(),
                ) == expected
