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
YOLOv8.

Raw levels and decoded tensors against a decoder written cell by cell, and known boxes.
"""

from __future__ import annotations

from collections.abc import Sequence

from head_reference import assert_same, in_source, suppressed, yolov8_levels, yolov8_rows
from hypothesis import assume, given
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest
from tensors import as_nchw, dequantised, GRIDS, INPUT, quantised, STRIDES

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor

# 1920x1080 in 640x640: scale 1/3, picture in rows 140..500.
BOX = Letterbox.fit(1920, 1080, 640, 640)
SMALL = Letterbox.fit(321, 203, *INPUT)
CLASSES = 3
EVERYTHING = 1.0  # an overlap that suppresses nothing
NEAR = 1e-5


def rows(*anchors: Sequence[float], empty: int = 50) -> NDArray[np.float32]:
    """Return each is cx, cy, w, h, then scores; the others have a score of 0.01."""
    table = np.full((len(anchors) + empty, 4 + CLASSES), 0.01, np.float32)
    table[: len(anchors)] = np.reshape(anchors, (-1, 4 + CLASSES)) if anchors else table[:0]
    return table


def decode_rows(
    table: NDArray[np.float32],
    score: float = 0.25,
    iou: float = 0.5,
    limit: int = 100,
    **options: object,
) -> Detections:
    """Return both arrangements, which have to give the same."""
    results = []
    for values in (
        np.ascontiguousarray(table.T[None]),
        np.ascontiguousarray(table[None]),
        np.ascontiguousarray(table),
    ):
        head = make_head(HeadSpec('yolov8', CLASSES, **options))  # type: ignore[arg-type]
        results.append(head.decode([RawTensor(values)], BOX, DecodeLimits(score, iou, limit)))
    for other in results[1:]:
        assert other.boxes.tolist() == results[0].boxes.tolist()
        assert (other.scores.tolist(), other.classes.tolist()) == (
            results[0].scores.tolist(),
            results[0].classes.tolist(),
        )
    return results[0]


def test_a_known_box_comes_out_in_source_pixels() -> None:
    found = decode_rows(rows((320, 320, 64, 32, 0.1, 0.8, 0.3)))
    assert found.boxes.tolist() == [[864, 492, 1056, 588]]
    assert (found.scores.tolist(), found.classes.tolist()) == (pytest.approx([0.8]), [1])


@pytest.mark.parametrize('bad', [float('nan'), float('inf'), -5.0, 0.0])
def test_boxes_that_are_no_boxes_are_no_detections_and_suppress_none(bad: float) -> None:
    found = decode_rows(rows((400, 300, bad, bad, 0.9, 0, 0), (400, 300, 50, 60, 0.7, 0, 0)))
    assert found.scores.tolist() == pytest.approx([0.7])
    assert np.isfinite(found.boxes).all()


def test_the_number_of_detections_is_limited_to_the_best() -> None:
    anchors = [(30 + 60 * i, 300, 20, 20, 0.3 + 0.05 * i, 0, 0) for i in range(10)]
    assert decode_rows(rows(*anchors), limit=4).scores.tolist() == pytest.approx(
        [0.75, 0.7, 0.65, 0.6]
    )


@given(
    st.integers(0, 2**32), st.sampled_from([1, 2, 7, 16, 80]), st.floats(0.05, 0.95), st.booleans()
)
def test_decoded_tensors_are_decoded_as_the_slow_way_does(
    seed: int, classes: int, score: float, by_sigmoid: bool
) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(0, 60))
    table = np.concatenate(
        [random.uniform(-50, 700, (count, 2)), random.uniform(1, 200, (count, 2))], axis=1
    )
    scores = (
        random.normal(0, 2, (count, classes)) if by_sigmoid else random.random((count, classes))
    )
    table = np.concatenate([table, scores], axis=1).astype(np.float32)
    boxes = list(yolov8_rows(table.astype(np.float64), by_sigmoid))
    assume(all(abs(one.score - score) > NEAR for one in boxes))
    expected = in_source([one for one in boxes if one.score >= score], BOX)
    head = make_head(HeadSpec('yolov8', classes, sigmoid=by_sigmoid))
    for values in (np.ascontiguousarray(table.T[None]), table[None]):
        if values.shape[1:] == (4 + classes, 4 + classes):
            continue
        assert_same(
            head.decode([RawTensor(values)], BOX, DecodeLimits(score, EVERYTHING, 1000)), expected
        )


Levels = tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]


def random_levels(random: np.random.Generator, bins: int, classes: int, loud: float) -> Levels:
    boxes = [random.normal(0, 3, (1, *grid, 4 * bins)) for grid in GRIDS]
    return boxes, [random.normal(-loud, 2, (1, *grid, classes)) for grid in GRIDS]


def outputs_of(
    random: np.random.Generator, levels: Levels, arrangement: str
) -> tuple[list[RawTensor], Levels]:
    """Return outputs, and the real numbers that are left of them."""
    boxes, scores = levels
    if arrangement in ('float', 'together'):
        pairs = [
            (
                RawTensor(b.astype(np.float32), layout='nhwc'),
                RawTensor(s.astype(np.float32), layout='nhwc'),
            )
            for b, s in zip(*levels, strict=True)
        ]
    else:
        dtype = (
            'uint8' if arrangement == 'uint8' else 'int16' if arrangement == 'int16' else 'int8'
        )
        middle = 128 if dtype == 'uint8' else 0

        def one(real: NDArray[np.float64]) -> RawTensor:
            scale = float(random.uniform(0.02, 0.6)) / (100 if dtype == 'int16' else 1)
            return quantised(
                real,
                random,
                scale=scale,
                zero_point=middle + int(random.integers(-40, 40)),
                dtype=dtype,
            )

        pairs = [(one(b), one(s)) for b, s in zip(boxes, scores, strict=True)]
    if arrangement == 'nchw':
        pairs = [(as_nchw(b), as_nchw(s)) for b, s in pairs]
    left = [dequantised(b) for b, _ in pairs], [dequantised(s) for _, s in pairs]
    flat = [tensor for pair in pairs for tensor in pair]
    if arrangement == 'together':  # one tensor for each level: boxes first
        flat = [
            RawTensor(np.concatenate((b.values, s.values), axis=3), layout='nhwc')
            for b, s in pairs
        ]
    return [flat[i] for i in random.permutation(len(flat))], left


@pytest.mark.parametrize('arrangement', ['int8', 'uint8', 'nchw', 'float', 'together'])
@given(
    st.integers(0, 2**32),
    st.sampled_from([(16, 3), (16, 80), (8, 1), (1, 5)]),
    st.floats(0.05, 0.95),
    st.booleans(),
)
def test_raw_levels_are_decoded_as_the_slow_way_does(
    arrangement: str, seed: int, sizes: tuple[int, int], score: float, by_sigmoid: bool
) -> None:
    random = np.random.default_rng(seed)
    bins, classes = sizes
    outputs, left = outputs_of(
        random, random_levels(random, bins, classes, 3.0 if by_sigmoid else 0.0), arrangement
    )
    boxes = list(yolov8_levels(*left, STRIDES, bins, by_sigmoid))
    assume(all(abs(one.score - score) > NEAR for one in boxes))
    expected = in_source([one for one in boxes if one.score >= score], SMALL)
    head = make_head(
        HeadSpec('yolov8', classes, INPUT, strides=STRIDES, reg_max=bins, sigmoid=by_sigmoid)
    )
    assert_same(head.decode(outputs, SMALL, DecodeLimits(score, EVERYTHING, 1000)), expected)
    assert_same(
        head.decode(outputs, SMALL, DecodeLimits(score, EVERYTHING, 1000)), expected
    )  # nothing is left of the first time


def realistic_levels(random: np.random.Generator, objects: int, classes: int) -> Levels:
    """
    Make each object fire in the cells around its centre, with sharp distributions.

    The rest is quiet.
    """
    boxes = [random.normal(0, 0.5, (1, *grid, 64)) for grid in GRIDS]
    scores = [random.normal(-7, 1, (1, *grid, classes)) for grid in GRIDS]
    for _ in range(objects):
        level, number = int(random.integers(3)), int(random.integers(classes))
        stride, (height, width) = STRIDES[level], GRIDS[level]
        size = random.uniform(1.5, 5, 2) * stride
        centre = random.uniform(0, INPUT)
        for row, column in np.ndindex(height, width):
            place = np.array([column + 0.5, row + 0.5]) * stride
            if (np.abs(place - centre) > 1.2 * stride).any():
                continue
            sides = np.concatenate(
                [place - centre + size / 2, centre + size / 2 - place]
            ) / stride + random.normal(0, 0.1, 4)
            scores[level][0, row, column, number] = random.uniform(-1, 3)
            for side, distance in enumerate(np.clip(sides, 0, 14.9)):
                bins = np.full(16, -6.0)
                low = int(distance)
                bins[low], bins[low + 1] = (
                    np.log(max(1 - distance + low, 1e-3)) + 4,
                    np.log(max(distance - low, 1e-3)) + 4,
                )
                boxes[level][0, row, column, slice(16 * side, 16 * side + 16)] = bins
    return boxes, scores


@given(st.integers(0, 2**32), st.integers(0, 25), st.sampled_from([1, 3, 20]), st.booleans())
def test_objects_in_quantised_levels_are_what_the_slow_way_finds(
    seed: int, objects: int, classes: int, agnostic: bool
) -> None:
    random = np.random.default_rng(seed)
    outputs, left = outputs_of(random, realistic_levels(random, objects, classes), 'int8')
    boxes = list(yolov8_levels(*left, STRIDES, 16, True))
    assume(all(abs(one.score - 0.25) > NEAR for one in boxes))
    picture = [one for one in boxes if one.score >= 0.25 and in_source([one], SMALL)]
    kept, nearest = suppressed(picture, 0.45, agnostic)
    assume(nearest > NEAR)
    head = make_head(HeadSpec('yolov8', classes, INPUT, strides=STRIDES, class_agnostic=agnostic))
    assert_same(head.decode(outputs, SMALL, DecodeLimits(0.25, 0.45, 300)), in_source(kept, SMALL))


@pytest.mark.parametrize('dtype', ['int8', 'int16'])
@pytest.mark.parametrize('layout', ['', 'nhwc'])
@pytest.mark.parametrize('classes', [5, 64])
def test_a_scale_for_each_channel_gives_what_real_numbers_give(
    dtype: str, layout: str, classes: int
) -> None:
    """With as many classes as box channels, in one tensor or apart, all frames: to the bit."""
    random = np.random.default_rng(classes)
    head, plain = (
        make_head(HeadSpec('yolov8', classes, INPUT, strides=STRIDES)) for _ in range(2)
    )
    limits = np.iinfo(dtype)
    for _ in range(3):
        outputs = []
        for real in (
            part
            for pair in zip(*random_levels(random, 16, classes, 2), strict=True)
            for part in pair
        ):
            scale = random.uniform(0.05, 0.2, real.shape[-1]).astype(np.float32)
            values = np.clip(np.round(real / scale + 7), limits.min, limits.max).astype(dtype)
            outputs.append(RawTensor(values, scale, 7, layout))
        whole = [
            RawTensor(
                (o.values.astype(np.float32) - np.float32(7)) * np.asarray(o.scale, np.float32),
                layout=layout,
            )
            for o in outputs
        ]
        result = head.decode(outputs, SMALL, DecodeLimits(0.4, 0.6, 1000))
        expected = plain.decode(whole, SMALL, DecodeLimits(0.4, 0.6, 1000))
        assert len(expected) > 5
        for name in ('boxes', 'scores', 'classes', 'rows'):
            assert getattr(result, name).tolist() == getattr(expected, name).tolist()


@pytest.mark.parametrize('extreme', [1e4, -1e4])
def test_distributions_far_from_zero_are_no_problem(extreme: float) -> None:
    random = np.random.default_rng(6)
    boxes, scores = random_levels(random, 16, 2, 0)
    boxes = [box + extreme for box in boxes]
    outputs = [
        RawTensor(part.astype(np.float32))
        for pair in zip(boxes, scores, strict=True)
        for part in pair
    ]
    left = [o.values[0].astype(np.float64) for o in outputs]
    expected = in_source(
        [b for b in yolov8_levels(left[::2], left[1::2], STRIDES, 16, True) if b.score >= 0.5],
        SMALL,
    )
    head = make_head(HeadSpec('yolov8', 2, INPUT, strides=STRIDES))
    assert_same(
        head.decode(outputs, SMALL, DecodeLimits(0.5, EVERYTHING, 1000)), expected, tolerance=0.02
    )
