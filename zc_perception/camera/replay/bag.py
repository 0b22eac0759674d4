"""rosbag2 recordings, in SQLite or MCAP, as folders or single files: pictures of one topic.

The storage is read by the ``rosbags`` library, which needs no ROS (extra ``bags``). The messages, ``sensor_msgs/Image`` and
``CompressedImage``, are read here from their serialised form, without copying the pixels.

Source: OMG DDS-RTPS (encapsulation header), OMG DDS-XTypes §7.4 (plain CDR: values at multiples of their size, counted from behind the
header; strings with their length and a final zero), and the two messages' definitions. rosbag2 keeps exactly these bytes.
"""

from __future__ import annotations

import contextlib
import importlib
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.replay.source import DEFAULT_FRAMERATE, FrameSource, Moment, PlaneWriter, RawPicture, check_picture, even
from zc_perception.camera.replay.video import decode_picture
from zc_perception.errors import ConfigError, FormatError, LayoutError, RecordingError, nearest
from zc_perception.frame import Header

_NANOSECONDS = 1_000_000_000
_BIG, _LITTLE = 0, 1


class CompressedPicture(NamedTuple):
    """*format* is image_transport's text, such as ``bgr8; jpeg compressed bgr8``."""

    format: str
    data: NDArray[np.uint8]


class _Reader:
    """Takes values one after the other; every read is checked against what is there."""

    def __init__(self, content: bytes | memoryview) -> None:
        if len(content) < 4:
            raise FormatError(f'the message has {len(content)} bytes; a serialised message has at least 4')
        kind = content[1]
        if content[0] or kind not in (_BIG, _LITTLE):
            raise FormatError(f'the message has the encapsulation 0x{content[0]:02x}{kind:02x}; plain CDR is 0x0000 or 0x0001')
        self._order = '<' if kind == _LITTLE else '>'
        self._content = memoryview(content)[4:]
        self._at = 0

    def take(self, kind: str) -> int:
        """One number, by its letter in :mod:`struct`."""
        size = struct.calcsize(self._order + kind)
        self._at = -(-self._at // size) * size
        value: int = struct.unpack(self._order + kind, self._bytes(size))[0]
        return value

    def _bytes(self, size: int) -> memoryview:
        left = len(self._content) - self._at
        if size > left:
            raise FormatError(f'the message ends too early: {size} bytes are wanted at byte {self._at + 4}, {max(0, left)} are left')
        taken = self._content[self._at : self._at + size]
        self._at += size
        return taken

    def text(self) -> str:
        """A string."""
        raw = bytes(self._bytes(self.take('I')))
        return raw.removesuffix(b'\0').decode('utf-8', errors='replace')

    def blob(self) -> NDArray[np.uint8]:
        """A sequence of bytes, as a view."""
        return np.frombuffer(self._bytes(self.take('I')), np.uint8)

    def header(self) -> Header:
        """``std_msgs/Header``."""
        seconds, nanoseconds = self.take('i'), self.take('I')
        return Header(seconds * _NANOSECONDS + nanoseconds, self.text())


def read_image(content: bytes | memoryview) -> tuple[Header, RawPicture]:
    """The parts of a serialised ``sensor_msgs/msg/Image``; the pixels are a view of *content*. Nothing is checked but that it is all there.

    :raises FormatError: it isn't such a message.
    """
    reader = _Reader(content)
    header = reader.header()
    height, width, encoding = reader.take('I'), reader.take('I'), reader.text()
    big_endian, step = bool(reader.take('B')), reader.take('I')
    return header, RawPicture(width, height, encoding, big_endian, step, reader.blob())


def read_compressed_image(content: bytes | memoryview) -> tuple[Header, CompressedPicture]:
    """The parts of a serialised ``sensor_msgs/msg/CompressedImage``; likewise.

    :raises FormatError: it isn't such a message.
    """
    reader = _Reader(content)
    header = reader.header()
    return header, CompressedPicture(reader.text(), reader.blob())


SUFFIXES = ('.mcap', '.db3')
METADATA = 'metadata.yaml'
Picture = RawPicture | CompressedPicture
_READERS: dict[str, Callable[[bytes], tuple[Header, Picture]]] = {
    'sensor_msgs/msg/Image': read_image,
    'sensor_msgs/msg/CompressedImage': read_compressed_image,
}
# Pictures that can't be read at the recording's start, before it counts as damaged: a decoder may have begun between key frames.
_FIRST_TRIES = 32
# The rate that a few pictures have; the rest may have gaps.
_RATE_FROM = 64
_CLOCK_WAS_SET_NS = 1_000_000_000


def is_bag(path: Path) -> bool:
    """Whether *path* is a recording of rosbag2: a folder with its metadata or storage files, or a storage file."""
    if path.is_dir():
        return (path / METADATA).is_file() or any(_storage_files(path))
    return path.suffix.lower() in SUFFIXES


def _storage_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)


def _reader_for(path: Path) -> Any:
    try:
        library = importlib.import_module('rosbags.rosbag2')
    except ImportError as error:
        raise ConfigError(
            f"recording '{path}' needs the library rosbags, which is not installed: pip install 'zc_perception[bags]' or rosbags"
        ) from error
    if path.is_dir() and not (path / METADATA).is_file():
        # A recorder that was killed leaves its storage without metadata.
        files = _storage_files(path)
        if len(files) != 1:
            raise ConfigError(f"recording '{path}' has no {METADATA} and {len(files)} storage files; run 'ros2 bag reindex {path}'")
        path = files[0]
    try:
        reader = library.Reader(path)
        reader.open()
    except Exception as error:  # the library has several classes, and what its parsers meet in a damaged file comes through as it is
        advice = f"'mcap recover' can mend an MCAP file, 'ros2 bag reindex' a folder's {METADATA}"
        raise ConfigError(f"recording '{path}' can't be opened: {_first_line(error)}; {advice}") from error
    return reader


def _first_line(error: Exception) -> str:
    text = ' '.join(str(error).split())
    return text[:200].rstrip('.') or type(error).__name__


class BagSource(FrameSource):
    """The pictures of one topic, with the headers that they were recorded with, at the times of their stamps.

    Sizes may not change; encodings may. A picture that can't be read is left out and counted.

    :param path: the recording's folder or file.
    :param topic: which topic; empty for the only one that has pictures.
    :param width: of the frames; 0 for the first picture's own. Other sizes are scaled.
    :param height: likewise.
    :raises ConfigError: the recording or the topic can't be used; the message lists the topics with types and counts.
    :raises LayoutError: an odd width or height.
    """

    has_headers = True

    def __init__(self, path: str, topic: str = '', width: int = 0, height: int = 0) -> None:
        self._reader = _reader_for(Path(path))
        self._messages: Iterator[tuple[Any, int, bytes]] = iter(())
        self._picture: Picture | None = None
        self._first_ns: tuple[int, int] | None = None
        try:
            self.topic = _choose(self._reader.topics, topic, path)
            self._connections = [connection for connection in self._reader.connections if connection.topic == self.topic]
            self._parse = _READERS[self._connections[0].msgtype]
            super().__init__(f'{path}: {self.topic}', 0, 0, DEFAULT_FRAMERATE)
            own = self._look()
            self.width, self.height = width or even(own[0]), height or even(own[1])
            self._own = own
            self._writer = PlaneWriter(self.width, self.height)
            self.restart()
        except BaseException:
            self.close()
            raise

    def _look(self) -> tuple[int, int]:
        """Size of the first picture, in pixels; the rate of the first few goes into :attr:`framerate`."""
        self.restart()
        stamps: list[int] = []
        size, reason = None, 'it has no picture'
        while len(stamps) < _RATE_FROM and (moment := self.advance()) is not None:
            stamps.append(moment.time_ns)
            if size is None and len(stamps) <= _FIRST_TRIES:
                try:
                    size = _size_of(self._picture)
                except (FormatError, LayoutError) as error:
                    reason = str(error)
            if size is None and len(stamps) > _FIRST_TRIES:
                break
        if size is None:
            raise ConfigError(f"recording '{self.name}' can't be played: {reason}")
        intervals = np.diff(sorted(stamps))
        middle = float(np.median(intervals)) if len(intervals) else 0.0
        if middle > 0:
            self.framerate = 1e9 / middle
        return size

    def _next_message(self) -> tuple[int, bytes] | None:
        try:
            entry = next(self._messages, None)
        except Exception as error:  # as in _reader_for
            raise RecordingError(f"recording '{self.name}' can't be read on: {_first_line(error)}") from error
        return None if entry is None else (entry[1], entry[2])

    def advance(self) -> Moment | None:
        """See :class:`FrameSource`. A message that can't be read still is a frame, of the time when it was recorded."""
        entry = self._next_message()
        if entry is None:
            return None
        recorded_ns, content = entry
        header: Header | None = None
        try:
            header, self._picture = self._parse(content)
        except FormatError:
            self._picture = None
        # Cameras without a clock stamp 0.
        stamp_ns = header.stamp_ns if header is not None and header.stamp_ns > 0 else recorded_ns
        if self._first_ns is None:
            self._first_ns = stamp_ns, recorded_ns
        by_stamp, by_record = stamp_ns - self._first_ns[0], recorded_ns - self._first_ns[1]
        # A clock that was set while recording would hold the replay up for as long.
        return Moment(by_stamp if abs(by_stamp - by_record) < _CLOCK_WAS_SET_NS else by_record, header)

    def read(self, planes: Sequence[NDArray[Any]]) -> bool:
        """See :class:`FrameSource`.

        :raises RecordingError: a picture of another size.
        """
        picture = self._picture
        try:
            if isinstance(picture, RawPicture):
                check_picture(picture)
                self._check_size(picture.width, picture.height)
                self._writer.write(picture, planes)
                return True
            if picture is not None:
                decoded = _decoded(picture)
                self._check_size(decoded.shape[1], decoded.shape[0])
                self._writer.write_bgr(decoded, planes)
                return True
        except (FormatError, LayoutError):
            return False
        return False

    def _check_size(self, width: int, height: int) -> None:
        if (width, height) != self._own:
            raise RecordingError(
                f"recording '{self.name}' changes from {self._own[0]}x{self._own[1]} to {width}x{height}; "
                "play its parts one by one: parameter 'replay_start' begins behind the change"
            )

    def restart(self) -> None:
        """See :class:`FrameSource`."""
        self._messages = iter(self._reader.messages(connections=self._connections))
        self._first_ns = None
        self._picture = None

    def close(self) -> None:
        """See :class:`FrameSource`."""
        reader, self._reader = self._reader, None
        if reader is not None:
            self._messages = iter(())
            with contextlib.suppress(Exception):  # a damaged storage may fail at its end, too
                reader.close()


def _decoded(picture: CompressedPicture) -> NDArray[np.uint8]:
    if 'compressedDepth' in picture.format:
        raise FormatError(f"format '{picture.format[:60]}' is a depth image, not a picture")
    decoded = decode_picture(picture.data)
    if decoded is None:
        raise FormatError(f"format '{picture.format[:60]}' can't be decoded; JPEG and PNG can")
    return decoded


def _size_of(picture: Picture | None) -> tuple[int, int]:
    """The picture's own size.

    :raises FormatError: it can't be read.
    """
    if picture is None:
        raise FormatError('its messages are damaged')
    if isinstance(picture, RawPicture):
        check_picture(picture)
        return picture.width, picture.height
    decoded = _decoded(picture)
    if min(decoded.shape[:2]) < 2:
        raise FormatError(f'the picture is {decoded.shape[1]}x{decoded.shape[0]}; both sides must be at least 2')
    return decoded.shape[1], decoded.shape[0]


def _choose(topics: dict[str, Any], wanted: str, path: str) -> str:
    """The topic to play.

    :raises ConfigError: lists what there is.
    """
    found = [f'{name} ({info.msgtype}, {info.msgcount} messages)' for name, info in sorted(topics.items())]
    there = f'it has {", ".join(found)}' if found else 'it has no topics'
    pictures = [name for name, info in sorted(topics.items()) if info.msgtype in _READERS and info.msgcount]
    if wanted:
        if wanted not in topics:
            raise ConfigError(f"recording '{path}' has no topic '{wanted}'{nearest(wanted, topics)}; {there}")
        if topics[wanted].msgtype not in _READERS:
            raise ConfigError(f"recording '{path}': topic '{wanted}' has no pictures ({' and '.join(_READERS)}); {there}")
        if not topics[wanted].msgcount:
            raise ConfigError(f"recording '{path}': topic '{wanted}' has no messages; {there}")
        return wanted
    if len(pictures) != 1:
        what = 'several topics with pictures' if pictures else f'no topic with pictures ({" and ".join(_READERS)})'
        advice = "; set parameter 'replay_topic'" if pictures else ''
        raise ConfigError(f"recording '{path}' has {what}; {there}{advice}")
    return pictures[0]
