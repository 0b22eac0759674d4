"""Reads the frame logs of running nodes from another process: found in ``/proc``, no ROS, nothing but the standard library."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import stat
import time
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.observe.frame_log_layout import (
    CAPACITY,
    FACTS_OFFSET,
    FACTS_ROOM,
    FACTS_SIZES,
    FACTS_TEXT,
    FACTS_WORD,
    HEADER,
    MAGIC,
    MARGIN,
    MAX_BUFFERS,
    NAME,
    RECORD,
    RECORD_SIZE,
    RING_OFFSET,
    SIZE,
    VERSION,
    WORD_ENDED,
    WORD_WRITTEN,
    WRITER,
    WRITER_OFFSET,
    FrameRecord,
    RecordKind,
)
from zc_perception.observe.privileges import as_root

__all__ = ['FoundFrameLogs', 'FrameLogReader', 'FrameRecord', 'RecordKind', 'UnreadableProcess', 'find_frame_logs']

PROC = Path('/proc')
_LINK = f'/memfd:{NAME}'
_F_GET_SEALS, _SEAL_SHRINK, _SEAL_GROW = 1034, 2, 4
_FACTS_ATTEMPTS = 50
_KINDS = frozenset(RecordKind)
_RECORD_ATTEMPTS = 5
_A_MOMENT_S = 0.0002
_WEAKLY_ORDERED = os.uname().machine not in ('x86_64', 'i686')


@dataclass(frozen=True)
class UnreadableProcess:
    """A process that may have a frame log, which this one can't see.

    :param name: its command's name.
    """

    pid: int
    name: str
    reason: str
    next_step: str


class FrameLogReader:
    """One log of one process, mapped read-only; stays readable after the process has ended.

    :param fd: the log; not owned, it isn't needed afterwards.
    :param pid: the process, as this one sees it; ``None``: as the log says.
    :raises ValueError: it is something else; the message says what.
    :raises OSError: it can't be mapped.
    """

    def __init__(self, fd: OwnedFd, pid: int | None = None, proc: Path = PROC) -> None:
        _check(fd)
        self._memory = mmap.mmap(fd.fileno(), SIZE, access=mmap.ACCESS_READ)
        self._words = memoryview(self._memory).cast('Q')
        try:
            self.started_ns, self.own_pid, role, node = WRITER.unpack_from(self._memory, WRITER_OFFSET)
            self.role = _text(role)
            self.node = _text(node)
            #: As this process sees it. :attr:`own_pid` is what the process itself thinks: another number in a container.
            self.pid: int = self.own_pid if pid is None else pid
            #: Records that were overwritten before they were read, or of a kind that isn't known, since this object was made.
            self.lost = 0
            self._process = proc / str(self.pid)
            self._start_time = _start_time(self._process)
            self._facts: dict[str, Any] = {'role': self.role, 'node': self.node, 'pid': self.own_pid}
            self._next = self._oldest()
        except BaseException:
            self.close()
            raise

    @property
    def written(self) -> int:
        """Records since the log began."""
        return self._words[WORD_WRITTEN]

    @property
    def ended(self) -> bool:
        """Whether the node has closed it."""
        return bool(self._words[WORD_ENDED])

    @property
    def alive(self) -> bool:
        """Whether its process is still there and has not closed it."""
        return not self.ended and self._start_time != '' and _start_time(self._process) == self._start_time

    def _oldest(self) -> int:
        """The first record that nobody is about to overwrite."""
        return max(1, self.written - CAPACITY + MARGIN)

    def skip(self) -> None:
        """What was written so far doesn't matter, and isn't lost."""
        self._next = self.written + 1

    def read(self) -> list[FrameRecord]:
        """The records since the last call, at the first one those that are there; each one whole. :attr:`lost` counts what was
        overwritten before."""
        records: list[FrameRecord] = []
        written = self.written
        if _WEAKLY_ORDERED and written >= self._next:
            time.sleep(_A_MOMENT_S)  # what was written before the count may be seen after it
        while self._next <= written:
            values = self._whole(self._next)
            if values is None:
                # Half of a ring further on, so that the writer needs a while to catch up with us again.
                oldest = self._oldest()
                if oldest <= self._next:
                    break  # counted already, but not to be seen from here yet
                skipped = min(oldest + CAPACITY // 2, written + 1)
                self.lost += skipped - self._next
                self._next = skipped
                continue
            if values[1] in _KINDS:
                records.append(_record(values))
            else:  # its writer is not ours
                self.lost += 1
            self._next += 1
        return records

    def _whole(self, number: int) -> tuple[int, ...] | None:
        """A record's fields; ``None``: it isn't whole, even after a moment."""
        offset = RING_OFFSET + (number - 1) % CAPACITY * RECORD_SIZE
        for attempt in range(_RECORD_ATTEMPTS):
            copy = self._memory[offset : offset + RECORD_SIZE]
            values = RECORD.unpack(copy)
            if self._oldest() > number:
                return None
            if values[0] == values[-1] == number:
                return values
            if attempt:
                time.sleep(_A_MOMENT_S)
        return None

    def facts(self) -> dict[str, Any]:
        """What the node says of itself; what it said before, while it is just writing (or died in the middle)."""
        for _ in range(_FACTS_ATTEMPTS):
            facts = self._read_facts()
            if facts is not None:
                self._facts = facts
                break
            time.sleep(_A_MOMENT_S)
        return dict(self._facts)

    def _read_facts(self) -> dict[str, Any] | None:
        """Empty: there were none yet; ``None``: they are being written."""
        generation = self._words[FACTS_WORD]
        if not generation:
            return self._facts
        size, checksum = FACTS_SIZES.unpack_from(self._memory, FACTS_OFFSET + 8)
        if generation % 2 or size > FACTS_ROOM:
            return None
        text = self._memory[FACTS_TEXT : FACTS_TEXT + size]
        if zlib.crc32(text) != checksum or self._words[FACTS_WORD] != generation:
            return None
        try:
            facts = json.loads(text)
        except (ValueError, RecursionError):  # its writer is not ours
            return None
        return facts if isinstance(facts, dict) else None

    def close(self) -> None:
        """Unmap it. A second call does nothing."""
        self._words.release()
        with contextlib.suppress(BufferError):
            self._memory.close()

    def __enter__(self) -> FrameLogReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f'FrameLogReader({self.role} {self.node}, pid {self.pid})'


class FoundFrameLogs(list[FrameLogReader]):
    """The logs that were found, by pid and node; a context manager that closes them.

    :ivar unreadable: processes that may have one more, and why it isn't here.
    """

    def __init__(self, logs: Collection[FrameLogReader] = (), unreadable: Collection[UnreadableProcess] = ()) -> None:
        super().__init__(logs)
        self.unreadable = tuple(unreadable)

    def __enter__(self) -> FoundFrameLogs:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for log in self:
            log.close()


def _as_whom() -> str:
    return f'{as_root("CAP_SYS_PTRACE")}, or run as the user of that process'


def find_frame_logs(proc: Path = PROC, pids: Collection[int] | None = None) -> FoundFrameLogs:
    """Open the logs of all processes, or those of *pids*.

    A log counts as its writer's: other processes that have it open, such as tools that read it and forked children, are passed over.
    """
    logs: dict[tuple[int, int], FrameLogReader] = {}
    unreadable = []
    for process in _processes(proc, pids):
        pid = int(process.name)
        try:
            links = list(_links(process))
        except PermissionError:
            unreadable.append(UnreadableProcess(pid, _name(process), f'its open files ({process}/fd) may not be listed', _as_whom()))
            continue
        except (FileNotFoundError, ProcessLookupError):
            if pids is not None:
                unreadable.append(UnreadableProcess(pid, '', 'there is no such process', 'start it, or give another pid'))
            continue
        for link in links:
            try:
                found = _open_log(link, pid, proc)
            except (FileNotFoundError, ProcessLookupError):
                continue  # closed meanwhile
            except PermissionError:
                unreadable.append(UnreadableProcess(pid, _name(process), f'its frame log ({link}) may not be opened', _as_whom()))
                continue
            except (OSError, ValueError) as error:
                step = 'use the same version of the package for the node and for this tool'
                unreadable.append(UnreadableProcess(pid, _name(process), f'its frame log is unusable: {error}', step))
                continue
            if found is None:
                continue
            identity, log = found
            if identity in logs:
                log.close()
            else:
                logs[identity] = log
    return FoundFrameLogs(sorted(logs.values(), key=lambda log: (log.pid, log.node)), unreadable)


def _processes(proc: Path, pids: Collection[int] | None) -> Iterator[Path]:
    numbers = sorted(int(entry) for entry in os.listdir(proc) if entry.isdigit()) if pids is None else sorted(set(pids))
    for number in numbers:
        yield proc / str(number)


def _links(process: Path) -> Iterator[Path]:
    folder = process / 'fd'
    for entry in os.listdir(folder):
        path = folder / entry
        try:
            target = os.readlink(path)
        except FileNotFoundError:
            continue  # closed meanwhile
        if target.startswith(_LINK):
            yield path


def _open_log(link: Path, pid: int, proc: Path) -> tuple[tuple[int, int], FrameLogReader] | None:
    """With its identity; ``None``: it isn't this process's own.

    :raises ValueError: it only has the name.
    """
    # Should the number be something else by now: never wait for it.
    with OwnedFd.open(str(link), os.O_RDONLY | os.O_NONBLOCK) as fd:
        status = os.fstat(fd.fileno())
        log = FrameLogReader(fd, pid, proc)
    if log.own_pid == pid or log.own_pid in _namespace_pids(proc / str(pid)):
        return (status.st_dev, status.st_ino), log
    log.close()
    return None


def _check(fd: OwnedFd) -> None:
    """:raises ValueError: not a log that this version understands."""
    status = os.fstat(fd.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_size != SIZE:
        raise ValueError(f'a frame log is a memfd of {SIZE} bytes, this is one of {status.st_size}')
    fixed = _SEAL_SHRINK | _SEAL_GROW
    try:
        seals = fcntl.fcntl(fd.fileno(), _F_GET_SEALS)
    except OSError as error:
        raise ValueError('a frame log is a memfd, this is another file') from error
    if seals & fixed != fixed:
        raise ValueError('a frame log is sealed against a change of its size, this one is not')
    magic, version, record_size, capacity = HEADER.unpack(os.pread(fd.fileno(), HEADER.size, 0))
    if magic != MAGIC:
        raise ValueError(f'a frame log begins with {MAGIC!r}, this with {magic!r}')
    if (version, record_size, capacity) != (VERSION, RECORD_SIZE, CAPACITY):
        raise ValueError(
            f'it has version {version} ({capacity} records of {record_size} bytes); this tool reads version {VERSION} '
            f'({CAPACITY} of {RECORD_SIZE})'
        )


def _record(values: tuple[int, ...]) -> FrameRecord:
    number, kind, num_buffers = values[:3]
    inodes = values[16 : 16 + min(num_buffers, MAX_BUFFERS)]
    return FrameRecord._make((number, RecordKind(kind), *values[3:16], inodes, *values[20:-1]))


def _text(field: bytes) -> str:
    return field.rstrip(b'\0').decode(errors='replace')


def _namespace_pids(process: Path) -> set[int]:
    """The process's numbers in its pid namespaces."""
    try:
        lines = (process / 'status').read_text(errors='replace').splitlines()
    except OSError:
        return set()
    return {int(number) for line in lines if line.startswith('NSpid:') for number in line.split()[1:]}


def _start_time(process: Path) -> str:
    """Distinguishes two processes that had the same pid; empty: there is none, or only its zombie."""
    try:
        after_name = (process / 'stat').read_text(errors='replace').rpartition(')')[2].split()
    except OSError:
        return ''
    return '' if after_name[0] in 'ZX' else after_name[19]


def _name(process: Path) -> str:
    try:
        return (process / 'comm').read_text(errors='replace').strip()
    except OSError:
        return ''
