"""Functions that other threads want to have run on a scheduler's thread."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from zc_perception.errors import AcceleratorError

T = TypeVar('T')


class _Call(Generic[T]):
    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._done = threading.Event()
        self._result: list[T] = []
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._result.append(self._function())
        except Exception as error:
            self._error = error
        self._done.set()

    def refuse(self, reason: str) -> None:
        self._error = AcceleratorError(f'the accelerator is not available: {reason}')
        self._done.set()

    def result(self, timeout_s: float) -> T:
        if not self._done.wait(timeout_s):
            raise AcceleratorError(f'the accelerator was busy for {timeout_s:g} s; try again')
        if self._error is not None:
            raise self._error
        return self._result[0]


class CallQueue:
    """Calls in the order in which they came. Any number of threads ask, one works them off."""

    def __init__(self) -> None:
        self._calls: deque[_Call[object]] = deque()
        self._refusal = ''
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._calls)

    def run(self, function: Callable[[], T], wake: Callable[[], None], timeout_s: float) -> T:
        """Have *function* run by the other thread, and wait for what it returns or raises.

        :param wake: tells the other thread to look.
        :raises AcceleratorError: not within *timeout_s*, or there is no other thread any more.
        """
        call = _Call(function)
        with self._lock:
            if self._refusal:
                call.refuse(self._refusal)
            else:
                self._calls.append(call)  # type: ignore[arg-type]
        wake()
        try:
            return call.result(timeout_s)
        finally:
            with contextlib.suppress(ValueError):  # it was worked off
                self._calls.remove(call)  # type: ignore[arg-type]

    def work_off(self) -> None:
        """Run what is there."""
        while self._calls:
            with contextlib.suppress(IndexError):
                self._calls.popleft().run()

    def refuse(self, reason: str) -> None:
        """Refuse what is there and what comes."""
        with self._lock:
            self._refusal = reason
        while self._calls:
            with contextlib.suppress(IndexError):
                self._calls.popleft().refuse(reason)
