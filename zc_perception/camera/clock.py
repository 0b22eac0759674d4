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
Convert a driver's time stamps to times of the ROS clock.

The offset between the two clocks is measured for every frame, because NTP or PTP corrections
change it. Stamps increase. They go back only when a simulation begins, ends, or sets its own time
back.

A measurement reads both clocks. It is wrong if the scheduler interrupts the thread between the
reads. So the driver's clock is read before and after the ROS clock, several times if needed. The
measurement with the shortest time between the two reads of the driver's clock is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
import time

Clock = Callable[[], int]


class CaptureClock(Enum):
    """The clock of a driver's time stamps. UNKNOWN: the time of the frame's arrival is used."""

    MONOTONIC = time.CLOCK_MONOTONIC
    BOOTTIME = time.CLOCK_BOOTTIME
    REALTIME = time.CLOCK_REALTIME
    UNKNOWN = -1


@dataclass(frozen=True)
class ClockStatistics:
    """
    Measurements of a camera's clock, and counts since the start.

    :param offset_ns: ROS clock minus the driver's clock, as last measured; 0 before the first
        measurement, and for UNKNOWN or simulated time.
    :param jitter_ns: how much the offset changes from frame to frame, smoothed; steps of a clock
        don't count.
    :param steps: how often the ROS clock was set forwards or backwards.
    :param corrected: number of stamps that were moved to a later time, so that stamps increase.
    :param ahead_ns: by how much the last stamp was moved to a later time, for example because the
        ROS clock was set back; 0: it wasn't moved.
    :param implausible: number of the driver's stamps that lay in the future or far in the past, so
        that the time of arrival was used.
    :param simulated: whether a simulation drives the ROS clock.
    """

    offset_ns: int = 0
    jitter_ns: int = 0
    steps: int = 0
    corrected: int = 0
    ahead_ns: int = 0
    implausible: int = 0
    simulated: bool = False


@dataclass(frozen=True)
class SystemClocks:
    """The clocks of the machine, in nanoseconds; replaced in tests."""

    monotonic: Clock = time.monotonic_ns
    boottime: Clock = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    realtime: Clock = time.time_ns

    def of(self, clock: CaptureClock) -> Clock:
        """Return the function that reads the clock of the driver's stamps."""
        return {CaptureClock.BOOTTIME: self.boottime, CaptureClock.REALTIME: self.realtime}.get(
            clock, self.monotonic
        )


SYSTEM_CLOCKS = SystemClocks()

# If reading the driver's clock and the ROS clock together took at most this time, the thread was
# not interrupted in between.
_TIGHT_NS = 20_000
_MAX_READS = 6
# If reading both clocks took longer than this, the new offset isn't exact. Then it is used only if
# it differs from the previous offset by more than its possible error.
_WIDE_NS = 200_000
# A change of the offset counts as a step if it is too large for drift: more than 1 ms plus a
# thousandth of the time since the last measurement (NTP slews by at most 1/2000).
_STEP_NS = 1_000_000
_STEP_SHARE = 1000
_FUTURE_NS = 5_000_000
_PAST_NS = 10_000_000_000
_SMOOTHING = 16


class StampClock:
    """
    Makes the stamps of one camera's frames; stays in use when the camera is opened again.

    Only one thread calls :meth:`stamp`, so it takes no lock.

    Unless a simulation drives the ROS clock, each stamp is later than the one before. After the
    ROS clock was set back, the time between two stamps is at least half of the time between the
    two captures, until the clock has caught up with the stamps. Trackers divide by this time, so
    it must not become tiny.

    When a simulation drives the ROS clock, a stamp is the simulation's time on arrival. If that
    time stands still, stamps differ by 1 ns. If it jumps back, the stamps jump back too. When a
    simulation begins or ends, the next stamp has the new time of the ROS clock, even if this is
    earlier than the last stamp.

    :param ros_now_ns: returns the time of the node's clock. Unless a simulation drives that clock,
        it is CLOCK_REALTIME, as rcutils' system time is.
    :param clocks: the machine's clocks; tests pass replacements.
    :param is_simulated: returns whether a simulation drives the ROS clock now: a node's
        ``get_clock().ros_time_is_active``. The ROS clock's time alone can't show this, because a
        simulation's time may be the present time of day.
    """

    def __init__(
        self,
        ros_now_ns: Clock,
        clocks: SystemClocks = SYSTEM_CLOCKS,
        *,
        is_simulated: Callable[[], bool] = lambda: False,
    ) -> None:
        self._ros_now = ros_now_ns
        self._clocks = clocks
        self._is_simulated = is_simulated
        self._last_ns: int | None = None
        self._last_ros = 0
        self._last_captured: int | None = None
        self._last_arrival = 0
        self._capture_clock: CaptureClock | None = None
        self._device: Clock = clocks.monotonic
        self._offset: int | None = None
        self._simulated = False
        self._jitter = 0
        self._steps = 0
        self._corrected = 0
        self._ahead = 0
        self._implausible = 0

    def reopened(self) -> StampClock:
        """
        Discard what was measured for the camera that used this clock, and return the clock.

        Called when a camera is opened. The last stamp is kept, so that stamps go on increasing.
        """
        self._capture_clock = self._offset = self._last_captured = None
        return self

    def stamp(self, captured_ns: int, clock: CaptureClock) -> int:
        """
        Return the ROS time of a picture whose driver's time stamp is *captured_ns*.

        :param captured_ns: the driver's time stamp; ignored if *clock* is UNKNOWN.
        :param clock: the clock from which the driver took the time stamp.
        """
        arrival = self._clocks.monotonic()
        if clock is not self._capture_clock:
            self._capture_clock, self._offset, self._last_captured = clock, None, None
            self._device = self._clocks.of(clock)
        device = self._device
        simulated = self._is_simulated()
        ros, at, width = self._read(device, simulated)
        # Read again if a simulation began or ended while the clocks were read.
        if self._is_simulated() is not simulated:
            simulated = not simulated
            ros, at, width = self._read(device, simulated)
        if simulated is not self._simulated:
            self._simulated, self._offset = simulated, None
            self._steps += self._last_ns is not None
            self._last_ns = None
        if simulated:
            result = self._follow(ros)
        else:
            age = 0 if clock is CaptureClock.UNKNOWN else at - captured_ns
            if not -_FUTURE_NS <= age <= _PAST_NS:
                self._implausible += 1
                age = 0
            offset = self._settle(ros - at, width, arrival)
            result = self._increase(at - age + offset, at - age, arrival)
        self._last_ns, self._last_ros, self._last_arrival = result, ros, arrival
        return result

    def _read(self, device: Clock, simulated: bool) -> tuple[int, int, int]:
        """
        Return what :meth:`_read_pair` returns, but read only one clock if one is enough.

        In a simulation only the ROS clock is read. If the driver's time stamps are in
        CLOCK_REALTIME, only CLOCK_REALTIME is read.
        """
        if simulated:
            return self._ros_now(), 0, 0
        if self._capture_clock is CaptureClock.REALTIME:
            at = device()
            return (
                at,
                at,
                0,
            )  # the device's clock is the ROS clock, so a measured offset would be only noise
        return self._read_pair(device)

    def _read_pair(self, device: Clock) -> tuple[int, int, int]:
        """Return ROS time, device time at that moment, and the duration of the read, in ns."""
        best = (0, 0, -1)
        for _ in range(_MAX_READS):
            before = device()
            ros = self._ros_now()
            after = device()
            width = after - before
            if not 0 <= best[2] <= width:
                best = (ros, before + width // 2, width)
            if 0 <= width <= _TIGHT_NS:
                break
        # If best[2] is negative, the device's clock was set back during the last read. Earlier
        # reads have that clock's old time, so return the clock's time after the step.
        return best if best[2] >= 0 else (ros, after, 0)

    def _settle(self, offset: int, width: int, arrival: int) -> int:
        """
        Return the offset to use: the new offset, or the last one if the new one is less exact.

        A measurement's error is at most half of *width*, the time between its two reads of the
        driver's clock.
        """
        known = self._offset
        if known is None:
            self._offset = offset
            return offset
        change = abs(offset - known)
        if width > _WIDE_NS and change <= width // 2:
            return known
        if change > _STEP_NS + width + (arrival - self._last_arrival) // _STEP_SHARE:
            self._steps += 1
        else:
            self._jitter += (change - self._jitter) // _SMOOTHING
        self._offset = offset
        return offset

    def _increase(self, wanted: int, captured: int, arrival: int) -> int:
        """Return *wanted*, at least the last stamp plus half the time since the last capture."""
        pace = 0 if self._last_captured is None else captured - self._last_captured
        # If CLOCK_REALTIME was set forwards between the two captures, the difference of their
        # times is too large. The time between the two arrivals limits it.
        if self._capture_clock is CaptureClock.REALTIME:
            pace = min(pace, arrival - self._last_arrival)
        self._last_captured = captured
        least = wanted if self._last_ns is None else self._last_ns + max(1, pace // 2)
        self._ahead = max(0, least - wanted)
        self._corrected += least > wanted
        return max(wanted, least)

    def _follow(self, ros: int) -> int:
        last = self._last_ns
        self._ahead = 0
        if last is None:
            return ros
        if ros < self._last_ros:
            self._steps += 1
            return ros
        self._corrected += ros <= last
        return max(ros, last + 1)

    @property
    def troubles(self) -> int:
        """Number of ROS clock steps plus implausible stamps; if it rises, diagnostics are sent."""
        return self._steps + self._implausible

    def statistics(self) -> ClockStatistics:
        """Return offset, jitter and counters; any thread may call it."""
        offset = (
            0
            if self._simulated or self._capture_clock is CaptureClock.UNKNOWN
            else self._offset or 0
        )
        return ClockStatistics(
            offset,
            self._jitter,
            self._steps,
            self._corrected,
            self._ahead,
            self._implausible,
            self._simulated,
        )
