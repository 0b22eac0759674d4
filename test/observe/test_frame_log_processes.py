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
Frame logs from another process.

The writer runs at full speed, was killed, is a forked child, or is something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import fcntl
import os
from pathlib import Path
import struct
import subprocess
import sys
import time

from observe.frame_log_kit import made_frame, own_log_links, SIZE
import pytest

from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.observe.frame_log import (
    find_frame_logs,
    FrameLog,
    FrameLogReader,
    FrameRecord,
    UnreadableProcess,
)

TESTS = Path(__file__).parents[1]
SEALS = 1 | 2 | 4
Writer = subprocess.Popen[str]


@contextmanager
def writer(what: str, seconds: float = 0.0) -> Iterator[Writer]:
    command = [sys.executable, '-m', 'observe.log_writer', what, str(seconds)]
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == 'ready\n'
            yield process
        finally:
            process.kill()


def follows_from_its_number(record: FrameRecord) -> bool:
    n = record.number - 1
    return record[2:19] == (
        n, 2 * n, 3 * n, 4 * n, 5 * n, 6 * n, 8 * n, 9 * n, 10 * n, 12 * n, 13 * n, 14 * n, 7 * n,
        (n + 1, n + 2), 3, n % 1000, n % 77,
    ) and record.device_seqno == 11 * n  # fmt: skip


def test_every_record_is_whole_while_another_process_writes_at_full_speed(
    no_fd_leak: None,
) -> None:
    with writer('flood', 1.0) as process, find_frame_logs(pids=[process.pid]) as (reader,):
        reader_begins = reader.read()
        first = reader_begins[0].number if reader_begins else reader.written + 1
        numbers = [record.number for record in reader_begins]
        wrong = [record for record in reader_begins if not follows_from_its_number(record)]
        slow = 0
        deadline = time.monotonic() + 60.0
        ended = False
        while not ended and time.monotonic() < deadline:
            written = reader.written
            records = reader.read()
            numbers += [record.number for record in records]
            wrong += [record for record in records if not follows_from_its_number(record)]
            slow += 1
            if slow % 40 == 0:  # now and then so late that the ring has gone round
                while reader.written < written + 6000 and _still_writing(reader):
                    pass
            ended = not _still_writing(reader) and not records
        assert process.stdout is not None
        total = int(process.stdout.readline())
        numbers += [record.number for record in reader.read()]
    assert wrong == []
    assert numbers == sorted(set(numbers)), 'in order, none twice'
    assert numbers[-1] == total > 10_000
    assert len(numbers) + reader.lost == total - first + 1, 'what was not read is counted'


def _still_writing(reader: FrameLogReader) -> bool:
    before = reader.written
    time.sleep(0.02)
    return reader.written != before


def test_a_killed_process_s_log_stays_readable(no_fd_leak: None) -> None:
    with writer('still') as process, find_frame_logs(pids=[process.pid]) as (reader,):
        assert reader.alive and (reader.pid, reader.role, reader.node) == (
            process.pid,
            'inference',
            '/writer',
        )
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not reader.alive, 'though its parent has not asked for its status yet'
        process.wait()
        assert not reader.alive and not reader.ended
        assert [record.sequence for record in reader.read()] == [0, 1, 2] and reader.facts()[
            'n'
        ] == 3
        assert list(find_frame_logs(pids=[process.pid])) == []


def test_a_node_that_ends_in_order_says_so() -> None:
    with writer('still') as process, find_frame_logs(pids=[process.pid]) as (reader,):
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        assert reader.ended and not reader.alive


def test_a_log_is_its_writer_s_not_that_of_a_tool_which_reads_it() -> None:
    with writer('still') as process, find_frame_logs(pids=[process.pid]) as (reader,):
        assert own_log_links(), 'this process has it open'
        with find_frame_logs(pids=[os.getpid(), process.pid]) as again:
            assert [(log.pid, log.node) for log in again] == [(process.pid, reader.node)]
            assert again.unreadable == ()


def _in_child(work: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


def test_a_forked_child_writes_nothing_and_has_no_log(no_fd_leak: None) -> None:
    with FrameLog('capture', '/parent') as log, find_frame_logs(pids=[os.getpid()]) as (reader,):
        log.published(made_frame(1), 1, 2)
        readers_own = len(own_log_links()) - 1

        def child() -> bool:
            log.published(made_frame(2), 1, 2)
            log.describe({'who': 'child'})
            log.close()
            return (
                log.closed
                and len(own_log_links()) == readers_own
                and list(find_frame_logs(pids=[os.getpid()])) == []
            )

        assert _in_child(child)
        log.published(made_frame(3), 1, 2)
        assert [record.sequence for record in reader.read()] == [
            1,
            3,
        ] and 'who' not in reader.facts()
        assert reader.alive and not reader.ended, "the child's close was not the parent's"


def _memfd(
    size: int = SIZE,
    seals: int = SEALS,
    head: bytes = struct.pack('<4sIII', b'ZCFL', 1, 192, 4096),
) -> OwnedFd:
    fd = OwnedFd(os.memfd_create('zc_frame_log', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    os.ftruncate(fd.fileno(), size)
    os.pwrite(fd.fileno(), head, 0)
    fcntl.fcntl(fd.fileno(), 1033, seals)
    return fd


@pytest.mark.parametrize(
    ('options', 'why'),
    [
        ({'size': SIZE - 1}, f'{SIZE} bytes'),
        ({'size': 16}, f'{SIZE} bytes'),
        ({'seals': 1}, 'sealed'),
        ({'seals': 2}, 'sealed'),
        ({'head': b'ELF!' + bytes(12)}, 'begins with'),
        ({'head': bytes(16)}, 'begins with'),
        ({'head': struct.pack('<4sIII', b'ZCFL', 2, 192, 4096)}, 'version 2'),
        ({'head': struct.pack('<4sIII', b'ZCFL', 1, 200, 4096)}, '200 bytes'),
        ({'head': struct.pack('<4sIII', b'ZCFL', 1, 192, 0)}, '0 records'),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_only_has_the_name_is_reported_and_hides_no_log(
    no_fd_leak: None, options: dict[str, object], why: str
) -> None:
    with (
        _memfd(**options),
        FrameLog('capture', '/mine'),
        find_frame_logs(pids=[os.getpid()]) as logs,
    ):  # type: ignore[arg-type]
        assert [log.node for log in logs] == ['/mine']
        (unreadable,) = logs.unreadable
        assert unreadable.pid == os.getpid() and why in unreadable.reason and unreadable.next_step


def _proc(tmp_path: Path, pid: int, **files: str) -> Path:
    """Return a ``/proc`` with this process in it, under another number."""
    folder = tmp_path / str(pid)
    folder.mkdir()
    (folder / 'fd').symlink_to('/proc/self/fd')
    (folder / 'stat').symlink_to('/proc/self/stat')
    for name, text in files.items():
        (folder / name).write_text(text)
    return tmp_path


def test_a_process_in_a_container_has_two_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, 'getpid', lambda: 7)
        log = FrameLog('capture', '/inside')
    with (
        log,
        find_frame_logs(_proc(tmp_path, 4711, status='Name:\tpython\nNSpid:\t4711\t7\n')) as (
            reader,
        ),
    ):
        assert (reader.pid, reader.own_pid, reader.alive) == (4711, 7, True)
    with log, find_frame_logs(_proc(tmp_path, 12, status='NSpid:\t12\t8\n'), pids=[12]) as logs:
        assert list(logs) == [], 'that is somebody else, who reads it'


@pytest.mark.parametrize('which', ['fd', 'log'])
def test_processes_that_may_not_be_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    proc = _proc(tmp_path, 4711, comm='perception\n')
    listdir, open_file = os.listdir, os.open

    def refuse_listing(path: object) -> list[str]:
        if str(path).endswith('4711/fd'):
            raise PermissionError(13, 'Permission denied')
        return listdir(path)  # type: ignore[call-overload, no-any-return]

    def refuse_opening(path: str, flags: int) -> int:
        if '4711/fd/' in str(path):
            raise PermissionError(13, 'Permission denied')
        return open_file(path, flags)

    with FrameLog('capture', '/hidden'), monkeypatch.context() as patch:
        if which == 'fd':
            patch.setattr(os, 'listdir', refuse_listing)
        else:
            patch.setattr(os, 'open', refuse_opening)
        logs = find_frame_logs(proc)
    assert list(logs) == []
    assert [(found.pid, found.name) for found in logs.unreadable] == [(4711, 'perception')]
    assert 'may not be' in logs.unreadable[0].reason and 'root' in logs.unreadable[0].next_step


def test_a_pid_that_is_asked_for_and_not_there_is_named() -> None:
    process = subprocess.Popen([sys.executable, '-c', ''])
    process.wait()
    assert find_frame_logs(pids=[process.pid]).unreadable == (
        UnreadableProcess(
            process.pid, '', 'there is no such process', 'start it, or give another pid'
        ),
    )


def test_reading_needs_neither_numpy_nor_ros() -> None:
    code = (
        'import sys; import zc_perception.observe.frame_log, zc_perception.observe.timeline; '
        "print(sorted({'numpy', 'rclpy', 'cv2', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, check=True, cwd=TESTS.parent
    )
    assert done.stdout == '[]\n'
