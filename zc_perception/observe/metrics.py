"""Latency windows: constant memory, O(1) per sample."""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
        # Sorted once: np.percentile takes several times as long for so few.
        samples.sort()
        return Percentiles(_quantile(samples, 0.50), _quantile(samples, 0.99))


def _quantile(ordered: NDArray[np.int64], share: float) -> float:
    """In ms, between the two nearest samples."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low] + (ordered[high] - ordered[low]) * (place - low)) / 1e6


class StageLatencies:
    """A window for each stage of a frame's way.

    Stages: ``capture`` (the camera writes or fetches it), ``link`` (publish → the consumer has it), ``infer`` (submitted → result),
    ``decode`` (raw outputs → boxes), ``publish`` (boxes → message sent), ``end_to_end`` (frame captured → detections sent).
    """

    STAGES = ('capture', 'link', 'infer', 'decode', 'publish', 'end_to_end')
    #: Of :meth:`record_frame`.
    INFERENCE = STAGES[1:]

    def __init__(self) -> None:
        self.windows = {stage: LatencyWindow() for stage in self.STAGES}
        self._frames: list[tuple[int, ...]] = [()] * WINDOW
        self._frame_count = 0

    def record(self, stage: str, duration_ns: int) -> None:
        """Add one duration.

        :raises KeyError: unknown stage.
        """
        self.windows[stage].record(duration_ns)

    def record_frame(
        self, link_ns: int, infer_ns: int, decode_ns: int, publish_ns: int, end_to_end_ns: int
    ) -> None:
        """Add a frame's stages in the inference node, all at once, which costs less than one by one. One thread only."""
        count = self._frame_count
        self._frames[count % WINDOW] = (link_ns, infer_ns, decode_ns, publish_ns, end_to_end_ns)
        self._frame_count = count + 1

    def summary(self) -> dict[str, Percentiles]:
        """Percentiles of every stage that has samples."""
        found = {
            stage: window.percentiles() for stage, window in self.windows.items() if window.count
        }
        frames = np.array(self._frames[: min(self._frame_count, WINDOW)], np.int64)
        if len(frames):
            frames.sort(axis=0)
            columns = zip(self.INFERENCE, frames.T, strict=True)
            found |= {
                stage: Percentiles(_quantile(samples, 0.50), _quantile(samples, 0.99))
                for stage, samples in columns
            }
        return {stage: found[stage] for stage in self.STAGES if stage in found}
