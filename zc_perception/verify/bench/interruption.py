"""Signals that end a process of the benchmark, as an exception that comes where nothing is half-done."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from zc_perception.verify.early_end import ending_signals


class Interruption:
    """The first signal is an exception in the main thread, while that is :meth:`allowed`; the others change nothing.

    It doesn't matter which thread the kernel gives a signal to: libraries have threads of their own, whose masks nobody sets.
    """

    def __init__(self) -> None:
        self._allowed = False
        self._came = 0
        self._exception: Callable[[int], BaseException] = SystemExit

    def begin(self, exception: Callable[[int], BaseException]) -> None:
        """Forget what came.

        :param exception: makes it, of the signal's number.
        """
        self._allowed, self._came, self._exception = False, 0, exception

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signals' handler."""
        self._came = self._came or number
        self._look()

    def _look(self) -> None:
        if self._came and self._allowed:
            # What the exception sets off is not to be stopped.
            self._allowed = False
            raise self._exception(self._came)

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """While it lasts, a signal is an exception; so is, at its begin, one that has come before."""
        self._allowed = True
        try:
            self._look()
            yield
        finally:
            self._allowed = False

    @contextlib.contextmanager
    def put_off(self) -> Iterator[None]:
        """While it lasts, nothing is interrupted: what is built up here is known to who takes it down. The exception comes after it."""
        was, self._allowed = self._allowed, False
        try:
            yield
        finally:
            self._allowed = was
        self._look()


#: Of this process.
INTERRUPTION = Interruption()


class Interrupted(BaseException):
    """SIGINT, SIGTERM or SIGHUP."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """The first SIGINT, SIGTERM or SIGHUP is :exc:`Interrupted`; during what that sets off, another one changes nothing.

    A SIGHUP that is ignored, as under nohup, stays so.
    """
    INTERRUPTION.begin(Interrupted)
    before = {number: signal.signal(number, INTERRUPTION.handle) for number in ending_signals()}
    try:
        with INTERRUPTION.allowed():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
