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

"""Tiles of a picture: their places and pixels, and one detection for an object in many tiles."""

from __future__ import annotations

from collections.abc import Sequence
import itertools

from hypothesis import assume, given, settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.detection.detections import Detections
from zc_perception.detection.extras import keypoints
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits, Head, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.detection.tiles import (
    crop,
    decode,
    parse_roi,
    parse_tiles,
    plan,
    Region,
    Tiling,
)
from zc_perception.errors import AcceleratorError, ConfigError

LIMITS = DecodeLimits(0.1, 0.5, 100)
SIDES = st.integers(32, 2000)


class Ready(Head):
    """A head whose outputs are boxes in pixels of the tile."""

    def decode(
        self, outputs: Sequence[RawTensor], box: Letterbox, limits: DecodeLimits
    ) -> Detections:
        rows = outputs[0].values
        return Detections(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.intp))


def seen(objects: NDArray[np.float32], regions: Sequence[Region], whole: Region) -> Detections:
    """Return a perfect detector's result: all parts of *objects* (n, 6) that are large enough."""
    outputs = []
    for region in regions:
        low = np.array(region[:2], np.float32)
        rows = objects.copy()
        rows[:, :4] = np.clip(rows[:, :4] - np.tile(low, 2), 0, np.tile(region[2:], 2))
        sides, full = rows[:, 2:4] - rows[:, :2], objects[:, 2:4] - objects[:, :2]
        known = (sides > 0).all(axis=1) & (sides.prod(axis=1) >= 0.3 * full.prod(axis=1))
        rows[:, 4] *= sides.prod(axis=1) / full.prod(axis=1)
        outputs.append(RawTensor(rows[known]))
    one = Letterbox.fit(*regions[0][2:], 64, 64)
    return decode(
        Ready(HeadSpec('ready', 9)), outputs, Tiling.of(one, tuple(regions), whole), LIMITS
    )


@given(SIDES, SIDES, st.integers(1, 16), st.integers(1, 16), st.floats(0.0, 0.5))
@settings(max_examples=200, deadline=None)
def test_tiles_are_of_one_size_and_cover_everything_with_overlap(
    width: int, height: int, columns: int, rows: int, overlap: float
) -> None:
    """Where the frame's side is even, tiles begin and end at even pixels, as chroma needs."""
    assume((columns, rows) != (1, 1))
    whole, tiles = plan((width, height), None, (columns, rows), overlap)
    assert whole == (0, 0, width, height) and len(tiles) == columns * rows
    assert len({tile[2:] for tile in tiles}) == 1
    for axis, count in ((0, columns), (1, rows)):
        starts, side = sorted({tile[axis] for tile in tiles}), tiles[0][axis + 2]
        assert starts[0] == 0 and starts[-1] + side == whole[axis + 2] and len(starts) <= count
        assert whole[axis + 2] % 2 or not any(each % 2 for each in (side, *starts))
        shared = [before + side - after for before, after in itertools.pairwise(starts)]
        assert all(each >= int(overlap * side) - 4 for each in shared)


@given(st.integers(20, 600), st.integers(20, 320), st.integers(16, 60), st.integers(16, 60))
@settings(max_examples=150, deadline=None)
def test_an_object_across_borders_is_one_with_its_whole_box(
    x: int, y: int, width: int, height: int
) -> None:
    objects = np.array([[x, y, x + width, y + height, 0.9, 3]], np.float32)
    whole, tiles = plan((720, 400), None, (3, 2), 0.3)
    found = seen(objects, tiles, whole)
    assert found.boxes.tolist() == [[x, y, x + width, y + height]]
    assert found.classes.tolist() == [3] and found.scores[0] <= 0.9


@pytest.mark.parametrize('tiles', [(1, 1), (2, 1)])
def test_detections_of_other_classes_take_no_place_of_the_wanted_ones(
    tiles: tuple[int, int],
) -> None:
    rows = np.zeros((1, 300, 6), np.float32)
    rows[0, :40] = [(4 * n + 80, 0, 4 * n + 83, 6, 0.9 - n / 100, n >= 37) for n in range(40)]
    whole, regions = plan((320, 320), None, tiles, 0.0)
    box = Letterbox.fit(*regions[0][2:], 320, 320) if regions else Letterbox.fit(*[320] * 4)
    box = Tiling.of(box, regions, whole) if regions else box
    found = decode(
        make_head(HeadSpec('boxes', 2)), [RawTensor(rows)] * max(1, len(regions)), box,
        DecodeLimits(0.1, 0.5, 2, np.array([False, True])),
    )  # fmt: skip
    assert found.classes.tolist() == [1, 1]


class Turning(Head):
    """A head whose outputs are turned boxes in pixels of the tile, each with a score."""

    def decode(
        self, outputs: Sequence[RawTensor], box: Letterbox, limits: DecodeLimits
    ) -> Detections:
        rows = outputs[0].values
        x, y, width, height, angle = rows[:, :5].T
        reach = np.stack(
            [abs(width * np.cos(angle + more)) + abs(height * np.sin(angle + more))
             for more in (0, np.pi / 2)]
        ) / 2  # fmt: skip
        centres = np.stack((x, y))
        corners = np.concatenate((centres - reach, centres + reach)).T
        boxes = corners.clip(0, (box.source_width, box.source_height) * 2).astype(np.float32)
        kinds = np.zeros(len(rows), np.intp)
        return Detections(boxes, rows[:, 5], kinds, np.arange(len(rows)), turned=rows[:, :5])


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_turned_boxes_across_borders_are_one_as_the_tile_sees_it_that_has_it_whole(
    seed: int,
) -> None:
    """Two ships side by side have nearly the same upright boxes, and tile borders cut them."""
    random = np.random.default_rng(seed)
    whole, tiles = plan((720, 400), None, (3, 2), 0.3)
    x, y, angle = random.uniform(80, 640), random.uniform(80, 320), random.uniform(-1.5, 1.5)
    beside = np.array((-np.sin(angle), np.cos(angle))) * 15
    ships = [((x, y) + sign * beside, 50.0, 20.0, 0.9 - 0.1 * (sign > 0)) for sign in (-1, 1)]
    along, outputs = np.array((np.cos(angle), np.sin(angle))), []
    for left, top, width, height in tiles:
        rows = []
        for centre, length, breadth, score in ships:
            # Sample the object's length, and keep the samples inside the tile.
            steps = np.linspace(-0.5, 0.5, 101)[:, None] * along * length + centre - (left, top)
            inside = ((steps > 0) & (steps < (width, height))).all(axis=1)
            share = inside.mean()
            if share > 0.3:
                rows.append(
                    (*steps[inside].mean(axis=0), length * share, breadth, angle, score * share)
                )
        outputs.append(RawTensor(np.array(rows, np.float32).reshape(-1, 6)))
    box = Tiling.of(Letterbox.fit(*tiles[0][2:], 64, 64), tiles, whole)
    found = decode(Turning(HeadSpec('turning', 1)), outputs, box, LIMITS)
    assert found.turned is not None and len(found) == 2
    for turned, (centre, length, *_) in zip(found.turned, ships, strict=True):
        assert turned[:3] == pytest.approx((*centre, length), abs=2)
    for region, (part,), which, rows in box.runs(outputs, found.rows):
        assert found.turned[which, :2] == pytest.approx(part.values[rows, :2] + region[:2])


@pytest.mark.parametrize('numbers', [2, 3])
def test_keypoints_of_tiles_are_where_they_are_in_the_frame(numbers: int) -> None:
    random = np.random.default_rng(numbers)
    head = make_head(HeadSpec('yolov8', 1, (64, 64), keypoints=(2, numbers)))
    whole, tiles = plan((256, 128), None, (2, 1), 0.0)
    one = Letterbox.fit(*tiles[0][2:], 64, 64)
    outputs, expected = [], {}
    for tile in tiles:
        rows = random.uniform(0.2, 1, (5 + 2 * numbers, 6)) * 60
        rows[2:4], rows[4] = 8, random.uniform(0.5, 1, 6)
        outputs.append(RawTensor(rows[None].astype(np.float32)))
        found = head.decode(outputs[-1:], one, LIMITS)
        points = keypoints(head, outputs[-1:], one, found, (2, numbers))
        assert points.shape == (len(found), 2, 3) and (numbers == 3 or (points[..., 2] == 1).all())
        points[..., :2] += tile[:2]
        expected |= dict(zip(found.scores.tolist(), points, strict=True))
    box = Tiling.of(one, tiles, whole)
    found = decode(head, outputs, box, LIMITS)
    points = keypoints(head, outputs, box, found, (2, numbers))
    assert found.scores.tolist() == sorted(expected, reverse=True)
    for score, own in zip(found.scores.tolist(), points, strict=True):
        assert own == pytest.approx(expected[score])


def test_a_part_of_planes_has_the_pixels_of_that_part_in_each_of_them() -> None:
    luma = np.arange(48 * 64, dtype=np.uint16).reshape(48, 64)
    packed = np.stack((luma, luma), axis=2)
    half = luma.reshape(24, 2, 32, 2)[:, 0, :, 0]
    parts = crop((luma, half, packed), (64, 48), Region(10, 4, 20, 12))
    assert (parts[0] == luma[4:16, 10:30]).all() and (parts[2] == packed[4:16, 10:30]).all()
    assert (parts[1] == half[2:8, 5:15]).all() and all(
        np.shares_memory(a, b) for a, b in zip(parts, (luma, half, packed), strict=True)
    )
    with pytest.raises(AcceleratorError, match=r"can't be cut to 10,4,20,12, .*'roi' and 'tiles'"):
        crop((luma[:, ::4],), (64, 48), Region(10, 4, 20, 12))


def test_what_is_no_part_or_tiling_is_refused_and_a_part_outside_of_the_frame_too() -> None:
    for text in ('1,2,3', '1,0,64,64', '-2,0,64,64'):
        with pytest.raises(ConfigError, match=r"parameter 'roi' is .*such as '640,360,1280,720'"):
            parse_roi(text)
    for text in ('0x1', '17x1', '2', 'x', '2x', '1x1x1', '2×2'):
        with pytest.raises(ConfigError, match=r"parameter 'tiles' is .*'COLUMNSxROWS'"):
            parse_tiles(text)
    assert parse_roi(' 2, 4,64,32') == (2, 4, 64, 32) and parse_tiles('3x2') == (3, 2)
    assert plan((64, 48), None, (1, 1), 0.2) == (Region(0, 0, 64, 48), ())
    with pytest.raises(AcceleratorError, match="'roi' is 2,4,64,32, but frames have 64x48 pixels"):
        plan((64, 48), (2, 4, 64, 32), (1, 1), 0.2)
