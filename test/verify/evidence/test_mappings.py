"""Who has frames mapped, and who holds memfds that frames of udmabuf may be made of."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zc_perception.observe.frame_log import FrameLog
from zc_perception.observe.frame_log_layout import SIZE
from zc_perception.verify.evidence.mappings import FrameMemory, find_memfds, parse_maps, scan_maps
from zc_perception.verify.evidence.unreadable import Unreadable

MAPS = b"""\
556f5b3a2000-556f5b3a3000 r--p 00000000 fd:01 1234                       /usr/bin/python3.11
7f1c40000000-7f1c40071000 rw-s 00000000 00:0c 41023                      /dmabuf:
7f1c40100000-7f1c40171000 r--s 00000000 00:0c 41024                      /dmabuf:left frame
7f1c40200000-7f1c40271000 rw-s 00000000 00:01 929138                     /memfd:zc_frame (deleted)
7f1c40300000-7f1c40371000 rw-s 00000000 00:05 133                        /dev/video0
7f1c40400000-7f1c40471000 rw-s 00000000 00:05 134                        /dev/shm/dmabuf:
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
7ffc00022000-7ffc00023000 rw-p 00000000 00:00 0 \n"""


def test_lines_that_matter() -> None:
    found = parse_maps(5, MAPS)
    assert [(one.inode, one.name) for one in found] == [
        (41023, '/dmabuf:'),
        (41024, '/dmabuf:left frame'),
        (929138, '/memfd:zc_frame (deleted)'),
        (133, '/dev/video0'),
        (134, '/dev/shm/dmabuf:'),
    ]
    first = found[0]
    assert (first.start, first.end, first.permissions, first.device) == (0x7F1C40000000, 0x7F1C40071000, 'rw-s', os.makedev(0, 12))
    assert 0x7F1C40000000 in first and 0x7F1C40070FFF in first and 0x7F1C40071000 not in first
    assert 'process 5' in str(first) and '41023' in str(first)


def test_only_frames_and_their_cameras_count() -> None:
    found = parse_maps(5, MAPS)

    def matching(**memory: object) -> list[int]:
        sought = FrameMemory(**{name: frozenset(values) for name, values in memory.items()})  # type: ignore[call-overload]
        return [one.inode for one in found if sought.matches(one)]

    assert matching(dmabufs=[41023]) == [41023]
    assert matching(dmabufs=[929138, 133, 134]) == []
    assert matching(memfds=[(os.makedev(0, 1), 929138)]) == [929138]
    assert matching(memfds=[(os.makedev(0, 2), 929138), (os.makedev(0, 12), 41023)]) == []
    assert matching(cameras=['/dev/video0']) == [133]
    assert matching(cameras=['/dev/video1']) == []
    assert matching() == []


def test_all_processes_are_looked_at(tmp_path: Path) -> None:
    for pid, text in ((5, MAPS), (6, b''), (7, MAPS)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / 'maps').write_bytes(text)
    (tmp_path / '8').mkdir()  # has just ended
    (tmp_path / '9' / 'maps').mkdir(parents=True)  # can't be read
    (tmp_path / 'self').mkdir()
    memory = FrameMemory(frozenset((41023,)))
    scan = scan_maps(memory, proc=tmp_path)
    assert [(one.pid, one.inode) for one in scan.mappings] == [(5, 41023), (7, 41023)]
    assert [one.source for one in scan.unreadable] == ['mappings of process 9 ()']
    assert [one.pid for one in scan_maps(memory, proc=tmp_path, skip=(5,)).mappings] == [7]
    assert [one.pid for one in scan_maps(memory, pids=[5], proc=tmp_path).mappings] == [5]


def test_a_mapping_of_this_process_is_seen_and_its_end_too() -> None:
    fd = os.memfd_create('zc_frame')
    try:
        os.ftruncate(fd, 8192)
        status = os.fstat(fd)
        memory = FrameMemory(memfds=frozenset(((status.st_dev, status.st_ino),)))

        def seen() -> list[tuple[int, int]]:
            scan = scan_maps(memory, pids=[os.getpid()])
            assert not any(isinstance(one, Unreadable) for one in scan.unreadable)
            return [(one.end - one.start, one.inode) for one in scan.mappings]

        assert seen() == []
        with mmap.mmap(fd, 8192):
            assert seen() == [(8192, status.st_ino)]
        assert seen() == []
    finally:
        os.close(fd)


@given(st.binary(max_size=200))
def test_no_text_is_too_strange(text: bytes) -> None:
    assert parse_maps(1, text) == []
    assert len(parse_maps(1, MAPS + text)) >= 5


LARGE = 7 * mmap.PAGESIZE


def found(size: int = LARGE, **how: object) -> list[str]:
    return find_memfds([size], [os.getpid()], **how)  # type: ignore[arg-type]


@pytest.mark.parametrize('closed', [False, True])
def test_memory_that_is_mapped_or_held_is_found(closed: bool) -> None:
    fd = os.memfd_create('zc_frame')
    os.ftruncate(fd, LARGE)
    status = os.fstat(fd)
    (line,) = found()
    assert f'process {os.getpid()} (' in line and f'holds memfd {status.st_ino} of {LARGE} bytes' in line
    with mmap.mmap(fd, LARGE):
        if closed:
            os.close(fd)
        (line,) = found()
        assert f'maps memfd {status.st_ino}' in line
        assert found(LARGE + mmap.PAGESIZE) == [] and found(but=[(status.st_dev, status.st_ino)]) == [] and found(skip=[os.getpid()]) == []
    if not closed:
        os.close(fd)
    assert found() == []


def test_a_frame_log_is_no_frame() -> None:
    with FrameLog('capture', '/made/node'):
        assert found(SIZE) == []


def test_a_mapping_whose_file_can_not_be_looked_at_counts_by_its_length(tmp_path: Path) -> None:
    (tmp_path / '5').mkdir()
    (tmp_path / '5' / 'maps').write_bytes(b'7f0000000000-7f0000007000 rw-s 00000000 00:01 77   /memfd:x (deleted)\n')
    assert find_memfds([0x7000], None, tmp_path) == ['process 5 () maps memfd 77 of 28672 bytes']
    assert find_memfds([0x6000], None, tmp_path) == []
