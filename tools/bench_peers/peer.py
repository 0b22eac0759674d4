"""What the peers' parts have in common.

A producer's picture is in a buffer of its own, stamped, when the clock starts; it stops when the consumer has a NumPy view of all of it.
Copies into and out of the peer are within. Unthrottled, the consumer answers each frame over a socket beside the peer.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from zc_perception.bench.link_roles import FILL, Arrivals, Role, Times, answered, give_answer, paced, stamp
from zc_perception.errors import ZcError

_MATCH_S = 20.0
Pixels = np.ndarray[Any, Any]


def nv12_size(width: int, height: int) -> int:
    """Bytes of a picture."""
    return width * height * 3 // 2


def wait_until(there: Callable[[], bool], what: str) -> None:
    """
    :raises ZcError: it isn't, for long.
    """
    deadline = time.monotonic() + _MATCH_S
    while not there():
        if time.monotonic() > deadline:
            raise ZcError(f'{what} within {_MATCH_S:g} s')
        time.sleep(0.01)


class PeerOut(Role):
    """Sends pictures. Override :meth:`prepare`, :meth:`publish` and, when the picture lies in the peer's memory, :meth:`picture`."""

    def __init__(self, answers: socket.socket) -> None:
        super().__init__()
        self._answers = answers
        self.source = bytearray()
        self._pixels: Pixels = np.empty(0, np.uint8)

    def prepare(self, width: int, height: int) -> None:
        self.source = bytearray([FILL]) * nv12_size(width, height)
        self._pixels = np.frombuffer(self.source, np.uint8)

    def picture(self) -> Pixels:
        """Where the next picture is, before the clock starts."""
        return self._pixels

    def publish(self) -> None:
        """Send :meth:`picture`'s."""
        raise NotImplementedError

    def run(self, first: int, frames: int, rate_hz: float, read: bool = False) -> dict[str, Any]:
        self.begin(first, rate_hz, read)
        sent: Times = []
        for number in paced(first, frames, rate_hz, lambda number: answered(self._answers, number)):
            stamp([self.picture()], number)
            sent.append((number, time.monotonic_ns()))
            self.publish()
        self.finish()
        return {'sent': sent}


class PeerIn(Role):
    """Receives pictures, on a thread of the peer's or its own, which calls :meth:`arrived`."""

    def __init__(self, answers: socket.socket) -> None:
        super().__init__()
        self._answers = answers
        self._answering = False
        self._arrivals = Arrivals()

    def begin(self, first: int, rate_hz: float, read: bool = False) -> None:
        self._answering = not rate_hz
        self._arrivals.begin(first)
        super().begin(first, rate_hz, read)

    def arrived(self, pixels: Pixels) -> None:
        """A view of one picture, all of it."""
        number, now = self.look([pixels])
        self._arrivals.note(number, now)
        if self._answering:
            give_answer(self._answers, number)

    def end(self, last: int) -> Times:
        times = self._arrivals.wait_for(last)
        self.finish()
        return times
