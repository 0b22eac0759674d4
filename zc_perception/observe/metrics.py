"""Latency windows: constant memory, O(1) per sample."""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass

import numpy as np

WINDOW = 1024


@dataclass(frozen=True)
class Percentiles:
    """Milliseconds; NaN without samples."""

    p50: float
    p99: float


class LatencyWindow:
    """The last :data:`WINDOW` durations of one stage. Any thread may record."""

    def __init__(self) -> None:
        # Not NumPy's: to store one number in that takes several times as long.
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
        """Samples since start, those that left the window too."""
        return self._count

    def percentiles(self) -> Percentiles:
        """Over the window."""
        with self._lock:
            samples = np.array(self._samples[: min(self._count, WINDOW)], np.int64)
        if not len(samples):
            return Percentiles(float('nan'), float('nan'))
        p50, p99 = np.percentile(samples, (50, 99)) / 1e6
        return Percentiles(float(p50), float(p99))


class StageLatencies:
    """A window for each stage of a frame's way.

    Stages: ``capture`` (the camera writes or fetches it), ``link`` (publish → the consumer has it), ``infer`` (submitted → result),
    ``decode`` (raw outputs → boxes), ``publish`` (boxes → message sent), ``end_to_end`` (frame captured → detections sent).
    """

    STAGES = ('capture', 'link', 'infer', 'decode', 'publish', 'end_to_end')

    def __init__(self) -> None:
        self.windows = {stage: LatencyWindow() for stage in self.STAGES}

    def record(self, stage: str, duration_ns: int) -> None:
        """Add one duration.

        :raises KeyError: unknown stage.
        """
        self.windows[stage].record(duration_ns)

    def summary(self) -> dict[str, Percentiles]:
        """Percentiles of every stage that has samples."""
        return {stage: window.percentiles() for stage, window in self.windows.items() if window.count}
