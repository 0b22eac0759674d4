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

"""Open descriptors of this process; limits of this or another process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
import os
import resource


def open_descriptors() -> Counter[str]:
    """Return the targets of the process's descriptors, with the number of descriptors for each."""
    targets: Counter[str] = Counter()
    for number in os.listdir('/proc/self/fd'):
        with suppress(OSError):  # the descriptor of the listing itself is closed by now
            targets[os.readlink(f'/proc/self/fd/{number}').split(' ')[0].split(':[')[0]] += 1
    return targets


@contextmanager
def limited(which: int, soft: int, pid: int = 0) -> Iterator[None]:
    """Set the soft limit of one resource (``RLIMIT_…``) of a process inside the block; 0: ours."""
    before = resource.prlimit(pid, which)
    resource.prlimit(pid, which, (soft, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, which, before)


def next_free() -> int:
    """Return the number of the next descriptor. As RLIMIT_NOFILE it allows no further one."""
    free = os.dup(0)
    os.close(free)
    return free
