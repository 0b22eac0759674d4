"""Keeps a subscription that can be reached two ways from getting an object twice, or an old one after a new one.

rclpy names the publisher of a message only from 9.1.1 on, and a publisher that serves this subscription without a copy may also write
messages for others. So what has come copy-free is remembered by (frame_id, stamp), and its message is recognised by that. Other publishers
of the same frame_id lose nothing: their stamps are others.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from typing import Any

Key = tuple[str, int]
REMEMBERED = 256
# Messages of a publisher that has just been connected are on the way for so long at most; afterwards old stamps are somebody else's.
_LATE_S = 2.0


class DuplicateFilter:
    """Two sides: ``direct`` (in-process, shared memory) and ``message``. Thread-safe.

    Append to :attr:`direct` the ``header`` (``frame_id``, ``stamp_ns``) of what comes copy-free, whether or not it will be taken: a deque,
    so that it costs next to nothing for each object.

    :param remembered: objects of each side; more than messages can be waiting in a reader.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._lock = threading.Lock()
        self.direct: deque[Any] = deque(maxlen=remembered)
        self._message: OrderedDict[Key, None] = OrderedDict()
        self._remembered = remembered
        # The first stamp of each frame_id since a publisher was connected: its messages of before then are late.
        self._first: dict[str, int] = {}
        self._late_until = 0.0
        self.dropped = 0

    def direct_begins(self) -> None:
        """A publisher of another process was connected: what comes from it by message after its first object is late."""
        with self._lock:
            self._first.clear()
            self._late_until = time.monotonic() + _LATE_S

    def accept_direct(self, header: Any) -> bool:
        """Whether an object of another process is new; ``False``, and counted, when its message was taken before."""
        with self._lock:
            self.direct.append(header)
            if len(self._first) < self._remembered:
                # Time may go back, in simulation.
                self._first[header.frame_id] = min(header.stamp_ns, self._first.get(header.frame_id, header.stamp_ns))
            known = (header.frame_id, header.stamp_ns) in self._message
            self.dropped += known
            return not known

    def accept_message(self, frame_id: str, stamp_ns: int) -> bool:
        """Whether a message is new: not what came copy-free, and not from before its publisher was connected."""
        with self._lock:
            late = time.monotonic() < self._late_until and stamp_ns < self._first.get(frame_id, stamp_ns)
            old = late or any(
                header.stamp_ns == stamp_ns and header.frame_id == frame_id for header in tuple(self.direct)
            )
            if old:
                self.dropped += 1
            else:
                self._message[frame_id, stamp_ns] = None
                if len(self._message) > self._remembered:
                    self._message.popitem(last=False)
            return not old

    def forget_message(self, frame_id: str, stamp_ns: int) -> None:
        """A message that was accepted could not be taken: the same object may still come copy-free."""
        with self._lock:
            self._message.pop((frame_id, stamp_ns), None)

    def count(self) -> None:
        """Something else has recognised a duplicate."""
        with self._lock:
            self.dropped += 1


def message_identity(message: Any) -> Key | None:
    """(frame_id, stamp) of a message with a ``std_msgs/Header``; ``None`` without."""
    header = getattr(message, 'header', None)
    stamp = getattr(header, 'stamp', None)
    return None if header is None or stamp is None else (header.frame_id, stamp.sec * 1_000_000_000 + stamp.nanosec)
