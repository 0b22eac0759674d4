"""When to ask an allocator again for the buffers of a retired slot."""

from __future__ import annotations

import time
from collections.abc import Iterable

# How long to leave an allocator alone that had no buffers: at first, and at most. Looking for contiguous memory is slow.
FIRST_RETRY_S, LAST_RETRY_S = 0.01, 1.0


class Replacement:
    """One thread at a time replaces slots, and leaves an allocator that failed alone for a while.

    Its pool holds a lock around every call.
    """

    def __init__(self) -> None:
        self.failures = 0
        self.last_failure = ''
        self.retry_at = 0.0
        self._retry_s = FIRST_RETRY_S
        self._busy = False

    def begin(self, missing: Iterable[int]) -> list[int]:
        """The indices to replace now; :meth:`end` has to follow when there are any."""
        if self._busy or time.monotonic() < self.retry_at:
            return []
        indices = sorted(missing)
        self._busy = bool(indices)
        return indices

    def end(self, error: Exception | None) -> None:
        """All of them were replaced, or *error* was in the way."""
        self._busy = False
        if error is None:
            self.retry_at, self._retry_s = 0.0, FIRST_RETRY_S
            return
        self.failures += 1
        self.last_failure = f'{type(error).__name__}: {error}'
        self.retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(2.0 * self._retry_s, LAST_RETRY_S)
