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
Tell objects that came directly from their messages, around a change between the two ways.

A subscription reads one way at a time: directly, or by messages. The same object may come both
ways in two cases: while messages are read only to see which publisher sends them, and for 2 s
after a change. It is recognised by its *key*, (frame_id, stamp). A stamp of 0 is no key: such a
message always passes after a change.

- **From direct to messages**: the messages of a camera may be behind what came directly. So those
  that came directly, and those before them, are dropped until the messages have caught up with the
  newest object of that frame_id. What comes then passes, whatever its stamp: time may jump back.
- **From messages to direct**: an object is dropped whose message was taken. A message is taken
  until the first object of its frame_id comes directly.
"""

from __future__ import annotations

from collections import deque
import threading
import time
from typing import Any

Key = tuple[str, int]
REMEMBERED = 256
#: For this time after a change the same object may come both ways.
BOTH_WAYS_S = 2.0


class Changeover:
    """
    What came which way.

    Any thread may call it.

    The thread that delivers an object directly appends its ``header`` (``frame_id``, ``stamp_ns``)
    to
    :attr:`direct`, or to :attr:`ignored` if the subscription reads messages. These are deques, so
    that an object costs almost nothing; the next question about a message empties them.

    :param remembered: number of objects of each way; more than messages can be waiting in a
        reader.
    :param latched: messages may come again with each new reader.
    """

    def __init__(self, remembered: int = REMEMBERED, latched: bool = False) -> None:
        self.direct: deque[Any] = deque(maxlen=remembered)
        self.ignored: deque[Any] = deque(maxlen=remembered)
        self._remembered = remembered
        self._latched = latched
        self._lock = threading.Lock()
        # For each key, how many came on this way and not yet on the other one; the oldest first.
        self._came: dict[Key, int] = {}
        #: While it is empty, each object that comes directly is new; to be read only.
        self.taken: dict[Key, int] = {}
        # The newest stamp of each frame_id that came directly since the last change to that.
        self._newest: dict[str, int] = {}
        self._newest_ignored: dict[str, int] = {}
        # The frame_ids whose messages are still older than the newest stamp.
        self._behind: set[str] = set()
        self._until = 0.0
        self.duplicates = 0
        self.late = 0

    def changed(self, by_message: bool) -> None:
        """Note that the subscription reads the other way from now on."""
        with self._lock:
            self._collect()
            self._until = time.monotonic() + BOTH_WAYS_S
            if by_message:
                self._newest_ignored.clear()
                self.ignored.clear()
            else:
                self._newest.clear()
                self._behind.clear()
            if self._latched:
                self._came |= self.taken
            elif by_message:
                self.taken.clear()
            else:
                self._came.clear()

    def accept_direct(self, header: Any) -> bool:
        """Say whether an object that came directly is new; ``False`` if its message was taken."""
        if self.taken:
            with self._lock:
                if time.monotonic() >= self._until:
                    self.taken.clear()
                elif self._match(self.taken, (header.frame_id, header.stamp_ns)):
                    self.duplicates += 1
                    return False
        self.direct.append(header)
        return True

    def came_directly(self, key: Key) -> bool:
        """Say whether a message is that of an object that came directly; each object has one."""
        with self._lock:
            self._collect()
            found = self._came_directly(key)
            self.duplicates += found
            return found

    def sends_directly(self, frame_id: str) -> bool:
        """Say whether objects of that frame_id come directly."""
        with self._lock:
            self._collect()
            return frame_id in self._newest

    def accept_message(self, key: Key) -> bool:
        """Say whether a message is new, while messages are read."""
        with self._lock:
            if key[1] and time.monotonic() < self._until:
                self._collect()
                behind = key[0] in self._behind and key[1] < self._newest[key[0]]
                if self._came_directly(key):
                    self.duplicates += 1
                    return False
                if behind:
                    self.late += 1
                    return False
            if key[1]:
                self._remember(self.taken, key)
            return True

    def accept_last_message(self, key: Key) -> bool:
        """Say whether to take a message that comes after the change to direct."""
        with self._lock:
            self._collect()
            if time.monotonic() >= self._until or key[0] in self._newest:
                return False
            if key[1]:
                self._remember(self.taken, key)
            return True

    def is_level(self, key: Key) -> bool:
        """
        Say whether a message is that of the newest object that was ignored.

        If so, nothing is on the way.
        """
        with self._lock:
            while self.ignored:
                header = self.ignored.popleft()
                self._note(self._newest_ignored, header)
            return self._newest_ignored.get(key[0]) == key[1]

    def _collect(self) -> None:
        """Take note of the objects that came directly; called with the lock held."""
        while self.direct:
            header = self.direct.popleft()
            self._remember(self._came, (header.frame_id, header.stamp_ns))
            if self._note(self._newest, header):
                self._behind.add(header.frame_id)

    def _note(self, newest: dict[str, int], header: Any) -> bool:
        """
        Note the newest header of a frame_id, with a limit on the number of frame_ids.

        Other programs' frame_ids take no more room than all else.
        """
        room = header.frame_id in newest or len(newest) < self._remembered
        if room:
            newest[header.frame_id] = header.stamp_ns
        return room

    def _remember(self, keys: dict[Key, int], key: Key) -> None:
        keys[key] = keys.pop(key, 0) + 1  # moved to the end, as the newest
        if len(keys) > self._remembered:
            del keys[next(iter(keys))]

    def _came_directly(self, key: Key) -> bool:
        """Look for a key; called with the lock held."""
        if key[1] >= self._newest.get(key[0], key[1]):
            self._behind.discard(key[0])
        return self._match(self._came, key)

    def _match(self, keys: dict[Key, int], key: Key) -> bool:
        count = keys.get(key, 0)
        if count and not self._latched:
            if count == 1:
                del keys[key]
            else:
                keys[key] = count - 1
        return count > 0


def message_key(message: Any) -> Key | None:
    """Return (frame_id, stamp) of a message with a ``std_msgs/Header``; ``None`` without one."""
    header = getattr(message, 'header', None)
    stamp = getattr(header, 'stamp', None)
    if header is None or stamp is None:
        return None
    return header.frame_id, stamp.sec * 1_000_000_000 + stamp.nanosec
