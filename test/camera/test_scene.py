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

"""
The synthetic road scene.

Determinism, limits, truth against pixels, and that colour gives nothing away.
"""

from __future__ import annotations

from typing import Any

import cv2
from hypothesis import example, given, settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.camera import synthetic as scene
from zc_perception.camera.synthetic import (
    CLASS_NAMES,
    MAX_OBJECTS,
    MIN_OBJECTS,
    RoadScene,
    SceneObject,
)

sides = st.integers(32, 420).map(lambda half: 2 * half)
seeds = st.integers(0, 2**40)
indices = st.integers(0, 10**9)
palettes = st.sampled_from(sorted(scene.PALETTES))


def planes(width: int, height: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    return np.full((height, width), 99, np.uint8), np.full(
        (height // 2, width // 2, 2), 99, np.uint8
    )


def drawn(scene: RoadScene, index: int) -> tuple[bytes, tuple[SceneObject, ...]]:
    luma, chroma = planes(scene.width, scene.height)
    objects = scene.draw(index, luma, chroma)
    return luma.tobytes() + chroma.tobytes(), objects


def assert_within_limits(objects: tuple[SceneObject, ...], width: int, height: int) -> None:
    assert MIN_OBJECTS == 5 and MAX_OBJECTS == 40
    assert 5 <= len(objects) <= 40
    for item in objects:
        assert 0 <= item.class_index < len(CLASS_NAMES)
        assert min(item.width, item.height) >= 12
        assert max(item.width, item.height) <= 400
        assert item.x >= 0 and item.y >= 0
        assert item.x + item.width <= width and item.y + item.height <= height
        assert 0.5 <= item.visible <= 1.0


def test_the_same_frame_has_the_same_bytes_whatever_was_drawn_before() -> None:
    first, second = RoadScene(640, 360, 7), RoadScene(640, 360, 7)
    expected = {index: drawn(first, index) for index in (0, 1, 500, 1_000_000)}
    assert {
        index: drawn(second, index) for index in (1_000_000, 3, 500, 1, 0)
    }.items() >= expected.items()


def test_rows_may_be_padded_and_padding_stays_untouched() -> None:
    width, height, stride = 322, 242, 384
    memory = np.full(stride * height * 3 // 2 + 64, 0xA5, np.uint8)
    luma_rows = memory[: stride * height].reshape(height, stride)
    chroma_rows = memory[slice(stride * height, stride * height * 3 // 2)].reshape(
        height // 2, stride
    )
    luma = luma_rows[:, :width]
    chroma = np.lib.stride_tricks.as_strided(
        chroma_rows, (height // 2, width // 2, 2), (stride, 2, 1)
    )
    objects = RoadScene(width, height, 4).draw(9, luma, chroma)

    assert (luma_rows[:, width:] == 0xA5).all()
    assert (chroma_rows[:, width:] == 0xA5).all()
    assert (memory[slice(stride * height * 3 // 2, None)] == 0xA5).all()
    assert (luma.tobytes() + chroma.tobytes(), objects) == drawn(RoadScene(width, height, 4), 9)


@settings(max_examples=60, deadline=None)
@given(sides, sides, seeds, palettes, st.lists(indices, min_size=1, max_size=4))
@example(1920, 1080, 5, 'train', list(range(0, 4000, 100)))
@example(3840, 2160, 5, 'train', list(range(0, 4000, 100)))
@example(64, 64, 153645, 'all', [10113828])
def test_objects_stay_within_limits(
    width: int, height: int, seed: int, palette: str, when: list[int]
) -> None:
    scene = RoadScene(width, height, seed, palette)
    for index in when:
        assert_within_limits(scene.truth(index), width, height)


def test_the_whole_picture_keeps_moving() -> None:
    scene, (before, after), (_, chroma) = (
        RoadScene(640, 360, 8),
        np.zeros((2, 360, 640), np.uint8),
        planes(640, 360),
    )
    scene.draw(100, before, chroma)
    scene.draw(101, after, chroma)
    assert (after != before).mean() > 0.8


def test_objects_move_smoothly() -> None:
    """
    Most objects are found again in the next frame.

    They have the same class and are near the same place.
    """
    scene = RoadScene(640, 360, 6)
    followed = total = 0
    for index in range(0, 3000, 60):
        after = scene.truth(index + 1)
        for item in scene.truth(index):
            total += 1
            followed += any(
                item.class_index == other.class_index
                and max(
                    abs(item.x - other.x), abs(item.y - other.y), abs(item.width - other.width)
                )
                <= 12
                for other in after
            )
    assert followed >= 0.95 * total


def test_levels_are_limited_range() -> None:
    for seed in range(6):
        luma, chroma = planes(640, 360)
        RoadScene(640, 360, seed).draw(seed * 100, luma, chroma)
        assert luma.min() >= 16 and luma.max() <= 235
        assert chroma.min() >= 16 and chroma.max() <= 240
        assert luma.std() > 20


class RecordingPaint:
    """
    Stands in for ``scene.paint``.

    Keeps, per shape painted, the pixels that it touched.
    """

    def __init__(self) -> None:
        self.touched: list[NDArray[np.bool_]] = []

    def __call__(
        self,
        polygons: list[NDArray[np.int32]],
        shape: scene.Shape,
        luma: NDArray[np.uint8],
        chroma: NDArray[np.uint8],
    ) -> None:
        black, white = np.zeros_like(luma), np.full_like(luma, 255)
        for canvas in (black, white):
            for polygon in polygons:
                cv2.fillPoly(canvas, [polygon], 130)
        self.touched.append(black == white)


def tight_box(pixels: NDArray[np.bool_]) -> tuple[float, float, float, float]:
    rows, columns = np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
    return (
        float(columns[0]),
        float(rows[0]),
        float(columns[-1] - columns[0] + 1),
        float(rows[-1] - rows[0] + 1),
    )


@pytest.mark.parametrize(
    ('width', 'height', 'seed'), [(640, 360, 1), (1280, 720, 2), (320, 240, 3), (64, 64, 4)]
)
def test_truth_is_what_is_painted(
    width: int, height: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = RoadScene(width, height, seed)
    for index in (0, 77, 1234):
        record = RecordingPaint()
        monkeypatch.setattr('zc_perception.camera.synthetic.paint', record)
        objects = scene.draw(index, *planes(width, height))
        nearest_first = record.touched[::-1]
        hidden = np.zeros((height, width), np.bool_)
        for item, pixels in zip(objects, nearest_first, strict=False):
            assert (item.x, item.y, item.width, item.height) == tight_box(pixels)
            shown = (pixels & ~hidden).sum() / pixels.sum()
            assert item.visible <= shown + 1e-9 <= item.visible / 0.8 + 1e-6
            hidden |= pixels


def objects_of(scenes: int) -> list[SceneObject]:
    drives = [RoadScene(640, 360, seed) for seed in range(scenes)]
    return [item for scene in drives for index in range(0, 800, 80) for item in scene.truth(index)]


def test_every_class_and_a_wide_range_of_sizes_appear() -> None:
    objects = objects_of(scenes=8)
    shares = np.bincount([item.class_index for item in objects], minlength=len(CLASS_NAMES)) / len(
        objects
    )
    assert len(CLASS_NAMES) >= 3 and shares.min() > 0.1
    longest = [max(item.width, item.height) for item in objects]
    assert min(longest) < 24 and max(longest) > 150
    assert 0.1 < np.mean([item.visible < 0.95 for item in objects]) < 0.7, 'they hide each other'


def body_samples(palette: str) -> dict[str, NDArray[np.float64]]:
    """First colour drawn by each class, 400 times: (Y, U, V)."""
    rng = np.random.default_rng(0)
    makers = (scene.car, scene.pedestrian, scene.sign, scene.cone)
    hues = scene.PALETTES[palette]
    shapes = {
        name: [make(rng, hues, 0.5) for _ in range(400)]
        for name, make in zip(CLASS_NAMES, makers, strict=True)
    }
    return {
        name: np.array([part.colour for s in made for part in s.parts], float)
        for name, made in shapes.items()
    }


def coloured_hues(colours: NDArray[np.float64]) -> NDArray[np.float64]:
    u, v = colours[:, 1] - 128, colours[:, 2] - 128
    hues: NDArray[np.float64] = (np.degrees(np.arctan2(v, u)) % 360)[np.hypot(u, v) > 13]
    return hues


def test_palettes_for_training_and_testing_do_not_meet() -> None:
    rounding = 4
    for palette in ('train', 'held_out'):
        low, high = scene.PALETTES[palette]
        hues = np.concatenate(
            [coloured_hues(colours) for colours in body_samples(palette).values()]
        )
        away = (hues - low + rounding) % 360
        assert away.max() <= high - low + 2 * rounding
    assert scene.PALETTES['train'][1] + 2 * rounding < scene.PALETTES['held_out'][0]
    assert scene.PALETTES['held_out'][1] + 2 * rounding < scene.PALETTES['train'][0] + 360


@pytest.mark.parametrize(
    ('arguments', 'named'),
    [
        ((641, 360), 'width .* 641'),
        ((640, 361), 'height .* 361'),
        ((62, 360), 'width .* 64 .* 62'),
        ((640, 0), 'height .* 64 .* 0'),
        ((640, 360, -1), 'seed .* -1'),
        ((640, 360, 0, 'pastel'), "palette .* 'pastel'"),
    ],
)
def test_impossible_scenes_are_refused(arguments: tuple[Any, ...], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        RoadScene(*arguments)
