"""What waits to be published for plain readers, in the order of the calls.

These are objects, which have to be converted first, and messages that came after such objects.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar('T')
# A message takes no time to convert, so those of a burst need not be left out.
_BURST = 16


class WaitingMessage(NamedTuple):
    """A message as bytes, because its owner may change it meanwhile."""

    content: bytes


class Outbox(Generic[T]):
    """A queue for one thread that publishes and one that takes. Putting never waits.

    When too many objects wait, the oldest one is left out, and so it is with messages. Neither
    takes the place of the other. What was left out is counted.

    :param depth: objects that may wait; ``None``: all.
    :param release: ends an object that is left out.
    """

    def __init__(self, depth: int | None, release: Callable[[T], object]) -> None:
        self._depth = depth
        self._release = release
        self._entries: deque[T | WaitingMessage] = deque()
        self._objects = 0
        self._taken = False
        self._closed = False
        self._lock = threading.Lock()
        # One for each entry: they wake a thread more quickly than a condition does.
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.dropped = 0

    @property
    def idle(self) -> bool:
        """Whether nothing waits, and what was taken is done."""
        with self._lock:
            return not self._entries and not self._taken

    def make_room(self) -> None:
        """Before an object is made for :meth:`put`: leave out the oldest one if there is no place.

        So its memory is free for the next one.
        """
        if self._depth is None or self._objects < self._depth:  # others only take objects out
            return
        with self._lock:
            full = self._objects >= self._depth
            left_out = self._leave_out(message=False) if full else None
        if left_out is not None:
            self._release(left_out)  # type: ignore[arg-type]

    def _leave_out(self, *, message: bool) -> T | WaitingMessage:
        """Lock held, and there is one: take the oldest of its kind out."""
        entries = self._entries
        place = next(
            n for n, entry in enumerate(entries) if isinstance(entry, WaitingMessage) is message
        )
        left_out = entries[place]
        del entries[place]
        self._objects -= not message
        self.dropped += 1
        with contextlib.suppress(queue.Empty):  # the other thread has it, and looks for an entry
            self._tokens.get_nowait()
        return left_out

    def put(self, item: T) -> None:
        """Take over an object and its lease. Call :meth:`make_room` before."""
        with self._lock:
            if not self._closed:
                self._entries.append(item)
                self._objects += 1
                self._tokens.put(None)
                return
        self._release(item)

    def put_message(self, message: WaitingMessage) -> None:
        """Queue a message."""
        with self._lock:
            if self._closed:
                return
            most = None if self._depth is None else max(self._depth, _BURST)
            if most is not None and len(self._entries) - self._objects >= most:
                self._leave_out(message=True)
            self._entries.append(message)
            self._tokens.put(None)

    def take(self, timeout_s: float) -> T | WaitingMessage | None:
        """The oldest entry; ``None``: there is none yet, or it is closed.

        Call :meth:`done` when it is published.
        """
        try:
            self._tokens.get(timeout=timeout_s)
        except queue.Empty:
            return None
        with self._lock:
            if not self._entries:
                return None
            entry = self._entries.popleft()
            self._objects -= not isinstance(entry, WaitingMessage)
            self._taken = True
            return entry

    def done(self) -> None:
        """What was taken is published."""
        with self._lock:
            self._taken = False

    def close(self) -> list[WaitingMessage]:
        """End: release the objects that wait, and return the messages.

        A second call finds none.
        """
        with self._lock:
            self._closed = True
            entries = list(self._entries)
            self._entries.clear()
            self._objects = 0
            self._tokens.put(None)
        messages = []
        for entry in entries:
            if isinstance(entry, WaitingMessage):
                messages.append(entry)
            else:
                self._release(entry)
        return messages
