"""A frame on the device."""

from __future__ import annotations

from dataclasses import dataclass

from zc_perception.frame import Frame
from zc_perception.npu.accelerator import ImportHandle, Job


@dataclass(slots=True, eq=False)
class InFlight:
    """One submitted frame. Times are CLOCK_MONOTONIC nanoseconds; ``signalled_ns`` is 0 until its fence has been seen.

    :param submitted_ns: its buffers were imported, and the device was about to get the job.
    """

    frame: Frame
    handle: ImportHandle
    job: Job
    received_ns: int
    deadline_ns: int
    fence_fd: int = -1
    signalled_ns: int = 0
    submitted_ns: int = 0
