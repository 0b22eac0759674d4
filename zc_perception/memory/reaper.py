"""Finishes closed pools: nobody calls them any more, yet their last frames come back only later.

One thread for all closed pools of the process, and only while one of them has a frame out or waits for a fence. A pool that is open has
none: its producer looks at fences and abandoned leases at every call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from zc_perception.forking import Turn, in_child
from zc_perception.memory.fence import Fence, Waker


class Remainder(NamedTuple):
    """What is left of a closed pool.

    :param slots: how many still have a holder or a pending fence.
    :param fences: to look again when one of them signals.
    :param deadline: CLOCK_MONOTONIC second at which to look again at the latest, or ``None``.
    """

    slots: int
    fences: Sequence[Fence]
    deadline: float | None


class Reapable(Protocol):
    """What the reaper needs of a closed pool."""

    def reap(self) -> Remainder:
        """Take back what has come free, and say what is left."""


class Reaper:
    """See the module. Thread-safe."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: in a forked child, where the thread is gone and the lock may be held for ever."""
        self._lock = threading.Lock()
        self._pools: list[Reapable] = []
        self._thread: threading.Thread | None = None
        self._waker: Waker | None = None

    @property
    def running(self) -> bool:
        """Whether a closed pool is still unfinished."""
        return self._thread is not None

    def watch(self, pool: Reapable) -> Waker | None:
        """Look after *pool* until nothing is left of it. The caller holds the pool's lock.

        :returns: what the pool has to wake at every change from here on; ``None`` while the interpreter ends.
        """
        with self._lock:
            if self._thread is None:
                self._waker = Waker()
                self._thread = threading.Thread(
                    target=self._run, args=(self._waker,), name='pool-reaper', daemon=True
                )
                try:
                    self._thread.start()
                except RuntimeError:  # no threads any more: the kernel is about to free everything
                    self._thread = self._waker = None
                    return None
            self._pools.append(pool)
            if self._waker is not None:
                self._waker.wake()
            return self._waker

    def _run(self, waker: Waker) -> None:
        try:
            while self._turn(waker):
                pass
        except BaseException:
            with self._lock:
                self._end()
            raise

    def _end(self) -> None:
        """Lock held: the next pool starts a thread of its own."""
        self._pools, self._thread, self._waker = [], None, None

    def _turn(self, waker: Waker) -> bool:
        """Look at every pool once, then wait. A function of its own, so that no local keeps a finished pool alive for longer."""
        with self._lock:
            pools = list(self._pools)
        looks = [(pool, pool.reap()) for pool in pools]
        finished = [pool for pool, look in looks if not look.slots]
        with self._lock:
            self._pools = [
                pool for pool in self._pools if not any(pool is other for other in finished)
            ]
            if not self._pools:
                self._end()
                return False
        # A pool that came meanwhile has left a token in the waker.
        fences = [fence for _, look in looks for fence in look.fences]
        deadlines = [look.deadline for _, look in looks if look.deadline is not None]
        del pools, looks, finished
        waker.wait(max(0.0, min(deadlines) - time.monotonic()) if deadlines else None, fences)
        return True


REAPER = Reaper()
in_child(Turn.THREADS, REAPER.reset)
