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

"""Outputs are identified by grid and channels, in any order and layout; ambiguous ones fail."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.levels import arrange, readable
from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError

GRIDS = ((8, 12), (4, 6), (2, 3))


@given(
    st.permutations(range(6)), st.booleans(), st.booleans(), st.integers(1, 200)
)
def test_parts_are_found_in_any_order(
    order: list[int], channels_first: bool, said: bool, classes: int
) -> None:
    if classes in (12, 6, 3, 8, 4, 2, 64):
        classes += 200
    shapes = [(rows, columns, channels) for rows, columns in GRIDS for channels in (64, classes)]
    sizes = [shapes[i] for i in order]
    turned = [(1, c, h, w) if channels_first else (1, h, w, c) for h, w, c in sizes]
    layout = ('nchw' if channels_first else 'nhwc') if said else ''
    outputs = [RawTensor(np.zeros(shape, np.float32), layout=layout) for shape in turned]
    levels = arrange('yolov8', outputs, GRIDS, {'box': 64, 'class': classes})
    for (rows, columns), level in zip(GRIDS, levels, strict=True):
        for name, channels in (('box', 64), ('class', classes)):
            assert order[level[name].output] == shapes.index((rows, columns, channels))
            assert level[name].view(outputs).shape == (rows, columns, channels)


def test_a_cube_is_read_as_the_other_outputs_are_and_alone_needs_its_layout() -> None:
    """80 classes on an 80 x 80 grid look alike in both layouts; the boxes' tensor decides."""
    cube, boxes = np.zeros((1, 8, 8, 8), np.float32), np.zeros((1, 8, 8, 4), np.float32)
    for at, pair in enumerate(((cube, boxes), (boxes, cube))):
        level = arrange('yolov8', [*map(RawTensor, pair)], ((8, 8),), {'box': 4, 'class': 8})[0]
        assert not level['class'].channels_first and level['class'].output == at
    with pytest.raises(AcceleratorError, match=r"head yolov8: output 0 'raw' has.*the manifest"):
        arrange('yolov8', [RawTensor(cube, name='raw')], ((8, 8),), {'box': 4, 'class': 4})
    for layout in ('nhwc', 'nchw'):
        level = arrange(
            'yolov8', [RawTensor(cube, layout=layout)], ((8, 8),), {'box': 4, 'class': 4}
        )[0]
        assert level['box'].channels_first == (layout == 'nchw')


@pytest.mark.parametrize(('scale', 'fine'), [
    (0.5, True), (np.float32(0.5), True), (np.full(6, 0.5, np.float32), True), (0.0, False),
    (np.full(5, 0.5, np.float32), False), (np.array([1, 1, 1, 0, 1, 1], np.float32), False),
])  # fmt: skip
def test_scales(scale: object, fine: bool) -> None:
    tensor = RawTensor(np.full((2, 6), 7, np.int8), scale, 3)  # type: ignore[arg-type]
    if fine:
        assert (readable('ssd', [tensor])[0].real() == tensor.real()).all()
    else:
        with pytest.raises(AcceleratorError, match=r'head ssd: output 0 has shape 2x6.*an array'):
            readable('ssd', [tensor])


@pytest.mark.parametrize('dtype', ['float16', 'int64', '>f4'])
def test_rare_types_become_float32(dtype: str) -> None:
    (read,) = readable('ssd', [RawTensor(np.array([1, 2, 100], dtype))])
    assert read.values.dtype == np.float32 and read.values.tolist() == [1, 2, 100]


# A single tensor of three axes: the only level without a batch axis, or a table of boxes.

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
@pytest.mark.parametrize('grid', [(1, 1), (1, 3), (3, 5)])
@pytest.mark.parametrize('layout', ['nhwc', 'nchw'])
def test_a_level_without_a_batch_axis_is_the_level(
    head: str, grid: tuple[int, int], layout: str
) -> None:
    spec, channels = SPECS[head]
    values = np.random.default_rng(channels).normal(0.2, 1.0, (*grid, channels)).astype(np.float32)
    if layout == 'nchw':
        values = np.ascontiguousarray(values.transpose(2, 0, 1))
    expected, result = found(spec, values[None], layout, grid), found(spec, values, layout, grid)
    assert len(expected)
    for name in ('boxes', 'scores', 'classes'):
        assert getattr(result, name).tolist() == getattr(expected, name).tolist()
    if grid[0] > 1:  # no other output has this shape, so the layout may be left out
        assert found(spec, values, '', grid).boxes.tolist() == expected.boxes.tolist()


def test_what_can_be_a_level_or_a_table_has_to_be_said() -> None:
    spec, channels = SPECS['yolov8']
    values = np.full((1, 3, channels), 0.4, np.float32)
    with pytest.raises(AcceleratorError, match=r'output 0 has shape 1x3x20: this.*the manifest'):
        found(spec, values, '', (1, 3))
    values[..., :4] = 30
    assert found(spec, values[0], '', (1, 3)).boxes.tolist() == [[15, 15, 45, 32]]


@pytest.mark.parametrize(
    ('kind', 'numbers', 'usual'), [('yolov8', 20, 'nchw'), ('yolov5', 21, 'nhwc')]
)
def test_a_square_table_is_read_as_exporters_write_it_unless_the_layout_says_otherwise(
    kind: str, numbers: int, usual: str
) -> None:
    table = np.random.default_rng(2).uniform(0.1, 0.9, (numbers, numbers)).astype(np.float32)
    table[:, :4] = np.random.default_rng(3).uniform(10, 60, (numbers, 4))
    spec, limits = HeadSpec(kind, CLASSES), DecodeLimits(0.2, 1.0, 100)
    # not square, so the axis of the rows is known
    twice = RawTensor(np.concatenate((table, table * 0)))
    more = make_head(spec).decode([twice], BOX, limits)
    for layout in ('', 'nhwc', 'nchw'):
        values = table.T if (layout or usual) == 'nchw' else table
        square = RawTensor(np.ascontiguousarray(values[None]), layout=layout)
        result = make_head(spec).decode([square], BOX, limits)
        assert len(more) > 5 and result.boxes.tolist() == more.boxes.tolist()


# The output rows of detections, and the numbers behind the scores.

BOX = Letterbox.fit(64, 64, 64, 64)
LIMITS = DecodeLimits(0.3, 0.5, 10)
# 3 strides of a 64 x 64 input: 64 + 16 + 4 cells. One box in each level.
CELLS, MARKED, FEW = 84, (9, 70, 82), 3
# Rows 70 and 9 are the best ones; suppression drops row 8, which overlaps row 9.
SCORES = {9: 0.8, 70: 0.9, 82: 0.5, 8: 0.7}


@pytest.mark.parametrize('turned', [False, True])
@pytest.mark.parametrize('quantised', [False, True])
def test_numbers_behind_the_scores_are_read_by_row(turned: bool, quantised: bool) -> None:
    # cx, cy, w, h, scores, and two copies of the row's own number
    rows = np.zeros((CELLS, 4 + FEW + 2), np.float32)
    rows[:, :4] = 1
    for row, score in SCORES.items():
        rows[row, :4] = 20, 20, 10, 10
        rows[row, 5] = score
    rows[82, :4] = 50, 50, 8, 8
    rows[70, :4] = 20, 50, 8, 8
    rows[:, slice(4 + FEW, None)] = np.arange(CELLS)[:, None]
    steps = np.rint(rows * 100).astype(np.int16)
    tensor = RawTensor(steps, 0.01) if quantised else RawTensor(rows)
    if turned:
        tensor = RawTensor(np.ascontiguousarray(tensor.values.T[None]), tensor.scale)
    head = make_head(HeadSpec('yolov8', FEW, (64, 64), keypoints=[1, 2]))
    found = head.decode([tensor], BOX, LIMITS)
    assert found.rows.tolist() == [70, 9, 82]
    assert head.extras([tensor], found.rows).tolist() == [[70, 70], [9, 9], [82, 82]]


def _levels(channels: int, boxes: float = 0.0) -> list[RawTensor]:
    """Return levels whose scores are high in three cells and low elsewhere."""
    table = np.full((CELLS, channels), -20.0, np.float32)
    table[:, :4] = boxes
    for row, logit in zip(MARKED, (3.0, 4.0, 2.0), strict=True):
        table[row, 4:] = logit
    levels = zip(np.split(table, (64, 80)), (8, 4, 2), strict=True)
    return [RawTensor(part.reshape(1, side, side, -1), layout='nhwc') for part, side in levels]


@pytest.mark.parametrize(('spec', 'outputs'), [
    (HeadSpec('yolox', FEW, (64, 64), sigmoid=True), _levels(5 + FEW)),
    (HeadSpec('yolov8', FEW, (64, 64), reg_max=1), _levels(4 + FEW, 0.4)),
    (HeadSpec('yolov5', FEW, (64, 64), anchors=[[[8, 8]]] * 3), _levels(5 + FEW)),
], ids=lambda value: value.kind if isinstance(value, HeadSpec) else '')  # fmt: skip
def test_cells_are_counted_through_all_levels(
    spec: HeadSpec, outputs: Sequence[RawTensor]
) -> None:
    head = make_head(spec)
    found = head.decode(outputs, BOX, LIMITS)
    assert found.rows.tolist() == [70, 9, 82]
    with pytest.raises(AcceleratorError, match='head yolo'):
        head.extras(outputs, found.rows)
