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

Frames are matched by their capture times. Sensors that are triggered together (such as those of a
ZED X) give equal times except for jitter. Frame numbers aren't used, because a sensor may lose a
frame or start later than the other one.

:class:`StereoSides` owns the lock and the waiting frames. It wraps each camera in a
:class:`SideCamera`, which a capture node uses like any camera. Each camera has a capture thread of
its own. :class:`PairMatcher` finds the pairs.
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
# After a side has captured a frame, it waits at most this fraction of a frame period for the
# counterpart. During this time, the driver keeps the side's next frame. If the frame rate is
# unknown, the side waits _PATIENCE_S seconds.
_PATIENCE = 0.75
_PATIENCE_S = 0.02
# A recording can wait longer than a driver. With this longer wait, the frames of a recording's two
# sides are paired even if one topic begins later, or one side starts later.
_RECORDED_PATIENCE_S = 1.0
_END_WAIT_S = 0.1


class Side(Enum):
    """The left or right camera of a pair; the value is the namespace of the camera's topics."""

    LEFT = 'left'
    RIGHT = 'right'

    @property
    def other(self) -> Side:
        return Side.RIGHT if self is Side.LEFT else Side.LEFT


@dataclass(frozen=True)
class StereoStatistics:
    """
    Counters of a stereo pair since its start.

    :param pairs: number of pairs that were made.
    :param alone: for each side, the number of frames without a counterpart.
    :param restarts: how often a side's time went back, so that all waiting frames were dropped.
    :param difference_ns: the right frame's time minus the left frame's time, for the last pair.
    :param max_difference_ns: the largest absolute difference of all pairs.
    :param apart_ns: the absolute difference between the newest times of the two sides, even if
        these frames are no pair; ``None`` until both sides gave a frame.
    """

    pairs: int = 0
    alone: tuple[tuple[Side, int], ...] = ((Side.LEFT, 0), (Side.RIGHT, 0))
    restarts: int = 0
    difference_ns: int = 0
    max_difference_ns: int = 0
    apart_ns: int | None = None

    @property
    def dropped(self) -> int:
        """Number of frames without a counterpart: the sum of both sides."""
        return sum(count for _, count in self.alone)


class PairMatcher(Generic[T]):
    """
    Matches items of two sides by time.

    Each side's times must increase. An item is paired with the first match, because a tolerance
    below half of a frame period allows only one match. The order in which the two sides' items
    arrive doesn't change the number of pairs, unless a side is more than *depth* items ahead.

    O(1) per item. The caller ensures that only one thread at a time uses the matcher.

    :param tolerance_ns: two items match if their times differ by at most this.
    :param depth: the highest number of one side's items that wait for the other side; if there are
        more, the oldest is dropped.
    """

    def __init__(self, tolerance_ns: int, depth: int = 4) -> None:
        self._tolerance = tolerance_ns
        self._depth = depth
        self.dropped: list[T] = []
        """Items that will never have a counterpart; the matcher's user removes and frees them."""
        self._waiting: dict[Side, deque[tuple[int, T]]] = {Side.LEFT: deque(), Side.RIGHT: deque()}
        self._last: dict[Side, int | None] = {Side.LEFT: None, Side.RIGHT: None}
        self._alone = {Side.LEFT: 0, Side.RIGHT: 0}
        # The difference between the times of the two sides' newest items. It is computed whenever
        # an item comes, and stored for the item's side. The smaller of the two stored values is
        # reported: with a tolerance of this value, the matcher would have found a pair.
        self._apart: dict[Side, int] = {}
        self._pairs = self._restarts = self._difference = self._max_difference = 0

    def offer(self, side: Side, time_ns: int, item: T) -> tuple[T, T] | None:
        """
        Take one side's item, and return the pair (left, right) that it completes, if any.

        If *time_ns* isn't later than the side's last time, a new stream has begun, and the waiting
        items of both sides are dropped.
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
        # Drop the other side's items that are too old for this item. Later items of this side
        # can't match them either.
        while others and time_ns - others[0][0] > self._tolerance:
            self._drop(side.other)
        own = self._waiting[side]
        if others and not own and others[0][0] - time_ns <= self._tolerance:
            other_time, other = others.popleft()
            return self._pair(side, time_ns, item, other_time, other)
        if others and others[0][0] - time_ns > self._tolerance:
            # All waiting items of the other side are too late for this item, and items that
            # still come are even later, so this item gets no match.
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
        """Return the number of one side's items that wait for a counterpart."""
        return len(self._waiting[side])

    def clear(self) -> None:
        """Drop the waiting items of both sides, and forget the times of their last items."""
        for side in Side:
            self.forget(side)

    def forget(self, side: Side) -> None:
        """Drop one side's waiting items and its last item's time, because its source restarts."""
        while self._waiting[side]:
            self._drop(side)
        self._last[side] = None

    def statistics(self) -> StereoStatistics:
        alone = tuple(self._alone.items())
        apart = min(tuple(self._apart.values()), default=None)
        return StereoStatistics(
            self._pairs, alone, self._restarts, self._difference, self._max_difference, apart
        )


def give_same_stamp(left: Frame, right: Frame) -> None:
    """
    Give frame *right* the stamp of *left*, so that subscribers can match them by equal stamps.

    Call this before another lease on *right* exists: such a lease would keep the old stamp.
    """
    right.data = replace(right.data, header=Header(left.header.stamp_ns, right.header.frame_id))


@dataclass(frozen=True)
class PairingRule:
    """
    The rule by which a left and a right frame are a pair; each side states the rule.

    :param tolerance_ns: the longest time between the two frames; it must be below half of a frame
        period.
    :param by_stamp: whether to compare the frames' stamps instead of their capture times, for
        recordings that were made together.
    :param repeated: if *by_stamp*: path of the recording that this side's camera plays in a loop;
        empty: the camera doesn't play in a loop.
    """

    tolerance_ns: int
    by_stamp: bool = False
    repeated: str = ''

    def check_same(self, other: PairingRule) -> None:
        """
        Check that both sides' parameters give the same rule.

        :raises ConfigError: the rules differ.
        """
        if self.tolerance_ns != other.tolerance_ns:
            raise ConfigError(
                f"parameter 'stereo_tolerance' is {self.tolerance_ns / 1e9:g} s on one side "
                f'and {other.tolerance_ns / 1e9:g} s '
                "on the other; set it once, in the section '/**/capture'"
            )
        if self.by_stamp != other.by_stamp:
            raise ConfigError(
                'one side replays a recording with the recorded stamps, the other does not; set '
                'parameters camera and stamps to the same values on both sides'
            )
        if self.repeated and other.repeated and self.repeated != other.repeated:
            raise ConfigError(
                f"one side repeats recording '{self.repeated}', the other '{other.repeated}'; "
                'their rounds differ in length, so the second round would have wrong pairs: set '
                "'loop' to false, or play topics of one recording on both sides"
            )


class StereoSides:
    """
    Pairs the frames of two cameras.

    Each camera may be opened, closed and replaced while the other camera runs. While the other
    camera is closed, a side keeps its newest *depth* frames and delivers none. Both frames of a
    pair have the left frame's stamp.

    There is one lock. It is held for O(depth) steps, and never while a frame is captured, released
    or published.

    :param depth: the highest number of one side's frames that wait for a counterpart, or are
        paired and not yet delivered. They are leased, so the side's camera needs this many more
        slots.
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
        Make *camera* the camera of *side*, in place of the previous one.

        Capture from the returned camera, which owns *camera* and closes it.
        """
        member = SideCamera(self, side, camera)
        with self._news:
            dropped = self._empty(side)
            self._members[side] = member
            self._news.notify_all()
        _release(dropped)
        return member

    def present(self, side: Side) -> bool:
        """Return whether the camera of *side* is open."""
        return self._members[side] is not None

    def other_size(self, side: Side) -> tuple[int, int] | None:
        """Return the width and height of the other side's camera; ``None``: it isn't open."""
        other = self._members[side.other]
        return None if other is None else (other.width, other.height)

    def statistics(self) -> StereoStatistics:
        """Return the counters, summed over all openings of the cameras."""
        with self._news:
            return self._matcher.statistics()

    def offer(self, member: SideCamera, frame: Frame, patience_s: float) -> None:
        """Take over a frame's lease, and wait at most *patience_s* seconds for a counterpart."""
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
        """Return camera *member*'s oldest paired frame, if any; the caller then owns its lease."""
        with self._news:
            ready = self._ready[member.side]
            return ready.popleft() if ready and self._members[member.side] is member else None

    def await_end(self, member: SideCamera) -> None:
        """Wait at most 0.1 s for counterparts of the last frames of *member*, an ended camera."""
        with self._news:
            if self._worth_waiting(member):
                self._news.wait(_END_WAIT_S)

    def ended(self, member: SideCamera) -> bool:
        """Return whether *member*, a camera whose source has ended, will give no more frames."""
        with self._news:
            return not self._ready[member.side] and not self._worth_waiting(member)

    def leave(self, member: SideCamera) -> None:
        """Remove a camera before it is closed, and release its waiting and paired frames."""
        with self._news:
            dropped = []
            if self._members[member.side] is member:
                self._members[member.side] = None
                dropped = self._empty(member.side)
            self._news.notify_all()
        _release(dropped)

    def wake(self) -> None:
        """Make the waiting threads check again whether they still have to wait."""
        with self._news:
            self._news.notify_all()

    def _empty(self, side: Side) -> list[Frame]:
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
    return property(lambda side: getattr(side.inner, name))


class SideCamera(Camera):
    """
    One side of a stereo pair: a camera that gives only frames with a counterpart.

    :meth:`StereoSides.join` makes it. One thread captures from it, and any thread may stop it.
    After each captured frame, the capturing thread waits for the counterpart for at most 0.75 of a
    frame period. If the frames of recordings are paired by stamp, this limit is at least 1 s.
    """

    # Property ``statistics`` has the wrapped camera's counters; :meth:`StereoSides.statistics`
    # counts frames without a counterpart.
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
        live = _PATIENCE / camera.framerate if camera.framerate > 0.0 else _PATIENCE_S
        self._patience_s = max(_RECORDED_PATIENCE_S, live) if sides.rule.by_stamp else live

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    @property
    def ended(self) -> bool:
        return self.inner.ended and self._sides.ended(self)

    def notices(self) -> Sequence[str]:
        """
        Return the camera's notices, and a warning if the two sides' picture sizes differ.

        Few consumers of pairs accept two sizes.
        """
        other, own = self._sides.other_size(self.side), (self.width, self.height)
        if other is None or other == own:
            return self.inner.notices()
        return (
            *self.inner.notices(),
            f'stereo: the {self.side.value} camera gives {own[0]}x{own[1]}, the '
            f'{self.side.other.value} camera {other[0]}x{other[1]}; '
            'set the same width and height for both, unless the consumers accept two sizes',
        )

    def constraints(self) -> BufferConstraints:
        return self._with_waiting(self.inner.constraints())

    def possible(self) -> BufferConstraints:
        return self._with_waiting(self.inner.possible())

    def _with_waiting(self, constraints: BufferConstraints) -> BufferConstraints:
        # Frames that wait for their counterparts need slots, too.
        return replace(constraints, slots=constraints.slots + self._sides.depth)

    def allocate(self, request: AllocationRequest) -> None:
        self.inner.allocate(request)
        pool = self.inner.pool
        if pool is not None:
            # Reserve slots for waiting frames, so that these slots aren't promised to consumers.
            # No consumer has the name 'stereo', so nobody uses up this quota.
            pool.set_quota('stereo', self._sides.depth)

    def capture(self) -> Frame | None:
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
        self._stopped.set()
        try:
            self.inner.stop()
        finally:
            self._sides.wake()

    def close(self) -> None:
        try:
            self.stop()
        finally:
            self._sides.leave(self)
            self.inner.close()
