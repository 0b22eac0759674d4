"""Chooses one setting that suits everybody, or says who and what stands against it.

Formats are intersected as pairs; sizes, heaps, placement, alignments and counts don't depend on each other, so each is judged by
itself and an empty intersection names all that emptied it. Among several possible settings the least total of stated costs wins, a
tie goes by the producer's own order: the result doesn't depend on chance or on who was quicker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from zc_perception.errors import FormatError, LayoutError, NegotiationError
from zc_perception.negotiation.constraints import (
    NO_CPU,
    BufferConstraints,
    Format,
    Placement,
    Size,
    fits_within,
    format_text,
    size_text,
)
from zc_perception.negotiation.heap_offer import HeapOffer, heap_offer
from zc_perception.negotiation.settings import AllocationRequest, ImageLimits, joint_limits
from zc_perception.pixel.fourcc import FORMATS, fourcc_name, pixel_format
from zc_perception.pixel.layout import check_dimensions
from zc_perception.pixel.modifier import INVALID, LINEAR, plane_count

Participants = Sequence[BufferConstraints]


@dataclass(frozen=True)
class _Candidate:
    """A format that everybody accepts, or would accept once an implicit allocation is upgraded to one of *upgrades*."""

    format: Format
    cost: float
    upgrades: tuple[int, ...] = ()


def _choosy(participants: Participants) -> list[BufferConstraints]:
    return [p for p in participants if p.formats is not None]


def _total(participants: Participants, fmt: Format) -> float:
    return sum(p.format_cost(fmt) for p in participants)


def _upgrades(participants: Participants, producer: BufferConstraints, fourcc: int) -> tuple[int, ...]:
    """Explicit modifiers that all but *producer*, whose allocator tells one only afterwards, list for *fourcc*."""
    others = [p for p in participants if p is not producer]
    named = dict.fromkeys((*(modifier for p in others for modifier in p.modifiers(fourcc) or ()), LINEAR))
    return tuple(m for m in named if m != INVALID and all(p.accepts_format((fourcc, m)) for p in others))


def _candidates(participants: Participants) -> list[_Candidate]:
    """All formats that could be, the best first. An upgrade is the last resort; LINEAR comes before an implicit layout at any cost."""
    choosy = _choosy(participants)
    producer = choosy[0]
    direct = [_Candidate(f, _total(participants, f)) for f in producer.formats or () if all(p.accepts_format(f) for p in participants)]
    linear = {c.format[0] for c in direct if c.format[1] == LINEAR}
    asked = {f for p in choosy[1:] for f in p.formats or ()}
    direct.sort(key=lambda c: (c.format[1] == INVALID and c.format[0] in linear and c.format not in asked, c.cost))
    upgraded = [
        _Candidate(f, producer.format_cost(f), upgrades)
        for f in producer.formats or ()
        if producer.upgrade and f[1] == INVALID and not producer.uses_cpu
        if (upgrades := _upgrades(participants, producer, f[0]))
    ]
    return direct + sorted(upgraded, key=lambda c: c.cost)


def _format_objection(participants: Participants) -> str:
    """Why there is no candidate."""
    choosy = _choosy(participants)
    offers = '; '.join(f'{p.participant}: {", ".join(map(format_text, p.formats or ())) or "none"}' for p in choosy)
    common = [f for f in choosy[0].formats or () if all(f in (p.formats or ()) for p in choosy)]
    if common:
        users = ', '.join(p.participant for p in participants if p.uses_cpu)
        return (
            f'the CPU access of {users} needs LINEAR, common are only {", ".join(map(format_text, common))} ({offers}); '
            'add a LINEAR format, or a device that reads the pixels'
        )
    reason = ''
    for fourcc in dict.fromkeys(code for code, _ in choosy[0].formats or ()):
        lists = [(p.participant, p.modifiers(fourcc) or ()) for p in choosy]
        if all(modifiers for _, modifiers in lists):
            implicit = [who for who, modifiers in lists if set(modifiers) == {INVALID}]
            explicit = [who for who, modifiers in lists if INVALID not in modifiers]
            reason = f'{fourcc_name(fourcc)} is common, but no modifier of it; '
            if implicit and explicit:
                reason += f'{", ".join(implicit)} can only use it implicitly and {", ".join(explicit)} only explicitly; '
            break
    else:
        rest = {code for code, _ in choosy[0].formats or ()}
        for index, participant in enumerate(choosy[1:], 1):
            rest &= {code for code, _ in participant.formats or ()}
            if not rest:
                reason = f'{participant.participant} shares none with {", ".join(p.participant for p in choosy[:index])}; '
                break
    return f'no common pixel format and modifier ({offers}); {reason}add a converting participant or change one of them'


def _size_objections(participants: Participants, size: Size) -> Iterator[str]:
    for p in participants:
        if p.min_size is not None and not fits_within(p.min_size, size):
            yield f'{p.participant} takes images of at least {size_text(p.min_size)}, not {size_text(size)}; choose a larger size'
        if p.max_size is not None and not fits_within(size, p.max_size):
            yield f'{p.participant} takes images of at most {size_text(p.max_size)}, not {size_text(size)}; choose a smaller size'
    for p in participants:
        for other in participants:
            required, most = p.required_max_size, other.max_size
            if required is not None and most is not None and not fits_within(required, most):
                yield (
                    f'{p.participant} requires room for {size_text(required)}, but {other.participant} takes images of at most '
                    f'{size_text(most)}; lower required_max_size'
                )


def _offers(participants: Participants, heaps: Sequence[HeapOffer]) -> list[HeapOffer]:
    """The heaps to choose from: those offered, else all that anybody names in full."""
    if heaps:
        return list(heaps)
    return [heap_offer(name) for name in dict.fromkeys(n for p in participants for n in p.heaps or () if not n.endswith('/'))]


def _choose_heap(participants: Participants, heaps: Sequence[HeapOffer]) -> tuple[HeapOffer | None, float, str | None]:
    """The heap, its cost, and what stands against every one."""
    offers = _offers(participants, heaps)
    against = {offer.name: [o for p in participants for o in offer.objections(p)] for offer in offers}
    good = [offer for offer in offers if not against[offer.name]]
    if good:
        costs = [offer.cost + sum(offer.cost_for(p) for p in participants) for offer in good]
        best = costs.index(min(costs))
        return good[best], costs[best], None
    if offers:
        return None, 0.0, '; '.join(o for objections in against.values() for o in objections) + "; set parameter 'heap'"
    who = [p.participant for p in participants if p.wants_certain_memory]
    if who:
        return None, 0.0, f"{', '.join(who)}: wants certain memory, but no heap is offered; set parameter 'heap'"
    return None, 0.0, None


def _choose_placement(participants: Participants) -> tuple[Placement | None, str | None]:
    wanted: dict[Placement, str] = {}
    for p in participants:
        if p.placement is not None:
            wanted.setdefault(p.placement, p.participant)
    if len(wanted) > 1:
        names = ' and '.join(f'{who} {placement.value}' for placement, who in wanted.items())
        return None, f'planes cannot lie as both want: {names}; choose a format with one plane or change one of them'
    return next(iter(wanted), None), None


def _one_plane(fmt: Format) -> bool:
    """Whether it is known to have one plane, so that placement makes no difference."""
    return fmt[1] == LINEAR and fmt[0] in FORMATS and len(FORMATS[fmt[0]].planes) == 1


def _count(participants: Participants, wanted: int) -> tuple[int, int, str | None]:
    """How many slots there shall be, how many there must be, and what stands against that."""
    camped = sum(p.slots for p in participants)
    least = max((p.min_slots for p in participants), default=0)
    total = max(camped, least, 1)
    limited = [p for p in participants if p.max_slots is not None]
    most = min(limited, key=lambda p: p.max_slots or 0, default=None)
    if most is None or most.max_slots is None:
        return max(total, wanted), total, None
    if total <= most.max_slots:
        return min(max(total, wanted), most.max_slots), total, None
    if camped >= least:
        holders = ', '.join(f'{p.participant} {p.slots}' for p in participants if p.slots)
    else:
        holders = ', '.join(f'{p.participant} at least {p.min_slots}' for p in participants if p.min_slots == least)
    return (
        total,
        total,
        f'{total} slots are needed ({holders}), but {most.participant} allows at most {most.max_slots}; hold fewer frames at a time',
    )


def slots_of(participants: Participants, wanted: int) -> int:
    """How many slots :func:`agree` asks for, whatever the images are like.

    :param wanted: as many in all if nobody minds, even where participants need fewer.
    """
    return _count(participants, wanted)[0]


def _by_step(participants: Participants, name: str) -> str:
    return ', '.join(f'{p.participant} {getattr(p, name)}' for p in participants if getattr(p, name) > 1)


def _layout_objection(
    participants: Participants, limits: ImageLimits, candidate: _Candidate, size: Size, placement: Placement | None
) -> str | None:
    """Why an image of that format can't be, or a LINEAR one can't keep the limits. What else other layouts need only their allocator
    knows; its answer is checked."""
    fourcc, text = candidate.format[0], format_text(candidate.format)
    if candidate.format[1] != LINEAR:
        try:
            for wanted in dict.fromkeys((size, limits.largest or size)):
                check_dimensions(pixel_format(fourcc), *wanted)
            if candidate.format[1] != INVALID:
                plane_count(*candidate.format)
        except (LayoutError, FormatError) as error:
            return f'{text} {size_text(wanted)}: {error}'
        return None
    for wanted in dict.fromkeys((size, limits.largest or size)):
        try:
            layout = limits.layout(fourcc, wanted, placement)
        except (LayoutError, FormatError) as error:
            steps = '; '.join(
                f'{name}: {by}' for name in ('stride_align', 'offset_align', 'height_align') if (by := _by_step(participants, name))
            )
            return f'{text} {size_text(wanted)}: {error}' + (f' ({steps})' if steps and 'align' in str(error) else '')
        widest = max(plane.stride for plane in layout.planes)
        if limits.max_stride is not None and widest > limits.max_stride:
            who = next(p.participant for p in participants if p.max_stride == limits.max_stride)
            steps = _by_step(participants, 'stride_align')
            multiple = f', a multiple of {limits.stride_align} (stride_align: {steps})' if steps else ''
            return (
                f'{text} {size_text(wanted)} has a stride of {widest} bytes{multiple}, but {who} takes at most {limits.max_stride}; '
                'choose a narrower image or change one of them'
            )
    return None


def agree(
    participants: Participants,
    size: Size,
    *,
    heaps: Sequence[HeapOffer] = (),
    wanted_slots: int = 0,
    linear_only: bool = False,
) -> AllocationRequest:
    """One setting for *size* images that suits all *participants*, the first that names formats being the producer.

    :param heaps: what the allocator can use, the best first; empty: whatever heaps the participants name in full.
    :param wanted_slots: as many slots in all if nobody minds, even where participants need fewer.
    :param linear_only: the allocator can only do LINEAR.
    :raises NegotiationError: nothing suits everybody. The message names each participant and constraint that stands against it.
    """
    if not _choosy(participants):
        raise NegotiationError('no participant names a format; the camera must')
    limits = joint_limits(participants, size)
    placement, placement_objection = _choose_placement(participants)
    heap, heap_cost, heap_objection = _choose_heap(participants, heaps)
    total, needed, count_objection = _count(participants, wanted_slots)
    candidates = _candidates(participants)
    objections = [] if candidates else [_format_objection(participants)]
    if placement_objection and (single := [c for c in candidates if _one_plane(c.format)]):
        candidates, placement_objection = single, None
    objections += _size_objections(participants, size)
    objections += filter(None, (heap_objection, placement_objection, count_objection))
    if linear_only and candidates and not any(c.format[1] == LINEAR for c in candidates):
        names = ', '.join(format_text(c.format) for c in candidates)
        objections.append(f'{names}: only the camera itself can allocate a non-linear layout')
    if linear_only:
        candidates = [c for c in candidates if c.format[1] == LINEAR]
    against = {c.format: _layout_objection(participants, limits, c, size, placement) for c in candidates}
    good = [c for c in candidates if against[c.format] is None]
    if candidates and not good:
        objections += dict.fromkeys(filter(None, against.values()))
    if objections:
        raise NegotiationError('; '.join(objections))
    best = good[0]
    return AllocationRequest(
        fourcc=best.format[0],
        modifiers=tuple(c.format[1] for c in good if c.format[0] == best.format[0] and bool(c.upgrades) == bool(best.upgrades)),
        size=size,
        slots=total,
        needed=needed,
        limits=limits,
        heap=heap,
        placement=placement,
        cpu_access=reduce(or_, (p.cpu_access for p in participants), NO_CPU),
        upgrades=best.upgrades,
        cost=best.cost + heap_cost,
    )
