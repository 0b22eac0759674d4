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

"""Which rows of the outputs detections are from, and the numbers that stand behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.detection.extras import keypoints
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError

BOX = Letterbox.fit(64, 64, 64, 64)
LIMITS = DecodeLimits(0.3, 0.5, 10)
# 3 strides of a 64 x 64 input: 64 + 16 + 4 cells. One box in each level.
CELLS, MARKED, CLASSES = 84, (9, 70, 82), 3
# Rows 70 and 9 are the better ones, and 9 has a twin that suppression drops.
SCORES = {9: 0.8, 70: 0.9, 82: 0.5, 8: 0.7}


def yolo_rows(extra: int) -> NDArray[np.float32]:
    """cx, cy, w, h, scores, and the row's own number as often as asked for."""
    rows = np.zeros((CELLS, 4 + CLASSES + extra), np.float32)
    rows[:, :4] = 1
    for row, score in SCORES.items():
        rows[row, :4] = 20, 20, 10, 10
        rows[row, 5] = score
    rows[82, :4] = 50, 50, 8, 8
    rows[70, :4] = 20, 50, 8, 8
    rows[:, slice(4 + CLASSES, None)] = np.arange(CELLS)[:, None]
    return rows


@pytest.mark.parametrize('turned', [False, True])
@pytest.mark.parametrize('quantised', [False, True])
def test_numbers_behind_the_scores_are_read_by_row(turned: bool, quantised: bool) -> None:
    rows = yolo_rows(2)
    steps = np.rint(rows * 100).astype(np.int16)
    tensor = RawTensor(steps, 0.01) if quantised else RawTensor(rows)
    if turned:
        tensor = RawTensor(np.ascontiguousarray(tensor.values.T[None]), tensor.scale)
    head = make_head(HeadSpec('yolov8', CLASSES, (64, 64), keypoints=[1, 2]))
    found = head.decode([tensor], BOX, LIMITS)
    assert found.rows.tolist() == [70, 9, 82]
    assert head.extras([tensor], found.rows).tolist() == [[70, 70], [9, 9], [82, 82]]


def test_numbers_behind_the_class_of_a_table() -> None:
    rows = np.zeros((1, 6, 8), np.float32)
    rows[0, :, 6:] = np.arange(6)[:, None]
    rows[0, 2, :6] = 4, 4, 20, 20, 0.4, 1
    rows[0, 5, :6] = 30, 30, 40, 40, 0.6, 2
    tensor = RawTensor(rows)
    head = make_head(HeadSpec('boxes', CLASSES, (64, 64), coordinates='input', keypoints=[1, 2]))
    found = head.decode([tensor], BOX, LIMITS)
    assert found.rows.tolist() == [5, 2]
    assert head.extras([tensor], found.rows).tolist() == [[5, 5], [2, 2]]
    points = keypoints(head, [tensor], BOX, found, (1, 2))
    assert points.tolist() == [[[5, 5, 1]], [[2, 2, 1]]]  # without a score of their own
    assert found.chosen(found.classes == 1).rows.tolist() == [2]


def _levels(channels: int, fill: Callable[[NDArray[np.float32]], None]) -> list[RawTensor]:
    table = np.full((CELLS, channels), -20.0, np.float32)
    table[:, :4] = 0
    fill(table)
    ends = (0, 64, 80, 84)
    return [
        RawTensor(table[start:end].reshape(1, side, side, channels), layout='nhwc')
        for start, end, side in zip(ends[:-1], ends[1:], (8, 4, 2), strict=True)
    ]


def _mark(first: int) -> Callable[[NDArray[np.float32]], None]:
    def fill(table: NDArray[np.float32]) -> None:
        for row, logit in zip(MARKED, (3.0, 4.0, 2.0), strict=True):
            table[row, first:] = logit

    return fill


def _yolox() -> Sequence[RawTensor]:
    return _levels(5 + CLASSES, _mark(4))


def _yolov8() -> Sequence[RawTensor]:
    def fill(table: NDArray[np.float32]) -> None:
        table[:, :4] = 0.4
        _mark(4)(table)

    return _levels(4 + CLASSES, fill)


@pytest.mark.parametrize(
    ('spec', 'outputs'),
    [
        (HeadSpec('yolox', CLASSES, (64, 64), sigmoid=True), _yolox()),
        (HeadSpec('yolov8', CLASSES, (64, 64), reg_max=1), _yolov8()),
        (HeadSpec('yolov5', CLASSES, (64, 64), anchors=[[[8, 8]]] * 3), _yolox()),
    ],
    ids=lambda value: value.kind if isinstance(value, HeadSpec) else '',
)
def test_cells_are_counted_through_all_levels(
    spec: HeadSpec, outputs: Sequence[RawTensor]
) -> None:
    head = make_head(spec)
    found = head.decode(outputs, BOX, LIMITS)
    assert found.rows.tolist() == [70, 9, 82]
    with pytest.raises(AcceleratorError, match='head yolo'):
        head.extras(outputs, found.rows)
