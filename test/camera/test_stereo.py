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

"""Stereo pairs: of times alone, of two cameras' frames, and in two threads."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import pairwise
import threading
import time
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from negotiation.kit import who
import pytest
from waiting import until

from zc_perception.camera import stereo
from zc_perception.camera.stereo import PairingRule, PairMatcher, Side, SideCamera, StereoSides
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.errors import CameraError, ConfigError
from zc_perception.frame import Frame, Header
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import SlotState
from zc_perception.negotiation.agreement import agree

WAIT_S = 60.0
SIZE = (64, 64)
LEFT, RIGHT = Side.LEFT, Side.RIGHT

times = st.lists(st.integers(0, 60), max_size=12, unique=True).map(sorted)


def most_pairs(left: list[int], right: list[int], tolerance: int) -> int:
    """Return the largest possible number of ordered pairs, by exhaustive search."""
    best = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in range(len(left)):
        for j in range(len(right)):
            joined = best[i][j] + (abs(left[i] - right[j]) <= tolerance)
            best[i + 1][j + 1] = max(best[i][j + 1], best[i + 1][j], joined)
    return best[-1][-1]


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[list[int], list[int], list[Side]]:
    left, right = draw(times), draw(times)
    order = draw(st.permutations([LEFT] * len(left) + [RIGHT] * len(right)))
    return left, right, order


@settings(max_examples=120)
@given(arrivals(), st.integers(0, 10))
def test_as_many_pairs_as_the_times_allow_in_any_order_of_arrival(
    given_times: tuple[list[int], list[int], list[Side]], tolerance: int
) -> None:
    left, right, order = given_times
    matcher: PairMatcher[tuple[Side, int]] = PairMatcher(tolerance, depth=99)
    sides = {LEFT: iter(left), RIGHT: iter(right)}
    pairs = []
    for side in order:
        moment = next(sides[side])
        pair = matcher.offer(side, moment, (side, moment))
        if pair is not None:
            pairs.append((pair[0][1], pair[1][1]))
    assert all(abs(a - b) <= tolerance for a, b in pairs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs)), 'in order, nothing twice'
    assert len(pairs) == most_pairs(left, right, tolerance) == matcher.statistics().pairs
    matcher.clear()
    for number, (side, given_to) in enumerate(((LEFT, left), (RIGHT, right))):
        dropped = [item for of, item in matcher.dropped if of is side]
        assert sorted([pair[number] for pair in pairs] + dropped) == given_to
    assert matcher.statistics().dropped == len(matcher.dropped)


@given(
    st.lists(st.tuples(st.sampled_from(Side), st.integers(0, 100)), max_size=40),
    st.integers(0, 10),
    st.integers(1, 3),
)
def test_every_item_is_paired_once_or_dropped_once_whatever_the_times(
    events: list[tuple[Side, int]], tolerance: int, depth: int
) -> None:
    ended: list[int] = []
    matcher: PairMatcher[int] = PairMatcher(tolerance, depth)
    for number, (side, moment) in enumerate(events):
        ended += matcher.offer(side, moment, number) or ()
        assert number + 1 - len(ended) - len(matcher.dropped) <= 2 * depth
    matcher.clear()
    assert sorted(ended + matcher.dropped) == list(range(len(events)))


def test_time_that_goes_back_is_another_stream() -> None:
    matcher: PairMatcher[str] = PairMatcher(5)
    matcher.offer(LEFT, 1000, 'old')
    assert matcher.offer(LEFT, 10, 'new') is None
    assert matcher.offer(RIGHT, 1001, 'late') is None
    assert matcher.offer(RIGHT, 12, 'first') is None, 'the right side went back as well'
    assert matcher.statistics().restarts == 2
    assert matcher.offer(LEFT, 40, 'l') is None and matcher.offer(RIGHT, 41, 'r') == ('l', 'r')


# Two cameras in one thread: only pairs are delivered.


class TimedCamera(SyntheticCamera):
    """A camera with a test's times or errors; stamps are 7 more (left) or 9 more (right)."""

    def __init__(
        self,
        side: Side,
        times: list[int | Exception],
        *,
        ends: bool = True,
        framerate: float = 1e6,
    ) -> None:
        options = {'seed': 0, 'pattern': 'bars', 'heap': SealedMemfd(), 'ledger': CopyLedger()}
        options |= {'now_ns': time.time_ns, 'live': False}
        super().__init__(*SIZE, framerate, side.value, **options)
        self.side, self.times, self.ends, self.late = side, times, ends, 0

    @property
    def ended(self) -> bool:
        return self.ends and not self.times

    def capture(self) -> Frame | None:
        if self._stop.wait(0 if self.times else 0.001) or not self.times:
            return None
        moment = self.times.pop(0)
        if isinstance(moment, Exception):
            raise moment
        frame = super().capture()
        assert frame is not None, 'a slot is free whenever a frame comes'
        stamp_ns = moment + (7 if self.side is LEFT else 9) - self.late
        header = Header(stamp_ns, frame.header.frame_id)
        frame.data = replace(frame.data, captured_ns=moment, header=header)
        return frame


class Pair:
    def __init__(
        self, left: list[Any], right: list[Any], *, by_stamp: bool = False, **options: Any
    ) -> None:
        self.sides = StereoSides(PairingRule(5, by_stamp))
        self.cameras: dict[Side, SideCamera] = {}
        self.opened: list[TimedCamera] = []
        #: The stamps and times of the frames that came.
        self.out: dict[Side, list[tuple[int, int]]] = {LEFT: [], RIGHT: []}
        for side, times in ((LEFT, left), (RIGHT, right)):
            self.open(side, times, **options)

    def open(self, side: Side, times: list[Any], **options: Any) -> SideCamera:  # noqa: A003
        inner = TimedCamera(side, times, **options)
        self.opened.append(inner)
        camera = self.cameras[side] = self.sides.join(side, inner)
        camera.allocate(agree([camera.constraints()], SIZE))
        return camera

    def held(self, *sides: Side) -> int:
        """Return how many slots are leased on these sides, by default on both."""
        pools = [camera.pool for camera in self.opened if camera.side in (sides or Side)]
        return sum(pool.statistics().states.get(SlotState.LEASED, 0) for pool in pools if pool)

    def drain(self, *sides: Side) -> None:
        for side in sides:
            frame = self.cameras[side].capture()
            assert self.held(side) <= self.sides.depth
            if frame is not None:
                with frame:
                    assert frame.header.frame_id == side.value
                    self.out[side].append((frame.header.stamp_ns, frame.data.captured_ns))

    def close(self) -> None:
        for camera in self.cameras.values():
            camera.close()
        assert self.held() == 0


@st.composite
def two_sensors(draw: st.DrawFn) -> tuple[list[int], list[int], list[Side]]:
    """Draw frames 100 apart with jitter and losses, and the order in which sides are polled."""
    count = draw(st.integers(0, 15))
    left, right, order = [], [], []
    for number in range(1, count + 1):
        here = []
        for side, times in ((LEFT, left), (RIGHT, right)):
            if draw(st.booleans()) or draw(st.booleans()):
                times.append(100 * number + draw(st.integers(-2, 2)))
                here.append(side)
        order += draw(st.permutations(here))
    return left, right, order


@settings(max_examples=60)
@given(two_sensors())
def test_exactly_the_frames_of_one_moment_come_out_on_both_sides_with_one_stamp(
    case: tuple[list[int], list[int], list[Side]],
) -> None:
    left, right, order = case
    with closing(Pair(list(left), list(right))) as pair:
        for side in order:
            # A ready frame is delivered before a new one is taken: poll until the camera was read.
            times = pair.cameras[side].inner.times  # type: ignore[attr-defined]
            left_over = len(times)
            while len(times) == left_over:
                pair.drain(side)
        while not all(camera.ended for camera in pair.cameras.values()):
            pair.drain(*Side)
        by_number = {round(t / 100): t for t in right}
        expected = [(t, by_number[round(t / 100)]) for t in left if round(t / 100) in by_number]
        # The stamp is the left side's.
        assert pair.out == {
            LEFT: [(a + 7, a) for a, _ in expected],
            RIGHT: [(a + 7, b) for a, b in expected],
        }
        assert pair.sides.statistics().pairs == len(expected)
    assert dict(pair.sides.statistics().alone) == {
        LEFT: len(left) - len(expected),
        RIGHT: len(right) - len(expected),
    }


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(['capture', 'close', 'open', 'stop']), st.sampled_from(Side)),
        max_size=40,
    ),
    st.lists(st.integers(0, 30), min_size=60, max_size=60),
)
def test_whatever_is_closed_when_no_frame_stays_leased(
    steps: list[tuple[str, Side]], steps_of_time: list[int]
) -> None:
    gaps = iter(steps_of_time)
    clock = {LEFT: 0, RIGHT: 0}
    pair = Pair([], [], ends=False)
    closed: set[Side] = set()
    for step, side in steps:
        camera = pair.cameras[side]
        if step == 'close':
            camera.close()
            closed.add(side)
            assert pair.held(side) == 0 and not pair.sides.present(side)
        elif step == 'open' and side in closed:
            pair.open(side, [], ends=False)
            closed.discard(side)
        elif step == 'stop':
            camera.stop()
        elif side not in closed:
            clock[side] += next(gaps)
            camera.inner.times.append(clock[side])  # type: ignore[attr-defined]
            pair.drain(side)
        assert all(pair.held(each) <= pair.sides.depth for each in Side)
    pair.close()
    pair.close()
    stamps = {stamp for stamp, _ in pair.out[RIGHT]}
    assert stamps <= {7 + time for time in range(clock[LEFT] + 1)}, (
        'every stamp is one of the left side'
    )


@pytest.mark.parametrize('end', ['stop', 'close the other', 'pass by'])
def test_a_waiting_side_gives_up_when_nothing_can_come(end: str) -> None:
    pair = Pair([100], [], ends=False, framerate=0.75 / (4 * WAIT_S))
    thread = threading.Thread(target=pair.cameras[LEFT].capture)
    thread.start()
    until(lambda: pair.held(LEFT) == 1)
    assert thread.is_alive()
    right = pair.cameras[RIGHT]
    if end == 'stop':
        pair.cameras[LEFT].stop()
    elif end == 'close the other':
        right.close()
    else:
        right.inner.times.append(200)  # type: ignore[attr-defined]
        pair.sides.offer(right, right.inner.capture(), 0.0)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    pair.close()


def test_recordings_pair_by_their_stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stereo, '_RECORDED_PATIENCE_S', 0.0)
    pair = Pair([100, 200], [5098, 5198], by_stamp=True)
    pair.opened[1].late = 5000
    pair.drain(*[LEFT, RIGHT] * 3)
    assert pair.out == {LEFT: [(107, 100), (207, 200)], RIGHT: [(107, 5098), (207, 5198)]}
    pair.close()


def test_a_side_of_a_recording_waits_for_one_that_begins_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stereo, '_RECORDED_PATIENCE_S', WAIT_S)
    pair = Pair([*range(100, 1000, 100)], [*range(600, 1000, 100)], by_stamp=True, ends=False)
    with closing(pair):

        def play(side: Side) -> None:
            until(lambda: pair.drain(side) or len(pair.out[side]) == 4)

        left = threading.Thread(target=play, args=(LEFT,))
        left.start()
        until(lambda: pair.held(LEFT) == 1)
        play(RIGHT)
        left.join(WAIT_S)
        assert [time for _, time in pair.out[LEFT]] == [600, 700, 800, 900]
        assert [time for _, time in pair.out[RIGHT]] == [600, 700, 800, 900]


def test_a_side_that_ended_still_gives_what_becomes_a_pair() -> None:
    pair = Pair([100], [101])
    pair.drain(LEFT)
    assert pair.out[LEFT] == [] and not pair.cameras[LEFT].ended, 'its frame waits'
    pair.drain(RIGHT)
    assert pair.out[RIGHT] and pair.cameras[RIGHT].ended
    pair.drain(LEFT)
    assert pair.out[LEFT] and pair.cameras[LEFT].ended
    pair.close()
    alone = Pair([100], [])
    assert alone.cameras[LEFT].capture() is None and alone.cameras[LEFT].ended, (
        'nobody can give it a counterpart'
    )
    alone.close()


def test_other_sizes_are_worth_a_notice() -> None:
    pair = Pair([], [])
    assert pair.cameras[LEFT].notices() == ()
    pair.cameras[RIGHT].width = 32
    assert 'gives 64x64, the right camera 32x64' in pair.cameras[LEFT].notices()[0]
    pair.close()
    assert pair.cameras[LEFT].notices() == ()


@pytest.mark.parametrize(
    ('other', 'message'),
    [
        (PairingRule(6_000_000), '0.005 s on one side and 0.006 s'),
        (PairingRule(5_000_000, True), 'with the recorded stamps'),
    ],
)
def test_both_sides_must_pair_alike(other: PairingRule, message: str) -> None:
    PairingRule(5_000_000).check_same(PairingRule(5_000_000))
    with pytest.raises(ConfigError, match=message):
        PairingRule(5_000_000).check_same(other)


def test_an_error_of_the_camera_is_the_sides_own() -> None:
    pair = Pair([CameraError('broken'), 100], [101])
    with pytest.raises(CameraError, match='broken'):
        pair.cameras[LEFT].capture()
    pair.drain(RIGHT, LEFT)
    assert pair.out == {LEFT: [(107, 100)], RIGHT: []}
    pair.close()


def test_a_camera_whose_stop_raises_is_closed_all_the_same() -> None:
    pair = Pair([100], [101])
    with (
        patch.object(pair.opened[0], 'stop', side_effect=RuntimeError('spite')),
        patch.object(pair.opened[0]._heaps, 'close') as closed,
        pytest.raises(RuntimeError, match='spite'),
    ):
        pair.cameras[LEFT].close()
    assert closed.called and not pair.sides.present(LEFT)
    pair.close()


def test_a_camera_whose_place_was_taken_has_no_say() -> None:
    pair = Pair([100], [101], ends=False)
    old = pair.cameras[LEFT]
    pair.open(LEFT, [102], ends=False)
    assert old.capture() is None and pair.held() == 0, 'what it still gives is let go'
    old.close()
    assert pair.sides.present(LEFT)
    pair.drain(LEFT, RIGHT)
    assert pair.out == {LEFT: [], RIGHT: [(109, 101)]}
    pair.close()


def test_a_side_has_other_buffers_between_two_frames_as_its_camera_does() -> None:
    with closing(Pair([100, 200], [100, 200])) as pair:
        left = pair.cameras[LEFT]
        assert left.reallocates is left.inner.reallocates
        assert left.possible().slots == left.constraints().slots and not left.sizes()
        pair.drain(LEFT)
        other = who('other', stride_align=256)
        left.allocate(agree([left.constraints(), other], SIZE))
        pair.drain(*[*Side] * 4)
        assert [time for _, time in pair.out[LEFT]] == [100, 200]
        assert [time for _, time in pair.out[RIGHT]] == [100, 200]
