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
Make stereo pairs of two cameras' frames; frames without a counterpart are dropped.

Each camera has its own thread and captures its own frames.

Frames are matched by the time at which they were taken. Sensors that are triggered together (a ZED
X) give equal times except for jitter, each in its own stream. A sensor may lose a frame or start
later than the other, so pairs are made by time, never by counting.

:class:`StereoSides` joins the two cameras and owns the lock and the frames that wait. It makes a
:class:`SideCamera` of each camera, which a capture node uses as any camera: ``left/image_raw`` and
``right/image_raw`` know nothing of each other. :class:`PairMatcher` finds the pairs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
import threading
import time
from typing import Any, Generic, TypeVar

from zc_perception.camera.camera import Camera
from zc_perception.errors import ConfigError
from zc_perception.frame import Frame, Header
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.settings import AllocationRequest

T = TypeVar('T')

DEFAULT_DEPTH = 2
# Share of a frame's period for which a side waits for the counterpart before it takes the next
# frame. Meanwhile the driver keeps the next frame.
_PATIENCE = 0.75
_PATIENCE_S = 0.02
_END_WAIT_S = 0.1


class Side(Enum):
    """The left or the right camera of a pair; the value is the namespace of its topics."""

    LEFT = 'left'
    RIGHT = 'right'

    @property
    def other(self) -> Side:
        """The opposite side."""
        return Side.RIGHT if self is Side.LEFT else Side.LEFT


@dataclass(frozen=True)
class StereoStatistics:
    """
    Counters of a pair since start.

    :param pairs: number of pairs that were made.
    :param alone: by side, how many frames had no counterpart.
    :param restarts: how often a side's time went back, so that all waiting frames were dropped.
    :param difference_ns: the right frame's time minus the left frame's time, for the last pair.
    :param max_difference_ns: the largest absolute difference of all pairs.
    :param apart_ns: the difference between the newest times of the two sides, matched or not;
        ``None`` before both sides gave a frame.
    """

    pairs: int = 0
    alone: tuple[tuple[Side, int], ...] = ((Side.LEFT, 0), (Side.RIGHT, 0))
    restarts: int = 0
    difference_ns: int = 0
    max_difference_ns: int = 0
    apart_ns: int | None = None

    @property
    def dropped(self) -> int:
        """Number of frames without a counterpart, of both sides together."""
        return sum(count for _, count in self.alone)


class PairMatcher(Generic[T]):
    """
    Matches items of two sides by time.

    Each side's times increase; the oldest pair within the tolerance comes first.

    No item is kept waiting for a better match: with a tolerance below half of the interval between
    frames there is none. In whatever order the two sides' items arrive, the number of pairs is the
    highest that the times allow, unless a side is more than *depth* items ahead. O(1) per item;
    one thread, no lock.

    :param tolerance_ns: two items match if their times differ by at most this.
    :param depth: the most items of one side that may wait for the other side; the oldest is
        dropped when there are more.
    """

    def __init__(self, tolerance_ns: int, depth: int = 4) -> None:
        self._tolerance = tolerance_ns
        self._depth = depth
        self.dropped: list[T] = []
        """Items that will never have a counterpart. The code that takes them out ends them."""
        self._waiting: dict[Side, deque[tuple[int, T]]] = {Side.LEFT: deque(), Side.RIGHT: deque()}
        self._last: dict[Side, int | None] = {Side.LEFT: None, Side.RIGHT: None}
        self._alone = {Side.LEFT: 0, Side.RIGHT: 0}
        # The time from each side's newest item to the other side's newest one at that moment. The
        # smaller of the two is the tolerance that would be needed.
        self._apart: dict[Side, int] = {}
        self._pairs = self._restarts = self._difference = self._max_difference = 0

    def offer(self, side: Side, time_ns: int, item: T) -> tuple[T, T] | None:
        """
        Take an item, and return the pair (left, right) that it completes.

        If the item's time isn't later than the side's last time, a new stream has begun:
        everything that waits on both sides is dropped.
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
        # The other side's items that are too old for this one could only match earlier items of
        # this side.
        while others and time_ns - others[0][0] > self._tolerance:
            self._drop(side.other)
        own = self._waiting[side]
        if others and not own and others[0][0] - time_ns <= self._tolerance:
            other_time, other = others.popleft()
            return self._pair(side, time_ns, item, other_time, other)
        if others and others[0][0] - time_ns > self._tolerance:
            # The other side already has a later frame, so this one has no counterpart.
            self._alone[side] += 1
            self.dropped.append(item)
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
        self.dropped.append(self._waiting[side].popleft()[1])
        self._alone[side] += 1

    def waiting(self, side: Side) -> int:
        """Return how many items of a side wait for a counterpart."""
        return len(self._waiting[side])

    def clear(self) -> None:
        """Drop all items that wait, and forget the sides' latest times."""
        for side in Side:
            self.forget(side)

    def forget(self, side: Side) -> None:
        """Drop what waits on one side, and forget its time: its source begins again."""
        while self._waiting[side]:
            self._drop(side)
        self._last[side] = None

    def statistics(self) -> StereoStatistics:
        """Return counters; any thread may call it."""
        alone = tuple(self._alone.items())
        apart = min(tuple(self._apart.values()), default=None)
        return StereoStatistics(
            self._pairs, alone, self._restarts, self._difference, self._max_difference, apart
        )


def give_same_stamp(left: Frame, right: Frame) -> None:
    """
    Give *right* the stamp of *left*, so that subscribers can match the two by exact time.

    Call this before any other lease on *right* exists.
    """
    right.data = replace(right.data, header=Header(left.header.stamp_ns, right.header.frame_id))


@dataclass(frozen=True)
class PairingRule:
    """
    The rule by which two frames are a pair.

    :param tolerance_ns: the most time between the two frames; it must be below half of a frame's
        period.
    :param by_stamp: whether to compare stamps, for recordings that were made together, instead of
        the times at which the frames were captured.
    """

    tolerance_ns: int
    by_stamp: bool = False

    def check_same(self, other: PairingRule) -> None:
        """
        Check that both sides want the same rule.

        :raises ConfigError: the rules differ; the message says what to do.
        """
        if self.tolerance_ns != other.tolerance_ns:
            raise ConfigError(
                f"parameter 'stereo_tolerance' is {self.tolerance_ns / 1e9:g} s on one side "
                f'and {other.tolerance_ns / 1e9:g} s '
                "on the other; set it once, in the section '/**/capture'"
            )
        if self.by_stamp != other.by_stamp:
            raise ConfigError(
                'one side replays a recording by its own stamps, the other does not; set '
                'camera and stamps the same on both'
            )


class StereoSides:
    """
    Pairs the frames of two cameras.

    Each camera is opened, run and closed on its own, again and again.

    Both frames of a pair carry the left one's stamp. While the other camera is away, a side goes
    on: its newest *depth* frames wait, and it delivers no frame. There is one lock. It is held for
    O(depth) steps, and never while a frame is captured, released or published.

    :param depth: the most frames of one side that wait or are ready. They are leased, so the
        side's camera needs this many more slots.
    """

    def __init__(self, rule: PairingRule, depth: int = DEFAULT_DEPTH) -> None:
        self.rule = rule
        self.depth = depth
        self._matcher: PairMatcher[Frame] = PairMatcher(rule.tolerance_ns, depth)
        self._ready: dict[Side, deque[Frame]] = {Side.LEFT: deque(), Side.RIGHT: deque()}
        self._members: dict[Side, SideCamera | None] = {Side.LEFT: None, Side.RIGHT: None}
        self._news = threading.Condition(threading.Lock())

    def join(self, side: Side, camera: Camera) -> SideCamera:
        """
        Make *camera* one of the two cameras, and own it from now on.

        The camera replaces the side's previous one.
        """
        member = SideCamera(self, side, camera)
        with self._news:
            dropped = self._empty(side)
            self._members[side] = member
            self._news.notify_all()
        _release(dropped)
        return member

    def present(self, side: Side) -> bool:
        """Tell whether a camera of that side is open."""
        return self._members[side] is not None

    def other_size(self, side: Side) -> tuple[int, int] | None:
        """Return the size of the opposite side's pictures, while its camera is open."""
        other = self._members[side.other]
        return None if other is None else (other.width, other.height)

    def statistics(self) -> StereoStatistics:
        """Return the counters, summed over all openings of the cameras."""
        with self._news:
            return self._matcher.statistics()

    def offer(self, member: SideCamera, frame: Frame, patience_s: float) -> None:
        """Own a frame from now on, and wait a little for its counterpart."""
        side = member.side
        with self._news:
            if self._members[side] is member:
                self._match(side, frame)
            else:
                self._matcher.dropped.append(frame)
            dropped = self._take_dropped()
            self._news.notify_all()
        _release(dropped)
        deadline = time.monotonic() + patience_s
        with self._news:
            while self._worth_waiting(member):
                left_s = deadline - time.monotonic()
                if left_s <= 0.0:
                    return
                self._news.wait(left_s)

    def _match(self, side: Side, frame: Frame) -> None:
        pair = self._matcher.offer(
            side, frame.header.stamp_ns if self.rule.by_stamp else frame.data.captured_ns, frame
        )
        if pair is not None:
            give_same_stamp(*pair)
            self._ready[Side.LEFT].append(pair[0])
            self._ready[Side.RIGHT].append(pair[1])

    def _worth_waiting(self, member: SideCamera) -> bool:
        side = member.side
        partner = self._members[side.other]
        return (
            self._members[side] is member
            and not member.stopped
            and not self._ready[side]
            and self._matcher.waiting(side) > 0
            and partner is not None
            and not partner.inner.ended
        )

    def take(self, member: SideCamera) -> Frame | None:
        """Return the side's oldest frame that has a counterpart, and give up its ownership."""
        with self._news:
            ready = self._ready[member.side]
            return ready.popleft() if ready and self._members[member.side] is member else None

    def await_end(self, member: SideCamera) -> None:
        """Wait a bounded time for counterparts of the last frames of a side that has ended."""
        with self._news:
            if self._worth_waiting(member):
                self._news.wait(_END_WAIT_S)

    def ended(self, member: SideCamera) -> bool:
        """Tell whether no frame of a side whose camera has ended can become a pair any more."""
        with self._news:
            return not self._ready[member.side] and not self._worth_waiting(member)

    def leave(self, member: SideCamera) -> None:
        """Remove a camera that is about to be closed, and release its frames."""
        with self._news:
            dropped = []
            if self._members[member.side] is member:
                self._members[member.side] = None
                dropped = self._empty(member.side)
            self._news.notify_all()
        _release(dropped)

    def wake(self) -> None:
        """Make a waiting thread check its condition again."""
        with self._news:
            self._news.notify_all()

    def _empty(self, side: Side) -> list[Frame]:
        """Remove and return all frames that a side holds."""
        self._matcher.forget(side)
        ready = [*self._ready[side]]
        self._ready[side].clear()
        return ready + self._take_dropped()

    def _take_dropped(self) -> list[Frame]:
        dropped, self._matcher.dropped = self._matcher.dropped, []
        return dropped


def _release(frames: Sequence[Frame]) -> None:
    for frame in frames:
        frame.release()


def _of_inner(name: str) -> Any:
    """Make a property that returns the wrapped camera's attribute of this name."""
    return property(lambda side: getattr(side.inner, name))


class SideCamera(Camera):
    """
    One side of :class:`StereoSides`: a camera that gives only frames with a counterpart.

    :meth:`StereoSides.join` makes it.

    As with any camera, one thread captures from it and any thread may stop it. Neither waits for
    the other side's thread.
    """

    # The camera's own counters; frames without a counterpart are in
    # :meth:`StereoSides.statistics`.
    has_lens, heap_name, device = map(_of_inner, ('has_lens', 'heap_name', 'device'))
    identity, threads, reallocates = map(_of_inner, ('identity', 'threads', 'reallocates'))
    pool, statistics, facts, sizes = map(_of_inner, ('pool', 'statistics', 'facts', 'sizes'))
    controls, tune, set_control = map(_of_inner, ('controls', 'tune', 'set_control'))

    def __init__(self, sides: StereoSides, side: Side, camera: Camera) -> None:
        self.side = side
        self.inner = camera
        self.width = camera.width
        self.height = camera.height
        self.framerate = camera.framerate
        self.clock = camera.clock
        self._sides = sides
        self._stopped = threading.Event()
        self._patience_s = _PATIENCE / camera.framerate if camera.framerate > 0.0 else _PATIENCE_S

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopped.is_set()

    @property
    def ended(self) -> bool:
        return self.inner.ended and self._sides.ended(self)

    def notices(self) -> Sequence[str]:
        """Warn if the sides' sizes differ: few consumers of both pictures can use that."""
        other, own = self._sides.other_size(self.side), (self.width, self.height)
        if other is None or other == own:
            return self.inner.notices()
        return (
            *self.inner.notices(),
            f'stereo: the {self.side.value} camera gives {own[0]}x{own[1]}, the '
            f'{self.side.other.value} one {other[0]}x{other[1]}; '
            'set width and height of both, unless who uses the pairs can do with that',
        )

    def constraints(self) -> BufferConstraints:
        """Return the constraints: frames that wait for their counterparts need more slots."""
        return self._with_waiting(self.inner.constraints())

    def possible(self) -> BufferConstraints:
        return self._with_waiting(self.inner.possible())

    def _with_waiting(self, constraints: BufferConstraints) -> BufferConstraints:
        return replace(constraints, slots=constraints.slots + self._sides.depth)

    def allocate(self, request: AllocationRequest) -> None:
        self.inner.allocate(request)
        pool = self.inner.pool
        if pool is not None:
            # No lease has this name. The quota reserves slots for waiting frames, so that these
            # slots are not promised to consumers.
            pool.set_quota('stereo', self._sides.depth)

    def capture(self) -> Frame | None:
        """Return this side's oldest frame with a counterpart; ``None``: no frame has one."""
        frame = self._sides.take(self)
        if frame is not None:
            return frame
        if self.inner.ended:
            self._sides.await_end(self)
            return self._sides.take(self)
        fresh = self.inner.capture()
        if fresh is not None:
            self._sides.offer(self, fresh, self._patience_s)
        return self._sides.take(self)

    def stop(self) -> None:
        """Stop this side; the other side goes on."""
        self._stopped.set()
        self.inner.stop()
        self._sides.wake()

    def close(self) -> None:
        """
        Close this side.

        The other side goes on. Pairs are made again when another camera replaces this one.
        """
        self.stop()
        self._sides.leave(self)
        self.inner.close()
