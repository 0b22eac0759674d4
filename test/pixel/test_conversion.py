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

"""Pictures and luma of every format, against descriptions and ITU-R's published matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cv2
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
from pixel import format_samples as kit
from pixel.format_samples import ALL, PUBLISHED, YUV
import pytest

from zc_perception.camera.road_scene import RoadScene
from zc_perception.detection.letterbox import Letterbox
from zc_perception.errors import FormatError, LayoutError
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range, Transfer
from zc_perception.pixel.conversion import ToLuma, ToPicture
from zc_perception.pixel.fourcc import fourcc_code, NV12

RGB_FORMATS = tuple(name for name in ALL if name not in YUV)


def colours(matrix: str, span: str) -> Colorimetry:
    return Colorimetry(Matrix(matrix), Range(span))


def yuv_case(
    name: str, width: int, height: int, seed: int = 0, padding: int = 0
) -> tuple[list[NDArray[Any]], tuple[Any, Any, Any]]:
    """Return planes, and luma and chroma for each pixel."""
    y, u, v = kit.noise(name, width, height, seed)
    planes = kit.yuv_planes(name, y, u, v, np.random.default_rng(seed))
    return [kit.strided(plane, padding) for plane in planes], (
        y,
        kit.spread(u, name),
        kit.spread(v, name),
    )


def rgb_case(
    name: str, width: int, height: int, seed: int = 0, padding: int = 0
) -> tuple[list[NDArray[Any]], NDArray[np.uint8]]:
    """Return planes, and R, G, B of each pixel as the format keeps it."""
    random = np.random.default_rng(seed)
    rgb = random.integers(0, 256, (height, width, 3), np.uint8)
    planes = [kit.strided(plane, padding) for plane in kit.rgb_planes(name, rgb, random)]
    if name in kit.GREY:
        return planes, np.repeat(rgb[..., :1], 3, axis=2)
    return planes, kit.words_rgb(rgb) if name in kit.WORDS else rgb


@pytest.mark.parametrize('name', YUV)
@pytest.mark.parametrize(('matrix', 'span'), PUBLISHED)
def test_a_picture_has_the_colours_of_the_published_matrix(
    name: str, matrix: str, span: str
) -> None:
    # Whole vectors of columns, then vectors with a rest, then less than one vector.
    sizes = ((128, 48, 0), (136, 26, 7), (30, 6, 1))
    width, height, padding = sizes[list(PUBLISHED).index((matrix, span)) % 3]
    planes, samples = yuv_case(name, width, height, padding=padding)
    picture = ToPicture(fourcc_code(name), width, height, colours(matrix, span)).convert(planes)
    assert picture.shape == (height, width, 3)
    # Half a level of rounding, plus the error of 10-bit factors.
    assert np.abs(picture - kit.published_rgb(*samples, matrix, span)).max() <= 1.1


@pytest.mark.parametrize('name', RGB_FORMATS)
@pytest.mark.parametrize('span', ['full', 'limited'])
@pytest.mark.parametrize(('width', 'height', 'padding'), [(136, 48, 0), (33, 7, 3)])
def test_grey_and_rgb_keep_their_colours_and_get_their_range(
    name: str, span: str, width: int, height: int, padding: int
) -> None:
    planes, rgb = rgb_case(name, width, height, padding=padding)
    most = 2 if name in kit.WORDS and span == 'limited' else 1 if name in kit.WORDS else 0.5
    picture = ToPicture(
        fourcc_code(name), width, height, Colorimetry(Matrix.RGB, Range(span))
    ).convert(planes)
    assert np.abs(picture - kit.expanded(rgb, span)).max() <= most
    # A Y'CbCr matrix and its range don't apply to R, G, B; grey is luma.
    picture = ToPicture(
        fourcc_code(name), width, height, Colorimetry(Matrix.BT709, Range(span))
    ).convert(planes)
    assert np.abs(picture - kit.expanded(rgb, span if name in kit.GREY else 'full')).max() <= most


@pytest.mark.parametrize('name', ALL)
@pytest.mark.parametrize('channels', [3, 4])
@pytest.mark.parametrize('size', [None, (24, 20)], ids=['same', 'scaled'])
def test_bgr_is_rgb_the_other_way_round_and_a_fourth_channel_is_255(
    name: str, channels: int, size: tuple[int, int] | None
) -> None:
    planes = (yuv_case(name, 40, 32) if name in YUV else rgb_case(name, 40, 32))[0]
    rgb, bgr = (
        ToPicture(
            fourcc_code(name), 40, 32, BT601_LIMITED, size=size, channels=channels, bgr=bgr
        ).convert(planes)
        for bgr in (False, True)
    )
    assert np.array_equal(rgb[..., :3], bgr[..., 2::-1]) and len(np.unique(rgb)) > 50
    assert (rgb[..., 3:] == 255).all() and (bgr[..., 3:] == 255).all()


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(ALL),
    blocks=st.tuples(st.integers(1, 140), st.integers(1, 30)),
    target=st.one_of(st.none(), st.tuples(st.integers(1, 150), st.integers(1, 40))),
    colour=st.sampled_from(list(PUBLISHED)),
    channels=st.sampled_from([3, 4]),
    bgr=st.booleans(),
    padding=st.integers(0, 9),
    given_memory=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_one_colour_is_that_colour_at_any_size_and_stride(
    name: str, blocks: tuple[int, int], target: tuple[int, int] | None, colour: tuple[str, str],
    channels: int, bgr: bool, padding: int,
    given_memory: bool, seed: int,
) -> None:  # fmt: skip
    """With *given_memory* the rows are apart, and bytes between them must not change."""
    across, down = kit.SUBSAMPLING.get(name, (1, 1))
    width, height = blocks[0] * across, blocks[1] * down
    random = np.random.default_rng(seed)
    if name in YUV:
        y, u, v = (
            np.full(shape, random.integers(low, 256), np.uint8)
            for shape, low in (((height, width), 16), *[(blocks[::-1], 0)] * 2)
        )
        planes = kit.yuv_planes(name, y, u, v, np.random.default_rng(seed))
        wanted = kit.published_rgb(y[0, 0], u[0, 0], v[0, 0], *colour)
    else:
        rgb = np.broadcast_to(random.integers(0, 256, 3, np.uint8), (height, width, 3))
        planes = kit.rgb_planes(name, rgb, random)
        pixel = (
            np.repeat(rgb[0, 0, :1], 3)
            if name in kit.GREY
            else kit.words_rgb(rgb)[0, 0]
            if name in kit.WORDS
            else rgb[0, 0]
        )
        wanted = kit.expanded(pixel, colour[1] if name in kit.GREY else 'full')
    size = target or (width, height)
    converter = ToPicture(
        fourcc_code(name), width, height, colours(*colour), size=target, channels=channels, bgr=bgr
    )
    memory = np.full((size[1], size[0] + 3, channels), 77, np.uint8)
    picture = converter.convert(
        [kit.strided(plane, padding) for plane in planes],
        memory[:, : size[0]] if given_memory else None,
    )
    assert picture.shape == (size[1], size[0], channels)
    assert np.abs(picture[..., :3][..., :: -1 if bgr else 1] - wanted).max() <= 2.1
    assert (picture[..., 3:] == 255).all()
    assert not given_memory or (
        np.shares_memory(picture, memory) and (memory[:, slice(size[0], None)] == 77).all()
    )


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(YUV),
    ratio=st.sampled_from([1, 2, 3, 5]),
    colour=st.sampled_from(list(PUBLISHED)),
    seed=st.integers(0, 99),
)
def test_a_smooth_picture_scaled_is_the_whole_one_scaled_after(
    name: str, ratio: int, colour: tuple[str, str], seed: int
) -> None:
    """Smooth colours give the same, except for rounding and the place of chroma samples."""
    width, height = 96 * ratio, 64 * ratio
    phase = seed / 10
    across, down = kit.SUBSAMPLING[name]
    x, y = np.meshgrid(np.linspace(0, 3, width), np.linspace(0, 3, height))
    luma = (126 + 60 * np.sin(x + phase) * np.cos(y)).astype(np.uint8)
    u, v = (
        (128 + 40 * np.cos(part + phase))
        .reshape(height // down, down, width // across, across)
        .mean(axis=(1, 3))
        .astype(np.uint8)
        for part in (x, y)
    )
    planes = kit.yuv_planes(name, luma, u, v, np.random.default_rng(seed))
    scaled = ToPicture(fourcc_code(name), width, height, colours(*colour), size=(96, 64)).convert(
        planes
    )
    whole = kit.published_rgb(luma, kit.spread(u, name), kit.spread(v, name), *colour).astype(
        np.float32
    )
    off = np.abs(scaled - cv2.resize(whole, (96, 64), interpolation=cv2.INTER_AREA))
    assert off.mean() < 1.3 and off.max() <= 6


@pytest.mark.parametrize('name', ALL)
def test_a_converter_keeps_nothing_of_the_frame_before(name: str) -> None:
    cases = [(yuv_case if name in YUV else rgb_case)(name, 48, 32, seed)[0] for seed in (1, 2)]
    for size in (None, (16, 10)):
        converter = ToPicture(fourcc_code(name), 48, 32, BT601_LIMITED, size=size)
        first = converter.convert(cases[0])
        second = converter.convert(cases[1])
        assert first is second, 'the memory is allocated once'
        assert np.array_equal(
            second,
            ToPicture(fourcc_code(name), 48, 32, BT601_LIMITED, size=size).convert(cases[1]),
        )


@pytest.mark.parametrize('name', ALL)
def test_luma_is_the_format_s_own_samples(name: str) -> None:
    width, height = 50, 32
    if name in YUV:
        planes, (wanted, _, _) = yuv_case(name, width, height, padding=3)
    else:
        planes, rgb = rgb_case(name, width, height, padding=3)
        wanted = rgb @ np.array([0.299, 0.587, 0.114])
    converter = ToLuma(fourcc_code(name), width, height, BT601_LIMITED)
    luma, out = converter.convert(planes), np.full((height, width + 2), 9, np.uint8)
    assert luma.shape == (height, width) and np.abs(luma.astype(float) - wanted).max() <= (
        1.5 if name in kit.WORDS else 0.6 if name not in YUV else 0
    )
    assert (
        np.array_equal(converter.convert(planes, out[:, :width]), luma)
        and np.array_equal(out[:, :width], luma)
        and (out[:, width:] == 9).all()
    )
    own = name in YUV and len(planes) > 1 and planes[0].dtype == np.uint8
    assert np.shares_memory(luma, planes[0]) is (own or name == 'R8  '), (
        'a plane that is there already is not copied'
    )


def test_what_can_not_be_read_is_refused_with_what_can() -> None:
    listed = "^NV15 frames can't be read on the CPU; readable are NV12, NV21, .*P010.*pixel_format"
    full = Colorimetry(Matrix.RGB, Range.FULL)
    pq = Colorimetry(Matrix.BT2020, Range.LIMITED, Transfer.PQ)
    for name, colorimetry, size, error, named in (
        ('NV15', BT601_LIMITED, (64, 48), FormatError, listed),
        ('ABCD', full, (64, 48), FormatError, r"pixel format 'ABCD' \(0x44434241\) is not known"),
        ('YUYV', full, (64, 48), FormatError, 'YUYV frames of matrix rgb'),
        ('P010', pq, (64, 48), FormatError, 'transfer pq'),
        ('RG24', replace(full, transfer=Transfer.PQ), (64, 48), FormatError, 'transfer pq'),
        ('P010', BT601_LIMITED, (63, 48), LayoutError, 'width 63'),
        ('P010', BT601_LIMITED, (64, 47), LayoutError, 'height 47'),
    ):
        for kind in (ToPicture, ToLuma):
            with pytest.raises(error, match=named):
                kind(fourcc_code(name), *size, colorimetry)
    converter = ToPicture(fourcc_code('YUYV'), 64, 48, BT601_LIMITED)
    for shape, dtype in (((48, 64, 4), np.uint8), ((48, 64, 3), np.int16)):
        with pytest.raises(LayoutError, match=r'this conversion writes uint8 \(48, 64, 3\)'):
            converter.convert(yuv_case('YUYV', 64, 48)[0], np.empty(shape, dtype))


@pytest.mark.parametrize('other', ['NV21', 'YUYV', 'P010'])
def test_planes_of_another_format_or_size_are_refused_where_they_can_be_told(other: str) -> None:
    planes = (yuv_case if other in YUV else rgb_case)(other, 64, 48)[0]
    if other == 'NV21':  # NV21's planes look like NV12's, so its size is tested
        planes = [plane[:-1] for plane in planes]
    wanted = r'this conversion was made for NV12 64x48, uint8 \(48, 64\) and uint8 \(24, 32, 2\)'
    for kind in (ToPicture, ToLuma):
        with pytest.raises(LayoutError, match=wanted):
            kind(NV12, 64, 48, BT601_LIMITED).convert(planes)


def to_rgb(
    box: Letterbox, colorimetry: Colorimetry = BT601_LIMITED, channels: int = 3
) -> ToPicture:
    size = box.width, box.height
    return ToPicture(
        NV12, box.source_width, box.source_height, colorimetry, size=size, channels=channels
    )


def linear(plane: NDArray[np.floating], width: int, height: int) -> NDArray[np.float64]:
    """Interpolate linearly between the centres of samples, in floating point."""
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
    colour=st.sampled_from(list(PUBLISHED)),
    channels=st.sampled_from([3, 4]),
    seed=st.integers(0, 1000),
)
def test_any_size_is_luma_and_chroma_resized_then_converted(
    source: tuple[int, int],
    target: tuple[int, int],
    stretch: bool,
    colour: tuple[str, str],
    channels: int,
    seed: int,
) -> None:
    """Test luma with grey chroma, and the colour of a frame of one colour."""
    width, height = source[0] * 2, source[1] * 2
    box = Letterbox.fit(width, height, *target, stretch=stretch)
    converter = to_rgb(box, colours(*colour), channels)
    luma, u, v = kit.noise('NV12', width, height, seed)
    chroma = np.stack([u, v], axis=-1)
    got = converter.convert((luma, np.full_like(chroma, 128)))
    grey = np.full((box.height, box.width), 128)
    wanted = kit.published_rgb(linear(luma, box.width, box.height), grey, grey, *colour)
    assert got.shape == (box.height, box.width, channels)
    assert np.abs(got[..., :3] - wanted).max() <= 2.2
    chroma[:] = chroma[0, 0]
    got = converter.convert((np.full_like(luma, 100), chroma))
    wanted = kit.published_rgb(np.full(1, 100.0), u[0, :1], v[0, :1], *colour)
    assert np.abs(got[..., :3] - wanted).max() <= 1.0


@pytest.mark.parametrize(
    ('size', 'target', 'mean', 'largest'),
    [
        ((960, 540), 320, 0.1, 1),  # 3:1, as 1080p to 640: equal except for rounding
        ((1280, 720), 640, 0.5, 60),  # 2:1
        ((1280, 720), 320, 1.0, 100),  # 4:1, where a sample lies between two chroma samples
        ((720, 1280), 416, 1.5, 150),
        ((320, 240), 640, 1.65, 110),
    ],
)
def test_the_short_cut_is_near_the_full_conversion(
    size: tuple[int, int], target: int, mean: float, largest: int
) -> None:
    """Limits in grey levels of 255, on a picture with edges and sensor noise."""
    (width, height), box = size, Letterbox.fit(*size, target, target)
    planes = np.empty((height, width), np.uint8), np.empty((height // 2, width // 2, 2), np.uint8)
    RoadScene(*size, 1).draw(5, *planes)
    full = cv2.resize(
        cv2.cvtColorTwoPlane(*planes, cv2.COLOR_YUV2RGB_NV12), (box.width, box.height)
    )
    off = np.abs(to_rgb(box).convert(planes).astype(np.int16) - full)
    assert off.mean() <= mean and off.max() <= largest
