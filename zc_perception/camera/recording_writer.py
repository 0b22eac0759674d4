"""Recording frames without being in anybody's way: copied out of the producer's buffer at once, written by a thread of its own.

The producer's slot is given back after one copy, however slow the disk is. Between copy and disk is a bounded number of buffers; when all
are full the new frame is left out and counted. So a slow disk costs the recorder frames, and nobody else.
"""

from __future__ import annotations

import itertools
import math
import os
import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.recording import SUFFIX, RecordingFormat, frame_head, index_of, preamble, tight_layout
from zc_perception.camera.replay.raw import SIDECAR, RawGeometry, format_sidecar
from zc_perception.errors import ConfigError, ZcError
from zc_perception.frame import Frame, Header
from zc_perception.memory.ledger import CopyLedger
from zc_perception.pixel.fourcc import NV12, fourcc_name
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.modifier import LINEAR

RAW_SUFFIX = '.nv12'
REASON = 'record'
DEFAULT_BUFFER_BYTES = 256 << 20
_RATE_FROM = 512
# Written at once, so that a slow disk is seen to go on.
_PIECE_BYTES = 1 << 20
STUCK_S = 1.0
"""A disk that takes nothing for so long, in seconds, isn't waited for at the end."""


class Output(Protocol):
    """A file that is written from its beginning to its end."""

    def write(self, content: Any) -> int | None:
        """Append; how much was written."""

    def close(self) -> None:
        """Flush and close."""


@dataclass(frozen=True)
class RecorderStatistics:
    """Counters since start.

    :param dropped: frames for which all buffers were full: the disk is too slow.
    :param refused: frames that can't be recorded, with the reason in *failure*.
    :param waiting: frames copied but not yet written.
    :param files: paths so far; a new one begins when the frames' format changes.
    :param failure: why the recording ended or frames were refused; empty while all is well.
    """

    recorded: int
    dropped: int
    refused: int
    waiting: int
    bytes: int
    files: tuple[str, ...]
    failure: str


@dataclass
class _Copy:
    """A frame in the recorder's own memory."""

    content: bytearray
    planes: list[NDArray[Any]]
    recording_format: RecordingFormat
    header: Header
    sequence: int
    captured_ns: int


class _File:
    """One file of a recording: a container, or raw NV12 with its geometry beside it."""

    def __init__(
        self, path: Path, recording_format: RecordingFormat, open_output: Callable[[Path], Output], on_written: Callable[[], None]
    ) -> None:
        self.path = path
        self._on_written = on_written
        self.format = recording_format
        self._raw = path.suffix == RAW_SUFFIX
        self._offsets: list[int] = []
        self._stamps: deque[int] = deque(maxlen=_RATE_FROM)
        self._at = 0
        self._output = open_output(path)
        try:
            if self._raw:
                self._write_sidecar()  # a first one, for a recorder that is killed
            else:
                self._write(preamble(recording_format))
        except BaseException:
            self._output.close()
            raise

    def _write(self, content: Any) -> None:
        view = memoryview(content)
        while view:
            taken = self._output.write(view[:_PIECE_BYTES]) or 0
            view = view[taken:]
            if taken:
                self._on_written()
        self._at += len(content)

    def add(self, copy: _Copy) -> None:
        """Append a frame."""
        at = self._at
        if not self._raw:
            self._write(frame_head(copy.header, copy.sequence, copy.captured_ns, copy.content))
        self._write(copy.content)
        self._offsets.append(at)
        self._stamps.append(copy.header.stamp_ns)

    def close(self) -> None:
        """Write the end."""
        try:
            if self._raw:
                self._write_sidecar()
            else:
                self._write(index_of(self._offsets, self._at))
        finally:
            self._output.close()

    def _write_sidecar(self) -> None:
        layout = self.format.layout
        geometry = RawGeometry(layout.width, layout.height, layout.width, layout.height, self._rate(), self.format.colorimetry)
        Path(str(self.path) + SIDECAR).write_text(format_sidecar(geometry), encoding='utf-8')

    def _rate(self) -> float:
        stamps = list(self._stamps)
        intervals = [after - before for before, after in itertools.pairwise(stamps) if after > before]
        rate = 1e9 / statistics.median(intervals) if intervals else 0.0
        return round(rate, 6) if 1e-3 < rate <= 1000 and math.isfinite(rate) else 30.0


class FrameRecorder:
    """Writes frames to a file. Use as a context manager; leaving it writes what was copied so far, and the file's end.

    :param path: the file; ``.zcr`` keeps everything bit by bit, ``.nv12`` keeps NV12's pixels and a geometry beside them. When the frames'
        size or format changes, ``NAME_2.zcr`` and so on follow.
    :param ledger: books each copy, under ``record``.
    :param buffer_bytes: memory for frames that wait for the disk; at least two frames are kept.
    :param overwrite: whether files that are there may be replaced.
    :param open_output: opens the files; for tests.
    :raises ConfigError: a path that can't be written, or is taken.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        ledger: CopyLedger,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        overwrite: bool = False,
        open_output: Callable[[Path], Output] | None = None,
    ) -> None:
        self._path = Path(path)
        if self._path.suffix not in (SUFFIX, RAW_SUFFIX):
            raise ConfigError(f"recording '{path}' must end in {SUFFIX} or {RAW_SUFFIX}")
        self._overwrite = overwrite
        self._open_output = open_output or self._open
        self._check_place()
        self._ledger = ledger
        self._buffer_bytes = buffer_bytes
        self._full: queue.SimpleQueue[_Copy | None] = queue.SimpleQueue()
        self._spare: deque[bytearray] = deque()
        self._lock = threading.Lock()
        self._format: RecordingFormat | None = None
        self._allocated = 0
        self._recorded = self._dropped = self._refused = self._waiting = self._bytes = 0
        self._files: list[str] = []
        self._failure = ''
        self._ended = False
        self._given_up = False
        self._closing = False
        self._written = 0
        self._thread = threading.Thread(target=self._run, name='recorder', daemon=True)
        self._thread.start()

    def _check_place(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"folder '{self._path.parent}' can't be made: {error.strerror}") from error
        if self._path.exists() and not self._overwrite:
            raise ConfigError(f"recording '{self._path}' exists; choose another path, or allow to overwrite it")
        if not os.access(self._path.parent, os.W_OK | os.X_OK):
            raise ConfigError(f"folder '{self._path.parent}' can't be written to")

    def _open(self, path: Path) -> Output:
        return open(path, 'wb' if self._overwrite else 'xb', buffering=0)

    def put(self, frame: Frame) -> bool:
        """Copy *frame*, which stays the caller's. ``False``: left out, and counted why. Never waits for the disk; one thread."""
        layout = frame.data.layout
        problem = self._problem(layout)
        if problem:
            self._refused += 1
            self._failure = problem
            return False
        if self._format is None or self._format.layout != layout or self._format.colorimetry != frame.data.colorimetry:
            self._format = RecordingFormat(layout, frame.data.colorimetry)
        content = None if self._ended else self._buffer(self._format.frame_bytes)
        if content is None:
            self._dropped += 1
            return False
        planes = _views(content, tight_layout(self._format))
        try:
            with frame.map() as sources:
                for source, target in zip(sources, planes, strict=True):
                    np.copyto(target, source)
        except ZcError as error:  # taken back by its pool, or a device doesn't finish with it
            planes.clear()
            self._spare.append(content)
            self._refused += 1
            self._failure = str(error)
            return False
        self._ledger.book(REASON, len(content))
        with self._lock:
            self._waiting += 1
        data = frame.data
        self._full.put(_Copy(content, planes, self._format, data.header, data.sequence, data.captured_ns))
        return True

    def _problem(self, layout: ImageLayout) -> str:
        if layout.modifier != LINEAR:
            return f'{layout.describe()} can not be recorded: only LINEAR frames have rows that the CPU reads'
        if self._path.suffix == RAW_SUFFIX and layout.fourcc != NV12:
            return f'{fourcc_name(layout.fourcc)} frames can not be recorded in {RAW_SUFFIX}: record to {SUFFIX}'
        return ''

    def _buffer(self, size: int) -> bytearray | None:
        """Memory for a frame: one that was written, or a new one while there may be more."""
        while True:
            try:
                content = self._spare.popleft()
            except IndexError:
                break
            if len(content) == size:
                return content
            with self._lock:
                self._allocated -= len(content)
        with self._lock:
            if self._allocated + size > max(self._buffer_bytes, 2 * size):
                return None
            self._allocated += size
        return bytearray(size)

    def _run(self) -> None:
        file: _File | None = None
        while (copy := self._full.get()) is not None:
            try:
                if not self._ended:
                    if file is None or file.format is not copy.recording_format:
                        if file is not None:
                            file.close()
                        file = None
                        file = self._next_file(copy.recording_format)
                    file.add(copy)
                    self._recorded += 1
                    self._bytes += len(copy.content)
            except Exception as error:  # whatever it was: a thread that only ended would look like a slow disk
                self._end(error)
            with self._lock:
                self._waiting -= 1
            copy.planes.clear()
            self._spare.append(copy.content)
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self._end(error)

    def _on_written(self) -> None:
        self._written += 1

    def _next_file(self, recording_format: RecordingFormat) -> _File:
        number = len(self._files) + 1
        path = self._path if number == 1 else self._path.with_name(f'{self._path.stem}_{number}{self._path.suffix}')
        file = _File(path, recording_format, self._open_output, self._on_written)
        self._files.append(str(path))
        return file

    def _end(self, error: Exception) -> None:
        """The disk is full or gone. What was written stays; its file is read up to the last whole frame."""
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self._failure = f"recording to '{self._path}' has ended: {reason}"
        self._ended = True

    @property
    def failed(self) -> bool:
        """Whether the recording has ended by itself, or couldn't be ended as it should."""
        return self._ended or self._given_up

    def statistics(self) -> RecorderStatistics:
        """Counters; from any thread."""
        return RecorderStatistics(
            self._recorded, self._dropped, self._refused, self._waiting, self._bytes, tuple(self._files), self._failure
        )  # fmt: skip

    def close(self, stuck_s: float = STUCK_S) -> bool:
        """Write everything that was copied, and the file's end, as long as the disk goes on, however slowly. Idempotent.

        :param stuck_s: a disk that takes nothing for so long is given up, and :attr:`failed`. What it has is read up to the last whole
            frame. The thread ends when the disk lets it.
        :returns: whether the thread has ended.
        """
        if not self._closing:
            self._closing = True
            self._full.put(None)
        written, since = self._written, time.monotonic()
        while self._thread.is_alive() and not self._given_up:
            self._thread.join(0.05)
            if self._written != written:
                written, since = self._written, time.monotonic()
            elif self._thread.is_alive() and time.monotonic() - since >= stuck_s:
                self._give_up(stuck_s)
        return not self._thread.is_alive()

    def _give_up(self, stuck_s: float) -> None:
        with self._lock:
            waiting = self._waiting
        self._given_up = True
        left = f'{waiting} frames' if waiting else "the file's end"
        self._failure = f"'{self._path}': its disk has taken nothing for {stuck_s:g} s; {left} could not be written"

    def __enter__(self) -> FrameRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _views(content: bytearray, layout: ImageLayout) -> list[NDArray[Any]]:
    return [np.ndarray(array.shape, array.sample, content, array.offset, array.strides) for array in layout.arrays]
