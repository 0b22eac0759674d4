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

from zc_perception.link.rclpy_compat import InvalidHandle

_MAX_FAILURES_IN_A_ROW = 20
_PAUSE_S = 0.05


class ContainerExecutor(Executor):
    """Spins nodes on its own daemon threads; one of them waits for work at a time, and then does it.

    :param name: its threads' name, with a number behind.
    :param on_error: a callback of this node has raised (``None``: a task, which is nobody's); on the callback's thread. Must not raise.
    :param on_end: it can't go on: the context was shut down, or waiting itself fails (:attr:`failure`).
    """

    def __init__(
        self,
        context: rclpy.Context,
        name: str,
        threads: int,
        on_error: Callable[[Node | None, BaseException], None],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(context=context)
        self.failure: str | None = None
        self._on_error = on_error
        self._on_end = on_end
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._in_work: dict[int, Node | None] = {}
        self._left: weakref.WeakSet[Node] = weakref.WeakSet()
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
        failures = 0
        while not self._ending and failures < _MAX_FAILURES_IN_A_ROW:
            try:
                self.spin_once()
                failures = 0
            except ExternalShutdownException:
                break
            except Exception:  # an entity may have been destroyed at the wrong moment; that passes
                failures += 1
                if failures == _MAX_FAILURES_IN_A_ROW:
                    self.failure = traceback.format_exc()
                time.sleep(_PAUSE_S)
        if not self._ending:
            self._on_end()

    def spin_once(self, timeout_sec: float | None = None) -> None:
        """Wait for one callback and run it. What it raises goes to ``on_error``.

        :raises ExternalShutdownException: the context was shut down.
        """
        self._step(timeout_sec, lambda: self._ending)

    def spin_once_until_future_complete(self, future: Any, timeout_sec: Any = None) -> None:
        """See rclpy."""
        future.add_done_callback(lambda _: self.wake())
        self._step(timeout_sec, future.done)

    def _step(self, timeout_sec: Any, enough: Callable[[], bool]) -> None:
        thread = threading.get_ident()
        with self._turn:
            if enough():
                return
            try:
                handler, _, node = self.wait_for_ready_callbacks(
                    timeout_sec=timeout_sec, condition=enough
                )
            except (
                TimeoutException,
                ShutdownException,
                ConditionReachedException,
                InvalidHandle,
            ):
                return
            with self._changed:
                if node is not None and node in self._left:  # it has left since the wait began
                    handler.cancel()
                    return
                self._in_work[thread] = node
        try:
            handler()
            error = handler.exception() if handler.done() else None
        except BaseException as raised:  # SystemExit is how some end a spin; not the others' here
            handler.cancel()
            error = raised
        if error is not None:
            self._on_error(node, error)
        with self._changed:
            del self._in_work[thread]
            self._changed.notify_all()

    def add_node(self, node: Node) -> bool:
        """See rclpy."""
        self._left.discard(node)
        return bool(super().add_node(node))

    def leave(self, node: Node, timeout_s: float) -> bool:
        """Remove *node*, and wait for its callbacks that run; whether none is left. Not from one of them."""
        self.remove_node(node)
        with self._changed:
            self._left.add(node)
            return self._changed.wait_for(lambda: node not in self._in_work.values(), timeout_s)

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
