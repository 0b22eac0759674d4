"""Stereo pairs: frames of two sensors matched by the time at which they were taken.

Sensors that are triggered together (a ZED X) give equal times but for jitter, each on its own stream: one may lose a frame or start later,
so that pairs are made by time, never by counting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from types import TracebackType
from typing import Generic, TypeVar

from zc_perception.camera.camera import Camera
from zc_perception.errors import ConfigError
from zc_perception.frame import Frame, Header

T = TypeVar('T')

DEFAULT_TOLERANCE_NS = 5_000_000
DEFAULT_DEPTH = 4


class Side(Enum):
    """Which sensor; the value is the namespace of its topics."""

    LEFT = 'left'
    RIGHT = 'right'

    @property
    def other(self) -> Side:
        """The opposite one."""
        return Side.RIGHT if self is Side.LEFT else Side.LEFT


@dataclass(frozen=True)
class StereoStatistics:
    """Counters since start, by side where they differ.

    :param pairs: what was matched.
    :param alone: frames that had no counterpart, by side.
    :param restarts: times that a side's time went back, and what waited was given up.
    :param difference_ns: right minus left of the last pair.
    :param max_difference_ns: the largest of all pairs, without its sign.
    :param apart_ns: between the times at which the two sides run, matched or not; ``None`` before both gave something.
    """

    pairs: int = 0
    alone: tuple[tuple[Side, int], ...] = ((Side.LEFT, 0), (Side.RIGHT, 0))
    restarts: int = 0
    difference_ns: int = 0
    max_difference_ns: int = 0
    apart_ns: int | None = None

    @property
    def dropped(self) -> int:
        """Frames without a counterpart, of both sides."""
        return sum(count for _, count in self.alone)


class PairMatcher(Generic[T]):
    """Matches items of two sides by time. Each side's times increase; the oldest pair within the tolerance comes first.

    No item is kept waiting for a better one: with a tolerance below half of the interval between frames there is none. Whatever the order
    in which the sides arrive, as many pairs come out as the times allow, unless a side is further ahead than *depth*. O(1) per item; one
    thread, no lock.

    :param tolerance_ns: times that far apart still are of one moment.
    :param depth: items of one side that may wait for the other; the oldest goes when there are more.
    :param on_drop: gets every item that will never have a counterpart.
    :raises ConfigError: a negative tolerance, or a depth below 1.
    """

    def __init__(self, tolerance_ns: int, depth: int = DEFAULT_DEPTH, on_drop: Callable[[Side, T], None] = lambda side, item: None) -> None:
        if tolerance_ns < 0 or depth < 1:
            raise ConfigError(f'stereo: a tolerance of {tolerance_ns} ns and a depth of {depth}; at least 0 and 1 are needed')
        self._tolerance = tolerance_ns
        self._depth = depth
        self._on_drop = on_drop
        self._waiting: dict[Side, deque[tuple[int, T]]] = {Side.LEFT: deque(), Side.RIGHT: deque()}
        self._last: dict[Side, int | None] = {Side.LEFT: None, Side.RIGHT: None}
        self._alone = {Side.LEFT: 0, Side.RIGHT: 0}
        # From each side's newest item to what then was the other's: the smaller one is what a tolerance would have to be.
        self._apart: dict[Side, int] = {}
        self._pairs = self._restarts = self._difference = self._max_difference = 0

    def offer(self, side: Side, time_ns: int, item: T) -> tuple[T, T] | None:
        """Give an item, and get the pair (left, right) that it completes.

        A time that isn't above the side's last one is another stream's: everything that waits on both sides is dropped.
        """
        last = self._last[side]
        if last is not None and time_ns <= last:
            self._restarts += 1
            self.clear()
        self._last[side] = time_ns
        newest = self._last[side.other]
        if newest is not None:
            self._apart[side] = abs(time_ns - newest)
        others = self._waiting[side.other]
        # What is older than this can only be waited for by something older than this.
        while others and time_ns - others[0][0] > self._tolerance:
            self._drop(side.other)
        own = self._waiting[side]
        if others and not own and others[0][0] - time_ns <= self._tolerance:
            other_time, other = others.popleft()
            return self._pair(side, time_ns, item, other_time, other)
        if others and others[0][0] - time_ns > self._tolerance:
            # The other side is past it already.
            self._alone[side] += 1
            self._on_drop(side, item)
            return None
        own.append((time_ns, item))
        if len(own) > self._depth:
            self._drop(side)
        return None

    def _pair(self, side: Side, time_ns: int, item: T, other_time: int, other: T) -> tuple[T, T]:
        self._pairs += 1
        self._difference = other_time - time_ns if side is Side.LEFT else time_ns - other_time
        self._max_difference = max(self._max_difference, abs(self._difference))
        return (item, other) if side is Side.LEFT else (other, item)

    def _drop(self, side: Side) -> None:
        _, item = self._waiting[side].popleft()
        self._alone[side] += 1
        self._on_drop(side, item)

    def waiting(self, side: Side) -> int:
        """How many items of a side wait for their counterparts."""
        return len(self._waiting[side])

    def behind(self) -> Side:
        """The side whose next item is wanted more: the one that waits for nothing, else the one whose last time is older."""
        if bool(self._waiting[Side.LEFT]) != bool(self._waiting[Side.RIGHT]):
            return Side.RIGHT if self._waiting[Side.LEFT] else Side.LEFT
        left, right = self._last[Side.LEFT], self._last[Side.RIGHT]
        return Side.LEFT if left is None or (right is not None and left <= right) else Side.RIGHT

    def clear(self) -> None:
        """Drop everything that waits, and forget the times."""
        for side in Side:
            self.forget(side)

    def forget(self, side: Side) -> None:
        """As :meth:`clear`, of one side, whose source begins anew."""
        while self._waiting[side]:
            self._drop(side)
        self._last[side] = None

    def statistics(self) -> StereoStatistics:
        """Counters; from any thread."""
        alone = tuple(self._alone.items())
        apart = min(tuple(self._apart.values()), default=None)
        return StereoStatistics(self._pairs, alone, self._restarts, self._difference, self._max_difference, apart)


def give_same_stamp(left: Frame, right: Frame) -> None:
    """Give *right* the stamp of *left*, so that whoever joins the two by exact time can. Before anybody else has a lease on it."""
    right.data = replace(right.data, header=Header(left.header.stamp_ns, right.header.frame_id))


@dataclass(frozen=True)
class StereoPair:
    """Two frames of one moment. Both carry the left one's stamp, so that whoever joins them by exact time can.

    :param difference_ns: by how much the right one was taken later.
    """

    left: Frame
    right: Frame
    difference_ns: int

    def __enter__(self) -> StereoPair:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.left.__exit__(kind, value, trace)
        finally:
            self.right.__exit__(kind, value, trace)

    def of(self, side: Side) -> Frame:
        """One of the two."""
        return self.left if side is Side.LEFT else self.right


class StereoCamera:
    """Two cameras as one source of pairs. Each negotiates its own buffers; frames that wait for their counterpart are leased meanwhile.

    One thread calls :meth:`capture`; :meth:`stop` may come from any other.

    :param left: owned from here on, as *right* is.
    :param tolerance_ns: how far apart the two may have been taken; below half of a frame's time.
    :param depth: frames of one side that may wait: so many slots more that camera needs.
    """

    def __init__(self, left: Camera, right: Camera, *, tolerance_ns: int = DEFAULT_TOLERANCE_NS, depth: int = 2) -> None:
        self.cameras = {Side.LEFT: left, Side.RIGHT: right}
        try:
            sizes = [(camera.width, camera.height) for camera in (left, right)]
            if sizes[0] != sizes[1]:
                raise ConfigError(f'stereo: the left camera gives {sizes[0]}, the right one {sizes[1]}; set both to one size')
            self._matcher: PairMatcher[Frame] = PairMatcher(tolerance_ns, depth, lambda _, frame: frame.release())
        except BaseException:
            left.close()
            right.close()
            raise

    @property
    def ended(self) -> bool:
        """Whether there will be no more pairs: a side has ended, and none of its frames waits for its counterpart."""
        left, right = self.cameras[Side.LEFT].ended, self.cameras[Side.RIGHT].ended
        if left and right:
            return True
        return any(ended and not self._matcher.waiting(side) for side, ended in ((Side.LEFT, left), (Side.RIGHT, right)))

    @property
    def identity(self) -> str:
        """See :class:`Camera`."""
        return ' + '.join(camera.identity for camera in self.cameras.values())

    def capture(self) -> StereoPair | None:
        """The next pair; ``None``: not this time, after a bounded wait.

        :raises CameraError: one of the two failed.
        """
        for _ in range(2):
            side = self._matcher.behind()
            side = side.other if self.cameras[side].ended else side
            frame = self.cameras[side].capture()
            if frame is None:
                return None
            pair = self._matcher.offer(side, frame.data.captured_ns, frame)
            if pair is not None:
                return self._joined(*pair)
        return None

    @staticmethod
    def _joined(left: Frame, right: Frame) -> StereoPair:
        difference = right.data.captured_ns - left.data.captured_ns
        give_same_stamp(left, right)
        return StereoPair(left, right, difference)

    def statistics(self) -> StereoStatistics:
        """Counters of the pairs; each camera has its own besides."""
        return self._matcher.statistics()

    def stop(self) -> None:
        """Make a waiting :meth:`capture` return. Idempotent."""
        for camera in self.cameras.values():
            camera.stop()

    def close(self) -> None:
        """Free both; frames of pairs that were given out stay readable until released."""
        self.stop()
        self._matcher.clear()
        for camera in self.cameras.values():
            camera.close()
