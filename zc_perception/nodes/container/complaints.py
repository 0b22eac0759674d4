"""What to say of exceptions that come again and again, without hiding one or flooding the log."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable

from zc_perception.nodes.container.plugins import one_line

AGAIN_AFTER_S = 5.0
_MAX_KINDS = 100


class Complaints:
    """Exceptions by who raised what where.

    :param now: the time, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._said: dict[tuple[str, str, str], tuple[float, int]] = {}

    def text(self, name: str, error: BaseException) -> str:
        """What to log now; empty: it was said a moment ago, and is counted."""
        place = traceback.extract_tb(error.__traceback__)[-1:]
        key = name, type(error).__name__, str([(frame.filename, frame.lineno) for frame in place])
        with self._lock:
            known = self._said.get(key)
            if known is not None and self._now() - known[0] < AGAIN_AFTER_S:
                self._said[key] = known[0], known[1] + 1
                return ''
            self._said.pop(key, None)
            if len(self._said) >= _MAX_KINDS:
                del self._said[next(iter(self._said))]
            self._said[key] = self._now(), 0
        if known is not None:
            return f'a callback of {name} raises again and again ({known[1] + 1} times since it was said last): {one_line(error)}'
        exits = ' To end a component, unload it.' if isinstance(error, SystemExit) else ''
        trace = ''.join(traceback.format_exception(error)).rstrip()
        return f'a callback of {name} has raised; the container goes on.{exits}\n{trace}'
