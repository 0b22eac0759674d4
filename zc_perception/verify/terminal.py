"""What ``zc_verify`` has to do with whoever started it: signals, and lines for people."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from types import FrameType

from zc_perception.errors import printable
from zc_perception.terminal import Interrupted, ending_signals, put


class Stop:
    """SIGINT, SIGTERM and SIGHUP end the measurement, not the program: what was set up is taken down, what was seen is judged.

    A SIGHUP that is ignored, as under nohup, stays so.

    :ivar number: the signal that came; 0: none.
    """

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self.number = 0

    def __enter__(self) -> Stop:
        self._before = {number: signal.signal(number, self._on_signal) for number in ending_signals()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._reading)
        os.close(self._writing)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        with contextlib.suppress(OSError):
            os.write(self._writing, b'.')

    @property
    def wanted(self) -> bool:
        """Whether a signal came."""
        return bool(self.number)

    def wait(self, seconds: float) -> bool:
        """Wait, or return true at once when it is to end."""
        if not self.wanted:
            select.select([self._reading], [], [], seconds)
        return self.wanted

    def check(self) -> None:
        """:raises Interrupted: a signal came."""
        if self.wanted:
            raise Interrupted(self.number)


class Say:
    """Prints, unless it is to be quiet, one line for each text: names that others chose forge none, see :func:`printable`.

    Whoever reads may have read enough: that ends no measurement.
    """

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def __call__(self, text: str) -> None:
        """A line that may be left out."""
        if not self._quiet:
            self.verdict(text)

    def verdict(self, text: str) -> None:
        """A line that is always said."""
        put(printable(text), sys.stdout)

    def error(self, text: str) -> None:
        """A line to standard error."""
        put(printable(f'zc_verify: {text}'), sys.stderr)
