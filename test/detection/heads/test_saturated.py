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

"""One box of absurd but finite size takes nothing away from the others."""

from __future__ import annotations

import numpy as np
import pytest

from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor

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
