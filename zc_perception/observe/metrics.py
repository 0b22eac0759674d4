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

"""Measure latencies and the recent growth of counters; the needed memory doesn't grow."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
import struct
import threading
import time

import numpy as np
from numpy.typing import NDArray

WINDOW = 1024
# The durations of one frame: one number for each stage in StageLatencies.INFERENCE.
_FRAME = struct.Struct('=5q')


@dataclass(frozen=True)
class Percentiles:
    """Percentiles in milliseconds; NaN if there are no samples."""

    p50: float
    p99: float


class LatencyWindow:
    """The last :data:`WINDOW` durations of one stage; any thread may call any method."""

    def __init__(self) -> None:
        # Use array.array: storing a number in a NumPy array takes several times as long.
        self._samples = array('q', bytes(8 * WINDOW))
        self._count = 0
        self._lock = threading.Lock()

    def record(self, duration_ns: int) -> None:
        """Add one duration in nanoseconds."""
        with self._lock:
            self._samples[self._count % WINDOW] = duration_ns
            self._count += 1

    @property
    def count(self) -> int:
        """The number of durations since the start, including those that are no longer kept."""
        return self._count

    def percentiles(self) -> Percentiles:
        """Return the percentiles of the durations that are kept."""
        with self._lock:
            samples = np.array(self._samples[: min(self._count, WINDOW)], np.int64)
        if not len(samples):
            return Percentiles(float('nan'), float('nan'))
        # Sort the durations and interpolate: for so few numbers, np.percentile takes several times
        # as long.
        samples.sort()
        return Percentiles(_quantile(samples, 0.50), _quantile(samples, 0.99))


def _quantile(ordered: NDArray[np.int64], share: float) -> float:
    """Return a quantile in ms, interpolated between the two nearest samples."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (ordered[high] - ordered[low]) * (place - low)) / 1e6


class StageLatencies:
    """
    The latest durations of each stage of a frame.

    Stages: ``capture`` (the camera writes or fetches the frame), ``link`` (published → the
    consumer has it), ``infer`` (submitted → result), ``decode`` (raw outputs → boxes), ``publish``
    (boxes → message sent), ``end_to_end`` (frame captured → detections sent).
    """

    STAGES = ('capture', 'link', 'infer', 'decode', 'publish', 'end_to_end')
    #: The stages that :meth:`record_frame` records.
    INFERENCE = STAGES[1:]

    def __init__(self) -> None:
        self.windows = {stage: LatencyWindow() for stage in self.STAGES}
        self._frames = bytearray(WINDOW * _FRAME.size)
        self._frame_count = 0

    def record(self, stage: str, duration_ns: int) -> None:
        """Add one duration of *stage*, in nanoseconds."""
        self.windows[stage].record(duration_ns)

    def record_frame(
        self, link_ns: int, infer_ns: int, decode_ns: int, publish_ns: int, end_to_end_ns: int
    ) -> None:
        """Add a frame's durations of all inference stages. Only one thread may call this."""
        count = self._frame_count
        place = count % WINDOW * _FRAME.size
        _FRAME.pack_into(
            self._frames, place, link_ns, infer_ns, decode_ns, publish_ns, end_to_end_ns
        )
        self._frame_count = count + 1

    def summary(self) -> dict[str, Percentiles]:
        """Return percentiles of every stage that has samples."""
        found = {
            stage: window.percentiles() for stage, window in self.windows.items() if window.count
        }
        count = min(self._frame_count, WINDOW)
        if count:
            # Copy the numbers with NumPy: making Python objects would hold the interpreter's lock
            # for a millisecond and delay frames.
            frames = np.frombuffer(self._frames, np.int64).reshape(WINDOW, -1)[:count].T.copy()
            frames.sort(axis=1)
            columns = zip(self.INFERENCE, frames, strict=True)
            found |= {
                stage: Percentiles(_quantile(samples, 0.50), _quantile(samples, 0.99))
                for stage, samples in columns
            }
        return {stage: found[stage] for stage in self.STAGES if stage in found}


RECENT_S = 3.0
"""Diagnostics warn of an event until this many seconds after it."""
RATE_S = 1.0
"""A rate covers at least this many seconds: in less time, one frame would change the rate much."""
_LOOKS_KEPT = 50
_PAUSES_KEPT = 8
# A pause between events is unusual if it is this many times as long as the longest recent one.
_LONGER = 3
# The assumed length of a usual pause, in seconds, before the first one is measured.
_UNKNOWN_S = 2.0


class RecentCount:
    """Measure a counter's growth in the last :data:`RECENT_S` seconds; not thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._last: int | None = None
        self._growths: deque[tuple[float, int]] = deque()

    def see(self, count: int) -> int:
        """
        Note the counter's value; return its growth in the last :data:`RECENT_S` seconds.

        The first value counts as no growth. If the counter was reset (the value is smaller than
        the last one), the growth is the new value.
        """
        now = self._monotonic()
        last, self._last = self._last, count
        growth = 0 if last is None else count - last if count >= last else count
        if growth:
            self._growths.append((now, growth))
        while self._growths and now - self._growths[0][0] >= RECENT_S:
            self._growths.popleft()
        return sum(growth for _, growth in self._growths)


class RecentRates:
    """Measure how fast counters grow; not thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._looks: deque[tuple[float, tuple[int, ...]]] = deque()

    def see(
        self, *counts: int, over_s: float = 0.0, at_least: int = 0
    ) -> tuple[float, ...] | None:
        """
        Note the counters' values, and return the growth of each per second.

        :param counts: the values; the same counters, in the same order, at each call.
        :param over_s: measure over at least this many seconds, and at least :data:`RATE_S`.
        :param at_least: measure over as much time as the first counter needs to grow by this
            number, because a rate of few events isn't accurate.
        :returns: ``None`` if no earlier call is long enough ago for these conditions.
        """
        now, looks, span = self._monotonic(), self._looks, max(RATE_S, over_s)
        if looks and any(
            count < before for count, before in zip(counts, looks[-1][1], strict=True)
        ):
            looks.clear()  # the counters were reset since the last call
        while (
            len(looks) > 1 and now - looks[1][0] >= span and counts[0] - looks[1][1][0] >= at_least
        ):
            looks.popleft()
        then, before = looks[0] if looks else (now, counts)
        if len(looks) > 1 and looks[-1][1] == looks[-2][1] == counts:
            looks[-1] = (now, counts)  # of calls with equal values, store only the first and last
        elif not looks or now - looks[-1][0] >= span / _LOOKS_KEPT:
            looks.append((now, counts))
        if now - then < span or counts[0] - before[0] < at_least:
            return None
        return tuple(
            (count - old) / (now - then) for count, old in zip(counts, before, strict=True)
        )

    def forget(self) -> None:
        """Forget all earlier values."""
        self._looks.clear()


class Silence:
    """Detect unusually long pauses between regular events; not thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._last: int | None = None
        self._since: float | None = None
        self._pauses: deque[float] = deque(maxlen=_PAUSES_KEPT)
        self._unusual: float | None = None

    def see(self, count: int) -> float:
        """
        Note the number of events so far; return how long events have been missing.

        :returns: seconds since the last event, if this pause is unusually long; otherwise 0, also
            before the first event.
        """
        now = self._monotonic()
        if self._last is not None and count != self._last:
            if self._since is not None:
                self._learn(now - self._since)
            self._since = now
        self._last = count
        if self._since is None:
            return 0.0
        pause = now - self._since
        return pause if pause >= self._patience() else 0.0

    def _learn(self, pause: float) -> None:
        """
        Learn how long pauses usually are, from a pause that has ended.

        Learn nothing from a single unusually long pause, because it is an outage. Two such pauses
        in a row mean that the events have become rarer.
        """
        patience = self._patience()
        before, self._unusual = self._unusual, pause if pause >= patience else None
        if self._unusual is None:
            self._pauses.append(pause)
        elif before is not None:
            self._pauses.append(min(before, pause, 2 * patience))

    def _patience(self) -> float:
        return max(RATE_S, _LONGER * max(self._pauses, default=_UNKNOWN_S))

    def forget(self) -> None:
        """Forget all earlier events and pauses."""
        self._last = self._since = self._unusual = None
        self._pauses.clear()
