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
Recordings on disk: MCAP files in a folder that rosbag2 can read, with frames as messages.

A recording is a folder ``NAME`` with ``NAME_0.mcap``, ``NAME_1.mcap`` … and ``metadata.yaml``,
which lists the finished files. The ``.mcap`` files follow https://mcap.dev/spec, with profile
``ros2`` and uncompressed chunks. If the recorder is killed, only the last chunk is lost. Schemas
and channels stand before the chunks that use them, so a file without its end can be read record by
record, and :func:`finish_recording` can write the end later. The package has its own writer,
because rosbags' writer can neither split a recording nor flush its data, and rosdep can't install
the library ``mcap``. The tests read the files with ``rosbags`` and with ``mcap``.

A frame is a ``sensor_msgs/Image`` that keeps the format and every bit of the pixels, without
padding between rows or planes. The encoding is ROS's name where ROS has one, else the DRM format's
name, such as ``NV12`` or ``P010``. The channel's metadata has the values for which the message has
no field: ``fourcc``, ``matrix``, ``range`` and ``transfer`` (as in pixel/colorimetry.py), and
``planes``: buffer, offset, stride and size of each plane in the producer's buffers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
import fcntl
from functools import cached_property
import json
import os
from pathlib import Path
import re
import struct
from typing import Any, BinaryIO, NamedTuple
import zlib

import yaml

from zc_perception.errors import ConfigError, FormatError, RecordingError
from zc_perception.frame import Header
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range, Transfer
from zc_perception.pixel.fourcc import format_by_name
from zc_perception.pixel.layout import compute_layout, ImageLayout
from zc_perception.whole_file import write_whole

SUFFIX = '.mcap'
MAGIC = b'\x89MCAP0\r\n'
LIBRARY = 'zc_perception'
_HEADER, _FOOTER, _SCHEMA, _CHANNEL, _MESSAGE, _CHUNK, _MESSAGE_INDEX, _CHUNK_INDEX = range(1, 9)
_STATISTICS, _METADATA, _METADATA_INDEX, _, _DATA_END = range(0x0B, 0x10)
_RECORD = struct.Struct('<BQ')
_MESSAGE_HEAD = struct.Struct('<BQHIQQ')
_MESSAGE_FIELDS = _MESSAGE_HEAD.size - _RECORD.size
# The head of a chunk: times of its first and last message, size of its content, CRC, an empty
# compression name, and the size again.
_CHUNK_HEAD = struct.Struct('<QQQIIQ')
_PLACE = struct.Struct('<QQ')
_FOOTER_FIELDS = struct.Struct('<QQI')
_FOOTER_BYTES = _RECORD.size + _FOOTER_FIELDS.size + len(MAGIC)
_STATISTICS_FIELDS = '<QHIIIIQQ'
_LONGEST = 1 << 20
"""Only chunks are longer than this many bytes; of other records, read no more than this."""
_CHUNK_BYTES = 1 << 20
# Write at most this many bytes at once, so that a recorder sees progress even on a slow disk, and
# doesn't report that the disk is stuck.
_PIECE_BYTES = 1 << 20
# If a chunk's last message is at most this many nanoseconds older than the file's last message,
# _recover checks the chunk's checksum: the chunk's data may not have reached the disk.
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
    Reads the fields of a record, one after the other.

    :raises ValueError: the record ends within a field, or a text is not UTF-8.
    :raises struct.error: the record ends within a number.
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
    The topic and message type of a channel, which contains a part of a file's messages.

    :param msgtype: such as ``sensor_msgs/msg/Image``.
    :param definition: the text of the type's ``.msg`` file and of the types that it uses.
    :param metadata: further values of the channel by name, such as ``offered_qos_profiles``.
    """

    name: str
    msgtype: str
    definition: str
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass
class Contents:
    """
    The contents of a file: what the summary at the file's end says.

    :param library: the program that wrote the file.
    :param topics: the topic of each channel; the key is the channel's number.
    :param counts: how many messages each channel has; the key is the channel's number.
    :param chunks: a chunk index record for each chunk; empty if a finished file was read.
    :param first_ns: time of the first message.
    :param last_ns: time of the last message.
    :param end: offset behind the last whole chunk; there :func:`finish_file` writes the end of an
        unfinished file.
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
        """Number of messages in the file."""
        return sum(self.counts.values())

    def add_topic(self, topic: Topic) -> int:
        """Add a channel for *topic*; return the channel's number."""
        number = len(self.topics) + 1
        self.topics[number] = topic
        return number

    def records_of(self, number: int) -> tuple[bytes, bytes]:
        """Return the two records that describe a channel: schema record and channel record."""
        topic = self.topics[number]
        types = list(dict.fromkeys(one.msgtype for one in self.topics.values()))
        schema = types.index(topic.msgtype) + 1
        parts = _text(topic.msgtype), _text('ros2msg'), _text(topic.definition)
        metadata = _map(dict(topic.metadata))
        channel = struct.pack('<HH', number, schema) + _text(topic.name) + _text('cdr') + metadata
        return (
            _record(_SCHEMA, struct.pack('<H', schema) + b''.join(parts)),
            _record(_CHANNEL, channel),
        )

    def add_chunk(self, head: bytes, at: int, size: int, indexes: Sequence[bytes]) -> None:
        """
        Add a chunk of the file to these contents, which the file's summary will state.

        :param head: the chunk's fields before its messages (:data:`_CHUNK_HEAD`).
        :param at: offset in the file at which the chunk's record begins.
        :param size: size of the chunk's record in bytes.
        :param indexes: the message index records that follow the chunk in the file.
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
        Return the bytes that finish the file when written at :attr:`end`.

        :param described: the file's metadata from :func:`describe_alone`, which rosbag2 expects in
            the file in addition to ``metadata.yaml``.
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
    Writes one MCAP file, a chunk at a time. Only one thread may use it.

    :param output: an unbuffered file with ``write``, ``seek`` and ``truncate``. The caller owns
        and closes it.
    :param on_written: called after each write to the file.
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
        """Bytes of the file, including those that are not written yet."""
        return self._at + self._waiting

    @property
    def waits(self) -> bool:
        """Whether some added messages are not written yet."""
        return bool(self._parts)

    def channel(self, topic: Topic) -> int:
        """Add a channel for *topic*; return the channel's number."""
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
        Append a message. If 1 MiB or more now waits, write all waiting messages (:meth:`flush`).

        *parts* are the message's bytes; the caller must not change them before :meth:`flush`.
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
        """Write all added messages as one chunk, followed by their indexes."""
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
        Write the file's end behind the last whole chunk.

        :raises OSError: the disk is full or gone. :func:`finish_file` may finish the file later.
        """
        if self._at != self.contents.end:
            self._output.seek(self.contents.end)
            self._output.truncate()
            self._at = self.contents.end
        self._write([self.contents.tail(described)])
        self.contents.finished = True


def finish_file(path: Path, contents: Contents, described: str) -> None:
    """
    Cut off an incomplete chunk, and write the file's end.

    :param contents: from :func:`read_contents`.
    :param described: from :func:`describe_alone`.
    :raises OSError: the file can't be written.
    """
    # Open the file with a buffer: a write without one may write only a part, without an error.
    with path.open('r+b') as file:
        file.truncate(contents.end)
        file.seek(contents.end)
        file.write(contents.tail(described))
        file.flush()
        os.fsync(file.fileno())
    contents.finished = True


def read_contents(path: Path) -> Contents:
    """
    Read a file's summary, or the chunks of a file that this package left unfinished.

    :raises RecordingError: the file isn't MCAP, is damaged, or was left unfinished by a program of
        another package.
    :raises OSError: the file can't be read.
    """
    with open(path, 'rb') as file:
        size = os.fstat(file.fileno()).st_size
        contents = Contents()
        try:
            if file.read(len(MAGIC)) != MAGIC:
                raise ValueError('its first bytes are not those of MCAP')
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
                raise ValueError(f'it has no summary: {contents.library} did not finish the file')
        except (ValueError, struct.error) as error:
            raise RecordingError(f"'{path}' can't be read: {error}") from error
    return contents


def _next_record(file: BinaryIO, at: int, size: int) -> tuple[int, bytes, int]:
    """
    Return the kind and content of the record at offset *at*, and the next record's offset.

    Of a chunk, only the content before its messages is returned. Kind 0: there is no whole record
    at offset *at*.
    """
    if at + _RECORD.size > size:
        return 0, b'', at
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
    """Return the offset of a file's summary; 0: it has no summary, or isn't finished."""
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
        raise ValueError("the file's summary has no statistics")


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
    Read an unfinished file record by record; add to *contents* each whole chunk with its indexes.

    The first damaged chunk and all chunks after it are left out. For the chunks of the last
    seconds, also check the checksums: after a power cut, the file's length may include blocks
    whose data never reached the disk.
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
        if content_bytes != length - _RECORD.size - _CHUNK_HEAD.size:
            break
        if until_ns >= last_ns - _UNSURE_NS:
            file.seek(at + _RECORD.size + _CHUNK_HEAD.size)
            content = file.read(content_bytes)
            if zlib.crc32(content) != crc:
                break
            if number == len(chunks) - 1 and not _are_all(indexes, content):
                break
        contents.add_chunk(head, at, length, indexes)


def _are_all(indexes: Sequence[bytes], content: bytes) -> bool:
    """Tell whether all messages of a chunk are listed in the indexes that follow the chunk."""
    at, messages = 0, 0
    while at + _RECORD.size <= len(content):
        messages += 1
        at += _RECORD.size + _RECORD.unpack_from(content, at)[1]
    known = sum(struct.unpack_from('<I', index, _RECORD.size + 2)[0] for index in indexes)
    return bool(messages * _PLACE.size == known)


METADATA = 'metadata.yaml'
# The newest version of rosbag2's metadata whose QoS profiles are text; Humble and later read it.
_VERSION = 8
_NUMBER = re.compile(r'_(\d+)$')
Parts = Sequence[tuple[str, Contents]]


def number_of(path: Path) -> int:
    """Return the number at the end of a file's name; -1: the name has no number."""
    found = _NUMBER.search(path.stem)
    return int(found[1]) if found else -1


def parts_in(folder: Path) -> list[Path]:
    """Return a folder's MCAP files, ordered by their numbers."""
    return sorted(folder.glob(f'*{SUFFIX}'), key=lambda path: (number_of(path), path.name))


def _yaml(content: object) -> str:
    return str(yaml.safe_dump(content, sort_keys=False, width=1 << 20))


def describe(parts: Parts) -> str:
    """Return the content of ``metadata.yaml`` for a recording that has the files *parts*."""
    return _yaml({'rosbag2_bagfile_information': _information(parts)})


def describe_alone(name: str, contents: Contents) -> str:
    """Return the metadata that rosbag2 expects inside an MCAP file, about this file alone."""
    return _yaml(_information([(name, contents)]))


def _information(parts: Parts) -> dict[str, object]:
    # Several channels may have the same topic, type and QoS, because they differ only in metadata
    # that rosbag2 ignores. So count their messages together.
    counts: Counter[tuple[str, str, str]] = Counter()
    for _, contents in parts:
        for number, topic in contents.topics.items():
            qos = dict(topic.metadata).get('offered_qos_profiles', '')
            counts[topic.name, topic.msgtype, qos] += contents.counts[number]
    some = [contents for _, contents in parts if contents.messages]
    first_ns = min((contents.first_ns for contents in some), default=0)
    last_ns = max((contents.last_ns for contents in some), default=0)
    return {
        'version': _VERSION,
        'storage_identifier': 'mcap',
        'duration': {'nanoseconds': last_ns - first_ns},
        'starting_time': {'nanoseconds_since_epoch': first_ns},
        'message_count': sum(counts.values()),
        'topics_with_message_count': [
            {
                'topic_metadata': {
                    'name': name,
                    'type': msgtype,
                    'serialization_format': 'cdr',
                    'offered_qos_profiles': qos,
                    'type_description_hash': '',
                },
                'message_count': count,
            }
            for (name, msgtype, qos), count in counts.items()
        ],
        'compression_format': '',
        'compression_mode': '',
        'relative_file_paths': [name for name, _ in parts],
        'files': [
            {
                'path': name,
                'starting_time': {'nanoseconds_since_epoch': contents.first_ns},
                'duration': {'nanoseconds': contents.last_ns - contents.first_ns},
                'message_count': contents.messages,
            }
            for name, contents in parts
        ],
        'custom_data': None,
        'ros_distro': os.environ.get('ROS_DISTRO', 'rolling'),
    }


def read_parts(folder: Path) -> tuple[list[tuple[str, Contents]], list[str]]:
    """
    Return the contents of a folder's MCAP files, and a sentence for each bad or missing file.

    :raises OSError: the disk fails, or this process may not read the folder.
    """
    parts, bad = [], _missing(folder)
    for path in parts_in(folder):
        try:
            parts.append((path.name, read_contents(path)))
        except RecordingError as error:
            bad.append(f'{error}; this file is left out')
    return parts, bad


def _missing(folder: Path) -> list[str]:
    """Return a sentence for each file that ``metadata.yaml`` lists, but *folder* doesn't have."""
    try:
        described = yaml.safe_load((folder / METADATA).read_text(encoding='utf-8'))
        names = described['rosbag2_bagfile_information']['relative_file_paths']
        paths = [folder / name for name in names if not (folder / name).exists()]
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        return []  # there is no metadata.yaml, or it lists nothing
    return [f"'{path}' is missing, but {METADATA} lists it" for path in paths]


def finish_recording(folder: Path) -> tuple[list[tuple[str, Contents]], list[str]]:
    """
    Finish the files that a recorder left unfinished, then renew ``metadata.yaml`` if needed.

    :returns: the files with their contents, and sentences about each change and unreadable file.
    :raises ConfigError: a file can't be written, or is still being recorded.
    """
    metadata = folder / METADATA
    try:
        parts, said = read_parts(folder)
        for name, contents in parts:
            if not contents.finished:
                _finish(folder / name, contents)
                said.append(
                    f"'{folder / name}' had no end; an end was written after its "
                    f'{contents.messages} complete messages'
                )
        ours = all(contents.library == LIBRARY for _, contents in parts)
        there = metadata.read_bytes() if metadata.exists() else b''
        listed = describe(parts).encode()
        if parts and (not there or (ours and there != listed)):
            write_whole(metadata, listed)
            said.append(f"'{metadata}' was written; it lists {len(parts)} files")
    except OSError as error:
        raise ConfigError(
            f"'{error.filename or folder}' can't be finished: {error.strerror}; "
            'make room on its disk, or give this user write permission'
        ) from error
    return parts, said


def _finish(path: Path, contents: Contents) -> None:
    with path.open('rb') as file:
        if not _locked(file, fcntl.LOCK_EX):
            raise ConfigError(f"'{path}' is still being recorded; end zc_record first")
        finish_file(path, contents, describe_alone(path.name, contents))


def _locked(file: BinaryIO, kind: int) -> bool:
    """Lock a file until it is closed; return ``False`` if a recorder holds its lock."""
    try:
        fcntl.flock(file.fileno(), kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_being_recorded(path: Path) -> bool:
    """Return whether a recorder is writing the file now."""
    try:
        with path.open('rb') as file:
            return not _locked(file, fcntl.LOCK_SH)
    except OSError:  # the file is gone, or its file system has no locks
        return False


IMAGE = 'sensor_msgs/msg/Image'
_RULE = '=' * 80
_DEFINITION = f"""\
std_msgs/Header header
uint32 height
uint32 width
string encoding
uint8 is_bigendian
uint32 step
uint8[] data
{_RULE}
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
{_RULE}
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
"""
_ENCAPSULATION = b'\0\1\0\0'


def tight_layout(fourcc: int, width: int, height: int) -> ImageLayout:
    """Return the layout of frames in a recording: without padding between rows or planes."""
    return compute_layout(fourcc, width, height, stride_align=1, offset_align=1)


@dataclass(frozen=True)
class RecordedFormat:
    """
    The format that all frames of one channel share.

    :param layout: the frames' layout in the producer's buffers; it is LINEAR.
    """

    layout: ImageLayout
    colorimetry: Colorimetry

    @cached_property
    def tight(self) -> ImageLayout:
        """The frames' layout in the recording."""
        return tight_layout(self.layout.fourcc, self.layout.width, self.layout.height)

    @property
    def frame_bytes(self) -> int:
        """Bytes of a frame's pixels in the recording."""
        return self.tight.buffer_size(0)

    def topic(self, name: str) -> Topic:
        """Return the description of topic *name*, whose messages are frames of this format."""
        colours = self.colorimetry
        planes = [[p.buffer, p.offset, p.stride, p.size] for p in self.layout.planes]
        metadata = {
            'offered_qos_profiles': '',
            'fourcc': self.layout.format.name.strip(),
            'matrix': colours.matrix.value,
            'range': colours.range.value,
            'transfer': colours.transfer.value,
            'planes': json.dumps(planes),
        }
        return Topic(name, IMAGE, _DEFINITION, tuple(metadata.items()))

    def message_head(self, header: Header) -> bytes:
        """
        Return a frame's serialised message (CDR) up to its pixels.

        :raises FormatError: no message can have the stamp.
        """
        layout = self.tight
        encoding = layout.format.ros or layout.format.name.strip()
        try:
            stamp = struct.pack('<iI', *divmod(header.stamp_ns, 1_000_000_000))
        except struct.error:  # another program's frame may have any stamp
            raise FormatError(
                f'stamp {header.stamp_ns} ns is outside of the range of a ROS time'
            ) from None
        body = stamp + _string(header.frame_id)
        body += bytes(-len(body) % 4) + struct.pack('<II', layout.height, layout.width)
        body += _string(encoding) + b'\0'
        body += bytes(-len(body) % 4)
        body += struct.pack('<II', layout.planes[0].stride, self.frame_bytes)
        return _ENCAPSULATION + body


def _string(text: str) -> bytes:
    encoded = text.encode() + b'\0'
    return struct.pack('<I', len(encoded)) + encoded


def recorded_format(metadata: Mapping[str, str], source: str) -> tuple[int, Colorimetry] | None:
    """
    Return the fourcc and colorimetry that a channel's *metadata* state.

    The result is ``None`` if another program recorded the channel.

    :param source: name of the recording, for messages.
    :raises ConfigError: the channel's metadata describe an impossible format.
    """
    if 'fourcc' not in metadata:
        return None
    try:
        return format_by_name(metadata['fourcc']).code, Colorimetry(
            Matrix(metadata['matrix']), Range(metadata['range']), Transfer(metadata['transfer'])
        )
    except (KeyError, ValueError, FormatError) as error:
        raise ConfigError(f"recording '{source}': its format can't be used: {error}") from error
