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

"""Turned boxes, keypoints and masks in each layout, against slow references."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.detection.extras import keypoints, MaskPainter
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits, Head, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.detection.tiles import decode, Region, Tiling
from zc_perception.errors import AcceleratorError

SIDE, CLASSES, STRIDES = 64, 2, (8, 16, 32)
# The picture is in rows 8 to 56 of the input, at half its size.
BOX = Letterbox.fit(128, 96, SIDE, SIDE)
LIMITS = DecodeLimits(0.5, 0.4, 30)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


class Levels:
    """Random raw levels, and the decoded cells: box, class scores, extra numbers."""

    def __init__(self, seed: int, bins: int, extra: int) -> None:
        random = np.random.default_rng(seed)
        self.outputs, self.cells = [], []
        for stride in STRIDES:
            n = SIDE // stride
            parts = [
                random.normal(0, 1.5, (4 * bins, n, n)) if bins > 1 else random.uniform(0.2, 3,
                                                                                        (4, n, n)),
                random.normal(-1.5, 1.5, (CLASSES, n, n)),
                random.normal(0, 1.0, (extra, n, n)),
            ]  # fmt: skip
            self.outputs += [RawTensor(p.astype(np.float32)[None], layout='nchw') for p in parts]
            for row, column in np.ndindex(n, n):
                box, scores, more = (p[:, row, column] for p in parts)
                if bins > 1:
                    powers = np.exp(box.reshape(4, bins))
                    box = (powers * np.arange(bins)).sum(1) / powers.sum(1)
                self.cells.append((column, row, stride, box, sigmoid(scores), more))


def distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return Bhattacharyya's distance of two Gaussians, by the matrix formula."""

    def spread(turned: NDArray[Any]) -> NDArray[Any]:
        c, s = math.cos(turned[4]), math.sin(turned[4])
        turn = np.array([[c, -s], [s, c]])
        return turn @ np.diag(turned[2:4] ** 2 / 12) @ turn.T

    a, b, apart = spread(one), spread(other), one[:2] - other[:2]
    middle = (a + b) / 2
    exponent = apart @ np.linalg.inv(middle) @ apart / 8
    exponent += (
        math.log(np.linalg.det(middle) / math.sqrt(np.linalg.det(a) * np.linalg.det(b))) / 2
    )
    return 1 - math.sqrt(1 - math.exp(-exponent))


def suppressed(rows: list[tuple[float, int, NDArray[Any], int]]) -> list[Any]:
    """Suppress: return score, class, turned box and row; reject undecided examples."""
    kept, rows = [], sorted(rows, key=lambda row: (-row[0], row[3]))
    for at, (_, kind, turned, _) in enumerate(rows):
        shared = [distance(turned, other[2]) for other in rows[:at] if other[1] == kind]
        assume(all(abs(each - LIMITS.iou) > 1e-3 for each in shared))
        if not any(each > LIMITS.iou for each in shared):
            kept.append(rows[at])
    return kept[: LIMITS.count]


def in_source(turned: NDArray[Any]) -> NDArray[Any]:
    x, y, w, h, angle = turned
    angle = (angle + math.pi / 2) % math.pi - math.pi / 2
    return np.array([2 * x, 2 * (y - 8), 2 * w, 2 * h, angle])


@pytest.mark.parametrize('layout', ['levels', 'yolo26 levels', 'decoded', 'table'])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_turned_boxes_are_those_of_the_reference(layout: str, seed: int) -> None:
    bins = 1 if 'yolo26' in layout else 4
    given_ = Levels(seed, bins, 1)
    boxes, rows = [], []
    for number, (column, row, stride, (left, top, right, bottom), scores, (raw,)) in enumerate(
        given_.cells
    ):
        angle = raw if bins == 1 else (sigmoid(raw) - 0.25) * math.pi
        x, y = (right - left) / 2, (bottom - top) / 2
        centre = (
            column + 0.5 + x * math.cos(angle) - y * math.sin(angle),
            row + 0.5 + x * math.sin(angle) + y * math.cos(angle),
        )
        turned = np.array([*centre, left + right, top + bottom, 0]) * stride
        turned[4] = angle
        boxes.append(np.concatenate((turned[:4], scores, [angle])))
        corners = outline(in_source(turned))
        inside = (corners.max(0) > 0).all() and (corners.min(0) < (128, 96)).all()
        if scores.max() >= LIMITS.score and inside:
            rows.append((scores.max(), int(scores.argmax()), turned, number))
    assume(all(abs(row[0] - LIMITS.score) > 1e-5 for row in rows))
    table = np.array(boxes, np.float32)
    if layout == 'table':
        scores = table[:, 4:6]
        columns = np.column_stack((table[:, :4], scores.max(1), scores.argmax(1), table[:, 6:]))
        head = make_head(
            HeadSpec('boxes', CLASSES, (SIDE, SIDE), box_order='cxcywh', oriented=True)
        )
        expected = sorted(rows, key=lambda row: (-row[0], row[3]))[: LIMITS.count]
        outputs = [RawTensor(columns[None].astype(np.float32))]
    else:
        head = make_head(HeadSpec('yolov8', CLASSES, (SIDE, SIDE), reg_max=bins, oriented=True))
        expected = suppressed(rows)
        outputs = [RawTensor(table.T.copy()[None])] if layout == 'decoded' else given_.outputs
    found = head.decode(outputs, BOX, LIMITS)
    assert found.rows.tolist() == [row[3] for row in expected]
    assert found.turned is not None and found.classes.tolist() == [row[1] for row in expected]
    for turned, box, row in zip(found.turned, found.boxes, expected, strict=True):
        want = in_source(row[2])
        assert turned[:4] == pytest.approx(want[:4], abs=0.01)
        assert abs(math.sin(turned[4] - want[4])) < 1e-4
        corners = outline(want).clip((0, 0), (128, 96))
        assert box == pytest.approx([*corners.min(0), *corners.max(0)], abs=0.01)


def outline(turned: NDArray[Any]) -> NDArray[Any]:
    """Return the four corners; x is to the right, y down, so a positive angle is clockwise."""
    along = np.array([math.cos(turned[4]), math.sin(turned[4])]) * turned[2] / 2
    across = np.array([-math.sin(turned[4]), math.cos(turned[4])]) * turned[3] / 2
    signs = ((-1, -1), (1, -1), (1, 1), (-1, 1))
    return np.array([turned[:2] + i * along + j * across for i, j in signs])


@pytest.mark.parametrize(('bins', 'factor', 'shift'), [(4, 2.0, 0.0), (1, 1.0, 0.5)])
def test_keypoints_of_raw_levels(bins: int, factor: float, shift: float) -> None:
    given_ = Levels(5, bins, 6)
    head = make_head(HeadSpec('yolov8', CLASSES, (SIDE, SIDE), reg_max=bins, keypoints=[2, 3]))
    found = head.decode(given_.outputs, BOX, LIMITS)
    points = head.extras(given_.outputs, found.rows)
    assert len(points) > 5
    for row, six in zip(found.rows, points.reshape(-1, 2, 3), strict=True):
        column, line, stride, *_, raw = given_.cells[row]
        for point, want in zip(six, raw.reshape(2, 3), strict=True):
            place = (factor * want[:2] + (column, line) + shift) * stride
            assert point == pytest.approx([*place, sigmoid(want[2])], abs=1e-3)


@pytest.mark.parametrize('bad', [(math.nan, 30, 0.9), (20, 30, math.nan), (20, 30, math.inf)])
def test_keypoints_that_are_no_numbers_have_the_score_0(bad: tuple[float, ...]) -> None:
    table = np.zeros((1, 4 + CLASSES + 9, 84), np.float32)
    table[0, :, 5] = 28, 30, 32, 24, 0.9, 0, *bad, 20, 30, 7, 20, 30, 0.25
    head = make_head(HeadSpec('yolov8', CLASSES, (SIDE, SIDE), keypoints=[3, 3]))
    found = head.decode([RawTensor(table)], BOX, LIMITS)
    points = keypoints(head, [RawTensor(table)], BOX, found, (3, 3))
    assert points.tolist() == [[[0, 0, 0], [40, 44, 1], [40, 44, 0.25]]]


def test_prototypes_are_told_from_levels_and_coefficients_read_by_cell() -> None:
    given_ = Levels(7, 4, 8)
    prototypes = RawTensor(np.zeros((1, 8, 16, 16), np.float32))
    outputs = [*given_.outputs[:4], prototypes, *given_.outputs[4:]]
    head = make_head(HeadSpec('yolov8', CLASSES, (SIDE, SIDE), reg_max=4, masks=8))
    found = head.decode(outputs, BOX, LIMITS)
    wanted = [given_.cells[row][5] for row in found.rows]
    assert np.allclose(head.extras(outputs, found.rows), wanted, atol=1e-6) and len(found) > 5
    with pytest.raises(AcceleratorError, match=r'head.masks is 8, and no output is a grid'):
        head.decode([RawTensor(np.zeros((1, 14, 84), np.float32))], BOX, LIMITS)


# Masks in the frame's pixels, against whole masks computed pixel by pixel.

MASKS, MASK_LIMITS = 5, DecodeLimits(0.3, 0.5, 20)


def reference(
    weights: NDArray[Any], grids: NDArray[Any], box: Letterbox, corners: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the weighted sum at each source pixel, and which pixels are inside the box."""
    whole = np.tensordot(weights.astype(float), grids.astype(float), 1)
    rows, columns = whole.shape
    x, y = np.arange(box.source_width) + 0.5, np.arange(box.source_height) + 0.5
    u = (box.left + x * box.width / box.source_width) * columns / box.input_width - 0.5
    v = (box.top + y * box.height / box.source_height) * rows / box.input_height - 0.5
    u, v = u.clip(0, columns - 1), v.clip(0, rows - 1)
    a, b = np.minimum(u.astype(int), columns - 2), np.minimum(v.astype(int), rows - 2)
    s, t = u - a, (v - b)[:, None]
    upper = whole[b][:, a] * (1 - s) + whole[b][:, a + 1] * s
    lower = whole[b + 1][:, a] * (1 - s) + whole[b + 1][:, a + 1] * s
    values = upper * (1 - t) + lower * t
    inside = ((y >= corners[1]) & (y < corners[3]))[:, None] & (x >= corners[0]) & (x < corners[2])
    return values, inside


def outputs_of(random: np.random.Generator, kind: str) -> tuple[Head, list[RawTensor], Any]:
    """Return a head, its outputs, and the prototypes as real numbers (masks, rows, columns)."""
    boxes = random.uniform(8, 56, (6, 2)), random.uniform(4, 40, (6, 2))
    more = random.normal(0, 1, (6, MASKS))
    if kind == 'table':
        table = np.concatenate((boxes[0] - boxes[1] / 2, boxes[0] + boxes[1] / 2,
                                random.uniform(0.4, 1, (6, 1)),
                                random.integers(0, CLASSES, (6, 1)), more), axis=1)  # fmt: skip
        head = make_head(HeadSpec('boxes', CLASSES, (SIDE, SIDE), masks=MASKS))
    else:
        table = np.concatenate((*boxes, random.uniform(0, 1, (6, CLASSES)), more), axis=1)
        head = make_head(HeadSpec('yolov8', CLASSES, (SIDE, SIDE), masks=MASKS))
    grids = random.normal(0.2, 1, (MASKS, 16, 16))
    rows = RawTensor(table.astype(np.float32)[None])
    if kind == 'int8':
        raw = np.rint(grids / 0.03 + 7).clip(-128, 127).astype(np.int8)
        prototypes = RawTensor(np.ascontiguousarray(raw.transpose(1, 2, 0))[None], 0.03, 7, 'nhwc')
        return head, [prototypes, rows], (raw.astype(float) - 7) * 0.03
    return head, [rows, RawTensor(grids.astype(np.float32)[None])], grids.astype(np.float32)


@pytest.mark.parametrize('kind', ['decoded', 'table', 'int8'])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_masks_are_those_of_the_reference(kind: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    width, height = (int(n) * 2 for n in random.integers(20, 40, 2))
    box: Letterbox = Letterbox.fit(width, height, SIDE, SIDE)
    x, y = (int(n) for n in random.integers(0, 9, 2))
    if seed % 2:  # the model sees a part of the frame
        box = Tiling.of(box, (Region(x, y, width, height),), Region(x, y, width, height))
    else:
        x = y = 0
    frame = np.zeros((height + seed % 2 * 10, width + seed % 2 * 10), np.uint16)
    painter: MaskPainter | None = None
    for _ in range(2):  # nothing of the first frame may be left in the second
        head, outputs, grids = outputs_of(random, kind)
        painter = painter or MaskPainter(head, MASKS)
        found = decode(head, outputs, box, MASK_LIMITS)
        painter.paint(outputs, box, found, frame)
        weights = head.extras(outputs, found.rows)
        expected, doubt = np.zeros_like(frame), np.zeros(frame.shape, bool)
        own = slice(y, y + height), slice(x, x + width)
        for index in range(len(found) - 1, -1, -1):
            values, inside = reference(
                weights[index], grids, box, found.boxes[index] - (x, y, x, y)
            )
            expected[own][inside & (values > 0)] = index + 1
            doubt[own] |= np.abs(values) < 1e-4
        assert len(found)
        assert ((frame == expected) | doubt).all() and doubt.mean() < 0.01
