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
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from zc_perception.errors import ConfigError, FormatError, LayoutError
from zc_perception.frame import Header
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range, Transfer
from zc_perception.pixel.fourcc import PixelFormat, format_by_name
from zc_perception.pixel.layout import MAX_PLANES, ImageLayout, PlaneLayout, check_dimensions, validate_layout
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

    @property
    def frame_bytes(self) -> int:
        """Of a frame's pixels in the file."""
        return sum(row * rows for row, rows in self.plane_sizes)

    @property
    def plane_sizes(self) -> tuple[tuple[int, int], ...]:
        """Bytes of a tight row, and rows, for each plane."""
        layout = self.layout
        return tuple((plane.row_bytes(layout.width), plane.rows(layout.height)) for plane in layout.format.planes)

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
            raise ConfigError(f"recording '{source}' has version {found['version']}; this package reads {VERSION}")
        if found['modifier'] != LINEAR:
            raise FormatError(f'modifier {found["modifier"]} is not LINEAR')
        fmt: PixelFormat = format_by_name(found['fourcc'])
        check_dimensions(fmt, found['width'], found['height'])
        planes = tuple(PlaneLayout(plane['buffer'], plane['offset'], plane['stride'], plane['size']) for plane in found['planes'])
        if not all(isinstance(plane.buffer, int) and 0 <= plane.buffer < MAX_PLANES for plane in planes):
            raise LayoutError(f'planes are in buffers {[plane.buffer for plane in planes]}; there are 0 to {MAX_PLANES - 1}')
        layout = ImageLayout(found['width'], found['height'], fmt.code, LINEAR, planes)
        validate_layout(layout, [layout.buffer_size(index) for index in range(layout.num_buffers)])
        colorimetry = Colorimetry(Matrix(found['matrix']), Range(found['range']), Transfer(found['transfer']))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, FormatError, LayoutError, OverflowError) as error:
        raise ConfigError(f"recording '{source}': its description can't be used: {type(error).__name__} {error}") from error
    return RecordingFormat(layout, colorimetry)


@dataclass(frozen=True)
class RecordedFrame:
    """A frame of a recording, without its pixels.

    :param offset: where its head begins in the file, in bytes.
    """

    header: Header
    sequence: int
    captured_ns: int
    offset: int


def preamble(recording_format: RecordingFormat) -> bytes:
    """The file's beginning."""
    description = recording_format.description()
    return PREAMBLE.pack(MAGIC, len(description), zlib.crc32(description)) + description


def frame_head(header: Header, sequence: int, captured_ns: int, pixels: bytearray | memoryview) -> bytes:
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
    return INDEX + struct.pack('<I', zlib.crc32(count + table)) + count + table + TRAILER.pack(END, at)


class RecordingReader:
    """Reads a file's frames in any order. One thread.

    :param path: the file.
    :raises ConfigError: it can't be read, isn't a recording, or has no frame.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        try:
            self._file: BinaryIO = open(path, 'rb')  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise ConfigError(f"recording '{path}' can't be read: {error.strerror}") from error
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            self.format, start = self._read_preamble()
            self.complete = True
            self._offsets = self._read_index(start)
            self.unreadable = 0
            if self._offsets is None:
                self.complete = False
                self._offsets = self._scan(start)
            if not self._offsets:
                raise ConfigError(f"recording '{path}' has no whole frame")
        except OSError as error:
            self._file.close()
            raise ConfigError(f"recording '{path}' can't be read: {error.strerror}") from error
        except BaseException:
            self._file.close()
            raise
        self._content = np.empty(self.format.frame_bytes, np.uint8)

    def __len__(self) -> int:
        return len(self._offsets or ())

    def _read_preamble(self) -> tuple[RecordingFormat, int]:
        head = self._file.read(PREAMBLE.size)
        if len(head) < PREAMBLE.size or head[:6] != MAGIC[:6]:
            raise ConfigError(f"'{self.path}' is no raw recording: it does not begin with {MAGIC[:5].decode()}")
        magic, length, crc = PREAMBLE.unpack(head)
        if magic != MAGIC:
            raise ConfigError(f"recording '{self.path}' begins with {magic!r}; this package reads {MAGIC!r}")
        description = self._file.read(length) if length <= MAX_DESCRIPTION else b''
        if len(description) != length or zlib.crc32(description) != crc:
            raise ConfigError(f"recording '{self.path}' is damaged: its description ({length} bytes) is cut or changed")
        return parse_description(description, self.path), PREAMBLE.size + length

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
        if kind != INDEX or count * 8 != room or len(table) != room or zlib.crc32(struct.pack('<Q', count) + table) != crc:
            return None
        offsets: list[int] = np.frombuffer(table, '<u8').tolist()
        # One sound frame where the index has it shows that it is this file's; that others are spoilt is no reason to drop it.
        return offsets if not offsets or any(self._read_head(offset) is not None for offset in offsets) else None

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
        sequence, stamp_ns, captured_ns, id_bytes, pixel_crc, pixel_bytes = FRAME_FIELDS.unpack_from(head, FRAME_HEAD.size)
        following = at + _HEAD_BYTES + id_bytes + pixel_bytes
        if id_bytes > MAX_FRAME_ID or pixel_bytes != self.format.frame_bytes or following > self._size:
            return None
        frame_id = self._file.read(id_bytes).decode('utf-8', errors='replace')
        return RecordedFrame(Header(stamp_ns, frame_id), sequence, captured_ns, at), following, pixel_crc

    def frame(self, number: int) -> RecordedFrame | None:
        """A frame's data but its pixels; ``None`` if they are damaged.

        :raises OSError: the file can't be read.
        """
        found = self._read_head((self._offsets or [])[number])
        return None if found is None else found[0]

    def read_planes(self, number: int) -> list[NDArray[Any]] | None:
        """A frame's planes, tight, valid until the next call; ``None`` if they are damaged.

        :raises OSError: the file can't be read.
        """
        found = self._read_head((self._offsets or [])[number])
        if found is None:
            return None
        frame, _, crc = found
        view, got = self._content.data, 0
        while got < len(view):
            count = self._file.readinto(view[got:])  # type: ignore[attr-defined]
            if not count:
                return None
            got += count
        if zlib.crc32(view, zlib.crc32(frame.header.frame_id.encode())) != crc:
            return None
        layout = tight_layout(self.format)
        return [
            np.ndarray(array.shape, array.sample, self._content, array.offset, array.strides) for array in layout.arrays
        ]  # fmt: skip

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def __enter__(self) -> RecordingReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def tight_layout(recording_format: RecordingFormat) -> ImageLayout:
    """How the planes lie in the file: rows and planes one after the other."""
    layout = recording_format.layout
    planes, offset = [], 0
    for row, rows in recording_format.plane_sizes:
        planes.append(PlaneLayout(0, offset, row, row * rows))
        offset += row * rows
    return ImageLayout(layout.width, layout.height, layout.fourcc, LINEAR, tuple(planes))
