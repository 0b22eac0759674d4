"""The flight recorder of a node: what it did with each frame and when, in memory that tools of other processes can read at any time.

Always on, so that ``zc_verify`` and the timeline attach to what runs already, without ROS and without the node's help. A memfd: nothing
to clean up, gone with the process. Its layout is in :mod:`~zc_perception.observe.frame_log_layout`, its reader in
:mod:`~zc_perception.observe.frame_log_reading`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import struct
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Mapping
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any

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
    RecordKind,
)

if TYPE_CHECKING:
    from zc_perception.frame import Frame, FrameData
    from zc_perception.npu.scheduler import InFlight

_PUBLISHED, _PROCESSED, _FAILED = (int(kind) for kind in (RecordKind.PUBLISHED, RecordKind.PROCESSED, RecordKind.FAILED))
# <linux/fcntl.h>; Python names them, but not in every build.
_F_ADD_SEALS, _SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1033, 1, 2, 4
_pack_record = RECORD.pack_into
_logs: weakref.WeakSet[FrameLog] = weakref.WeakSet()


def _forked() -> None:
    """A child's copy of the log would write into the parent's memory."""
    for log in list(_logs):
        log._disown()


os.register_at_fork(after_in_child=_forked)


class FrameLog:
    """One node's log. One thread at a time writes records; :meth:`describe` may be called from any.

    Nothing here raises: a log that can't be made, or has a record that doesn't fit, says so once by *warn* and is left out.
    In a forked child it does nothing.

    :param role: ``capture`` or ``inference``.
    :param node: the node's full name.
    :param warn: gets a sentence when something doesn't work.
    """

    def __init__(self, role: str, node: str, warn: Callable[[str], object] = lambda text: None) -> None:
        self.role = role
        self.node = node
        self._warn = warn
        self._warned = False
        # The memory, and its words; one attribute, for a thread that writes while another one closes.
        self._open: tuple[mmap.mmap, memoryview] | None = None
        self._describing = threading.Lock()
        self._ident = self._thread_id = 0
        self.open()

    def open(self) -> None:
        """Begin a new log, if there is none: it is open from its constructor on, until :meth:`close`."""
        if self._open is not None:
            return
        try:
            memory = self._create()
        except (OSError, ValueError) as error:
            self._complain(f'no frame log, so zc_verify and the timeline will not see this node: {error}')
            return
        self._open = memory, memoryview(memory).cast('Q')
        _logs.add(self)

    def _create(self) -> mmap.mmap:
        with OwnedFd(os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)) as fd:
            os.ftruncate(fd.fileno(), SIZE)
            # Its size never changes: who has it mapped can't be killed by that. No seal against writing, that is what it is for.
            fcntl.fcntl(fd.fileno(), _F_ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW | _SEAL_SEAL)
            memory = mmap.mmap(fd.fileno(), SIZE)  # keeps a descriptor of its own
        names = self.role.encode()[:16], self.node.encode()[:256]
        WRITER.pack_into(memory, WRITER_OFFSET, time.monotonic_ns(), os.getpid(), *names)
        HEADER.pack_into(memory, 0, MAGIC, VERSION, RECORD_SIZE, CAPACITY)
        return memory

    def _complain(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(text)

    @property
    def written(self) -> int:
        """Records so far; 0 when it is closed."""
        opened = self._open
        return 0 if opened is None else opened[1][WORD_WRITTEN]

    @property
    def closed(self) -> bool:
        """Whether nothing is written: after :meth:`close`, in a forked child, or where no log could be made."""
        return self._open is None

    def published(self, frame: Frame, began_ns: int, sent_ns: int) -> None:
        """A frame was given to its consumers.

        :param began_ns: before it was published; counts where the link itself notes no time.
        :param sent_ns: when everybody had it.
        """
        self._write(_PUBLISHED, frame.data, frame.published_ns or began_ns, 0, 0, 0, 0, 0, sent_ns, 0, 0, 0)

    def processed(self, entry: InFlight, done_ns: int, decoded_ns: int, sent_ns: int, detections: int) -> None:
        """A frame's detections were sent."""
        frame = entry.frame
        self._write(
            _PROCESSED, frame.data, frame.published_ns, entry.received_ns, entry.submitted_ns, entry.signalled_ns, done_ns, decoded_ns,
            sent_ns, entry.handle.number, getattr(entry.job, 'device_seqno', 0), detections,
        )  # fmt: skip

    def failed(self, frame: Frame, failed_ns: int, entry: InFlight | None = None) -> None:
        """A frame gave no detections.

        :param entry: what is known of its job, if it had one.
        """
        if entry is None:
            self._write(_FAILED, frame.data, frame.published_ns, 0, 0, 0, failed_ns, 0, 0, 0, 0, 0)
        else:
            self._write(
                _FAILED, frame.data, frame.published_ns, entry.received_ns, entry.submitted_ns, entry.signalled_ns, failed_ns, 0,
                0, entry.handle.number, getattr(entry.job, 'device_seqno', 0), 0,
            )  # fmt: skip

    def _write(
        self, kind: int, data: FrameData, published: int, received: int, submitted: int, signalled: int, done: int, decoded: int,
        sent: int, handle: int, seqno: int, detections: int,
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
                memory, RING_OFFSET + (number - 1) % CAPACITY * RECORD_SIZE, number, kind, len(buffers), data.sequence, data.generation,
                data.buffer_uid, data.header.stamp_ns, data.captured_ns, published, received, submitted, signalled, done, decoded, sent,
                data.capture_cost_ns, identity.inode, second, third, fourth, identity.device, handle, detections, seqno,
                self._thread_id, number,
            )  # fmt: skip
            words[WORD_WRITTEN] = number
        except (struct.error, ValueError, TypeError) as error:
            # Closed by another thread meanwhile, or a number that no frame can have.
            if self._open is opened:
                self._complain(f'frame {data.sequence} is missing in the frame log: {error}')

    def describe(self, facts: Mapping[str, Any] | Callable[[], Mapping[str, Any]]) -> None:
        """Replace the facts: what doesn't change with each frame, or is counted. What doesn't fit into 28 KiB of JSON is left out,
        the largest values first; ``left_out`` names them.

        :param facts: or what gathers them, which isn't called when there is no log.
        """
        with self._describing:
            opened = self._open
            if opened is None:
                return
            memory, words = opened
            try:
                gathered = facts() if callable(facts) else facts
                text = _fitting({'role': self.role, 'node': self.node, 'pid': os.getpid(), **gathered})
                generation = words[FACTS_WORD] | 1
                words[FACTS_WORD] = generation
                FACTS_SIZES.pack_into(memory, FACTS_OFFSET + 8, len(text), zlib.crc32(text))
                memory[FACTS_TEXT : FACTS_TEXT + len(text)] = text
                words[FACTS_WORD] = generation + 1
            except Exception as error:  # whatever it is, a node doesn't end for it
                if self._open is opened:
                    self._complain(f'the frame log could not be updated: {type(error).__name__}: {error}')

    def close(self) -> None:
        """End the log. Who has it open may still read it. A second call does nothing."""
        with self._describing:
            if self._open is not None:
                self._open[1][WORD_ENDED] = time.monotonic_ns()
                self._disown()

    def _disown(self) -> None:
        opened, self._open = self._open, None
        _logs.discard(self)
        if opened is not None:
            # Another thread may be in the middle of a record: the memory goes with that, then.
            with contextlib.suppress(BufferError):
                opened[1].release()
                opened[0].close()

    def __enter__(self) -> FrameLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _fitting(facts: dict[str, Any]) -> bytes:
    """As JSON that fits."""
    text = _json(facts)
    left_out: list[str] = []
    while len(text) > FACTS_ROOM:
        largest = max((key for key in facts if key not in ('role', 'node', 'pid')), key=lambda key: len(_json(facts[key])))
        facts = {key: value for key, value in facts.items() if key != largest}
        left_out.append(largest)
        text = _json({**facts, 'left_out': left_out})
    return text


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(',', ':'), default=str).encode()
