"""What a subscription counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SubscriptionStatistics:
    """Counters since start, and the rung in use with its reason.

    :param dropped: objects that were too late here; those that the publisher of another process dropped are told with the next one that
        comes from it.
    :param routes: each publisher's rung and reason, where there are several.
    :param window: frames that may be held at the same time of a publisher of another process, as it granted; of several the least. 0 while
        none is connected by shared memory.
    :param asked: how many were asked for; 0 as *window*.
    """

    rung: str
    reason: str
    received: int
    dropped: int
    conversions: int
    conversion_errors: int
    duplicates: int = 0
    routes: tuple[tuple[str, str], ...] = ()
    window: int = 0
    asked: int = 0
