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
import re
from typing import Any

import cv2
from hypothesis import example, given, settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
from pixel import format_samples as kit
from pixel.format_samples import (
    ALL,
    expanded,
    GREY,
    noise,
    PUBLISHED,
    rgb_planes,
    strided,
    SUBSAMPLING,
    YUV,
    yuv_planes,
)
import pytest

from zc_perception.camera.road_scene import RoadScene
from zc_perception.detection.letterbox import Letterbox
from zc_perception.errors import FormatError, LayoutError
from zc_perception.pixel.colorimetry import (
    BT601_LIMITED,
    Colorimetry,
    Matrix,
    Range,
    RGB_FULL,
    Transfer,
)
from zc_perception.pixel.conversion import Nv12Writer, ToLuma, ToNv12, ToPicture
from zc_perception.pixel.fourcc import FORMATS, fourcc_code, NV12
from zc_perception.pixel.layout import views
from zc_perception.pixel.raw_picture import ENCODINGS, layout_of, PictureReader, RawPicture
from zc_perception.pixel.readable import READABLE

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
    wanted = r'conversion was made for NV12 64x48 \(uint8 \(48, 64\) and uint8 \(24, 32, 2\)\)'
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


# Conversion into NV12, against the textbook's BT.601 and every format's own samples.

UNTOUCHED = 0xAB


def limited_bt601(rgb: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return luma and (U, V) of each pixel: Kr = 0.299, Kb = 0.114, limited range."""
    red, green, blue = np.moveaxis(rgb.astype(np.float64) / 255.0, 2, 0)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    u, v = (blue - luma) / (2 * (1 - 0.114)), (red - luma) / (2 * (1 - 0.299))
    return 16 + 219 * luma, np.stack([128 + 224 * u, 128 + 224 * v], axis=2)


def strided_planes(
    width: int, height: int, padding: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], list[NDArray[np.uint8]]]:
    """Return luma and chroma with *padding* bytes after each row, and these bytes."""
    row = width + padding
    luma, memory = (np.full((rows, row), UNTOUCHED, np.uint8) for rows in (height, height // 2))
    chroma = np.ndarray((height // 2, width // 2, 2), np.uint8, memory, 0, (row, 2, 1))
    return luma[:, :width], chroma, [luma[:, width:], memory[:, width:]]


@pytest.mark.parametrize('rgb_order', [True, False])
@pytest.mark.parametrize(('width', 'height', 'padding'), [(64, 48, 0), (50, 34, 14), (2, 2, 1)])
def test_samples_are_bt601_limited(width: int, height: int, padding: int, rgb_order: bool) -> None:
    # Blocks of 2x2 equal pixels, so that the place of chroma samples doesn't matter.
    blocks = np.random.default_rng(width).integers(0, 256, (height // 2, width // 2, 3), np.uint8)
    rgb = blocks.repeat(2, axis=0).repeat(2, axis=1)
    luma, chroma, between = strided_planes(width, height, padding)
    picture = rgb if rgb_order else rgb[..., ::-1].copy()
    if padding:  # alpha is ignored
        alpha = np.arange(width * height, dtype=np.uint8).reshape(height, width)
        picture = np.dstack([picture, alpha])
    Nv12Writer(width, height).write(picture, luma, chroma, rgb=rgb_order)

    wanted_luma, wanted_chroma = limited_bt601(rgb)
    assert np.abs(luma - wanted_luma).max() <= 2
    assert np.abs(chroma - wanted_chroma[::2, ::2]).max() <= 2
    assert all((rest == UNTOUCHED).all() for rest in between)


GOOD: dict[str, NDArray[Any]] = {
    'picture': np.zeros((16, 32, 3), np.uint8),
    'luma': np.full((16, 32), UNTOUCHED, np.uint8),
    'chroma': np.full((8, 16, 2), UNTOUCHED, np.uint8),
}


@pytest.mark.parametrize(
    ('name', 'array', 'message'),
    [
        (
            'picture',
            np.zeros((18, 32, 3), np.uint8),
            'picture is uint8 (18, 32, 3); this writer needs uint8 (16, 32, 3)',
        ),
        (
            'picture',
            np.zeros((16, 32, 3), np.float32),
            'picture is float32 (16, 32, 3); this writer needs uint8 (16, 32, 3)',
        ),
        (
            'luma',
            np.zeros((16, 30), np.uint8),
            'luma is uint8 (16, 30); this writer needs uint8 (16, 32)',
        ),
        (
            'chroma',
            np.zeros((8, 32), np.uint8),
            'chroma is uint8 (8, 32); this writer needs uint8 (8, 16, 2)',
        ),
        (
            'luma',
            np.frombuffer(bytes(512), np.uint8).reshape(16, 32),
            'luma is read-only; map the frame with write=True',
        ),
    ],
)
def test_arrays_that_opencv_would_silently_replace_are_refused(
    name: str, array: NDArray[Any], message: str
) -> None:
    arrays = {**GOOD, name: array}
    with pytest.raises(LayoutError, match=f'^{re.escape(message)}$'):
        Nv12Writer(32, 16).write(arrays['picture'], arrays['luma'], arrays['chroma'])
    assert (GOOD['luma'] == UNTOUCHED).all() and (GOOD['chroma'] == UNTOUCHED).all(), (
        'nothing was written before'
    )


def halved(chroma: NDArray[np.uint8], name: str) -> NDArray[np.float64]:
    """Return the mean of the format's own chroma over the area of each 4:2:0 sample."""
    across, down = SUBSAMPLING[name]
    rows, columns = chroma.shape
    return chroma.reshape(rows * down // 2, 2 // down, columns * across // 2, 2 // across).mean(
        axis=(1, 3)
    )


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(YUV),
    blocks=st.tuples(st.integers(1, 70), st.integers(1, 30)),
    paddings=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    span=st.sampled_from(Range),
    seed=st.integers(0, 1000),
)
def test_luma_stays_and_chroma_is_the_mean_of_what_it_covers(
    name: str, blocks: tuple[int, int], paddings: tuple[int, int], span: Range, seed: int
) -> None:
    width, height = blocks[0] * 2, blocks[1] * 2
    y, u, v = noise(name, width, height, seed)
    planes = [
        strided(plane, paddings[0])
        for plane in yuv_planes(name, y, u, v, np.random.default_rng(seed))
    ]
    luma, chroma, between = strided_planes(width, height, paddings[1])
    colorimetry = Colorimetry(Matrix.BT709, span)
    converter = ToNv12(fourcc_code(name), width, height, colorimetry)
    converter.convert(planes, luma, chroma)
    assert np.array_equal(luma, y) and converter.colorimetry == colorimetry
    wanted = np.stack([halved(u, name), halved(v, name)], axis=-1)
    assert np.abs(chroma - wanted).max() <= (0 if SUBSAMPLING[name] == (2, 2) else 0.75)
    assert all((rest == UNTOUCHED).all() for rest in between)


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from([FORMATS[code].name for code in READABLE]),
    target=st.tuples(st.integers(1, 60), st.integers(1, 40)),
    span=st.sampled_from(Range),
    colour=st.tuples(*[st.integers(16, 235)] * 3),
)
@example(name='R8  ', target=(20, 10), span=Range.LIMITED, colour=(40, 100, 200))
@example(name='RG24', target=(20, 10), span=Range.LIMITED, colour=(40, 100, 200))
def test_a_frame_of_one_colour_keeps_it_at_any_size(
    name: str, target: tuple[int, int], span: Range, colour: tuple[int, int, int]
) -> None:
    size = target[0] * 2, target[1] * 2
    random, wanted, colorimetry = np.random.default_rng(0), colour, BT601_LIMITED
    if name in YUV:
        of_one = (
            np.full_like(plane, value)
            for plane, value in zip(noise(name, 64, 48, 0), colour, strict=True)
        )
        planes = yuv_planes(name, *of_one, random)
    else:
        colorimetry = Colorimetry(Matrix.RGB, span)
        rgb = np.broadcast_to(np.array(colour, np.uint8) & 0xF8, (48, 64, 3))
        if name in GREY:
            rgb = np.repeat(rgb[..., :1], 3, axis=2)
        planes = rgb_planes(name, rgb, random)
        luma_of, chroma_of = limited_bt601(expanded(rgb[:1, :1], span.value))
        wanted = (luma_of[0, 0], *chroma_of[0, 0])
    luma, chroma = np.zeros(size[::-1], np.uint8), np.zeros((target[1], target[0], 2), np.uint8)
    ToNv12(fourcc_code(name), 64, 48, colorimetry, size=size).convert(planes, luma, chroma)
    most = 8 if name in ('RG16', 'BG16') else 2
    assert all(
        np.abs(part - value).max() <= most
        for part, value in zip((luma, chroma[..., 0], chroma[..., 1]), wanted, strict=True)
    )


def test_a_reduced_frame_is_the_mean_of_what_each_sample_covers() -> None:
    y, u, v = noise('YUYV', 96, 64, 5)
    luma, chroma = np.zeros((32, 48), np.uint8), np.zeros((16, 24, 2), np.uint8)
    ToNv12(fourcc_code('YUYV'), 96, 64, BT601_LIMITED, size=(48, 32)).convert(
        yuv_planes('YUYV', y, u, v, np.random.default_rng(0)), luma, chroma
    )
    assert np.abs(luma - y.reshape(32, 2, 48, 2).mean(axis=(1, 3))).max() <= 0.75
    wanted = np.stack([plane.reshape(16, 4, 24, 2).mean(axis=(1, 3)) for plane in (u, v)], axis=-1)
    assert np.abs(chroma - wanted).max() <= 0.75


def test_formats_sizes_and_targets_that_can_t_be_are_refused() -> None:
    with pytest.raises(FormatError, match="NV15 frames can't be read"):
        ToNv12(fourcc_code('NV15'), 64, 48, BT601_LIMITED)
    with pytest.raises(LayoutError, match='width 63 is not a multiple of 2'):
        Nv12Writer(63, 48)
    with pytest.raises(LayoutError, match='width 33 is not a multiple of 2, which NV12 needs'):
        ToNv12(fourcc_code('R8  '), 33, 48, RGB_FULL)
    converter = ToNv12(fourcc_code('YUYV'), 32, 16, BT601_LIMITED)
    planes = yuv_planes('YUYV', *noise('YUYV', 32, 16, 0), np.random.default_rng(0))
    with pytest.raises(
        LayoutError, match=r'chroma is uint8 \(8, 32\); this conversion writes uint8 \(8, 16, 2\)'
    ):
        converter.convert(planes, GOOD['luma'].copy(), np.zeros((8, 32), np.uint8))
    with pytest.raises(LayoutError, match='luma is read-only'):
        converter.convert(
            planes, np.frombuffer(bytes(512), np.uint8).reshape(16, 32), GOOD['chroma'].copy()
        )


# Plane places in messages, and colours of Bayer pictures, by NumPy's slices and sums.

Bytes = NDArray[np.uint8]


def noisy(*shape: int) -> Bytes:
    return np.random.default_rng(4).integers(0, 256, shape, np.uint8)


def raw(
    width: int, height: int, encoding: str, step: int, data: Bytes, big: bool = False
) -> RawPicture:
    return RawPicture(width, height, encoding, big, step, data.reshape(-1))


# Bytes of chroma for each byte of luma, and how many rows of luma share a row of it.
CHROMA = {'nv12': (0.5, 2), 'nv21': (0.5, 2), 'nv24': (2.0, 1)}


@pytest.mark.parametrize(
    ('width', 'height', 'step', 'rows'),
    [
        (64, 48, 64, 48), (72, 48, 72, 64), (64, 48, 100, 64), (64, 34, 64, 40),
        (640, 362, 640, 368), (1920, 1080, 1920, 1088),
    ],
)  # fmt: skip
@pytest.mark.parametrize('encoding', CHROMA)
def test_chroma_is_behind_the_rows_that_pad_the_height(
    encoding: str, width: int, height: int, step: int, rows: int
) -> None:
    share, down = CHROMA[encoding]
    data = noisy(round(step * rows * (1 + share)))
    luma, chroma = views(layout_of(raw(width, height, encoding, step, data)), data)
    assert np.array_equal(luma, data[: step * rows].reshape(rows, step)[:height, :width])
    below = data[slice(step * rows, None)].reshape(rows // down, -1)
    wanted = below[: height // down, : 2 * chroma.shape[1]]
    assert np.array_equal(chroma.reshape(height // down, -1), wanted)


def test_the_last_row_need_not_be_whole() -> None:
    data = noisy(64 * 71 + 56)
    assert layout_of(raw(56, 48, 'nv12', 64, data)).planes[1].offset == 64 * 48
    with pytest.raises(FormatError, match='needs 4608 bytes of data; there are 4599:'):
        layout_of(raw(56, 48, 'nv12', 64, data[:-1]))


def test_a_buffer_of_whole_pages_is_taken_where_nothing_else_has_so_many_bytes() -> None:
    data = noisy(3112960)  # 760 pages, for 3,110,400 bytes
    assert layout_of(raw(1920, 1080, 'nv12', 1920, data)).planes[1].offset == 1920 * 1080


@pytest.mark.parametrize(
    ('picture', 'text'),
    [
        # Either 62 rows in whole pages, or 64 rows; and either 48 or 64 rows.
        (
            raw(640, 62, 'nv12', 640, noisy(61440)),
            'needs 59520 bytes of data; there are 61440, and',
        ),
        (
            raw(64, 48, 'nv12', 64, noisy(4609)),
            'needs 4608 bytes of data; there are 4609, and which',
        ),
        (raw(64, 48, 'nv12', 64, noisy(64 * 48)), 'needs 4608 bytes of data; there are 3072:'),
        # Sizes that another encoding or another step would explain.
        (
            raw(640, 480, 'rgb8', 1920, noisy(640 * 480 * 4)),
            '921600 bytes of data; there are 1228800',
        ),
        (
            raw(64, 48, 'yuyv', 127, noisy(128 * 48)),
            'yuyv needs a step of 128 or more; step is 127',
        ),
        (
            raw(64, 48, 'mono16', 129, noisy(129 * 48)),
            'of 128 or more, a multiple of 2; step is 129',
        ),
        (raw(64, 48, 'mono16', 128, noisy(6144), big=True), 'mono16 is big-endian; only little'),
        (
            raw(1, 48, 'mono8', 1, noisy(48)),
            '1x48; width and height of mono8 must be from 2 to 65535',
        ),
        # OpenCV's demosaicing makes this black.
        (
            raw(64, 2, 'bayer_rggb8', 64, noisy(128)),
            'height of bayer_rggb8 must be from 3 to 65535',
        ),
        (raw(64, 48, '8UC4', 256, noisy(256 * 48)), "encoding '8UC4' can't be read as a picture"),
        (raw(64, 48, '32FC1', 256, noisy(256 * 48)), 'a picture, it has depths and no colours'),
    ],
)
def test_what_is_not_clear_is_refused_with_the_numbers(picture: RawPicture, text: str) -> None:
    with pytest.raises(FormatError, match=text):
        layout_of(picture)


@pytest.mark.parametrize(('encoding', 'size'), [('nv12', (64, 47)), ('yuyv', (63, 48))])
def test_a_size_that_the_encoding_can_not_have_is_named(
    encoding: str, size: tuple[int, int]
) -> None:
    with pytest.raises(LayoutError, match='is not a multiple of 2, which'):
        layout_of(raw(*size, encoding, 128, noisy(128 * 72)))


@pytest.mark.parametrize('there', [64 * 48 * 3, 64 * 64 * 3])
@pytest.mark.parametrize('big', [False, True])
def test_rows_below_a_picture_of_one_plane_change_nothing(there: int, big: bool) -> None:
    data = noisy(there)
    (pixels,) = views(layout_of(raw(64, 48, 'rgb8', 192, data, big)), data)
    assert np.array_equal(pixels, data[:9216].reshape(48, 64, 3))


@settings(max_examples=150)
@given(
    st.integers(0, 1 << 32),
    st.integers(0, 1 << 32),
    st.sampled_from((*ENCODINGS, 'x')),
    st.booleans(),
    st.integers(0, 1 << 32),
    st.integers(0, 4000),
)
def test_no_picture_passes_that_would_be_read_beyond_its_data(
    width: int, height: int, encoding: str, big: bool, step: int, size: int
) -> None:
    try:
        layout = layout_of(raw(width, height, encoding, step, np.zeros(size, np.uint8), big))
    except (FormatError, LayoutError):
        return
    assert layout.buffer_size(0) <= size and layout.planes[0].stride == step


#: One reader for all sizes: its memory adapts to the picture.
READER = PictureReader()


def neighbours(mosaic: NDArray[np.int64], mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return for each inner pixel the mean of neighbours in *mask*, or its own value."""
    total, count = np.zeros(mosaic.shape), np.zeros(mosaic.shape)
    straight, slanted = [(0, 1), (1, 0), (0, -1), (-1, 0)], [(1, 1), (1, -1), (-1, 1), (-1, -1)]
    for places in ([(0, 0)], straight, slanted):
        these = np.zeros(mosaic.shape), np.zeros(mosaic.shape)
        for place in places:
            these[0][:] += np.roll(mosaic * mask, place, (0, 1))
            these[1][:] += np.roll(mask, place, (0, 1))
        total, count = np.where(count > 0, total, these[0]), np.where(count > 0, count, these[1])
    return (total / count)[1:-1, 1:-1]


@pytest.mark.parametrize('size', [(64, 48), (65, 47)])
@pytest.mark.parametrize('bits', [8, 16])
@pytest.mark.parametrize('pattern', ['rggb', 'bggr', 'gbrg', 'grbg'])
def test_bayer_becomes_the_mean_of_each_colour_s_neighbours(
    pattern: str, bits: int, size: tuple[int, int]
) -> None:
    width, height = size
    mosaic, padding = noisy(height, width), 6
    samples = mosaic if bits == 8 else mosaic.astype('<u2') << 8
    rows = np.pad(samples.view(np.uint8).reshape(height, -1), ((0, 0), (0, padding)))
    picture = raw(width, height, f'bayer_{pattern}{bits}', rows.shape[1], rows)
    _, (bgr,) = READER.read(picture, layout_of(picture))
    letters = np.tile(np.array(list(pattern)).reshape(2, 2), (height, width))[:height, :width]
    assert bgr.shape == (height, width, 3)
    for channel, letter in enumerate('bgr'):
        wanted = neighbours(mosaic.astype(np.int64), letters == letter)
        assert np.abs(bgr[1:-1, 1:-1, channel] - wanted).max() <= 1
