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

"""Keypoints of what was found, in the frame's pixels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads.spec import Head
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor

PEOPLE = 17
PERSON = ((0, 1), (0, 2), (1, 3), (2, 4), (5, 6), (5, 7), (7, 9), (6, 8), (8, 10),
          (5, 11), (6, 12), (11, 12), (11, 13), (13, 15), (12, 14), (14, 16))  # fmt: skip
"""
Lines between the 17 keypoints of COCO's people: nose, eyes, ears, shoulders, elbows, wrists, hips,
knees, ankles.
"""
SEEN = 0.5
"""Keypoints with a lower score are not seen: no line ends at them."""


def keypoints(
    head: Head,
    outputs: Sequence[RawTensor],
    box: Letterbox,
    found: Detections,
    shape: Sequence[int],
) -> NDArray[np.float32]:
    """
    Return (n, keypoints, 3) x, y, clipped to the picture, and score from 0 to 1.

    The score is 1 where the model has none.

    :param outputs: those that *found* was decoded from.
    :param shape: the keypoints of each row: how many, and how many numbers each has.
    """
    points = np.ones((len(found), shape[0], 3), np.float32)
    for region, part, which, rows in box.runs(outputs, found.rows):
        values = head.extras(part, rows).reshape(-1, shape[1])
        # Pairs, where the letterbox takes boxes.
        places = box.to_source(np.tile(values[:, :2], 2))[:, :2] + region[:2]
        points[which, :, :2] = places.reshape(len(which), -1, 2)
        if shape[1] > 2:
            points[which, :, 2] = values[:, 2].reshape(len(which), -1)
    return points
