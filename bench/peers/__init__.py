"""
Libraries that one could use instead of the links: zenoh, iceoryx2, Cyclone DDS.

A library that is not installed is reported as absent. Plain rclpy messages are measured beside
them.

Read ``processes`` first: the list of the peers, their goals, and how their processes are run.
``worker`` is such a process. Each peer has one module with its name, and only that module imports
it; its producer and consumer are :class:`~bench.link_roles.PicturesOut` and ``PicturesIn``: a
producer's picture is in a buffer of its own, stamped, when the clock starts, which stops when the
consumer has a NumPy view of all of it. Copies into and out of the peer are within.
"""

from __future__ import annotations

from collections.abc import Callable
import time

from zc_perception.errors import ZcError

_MATCH_S = 20.0


def wait_until(there: Callable[[], bool], what: str) -> None:
    """
    Wait until the condition is true.

    :raises ZcError: it isn't, for long.
    """
    deadline = time.monotonic() + _MATCH_S
    while not there():
        if time.monotonic() > deadline:
            raise ZcError(f'{what} within {_MATCH_S:g} s')
        time.sleep(0.01)
