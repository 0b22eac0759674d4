"""When a program has reached each stage of its start: :data:`STARTUP` knows where the time goes. Imports next to nothing itself."""

from __future__ import annotations

import time


class Startup:
    """When each stage was reached for the first time, CLOCK_MONOTONIC ns: what happens again later isn't the start."""

    def __init__(self) -> None:
        self._reached: dict[str, int] = {}

    def reached(self, stage: str) -> None:
        """Now."""
        self._reached.setdefault(stage, time.monotonic_ns())

    def facts(self) -> dict[str, int]:
        """Stages in the order in which they were reached; empty in programs of other make."""
        return dict(self._reached)


STARTUP = Startup()
"""The process's."""
