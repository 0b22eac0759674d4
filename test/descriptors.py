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
