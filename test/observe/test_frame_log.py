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

"""A frame log returns what was written; a fault costs one record or a warning, no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
import errno
import fcntl
import itertools
import os
from pathlib import Path
import re
import struct
import subprocess
import sys
import threading
import time
from typing import Any
from unittest import mock
import zlib

from hypothesis import given
from hypothesis import strategies as st
from nodes.ros_kit import ros, spun
from observe.frame_log_kit import (
    FIELDS,
    log_memory,
    made_entry,
    made_frame,
    overwrite,
    own_log_links,
    record_at,
    SIZE,
)
from observe.timeline_kit import check_rules, slices
from processes import passes_in_child, ready
import pytest
from waiting import until

from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.nodes.perception import PerceptionGraph
from zc_perception.observe.frame_log import (
    CAPACITY,
    find_frame_logs,
    FoundFrameLogs,
    FrameLog,
    FrameLogReader,
    FrameRecord,
    MARGIN,
    RecordKind,
)
from zc_perception.observe.processes import (
    all_pids,
    as_root,
    command_name,
    sudo_command,
    threads_of,
)
from zc_perception.observe.timeline import build_timeline, NodeTrack

U32, U64, I64 = (
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(-(2**63), 2**63 - 1),
)


def logs_of_this_process() -> FoundFrameLogs:
    return find_frame_logs(pids=[os.getpid()])


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def log(no_fd_leak: None, warnings: list[str]) -> Iterator[FrameLog]:
    with FrameLog('inference', '/front/inference', warnings.append) as log:
        yield log


@pytest.fixture
def reader(log: FrameLog) -> Iterator[FrameLogReader]:
    with logs_of_this_process() as (reader,):
        yield reader


@given(
    inodes=st.lists(U64, min_size=1, max_size=4).map(tuple),
    times=st.lists(I64, min_size=9, max_size=9), small=st.tuples(U32, U32, U32),
    large=st.lists(U64, min_size=4, max_size=4), device=U64, seqno=U64,
)  # fmt: skip
def test_every_value_comes_back_and_lies_where_the_layout_says(
    inodes: tuple[int, ...],
    times: list[int],
    small: tuple[int, int, int],
    large: list[int],
    device: int,
    seqno: int,
) -> None:
    handle, detections, _ = small
    sequence, generation, uid, _ = large
    frame = made_frame(
        sequence, inodes=inodes, generation=generation, buffer_uid=uid, stamp_ns=times[0],
        captured_ns=times[1], published_ns=times[2], cost_ns=times[3], device=device,
    )  # fmt: skip
    with FrameLog('inference', '/n') as log:
        log.processed(
            made_entry(frame, times[4], times[5], times[6], handle, device_seqno=seqno),
            times[7],
            times[8],
            1,
            detections,
        )
        memory = log_memory()
        with logs_of_this_process() as logs:
            (record,) = logs[0].read()
    lies = record_at(memory, 0)
    expected = {
        'number': 1, 'kind': 2, 'num_buffers': len(inodes), 'sequence': sequence,
        'generation': generation, 'buffer_uid': uid, 'stamp_ns': times[0],
        'captured_ns': times[1], 'published_ns': times[2], 'received_ns': times[4],
        'submitted_ns': times[5], 'signalled_ns': times[6], 'done_ns': times[7],
        'decoded_ns': times[8], 'sent_ns': 1, 'capture_cost_ns': times[3], 'st_dev': device,
        'device_handle': handle, 'detections': detections, 'device_seqno': seqno,
        'thread_id': threading.get_native_id(), 'number_again': 1,
        **{f'inode{index}': (*inodes, 0, 0, 0)[index] for index in range(4)},
    }  # fmt: skip
    assert {name: lies[name] for name in expected} == expected
    assert record.inodes == inodes and record.kind is RecordKind.PROCESSED
    shared = [name for name, _, _ in FIELDS if hasattr(record, name)]
    assert len(shared) == len(FIELDS) - 7 and all(
        getattr(record, name) == expected[name] for name in shared
    )


def test_each_kind_says_what_it_knows(log: FrameLog, reader: FrameLogReader) -> None:
    log.published(made_frame(1, published_ns=0), 70, 71)
    log.published(made_frame(2, published_ns=60), 70, 71)
    log.failed(made_frame(3), 99)
    log.failed(made_frame(4), 99, made_entry(made_frame(4), handle=5, device_seqno=6))
    log.processed(made_entry(made_frame(5)), 11, 12, 13, 2)
    published, stamped, unsent, lost, done = reader.read()
    kinds = [RecordKind.PUBLISHED, RecordKind.FAILED, RecordKind.PROCESSED]
    assert [r.kind for r in (published, unsent, done)] == kinds
    assert (published.published_ns, published.sent_ns) == (70, 71)
    assert stamped.published_ns == 60, 'the link knows better when it was'
    assert (unsent.done_ns, unsent.received_ns, unsent.device_handle) == (99, 0, 0)
    assert (lost.done_ns, lost.submitted_ns) == (99, 9)
    assert (lost.device_handle, lost.device_seqno) == (5, 6)
    assert (done.device_seqno, done.detections) == (0, 2), 'an accelerator without numbers'


def test_read_gives_each_record_once(log: FrameLog, reader: FrameLogReader) -> None:
    assert reader.read() == []
    for sequence in range(3):
        log.published(made_frame(sequence), 1, 2)
    assert [record.sequence for record in reader.read()] == [0, 1, 2]
    log.published(made_frame(3), 1, 2)
    assert (
        [record.sequence for record in reader.read()] == [3]
        and reader.read() == []
        and reader.lost == 0
    )
    log.published(made_frame(4), 1, 2)
    reader.skip()
    assert reader.read() == [] and reader.lost == 0 and reader.written == log.written == 5


@pytest.mark.parametrize(
    'more', [CAPACITY - MARGIN - 1, CAPACITY - MARGIN, CAPACITY, 3 * CAPACITY + 17]
)
def test_what_was_overwritten_is_counted_and_never_read(
    log: FrameLog, reader: FrameLogReader, more: int
) -> None:
    log.published(made_frame(0), 1, 2)
    reader.read()
    for sequence in range(1, more + 1):
        log.published(made_frame(sequence), 1, 2)
    records = reader.read()
    assert reader.lost + len(records) == more
    assert [record.sequence for record in records] == list(
        range(more + 1 - len(records), more + 1)
    )
    assert len(records) == more if more <= CAPACITY - MARGIN else len(records) >= CAPACITY // 3
    log.published(made_frame(more + 1), 1, 2)
    assert [record.sequence for record in reader.read()] == [more + 1]


def test_its_size_is_sealed(log: FrameLog) -> None:
    (link,) = own_log_links()
    fd = os.open(link, os.O_RDWR)
    try:
        for size in (0, SIZE - 4096, SIZE + 4096):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
        with pytest.raises(PermissionError):  # a reader can't add the seal against writing either
            fcntl.fcntl(fd, 1033, 8)
    finally:
        os.close(fd)


def test_facts_that_are_too_long_leave_the_earlier_ones(
    log: FrameLog, reader: FrameLogReader, warnings: list[str]
) -> None:
    log.describe({'small': 1})
    log.describe({'small': 2, 'large': 'x' * 30000})
    assert reader.facts()['small'] == 1
    assert len(warnings) == 1 and 'facts have 300' in warnings[0]


def test_facts_that_are_being_written_leave_the_earlier_ones(
    log: FrameLog, reader: FrameLogReader
) -> None:
    log.describe({'n': 1})
    assert reader.facts()['n'] == 1
    memory = log_memory()
    (generation,) = struct.unpack_from('<Q', memory, 4096)
    assert generation % 2 == 0
    changed = b'{"n":9}'
    overwrite(4112, changed)
    assert reader.facts()['n'] == 1, 'the checksum is wrong'
    overwrite(4104, struct.pack('<II', len(changed), zlib.crc32(changed)))
    overwrite(4096, struct.pack('<Q', generation + 1))
    assert reader.facts()['n'] == 1, 'odd: a writer is at it, or died there'
    overwrite(4096, struct.pack('<Q', generation + 2))
    assert reader.facts() == {'n': 9}


def test_a_closed_log_stays_readable_and_takes_nothing_more(
    log: FrameLog, reader: FrameLogReader
) -> None:
    log.published(made_frame(1), 1, 2)
    assert not reader.ended and reader.alive and len(own_log_links()) == 2, (
        "the writer's and the reader's"
    )
    log.close()
    log.close()
    log.published(made_frame(2), 1, 2)
    log.describe(lambda: pytest.fail('gathered for nobody'))
    assert (
        reader.ended and not reader.alive and [record.sequence for record in reader.read()] == [1]
    )
    assert log.closed and len(own_log_links()) == 1
    reader.close()
    reader.close()
    assert own_log_links() == []


@pytest.mark.parametrize(
    ('name', 'number'), [('memfd_create', errno.EMFILE), ('ftruncate', errno.EPERM)]
)
def test_a_node_without_a_log_is_warned_once_and_works(
    no_fd_leak: None,
    monkeypatch: pytest.MonkeyPatch,
    warnings: list[str],
    name: str,
    number: int,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, name, mock.Mock(side_effect=OSError(number, os.strerror(number))))
        log = FrameLog('capture', '/capture', warnings.append)
    log.published(made_frame(1), 1, 2)
    log.processed(made_entry(made_frame(1)), 1, 2, 3, 4)
    log.describe({})
    log.close()
    assert log.closed and len(warnings) == 1 and 'zc_verify' in warnings[0]


def test_closing_while_another_thread_writes_costs_nothing_but_the_record(
    no_fd_leak: None, warnings: list[str]
) -> None:
    stop, logs = threading.Event(), [FrameLog('capture', '/capture', warnings.append)]

    def write() -> None:
        frame = made_frame(1)
        while not stop.is_set():
            logs[-1].published(frame, 1, 2)

    thread = threading.Thread(target=write, name='writer')
    thread.start()
    try:
        for _ in range(50):
            logs[-1].close()
            logs.append(FrameLog('capture', '/capture', warnings.append))
    finally:
        stop.set()
        thread.join()
        logs[-1].close()
    assert warnings == []


CAMERA = {
    'capture': {'framerate': 60.0, 'width': 320, 'height': 240},
    'inference': {'timeout': 20.0},
}


@contextmanager
def running(domain: int) -> Iterator[PerceptionGraph]:
    with ros(domain) as context:
        graph = PerceptionGraph(context, CAMERA)
        with spun(context, *graph.nodes):
            yield graph


def collect(
    logs: FoundFrameLogs, enough: Callable[[dict[str, list[FrameRecord]]], bool]
) -> dict[str, list[FrameRecord]]:
    records: dict[str, list[FrameRecord]] = {log.role: [] for log in logs}

    def read_enough() -> bool:
        for log in logs:
            records[log.role] += log.read()
        return enough(records)

    until(read_enough, lambda: {role: len(found) for role, found in records.items()})
    return records


def test_what_nodes_write_while_frames_flow(free_domain: int) -> None:
    with running(free_domain) as graph, logs_of_this_process() as logs:
        own = os.getpid()
        assert {(log.role, log.node, log.pid, log.alive) for log in logs} == {
            ('capture', '/capture', own, True), ('inference', '/inference', own, True),
        }  # fmt: skip
        records = collect(logs, lambda found: min(map(len, found.values())) >= 15)
        pool = {
            (b.identity.device, b.identity.inode)
            for slot in graph.capture.camera.slots
            for b in slot.buffers
        }
        logs_of = {log.role: log for log in logs}
        # Facts are written once a second.
        until(lambda: logs_of['capture'].facts().get('captured', 0) > 0)
        until(lambda: logs_of['inference'].facts()['processed'] > 0)
        capture, inference = (logs_of[role].facts() for role in ('capture', 'inference'))
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
    published, processed = records['capture'], records['inference']
    assert {r.kind for r in published} == {RecordKind.PUBLISHED}
    assert {r.kind for r in processed} == {RecordKind.PROCESSED}
    assert [r.number for r in published] == list(range(1, len(published) + 1)), 'none is missing'
    assert [r.sequence for r in published] == sorted({r.sequence for r in published})
    for r in published:
        times = [r.captured_ns - r.capture_cost_ns, r.captured_ns, r.published_ns, r.sent_ns]
        assert times == sorted(times) and 0 < times[0] < r.captured_ns
        assert not any((r.received_ns, r.submitted_ns, r.done_ns, r.device_handle, r.detections))
    for r in processed:
        times = [
            r.captured_ns, r.published_ns, r.received_ns, r.submitted_ns, r.signalled_ns,
            r.done_ns, r.decoded_ns, r.sent_ns,
        ]  # fmt: skip
        assert times == sorted(times) and times[0] > 0
    assert {(r.st_dev, inode) for r in (*published, *processed) for inode in r.inodes} <= pool
    known = {(r.buffer_uid, r.generation, r.sequence): r for r in published}
    keys = {(r.buffer_uid, r.generation, r.sequence): r for r in processed}
    both = [(known[key], keys[key]) for key in known.keys() & keys.keys()]
    assert len(both) >= 10
    for name in ('stamp_ns', 'captured_ns', 'published_ns', 'capture_cost_ns', 'inodes', 'st_dev'):
        assert all(getattr(p, name) == getattr(r, name) for p, r in both), name
    assert {tuple(entry) for entry in capture['pool']} == pool
    expected = {
        'slots': len(capture['pool']), 'fourcc': 'NV12', 'width': 320, 'height': 240,
        'heap': 'memfd', 'conversions': 0,
        'peers': [{'name': 'in_process', 'pid': own, 'rung': 'in_process'}],
    }  # fmt: skip
    assert {name: capture[name] for name in expected} == expected
    expected = {'rung': 'in_process', 'accelerator': 'onnx', 'failed': 0}
    assert {name: inference[name] for name in expected} == expected
    assert inference['submitted'] >= inference['processed'] > 0
    assert set(inference['copies']) == {'draw', 'tensor'}
    assert {names.get(r.thread_id) for r in published} == {'camera'}
    assert {names.get(r.thread_id) for r in processed} == {'inference'}

    trace = build_timeline(
        [NodeTrack(log.node, log.role, log.pid, records[log.role]) for log in logs]
    )
    check_rules(trace)
    assert trace['otherData']['whole_frames'] >= 10
    assert len(slices(trace, 'infer')) == len(processed)


def test_a_lost_frame_is_recorded(free_domain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(free_domain) as graph, logs_of_this_process() as logs:

        collect(logs, lambda found: len(found['inference']) >= 2)
        with monkeypatch.context() as patch:
            refuse = mock.Mock(side_effect=ValueError('no room'))
            patch.setattr(graph.inference._publisher, 'publish', refuse)
            records = collect(
                logs, lambda found: any(r.kind is RecordKind.FAILED for r in found['inference'])
            )['inference']
        lost = next(r for r in records if r.kind is RecordKind.FAILED)
        assert (
            0 < lost.received_ns <= lost.submitted_ns <= lost.signalled_ns <= lost.done_ns
            and lost.sent_ns == lost.detections == 0
        )


def writer(what: str, seconds: float = 0.0) -> AbstractContextManager[subprocess.Popen[str]]:
    return ready(sys.executable, '-m', 'observe.frame_log_kit', what, seconds)


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
        first = reader._next
        records = reader.read()
        deadline = time.monotonic() + 60.0
        for look in itertools.count(1):
            written = reader.written
            more = reader.read()
            records += more
            if look % 40 == 0:  # sometimes so late that the ring has wrapped around
                while reader.written < written + 6000 and _still_writing(reader):
                    pass
            if not (more or _still_writing(reader)) or time.monotonic() > deadline:
                break
        assert process.stdout is not None
        total = int(process.stdout.readline())
        records += reader.read()
    assert [record for record in records if not follows_from_its_number(record)] == []
    numbers = [record.number for record in records]
    assert numbers == sorted(set(numbers)), 'in order, none twice'
    assert numbers[-1] == total > 10_000
    assert len(numbers) + reader.lost == total - first + 1, 'what was not read is counted'


def _still_writing(reader: FrameLogReader) -> bool:
    before = reader.written
    time.sleep(0.02)
    return reader.written != before


def test_a_log_is_its_writer_s_alone_and_stays_readable_when_this_is_killed(
    no_fd_leak: None,
) -> None:
    with writer('still') as process, find_frame_logs(pids=[process.pid]) as (reader,):
        assert reader.alive and (reader.pid, reader.role, reader.node) == (
            process.pid,
            'inference',
            '/writer',
        )
        assert own_log_links(), 'this process has it open'
        with find_frame_logs(pids=[os.getpid(), process.pid]) as again:
            assert [(log.pid, log.node) for log in again] == [(process.pid, reader.node)]
            assert again.unreadable == ()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not reader.alive, 'though its parent has not asked for its status yet'
        process.wait()
        assert not reader.alive and not reader.ended
        assert [record.sequence for record in reader.read()] == [0, 1, 2]
        assert reader.facts()['n'] == 3
        assert list(find_frame_logs(pids=[process.pid])) == []


def test_a_forked_child_writes_nothing_and_has_no_log(no_fd_leak: None) -> None:
    with FrameLog('capture', '/parent') as log, logs_of_this_process() as (reader,):
        log.published(made_frame(1), 1, 2)
        readers_own = len(own_log_links()) - 1

        def child() -> None:
            log.published(made_frame(2), 1, 2)
            log.describe({'who': 'child'})
            log.close()
            assert log.closed and len(own_log_links()) == readers_own
            assert list(logs_of_this_process()) == []

        assert passes_in_child(child)
        log.published(made_frame(3), 1, 2)
        assert [record.sequence for record in reader.read()] == [1, 3]
        assert 'who' not in reader.facts()
        assert reader.alive and not reader.ended, "the child's close was not the parent's"


def _memfd(size: int = SIZE, seals: int = 1 | 2 | 4, head: bytes = b'') -> OwnedFd:
    fd = OwnedFd(os.memfd_create('zc_frame_log', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    os.ftruncate(fd.fileno(), size)
    os.pwrite(fd.fileno(), head or struct.pack('<4sIII', b'ZCFL', 1, 192, 4096), 0)
    fcntl.fcntl(fd.fileno(), 1033, seals)
    return fd


@pytest.mark.parametrize(
    ('options', 'why'),
    [
        ({'size': SIZE - 1}, f'{SIZE} bytes'),
        ({'seals': 1}, 'sealed'),
        ({'head': b'ELF!' + bytes(12)}, 'begins with'),
        ({'head': struct.pack('<4sIII', b'ZCFL', 2, 192, 4096)}, 'version 2'),
        ({'head': struct.pack('<4sIII', b'ZCFL', 1, 200, 4096)}, '200 bytes'),
        ({'head': struct.pack('<4sIII', b'ZCFL', 1, 192, 0)}, '0 records'),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_only_has_the_name_is_reported_and_hides_no_log(
    no_fd_leak: None, options: dict[str, object], why: str
) -> None:
    with _memfd(**options), FrameLog('capture', '/mine'), logs_of_this_process() as logs:
        assert [log.node for log in logs] == ['/mine']
        (unreadable,) = logs.unreadable
        assert unreadable.pid == os.getpid() and why in unreadable.reason and unreadable.next_step


def _proc(tmp_path: Path, pid: int, **files: str) -> Path:
    """Return a ``/proc`` that shows this process under the number *pid*."""
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


@pytest.mark.parametrize(('call', 'part'), [('listdir', '4711/fd'), ('open', '4711/fd/')])
def test_processes_that_may_not_be_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, part: str
) -> None:
    proc, real = _proc(tmp_path, 4711, comm='perception\n'), getattr(os, call)

    def refuse(path: object, *rest: int) -> Any:
        if part in str(path):
            raise PermissionError(13, 'Permission denied')
        return real(path, *rest)

    with FrameLog('capture', '/hidden'), monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        logs = find_frame_logs(proc)
    assert list(logs) == []
    assert [(found.pid, found.name) for found in logs.unreadable] == [(4711, 'perception')]
    assert 'may not' in logs.unreadable[0].reason and 'root' in logs.unreadable[0].next_step


# Data about processes, from ``/proc``.
def test_who_has_ended_has_nothing(tmp_path: Path) -> None:
    assert (
        all_pids(tmp_path / 'nothing'),
        threads_of(5, tmp_path),
        command_name(5, tmp_path),
    ) == ([], [], '')


@pytest.mark.parametrize(
    ('effective', 'needed', 'said', 'not_said'),
    [
        (
            0,
            (),
            'CAP_SYS_PTRACE and CAP_SYS_ADMIN, .*--cap-add SYS_PTRACE --cap-add SYS_ADMIN',
            'run as root',
        ),
        (0, ('CAP_SYS_PTRACE',), 'CAP_SYS_PTRACE, .*--cap-add SYS_PTRACE', 'ADMIN'),
        (1 << 19 | 1 << 21, (), 'root outside of any container', '--cap-add'),
        (None, (), 'CAP_SYS_PTRACE and CAP_SYS_ADMIN', 'run as root'),
    ],
    ids=['lacks both', 'lacks one', 'root of a container', 'capabilities are not shown'],
)
def test_a_root_is_told_what_it_lacks(
    effective: int | None, needed: tuple[str, ...], said: str, not_said: str, tmp_path: Path
) -> None:
    status = tmp_path / 'status'
    if effective is not None:
        status.write_text(f'Name:\tpython\nCapPrm:\t000001ffffffffff\nCapEff:\t{effective:016x}\n')
    text = as_root(*needed, user=0, status=status)
    assert re.search(said, text) and not_said not in text


@pytest.mark.parametrize(
    ('environment', 'expected'),
    [
        ({'PATH': '/bin', 'LD_LIBRARY_PATH': '/l'}, "sudo '{folder}/zc_x'"),
        (
            {'PATH': '/bin', 'PYTHONPATH': '/p', 'ROS_DOMAIN_ID': '7', 'HOME': '/h'},
            'sudo env "PATH=$PATH" "PYTHONPATH=$PYTHONPATH" "ROS_DOMAIN_ID=$ROS_DOMAIN_ID" '
            "'{folder}/zc_x'",
        ),
    ],
)
def test_the_command_for_root_keeps_what_this_shell_has_of_ros(
    environment: dict[str, str], expected: str, tmp_path: Path
) -> None:
    program = tmp_path / 'a workspace' / 'zc_x'
    program.parent.mkdir()
    program.touch(0o755)
    assert sudo_command(str(program), environment) == expected.format(folder=program.parent)
    # A program that is found nowhere keeps its name.
    assert sudo_command('zc_nowhere', {'PATH': '/nowhere'}) == 'sudo zc_nowhere'
