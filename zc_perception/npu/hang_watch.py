"""When a device isn't only late, but hangs."""

from __future__ import annotations

import time

# So many times one after the other no result came in time.
HANG_TIMEOUTS = 3


class HangWatch:
    """Counts timeouts in a row. Jobs that were in flight together are late together, and count as one.

    A device whose every place is taken by a job that was given up gets no further one that could be late: it hangs when that lasts as long
    as the missing timeouts would have.

    :param timeout_s: of a job.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._in_a_row = 0
        self._last_ns = 0
        self._full_since_ns = 0

    def set_timeout(self, timeout_s: float) -> None:
        """Of the jobs that come."""
        self._timeout_s = timeout_s

    def start(self) -> None:
        """A result came, or another device."""
        self._in_a_row = self._full_since_ns = 0

    def timed_out(self, submitted_ns: int) -> str:
        """A job that was submitted then had no result in time. What to say of a device that hangs, or nothing."""
        if submitted_ns >= self._last_ns:
            self._in_a_row += 1
            self._last_ns = time.monotonic_ns()
        if self._in_a_row < HANG_TIMEOUTS:
            return ''
        return f'the device hangs: {self._in_a_row} times in a row there was no result within {self._timeout_s:g} s'

    def full(self, is_full: bool, now_ns: int) -> str:
        """Whether jobs that were given up have every place. What to say of a device that hangs, or nothing."""
        self._full_since_ns = (self._full_since_ns or now_ns) if is_full else 0
        if not is_full or now_ns - self._full_since_ns <= (HANG_TIMEOUTS - 1) * self._timeout_s * 1e9:
            return ''
        return f'the device hangs: it has ended none of its jobs within {HANG_TIMEOUTS * self._timeout_s:g} s, and has room for no other'
