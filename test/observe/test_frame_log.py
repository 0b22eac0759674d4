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
A frame log.

What is written is what is read, and what goes wrong costs a record or a warning, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import errno
import fcntl
import os
import struct
import threading
import zlib

from hypothesis import given
from hypothesis import strategies as st
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
import pytest

from zc_perception.observe.frame_log import (
    CAPACITY,
    find_frame_logs,
    FrameLog,
    FrameLogReader,
    MARGIN,
    RecordKind,
)

U32, U64, I64 = (
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(-(2**63), 2**63 - 1),
)


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def log(no_fd_leak: None, warnings: list[str]) -> Iterator[FrameLog]:
    with FrameLog('inference', '/front/inference', warnings.append) as log:
        yield log


@pytest.fixture
def reader(log: FrameLog) -> Iterator[FrameLogReader]:
    with find_frame_logs(pids=[os.getpid()]) as logs:
        (reader,) = logs
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
        captured_ns=times[1], published_ns=times[2],
        cost_ns=times[3], device=device,
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
        with find_frame_logs(pids=[os.getpid()]) as logs:
            (record,) = logs[0].read()
    lies = record_at(memory, 0)
    expected = {
        'number': 1, 'kind': 2, 'num_buffers': len(inodes), 'sequence': sequence,
        'generation': generation, 'buffer_uid': uid,
        'stamp_ns': times[0], 'captured_ns': times[1], 'published_ns': times[2],
        'received_ns': times[4], 'submitted_ns': times[5],
        'signalled_ns': times[6], 'done_ns': times[7], 'decoded_ns': times[8], 'sent_ns': 1,
        'capture_cost_ns': times[3],
        'st_dev': device, 'device_handle': handle, 'detections': detections, 'device_seqno': seqno,
        'thread_id': threading.get_native_id(),
        'number_again': 1, **dict(zip(('inode0', 'inode1', 'inode2', 'inode3'), (*inodes, 0, 0, 0),
                                      strict=False)),
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
    assert [r.kind for r in (published, unsent, done)] == [
        RecordKind.PUBLISHED,
        RecordKind.FAILED,
        RecordKind.PROCESSED,
    ]
    assert (published.published_ns, stamped.published_ns, published.sent_ns) == (70, 60, 71), (
        'the link knows better when it was'
    )
    assert (unsent.done_ns, unsent.received_ns, unsent.device_handle) == (99, 0, 0)
    assert (lost.done_ns, lost.submitted_ns, lost.device_handle, lost.device_seqno) == (
        99,
        9,
        5,
        6,
    )
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
    'more',
    [
        1,
        CAPACITY - MARGIN - 1,
        CAPACITY - MARGIN,
        CAPACITY - 1,
        CAPACITY,
        CAPACITY + 1,
        3 * CAPACITY + 17,
    ],
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


def test_who_comes_late_has_lost_nothing(log: FrameLog) -> None:
    for sequence in range(2 * CAPACITY):
        log.published(made_frame(sequence), 1, 2)
    with find_frame_logs(pids=[os.getpid()]) as (reader,):
        records = reader.read()
        assert reader.lost == 0
        assert [r.sequence for r in records] == list(range(CAPACITY + MARGIN - 1, 2 * CAPACITY)), (
            'the oldest may be being overwritten'
        )


def test_its_size_is_sealed(log: FrameLog) -> None:
    (link,) = own_log_links()
    fd = os.open(link, os.O_RDWR)
    try:
        for size in (0, SIZE - 4096, SIZE + 4096):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
        with pytest.raises(PermissionError):  # nobody adds the seal against writing either
            fcntl.fcntl(fd, 1033, 8)
    finally:
        os.close(fd)


def test_facts_come_back_whole(log: FrameLog, reader: FrameLogReader) -> None:
    assert reader.facts() == {'role': 'inference', 'node': '/front/inference', 'pid': os.getpid()}
    log.describe(
        {
            'pool': [[1, 2]],
            'reason': 'Größe',
            'copies': {'draw': {'count': 1, 'bytes': 2}},
            'odd': {1, 2} and object,
        }
    )
    facts = reader.facts()
    assert (
        facts['pool'] == [[1, 2]]
        and facts['reason'] == 'Größe'
        and facts['node'] == '/front/inference'
        and 'object' in facts['odd']
    )
    log.describe(lambda: {'n': 2})
    assert reader.facts() == {
        'role': 'inference',
        'node': '/front/inference',
        'pid': os.getpid(),
        'n': 2,
    }


def test_facts_that_are_too_long_leave_the_earlier_ones(
    log: FrameLog, reader: FrameLogReader, warnings: list[str]
) -> None:
    log.describe({'small': 1})
    log.describe({'small': 2, 'large': 'x' * 30000})
    assert reader.facts()['small'] == 1
    assert len(warnings) == 1 and 'facts of 300' in warnings[0]


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


def _no_descriptor(*_: object) -> int:
    raise OSError(errno.EMFILE, 'Too many open files')


def _no_seals(*_: object) -> int:
    raise OSError(errno.EPERM, 'Operation not permitted')


@pytest.mark.parametrize(
    ('module', 'name', 'failing'),
    [(os, 'memfd_create', _no_descriptor), (os, 'ftruncate', _no_seals)],
)
def test_a_node_without_a_log_is_warned_once_and_works(
    no_fd_leak: None,
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    name: str,
    failing: Callable[..., int],
) -> None:
    warnings: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(module, name, failing)
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
