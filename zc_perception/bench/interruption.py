"""How a worker of the benchmark ends on SIGTERM: where nothing is half-done, see :class:`~zc_perception.terminal.Interruption`."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from zc_perception.terminal import INTERRUPTION


def hold_back_termination() -> None:
    """In a worker, in the main thread, before it opens anything: SIGTERM waits until there is something to end in order.

    The mask is for the threads that libraries start from here on: a call of theirs isn't interrupted.
    """
    INTERRUPTION.begin(lambda number: SystemExit(128 + number))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.signal(signal.SIGTERM, INTERRUPTION.handle)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """While it lasts SIGTERM ends the worker; what is built up before, and taken down after it, isn't left half-way."""
    with INTERRUPTION.allowed():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        yield


def end_if_told() -> None:
    """Between two things that are built up: whoever waits for a worker's end needn't wait for the rest.

    :raises SystemExit: SIGTERM has come.
    """
    with terminable():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
