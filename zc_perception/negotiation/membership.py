"""The part of a collection that knows its members: tokens are duplicated, bound and closed, participants leave and die.

Finalizers of forgotten handles take no lock: they only put a note onto a ``SimpleQueue`` that every method reads first. Nothing
foreign is called with the lock held: references that a death drops are closed after it was released.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum

from zc_perception.errors import NegotiationError
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.references import Reference
from zc_perception.negotiation.roster import Member, Outcome, Roster, Stage, Verdict
from zc_perception.negotiation.settings import TrialImport

# Finalizers can't notify, hence a bound on each single wait.
_LOOK_S = 0.05


class State(Enum):
    """Where a collection is."""

    COLLECTING = 'collecting constraints'
    ALLOCATING = 'allocating'
    ALLOCATED = 'allocated'
    FAILED = 'failed'


class Membership:
    """Base of :class:`BufferCollection`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.deaths: queue.SimpleQueue[tuple[Member, str]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._roster = Roster()
        self._state = State.COLLECTING
        self._failure = ''
        self._dropped: list[Reference] = []

    @property
    def state(self) -> State:
        """Where it is."""
        with self._locked():
            return self._state

    @property
    def failure(self) -> str:
        """Why it failed; empty if it didn't."""
        with self._locked():
            return self._failure

    def pending(self) -> tuple[str, ...]:
        """Who keeps the allocation waiting, and for what; empty when it can happen."""
        with self._locked():
            return self._roster.pending()

    def outcomes(self) -> dict[str, Outcome]:
        """What became of each one; of two with the same name the later."""
        with self._locked():
            return {member.name: member.outcome for member in self._roster.members}

    def outcome(self, member: Member) -> Outcome:
        """For participants."""
        with self._locked():
            return member.outcome

    def set_dispensable(self, member: Member) -> None:
        """For tokens."""
        with self._locked():
            self._check_token(member)
            if member.late:
                raise NegotiationError(f'{member.name}: a late token needs no stand-in; what is allocated is allocated')
            member.dispensable = True

    def bind(self, member: Member, name: str, trial: TrialImport | None, required: bool) -> None:
        """For tokens."""
        with self._locked():
            self._check_token(member)
            member.stage, member.name = Stage.BOUND, name or member.name
            member.trial, member.required = trial, required
            self._changed.notify_all()

    def stand_in(self, member: Member, constraints: BufferConstraints) -> None:
        """For tokens."""
        self.set_dispensable(member)
        with self._locked():
            member.stage, member.constraints = Stage.STAND_IN, replace(constraints, participant=member.name)
            member.outcome = Outcome(Verdict.STAND_IN)
            self._changed.notify_all()
        self._start_if_complete()

    def leave(self, member: Member) -> None:
        """For handles: a clean leave."""
        with self._locked():
            self._end(member, Stage.LEFT, Outcome(Verdict.LEFT))
        self._start_if_complete()

    def die(self, member: Member, reason: str) -> None:
        """For handles: an unclean end."""
        self.deaths.put((member, reason))
        self._start_if_complete()

    def _start_if_complete(self) -> None:
        """Allocate if somebody is to and nobody is missing any more. No lock held."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock, after taking note of deaths; afterwards references that were dropped are closed."""
        try:
            with self._changed:
                self._look()
                yield
        finally:
            self._close_dropped()

    def _close_dropped(self) -> None:
        with self._changed:
            dropped, self._dropped = self._dropped, []
        for reference in dropped:
            reference.close()

    # The lock is held from here on.

    def _look(self) -> None:
        """Take note of deaths."""
        while not self.deaths.empty():
            member, reason = self.deaths.get_nowait()
            self._end(member, Stage.DEAD, Outcome(Verdict.DIED, reason))

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for *condition*, at most *timeout_s*."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            self._changed.wait(min(remaining, _LOOK_S))
            self._look()
        return True

    def _check_token(self, member: Member) -> None:
        if member.stage is not Stage.TOKEN:
            raise NegotiationError(f'the token of {member.name} was bound or closed before; each is bound once, duplicate another one')

    def _end(self, member: Member, stage: Stage, outcome: Outcome) -> None:
        if member.gone or member.stage is Stage.STAND_IN:
            return
        member.stage = stage
        if member.outcome.verdict in (Verdict.PENDING, Verdict.ACCEPTED):
            member.outcome = outcome
        self._drop_reference(member)
        if self._state is State.ALLOCATED:
            member.trial = None  # whatever it keeps alive
        if stage is Stage.DEAD and not member.late:
            if self._state in (State.COLLECTING, State.ALLOCATING) and not member.dispensable:
                self._fail(f'{member.name} died before the buffers were allocated ({outcome.reason}); start it again and negotiate anew')
            elif self._state is State.ALLOCATED and member.required:
                self._fail(f'{member.name}, which is required, died ({outcome.reason}); start it again and negotiate anew')
        self._changed.notify_all()

    def _drop_reference(self, member: Member) -> None:
        if member.reference is not None:
            self._dropped.append(member.reference)
            member.reference = None

    def _fail(self, reason: str) -> None:
        self._state, self._failure = State.FAILED, f'{self.name}: {reason}'
        for member in self._roster.members:
            if member.outcome.verdict is Verdict.PENDING:
                member.outcome = Outcome(Verdict.REFUSED, reason)
        self._changed.notify_all()
