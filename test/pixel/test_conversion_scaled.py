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
Small pictures of NV12, resized before they are converted.

They are compared with linear interpolation and with converting the full frame before resizing.
"""

from __future__ import annotations

from typing import Any

import cv2
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
from pixel.format_samples import PUBLISHED, published_rgb
import pytest

from zc_perception.camera.synthetic import RoadScene
from zc_perception.detection.letterbox import Letterbox
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.conversion import ToPicture
from zc_perception.pixel.fourcc import NV12

Planes = tuple[NDArray[np.uint8], NDArray[np.uint8]]

COLORIMETRIES = [Colorimetry(Matrix(matrix), Range(span)) for matrix, span in PUBLISHED]


def noise(width: int, height: int, seed: int = 0) -> Planes:
    """
    Return all that 8 bits hold, but no luma below black.

    OpenCV takes luma below black for black, and ITU-R doesn't.
    """
    random = np.random.default_rng(seed)
    return random.integers(16, 256, (height, width), np.uint8), random.integers(
        0, 256, (height // 2, width // 2, 2), np.uint8
    )


def road(width: int, height: int) -> Planes:
    planes = np.empty((height, width), np.uint8), np.empty((height // 2, width // 2, 2), np.uint8)
    RoadScene(width, height, 1).draw(5, *planes)
    return planes


def nv12_rgb(
    luma: NDArray[Any], chroma: NDArray[Any], colorimetry: Colorimetry
) -> NDArray[np.float64]:
    """From planes of one size, not rounded."""
    return published_rgb(
        luma, chroma[..., 0], chroma[..., 1], colorimetry.matrix.value, colorimetry.range.value
    )


def to_rgb(
    box: Letterbox, colorimetry: Colorimetry = BT601_LIMITED, channels: int = 3
) -> ToPicture:
    size = box.width, box.height
    return ToPicture(
        NV12, box.source_width, box.source_height, colorimetry, size=size, channels=channels
    )


def linear(plane: NDArray[np.floating], width: int, height: int) -> NDArray[np.float64]:
    """Linear interpolation between the centres of samples, in floating point."""
    for axis, size in ((0, height), (1, width)):
        count = plane.shape[axis]
        at = np.clip((np.arange(size) + 0.5) * count / size - 0.5, 0, count - 1)
        low = np.floor(at).astype(int)
        weight = (at - low).reshape([-1 if a == axis else 1 for a in range(plane.ndim)])
        plane = (
            plane.take(low, axis) * (1 - weight)
            + plane.take(np.minimum(low + 1, count - 1), axis) * weight
        )
    return plane


@settings(max_examples=60, deadline=None)
@given(
    source=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    target=st.tuples(st.integers(2, 150), st.integers(2, 150)),
    stretch=st.booleans(),
    colorimetry=st.sampled_from(COLORIMETRIES),
    channels=st.sampled_from([3, 4]),
    seed=st.integers(0, 1000),
)
def test_any_size_is_luma_and_chroma_resized_then_converted(
    source: tuple[int, int],
    target: tuple[int, int],
    stretch: bool,
    colorimetry: Colorimetry,
    channels: int,
    seed: int,
) -> None:
    """
    Luma alone, with grey chroma, and the colour of a frame of one colour.

    What the sizes decide, without chroma's own filter.
    """
    width, height = source[0] * 2, source[1] * 2
    box = Letterbox.fit(width, height, *target, stretch=stretch)
    converter = to_rgb(box, colorimetry, channels)
    luma, chroma = noise(width, height, seed)
    grey = np.full_like(chroma, 128)
    wanted = nv12_rgb(
        linear(luma, box.width, box.height), np.full((box.height, box.width, 2), 128), colorimetry
    )
    got = converter.convert((luma, grey))
    assert got.shape == (box.height, box.width, channels)
    assert np.abs(got[..., :3] - wanted).max() <= 2.2
    colour = np.empty_like(chroma)
    colour[:] = chroma[0, 0]
    got = converter.convert((np.full_like(luma, 100), colour))
    wanted = nv12_rgb(np.full((1, 1), 100.0), chroma[:1, :1].astype(np.float64), colorimetry)
    assert np.abs(got[..., :3] - wanted).max() <= 1.0


@pytest.mark.parametrize(
    ('size', 'target', 'mean', 'largest'),
    [
        ((960, 540), 320, 0.1, 1),  # 3:1, as 1080p to 640: equal but for rounding
        ((800, 480), 160, 0.1, 1),
        ((1280, 720), 640, 0.5, 60),  # 2:1
        ((1280, 720), 320, 1.0, 100),  # 4:1, where a sample lies between two of chroma
        ((1280, 720), 416, 1.5, 150),
        ((720, 1280), 416, 1.5, 150),
        ((320, 240), 640, 1.65, 110),
    ],
    ids=['3:1', '5:1', '2:1', '4:1', '3.08:1', 'portrait', '1:2'],
)
def test_the_short_cut_is_near_the_full_conversion(
    size: tuple[int, int], target: int, mean: float, largest: int
) -> None:
    """
    In grey levels of 255, on a picture with edges and a sensor's noise.

    Chroma at half the size would be off by 2.7 at 2:1.
    """
    planes, box = road(*size), Letterbox.fit(*size, target, target)
    full = cv2.resize(
        cv2.cvtColorTwoPlane(*planes, cv2.COLOR_YUV2RGB_NV12), (box.width, box.height)
    )
    off = np.abs(to_rgb(box).convert(planes).astype(np.int16) - full)
    assert off.mean() <= mean and off.max() <= largest


@settings(max_examples=30, deadline=None)
@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    ratio=st.tuples(*[st.sampled_from([1, 3, 5, 7, 9])] * 2),
    seed=st.integers(0, 99),
)
def test_at_odd_ratios_noise_too_is_the_full_conversion(
    size: tuple[int, int], ratio: tuple[int, int], seed: int
) -> None:
    width, height = size[0] * 2, size[1] * 2
    luma, chroma = planes = noise(width * ratio[0], height * ratio[1], seed)
    box = Letterbox.fit(luma.shape[1], luma.shape[0], width, height, stretch=True)
    full = cv2.resize(
        cv2.cvtColorTwoPlane(*planes, cv2.COLOR_YUV2RGB_NV12), (box.width, box.height)
    )
    assert np.abs(to_rgb(box).convert((luma, chroma)).astype(np.int16) - full).max() <= 1
