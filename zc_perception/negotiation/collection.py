"""One set of buffers that all participants agreed on, from the first token to the last reference.

Sources: Fuchsia's *Sysmem overview* (tokens, constraints, allocation, late joiners, destruction), the kernel's *Exchanging pixel
buffers*, GStreamer's *DMA buffers* (renegotiation). Constraints are collected, one setting is agreed on, the producer allocates, every
participant imports every buffer on trial.

Thread-safety: every method may be called from any thread; allocators, trial imports and callbacks run without the lock, and every wait
is bounded.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from zc_perception.errors import FormatError, LayoutError, NegotiationError
from zc_perception.memory.fence import check_timeout
from zc_perception.negotiation.agreement import agree
from zc_perception.negotiation.answer import give_back, trial_failure
from zc_perception.negotiation.constraints import BufferConstraints, Size, size_text
from zc_perception.negotiation.generation import Generation, make_generation
from zc_perception.negotiation.heap_offer import HeapOffer, heap_offer
from zc_perception.negotiation.membership import Membership, State
from zc_perception.negotiation.references import Reference, ReferenceKind
from zc_perception.negotiation.roster import Member, Outcome, Stage, Verdict
from zc_perception.negotiation.settings import Allocator, Buffers, BufferSettings, Undo, violations
from zc_perception.negotiation.token import BufferToken
from zc_perception.pixel.modifier import LINEAR

_TURN_S = 10.0
"""How long a late joiner waits for another one's trial imports, or for a new negotiation."""
_WAKE_S = 0.05


class BufferCollection(Membership):
    """See the module. Whoever makes it is the initiator.

    :param name: for messages: whose buffers they are.
    :param size: the first image's size; participants may require room for larger ones.
    :param heaps: names or offers of the heaps that the allocator can use, the best first; empty: those that participants name in full.
    :param wanted_slots: as many slots if nobody minds, even where participants need fewer.
    """

    def __init__(self, name: str, size: Size, *, heaps: Sequence[HeapOffer | str] = (), wanted_slots: int = 0) -> None:
        super().__init__(name)
        self._size = size
        self._heaps = tuple(heap_offer(heap) if isinstance(heap, str) else heap for heap in heaps)
        self._wanted_slots = wanted_slots
        self._first = self._roster.add(name, late=False, dispensable=False)
        self._first_taken = False
        self._closed = False
        self._busy = False
        self._generation: Generation | None = None
        self._allocator: Allocator | None = None
        self._on_settled: list[Callable[[BufferCollection], None]] = []
        self._on_wish: list[Callable[[str, BufferConstraints], None]] = []

    def first_token(self) -> BufferToken:
        """The token that all others are duplicates of; its holder's formats decide ties, so it is best the producer's.

        :raises NegotiationError: it was taken before.
        """
        with self._locked():
            if self._first_taken:
                raise NegotiationError(f'{self.name}: the first token was taken before; duplicate that one')
            self._first_taken = True
        return BufferToken(self, self._first)

    def attach_token(self, name: str) -> BufferToken:
        """A token for somebody who comes after the allocation.

        :raises NegotiationError: nothing is allocated.
        """
        with self._locked():
            return BufferToken(self, self._add_late(name))

    def allocate(self, allocator: Allocator, timeout_s: float) -> BufferSettings:
        """Wait until every token is bound or closed and every participant has set its constraints; then agree, allocate and import.

        :raises NegotiationError: not all within *timeout_s* (names them; may be tried again). Nothing suits everybody, a participant
            died, the allocator varied what it may not, a required participant can't import: the collection has failed for everybody.
        """
        check_timeout(timeout_s)
        with self._locked():
            self._wait(lambda: self._state is not State.COLLECTING or not self._roster.pending(), timeout_s)
            if self._state is State.COLLECTING and (pending := self._roster.pending()):
                raise NegotiationError(
                    f'{self.name}: after {timeout_s:g} s still waiting for {", ".join(pending)}; bind or close every token'
                )
            self._begin()
        return self._settle(allocator, 1)

    def allocate_when_complete(self, allocator: Allocator) -> None:
        """Do what :meth:`allocate` does in the thread of whoever completes the constraints. Failures reach those who wait.

        :raises NegotiationError: somebody allocates already.
        """
        with self._locked():
            if self._state is not State.COLLECTING or self._allocator is not None:
                raise NegotiationError(self._failure or f'{self.name}: is {self._state.value} already; make a new collection')
            self._allocator = allocator
        self._start_if_complete()

    def renegotiate(self, allocator: Allocator) -> BufferSettings:
        """Agree and allocate anew with the constraints that participants asked for. Old buffers live until they are released.

        :raises NegotiationError: see :meth:`allocate`; the old buffers stay in force then.
        """
        with self._locked():
            generation = self._allocated('a new negotiation')
            if self._closed or self._busy:
                state = 'was closed by its initiator' if self._closed else 'is being negotiated already; wait for that'
                raise NegotiationError(f'{self.name}: {state}')
            self._busy = True
        return self._settle(allocator, generation.number + 1)

    def on_settled(self, callback: Callable[[BufferCollection], None]) -> None:
        """Call *callback* after each negotiation, good or bad; at once if there was one already."""
        with self._locked():
            self._on_settled.append(callback)
            settled = self._state in (State.ALLOCATED, State.FAILED)
        if settled:
            callback(self)

    def on_reconfigure(self, callback: Callable[[str, BufferConstraints], None]) -> None:
        """Call *callback* with name and constraints whenever a participant asks for a new negotiation."""
        with self._locked():
            self._on_wish.append(callback)

    def close(self) -> None:
        """The initiator lets go. Buffers live until their last reference is gone; without any allocation everybody fails."""
        with self._locked():
            self._closed = True
            if self._generation is not None:
                self._dropped.append(self._generation.initiator)
            elif self._state is not State.FAILED:
                self._fail('its initiator closed it before the buffers were allocated')

    @property
    def settings(self) -> BufferSettings:
        """What is allocated.

        :raises NegotiationError: nothing is.
        """
        with self._locked():
            return self._allocated('settings').settings

    @property
    def generation(self) -> int:
        """How many allocations there were."""
        with self._locked():
            return 0 if self._generation is None else self._generation.number

    @property
    def chain(self) -> tuple[str, ...]:
        """Producer and consumers, whose operations on the buffers are all explicit or all implicit.

        :raises NegotiationError: nothing is allocated.
        """
        with self._locked():
            return self._allocated('a chain').chain.members

    def references(self) -> dict[str, tuple[str, ...]]:
        """Who refers to the newest buffers, by kind."""
        with self._locked():
            return {} if self._generation is None else self._generation.references.names()

    def duplicate(self, member: Member, name: str) -> Member:
        """For tokens."""
        with self._locked():
            self._check_token(member)
            if member.late:
                return self._add_late(name)
            if self._state is not State.COLLECTING:
                raise NegotiationError(self._failure or f'{self.name}: is {self._state.value}; use attach_token for {name}')
            return self._roster.add(name, late=False, dispensable=member.dispensable)

    def set_constraints(self, member: Member, constraints: BufferConstraints) -> None:
        """For participants."""
        constraints = replace(constraints, participant=member.name)
        with self._locked():
            if member.stage is not Stage.BOUND:
                said = 'has set its constraints already' if member.stage is Stage.READY else member.stage.value
                raise NegotiationError(f'{member.name}: {said}; use reconfigure() for a narrower list of formats')
            if not member.late:
                member.constraints, member.stage = constraints, Stage.READY
                self._changed.notify_all()
        if member.late:
            self._join(member, constraints)
        else:
            self._start_if_complete()

    def wait(self, member: Member, timeout_s: float) -> tuple[BufferSettings, tuple[Buffers, ...]]:
        """For participants."""
        check_timeout(timeout_s)
        deadline = time.monotonic() + timeout_s
        while True:
            # A death that nobody was told of may be what completes the constraints.
            self._start_if_complete()
            remaining = deadline - time.monotonic()
            with self._locked():
                settled = self._wait(lambda: self._is_settled(member), min(_WAKE_S, remaining))
                if settled or remaining <= 0:
                    return self._result(member, timeout_s)

    def wish(self, member: Member, constraints: BufferConstraints) -> None:
        """For participants."""
        constraints = replace(constraints, participant=member.name)
        with self._locked():
            self._allocated('a new negotiation')
            if member.stage is not Stage.READY or member.constraints is None:
                raise NegotiationError(f'{member.name} has no buffers to renegotiate ({member.outcome})')
            before = member.constraints.formats
            if before is not None and (constraints.formats is None or not set(constraints.formats) <= set(before)):
                raise NegotiationError(
                    f'{member.name}: a new negotiation takes a narrower list of formats than before; join anew for others'
                )
            member.wish = constraints
            listeners = list(self._on_wish)
        for listener in listeners:
            listener(member.name, constraints)

    def hold(self, member: Member, kind: ReferenceKind, label: str) -> Reference:
        """For participants."""
        with self._locked():
            generation = self._allocated('a reference')
            if member.gone or member.outcome.verdict is not Verdict.ACCEPTED:
                raise NegotiationError(f'{member.name} has no buffers to hold ({member.outcome})')
            return generation.references.take(kind, f'{member.name} {label}'.strip())

    def _start_if_complete(self) -> None:
        with self._locked():
            allocator = self._allocator
            if allocator is None or self._state is not State.COLLECTING or self._roster.pending():
                return
            self._allocator = None
            self._begin()
        # Whoever came last isn't to blame: those who wait and on_settled hear of a failure.
        with contextlib.suppress(Exception):
            self._settle(allocator, 1)

    def _settle(self, allocator: Allocator, number: int) -> BufferSettings:
        """Negotiate; no lock held."""
        try:
            with self._locked():
                counted = [(m, m.wish or m.constraints) for m in self._roster.counted() if m.constraints is not None]
            generation, outcomes = make_generation(
                number, self.name, [(m, c) for m, c in counted if c], self._size, self._heaps, self._wanted_slots, allocator
            )
        except BaseException as error:
            with self._locked():
                self._busy = False
                for member in self._roster.members:
                    member.wish = None
                if self._state is State.ALLOCATING:
                    self._fail(str(error) or type(error).__name__)
            self._notify()
            raise
        with self._locked():
            self._busy = False
            failure = self._failure
            if self._closed and not failure:
                failure = f'{self.name}: was closed by its initiator meanwhile'
            if not failure:
                self._install(generation, {m: c for m, c in counted if c}, outcomes)
        if failure:
            give_back(generation.kept)
            generation.initiator.close()
        self._notify()
        if failure:
            raise NegotiationError(failure)
        return generation.settings

    def _notify(self) -> None:
        with self._locked():
            callbacks = list(self._on_settled)
        for callback in callbacks:
            callback(self)

    def _join(self, member: Member, constraints: BufferConstraints) -> None:
        """Let a late participant in; no lock held. One at a time."""
        with self._locked():
            if not self._wait(lambda: not self._busy, _TURN_S):
                raise NegotiationError(f'{member.name}: another negotiation of {self.name} takes too long; try again')
            generation = self._allocated('joining')
            problems = self._misfits(constraints, generation.settings)
            if problems:
                self._turn_away(member, Verdict.REFUSED, '; '.join(problems))
                raise NegotiationError(f"{member.name} can't use what is allocated for {self.name}: {'; '.join(problems)}")
            member.constraints, member.stage = constraints, Stage.READY
            self._busy = True
        failure: str | None = 'it was interrupted'
        kept: list[Undo] = []
        try:
            failure = trial_failure(member.trial, generation.settings, generation.buffers, kept)
        finally:
            with self._locked():
                self._busy = False
                if failure:
                    self._turn_away(member, Verdict.FELL_BACK, failure)
                elif not member.gone:
                    member.outcome = Outcome(Verdict.ACCEPTED)
                    self._drop_reference(member)
                    member.reference = generation.references.take(ReferenceKind.PARTICIPANT, member.name)
                    generation.settings = generation.settings.joined_by(constraints)
                    generation.chain.add_import(member.name, generation.settings.layout.modifier)
                gone = member.gone
                self._changed.notify_all()
            if gone:
                give_back(kept)
        if failure and member.required:
            raise NegotiationError(f'{member.name}: {failure}')

    # The lock is held from here on.

    def _begin(self) -> None:
        if self._state is not State.COLLECTING or self._allocator is not None:
            raise NegotiationError(self._failure or f'{self.name}: is {self._state.value} already; make a new collection')
        self._state = State.ALLOCATING

    def _add_late(self, name: str) -> Member:
        references = self._allocated('a late token').references
        token = references.take(ReferenceKind.TOKEN, name)
        member = self._roster.add(name, late=True, dispensable=False)
        member.reference = token
        return member

    def _allocated(self, what: str) -> Generation:
        if self._state is State.FAILED:
            raise NegotiationError(self._failure)
        if self._generation is None:
            missing = ', '.join(self._roster.pending()) or self._state.value
            raise NegotiationError(f'{self.name}: {what} needs allocated buffers; missing: {missing}')
        return self._generation

    def _install(self, generation: Generation, counted: dict[Member, BufferConstraints], outcomes: dict[Member, Outcome]) -> None:
        if self._generation is not None:
            self._dropped.append(self._generation.initiator)
        self._generation, self._state = generation, State.ALLOCATED
        for member in self._roster.members:
            if member.wish is not None and member.wish is counted.get(member):
                member.constraints, member.wish = member.wish, None
            if member.gone or member.stage is Stage.STAND_IN:
                continue
            self._drop_reference(member)
            member.outcome = outcomes.get(member, member.outcome)
            if member.outcome.verdict is Verdict.ACCEPTED:
                member.reference = generation.references.take(ReferenceKind.PARTICIPANT, member.name)
            elif member.late and member.outcome.verdict is Verdict.PENDING:
                member.reference = generation.references.take(ReferenceKind.TOKEN, member.name)
        self._changed.notify_all()

    def _misfits(self, constraints: BufferConstraints, settings: BufferSettings) -> list[str]:
        """Which of a late joiner's constraints can't be kept."""
        problems = violations(constraints, settings)
        if problems:
            return problems
        claims = self._roster.claims()
        free = settings.slots - sum(claims.values())
        if constraints.slots > free:
            holders = ', '.join(f'{name} {slots}' for name, slots in claims.items())
            return [
                f'it needs {constraints.slots} slots, {free} of {settings.slots} are not spoken for ({holders}); '
                'let a stand-in ask for them before the allocation'
            ]
        largest = settings.limits.largest
        if largest is not None and settings.layout.modifier == LINEAR:
            try:
                settings.joined_by(constraints).with_size(*largest)
            except (NegotiationError, LayoutError, FormatError) as error:
                return [f'images of {size_text(largest)}, which others were promised, would not suit it: {error}']
        return []

    def _turn_away(self, member: Member, verdict: Verdict, reason: str) -> None:
        member.outcome, member.stage = Outcome(verdict, reason), Stage.LEFT
        self._drop_reference(member)

    def _is_settled(self, member: Member) -> bool:
        return self._state is State.FAILED or member.outcome.verdict is not Verdict.PENDING

    def _result(self, member: Member, timeout_s: float) -> tuple[BufferSettings, tuple[Buffers, ...]]:
        if self._state is State.FAILED:
            raise NegotiationError(self._failure)
        verdict = member.outcome.verdict
        if verdict is Verdict.PENDING:
            missing = ', '.join(self._roster.pending()) or f'{member.name} ({member.stage.value})'
            raise NegotiationError(f'{self.name}: no buffers within {timeout_s:g} s; missing: {missing}')
        if verdict is not Verdict.ACCEPTED or self._generation is None:
            raise NegotiationError(f'{member.name} has no buffers ({member.outcome}); use the next link, which copies')
        return self._generation.settings, self._generation.buffers


def negotiate(participants: Sequence[BufferConstraints], width: int, height: int, *, heap: str) -> BufferSettings:
    """Settle on a LINEAR layout and the number of slots for *width* × *height* images from *heap*, all in one call, without allocating.

    For a producer that allocates by itself afterwards and whose consumers are all known. The first participant that names formats is
    the producer.

    :raises NegotiationError: nothing suits everybody; the message says who and what stands against it.
    """
    return agree(participants, (width, height), heaps=[heap_offer(heap)], linear_only=True).settings()
