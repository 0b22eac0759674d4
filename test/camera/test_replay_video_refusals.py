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

"""What is given as a video and is none, or none that can be decoded, is named with what to do."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
import re
import struct
import sys
from typing import Any
import wave

import av
from camera.replay_kit import IMAGE, image, played, replay, serialized
from camera.test_black_box import video
from camera.video_kit import frame_of, psnr, scene, scenes, write_video
import numpy as np
import pytest

from zc_perception.camera.mcap_file import Topic
from zc_perception.camera.recording import BlackBox, Recorder, VIDEO, write_event
from zc_perception.camera.replay.bag import DEFINITION
from zc_perception.camera.replay.camera import open_source
from zc_perception.errors import ConfigError, RecordingError
from zc_perception.memory.ledger import CopyLedger
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range

pytestmark = pytest.mark.usefixtures('no_fd_leak')


def sound(path: Path) -> bytes:
    """Return a wave file of a tenth of a second."""
    with wave.open(str(path), 'wb') as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(1600))
    return path.read_bytes()


def music(path: Path) -> None:
    """MP3 with a cover: FFmpeg gives it as a video of 90,000 Hz."""
    with av.open(str(path), 'w', format='mp3') as out:
        stream = out.add_stream('mp3', rate=44100)
        for number in range(20):
            samples = np.zeros((1, 1152), np.int16)
            frame = av.AudioFrame.from_ndarray(samples, format='s16p', layout='mono')
            frame.sample_rate, frame.pts = 44100, 1152 * number
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    still = path.with_suffix('.jpg')
    write_video(still, 'mjpeg', scenes(1), 'yuvj420p', container={'update': '1'})
    picture = b'\0image/jpeg\0\x03\0' + still.read_bytes()
    frame_size, rest = struct.pack('>I', len(picture)), 10 + len(picture)
    safe = bytes((rest >> shift) & 0x7F for shift in (21, 14, 7, 0))
    tag = b'ID3\x03\0\0' + safe + b'APIC' + frame_size + b'\0\0' + picture
    path.write_bytes(tag + path.read_bytes())


def without_index(path: Path) -> None:
    """Return what a camera leaves of an MP4 when its power fails."""
    write_video(path, 'mpeg4', scenes(20, 128, 96))
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b'moov') - 4])


def with_unknown_codec(path: Path) -> None:
    write_video(path, 'mjpeg', scenes(3), 'yuvj420p')
    path.write_bytes(path.read_bytes().replace(b'MJPG', b'ZZQ9'))


def encrypted(path: Path) -> None:
    keys = {'encryption_key': '11' * 16, 'encryption_kid': '22' * 16}
    scheme = {'encryption_scheme': 'cenc-aes-ctr'}
    write_video(path, 'libx264', scenes(5), container=scheme | keys)


def with_broken_pictures(path: Path) -> None:
    write_video(path, 'mjpeg', scenes(5), 'yuvj420p')
    path.write_bytes(path.read_bytes().replace(b'\xff\xc0', b'\0\0'))


def a_line(path: Path) -> None:
    write_video(path, 'ffv1', [(np.zeros((1, 16), np.uint8),)], 'gray')


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content, encoding='utf-8')


def nothing_known(path: Path) -> None:
    rng = np.random.default_rng(1)
    path.write_bytes(bytes(rng.integers(0, 256, 4000, np.uint8)))


BEGINS = "is a text, not a video; it begins with '{}': set parameter 'video'"
BROKEN = 'no frame can be decoded as {}; it is damaged, or encrypted'
PLAYLIST = '#EXTM3U\n#EXTINF:9,\nhttp://127.0.0.1:9/a.ts\n'
REFUSED: dict[str, tuple[str, Callable[[Path], object], str]] = {
    'a text': ('drive.avi', text('\nno video\n' * 99), BEGINS.format('no video')),
    'a text whose last character is cut': (
        'drive.mp4',
        text('ab' + 'ä' * 800),
        'is a text, not a video; it begins with .abä+…: set',
    ),
    'a playlist': ('drive.m3u8', text(PLAYLIST), BEGINS.format('#EXTM3U')),
    'sound': (
        'drive.wav',
        sound,
        r'has sound \(pcm_s16le\), but no moving pictures \(a file of kind wav\); set parameter',
    ),
    'music with a cover': (
        'drive.mp3',
        music,
        r'has sound \(mp3\w*\) and a cover picture, but no moving pictures',
    ),
    'random bytes': (
        'drive.mp4',
        nothing_known,
        'is of no kind that FFmpeg knows .*If it is a video, convert it',
    ),
    'an MP4 without its index': (
        'drive.mp4',
        without_index,
        r'is an MP4 or MOV file whose index \(moov\) is missing, .*untrunc',
    ),
    'an unknown codec': (
        'drive.avi',
        with_unknown_codec,
        'has pictures of a codec for which the FFmpeg of PyAV has no decoder; convert it',
    ),
    'an encrypted file': (
        'drive.mp4',
        encrypted,
        f'is encrypted; decrypt it|{BROKEN.format("h264")}',
    ),
    'broken pictures': ('drive.avi', with_broken_pictures, BROKEN.format('mjpeg')),
    'a line': ('drive.mkv', a_line, 'its pictures are 16x1; they must be at least 2x2'),
}


@pytest.mark.parametrize('kind', REFUSED)
def test_what_is_no_video_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    name, write, words = REFUSED[kind]
    write(tmp_path / name)
    with pytest.raises(ConfigError, match=f"video '{re.escape(str(tmp_path / name))}':? {words}"):
        open_source(str(tmp_path / name))


def test_a_missing_library_is_named_with_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_video(tmp_path / 'clip.mkv', 'ffv1', scenes(1))
    monkeypatch.setitem(sys.modules, 'av', None)
    with pytest.raises(
        ConfigError,
        match='PyAV, which is not installed: sudo apt install python3-av, or pip install av',
    ):
        open_source(str(path))


def test_a_library_that_does_not_say_how_pictures_are_turned_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_video(tmp_path / 'clip.mkv', 'ffv1', scenes(1))
    monkeypatch.setattr(av, 'library_versions', {'libavformat': (59, 27, 100)})
    with pytest.raises(ConfigError, match=r'needs PyAV 12 .* libavformat 59\.27.*pip install -U'):
        open_source(str(path))


@pytest.mark.parametrize('name', ['concat:a.mkv', 'http:', '50%d.mkv', 'straße 1.mkv'])
def test_a_name_is_a_file_s_name_whatever_is_in_it(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_video(tmp_path / 'clip.mkv', 'ffv1', scenes(1)).rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    source = open_source(name)
    assert (source.width, source.height) == (64, 48)
    source.close()


# Video topics of recordings: each message's picture at its own time, from the first key frame on.


S, START, COUNT = 1_000_000_000, 1_700_000_000_000_000_000, 12
TOPIC = Topic('/front/image_raw/foxglove', VIDEO, DEFINITION)


def access_units(codec: str = 'libx264', **options: str) -> list[bytes]:
    """Return what an encoder makes of :func:`scene`; key frames at 0, 5 and 10."""
    encoder: Any = av.CodecContext.create(codec, 'w')
    encoder.width, encoder.height, encoder.pix_fmt = 128, 96, 'yuv420p'
    encoder.time_base, encoder.gop_size = Fraction(1, 15), 5
    encoder.color_range, encoder.colorspace = 1, 1  # limited, BT.709
    encoder.options = {'tune': 'zerolatency', **options}
    packets = []
    for number in range(COUNT):
        frame = frame_of(scene(number, 128, 96), 'yuv420p')
        frame.pts, frame.time_base = number, encoder.time_base
        packets += encoder.encode(frame)
    return [bytes(packet) for packet in (*packets, *encoder.encode(None))]


def record(folder: Path, units: list[bytes], kind: str = 'h264') -> Path:
    with Recorder(folder, ledger=CopyLedger()) as recorder:
        for number, unit in enumerate(units):
            stamp_ns = START + number * S // 15
            content = bytearray(video('lens', unit, kind))
            content[4:12] = np.array(divmod(stamp_ns, S), np.uint32).tobytes()
            assert recorder.put_message(TOPIC, bytes(content), stamp_ns + 5_000_000)
    return folder


@pytest.mark.parametrize(('codec', 'kind'), [('libx264', 'h264'), ('libx265', 'h265')])
def test_each_message_is_a_picture_of_its_own_stamp(codec: str, kind: str, tmp_path: Path) -> None:
    camera = replay(record(tmp_path / 'a', access_units(codec), kind), stamps='recorded')
    assert (camera.width, camera.height) == (128, 96)
    assert camera.framerate == pytest.approx(15, abs=0.01)
    found = played(camera)
    stamps = [START + number * S // 15 for number in range(COUNT)]
    assert [frame.header.stamp_ns for frame, _ in found] == stamps
    assert found[0][0].header.frame_id == 'lens'
    assert found[0][0].data.colorimetry == Colorimetry(Matrix.BT709, Range.LIMITED)
    for number, (_, (luma, _)) in enumerate(found):
        assert psnr(luma, scene(number, 128, 96)[0]) > 35
    assert psnr(found[0][1][0], scene(3, 128, 96)[0]) < 30, 'pictures differ'


def test_what_came_before_the_first_key_frame_counts_as_damaged(tmp_path: Path) -> None:
    units = access_units()
    camera = replay(record(tmp_path / 'a', [*units[2:7], b'no video', *units[7:]]))
    found = played(camera)
    assert len(found) == 7 and camera.statistics().bad == 4
    assert psnr(found[0][1][0], scene(5, 128, 96)[0]) > 35


def test_a_black_box_is_played_from_its_first_picture_on(tmp_path: Path) -> None:
    box = BlackBox(0.3, 1 << 20)
    for number, unit in enumerate(access_units()):
        box.take(TOPIC, video('lens', unit), START + number * S // 15)
    write_event(box.last(START + COUNT * S // 15), tmp_path, START + COUNT * S // 15)
    (event,) = tmp_path.iterdir()
    found = played(replay(event))
    assert len(found) == 7 and psnr(found[0][1][0], scene(5, 128, 96)[0]) > 35


def test_beside_what_a_video_was_made_of_it_is_played_by_name_only(tmp_path: Path) -> None:
    raw = Topic('/front/image_raw', IMAGE, 'x\n')
    picture = serialized(image(START, np.zeros((4, 8), np.uint8), 'mono8', 8, 4))
    record(tmp_path / 'a', access_units())
    with Recorder(tmp_path / 'a', ledger=CopyLedger()) as recorder:
        assert recorder.put_message(raw, picture, START + S)
    assert len(played(replay(tmp_path / 'a'))) == 1
    assert (
        len(played(replay(tmp_path / 'a', replay_topic=TOPIC.name, width=64, height=48))) == COUNT
    )


@pytest.mark.parametrize(
    ('kind', 'options', 'message'),
    [
        ('h266', {}, r"format 'h266' is none of h264, h265, vp9, av1"),
        ('h264', {'tune': 'film', 'bf': '2', 'b-adapt': '0'}, r'has B-frames.*max_b_frames: 0'),
    ],
)
def test_what_can_not_be_played_is_named(
    kind: str, options: dict[str, str], message: str, tmp_path: Path
) -> None:
    folder = record(tmp_path / 'a', access_units(**options), kind)
    with pytest.raises((ConfigError, RecordingError), match=message):
        played(replay(folder))
