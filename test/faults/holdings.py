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

"""Resources of a process by ``/proc``: descriptors, threads, frame mappings, sockets, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
import functools
import operator
import os
from pathlib import Path
import time

FRAME_KIND = '/memfd:zc_frame'
FRAME = f'{FRAME_KIND} (deleted)'
# The middleware maps a file for each participant, keeps a killed one's for 20 s (its lease), and
# binds sockets.
_MIDDLEWARE = ('/dev/shm/', 'inet')


def _kind(target: str, unix: Collection[str]) -> str:
    if target.startswith('socket:['):
        return 'unix socket' if target[8:-1] in unix else 'inet socket'
    if target.startswith('pipe:['):
        return 'pipe'
    if target.startswith(('/memfd:', '/dev/', 'anon_inode:')):
        return target.removesuffix(' (deleted)')
    return 'file'


def descriptors(pid: int) -> Counter[str]:
    """Count descriptors by kind: a path, ``anon_inode:[eventfd]``, ``unix socket``."""
    found: Counter[str] = Counter()
    folder = Path(f'/proc/{pid}/fd')
    sockets = Path('/proc/net/unix').read_text(encoding='utf-8').splitlines()[1:]
    unix = {line.split()[6] for line in sockets}
    for entry in os.listdir(folder):
        with suppress(OSError):  # closed meanwhile, as the listing's own one is
            found[_kind(os.readlink(folder / entry), unix)] += 1
    return found


def _mapped(pid: int) -> list[str]:
    text = Path(f'/proc/{pid}/maps').read_text(encoding='utf-8', errors='replace')
    return [line for line in text.splitlines() if FRAME in line]


def frame_mappings(pid: int) -> int:
    return len(_mapped(pid))


def resident_bytes(pid: int) -> int:
    """Return resident memory in bytes, without pages shared with other processes."""
    numbers = Path(f'/proc/{pid}/statm').read_text(encoding='ascii').split()
    return (int(numbers[1]) - int(numbers[2])) * os.sysconf('SC_PAGESIZE')


def frame_buffers(pids: Collection[int]) -> set[int]:
    """Return inodes of all frame buffers that these processes keep alive, mapped or open."""
    found: set[int] = set()
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            for entry in Path(f'/proc/{pid}/fd').iterdir():
                with suppress(OSError):
                    if os.readlink(entry).startswith(FRAME):
                        found.add(entry.stat().st_ino)
            found.update(int(line.split()[4]) for line in _mapped(pid))
    return found


def is_ours(kind: str) -> bool:
    """Return whether the package or its user opens such a descriptor, not the middleware."""
    return not kind.startswith(_MIDDLEWARE)


def holding(pid: int) -> Counter[str]:
    """Return descriptors, threads, mappings by kind: the lowest of several looks."""
    looks: list[Counter[str]] = []
    for _ in range(12):
        ours = {kind: count for kind, count in descriptors(pid).items() if is_ours(kind)}
        found = Counter({f'fd {kind}': count for kind, count in ours.items()})
        found['threads'] = len(os.listdir(f'/proc/{pid}/task'))
        found['frame mappings'] = frame_mappings(pid)
        looks.append(found)
        time.sleep(0.004)
    return functools.reduce(operator.and_, looks)


def with_slots(held: Counter[str], slots: int) -> Counter[str]:
    """
    Return *held* with the cost of *slots* added.

    A slot costs a descriptor, a mapping and the mapping's descriptor when a process first uses it,
    which may be late.
    """
    return held | Counter({'frame mappings': slots, 'fd /memfd:zc_frame': 2 * slots})


def settled_excess(
    before: Mapping[str, int], look: Callable[[], Mapping[str, int]], patience_s: float = 60.0
) -> Counter[str]:
    """Return the excess that remains after waiting: threads and sockets end with a delay."""
    deadline = time.monotonic() + patience_s
    while (found := Counter(look()) - Counter(before)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found
