"""Checks what an allocator answered, and imports on trial.

Source: the kernel's *Exchanging pixel buffers*: an allocator chooses a modifier from the list and may pad; it varies nothing else, and
the client asks it afterwards what it chose. A non-empty intersection is no guarantee that an import succeeds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from zc_perception.errors import FormatError, LayoutError, NegotiationError
from zc_perception.negotiation.constraints import BufferConstraints, format_text, size_text
from zc_perception.negotiation.modifier_chain import Allocated, Requested
from zc_perception.negotiation.settings import Allocation, AllocationRequest, Buffers, BufferSettings, TrialImport, Undo, violations
from zc_perception.pixel.layout import check_only_padded, validate_layout
from zc_perception.pixel.modifier import INVALID, LINEAR, modifier_name


def _upgradable(request: AllocationRequest, answer: int, participants: Sequence[BufferConstraints]) -> bool:
    """Whether an implicit allocation that turned out to be *answer* may go on explicitly: everybody but the producer must say so."""
    if answer == INVALID:
        return False
    producer = next(p for p in participants if p.formats is not None)
    return all(p.accepts_format((request.fourcc, answer)) for p in participants if p is not producer)


def modifier_of_answer(request: AllocationRequest, answer: int, participants: Sequence[BufferConstraints]) -> Allocated:
    """The modifier that the whole chain uses from here on.

    :raises NegotiationError: one that nobody asked for, or an upgrade that was needed and didn't come.
    """
    allocated = Requested(request.fourcc, request.modifiers).answered(answer)
    if allocated.explicit or (answer == INVALID and not request.upgrades):
        return allocated
    if request.upgrades and answer not in request.upgrades:
        wanted = ', '.join(format_text((request.fourcc, modifier)) for modifier in request.upgrades)
        raise NegotiationError(
            f'the implicit allocation turned out to be {modifier_name(answer)}, but the consumers only take {wanted}; '
            'copy into a buffer that they can import'
        )
    return allocated.upgraded(answer) if _upgradable(request, answer, participants) else allocated


def check_answer(request: AllocationRequest, allocation: Allocation, participants: Sequence[BufferConstraints]) -> BufferSettings:
    """The settings of what was really allocated.

    :raises NegotiationError: the allocator varied what it may not, gave too few or too small buffers, or broke somebody's constraint.
    """
    layout = allocation.layout
    try:
        check_only_padded(request, layout, request.modifiers)
        allocated = modifier_of_answer(request, layout.modifier, participants)
        for buffers in allocation.buffers:
            validate_layout(layout, [b.size for b in buffers], [b.identity for b in buffers])
    except (LayoutError, FormatError) as error:
        raise NegotiationError(f'the allocator was asked for {request.describe()}; {error}') from error
    if len(allocation.buffers) < request.needed:
        raise NegotiationError(
            f'the allocator gave {len(allocation.buffers)} slots, participants need {request.needed}; hold fewer frames at a time'
        )
    layout = replace(layout, modifier=allocated.modifier)
    sizes = tuple(min(buffers[i].size for buffers in allocation.buffers) for i in range(layout.num_buffers))
    settings = BufferSettings(layout, len(allocation.buffers), request.heap, request.limits, request.cpu_access, sizes)
    _check_room(request, settings)
    broken = [f'{p.participant}: {"; ".join(found)}' for p in participants if (found := _broken(p, settings, request.modifiers))]
    if broken:
        raise NegotiationError(
            f'the allocator answered {layout.describe()}, which does not suit {"; ".join(broken)}; change the image size'
        )
    return settings


def _broken(participant: BufferConstraints, settings: BufferSettings, requested: tuple[int, ...]) -> list[str]:
    if participant.upgrade and requested == (INVALID,) and settings.layout.modifier != INVALID:
        # What its allocator told afterwards is its own format by now.
        participant = replace(participant, formats=(settings.format,), costs=None, upgrade=False)
    return violations(participant, settings)


def _check_room(request: AllocationRequest, settings: BufferSettings) -> None:
    largest = request.limits.largest
    if settings.layout.modifier != LINEAR or largest in (None, request.size):
        return
    for index, (wanted, have) in enumerate(zip(request.buffer_sizes(), settings.buffer_sizes, strict=False)):
        if have < wanted:
            assert largest is not None
            raise NegotiationError(
                f'the allocator made buffer {index} {have} bytes large; {wanted} are needed for the promised {size_text(largest)}'
            )


def trial_failure(trial: TrialImport | None, settings: BufferSettings, buffers: Sequence[Buffers], kept: list[Undo]) -> str | None:
    """Import every slot on trial; what went wrong, or ``None``.

    :param kept: gets how to give back what was kept for later; after a failure it is given back already.
    """
    if trial is None:
        return None
    own: list[Undo] = []
    for index, slot in enumerate(buffers):
        try:
            undo = trial(settings, slot)
        except Exception as error:
            # A participant's failure is its own, whatever it raises: the others go on.
            give_back(own)
            text = str(error) or type(error).__name__
            return f'trial import of slot {index} of {len(buffers)} failed: {text}'
        if undo is not None:
            own.append(undo)
    kept += own
    return None


def give_back(kept: list[Undo]) -> None:
    """Undo imports, the last first; one that fails doesn't keep the others from it."""
    while kept:
        with contextlib.suppress(Exception):
            kept.pop()()
