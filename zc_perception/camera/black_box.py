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
The last seconds of a robot's topics in memory, and on disk when somebody asks for them.

What is kept is compressed video (``foxglove_msgs/msg/CompressedVideo``) and what else its topics
say; raw frames would be too much. A picture of a video can be read from a key frame on, so what is
written begins with one. Without video nothing is kept but latched messages.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime, timezone
from pathlib import Path
import re
import struct
import threading
from typing import NamedTuple

from zc_perception.camera.mcap_file import Topic
from zc_perception.camera.recording import Limits, Recorder
from zc_perception.errors import RecordingError
from zc_perception.memory.ledger import CopyLedger

VIDEO = 'foxglove_msgs/msg/CompressedVideo'
# A video that is silent for so long has ended.
_SILENT_NS = 3_000_000_000
_KEPT = 32
# A slice of a picture at which decoding can begin, behind a start code: H.264's type 5 (IDR),
# H.265's types 16 to 21 (BLA, IDR, CRA).
_KEY_H264 = re.compile(rb'\x00\x00\x01[\x05\x25\x45\x65]')
_KEY_H265 = re.compile(rb'\x00\x00\x01[\x20-\x2b]')


def is_key_frame(content: bytes) -> bool:
    """Tell whether a serialised ``CompressedVideo`` is a picture that needs no other one."""
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
    """A message; latched ones have the time of the first other one."""

    topic: Topic
    content: bytes
    log_ns: int
    is_key: bool


class BlackBox:
    """
    Keeps messages; any thread.

    :param seconds: how much time is written.
    :param most_bytes: most memory for messages; the oldest go first.
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
        """Keep a message that came at that time."""
        is_video = topic.msgtype == VIDEO
        is_key = is_video and is_key_frame(content)
        with self._lock:
            if latched:
                self._latched.setdefault(topic, deque(maxlen=_KEPT)).append(content)
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
        Forget what no video needs, or is too much.

        A video needs all from its last key frame before the window on. Without a video in the
        window, nothing is kept.
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
        """Return seconds and bytes that are kept, and the topics of video."""
        with self._lock:
            self._forget(now_ns)
            began_ns = self._kept[0].log_ns if self._kept else now_ns
            kept_ns = min(self._window_ns, now_ns - began_ns)
            return kept_ns / 1e9, self._bytes, tuple(sorted(self._videos))

    def last(self, now_ns: int) -> list[Kept]:
        """Return what is to be written: of each video from a key frame on."""
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
    Write it as a recording in *folder*, and return what was written, in words.

    :param chosen: :meth:`BlackBox.last` at *now_ns*.
    :param floor_bytes: the disk keeps that much free.
    :raises RecordingError: there is nothing, or the disk is full or gone.
    :raises ConfigError: the folder can't be written.
    """
    if not chosen:
        raise RecordingError('no picture of a video came; is an encoder running?')
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
        f'; {name} ended {(now_ns - end) / 1e9:.1f} s before'
        for name, end in sorted(ends.items())
        if now_ns - end > _SILENT_NS
    ]
    return f"{len(chosen)} messages of {seconds:.1f} s in '{path}'{''.join(late)}"
