"""The first moments of a command, in which Python imports what it needs: a signal then ends it in one line, without a traceback.

With the exit code that it has later, too: who waits for the command must not take it for a verdict, as 0 would be. Imports next to nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn


def ending_signals() -> tuple[signal.Signals, ...]:
    """SIGINT, SIGTERM, and SIGHUP unless it is ignored, as under nohup: it stays so then."""
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
    """While it lasts SIGINT, SIGTERM and SIGHUP end the process at once with 128 + n, unless somebody has taken them over or ignores them.

    Nothing is open yet that would have to be given back. Outside of the main thread it changes nothing.

    :param command: its name, for that line.
    """
    taken = {}
    with contextlib.suppress(ValueError):
        defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
        for number, default in defaults.items():
            if signal.getsignal(number) is default:
                taken[number] = signal.signal(number, _ending(command))
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)
