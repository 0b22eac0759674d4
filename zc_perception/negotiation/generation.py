"""One allocation of a collection: agreed on, answered, imported on trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zc_perception.errors import NegotiationError
from zc_perception.negotiation.agreement import agree
from zc_perception.negotiation.answer import check_answer, give_back, trial_failure
from zc_perception.negotiation.constraints import BufferConstraints, Size
from zc_perception.negotiation.heap_offer import HeapOffer
from zc_perception.negotiation.modifier_chain import Allocated, ModifierChain
from zc_perception.negotiation.references import Reference, ReferenceKind, References
from zc_perception.negotiation.roster import Member, Outcome, Stage, Verdict
from zc_perception.negotiation.settings import Allocator, Buffers, BufferSettings, Undo

Counted = Sequence[tuple[Member, BufferConstraints]]
"""Those whose constraints count, with the constraints that do."""


@dataclass(eq=False)
class Generation:
    """The buffers, and who refers to them. A new negotiation makes another; this one lives until its last reference is gone.

    :param settings: what late joiners have to suit; their own limits for other image sizes are added.
    :param chain: everybody's operations on the buffers, all explicit or all implicit.
    :param initiator: the initiator's own reference.
    :param kept: gives trial imports back that participants keep, should nothing come of the buffers after all.
    """

    number: int
    settings: BufferSettings
    buffers: tuple[Buffers, ...]
    references: References
    chain: ModifierChain
    initiator: Reference
    kept: list[Undo]


def make_generation(
    number: int, name: str, counted: Counted, size: Size, heaps: Sequence[HeapOffer], wanted_slots: int, allocator: Allocator
) -> tuple[Generation, dict[Member, Outcome]]:
    """Agree, allocate, check the answer, import every buffer on trial. Takes as long as the allocator does; no lock is held.

    :raises NegotiationError: see :meth:`BufferCollection.allocate`; what was allocated is released again.
    """
    participants = [constraints for _, constraints in counted]
    request = agree(participants, size, heaps=heaps, wanted_slots=wanted_slots)
    allocation = allocator(request)
    kept: list[Undo] = []
    try:
        settings = check_answer(request, allocation, participants)
        modifier = settings.layout.modifier
        producer = next(member for member, constraints in counted if constraints.formats is not None)
        chain = ModifierChain(producer.name, Allocated(settings.layout.fourcc, modifier))
        outcomes: dict[Member, Outcome] = {}
        for member, _ in counted:
            if member.stage is not Stage.READY:
                continue
            failure = trial_failure(member.trial, settings, allocation.buffers, kept)
            if failure and member.required:
                raise NegotiationError(f'{member.name}: {failure}')
            outcomes[member] = Outcome(Verdict.FELL_BACK, failure) if failure else Outcome(Verdict.ACCEPTED)
            if failure is None and member is not producer:
                chain.add_import(member.name, modifier)
    except BaseException:
        give_back(kept)
        allocation.release()
        raise
    references = References(allocation.release)
    initiator = references.take(ReferenceKind.INITIATOR, name)
    return Generation(number, settings, allocation.buffers, references, chain, initiator, kept), outcomes
