"""An executor that outlives what callbacks raise, and that a node can leave while it spins.

rclpy's own executors end with the first exception, don't say whose it was, and keep the interpreter from ending while a callback hangs.
This one needs of rclpy only what its documentation offers to custom executors.
"""

from __future__ import annotations

import threading
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import rclpy
from rclpy.executors import (
    ConditionReachedException,
    Executor,
    ExternalShutdownException,
    ShutdownException,
    TimeoutException,
)
from rclpy.node import Node

from zc_perception.errors import one_line
from zc_perception.link.rclpy_compat import InvalidHandle

_NOTHING = (TimeoutException, ShutdownException, ConditionReachedException)
_MAX_FAILURES_IN_A_ROW = 20
_PAUSE_S = 0.05
AGAIN_AFTER_S = 5.0
_MAX_KINDS = 100


class ContainerExecutor(Executor):
    """Spins nodes on its own daemon threads; one of them waits for work at a time, and then does it.

    :param name: its threads' name, with a number behind.
    :param on_error: a callback of the node of this name has raised; on the callback's thread. Must not raise.
    :param on_end: it can't go on: the context was shut down, or waiting itself fails (:attr:`failure`).
    """

    def __init__(
        self,
        context: rclpy.Context,
        name: str,
        threads: int,
        on_error: Callable[[str, BaseException], None],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(context=context)
        self.failure: str | None = None
        self._on_error = on_error
        self._on_end = on_end
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._in_work: dict[Any, Node | None] = {}
        self._left: weakref.WeakSet[Node] = weakref.WeakSet()
        self._names: weakref.WeakKeyDictionary[Node, str] = weakref.WeakKeyDictionary()
        self._failures = 0
        self._ending = False
        self._threads = [
            threading.Thread(target=self._run, name=f'{name}-{n}', daemon=True)
            for n in range(1, threads + 1)
        ]

    def start(self) -> None:
        """Begin to spin."""
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._ending:
            try:
                self.spin_once()
            except ExternalShutdownException:
                break
            except Exception:
                if not self._bear():
                    break
        if not self._ending:
            self._on_end()

    def _bear(self) -> bool:
        """Waiting has failed: whether to try again. An entity may have been destroyed at the wrong moment; that passes."""
        self._failures += 1
        if self._failures >= _MAX_FAILURES_IN_A_ROW:
            self.failure = traceback.format_exc()
            return False
        time.sleep(_PAUSE_S)
        return True

    def spin_once(self, timeout_sec: float | None = None) -> None:
        """Wait for one callback and run it. What it raises goes to ``on_error``.

        :raises ExternalShutdownException: the context was shut down.
        """
        self._step(timeout_sec, self._ends)

    def _ends(self) -> bool:
        return self._ending

    def _step(self, timeout_sec: Any, enough: Callable[[], bool]) -> None:
        with self._turn:
            if enough():
                return
            try:
                handler, _, node = self.wait_for_ready_callbacks(
                    timeout_sec=timeout_sec, condition=enough
                )
            except (*_NOTHING, InvalidHandle):
                return
            self._failures = 0
            if not self._take(handler, node):
                return
        try:
            self._work(handler, node)
        finally:
            with self._changed:
                del self._in_work[handler]
                self._changed.notify_all()

    def _take(self, handler: Any, node: Node | None) -> bool:
        """Whether it is to be done: tasks are offered until they have begun, and a node may have left since the wait began."""
        with self._changed:
            if handler in self._in_work:
                return False
            if node is not None and node in self._left:
                handler.cancel()
                return False
            self._in_work[handler] = node
            return True

    def _work(self, handler: Any, node: Node | None) -> None:
        try:
            handler()
        except (
            BaseException
        ) as error:  # SystemExit is how some end a spin; here it must not end the others
            handler.cancel()
            self._on_error(self._name_of(node), error)
            return
        raised = handler.exception() if handler.done() else None
        if raised is not None:
            self._on_error(self._name_of(node), raised)

    def spin_once_until_future_complete(self, future: Any, timeout_sec: Any = None) -> None:
        """See rclpy."""
        future.add_done_callback(lambda _: self.wake())
        self._step(timeout_sec, future.done)

    def add_node(self, node: Node) -> bool:
        """See rclpy."""
        self._left.discard(node)
        self._names.setdefault(
            node, node.get_fully_qualified_name()
        )  # later it may have been destroyed
        return bool(super().add_node(node))

    def leave(self, node: Node, timeout_s: float) -> bool:
        """Remove *node*, and wait for its callbacks that run; whether none is left. Not from one of them."""
        self.remove_node(node)
        with self._changed:
            self._left.add(node)
            return self._changed.wait_for(lambda: node not in self._in_work.values(), timeout_s)

    def busy(self) -> list[str]:
        """Names of the nodes whose callbacks run now; empty for a task."""
        with self._changed:
            return [self._name_of(node) for node in self._in_work.values()]

    def _name_of(self, node: Node | None) -> str:
        """Also of a node that has been destroyed, and of a task, which belongs to none."""
        return '' if node is None else self._names.get(node, '')

    def stop(self, timeout_s: float) -> bool:
        """End within *timeout_s*; whether every callback has ended."""
        self._ending = True
        deadline = time.monotonic() + timeout_s
        self.wake()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        ended = not any(thread.is_alive() for thread in self._threads)
        if ended:
            self.shutdown(timeout_sec=0.0)
        return ended


class Complaints:
    """Exceptions by who raised what where."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._said: dict[tuple[str, str, str], tuple[float, int]] = {}

    def text(self, name: str, error: BaseException) -> str:
        """What to log now; empty: it was said a moment ago, and is counted."""
        place = traceback.extract_tb(error.__traceback__)[-1:]
        key = name, type(error).__name__, str([(frame.filename, frame.lineno) for frame in place])
        with self._lock:
            known = self._said.get(key)
            if known is not None and self._now() - known[0] < AGAIN_AFTER_S:
                self._said[key] = known[0], known[1] + 1
                return ''
            self._said.pop(key, None)
            if len(self._said) >= _MAX_KINDS:
                del self._said[next(iter(self._said))]
            self._said[key] = self._now(), 0
        if known is not None:
            return f'a callback of {name} raises again and again ({known[1] + 1} times since it was said last): {one_line(error)}'
        exits = ' To end a component, unload it.' if isinstance(error, SystemExit) else ''
        trace = ''.join(traceback.format_exception(error)).rstrip()
        return f'a callback of {name} has raised; the container goes on.{exits}\n{trace}'
