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
Handle the signals that end a program, and print its output.

Every program uses this module in this order:

1. :func:`ending_quietly` during the imports: no object is open yet, so a signal ends the process
   at once.
2. :func:`interruptions` during the work. Inside :meth:`Interruption.allowed`, a signal raises
   :exc:`Interrupted` in the main thread, so that the program closes its objects in order.
   Elsewhere, nodes and ``zc_verify`` find out whether a signal has come: by
   :meth:`Interruption.wait`, and by :meth:`Interruption.check` between the steps of a long start.
3. :func:`put` for output: a closed terminal or a full disk must not lose the program's result.

The signals are those of :func:`ending_signals`. After signal n, the exit code is 128 + n, or 0 for
a program that runs nodes, because a signal is the usual way to end it. This module imports little,
because signals are not handled before it is imported.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal

# Importing typing.TYPE_CHECKING would slow the program's start, see zc_perception/__init__.py.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator  # noqa: I300
    from types import FrameType
    from typing import IO, NoReturn, TextIO


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return SIGINT, SIGTERM, and SIGHUP unless the process ignores it, as under nohup."""
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
    Let SIGINT, SIGTERM and SIGHUP end the process at once, without a traceback, in this block.

    A signal that the program already handles or ignores is left alone. Outside the main thread,
    the function changes nothing.

    :param command: the program's name, for the line that is printed after a signal n; the exit
        code is then 128 + n. With an empty name, as for a program that runs nodes, no line is
        printed, and the exit code is 0.
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
            # interruptions(for_good=True) may have set another handler, which must stay.
            if signal.getsignal(number) is end:
                signal.signal(number, default)


class Interrupted(BaseException):
    """The process received SIGINT, SIGTERM or SIGHUP; the text is the signal's name."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Interruption:
    """
    Handles the signals that end the program; only the main thread uses it, except :meth:`set`.

    While the main thread runs a ``with`` block of :meth:`allowed`, the signal handler
    :meth:`handle` raises an exception. A signal that comes outside of such a block is stored, and
    the next :meth:`allowed` raises its exception. After the exception, further signals have no
    effect, so that the program can end in order.

    The interpreter's C handler also writes into a pipe (``signal.set_wakeup_fd``), which
    :meth:`wait` polls. The Python handler alone couldn't end that wait: Python runs it only
    between two bytecodes of the main thread. If a signal came just before that thread blocks in
    poll(2), the handler would run only after the wait.

    :ivar came: the number of the first signal that was received; 0: none.
    :ivar cut_short: whether a signal ended a wait in :func:`interruptible`. The thread that was
        waited for may still run, so the process must end without the interpreter's shutdown.
    """

    def __init__(self) -> None:
        self._allowed = self.cut_short = False
        self.came = 0
        self._exception: Callable[[int], BaseException] = Interrupted
        self._reading: IO[bytes] | None = None
        self._writing: IO[bytes] | None = None

    def begin(self, exception: Callable[[int], BaseException] = Interrupted) -> None:
        """Forget earlier signals; for a later signal, make :meth:`handle` raise *exception*."""
        self._allowed, self.came, self._exception = False, 0, exception
        self.cut_short = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise the signal's exception in a block of :meth:`allowed`; else store the signal."""
        self.came = self.came or number
        self._look()

    def _look(self) -> None:
        if self.came and self._allowed:
            self._allowed = False  # further signals must not interrupt the program's clean-up
            raise self._exception(self.came)

    def set(self) -> None:  # noqa: A003
        """Request the program's end, as a signal does. Any thread may call this."""
        if self._writing is not None:
            # If the pipe is full, nothing is written; wait() then ends because of older bytes.
            self._writing.write(b'.')

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the program's end is requested; ``False``: *timeout_s* passed before."""
        import select

        assert self._reading is not None
        poller = select.poll()
        poller.register(self._reading.fileno(), select.POLLIN)
        return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))

    def check(self) -> None:
        """Raise :exc:`Interrupted` if the program's end was requested; don't wait."""
        if self.wait(0.0):
            raise Interrupted(self.came or signal.SIGTERM)

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """
        Let a signal raise its exception in this block; :meth:`begin` sets which exception.

        For a signal that came before the block, the exception is raised at once. Blocks may be
        nested.
        """
        was, self._allowed = self._allowed, True
        try:
            self._look()
            yield
        finally:
            self._allowed = was and not self.came

    @contextlib.contextmanager
    def put_off(self) -> Iterator[None]:
        """
        Inside :meth:`allowed`: delay a signal's exception until the end of this block.

        Code that opens objects needs this: the exception then comes only after the code has stored
        each object that it opened, so that the object can be closed.
        """
        was, self._allowed = self._allowed, False
        try:
            yield
        finally:
            self._allowed = was
        self._look()


#: The process's only :class:`Interruption`.
INTERRUPTION = Interruption()


@contextlib.contextmanager
def interruptions(*, for_good: bool = False) -> Iterator[Interruption]:
    """
    Let :data:`INTERRUPTION` handle :func:`ending_signals` in this block; then restore handlers.

    :param for_good: whether the process ends right after the block. The signals are then ignored
        after the block, so that a second Ctrl-C can't disturb the interpreter's shutdown. The
        shutdown would reset other handlers, but leaves ignored signals ignored.
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


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """
    Let a signal's exception end a long wait in this block.

    This has an effect only inside :func:`interruptions`, and on the main thread, which handles the
    signals.
    """
    import threading

    main = threading.current_thread() is threading.main_thread()
    if INTERRUPTION._reading is None or not main:
        yield
        return
    try:
        with INTERRUPTION.allowed():
            yield
    except BaseException:
        INTERRUPTION.cut_short = INTERRUPTION.came != 0
        raise


def put(text: str, stream: TextIO | None, end: str = '\n') -> OSError | None:
    """
    Print a text and then *end*; return the error if printing fails, else ``None``.

    Characters that the stream's encoding lacks are escaped. After an error, the stream's
    descriptor is redirected to /dev/null. Otherwise Python would flush the stream's buffer at
    exit, fail again, and change the exit code.
    """
    if stream is None:
        return OSError(errno.EBADF, 'the output is closed')
    encoding = stream.encoding or 'utf-8'
    try:
        known = text.encode(encoding, 'backslashreplace').decode(encoding)
        print(known, end=end, file=stream, flush=True)
    except (OSError, ValueError) as error:  # ValueError: the stream was closed
        with (
            contextlib.suppress(OSError, ValueError),
            open(os.devnull, 'w', encoding='ascii') as nowhere,
        ):
            os.dup2(nowhere.fileno(), stream.fileno())
        return error if isinstance(error, OSError) else OSError(errno.EBADF, str(error))
    return None
