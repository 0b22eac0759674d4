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

"""A single tensor of three axes: the only level without a batch axis, or a table of boxes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError

CLASSES = 16
ANCHORS = (((10.0, 12.0), (20.0, 30.0)),)
SPECS = {
    'yolov8': (HeadSpec('yolov8', CLASSES, strides=(32,), reg_max=1), 4 + CLASSES),
    'yolov8 dfl': (HeadSpec('yolov8', CLASSES, strides=(32,), reg_max=8), 32 + CLASSES),
    'yolov5': (HeadSpec('yolov5', CLASSES, strides=(32,), anchors=ANCHORS), 2 * (5 + CLASSES)),
    'yolox': (HeadSpec('yolox', CLASSES, strides=(32,), sigmoid=True), 5 + CLASSES),
}


def found(
    spec: HeadSpec, values: NDArray[np.float32], layout: str, grid: tuple[int, int]
) -> Detections:
    width, height = grid[1] * 32, grid[0] * 32
    return make_head(spec).decode(
        [RawTensor(values, layout=layout)],
        Letterbox.fit(width, height, width, height),
        DecodeLimits(0.3, 0.5, 50),
    )


@pytest.mark.parametrize('head', SPECS)
@pytest.mark.parametrize('grid', [(1, 1), (1, 3), (2, 2), (3, 5)])
@pytest.mark.parametrize('layout', ['nhwc', 'nchw'])
def test_a_level_without_a_batch_axis_is_the_level(
    head: str, grid: tuple[int, int], layout: str
) -> None:
    spec, channels = SPECS[head]
    values = np.random.default_rng(channels).normal(0.2, 1.0, (*grid, channels)).astype(np.float32)
    if layout == 'nchw':
        values = np.ascontiguousarray(values.transpose(2, 0, 1))
    expected, result = found(spec, values[None], layout, grid), found(spec, values, layout, grid)
    assert len(expected) and result.boxes.tolist() == expected.boxes.tolist()
    assert (result.scores.tolist(), result.classes.tolist()) == (
        expected.scores.tolist(),
        expected.classes.tolist(),
    )
    if grid[0] > 1:  # nothing else has this shape, so that it needn't be said
        assert found(spec, values, '', grid).boxes.tolist() == expected.boxes.tolist()


def test_what_can_be_a_level_or_a_table_has_to_be_said() -> None:
    spec, channels = SPECS['yolov8']
    values = np.full((1, 3, channels), 0.4, np.float32)
    with pytest.raises(
        AcceleratorError,
        match=r'output 0 has shape 1x3x20: this can be a raw level or a table of boxes; the '
        r'manifest',
    ):
        found(spec, values, '', (1, 3))
    values[..., :4] = 30
    assert found(spec, values[0], '', (1, 3)).boxes.tolist() == [[15, 15, 45, 32]]


def test_tables_of_another_size_than_the_grid_stay_tables() -> None:
    spec, channels = SPECS['yolov8']
    values = np.full((1, 7, channels), 0.4, np.float32)
    values[..., :4] = 30
    for layout in ('', 'nhwc'):
        assert found(spec, values, layout, (2, 2)).boxes.tolist() == [[15, 15, 45, 45]]


@pytest.mark.parametrize(
    ('kind', 'numbers', 'usual'), [('yolov8', 20, 'nchw'), ('yolov5', 21, 'nhwc')]
)
def test_a_square_table_is_read_as_exporters_write_it_unless_the_layout_says_otherwise(
    kind: str, numbers: int, usual: str
) -> None:
    table = np.random.default_rng(2).uniform(0.1, 0.9, (numbers, numbers)).astype(np.float32)
    table[:, :4] = np.random.default_rng(3).uniform(10, 60, (numbers, 4))
    spec, box, limits = (
        HeadSpec(kind, CLASSES),
        Letterbox.fit(64, 64, 64, 64),
        DecodeLimits(0.2, 1.0, 100),
    )
    more = make_head(spec).decode(
        [RawTensor(np.concatenate((table, table * 0)))], box, limits
    )  # not square: rows for certain
    for layout in ('', 'nhwc', 'nchw'):
        values = table.T if (layout or usual) == 'nchw' else table
        result = make_head(spec).decode(
            [RawTensor(np.ascontiguousarray(values[None]), layout=layout)], box, limits
        )
        assert len(more) > 5 and result.boxes.tolist() == more.boxes.tolist()
