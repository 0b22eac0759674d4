"""The outcome of one check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Check:
    """Whether an invariant holds.

    :ivar holds: ``None``: not known. Never true for what could not be read.
    :ivar source: what was asked.
    :ivar figures: numbers, lists and texts that JSON can carry.
    :ivar reason: why it does not hold, or is not known: one sentence; empty where it holds.
    :ivar next_step: what to do then.
    """

    name: str
    title: str
    holds: bool | None
    source: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ''
    next_step: str = ''

    @property
    def measured(self) -> bool:
        """Whether there is a verdict."""
        return self.holds is not None

    def as_json(self) -> dict[str, Any]:
        """For ``result.json``."""
        own = {'holds': self.holds, 'measured': self.measured, 'source': self.source, 'reason': self.reason, 'next_step': self.next_step}
        return {**own, **self.figures}


@dataclass
class Findings:
    """What speaks against an invariant, and what is not known of it; a check is made of both.

    :ivar broken: (reason, next step); one is enough for false.
    :ivar unknown: the same; without anything broken, one is enough for "not known".
    """

    broken: list[tuple[str, str]] = field(default_factory=list)
    unknown: list[tuple[str, str]] = field(default_factory=list)

    def conclude(self, name: str, title: str, source: str, figures: Mapping[str, Any]) -> Check:
        """The verdict."""
        if self.broken:
            holds: bool | None = False
        else:
            holds = None if self.unknown else True
        told = self.broken or self.unknown
        steps = list(dict.fromkeys(step for _, step in told if step))
        return Check(name, title, holds, source, figures, '; '.join(dict.fromkeys(reason for reason, _ in told)), '; '.join(steps))
