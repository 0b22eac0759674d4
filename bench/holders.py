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
Find the threads that hold the interpreter's lock (GIL) for long.

A thread that got the lock late finds the thread that used the CPU meanwhile, and that thread's
stack.

Sources: clock_getcpuclockid(3), and the kernel's ``include/linux/posix-timers_types.h`` for the
number of a thread's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import sys
import threading
import time
import traceback
from typing import Any

LONG_NS = 1_000_000
_NAMED = 5
# Functions of the holder's stack to report, innermost first.
_DEEP = 3


def _thread_clock(native_id: int) -> int:
    """
    Return the clock of a thread's CPU time, computed from the thread's number.

    Reading the clock of a thread that has ended raises OSError. With pthread_getcpuclockid(3) it
    would be undefined behaviour.
    """
    return (~native_id << 3) | 6


class LockHolders:
    """
    Finds the threads that hold the interpreter's lock for long.

    The probing thread calls :meth:`mark`, sleeps, and calls :meth:`kept` if it got the lock late.
    Another thread may call :meth:`longest`.
    """

    def __init__(self) -> None:
        self._spent: dict[int, int] = {}
        self._kept_us: dict[str, list[float]] = {}

    def mark(self) -> None:
        """Note all other threads' CPU times, before the sleep."""
        self._spent = self._clocks()

    def _clocks(self) -> dict[int, int]:
        own, found = threading.get_ident(), {}
        for thread in threading.enumerate():
            if thread.native_id and thread.ident and thread.ident != own:
                try:
                    found[thread.ident] = time.clock_gettime_ns(_thread_clock(thread.native_id))
                except OSError:  # it has ended
                    continue
        return found

    def kept(self, wait_ns: int) -> None:
        """
        Blame a late lock on the thread that used the most CPU time since :meth:`mark`.

        At most that CPU time is counted: the thread may also have held the lock while another
        program had the CPU.

        :param wait_ns: how late the calling thread got the lock.
        """
        frames = sys._current_frames()
        used = {
            ident: spent - self._spent[ident]
            for ident, spent in self._clocks().items()
            if ident in self._spent and ident in frames
        }
        holder = max(used, key=used.__getitem__, default=0)
        if used.get(holder, 0) >= LONG_NS:
            kept_us = min(wait_ns, used[holder]) / 1e3
            self._kept_us.setdefault(_place(frames[holder]), []).append(kept_us)

    def longest(self) -> list[Mapping[str, Any]]:
        """Return the places in the code that held the lock longest in total, the worst first."""
        ordered = sorted(self._kept_us.copy().items(), key=lambda each: -sum(each[1]))
        return [
            {
                'place': place,
                'times': len(waits),
                'p99_us': sorted(waits)[int(len(waits) * 0.99)],
                'worst_us': max(waits),
            }
            for place, waits in ordered[:_NAMED]
        ]


def _place(frame: Any) -> str:
    stack = traceback.extract_stack(frame, _DEEP)
    return ' < '.join(
        f'{line.filename.rpartition("/")[2]}:{line.name}' for line in reversed(stack)
    )


def describe(holders: Sequence[Mapping[str, Any]]) -> str:
    """Describe the places of :meth:`LockHolders.longest` in one line."""
    return '; '.join(
        f'{each["place"]} {each["times"]} times, p99 {each["p99_us"] / 1e3:.1f} ms'
        for each in holders
    )
