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

from head_reference import assert_same, Box, in_source, yolov5_levels
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
