"""Who takes part in a negotiation, at which stage each one is, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.references import Reference
from zc_perception.negotiation.settings import TrialImport


class Stage(Enum):
    """Where a participant is."""

    TOKEN = 'its token is not bound'
    BOUND = 'has not set its constraints'
    READY = 'ready'
    STAND_IN = 'stand-in'
    LEFT = 'left'
    DEAD = 'died'


class Verdict(Enum):
    """What became of a participant."""

    PENDING = 'pending'
    ACCEPTED = 'accepted'
    FELL_BACK = 'fell back'
    REFUSED = 'refused'
    STAND_IN = 'stand-in'
    LEFT = 'left'
    DIED = 'died'


@dataclass(frozen=True)
class Outcome:
    """A verdict and its reason."""

    verdict: Verdict
    reason: str = ''

    def __str__(self) -> str:
        return f'{self.verdict.value}: {self.reason}' if self.reason else self.verdict.value


@dataclass(eq=False)
class Member:
    """One token, and the participant that it becomes.

    :param late: came after the allocation.
    :param dispensable: its constraints count at the first allocation even if its holder vanishes.
    :param required: without it the buffers are of no use.
    :param wish: the narrower constraints that it asked a new negotiation for.
    """

    number: int
    name: str
    late: bool = False
    dispensable: bool = False
    required: bool = False
    stage: Stage = Stage.TOKEN
    constraints: BufferConstraints | None = None
    trial: TrialImport | None = None
    outcome: Outcome = field(default_factory=lambda: Outcome(Verdict.PENDING))
    reference: Reference | None = None
    wish: BufferConstraints | None = None

    @property
    def gone(self) -> bool:
        """Whether nobody acts for it any more."""
        return self.stage in (Stage.LEFT, Stage.DEAD)

    @property
    def holds_slots(self) -> bool:
        """Whether somebody really camps on the slots that its constraints ask for."""
        return self.stage is Stage.READY and self.outcome.verdict in (Verdict.PENDING, Verdict.ACCEPTED)


class Roster:
    """All members in the order of their tokens, which decides ties. Its owner locks."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self._count = 0

    def add(self, name: str, *, late: bool, dispensable: bool) -> Member:
        """A new token. Who came late, left, and comes again, takes the place of what it was: a camera may run for months."""
        if late:
            self.members = [m for m in self.members if not (m.late and m.gone and m.name == name)]
        self._count += 1
        self.members.append(Member(self._count, name, late, dispensable))
        return self.members[-1]

    def pending(self) -> tuple[str, ...]:
        """Who keeps the first allocation waiting, and for what."""
        return tuple(f'{m.name} ({m.stage.value})' for m in self.members if not m.late and m.stage in (Stage.TOKEN, Stage.BOUND))

    def counted(self) -> list[Member]:
        """Those whose constraints count: everybody that is ready, and stand-ins whose holder is gone or never was.

        A stand-in that a late joiner of its name has taken the place of doesn't count twice.
        """
        live = {m.name for m in self.members if m.late and m.stage is Stage.READY}
        return [
            m
            for m in self.members
            if m.constraints is not None
            and (
                m.stage is Stage.READY or ((m.stage is Stage.STAND_IN or (m.stage is Stage.DEAD and m.dispensable)) and m.name not in live)
            )
        ]

    def claims(self) -> dict[str, int]:
        """Slots that those who are there hold."""
        return {m.name: m.constraints.slots for m in self.members if m.holds_slots and m.constraints and m.constraints.slots}
