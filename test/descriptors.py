"""What the process has open, for tests that nothing leaks."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress


def open_descriptors() -> Counter[str]:
    """What the process's descriptors point at, and how many point there."""
    targets: Counter[str] = Counter()
    for number in os.listdir('/proc/self/fd'):
        with suppress(OSError):  # the listing's own descriptor is gone
            targets[os.readlink(f'/proc/self/fd/{number}').split(' ')[0].split(':[')[0]] += 1
    return targets
