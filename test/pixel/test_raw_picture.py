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

"""Plane places in messages, and colours of Bayer pictures, by NumPy's slices and sums."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.errors import FormatError, LayoutError
from zc_perception.pixel.layout import views
from zc_perception.pixel.raw_picture import ENCODINGS, layout_of, PictureReader, RawPicture

Bytes = NDArray[np.uint8]


def noise(*shape: int) -> Bytes:
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
    data = noise(round(step * rows * (1 + share)))
    luma, chroma = views(layout_of(raw(width, height, encoding, step, data)), data)
    assert np.array_equal(luma, data[: step * rows].reshape(rows, step)[:height, :width])
    below = data[slice(step * rows, None)].reshape(rows // down, -1)
    wanted = below[: height // down, : 2 * chroma.shape[1]]
    assert np.array_equal(chroma.reshape(height // down, -1), wanted)


def test_the_last_row_need_not_be_whole() -> None:
    data = noise(64 * 71 + 56)
    assert layout_of(raw(56, 48, 'nv12', 64, data)).planes[1].offset == 64 * 48
    with pytest.raises(FormatError, match='needs 4608 bytes of data; there are 4599:'):
        layout_of(raw(56, 48, 'nv12', 64, data[:-1]))


def test_a_buffer_of_whole_pages_is_taken_where_nothing_else_has_so_many_bytes() -> None:
    data = noise(3112960)  # 760 pages, for 3,110,400 bytes
    assert layout_of(raw(1920, 1080, 'nv12', 1920, data)).planes[1].offset == 1920 * 1080


@pytest.mark.parametrize(
    ('picture', 'text'),
    [
        # Either 62 rows in whole pages, or 64 rows; and either 48 or 64 rows.
        (
            raw(640, 62, 'nv12', 640, noise(61440)),
            'needs 59520 bytes of data; there are 61440, and',
        ),
        (
            raw(64, 48, 'nv12', 64, noise(4609)),
            'needs 4608 bytes of data; there are 4609, and which',
        ),
        (raw(64, 48, 'nv12', 64, noise(64 * 48)), 'needs 4608 bytes of data; there are 3072:'),
        # Sizes that another encoding or another step would explain.
        (
            raw(640, 480, 'rgb8', 1920, noise(640 * 480 * 4)),
            '921600 bytes of data; there are 1228800',
        ),
        (
            raw(64, 48, 'yuyv', 127, noise(128 * 48)),
            'yuyv needs a step of 128 or more; step is 127',
        ),
        (
            raw(64, 48, 'mono16', 129, noise(129 * 48)),
            'of 128 or more, a multiple of 2; step is 129',
        ),
        (raw(64, 48, 'mono16', 128, noise(6144), big=True), 'mono16 is big-endian; only little'),
        (
            raw(1, 48, 'mono8', 1, noise(48)),
            '1x48; width and height of mono8 must be from 2 to 65535',
        ),
        # OpenCV's demosaicing makes this black.
        (
            raw(64, 2, 'bayer_rggb8', 64, noise(128)),
            'height of bayer_rggb8 must be from 3 to 65535',
        ),
        (raw(64, 48, '8UC4', 256, noise(256 * 48)), "encoding '8UC4' can't be read as a picture"),
        (raw(64, 48, '32FC1', 256, noise(256 * 48)), 'a picture, it has depths and no colours'),
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
        layout_of(raw(*size, encoding, 128, noise(128 * 72)))


@pytest.mark.parametrize('there', [64 * 48 * 3, 64 * 64 * 3])
@pytest.mark.parametrize('big', [False, True])
def test_rows_below_a_picture_of_one_plane_change_nothing(there: int, big: bool) -> None:
    data = noise(there)
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
    mosaic, padding = noise(height, width), 6
    samples = mosaic if bits == 8 else mosaic.astype('<u2') << 8
    rows = np.pad(samples.view(np.uint8).reshape(height, -1), ((0, 0), (0, padding)))
    picture = raw(width, height, f'bayer_{pattern}{bits}', rows.shape[1], rows)
    _, (bgr,) = READER.read(picture, layout_of(picture))
    letters = np.tile(np.array(list(pattern)).reshape(2, 2), (height, width))[:height, :width]
    assert bgr.shape == (height, width, 3)
    for channel, letter in enumerate('bgr'):
        wanted = neighbours(mosaic.astype(np.int64), letters == letter)
        assert np.abs(bgr[1:-1, 1:-1, channel] - wanted).max() <= 1
