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

"""Tables of ready-made boxes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor

BOX = Letterbox.fit(1920, 1080, 640, 640)


def decode(
    *rows: Sequence[float], score: float = 0.25, limit: int = 10, **options: object
) -> Detections:
    values = np.array(rows, np.float32).reshape(-1, 6)
    options.setdefault('coordinates', 'source')
    results = [
        make_head(HeadSpec('boxes', 8, **options)).decode(
            [RawTensor(shaped)], BOX, DecodeLimits(score, 0.5, limit)
        )  # type: ignore[arg-type]
        for shaped in (values, values[None])
    ]
    assert results[0].boxes.tolist() == results[1].boxes.tolist()
    return results[0]


def test_boxes_are_filtered_and_sorted_and_not_moved() -> None:
    found = decode(
        (1, 2, 30, 40, 0.3, 1),
        (5, 6, 70, 80, 0.9, 0),
        (1, 2, 30, 40, 0.1, 1),
        (1, 1, 9, 9, float('nan'), 0),
    )
    assert found.boxes.tolist() == [[5, 6, 70, 80], [1, 2, 30, 40]]
    assert found.classes.tolist() == [0, 1] and found.scores.tolist() == pytest.approx([0.9, 0.3])


def test_input_pixels_go_through_the_letterbox_and_are_clipped() -> None:
    found = decode((-5, 140, 320, 320, 0.9, 3), coordinates='input')
    assert found.boxes.tolist() == [[0, 0, 960, 540]]
    assert decode((0, 0.21875, 0.5, 0.5, 0.9, 3), coordinates='relative').boxes.tolist() == [
        [0, 0, 960, 540]
    ]
    assert decode(
        (0.21875, 0, 0.5, 0.5, 0.9, 3), coordinates='relative', box_order='yxyx'
    ).boxes.tolist() == [[0, 0, 960, 540]]


def test_duplicates_are_left_alone_unless_the_manifest_says_so() -> None:
    twice = ((1, 2, 30, 40, 0.9, 1), (1, 2, 30, 41, 0.8, 1))
    assert len(decode(*twice)) == 2
    assert decode(*twice, suppressed=False).scores.tolist() == pytest.approx([0.9])
