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

"""Recordings: other readers, bad disks, and files that a kill has cut."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
import errno
from functools import partial
import os
from pathlib import Path
import random
import resource
import shutil
import struct
from types import SimpleNamespace
from typing import Any

from camera.replay_kit import Gate, planes_of, played, replay, STORE
from camera.video_kit import compressed_video
import cv2
from frame_kit import next_frame
from mcap.reader import make_reader
from mcap.records import Message
from mcap.stream_reader import StreamReader
import numpy as np
import pytest
from rosbags.rosbag2 import Reader
from waiting import until
import yaml

from zc_perception.camera.mcap_file import finish_recording, Topic
from zc_perception.camera.recording import (
    BlackBox,
    is_key_frame,
    Limits,
    Recorder,
    Snapshot,
    VIDEO,
    write_event,
)
from zc_perception.errors import ConfigError, FormatError, RecordingError
from zc_perception.frame import Frame, Header
from zc_perception.memory.ledger import CopyLedger, LedgerEntry
from zc_perception.memory.pool import BufferPool
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range, Transfer
from zc_perception.pixel.fourcc import fourcc_code

pytestmark = pytest.mark.usefixtures('no_fd_leak')
PERIOD, START = 40_000_000, 1_700_000_000_000_000_000
MakePool = Callable[..., BufferPool]
BT709_FULL = Colorimetry(Matrix.BT709, Range.FULL, Transfer.SRGB)
NOTE = Topic('/note', 'std_msgs/msg/String', 'string data\n')
HELLO = b'\0\1\0\0\x06\0\0\0hello\0'
# A topic with large messages, as a map that is published again and again.
MAP = NOTE._replace(name='/map')
LARGE = b'\0\1\0\0' + (700_000).to_bytes(4, 'little') + b'm' * 699_999 + b'\0'
to = partial(Recorder, ledger=CopyLedger())


@pytest.fixture(autouse=True)
def _no_disk_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a recorder's thread as long as it takes on a busy machine, not only 3 s."""
    monkeypatch.setattr(Recorder.close, '__defaults__', (60.0,))


def publish(pool: BufferPool, index: int) -> Frame:
    header = Header(START + index * PERIOD, 'lens')
    frame = next_frame(pool, 7 * index, header=header, colorimetry=BT709_FULL)
    rng = np.random.default_rng(index)
    with frame.map(write=True) as planes:
        for plane in planes:
            plane[...] = rng.integers(0, np.iinfo(plane.dtype).max + 1, plane.shape, plane.dtype)
    return frame


def put(recorder: Recorder, pool: BufferPool, *indexes: int) -> list[tuple[Any, ...]]:
    kept = []
    for index in indexes:
        with publish(pool, index) as frame:
            kept.append(planes_of(frame))
            assert recorder.put(frame, '/image_raw')
    return kept


def record(folder: Path, pool: BufferPool, count: int, **limits: int) -> list[tuple[Any, ...]]:
    """Record *count* frames with a note after each; return the frames' planes."""
    with to(folder, limits=Limits(**limits)) as recorder:
        kept = []
        for index in range(count):
            kept += put(recorder, pool, index)
            assert recorder.put_message(NOTE, HELLO, index)
    assert recorder.statistics().recorded == count and not recorder.failed
    return kept


def same(found: Any, expected: Any) -> bool:
    return all(
        a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(found, expected, strict=True)
    )


def by_rosbags(path: Path) -> list[tuple[str, bytes]]:
    """Return topics and pixels or contents as rosbags reads them."""
    with Reader(path) as reader:
        assert reader.message_count == sum(topic.msgcount for topic in reader.topics.values())
        return [
            (connection.topic, STORE.deserialize_cdr(content, connection.msgtype).data)
            for connection, _, content in reader.messages()
        ]


def by_stream(path: Path) -> int:
    """Return how many messages MCAP's own library reads without an index."""
    count = 0
    with path.open('rb') as file, suppress(Exception):  # the cut may be anywhere
        for record in StreamReader(file, validate_crcs=True).records:
            count += isinstance(record, Message)
    return count


@pytest.mark.parametrize(('fourcc', 'encoding', 'layout'), [
    ('NV12', 'nv12', {'stride_align': 256, 'height_align': 64, 'offset_align': 4096}),
    ('NV12', 'nv12', {'buffer_per_plane': True, 'stride_align': 96}),
    ('YUYV', 'yuyv', {'stride_align': 160}), ('P010', 'P010', {'stride_align': 256}),
    ('R8  ', 'mono8', {}), ('YU12', 'YU12', {'stride_align': 128}), ('UYVY', 'uyvy', {}),
    ('BG24', 'rgb8', {'stride_align': 96}),
])  # fmt: skip
def test_every_reader_gets_what_was_recorded(
    fourcc: str, encoding: str, layout: dict[str, Any], tmp_path: Path, make_pool: MakePool
) -> None:
    pool, ledger = make_pool(62, 46, fourcc=fourcc_code(fourcc), layout=layout), CopyLedger()
    kept, stamps = record(tmp_path / 'a', pool, 4), [START + i * PERIOD for i in range(4)]
    camera = replay(
        tmp_path / 'a', ledger=ledger, stamps='recorded', constraints={'stride_align': 192}
    )
    assert camera.notices() == () and camera.framerate == 25.0
    found = played(camera)
    assert [(f.header, f.data.colorimetry, f.data.fourcc) for f, _ in found] == [
        (Header(stamp, 'lens'), BT709_FULL, fourcc_code(fourcc)) for stamp in stamps
    ]
    assert all(same(planes, expected) for (_, planes), expected in zip(found, kept, strict=True))
    assert ledger.entries()['decode'].count == 4
    pixels = [b''.join(plane.tobytes() for plane in planes) for planes in kept]
    others = by_rosbags(tmp_path / 'a')
    assert [bytes(data) for topic, data in others if topic == '/image_raw'] == pixels
    assert [data for topic, data in others if topic == '/note'] == ['hello'] * 4
    with (tmp_path / 'a' / 'a_0.mcap').open('rb') as file:
        reader = make_reader(file, validate_crcs=True)
        messages = list(reader.iter_messages('/image_raw'))
        for number, (_, _, message) in enumerate(messages):
            assert (message.sequence, message.publish_time) == (7 * number, stamps[number])
        image = STORE.deserialize_cdr(messages[0][2].data, 'sensor_msgs/msg/Image')
        assert (image.width, image.height, image.encoding) == (62, 46, encoding)
        assert messages[0][1].metadata['matrix'] == 'bt709'
        assert [record.name for record in reader.iter_metadata()] == ['rosbag2']
    scaled = replay(tmp_path / 'a', width=32, height=24)
    assert (scaled.width, scaled.height) == (32, 24) and len(played(scaled)) == 4


class Disk:
    """A file whose third write waits for *gate*, and which is full after *room* bytes."""

    def __init__(self, path: Path, gate: Gate | None = None, room: int = 1 << 40) -> None:
        self._file = path.open('xb', buffering=0)
        self._gate, self._room, self._writes = gate, room, 0
        self.fileno, self.seek = self._file.fileno, self._file.seek
        self.truncate, self.close = self._file.truncate, self._file.close

    def write(self, content: Any) -> int:
        self._writes += 1
        if self._gate is not None and self._writes == 3:
            self._gate.wait()
        room = self._room - self._file.tell()
        if not room:
            raise OSError(errno.ENOSPC, 'No space left on device')
        # A disk may write less than it was given.
        return self._file.write(content[: min(100, room)])


SIZE = 16 * 8 * 3 // 2


def test_a_slow_disk_costs_the_recorder_frames_and_the_producer_nothing(
    tmp_path: Path, make_pool: MakePool
) -> None:
    gate, pool, kept = Gate(), make_pool(16, 8, slots=2), []
    with to(
        tmp_path / 'a', limits=Limits(5 * SIZE), open_output=partial(Disk, gate=gate)
    ) as recorder:
        for index in range(20):
            # The producer has two slots; if the recorder kept one, none would be free soon.
            with publish(pool, index) as frame:
                if recorder.put(frame, '/image_raw'):
                    kept.append((index, planes_of(frame)))
        statistics = pool.statistics()
        assert (statistics.exhausted, statistics.holders) == (0, {})
        assert gate.reached.wait(60.0)
        assert [index for index, _ in kept] == [0, 1, 2, 3, 4]
        assert recorder.put_message(NOTE, bytes(5 * SIZE), 1)
        assert not recorder.put_message(NOTE, b'1', 1), 'its memory is full too'
        assert (recorder.statistics().dropped, recorder.statistics().waiting) == (16, 6)
        gate.opened.set()
    assert recorder.statistics().recorded == 5 and recorder.statistics().waiting == 0
    found = played(replay(tmp_path / 'a'))
    assert all(same(planes, found[number][1]) for number, (_, planes) in enumerate(kept))


@pytest.mark.parametrize(
    ('rest', 'advice'),
    [(15_000, ''), (500, "; if there is room, zc_record --repair '{}' finishes the file")],
)
def test_a_full_disk_ends_the_recording_with_what_was_said_to_be_kept(
    rest: int, advice: str, tmp_path: Path, make_pool: MakePool
) -> None:
    folder, pool, room = tmp_path / 'a', make_pool(160, 120), 3 * 160 * 120 + 1500 + rest
    with to(folder, open_output=partial(Disk, room=room)) as recorder:
        kept = put(recorder, pool, 0, 1, 2)
        until(lambda: recorder.failed, 'the disk is full')
        with publish(pool, 9) as frame:
            assert not recorder.put(frame, '/image_raw')
    statistics = recorder.statistics()
    reason = f"recording to '{folder}' has ended: No space left on device"
    assert (statistics.failure, statistics.recorded) == (reason + advice.format(folder), 2)
    assert not statistics.dropped, 'a full disk is not a slow one'
    assert (folder / 'metadata.yaml').exists() == (not advice)
    found = played(replay(folder))
    assert len(found) == 2 and all(map(same, [planes for _, planes in found], kept))
    finish_recording(folder)
    assert [topic for topic, _ in by_rosbags(folder)] == ['/image_raw'] * 2


def test_a_recording_ends_while_its_disk_has_room_left(
    tmp_path: Path, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [10 << 20]
    monkeypatch.setattr(
        'zc_perception.camera.recording.os.statvfs',
        lambda path: os.statvfs_result((1, 1, 0, 0, free[0], 0, 0, 0, 0, 255)),
    )
    limits = Limits(floor_bytes=8 << 20)
    with to(tmp_path / 'a', limits=limits) as recorder:
        kept = put(recorder, make_pool(16, 8), 0, 1)
        free[0] = 7 << 20
        until(lambda: recorder.failed, 'it sees that')
    said = f"'{tmp_path / 'a'}' has 7 MiB free, less than 'disk_floor' (8 MiB)"
    assert recorder.statistics().failure == f"recording to '{tmp_path / 'a'}' has ended: {said}"
    assert len(by_rosbags(tmp_path / 'a')) == len(kept)
    with pytest.raises(ConfigError, match=r'has 7 MiB free'):
        to(tmp_path / 'b', limits=limits)


def test_a_stuck_disk_is_given_up_with_what_it_did_not_take(
    tmp_path: Path, make_pool: MakePool
) -> None:
    folder, gate, pool = tmp_path / 'a', Gate(), make_pool(16, 8)
    recorder = to(folder, open_output=partial(Disk, gate=gate))
    put(recorder, pool, 0, 1, 2)
    assert gate.reached.wait(60.0) and not recorder.failed
    assert not recorder.close(stuck_s=0.1) and recorder.failed
    assert (
        recorder.statistics().failure
        == f"'{folder}': its disk has accepted nothing for 0.1 s; 3 messages could not be written"
    )
    assert not recorder.close(), 'it is not waited for again'
    gate.opened.set()
    recorder._thread.join(60.0)  # it ends by itself when the write returns
    assert recorder.close() and len(played(replay(folder))) == 3


def test_files_are_split_by_size_and_time_and_format(tmp_path: Path, make_pool: MakePool) -> None:
    def parts(name: str) -> list[list[str]]:
        files = sorted((tmp_path / name).glob('*.mcap'))
        return [[topic for topic, _ in by_rosbags(file)] for file in files]

    pool, other = make_pool(160, 120), make_pool(32, 16)
    record(tmp_path / 'size', pool, 5, split_bytes=40_000)
    assert [len(part) for part in parts('size')] == [3, 4, 3]
    latched = NOTE._replace(name='/latched')
    with to(tmp_path / 'time', limits=Limits(split_ns=10)) as recorder:
        assert recorder.put_message(latched, HELLO, START, latched=True)
        for offset in (1, 9, 10, 25):
            assert recorder.put_message(NOTE, HELLO, START + offset)
    with to(tmp_path / 'large', limits=Limits(split_ns=10)) as recorder:
        for offset in (0, 1, 2, 20):
            assert recorder.put_message(latched, HELLO, START + offset, latched=True)
            assert recorder.put_message(MAP, LARGE, START + offset, latched=True)
    assert parts('large')[1].count('/latched') == 4 and parts('large')[1].count('/map') == 2
    first, *rest = parts('time')
    assert first == ['/latched', '/note', '/note'] and rest == [['/latched', '/note']] * 2
    with to(tmp_path / 'form') as recorder:
        for index, each in enumerate((pool, other, other)):
            put(recorder, each, index)
    assert [len(part) for part in parts('form')] == [1, 2]
    assert len(played(replay(tmp_path / 'form' / 'form_1.mcap'))) == 2
    camera = replay(tmp_path / 'form')
    with pytest.raises(RecordingError, match='changes from 160x120 to 32x16'):
        played(camera)


def test_a_recording_goes_on_in_its_folder(tmp_path: Path, make_pool: MakePool) -> None:
    pool = make_pool(16, 8)
    record(tmp_path / 'a', pool, 2)
    record(tmp_path / 'a', pool, 1)
    assert len(played(replay(tmp_path / 'a'))) == 3
    listed = yaml.safe_load((tmp_path / 'a' / 'metadata.yaml').read_text())
    information = listed['rosbag2_bagfile_information']
    assert information['relative_file_paths'] == ['a_0.mcap', 'a_1.mcap']
    assert [file['message_count'] for file in information['files']] == [4, 2]


@pytest.mark.parametrize(('name', 'message'), [
    ('a.mcap', r'is a folder; leave \.mcap out of the name'),
    ('file', "'.*/file' is a file; set parameter 'path' to another folder"),
    ('file/a', "can't be made: Not a directory; set parameter 'path' to another folder"),
    ('other', 'has a recording of another kind; choose another path'),
])  # fmt: skip
def test_folders_that_can_not_be_written_are_named(
    name: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / 'file').touch()
    (tmp_path / 'other').mkdir()
    (tmp_path / 'other' / 'metadata.yaml').write_bytes(b'precious')
    with pytest.raises(ConfigError, match=message):
        to(tmp_path / name)
    assert (tmp_path / 'other' / 'metadata.yaml').read_bytes() == b'precious'


def test_frames_that_can_not_be_recorded_are_refused_with_the_reason(tmp_path: Path) -> None:
    layout = SimpleNamespace(modifier=1, describe=lambda: 'NV12 tiled')
    tiled: Any = SimpleNamespace(data=SimpleNamespace(layout=layout))
    with to(tmp_path / 'a') as recorder:
        assert not recorder.put(tiled, '/image_raw')
    assert recorder.statistics().refused == 1 and not recorder.failed
    assert 'NV12 tiled can not be recorded: only LINEAR' in recorder.statistics().failure
    with pytest.raises(FormatError, match='NV12 tiled has no rows that the CPU can read'):
        Snapshot.of(tiled, CopyLedger())


def test_a_stamp_that_mcap_or_ros_can_not_have_costs_no_other_frame(
    tmp_path: Path, make_pool: MakePool
) -> None:
    pool, times = make_pool(16, 8), ((-5 * 10**9, True), (1 << 62, False), (START, True))
    with to(tmp_path / 'a') as recorder:
        assert recorder.put_message(NOTE, HELLO, -5)  # before a machine without a clock has set it
        for stamp_ns, fine in times:
            with next_frame(pool, 1, header=Header(stamp_ns, 'lens')) as frame:
                assert recorder.put(frame, '/image_raw') is fine
                if fine:
                    assert Snapshot.of(frame, CopyLedger()).write(tmp_path, 'a')
    assert not recorder.failed and recorder.statistics().refused == 1
    assert 'outside of the range of a ROS time' in recorder.statistics().failure
    with Reader(tmp_path / 'a') as reader:
        _, *read = (STORE.deserialize_cdr(m[2], m[0].msgtype) for m in reader.messages())
    assert [message.header.stamp.sec for message in read] == [-5, START // 10**9]


# Files after a kill or a power cut.


def killed(folder: Path, pool: BufferPool, frames: int) -> Path:
    """Return a recording whose second file lacks its end, as after a kill."""
    record(folder, pool, 2)
    recorder = to(folder)
    put(recorder, pool, *range(2, 2 + frames))
    path = folder / f'{folder.name}_1.mcap'
    until(lambda: not recorder.statistics().waiting, 'all is written')
    until(lambda: recorder._part is not None, 'the file is open')
    shutil.copy(path, folder / 'copy')
    recorder.close()
    (folder / 'copy').rename(path)
    return path


def test_whatever_was_cut_off_all_whole_chunks_are_played_and_finished(
    tmp_path: Path, make_pool: MakePool
) -> None:
    """Cut it at 8 random places, and zero blocks that never reached the disk."""
    pool, chance = make_pool(160, 120), random.Random(5)
    path = killed(tmp_path / 'a', pool, 10)
    whole, chunk = path.read_bytes(), 160 * 120 * 3 // 2 + 300
    closed = (path.parent / 'a_0.mcap').read_bytes()
    metadata = (path.parent / 'metadata.yaml').read_text()
    for size in [len(whole), *(chance.randrange(60, len(whole)) for _ in range(8))]:
        for filler in (b'', bytes(len(whole) - size)):
            path.write_bytes(whole[:size] + filler)
            (path.parent / 'metadata.yaml').write_text(metadata)
            path.chmod(0o444)
            camera = replay(path.parent, stamps='recorded')
            (notice,) = camera.notices()
            assert "no end in 'a_1.mcap': the recorder was killed, or a file was" in notice
            assert f"part is played; zc_record --repair '{path.parent}'" in notice
            found = [frame.header.stamp_ns for frame, _ in played(camera)]
            assert found == [START + index * PERIOD for index in range(len(found))]
            assert len(found) - 2 >= (size - 1500) // chunk
            assert by_stream(path) >= len(found) - 2
            assert path.read_bytes() == whole[:size] + filler, 'playing writes nothing'
            path.chmod(0o644)
            _, done = finish_recording(path.parent)
            assert any('had no end' in sentence for sentence in done)
            assert len(by_rosbags(path.parent)) == len(found) + 2
            assert finish_recording(path.parent)[1] == [], 'once'
            assert (path.parent / 'a_0.mcap').read_bytes() == closed


@pytest.mark.parametrize('content', [b'', bytes(5000), None])
def test_a_file_that_is_empty_or_whose_footer_is_wrong_is_no_hindrance(
    content: bytes | None, tmp_path: Path, make_pool: MakePool
) -> None:
    pool = make_pool(16, 8)
    record(tmp_path / 'a', pool, 1)
    if content is None:
        damaged = bytearray((tmp_path / 'a' / 'a_0.mcap').read_bytes())
        struct.pack_into('<Q', damaged, len(damaged) - 8 - 20, (1 << 63) - 1)
        content = bytes(damaged)
    (tmp_path / 'a' / 'a_1.mcap').write_bytes(content)
    with to(tmp_path / 'a') as recorder:
        (said,) = [said for said in recorder.notices if "a_1.mcap' can't be read: " in said]
        assert said.endswith('this file is left out')
        put(recorder, pool, 1)
    camera = replay(tmp_path / 'a')
    (notice,) = camera.notices()
    assert "a_1.mcap' can't be read: " in notice and notice.endswith('this file is left out')
    assert len(played(camera)) == 2
    assert len(by_rosbags(tmp_path / 'a')) == 3
    assert (tmp_path / 'a' / 'a_1.mcap').read_bytes() == content


def test_a_copy_that_broke_off_before_the_last_file_is_named(
    tmp_path: Path, make_pool: MakePool
) -> None:
    pool = make_pool(16, 8)
    for _ in range(2):
        record(tmp_path / 'a', pool, 2)
    file = tmp_path / 'a' / 'a_0.mcap'
    file.write_bytes(file.read_bytes()[:-100])
    camera = replay(tmp_path / 'a')
    (notice,) = camera.notices()
    assert "no end in 'a_0.mcap'" in notice
    assert len(played(camera)) == 4


def test_a_file_that_was_not_copied_is_named(tmp_path: Path, make_pool: MakePool) -> None:
    for _ in range(3):
        record(tmp_path / 'a', make_pool(16, 8), 1)
    file = tmp_path / 'a' / 'a_1.mcap'
    file.unlink()
    sentence = f"'{file}' is missing, but metadata.yaml lists it"
    camera = replay(tmp_path / 'a')
    assert camera.notices() == (sentence,)
    assert len(played(camera)) == 2
    assert finish_recording(tmp_path / 'a')[1][0] == sentence


@pytest.mark.parametrize('size', [1 << 45, (1 << 63) + 1])
def test_a_chunk_whose_length_is_damaged_costs_only_what_follows_it(
    size: int, tmp_path: Path, make_pool: MakePool
) -> None:
    path = killed(tmp_path / 'a', make_pool(16, 8), 3)
    damaged, at, chunks = bytearray(path.read_bytes()), 8, []
    while at < len(damaged):
        kind, length = struct.unpack_from('<BQ', damaged, at)
        chunks += [at] if kind == 6 else []
        at += 9 + length
    struct.pack_into('<Q', damaged, chunks[2] + 9 + 16, size)
    path.write_bytes(damaged)
    assert len(played(replay(path.parent))) == 2 + 2
    assert any('its 2 complete messages' in said for said in finish_recording(path.parent)[1])
    assert len(by_rosbags(path.parent)) == 2 + 2 + 2


def test_a_file_whose_end_has_no_room_is_not_called_finished(
    tmp_path: Path, make_pool: MakePool
) -> None:
    """Once there is room, it is finished, though the metadata are no text."""
    path = killed(tmp_path / 'a', make_pool(16, 8), 3)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limits[1]))
    try:
        with pytest.raises(ConfigError, match="can't be finished: File too large; make room"):
            finish_recording(path.parent)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (path.parent / 'metadata.yaml').write_bytes(b'\xff')
    done = finish_recording(path.parent)[1]
    assert any('its 3 complete messages' in said for said in done)
    assert any('lists 2 files' in said for said in done)
    assert len(by_rosbags(path.parent)) == 2 + 3 + 2


def test_what_is_still_being_recorded_is_left_alone(tmp_path: Path, make_pool: MakePool) -> None:
    pool = make_pool(16, 8)
    with to(tmp_path / 'a') as recorder:
        with pytest.raises(ConfigError, match=r"another recorder writes to '.*a'; end it, or set"):
            to(tmp_path / 'a')
        put(recorder, pool, 0, 1)
        until(lambda: recorder.statistics().recorded == 2, 'both are written')
        with pytest.raises(ConfigError, match=r"a_0\.mcap' is still being recorded"):
            finish_recording(tmp_path / 'a')
        camera = replay(tmp_path / 'a')
        (notice,) = camera.notices()
        assert notice.endswith("a_0.mcap' is still being recorded; what it has now is played")
        assert len(played(camera)) == 2, 'what is there can be played'
    assert len(by_rosbags(tmp_path / 'a')) == 2


# The black box: the part that it keeps, which must begin with a decodable picture.

S = 1_000_000_000
FRONT, REAR = (Topic(f'/{name}/image_raw/foxglove', VIDEO, 'x\n') for name in ('front', 'rear'))
STATIC = NOTE._replace(name='/tf')
# Encoded pictures with what encoders put before them: key frames, and others.
KEYS = {'h264': b'\0\0\0\1\x67ps\0\0\0\1\x68pp\0\0\1\x65', 'h265': b'\0\0\0\1\x40vps\0\0\1\x2a\1'}
OTHERS = {'h264': b'\0\0\0\1\x67ps\0\0\0\1\x41', 'h265': b'\0\0\0\1\x02\1\0\0\1\x45'}


@pytest.mark.parametrize('kind', ['h264', 'h265'])
@pytest.mark.parametrize('frame_id', ['', 'lens', 'front_optical_frame'])
def test_a_key_frame_is_known_by_its_slices(kind: str, frame_id: str) -> None:
    assert is_key_frame(compressed_video(frame_id, KEYS[kind] + bytes(99), kind))
    assert not is_key_frame(compressed_video(frame_id, OTHERS[kind] + bytes(99), kind))
    assert not is_key_frame(b'\0\1\0\0')


def drive(box: BlackBox, begin_s: float, end_s: float, *videos: Topic, group: int = 10) -> None:
    """Write ten pictures and notes a second; every *group*-th picture is a key frame."""
    for tick in range(round(begin_s * 10), round(end_s * 10)):
        now_ns = START + tick * S // 10
        for topic in videos:
            data = KEYS['h264'] if tick % group == 0 else OTHERS['h264']
            box.take(topic, compressed_video('lens', data + bytes(1000)), now_ns)
        box.take(NOTE, b'\0\1\0\0\2\0\0\0a\0', now_ns)


def event(box: Any, now_s: float, folder: Path) -> tuple[list[tuple[str, int, bytes]], str]:
    """Return what an event's recording has, and what was said of it."""
    now_ns = START + round(now_s * S)
    said = write_event(box.last(now_ns), folder / 'events', now_ns)
    (recording,) = (folder / 'events').iterdir()
    files = {path.name for path in recording.iterdir()}
    assert files == {f'{recording.name}_0.mcap', 'metadata.yaml'}
    with Reader(recording) as reader:
        found = [(c.topic, time_ns - START, data) for c, time_ns, data in reader.messages()]
    return found, said


def test_the_last_seconds_of_two_cameras_begin_with_key_frames(tmp_path: Path) -> None:
    box = BlackBox(5.0, 1 << 20)
    box.take(STATIC, b'\0\1\0\0\2\0\0\0s\0', START, latched=True)
    for _ in range(3):
        box.take(MAP, LARGE, START, latched=True)
    drive(box, 0, 20.5, FRONT, REAR)
    kept_s, kept_bytes, videos = box.held(START + 20 * S)
    assert kept_s == 5.0 and videos == (FRONT.name, REAR.name)
    assert kept_bytes < 9 * 10 * 2 * 1200, 'no more than the window and a group'
    found, said = event(box, 20.5, tmp_path)
    assert said.startswith(f'{len(found)} messages of 5.4 s in ')
    assert [name for name, *_ in found[:3]] == [STATIC.name, '/map', FRONT.name]
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
    found, _ = event(SimpleNamespace(last=lambda now_ns: chosen), 39, tmp_path)
    pictures = [at for name, at, _ in found if name == FRONT.name]
    assert pictures == [tick * S // 10 for tick in range(200, 395)]
    assert next(at for name, at, _ in found if name == NOTE.name) == 37 * S


def test_before_anything_came_and_without_an_encoder_nothing_is_kept(tmp_path: Path) -> None:
    box, now_ns = BlackBox(5.0, 1 << 20), START + 3 * S
    drive(box, 0, 3)
    assert box.held(now_ns) == (0.0, 0, ())
    for _ in range(2):
        with pytest.raises(RecordingError, match='no key frame of a video has arrived; is an enc'):
            write_event(box.last(now_ns), tmp_path / 'events', now_ns)
        box.take(FRONT, compressed_video('lens', OTHERS['h264']), now_ns)
    assert not (tmp_path / 'events').exists()


def test_of_an_encoder_that_died_what_it_made_is_written_and_said(tmp_path: Path) -> None:
    box = BlackBox(10.0, 1 << 20)
    drive(box, 0, 20, FRONT, REAR)
    drive(box, 20, 26, FRONT)
    found, said = event(box, 26, tmp_path)
    assert said.endswith(f'; {REAR.name} ended 6.1 s before the event')
    rear = [at for name, at, _ in found if name == REAR.name]
    assert (rear[0], rear[-1]) == (16 * S, 199 * S // 10)
    drive(box, 26, 60)
    assert box.held(START + 60 * S) == (0.0, 0, ()), 'nothing is kept without video'


def test_memory_has_a_limit(tmp_path: Path) -> None:
    box = BlackBox(60.0, 50_000)
    drive(box, 0, 30, FRONT)
    assert 40_000 < box.held(START + 30 * S)[1] <= 51_100
    pictures = [content for name, _, content in event(box, 30, tmp_path)[0] if name == FRONT.name]
    assert is_key_frame(pictures[0]) and 30 <= len(pictures) <= 50


# Snapshots of a frame.

BASE = f'capture_{START // S}_000000000'


def snapshot_of(pool: BufferPool, ledger: CopyLedger) -> tuple[Snapshot, Any]:
    with publish(pool, 0) as frame:
        return Snapshot.of(frame, ledger), planes_of(frame)


@pytest.mark.parametrize('name', ['NV12', 'YUYV', 'P010', 'R8  ', 'YU12'])
def test_a_snapshot_comes_back_bit_by_bit_with_its_colours(
    name: str, tmp_path: Path, make_pool: MakePool
) -> None:
    pool = make_pool(66, 34, fourcc=fourcc_code(name), layout={'stride_align': 128})
    snapshot, planes = snapshot_of(pool, ledger := CopyLedger())
    base = tmp_path / 'a' / 'b' / BASE
    recording, png = snapshot.write(base.parent, 'capture')
    assert (str(recording), str(png)) == (f'{base}.mcap', f'{base}.png')
    ((frame, back),) = played(replay(recording))
    assert same(back, planes)
    assert (frame.data.fourcc, frame.data.colorimetry) == (fourcc_code(name), BT709_FULL)
    picture = cv2.imread(str(png), cv2.IMREAD_UNCHANGED)
    assert picture.shape == ((34, 66) if name == 'R8  ' else (34, 66, 3))
    assert np.array_equal(picture, snapshot.picture())
    size = sum(plane.nbytes for plane in planes)
    assert ledger.entries() == {'snapshot': LedgerEntry(1, size)}


def test_what_nobody_here_reads_is_kept_without_a_picture(
    tmp_path: Path, make_pool: MakePool
) -> None:
    with next_frame(make_pool(64, 32, fourcc=fourcc_code('NV15'))) as frame:
        snapshot = Snapshot.of(frame, CopyLedger())
    assert snapshot.picture() is None
    assert [path.suffix for path in snapshot.write(tmp_path, 'capture')] == ['.mcap']


def test_no_snapshot_is_overwritten_and_a_full_disk_leaves_none(
    tmp_path: Path, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot, _ = snapshot_of(make_pool(16, 16), CopyLedger())
    taken = tmp_path / f'{BASE}.png'
    taken.write_text('mine')
    names = [snapshot.write(tmp_path, 'capture')[0].name for _ in range(2)]
    assert names == [f'{BASE}_2.mcap', f'{BASE}_3.mcap'] and taken.read_text() == 'mine'
    assert len(list(tmp_path.iterdir())) == 5, 'what was begun under a name that is taken is gone'
    real = Path.open

    def full(path: Path, mode: str = 'r', *args: Any, **options: Any) -> Any:
        if path.suffix == '.png':
            raise OSError(errno.ENOSPC, 'No space left on device', str(path))
        return real(path, mode, *args, **options)

    monkeypatch.setattr(Path, 'open', full)
    (tmp_path / 'full').mkdir()
    with pytest.raises(OSError, match='No space left on device'):
        snapshot.write(tmp_path / 'full', 'capture')
    assert list((tmp_path / 'full').iterdir()) == []
