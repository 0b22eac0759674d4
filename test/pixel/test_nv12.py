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

"""Conversion into NV12, against the textbook's BT.601 and every format's own samples."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
from pixel.format_samples import (
    expanded,
    GREY,
    noise,
    rgb_planes,
    strided,
    SUBSAMPLING,
    YUV,
    yuv_planes,
)
import pytest

from zc_perception.errors import FormatError, LayoutError
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range, RGB_FULL
from zc_perception.pixel.conversion import Nv12Writer, ToNv12
from zc_perception.pixel.fourcc import FORMATS, fourcc_code
from zc_perception.pixel.readable import READABLE

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
