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
Call functions periodically, all functions of a process on one thread.

An executor of rclpy gathers all entities of all its nodes each time that it wakes up, which takes
a millisecond for some ten nodes and holds the interpreter's lock all the time. For sixteen
cameras, timers of rclpy that only check whether something has changed would use most of a core,
and delay frames.
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
    Return the next turn after *now*.

    Turns are multiples of the period in the steady clock, plus *phase_s*. So the functions with
    the same phase run directly one after the other. That takes a third of the CPU time, because
    their code is still in the CPU's caches.
    """
    return (math.floor((now - phase_s) / period_s + 1e-6) + 1) * period_s + phase_s


class Watch:
    """
    A method that is called periodically until :meth:`stop`.

    The watch doesn't keep the method's object alive, and ends when the object is gone.
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
        """Return the time of the next call."""
        return next_turn(time.monotonic(), self.period_s, self._phase_s)

    def look(self) -> None:
        """Call the method once."""
        look = self._look()
        if look is None:
            self.stopped = True
        else:
            look()

    def stop(self) -> None:
        """
        Stop the periodic calls.

        A call that is running has ended when this returns, unless the call itself stops the watch.
        Idempotent.
        """
        self._lookout.end(self)


class Lookout:
    """
    The thread that makes the calls; it runs only while there is at least one watch.

    A called method must not wait, and must not hold its owner's locks while it waits. If it
    raises, the traceback goes to standard error, but not again while it stays the same. The method
    is called again at its next turn, because a lack of memory or descriptors may pass.
    """

    def __init__(self) -> None:
        self._order = itertools.count()
        self._begin()
        # Begin anew in a forked child: it has none of these threads, and a lock that one of them
        # held would never be released.
        in_child(Turn.THREADS, self._begin)

    def _begin(self) -> None:
        self._complain = Seldom(on_stderr, ONCE)
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Watch]] = []
        self._looking: Watch | None = None
        self._thread: threading.Thread | None = None

    def watch(self, period_s: float, look: Callable[[], object], phase_s: float = 0.0) -> Watch:
        """
        Call *look* every *period_s* seconds, first within one period: see :func:`next_turn`.

        A call that was missed is not made later.
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
        """See :meth:`Watch.stop`."""
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
        """
        Wait for the next turn, and return its watch.

        ``None``: there is no watch any more, so the thread ends.
        """
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
