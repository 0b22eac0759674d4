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
Looks at things now and then, all of a process on one thread.

An executor of rclpy gathers all entities of all its nodes each time that it wakes up, which takes
a millisecond for some ten nodes and is all under the interpreter's lock: for sixteen cameras,
timers that only look whether something has changed would cost most of a core, and keep frames
waiting.
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

    Turns are whole periods of the steady clock, plus *phase_s*. So objects with the same phase are
    looked at together, which costs a third of looking at one after the other: the code is in the
    CPU's caches then.
    """
    return (math.floor((now - phase_s) / period_s + 1e-6) + 1) * period_s + phase_s


class Watch:
    """
    One object that is looked at until :meth:`stop`.

    It also ends when the object is gone whose method looks: the watch doesn't keep it alive.
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
        """Return the time of the next look."""
        return next_turn(time.monotonic(), self.period_s, self._phase_s)

    def look(self) -> None:
        """Look once."""
        look = self._look()
        if look is None:
            self.stopped = True
        else:
            look()

    def stop(self) -> None:
        """
        Stop looking.

        A look that is under way has ended afterwards, unless this is called from within it.
        Idempotent.
        """
        self._lookout.end(self)


class Lookout:
    """
    A thread that lives while there is something to look at.

    What looks must neither wait nor hold the owner's locks while it does so. The traceback of what
    it raises goes to standard error, once as long as it stays the same; it is looked at again in
    its turn, since a process that has run out of something may have it again.
    """

    def __init__(self) -> None:
        self._order = itertools.count()
        self._begin()
        # A forked child has none of the threads, and a lock that one of them held is never given
        # back.
        in_child(Turn.THREADS, self._begin)

    def _begin(self) -> None:
        self._complain = Seldom(on_stderr, ONCE)
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Watch]] = []
        self._looking: Watch | None = None
        self._thread: threading.Thread | None = None

    def watch(self, period_s: float, look: Callable[[], object], phase_s: float = 0.0) -> Watch:
        """
        Call *look* each *period_s*, for the first time within one: see :func:`next_turn`.

        Turns that were missed are not made up for.
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
        Return the watch whose turn it is, once it is.

        ``None``, and the end of the thread, when there is nothing more to look at.
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
"""The process's."""
