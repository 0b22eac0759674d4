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
The frame log: a node records in shared memory what it did with each frame, and when.

Each node always writes its log, so that ``zc_verify`` and ``zc_timeline`` can examine nodes that
already run, without ROS and without the nodes' help. The log is a memfd; the kernel frees it after
the process has ended and all readers have closed it.

A node writes with :class:`FrameLog`. Another process finds the logs in ``/proc`` with
:func:`find_frame_logs` and reads them with :class:`FrameLogReader`, which need only the standard
library. The layout of a log, with little-endian numbers:

- 0 to 4 KiB: the header: :data:`HEADER`, then two words of 8 bytes, each written by one CPU store:
  the number of records written, and the time when the node closed the log.
- 4 to 32 KiB: the node's facts (settings and counters): u64 generation (odd while the node writes
  the facts), u32 bytes, u32 CRC-32, UTF-8 JSON.
- 32 to 800 KiB: a ring of :data:`CAPACITY` records of :data:`RECORD_SIZE` bytes each; record *n*
  (from 1) is at (*n* - 1) mod capacity.

A record begins and ends with its own number. After a record, the writer increments the count of
records. A reader accepts a record if both numbers are right, and if the count, read afterwards,
shows that the writer is still :data:`MARGIN` records away from overwriting it. Records have no
checksum. Its computation would take longer than writing the rest of the record, because its code
and tables would leave the CPU's caches between two frames.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
import contextlib
from dataclasses import dataclass
from enum import IntEnum
import fcntl
from functools import partial
import json
import mmap
import os
from pathlib import Path
import stat
import struct
import threading
from threading import get_ident
import time
from typing import Any, NamedTuple, TYPE_CHECKING
import zlib

from zc_perception.errors import one_line
from zc_perception.forking import in_child, Turn
from zc_perception.log import ONCE, Seldom
from zc_perception.memory import kernel_abi as abi
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.observe.processes import (
    all_pids,
    as_root,
    command_name,
    open_files,
    PROC,
    process_state,
)

if TYPE_CHECKING:
    from zc_perception.frame import Frame, FrameData
    from zc_perception.npu.scheduler import InFlight

#: The memfd's name; in ``/proc/PID/fd`` it is ``/memfd:zc_frame_log (deleted)``.
NAME = 'zc_frame_log'
MAGIC = b'ZCFL'
VERSION = 1
CAPACITY = 4096
RECORD_SIZE = 192
MAX_BUFFERS = 4
#: A reader skips this many records, which the writer will overwrite next. CPUs may reorder reads
#: and writes, but not across this many records.
MARGIN = 32

#: The header's fields: magic, version, record size, capacity.
HEADER = struct.Struct('<4sIII')
#: The index of the 8-byte word that counts the records; the node writes it after each record.
WORD_WRITTEN = 2
#: The index of the word with the time when the node closed the log (CLOCK_MONOTONIC in ns); 0: the
#: log is open.
WORD_ENDED = 3
#: The fields at byte :data:`WRITER_OFFSET`: when the log was made (CLOCK_MONOTONIC in ns), the
#: writer's pid in its own namespace, role, node.
WRITER = struct.Struct('<QI4x16s256s')
WRITER_OFFSET = 32

FACTS_OFFSET = 4096
FACTS_WORD = FACTS_OFFSET // 8
#: The fields after the facts' generation number: size of the facts' text in bytes, its CRC-32.
FACTS_SIZES = struct.Struct('<II')
FACTS_TEXT = FACTS_OFFSET + 16
RING_OFFSET = 32 * 1024
FACTS_ROOM = RING_OFFSET - FACTS_TEXT
SIZE = RING_OFFSET + CAPACITY * RECORD_SIZE

#: The fields of a record, in order: number, kind, num_buffers, sequence, generation, buffer_uid;
#: stamp, captured, published, received, submitted, signalled, done, decoded, sent, capture cost;
#: 4 inodes, st_dev, device handle, detections, device seqno, thread, 4 unused bytes, number again.
RECORD = struct.Struct('<QIIQQQqqqqqqqqqqQQQQQIIQI4xQ')


class RecordKind(IntEnum):
    """What the node did with the frame."""

    PUBLISHED = 1
    PROCESSED = 2
    FAILED = 3


class FrameRecord(NamedTuple):
    """
    The record of one frame that one node has finished.

    Times are CLOCK_MONOTONIC in ns, which all processes of a machine share; 0: unknown, or this
    node has no such step.

    :ivar number: the record's number in this log, from 1.
    :ivar generation: a number that grows each time that the camera fills the frame's slot again.
    :ivar buffer_uid: the number that identifies the slot's buffers.
    :ivar stamp_ns: the stamp in the frame's header, by the ROS clock.
    :ivar captured_ns: when the camera had captured the frame.
    :ivar published_ns: when the camera's node began to give the frame to its consumers.
    :ivar received_ns: when the consumer took the frame.
    :ivar submitted_ns: when the device got the job.
    :ivar signalled_ns: when the consumer's thread noticed that the job's fence had signalled.
    :ivar done_ns: when the node began to decode the outputs, after it had decoded those of earlier
        frames; or when the frame failed.
    :ivar decoded_ns: when the boxes were ready.
    :ivar sent_ns: when detections were sent; in a capture node, when all consumers had the frame.
    :ivar capture_cost_ns: how long the camera's code worked on the frame.
    :ivar inodes: the inodes of the frame's buffers, 1 to 4.
    :ivar st_dev: the device number that these inodes belong to.
    :ivar device_handle: the handle that the device gave the imported buffers; 0: none.
    :ivar device_seqno: the device's job number; 0: unknown.
    :ivar detections: how many objects were found in the frame.
    :ivar thread_id: the kernel's id of the writing thread, in the node's own pid namespace.
    """

    number: int
    kind: RecordKind
    sequence: int
    generation: int
    buffer_uid: int
    stamp_ns: int
    captured_ns: int
    published_ns: int
    received_ns: int
    submitted_ns: int
    signalled_ns: int
    done_ns: int
    decoded_ns: int
    sent_ns: int
    capture_cost_ns: int
    inodes: tuple[int, ...]
    st_dev: int
    device_handle: int
    detections: int
    device_seqno: int
    thread_id: int


_PUBLISHED, _PROCESSED, _FAILED = (
    int(kind) for kind in (RecordKind.PUBLISHED, RecordKind.PROCESSED, RecordKind.FAILED)
)
_pack_record = RECORD.pack_into


class FrameLog:
    """
    The frame log of one node, which the node writes.

    One thread at a time writes records; any thread may call :meth:`describe`. No method raises. If
    the log can't be made or a record doesn't fit, *warn* is called, and the node works without the
    log or the record. In a forked child all methods do nothing.

    :param role: ``capture`` or ``inference``.
    :param node: the node's full name.
    :param warn: a function that is called with a sentence for the node's own log, at most once.
    """

    def __init__(
        self, role: str, node: str, warn: Callable[[str], object] = lambda text: None
    ) -> None:
        self.role = role
        self.node = node
        self._complain = partial(Seldom(warn, ONCE), about='frame log')
        # The memory, and a view of its 8-byte words. Both are one attribute, so that a thread that
        # writes while another one closes the log gets both or none.
        self._open: tuple[mmap.mmap, memoryview] | None = None
        self._describing = threading.Lock()
        self._ident = self._thread_id = 0
        try:
            memory = self._create()
        except (OSError, ValueError) as error:
            self._complain(
                f"the frame log can't be made ({error}), so zc_verify and zc_timeline can't see "
                'this node'
            )
            return
        self._open = memory, memoryview(memory).cast('Q')
        # A forked child must not write records: it shares the log's memory with its parent.
        in_child(Turn.LOGS, self._disown)

    def _create(self) -> mmap.mmap:
        with OwnedFd(os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)) as fd:
            os.ftruncate(fd.fileno(), SIZE)
            # Seal the size, so that a reader that has mapped the log never gets SIGBUS. The memfd
            # can't be sealed against writing, because the node writes to it.
            fcntl.fcntl(
                fd.fileno(), abi.F_ADD_SEALS, abi.F_SEAL_SHRINK | abi.F_SEAL_GROW | abi.F_SEAL_SEAL
            )
            # Python's mmap keeps a duplicate of the descriptor open. Readers find the log by this
            # duplicate, in /proc/PID/fd.
            memory = mmap.mmap(fd.fileno(), SIZE)
        names = self.role.encode()[:16], self.node.encode()[:256]
        WRITER.pack_into(memory, WRITER_OFFSET, time.monotonic_ns(), os.getpid(), *names)
        HEADER.pack_into(memory, 0, MAGIC, VERSION, RECORD_SIZE, CAPACITY)
        return memory

    @property
    def written(self) -> int:
        """The number of records written; 0 if the log is closed."""
        opened = self._open
        return 0 if opened is None else opened[1][WORD_WRITTEN]

    @property
    def closed(self) -> bool:
        """Whether records are ignored: no log was made, it is closed, or a fork inherited it."""
        return self._open is None

    def published(self, frame: Frame, began_ns: int, sent_ns: int) -> None:
        """
        Record that a frame was given to its consumers; the capture node calls this.

        :param began_ns: the time just before publishing; used if the link hasn't stored the
            frame's time of publishing.
        :param sent_ns: when all consumers had the frame.
        """
        self._write(
            _PUBLISHED, frame.data, frame.published_ns or began_ns, 0, 0, 0, 0, 0, sent_ns, 0, 0, 0
        )

    def processed(
        self, entry: InFlight, done_ns: int, decoded_ns: int, sent_ns: int, detections: int
    ) -> None:
        """Record that a frame's detections were sent; the inference node calls this."""
        frame = entry.frame
        self._write(
            _PROCESSED, frame.data, frame.published_ns, entry.received_ns, entry.submitted_ns,
            entry.signalled_ns, done_ns, decoded_ns, sent_ns, entry.handle.number,
            getattr(entry.job, 'device_seqno', 0), detections,
        )  # fmt: skip

    def failed(self, frame: Frame, failed_ns: int, entry: InFlight | None = None) -> None:
        """Record that a frame failed; *entry*: the frame's job, ``None`` if there was none."""
        if entry is None:
            self._write(_FAILED, frame.data, frame.published_ns, 0, 0, 0, failed_ns, 0, 0, 0, 0, 0)
        else:
            self._write(
                _FAILED, frame.data, frame.published_ns, entry.received_ns, entry.submitted_ns,
                entry.signalled_ns, failed_ns, 0, 0, entry.handle.number,
                getattr(entry.job, 'device_seqno', 0), 0,
            )  # fmt: skip

    def _write(
        self, kind: int, data: FrameData, published: int, received: int, submitted: int,
        signalled: int, done: int, decoded: int, sent: int, handle: int, seqno: int,
        detections: int,
    ) -> None:  # fmt: skip
        opened = self._open
        if opened is None:
            return
        memory, words = opened
        buffers = data.buffers
        identity = buffers[0].identity
        second = third = fourth = 0
        if len(buffers) > 1:
            others = [buffer.identity.inode for buffer in buffers[1:MAX_BUFFERS]]
            second, third, fourth = *others, *(0,) * (MAX_BUFFERS - 1 - len(others))
        ident = get_ident()
        if ident != self._ident:
            self._ident, self._thread_id = ident, threading.get_native_id()
        try:
            number = words[WORD_WRITTEN] + 1
            _pack_record(
                memory, RING_OFFSET + (number - 1) % CAPACITY * RECORD_SIZE, number, kind,
                len(buffers), data.sequence, data.generation, data.buffer_uid,
                data.header.stamp_ns, data.captured_ns, published, received, submitted, signalled,
                done, decoded, sent, data.capture_cost_ns, identity.inode, second, third, fourth,
                identity.device, handle, detections, seqno, self._thread_id, number,
            )  # fmt: skip
            words[WORD_WRITTEN] = number
        except (struct.error, ValueError, TypeError) as error:
            # Another thread closed the log during this write, or a number doesn't fit its field.
            if self._open is opened:
                self._complain(f'frame {data.sequence} is missing in the frame log: {error}')

    def describe(self, facts: Mapping[str, Any] | Callable[[], Mapping[str, Any]]) -> None:
        """
        Replace the facts: the node's settings and counters, which don't belong to one frame.

        If they are more than 28 KiB as JSON, the log keeps the earlier facts and calls *warn*.

        :param facts: the facts, or a function that returns them, which is only called while the
            log is open.
        """
        with self._describing:
            opened = self._open
            if opened is None:
                return
            memory, words = opened
            try:
                gathered = facts() if callable(facts) else facts
                whole = {'role': self.role, 'node': self.node, 'pid': os.getpid(), **gathered}
                text = json.dumps(whole, separators=(',', ':'), default=str).encode()
                if len(text) > FACTS_ROOM:
                    raise ValueError(
                        f'the facts have {len(text)} bytes, and the log has room for {FACTS_ROOM}'
                    )
                generation = words[FACTS_WORD] | 1
                words[FACTS_WORD] = generation
                FACTS_SIZES.pack_into(memory, FACTS_OFFSET + 8, len(text), zlib.crc32(text))
                end = FACTS_TEXT + len(text)
                memory[FACTS_TEXT:end] = text
                words[FACTS_WORD] = generation + 1
            except Exception as error:  # an error here must not end the node
                if self._open is opened:
                    self._complain(f'the frame log could not be updated: {one_line(error)}')

    def close(self) -> None:
        """Close the log; processes that have opened it can still read it."""
        with self._describing:
            if self._open is not None:
                self._open[1][WORD_ENDED] = time.monotonic_ns()
                self._disown()

    def _disown(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            # If another thread is writing a record, release() raises, and the memory is freed when
            # that thread drops its reference.
            with contextlib.suppress(BufferError):
                opened[1].release()
                opened[0].close()

    def __enter__(self) -> FrameLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_LINK = f'/memfd:{NAME}'
_FACTS_ATTEMPTS = 50
_KINDS = frozenset(RecordKind)
_RECORD_ATTEMPTS = 5
_A_MOMENT_S = 0.0002
_WEAKLY_ORDERED = os.uname().machine not in ('x86_64', 'i686')


@dataclass(frozen=True)
class UnreadableProcess:
    """Another process that may have a frame log, but that this process can't examine."""

    pid: int
    name: str
    reason: str
    next_step: str


#: If more unreadable processes than this have the same next step, one line reports all of them.
_NAMED = 4


def hidden_logs(unreadable: Collection[UnreadableProcess]) -> list[tuple[str, str, str]]:
    """
    Return which processes can't be read, why, and the user's next step, for messages.

    If many processes have the same next step, one entry stands for all of them: without root,
    nearly all processes of the machine may be unreadable.
    """
    by_step: dict[str, list[UnreadableProcess]] = {}
    for one in unreadable:
        by_step.setdefault(one.next_step, []).append(one)
    told = []
    for step, those in by_step.items():
        if len(those) > _NAMED:
            names = ', '.join(f'{one.pid} ({one.name})' for one in those[:_NAMED])
            reason = f'they may be nodes, but their logs cannot be read: {names}, …'
            told.append((f'{len(those)} processes', reason, step))
            continue
        for one in those:
            name = f' ({one.name})' if one.name else ''
            told.append((f'process {one.pid}{name}', one.reason, step))
    return told


class FrameLogReader:
    """
    Read the log of another process, even after that process has ended.

    :param fd: the log's descriptor; the caller owns it, and may close it after this call.
    :param pid: the writer's pid in this process's namespace; ``None``: use the pid in the log.
    :raises ValueError: the file isn't a frame log; the message tells how the file differs.
    :raises OSError: the log can't be mapped.
    """

    def __init__(self, fd: OwnedFd, pid: int | None = None, proc: Path = PROC) -> None:
        _check(fd)
        self._memory = mmap.mmap(fd.fileno(), SIZE, access=mmap.ACCESS_READ)
        self._words = memoryview(self._memory).cast('Q')
        try:
            self.started_ns, self.own_pid, role, node = WRITER.unpack_from(
                self._memory, WRITER_OFFSET
            )
            self.role = _text(role)
            self.node = _text(node)
            #: The writer's pid in this process's namespace. :attr:`own_pid` is the pid in the
            #: writer's own namespace, which differs in a container.
            self.pid: int = self.own_pid if pid is None else pid
            #: How many records this object did not return: they were overwritten before they
            #: were read, were skipped because it read too slowly, or have an unknown kind.
            self.lost = 0
            self._process = process_state(self.pid, proc)
            self._proc = proc
            self._facts: dict[str, Any] = {
                'role': self.role,
                'node': self.node,
                'pid': self.own_pid,
            }
            self._next = self._oldest()
        except BaseException:
            self.close()
            raise

    @property
    def written(self) -> int:
        """The number of records that the node has written since the log began."""
        return self._words[WORD_WRITTEN]

    @property
    def ended(self) -> bool:
        """Whether the node has closed the log."""
        return bool(self._words[WORD_ENDED])

    @property
    def alive(self) -> bool:
        """Whether the node's process still runs and has not closed the log."""
        if self.ended or self._process is None:
            return False
        now = process_state(self.pid, self._proc)
        return now is not None and not now.ended and now.start == self._process.start

    def _oldest(self) -> int:
        """Return the number of the oldest record that isn't about to be overwritten."""
        return max(1, self.written - CAPACITY + MARGIN)

    def skip(self) -> None:
        """Let :meth:`read` skip all records written until now; they don't count as lost."""
        self._next = self.written + 1

    def read(self) -> list[FrameRecord]:
        """Return the records since the last call; :attr:`lost` counts those that are missing."""
        records: list[FrameRecord] = []
        written = self.written
        if _WEAKLY_ORDERED and written >= self._next:
            time.sleep(_A_MOMENT_S)  # on some CPUs the new count is visible before the record
        while self._next <= written:
            values = self._whole(self._next)
            if values is None:
                # The writer has overtaken this reader. Skip half of the ring, so that this doesn't
                # happen again at once.
                oldest = self._oldest()
                if oldest <= self._next:
                    break  # the record is counted, but not yet visible to this CPU
                skipped = min(oldest + CAPACITY // 2, written + 1)
                self.lost += skipped - self._next
                self._next = skipped
                continue
            if values[1] in _KINDS:
                records.append(_record(values))
            else:  # only another version of this package knows this kind of record
                self.lost += 1
            self._next += 1
        return records

    def _whole(self, number: int) -> tuple[int, ...] | None:
        """Return a record's fields, or ``None`` if it is overwritten or stays incomplete."""
        offset = RING_OFFSET + (number - 1) % CAPACITY * RECORD_SIZE
        end = offset + RECORD_SIZE
        for attempt in range(_RECORD_ATTEMPTS):
            copy = self._memory[offset:end]
            values = RECORD.unpack(copy)
            if self._oldest() > number:
                return None
            if values[0] == values[-1] == number:
                return values
            if attempt:
                time.sleep(_A_MOMENT_S)
        return None

    def facts(self) -> dict[str, Any]:
        """Return the node's facts; if it keeps writing new ones, the last facts that were read."""
        for _ in range(_FACTS_ATTEMPTS):
            facts = self._read_facts()
            if facts is not None:
                self._facts = facts
                break
            time.sleep(_A_MOMENT_S)
        return dict(self._facts)

    def _read_facts(self) -> dict[str, Any] | None:
        """Return the facts; ``None``: the node is writing them, or they can't be read."""
        generation = self._words[FACTS_WORD]
        if not generation:
            return self._facts
        size, checksum = FACTS_SIZES.unpack_from(self._memory, FACTS_OFFSET + 8)
        if generation % 2 or size > FACTS_ROOM:
            return None
        end = FACTS_TEXT + size
        text = self._memory[FACTS_TEXT:end]
        if zlib.crc32(text) != checksum or self._words[FACTS_WORD] != generation:
            return None
        try:
            facts = json.loads(text)
        except (ValueError, RecursionError):  # no JSON: another program wrote this log
            return None
        return facts if isinstance(facts, dict) else None

    def close(self) -> None:
        """Unmap the log; a second call does nothing."""
        self._words.release()
        with contextlib.suppress(BufferError):
            self._memory.close()

    def __enter__(self) -> FrameLogReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return f'{self.role} {self.node} (process {self.pid})'


class FoundFrameLogs(list[FrameLogReader]):
    """
    The frame logs that were found and opened; a ``with`` block closes them at its end.

    ``unreadable`` has the processes whose logs could not be opened.
    """

    def __init__(
        self, logs: Collection[FrameLogReader] = (), unreadable: Collection[UnreadableProcess] = ()
    ) -> None:
        super().__init__(logs)
        self.unreadable = tuple(unreadable)

    def __enter__(self) -> FoundFrameLogs:
        return self

    def __exit__(self, *_: object) -> None:
        for log in self:
            log.close()


def _as_whom() -> str:
    return f'{as_root("CAP_SYS_PTRACE")}, or run as the user of that process'


def find_frame_logs(proc: Path = PROC, pids: Collection[int] | None = None) -> FoundFrameLogs:
    """Open the logs of all processes, or of *pids*; skip logs that a process got by a fork."""
    logs: dict[tuple[int, int], FrameLogReader] = {}
    unreadable = []

    def hidden(pid: int, reason: str, next_step: str) -> None:
        unreadable.append(UnreadableProcess(pid, command_name(pid, proc), reason, next_step))

    for pid in all_pids(proc) if pids is None else sorted(set(pids)):
        try:
            links = list(_links(pid, proc))
        except PermissionError:
            hidden(pid, f"this user may not list the process's files: {proc}/{pid}/fd", _as_whom())
            continue
        if pids is not None and not (proc / str(pid)).exists():
            hidden(pid, 'there is no such process', 'give the pid of a running node')
        for link in links:
            try:
                found = _open_log(link, pid, proc)
            except (FileNotFoundError, ProcessLookupError):
                continue  # the process has ended or closed the file since the links were listed
            except PermissionError:
                hidden(pid, f"this user may not open the process's frame log: {link}", _as_whom())
                continue
            except (OSError, ValueError) as error:
                step = 'use the same version of the package for the node and for this tool'
                hidden(pid, f'its frame log is unusable: {error}', step)
                continue
            if found is None:
                continue
            identity, log = found
            if identity in logs:
                log.close()
            else:
                logs[identity] = log
    return FoundFrameLogs(sorted(logs.values(), key=lambda log: (log.pid, log.node)), unreadable)


def _links(pid: int, proc: Path) -> Iterator[Path]:
    folder, entries = open_files(pid, proc)
    for entry in entries:
        path = folder / 'fd' / entry
        # The process may have closed the file since its descriptors were listed.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if os.readlink(path).startswith(_LINK):
                yield path


def _open_log(link: Path, pid: int, proc: Path) -> tuple[tuple[int, int], FrameLogReader] | None:
    """Open a log; return its (device, inode) and the log; ``None`` if *pid* didn't write it."""
    # The link may lead to another file by now, so don't wait: opening a FIFO would block.
    with OwnedFd.open(str(link), os.O_RDONLY | os.O_NONBLOCK) as fd:
        status = os.fstat(fd.fileno())
        log = FrameLogReader(fd, pid, proc)
    if log.own_pid == pid or log.own_pid in _namespace_pids(proc / str(pid)):
        return (status.st_dev, status.st_ino), log
    log.close()
    return None


def _check(fd: OwnedFd) -> None:
    """Raise ValueError if *fd* isn't a frame log of this version, sealed against resizing."""
    status = os.fstat(fd.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_size != SIZE:
        raise ValueError(
            f'a frame log is a memfd of {SIZE} bytes, but this file has {status.st_size}'
        )
    fixed = abi.F_SEAL_SHRINK | abi.F_SEAL_GROW
    try:
        seals = fcntl.fcntl(fd.fileno(), abi.F_GET_SEALS)
    except OSError as error:
        raise ValueError('a frame log is a memfd, but this is a file of another kind') from error
    if seals & fixed != fixed:
        raise ValueError('a frame log is sealed against a change of its size, this memfd is not')
    magic, version, record_size, capacity = HEADER.unpack(os.pread(fd.fileno(), HEADER.size, 0))
    if magic != MAGIC:
        raise ValueError(f'a frame log begins with {MAGIC!r}, but this memfd has {magic!r}')
    if (version, record_size, capacity) != (VERSION, RECORD_SIZE, CAPACITY):
        raise ValueError(
            f'this log has version {version} ({capacity} records of {record_size} bytes); this '
            f'tool reads version {VERSION} ({CAPACITY} records of {RECORD_SIZE} bytes)'
        )


def _record(values: tuple[int, ...]) -> FrameRecord:
    number, kind, num_buffers = values[:3]
    inodes = values[16:][: min(num_buffers, MAX_BUFFERS)]
    return FrameRecord._make((number, RecordKind(kind), *values[3:16], inodes, *values[20:-1]))


def _text(field: bytes) -> str:
    return field.rstrip(b'\0').decode(errors='replace')


def _namespace_pids(process: Path) -> set[int]:
    """Return the process's pid in each pid namespace that the process is in."""
    try:
        lines = (process / 'status').read_text(errors='replace').splitlines()
    except OSError:
        return set()
    return {
        int(number) for line in lines if line.startswith('NSpid:') for number in line.split()[1:]
    }
