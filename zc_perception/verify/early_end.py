"""The first moments of a command, in which Python imports what it needs: an interrupt then ends it, without a traceback.

As the signal itself would: who waits for the command must not take it for a verdict, as 0 would be. Imports next to nothing.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def ending_quietly() -> Iterator[None]:
    """While it lasts SIGINT ends the process at once, unless somebody has taken it over. Nothing is open yet that would have to be given
    back. Outside of the main thread it changes nothing."""
    try:
        before = signal.getsignal(signal.SIGINT)
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
