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
Drop objects that come twice when a subscription changes between direct links and messages.

A subscription takes objects one way at a time: directly (within the process, or by shared memory),
or from messages. The same object may come both ways in two cases: for 2 s after a change; and
while a subscription that takes objects directly also reads messages, to find out whether a
publisher without a direct link sends messages. The object is recognised by its *key*, (frame_id,
stamp). Stamp 0 identifies no object: while the subscription takes messages, a message with stamp 0
is never dropped.

- **From direct to messages**: a camera's messages may arrive later than the objects that come
  directly. A message is dropped if its object came directly. A message is dropped, too, if it is
  older than the newest object of the same frame_id that came directly, until the message of that
  newest object arrives. After that message, messages with any stamp are taken, because the
  camera's time may jump back.
- **From messages to direct**: an object that comes directly is dropped if its message was taken.
  After the change, messages of a frame_id are taken until the first object of this frame_id comes
  directly.
"""

from __future__ import annotations

from collections import deque
import threading
import time
from typing import Any

Key = tuple[str, int]
REMEMBERED = 256
#: For this many seconds after a subscription changes between direct links and messages, the same
#: object may come both ways.
BOTH_WAYS_S = 2.0


class Changeover:
    """
    Remember which objects came directly, and which by message. Any thread may call the methods.

    The thread that delivers an object directly appends the object's ``header`` (``frame_id``,
    ``stamp_ns``) to :attr:`direct`, or to :attr:`ignored` while the subscription takes messages.
    An append to these deques costs almost nothing; the methods that check a message empty them.

    :param remembered: number of objects to remember for each way; must be larger than the number
        of messages that can wait in the reader of messages (the ROS subscription).
    :param latched: whether a new reader of messages may get the same messages again.
    """

    def __init__(self, remembered: int = REMEMBERED, latched: bool = False) -> None:
        self.direct: deque[Any] = deque(maxlen=remembered)
        self.ignored: deque[Any] = deque(maxlen=remembered)
        self._remembered = remembered
        self._latched = latched
        self._lock = threading.Lock()
        # For each key, number of objects that came directly and whose messages haven't come yet;
        # oldest first.
        self._came: dict[Key, int] = {}
        #: For each key, number of messages that the subscription has delivered and whose objects
        #: haven't come directly yet. While this table is empty, each object that comes directly is
        #: new. Other classes read this table, but don't change it.
        self.taken: dict[Key, int] = {}
        # For each frame_id, stamp of the newest object that came directly since the change to
        # direct links.
        self._newest: dict[str, int] = {}
        self._newest_ignored: dict[str, int] = {}
        # The frame_ids whose messages come later than the objects: no message with the frame_id
        # has had a stamp as late as the one in _newest.
        self._behind: set[str] = set()
        self._until = 0.0
        self.duplicates = 0
        self.late = 0

    def changed(self, by_message: bool) -> None:
        """Record that the subscription changes to messages (*by_message*) or to direct links."""
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
        """Say whether an object that came directly is new; ``False``: its message was taken."""
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
        """Say whether object *key* came directly; if so, count its message as a duplicate."""
        with self._lock:
            self._collect()
            found = self._came_directly(key)
            self.duplicates += found
            return found

    def sends_directly(self, frame_id: str) -> bool:
        """Say whether objects with *frame_id* came directly since the change to direct links."""
        with self._lock:
            self._collect()
            return frame_id in self._newest

    def accept_message(self, key: Key) -> bool:
        """Say whether a message is new; called for each message while objects come as messages."""
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
        """Say whether to take a message that comes after a change to direct links."""
        with self._lock:
            self._collect()
            if time.monotonic() >= self._until or key[0] in self._newest:
                return False
            if key[1]:
                self._remember(self.taken, key)
            return True

    def is_level(self, key: Key) -> bool:
        """
        Say whether *key* is the key of its frame_id's newest object in :attr:`ignored`.

        If a message has this key, all earlier messages of the frame_id have arrived.
        """
        with self._lock:
            while self.ignored:
                header = self.ignored.popleft()
                self._note(self._newest_ignored, header)
            return self._newest_ignored.get(key[0]) == key[1]

    def _collect(self) -> None:
        """Move the headers of :attr:`direct` to _came and _newest; the caller holds the lock."""
        while self.direct:
            header = self.direct.popleft()
            self._remember(self._came, (header.frame_id, header.stamp_ns))
            if self._note(self._newest, header):
                self._behind.add(header.frame_id)

    def _note(self, newest: dict[str, int], header: Any) -> bool:
        """Store the header's stamp for its frame_id; return ``False`` if *newest* is full."""
        # Limit the size of *newest*, because other programs may send any number of frame_ids.
        room = header.frame_id in newest or len(newest) < self._remembered
        if room:
            newest[header.frame_id] = header.stamp_ns
        return room

    def _remember(self, keys: dict[Key, int], key: Key) -> None:
        keys[key] = keys.pop(key, 0) + 1  # pop() first, so that the key moves to the end
        if len(keys) > self._remembered:
            del keys[next(iter(keys))]

    def _came_directly(self, key: Key) -> bool:
        """
        Say whether an object with *key* came directly. The lock is held.

        Each object gives ``True`` for one call only, unless objects are latched.
        """
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
    """Return (frame_id, stamp) of a message; ``None`` if it has no ``std_msgs/Header``."""
    header = getattr(message, 'header', None)
    stamp = getattr(header, 'stamp', None)
    if header is None or stamp is None:
        return None
    return header.frame_id, stamp.sec * 1_000_000_000 + stamp.nanosec
