"""What a program has to do with whoever started it: signals that end it, and lines that it prints.

``zc_verify``, ``zc_doctor`` and ``zc_timeline`` use it in this order:

1. :func:`ending_quietly` while Python imports what the command needs: nothing is open yet, so a signal ends the process at once.
2. :func:`interruptions` while the command works: a signal becomes the exception :exc:`Interrupted` in the main thread, so that everything
   is closed in order. ``zc_verify`` allows it only while it waits, because a signal ends its measurement, not the program.
3. :func:`put` for what the command prints: a terminal that is gone or a disk that is full must not cost the result.

In all of them the signals are those of :func:`ending_signals`, and the exit code is 128 + n.

Programs that run nodes are ended by SIGINT as a rule, so that this is no failure: their exit code is 0. :func:`end_quietly` serves them
while Python imports, and :class:`zc_perception.nodes.process.StopRequest` after that. This module imports next to nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal

TYPE_CHECKING = False  # as in zc_perception/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import NoReturn, TextIO


def ending_signals() -> tuple[signal.Signals, ...]:
    """SIGINT, SIGTERM, and SIGHUP unless the process ignores it. Under nohup it does, and goes on to do so."""
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hangup)


def _ending(command: str) -> Callable[[int, FrameType | None], NoReturn]:
    def end(number: int, frame: FrameType | None) -> NoReturn:
        try:
            os.write(2, f'{command}: ended by {signal.Signals(number).name}\n'.encode())
        finally:
            os._exit(128 + number)

    return end


@contextlib.contextmanager
def ending_quietly(command: str) -> Iterator[None]:
    """In the block SIGINT, SIGTERM and SIGHUP end the process at once: one line, no traceback, exit code 128 + n.

    A signal that somebody handles or ignores already is left alone. Outside of the main thread the function changes nothing.
    """
    taken = {}
    with contextlib.suppress(ValueError):
        defaults = {
            signal.SIGINT: signal.default_int_handler,
            signal.SIGTERM: signal.SIG_DFL,
            signal.SIGHUP: signal.SIG_DFL,
        }
        for number, default in defaults.items():
            if signal.getsignal(number) is default:
                taken[number] = signal.signal(number, _ending(command))
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def end_quietly() -> None:
    """From now on SIGINT and SIGTERM end the process at once, with exit code 0: nothing is open yet that would have to be given back."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os._exit(0))


class Interrupted(BaseException):
    """SIGINT, SIGTERM or SIGHUP came; the text is its name."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Interruption:
    """Makes one exception of the signals that come. It belongs to the main thread, where Python runs all signal handlers.

    :meth:`handle` is the handler. It raises the exception only inside of :meth:`allowed`; a signal that comes elsewhere is remembered, and
    raised at the begin of the next such block. After the exception, further signals change nothing: the end takes its course.
    """

    def __init__(self) -> None:
        self._allowed = False
        self._came = 0
        self._exception: Callable[[int], BaseException] = Interrupted

    def begin(self, exception: Callable[[int], BaseException] = Interrupted) -> None:
        """Forget what came.

        :param exception: makes the exception of the signal's number.
        """
        self._allowed, self._came, self._exception = False, 0, exception

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signals' handler."""
        self._came = self._came or number
        self._look()

    def _look(self) -> None:
        if self._came and self._allowed:
            self._allowed = False  # what the exception sets off must not be stopped
            raise self._exception(self._came)

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """In the block a signal raises the exception."""
        self._allowed = True
        try:
            self._look()
            yield
        finally:
            self._allowed = False

    @contextlib.contextmanager
    def put_off(self) -> Iterator[None]:
        """Inside of :meth:`allowed`: a signal raises the exception only after this block. What the block makes is then known to whoever
        has to close it."""
        was, self._allowed = self._allowed, False
        try:
            yield
        finally:
            self._allowed = was
        self._look()


#: This process's own.
INTERRUPTION = Interruption()


@contextlib.contextmanager
def interruptions() -> Iterator[Interruption]:
    """In the block :data:`INTERRUPTION` handles :func:`ending_signals`; afterwards the handlers are those from before."""
    INTERRUPTION.begin()
    before = {number: signal.signal(number, INTERRUPTION.handle) for number in ending_signals()}
    try:
        yield INTERRUPTION
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def put(text: str, stream: TextIO | None) -> OSError | None:
    """Print a text and a line feed; the error, if that can't be done.

    Letters that the stream's encoding does not have are escaped. After an error nothing more goes to the stream: what is left in its
    buffer would fail once more when Python ends, and would change the exit code.
    """
    if stream is None:
        return OSError(errno.EBADF, 'it is closed')
    encoding = stream.encoding or 'utf-8'
    try:
        print(text.encode(encoding, 'backslashreplace').decode(encoding), file=stream, flush=True)
    except (OSError, ValueError) as error:  # ValueError: somebody has closed it
        with (
            contextlib.suppress(OSError, ValueError),
            open(os.devnull, 'w', encoding='ascii') as nowhere,
        ):
            os.dup2(nowhere.fileno(), stream.fileno())
        return error if isinstance(error, OSError) else OSError(errno.EBADF, str(error))
    return None
