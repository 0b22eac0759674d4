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
Play the pictures of one topic of a recording made by zc_record or rosbag2.

A recording is a folder or a single file, in MCAP or SQLite format. The ``rosbags`` library, which
needs no ROS, reads it without copying pixels. The topic's messages are ``sensor_msgs/Image``,
``CompressedImage`` or ``foxglove_msgs/CompressedVideo``. Frames that zc_record wrote as ``Image``
keep their format and every bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
import contextlib
from dataclasses import replace
from functools import cached_property
import importlib
import io
import itertools
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.mcap_file import (
    Contents,
    describe,
    describe_alone,
    is_being_recorded,
    LIBRARY,
    METADATA,
    parts_in,
    read_contents,
    read_parts,
    recorded_format,
    SUFFIX,
    tight_layout,
)
from zc_perception.camera.recording import is_key_frame, VIDEO
from zc_perception.camera.replay.pictures import decode_picture
from zc_perception.camera.replay.source import (
    BAG_MAGIC,
    DEFAULT_FRAMERATE,
    FrameSource,
    LONGEST_PAUSE_NS,
    Moment,
    PlaneWriter,
    RATE_FROM,
    rate_of,
    RecordedStamps,
    ZSTD,
)
from zc_perception.camera.replay.video import PictureWriter, pyav, said_by, UPRIGHT
from zc_perception.errors import (
    ConfigError,
    FormatError,
    LayoutError,
    message_of,
    nearest,
    RecordingError,
)
from zc_perception.frame import Header
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry
from zc_perception.pixel.conversion import even
from zc_perception.pixel.fourcc import fourcc_name, pixel_format
from zc_perception.pixel.layout import views
from zc_perception.pixel.raw_picture import DEPTHS, ENCODINGS, layout_of, RawPicture


class _Finished(io.RawIOBase):
    """A file object: an unfinished MCAP file's complete records, then the records that end it."""

    def __init__(self, path: Path, contents: Contents) -> None:
        self._file = open(path, 'rb', buffering=0)  # noqa: SIM115 - closed by close()
        self._whole = contents.end
        self._tail = contents.tail(describe_alone(path.name, contents))
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = (0, self._at, self._whole + len(self._tail))[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast('B')
        if self._at < self._whole:
            self._file.seek(self._at)
            count = self._file.readinto(view[: self._whole - self._at])
        else:
            begin = self._at - self._whole
            rest = self._tail[begin:][: len(view)]
            count = len(rest)
            view[:count] = rest
        self._at += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def is_unfinished(path: Path) -> bool:
    """Tell whether a file is an MCAP file that this package began and did not finish."""
    try:
        contents = read_contents(path)
    except (RecordingError, OSError):  # the code that opens the file reports the error
        return False
    return not contents.finished and contents.library == LIBRARY


class RecordedPath(type(Path())):  # type: ignore[misc]
    """
    A path through which rosbags can read unfinished recordings of this package.

    Such recordings have files without their end, or a ``metadata.yaml`` that doesn't list all
    files.
    """

    def open(self, mode: str = 'r', *args: Any, **options: Any) -> Any:  # noqa: A003
        if self.suffix == SUFFIX and mode == 'rb' and is_unfinished(self):
            return io.BufferedReader(_Finished(self, read_contents(self)))
        return super().open(mode, *args, **options)

    def exists(self, *args: Any, **options: Any) -> bool:
        return super().exists(*args, **options) or (
            self.name == METADATA and bool(parts_in(self.parent))
        )

    def read_text(self, *args: Any, **options: Any) -> str:
        if self.name != METADATA:
            return str(super().read_text(*args, **options))
        there = super().read_text(*args, **options) if super().exists() else ''
        parts, _ = read_parts(Path(self.parent))
        ours = parts and all(contents.library == LIBRARY for _, contents in parts)
        return describe(parts) if ours or not there else str(there)


DEFINITION = """\
builtin_interfaces/Time timestamp
string frame_id
uint8[] data
string format
"""
"""ROS definition of CompressedVideo. With it, package foxglove_msgs need not be installed."""
_CODECS = {'h264': 'h264', 'h265': 'hevc', 'vp9': 'vp9', 'av1': 'libdav1d'}


class TopicDecoder:
    """
    Decodes the messages (``foxglove_msgs/msg/CompressedVideo``) of one topic in their order.

    Each message is one picture. To decode it, the decoder needs the earlier pictures since the
    last key frame, but no later picture.

    :raises ConfigError: PyAV is missing or too old.
    """

    def __init__(self, name: str) -> None:
        self._av = pyav(name)
        self._name = name
        self._codec: Any = None
        self._format = ''
        self._writer: PictureWriter | None = None
        self._colours: Colorimetry | None = None

    def restart(self) -> None:
        """Discard the decoder's state, because the recording is played from its start again."""
        self._codec = None

    def decode(self, form: str, data: NDArray[Any]) -> Any:
        """
        Return a message's picture as a frame of PyAV; *form* names its codec, such as ``h264``.

        :raises FormatError: the picture is damaged, or pictures that it refers to are missing.
        :raises RecordingError: the video has B-frames, so that a picture's time can't be known.
        """
        if form not in _CODECS:
            raise FormatError(f"format '{form[:60]}' is none of {', '.join(_CODECS)}")
        if self._codec is None or form != self._format:
            self._format, self._codec = form, self._av.CodecContext.create(_CODECS[form], 'r')
            # These options make the decoder return one picture for each message and report damage.
            self._codec.thread_type = 'SLICE'
            detect = {'err_detect': 'explode'} if form == 'h265' else {}
            self._codec.options = {'flags': 'low_delay', **detect}
        frames: list[Any] = []
        with contextlib.suppress(self._av.error.FFmpegError):
            frames = self._codec.decode(self._av.Packet(data.tobytes()))
        if self._codec.has_b_frames:
            raise RecordingError(
                f"recording '{self._name}' has B-frames, so its pictures' times can't be known; "
                'record a video from an encoder that makes no B-frames (max_b_frames: 0)'
            )
        if not frames or frames[-1].is_corrupt:
            raise FormatError('a picture is damaged, or no key frame came before it')
        return frames[-1]

    def begin(self, frame: Any, size: tuple[int, int]) -> Colorimetry:
        """
        Prepare to write pictures like *frame* into NV12 planes of *size*.

        Return the colorimetry that these planes will have.

        :raises FormatError: this package can't convert the picture's colorimetry.
        """
        self._writer = PictureWriter(*size, UPRIGHT, self._av.video.reformatter.VideoReformatter())
        self._colours = self._writer.colorimetry(frame, said_by(frame, self._codec))
        return self._writer.written(self._colours)

    def write(self, frame: Any, planes: Sequence[NDArray[Any]]) -> None:
        """
        Write a picture's pixels into the planes; call :meth:`begin` before.

        :raises RecordingError: the picture's colorimetry differs from that of the first picture.
        """
        assert self._writer is not None and self._colours is not None
        try:
            colours = self._writer.colorimetry(frame, said_by(frame, self._codec))
        except FormatError as error:
            raise RecordingError(f"recording '{self._name}' changes: {error}") from error
        if colours != self._colours:
            raise RecordingError(
                f"the colorimetry changes in recording '{self._name}'; play its files one by one"
            )
        self._writer.write(frame, colours, planes)


_NANOSECONDS = 1_000_000_000


class EncodedPicture(NamedTuple):
    """
    A compressed picture (PNG, JPEG, …), or one picture of a video.

    :param format: image_transport's text, such as ``bgr8; jpeg compressed bgr8``; for a video a
        codec such as ``h264``.
    :param frame: for a video, the decoded frame of PyAV.
    """

    format: str  # noqa: A003
    data: NDArray[np.uint8]
    frame: Any = None


Picture = RawPicture | EncodedPicture
_COMPRESSED = 'sensor_msgs/msg/CompressedImage'
_TYPES = ('sensor_msgs/msg/Image', _COMPRESSED, VIDEO)
# This many pictures at a recording's start may be unreadable. In a video more may be unreadable,
# because a recording may begin between key frames: gstreamer_node's largest 'gop_size' is 1000.
_FIRST_TRIES, _FIRST_TRIES_OF_VIDEO = 32, 1000
_CLOCK_WAS_SET_NS = 1_000_000_000
# In a video, look for a key frame at most this long before the picture that is wanted.
_KEY_FRAME_WITHIN_NS = 60_000_000_000
# A recording has one duration by its stamps and one by the recorder's clock. If these durations
# differ by this much, a simulation made the stamps, and it ran faster or slower than that clock.
_OTHER_SPEED_NS = 100_000_000


def is_bag(path: Path) -> bool:
    """
    Tell whether *path* is a recording of rosbag2.

    Such a recording is a folder with rosbag2's metadata or storage files, or a storage file.
    """
    if path.is_dir():
        return (path / METADATA).is_file() or any(_storage_files(path))
    return path.suffix in BAG_MAGIC


def _storage_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix in BAG_MAGIC)


def read_message(store: Any, msgtype: str, content: bytes) -> tuple[Header, Picture]:
    """
    Return header and picture of a serialised message; the pixels are a view of *content*.

    Only the message's completeness is checked, not its values.

    :param store: the type store of rosbags, which can deserialise *msgtype*.
    :raises FormatError: *content* isn't a complete message of type *msgtype*.
    """
    if content[: len(ZSTD)] == ZSTD:
        raise FormatError(
            'the messages of this file are compressed one by one; '
            f'play the whole folder, whose {METADATA} names the compression'
        )
    try:
        found = store.deserialize_cdr(memoryview(content), msgtype)
    except Exception as error:  # rosbags has no common base class of its errors
        raise FormatError(f'the message is damaged: {_first_line(error)}') from error
    at, frame_id = (
        (found.timestamp, found.frame_id)
        if msgtype == VIDEO
        else (found.header.stamp, found.header.frame_id)
    )
    header = Header(at.sec * _NANOSECONDS + at.nanosec, frame_id)
    if msgtype in (VIDEO, _COMPRESSED):
        return header, EncodedPicture(found.format, found.data)
    return header, RawPicture(
        found.width, found.height, found.encoding, bool(found.is_bigendian), found.step, found.data
    )


def _opened(path: Path) -> tuple[Any, Any]:
    """Open a recording; return its reader and the type store (both objects of rosbags)."""
    try:
        library, types = (
            importlib.import_module(f'rosbags.{name}') for name in ('rosbag2', 'typesys')
        )
    except ImportError as error:
        raise ConfigError(
            f"recording '{path}' needs the library rosbags, which is not installed: "
            "pip install rosbags 'apsw!=3.54.0.0' (that version leaks descriptors)"
        ) from error
    if path.is_dir() and not (path / METADATA).is_file() and not parts_in(path):
        # If a recorder was killed, its storage files have no metadata.
        files = _storage_files(path)
        if len(files) != 1:
            raise ConfigError(
                f"recording '{path}' has {len(files)} storage files, but no {METADATA}; run "
                f"'ros2 bag reindex {path}'"
            )
        path = files[0]
    try:
        reader = library.Reader(RecordedPath(path))
        reader.open()
    # rosbags has several error classes, and its parsers raise still others for a damaged file
    except Exception as error:
        raise ConfigError(
            f"recording '{path}' can't be opened: {_first_line(error)}; "
            f'{_advice(path, library.Reader)}'
        ) from error
    store = types.get_typestore(types.Stores.LATEST)
    store.register(types.get_types_from_msg(DEFINITION, VIDEO))
    return reader, store


def _advice(path: Path, reader: Callable[[Path], Any]) -> str:
    """Return advice on how to repair a recording that can't be opened."""
    files = [path] if path.is_file() else _storage_files(path)
    if path.is_dir() and [file.name for file in path.iterdir()] == [METADATA]:
        return f'the folder lacks the files that {METADATA} lists: copy them into the folder'
    for file in files:
        if file.suffix == '.mcap' and not _has_end(file):
            return (
                f"'{file.name}' has no end: the recorder was killed, or the file was copied only "
                f'in part; {_rescue(file)}'
            )
        try:
            whole = reader(RecordedPath(file))
            whole.open()
            whole.close()
        except Exception:  # as in _opened()
            return f"the fault is in '{file.name}'; {_rescue(file)}"
    return f'ros2 bag reindex {path} makes a new {METADATA}'


def _rescue(file: Path) -> str:
    """Return the command that saves the messages of a damaged storage file."""
    if file.suffix == '.db3':
        return f'save its messages: sqlite3 {file.name} .recover | sqlite3 whole.db3'
    return f'save its messages: mcap recover {file.name} -o whole.mcap'


def _has_end(file: Path) -> bool:
    magic = BAG_MAGIC['.mcap']
    try:
        with file.open('rb') as storage:
            storage.seek(-len(magic), os.SEEK_END)
            return storage.read() == magic
    except OSError:  # the file is shorter than an MCAP file's end
        return False


def _first_line(error: Exception) -> str:
    text = message_of(error)
    return text[:200].rstrip('.') or type(error).__name__


class BagSource(FrameSource):
    """
    Plays the pictures of one topic with their recorded headers; the headers' stamps set the pace.

    All pictures must have one size; their encodings may differ. An unreadable picture is left out
    and counted.

    :param topic: name of the topic; empty: the only topic that has pictures.
    :raises ConfigError: the recording or the topic can't be used; the message lists the topics
        with their types and numbers of messages.
    """

    has_headers = True

    def __init__(self, path: str, topic: str = '', width: int = 0, height: int = 0) -> None:
        self._reader, self._store = _opened(Path(path))
        self._path = Path(path)
        self._messages: Iterator[tuple[Any, int, bytes]] = iter(())
        self._picture: Picture | None = None
        self._first_ns = 0
        self._last_ns: tuple[int, int, int] | None = None
        try:
            self.topic = _choose(self._reader.topics, topic, path, self._has_depth)
            self._connections = self._connections_of(self.topic)
            super().__init__(f'{path}: {self.topic}', 0, 0, DEFAULT_FRAMERATE)
            self._notice, self._pause = _incomplete_notice(Path(path)), ''
            self._skipped = False
            self.stamps: RecordedStamps = RecordedStamps(self.name)
            msgtype = self._connections[0].msgtype
            raw = msgtype == _TYPES[0]
            self._recorded = _recorded_format(Path(path), self.topic) if raw else None
            self._decoder = TopicDecoder(self.name) if msgtype == VIDEO else None
            self._first_frame: Any = None
            own = self._look()
            self._own = own
            if self._recorded is None:
                own = even(own[0]), even(own[1])
            self.width, self.height = width or own[0], height or own[1]
            self._choose_format()
            self.restart()
        except BaseException:
            self.close()
            raise

    def _choose_format(self) -> None:
        """
        Set the frames' format.

        It is the recorded format if this is known and frames aren't scaled, else NV12.
        """
        self._writer: PlaneWriter | None = None
        if self._decoder is not None:
            try:
                size = self.width, self.height
                self.colorimetry = self._decoder.begin(self._first_frame, size)
            except FormatError as error:
                raise ConfigError(f"recording '{self.name}' can't be played: {error}") from error
            return
        if self._recorded is None or (self.width, self.height) != self._own:
            self._writer = PlaneWriter(self.width, self.height)
        if self._recorded is not None:
            fourcc, self.colorimetry = self._recorded
            if self._writer is None:
                self.fourcc = fourcc
            elif not pixel_format(fourcc).is_yuv:
                self.colorimetry = BT601_LIMITED

    def duration_ns(self) -> int:
        """
        Return ns from the first to the last message of all topics; call this after the last frame.

        If a simulation's clock ran faster or slower than the recorder's clock, the result counts
        ns of the simulation's clock. The ratio of the two speeds is measured on the same topic for
        every source, so that all sources of the recording return the same number.
        """
        duration: int = self._reader.duration
        by_stamp, by_record = self._spans
        if min(by_stamp, by_record) <= 0 or abs(by_stamp - by_record) < _OTHER_SPEED_NS:
            return duration
        _, at_ns, own_ns = self._last_ns or (0, self._first_ns, 0)
        foreseen_ns = (at_ns - self._first_ns) * by_stamp // by_record
        if abs(own_ns - foreseen_ns) >= _CLOCK_WAS_SET_NS:
            return duration
        return duration * by_stamp // by_record

    @cached_property
    def _spans(self) -> tuple[int, int]:
        """
        Return ns between a topic's first and last message: by stamps, and by times of recording.

        The topic is the recording's first one with pictures, whichever topic this source plays. So
        all sources of the recording return the same. (0, 0): the messages can't be read.
        """
        reader = self._reader
        connections = self._connections_of(_with_pictures(reader.topics)[0])
        try:
            ends = list(itertools.islice(reader.messages(connections), 1))
            # The recording may be long: look for its last message in the last 1/1000 first.
            for part in (1000, 30, 1):
                since_ns = reader.end_time - reader.duration // part
                ends += deque(reader.messages(connections, since_ns), maxlen=1)
                if len(ends) > 1:
                    break
            (_, began_ns, first), (_, ended_ns, last) = ends
            stamps = [
                read_message(self._store, connections[0].msgtype, content)[0].stamp_ns
                for content in (first, last)
            ]
        except Exception:  # rosbags has no common base class of its errors
            return 0, 0
        return stamps[1] - stamps[0], ended_ns - began_ns

    def _connections_of(self, topic: str) -> list[Any]:
        return [connection for connection in self._reader.connections if connection.topic == topic]

    def _has_depth(self, topic: str) -> bool:
        """Tell whether the topic's first message is a depth image."""
        connections = self._connections_of(topic)
        try:
            _, _, content = next(self._reader.messages(connections=connections))
            _, picture = read_message(self._store, connections[0].msgtype, content)
        # rosbags' errors have no common base class; playing the topic reports the error
        except Exception:
            return False
        return _is_depth(picture)

    def _look(self) -> tuple[int, int]:
        """Return the first picture's size; set :attr:`framerate` from the first pictures."""
        self.restart()
        stamps: list[int] = []
        size, reason = None, 'it has no picture'
        self._damage = ''
        tries = _FIRST_TRIES if self._decoder is None else _FIRST_TRIES_OF_VIDEO
        while len(stamps) < (tries if size is None else RATE_FROM):
            try:
                moment = self.advance()
            except RecordingError as error:
                if size is None:
                    raise ConfigError(str(error)) from error
                break  # the good frames are played, then this error is raised again
            if moment is None:
                break
            stamps.append(moment.time_ns)
            if self._picture is None:
                reason = self._damage
            elif size is None:
                try:
                    size = self._size_of(self._picture)
                except (FormatError, LayoutError) as error:
                    reason = str(error)
        if size is None:
            raise ConfigError(f"recording '{self.name}' can't be played: {reason}")
        self.framerate = rate_of(stamps)
        return size

    def _next_message(self) -> tuple[int, bytes] | None:
        try:
            entry = next(self._messages, None)
        except Exception as error:  # rosbags has no common base class of its errors
            raise RecordingError(
                f"recording '{self.name}' can't be read any further: {_first_line(error)}; "
                f'{self._rescue()}'
            ) from error
        return None if entry is None else (entry[1], entry[2])

    def _rescue(self) -> str:
        files = _storage_files(self._path) if self._path.is_dir() else [self._path]
        if len(files) == 1:
            return _rescue(files[0])
        # The recording has several files, or only compressed files. It isn't known which file is
        # damaged.
        return "check each of its files: run 'mcap doctor', or sqlite3's 'pragma integrity_check'"

    def _moment(self) -> Moment | None:
        """
        Return the header of the next message, and its time by the stamp in this header.

        If the message can't be read, return the time at which it was recorded, without a header.
        """
        entry = self._next_message()
        if entry is None:
            return None
        recorded_ns, content = entry
        header, stamp_ns = None, recorded_ns
        try:
            header, self._picture = read_message(
                self._store, self._connections[0].msgtype, content
            )
        except FormatError as error:
            self._picture, self._damage = None, str(error)
        if header is not None:
            stamp_ns = self.stamps.stamp(header.stamp_ns, recorded_ns)
            header = replace(header, stamp_ns=stamp_ns)
            self._decode()
        if self._last_ns is None:
            self._first_ns = recorded_ns
        # The previous message's stamp, its time of recording, and its Moment.time_ns.
        last = self._last_ns or (stamp_ns, recorded_ns, 0)
        by_stamp, by_record = stamp_ns - last[0], recorded_ns - last[1]
        # If the clock was set while recording, the stamps jump, and the replay would pause for the
        # length of the jump. Then the pause before this message is the difference of the two
        # messages' times of recording. Compare two successive messages only: a simulation runs at
        # its own speed, so over a whole recording its stamps and the recorder's clock drift far
        # apart.
        step = by_stamp if abs(by_stamp - by_record) < _CLOCK_WAS_SET_NS else by_record
        if step >= LONGEST_PAUSE_NS and not self._skipped:
            self._pause = (
                f"'{self.name}' has no picture for {step / 3.6e12:.3g} h, or its clock was set: "
                'the replay goes on without this pause'
            )
            self.left_out_ns += step
            step = round(_NANOSECONDS / self.framerate)
        self._skipped = False
        self._last_ns = stamp_ns, recorded_ns, last[2] + step
        return Moment(last[2] + step, header)

    def _decode(self) -> None:
        """Decode a video's picture even if it will be skipped: later pictures need it."""
        picture = self._picture
        if self._decoder is not None and isinstance(picture, EncodedPicture):
            try:
                frame = self._decoder.decode(picture.format, picture.data)
                self._picture = picture._replace(frame=frame)
            except FormatError as error:
                self._picture, self._damage = None, str(error)

    def read(self, planes: Sequence[NDArray[Any]]) -> bool:
        """
        Write the current picture into *planes*; return ``False`` if it can't be played.

        :raises RecordingError: the picture's size differs from the first picture's size.
        """
        picture = self._picture
        if picture is None:
            return False
        try:
            if self._decoder is not None and isinstance(picture, EncodedPicture):
                self._check_size(picture.frame.width, picture.frame.height)
                self._decoder.write(picture.frame, planes)
            elif self._recorded is not None and isinstance(picture, RawPicture):
                self._write_recorded(picture, *self._recorded, planes)
            else:
                raw = _raw(picture)
                layout = layout_of(raw)
                self._check_size(raw.width, raw.height)
                assert self._writer is not None
                self._writer.write(raw, layout, planes)
        except (FormatError, LayoutError):
            return False
        return True

    def _write_recorded(
        self,
        picture: RawPicture,
        fourcc: int,
        colours: Colorimetry,
        planes: Sequence[NDArray[Any]],
    ) -> None:
        """Write *picture* into *planes*; if the picture isn't scaled, only copy its bytes."""
        size = picture.width, picture.height
        self._check_size(*size)
        layout = tight_layout(fourcc, *size)
        if len(picture.data) != layout.buffer_size(0):
            raise FormatError(f'it has {len(picture.data)} bytes')
        sources = views(layout, picture.data)
        if self._writer is not None:
            self._writer.write_planes(fourcc, size, colours, sources, planes)
            return
        for source, plane in zip(sources, planes, strict=True):
            np.copyto(plane, source)

    def _size_of(self, picture: Picture) -> tuple[int, int]:
        """Return a picture's size; store a video's decoded frame for :meth:`_choose_format`."""
        if self._decoder is not None and isinstance(picture, EncodedPicture):
            self._first_frame = picture.frame
            return picture.frame.width, picture.frame.height
        raw = _raw(picture)
        if self._recorded is None:
            layout_of(raw)
        return raw.width, raw.height

    def _check_size(self, width: int, height: int) -> None:
        if (width, height) != self._own:
            _, recorded_ns, _ = self._last_ns or (0, 0, 0)
            raise RecordingError(
                f"recording '{self.name}' changes from {self._own[0]}x{self._own[1]} to "
                f'{width}x{height}; play its files one by one, or cut the file there, for example '
                f"with 'mcap filter IN.mcap --start-nsecs {recorded_ns} -o OUT.mcap'"
            )

    def notice(self) -> str:
        return '; '.join(filter(None, (self._notice, self._pause)))

    def seek(self, offset_ns: int) -> Moment | None:
        """Seek as other sources do, but first skip the messages long before *offset_ns*."""
        moment = self.advance()
        if moment is None or moment.time_ns >= offset_ns:
            return moment
        if not self._skip(offset_ns):
            self.restart()
        return super().seek(offset_ns)

    def _skip(self, offset_ns: int) -> bool:
        """
        Skip the messages that were recorded more than a second before *offset_ns*.

        In a video, keep the last key frame of these messages and the messages after it.
        Return ``False`` if the first message to keep can't be found, because stamps and times of
        recording don't agree, or because there is no key frame. Then restart the recording.
        """
        stamp_ns, recorded_ns, _ = self._last_ns or (0, 0, 0)
        is_video = self._decoder is not None
        near_ns = recorded_ns + offset_ns - _CLOCK_WAS_SET_NS
        since_ns = near_ns - _KEY_FRAME_WITHIN_NS * is_video
        if since_ns <= recorded_ns:
            return True
        found: list[tuple[Any, int, bytes]] = []
        try:
            messages = self._reader.messages(self._connections, since_ns)
            for entry in messages:
                if is_video and is_key_frame(entry[2]):
                    found.clear()
                found.append(entry)
                if entry[1] >= near_ns:
                    break
            _, at_ns, content = found[0]
            header, picture = read_message(self._store, self._connections[0].msgtype, content)
        except Exception:
            # The caller restarts the recording, which then reports the error at the bad message.
            return False
        apart_ns = abs(header.stamp_ns - stamp_ns - (at_ns - recorded_ns))
        form = picture.format if isinstance(picture, EncodedPicture) else ''
        is_key = form in ('h264', 'h265') and is_key_frame(content)
        if apart_ns >= _CLOCK_WAS_SET_NS or (is_video and not is_key):
            return False
        if found[-1][1] - near_ns >= LONGEST_PAUSE_NS // 60:
            return False
        self._messages, self._skipped = itertools.chain(found, messages), True
        self.number = round((at_ns - recorded_ns) * self.framerate / _NANOSECONDS) - 1
        if self._decoder is not None:
            self._decoder.restart()
        return True

    def restart(self) -> None:
        super().restart()
        self._messages = iter(self._reader.messages(connections=self._connections))
        self._skipped = False
        self.stamps.restart()
        if self._decoder is not None:
            self._decoder.restart()
        self._last_ns = None
        self._picture = None

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            self._messages = iter(())
            with contextlib.suppress(Exception):  # closing a damaged storage may raise
                reader.close()


def _encoding(picture: Picture) -> str:
    """Return the encoding of a picture's pixels, before they were compressed."""
    if isinstance(picture, RawPicture):
        return picture.encoding
    return picture.format.partition(';')[0].strip()


def _is_depth(picture: Picture) -> bool:
    if isinstance(picture, EncodedPicture) and 'compressedDepth' in picture.format:
        return True
    return _encoding(picture) in DEPTHS


def _raw(picture: Picture) -> RawPicture:
    """
    Return *picture*, decoded if it is compressed.

    ROS compresses a Bayer picture as a grey picture. So restore the Bayer encoding.
    """
    if isinstance(picture, RawPicture):
        return picture
    named = f"format '{picture.format[:60]}'"
    if _is_depth(picture):
        raise FormatError(f'a message with {named} is a depth image, not a picture')
    try:
        decoded = decode_picture(picture.data)
    except FormatError as error:
        raise FormatError(
            f'{named} {error}; a compressed picture must be a whole JPEG or PNG'
        ) from error
    encoding = _encoding(picture)
    known = ENCODINGS.get(encoding)
    if known is not None and known.fourcc == ENCODINGS[decoded.encoding].fourcc:
        return decoded._replace(encoding=encoding)
    if decoded.encoding == 'mono16':
        raise FormatError(
            f'{named} has grey levels of 16 bits, so it may be a depth image; '
            "such a picture is played only if the message's field format begins with 'mono16'"
        )
    return decoded


def _recorded_format(path: Path, topic: str) -> tuple[int, Colorimetry] | None:
    """
    Return the format that zc_record stored for the frames of *topic*.

    ``None``: another program made the recording.
    """
    found: dict[tuple[int, Colorimetry], Path] = {}
    for file in parts_in(path) if path.is_dir() else [path]:
        if file.suffix != SUFFIX:
            continue
        try:
            topics = read_contents(file).topics.values()
        # Raise no error: only the recorded format of this file stays unknown; rosbags can still
        # play the file.
        except (RecordingError, OSError):
            continue
        for recorded in topics:
            if recorded.name == topic:
                known = recorded_format(dict(recorded.metadata), str(file))
                if known is not None:
                    found.setdefault(known, file)
    if len(found) > 1:
        parts = ', '.join(f"'{file}' has {_named(*known)}" for known, file in found.items())
        raise ConfigError(
            f"recording '{path}' changes its format ({parts}); play its files one by one"
        )
    return next(iter(found), None)


def _incomplete_notice(path: Path) -> str:
    """Return a sentence about the files of zc_record that are played in part or not at all."""
    if path.is_dir():
        parts, found = read_parts(path)
        if any(contents.library != LIBRARY for _, contents in parts):
            # Another program recorded this folder; metadata.yaml tells which files are played.
            return ''
        cut = [path / name for name, contents in parts if not contents.finished]
    else:
        found, cut = [], [path] if path.suffix == SUFFIX and is_unfinished(path) else []
    if cut and is_being_recorded(cut[-1]):
        file = cut.pop()
        found.append(f"'{file}' is still being recorded; what it has now is played")
    if cut:
        files = ', '.join(f"'{file.name}'" for file in cut)
        found.append(
            f"recording '{path}': no end in {files}: the recorder was killed, or a file was "
            f"copied only in part; each file's complete part is played; "
            f"zc_record --repair '{path}' finishes the recording"
        )
    return '; '.join(found)


def _named(fourcc: int, colours: Colorimetry) -> str:
    return f'{fourcc_name(fourcc).strip()} {colours.matrix.value} {colours.range.value}'


def _with_pictures(topics: dict[str, Any]) -> list[str]:
    """Return the names of the topics that have pictures."""
    return [
        name for name, info in sorted(topics.items()) if info.msgtype in _TYPES and info.msgcount
    ]


def _choose(
    topics: dict[str, Any], wanted: str, path: str, has_depth: Callable[[str], bool]
) -> str:
    """
    Return the topic to play: topic *wanted*, or if this is empty, the only topic with pictures.

    Of several topics with pictures, those with depth images are left out first, then those with
    videos.
    """
    found = [
        f'{name} ({info.msgtype}, {info.msgcount} messages)'
        for name, info in sorted(topics.items())
    ]
    there = f'it has {", ".join(found)}' if found else 'it has no topics'
    pictures = _with_pictures(topics)
    if wanted:
        if wanted not in topics:
            raise ConfigError(
                f"recording '{path}' has no topic '{wanted}'{nearest(wanted, topics)}; {there}"
            )
        if topics[wanted].msgtype not in _TYPES:
            raise ConfigError(
                f"recording '{path}' has no pictures in topic '{wanted}'; pictures have the type "
                f'{" or ".join(_TYPES)}; {there}'
            )
        if not topics[wanted].msgcount:
            raise ConfigError(f"recording '{path}': topic '{wanted}' has no messages; {there}")
        return wanted
    if len(pictures) > 1:
        pictures = [name for name in pictures if not has_depth(name)] or pictures
    if len(pictures) > 1:  # a recording may have one camera's frames both as pictures and as video
        pictures = [name for name in pictures if topics[name].msgtype != VIDEO] or pictures
    if len(pictures) != 1:
        what = (
            'several topics with pictures'
            if pictures
            else f'no topic with pictures ({" and ".join(_TYPES)})'
        )
        advice = "; set parameter 'replay_topic'" if pictures else ''
        raise ConfigError(f"recording '{path}' has {what}; {there}{advice}")
    return pictures[0]
