"""What accelerators state of the frames that they read, as far as it is known without one: ``zc_doctor`` counts with it beforehand.

A Metis card's own needs are its driver's: :meth:`~zc_perception.npu.axl.device.AxlCapabilities.constraints`.
"""

from __future__ import annotations

from dataclasses import replace

from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.pixel.modifier import LINEAR
from zc_perception.pixel.readable import READABLE

CPU_JOBS = 2
AXRUNTIME_JOBS = 2
LATE_CALLS = 2
"""Of axruntime with double buffering: how many calls later a result comes."""
AXRUNTIME_JOBS_DOUBLE_BUFFERED = LATE_CALLS + 1
"""Two inside the runtime and one that is converted or running: with fewer, no result would ever push another one out."""


def axruntime_jobs(cores: int, *, double_buffer: bool) -> int:
    """How many jobs accelerator axruntime takes before the first has completed.

    :param cores: parameter ``aipu_cores``: 0 stands for one.
    """
    return max(1, cores) * (AXRUNTIME_JOBS_DOUBLE_BUFFERED if double_buffer else AXRUNTIME_JOBS)


def cpu_constraints() -> BufferConstraints:
    """Of accelerator cpu."""
    return _reader('cpu accelerator')


def axruntime_constraints() -> BufferConstraints:
    """Of accelerator axruntime."""
    return _reader('axruntime accelerator')


def _reader(participant: str) -> BufferConstraints:
    """Of an accelerator for which the CPU reads the pixels."""
    formats, costs = tuple((fourcc, LINEAR) for fourcc in READABLE), tuple(READABLE.values())
    return BufferConstraints(participant, formats=formats, costs=costs, cpu_access=CpuAccess.READ)


def with_frames(constraints: BufferConstraints, in_flight: int, most: int) -> BufferConstraints:
    """An accelerator's constraints with the slots that inference holds: the frames in flight, and the one that waits.

    :param in_flight: as parameter ``in_flight`` asks for.
    :param most: jobs that the accelerator takes at the same time.
    """
    return replace(constraints, slots=min(in_flight, most) + 1)
