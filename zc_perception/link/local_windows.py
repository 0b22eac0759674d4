"""What a publisher's pool has promised to the subscriptions of its own process."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from zc_perception.memory.pool import BufferPool

_KEEP_ALL_DEPTH = 64
_numbers = itertools.count(1)


class Holder(Protocol):
    """A subscription, as far as its window is concerned."""

    @property
    def holder(self) -> str:
        """Its name."""

    @property
    def held(self) -> int | None:
        """Frames that it may hold at the same time; ``None``: as many as it likes."""

    @property
    def qos(self) -> Any:
        """Its depth, ``None`` for all."""

    @property
    def consumer(self) -> Any:
        """Who takes part in the agreement on the buffers for it; ``None``: it takes whatever comes."""

    def go_on(self) -> None:
        """It may be handed a frame again."""


@dataclass(frozen=True)
class Granted:
    """What one subscription was promised.

    :param holder: its name among the holders of the pool's leases; nobody else in that pool has it.
    :param window: frames that it may hold at the same time; ``None``: as many as it likes.
    :param depth: of the newest ones that may wait for it.
    :param asked: the window that it asked for.
    :param number: another one for each promise.
    """

    holder: str
    window: int | None
    depth: int
    asked: int | None
    number: int


class LocalWindows:
    """See the module. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: weakref.ref[BufferPool] | None = None
        self._granted: dict[Any, Granted] = {}
        self._refused: set[Any] = set()

    def settle(self, pool: BufferPool, holders: Sequence[Any]) -> dict[Any, str]:
        """Promise slots of *pool* to those *holders* who have none of it yet or ask for more now, and take back what others had.

        :returns: by holder who may get frames, its name in the pool.
        """
        with self._lock:
            if self._pool is None or self._pool() is not pool:
                self._take_back(self._granted)
                self._pool = weakref.ref(pool)
            self._take_back([holder for holder in self._granted if holder not in holders])
            self._refused.clear()
            news = []
            for holder in holders:
                granted = self._granted.get(holder)
                if granted is None or granted.asked != holder.held:
                    self._grant(pool, holder, granted)
                    news.append(holder)
            names = {holder: granted.holder for holder, granted in self._granted.items()}
        for holder in news:
            holder.go_on()
        return names

    def _grant(self, pool: BufferPool, holder: Holder, before: Granted | None) -> None:
        """Lock held."""
        name = before.holder if before is not None else pool.free_name(holder.holder)
        window, depth = holder.held, holder.qos.depth
        if window is not None:
            go_on: Callable[[], object] = holder.go_on
            window, depth = pool.grant(
                name,
                window,
                depth or _KEEP_ALL_DEPTH,
                on_room=go_on,
                lossless=holder.qos.depth is None,
                alone=True,
                whole=holder.consumer is not None,
            )
            if not window:
                self._refused.add(holder)
                self._granted.pop(holder, None)
                return
        self._granted[holder] = Granted(name, window, depth or 0, holder.held, next(_numbers))

    def _take_back(self, holders: Any) -> None:
        """Lock held."""
        pool = None if self._pool is None else self._pool()
        for holder in list(holders):
            granted = self._granted.pop(holder)
            if pool is not None:
                pool.set_quota(granted.holder, None)
            holder.go_on()

    def granted(self, holder: Holder) -> Granted | None:
        """What *holder* was promised."""
        return self._granted.get(holder)

    def refused(self, holder: Holder) -> str:
        """Why *holder* gets nothing; empty if it does, or may."""
        pool = None if self._pool is None else self._pool()
        if pool is None or holder not in self._refused:
            return ''
        return f"{max(0, pool.unpromised)} of {len(pool.slots)} slots are not promised to others; raise 'slots', or end other consumers"

    def in_hand(self, holder: Holder) -> tuple[tuple[int, float], ...]:
        """See :meth:`BufferPool.in_hand`."""
        pool, granted = None if self._pool is None else self._pool(), self._granted.get(holder)
        return () if pool is None or granted is None else pool.in_hand(granted.holder)

    def end(self) -> None:
        """The publisher has ended."""
        with self._lock:
            self._take_back(self._granted)
            self._pool = None
