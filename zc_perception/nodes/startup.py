"""The first half second of a program, in which Python imports what it needs. Imports next to nothing itself.

An interrupt then ends the program without a traceback (:func:`end_quietly`), and who wants to know where the time of a start goes asks
:data:`STARTUP`.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType
from typing import NoReturn


def end_quietly() -> None:
    """SIGINT and SIGTERM end the process at once, with 0, until :class:`~zc_perception.nodes.process.StopRequest` takes them over.

    Nothing is open yet that would have to be given back.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(0)


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
