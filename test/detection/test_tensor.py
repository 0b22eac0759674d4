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
Frames to tensor, against OpenCV's conversion of the full frame.

There the resizing comes after the conversion instead of before.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.tensor import PlanesToTensor
from zc_perception.errors import LayoutError
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.conversion import ToPicture
from zc_perception.pixel.fourcc import NV12

Planes = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def ramp(low: float, high: float) -> NDArray[np.float32]:
    """Return what is written for each sample of three channels."""
    return np.tile((low + np.arange(256) * ((high - low) / 255)).astype(np.float32), (3, 1))


def noise(width: int, height: int, seed: int = 0) -> Planes:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (height, width), np.uint8), random.integers(
        0, 256, (height // 2, width // 2, 2), np.uint8
    )


def smooth(width: int, height: int) -> Planes:
    """
    Return colours without edges.

    Resizing them before or after the conversion differs only by rounding.
    """
    x, y = np.meshgrid(np.linspace(0, 3, width), np.linspace(0, 3, height))
    luma = 120 + 60 * np.sin(x) * np.cos(y)
    chroma = np.stack([128 + 30 * np.cos(x), 128 + 30 * np.sin(y)], axis=2)
    halves = chroma.reshape(height // 2, 2, width // 2, 2, 2).mean(axis=(1, 3))
    return luma.astype(np.uint8), halves.astype(np.uint8)


def full_frame_rgb(planes: Planes) -> NDArray[np.uint8]:
    """Return one contiguous NV12 picture through the one-plane conversion."""
    luma, chroma = planes
    return np.asarray(
        cv2.cvtColor(
            np.concatenate([luma, chroma.reshape(-1, luma.shape[1])]), cv2.COLOR_YUV2RGB_NV12
        )
    )


def test_an_unscaled_frame_is_opencv_s_conversion_to_the_bit() -> None:
    planes = noise(64, 48)
    tensor = PlanesToTensor(
        Letterbox.fit(64, 48, 64, 48), NV12, BT601_LIMITED, ramp(0.0, 255.0), pad=114
    ).convert(planes)
    assert tensor.dtype == np.float32 and tensor.shape == (1, 3, 48, 64)
    assert np.array_equal(tensor[0], full_frame_rgb(planes).transpose(2, 0, 1).astype(np.float32))


@pytest.mark.parametrize(('low', 'high'), [(0.0, 1.0), (-1.0, 1.0), (-128.0, 127.0), (1.0, 0.0)])
def test_samples_0_and_255_become_low_and_high(low: float, high: float) -> None:
    planes = noise(64, 48)
    tensor = PlanesToTensor(
        Letterbox.fit(64, 48, 64, 48), NV12, BT601_LIMITED, ramp(low, high), pad=114
    ).convert(planes)
    wanted = (
        low + full_frame_rgb(planes).transpose(2, 0, 1).astype(np.float64) * (high - low) / 255
    )
    assert np.abs(tensor[0] - wanted).max() <= 1e-6 * max(abs(low), abs(high)) * 10
    assert (tensor.min(), tensor.max()) == pytest.approx(
        (min(low, high), max(low, high)), abs=0.02 * abs(high - low)
    )


@pytest.mark.parametrize(
    ('size', 'target'),
    [
        ((512, 384), (256, 256)),
        ((256, 192), (400, 384)),
        ((300, 512), (256, 192)),
        ((320, 180), (227, 227)),
    ],
    ids=['down', 'up', 'portrait', 'odd input'],
)
def test_a_scaled_frame_is_the_resized_picture_within_the_border(
    size: tuple[int, int], target: tuple[int, int]
) -> None:
    planes, box = smooth(*size), Letterbox.fit(*size, *target)
    tensor = PlanesToTensor(box, NV12, BT601_LIMITED, ramp(0.0, 255.0), pad=100).convert(planes)[0]
    inner = tensor[:, slice(box.top, box.top + box.height), slice(box.left, box.left + box.width)]
    wanted = (
        cv2.resize(full_frame_rgb(planes), (box.width, box.height))
        .transpose(2, 0, 1)
        .astype(np.float64)
    )
    assert np.abs(inner - wanted).mean() < 1 and np.abs(inner - wanted).max() <= 4
    border = np.ones(tensor.shape, np.bool_)
    border[:, slice(box.top, box.top + box.height), slice(box.left, box.left + box.width)] = False
    assert border.any() and (tensor[border] == 100).all()


@pytest.mark.parametrize(
    ('pad', 'low', 'high', 'value'),
    [(0, 0.0, 1.0, 0.0), (255, 0.0, 1.0, 1.0), (114, -1.0, 1.0, 114 / 127.5 - 1)],
)
def test_the_border_has_its_value_in_the_tensor_s_range(
    pad: int, low: float, high: float, value: float
) -> None:
    tensor = PlanesToTensor(
        Letterbox.fit(64, 32, 64, 64), NV12, BT601_LIMITED, ramp(low, high), pad=pad
    ).convert(noise(64, 32))
    assert tensor[0, :, :16] == pytest.approx(value) and tensor[0, :, 48:] == pytest.approx(value)


@pytest.mark.parametrize('target', [(64, 48), (40, 40)])
def test_rows_may_have_padding_and_be_read_only(target: tuple[int, int]) -> None:
    luma, chroma = noise(64, 48)
    box = Letterbox.fit(64, 48, *target)
    plain = (
        PlanesToTensor(box, NV12, BT601_LIMITED, ramp(0.0, 1.0), pad=0)
        .convert((luma, chroma))
        .copy()
    )
    memory = np.full((72, 100), 255, np.uint8)
    strided_luma, strided_chroma = (
        memory[:48, :64],
        np.ndarray((24, 32, 2), np.uint8, memory, 4800, (100, 2, 1)),
    )
    strided_luma[:], strided_chroma[:] = luma, chroma
    memory.flags.writeable = strided_luma.flags.writeable = strided_chroma.flags.writeable = False
    strided = PlanesToTensor(box, NV12, BT601_LIMITED, ramp(0.0, 1.0), pad=0).convert(
        (strided_luma, strided_chroma)
    )
    assert np.array_equal(plain, strided)


def test_the_next_frame_overwrites_all_of_the_one_before_in_the_same_memory() -> None:
    box = Letterbox.fit(64, 48, 40, 40)
    converter = PlanesToTensor(box, NV12, BT601_LIMITED, ramp(0.0, 1.0), pad=7)
    first = converter.convert(noise(64, 48, 1))
    second = converter.convert(noise(64, 48, 2))
    assert first is second
    assert np.array_equal(
        second,
        PlanesToTensor(box, NV12, BT601_LIMITED, ramp(0.0, 1.0), pad=7).convert(noise(64, 48, 2)),
    )


@pytest.mark.parametrize(
    'colorimetry',
    [
        BT601_LIMITED,
        Colorimetry(Matrix.BT601, Range.FULL),
        Colorimetry(Matrix.BT709, Range.LIMITED),
    ],
    ids=lambda c: f'{c.matrix.value}-{c.range.value}',
)
@pytest.mark.parametrize('bgr', [False, True], ids=['rgb', 'bgr'])
def test_the_samples_are_those_of_the_small_picture_in_the_frame_s_colorimetry(
    colorimetry: Colorimetry, bgr: bool
) -> None:
    planes, box = noise(96, 64), Letterbox.fit(96, 64, 40, 40)
    tensor = PlanesToTensor(box, NV12, colorimetry, ramp(0.0, 255.0), pad=3, bgr=bgr).convert(
        planes
    )[0]
    picture = ToPicture(NV12, 96, 64, colorimetry, size=(box.width, box.height), bgr=bgr).convert(
        planes
    )
    assert np.array_equal(
        tensor[:, slice(box.top, box.top + box.height), slice(box.left, box.left + box.width)],
        picture.transpose(2, 0, 1),
    )


def test_planes_of_another_size_are_refused() -> None:
    converter = PlanesToTensor(
        Letterbox.fit(64, 48, 32, 32), NV12, BT601_LIMITED, ramp(0.0, 1.0), pad=0
    )
    with pytest.raises(LayoutError, match=r'\(48, 64\)'):
        converter.convert(noise(48, 64))
