"""What cameras state of their buffers, as far as it is known without one: ``zc_doctor`` counts with it before any is opened."""

from __future__ import annotations

from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.heaps import OfferedHeaps
from zc_perception.negotiation.constraints import BufferConstraints, Size
from zc_perception.pixel.modifier import LINEAR

PIPELINE_RESERVE = 2
"""Of a pipeline: one frame is being handed over while the next one comes."""
LIBCAMERA_RESERVE = 3
"""What a pipeline handler needs queued, and one frame that is being handed over."""


def drawn_constraints(fourcc: int, size: Size, heaps: OfferedHeaps) -> BufferConstraints:
    """Of a camera whose frames the CPU writes: one slot is being filled while another is being published."""
    return BufferConstraints(
        'camera',
        formats=((fourcc, LINEAR),),
        heaps=heaps.names,
        memory_note='; '.join(heaps.reasons),
        slots=2,
        min_size=size,
        max_size=size,
        cpu_access=CpuAccess.READ | CpuAccess.WRITE,
    )
