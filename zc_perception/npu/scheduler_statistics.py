"""What a scheduler counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SchedulerStatistics:
    """Frames that a scheduler has seen. Each ends once: taken = refused_disabled + refused_recovering + refused_device + submitted,
    and submitted = completed + timed_out + failed + in_flight.

    :param taken: frames taken from the queue.
    :param dropped: frames that a newer one replaced in the queue before they were taken (newest wins); not among ``taken``.
    :param refused_disabled: frames that nobody wanted (detection is switched off).
    :param refused_recovering: frames that came while there was no device.
    :param refused_device: frames that the device didn't import, or whose job it didn't take.
    :param submitted: jobs.
    :param completed: jobs whose result was handed over.
    :param timed_out: jobs that were given up.
    :param failed: jobs with an error: the device's, a lost device's, or that of whoever took the result.
    :param in_flight: jobs submitted and not finished.
    :param losses: how often the device was lost.
    :param recovered: how often it was opened anew.
    :param imports: buffers imported, by all devices since the start.
    :param trial_imports: imports that were only on trial.
    :param busy_ns: time with a job on the device.
    :param at_ns: when these figures were taken, CLOCK_MONOTONIC.
    """

    taken: int = 0
    dropped: int = 0
    refused_disabled: int = 0
    refused_recovering: int = 0
    refused_device: int = 0
    submitted: int = 0
    completed: int = 0
    timed_out: int = 0
    failed: int = 0
    in_flight: int = 0
    losses: int = 0
    recovered: int = 0
    imports: int = 0
    trial_imports: int = 0
    busy_ns: int = 0
    at_ns: int = 0

    @property
    def lost(self) -> int:
        """Frames that were wanted and have no result, those aside that a newer one replaced."""
        return self.refused_recovering + self.refused_device + self.timed_out + self.failed

    def utilisation_since(self, earlier: SchedulerStatistics) -> float:
        """Share of the time since *earlier* in which the device had a job, 0..1."""
        elapsed_ns = self.at_ns - earlier.at_ns
        return min(1.0, (self.busy_ns - earlier.busy_ns) / elapsed_ns) if elapsed_ns > 0 else 0.0
