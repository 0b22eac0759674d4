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

"""JPEGs become NV12 without a detour: every sampling, grey, missing tables, and what is broken."""

from __future__ import annotations

from camera.jpeg_kit import jpeg, need_decoder, picture, SAMPLINGS, without_tables
import cv2
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.camera.v4l2 import mjpeg as jpeg_module
from zc_perception.camera.v4l2.mjpeg import BadJpegError, JpegDecoder, missing_library
from zc_perception.errors import CameraError, ConfigError

WIDTH, HEIGHT = 320, 180


@pytest.fixture(scope='module', autouse=True)
def _library() -> None:
    need_decoder()


def decoded(
    data: bytes, width: int = WIDTH, height: int = HEIGHT, padding: int = 0
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    luma = np.full((height, width + padding), 7, np.uint8)
    chroma = np.full((-(-height // 2), (-(-width // 2) * 2 + padding)), 7, np.uint8)
    planes = (
        luma[:, :width],
        chroma[:, : -(-width // 2) * 2].reshape(chroma.shape[0], -(-width // 2), 2),
    )
    decoder = JpegDecoder(width, height)
    try:
        decoder.decode(np.frombuffer(data, np.uint8), *planes)
    finally:
        decoder.close()
    assert (luma[:, width:] == 7).all() and (
        chroma[:, slice(-(-width // 2) * 2, None)] == 7
    ).all(), 'bytes between the rows were written'
    return planes


def in_full(luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> NDArray[np.int64]:
    """B, G, R by JFIF's own formula: BT.601, full range."""
    height, width = luma.shape
    u, v = (
        cv2.resize(
            np.ascontiguousarray(chroma[..., i]), (width, height), interpolation=cv2.INTER_LINEAR
        )
        - 128.0
        for i in (0, 1)
    )
    y = luma.astype(float)
    return np.rint(
        np.clip(np.dstack([y + 1.772 * u, y - 0.344136 * u - 0.714136 * v, y + 1.402 * v]), 0, 255)
    ).astype(int)


@pytest.mark.parametrize('sampling', SAMPLINGS)
@pytest.mark.parametrize('tables', [True, False])
def test_colours_are_those_of_libjpegs_own_conversion(sampling: str, tables: bool) -> None:
    data = jpeg(picture(WIDTH, HEIGHT), sampling)
    reference = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR).astype(int)
    found = in_full(*decoded(data if tables else without_tables(data)))
    difference = np.abs(found - reference)
    # libjpeg repeats the few chroma samples of 4:1:1 instead of blending them.
    most = 3 if sampling != '411' else 8
    assert difference.mean() < most / 3 and np.percentile(difference, 99) <= most


def test_luma_is_exactly_the_jpegs() -> None:
    data = jpeg(picture(WIDTH, HEIGHT)[..., 1])
    luma, chroma = decoded(data)
    assert np.array_equal(luma, cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE))
    assert (chroma == 128).all()


@pytest.mark.parametrize('size', [(322, 182), (321, 181), (34, 18), (2, 2)])
@pytest.mark.parametrize('sampling', SAMPLINGS)
def test_sizes_that_are_no_whole_blocks_stay_within_their_planes(
    size: tuple[int, int], sampling: str
) -> None:
    data = jpeg(
        np.broadcast_to(np.array([30, 90, 200], np.uint8), (size[1], size[0], 3)), sampling
    )
    luma, chroma = decoded(data, *size, padding=13)
    reference = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR).astype(int)
    assert np.abs(in_full(luma, chroma) - reference).max() <= 3
    data = jpeg(picture(*size), sampling)
    assert np.array_equal(
        decoded(data, *size, padding=13)[0],
        cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE),
    )


def test_bytes_that_webcams_add_do_no_harm() -> None:
    data = jpeg(picture(WIDTH, HEIGHT))
    expected = decoded(data)
    for strange in (data + bytes(500), data[:-2] + bytes(3) + data[-2:]):
        for plane, good in zip(decoded(strange), expected, strict=True):
            assert np.array_equal(plane, good)


@pytest.mark.parametrize(
    ('data', 'reason'),
    [
        (jpeg(picture(WIDTH, HEIGHT))[:-2000], 'remature end'),
        (jpeg(picture(WIDTH, HEIGHT))[:300], 'broken JPEG'),
        (b'\xff\xd8\xff\xd9', 'a JPEG of 0x0 came|a broken JPEG came'),
        (b'not a picture', 'broken JPEG came: its first bytes are no picture'),
        (jpeg(picture(64, 48)), 'a JPEG of 64x48 came, the camera is set to 320x180'),
    ],
)
def test_what_is_broken_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(BadJpegError, match=reason):
        decoded(data)


def test_other_colours_are_refused() -> None:
    # Adobe's marker with transform 0: the components are R, G, B.
    data = jpeg(picture(WIDTH, HEIGHT), '444')
    adobe = b'\xff\xee' + (14).to_bytes(2, 'big') + b'Adobe' + bytes([0, 100, 0, 0, 0, 0, 0])
    end = 4 + int.from_bytes(data[4:6], 'big')  # JFIF's segment comes first, and says otherwise
    with pytest.raises(BadJpegError, match='a JPEG with RGB came'):
        decoded(data[:2] + adobe + data[end:])


def test_a_broken_picture_leaves_the_decoder_good() -> None:
    good = np.frombuffer(jpeg(picture(WIDTH, HEIGHT)), np.uint8)
    decoder = JpegDecoder(WIDTH, HEIGHT)
    planes = np.empty((HEIGHT, WIDTH), np.uint8), np.empty((HEIGHT // 2, WIDTH // 2, 2), np.uint8)
    for cut in range(0, good.size, 997):
        with pytest.raises(BadJpegError):
            decoder.decode(good[:cut] if cut else good[:1], *planes)
    decoder.decode(good, *planes)
    decoder.close()
    decoder.close()
    with pytest.raises(CameraError, match='closed'):
        decoder.decode(good, *planes)


def test_tables_of_a_broken_picture_do_not_spoil_the_next_one_without_tables() -> None:
    good = jpeg(picture(WIDTH, HEIGHT))
    bare = np.frombuffer(without_tables(good), np.uint8)
    place = good.index(b'\xff\xc4') + 5
    broken = np.frombuffer(
        good[:place] + bytes([200] * 16) + good[slice(place + 16, None)], np.uint8
    )
    decoder = JpegDecoder(WIDTH, HEIGHT)
    planes = np.empty((HEIGHT, WIDTH), np.uint8), np.empty((HEIGHT // 2, WIDTH // 2, 2), np.uint8)
    with pytest.raises(BadJpegError):
        decoder.decode(broken, *planes)
    decoder.decode(bare, *planes)
    decoder.close()
    for plane, expected in zip(planes, decoded(good), strict=True):
        assert np.array_equal(plane, expected)


def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jpeg_module, '_LIBRARIES', ('libno-such-thing.so.9', 'libc.so.6'))
    jpeg_module._library.cache_clear()
    try:
        with pytest.raises(
            ConfigError,
            match=r'apt install libturbojpeg0 .*libno-such-thing.*libc.so.6 has no '
            r'tjInitDecompress',
        ):
            JpegDecoder(WIDTH, HEIGHT)
        assert 'apt install' in missing_library()
    finally:
        jpeg_module._library.cache_clear()
    monkeypatch.undo()
    assert missing_library() == ''
