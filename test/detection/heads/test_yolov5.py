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
YOLOv5.

Raw levels in each arrangement and decoded rows against a decoder written cell by cell.
"""

from __future__ import annotations

from head_reference import assert_same, Box, centred, in_source, yolov5_levels
from hypothesis import given, reject
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest
from tensors import as_nchw, dequantised, GRIDS, INPUT, quantised, STRIDES

from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, ConfigError

SMALL = Letterbox.fit(321, 203, *INPUT)
ANCHORS = (
    ((10.0, 13.0), (16.0, 30.0), (33.0, 23.0)),
    ((30.0, 61.0), (62.0, 45.0), (59.0, 80.0)),
    ((90.0, 70.0), (50.0, 98.0), (73.0, 26.0)),
)
CLASSES = 4
EVERYTHING = 1.0
NEAR = 1e-5


def levels_of(random: np.random.Generator, by_sigmoid: bool) -> list[NDArray[np.float64]]:
    """(1, rows, columns, anchors · (5 + classes))."""
    shapes = [(1, *grid, 3 * (5 + CLASSES)) for grid in GRIDS]
    return [
        random.normal(0, 2, shape) if by_sigmoid else random.uniform(0, 1.02, shape)
        for shape in shapes
    ]


def expected_of(levels: list[NDArray[np.float64]], score: float, by_sigmoid: bool) -> list[Box]:
    split = [level.reshape(*level.shape[:2], 3, -1) for level in levels]
    boxes = list(yolov5_levels(split, STRIDES, ANCHORS, by_sigmoid))
    if any(abs(one.score - score) <= NEAR for one in boxes):
        reject()  # rounding decides
    return in_source([one for one in boxes if one.score >= score], SMALL)


@pytest.mark.parametrize('channels_first', [False, True])
@given(
    st.integers(0, 2**32), st.floats(0.05, 0.95), st.booleans(), st.sampled_from(['int8', 'uint8'])
)
def test_quantised_levels(
    channels_first: bool, seed: int, score: float, by_sigmoid: bool, dtype: str
) -> None:
    random = np.random.default_rng(seed)
    scale, zero_point = (0.06, 3) if by_sigmoid else (1.02 / 255, -128)
    outputs = [
        quantised(
            level,
            random,
            scale=scale * random.uniform(0.9, 1.2),
            zero_point=zero_point + 128 * (dtype == 'uint8'),
            dtype=dtype,
        )
        for level in levels_of(random, by_sigmoid)
    ]
    if channels_first:
        outputs = [as_nchw(output) for output in outputs]
    expected = expected_of([dequantised(output) for output in outputs], score, by_sigmoid)
    head = make_head(
        HeadSpec(
            'yolov5',
            CLASSES,
            INPUT,
            strides=STRIDES,
            anchors=ANCHORS,
            sigmoid=None if by_sigmoid else False,
        )
    )
    order = random.permutation(3)
    assert_same(
        head.decode([outputs[i] for i in order], SMALL, DecodeLimits(score, EVERYTHING, 10000)),
        expected,
    )


def test_the_export_with_an_axis_for_anchors() -> None:
    random = np.random.default_rng(1)
    levels = [level.astype(np.float32) for level in levels_of(random, True)]
    expected = expected_of([level[0].astype(np.float64) for level in levels], 0.6, True)
    assert len(expected) > 10
    outputs = [
        level.reshape(1, *level.shape[1:3], 3, -1).transpose(0, 3, 1, 2, 4) for level in levels
    ]
    head = make_head(HeadSpec('yolov5', CLASSES, INPUT, strides=STRIDES, anchors=ANCHORS))
    for order in ((0, 1, 2), (2, 0, 1)):
        found = head.decode(
            [RawTensor(np.ascontiguousarray(outputs[i])) for i in order],
            SMALL,
            DecodeLimits(0.6, EVERYTHING, 10000),
        )
        assert_same(found, expected)


@pytest.mark.parametrize('turned', [False, True])
def test_decoded_rows(turned: bool) -> None:
    random = np.random.default_rng(2)
    rows = np.concatenate(
        [
            random.uniform(0, 96, (40, 2)),
            random.uniform(2, 40, (40, 2)),
            random.random((40, 1 + CLASSES)),
        ],
        axis=1,
    )
    rows = rows.astype(np.float32)
    wide = rows.astype(np.float64)
    boxes = [
        centred(float(row[4] * row[5:].max()), int(row[5:].argmax()), *row[:4].tolist())
        for row in wide
    ]
    expected = in_source([one for one in boxes if one.score >= 0.3], SMALL)
    assert len(expected) > 5
    values = np.ascontiguousarray(rows.T[None]) if turned else rows[None]
    assert_same(
        make_head(HeadSpec('yolov5', CLASSES)).decode(
            [RawTensor(values)], SMALL, DecodeLimits(0.3, EVERYTHING, 100)
        ),
        expected,
    )


def test_a_known_box() -> None:
    """
    All channels zero.

    Centre in the middle of the cell, the anchor's own size, score sigmoid(0)².
    """
    levels = [np.full((1, *grid, 27), -20, np.float32) for grid in GRIDS]
    levels[1][0, 2, 3, 9:18] = 0
    levels[1][0, 2, 3, 15] = 1
    found = make_head(HeadSpec('yolov5', CLASSES, INPUT, strides=STRIDES, anchors=ANCHORS)).decode(
        [RawTensor(level) for level in levels],
        Letterbox.fit(96, 64, 96, 64),
        DecodeLimits(0.2, 0.5, 10),
    )
    assert found.boxes.tolist() == [
        [3.5 * 16 - 31, 2.5 * 16 - 22.5, 3.5 * 16 + 31, 2.5 * 16 + 22.5]
    ]
    assert found.classes.tolist() == [1] and found.scores.tolist() == pytest.approx(
        [0.5 / (1 + np.exp(-1))]
    )


def test_a_score_is_objectness_times_class_and_objectness_alone_is_not_enough() -> None:
    rows = np.array(
        [
            [30, 30, 9, 9, 0.9, 0.5, 0, 0, 0],
            [60, 30, 9, 9, 0.5, 0.9, 0, 0, 0],
            [30, 50, 9, 9, 0.44, 1, 0, 0, 0],
        ],
        np.float32,
    )
    head = make_head(HeadSpec('yolov5', CLASSES))
    assert len(head.decode([RawTensor(rows)], SMALL, DecodeLimits(0.45, 0.5, 10))) == 2
    assert len(head.decode([RawTensor(rows)], SMALL, DecodeLimits(0.46, 0.5, 10))) == 0


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
def test_objectness_and_classes_that_are_no_numbers_are_no_scores(bad: float) -> None:
    rows = np.array(
        [
            [30, 30, 9, 9, bad, 0.9, 0, 0, 0],
            [60, 30, 9, 9, 0.9, bad, 0.8, 0, 0],
            [30, 50, 9, 9, 0.9, *[bad] * 4],
        ],
        np.float32,
    )
    found = make_head(HeadSpec('yolov5', CLASSES)).decode(
        [RawTensor(rows)], SMALL, DecodeLimits(0.3, 0.5, 10)
    )
    assert found.classes.tolist() == [1] and found.scores.tolist() == pytest.approx([0.72])


@pytest.mark.parametrize(
    ('anchors', 'message'),
    [
        (
            ANCHORS[:2],
            (
                r'head.anchors has \[3, 3\] anchors: expected for each of the 3 strides \[8, 16, '
                r'32\] the same number'
            ),
        ),
        ((ANCHORS[0], ANCHORS[1], ANCHORS[2][:2]), r'head.anchors has \[3, 3, 2\]'),
        (((), (), ()), r'head.anchors has \[0, 0, 0\]'),
        ((((0.0, 5.0),), ((4.0, 5.0),), ((4.0, 5.0),)), r'head.anchors: every width and height'),
    ],
)
def test_anchors_that_do_not_belong_to_the_strides(
    anchors: tuple[tuple[tuple[float, float], ...], ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_head(HeadSpec('yolov5', CLASSES, INPUT, strides=STRIDES, anchors=anchors))


def test_raw_levels_without_anchors() -> None:
    outputs = [RawTensor(np.zeros((1, *grid, 27), np.float32)) for grid in GRIDS]
    with pytest.raises(
        AcceleratorError,
        match=r'head yolov5: the model has 3 raw levels, but the manifest no head.anchors',
    ):
        make_head(HeadSpec('yolov5', CLASSES)).decode(outputs, SMALL, DecodeLimits(0.3, 0.5, 10))


@pytest.mark.parametrize(
    ('shapes', 'message'),
    [
        ([(1, 30, 10)], r'output 0 has shape 1x30x10: expected 1xNx9 or 1x9xN'),
        (
            [(1, 8, 12, 27), (1, 4, 6, 24), (1, 2, 3, 27)],
            r'output 1 has shape 1x4x6x24: expected for each of the grids 8x12, 4x6, 2x3',
        ),
        (
            [(1, 3, 8, 12, 9), (1, 3, 4, 6, 9)],
            r'expected anchor x row x column x channel: 3x8x12x9, 3x4x6x9, 3x2x3x9',
        ),
    ],
)
def test_another_layout_is_an_error_with_its_shape(
    shapes: list[tuple[int, ...]], message: str
) -> None:
    head = make_head(HeadSpec('yolov5', CLASSES, INPUT, strides=STRIDES, anchors=ANCHORS))
    with pytest.raises(AcceleratorError, match=f'head yolov5: .*{message}'):
        head.decode(
            [RawTensor(np.zeros(shape, np.float32)) for shape in shapes],
            SMALL,
            DecodeLimits(0.5, 0.5, 10),
        )
