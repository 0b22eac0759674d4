"""Folders of pictures and files of raw frames: their order, their geometry, and what is refused."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
from camera.replay_kit import NOW_NS, nv12_rows, played, png_chunk, random_planes, replay
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pixel.format_samples import ALL, YUV, noise, rgb_planes, yuv_planes

from zc_perception.camera.replay.pictures import natural_key
from zc_perception.errors import ConfigError, RecordingError
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import fourcc_code

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


@given(st.lists(st.text(max_size=8), max_size=6), st.randoms())
def test_any_names_have_an_order_that_is_always_the_same(
    names: list[str], chance: random.Random
) -> None:
    shuffled = list(names)
    chance.shuffle(shuffled)
    assert sorted(names, key=natural_key) == sorted(shuffled, key=natural_key)


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
        match=r"frame 1: picture '.*2\.png' is 32x32, '1\.png' is 64x48; all pictures of a folder must have one size",
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


def write_raw(
    path: Path, count: int, stride: int = WIDTH, rows: int = HEIGHT, rest: int = 0
) -> list[tuple[Any, Any]]:
    """A raw file with padding of 0xEE; its frames' planes."""
    frames, content = [], bytearray()
    for seed in range(count):
        luma, chroma = random_planes(WIDTH, HEIGHT, seed)
        padded = np.full((rows * 3 // 2, stride), 0xEE, np.uint8)
        padded[:HEIGHT, :WIDTH] = luma
        padded[rows : rows + HEIGHT // 2, :WIDTH] = nv12_rows(luma, chroma)[HEIGHT:]
        frames.append((luma, chroma))
        content += padded.tobytes()
    path.write_bytes(content + bytes(rest))
    return frames


def test_tight_raw_frames_with_their_size_from_parameters(tmp_path: Path) -> None:
    path = tmp_path / 'clip.nv12'
    frames = write_raw(path, 3)
    camera = replay(
        path, width=WIDTH, height=HEIGHT, framerate=20.0, constraints={'stride_align': 96}
    )
    assert camera.notices() == ()
    found = played(camera)
    assert [frame.header.stamp_ns - NOW_NS for frame, _ in found] == [0, 50_000_000, 100_000_000]
    for (_, planes), expected in zip(found, frames, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(planes, expected, strict=True))


COLOURS = np.repeat(
    np.array([[(200, 30, 40), (20, 190, 60), (30, 40, 210), (220, 220, 30)]], np.uint8),
    WIDTH // 4,
    axis=1,
).repeat(HEIGHT, axis=0)


def ffmpeg_raw(path: Path, name: str, *frames: NDArray[np.uint8]) -> Path:
    """A file of raw frames as ffmpeg writes it, with -pix_fmt *name*; the frames are R, G, B."""
    with av.open(str(path), 'w', format='rawvideo') as output:
        stream = output.add_stream('rawvideo', rate=30)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, name
        for pixels in frames:
            output.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format='rgb24')))
        output.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(
    ('name', 'written'),
    [
        ('I420', 'yuv420p'),
        ('YU12', 'yuv420p'),
        ('nv12', 'nv12'),
        ('NV21', 'nv21'),
        ('YUY2', 'yuyv422'),
        ('UYVY', 'uyvy422'),
        ('RGB', 'rgb24'),
    ],
)
def test_the_format_of_a_yuv_file_is_what_the_parameter_says(
    name: str, written: str, tmp_path: Path
) -> None:
    path = ffmpeg_raw(tmp_path / 'clip.yuv', written, COLOURS, COLOURS[:, ::-1])
    size = {'width': WIDTH, 'height': HEIGHT}
    found = played(replay(path, pixel_format=name, **size))
    assert len(found) == 2
    assert (
        b''.join(plane.tobytes() for _, planes in found for plane in planes) == path.read_bytes()
    )


@pytest.mark.parametrize(
    ('name', 'parameter', 'message'),
    [
        ('a.yuv', 'auto', r"does not say its format: set parameter 'pixel_format' to YU12 \(I420"),
        ('a.yuv', 'MJPG', "parameter 'pixel_format' is 'MJPG'; it must be one of NV12, "),
        (
            'a.nv12',
            'YUYV',
            r"'pixel_format' is 'YUYV', but '.*a\.nv12' is of NV12; set it to auto",
        ),
    ],
)
def test_a_raw_file_whose_format_is_not_sure_is_refused(
    name: str, parameter: str, message: str, tmp_path: Path
) -> None:
    write_raw(tmp_path / name, 1)
    with pytest.raises(ConfigError, match=message):
        replay(tmp_path / name, pixel_format=parameter, width=WIDTH, height=HEIGHT)


def test_raw_files_that_can_not_be_played_are_named(tmp_path: Path) -> None:
    path = tmp_path / 'clip.nv12'
    write_raw(path, 2, rest=17)
    with pytest.raises(ConfigError, match="its size: set parameters 'width' and 'height'"):
        replay(path)
    sizes = r'has 9233 bytes: 2 frames of 64x48 NV12 \(4608 bytes\) and 17 bytes'
    with pytest.raises(ConfigError, match=rf'{sizes}; check .*; truncate -s 9216 '):
        replay(path, width=WIDTH, height=HEIGHT)
    with pytest.raises(ConfigError, match=r'0 frames of 640x480 NV12 .* pixel_format$'):
        replay(path, width=640, height=480)


def raw_frames(name: str, count: int) -> list[list[NDArray[Any]]]:
    random = np.random.default_rng(2)
    if name in YUV:
        return [
            yuv_planes(name, *noise(name, WIDTH, HEIGHT, seed), random) for seed in range(count)
        ]
    return [
        rgb_planes(name, random.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8), random)
        for _ in range(count)
    ]


@pytest.mark.parametrize('name', ALL)
def test_a_raw_file_of_any_format_plays_bit_by_bit_in_that_format(
    name: str, tmp_path: Path
) -> None:
    frames = raw_frames(name, 2)
    (tmp_path / 'clip.yuv').write_bytes(
        b''.join(plane.tobytes() for planes in frames for plane in planes)
    )
    size = {'width': WIDTH, 'height': HEIGHT}
    camera = replay(
        tmp_path / 'clip.yuv', pixel_format=name.strip(), constraints={'stride_align': 96}, **size
    )
    found = played(camera)
    assert len(found) == 2
    for (frame, planes), expected in zip(found, frames, strict=True):
        assert frame.data.fourcc == fourcc_code(name)
        assert frame.data.colorimetry == (
            BT601_LIMITED if name in YUV else Colorimetry(Matrix.RGB, Range.FULL)
        )
        assert all(np.array_equal(a, b) for a, b in zip(planes, expected, strict=True))


def test_a_raw_file_that_is_cut_while_it_plays_costs_its_last_frames(tmp_path: Path) -> None:
    path = tmp_path / 'clip.nv12'
    write_raw(path, 3)
    camera = replay(path, width=WIDTH, height=HEIGHT)
    with path.open('r+b') as file:
        file.truncate(WIDTH * HEIGHT * 3 // 2 + 5)
    assert len(played(camera)) == 1
    assert camera.statistics().bad == 2
