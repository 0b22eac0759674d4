"""Raw recordings: bit by bit there and back; a disk that is slow, full or gone; files that were cut, spoilt or never were any."""

from __future__ import annotations

import json
import struct
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from camera.replay_kit import Gate, planes_of, played, replay
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zc_perception.camera.recording import FrameRecorder, RecordingSource
from zc_perception.errors import ConfigError
from zc_perception.frame import Frame, Header
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import BufferPool
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range, Transfer
from zc_perception.pixel.fourcc import fourcc_code

pytestmark = pytest.mark.usefixtures('no_fd_leak')
PERIOD, START = 40_000_000, 1_700_000_000_000_000_000
MakePool = Callable[..., BufferPool]
BT709_FULL = Colorimetry(Matrix.BT709, Range.FULL, Transfer.SRGB)


def fill(planes: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for plane in planes:
        plane[...] = rng.integers(0, np.iinfo(plane.dtype).max + 1, plane.shape, plane.dtype)


def publish(pool: BufferPool, index: int, stamp_ns: int | None = None) -> Frame:
    slot = pool.acquire()
    assert slot is not None
    frame = Frame.publish_slot(
        pool,
        slot,
        header=Header(START + index * PERIOD if stamp_ns is None else stamp_ns, 'lens'),
        colorimetry=BT709_FULL,
        sequence=7 * index,
        captured_ns=100 + index,
    )
    with frame.map(write=True) as planes:
        fill(planes, index)
    return frame


def record(
    path: Path, pool: BufferPool, count: int, **options: Any
) -> list[tuple[np.ndarray[Any, Any], ...]]:
    """Record *count* frames; their planes."""
    kept = []
    with FrameRecorder(path, ledger=CopyLedger(), **options) as recorder:
        for index in range(count):
            with publish(pool, index) as frame:
                kept.append(planes_of(frame))
                assert recorder.put(frame)
    assert recorder.statistics().recorded == count
    return kept


def same(found: Any, expected: Any) -> bool:
    return all(
        a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize(
    ('fourcc', 'layout'),
    [
        ('NV12', {}),
        ('NV12', {'stride_align': 256, 'height_align': 64, 'offset_align': 4096}),
        ('NV12', {'buffer_per_plane': True, 'stride_align': 96}),
        ('NV21', {}),
        ('YUYV', {'stride_align': 160}),
        ('P010', {'stride_align': 256}),
        ('RG24', {}),
        ('R8  ', {}),
        ('YU12', {'stride_align': 128}),
    ],
)
def test_what_was_recorded_is_played_bit_by_bit(
    fourcc: str, layout: dict[str, Any], tmp_path: Path, make_pool: MakePool
) -> None:
    path, ledger = tmp_path / 'a.zcr', CopyLedger()
    pool = make_pool(62, 46, fourcc=fourcc_code(fourcc), layout=layout)
    kept = record(path, pool, 4)
    camera = replay(path, ledger=ledger, stamps='recorded', constraints={'stride_align': 192})
    assert camera.notices() == () and camera.framerate == 25.0
    found = played(camera)
    assert [(f.header, f.data.colorimetry, f.data.fourcc) for f, _ in found] == [
        (Header(START + i * PERIOD, 'lens'), BT709_FULL, fourcc_code(fourcc)) for i in range(4)
    ]
    assert all(same(planes, expected) for (_, planes), expected in zip(found, kept, strict=True))
    assert ledger.entries()['decode'].count == 4
    with closing(RecordingSource(path)) as reader:
        assert reader.format.layout == pool.layout, 'how the producer held it'
        frames = [reader.frame(number) for number in range(len(reader))]
        assert [(f.sequence, f.captured_ns) for f in frames if f] == [
            (0, 100),
            (7, 101),
            (14, 102),
            (21, 103),
        ]


def test_stamps_of_0_become_the_times_of_recording(tmp_path: Path, make_pool: MakePool) -> None:
    path, pool = tmp_path / 'a.zcr', make_pool(62, 46)
    with FrameRecorder(path, ledger=CopyLedger()) as recorder:
        for index in range(4):
            with publish(pool, index, stamp_ns=0) as frame:
                assert recorder.put(frame)
    camera = replay(path, stamps='recorded')
    (notice,) = camera.notices()
    assert 'has stamps that are 0 or repeat' in notice
    assert [frame.header.stamp_ns for frame, _ in played(camera)] == [100, 101, 102, 103]


def test_the_file_is_what_its_description_says(tmp_path: Path, make_pool: MakePool) -> None:
    """Read here by hand, from the module's docstring."""
    path = tmp_path / 'a.zcr'
    (luma, chroma), *_ = record(path, make_pool(8, 4), 2)
    content = path.read_bytes()
    magic, length = struct.unpack_from('<8sI', content)
    at = 16 + length
    kind, _, sequence, stamp, captured, id_bytes, _, pixels = struct.unpack_from(
        '<4sIQqqIIQ', content, at
    )
    assert (magic, kind, sequence, stamp, captured, id_bytes, pixels) == (
        b'ZCREC001',
        b'FRME',
        0,
        START,
        100,
        4,
        48,
    )
    assert content[at + 48 : at + 52] == b'lens'
    assert content[at + 52 : at + 100] == luma.tobytes() + chroma.tobytes()
    assert content[-16:-8] == b'ZCRECEND'
    index = struct.unpack('<Q', content[-8:])[0]
    assert struct.unpack_from('<4sIQQQ', content, index)[2:] == (2, at, at + 100)


class SlowDisk:
    """A file whose first write of a frame waits until the gate is opened."""

    def __init__(self, path: Path, gate: Gate) -> None:
        self._file = path.open('wb')
        self._gate = gate
        self._writes = 0

    def write(self, content: Any) -> int:
        self._writes += 1
        if self._writes == 2:
            self._gate.wait()
        # A disk may take less than it is given.
        return self._file.write(content[:100])

    def close(self) -> None:
        self._file.close()


def test_a_slow_disk_costs_the_recorder_frames_and_the_producer_nothing(
    tmp_path: Path, make_pool: MakePool
) -> None:
    gate, pool = Gate(), make_pool(16, 8, slots=2)
    path = tmp_path / 'a.zcr'
    size = 16 * 8 * 3 // 2
    with FrameRecorder(
        path, ledger=CopyLedger(), buffer_bytes=5 * size, open_output=lambda p: SlowDisk(p, gate)
    ) as recorder:
        kept = []
        for index in range(20):
            # The producer has two slots; if the recorder kept one, there would be none here before long.
            frame = publish(pool, index)
            if recorder.put(frame):
                kept.append((index, planes_of(frame)))
            frame.release()
        statistics = pool.statistics()
        assert (statistics.exhausted, statistics.holders) == (0, {})
        assert gate.reached.wait(60.0)
        assert [index for index, _ in kept] == [0, 1, 2, 3, 4]
        assert (recorder.statistics().dropped, recorder.statistics().waiting) == (15, 5)
        gate.opened.set()
    assert recorder.statistics().recorded == 5 and recorder.statistics().waiting == 0
    with closing(RecordingSource(path)) as reader:
        assert all(
            same(reader.read_planes(number), planes) for number, (_, planes) in enumerate(kept)
        )
        assert reader.complete


def test_memory_is_used_again(tmp_path: Path, make_pool: MakePool) -> None:
    ledger, pool = CopyLedger(), make_pool(16, 8)
    with FrameRecorder(tmp_path / 'a.zcr', ledger=ledger, buffer_bytes=1) as recorder:
        written = 0
        for index in range(200):
            with publish(pool, index) as frame:
                while not recorder.put(frame):
                    threading.Event().wait(0.001)
            written += 1
        assert recorder._allocated <= 2 * 192, 'two frames at least, and no more here'
    assert recorder.statistics().recorded == written == 200
    assert ledger.count('record') == 200


class FullDisk(SlowDisk):
    """A disk that has room for one frame."""

    def write(self, content: Any) -> int:
        self._writes += 1
        if self._writes > 3:
            raise OSError(28, 'No space left on device')
        return self._file.write(content)


def test_a_full_disk_ends_the_recording_and_says_so(tmp_path: Path, make_pool: MakePool) -> None:
    path, pool = tmp_path / 'a.zcr', make_pool(16, 8)
    with FrameRecorder(
        path, ledger=CopyLedger(), open_output=lambda p: FullDisk(p, Gate())
    ) as recorder:
        for index in range(3):
            with publish(pool, index) as frame:
                recorder.put(frame)
    assert (
        recorder.failed
        and recorder.statistics().failure
        == f"recording to '{path}' has ended: No space left on device"
    )
    with publish(pool, 9) as frame:
        assert not recorder.put(frame)
    assert len(played(replay(path))) == 1, 'what was written is there'


def test_a_stuck_disk_is_given_up_with_what_it_did_not_take(
    tmp_path: Path, make_pool: MakePool
) -> None:
    path, gate, pool = tmp_path / 'a.zcr', Gate(), make_pool(16, 8)
    recorder = FrameRecorder(path, ledger=CopyLedger(), open_output=lambda p: SlowDisk(p, gate))
    for index in range(3):
        with publish(pool, index) as frame:
            assert recorder.put(frame)
    assert gate.reached.wait(60.0) and not recorder.failed
    assert not recorder.close(stuck_s=0.1) and recorder.failed
    assert (
        recorder.statistics().failure
        == f"'{path}': its disk has taken nothing for 0.1 s; 3 frames could not be written"
    )
    assert not recorder.close(), 'it is not waited for again'
    gate.opened.set()
    recorder._thread.join(60.0)  # it ends by itself when the disk lets it
    assert recorder.close() and len(played(replay(path))) == 3


class CrawlingDisk(SlowDisk):
    """Each piece takes a little of the time after which a disk counts as stuck, all together more than that."""

    def write(self, content: Any) -> int:
        threading.Event().wait(0.2)
        return self._file.write(content[:40])


def test_a_disk_that_crawls_gets_all_the_time_that_it_needs(
    tmp_path: Path, make_pool: MakePool
) -> None:
    pool = make_pool(16, 8)
    recorder = FrameRecorder(
        tmp_path / 'a.zcr', ledger=CopyLedger(), open_output=lambda p: CrawlingDisk(p, Gate())
    )
    for index in range(3):
        with publish(pool, index) as frame:
            assert recorder.put(frame)
    began = time.monotonic()
    assert recorder.close(stuck_s=5.0) and not recorder.failed
    assert time.monotonic() - began > 5.0
    assert recorder.statistics().recorded == 3


def test_frames_of_another_size_go_into_a_file_of_their_own(
    tmp_path: Path, make_pool: MakePool
) -> None:
    small, large = make_pool(16, 8), make_pool(32, 16)
    with FrameRecorder(tmp_path / 'a.zcr', ledger=CopyLedger()) as recorder:
        for pool in (small, large, large, small):
            with publish(pool, 1) as frame:
                assert recorder.put(frame)
    files = [tmp_path / name for name in ('a.zcr', 'a_2.zcr', 'a_3.zcr')]
    assert recorder.statistics().files == tuple(map(str, files))
    assert [(len(found), found[0][1][0].shape) for found in map(played, map(replay, files))] == [
        (1, (8, 16)),
        (2, (16, 32)),
        (1, (8, 16)),
    ]


def test_raw_nv12_files_have_their_geometry_beside_them(
    tmp_path: Path, make_pool: MakePool
) -> None:
    path = tmp_path / 'a.nv12'
    kept = record(path, make_pool(62, 46, layout={'stride_align': 256}), 3)
    assert path.stat().st_size == 3 * 62 * 46 * 3 // 2
    camera = replay(path)
    assert camera.framerate == 25.0
    found = played(camera)
    assert all(same(planes, expected) for (_, planes), expected in zip(found, kept, strict=True))
    assert (found[0][0].data.colorimetry.matrix, found[0][0].data.colorimetry.range) == (
        Matrix.BT709,
        Range.FULL,
    )


def test_frames_that_can_not_be_recorded_are_refused_with_the_reason(
    tmp_path: Path, make_pool: MakePool
) -> None:
    yuyv = make_pool(16, 8, fourcc=fourcc_code('YUYV'))
    with (
        FrameRecorder(tmp_path / 'a.nv12', ledger=CopyLedger()) as recorder,
        publish(yuyv, 0) as frame,
    ):
        assert not recorder.put(frame)
    assert recorder.statistics().refused == 1
    assert (
        recorder.statistics().failure == 'YUYV frames can not be recorded in .nv12: record to .zcr'
    )
    assert not recorder.failed and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('a.mp4', r'must end in \.zcr or \.nv12'),
        ('there.zcr', 'exists; choose another path'),
        ('file/a.zcr', "can't be made"),
    ],
)
def test_paths_that_can_not_be_written_are_named(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / 'there.zcr').write_bytes(b'precious')
    (tmp_path / 'file').write_bytes(b'')
    with pytest.raises(ConfigError, match=message):
        FrameRecorder(tmp_path / name, ledger=CopyLedger())
    assert (tmp_path / 'there.zcr').read_bytes() == b'precious'


def test_overwriting_has_to_be_allowed(tmp_path: Path, make_pool: MakePool) -> None:
    pool = make_pool(16, 8)
    record(tmp_path / 'new' / 'a.zcr', pool, 2)
    record(tmp_path / 'new' / 'a.zcr', pool, 1, overwrite=True)
    assert len(played(replay(tmp_path / 'new' / 'a.zcr'))) == 1


# Damage: the frames that are whole, or a clear error.


@pytest.fixture
def recorded(tmp_path: Path, make_pool: MakePool) -> tuple[Path, bytes, list[Any]]:
    path = tmp_path / 'a.zcr'
    kept = record(path, make_pool(16, 8), 3)
    return path, path.read_bytes(), kept


FRAME_BYTES = 48 + 4 + 16 * 8 * 3 // 2


def test_a_file_that_was_cut_is_read_up_to_the_last_whole_frame(
    recorded: tuple[Path, bytes, list[Any]],
) -> None:
    path, content, kept = recorded
    end = struct.unpack('<Q', content[-8:])[0]
    start = end - 3 * FRAME_BYTES
    for size in (
        end,
        end + 5,
        len(content) - 1,
        end - 1,
        end - FRAME_BYTES + 10,
        start + FRAME_BYTES,
    ):
        path.write_bytes(content[:size])
        camera = replay(path)
        whole = min(3, (size - start) // FRAME_BYTES)
        assert f'{whole} whole frames were found' in camera.notices()[0]
        found = played(camera)
        assert len(found) == whole and all(
            same(planes, kept[i]) for i, (_, planes) in enumerate(found)
        )
    for size in (start + FRAME_BYTES - 1, start):
        path.write_bytes(content[:size])
        with pytest.raises(ConfigError, match=r"recording '.*a\.zcr' has no whole frame"):
            replay(path)


def test_a_frame_whose_pixels_were_changed_is_left_out(
    recorded: tuple[Path, bytes, list[Any]],
) -> None:
    path, content, kept = recorded
    spoilt = bytearray(content)
    spoilt[struct.unpack('<Q', content[-8:])[0] - FRAME_BYTES - 1] ^= 1
    path.write_bytes(spoilt)
    camera = replay(path)
    found = played(camera)
    assert [frame.data.sequence for frame, _ in found] == [0, 2] and camera.statistics().bad == 1
    assert same(found[1][1], kept[2])


@settings(
    max_examples=250,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_spoilt_file_gives_true_frames_or_a_clear_error(
    recorded: tuple[Path, bytes, list[Any]], data: st.DataObject
) -> None:
    path, content, kept = recorded
    spoilt = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(spoilt) - 1))
        spoilt[at : at + data.draw(st.integers(0, 8))] = data.draw(
            st.one_of(st.binary(max_size=8), st.just(b'\xff' * 8))
        )
    path.write_bytes(spoilt)
    try:
        reader = RecordingSource(path)
    except ConfigError as error:
        assert 'a.zcr' in str(error)
        return
    with closing(reader):
        for number in range(len(reader)):
            planes = reader.read_planes(number)
            assert planes is None or any(same(planes, expected) for expected in kept)


def describe(content: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file with another description, whose checksum is right."""
    length = struct.unpack_from('<I', content, 8)[0]
    found = json.loads(content[16 : 16 + length])
    change(found)
    text = json.dumps(found).encode()
    return (
        content[:8]
        + struct.pack('<II', len(text), zlib.crc32(text))
        + text
        + content[16 + length :]
    )


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
def test_a_description_that_can_not_be_is_refused(
    recorded: tuple[Path, bytes, list[Any]], change: Callable[[Any], object]
) -> None:
    path, content, _ = recorded
    path.write_bytes(describe(content, change))
    with pytest.raises(ConfigError, match=r'a\.zcr'):
        replay(path)


def test_a_description_that_was_changed_is_refused(
    recorded: tuple[Path, bytes, list[Any]],
) -> None:
    path, content, _ = recorded
    # As long as before, and it could be one; only the checksum tells.
    path.write_bytes(content.replace(b'"bt709"', b'"bt601"', 1))
    with pytest.raises(ConfigError, match='is cut or changed'):
        replay(path)


def test_a_first_frame_whose_head_was_changed_costs_that_frame_only(
    recorded: tuple[Path, bytes, list[Any]],
) -> None:
    path, content, kept = recorded
    start = struct.unpack('<Q', content[-8:])[0] - 3 * FRAME_BYTES
    for at in (0, 5, 20, 47):
        spoilt = bytearray(content)
        spoilt[start + at] ^= 1
        path.write_bytes(spoilt)
        camera = replay(path, stamps='recorded')
        assert not camera.notices() and camera.framerate == 25.0
        found = played(camera)
        assert [frame.header.stamp_ns for frame, _ in found] == [
            START + PERIOD,
            START + 2 * PERIOD,
        ]
        assert same(found[0][1], kept[1]) and camera.statistics().bad == 1


def test_spoilt_frames_longer_than_the_rate_is_looked_for_do_not_move_the_others(
    tmp_path: Path, make_pool: MakePool
) -> None:
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
        RecordingSource(path)


def test_an_index_that_points_elsewhere_is_made_anew(
    recorded: tuple[Path, bytes, list[Any]],
) -> None:
    path, content, kept = recorded
    end = struct.unpack('<Q', content[-8:])[0]
    table = struct.pack('<QQQQ', 3, 3, 5, 7)
    path.write_bytes(
        content[:end] + b'INDX' + struct.pack('<I', zlib.crc32(table)) + table + content[-16:]
    )
    found = played(replay(path))
    assert [same(planes, expected) for (_, planes), expected in zip(found, kept, strict=True)] == [
        True
    ] * 3


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'ZCRE', 'is no raw recording'),
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
    with pytest.raises(
        ConfigError,
        match="is 16x8 and is played bit by bit; set parameters 'width' and 'height' to 0",
    ):
        replay(recorded[0], width=32, height=16)
