"""Raw recordings: frames' planes bit by bit, with what they mean, in one file.

The file (``.zcr``; numbers are little-endian):

* ``ZCREC001``, u32 length of the JSON that follows, u32 CRC-32 of it, the JSON in UTF-8. Its keys: ``version`` (1), ``width``,
  ``height``, ``fourcc`` (four characters), ``modifier`` (always 0, LINEAR), ``matrix``, ``range``, ``transfer`` (as in
  pixel/colorimetry.py), ``planes``: a list of ``{"buffer", "offset", "stride", "size"}``, which is how the producer's buffers held
  them. In this file rows are tight.
* For each frame: ``FRME``, u32 CRC-32 of the 40 bytes behind it, u64 sequence, i64 stamp, i64 time of capture (CLOCK_MONOTONIC; both
  ns), u32 length of frame_id, u32 CRC-32 of frame_id and pixels, u64 bytes of pixels; then frame_id in UTF-8 and the planes' rows.
* At an orderly end: ``INDX``, u32 CRC-32 of what follows, u64 number of frames, a u64 file offset for each; then ``ZCRECEND`` and the
  u64 offset of ``INDX``.

A file without its end, of a recorder that lost power, is read frame by frame up to the last whole one.

:class:`RecordingSource` reads and plays it. :class:`FrameRecorder` writes it without being in anybody's way: it
copies each frame out of the producer's buffer at once, so that the slot is free again, and a thread of its own writes the copy. Between
copy and disk is a bounded number of buffers. When all are full the new frame is left out and counted, so a slow disk costs the recorder
frames, and nobody else.
"""

from __future__ import annotations

import json
import os
import queue
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.replay.raw import SIDECAR, RawGeometry, format_sidecar
from zc_perception.camera.replay.source import RATE_FROM, FrameSource, Moment, rate_of, read_whole
from zc_perception.camera.replay.stamps import RecordedStamps
from zc_perception.errors import ConfigError, FormatError, LayoutError, RecordingError, ZcError
from zc_perception.frame import Frame, Header
from zc_perception.memory.ledger import CopyLedger
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range, Transfer
from zc_perception.pixel.fourcc import NV12, PixelFormat, format_by_name, fourcc_name
from zc_perception.pixel.layout import (
    MAX_PLANES,
    ImageLayout,
    PlaneLayout,
    check_dimensions,
    compute_layout,
    validate_layout,
    views,
)
from zc_perception.pixel.modifier import LINEAR

SUFFIX = '.zcr'
MAGIC, END = b'ZCREC001', b'ZCRECEND'
FRAME, INDEX = b'FRME', b'INDX'
PREAMBLE = struct.Struct('<8sII')
FRAME_HEAD = struct.Struct('<4sI')
FRAME_FIELDS = struct.Struct('<QqqIIQ')
INDEX_HEAD = struct.Struct('<4sIQ')
TRAILER = struct.Struct('<8sQ')
VERSION = 1
MAX_DESCRIPTION = 1 << 16
MAX_FRAME_ID = 1 << 16
_HEAD_BYTES = FRAME_HEAD.size + FRAME_FIELDS.size


@dataclass(frozen=True)
class RecordingFormat:
    """What all frames of one recording have in common.

    :param layout: the producer's; LINEAR.
    """

    layout: ImageLayout
    colorimetry: Colorimetry

    @cached_property
    def tight(self) -> ImageLayout:
        """How the planes lie in the file: rows and planes one after the other."""
        return compute_layout(
            self.layout.fourcc,
            self.layout.width,
            self.layout.height,
            stride_align=1,
            offset_align=1,
        )

    @property
    def frame_bytes(self) -> int:
        """Of a frame's pixels in the file."""
        return self.tight.buffer_size(0)

    def description(self) -> bytes:
        """The file's JSON."""
        layout, colorimetry = self.layout, self.colorimetry
        return json.dumps({
            'version': VERSION, 'width': layout.width, 'height': layout.height, 'fourcc': layout.format.name, 'modifier': layout.modifier,
            'matrix': colorimetry.matrix.value, 'range': colorimetry.range.value, 'transfer': colorimetry.transfer.value,
            'planes': [{'buffer': p.buffer, 'offset': p.offset, 'stride': p.stride, 'size': p.size} for p in layout.planes],
        }).encode()  # fmt: skip


def parse_description(content: bytes, source: str) -> RecordingFormat:
    """The inverse of :meth:`RecordingFormat.description`.

    :raises ConfigError: not such a text, or an image that can't be.
    """
    try:
        found = json.loads(content)
        if found['version'] != VERSION:
            raise ConfigError(
                f"recording '{source}' has version {found['version']}; this package reads {VERSION}"
            )
        if found['modifier'] != LINEAR:
            raise FormatError(f'modifier {found["modifier"]} is not LINEAR')
        fmt: PixelFormat = format_by_name(found['fourcc'])
        check_dimensions(fmt, found['width'], found['height'])
        planes = tuple(
            PlaneLayout(plane['buffer'], plane['offset'], plane['stride'], plane['size'])
            for plane in found['planes']
        )
        if not all(
            isinstance(plane.buffer, int) and 0 <= plane.buffer < MAX_PLANES for plane in planes
        ):
            raise LayoutError(
                f'planes are in buffers {[plane.buffer for plane in planes]}; there are 0 to {MAX_PLANES - 1}'
            )
        layout = ImageLayout(found['width'], found['height'], fmt.code, LINEAR, planes)
        validate_layout(layout, [layout.buffer_size(index) for index in range(layout.num_buffers)])
        colorimetry = Colorimetry(
            Matrix(found['matrix']), Range(found['range']), Transfer(found['transfer'])
        )
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        FormatError,
        LayoutError,
        OverflowError,
    ) as error:
        raise ConfigError(
            f"recording '{source}': its description can't be used: {type(error).__name__} {error}"
        ) from error
    return RecordingFormat(layout, colorimetry)


@dataclass(frozen=True)
class RecordedFrame:
    """A frame of a recording, without its pixels."""

    header: Header
    sequence: int
    captured_ns: int


def preamble(recording_format: RecordingFormat) -> bytes:
    """The file's beginning."""
    description = recording_format.description()
    return PREAMBLE.pack(MAGIC, len(description), zlib.crc32(description)) + description


def frame_head(
    header: Header, sequence: int, captured_ns: int, pixels: bytearray | memoryview
) -> bytes:
    """What stands before a frame's pixels."""
    frame_id = header.frame_id.encode()
    fields = FRAME_FIELDS.pack(
        sequence, header.stamp_ns, captured_ns, len(frame_id), zlib.crc32(pixels, zlib.crc32(frame_id)), len(pixels)
    )  # fmt: skip
    return FRAME_HEAD.pack(FRAME, zlib.crc32(fields)) + fields + frame_id


def index_of(offsets: Sequence[int], at: int) -> bytes:
    """The file's end.

    :param at: where it will stand in the file.
    """
    table = np.asarray(offsets, '<u8').tobytes()
    count = struct.pack('<Q', len(offsets))
    return (
        INDEX
        + struct.pack('<I', zlib.crc32(count + table))
        + count
        + table
        + TRAILER.pack(END, at)
    )


class RecordingSource(FrameSource):
    """A recording's frames, in its own format and colorimetry, with its headers: in their order, or any by its number. One thread.

    Width and height are 0 or the recording's own: it is played as it is.

    :raises ConfigError: it can't be read, isn't a recording, has no frame, or is of another size.
    """

    has_headers = True

    def __init__(self, path: str | Path, width: int = 0, height: int = 0) -> None:
        self.name = str(path)
        self.unreadable = 0
        try:
            self._file: BinaryIO = open(path, 'rb')  # noqa: SIM115 - closed by close()
            try:
                self._begin(width, height)
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise ConfigError(f"recording '{path}' can't be read: {error.strerror}") from error

    def _begin(self, width: int, height: int) -> None:
        self._size = os.fstat(self._file.fileno()).st_size
        self.format, start = self._read_preamble()
        index = self._read_index(start)
        self.complete = index is not None
        self._offsets = self._scan(start) if index is None else index
        if not self._offsets:
            raise ConfigError(f"recording '{self.name}' has no whole frame")
        layout = self.format.layout
        if (width or layout.width, height or layout.height) != (layout.width, layout.height):
            raise ConfigError(
                f"recording '{self.name}' is {layout.width}x{layout.height} and is played bit by bit; "
                "set parameters 'width' and 'height' to 0"
            )
        self.stamps: RecordedStamps = RecordedStamps(self.name)
        stamps = [
            self.stamps.stamp(frame.header.stamp_ns, frame.captured_ns)
            for number in range(min(RATE_FROM, len(self)))
            if (frame := self.frame(number))
        ]
        self.stamps.restart()
        super().__init__(self.name, layout.width, layout.height, rate_of(stamps))
        self.fourcc, self.colorimetry = layout.fourcc, self.format.colorimetry
        self._first_ns = stamps[0] if stamps else None
        self._last_ns = 0
        self._content = np.empty(self.format.frame_bytes, np.uint8)

    def __len__(self) -> int:
        return len(self._offsets)

    def _read_preamble(self) -> tuple[RecordingFormat, int]:
        head = self._file.read(PREAMBLE.size)
        if len(head) < PREAMBLE.size or head[:6] != MAGIC[:6]:
            raise ConfigError(
                f"'{self.name}' is no raw recording: it does not begin with {MAGIC[:5].decode()}"
            )
        magic, length, crc = PREAMBLE.unpack(head)
        if magic != MAGIC:
            raise ConfigError(
                f"recording '{self.name}' begins with {magic!r}; this package reads {MAGIC!r}"
            )
        description = self._file.read(length) if length <= MAX_DESCRIPTION else b''
        if len(description) != length or zlib.crc32(description) != crc:
            raise ConfigError(
                f"recording '{self.name}' is damaged: its description ({length} bytes) is cut or changed"
            )
        return parse_description(description, self.name), PREAMBLE.size + length

    def _read_index(self, start: int) -> list[int] | None:
        """The frames' offsets, or ``None`` if the file has no sound end."""
        if self._size < start + INDEX_HEAD.size + TRAILER.size:
            return None
        self._file.seek(self._size - TRAILER.size)
        end, at = TRAILER.unpack(self._file.read(TRAILER.size))
        room = self._size - TRAILER.size - at - INDEX_HEAD.size
        if end != END or at < start or room < 0 or room % 8:
            return None
        self._file.seek(at)
        kind, crc, count = INDEX_HEAD.unpack(self._file.read(INDEX_HEAD.size))
        table = self._file.read(room)
        if (
            kind != INDEX
            or count * 8 != room
            or len(table) != room
            or zlib.crc32(struct.pack('<Q', count) + table) != crc
        ):
            return None
        offsets: list[int] = np.frombuffer(table, '<u8').tolist()
        # One sound frame where the index has it shows that it is this file's; that others are spoilt is no reason to drop it.
        return (
            offsets
            if not offsets or any(self._read_head(offset) is not None for offset in offsets)
            else None
        )

    def _scan(self, start: int) -> list[int]:
        """Offsets of the frames that are all there, from the file's beginning on."""
        offsets, at = [], start
        while (found := self._read_head(at)) is not None:
            offsets.append(at)
            at = found[1]
        self.unreadable = self._size - at
        return offsets

    def _read_head(self, at: int) -> tuple[RecordedFrame, int, int] | None:
        """The frame at an offset, where the next one begins, and its CRC; ``None``: there is no whole frame."""
        if not 0 <= at <= self._size - _HEAD_BYTES:
            return None
        self._file.seek(at)
        head = self._file.read(_HEAD_BYTES)
        if len(head) < _HEAD_BYTES:
            return None
        kind, crc = FRAME_HEAD.unpack_from(head)
        if kind != FRAME or zlib.crc32(head[FRAME_HEAD.size :]) != crc:
            return None
        sequence, stamp_ns, captured_ns, id_bytes, pixel_crc, pixel_bytes = (
            FRAME_FIELDS.unpack_from(head, FRAME_HEAD.size)
        )
        following = at + _HEAD_BYTES + id_bytes + pixel_bytes
        if (
            id_bytes > MAX_FRAME_ID
            or pixel_bytes != self.format.frame_bytes
            or following > self._size
        ):
            return None
        frame_id = self._file.read(id_bytes).decode('utf-8', errors='replace')
        return (
            RecordedFrame(Header(stamp_ns, frame_id), sequence, captured_ns),
            following,
            pixel_crc,
        )

    def frame(self, number: int) -> RecordedFrame | None:
        """A frame's data but its pixels; ``None`` if they are damaged.

        :raises OSError: the file can't be read.
        """
        found = self._read_head(self._offsets[number])
        return None if found is None else found[0]

    def read_planes(self, number: int) -> list[NDArray[Any]] | None:
        """A frame's planes, tight, valid until the next call; ``None`` if they are damaged.

        :raises OSError: the file can't be read.
        """
        found = self._read_head(self._offsets[number])
        if found is None or not read_whole(self._file, self._content):
            return None
        frame, _, crc = found
        if zlib.crc32(self._content.data, zlib.crc32(frame.header.frame_id.encode())) != crc:
            return None
        return views(self.format.tight, self._content)

    def _moment(self) -> Moment | None:
        if self.number >= len(self):
            return None
        try:
            frame = self.frame(self.number)
        except OSError as error:
            raise RecordingError(
                f"recording '{self.name}' can't be read: {error.strerror}"
            ) from error
        if frame is None:
            return Moment(self._last_ns)
        stamp_ns = self.stamps.stamp(frame.header.stamp_ns, frame.captured_ns)
        if self._first_ns is None:
            self._first_ns = stamp_ns
        self._last_ns = stamp_ns - self._first_ns
        return Moment(self._last_ns, replace(frame.header, stamp_ns=stamp_ns))

    def read(self, planes: Sequence[NDArray[Any]]) -> bool:
        try:
            found = self.read_planes(self.number)
        except OSError as error:
            raise RecordingError(
                f"recording '{self.name}' can't be read: {error.strerror}"
            ) from error
        if found is None:
            return False
        for source, target in zip(found, planes, strict=True):
            np.copyto(target, source)
        return True

    def restart(self) -> None:
        super().restart()
        self.stamps.restart()
        self._last_ns = 0

    def notice(self) -> str:
        if self.complete:
            return ''
        return (
            f"recording '{self.name}' has no end, its recorder was killed: {len(self)} whole frames were found, "
            f'{self.unreadable} bytes behind them are left out'
        )

    def close(self) -> None:
        self._file.close()


RAW_SUFFIX = '.nv12'
REASON = 'record'
DEFAULT_BUFFER_BYTES = 256 << 20
_LATEST = 512
# Written at once, so that a slow disk is seen to go on.
_PIECE_BYTES = 1 << 20
STUCK_S = 1.0
"""A disk that takes nothing for so long, in seconds, isn't waited for at the end."""


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
        self,
        path: Path,
        recording_format: RecordingFormat,
        open_output: Callable[[Path], Any],
        on_written: Callable[[], None],
    ) -> None:
        self.path = path
        self._on_written = on_written
        self.format = recording_format
        self._raw = path.suffix == RAW_SUFFIX
        self._offsets: list[int] = []
        self._stamps: deque[int] = deque(maxlen=_LATEST)
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
        geometry = RawGeometry.tight(
            layout.width, layout.height, round(rate_of(self._stamps), 6), self.format.colorimetry
        )
        Path(str(self.path) + SIDECAR).write_text(format_sidecar(geometry), encoding='utf-8')


class FrameRecorder:
    """Writes frames to a file. Use as a context manager; leaving it writes what was copied so far, and the file's end.

    :param path: the file; ``.zcr`` keeps everything bit by bit, ``.nv12`` keeps NV12's pixels and a geometry beside them. When the frames'
        size or format changes, ``NAME_2.zcr`` and so on follow.
    :param ledger: books each copy, under ``record``.
    :param buffer_bytes: memory for frames that wait for the disk; at least two frames are kept.
    :param overwrite: whether files that are there may be replaced.
    :param open_output: opens the files, which have ``write`` and ``close``; for tests.
    :raises ConfigError: a path that can't be written, or is taken.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        ledger: CopyLedger,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        overwrite: bool = False,
        open_output: Callable[[Path], Any] | None = None,
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
            raise ConfigError(
                f"folder '{self._path.parent}' can't be made: {error.strerror}"
            ) from error
        if self._path.exists() and not self._overwrite:
            raise ConfigError(
                f"recording '{self._path}' exists; choose another path, or allow to overwrite it"
            )
        if not os.access(self._path.parent, os.W_OK | os.X_OK):
            raise ConfigError(f"folder '{self._path.parent}' can't be written to")

    def _open(self, path: Path) -> Any:
        return open(path, 'wb' if self._overwrite else 'xb', buffering=0)

    def put(self, frame: Frame) -> bool:
        """Copy *frame*, which stays the caller's. ``False``: left out, and counted why. Never waits for the disk; one thread."""
        layout = frame.data.layout
        problem = self._problem(layout)
        if problem:
            self._refused += 1
            self._failure = problem
            return False
        if (
            self._format is None
            or self._format.layout != layout
            or self._format.colorimetry != frame.data.colorimetry
        ):
            self._format = RecordingFormat(layout, frame.data.colorimetry)
        content = None if self._ended else self._buffer(self._format.frame_bytes)
        if content is None:
            self._dropped += 1
            return False
        planes = views(self._format.tight, content)
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
        self._full.put(
            _Copy(content, planes, self._format, data.header, data.sequence, data.captured_ns)
        )
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
            except (
                Exception
            ) as error:  # whatever it was: a thread that only ended would look like a slow disk
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
        path = (
            self._path
            if number == 1
            else self._path.with_name(f'{self._path.stem}_{number}{self._path.suffix}')
        )
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
