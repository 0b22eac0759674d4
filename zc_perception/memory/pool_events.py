"""Telling others what became of a slot, and closing the buffers of one that ended."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable

from zc_perception.memory.slot import Slot, close_buffers


class PoolEvents:
    """Whom a pool tells, always without its lock. What they raise is counted: it is neither the consumer's nor the producer's fault.

    :param on_free: called for each slot that becomes free again.
    """

    def __init__(self, on_free: Callable[[Slot], None] | None) -> None:
        self._on_free = on_free
        self._numbers = itertools.count()
        self._retire_listeners: dict[int, Callable[[Slot], None]] = {}
        self._lock = threading.Lock()
        self.failures = 0
        self.last_failure = ''

    def add_retire_listener(self, callback: Callable[[Slot], None]) -> Callable[[], None]:
        """See :meth:`BufferPool.add_retire_listener`."""
        number = next(self._numbers)
        self._retire_listeners[number] = callback

        def remove() -> None:
            self._retire_listeners.pop(number, None)

        return remove

    def freed(self, slot: Slot) -> None:
        """One slot is free again."""
        if self._on_free is not None:
            self._call(self._on_free, slot, 'on_free')

    def ended(self, slots: Iterable[Slot]) -> None:
        """These slots' buffers end. Whoever caches something by them forgets it while their inodes still are taken."""
        for slot in slots:
            for listener in tuple(self._retire_listeners.values()):
                self._call(listener, slot, 'a retire listener')
            close_buffers(slot.buffers)

    def _call(self, callback: Callable[[Slot], None], slot: Slot, what: str) -> None:
        try:
            callback(slot)
        except Exception as error:
            self.failed(error, f'{what} for {slot!r}')

    def failed(self, error: Exception, what: str) -> None:
        """Count an exception out of somebody else's code."""
        with self._lock:
            self.failures += 1
            self.last_failure = f'{what}: {type(error).__name__}: {error}'
