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

"""Video files in the replay camera: pixels, colours, times, rotation, and counted damage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from fractions import Fraction
import gc
import os
from pathlib import Path
import re
import struct
import sys
from typing import Any, NamedTuple
import wave

import av
from camera.replay_kit import captured, IMAGE, image, NOW_NS, played, png_chunk, replay, serialized
from camera.video_kit import (
    compressed_video,
    frame_of,
    halved,
    Planes,
    psnr,
    RATE,
    rewritten,
    scene,
    scenes,
    with_matrix,
    write_video,
)
import cv2
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.camera.mcap_file import Topic
from zc_perception.camera.recording import BlackBox, Recorder, VIDEO, write_event
from zc_perception.camera.replay import bag
from zc_perception.camera.replay.bag import DEFINITION
from zc_perception.camera.replay.camera import open_source, ReplayCamera
from zc_perception.camera.replay.pictures import orientation_of, UPRIGHT
from zc_perception.camera.replay.source import FrameSource
from zc_perception.camera.replay.video import VideoFile, VideoSource
from zc_perception.errors import ConfigError, RecordingError
from zc_perception.frame import Header
from zc_perception.memory.ledger import CopyLedger
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range, Transfer

pytestmark = pytest.mark.usefixtures('no_fd_leak')
LENGTH = 24
INTERLACED = {'flags': '+ildct+ilme'}


class Played(NamedTuple):
    """All frames of a file: planes (``None`` if damaged), times, and the camera's reports."""

    planes: list[Planes | None]
    times_ms: list[float]
    notice: str
    colorimetry: Colorimetry
    size: tuple[int, int]
    framerate: float

    @property
    def bad(self) -> list[int]:
        return [number for number, planes in enumerate(self.planes) if planes is None]

    @property
    def good(self) -> list[Planes]:
        return [planes for planes in self.planes if planes is not None]


def play(path: Path, **options: Any) -> Played:
    with closing(open_source(str(path), **options)) as source:
        size, found, times = (source.width, source.height), [], []
        while (moment := source.advance()) is not None:
            # Fill the planes, so that samples that nobody writes are noticed.
            luma = np.full(size[::-1], 3, np.uint8)
            chroma = np.full((size[1] // 2, size[0] // 2, 2), 5, np.uint8)
            found.append((luma, chroma) if source.read([luma, chroma]) else None)
            times.append(moment.time_ns / 1e6)
        return Played(found, times, source.notice(), source.colorimetry, size, source.framerate)


def nv12(planes: Planes) -> Planes:
    return planes[0], np.dstack(planes[1:])


def same(found: Planes | None, wanted: Planes) -> bool:
    return found is not None and all(map(np.array_equal, found, wanted))


def close(found: Planes | None, wanted: Planes, least: float = 30.0) -> bool:
    return found is not None and all(
        psnr(*pair) > least for pair in zip(found, wanted, strict=True)
    )


def all_close(found: Played, pictures: Sequence[Planes], least: float = 30.0) -> bool:
    """Return whether *pictures* (Y, U, V in 4:2:0) were found, with the losses of a codec."""
    return len(found.planes) == len(pictures) and all(
        close(planes, nv12(picture), least)
        for planes, picture in zip(found.planes, pictures, strict=True)
    )


@pytest.mark.parametrize(
    ('name', 'codec', 'options'),
    [
        ('h264.mp4', 'libx264', {**INTERLACED, 'bf': '2'}),
        ('mpeg2.ts', 'mpeg2video', {**INTERLACED, 'b': '3M'}),
    ],
)
def test_interlaced_pictures_are_those_that_were_encoded(
    tmp_path: Path, name: str, codec: str, options: dict[str, str]
) -> None:
    wanted = scenes(LENGTH, 128, 96)
    found = play(write_video(tmp_path / name, codec, wanted, options=options))
    assert found.notice == '' and all_close(found, wanted)
    assert np.allclose(found.times_ms, np.arange(LENGTH) * 1000 / RATE)


@pytest.mark.parametrize(
    ('form', 'across', 'down'), [('yuv420p', 1, 1), ('yuv422p', 1, 2), ('yuv440p', 2, 1)]
)
def test_planes_of_a_lossless_file_come_as_they_are(
    tmp_path: Path, form: str, across: int, down: int
) -> None:
    pictures = scenes(3)
    stored = [
        (y, *(plane.repeat(across, 1).repeat(down, 0) for plane in chroma))
        for y, *chroma in pictures
    ]
    found = play(write_video(tmp_path / 'clip.mkv', 'ffv1', stored, form))
    for planes, picture in zip(found.planes, pictures, strict=True):
        assert planes is not None and np.array_equal(planes[0], picture[0])
        wanted = nv12(picture)[1]
        # The halved samples are equal pairs. FFmpeg's filter for 4:4:0 reads more neighbours.
        most = 2 if form == 'yuv440p' else 0
        assert np.abs(planes[1].astype(int) - wanted).max() <= most
    assert found.colorimetry == Colorimetry(Matrix.BT601, Range.LIMITED)


@pytest.mark.parametrize(('form', 'bits'), [('yuv420p10le', 10), ('gray16le', 16)])
def test_deep_samples_are_rounded(tmp_path: Path, form: str, bits: int) -> None:
    deep = np.random.default_rng(bits).integers(0, 1 << bits, (48, 64), np.uint16)
    chroma = np.full((24, 32), 1 << (bits - 1), np.uint16)
    stored = (deep,) if form.startswith('gray') else (deep, chroma, chroma)
    path = write_video(tmp_path / 'clip.mkv', 'ffv1', [stored], form, said={'color_range': 1})
    ((luma, found_chroma),) = play(path).good
    wanted = np.clip(np.rint(deep / (1 << (bits - 8))), 0, 255)
    # Halves may be rounded up or down.
    assert np.abs(luma - wanted).max() <= 1 and (luma == wanted).mean() > 0.8
    assert (found_chroma == 128).all()


ORDERS = {'rgb24': 'RGB', 'gbrp': 'GBR', 'gray': 'R'}


@pytest.mark.parametrize(
    ('codec', 'form', 'name'),
    [('png', 'rgb24', 'clip.avi'), ('utvideo', 'gbrp', 'clip.avi'), ('ffv1', 'gray', 'clip.mkv')],
)
def test_red_green_and_blue_become_bt601(tmp_path: Path, codec: str, form: str, name: str) -> None:
    rows, columns = np.mgrid[:48, :64]
    rgb = np.dstack([columns * 4, rows * 5, 255 - columns * 2 - rows]).astype(np.uint8)
    if form == 'gray':
        rgb = np.dstack([rgb[..., 0]] * 3)
    opaque = np.dstack([rgb, np.full((48, 64), 255, np.uint8)])
    parts = [opaque[..., 'RGBA'.index(letter)] for letter in ORDERS[form]]
    stored = tuple(parts) if form in ('gbrp', 'gray') else (np.dstack(parts),)
    found = play(write_video(tmp_path / name, codec, [stored] * 2, form))
    red, green, blue = np.moveaxis(rgb / 255, -1, 0)
    y = 0.299 * red + 0.587 * green + 0.114 * blue
    u, v = 128 + 112 * (blue - y) / 0.886, 128 + 112 * (red - y) / 0.701
    wanted = np.stack([16 + 219 * y, u, v], -1)
    for luma, chroma in found.good:
        assert np.abs(luma - wanted[..., 0]).max() <= 1.5
        assert np.abs(chroma - wanted[..., 1:].reshape(24, 2, 32, 2, 2).mean((1, 3))).max() <= 4
    assert len(found.good) == 2
    assert found.colorimetry == Colorimetry(Matrix.BT601, Range.LIMITED)


def test_a_picture_whose_rows_lie_upside_down(tmp_path: Path) -> None:
    """In raw AVI files of Windows programs, the last row comes first if the height is positive."""
    top = np.zeros((48, 64, 3), np.uint8)
    top[:16] = 200
    path = write_video(tmp_path / 'clip.avi', 'rawvideo', [(top,)], 'bgr24')
    content = bytearray(path.read_bytes())
    at = content.index(b'strf') + 16
    assert int.from_bytes(content[slice(at, at + 4)], 'little', signed=True) == -48
    content[slice(at, at + 4)] = (48).to_bytes(4, 'little')
    path.write_bytes(content)
    ((luma, _),) = play(path).good
    assert luma[:30].max() < 30 and luma[34:].min() > 150


FULL_709 = {'colorspace': 1, 'color_range': 2}


@pytest.mark.parametrize(('size', 'said', 'wanted'), [
    ((64, 48), FULL_709, Colorimetry(Matrix.BT709, Range.FULL)),
    ((64, 48), FULL_709 | {'colorspace': 6}, Colorimetry(Matrix.BT601, Range.FULL)),
    ((64, 48), {'colorspace': 9, 'color_trc': 14}, Colorimetry(Matrix.BT2020, Range.LIMITED)),
    ((64, 48), {'colorspace': 1, 'color_trc': 13},
     Colorimetry(Matrix.BT709, Range.LIMITED, Transfer.SRGB)),
    # A file that says nothing has the colours that players take it for.
    ((720, 576), {}, Colorimetry(Matrix.BT601, Range.LIMITED)),
    ((720, 1280), {}, Colorimetry(Matrix.BT709, Range.LIMITED)),
])  # fmt: skip
def test_frames_have_the_colorimetry_of_the_file_and_its_samples(
    tmp_path: Path, size: tuple[int, int], said: dict[str, int], wanted: Colorimetry
) -> None:
    pictures = scenes(2, *size)
    found = play(write_video(tmp_path / 'clip.mkv', 'ffv1', pictures, said=said))
    assert found.colorimetry == wanted and len(found.planes) == 2
    assert all(map(same, found.planes, map(nv12, pictures)))


@pytest.mark.parametrize(('said', 'words'), [
    ({'colorspace': 9, 'color_trc': 16}, r'its transfer function is PQ \(HDR\)'),
    ({'colorspace': 1, 'color_trc': 8}, r'its transfer function is linear'),
    ({'colorspace': 7}, 'its colour matrix is smpte240m; .* only bt709, bt601, bt2020'),
])  # fmt: skip
def test_colours_without_a_conversion_are_refused_by_name(
    tmp_path: Path, said: dict[str, int], words: str
) -> None:
    path = write_video(tmp_path / 'clip.mkv', 'ffv1', scenes(1), said=said)
    with pytest.raises(ConfigError, match=f"video '{path}' can't be played: {words}.*convert it"):
        play(path)


@pytest.fixture(scope='module')
def upright(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(
        tmp_path_factory.mktemp('upright') / 'clip.mp4', 'mpeg4', scenes(3), options={'b': '2M'}
    )


@pytest.mark.parametrize(('matrix', 'turned'), [
    ((0, 1, -1, 0), lambda plane: np.rot90(plane, -1)),
    ((-1, 0, 0, -1), lambda plane: np.rot90(plane, 2)),
    ((-1, 0, 0, 1), np.fliplr),
    ((0, -1, -1, 0), lambda plane: np.rot90(np.swapaxes(plane, 0, 1), 2)),
])  # fmt: skip
def test_pictures_are_turned_as_the_file_says(
    tmp_path: Path,
    upright: Path,
    matrix: tuple[float, float, float, float],
    turned: Callable[[NDArray[Any]], NDArray[Any]],
) -> None:
    """ISO/IEC 14496-12 defines x' = a·x + c·y, y' = b·x + d·y, with rows counted downwards."""
    found = play(with_matrix(upright, tmp_path / 'turned.mp4', matrix))
    assert found.size == ((48, 64) if matrix[0] == 0 else (64, 48))
    for planes, before in zip(found.planes, play(upright).good, strict=True):
        assert same(planes, tuple(turned(plane) for plane in before))
    path = with_matrix(upright, tmp_path / 'askew.mp4', (0.8, 0.6, -0.6, 0.8))
    with pytest.raises(ConfigError, match="can't be played: the pictures are turned by an angle"):
        play(path)


CUT = (5, 13)
# A codec, its options and format, and how many frames may be lost if two are damaged.
CUTS = {
    'mjpeg': ('mjpeg', {'flags': '+qscale', 'qscale': '2'}, 'yuvj420p', 2),
    'h264': ('libx264', {'g': '8', 'bf': '2'}, 'yuv420p', 2),
    'hevc': ('libx265', {'x265-params': 'log-level=none:keyint=8:bframes=2'}, 'yuv420p', 12),
}


@pytest.mark.parametrize('case', CUTS)
def test_playing_goes_on_behind_damaged_frames_which_are_counted_and_named(
    tmp_path: Path, case: str
) -> None:
    codec, options, form, most = CUTS[case]
    pictures = scenes(LENGTH, 128, 96)
    whole = write_video(tmp_path / 'whole.mkv', codec, pictures, form, options=options)
    found = play(rewritten(whole, tmp_path / 'cut.mkv', halved(*CUT)))
    clean = play(whole)
    assert clean.bad == [] and clean.notice == ''
    assert len(found.planes) == LENGTH and 2 <= len(found.bad) <= most
    assert found.times_ms == pytest.approx(clean.times_ms, abs=1.0)
    numbers = ', '.join(map(str, found.bad[:5]))
    assert f'damaged frames are left out and counted as bad: frame {numbers}' in found.notice
    # No sample is uninitialised; frames that refer to a damaged one may differ a little.
    for number, planes in enumerate(found.planes):
        if planes is not None:
            assert close(planes, nv12(scene(number, 128, 96)), 14.0), number
    if codec == 'mjpeg':
        assert clean.colorimetry == Colorimetry(Matrix.BT601, Range.FULL)
        assert all_close(clean, pictures, 35.0)
        assert found.bad == list(CUT)
        assert all(map(same, found.good, [clean.good[n] for n in range(LENGTH) if n not in CUT]))


def test_a_video_that_begins_between_key_frames(tmp_path: Path) -> None:
    """Loop recorders cut files like this. Frames that the decoder must skip are counted."""
    options = {'g': '8', 'bf': '0'}
    whole = write_video(tmp_path / 'whole.ts', 'libx264', scenes(LENGTH), options=options)
    clean = play(whole)
    with av.open(str(whole)) as given, av.open(str(tmp_path / 'cut.ts'), 'w') as out:
        copy = out.add_stream_from_template(given.streams.video[0])
        for number, packet in enumerate(each for each in given.demux(video=0) if each.size):
            if number > 2:
                packet.stream = copy
                out.mux(packet)
    found = play(tmp_path / 'cut.ts')
    assert found.bad == [0, 1, 2, 3, 4] and len(found.planes) == LENGTH - 3
    assert all(map(same, found.planes[5:], clean.planes[8:]))
    assert found.times_ms == pytest.approx([40 * n for n in range(LENGTH - 3)], abs=1.0)
    assert 'counted as bad: frame 0, 1, 2, 3, 4' in found.notice


@pytest.mark.parametrize('name', ['clip.mkv', 'clip.mp4'])
def test_a_file_that_was_cut_off_says_so_at_its_end(tmp_path: Path, name: str) -> None:
    options = {'g': '1', 'flags': '+qscale', 'qscale': '2'}
    front = {'movflags': 'faststart'} if name.endswith('mp4') else {}
    pictures = scenes(50, 128, 96)
    whole = write_video(tmp_path / name, 'mpeg4', pictures, options=options, container=front)
    assert play(whole).notice == ''
    path = tmp_path / f'cut_{name}'
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    found = play(path)
    assert 10 < len(found.planes) < 40
    assert f'it ends after {len(found.planes)} frames in ' in found.notice
    assert found.notice.startswith(f"video '{path}': ") and found.notice.endswith(' 2 s')
    if front:
        assert 'its header promises 50 frames in 2 s' in found.notice


def test_sound_that_goes_on_for_longer_is_no_shortfall(tmp_path: Path) -> None:
    found = play(write_video(tmp_path / 'clip.mp4', 'mpeg4', scenes(5), silence=60))
    assert found.notice == '' and len(found.good) == 5


def stamps_ms(camera: ReplayCamera) -> list[float]:
    return [(frame.header.stamp_ns - NOW_NS) / 1e6 for frame, _ in played(camera)]


def test_a_variable_rate_is_played_with_the_file_s_times_which_the_rate_shortens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, times = tmp_path / 'uneven.mkv', [0, 40, 100, 400, 410, 1000]
    write_video(path, 'ffv1', scenes(len(times)), times=times, unit=Fraction(1, 1000))
    assert play(path).times_ms == times
    assert stamps_ms(replay(path)) == times
    assert stamps_ms(replay(path, replay_start=0.3)) == [0, 10, 600]
    camera, now, waits = replay(path, keep_all=False, replay_rate=2.0), [100.0], []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        now[0] += seconds
        return False

    monkeypatch.setattr('time.monotonic', lambda: now[0])
    with closing(camera):
        monkeypatch.setattr(camera._stop, 'wait', wait)
        for _ in times:
            captured(camera).release()
    assert waits == pytest.approx(np.diff([0, *times]) / 2000, abs=1e-6)


def test_times_that_begin_anew_go_on(tmp_path: Path) -> None:
    """Two copies of a transport stream are joined, so the times repeat."""
    one = write_video(tmp_path / 'one.ts', 'mpeg2video', scenes(LENGTH * 2), options={'g': '8'})
    (tmp_path / 'two.ts').write_bytes(one.read_bytes() * 2)
    found = play(tmp_path / 'two.ts')
    assert len(found.good) == len(found.planes) == 4 * LENGTH
    intervals = np.diff(found.times_ms)
    assert intervals.min() >= 0 and intervals.max() < 200


def test_sound_that_begins_later_does_not_end_it(tmp_path: Path) -> None:
    """The sound begins after the part that FFmpeg analyses when it opens the file."""
    silent = write_video(tmp_path / 'silent.ts', 'mpeg4', scenes(LENGTH)).read_bytes()
    loud = write_video(tmp_path / 'loud.ts', 'mpeg4', scenes(LENGTH), silence=40).read_bytes()
    path = tmp_path / 'joined.ts'
    path.write_bytes(silent * 30 + loud + silent * 10)
    found = play(path)
    assert len(found.good) == len(found.planes) == 41 * LENGTH


@pytest.mark.parametrize('name', ['clip.h264', 'clip.avi'])
def test_a_file_without_times_has_a_rate(tmp_path: Path, name: str) -> None:
    """In AVI, H.264 frames are stored in another order than they are shown."""
    path = write_video(tmp_path / name, 'libx264', scenes(LENGTH), options={'bf': '3'})
    found = play(path)
    assert found.times_ms == pytest.approx([40 * number for number in range(LENGTH)])
    for number, planes in enumerate(found.planes):
        assert close(planes, nv12(scene(number, 64, 48)))


def test_a_rate_beyond_reason_is_refused_unless_the_user_says_another(tmp_path: Path) -> None:
    clock = {'unit': Fraction(1, 90_000), 'rate': 90_000}
    path = write_video(tmp_path / 'fast.mp4', 'libx264', scenes(4), times=[0, 1, 2, 3], **clock)
    words = (
        f"video '{path}' has 90000 frames per second by its time stamps, 90000 by its header, and "
        "at most 1000 are plausible; set parameter 'framerate'"
    )
    with pytest.raises(ConfigError, match=words):
        play(path)
    assert stamps_ms(replay(path, framerate=25.0)) == [0, 40, 80, 120]


def test_b_frames_of_a_loop_begin_at_exactly_the_same_frame(tmp_path: Path) -> None:
    path = write_video(tmp_path / 'clip.mp4', 'libx264', scenes(LENGTH), options={'bf': '3'})
    clean = play(path).good
    camera = replay(path, keep_all=False, loop=True, framerate=1000.0, replay_start=0.2)
    with closing(camera):
        for number in [*range(5, LENGTH), *range(5, LENGTH), 5]:
            with captured(camera) as frame, frame.map() as planes:
                assert same(tuple(planes), clean[number])


def test_a_pause_of_hours_is_left_out_with_a_notice(tmp_path: Path) -> None:
    path, times = tmp_path / 'moved.mkv', [*range(0, 400, 40), *range(7_200_000, 7_200_400, 40)]
    write_video(path, 'ffv1', scenes(len(times)), times=times, unit=Fraction(1, 1000))
    found = play(path)
    assert found.times_ms == [40 * number for number in range(20)]
    assert found.notice.endswith('it has no frames for 2 h; this pause is left out')
    with closing(open_source(str(path))) as source:
        moment = source.seek(600_000_000)
        assert moment is not None and (moment.time_ns, source.number) == (600_000_000, 15)


def from_time(path: Path, start_ns: int, seek: Callable[[Any, int], Any]) -> list[Any]:
    with closing(VideoSource(str(path))) as source:
        planes = [np.empty((48, 64), np.uint8), np.empty((24, 32, 2), np.uint8)]
        found: list[Any] = []
        moment = seek(source, start_ns)
        while moment is not None:
            good = source.read(planes)
            found.append((moment.time_ns, source.number, good, [p.tolist() for p in planes]))
            moment = source.advance()
        return [*found, source.notice()]


@pytest.mark.parametrize(('name', 'codec', 'options', 'most'), [
    ('open.mkv', 'libx264', {'x264-params': 'keyint=8:bframes=3:open-gop=1:scenecut=0'}, 24),
    ('open.ts', 'libx265', {'x265-params': 'log-level=none:keyint=8:bframes=3:open-gop=1'}, 24),
    ('clip.avi', 'mpeg4', {'g': '4', 'bf': '2'}, 40),
    ('raw.h264', 'libx264', {'g': '8', 'bf': '3'}, 200),  # it has no times
    ('twice.ts', 'mpeg2video', {'g': '8'}, 200),  # its times go back
])  # fmt: skip
def test_decoding_for_a_later_start_begins_at_the_key_frame_before_it(
    name: str,
    codec: str,
    options: dict[str, str],
    most: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write_video(tmp_path / name, codec, scenes(80), options=options)
    if name == 'twice.ts':
        path.write_bytes(path.read_bytes() * 2)
    plain = from_time(path, 2_400_000_000, FrameSource.seek)
    packets, decode = [], VideoFile._decode

    def counted(file: VideoFile, packet: Any) -> Any:
        packets.append(packet is not None)
        return decode(file, packet)

    monkeypatch.setattr(VideoFile, '_decode', counted)
    with closing(VideoSource(str(path))) as source:
        packets.clear()
        source.seek(2_400_000_000)
        assert sum(packets) <= most
    found = from_time(path, 2_400_000_000, VideoSource.seek)
    if name == 'clip.avi':  # the decoder itself drops frames, which nobody counts
        plain, found = ([each[:1] + each[2:] for each in part[:-1]] for part in (plain, found))
    assert found == plain and len(plain) > 15


def test_neither_descriptors_nor_threads_nor_frames_pile_up(tmp_path: Path) -> None:
    """The garbage collector is off: one frame that only it frees would be seen."""
    options = {'x264-params': 'slices=4', 'g': '8'}
    path = write_video(tmp_path / 'clip.mp4', 'libx264', scenes(8), options=options)
    planes = [np.empty((48, 64), np.uint8), np.empty((24, 32, 2), np.uint8)]

    def counted() -> tuple[int, int, int]:
        return (
            len(os.listdir('/proc/self/fd')),
            len(os.listdir('/proc/self/task')),
            sum(isinstance(each, av.VideoFrame) for each in gc.get_objects()),
        )

    with closing(open_source(str(path))) as source:
        source.advance()
        gc.collect()
        gc.disable()
        try:
            before = counted()
            for _ in range(50):
                while source.advance() is not None:
                    source.read(planes)
                source.restart()
                source.advance()
            after = counted()
        finally:
            gc.enable()
    assert after[0] <= before[0] and after[1] <= before[1] and after[2] <= before[2] + 1


def test_a_change_of_size_ends_it_and_names_both(tmp_path: Path) -> None:
    options, content = {'g': '4', 'flags': '+low_delay'}, b''
    for size in ((64, 48), (96, 64)):
        part = write_video(tmp_path / 'part.ts', 'mpeg2video', scenes(8, *size), options=options)
        content += part.read_bytes()
    path = tmp_path / 'joined.ts'
    path.write_bytes(content)
    camera = replay(path)
    words = r"frame 8: video '.*' changes from 64x48 to 96x64; cut it there"
    with pytest.raises(RecordingError, match=words):
        played(camera)
    assert camera.statistics().captured == 8 and camera.ended


def test_of_several_video_streams_the_first_is_played_and_the_others_are_named(
    tmp_path: Path,
) -> None:
    sizes = (64, 48), (32, 24)
    with av.open(str(tmp_path / 'two.mkv'), 'w') as out:
        streams = [out.add_stream('ffv1', rate=RATE) for _ in sizes]
        for stream, size in zip(streams, sizes, strict=True):
            stream.width, stream.height, stream.pix_fmt = *size, 'yuv420p'
        for stream, size in zip(streams, sizes, strict=True):
            frame = frame_of(scene(0, *size), 'yuv420p')
            frame.pts, frame.time_base = 0, Fraction(1, RATE)
            out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
    found = play(tmp_path / 'two.mkv')
    assert found.size == sizes[0] and len(found.good) == 1
    assert 'it has 2 video streams, of which the first is played' in found.notice


# Files that are no video, or can't be decoded: the error names them and the next step.


def sound(path: Path) -> None:
    with wave.open(str(path), 'wb') as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(1600))


def without_index(path: Path) -> None:
    """Write an MP4 as a camera leaves it when its power fails."""
    write_video(path, 'mpeg4', scenes(20, 128, 96))
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b'moov') - 4])


def within_index(path: Path) -> None:
    """Write the begin of an MP4 that has its index first, as a copy that broke off."""
    write_video(path, 'mpeg4', scenes(20, 128, 96))
    content = path.read_bytes()
    index = content.index(b'moov') - 4
    path.write_bytes(content[: content.index(b'mdat') - 4] + content[index : index + 200])


def damaged(path: Path, whole: bytes, broken: bytes) -> None:
    write_video(path, 'mjpeg', scenes(5), 'yuvj420p')
    path.write_bytes(path.read_bytes().replace(whole, broken))


REFUSED: dict[str, tuple[str, Callable[[Path], object], str]] = {
    'a playlist': ('drive.m3u8',
        lambda path: path.write_text('\n#EXTM3U\n#EXTINF:9,\nhttp://127.0.0.1:9/a.ts\n'),
        "is a text, not a video; it begins with '#EXTM3U': set parameter 'video'"),
    'sound': ('drive.wav', sound,
        r'has no moving pictures, only sound \(pcm_s16le\) \(a file of kind wav\); set parameter'),
    'random bytes': ('drive.mp4',
        lambda path: path.write_bytes(np.random.default_rng(1).bytes(4000)),
        'is of no kind that FFmpeg knows .*If it is a video, convert it'),
    'an MP4 without its index': ('drive.mp4', without_index,
        r'is an MP4 or MOV file whose index \(moov\) is missing, .*untrunc'),
    'an MP4 cut off in its index': ('drive.mp4', within_index,
        r'is an MP4 or MOV file whose index \(moov\) is incomplete, .*untrunc'),
    'an unknown codec': ('drive.avi', lambda path: damaged(path, b'MJPG', b'ZZQ9'),
        'has pictures of a codec for which the FFmpeg of PyAV has no decoder; convert it'),
    'broken pictures': ('drive.avi', lambda path: damaged(path, b'\xff\xc0', b'\0\0'),
        'no frame can be decoded as mjpeg; the file is damaged or encrypted'),
    'a line': ('drive.mkv',
        lambda path: write_video(path, 'ffv1', [(np.zeros((1, 16), np.uint8),)], 'gray'),
        'its pictures are 16x1; they must be at least 2x2'),
}  # fmt: skip


@pytest.mark.parametrize('kind', REFUSED)
def test_what_is_no_video_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    name, write, words = REFUSED[kind]
    write(tmp_path / name)
    with pytest.raises(ConfigError, match=f"video '{re.escape(str(tmp_path / name))}':? {words}"):
        open_source(str(tmp_path / name))


def test_a_library_that_is_missing_or_too_old_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_video(tmp_path / 'clip.mkv', 'ffv1', scenes(1))
    monkeypatch.setattr(av, 'library_versions', {'libavformat': (59, 27, 100)})
    with pytest.raises(ConfigError, match=r'needs PyAV 12 .* libavformat 59\.27.*pip install -U'):
        open_source(str(path))
    monkeypatch.setitem(sys.modules, 'av', None)
    words = 'PyAV, which is not installed: sudo apt install python3-av, or pip install av'
    with pytest.raises(ConfigError, match=words):
        open_source(str(path))


@pytest.mark.parametrize('name', ['concat:a.mkv', '50%d.mkv'])
def test_a_name_is_a_file_s_name_whatever_is_in_it(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_video(tmp_path / 'clip.mkv', 'ffv1', scenes(1)).rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert play(Path(name)).size == (64, 48)


# Video topics of recordings: each picture has its message's time; playing starts at a key frame.

S, START, COUNT = 1_000_000_000, 1_700_000_000_000_000_000, 12
TOPIC = Topic('/front/image_raw/foxglove', VIDEO, DEFINITION)


def access_units(
    codec: str = 'libx264', size: tuple[int, int] = (128, 96), **options: str
) -> list[bytes]:
    """Encode :func:`scene`, with key frames at 0, 5 and 10."""
    encoder: Any = av.CodecContext.create(codec, 'w')
    encoder.width, encoder.height, encoder.pix_fmt = *size, 'yuv420p'
    encoder.time_base, encoder.gop_size = Fraction(1, 15), 5
    encoder.color_range, encoder.colorspace = 1, 1  # limited, BT.709
    encoder.options = {'tune': 'zerolatency', **options}
    packets = []
    for number in range(COUNT):
        frame = frame_of(scene(number, *size), 'yuv420p')
        frame.pts, frame.time_base = number, encoder.time_base
        packets += encoder.encode(frame)
    return [bytes(packet) for packet in (*packets, *encoder.encode(None))]


def record(folder: Path, units: list[bytes], kind: str = 'h264', raw: bytes = b'') -> Path:
    recorder = Recorder(folder, ledger=CopyLedger())
    for number, unit in enumerate(units):
        stamp_ns = START + number * S // 15
        content = bytearray(compressed_video('lens', unit, kind))
        content[4:12] = np.array(divmod(stamp_ns, S), np.uint32).tobytes()
        assert recorder.put_message(TOPIC, bytes(content), stamp_ns + 5_000_000)
    assert not raw or recorder.put_message(Topic('/front/image_raw', IMAGE, 'x\n'), raw, START + S)
    assert recorder.close(60.0)  # a busy machine's disk isn't stuck after 3 s
    return folder


@pytest.mark.parametrize(('codec', 'kind'), [('libx264', 'h264'), ('libx265', 'h265')])
def test_each_message_is_a_picture_of_its_own_stamp(codec: str, kind: str, tmp_path: Path) -> None:
    camera = replay(record(tmp_path / 'a', access_units(codec), kind), stamps='recorded')
    assert (camera.width, camera.height) == (128, 96)
    assert camera.framerate == pytest.approx(15, abs=0.01)
    found = played(camera)
    assert len(found) == COUNT
    for number, (frame, (luma, _)) in enumerate(found):
        assert frame.header == Header(START + number * S // 15, 'lens')
        assert frame.data.colorimetry == Colorimetry(Matrix.BT709, Range.LIMITED)
        assert psnr(luma, scene(number, 128, 96)[0]) > 35
    assert psnr(found[0][1][0], scene(3, 128, 96)[0]) < 30, 'pictures differ'


@pytest.mark.parametrize('kind', ['h264', 'h265'])
def test_a_video_topic_is_decoded_from_the_key_frame_before_a_later_start(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = record(tmp_path / 'a', access_units(f'libx{kind[1:]}') * 12, kind)
    decoded, decode = [], bag.TopicDecoder.decode
    monkeypatch.setattr(bag, '_KEY_FRAME_WITHIN_NS', S)
    monkeypatch.setattr(
        bag.TopicDecoder, 'decode', lambda *a: (decoded.append(a), decode(*a))[1]
    )
    with closing(bag.BagSource(str(folder))) as source:
        decoded.clear()
        planes = [np.empty((96, 128), np.uint8), np.empty((48, 64, 2), np.uint8)]
        moment = source.seek(115 * S // 15)
        assert moment is not None and moment.time_ns == 115 * S // 15 and source.read(planes)
        assert source.number == 115 and len(decoded) < 25
        assert psnr(planes[0], scene(115 % COUNT, 128, 96)[0]) > 35


@pytest.mark.parametrize('before', [3, 100])
def test_what_came_before_the_first_key_frame_counts_as_damaged(
    before: int, tmp_path: Path
) -> None:
    units = access_units()
    units = [*units[2:3] * before, *units[5:7], b'no video', *units[7:]]
    camera = replay(record(tmp_path / 'a', units), replay_rate=100.0)
    found = played(camera)
    assert len(found) == 7 and camera.statistics().bad == before + 1
    assert psnr(found[0][1][0], scene(5, 128, 96)[0]) > 35


def test_the_place_where_the_size_changes_is_named(tmp_path: Path) -> None:
    folder = record(tmp_path / 'a', [*access_units(), *access_units(size=(64, 48))])
    at_ns = START + COUNT * S // 15 + 5_000_000
    words = f'from 128x96 to 64x48; .*cut the file there, .*--start-nsecs {at_ns} -o OUT.mcap'
    with pytest.raises(RecordingError, match=words):
        played(replay(folder))


def test_a_black_box_is_played_from_its_first_picture_on(tmp_path: Path) -> None:
    box = BlackBox(0.3, 1 << 20)
    for number, unit in enumerate(access_units()):
        box.take(TOPIC, compressed_video('lens', unit), START + number * S // 15)
    write_event(box.last(START + COUNT * S // 15), tmp_path, START + COUNT * S // 15)
    (event,) = tmp_path.iterdir()
    found = played(replay(event))
    assert len(found) == 7 and psnr(found[0][1][0], scene(5, 128, 96)[0]) > 35


def test_beside_what_a_video_was_made_of_it_is_played_by_name_only(tmp_path: Path) -> None:
    picture = serialized(image(START, np.zeros((4, 8), np.uint8), 'mono8', 8, 4))
    record(tmp_path / 'a', access_units(), raw=picture)
    assert len(played(replay(tmp_path / 'a'))) == 1
    assert (
        len(played(replay(tmp_path / 'a', replay_topic=TOPIC.name, width=64, height=48))) == COUNT
    )


@pytest.mark.parametrize(('kind', 'options', 'message'), [
    ('h266', {}, r"format 'h266' is none of h264, h265, vp9, av1"),
    ('h264', {'tune': 'film', 'bf': '2', 'b-adapt': '0'}, r'has B-frames.*max_b_frames: 0'),
])  # fmt: skip
def test_what_can_not_be_played_is_named(
    kind: str, options: dict[str, str], message: str, tmp_path: Path
) -> None:
    folder = record(tmp_path / 'a', access_units(**options), kind)
    with pytest.raises((ConfigError, RecordingError), match=message):
        played(replay(folder))


# Pictures that EXIF data rotate, in every container that has such data.

WIDTH, HEIGHT = 64, 32
ORIENTATION, SHORT, LONG = 0x0112, 3, 4

# EXIF's definition: what a viewer does to the stored picture so that it stands upright.
SEEN: dict[int, Callable[[NDArray[Any]], NDArray[Any]]] = {
    1: lambda stored: stored, 2: np.fliplr, 3: lambda stored: np.rot90(stored, 2), 4: np.flipud,
    5: lambda stored: stored.swapaxes(0, 1), 6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: np.rot90(stored.swapaxes(0, 1), 2), 8: np.rot90,
}  # fmt: skip


def stored_picture() -> NDArray[np.uint8]:
    """Return a picture whose eight orientations all differ."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    picture = np.stack([x * 3, y * 6, 120 + x], -1).astype(np.uint8)
    picture[:8, :16] = 250
    return picture


def directory(value: int, order: str = '<', kind: int = SHORT, prefix: bytes = b'') -> bytes:
    """Return EXIF data: a TIFF header and a directory of three entries."""
    number = struct.pack(order + {SHORT: 'HH', LONG: 'I'}[kind], *((value, 0)[: 5 - kind]))
    entries = [
        struct.pack(f'{order}HHII', 0x0100, LONG, 1, WIDTH),
        struct.pack(f'{order}HHI', ORIENTATION, kind, 1) + number,
        struct.pack(f'{order}HHII', 0x0213, LONG, 1, 6),
    ]
    mark = {'<': b'II', '>': b'MM'}[order]
    head = mark + struct.pack(f'{order}HI', 42, 8)
    return prefix + head + struct.pack(f'{order}H', 3) + b''.join(entries) + bytes(4)


def encoded(suffix: str, picture: NDArray[np.uint8]) -> bytes:
    return bytes(cv2.imencode(suffix, picture, [cv2.IMWRITE_JPEG_QUALITY, 100])[1])


def jpeg(picture: NDArray[np.uint8], exif: bytes) -> bytes:
    content = encoded('.jpg', picture)
    other = b'\xff\xe1' + struct.pack('>H', 2 + 29) + b'http://ns.adobe.com/xap/1.0/\0'
    segment = b'\xff\xe1' + struct.pack('>H', len(exif) + 8) + b'Exif\0\0' + exif
    return content[:2] + other + segment + content[2:]


def png(picture: NDArray[np.uint8], exif: bytes) -> bytes:
    content = encoded('.png', picture)
    behind_the_header = 8 + 25
    return content[:behind_the_header] + png_chunk(b'eXIf', exif) + content[behind_the_header:]


def webp(picture: NDArray[np.uint8], exif: bytes) -> bytes:
    """Return lossless WebP in the extended format, the only one with metadata."""
    plain = bytes(cv2.imencode('.webp', picture, [cv2.IMWRITE_WEBP_QUALITY, 101])[1])
    height, width = picture.shape[:2]
    size = struct.pack('<I', width - 1)[:3] + struct.pack('<I', height - 1)[:3]
    head = b'VP8X' + struct.pack('<II', 10, 0x08) + size
    tail = b'EXIF' + struct.pack('<I', len(exif)) + exif + bytes(len(exif) % 2)
    chunks = b'WEBP' + head + plain[12:] + tail
    return b'RIFF' + struct.pack('<I', len(chunks)) + chunks


def picture_file(suffix: str, stored: NDArray[np.uint8], value: int) -> bytes:
    order = '<>'[value % 2]
    if suffix == '.webp':
        return webp(stored, directory(value, order, prefix=b'Exif\0\0' if value > 4 else b''))
    return {'.jpg': jpeg, '.png': png}[suffix](
        stored, directory(value, order, LONG if value == 8 else SHORT)
    )


@pytest.mark.parametrize(
    ('suffix', 'value'),
    [('.jpg', 6), ('.webp', 5), ('.webp', 4), *(('.png', value) for value in SEEN)],
)
def test_a_picture_is_turned_as_its_exif_data_say(suffix: str, value: int, tmp_path: Path) -> None:
    stored = stored_picture()
    (tmp_path / f'a{suffix}').write_bytes(picture_file(suffix, stored, value))
    cv2.imwrite(str(tmp_path / 'seen.bmp'), SEEN[value](stored))
    ((_, found),), ((_, wanted),) = (
        played(replay(tmp_path / name)) for name in (f'a{suffix}', 'seen.bmp')
    )
    for plane, expected in zip(found, wanted, strict=True):
        assert plane.shape == expected.shape
        # JPEG halves the chroma resolution, and loses a little.
        assert np.abs(plane.astype(int) - expected).mean() < (3 if suffix == '.jpg' else 0.01)


@given(st.binary(max_size=60), st.integers(0, 40), st.sampled_from(['.jpg', '.png', '.webp']))
def test_damaged_exif_data_leave_the_picture_upright_or_turned(
    noise: bytes, at: int, suffix: str
) -> None:
    whole = picture_file(suffix, stored_picture(), 6)
    for content in (whole[:at] + noise + whole[slice(at + len(noise), None)], whole[: at + 2]):
        assert orientation_of(np.frombuffer(content, np.uint8)) in SEEN


@pytest.mark.parametrize('value', [0, 9])
def test_a_value_that_there_is_not_says_nothing(value: int) -> None:
    content = np.frombuffer(jpeg(stored_picture(), directory(value)), np.uint8)
    assert orientation_of(content) == UPRIGHT
