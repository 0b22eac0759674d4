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
Video topics of recordings: each message's picture at its own time, from the first key frame on.

What can't be played is named.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
from camera.replay_kit import IMAGE, image, played, replay, serialized
from camera.test_black_box import video
from camera.video_kit import frame_of, psnr, scene
import numpy as np
import pytest

from zc_perception.camera.mcap_file import Topic
from zc_perception.camera.recording import BlackBox, Recorder, VIDEO, write_event
from zc_perception.camera.replay.bag import DEFINITION
from zc_perception.errors import ConfigError, RecordingError
from zc_perception.memory.ledger import CopyLedger
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range

pytestmark = pytest.mark.usefixtures('no_fd_leak')
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
