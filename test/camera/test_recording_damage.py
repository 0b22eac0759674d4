"""Recordings that were cut, spoilt or never were any: the frames that are whole, or a clear error."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from camera.recording_kit import PERIOD, START, MakePool, record, same
from camera.replay_kit import played, replay
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zc_perception.camera.recording import RecordingReader, RecordingSource
from zc_perception.errors import ConfigError

pytestmark = pytest.mark.usefixtures('no_fd_leak')


@pytest.fixture
def recorded(tmp_path: Path, make_pool: MakePool) -> tuple[Path, bytes, list[Any]]:
    path = tmp_path / 'a.zcr'
    kept = record(path, make_pool(16, 8), 3)
    return path, path.read_bytes(), kept


FRAME_BYTES = 48 + 4 + 16 * 8 * 3 // 2


def test_a_file_that_was_cut_is_read_up_to_the_last_whole_frame(recorded: tuple[Path, bytes, list[Any]]) -> None:
    path, content, kept = recorded
    end = struct.unpack('<Q', content[-8:])[0]
    start = end - 3 * FRAME_BYTES
    for size in (end, end + 5, len(content) - 1, end - 1, end - FRAME_BYTES + 10, start + FRAME_BYTES):
        path.write_bytes(content[:size])
        camera = replay(path)
        whole = min(3, (size - start) // FRAME_BYTES)
        assert f'{whole} whole frames were found' in camera.notices()[0]
        found = played(camera)
        assert len(found) == whole and all(same(planes, kept[i]) for i, (_, planes) in enumerate(found))
    for size in (start + FRAME_BYTES - 1, start):
        path.write_bytes(content[:size])
        with pytest.raises(ConfigError, match=r"recording '.*a\.zcr' has no whole frame"):
            replay(path)


def test_a_frame_whose_pixels_were_changed_is_left_out(recorded: tuple[Path, bytes, list[Any]]) -> None:
    path, content, kept = recorded
    spoilt = bytearray(content)
    spoilt[struct.unpack('<Q', content[-8:])[0] - FRAME_BYTES - 1] ^= 1
    path.write_bytes(spoilt)
    camera = replay(path)
    found = played(camera)
    assert [frame.data.sequence for frame, _ in found] == [0, 2] and camera.statistics().bad == 1
    assert same(found[1][1], kept[2])


@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_spoilt_file_gives_true_frames_or_a_clear_error(recorded: tuple[Path, bytes, list[Any]], data: st.DataObject) -> None:
    path, content, kept = recorded
    spoilt = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(spoilt) - 1))
        spoilt[at : at + data.draw(st.integers(0, 8))] = data.draw(st.one_of(st.binary(max_size=8), st.just(b'\xff' * 8)))
    path.write_bytes(spoilt)
    try:
        reader = RecordingReader(path)
    except ConfigError as error:
        assert 'a.zcr' in str(error)
        return
    with reader:
        for number in range(len(reader)):
            planes = reader.read_planes(number)
            assert planes is None or any(same(planes, expected) for expected in kept)


def describe(content: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file with another description, whose checksum is right."""
    length = struct.unpack_from('<I', content, 8)[0]
    found = json.loads(content[16 : 16 + length])
    change(found)
    text = json.dumps(found).encode()
    return content[:8] + struct.pack('<II', len(text), zlib.crc32(text)) + text + content[16 + length :]


@pytest.mark.parametrize(
    'change',
    [
        lambda d: d['planes'][0].update(buffer=10**15),
        lambda d: d['planes'][0].update(buffer=-1),
        lambda d: d['planes'][0].update(stride=1),
        lambda d: d.update(width=10**9),
        lambda d: d.update(width='16'),
        lambda d: d.update(modifier=1),
        lambda d: d.update(version=2),
        lambda d: d.update(fourcc='XXXX'),
        lambda d: d.update(range='wide'),
        lambda d: d.pop('planes'),
    ],
)
def test_a_description_that_can_not_be_is_refused(recorded: tuple[Path, bytes, list[Any]], change: Callable[[Any], object]) -> None:
    path, content, _ = recorded
    path.write_bytes(describe(content, change))
    with pytest.raises(ConfigError, match=r'a\.zcr'):
        replay(path)


def test_a_description_that_was_changed_is_refused(recorded: tuple[Path, bytes, list[Any]]) -> None:
    path, content, _ = recorded
    path.write_bytes(content.replace(b'"limited"', b'"full"   ').replace(b'"full"', b'"limited"', 1).replace(b'"bt709"', b'"bt601"', 1))
    with pytest.raises(ConfigError, match='is cut or changed'):
        replay(path)


def test_a_frame_s_head_that_was_changed_is_not_believed(recorded: tuple[Path, bytes, list[Any]]) -> None:
    path, content, _ = recorded
    head = bytearray(content)
    offset = struct.unpack('<Q', content[-8:])[0] - FRAME_BYTES
    head[offset + 8] ^= 1  # the sequence, which no other checksum covers
    path.write_bytes(head)
    camera = replay(path)
    assert [frame.data.sequence for frame, _ in played(camera)] == [0, 1] and camera.statistics().bad == 1


def test_a_first_frame_whose_head_was_changed_costs_that_frame_only(recorded: tuple[Path, bytes, list[Any]]) -> None:
    path, content, kept = recorded
    start = struct.unpack('<Q', content[-8:])[0] - 3 * FRAME_BYTES
    for at in (0, 5, 20, 47):
        spoilt = bytearray(content)
        spoilt[start + at] ^= 1
        path.write_bytes(spoilt)
        camera = replay(path, stamps='recorded')
        assert not camera.notices() and camera.framerate == 25.0
        found = played(camera)
        assert [frame.header.stamp_ns for frame, _ in found] == [START + PERIOD, START + 2 * PERIOD]
        assert same(found[0][1], kept[1]) and camera.statistics().bad == 1


def test_spoilt_frames_longer_than_the_rate_is_looked_for_do_not_move_the_others(tmp_path: Path, make_pool: MakePool) -> None:
    path, count = tmp_path / 'a.zcr', 67
    record(path, make_pool(8, 4), count)
    content = bytearray(path.read_bytes())
    size = 48 + 4 + 8 * 4 * 3 // 2
    start = struct.unpack('<Q', content[-8:])[0] - count * size
    for number in range(count - 2):
        content[start + number * size + 8] ^= 1
    path.write_bytes(content)
    with closing(RecordingSource(str(path))) as source:
        moments = []
        while (moment := source.advance()) is not None:
            moments.append(moment.time_ns)
    assert moments == [0] * (count - 1) + [PERIOD]


def test_a_file_without_one_sound_head_is_refused(recorded: tuple[Path, bytes, list[Any]]) -> None:
    path, content, _ = recorded
    spoilt = bytearray(content)
    start = struct.unpack('<Q', content[-8:])[0] - 3 * FRAME_BYTES
    for number in range(3):
        spoilt[start + number * FRAME_BYTES + 8] ^= 1
    path.write_bytes(spoilt)
    with pytest.raises(ConfigError, match='has no whole frame'):
        RecordingReader(path)


def test_an_index_that_points_elsewhere_is_made_anew(recorded: tuple[Path, bytes, list[Any]]) -> None:
    path, content, kept = recorded
    end = struct.unpack('<Q', content[-8:])[0]
    table = struct.pack('<QQQQ', 3, 3, 5, 7)
    path.write_bytes(content[:end] + b'INDX' + struct.pack('<I', zlib.crc32(table)) + table + content[-16:])
    found = played(replay(path))
    assert [same(planes, expected) for (_, planes), expected in zip(found, kept, strict=True)] == [True] * 3


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'', 'is no raw recording'),
        (b'RIFF' * 10, 'is no raw recording: it does not begin with ZCREC'),
        (b'ZCREC009' + bytes(20), "begins with b'ZCREC009'; this package reads b'ZCREC001'"),
        (b'ZCREC001' + b'\xff' * 8, 'its description \\(4294967295 bytes\\) is cut or changed'),
    ],
)
def test_other_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / 'a.zcr').write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        replay(tmp_path / 'a.zcr')


def test_a_recording_is_not_scaled(recorded: tuple[Path, bytes, list[Any]]) -> None:
    with pytest.raises(ConfigError, match="is 16x8 and is played bit by bit; set parameters 'width' and 'height' to 0"):
        replay(recorded[0], width=32, height=16)
