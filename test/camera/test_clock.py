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

"""Stamps from drivers' times, with clocks set by the test, and reads that are interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from zc_perception.camera.clock import CaptureClock, StampClock, SystemClocks

MS, S = 1_000_000, 1_000_000_000
PERIOD = 33 * MS
EPOCH = 1_700_000_000 * S
BOOT_AHEAD = 5 * S


class World:
    """A true time, and clocks with offsets from it; reading them takes time."""

    def __init__(self) -> None:
        self.true = 100 * S
        self.wall_offset = EPOCH
        self.simulated: int | None = None
        self.interruptions: Iterator[int] = iter(())

    def _tick(self) -> int:
        self.true += 300 + next(self.interruptions, 0)
        return self.true

    def boottime(self) -> int:
        return self._tick() + BOOT_AHEAD

    def realtime(self) -> int:
        return self._tick() + self.wall_offset

    def ros(self) -> int:
        now = self.realtime()
        return now if self.simulated is None else self.simulated

    def clock(self, is_simulated: Callable[[], bool] | None = None) -> StampClock:
        clocks = SystemClocks(self._tick, self.boottime, self.realtime)
        simulated = is_simulated or (lambda: self.simulated is not None)
        return StampClock(self.ros, clocks, is_simulated=simulated)

    def driver(self, clock: CaptureClock, at: int) -> int:
        """Return the time that a driver with this clock reports for the true time *at*."""
        ahead = {CaptureClock.BOOTTIME: BOOT_AHEAD, CaptureClock.REALTIME: self.wall_offset}
        return at + ahead.get(clock, 0)


KNOWN = (CaptureClock.MONOTONIC, CaptureClock.BOOTTIME, CaptureClock.REALTIME)


@settings(max_examples=60)
@given(
    interruptions=st.lists(st.one_of(st.just(0), st.integers(0, 4 * MS)), max_size=200),
    drift_ppm=st.integers(-500, 500),
    clock=st.sampled_from(KNOWN),
)
def test_within_a_millisecond_however_the_reads_are_interrupted(
    interruptions: list[int], drift_ppm: int, clock: CaptureClock
) -> None:
    stamps = (world := World()).clock()
    last = 0
    for index in range(40):
        exposed, offset = world.true, world.wall_offset
        captured = world.driver(clock, exposed)
        world.true += 2 * MS
        # In each frame a few reads are interrupted, not all.
        part = interruptions[slice(index * 5, index * 5 + 5)]
        world.interruptions = iter([*part, *([0] * 1000)])
        stamp = stamps.stamp(captured, clock)
        world.interruptions = iter(())
        assert abs(stamp - (exposed + offset)) < MS
        assert stamp > last
        last = stamp
        world.true += PERIOD
        world.wall_offset += drift_ppm * PERIOD // 1_000_000
    found = stamps.statistics()
    assert (found.steps, found.implausible, found.ahead_ns) == (0, 0, 0)
    wanted = {
        CaptureClock.MONOTONIC: world.wall_offset,
        CaptureClock.BOOTTIME: world.wall_offset - BOOT_AHEAD,
        CaptureClock.REALTIME: 0,
    }[clock]
    assert abs(found.offset_ns - wanted) < MS and not found.simulated


def test_a_frame_whose_every_read_was_interrupted_keeps_the_offset_before() -> None:
    stamps = (world := World()).clock()
    for _ in range(3):
        stamps.stamp(world.true, CaptureClock.MONOTONIC)
        world.true += PERIOD
    exposed = world.true
    # Reading the ROS clock is delayed before it, not after: the middle is wrong by 4 ms.
    world.interruptions = iter([0, 0, *([0, 8 * MS, 0] * 30)])
    stamp = stamps.stamp(exposed, CaptureClock.MONOTONIC)
    assert abs(stamp - (exposed + EPOCH)) < MS


@pytest.mark.parametrize('clock', (*KNOWN, CaptureClock.UNKNOWN))
@pytest.mark.parametrize('step', (10 * S, -10 * S))
def test_stamps_increase_through_a_step_of_the_wall_clock(clock: CaptureClock, step: int) -> None:
    stamps = (world := World()).clock()
    seen, errors = [], []
    for index in range(1500):
        if index == 100:
            world.wall_offset += step
        exposed = world.true
        captured = world.driver(clock, exposed)
        seen.append(stamps.stamp(captured, clock))
        errors.append(seen[-1] - (exposed + world.wall_offset))
        world.true += PERIOD
    intervals = [after - before for before, after in itertools.pairwise(seen)]
    assert min(intervals) > 0
    assert max(abs(error) for error in errors[:100] + errors[-100:]) < MS, (
        'before it, and once it has caught up'
    )
    found = stamps.statistics()
    assert found.ahead_ns == 0
    if clock is not CaptureClock.REALTIME:
        assert found.steps == 1
    if step > 0:
        assert max(abs(error) for error in errors) < MS and found.corrected == 0
    else:
        assert found.corrected > 0
        slow = intervals[101:-1] if clock is CaptureClock.REALTIME else intervals
        assert min(slow) > PERIOD // 2 - MS, 'a tracker divides by them'
        assert all(error >= -MS for error in errors)


@settings(max_examples=80)
@given(
    st.lists(
        st.tuples(st.integers(0, 100 * MS), st.integers(-10 * S, 10 * S),
                  st.integers(-6 * S, 20 * S), st.booleans()),
        min_size=1, max_size=40,
    ),
    st.sampled_from((*KNOWN, CaptureClock.UNKNOWN)),
)  # fmt: skip
def test_nothing_makes_stamps_of_system_time_go_back(
    frames: list[tuple[int, int, int, bool]], clock: CaptureClock
) -> None:
    world = World()
    stamps, last = world.clock(), None
    for pause, step, age, steps in frames:
        world.true += pause
        if steps:
            world.wall_offset += step
        stamp = stamps.stamp(world.driver(clock, world.true - age), clock)
        assert last is None or stamp > last
        last = stamp
    assert not stamps.statistics().simulated


def test_stamps_of_a_realtime_driver_are_its_own_to_the_nanosecond() -> None:
    world = World()
    world.interruptions = itertools.cycle([0, 3 * MS, 0, 5 * MS])
    stamps = world.clock()
    for _ in range(20):
        captured = world.realtime()
        world.true += 7 * MS
        assert stamps.stamp(captured, CaptureClock.REALTIME) == captured
        world.true += PERIOD
    found = stamps.statistics()
    assert (found.offset_ns, found.jitter_ns, found.steps, found.corrected) == (0, 0, 0, 0)


@pytest.mark.parametrize('simulated', (False, True))
def test_a_simulation_that_begins_or_ends_between_two_reads_is_seen(simulated: bool) -> None:
    world = World()
    first, then = (7 * S, None) if simulated else (None, 7 * S)
    world.simulated = first
    answers = iter([simulated, not simulated])

    def is_simulated() -> bool:
        now = next(answers, not simulated)
        world.simulated = then if now is not simulated else first
        return now

    stamps, exposed = world.clock(is_simulated), world.true
    stamp = stamps.stamp(exposed, CaptureClock.MONOTONIC)
    assert abs(stamp - (exposed + EPOCH if simulated else 7 * S)) < MS
    assert stamps.statistics().simulated is not simulated


def test_system_time_after_a_simulation_of_the_future_is_not_held_up_by_it() -> None:
    stamps = (world := World()).clock()
    stamps.stamp(world.true, CaptureClock.MONOTONIC)
    world.simulated = 3 * EPOCH
    world.true += PERIOD
    assert stamps.stamp(world.true, CaptureClock.MONOTONIC) == 3 * EPOCH
    world.simulated = None
    for _ in range(3):
        world.true += PERIOD
        exposed = world.true
        assert abs(stamps.stamp(exposed, CaptureClock.MONOTONIC) - (exposed + EPOCH)) < MS
    assert stamps.statistics().steps == 2, 'to the simulation and back'


@pytest.mark.parametrize('clock', (*KNOWN, CaptureClock.UNKNOWN))
@pytest.mark.parametrize('step', (-10 * S, 10 * S))
def test_a_camera_that_is_opened_again_goes_on_with_its_stamps(
    clock: CaptureClock, step: int
) -> None:
    world = World()
    stamps, last = world.clock(), 0
    for number in range(10):
        if number == 5:
            world.wall_offset += step
            world.true += 2 * S
            assert stamps.reopened() is stamps
        exposed = world.true
        stamp = stamps.stamp(world.driver(clock, exposed), clock)
        assert stamp > last
        if number < 5 or step >= 0:
            assert abs(stamp - (exposed + world.wall_offset)) < MS
        last = stamp
        world.true += PERIOD
    assert stamps.statistics().steps == 0, 'nobody measured across the gap'


def test_simulated_time_is_followed_as_it_stands_and_jumps() -> None:
    stamps = (world := World()).clock()
    for simulated, age, stamp in (
        *[(50 * S, 0, 50 * S + number) for number in range(3)],
        (50 * S + 1, 0, 50 * S + 3),
        (60 * S, 20 * MS, 60 * S),  # the age in real time says nothing about simulated time
        (10 * S, 20 * MS, 10 * S),  # the recording behind it has begun anew
    ):
        world.simulated = simulated
        assert stamps.stamp(world.true - age, CaptureClock.MONOTONIC) == stamp
        world.true += PERIOD
    found = stamps.statistics()
    assert found.simulated and found.steps == 1 and found.corrected == 3 and found.offset_ns == 0


@pytest.mark.parametrize('age', (-S, 11 * S))
def test_a_driver_s_time_that_can_not_be_is_counted_and_arrival_taken(age: int) -> None:
    stamps = (world := World()).clock()
    stamp = stamps.stamp(world.true - age, CaptureClock.MONOTONIC)
    assert abs(stamp - (world.true + EPOCH)) < MS
    assert stamps.statistics().implausible == 1
