"""Raw recordings: bit by bit there and back, and a disk that is slow, full or gone."""

from __future__ import annotations

import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from camera.recording_kit import BT709_FULL, PERIOD, START, MakePool, publish, record, same
from camera.replay_kit import Gate, planes_of, played, replay

from zc_perception.camera.recording import FrameRecorder, RecordingReader
from zc_perception.errors import ConfigError
from zc_perception.frame import Header
from zc_perception.memory.ledger import CopyLedger
from zc_perception.pixel.colorimetry import Matrix, Range
from zc_perception.pixel.fourcc import fourcc_code

pytestmark = pytest.mark.usefixtures('no_fd_leak')


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
def test_what_was_recorded_is_played_bit_by_bit(fourcc: str, layout: dict[str, Any], tmp_path: Path, make_pool: MakePool) -> None:
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
    with RecordingReader(path) as reader:
        assert reader.format.layout == pool.layout, 'how the producer held it'
        frames = [reader.frame(number) for number in range(len(reader))]
        assert [(f.sequence, f.captured_ns) for f in frames if f] == [(0, 100), (7, 101), (14, 102), (21, 103)]


def test_the_file_is_what_its_description_says(tmp_path: Path, make_pool: MakePool) -> None:
    """Read here by hand, from the module's docstring."""
    path = tmp_path / 'a.zcr'
    (luma, chroma), *_ = record(path, make_pool(8, 4), 2)
    content = path.read_bytes()
    magic, length = struct.unpack_from('<8sI', content)
    at = 16 + length
    kind, _, sequence, stamp, captured, id_bytes, _, pixels = struct.unpack_from('<4sIQqqIIQ', content, at)
    assert (magic, kind, sequence, stamp, captured, id_bytes, pixels) == (b'ZCREC001', b'FRME', 0, START, 100, 4, 48)
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


def test_a_slow_disk_costs_the_recorder_frames_and_the_producer_nothing(tmp_path: Path, make_pool: MakePool) -> None:
    gate, pool = Gate(), make_pool(16, 8, slots=2)
    path = tmp_path / 'a.zcr'
    size = 16 * 8 * 3 // 2
    with FrameRecorder(path, ledger=CopyLedger(), buffer_bytes=5 * size, open_output=lambda p: SlowDisk(p, gate)) as recorder:
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
    with RecordingReader(path) as reader:
        assert all(same(reader.read_planes(number), planes) for number, (_, planes) in enumerate(kept))
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
    with FrameRecorder(path, ledger=CopyLedger(), open_output=lambda p: FullDisk(p, Gate())) as recorder:
        for index in range(3):
            with publish(pool, index) as frame:
                recorder.put(frame)
    assert recorder.failed and recorder.statistics().failure == f"recording to '{path}' has ended: No space left on device"
    with publish(pool, 9) as frame:
        assert not recorder.put(frame)
    assert len(played(replay(path))) == 1, 'what was written is there'


def test_a_stuck_disk_is_given_up_with_what_it_did_not_take(tmp_path: Path, make_pool: MakePool) -> None:
    path, gate, pool = tmp_path / 'a.zcr', Gate(), make_pool(16, 8)
    recorder = FrameRecorder(path, ledger=CopyLedger(), open_output=lambda p: SlowDisk(p, gate))
    for index in range(3):
        with publish(pool, index) as frame:
            assert recorder.put(frame)
    assert gate.reached.wait(60.0) and not recorder.failed
    assert not recorder.close(stuck_s=0.1) and recorder.failed
    assert recorder.statistics().failure == f"'{path}': its disk has taken nothing for 0.1 s; 3 frames could not be written"
    assert not recorder.close(), 'it is not waited for again'
    gate.opened.set()
    recorder._thread.join(60.0)  # it ends by itself when the disk lets it
    assert recorder.close() and len(played(replay(path))) == 3


class CrawlingDisk(SlowDisk):
    """Each piece takes a little of the time after which a disk counts as stuck, all together more than that."""

    def write(self, content: Any) -> int:
        threading.Event().wait(0.2)
        return self._file.write(content[:40])


def test_a_disk_that_crawls_gets_all_the_time_that_it_needs(tmp_path: Path, make_pool: MakePool) -> None:
    pool = make_pool(16, 8)
    recorder = FrameRecorder(tmp_path / 'a.zcr', ledger=CopyLedger(), open_output=lambda p: CrawlingDisk(p, Gate()))
    for index in range(3):
        with publish(pool, index) as frame:
            assert recorder.put(frame)
    began = time.monotonic()
    assert recorder.close(stuck_s=5.0) and not recorder.failed
    assert time.monotonic() - began > 5.0
    assert recorder.statistics().recorded == 3


def test_frames_of_another_size_go_into_a_file_of_their_own(tmp_path: Path, make_pool: MakePool) -> None:
    small, large = make_pool(16, 8), make_pool(32, 16)
    with FrameRecorder(tmp_path / 'a.zcr', ledger=CopyLedger()) as recorder:
        for pool in (small, large, large, small):
            with publish(pool, 1) as frame:
                assert recorder.put(frame)
    files = [tmp_path / name for name in ('a.zcr', 'a_2.zcr', 'a_3.zcr')]
    assert recorder.statistics().files == tuple(map(str, files))
    assert [(len(found), found[0][1][0].shape) for found in map(played, map(replay, files))] == [(1, (8, 16)), (2, (16, 32)), (1, (8, 16))]


def test_raw_nv12_files_have_their_geometry_beside_them(tmp_path: Path, make_pool: MakePool) -> None:
    path = tmp_path / 'a.nv12'
    kept = record(path, make_pool(62, 46, layout={'stride_align': 256}), 3)
    assert path.stat().st_size == 3 * 62 * 46 * 3 // 2
    camera = replay(path)
    assert camera.framerate == 25.0
    found = played(camera)
    assert all(same(planes, expected) for (_, planes), expected in zip(found, kept, strict=True))
    assert (found[0][0].data.colorimetry.matrix, found[0][0].data.colorimetry.range) == (Matrix.BT709, Range.FULL)


def test_frames_that_can_not_be_recorded_are_refused_with_the_reason(tmp_path: Path, make_pool: MakePool) -> None:
    yuyv = make_pool(16, 8, fourcc=fourcc_code('YUYV'))
    with FrameRecorder(tmp_path / 'a.nv12', ledger=CopyLedger()) as recorder, publish(yuyv, 0) as frame:
        assert not recorder.put(frame)
    assert recorder.statistics().refused == 1
    assert recorder.statistics().failure == 'YUYV frames can not be recorded in .nv12: record to .zcr'
    assert not recorder.failed and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ('name', 'message'),
    [('a.mp4', r'must end in \.zcr or \.nv12'), ('there.zcr', 'exists; choose another path'), ('file/a.zcr', "can't be made")],
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
