"""Handles that are passed around before and after the allocation: a token, which is bound once, and the participant it becomes.

Both end by :meth:`close` (a clean leave) or by ``fail`` (it died). One that is only forgotten has died: the garbage collector's
finalizer says so without taking a lock.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.references import Reference, ReferenceKind
from zc_perception.negotiation.roster import Member, Outcome
from zc_perception.negotiation.settings import Buffers, BufferSettings, TrialImport

if TYPE_CHECKING:
    from zc_perception.negotiation.collection import BufferCollection

FORGOTTEN = 'it was forgotten, not closed'


@dataclass(frozen=True)
class Consumer:
    """What somebody who is bound in this process brings along; see :meth:`BufferToken.bind`."""

    constraints: BufferConstraints
    trial_import: TrialImport | None = None
    required: bool = False


class _Handle:
    def __init__(self, collection: BufferCollection, member: Member) -> None:
        self._collection = collection
        self._member = member
        self._finalizer = weakref.finalize(self, collection.deaths.put, (member, FORGOTTEN))
        self._finalizer.atexit = False

    @property
    def name(self) -> str:
        """The participant's name."""
        return self._member.name

    def close(self) -> None:
        """Leave in order: the constraints don't count, or no longer. Idempotent."""
        if self._finalizer.detach() is not None:
            self._collection.leave(self._member)

    def fail(self, reason: str) -> None:
        """It died (its process ended, its device vanished). Idempotent."""
        if self._finalizer.detach() is not None:
            self._collection.die(self._member, reason)


class BufferToken(_Handle):
    """The right to take part. Made by :meth:`BufferCollection.first_token`, :meth:`duplicate` or ``attach_token``."""

    def duplicate(self, name: str) -> BufferToken:
        """Another token, for somebody else; also dispensable if this one is.

        :raises NegotiationError: this one was bound or closed, or the buffers are allocated already.
        """
        return BufferToken(self._collection, self._collection.duplicate(self._member, name))

    def set_dispensable(self) -> None:
        """Let constraints set through this token count as stand-ins: their holder may vanish and nobody else minds.

        :raises NegotiationError: this one was bound or closed, or came after the allocation.
        """
        self._collection.set_dispensable(self._member)

    def bind(self, name: str = '', *, trial_import: TrialImport | None = None, required: bool = False) -> Participant:
        """Become a participant; the token is used up.

        :param name: the participant's name; empty: the token's.
        :param trial_import: imports one slot's buffers as the participant will later.
        :param required: the buffers are of no use without it: if its import fails or it dies, the collection fails.
        :raises NegotiationError: it was bound or closed before.
        """
        self._collection.bind(self._member, name, trial_import, required)
        self._finalizer.detach()
        return Participant(self._collection, self._member)

    def stand_in(self, constraints: BufferConstraints) -> None:
        """Use the token up for constraints that nobody holds yet, so that a participant like that can join later.

        :raises NegotiationError: it was bound or closed before, or came after the allocation.
        """
        self._collection.stand_in(self._member, constraints)
        self._finalizer.detach()


class Participant(_Handle):
    """One who uses the buffers. In a ``with`` block: leaves at its end, dies by an exception."""

    @property
    def outcome(self) -> Outcome:
        """What became of it so far."""
        return self._collection.outcome(self._member)

    def set_constraints(self, constraints: BufferConstraints) -> None:
        """Say what it can use: once.

        After the allocation: join. What is allocated must suit; the refusal is this participant's alone.

        :raises NegotiationError: said before; or, for a late one, which of its constraints the buffers don't keep.
        """
        self._collection.set_constraints(self._member, constraints)

    def wait(self, timeout_s: float) -> tuple[BufferSettings, tuple[Buffers, ...]]:
        """Settings and every slot's buffers, once they are allocated.

        :raises NegotiationError: nothing suits everybody, somebody died, this one fell back, or not within *timeout_s*.
        """
        return self._collection.wait(self._member, timeout_s)

    def reconfigure(self, constraints: BufferConstraints) -> None:
        """Ask the initiator for a new negotiation with a narrower list of formats; buffers stay until that has succeeded.

        :raises NegotiationError: it has no buffers, or the list isn't narrower.
        """
        self._collection.wish(self._member, constraints)

    def hold(self, kind: ReferenceKind, label: str = '') -> Reference:
        """A reference of its own to the buffers: a lease, an import, a mapping. It outlives the participant until it is closed.

        :raises NegotiationError: it has no buffers.
        """
        return self._collection.hold(self._member, kind, label)

    def __enter__(self) -> Participant:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if value is None:
            self.close()
        else:
            self.fail(f'{type(value).__name__}: {value}')
