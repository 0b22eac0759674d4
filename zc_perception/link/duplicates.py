"""Keeps a subscription that can be reached two ways from getting an object twice, or an old one after a new one.

A publisher that serves this subscription without a copy may also write messages for others. So an object may come *directly*, as a message,
or both ways. The promise is: the objects of each publisher come in their order, and each comes once. An object's *key* is its (frame_id,
stamp). rclpy says whose a message is from 9.1.1 on, and a publisher of this process knows what it wrote: that is the message's
:class:`Origin`. A later rule is asked only if no earlier one has an answer.

======================  ===================================================================================================
what comes              what becomes of it
======================  ===================================================================================================
message, stamp 0        it is taken, because a stamp of 0 is no key
message, PLAIN          it is taken, because its publisher has no other way
message, HERE           *twice*: dropped if an object of this process with its key came
message, ELSEWHERE      1. *late*: dropped if its stamp is below that of the first object that came directly with this frame_id,
                        for 2 s after a publisher was connected. It was on its way before the connection was there.
                        2. *twice*: dropped if an object of another process with its key came.
                        3. *another's*: taken if its number says that its publisher's objects don't come directly.
                        4. *left out*: dropped if its publisher has left out objects there, because this end was too slow. As many
                        are dropped as were left out.
message, UNKNOWN        the rules of HERE, then those of ELSEWHERE
object, this process    it is taken: it comes sooner than its message
object, elsewhere       *twice*: dropped if a message with its key was taken
======================  ===================================================================================================

Each object stands for one message, and each message for one object: of two publishers with the same key, the second one's passes. A message
of another process may also come before its own object, which still waits at its publisher. Then the message has to wait as well, see
:meth:`DuplicateFilter.may_come_directly`.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import Enum
from typing import Any

Key = tuple[str, int]
REMEMBERED = 256
# Messages of a publisher that has just been connected are on the way for so long at most; afterwards old stamps are somebody else's.
_LATE_S = 2.0
# An object that waits at its publisher is not newer than this, compared with the latest one that came.
_AHEAD_NS = 2_000_000_000
_MAX_WRITERS = 16


class Origin(Enum):
    """Whose a message is, as far as is known.

    ``HERE``: an adapted publisher's of this process. ``ELSEWHERE``: a publisher's of another process, adapted or plain. ``PLAIN``: a plain
    publisher's, which has no other way. ``UNKNOWN``: nobody can tell.
    """

    HERE = 'here'
    ELSEWHERE = 'elsewhere'
    PLAIN = 'plain'
    UNKNOWN = 'unknown'


class _Came:
    """What has come one way: how often each key came, and how many of these a second coming has been found for. The oldest go first."""

    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        self._keys: OrderedDict[Key, list[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: Key) -> None:
        """It came once more."""
        self._keys.setdefault(key, [0, 0])[0] += 1
        self._keys.move_to_end(key)
        if len(self._keys) > self._remembered:
            self._keys.popitem(last=False)

    def take_away(self, key: Key) -> None:
        """It came once less."""
        found = self._keys.get(key)
        if found is not None and found[0] > found[1]:
            found[0] -= 1

    def match(self, key: Key) -> bool:
        """Whether this is a second coming; each one that came has one."""
        found = self._keys.get(key)
        if found is None or found[1] >= found[0]:
            return False
        found[1] += 1
        return True

    def expect_again(self) -> None:
        """Second comings may come once more."""
        for found in self._keys.values():
            found[1] = 0

    def between(self, frame_id: str, after_ns: int, before_ns: int) -> int:
        """How many came with a stamp in between."""
        return sum(
            came
            for (name, stamp), (came, _) in self._keys.items()
            if name == frame_id and after_ns < stamp < before_ns
        )


@dataclass
class _Gap:
    """So many objects of one publisher were left out between two others."""

    frame_id: str
    after_ns: int
    before_ns: int
    left: int


class _Writers:
    """Guesses from a message's number whether its publisher's objects come copy-free.

    The middleware numbers the messages of each publisher from 1 on, and the publisher of many messages is known. A message is taken for
    the next one of that publisher whose latest known number is nearest below its own.
    """

    def __init__(self) -> None:
        # The latest number of each, and whether its objects come copy-free; who was heard of last stands last.
        self._latest: deque[tuple[int, bool]] = deque(maxlen=_MAX_WRITERS)

    def _nearest(self, number: int, direct: bool) -> tuple[int, bool] | None:
        return max(
            (each for each in self._latest if each[1] is direct and each[0] < number), default=None
        )

    def note(self, number: int | None, direct: bool) -> None:
        """That message's publisher is known."""
        if number is not None:
            before = self._nearest(number, direct)
            if before is not None:
                self._latest.remove(before)
            self._latest.append((number, direct))

    def is_direct(self, number: int | None) -> bool | None:
        """Whether the objects of that message's publisher come copy-free; ``None``: nobody can tell."""
        if number is None or not any(direct for _, direct in self._latest):
            return None
        found = [
            (-1, direct) if before is None else before
            for direct in (True, False)
            for before in [self._nearest(number, direct)]
        ]
        (direct_number, _), (other_number, _) = found
        return None if direct_number == other_number >= 0 else direct_number > other_number


class DuplicateFilter:
    """Decides which objects and messages are new, by the rules at the top of this file. Any thread may call it.

    Whoever delivers a copy-free object appends its ``header`` (``frame_id``, ``stamp_ns``) to :attr:`local` if its publisher is in this
    process, whether or not the object is taken, and to :attr:`direct` if it is in another one. These are deques, so that an object costs
    next to nothing. The next question about a message empties them.

    :param remembered: objects of each side; more than messages can be waiting in a reader.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._lock = threading.Lock()
        self.local: deque[Any] = deque(maxlen=remembered)
        self.direct: deque[Any] = deque(maxlen=remembered)
        self._local = _Came(remembered)
        self._direct = _Came(remembered)
        self._message = _Came(remembered)
        self._remembered = remembered
        self._gaps: deque[_Gap] = deque(maxlen=remembered)
        # The latest stamp of each frame_id that came from another process.
        self._latest: dict[str, int] = {}
        self._writers = _Writers()
        # The first stamp of each frame_id since a publisher was connected: its messages of before then are late.
        self._first: dict[str, int] = {}
        self._late_until = 0.0
        self.dropped = 0

    def direct_begins(self) -> None:
        """A publisher of another process was connected: what comes from it by message after its first object is late."""
        with self._lock:
            self._collect()
            self._first.clear()
            self._latest.clear()
            self._late_until = time.monotonic() + _LATE_S

    def messages_begin_again(self) -> None:
        """A reader was made that gets messages which an earlier one has had."""
        with self._lock:
            self._collect()
            self._local.expect_again()
            self._direct.expect_again()

    def accept_direct(self, header: Any) -> bool:
        """Whether an object of another process is new; ``False``, and counted, when its message was taken before."""
        with self._lock:
            self._note_first(header)
            if self._message.match((header.frame_id, header.stamp_ns)):
                self.dropped += 1
                return False
            self.direct.append(header)
            return True

    def missed(self, before: Any, after: Any, count: int) -> None:
        """A publisher of another process has left out *count* objects between those with these headers, because we were too slow. Their
        messages are late.
        """
        with self._lock:
            if before.frame_id == after.frame_id:
                count -= self._message.between(after.frame_id, before.stamp_ns, after.stamp_ns)
                if count > 0:
                    self._gaps.append(_Gap(after.frame_id, before.stamp_ns, after.stamp_ns, count))

    def may_come_directly(
        self,
        frame_id: str,
        stamp_ns: int,
        origin: Origin = Origin.UNKNOWN,
        number: int | None = None,
    ) -> bool:
        """Whether a message may be of a publisher of another process whose own object is still to come: it waits there, because we hold as
        many as we may. To take the message would bring that object, and others before it, too late.
        """
        if origin in (Origin.PLAIN, Origin.HERE) or not stamp_ns:
            return False
        with self._lock:
            self._collect()
            latest = self._latest.get(frame_id, stamp_ns)
            return (
                latest < stamp_ns <= latest + _AHEAD_NS
                and self._writers.is_direct(number) is not False
            )

    def accept_message(
        self,
        frame_id: str,
        stamp_ns: int,
        origin: Origin = Origin.UNKNOWN,
        number: int | None = None,
    ) -> bool:
        """Whether a message is new: not what came copy-free, and not older than what came so from the same publisher.

        :param number: the middleware's, of the messages of its publisher; ``None``: it isn't known.
        """
        if origin is Origin.PLAIN or not stamp_ns:
            return True
        key = frame_id, stamp_ns
        with self._lock:
            self._collect()
            old = origin is not Origin.ELSEWHERE and self._local.match(key)
            if not old and origin is not Origin.HERE:
                late = time.monotonic() < self._late_until and stamp_ns < self._first.get(
                    frame_id, stamp_ns
                )
                old = late or self._comes_again(key, number)
            self.dropped += old
            return not old

    def _collect(self) -> None:
        """Lock held."""
        while self.local:
            header = self.local.popleft()
            self._local.add((header.frame_id, header.stamp_ns))
        while self.direct:
            header = self.direct.popleft()
            self._direct.add((header.frame_id, header.stamp_ns))
            self._note_first(header)
            if header.frame_id in self._latest or len(self._latest) < self._remembered:
                self._latest[header.frame_id] = header.stamp_ns

    def _note_first(self, header: Any) -> None:
        """Lock held: an object of another process came."""
        if header.frame_id in self._first or len(self._first) < self._remembered:
            # Time may go back, in simulation.
            self._first[header.frame_id] = min(
                header.stamp_ns, self._first.get(header.frame_id, header.stamp_ns)
            )

    def _comes_again(self, key: Key, number: int | None) -> bool:
        """Lock held: whether a message's object came from another process before, or was left out there."""
        if self._direct.match(key):
            self._writers.note(number, True)
            return True
        direct = self._writers.is_direct(number)
        if direct is False:
            self._writers.note(number, False)
            return False
        frame_id, stamp_ns = key
        for gap in self._gaps:
            if gap.left and gap.frame_id == frame_id and gap.after_ns < stamp_ns < gap.before_ns:
                gap.left -= 1
                if direct:
                    self._writers.note(number, True)
                return True
        if direct is None and stamp_ns <= self._latest.get(frame_id, -1):
            self._writers.note(number, False)
        self._message.add(key)
        return False

    def forget_message(self, frame_id: str, stamp_ns: int) -> None:
        """A message that was accepted could not be taken: the same object may still come copy-free."""
        with self._lock:
            self._message.take_away((frame_id, stamp_ns))

    def count(self) -> None:
        """Something else has recognised a duplicate."""
        with self._lock:
            self.dropped += 1


def message_identity(message: Any) -> Key | None:
    """(frame_id, stamp) of a message with a ``std_msgs/Header``; ``None`` without."""
    header = getattr(message, 'header', None)
    stamp = getattr(header, 'stamp', None)
    return (
        None
        if header is None or stamp is None
        else (header.frame_id, stamp.sec * 1_000_000_000 + stamp.nanosec)
    )
