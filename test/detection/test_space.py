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

"""Boxes in space, against depth pictures with known truth."""

from __future__ import annotations

import math

import cv2
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.detection.space import Lens, place

SIZE = (640, 480)
FOCAL = 500.0
MATRIX = np.array([[FOCAL, 0, 320], [0, FOCAL, 240], [0, 0, 1]])
STRAIGHT = Lens(MATRIX, np.zeros(5), SIZE)
BOX = np.array([[200, 100, 300, 260]], np.float32)
NOISE = np.random.default_rng(1)


def wall(
    distance: float, *fronts: tuple[tuple[int, int, int, int], float], size: tuple[int, int] = SIZE
) -> NDArray[np.float32]:
    """Return depths in metres of a wall, with nearer rectangles x0, y0, x1, y1 before it."""
    depth = np.full(size[::-1], distance, np.float32)
    for (x0, y0, x1, y1), nearer in fronts:
        depth[y0:y1, x0:x1] = nearer
    return depth


@given(
    distance=st.floats(0.5, 20.0), corner=st.tuples(st.integers(0, 500), st.integers(0, 380)),
    sides=st.tuples(st.integers(8, 140), st.integers(8, 100)), shrink=st.sampled_from([1, 2, 3]),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_a_surface_is_where_it_is_and_as_large(
    distance: float, corner: tuple[int, int], sides: tuple[int, int], shrink: int
) -> None:
    """For depth pictures of another size, edges are exact to one of their pixels."""
    (x, y), (width, height) = corner, sides
    box = (x, y, x + width, y + height)
    depth = wall(distance * 1.5 + 1, (box, distance))[::shrink, ::shrink]
    depth = depth + NOISE.normal(0, 0.002 * distance, depth.shape).astype(np.float32)
    placed = place(np.array([box], np.float32), SIZE, depth, 1.0, STRAIGHT)
    true = (
        (x + width / 2 - 320) / FOCAL * distance,
        (y + height / 2 - 240) / FOCAL * distance,
        distance,
    )
    assert placed.which.tolist() == [0]
    assert placed.centres[0] == pytest.approx(true, abs=0.01 * distance)
    assert placed.sizes[0, :2] == pytest.approx(
        (width / FOCAL * distance, height / FOCAL * distance), rel=0.01
    )
    assert placed.sizes[0, 2] < 0.02 * distance


def test_a_thin_thing_before_a_wall_is_not_taken_for_the_wall() -> None:
    placed = place(BOX, SIZE, wall(6.0, ((235, 100, 265, 260), 2.0)), 1.0, STRAIGHT)
    assert placed.centres[0, 2] == 2.0


def test_holes_are_no_depths_and_where_there_are_only_holes_there_is_no_object() -> None:
    depth = wall(6.0, ((200, 100, 300, 260), 2.0))
    depth[NOISE.random(depth.shape) < 0.6] = np.nan
    depth[::7], depth[::11], depth[::13] = 0.0, np.inf, -1.0
    boxes = np.concatenate((BOX, [[400, 300, 460, 360]])).astype(np.float32)
    assert place(boxes, SIZE, depth, 1.0, STRAIGHT).centres[:, 2] == pytest.approx([2.0, 6.0])
    depth[100:260, 200:300] = np.nan
    placed = place(boxes, SIZE, depth, 1.0, STRAIGHT)
    assert placed.which.tolist() == [1] and placed.centres.shape == placed.sizes.shape == (1, 3)
    assert place(boxes[:0], SIZE, depth, 1.0, STRAIGHT).centres.shape == (0, 3)


def test_how_far_a_thing_reaches_along_the_view_is_seen_on_its_surface() -> None:
    depth = wall(9.0)
    depth[100:260, 200:300] = np.linspace(3.0, 3.2, 100)
    placed = place(BOX, SIZE, depth, 1.0, STRAIGHT)
    assert placed.sizes[0, 2] == pytest.approx(0.18, abs=0.02)
    assert placed.centres[0, 2] == pytest.approx(3.1, abs=0.02)


def test_millimetres_are_millimetres_and_boxes_may_reach_out_of_the_picture() -> None:
    depth = (wall(2.5) * 1000).astype('>u2')
    placed = place(
        np.array([[-50, -50, 700, 520], [639.5, 479.5, 640, 480]], np.float32),
        SIZE,
        depth,
        0.001,
        STRAIGHT,
    )
    assert placed.centres[:, 2] == pytest.approx([2.5, 2.5])


@pytest.mark.parametrize('fisheye', [False, True])
def test_a_lens_that_bends_lines_is_undone(fisheye: bool) -> None:
    bends = np.array([0.1, 0.02, 0.0, 0.0] if fisheye else [-0.25, 0.08, 0.001, 0.0, 0.0])
    true = np.array([[1.5, -0.3, 3.0]])
    project = cv2.fisheye.projectPoints if fisheye else cv2.projectPoints
    ((x, y),) = project(true[:, None], np.zeros(3), np.zeros(3), MATRIX, bends)[0].reshape(-1, 2)
    box = np.array([[x - 8, y - 8, x + 8, y + 8]], np.float32)
    # The calibration is for pictures of half the size.
    half = Lens(np.diag([0.5, 0.5, 1.0]) @ MATRIX, bends, (320, 240), fisheye)
    placed = place(box, SIZE, wall(3.0), 1.0, half)
    assert placed.centres[0] == pytest.approx(true[0], abs=0.005)
    assert not math.isclose(
        place(box, SIZE, wall(3.0), 1.0, STRAIGHT).centres[0, 0], 1.5, abs_tol=0.02
    )


@pytest.mark.parametrize(('size', 'expected'), [
    ((320, 240), (0.0, 0.0)), ((160, 120), (0.0, 0.0)), ((640, 480), (-1.28, -0.96)),
], ids=['the region', 'the region with binning', 'the whole sensor'])  # fmt: skip
def test_a_picture_is_the_region_of_interest_unless_it_has_the_sensor_s_size(
    size: tuple[int, int], expected: tuple[float, float]
) -> None:
    """Some calibration files have a region of interest, but the camera gives whole pictures."""
    lens = Lens(MATRIX, np.zeros(5), SIZE, region=(320, 240, 320, 240))
    corner = np.array([[-1, -1, 1, 1]], np.float32)
    placed = place(corner, size, wall(2.0), 1.0, lens)
    assert placed.centres[0, :2] == pytest.approx(expected)
