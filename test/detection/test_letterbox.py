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

"""Geometry between frame and network input: coordinates survive the round trip."""

from __future__ import annotations

import cv2
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from zc_perception.detection.letterbox import Letterbox

sizes = st.integers(2, 5000)
boxes = st.builds(
    Letterbox.fit, sizes, sizes, st.integers(2, 1300), st.integers(2, 1300), stretch=st.booleans()
)


def to_input(box: Letterbox, points: np.ndarray) -> np.ndarray:
    """Map source corners to input pixels: 0..source becomes padding..padding + size."""
    scale = np.array([box.width / box.source_width, box.height / box.source_height] * 2)
    return points * scale + np.array([box.left, box.top] * 2)


@given(boxes, st.lists(st.tuples(*[st.floats(0, 1)] * 4), min_size=1, max_size=8))
def test_the_inverse_is_exact(box: Letterbox, shares: list[tuple[float, ...]]) -> None:
    limit = np.array([box.source_width, box.source_height] * 2, np.float64)
    source = np.array(shares) * limit
    back = box.to_source(to_input(box, source).astype(np.float32))
    # The only loss: boxes pass as float32.
    place = to_input(box, source)
    given_step = np.spacing(np.abs(place).astype(np.float32)) * np.array(
        [box.source_width / box.width, box.source_height / box.height] * 2
    )
    assert (np.abs(back - source) <= given_step + np.spacing(source.astype(np.float32))).all()


@given(
    st.integers(2, 300),
    st.integers(2, 300),
    st.integers(16, 200),
    st.integers(16, 200),
    st.booleans(),
)
def test_the_inverse_is_that_of_the_resize_which_is_really_done(
    width: int, height: int, into: int, high: int, stretch: bool
) -> None:
    """Resized ramps give each input pixel's source position, exactly except at the edges."""
    box = Letterbox.fit(width, height, into, high, stretch=stretch)
    ramps = np.stack(np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5), axis=2).astype(
        np.float32
    )
    small = cv2.resize(ramps, (box.width, box.height), interpolation=cv2.INTER_LINEAR)
    columns, rows = np.meshgrid(np.arange(box.width), np.arange(box.height))
    centres = np.stack([columns + box.left, rows + box.top], axis=2).reshape(-1, 2) + 0.5
    back = box.to_source(np.concatenate([centres, centres], axis=1).astype(np.float32))[:, :2]
    inner = ((back > 0.5) & (back < np.array([width, height]) - 0.5)).all(axis=1)
    np.testing.assert_allclose(back[inner], small.reshape(-1, 2)[inner], atol=0.02, rtol=0)


@given(boxes)
def test_the_picture_lies_even_and_centred_inside_the_input(box: Letterbox) -> None:
    for start, size, whole in (
        (box.left, box.width, box.input_width),
        (box.top, box.height, box.input_height),
    ):
        assert size >= 2 and size % 2 == 0 and start % 2 == 0
        assert start >= 0 and start + size <= whole
        assert abs(whole - size - 2 * start) <= 3, 'as much before as behind, in steps of two'


@pytest.mark.parametrize(
    ('source', 'target', 'expected'),
    [
        pytest.param((1920, 1080), (640, 640), (640, 360, 0, 140), id='landscape'),
        pytest.param((1080, 1920), (640, 640), (360, 640, 140, 0), id='portrait'),
        pytest.param((640, 480), (227, 227), (226, 170, 0, 28), id='odd input'),
        pytest.param((5000, 3), (640, 384), (640, 2, 0, 190), id='a line'),
    ],
)
def test_sizes_and_paddings(
    source: tuple[int, int], target: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    box = Letterbox.fit(*source, *target)
    assert (box.width, box.height, box.left, box.top) == expected


def test_stretching_fills_the_input() -> None:
    box = Letterbox.fit(1920, 1080, 300, 300, stretch=True)
    assert (box.width, box.height, box.left, box.top) == (300, 300, 0, 0)
    assert box.to_source(np.array([[150, 150, 300, 300]], np.float32)).tolist() == [
        [960, 540, 1920, 1080]
    ]
