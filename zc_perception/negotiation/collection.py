"""Collects every participant's constraints and settles on one allocation.

The result is the intersection, chosen before anything is allocated; the allocator may only pad. An empty intersection names each
participant and what emptied it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from zc_perception.errors import NegotiationError
from zc_perception.negotiation.constraints import BufferConstraints, BufferSettings, Format
from zc_perception.pixel.fourcc import fourcc_name
from zc_perception.pixel.layout import compute_layout
from zc_perception.pixel.modifier import LINEAR, modifier_name


def format_text(fmt: Format) -> str:
    """``NV12 LINEAR``."""
    return f'{fourcc_name(fmt[0])} {modifier_name(fmt[1])}'


def common_format(participants: Sequence[BufferConstraints]) -> Format:
    """The first format of the first choosy participant that all others can use.

    :raises NegotiationError: there is none.
    """
    choosy = [p for p in participants if p.formats is not None]
    if not choosy:
        raise NegotiationError('no participant names a format; the camera must')
    for candidate in choosy[0].formats or ():
        if all(candidate in (p.formats or ()) for p in choosy):
            return candidate
    offers = '; '.join(f'{p.participant}: {", ".join(map(format_text, p.formats or ())) or "none"}' for p in choosy)
    raise NegotiationError(f'no common pixel format and modifier ({offers}); add a converting participant or change one of them')


def negotiate(participants: Sequence[BufferConstraints], width: int, height: int, *, heap: str) -> BufferSettings:
    """Settle on layout and number of slots for *width* × *height* images from *heap*.

    :raises NegotiationError: no common format, or a participant can't use the heap.
    :raises LayoutError: the format can't have that size.
    """
    fourcc, modifier = common_format(participants)
    if modifier != LINEAR:
        raise NegotiationError(f'{format_text((fourcc, modifier))}: only the camera itself can allocate a non-linear layout')
    for participant in participants:
        if not participant.accepts_heap(heap):
            wanted = ', '.join(participant.heaps or ())
            raise NegotiationError(f"{participant.participant} can't use buffers of heap '{heap}', only of {wanted}; set parameter 'heap'")
    stride_align = math.lcm(*(p.stride_align for p in participants))
    offset_align = math.lcm(*(p.offset_align for p in participants))
    layout = compute_layout(fourcc, width, height, stride_align=stride_align, offset_align=offset_align)
    return BufferSettings(layout, sum(p.slots for p in participants))
