"""Waiting for what another thread or process does, of which no event tells. Both look again and again, and sleep in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60.0
"""What comes at all comes within this time, on the slowest machine."""


def _a_moment() -> None:
    time.sleep(0.005)


def eventually(
    condition: Callable[[], Any],
    seconds: float = PATIENCE_S,
    pause: Callable[[], object] = _a_moment,
) -> bool:
    """Whether *condition* came true in time, for an ``assert`` that says more.

    :param pause: called between two looks.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        pause()
    return True


def until(
    condition: Callable[[], Any],
    what: object = '',
    seconds: float = PATIENCE_S,
    pause: Callable[[], object] = _a_moment,
) -> Any:
    """What *condition* returns once that is true.

    :param what: said if it doesn't come true; if it can be called, what it returns.
    :param pause: called between two looks.
    :raises AssertionError: not in time.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, (
            f'not within {seconds:g} s: {what() if callable(what) else what}'
        )
        pause()
    return found
