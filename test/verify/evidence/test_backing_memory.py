"""Memfds of the size of udmabuf's frames, in this process and in a process of files."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from zc_perception.observe.frame_log import FrameLog
from zc_perception.observe.frame_log_layout import SIZE
from zc_perception.verify.evidence.mappings import find_memfds

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
