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

"""Masks and keypoints in the frame's pixels, against whole masks computed pixel by pixel."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.detection.extras import MaskPainter
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits, Head, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.detection.tiles import decode, Region, Tiling

SIDE, CLASSES, MASKS = 64, 2, 5
LIMITS = DecodeLimits(0.3, 0.5, 20)


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
        found = decode(head, outputs, box, LIMITS)
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
