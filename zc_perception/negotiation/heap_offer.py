"""Which heap the buffers come from: what can be said of each before anything is allocated, and the choice among those on offer.

Source: Fuchsia's *Sysmem overview*, Heaps: some are usable by a subset of the devices only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zc_perception.memory.heaps import is_contiguous
from zc_perception.negotiation.constraints import BufferConstraints, Format

_Objection = tuple[str, str, str]
"""What stands before the heap's name, what stands behind the name of one heap, and behind the names of several."""


@dataclass(frozen=True)
class HeapOffer:
    """One heap that the allocator can use.

    :param name: ``dma_heap/system``, ``udmabuf``, ``memfd``, ``v4l2/DRIVER`` …
    :param contiguous: whether its buffers are physically contiguous; ``None``: only an import tells.
    :param attachable: whether devices can attach to its buffers.
    """

    name: str
    contiguous: bool | None = None
    attachable: bool = True

    def objections(self, participant: BufferConstraints, fmt: Format | None) -> list[str]:
        """Why *participant* can't use buffers of this heap for images of *fmt*; empty if it can. See
        :meth:`BufferConstraints.for_format`.
        """
        return [_text(objection, [self.name]) for objection in self._objections(participant, fmt)]

    def _objections(
        self, participant: BufferConstraints, fmt: Format | None
    ) -> Iterator[_Objection]:
        participant = participant.for_format(fmt)
        name = participant.participant
        if not participant.accepts_heap(self.name):
            only = f', only of {", ".join(participant.heaps or ()) or "none"}'
            yield f"{name} can't use buffers of ", only, only
        if participant.contiguous and self.contiguous is False:
            because = f' ({participant.memory_note})' if participant.memory_note else ''
            yield f'{name} needs contiguous memory{because}, which ', ' is not', ' are not'
        if participant.devices and not self.attachable:
            yield f"{', '.join(participant.devices)} of {name} can't attach to buffers of ", '', ''


def heap_offer(name: str) -> HeapOffer:
    """The offer of a heap by its name, with what the name alone tells."""
    if is_contiguous(name):
        return HeapOffer(name, contiguous=True)
    if name in ('dma_heap/system', 'udmabuf'):
        return HeapOffer(name, contiguous=False)
    if name == 'memfd':  # ordinary memory, no dma-buf
        return HeapOffer(name, contiguous=False, attachable=False)
    return HeapOffer(name)


def offers_of(participants: Sequence[BufferConstraints], fmt: Format | None) -> list[HeapOffer]:
    """The heaps to choose from: those that the producer names, in its order; else all that anybody names in full."""
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
    """The heap for everybody, and why; else what stands against every heap; nothing where nobody cares."""

    heap: HeapOffer | None = None
    reason: str = ''
    objection: str = ''


def choose_heap(participants: Sequence[BufferConstraints], fmt: Format | None) -> HeapChoice:
    """The first heap that everybody can use for images of *fmt*."""
    offers = offers_of(participants, fmt)
    good = [offer for offer in offers if not any(offer.objections(p, fmt) for p in participants)]
    if good:
        return HeapChoice(good[0], _reason(good[0], offers, participants, fmt))
    if offers:
        against = _against(offers, participants, fmt)
        note = _producer_note(participants, fmt)
        return HeapChoice(objection=f"{against}{note}; set parameter 'heap'")
    who = [p.participant for p in participants if p.wants_certain_memory]
    if who:
        return HeapChoice(
            objection=f"{', '.join(who)}: wants certain memory, but no heap is offered; set parameter 'heap'"
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
        found = [f'it comes first of {names} and suits everybody']
    else:
        found = [f'no other is on offer{_producer_note(participants, fmt)}']
    for p in participants:
        if p.contiguous and best.contiguous is None:
            found.append(f'only the import tells {p.participant} whether it is contiguous')
        elif p.devices and p.memory_note and not p.contiguous:
            found.append(f'{p.participant}: {p.memory_note}')
    return f'heap {best.name} because {"; ".join(found)}'


def _producer_note(participants: Sequence[BufferConstraints], fmt: Format | None) -> str:
    """Why there are no other heaps, as far as the producer says so."""
    producer = _producer(participants, fmt)
    return (
        f' ({producer.participant}: {producer.memory_note})'
        if producer is not None and producer.memory_note
        else ''
    )


def _against(
    offers: Sequence[HeapOffer], participants: Sequence[BufferConstraints], fmt: Format | None
) -> str:
    """What stands against these heaps: of each participant its first objection to each, and the same one once for all heaps."""
    heaps_of: dict[_Objection, list[str]] = {}
    for participant in participants:
        for offer in offers:
            objection = next(offer._objections(participant, fmt), None)
            if objection is not None:
                heaps_of.setdefault(objection, []).append(offer.name)
    return '; '.join(_text(objection, names) for objection, names in heaps_of.items())


def _text(objection: _Objection, names: Sequence[str]) -> str:
    before, of_one, of_several = objection
    quoted = ', '.join(f"'{name}'" for name in names)
    return (
        f'{before}heap {quoted}{of_one}'
        if len(names) == 1
        else f'{before}heaps {quoted}{of_several}'
    )
