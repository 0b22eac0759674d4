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

"""Processes with mapped frames, and with memfds from which udmabuf may make frames."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import fcntl
import mmap
import os
from pathlib import Path
import platform
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
import pytest

from zc_perception.verify.evidence import buffers, Unreadable
from zc_perception.verify.evidence.buffers import (
    find_memfds,
    find_pins,
    FrameMemory,
    PAGE,
    parse_maps,
    scan_maps,
)

MAPS = b"""\
556f5b3a2000-556f5b3a3000 r--p 00000000 fd:01 1234                       /usr/bin/python3.11
7f1c40000000-7f1c40071000 rw-s 00000000 00:0c 41023                      /dmabuf:
7f1c40100000-7f1c40171000 r--s 00000000 00:0c 41024                      /dmabuf:left frame
7f1c40200000-7f1c40271000 rw-s 00000000 00:01 929138                     /memfd:zc_frame (deleted)
7f1c40300000-7f1c40371000 rw-s 00000000 00:05 133                        /dev/video0
7f1c40400000-7f1c40471000 rw-s 00000000 00:05 134                        /dev/shm/dmabuf:
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
7ffc00022000-7ffc00023000 rw-p 00000000 00:00 0 \n"""


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
    return find_memfds(size, [os.getpid()], **how)  # type: ignore[arg-type]


@pytest.mark.parametrize('closed', [False, True])
def test_memory_that_is_mapped_or_held_is_found(closed: bool) -> None:
    fd = os.memfd_create('zc_frame', os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, LARGE)
    status = os.fstat(fd)
    assert found() == [], 'udmabuf takes none that could shrink'
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    (line,) = found()
    assert found(LARGE - mmap.PAGESIZE) == [line], 'a frame may be a part of it'
    assert f'process {os.getpid()} (' in line
    assert f'holds memfd {status.st_ino} of {LARGE} bytes' in line
    with mmap.mmap(fd, LARGE):
        if closed:
            os.close(fd)
        (line,) = found()
        assert f'maps memfd {status.st_ino}' in line
        assert found(LARGE + mmap.PAGESIZE) == [] and found(skip=[os.getpid()]) == []
        assert found(but=[(status.st_dev, status.st_ino)]) == []
    if not closed:
        os.close(fd)
    assert found() == []


def test_a_mapping_whose_file_can_not_be_looked_at_counts_by_its_length(tmp_path: Path) -> None:
    (tmp_path / '5').mkdir()
    (tmp_path / '5' / 'maps').write_bytes(
        b'7f0000000000-7f0000007000 rw-s 00000000 00:01 77   /memfd:x (deleted)\n'
    )
    assert find_memfds(0x7000, None, tmp_path) == ['process 5 () maps memfd 77 of 28672 bytes']
    assert find_memfds(0x8000, None, tmp_path) == []


SYS_EXIT = {'x86_64': 60}.get(platform.machine(), 93)
WITHOUT_MAIN_THREAD = f"""
import ctypes, mmap, os, sys, threading
fd = os.memfd_create('zc_frame')
os.ftruncate(fd, {LARGE})
memory = mmap.mmap(fd, {LARGE})
threading.Thread(target=sys.stdin.read).start()
print(os.fstat(fd).st_dev, os.fstat(fd).st_ino, flush=True)
ctypes.CDLL(None).syscall({SYS_EXIT}, 0)
"""


@contextmanager
def process_without_main_thread() -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the pid of a process whose main thread has ended, and a memfd's identity."""
    with subprocess.Popen(
        [sys.executable, '-c', WITHOUT_MAIN_THREAD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        device, inode = map(int, process.stdout.readline().split())
        status = Path(f'/proc/{process.pid}/stat')
        while status.read_text().rpartition(')')[2].split()[0] != 'Z':
            assert process.poll() is None
        yield process.pid, (device, inode)
        process.stdin.close()


def test_a_process_whose_main_thread_has_ended_still_has_its_memory() -> None:
    with process_without_main_thread() as (pid, identity):
        assert Path(f'/proc/{pid}/maps').read_bytes() == b'', 'the kernel shows nothing there'
        scan = scan_maps(FrameMemory(memfds=frozenset((identity,))), pids=[pid])
        assert [(one.pid, one.inode) for one in scan.mappings] == [(pid, identity[1])]
        assert not scan.unreadable
        (line,) = find_memfds(LARGE, [pid])
        assert f'process {pid} (' in line and f'memfd {identity[1]} of {LARGE} bytes' in line


CAMERA = os.stat('/dev/null')


def device_at(path: str, tmp_path: Path) -> Path:
    """Return the folder of a process that has mapped *path* under that name."""
    process = tmp_path / '5'
    process.mkdir()
    device = f'{os.major(CAMERA.st_dev):02x}:{os.minor(CAMERA.st_dev):02x}'
    (process / 'maps').write_text(
        f'7f0000000000-7f0000007000 rw-s 00000000 {device} {CAMERA.st_ino}    {path}\n'
    )
    return process


def seen_as_camera(tmp_path: Path, number: int = CAMERA.st_rdev) -> tuple[int, int]:
    """Return the numbers of mappings and of mappings that can't be identified."""
    cameras, numbers = frozenset(('/dev/video0',)), frozenset((number,))
    scan = scan_maps(FrameMemory(cameras=cameras, camera_numbers=numbers), proc=tmp_path)
    return len(scan.mappings), len(scan.unreadable)


def test_a_camera_is_known_by_its_number_whatever_its_node_is_called(tmp_path: Path) -> None:
    files = device_at('/tmp/private (deleted)', tmp_path) / 'map_files'
    files.mkdir()
    (files / '7f0000000000-7f0000007000').symlink_to('/dev/null')
    assert seen_as_camera(tmp_path) == (1, 0)
    assert seen_as_camera(tmp_path, os.stat('/dev/zero').st_rdev) == (0, 0)


def test_without_map_files_the_node_is_looked_up_below_the_root_of_the_process(
    tmp_path: Path,
) -> None:
    process = device_at('/private', tmp_path)
    (process / 'task' / '6' / 'root').mkdir(parents=True)
    assert seen_as_camera(tmp_path) == (0, 1), 'it may be a camera'
    (process / 'task' / '6' / 'root' / 'private').symlink_to('/dev/null')
    assert seen_as_camera(tmp_path) == (1, 0)
    assert seen_as_camera(tmp_path, os.stat('/dev/zero').st_rdev) == (0, 0)


def test_another_file_of_that_name_is_not_taken_for_it(tmp_path: Path) -> None:
    process = device_at('/private', tmp_path)
    (process / 'root').mkdir()
    (process / 'root' / 'private').symlink_to('/dev/zero')
    assert seen_as_camera(tmp_path) == (0, 1)


def test_a_camera_whose_device_nobody_names_may_be_any_video_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = device_at('/dev/video7', tmp_path) / 'map_files'
    files.mkdir()
    (files / '7f0000000000-7f0000007000').symlink_to('/dev/null')
    any_camera = FrameMemory(any_camera=True)
    assert scan_maps(any_camera, proc=tmp_path).unreadable == (), 'this is no video device'
    monkeypatch.setattr(buffers, 'VIDEO_MAJOR', os.major(CAMERA.st_rdev))
    scan = scan_maps(any_camera, proc=tmp_path)
    (told,) = scan.unreadable
    assert '/dev/video7 is a video device, and perhaps the camera' in told.reason
    assert not scan.mappings
    assert scan_maps(FrameMemory(camera_numbers=frozenset((1,))), proc=tmp_path).unreadable == ()


@pytest.fixture(params=['pipe', 'named'])
def pipe(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    if request.param == 'pipe':
        reading, writing = os.pipe()
    else:
        os.mkfifo(tmp_path / 'fifo')
        reading = os.open(tmp_path / 'fifo', os.O_RDONLY | os.O_NONBLOCK)
        writing = os.open(tmp_path / 'fifo', os.O_WRONLY)
    yield writing
    os.close(reading)
    os.close(writing)


def pipes_with(size: int) -> list[str]:
    """Return pipes with exactly *size* bytes: this process may have other pipes."""
    told = f' has a pipe with {size} bytes in it'
    return [line for line in find_pins([os.getpid()]) if line.endswith(told)]


def test_a_pipe_with_room_in_use_for_a_page_may_hold_one(pipe: int) -> None:
    os.write(pipe, b'x' * (PAGE - 1))
    assert pipes_with(PAGE - 1) == []
    os.write(pipe, b'xy')
    (line,) = pipes_with(PAGE + 1)
    assert line.startswith(f'process {os.getpid()} (')


def test_a_ring_with_registered_buffers_may_hold_pages(tmp_path: Path) -> None:
    process = tmp_path / '7'
    for folder in ('fd', 'fdinfo'):
        (process / folder).mkdir(parents=True)
    (process / 'comm').write_text('reader\n')
    (process / 'fd' / '5').symlink_to('anon_inode:[io_uring]')
    text = 'pos:\t0\nSqMask:\t0x7\nUserFiles:\t0\nUserBufs:\t2\n    0: 0x7f0000000000/65536\n'
    (process / 'fdinfo' / '5').write_text(text)
    (process / 'fd' / '6').symlink_to('pipe:[1]')  # closed meanwhile
    told = 'process 7 (reader) has an io_uring with 2 registered buffers'
    assert find_pins(proc=tmp_path) == [told]
