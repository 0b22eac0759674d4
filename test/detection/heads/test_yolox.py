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
