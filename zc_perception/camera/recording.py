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
Write frames and messages to a recording (:mod:`mcap_file`) without delaying consumers.

:class:`Recorder` copies each frame out of the producer's buffer at once, so that the slot is free
again. The recorder has two threads. The first writes the copies to a file. The memory for copies
that wait for the disk is bounded. When it is full, new frames are left out and counted, so a slow
disk affects only the recording. The second thread syncs the written data to the disk, and the
first never waits for the second. After a power cut only the last second is missing; if the process
is killed, less is missing.

:class:`BlackBox` keeps the last seconds of compressed video
(``foxglove_msgs/msg/CompressedVideo``) and of other messages in memory; raw frames would need too
much memory. On request, :func:`write_event` writes these messages to a recording. Each written
video begins with a key frame, because decoding has to begin there.

:class:`Snapshot` writes one frame twice: as a picture for people, and as the recording
``NAME.mcap``. When camera ``replay`` plays this recording, its frame has the same bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
import contextlib
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
import fcntl
import io
import os
from pathlib import Path
import queue
import re
import struct
import threading
import time
from typing import Any, NamedTuple, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.mcap_file import (
    Bytes,
    Contents,
    describe,
    describe_alone,
    finish_recording,
    McapWriter,
    METADATA,
    number_of,
    parts_in,
    RecordedFormat,
    SUFFIX,
    Topic,
)
from zc_perception.errors import ConfigError, FormatError, RecordingError, ZcError
from zc_perception.frame import Frame, Header
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.pixel.conversion import ToPicture
from zc_perception.pixel.fourcc import fourcc_name
from zc_perception.pixel.layout import views
from zc_perception.pixel.modifier import LINEAR
from zc_perception.whole_file import sync_folder, sync_whole, write_whole

T = TypeVar('T')
REASON = 'record'
MIB = 1 << 20
STUCK_S = 3.0
"""On closing, the recorder gives up if the disk has accepted nothing for this many seconds."""
_SYNCED_S = 1.0
_FLUSH_S = 0.25
_SYNC_S = 0.25
# Each new file begins with the newest messages of each latched topic, with at most this many of a
# topic. A topic has one latched message of each publisher, and few topics have 32 publishers.
_KEPT = 32
# One publisher may publish anew again and again, such as a map. So keep more of a topic than its
# newest message only if they have at most this many bytes together.
_KEPT_BYTES = 1 << 20


@dataclass(frozen=True)
class Limits:
    """
    Limits of a recording; 0 means that there is no limit.

    :param buffer_bytes: memory for data that waits for the disk; two frames always fit.
    :param split_bytes: a new file begins after this many bytes.
    :param split_ns: a new file also begins after this many nanoseconds of recording.
    :param floor_bytes: the recording ends when its disk has fewer free bytes than this.
    """

    buffer_bytes: int = 256 * MIB
    split_bytes: int = 2048 * MIB
    split_ns: int = 0
    floor_bytes: int = 0


@dataclass(frozen=True)
class RecorderStatistics:
    """
    A recorder's counters since its start.

    :param recorded: frames that were written.
    :param messages: other messages that were written.
    :param dropped: frames and messages left out because the memory was full: the disk is too slow.
    :param refused: frames that can't be recorded; *failure* has the last reason.
    :param waiting: frames and messages that wait in memory for the disk.
    :param bytes: bytes of the written frames' pixels.
    :param failure: why the recording ended or frames were refused; else empty.
    """

    recorded: int
    messages: int
    dropped: int
    refused: int
    waiting: int
    bytes: int  # noqa: A003
    files: tuple[str, ...]
    failure: str


@dataclass
class _Item:
    """
    A message that waits for the disk.

    :param copy: for a frame, the recorder's own memory with the pixels, which is reused later.
    """

    topic: Topic
    log_ns: int
    publish_ns: int
    sequence: int
    parts: tuple[Bytes, ...]
    copy: bytearray | None = None
    latched: bool = False


def _keep(kept: deque[T], newest: T, size: Callable[[T], int]) -> None:
    """Append a latched message to those of its topic, and drop what needs too much memory."""
    kept.append(newest)
    while len(kept) > 1 and sum(map(size, kept)) > _KEPT_BYTES:
        kept.popleft()


@dataclass
class _Part:
    """The file that is being written."""

    path: Path
    output: Any
    writer: McapWriter
    frames: Topic | None = None
    channels: dict[Topic, int] = field(default_factory=dict)


class _Syncing:
    """
    Runs a thread that syncs written data to the disk and closes the files that are complete.

    :param look: called at each sync; returns why the recording must end, or an empty text.
    :param tell: called once with the error that ends the recording. The thread calls *look* and
        *tell*.
    """

    def __init__(self, look: Callable[[], str], tell: Callable[[Exception], object]) -> None:
        self._look = look
        self._tell = tell
        self._open: Any = None
        self._new: Path | None = None
        self._ready: deque[tuple[Any, Path]] = deque()
        self._ending = False
        self._turn = threading.Event()
        self._thread = threading.Thread(target=self._run, name='recorder sync', daemon=True)
        self._thread.start()

    def begin(self, output: Any, folder: Path) -> None:
        """
        Let the thread sync a new file repeatedly.

        The thread syncs *folder* once, because the folder contains the new file's name.
        """
        self._new, self._open = folder, output
        self._turn.set()

    def finish(self, output: Any, metadata: Path) -> None:
        """Let the thread sync a complete file and its ``metadata.yaml``, and close the file."""
        self._open = None
        self._ready.append((output, metadata))
        self._turn.set()

    def _run(self) -> None:
        told = False
        while not (self._ending and not self._ready):
            self._turn.wait(_SYNC_S if self._open is not None else None)
            self._turn.clear()
            try:
                output = self._open
                if output is not None:
                    new, self._new = self._new, None
                    os.fdatasync(output.fileno())
                    if new is not None:
                        sync_folder(new)
                while self._ready:
                    output, metadata = self._ready.popleft()
                    with contextlib.closing(output):
                        os.fsync(output.fileno())
                    sync_whole(metadata)
                if self._open is not None and (shortage := self._look()):
                    raise RecordingError(shortage)
            except Exception as error:  # an uncaught error would end the thread silently
                if not told:
                    told = True
                    self._tell(error)

    def end(self) -> None:
        """Let the thread end when everything is on the disk; don't wait for the thread."""
        self._ending = True
        self._turn.set()

    def join(self, patience_s: float) -> None:
        """
        Wait for the thread's end, at most *patience_s* seconds.

        Data that the thread hasn't synced by then is written by the kernel later.
        """
        self._thread.join(patience_s)


_NEXT_STEP = "set parameter 'path' to another folder"


def check_folder(folder: Path) -> None:
    """
    Make the folder for a recording if it is missing.

    :raises ConfigError: the folder can't be made or written to, a file has this name, or the
        name ends in ``.mcap``.
    """
    if folder.suffix == SUFFIX:
        raise ConfigError(f"a recording is a folder; leave {SUFFIX} out of the name '{folder}'")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigError(f"'{folder}' is a file; {_NEXT_STEP}") from None
    except OSError as error:
        problem = f"folder '{folder}' can't be made: {error.strerror}"
        raise ConfigError(f'{problem}; {_NEXT_STEP}') from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"folder '{folder}' can't be written to; {_NEXT_STEP}")


class Recorder:
    """
    Writes a recording to a folder; the end of a ``with`` block calls :meth:`close`.

    If the folder holds a recording already, the recorder finishes that recording's unfinished
    files, and adds new files to it.

    :param ledger: counts each copy of a frame, for the reason ``record``.
    :param open_output: opens a new file; tests pass their own function.
    :raises ConfigError: the path is no folder, the folder can't be written, or another recorder
        writes to it.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        ledger: CopyLedger,
        limits: Limits = Limits(),
        open_output: Callable[[Path], Any] | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._limits = limits
        self._ledger = ledger
        self._open_output = open_output or _open_new
        self._finished: list[tuple[str, Contents]] = []
        self.notices = self._begin()
        self._part: _Part | None = None
        self._full: queue.SimpleQueue[_Item | Exception | None] = queue.SimpleQueue()
        self._spare: deque[bytearray] = deque()
        self._lock = threading.Lock()
        self._format: RecordedFormat | None = None
        self._frame_topic: Topic | None = None
        self._allocated = self._taken = 0
        self._recorded = self._messages = self._dropped = self._refused = 0
        self._waiting = self._bytes = self._written = 0
        self._last_ns = 0
        self._latched: dict[Topic, deque[_Item]] = {}
        self._files: list[str] = []
        self._failure = ''
        self._ended = self._given_up = self._closing = False
        self._syncing = _Syncing(self._shortage, self._full.put)
        self._thread = threading.Thread(target=self._run, name='recorder', daemon=True)
        self._thread.start()

    def _begin(self) -> list[str]:
        """Make the folder, or repair the recording in it; return notices for the user."""
        folder = self._folder
        check_folder(folder)
        self._finished, done = finish_recording(folder)
        if (folder / METADATA).exists() and not self._finished:
            raise ConfigError(f"'{folder}' has a recording of another kind; choose another path")
        if self._finished:
            done.append(f"'{folder}' has {len(self._finished)} files; new files are added to them")
        if shortage := self._shortage():
            raise ConfigError(shortage)
        self._folder_lock = OwnedFd.open(str(folder), os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._folder_lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._folder_lock.close()
            raise ConfigError(
                f"another recorder writes to '{folder}'; end it, or {_NEXT_STEP}"
            ) from None
        except OSError:  # a file system without locks
            pass
        return done

    def _shortage(self) -> str:
        """Return a sentence if the disk has too little room to continue; else an empty text."""
        if not self._limits.floor_bytes:
            return ''
        found = os.statvfs(self._folder)
        free = found.f_bavail * found.f_frsize
        if free >= self._limits.floor_bytes:
            return ''
        floor = self._limits.floor_bytes // MIB
        return f"'{self._folder}' has {free // MIB} MiB free, less than 'disk_floor' ({floor} MiB)"

    def put(self, frame: Frame, topic: str) -> bool:
        """
        Record a copy of *frame*, which the caller still owns.

        This method never waits for the disk. Only one thread may call it.

        :returns: whether the frame was taken. If not, it is counted as dropped or refused, except
            after the end of the recording.
        """
        data = frame.data
        if data.layout.modifier != LINEAR:
            return self._refuse(
                f'{data.layout.describe()} can not be recorded: only LINEAR frames have rows '
                'that the CPU can read'
            )
        form = RecordedFormat(data.layout, data.colorimetry)
        if form != self._format or self._frame_topic is None:
            self._format, self._frame_topic = form, form.topic(topic)
        content = None if self._ended else self._buffer(self._format.frame_bytes)
        if content is None:
            with self._lock:
                self._dropped += not self._ended
            return False
        try:
            parts = self._format.message_head(data.header), content
            with frame.map() as sources:
                for source, target in zip(
                    sources, views(self._format.tight, content), strict=True
                ):
                    np.copyto(target, source)
        except ZcError as error:  # the pool revoked the lease, or a device is stuck
            self._spare.append(content)
            return self._refuse(str(error))
        self._ledger.book(REASON, len(content))
        stamp_ns, now_ns = data.header.stamp_ns, time.time_ns()
        self._take(_Item(self._frame_topic, now_ns, stamp_ns, data.sequence, parts, content))
        return True

    def put_message(
        self, topic: Topic, content: bytes, log_ns: int, *, latched: bool = False
    ) -> bool:
        """
        Record a serialised message; any thread may call this.

        :param latched: whether each new file begins with the topic's last messages.
        :returns: whether the message was taken. If not, it is counted as dropped, except after
            the end of the recording.
        """
        with self._lock:
            fits = not self._ended and self._taken + len(content) <= self._limits.buffer_bytes
            self._dropped += not fits and not self._ended
            self._taken += len(content) if fits else 0
        if fits:
            self._take(_Item(topic, log_ns, log_ns, 0, (content,), latched=latched))
        return fits

    def _refuse(self, problem: str) -> bool:
        self._refused += 1
        self._failure = problem
        return False

    def _take(self, item: _Item) -> None:
        with self._lock:
            self._waiting += 1
        self._full.put(item)

    def _buffer(self, size: int) -> bytearray | None:
        """Return memory for a frame, reused or new; ``None``: the limit of memory is reached."""
        while self._spare:
            content = self._spare.popleft()
            if len(content) == size:
                return content
            with self._lock:
                self._allocated -= len(content)
        with self._lock:
            if self._allocated + size > max(self._limits.buffer_bytes, 2 * size):
                return None
            self._allocated += size
        return bytearray(size)

    def _run(self) -> None:
        flush_s = time.monotonic()
        while True:
            item = None
            waits = self._part is not None and self._part.writer.waits
            with contextlib.suppress(queue.Empty):
                item = self._full.get(timeout=_FLUSH_S if waits else None)
                if item is None:
                    break
            try:
                if isinstance(item, Exception):
                    self._end(item)
                elif item is not None and not self._ended:
                    self._write(item)
                now = time.monotonic()
                if self._part is not None and now - flush_s >= _FLUSH_S:
                    self._part.writer.flush()
                    flush_s = now
            except Exception as error:  # an uncaught error would end the thread silently
                self._end(error)
            if isinstance(item, _Item):
                self._give_back(item)
        self._close_part()
        self._syncing.end()

    def _write(self, item: _Item) -> None:
        part = self._part
        if part is not None and self._is_full(part, item):
            self._close_part()
            part = None
        if part is None:
            part = self._part = self._next_part()
            for earlier in [each for items in self._latched.values() for each in items]:
                self._add(part, replace(earlier, log_ns=item.log_ns))
        self._add(part, item)
        if item.latched:
            kept = self._latched.setdefault(item.topic, deque(maxlen=_KEPT))
            _keep(kept, item, lambda each: len(each.parts[0]))
        if item.copy is None:
            self._messages += 1
            return
        part.writer.flush()
        part.frames = item.topic
        self._recorded += 1
        self._bytes += len(item.copy)

    def _add(self, part: _Part, item: _Item) -> None:
        channel = part.channels.get(item.topic)
        if channel is None:
            channel = part.channels[item.topic] = part.writer.channel(item.topic)
        # Give no message an earlier time than the message before it: some readers ignore the index
        # and expect messages in order of time.
        self._last_ns = max(self._last_ns, item.log_ns)
        # MCAP has no times before 1970. The stamp in the message's header stays as it is.
        publish_ns = max(0, item.publish_ns)
        part.writer.add(channel, self._last_ns, publish_ns, item.sequence, *item.parts)

    def _is_full(self, part: _Part, item: _Item) -> bool:
        """
        Tell whether the message *item* needs a new file.

        It does if *part* is full, or if *item* is a frame and *part* has frames of another format
        (a frame's :class:`Topic` contains the format).
        """
        size, limits = part.writer.size, self._limits
        if item.copy is not None and part.frames not in (None, item.topic):
            return True
        began_ns = part.writer.contents.first_ns
        return 0 < limits.split_bytes <= size or (
            began_ns > 0 and 0 < limits.split_ns <= item.log_ns - began_ns
        )

    def _give_back(self, item: _Item) -> None:
        with self._lock:
            self._waiting -= 1
            if item.copy is None:
                self._taken -= len(item.parts[0])
        if item.copy is not None:
            self._spare.append(item.copy)

    def _on_written(self) -> None:
        self._written += 1

    def _next_part(self) -> _Part:
        number = max(map(number_of, parts_in(self._folder)), default=-1) + 1
        path = self._folder / f'{self._folder.name}_{number}{SUFFIX}'
        output = self._open_output(path)
        try:
            writer = McapWriter(output, self._on_written)
        except BaseException:
            output.close()
            raise
        self._files.append(str(path))
        self._syncing.begin(output, self._folder)
        return _Part(path, output, writer)

    def _close_part(self) -> None:
        """Finish the file that is being written, and list it in ``metadata.yaml``."""
        part, self._part = self._part, None
        if part is None:
            return
        name, metadata = part.path.name, self._folder / METADATA
        try:
            if not self._ended:
                part.writer.flush()
            part.writer.finish(describe_alone(name, part.writer.contents))
            self._finished.append((name, part.writer.contents))
            write_whole(metadata, describe(self._finished), sync=False)
        except OSError as error:
            if not self._ended:
                self._end(error)
            self._failure += (
                f"; if there is room, zc_record --repair '{self._folder}' finishes the file"
            )
        finally:
            self._syncing.finish(part.output, metadata)

    def _end(self, error: Exception) -> None:
        """End the recording because of an error, such as a full disk; finish the current file."""
        if self._ended:
            return
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self._failure = f"recording to '{self._folder}' has ended: {reason}"
        self._ended = True
        self._close_part()

    @property
    def failed(self) -> bool:
        """Whether the recording ended by an error, or could not be finished properly."""
        return self._ended or self._given_up

    def statistics(self) -> RecorderStatistics:
        """Return the counters; any thread may call this."""
        return RecorderStatistics(
            self._recorded, self._messages, self._dropped, self._refused, self._waiting,
            self._bytes, tuple(self._files), self._failure,
        )  # fmt: skip

    def close(self, stuck_s: float = STUCK_S) -> bool:
        """
        Write all waiting data and the file's end, which may take long on a slow disk. Idempotent.

        :param stuck_s: if the disk accepts nothing for this many seconds, stop waiting and set
            :attr:`failed`. The writing thread then ends when the disk answers. The next recorder
            in this folder finishes the file.
        :returns: whether the writing thread has ended.
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
        ended = not self._thread.is_alive()
        if ended:
            self._syncing.join(_SYNCED_S)
        self._folder_lock.close()
        return ended

    def _give_up(self, stuck_s: float) -> None:
        with self._lock:
            waiting = self._waiting
        self._given_up = True
        left = f'{waiting} messages' if waiting else "the file's end"
        self._failure = (
            f"'{self._folder}': its disk has accepted nothing for {stuck_s:g} s; "
            f'{left} could not be written'
        )

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_new(path: Path) -> Any:
    """Open a new file, and lock it against :func:`finish_recording` in other processes."""
    output = open(path, 'xb', buffering=0)  # noqa: SIM115 - closed with its part
    fcntl.flock(output.fileno(), fcntl.LOCK_EX)
    return output


VIDEO = 'foxglove_msgs/msg/CompressedVideo'
# write_event reports a video as ended if its last picture is older than this.
_SILENT_NS = 3_000_000_000
# A start code and the type of a slice at which decoding can begin: in H.264 type 5 (IDR), in H.265
# types 16 to 21 (BLA, IDR, CRA).
_KEY_H264 = re.compile(rb'\x00\x00\x01[\x05\x25\x45\x65]')
_KEY_H265 = re.compile(rb'\x00\x00\x01[\x20-\x2b]')


def is_key_frame(content: bytes) -> bool:
    """Tell whether a serialised ``CompressedVideo`` (H.264, H.265) has a key frame."""
    try:
        (length,) = struct.unpack_from('<I', content, 12)
        at = 16 + length + -length % 4
        (size,) = struct.unpack_from('<I', content, at)
    except struct.error:
        return False
    start = at + 4
    end = start + size
    data = memoryview(content)[start:end]
    key = _KEY_H265 if b'h265' in content[end:] else _KEY_H264
    return key.search(data) is not None


class Kept(NamedTuple):
    """
    A message of the black box.

    :param log_ns: time of arrival. A latched message may have arrived long before the other
        messages. It is written with the time of the earliest message that isn't latched.
    """

    topic: Topic
    content: bytes
    log_ns: int
    is_key: bool


class BlackBox:
    """
    Keeps the messages of the last seconds in memory; any thread may use it.

    While no video arrives, only latched messages are kept. Pass *log_ns* and *now_ns* of a clock
    that nobody sets, such as CLOCK_MONOTONIC: if the clock stepped, messages would become too old
    at a wrong time.

    :param seconds: how long a message is kept; longer if a video needs it to be decoded.
    :param most_bytes: limit of the memory for messages that aren't latched; the oldest are
        dropped.
    """

    def __init__(self, seconds: float, most_bytes: int) -> None:
        self._window_ns = round(seconds * 1e9)
        self._most_bytes = most_bytes
        self._kept: deque[Kept] = deque()
        self._latched: dict[Topic, deque[bytes]] = {}
        self._videos: dict[str, int] = {}
        self._keys: dict[str, deque[int]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def take(self, topic: Topic, content: bytes, log_ns: int, latched: bool = False) -> None:
        """Keep a serialised message that arrived at *log_ns*."""
        is_video = topic.msgtype == VIDEO
        is_key = is_video and is_key_frame(content)
        with self._lock:
            if latched:
                _keep(self._latched.setdefault(topic, deque(maxlen=_KEPT)), content, len)
                return
            if is_video:
                self._videos[topic.name] = log_ns
                self._keys.setdefault(topic.name, deque()).extend([log_ns] * is_key)
            self._forget(log_ns)
            if not self._videos:
                return
            self._kept.append(Kept(topic, content, log_ns, is_key))
            self._bytes += len(content)

    def _forget(self, now_ns: int) -> None:
        """
        Drop the messages that are too old, and the oldest messages beyond the memory limit.

        Messages are too old if they came more than *seconds* (of :class:`BlackBox`) before
        *now_ns*. But a video can be decoded only from a key frame on. So if key frames of a video
        are too old, the newest of these key frames is kept, and all messages after it are kept.
        """
        oldest_ns = begin_ns = now_ns - self._window_ns
        self._videos = {name: at for name, at in self._videos.items() if at >= begin_ns}
        self._keys = {name: self._keys[name] for name in self._videos}
        for keys in self._keys.values():
            while len(keys) > 1 and keys[1] <= begin_ns:
                keys.popleft()
            oldest_ns = min(oldest_ns, keys[0]) if keys else oldest_ns
        while self._kept and (
            not self._videos or self._kept[0].log_ns < oldest_ns or self._bytes > self._most_bytes
        ):
            self._bytes -= len(self._kept.popleft().content)

    def held(self, now_ns: int) -> tuple[float, int, tuple[str, ...]]:
        """Return the seconds and bytes that are kept, and the names of the videos' topics."""
        with self._lock:
            self._forget(now_ns)
            began_ns = self._kept[0].log_ns if self._kept else now_ns
            kept_ns = min(self._window_ns, now_ns - began_ns)
            return kept_ns / 1e9, self._bytes, tuple(sorted(self._videos))

    def last(self, now_ns: int) -> list[Kept]:
        """
        Return the messages of the last seconds, for :func:`write_event`.

        Each video begins with a key frame. The list is empty if no video has a key frame.
        """
        with self._lock:
            self._forget(now_ns)
            kept, videos = list(self._kept), self._videos
            latched = [(t, content) for t, all_of in self._latched.items() for content in all_of]
        begin_ns = now_ns - self._window_ns
        starts: dict[str, int] = {}
        for each in kept:
            name = each.topic.name
            if each.is_key and name in videos and (each.log_ns <= begin_ns or name not in starts):
                starts[name] = each.log_ns
        if not starts:
            return []
        chosen = [
            each
            for each in kept
            if each.log_ns >= starts.get(each.topic.name, begin_ns)
            and (each.topic.name in starts or each.topic.msgtype != VIDEO)
        ]
        first_ns = min(each.log_ns for each in chosen)
        return [*(Kept(*each, first_ns, False) for each in latched), *chosen]


def write_event(chosen: list[Kept], folder: Path, now_ns: int, floor_bytes: int = 0) -> str:
    """
    Write messages of the black box as a new recording in *folder*; return a phrase for the user.

    :param chosen: what :meth:`BlackBox.last` returned, with times of the system clock.
    :param now_ns: the time of the event by the system clock.
    :param floor_bytes: number of bytes to leave free on the disk.
    :raises RecordingError: there is nothing to write, or the disk is full or gone.
    :raises ConfigError: the folder can't be written.
    """
    if not chosen:
        raise RecordingError('no key frame of a video has arrived; is an encoder running?')
    moment = datetime.fromtimestamp(now_ns / 1e9, timezone.utc)
    path = folder / f'{folder.name}_{moment:%Y_%m_%d-%H_%M_%S_%f}'
    size = sum(len(each.content) for each in chosen)
    limits = Limits(size + 1, 0, 0, floor_bytes)
    with Recorder(path, ledger=CopyLedger(), limits=limits) as recorder:
        for each in chosen:
            recorder.put_message(each.topic, each.content, each.log_ns)
    if recorder.failed:
        raise RecordingError(recorder.statistics().failure)
    seconds = (chosen[-1].log_ns - chosen[0].log_ns) / 1e9
    ends = {each.topic.name: each.log_ns for each in chosen if each.topic.msgtype == VIDEO}
    late = [
        f'; {name} ended {(now_ns - end) / 1e9:.1f} s before the event'
        for name, end in sorted(ends.items())
        if now_ns - end > _SILENT_NS
    ]
    return f"{len(chosen)} messages of {seconds:.1f} s in '{path}'{''.join(late)}"


PICTURE_SUFFIX = '.png'
_TRIES = 1000
# Compress little: more compression would take a second for a large picture, but save little room.
_PNG = (cv2.IMWRITE_PNG_COMPRESSION, 1)
Plane = NDArray[Any]


@dataclass(frozen=True)
class Snapshot:
    """
    A copy of a frame's pixels, with the frame's header and format.

    :param content: the pixels: the planes without padding, one after the other.
    """

    recording_format: RecordedFormat
    header: Header
    sequence: int
    content: bytearray

    @classmethod
    def of(cls, frame: Frame, ledger: CopyLedger) -> Snapshot:
        """
        Copy *frame*, which the caller still owns; the copy is counted under ``snapshot``.

        :raises FormatError: the frame isn't LINEAR, so the CPU can't read its rows.
        :raises ZcError: the frame can't be mapped.
        """
        data = frame.data
        if data.layout.modifier != LINEAR:
            raise FormatError(
                f'{data.layout.describe()} has no rows that the CPU can read; one consumer of '
                'these frames must ask for LINEAR'
            )
        found = RecordedFormat(data.layout, data.colorimetry)
        snapshot = cls(found, data.header, data.sequence, bytearray(found.frame_bytes))
        with frame.map() as sources:
            for source, target in zip(sources, snapshot.planes(), strict=True):
                np.copyto(target, source)
        ledger.book('snapshot', found.frame_bytes)
        return snapshot

    def planes(self) -> list[Plane]:
        """Return a view of the pixels of each plane."""
        return views(self.recording_format.tight, self.content)

    def picture(self) -> NDArray[np.uint8] | None:
        """
        Return the picture as B G R (height, width, 3); of a grey frame, (height, width).

        ``None``: this package can't convert the frame's format or colorimetry.
        """
        layout, colorimetry = self.recording_format.layout, self.recording_format.colorimetry
        try:
            picture = ToPicture(
                layout.fourcc, layout.width, layout.height, colorimetry, bgr=True
            ).convert(self.planes())
        except FormatError:
            return None
        return picture[..., 0] if layout.format.is_grey else picture

    def _recording(self) -> bytes:
        """Return an MCAP file's bytes: a recording of this frame on topic ``image_raw``."""
        output = io.BytesIO()
        writer = McapWriter(output)
        channel = writer.channel(self.recording_format.topic('image_raw'))
        head = self.recording_format.message_head(self.header)
        at_ns = max(0, self.header.stamp_ns)  # MCAP has no times before 1970
        writer.add(channel, at_ns, at_ns, self.sequence, head, self.content)
        writer.flush()
        writer.finish(describe_alone(f'snapshot{SUFFIX}', writer.contents))
        return output.getvalue()

    def _files(self) -> Mapping[str, bytes]:
        """Return files' contents by suffix: the recording, and a picture if one can be made."""
        files = {SUFFIX: self._recording()}
        picture = self.picture()
        if picture is not None:
            done, encoded = cv2.imencode(PICTURE_SUFFIX, picture, _PNG)
            if done:
                files[PICTURE_SUFFIX] = encoded.tobytes()
        return files

    def write(self, folder: Path, prefix: str) -> tuple[Path, ...]:
        """
        Write the files ``PREFIX_SECONDS_NANOSECONDS.SUFFIX``, all or none; return their paths.

        If a file has that name already, ``_2`` and so on is added.

        :raises OSError: the files can't be written to the folder or disk.
        """
        seconds, nanoseconds = divmod(self.header.stamp_ns, 1_000_000_000)
        files = self._files()
        folder.mkdir(parents=True, exist_ok=True)
        base = f'{prefix}_{seconds}_{nanoseconds:09d}'
        for number in range(1, _TRIES + 1):
            with contextlib.suppress(FileExistsError):
                return _write_new(folder / (base if number == 1 else f'{base}_{number}'), files)
        raise FileExistsError(f"'{folder / base}' and {_TRIES - 1} names like it are taken")

    def describe(self) -> str:
        """Return a phrase for messages: the frame's number, size and format."""
        layout = self.recording_format.layout
        return (
            f'frame {self.sequence}, {layout.width}x{layout.height} {fourcc_name(layout.fourcc)}'
        )


def _write_new(base: Path, files: Mapping[str, bytes]) -> tuple[Path, ...]:
    written: list[Path] = []
    try:
        for suffix, content in files.items():
            path = Path(f'{base}{suffix}')
            with path.open('xb') as file:
                written.append(path)
                file.write(content)
    except OSError:
        for path in written:
            with contextlib.suppress(OSError):
                path.unlink()
        raise
    return tuple(written)
