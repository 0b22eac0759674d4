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

"""YOLOX: rows of all levels, levels whole and in parts, against a decoder written cell by cell."""

from __future__ import annotations

from head_reference import assert_same, in_source, yolox_levels
from hypothesis import assume, given
from hypothesis import strategies as st
import numpy as np
import pytest
from tensors import as_nchw, dequantised, GRIDS, INPUT, quantised, STRIDES

from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError

SMALL = Letterbox.fit(203, 321, *INPUT)
EVERYTHING = 1.0
NEAR = 1e-5
ARRANGEMENTS = ('rows', 'rows turned', 'levels', 'levels nchw', 'parts', 'parts nchw')


@pytest.mark.parametrize('arrangement', ARRANGEMENTS)
@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 3, 4, 20]),
    st.floats(0.05, 0.95),
    st.booleans(),
    st.booleans(),
)
def test_every_arrangement(
    arrangement: str, seed: int, classes: int, score: float, by_sigmoid: bool, exact: bool
) -> None:
    random = np.random.default_rng(seed)
    levels = []
    for grid in GRIDS:
        boxes = random.normal(0, 1, (1, *grid, 4))
        scores = (
            random.normal(0, 2, (1, *grid, 1 + classes))
            if by_sigmoid
            else random.uniform(0, 1, (1, *grid, 1 + classes))
        )
        levels.append(np.concatenate([boxes, scores], axis=3))
    cuts = [slice(0, 4), slice(4, 5), slice(5, None)] if 'parts' in arrangement else [slice(None)]
    outputs = [
        [
            RawTensor(level[..., cut].astype(np.float32), layout='nhwc')
            if exact or 'rows' in arrangement
            else quantised(
                level[..., cut],
                random,
                scale=float(random.uniform(0.01, 0.05)),
                zero_point=int(random.integers(-9, 9)),
            )
            for cut in cuts
        ]
        for level in levels
    ]
    left = [np.concatenate([dequantised(part) for part in parts], axis=2) for parts in outputs]
    boxes_of = list(yolox_levels(left, STRIDES, by_sigmoid))
    # Of what the device computed, an objectness below the threshold doesn't count whatever the
    # classes are.
    assume(all(abs(one.score - score) > NEAR for one in boxes_of))
    if not by_sigmoid:
        objects = np.concatenate([level[..., 4].reshape(-1) for level in left])
        boxes_of = [
            one for one, objectness in zip(boxes_of, objects, strict=True) if objectness >= score
        ]
    expected = in_source([one for one in boxes_of if one.score >= score], SMALL)
    if 'rows' in arrangement:
        rows = np.concatenate([parts[0].values.reshape(-1, 5 + classes) for parts in outputs])
        given_outputs = [
            RawTensor(
                np.ascontiguousarray(rows.T[None]) if 'turned' in arrangement else rows[None]
            )
        ]
    else:
        given_outputs = [
            as_nchw(part) if 'nchw' in arrangement else part
            for level in random.permutation(3)
            for part in outputs[level]
        ]
    head = make_head(
        HeadSpec('yolox', classes, INPUT, strides=STRIDES, sigmoid=True if by_sigmoid else None)
    )
    assert_same(head.decode(given_outputs, SMALL, DecodeLimits(score, EVERYTHING, 1000)), expected)


def test_a_known_box() -> None:
    rows = np.zeros((1, 8 * 12 + 4 * 6 + 2 * 3, 7), np.float32)
    rows[0, 8 * 12 + 2 * 6 + 3] = (0.5, 0.25, np.log(2), 0, 0.5, 0.25, 1)
    found = make_head(HeadSpec('yolox', 2)).decode(
        [RawTensor(rows)], Letterbox.fit(96, 64, 96, 64), DecodeLimits(0.5, 0.5, 10)
    )
    np.testing.assert_allclose(
        found.boxes, [[3.5 * 16 - 16, 2.25 * 16 - 8, 3.5 * 16 + 16, 2.25 * 16 + 8]], rtol=1e-6
    )
    assert (found.scores.tolist(), found.classes.tolist()) == ([0.5], [1])


def test_a_size_that_overflows_is_no_detection() -> None:
    rows = np.zeros((1, 126, 7), np.float32)
    rows[0, :, 2:4] = 100
    rows[0, :, 4:] = 1
    found = make_head(HeadSpec('yolox', 2)).decode(
        [RawTensor(rows)], Letterbox.fit(96, 64, 96, 64), DecodeLimits(0.5, 0.5, 10)
    )
    assert len(found) == 0


@pytest.mark.parametrize(
    ('shapes', 'message'),
    [
        ([(1, 120, 7)], r'output 0 has shape 1x120x7: expected 1x126x7 or 1x7x126'),
        ([(1, 126, 8)], r'output 0 has shape 1x126x8'),
        (
            [(1, 8, 12, 7), (1, 4, 6, 8)],
            (
                r'output 1 has shape 1x4x6x8: expected .* 4 box and 1 objectness and 2 class '
                r'channels, or 7'
            ),
        ),
    ],
)
def test_another_layout_is_an_error_with_its_shape(
    shapes: list[tuple[int, ...]], message: str
) -> None:
    head = make_head(HeadSpec('yolox', 2, INPUT, strides=STRIDES))
    with pytest.raises(AcceleratorError, match=f'head yolox: .*{message}'):
        head.decode(
            [RawTensor(np.zeros(shape, np.float32)) for shape in shapes],
            SMALL,
            DecodeLimits(0.5, 0.5, 10),
        )
