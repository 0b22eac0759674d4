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
Choose one buffer setting that suits every participant, or explain why there is none.

This module also checks that an allocation matches the setting.

Formats are compared as pairs of fourcc and modifier. Sizes, heaps, placement, alignments and slot
counts don't depend on each other, so each is checked by itself. If no setting suits all
participants, the error names every constraint that is a cause.

Each participant gives each format a cost. If several formats are possible, the one with the lowest
sum of all participants' costs is chosen; among equal sums, the one that comes first in the
producer's list. So the result doesn't depend on the order in which consumers arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from zc_perception.errors import FormatError, LayoutError, NegotiationError
from zc_perception.negotiation.constraints import (
    BufferConstraints,
    Format,
    format_text,
    formats_text,
    Placement,
    Size,
    size_text,
)
from zc_perception.negotiation.settings import (
    Allocation,
    AllocationRequest,
    BufferSettings,
    heap_offer,
    HeapOffer,
    ImageLimits,
    joint_limits,
    Objection,
    objection_text,
    violations,
)
from zc_perception.pixel.fourcc import FORMATS, fourcc_name, pixel_format
from zc_perception.pixel.layout import check_dimensions, validate_layout
from zc_perception.pixel.modifier import INVALID, LINEAR, modifier_name, same_layout

Participants = Sequence[BufferConstraints]
# An image with padding may take at most _MOST_TIMES its bytes without padding, plus _MOST_PADDING
# bytes. No device needs more. Without this limit, large alignments could use up all memory.
_MOST_PADDING = 1 << 24
_MOST_TIMES = 8


def offers_of(participants: Sequence[BufferConstraints], fmt: Format | None) -> list[HeapOffer]:
    """
    Return the heaps that the producer names, in its order.

    If it names none, return all heaps that any participant names in full. Leave out prefixes such
    as ``dma_heap/``.
    """
    producer = _producer(participants, fmt)
    naming = participants if producer is None or producer.heaps is None else [producer]
    return [
        heap_offer(name)
        for name in dict.fromkeys(n for p in naming for n in p.heaps or () if not n.endswith('/'))
    ]


def _producer(
    participants: Sequence[BufferConstraints], fmt: Format | None
) -> BufferConstraints | None:
    return next((p.for_format(fmt) for p in participants if p.formats is not None), None)


@dataclass(frozen=True)
class HeapChoice:
    """
    The chosen heap and the reason for this choice; or, if no heap suits, all objections.

    All fields are empty if no participant has a constraint on heaps.
    """

    heap: HeapOffer | None = None
    reason: str = ''
    objection: str = ''


def choose_heap(participants: Sequence[BufferConstraints], fmt: Format | None) -> HeapChoice:
    """Choose the first of the offered heaps that all participants can use for images of *fmt*."""
    offers = offers_of(participants, fmt)
    good = [offer for offer in offers if not any(offer.objections(p, fmt) for p in participants)]
    if good:
        return HeapChoice(good[0], _reason(good[0], offers, participants, fmt))
    if offers:
        against = _against(offers, participants, fmt)
        note = _producer_note(participants, fmt)
        return HeapChoice(objection=f"{against}{note}; set parameter 'heap' to another heap")
    who = [p.participant for p in participants if p.wants_certain_memory]
    if who:
        want = 'want' if len(who) > 1 else 'wants'
        return HeapChoice(
            objection=f'{" and ".join(who)} {want} a certain kind of memory, but no heap is '
            "offered; name a heap in parameter 'heap'"
        )
    return HeapChoice()


def _reason(
    best: HeapOffer,
    offers: Sequence[HeapOffer],
    participants: Sequence[BufferConstraints],
    fmt: Format | None,
) -> str:
    unsuitable = offers[: offers.index(best)]
    if unsuitable:
        found = [_against(unsuitable, participants, fmt)]
    elif len(offers) > 1:
        names = ', '.join(offer.name for offer in offers)
        found = [f'it is the first of {names} and suits every participant']
    else:
        found = [f'no other heap is offered{_producer_note(participants, fmt)}']
    for p in participants:
        if p.contiguous and best.contiguous is None:
            found.append(
                f'only the import by {p.participant} shows whether this memory is contiguous'
            )
        elif p.devices and p.memory_note and not p.contiguous:
            found.append(f'{p.participant}: {p.memory_note}')
    return f'heap {best.name} because {"; ".join(found)}'


def _producer_note(participants: Sequence[BufferConstraints], fmt: Format | None) -> str:
    """Return the producer's reason for offering no other heaps, if it gives one."""
    producer = _producer(participants, fmt)
    return (
        f' ({producer.participant}: {producer.memory_note})'
        if producer is not None and producer.memory_note
        else ''
    )


def _against(
    offers: Sequence[HeapOffer], participants: Sequence[BufferConstraints], fmt: Format | None
) -> str:
    """List each participant's first objection to each heap; name equal objections only once."""
    heaps_of: dict[Objection, list[str]] = {}
    for participant in participants:
        for offer in offers:
            objection = next(offer.each_objection(participant, fmt), None)
            if objection is not None:
                heaps_of.setdefault(objection, []).append(offer.name)
    return '; '.join(objection_text(objection, names) for objection, names in heaps_of.items())


def _candidates(participants: Participants) -> list[Format]:
    """
    Return the producer's formats that every participant accepts, the lowest sum of costs first.

    A format with modifier INVALID that no consumer lists comes last, if its fourcc is
    accepted with modifier LINEAR as well.
    """
    producer, *others = (p for p in participants if p.formats is not None)
    found = [
        fmt for fmt in producer.formats or () if all(p.accepts_format(fmt) for p in participants)
    ]
    linear = {fourcc for fourcc, modifier in found if modifier == LINEAR}
    listed = {fmt for p in others for fmt in p.formats or ()}
    return sorted(
        found,
        key=lambda fmt: (
            fmt[1] == INVALID and fmt[0] in linear and fmt not in listed,
            sum(p.format_cost(fmt) for p in participants),
        ),
    )


def _format_objection(participants: Participants) -> str:
    """Explain why no format suits every participant."""
    choosy = [p for p in participants if p.formats is not None]
    offers = '; '.join(f'{p.participant}: {formats_text(p.formats)}' for p in choosy)
    common = [f for f in choosy[0].formats or () if all(p.listed(f) for p in choosy)]
    if common:
        users = ', '.join(p.participant for p in participants if p.uses_cpu)
        return (
            f'the CPU access of {users} needs LINEAR, but the only common formats are '
            f'{formats_text(common)} ({offers}); add the same LINEAR format to each '
            'of these lists, or let a device read the pixels instead of the CPU'
        )
    both = set.intersection(*({code for code, _ in p.formats or ()} for p in choosy))
    reason = ''
    if both:
        names = ', '.join(sorted(map(fourcc_name, both)))
        reason = f'every participant can use {names}, but no modifier is common; '
    return (
        f'no common pixel format and modifier ({offers}); {reason}add a converting '
        'participant or change one of the participants'
    )


def _choose_placement(participants: Participants) -> tuple[Placement | None, str | None]:
    wanted: dict[Placement, str] = {}
    for p in participants:
        if p.placement is not None:
            wanted.setdefault(p.placement, p.participant)
    if len(wanted) > 1:
        names = ' and '.join(f'{who} wants {placement.value}' for placement, who in wanted.items())
        return (
            None,
            (
                f'participants want different placements of planes: {names}; choose a format with '
                'one plane or change one of the participants'
            ),
        )
    return next(iter(wanted), None), None


def _count(participants: Participants, wanted: int) -> tuple[int, int, str | None]:
    """
    Return how many slots to ask for, how many are needed, and an error or ``None``.

    It is an error if more slots are needed than a participant's ``max_slots`` allows.
    """
    needed = max(sum(p.slots for p in participants), 1)
    limited = [p for p in participants if p.max_slots is not None]
    most = min(limited, key=lambda p: p.max_slots or 0, default=None)
    if most is None or most.max_slots is None:
        return max(needed, wanted), needed, None
    if needed <= most.max_slots:
        return min(max(needed, wanted), most.max_slots), needed, None
    holders = ', '.join(f'{p.participant} {p.slots}' for p in participants if p.slots)
    problem = (
        f'{needed} slots are needed ({holders}), but {most.participant} allows at most '
        f'{most.max_slots}; hold fewer frames at a time'
    )
    return needed, needed, problem


def slots_of(participants: Participants, wanted: int) -> int:
    """
    Return the number of slots that :func:`agree` asks for, whatever the images' size and format.

    :param wanted: the total number to ask for, unless more are needed or fewer are allowed.
    """
    return _count(participants, wanted)[0]


def _by_step(participants: Participants, name: str) -> str:
    return ', '.join(
        f'{p.participant} {getattr(p, name)}' for p in participants if getattr(p, name) > 1
    )


def _steps(participants: Participants) -> str:
    """Return a text: for each kind of alignment, the participants that ask for it, with values."""
    return '; '.join(
        f'{name}: {by}'
        for name in ('stride_align', 'offset_align', 'height_align')
        if (by := _by_step(participants, name))
    )


def _layout_objection(
    participants: Participants,
    limits: ImageLimits,
    fmt: Format,
    size: Size,
    placement: Placement | None,
) -> str | None:
    """
    Explain why no image of *fmt* and *size* can exist within the limits; ``None``: it can.

    Only LINEAR layouts are computed here. Only the allocator knows the needs of other layouts, so
    for these :func:`check_answer` checks the allocated buffers.
    """
    fourcc, text = fmt[0], format_text(fmt)
    if fmt[1] != LINEAR:
        try:
            check_dimensions(pixel_format(fourcc), *size)
        except (LayoutError, FormatError) as error:
            return f'{text} {size_text(size)}: {error}'
        return None
    try:
        layout = limits.layout(fourcc, size, placement)
    except (LayoutError, FormatError) as error:
        steps = _steps(participants)
        return f'{text} {size_text(size)}: {error}' + (
            f' ({steps})' if steps and 'align' in str(error) else ''
        )
    wanted, plain = (
        sum(one.buffer_size(index) for index in range(one.num_buffers))
        for one in (layout, ImageLimits().layout(fourcc, size, placement))
    )
    if wanted > _MOST_PADDING + _MOST_TIMES * plain:
        return (
            f'{text} {size_text(size)} would take {wanted >> 20} MiB for each image, '
            f'{wanted // plain} times the size of its pixels ({_steps(participants)}); '
            'use smaller alignments'
        )
    widest = max(plane.stride for plane in layout.planes)
    if limits.max_stride is not None and widest > limits.max_stride:
        who = next(p.participant for p in participants if p.max_stride == limits.max_stride)
        steps = _by_step(participants, 'stride_align')
        multiple = (
            f', a multiple of {limits.stride_align} (stride_align: {steps})' if steps else ''
        )
        return (
            f'{text} {size_text(size)} has a stride of {widest} bytes{multiple}, but {who} takes '
            f'at most {limits.max_stride}; choose a narrower image or change a participant'
        )
    return None


def agree(participants: Participants, size: Size, *, wanted_slots: int = 0) -> AllocationRequest:
    """
    Choose one buffer setting for images of *size* that suits all *participants*.

    The first participant that names formats is the producer.

    :param wanted_slots: the total number of slots to ask for, unless more are needed or fewer are
        allowed.
    :raises NegotiationError: no setting suits every participant. The message names the
        participants and constraints that are the cause.
    """
    if all(p.formats is None for p in participants):
        raise NegotiationError('no participant names a format; the camera must name one')
    limits = joint_limits(participants)
    placement, placement_objection = _choose_placement(participants)
    total, needed, count_objection = _count(participants, wanted_slots)
    candidates = _candidates(participants)
    objections = [] if candidates else [_format_objection(participants)]
    # If participants want different placements, use formats with one plane: they suit every
    # placement.
    single = [
        (code, modifier)
        for code, modifier in candidates
        if modifier == LINEAR and code in FORMATS and len(FORMATS[code].planes) == 1
    ]
    if placement_objection and single:
        candidates, placement_objection = single, None
    memories = {fmt: choose_heap(participants, fmt) for fmt in candidates or (None,)}
    memory_objections = dict.fromkeys(memory.objection for memory in memories.values())
    if suited := [fmt for fmt in candidates if not memories[fmt].objection]:
        candidates, memory_objections = suited, {}
    objections += [f'{p.participant} {why}' for p in participants for why in p.size_problems(size)]
    objections += filter(None, (*memory_objections, placement_objection, count_objection))
    against = {
        fmt: _layout_objection(participants, limits, fmt, size, placement) for fmt in candidates
    }
    good = [fmt for fmt in candidates if against[fmt] is None]
    if candidates and not good:
        objections += dict.fromkeys(filter(None, against.values()))
    if objections:
        raise NegotiationError('; '.join(objections))
    fourcc, memory = good[0][0], memories[good[0]]
    return AllocationRequest(
        fourcc=fourcc,
        modifiers=tuple(
            fmt[1] for fmt in good if fmt[0] == fourcc and memories[fmt].heap == memory.heap
        ),
        size=size,
        slots=total,
        needed=needed,
        limits=limits,
        heap=memory.heap,
        placement=placement,
        reasons=(memory.reason,) if memory.reason else (),
    )


def check_answer(
    request: AllocationRequest, allocation: Allocation, participants: Participants
) -> BufferSettings:
    """
    Check the allocator's answer, and return the settings of the allocated buffers.

    The allocator chooses one of the request's modifiers and may add padding; it may change nothing
    else. If only INVALID was requested, the settings' modifier is INVALID.

    :raises NegotiationError: the allocator changed something that it may not change, gave too few
        or too small buffers, or broke a participant's constraint.
    """
    layout = allocation.layout
    if request.modifiers == (INVALID,):
        layout = replace(layout, modifier=INVALID)
    try:
        if layout.fourcc != request.fourcc:
            raise LayoutError(
                f"it answered '{fourcc_name(layout.fourcc)}'; it may not change the format"
            )
        if (layout.width, layout.height) != request.size:
            raise LayoutError(
                f'it answered {size_text((layout.width, layout.height))} pixels; it may '
                'not change the size, only add padding by strides, offsets and buffer sizes'
            )
        if not set(same_layout(layout.modifier)) & set(request.modifiers):
            raise LayoutError(f'it chose modifier {modifier_name(layout.modifier)}')
        for buffers in allocation.buffers:
            validate_layout(layout, [b.size for b in buffers], [b.identity for b in buffers])
    except (LayoutError, FormatError) as error:
        raise NegotiationError(
            f'the allocator was asked for {request.describe()}; {error}'
        ) from error
    if len(allocation.buffers) < request.needed:
        raise NegotiationError(
            f'the allocator gave {len(allocation.buffers)} slots, participants need '
            f'{request.needed}; hold fewer frames at a time'
        )
    settings = BufferSettings(layout, len(allocation.buffers), request.heap, request.limits)
    broken = [
        f'{p.participant}: {"; ".join(found)}'
        for p in participants
        if (found := violations(p, settings))
    ]
    if broken:
        raise NegotiationError(
            f'the allocator answered {layout.describe()}, which does not suit '
            f'{"; ".join(broken)}; change the image size'
        )
    return settings
