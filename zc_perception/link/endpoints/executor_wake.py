"""Has a node's executor run something soon, whatever kind of executor that is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node

from zc_perception.link.rclpy_compat import call_soon, refuses_guard_conditions, trigger


class ExecutorWake:
    """Call it from any thread: *work* then runs once or more on the node's executor, in *group*.

    A guard condition does that, but an EventsExecutor doesn't take nodes that have one: so it is made by the first executor that does.
    Before the node has an executor, a call does nothing.
    """

    def __init__(self, node: Node, group: CallbackGroup, work: Callable[[], None]) -> None:
        self._node = node
        self._group = group
        self._work = work
        self._guard: Any = None
        self._lock = threading.Lock()
        self._closed = False

    def __call__(self) -> None:
        guard = self._guard
        if guard is not None:
            trigger(guard)
            return
        executor = self._node.executor
        if executor is not None and not self._closed:
            call_soon(executor, self._work if refuses_guard_conditions(executor) else self._begin)

    def _begin(self) -> None:
        """On the executor."""
        with self._lock:
            if self._closed:
                return
            if self._guard is None:
                self._guard = self._node.create_guard_condition(self._work, self._group)
            trigger(self._guard)

    def close(self) -> None:
        """Calls do nothing from here on."""
        with self._lock:
            self._closed = True
            guard, self._guard = self._guard, None
        if guard is not None:
            self._node.destroy_guard_condition(guard)
