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
Folders of pictures and files of raw frames.

Their order, their geometry, and what is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import struct
from typing import Any
import zlib

from camera.replay_kit import NOW_NS, played, png_chunk, random_planes, replay
from camera.video_kit import write_video
import cv2
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.camera.replay.pictures import natural_key
from zc_perception.errors import ConfigError, RecordingError

pytestmark = pytest.mark.usefixtures('no_fd_leak')
WIDTH, HEIGHT = 64, 48


def write_picture(path: Path, level: int, width: int = WIDTH, height: int = HEIGHT) -> None:
    assert cv2.imwrite(str(path), np.full((height, width, 3), level, np.uint8))


def levels(found: list[Any]) -> list[int]:
    """Grey levels of the frames to the nearest ten, from their luma in limited range."""
    return [10 * round((float(planes[0].mean()) - 16) * 255 / 2190) for _, planes in found]


def test_pictures_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number, level in ((10, 160), (9, 110), (1, 10), (100, 210), (2, 60)):
        write_picture(tmp_path / f'frame{number}.png', level)
    (tmp_path / '.hidden.png').write_bytes(b'')
    (tmp_path / 'notes.txt').write_text('no picture')
    (tmp_path / 'folder.png').mkdir()
    found = played(replay(tmp_path, framerate=10.0))
    assert levels(found) == [10, 60, 110, 160, 210]
    assert [frame.header.stamp_ns - NOW_NS for frame, _ in found] == [
        i * 100_000_000 for i in range(5)
    ]


@given(st.lists(st.integers(0, 10**12), min_size=2, max_size=6, unique=True))
def test_numbers_sort_as_numbers_with_or_without_leading_zeros(numbers: list[int]) -> None:
    for width in (0, 13):
        names = [f'a{number:0{width}d}b{number}.png' for number in numbers]
        assert sorted(names, key=natural_key) == [
            f'a{number:0{width}d}b{number}.png' for number in sorted(numbers)
        ]


@pytest.mark.parametrize('suffix', ['.png', '.jpg', '.bmp', '.webp', '.tiff', '.ppm', '.JPG'])
def test_kinds_of_pictures(suffix: str, tmp_path: Path) -> None:
    write_picture(tmp_path / f'a{suffix}', 90)
    camera = replay(tmp_path)
    assert camera.framerate == 30.0
    assert levels(played(camera)) == [90]


def test_one_picture_alone_is_a_recording_of_one_frame(tmp_path: Path) -> None:
    write_picture(tmp_path / 'a.png', 90, 65, 49)
    found = played(replay(tmp_path / 'a.png'))
    assert levels(found) == [90] and found[0][1][0].shape == (48, 64)


def test_a_grey_picture_is_one_of_equal_colours(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / 'a.png'), np.full((HEIGHT, WIDTH), 120, np.uint8))
    assert levels(played(replay(tmp_path))) == [120]


def seen_through_a_lossless_file(folder: Path, bgr: NDArray[np.uint8]) -> list[NDArray[Any]]:
    path = folder / 'wanted.bmp'
    assert cv2.imwrite(str(path), bgr)
    ((_, planes),) = played(replay(path))
    return list(planes)


def ramp(top: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    """Grey levels from 0 to *top*."""
    return np.linspace(0, top, WIDTH * HEIGHT).round().astype(dtype).reshape(HEIGHT, WIDTH)


def pnm(levels: NDArray[Any], top: int) -> bytes:
    big = levels.astype('>u2' if top > 255 else 'u1')
    return b'P5\n# by a camera\n%d %d\n%d\n' % (WIDTH, HEIGHT, top) + big.tobytes()


@pytest.mark.parametrize('kind', ['16.png', '16.tiff', '16.pgm', '10.pgm', '7.pgm', '16 bgr.png'])
def test_more_or_less_than_8_bits_are_brightness_of_the_same_range(
    kind: str, tmp_path: Path
) -> None:
    bits = int(kind.split('.')[0].split()[0])
    levels = ramp((1 << bits) - 1, np.uint16)
    path = tmp_path / kind
    if path.suffix == '.pgm':
        path.write_bytes(pnm(levels, (1 << bits) - 1))
    else:
        assert cv2.imwrite(str(path), cv2.merge([levels] * 3) if 'bgr' in kind else levels)
    camera = replay(path)
    depth_is_none = [notice for notice in camera.notices() if 'depth is no picture' in notice]
    assert len(depth_is_none) == (bits == 16 and 'bgr' not in kind)
    ((_, planes),) = played(camera)
    grey = np.round(levels * (255.0 / ((1 << bits) - 1))).astype(np.uint8)
    wanted = seen_through_a_lossless_file(tmp_path, cv2.merge([grey] * 3))
    assert np.abs(planes[0].astype(int) - wanted[0]).max() <= 1
    assert np.abs(planes[1].astype(int) - 128).max() == 0


def test_alpha_is_left_out_and_a_palette_looked_up(tmp_path: Path) -> None:
    red = np.full((HEIGHT, WIDTH, 4), (0, 0, 255, 40), np.uint8)
    assert cv2.imwrite(str(tmp_path / 'alpha.png'), red)
    indices = bytes(1) + bytes(np.zeros(WIDTH, np.uint8))
    (tmp_path / 'palette.png').write_bytes(
        b'\x89PNG\r\n\x1a\n'
        + png_chunk(b'IHDR', struct.pack('>IIBBBBB', WIDTH, HEIGHT, 8, 3, 0, 0, 0))
        + png_chunk(b'PLTE', bytes((255, 0, 0)))
        + png_chunk(b'IDAT', zlib.compress(indices * HEIGHT))
        + png_chunk(b'IEND', b'')
    )
    wanted = seen_through_a_lossless_file(tmp_path, red[..., :3])
    for name in ('alpha.png', 'palette.png'):
        ((_, planes),) = played(replay(tmp_path / name))
        assert all(np.array_equal(a, b) for a, b in zip(planes, wanted, strict=True)), name


def test_levels_that_are_no_brightness_are_refused(tmp_path: Path) -> None:
    assert cv2.imwrite(str(tmp_path / 'a.tiff'), np.ones((HEIGHT, WIDTH), np.float32))
    with pytest.raises(ConfigError, match=r"a\.tiff' has levels of float32, which have no"):
        replay(tmp_path)


def test_another_size_in_the_folder_is_named(tmp_path: Path) -> None:
    write_picture(tmp_path / '1.png', 10)
    write_picture(tmp_path / '2.png', 20, 32, 32)
    camera = replay(tmp_path)
    with pytest.raises(
        RecordingError,
        match=r"frame 1: picture '.*2\.png' is 32x32, '1\.png' is 64x48; all pictures of a "
        r'folder must have one size',
    ):
        played(camera)


def test_a_damaged_picture_is_left_out_and_counted(tmp_path: Path) -> None:
    for number in range(3):
        write_picture(tmp_path / f'{number}.png', 50 * number)
    (tmp_path / '1.png').write_bytes((tmp_path / '1.png').read_bytes()[:40])
    camera = replay(tmp_path)
    assert levels(played(camera)) == [0, 100]
    assert camera.statistics().bad == 1


def test_a_folder_of_damaged_pictures_does_not_loop_for_ever(tmp_path: Path) -> None:
    for number in range(3):
        write_picture(tmp_path / f'{number}.png', 50)
    camera = replay(tmp_path, loop=True, keep_all=False, framerate=1000.0)
    frame = camera.capture()
    assert frame is not None
    frame.release()
    for file in tmp_path.iterdir():
        file.write_bytes(b'nothing')
    with pytest.raises(RecordingError, match='has no frame that can be decoded'):
        for _ in range(20):
            assert camera.capture() is None
    camera.close()


@pytest.mark.parametrize(
    ('prepare', 'message'),
    [
        (
            lambda folder: None,
            'has no picture and no recording, it has nothing; pictures end in .png',
        ),
        (
            lambda folder: (folder / 'a.png').write_bytes(b'x'),
            "a.png' can't be decoded; remove it, or convert it to PNG",
        ),
        (
            lambda folder: write_picture(folder / 'a.png', 1, 1, 1),
            'its pictures are 1x1; they must be at least 2x2',
        ),
    ],
)
def test_folders_that_can_not_be_played_are_named(
    prepare: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    prepare(tmp_path)
    with pytest.raises(ConfigError, match=message):
        replay(tmp_path)


@pytest.mark.parametrize('form', ['nv12', 'yuv420p'])
def test_raw_frames_are_played_from_a_container(form: str, tmp_path: Path) -> None:
    frames = [random_planes(WIDTH, HEIGHT, seed) for seed in range(3)]
    three = [(luma, chroma[..., 0], chroma[..., 1]) for luma, chroma in frames]
    pictures = frames if form == 'nv12' else three
    path = write_video(tmp_path / 'clip.nut', 'rawvideo', pictures, form)
    for (_, planes), expected in zip(played(replay(path)), frames, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(planes, expected, strict=True))
    for name in ('clip.nv12', 'clip.yuv'):
        path.rename(tmp_path / name)
        path = tmp_path / name
        with pytest.raises(ConfigError, match=rf"raw file '.*{name}' says neither.*ffmpeg -f raw"):
            replay(path)
