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
Call functions periodically, on one thread for the whole process.

Timers of rclpy would be too expensive. At each wake-up, an rclpy executor collects all entities of
all its nodes: this takes a millisecond for about ten nodes, and holds the interpreter's lock. With
sixteen cameras, such timers would use most of a CPU core, and delay frames.
"""

from __future__ import annotations

from collections.abc import Callable
import heapq
import inspect
import itertools
import math
import threading
import time
import traceback
import weakref

from zc_perception.forking import in_child, Turn
from zc_perception.log import on_stderr, ONCE, Seldom

_LONGEST_STOP_S = 2.0


def next_turn(now: float, period_s: float, phase_s: float) -> float:
    """
    Return the time of the first call after *now*, in seconds of CLOCK_MONOTONIC.

    Calls are made at multiples of *period_s*, plus *phase_s*. So functions with the same period
    and phase run directly after each other. Compared with calls at different times, this takes a
    third of the CPU time, because the functions' code is still in the CPU's caches.
    """
    return (math.floor((now - phase_s) / period_s + 1e-6) + 1) * period_s + phase_s


class Watch:
    """
    A function that :class:`Lookout` calls periodically until :meth:`stop`.

    If the function is a method, the watch doesn't keep the method's object alive, and ends
    with that object.
    """

    def __init__(
        self, lookout: Lookout, period_s: float, look: Callable[[], object], phase_s: float
    ) -> None:
        self._lookout = lookout
        self._look = weakref.WeakMethod(look) if inspect.ismethod(look) else (lambda: look)
        self.period_s = period_s
        self._phase_s = phase_s
        self.stopped = False

    def next_turn(self) -> float:
        """Return the time of the next call, in seconds of CLOCK_MONOTONIC."""
        return next_turn(time.monotonic(), self.period_s, self._phase_s)

    def look(self) -> None:
        """Call the function once; the lookout's thread calls this."""
        look = self._look()
        if look is None:
            self.stopped = True
        else:
            look()

    def stop(self) -> None:
        """
        Stop the periodic calls, and wait up to 2 s for a call that is running.

        Stopping a watch again has no effect. If the watched function itself calls this method,
        the method doesn't wait.
        """
        self._lookout.end(self)


class Lookout:
    """
    Calls all watched functions on one thread, which runs only while there is a watch.

    A watched function must not block, because all other watched functions would wait. If it
    raises, its traceback is printed on standard error, once for each different error. The function
    is still called again at its next time, because a lack of memory or descriptors may be
    temporary.
    """

    def __init__(self) -> None:
        self._order = itertools.count()
        self._begin()
        # A forked child starts without watches and with a new lock: fork() copies no thread, so
        # a lock that a thread of the parent held would never be released.
        in_child(Turn.THREADS, self._begin)

    def _begin(self) -> None:
        self._complain = Seldom(on_stderr, ONCE)
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Watch]] = []
        self._looking: Watch | None = None
        self._thread: threading.Thread | None = None

    def watch(self, period_s: float, look: Callable[[], object], phase_s: float = 0.0) -> Watch:
        """
        Call *look* every *period_s* seconds, at the times that :func:`next_turn` returns.

        If the thread is late by more than a period, the calls that it missed are left out.
        """
        watch = Watch(self, period_s, look, phase_s)
        with self._changed:
            self._put(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name='lookout', daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return watch

    def end(self, watch: Watch) -> None:
        """Stop calling *watch*, see :meth:`Watch.stop`."""
        with self._changed:
            watch.stopped = True
            self._due = [entry for entry in self._due if entry[2] is not watch]
            heapq.heapify(self._due)
            self._changed.notify_all()
            if threading.current_thread() is not self._thread:
                self._changed.wait_for(lambda: self._looking is not watch, _LONGEST_STOP_S)

    def _put(self, watch: Watch) -> None:
        heapq.heappush(self._due, (watch.next_turn(), next(self._order), watch))

    def _run(self) -> None:
        while (watch := self._next()) is not None:
            try:
                watch.look()
            except Exception as error:
                self._complain(traceback.format_exc(), f'{id(watch)} {error!r}')
            self._looked(watch)

    def _looked(self, watch: Watch) -> None:
        with self._changed:
            self._looking = None
            if not watch.stopped:
                self._put(watch)
            self._changed.notify_all()

    def _next(self) -> Watch | None:
        """Wait until a watch is due, and return it; ``None``: no watch is left, end the thread."""
        with self._changed:
            while self._due:
                due, _, watch = self._due[0]
                wait_s = due - time.monotonic()
                if wait_s <= 0:
                    heapq.heappop(self._due)
                    self._looking = watch
                    return watch
                self._changed.wait(wait_s)
            self._thread = None
            return None


LOOKOUT = Lookout()
"""The process's only lookout."""
