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
One MCAP file, written so that a kill costs its last chunk only.

The next program that finds an unfinished file finishes it.

The format is that of https://mcap.dev/spec, with profile ``ros2`` and chunks that aren't
compressed. Schemas and channels stand before the chunks that use them, so that a file without its
end can be read by the heads of its records. The package has its own writer: rosbags' writer knows
no splits and keeps unwritten data where it can't be flushed, and rosdep has no key for the library
``mcap``. The tests read the files with both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
import os
from pathlib import Path
import struct
from typing import Any, BinaryIO, NamedTuple
import zlib

from zc_perception.errors import RecordingError

SUFFIX = '.mcap'
MAGIC = b'\x89MCAP0\r\n'
LIBRARY = 'zc_perception'
_HEADER, _FOOTER, _SCHEMA, _CHANNEL, _MESSAGE, _CHUNK, _MESSAGE_INDEX, _CHUNK_INDEX = range(1, 9)
_STATISTICS, _METADATA, _METADATA_INDEX, _, _DATA_END = range(0x0B, 0x10)
_RECORD = struct.Struct('<BQ')
_MESSAGE_HEAD = struct.Struct('<BQHIQQ')
_MESSAGE_FIELDS = _MESSAGE_HEAD.size - _RECORD.size
# Times of the first and the last message, size, CRC, no compression, size.
_CHUNK_HEAD = struct.Struct('<QQQIIQ')
_PLACE = struct.Struct('<QQ')
_FOOTER_FIELDS = struct.Struct('<QQI')
_FOOTER_BYTES = _RECORD.size + _FOOTER_FIELDS.size + len(MAGIC)
_STATISTICS_FIELDS = '<QHIIIIQQ'
_LONGEST = 1 << 20
"""Of all records but chunks."""
_CHUNK_BYTES = 1 << 20
# Written at once, so that a slow disk is seen to go on.
_PIECE_BYTES = 1 << 20
_UNSURE_NS = 10_000_000_000
Bytes = bytes | bytearray | memoryview


def _record(kind: int, content: bytes) -> bytes:
    return _RECORD.pack(kind, len(content)) + content


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack('<I', len(encoded)) + encoded


def _map(pairs: Mapping[str, str]) -> bytes:
    content = b''.join(_text(key) + _text(value) for key, value in pairs.items())
    return struct.pack('<I', len(content)) + content


class _Fields:
    """
    Takes the fields of a record, one after the other.

    :raises ValueError: the record ends before, or has no text where one should be.
    :raises struct.error: likewise.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        found = struct.unpack_from(layout, self._content, self._at)
        self._at += struct.calcsize(layout)
        return found

    def content(self) -> bytes:
        (length,) = self.take('<I')
        self._at += length
        if self._at > len(self._content):
            raise ValueError('a record ends within a field')
        end = self._at
        start = end - length
        return self._content[start:end]

    def text(self) -> str:
        return self.content().decode()

    def pairs(self) -> tuple[tuple[str, str], ...]:
        inner, found = _Fields(self.content()), []
        while inner._at < len(inner._content):
            found.append((inner.text(), inner.text()))
        return tuple(found)


class Topic(NamedTuple):
    """
    What a channel of a file carries.

    :param msgtype: such as ``sensor_msgs/msg/Image``.
    :param definition: the type's fields and those of the types in it, as ``.msg`` files have them.
    :param metadata: what else belongs to it, such as ``offered_qos_profiles``.
    """

    name: str
    msgtype: str
    definition: str
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass
class Contents:
    """
    What a file has, and what its end has to say.

    :param topics: by the number of their channel.
    :param counts: of messages, likewise.
    :param chunks: records of the chunks' indexes; left out of a finished file's.
    :param end: where an unfinished file goes on; what stands behind is no whole chunk.
    """

    library: str = ''
    topics: dict[int, Topic] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)
    chunks: list[bytes] = field(default_factory=list)
    first_ns: int = 0
    last_ns: int = 0
    end: int = 0
    finished: bool = False

    @property
    def messages(self) -> int:
        """How many."""
        return sum(self.counts.values())

    def _schemas(self) -> dict[str, int]:
        names = dict.fromkeys(topic.msgtype for topic in self.topics.values())
        return {name: number for number, name in enumerate(names, 1)}

    def add_topic(self, topic: Topic) -> int:
        """Return the number of a new channel."""
        number = len(self.topics) + 1
        self.topics[number] = topic
        return number

    def records_of(self, number: int) -> tuple[bytes, bytes]:
        """Return the records of a channel's schema and of itself."""
        topic = self.topics[number]
        schema = self._schemas()[topic.msgtype]
        parts = _text(topic.msgtype), _text('ros2msg'), _text(topic.definition)
        metadata = _map(dict(topic.metadata))
        channel = struct.pack('<HH', number, schema) + _text(topic.name) + _text('cdr') + metadata
        return (
            _record(_SCHEMA, struct.pack('<H', schema) + b''.join(parts)),
            _record(_CHANNEL, channel),
        )

    def add_chunk(self, head: bytes, at: int, size: int, indexes: Sequence[bytes]) -> None:
        """
        Take note of a chunk that the file has.

        :param head: the fields before its messages.
        :param at: where its record begins.
        :param size: of the record.
        :param indexes: the records of message indexes that follow it.
        """
        first_ns, last_ns, content, *_ = _CHUNK_HEAD.unpack(head)
        self.first_ns = min(self.first_ns, first_ns) if self.chunks else first_ns
        self.last_ns = max(self.last_ns, last_ns)
        offsets, place = b'', at + size
        for index in indexes:
            channel, length = struct.unpack_from('<HI', index, _RECORD.size)
            offsets += struct.pack('<HQ', channel, place)
            place += len(index)
            self.counts[channel] += length // _PLACE.size
        fields = struct.pack('<QQQQI', first_ns, last_ns, at, size, len(offsets)) + offsets
        sizes = struct.pack('<QIQQ', place - at - size, 0, content, content)
        self.chunks.append(_record(_CHUNK_INDEX, fields + sizes))
        self.end = place

    def tail(self, described: str) -> bytes:
        """
        Return what finishes the file, from :attr:`end` on.

        :param described: rosbag2's metadata of this file alone, of which it keeps a copy there.
        """
        metadata = _record(_METADATA, _text('rosbag2') + _map({'serialized_metadata': described}))
        start = self.end + len(metadata) + _RECORD.size + 4
        records = [self.records_of(number) for number in self.topics]
        schemas = tuple(dict.fromkeys(schema for schema, _ in records))
        sizes = self.messages, len(schemas), len(records), 0, 1, len(self.chunks)
        counts = b''.join(struct.pack('<HQ', *pair) for pair in sorted(self.counts.items()))
        statistics = struct.pack(_STATISTICS_FIELDS, *sizes, self.first_ns, self.last_ns)
        statistics += struct.pack('<I', len(counts)) + counts
        place = _PLACE.pack(self.end, len(metadata)) + _text('rosbag2')
        summary = b''.join(
            (
                *schemas,
                *(channel for _, channel in records),
                _record(_STATISTICS, statistics),
                *self.chunks,
                _record(_METADATA_INDEX, place),
            )
        )
        head = _RECORD.pack(_FOOTER, _FOOTER_FIELDS.size) + _PLACE.pack(start, 0)
        crc = struct.pack('<I', zlib.crc32(summary + head))
        data_end = _record(_DATA_END, bytes(4))
        return b''.join((metadata, data_end, summary, head, crc, MAGIC))


class McapWriter:
    """
    Writes one file, a chunk at a time.

    One thread.

    :param output: unbuffered; has ``write``, ``seek`` and ``truncate``. It stays the caller's.
    :param on_written: called whenever the disk has taken something.
    """

    def __init__(self, output: Any, on_written: Callable[[], object] = lambda: None) -> None:
        self.contents = Contents(LIBRARY)
        self._output = output
        self._on_written = on_written
        self._at = 0
        self._parts: list[Bytes] = []
        self._waiting = 0
        self._places: dict[int, list[tuple[int, int]]] = {}
        self._write([MAGIC, _record(_HEADER, _text('ros2') + _text(LIBRARY))])
        self.contents.end = self._at

    def _write(self, parts: Sequence[Bytes]) -> None:
        for part in parts:
            view = memoryview(part)
            while view:
                taken = self._output.write(view[:_PIECE_BYTES]) or 0
                view = view[taken:]
                self._at += taken
                if taken:
                    self._on_written()

    @property
    def size(self) -> int:
        """Bytes of the file, with those that wait."""
        return self._at + self._waiting

    @property
    def waits(self) -> bool:
        """Whether something was added that is not written yet."""
        return bool(self._parts)

    def channel(self, topic: Topic) -> int:
        """Return the number of a new channel."""
        self.flush()
        known = {other.msgtype for other in self.contents.topics.values()}
        number = self.contents.add_topic(topic)
        schema, channel = self.contents.records_of(number)
        self._write([channel] if topic.msgtype in known else [schema + channel])
        self.contents.end = self._at
        return number

    def add(
        self, channel: int, log_ns: int, publish_ns: int, sequence: int, *parts: Bytes
    ) -> None:
        """
        Append a message.

        Its bytes must stay as they are until :meth:`flush`, which follows at once when they are
        many.
        """
        size = sum(map(len, parts))
        self._places.setdefault(channel, []).append((log_ns, self._waiting))
        head = _MESSAGE_HEAD.pack(
            _MESSAGE, size + _MESSAGE_FIELDS, channel, sequence & 0xFFFFFFFF, log_ns, publish_ns
        )
        self._parts += (head, *parts)
        self._waiting += len(head) + size
        if self._waiting >= _CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was added as a chunk."""
        if not self._parts:
            return
        crc = 0
        for part in self._parts:
            crc = zlib.crc32(part, crc)
        parts, places, size = self._parts, self._places, self._waiting
        self._parts, self._places, self._waiting = [], {}, 0
        times = [time_ns for entries in places.values() for time_ns, _ in entries]
        head = _CHUNK_HEAD.pack(min(times), max(times), size, crc, 0, size)
        indexes = [
            _record(
                _MESSAGE_INDEX,
                struct.pack('<HI', channel, len(entries) * _PLACE.size)
                + b''.join(_PLACE.pack(*entry) for entry in entries),
            )
            for channel, entries in places.items()
        ]
        at = self._at
        self._write([_RECORD.pack(_CHUNK, len(head) + size) + head, *parts, *indexes])
        self.contents.add_chunk(head, at, _RECORD.size + len(head) + size, indexes)

    def finish(self, described: str) -> None:
        """
        Write the end behind the last whole chunk.

        :raises OSError: the disk is full or gone. :func:`finish_file` may do it later.
        """
        if self._at != self.contents.end:
            self._output.seek(self.contents.end)
            self._output.truncate()
            self._at = self.contents.end
        self._write([self.contents.tail(described)])
        self.contents.finished = True


def finish_file(path: Path, contents: Contents, described: str) -> None:
    """
    Cut off what is no whole chunk, and write the end.

    :param contents: what :func:`read_contents` has found in the file.
    :raises OSError: it can't be written.
    """
    with path.open('r+b', buffering=0) as file:
        file.truncate(contents.end)
        file.seek(contents.end)
        file.write(contents.tail(described))
        os.fsync(file.fileno())
    contents.finished = True


def read_contents(path: Path) -> Contents:
    """
    Return what is in a file, by its summary; in one of ours without its end, by its chunks.

    :raises RecordingError: it isn't MCAP, is damaged, or was left unfinished by another program.
    :raises OSError: it can't be read.
    """
    with open(path, 'rb') as file:
        size = os.fstat(file.fileno()).st_size
        contents = Contents()
        try:
            if file.read(len(MAGIC)) != MAGIC:
                raise ValueError('it does not begin as MCAP does')
            kind, content, contents.end = _next_record(file, len(MAGIC), size)
            if kind != _HEADER:
                raise ValueError('it has no header')
            fields = _Fields(content)
            _, contents.library = fields.text(), fields.text()
            summary = _summary_start(file, size)
            if summary:
                _read_summary(file, summary, size, contents)
            elif contents.library == LIBRARY:
                _recover(file, size, contents)
            else:
                raise ValueError(f'it has no summary, and {contents.library} has written it')
        except (ValueError, struct.error) as error:
            raise RecordingError(f"'{path}' can't be read: {error}") from error
    return contents


def _next_record(file: BinaryIO, at: int, size: int) -> tuple[int, bytes, int]:
    """
    Return the record at a place: its kind, its content, and where the next one begins.

    Of a chunk, the content is what precedes its messages. Kind 0: there is no whole record.
    """
    file.seek(at)
    head = file.read(_RECORD.size)
    if len(head) < _RECORD.size:
        return 0, b'', at
    kind, length = _RECORD.unpack(head)
    following = at + _RECORD.size + length
    if not _HEADER <= kind <= _DATA_END or following > size:
        return 0, b'', at
    most = _CHUNK_HEAD.size if kind == _CHUNK else _LONGEST
    return kind, file.read(min(length, most)), following


def _summary_start(file: BinaryIO, size: int) -> int:
    """Return where a finished file's summary begins; 0: it isn't finished, or has none."""
    if size < _FOOTER_BYTES + len(MAGIC):
        return 0
    file.seek(size - _FOOTER_BYTES)
    content = file.read(_FOOTER_BYTES)
    if not content.endswith(MAGIC) or content[0] != _FOOTER:
        return 0
    return int(_FOOTER_FIELDS.unpack_from(content, _RECORD.size)[0])


def _read_summary(file: BinaryIO, at: int, size: int, contents: Contents) -> None:
    schemas: dict[int, tuple[str, str]] = {}
    while (found := _next_record(file, at, size))[0] not in (0, _FOOTER):
        kind, content, at = found
        if kind == _STATISTICS:
            fields = _Fields(content)
            *_, contents.first_ns, contents.last_ns = fields.take(_STATISTICS_FIELDS)
            contents.counts = Counter(dict(struct.iter_unpack('<HQ', fields.content())))
            contents.finished = True
        else:
            _take_topic(kind, content, contents, schemas)
    if not contents.finished:
        raise ValueError('its summary has no statistics')


def _take_topic(
    kind: int, content: bytes, contents: Contents, schemas: dict[int, tuple[str, str]]
) -> None:
    fields = _Fields(content)
    if kind == _SCHEMA:
        (number,) = fields.take('<H')
        name, _ = fields.text(), fields.text()
        schemas[number] = name, fields.text()
    elif kind == _CHANNEL:
        number, schema = fields.take('<HH')
        name, _ = fields.text(), fields.text()
        msgtype, definition = schemas.get(schema, ('', ''))
        contents.topics[number] = Topic(name, msgtype, definition, fields.pairs())


def _recover(file: BinaryIO, size: int, contents: Contents) -> None:
    """
    Find the chunks that are whole and have their indexes, by the heads of records.

    Of the last seconds' chunks the checksums are compared too: after a power cut, blocks may be
    empty that the file's length counts.
    """
    schemas: dict[int, tuple[str, str]] = {}
    chunks: list[tuple[bytes, int, int, list[bytes]]] = []
    at = contents.end
    while (found := _next_record(file, at, size))[0]:
        kind, content, following = found
        if kind == _MESSAGE_INDEX and chunks:
            chunks[-1][3].append(_record(kind, content))
        elif kind == _CHUNK:
            chunks.append((content, at, following - at, []))
        elif kind in (_SCHEMA, _CHANNEL):
            _take_topic(kind, content, contents, schemas)
            contents.end = contents.end if chunks else following
        else:
            break
        at = following
    last_ns = max((_CHUNK_HEAD.unpack(head)[1] for head, *_ in chunks), default=0)
    for number, (head, at, length, indexes) in enumerate(chunks):
        _, until_ns, content_bytes, crc, *_ = _CHUNK_HEAD.unpack(head)
        if until_ns >= last_ns - _UNSURE_NS:
            file.seek(at + _RECORD.size + _CHUNK_HEAD.size)
            content = file.read(content_bytes)
            if zlib.crc32(content) != crc:
                break
            if number == len(chunks) - 1 and not _are_all(indexes, content):
                break
        contents.add_chunk(head, at, length, indexes)


def _are_all(indexes: Sequence[bytes], content: bytes) -> bool:
    """Tell whether the records of indexes know all messages of a chunk."""
    at, messages = 0, 0
    while at + _RECORD.size <= len(content):
        messages += 1
        at += _RECORD.size + _RECORD.unpack_from(content, at)[1]
    known = sum(struct.unpack_from('<I', index, _RECORD.size + 2)[0] for index in indexes)
    return bool(messages * _PLACE.size == known)
