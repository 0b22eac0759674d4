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

"""SSD: deltas on priors."""

from __future__ import annotations

import math

from head_reference import assert_same, in_source, ssd_box, ssd_scores
from hypothesis import assume, given
from hypothesis import strategies as st
import numpy as np
from tensors import GRIDS, INPUT, STRIDES

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor

SMALL = Letterbox.fit(321, 203, *INPUT, stretch=True)
EVERYTHING = 1.0
NEAR = 1e-5


def priors_of(
    random: np.random.Generator, count: int
) -> tuple[tuple[float, float, float, float], ...]:
    return tuple(
        (*random.random(2).tolist(), *random.uniform(0.05, 0.6, 2).tolist()) for _ in range(count)
    )


@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 3, 20]),
    st.sampled_from(['first', 'last', 'none']),
    st.sampled_from(['softmax', 'sigmoid', 'done']),
    st.sampled_from(['xyxy', 'yxyx']),
    st.floats(0.05, 0.95),
    st.booleans(),
)
def test_deltas_on_priors(
    seed: int, classes: int, ground: str, kind: str, order: str, score: float, int8: bool
) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 60))
    background = {'first': 0, 'last': classes, 'none': -1}[ground]
    width = classes + (background >= 0)
    priors, variances = priors_of(random, count), (0.1, 0.2)
    logits = (
        random.random((1, count, width))
        if kind == 'done'
        else random.normal(0, 3, (1, count, width))
    )
    deltas = random.normal(0, 2, (1, count, 4))
    if int8:
        scale = 1 / 255 if kind == 'done' else 0.08
        point = -128 if kind == 'done' else 5
        scores = RawTensor(
            np.clip(np.round(logits / scale) + point, -128, 127).astype(np.int8), scale, point
        )
        boxes = RawTensor(
            np.clip(np.round(deltas / 0.05) - 7, -128, 127).astype(np.int8), 0.05, -7
        )
        left = (
            (scores.values[0].astype(float) - point) * scale,
            (boxes.values[0].astype(float) + 7) * 0.05,
        )
    else:
        scores, boxes = RawTensor(logits.astype(np.float32)), RawTensor(deltas.astype(np.float32))
        left = scores.values[0].astype(float), boxes.values[0].astype(float)
    expected = []
    for row, delta, prior in zip(*left, priors, strict=True):
        number, value = ssd_scores(row.tolist(), background, kind == 'softmax', kind == 'sigmoid')
        assume(abs(value - score) > NEAR)
        pixels = (
            prior[0] * INPUT[0],
            prior[1] * INPUT[1],
            prior[2] * INPUT[0],
            prior[3] * INPUT[1],
        )
        turned = delta[[1, 0, 3, 2]] if order == 'yxyx' else delta
        if value >= score:
            expected.append(ssd_box(value, number, turned.tolist(), pixels, variances))
    head = make_head(
        HeadSpec(
            'ssd', classes, INPUT, sigmoid=kind == 'sigmoid', softmax=kind == 'softmax',
            variances=variances, background=background,
            priors=priors, box_order=order,
        )
    )  # fmt: skip
    # With four numbers in each only the order tells which is which: boxes first.
    outputs = [boxes, scores] if width == 4 or seed % 2 else [scores, boxes]
    assert_same(
        head.decode(outputs, SMALL, DecodeLimits(score, EVERYTHING, 1000)),
        in_source(expected, SMALL),
    )


def decode(
    spec: HeadSpec, *outputs: object, score: float = 0.3, box: Letterbox = SMALL
) -> Detections:
    return make_head(spec).decode(
        [RawTensor(np.asarray(output, np.float32)) for output in outputs],
        box,
        DecodeLimits(score, 0.5, 10),
    )


def test_priors_are_made_from_anchors_level_row_column_anchor() -> None:
    anchors = (((8.0, 6.0), (5.0, 9.0)), ((20.0, 12.0),), ((30.0, 40.0),))
    count = 2 * math.prod(GRIDS[0]) + math.prod(GRIDS[1]) + math.prod(GRIDS[2])
    scores = np.zeros((1, count, 2))
    scores[0, [2 * (3 * 12 + 5) + 1, 2 * 96 + 6 + 2, 2 * 96 + 24 + 4], 1] = 0.9, 0.8, 0.7
    found = decode(
        HeadSpec('ssd', 1, INPUT, strides=STRIDES, anchors=anchors),
        scores,
        np.zeros((1, count, 4)),
        box=Letterbox.fit(96, 64, 96, 64),
    )
    expected = [(44, 28, 5, 9), (2.5 * 16, 1.5 * 16, 20, 12), (1.5 * 32, 1.5 * 32, 30, 40)]
    assert found.boxes.tolist() == [
        [x - w / 2, y - h / 2, x + w / 2, min(y + h / 2, 64)] for x, y, w, h in expected
    ]
