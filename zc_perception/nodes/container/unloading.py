"""Ends a component: what it holds is given back, in the order in which that was taken, and what is left is said."""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from rclpy.logging import LoggingSeverity
from rclpy.node import Node

from zc_perception.link.rclpy_compat import InvalidHandle, lifecycle_state
from zc_perception.memory.pool import live_pools
from zc_perception.nodes.container.construction import discard
from zc_perception.nodes.container.executor import ContainerExecutor

_CALLBACKS_END_S = 1.0
_LEFTOVERS_END_S = 0.5
_POLL_S = 0.02


class Unloading:
    """The steps for one node. None of them keeps the later ones from being done.

    :param name: its full name; it may have destroyed itself.
    :param executor: which spins it; ``None``: none does.
    :param report: told of what went wrong or was left.
    """

    def __init__(self, node: Node, name: str, executor: ContainerExecutor | None, report: Callable[[str], object]) -> None:
        self._node = node
        self._executor = executor
        self._report = report
        self._name = name

    def run(self) -> None:
        """Deactivate and clean up, stop, leave the executor, leave the graph."""
        with self._trying('lifecycle transitions'):
            self._end_lifecycle()
        with self._trying('leaving the executor'):
            if self._executor is not None and not self._executor.leave(self._node, _CALLBACKS_END_S):
                text = f'a callback still runs after {_CALLBACKS_END_S:g} s; the node is destroyed under it'
                self._report(f"'{self._name}': {text}, its thread stays busy until the callback returns")
        with self._trying('stop()'):
            stop = getattr(self._node, 'stop', None)
            if callable(stop) and not inspect.signature(stop).parameters:
                stop()
        level: Any = None
        with self._trying('get_logger()'):
            level = self._node.get_logger()
        with self._trying('destroy_node()'):
            try:
                self._node.destroy_node()
            except InvalidHandle:
                pass  # it has done so itself
            except BaseException:
                discard(self._node)
                raise
        with contextlib.suppress(Exception):
            level.set_level(LoggingSeverity.UNSET)

    def _end_lifecycle(self) -> None:
        """A managed node's own steps down, as far as it is from the ground."""
        node: Any = self._node
        if not (hasattr(node, 'trigger_deactivate') and hasattr(node, 'trigger_cleanup')):
            return
        for state, step in (('active', node.trigger_deactivate), ('inactive', node.trigger_cleanup)):
            if lifecycle_state(node) == state:
                step()

    @contextlib.contextmanager
    def _trying(self, step: str) -> Iterator[None]:
        try:
            yield
        except BaseException:  # foreign code, and the next step is due
            self._report(f"'{self._name}': {step} failed, unloading goes on:\n{traceback.format_exc()}")


def leases_left() -> list[str]:
    """Who still holds frames of the pools of this process."""
    return [
        f'{holder} holds {count} lease(s) of the pool of {pool.name}'
        for pool in live_pools()
        for holder, count in pool.statistics().holders.items()
        if count
    ]


def threads_left(own: set[threading.Thread]) -> list[str]:
    """Threads that live, besides *own*, the asking one and those that unload."""
    asking = threading.current_thread()
    others = [t for t in threading.enumerate() if t not in own and t is not asking and not t.name.startswith('unload ')]
    return [f"thread '{thread.name}'" for thread in others]


def leftovers(find: Callable[[], set[str]]) -> set[str]:
    """What *find* still finds when it was given a moment."""
    deadline = time.monotonic() + _LEFTOVERS_END_S
    while (found := find()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return found
