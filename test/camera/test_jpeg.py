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

from collections.abc import Iterator

import av
from camera.jpeg_kit import jpeg, need_decoder, picture, SAMPLINGS, segments, without_tables
import cv2
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.camera.v4l2 import mjpeg as jpeg_module
from zc_perception.camera.v4l2.mjpeg import BadJpegError, JpegDecoder, mended, missing_library
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


# Whole pictures that are not as JPEG wants them are decoded; what lacks something is refused.


STRAY_WIDTH, STRAY_HEIGHT = 320, 176
GOOD = jpeg(picture(STRAY_WIDTH, STRAY_HEIGHT), '420')
BARE = GOOD[:-2]
# As cameras that also write AVI files begin theirs.
AVI1 = GOOD[:2] + b'\xff\xe0\x00\x10AVI1' + bytes(10) + GOOD[20:]
RESTARTS, PROGRESSIVE = (
    cv2.imencode('.jpg', picture(STRAY_WIDTH, STRAY_HEIGHT), [option, value])[1].tobytes()
    for option, value in ((cv2.IMWRITE_JPEG_RST_INTERVAL, 5), (cv2.IMWRITE_JPEG_PROGRESSIVE, 1))
)
Planes = tuple[NDArray[np.uint8], NDArray[np.uint8]]


class Decoder:
    """The package's, with planes of its own."""

    def __init__(self, width: int = STRAY_WIDTH, height: int = STRAY_HEIGHT) -> None:
        self._decoder = JpegDecoder(width, height)
        self._size = width, height
        self.copied = 0

    def __call__(self, data: bytes) -> Planes:
        width, height = self._size
        planes = (
            np.empty((height, width), np.uint8),
            np.empty((height // 2, width // 2, 2), np.uint8),
        )
        self.copied = self._decoder.decode(np.frombuffer(data, np.uint8), *planes)
        return planes

    def close(self) -> None:
        self._decoder.close()


@pytest.fixture(scope='module')
def decoder(_library: None) -> Iterator[Decoder]:
    made = Decoder()
    yield made
    made.close()


def same(found: Planes, expected: Planes) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def of_ffmpeg(data: bytes) -> Planes:
    """Return the picture as another decoder makes it, in NV12."""
    context = av.CodecContext.create('mjpeg', 'r')
    (frame,) = [*context.decode(av.Packet(data)), *context.decode(None)]
    planes = [
        np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: plane.height, : plane.width]
        for plane in frame.planes
    ]
    assert frame.format.name == 'yuvj420p'
    return planes[0], np.dstack(planes[1:])


def with_stray(data: bytes, stray: bytes, place: int | None = None) -> bytes:
    """Return *data* with *stray* in front of each of its segments, or of one."""
    return data[:2] + b''.join(
        (stray if place in (None, number) else b'') + segment
        for number, (_, segment) in enumerate(segments(data))
    )


IRREGULAR = {
    'no end': BARE,
    'no end, zeros': BARE + bytes(5000),
    'no end, many zeros': BARE + bytes(300_000),
    'no end, one zero': BARE + b'\0',
    'no end, ones': BARE + b'\xff' * 300,
    'half of the end': BARE + b'\xff',
    'half of the end, zeros': BARE + b'\xff' + bytes(500),
    'no tables, no end, zeros': without_tables(GOOD)[:-2] + bytes(777),
    'AVI1, no end, zeros': AVI1[:-2] + bytes(777),
    'a zero before each segment': with_stray(GOOD, b'\0'),
    'a byte before the first segment': with_stray(GOOD, b'\x42', 0),
    'bytes before the tables': with_stray(GOOD, b'abc', 1),
    'a half marker before the data': with_stray(GOOD, b'\xff\0', len(segments(GOOD)) - 1),
    'begins twice': GOOD[:2] + GOOD,
    'zeros before the beginning': bytes(4) + GOOD,
    'stray bytes, no end, zeros': with_stray(GOOD, b'\0\x17')[:-2] + bytes(900),
}


@pytest.mark.parametrize('data', IRREGULAR.values(), ids=IRREGULAR)
def test_a_whole_picture_is_decoded_as_other_decoders_do(data: bytes, decoder: Decoder) -> None:
    found = decoder(data)
    assert decoder.copied > 0, 'that it was mended is told'
    for plane, expected in zip(found, of_ffmpeg(data), strict=True):
        assert np.abs(plane.astype(int) - expected).max() <= 2
    assert same(found, decoder(GOOD)) and decoder.copied == 0


REGULAR = {
    'as it should be': GOOD,
    'zeros behind the end': GOOD + bytes(5000),
    'something behind the end': GOOD + b'\xff\xe0 stale',
    'a second picture behind the end': GOOD + GOOD,
    'fill bytes': with_stray(GOOD, b'\xff\xff'),
    'AVI1': AVI1,
}


@pytest.mark.parametrize('whole', [RESTARTS, PROGRESSIVE], ids=['restarts', 'progressive'])
def test_other_kinds_of_pictures_are_mended_as_well(whole: bytes, decoder: Decoder) -> None:
    expected = decoder(whole)
    assert decoder.copied == 0
    for data in (whole[:-2] + bytes(600), with_stray(whole, b'\0')):
        assert same(decoder(data), expected) and decoder.copied


@pytest.mark.parametrize('sampling', SAMPLINGS)
def test_every_sampling_is_mended(sampling: str, decoder: Decoder) -> None:
    whole = jpeg(picture(STRAY_WIDTH, STRAY_HEIGHT), sampling)
    assert same(decoder(with_stray(whole, b'\0')[:-2] + bytes(99)), decoder(whole))


@settings(max_examples=60)
@given(
    st.lists(st.binary(max_size=4).map(lambda stray: stray.replace(b'\xff', b'\0')), max_size=8),
    st.integers(0, 70_000),
    st.booleans(),
)
def test_stray_bytes_anywhere_in_the_header_and_any_number_of_zeros_change_no_pixel(
    stray: list[bytes], zeros: int, ended: bool
) -> None:
    parts = [segment for _, segment in segments(GOOD if ended else BARE)]
    before = [*stray, *[b''] * len(parts)]
    data = GOOD[:2] + b''.join(b''.join(pair) for pair in zip(before, parts, strict=False))
    decoder = Decoder()
    try:
        assert same(decoder(data + bytes(zeros)), decoder(GOOD))
    finally:
        decoder.close()


@settings(max_examples=60)
@given(st.integers(0, 255), st.sampled_from(SAMPLINGS), st.integers(1, 9), st.integers(1, 9))
def test_zeros_that_are_the_pictures_own_are_kept(
    grey: int, sampling: str, across: int, down: int
) -> None:
    """The data of flat pictures ends with zero bits, in some sizes with a zero byte."""
    size = 16 * across, 16 * down
    whole = jpeg(np.full((size[1], size[0], 3), grey, np.uint8), sampling)
    decoder = Decoder(*size)
    try:
        assert same(decoder(whole[:-2] + bytes(40)), decoder(whole))
    finally:
        decoder.close()


@settings(max_examples=100)
@given(st.integers(1, 20_000), st.sampled_from([0, 1, 40, 5000, 200_000]), st.booleans())
def test_a_picture_that_is_cut_off_is_refused_and_zeros_make_nothing_up(
    missing: int, zeros: int, tables: bool
) -> None:
    whole = BARE if tables else without_tables(GOOD)[:-2]
    start = whole.index(b'\xff\xda') + 14
    cut = whole[: max(start, len(whole) - missing)]
    decoder = Decoder()
    try:
        try:
            found = decoder(cut + bytes(zeros))
        except BadJpegError:
            return
        expected = decoder(GOOD)
        # The last bits of the last block may be zeros, which is what follows.
        assert np.array_equal(found[0][:-16, :-16], expected[0][:-16, :-16])
        assert same((found[0][:-16], found[1][:-8]), (expected[0][:-16], expected[1][:-8]))
        assert missing < 16
    finally:
        decoder.close()


def test_damage_behind_stray_bytes_is_still_damage(decoder: Decoder) -> None:
    middle = len(GOOD) // 2
    garbled = GOOD[:middle] + bytes(range(1, 60)) + GOOD[slice(middle + 59, None)]
    with pytest.raises(BadJpegError):
        decoder(garbled)
    for data in (with_stray(garbled, b'\0'), garbled[:-2] + bytes(300)):
        with pytest.raises(BadJpegError):
            decoder(data)


def test_a_camera_whose_pictures_need_mending_has_each_decoded_once(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    examine = decoder._decoder._examine
    monkeypatch.setattr(
        decoder._decoder,
        '_examine',
        lambda handle, data: (tried.append(data.size), examine(handle, data))[1],
    )
    decoder(GOOD)
    for _ in range(3):
        decoder(IRREGULAR['no end, zeros'])
    decoder(GOOD)
    assert len(tried) == 1 + 2 + 1 + 1 + 1


@given(st.binary(max_size=300) | st.binary(max_size=40).map(lambda some: GOOD[:90] + some))
def test_anything_is_mended_once_or_left_as_it_is(raw: bytes) -> None:
    data = np.frombuffer(raw, np.uint8)
    once = mended(data)
    assert once is data or once.tobytes() != raw
    assert mended(once) is once
