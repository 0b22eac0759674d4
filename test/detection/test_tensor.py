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

"""Frame to tensor and back, against OpenCV, which converts the full frame and then resizes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import cv2
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.tensor import (
    Padding,
    PlanesToQuantised,
    PlanesToTensor,
    QuantisedTensorSpec,
)
from zc_perception.errors import ConfigError, LayoutError
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.conversion import ToPicture
from zc_perception.pixel.fourcc import NV12

Planes = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def ramp(low: float, high: float) -> NDArray[np.float32]:
    """Return the tensor value for each sample of three channels."""
    return np.tile((low + np.arange(256) * ((high - low) / 255)).astype(np.float32), (3, 1))


def noise(width: int, height: int, seed: int = 0) -> Planes:
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (height, width), np.uint8), random.integers(
        0, 256, (height // 2, width // 2, 2), np.uint8
    )


def test_an_unscaled_frame_is_opencv_s_conversion_to_the_bit() -> None:
    luma, chroma = planes = noise(64, 48)
    whole = np.concatenate([luma, chroma.reshape(-1, 64)])
    rgb = cv2.cvtColor(whole, cv2.COLOR_YUV2RGB_NV12)
    box, values = Letterbox.fit(64, 48, 64, 48), ramp(0.0, 255.0)
    tensor = PlanesToTensor(box, NV12, BT601_LIMITED, values, pad=114).convert(planes)
    assert tensor.dtype == np.float32 and tensor.shape == (1, 3, 48, 64)
    assert np.array_equal(tensor[0], np.asarray(rgb.transpose(2, 0, 1), np.float32))


@pytest.mark.parametrize('target', [(64, 48), (40, 40)])
def test_padded_read_only_rows_overwrite_all_of_the_frame_before(target: tuple[int, int]) -> None:
    luma, chroma = noise(64, 48)
    converter, fresh = (
        PlanesToTensor(Letterbox.fit(64, 48, *target), NV12, BT601_LIMITED, ramp(0.0, 1.0), pad=0)
        for _ in range(2)
    )
    first = converter.convert(noise(64, 48, 1))
    memory = np.full((72, 100), 255, np.uint8)
    planes = memory[:48, :64], np.ndarray((24, 32, 2), np.uint8, memory, 4800, (100, 2, 1))
    planes[0][:], planes[1][:] = luma, chroma
    memory.flags.writeable = planes[0].flags.writeable = planes[1].flags.writeable = False
    assert converter.convert(planes) is first
    assert np.array_equal(first, fresh.convert((luma, chroma)))


@pytest.mark.parametrize('colorimetry', [
    Colorimetry(Matrix.BT601, Range.FULL), Colorimetry(Matrix.BT709, Range.LIMITED),
], ids=lambda c: f'{c.matrix.value}-{c.range.value}')  # fmt: skip
@pytest.mark.parametrize('bgr', [False, True], ids=['rgb', 'bgr'])
def test_the_samples_are_those_of_the_small_picture_in_the_frame_s_colorimetry(
    colorimetry: Colorimetry, bgr: bool
) -> None:
    planes, box, values = noise(96, 64), Letterbox.fit(96, 64, 41, 40), ramp(-1.0, 1.0)
    tensor = PlanesToTensor(box, NV12, colorimetry, values, pad=3, bgr=bgr).convert(planes)[0]
    picture = np.full((40, 41, 3), 3, np.uint8)
    inner = slice(box.top, box.top + box.height), slice(box.left, box.left + box.width)
    size = (box.width, box.height)
    picture[inner] = ToPicture(NV12, 96, 64, colorimetry, size=size, bgr=bgr).convert(planes)
    assert np.array_equal(tensor, values[0][picture].transpose(2, 0, 1))


def test_planes_of_another_size_are_refused() -> None:
    converter = PlanesToTensor(
        Letterbox.fit(64, 48, 32, 32), NV12, BT601_LIMITED, ramp(0.0, 1.0), pad=0
    )
    with pytest.raises(LayoutError, match=r'\(48, 64\)'):
        converter.convert(noise(48, 64))


# The quantised tensor, against the formula and its picture.

CANARY = 77

# As a published YOLOv8n is compiled.
YOLOV8N = QuantisedTensorSpec(
    64, 64, channels=3, scale=0.0039213, zero_point=-130, padding=((1, 1), (1, 15), (0, 1))
)
SPECS = {
    'yolov8n': YOLOV8N,
    'signed': QuantisedTensorSpec(64, 64, scale=1 / 127, zero_point=3, low=-1.0, high=1.0),
    'saturated': QuantisedTensorSpec(64, 64, scale=1e-9, zero_point=0, low=0.5, high=1.0),
    'wide': QuantisedTensorSpec(64, 64, channels=3, padding=((0, 2), (3, 0), (0, 13))),
    'five': QuantisedTensorSpec(
        64, 64, padding=((2, 0), (0, 0), (0, 1)), zero_point=-3, scale=0.01
    ),
}


def by_formula(x: int, spec: QuantisedTensorSpec) -> int:
    """Quantise exactly, on the numbers as given, rounded half to even."""
    real = Fraction(spec.low) + x * (Fraction(spec.high) - Fraction(spec.low)) / 255
    return max(-128, min(127, round(real / Fraction(spec.scale) + spec.zero_point)))


def buffer(spec: QuantisedTensorSpec, gap: int = 0) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Return memory with canaries around a tensor and between its rows; and the tensor."""
    rows, columns, channels = spec.shape
    memory = np.full(64 + rows * (columns * channels + gap) + 64, CANARY, np.int8)
    return memory, np.ndarray(
        spec.shape, np.int8, memory, 64, (columns * channels + gap, channels, 1)
    )


def expected(
    spec: QuantisedTensorSpec, box: Letterbox, picture: NDArray[np.uint8]
) -> NDArray[np.int8]:
    """Return the whole tensor, from a picture (…, 3) in the order R, G, B."""
    (above, _), (left, _), (before, _) = spec.padding
    zero = by_formula(0, replace(spec, low=0.0, high=1.0))
    wanted = np.full(spec.shape, zero, np.int8)
    table = np.array([by_formula(x, spec) for x in range(256)], np.int8)
    image = np.full((spec.height, spec.width, 3), spec.pad, np.uint8)
    inner = image[box.top :, box.left :][: box.height, : box.width]
    inner[:] = picture[..., :: -1 if spec.bgr else 1]
    wanted[above:, left:, before:][: spec.height, : spec.width, :3] = table[image]
    return wanted


def check(spec: QuantisedTensorSpec, box: Letterbox, planes: Planes, gap: int = 0) -> None:
    memory, out = buffer(spec, gap)
    converter = PlanesToQuantised(box, spec, NV12, BT601_LIMITED)
    converter.prepare(out)
    converter.convert(planes, out)
    full = np.asarray(cv2.cvtColorTwoPlane(*planes, cv2.COLOR_YUV2RGB_NV12))
    assert (box.width, box.height) == (box.source_width, box.source_height)
    assert np.array_equal(out, expected(spec, box, full))
    out[:] = CANARY
    assert (memory == CANARY).all()


@settings(max_examples=20, deadline=None)
@given(
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    more=st.tuples(st.integers(0, 9), st.integers(0, 9)), tall=st.booleans(),
    channels=st.sampled_from([3, 4]),
    padding=st.tuples(*[st.tuples(st.integers(0, 3), st.integers(0, 3))] * 3),
    scale=st.floats(1e-4, 1.0), zero_point=st.integers(-300, 300),
    real=st.tuples(st.floats(-3, 3), st.floats(-3, 3)), pad=st.integers(0, 255),
    gap=st.sampled_from([0, 1, 16]),
)  # fmt: skip
def test_geometry_and_quantisation_hold_for_any_model(
    size: tuple[int, int], more: tuple[int, int], tall: bool, channels: int, padding: Padding,
    scale: float, zero_point: int,
    real: tuple[float, float], pad: int, gap: int,
) -> None:  # fmt: skip
    width, height = size[0] * 2, size[1] * 2
    wide, high = (more[0] % 2, more[1]) if tall else (more[0], more[1] % 2)
    model = width + wide, height + high
    box = Letterbox.fit(width, height, *model)
    if (box.width, box.height) != (box.source_width, box.source_height):
        left = 0 if tall else more[0] // 4 * 2
        box = Letterbox(width, height, *model, width, height, left, 0)
    low, high = real
    spec = QuantisedTensorSpec(*model, channels, scale, zero_point, padding, low, high, pad=pad)
    table = np.array([by_formula(x, spec) for x in range(256)])
    # Use fractions: in doubles a sum may fall on the other side of exactly half.
    start, step = Fraction(low), (Fraction(high) - Fraction(low)) / 255
    parts = [(start + x * step) / Fraction(scale) % 1 for x in range(256)]
    near_half = [abs(part - Fraction(1, 2)) < Fraction(1, 10**9) for part in parts]
    assert np.array_equal(np.where(near_half, table, spec.table()), table)
    if not any(near_half):
        check(spec, box, noise(width, height), gap)


@pytest.mark.parametrize('name', ['yolov8n', 'wide'])
def test_two_buffers_in_turns_hold_the_newest_frame_of_each(name: str) -> None:
    spec, box = SPECS[name], Letterbox.fit(128, 72, 64, 64)
    converter = PlanesToQuantised(box, spec, NV12, BT601_LIMITED)
    small = ToPicture(NV12, 128, 72, BT601_LIMITED, size=(box.width, box.height))
    outs = [buffer(spec)[1] for _ in range(2)]
    for out in outs:
        converter.prepare(out)
    for turn in range(4):
        converter.convert(noise(128, 72, turn), outs[turn % 2])
    for turn in (2, 3):
        picture = small.convert(noise(128, 72, turn))
        assert np.array_equal(outs[turn % 2], expected(spec, box, picture))


@pytest.mark.parametrize('bgr', [False, True], ids=['rgb', 'bgr'])
@pytest.mark.parametrize('name', SPECS)
def test_pixels_that_hardware_scaled_are_quantised_alike_whatever_their_fourth_byte(
    name: str, bgr: bool
) -> None:
    spec, box = replace(SPECS[name], bgr=bgr), Letterbox.fit(1920, 1080, 64, 64)
    rgba = np.random.default_rng(3).integers(0, 256, (box.height, box.width + 7, 4), np.uint8)
    rgba = rgba[:, : box.width]
    rgba.flags.writeable = False
    memory, out = buffer(spec, 3)
    converter = PlanesToQuantised(box, spec, NV12, BT601_LIMITED)
    converter.prepare(out)
    converter.convert_rgba(rgba, out)
    assert np.array_equal(out, expected(spec, box, rgba[..., :3]))
    out[:] = CANARY
    assert (memory == CANARY).all()


def test_an_impossible_input_names_the_value() -> None:
    with pytest.raises(ConfigError, match='scale is nan'):
        QuantisedTensorSpec(64, 64, scale=float('nan'))
    with pytest.raises(ConfigError, match='padding'):
        QuantisedTensorSpec(64, 64, padding=((0, 0), (0, -1), (0, 0)))


def test_a_tensor_that_can_t_be_written_in_place_is_refused() -> None:
    spec = QuantisedTensorSpec(64, 64)
    converter = PlanesToQuantised(Letterbox.fit(64, 64, 64, 64), spec, NV12, BT601_LIMITED)
    fine = np.zeros(spec.shape, np.int8)
    locked = fine.copy()
    locked.flags.writeable = False
    for wrong, named in (
        (np.zeros((64, 64, 3), np.int8), r'\(64, 64, 3\)'),
        (fine.view(np.uint8), 'uint8'),
        (np.zeros((4, 64, 64), np.int8).transpose(1, 2, 0), 'strides'),
        (fine[::-1], 'strides'),
        (locked, 'read-only'),
    ):
        with pytest.raises(LayoutError, match=named):
            converter.convert(noise(64, 64), wrong)
        with pytest.raises(LayoutError, match=named):
            converter.prepare(wrong)


# Geometry between frame and network input: coordinates survive the round trip.

sizes = st.integers(2, 5000)
letterboxes = st.builds(
    Letterbox.fit, sizes, sizes, st.integers(2, 1300), st.integers(2, 1300), stretch=st.booleans()
)


def to_input(box: Letterbox, points: np.ndarray) -> np.ndarray:
    """Map source corners to input pixels: 0..source becomes padding..padding + size."""
    scale = np.array([box.width / box.source_width, box.height / box.source_height] * 2)
    return points * scale + np.array([box.left, box.top] * 2)


@given(letterboxes, st.lists(st.tuples(*[st.floats(0, 1)] * 4), min_size=1, max_size=8))
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


@given(letterboxes)
def test_the_picture_lies_even_and_centred_inside_the_input(box: Letterbox) -> None:
    for start, size, whole in (
        (box.left, box.width, box.input_width),
        (box.top, box.height, box.input_height),
    ):
        assert size >= 2 and size % 2 == 0 and start % 2 == 0
        assert start >= 0 and start + size <= whole
        assert abs(whole - size - 2 * start) <= 3, 'as much before as behind, in steps of two'


@pytest.mark.parametrize(('source', 'target', 'expected'), [
    pytest.param((1920, 1080), (640, 640), (640, 360, 0, 140), id='landscape'),
    pytest.param((1080, 1920), (640, 640), (360, 640, 140, 0), id='portrait'),
    pytest.param((640, 480), (227, 227), (226, 170, 0, 28), id='odd input'),
    pytest.param((5000, 3), (640, 384), (640, 2, 0, 190), id='a line'),
])  # fmt: skip
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
