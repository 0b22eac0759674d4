"""What a subscription counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SubscriptionStatistics:
    """What a subscription has counted since its start, and its link.

    :param rung: the kind of link: ``in_process`` (the same object), ``shared_memory`` (the same memory), ``ros_message`` (a copy),
        ``refused`` (only a copy could be had, and copies are not allowed) or ``unmatched``. Of several publishers' the worst.
    :param reason: why, in words.
    :param received: objects that came.
    :param dropped: objects that you did not get, because newer ones replaced them or because you held as many as you may.
    :param conversions: messages that were converted to objects; for frames each is a copy.
    :param conversion_errors: messages that could not be converted.
    :param duplicates: objects that came a second time by another link, and were dropped.
    :param routes: the rung and the reason of each publisher.
    :param window: how many frames you may hold at the same time, as granted by a publisher; of several the least. 0 while there is none.
    :param asked: how many you asked for; 0 as *window*.
    :param in_hand: sequence and age in seconds of each frame that you hold; of several publishers, of the one that waits longest.
    :param full_s: for how many seconds you have held as many frames as you may; 0 while you don't.
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
    in_hand: tuple[tuple[int, float], ...] = ()
    full_s: float = 0.0
