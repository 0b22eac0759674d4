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

"""The black box: what it keeps, and that what it writes begins with a picture that can be read."""

from __future__ import annotations

from pathlib import Path
import struct

import pytest
from rosbags.rosbag2 import Reader

from zc_perception.camera.mcap_file import Topic
from zc_perception.camera.recording import BlackBox, is_key_frame, VIDEO, write_event
from zc_perception.errors import RecordingError

S = 1_000_000_000
START = 1_700_000_000 * S
FRONT, REAR = (Topic(f'/{name}/image_raw/foxglove', VIDEO, 'x\n') for name in ('front', 'rear'))
NOTE, STATIC = (Topic(name, 'std_msgs/msg/String', 'string data\n') for name in ('/note', '/tf'))
# What encoders put before: parameter sets, and what is no key frame.
KEYS = {'h264': b'\0\0\0\1\x67ps\0\0\0\1\x68pp\0\0\1\x65', 'h265': b'\0\0\0\1\x40vps\0\0\1\x2a\1'}
OTHERS = {'h264': b'\0\0\0\1\x67ps\0\0\0\1\x41', 'h265': b'\0\0\0\1\x02\1\0\0\1\x45'}


def video(frame_id: str, data: bytes, kind: str = 'h264') -> bytes:
    """Return a serialised ``CompressedVideo``."""
    text = frame_id.encode() + b'\0'
    body = struct.pack('<iII', 1, 2, len(text)) + text + bytes(-len(text) % 4)
    body += struct.pack('<I', len(data)) + data
    body += bytes(-len(body) % 4) + struct.pack('<I', 5) + kind.encode() + b'\0'
    return b'\0\1\0\0' + body


@pytest.mark.parametrize('kind', ['h264', 'h265'])
@pytest.mark.parametrize('frame_id', ['', 'lens', 'front_optical_frame'])
def test_a_key_frame_is_known_by_its_slices(kind: str, frame_id: str) -> None:
    assert is_key_frame(video(frame_id, KEYS[kind] + bytes(99), kind))
    assert not is_key_frame(video(frame_id, OTHERS[kind] + bytes(99), kind))
    assert not is_key_frame(b'\0\1\0\0')


def drive(box: BlackBox, begin_s: float, end_s: float, *videos: Topic, group: int = 10) -> None:
    """Ten pictures and notes a second; a key frame each second, or so many pictures."""
    for tick in range(round(begin_s * 10), round(end_s * 10)):
        now_ns = START + tick * S // 10
        for topic in videos:
            data = KEYS['h264'] if tick % group == 0 else OTHERS['h264']
            box.take(topic, video('lens', data + bytes(1000)), now_ns)
        box.take(NOTE, b'\0\1\0\0\2\0\0\0a\0', now_ns)


def written(folder: Path) -> list[tuple[str, int, bytes]]:
    (recording,) = folder.iterdir()
    assert [path.name for path in sorted(recording.iterdir())] == [
        f'{recording.name}_0.mcap',
        'metadata.yaml',
    ]
    with Reader(recording) as reader:
        return [(c.topic, time_ns - START, content) for c, time_ns, content in reader.messages()]


def test_the_last_seconds_of_two_cameras_begin_with_key_frames(tmp_path: Path) -> None:
    box = BlackBox(5.0, 1 << 20)
    box.take(STATIC, b'\0\1\0\0\2\0\0\0s\0', START, latched=True)
    drive(box, 0, 20.5, FRONT, REAR)
    kept_s, kept_bytes, videos = box.held(START + 20 * S)
    assert kept_s == 5.0 and videos == (FRONT.name, REAR.name)
    assert kept_bytes < 9 * 10 * 2 * 1200, 'no more than the window and a group'
    said = write_event(box.last(START + 205 * S // 10), tmp_path / 'events', START + 205 * S // 10)
    found = written(tmp_path / 'events')
    assert said.startswith(f'{len(found)} messages of 5.4 s in ')
    assert found[0][0] == STATIC.name
    for topic in (FRONT, REAR):
        pictures = [(at, content) for name, at, content in found if name == topic.name]
        assert is_key_frame(pictures[0][1]) and pictures[0][0] == 15 * S
        assert len(pictures) == 55, 'nothing is missing'
    assert len([name for name, _, _ in found if name == NOTE.name]) == 50


def test_a_key_frame_that_is_long_ago_is_kept_and_a_trigger_has_what_came_before_it(
    tmp_path: Path,
) -> None:
    box = BlackBox(2.0, 1 << 20)
    drive(box, 0, 39.5, FRONT, group=200)
    chosen = box.last(START + 39 * S)
    drive(box, 39.5, 60, FRONT, group=200)
    write_event(chosen, tmp_path / 'events', START + 39 * S)
    found = written(tmp_path / 'events')
    pictures = [at for name, at, _ in found if name == FRONT.name]
    assert pictures == [tick * S // 10 for tick in range(200, 395)]
    assert next(at for name, at, _ in found if name == NOTE.name) == 37 * S


def test_before_anything_came_and_without_an_encoder_nothing_is_kept(tmp_path: Path) -> None:
    box = BlackBox(5.0, 1 << 20)
    drive(box, 0, 3)
    assert box.held(START + 3 * S) == (0.0, 0, ())
    with pytest.raises(RecordingError, match='no picture of a video came; is an encoder running'):
        write_event(box.last(START + 3 * S), tmp_path / 'events', START + 3 * S)
    box.take(FRONT, video('lens', OTHERS['h264']), START + 3 * S)
    with pytest.raises(RecordingError, match='no picture of a video came'):
        write_event(box.last(START + 3 * S), tmp_path / 'events', START + 3 * S)
    assert not (tmp_path / 'events').exists()


def test_of_an_encoder_that_died_what_it_made_is_written_and_said(tmp_path: Path) -> None:
    box = BlackBox(10.0, 1 << 20)
    drive(box, 0, 20, FRONT, REAR)
    drive(box, 20, 26, FRONT)
    said = write_event(box.last(START + 26 * S), tmp_path / 'events', START + 26 * S)
    assert said.endswith(f'; {REAR.name} ended 6.1 s before')
    rear = [at for name, at, _ in written(tmp_path / 'events') if name == REAR.name]
    assert (rear[0], rear[-1]) == (16 * S, 199 * S // 10)
    drive(box, 26, 60)
    assert box.held(START + 60 * S) == (0.0, 0, ()), 'nothing is kept without video'


def test_memory_has_a_limit(tmp_path: Path) -> None:
    box = BlackBox(60.0, 50_000)
    drive(box, 0, 30, FRONT)
    assert 40_000 < box.held(START + 30 * S)[1] <= 51_100
    write_event(box.last(START + 30 * S), tmp_path / 'events', START + 30 * S)
    found = [content for name, _, content in written(tmp_path / 'events') if name == FRONT.name]
    assert is_key_frame(found[0]) and 30 <= len(found) <= 50
