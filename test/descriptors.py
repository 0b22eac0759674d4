"""
What the process has open, for tests that nothing leaks.

And how a test takes the rest away from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
import os
import resource


def open_descriptors() -> Counter[str]:
    """Return what the process's descriptors point at, and how many point there."""
    targets: Counter[str] = Counter()
    for number in os.listdir('/proc/self/fd'):
        with suppress(OSError):  # the listing's own descriptor is gone
            targets[os.readlink(f'/proc/self/fd/{number}').split(' ')[0].split(':[')[0]] += 1
    return targets


@contextmanager
def limited(which: int, soft: int) -> Iterator[None]:
    """Yield one of the process's limits is *soft* for now."""
    before = resource.getrlimit(which)
    resource.setrlimit(which, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def next_free() -> int:
    """Return the number that the next descriptor gets: as RLIMIT_NOFILE, it leaves none."""
    free = os.dup(0)
    os.close(free)
    return free
