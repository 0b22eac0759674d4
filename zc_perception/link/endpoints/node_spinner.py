"""Spins a node that nobody else spins."""

from __future__ import annotations

import atexit
import contextlib
import threading

from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node

from zc_perception.link.rclpy_compat import InvalidHandle

_LOOK_S = 1.0
_LONGEST_STOP_S = 5.0


def is_spun(node: Node) -> bool:
    """Whether the node is in an executor. ``rclpy.spin_once(node)`` leaves it the name of one that it is no longer in."""
    executor = node.executor
    return executor is not None and node in executor.get_nodes()


class NodeSpinner:
    """A thread with an executor of its own for *node*, until :meth:`stop`, the end of the context or of the program.

    Somebody else may spin the node later: then this executor is left, and :meth:`take` takes the node back.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._executor = SingleThreadedExecutor(context=node.context)
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._executor.add_node(node)
        self._thread = threading.Thread(target=self._run, name=f'spinner of {node.get_name()}', daemon=True)
        self._thread.start()
        # A thread that is inside the middleware must not outlive the interpreter.
        atexit.register(self.stop)

    def take(self) -> None:
        """Spin the node again, which has left another executor.

        :raises Exception: what a callback of the node has raised. Nothing is spun any more then.
        """
        if self._error is not None:
            raise self._error
        if not is_spun(self._node):
            self._executor.add_node(self._node)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and self._node.context.ok():
                self._executor.spin_once(timeout_sec=_LOOK_S)
        except ExternalShutdownException:
            pass
        except Exception as error:
            if self._node.context.ok():
                self._error = error
        finally:
            self._executor.remove_node(self._node)
            self._executor.shutdown()

    def stop(self) -> None:
        """End the thread; also from within it, by a callback of the node. Idempotent."""
        self._stopping.set()
        atexit.unregister(self.stop)
        with contextlib.suppress(InvalidHandle, AttributeError):  # it is shutting down already
            self._executor.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(_LONGEST_STOP_S)
