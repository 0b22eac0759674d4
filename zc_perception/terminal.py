# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""
Handle a program's terminal: the signals that end the program, and the lines that it prints.

Every program uses it in this order:

1. :func:`ending_quietly` while Python imports what it needs: nothing is open yet, so a signal ends
   the process at once.
2. :func:`interruptions` while it works. Where it may be interrupted, a signal becomes the
   exception :exc:`Interrupted` in the main thread (:meth:`Interruption.allowed`), so that
   everything is closed in order. Where it may not, it asks: nodes and ``zc_verify`` wait with
   :meth:`Interruption.wait`, and call :meth:`Interruption.check` between two steps of a long
   start.
3. :func:`put` for what it prints: a terminal that is gone or a disk that is full must not cost the
   result.

In all of them the signals are those of :func:`ending_signals`. After signal n the exit code is 128
+ n, or 0 for a program that runs nodes, because such a program normally ends by a signal. This
module imports almost nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal

TYPE_CHECKING = False  # as in zc_perception/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator  # noqa: I300
    from types import FrameType
    from typing import IO, NoReturn, TextIO


def ending_signals() -> tuple[signal.Signals, ...]:
    """
    Return SIGINT, SIGTERM, and SIGHUP unless the process ignores it.

    Under nohup the process ignores SIGHUP, and this function doesn't change that.
    """
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hangup)


def _ending(command: str) -> Callable[[int, FrameType | None], NoReturn]:
    def end(number: int, frame: FrameType | None) -> NoReturn:
        if not command:
            os._exit(0)
        try:
            os.write(2, f'{command}: ended by {signal.Signals(number).name}\n'.encode())
        finally:
            os._exit(128 + number)

    return end


@contextlib.contextmanager
def ending_quietly(command: str = '') -> Iterator[None]:
    """
    Let SIGINT, SIGTERM and SIGHUP end the process at once in this block.

    There is no traceback. A signal that is handled or ignored already is left alone. Outside of
    the main thread the function changes nothing.

    :param command: the program's name, which begins the line that is printed; the exit code is 128
        + n. Empty, for a program that runs nodes: no line is printed, and the exit code is 0.
    """
    end, taken = _ending(command), {}
    with contextlib.suppress(ValueError):
        defaults = {
            signal.SIGINT: signal.default_int_handler,
            signal.SIGTERM: signal.SIG_DFL,
            signal.SIGHUP: signal.SIG_DFL,
        }
        for number, default in defaults.items():
            if signal.getsignal(number) is default:
                taken[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, default in taken.items():
            # Restore the old handler only if ours is still there. If interruptions() has set
            # another one for good, that one stays.
            if signal.getsignal(number) is end:
                signal.signal(number, default)


class Interrupted(BaseException):
    """SIGINT, SIGTERM or SIGHUP came; the text is the signal's name."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Interruption:
    """
    Turns signals into an exception, or into an answer, that ends the program.

    It belongs to the main thread, where Python runs all signal handlers.

    :meth:`handle` is the handler. It raises an exception only inside of :meth:`allowed`; a signal
    that comes elsewhere is remembered, and raised at the beginning of the next such block. After
    the exception, further signals have no effect, so that the program can end in order.

    The interpreter's own C handler also writes into a pipe (``signal.set_wakeup_fd``), which
    :meth:`wait` polls. A handler written in Python is not enough there: it runs only between two
    steps of the main thread, hence not while that thread is about to block.

    :ivar came: the number of the first signal that came; 0: none came.
    """

    def __init__(self) -> None:
        self._allowed = False
        self.came = 0
        self._exception: Callable[[int], BaseException] = Interrupted
        self._reading: IO[bytes] | None = None
        self._writing: IO[bytes] | None = None

    def begin(self, exception: Callable[[int], BaseException] = Interrupted) -> None:
        """
        Forget earlier signals.

        :param exception: makes the exception to raise, from the signal's number.
        """
        self._allowed, self.came, self._exception = False, 0, exception

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: raise the exception, or remember the signal."""
        self.came = self.came or number
        self._look()

    def _look(self) -> None:
        if self.came and self._allowed:
            self._allowed = False  # further signals must not interrupt what the exception starts
            raise self._exception(self.came)

    def set(self) -> None:  # noqa: A003
        """Ask for the program's end, as a signal does. Any thread may call this."""
        if self._writing is not None:
            self._writing.write(b'.')  # if the pipe is full, it wakes the waiting thread already

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the end is asked for; return whether it was, within *timeout_s* if given."""
        import select

        assert self._reading is not None
        poller = select.poll()
        poller.register(self._reading.fileno(), select.POLLIN)
        return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))

    def check(self) -> None:
        """Raise the exception if the end was asked for."""
        if self.wait(0.0):
            raise Interrupted(self.came or signal.SIGTERM)

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Let a signal raise the exception in this block."""
        self._allowed = True
        try:
            self._look()
            yield
        finally:
            self._allowed = False

    @contextlib.contextmanager
    def put_off(self) -> Iterator[None]:
        """
        Inside of :meth:`allowed`: let a signal raise the exception only after this block.

        So the code that has to close the block's objects knows all of them.
        """
        was, self._allowed = self._allowed, False
        try:
            yield
        finally:
            self._allowed = was
        self._look()


#: The only object of the process.
INTERRUPTION = Interruption()


@contextlib.contextmanager
def interruptions(*, for_good: bool = False) -> Iterator[Interruption]:
    """
    Let :data:`INTERRUPTION` handle :func:`ending_signals` in this block.

    After the block the previous handlers are in force again.

    :param for_good: whether the process only ends after the block. The signals are then ignored,
        so that a second Ctrl-C doesn't turn the interpreter's own end into a failure. (The
        interpreter leaves ignored signals ignored, but resets handled signals.)
    """
    INTERRUPTION.begin()
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(read, 'rb', 0) as reading, os.fdopen(write, 'wb', 0) as writing:
        INTERRUPTION._reading, INTERRUPTION._writing = reading, writing
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        before = {
            number: signal.signal(number, INTERRUPTION.handle) for number in ending_signals()
        }
        try:
            yield INTERRUPTION
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if for_good else handler)
            signal.set_wakeup_fd(-1)
            INTERRUPTION._reading = INTERRUPTION._writing = None


def put(text: str, stream: TextIO | None) -> OSError | None:
    """
    Print a text and a line feed; return the error if this fails, else ``None``.

    Characters that the stream's encoding lacks are escaped. After an error the stream is not used
    any more, because the rest of its buffer would fail once more when Python ends, and would
    change the exit code.
    """
    if stream is None:
        return OSError(errno.EBADF, 'it is closed')
    encoding = stream.encoding or 'utf-8'
    try:
        print(text.encode(encoding, 'backslashreplace').decode(encoding), file=stream, flush=True)
    except (OSError, ValueError) as error:  # ValueError: somebody has closed the stream
        with (
            contextlib.suppress(OSError, ValueError),
            open(os.devnull, 'w', encoding='ascii') as nowhere,
        ):
            os.dup2(nowhere.fileno(), stream.fileno())
        return error if isinstance(error, OSError) else OSError(errno.EBADF, str(error))
    return None
