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
Run this package's callbacks on a node's executor of any kind.

:class:`ExecutorWake` makes the executor call a function soon, :func:`coroutine_turn` runs a
coroutine to its end, :class:`NodeWatch` calls a function periodically while a node exists, on the
thread of :mod:`~zc_perception.lookout`, and :class:`NodeSpinner` spins a node that no other
executor spins.
"""

from __future__ import annotations

import atexit
from collections.abc import Awaitable, Callable, Coroutine, Generator
import threading
import types
from typing import Any
import weakref
import zlib

from rclpy.callback_groups import CallbackGroup
from rclpy.executors import Executor, ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.task import Future

from zc_perception.link.rclpy_compat import (
    call_soon,
    InvalidHandle,
    refuses_guard_conditions,
    trigger,
    wake_up,
)
from zc_perception.lookout import LOOKOUT

_LOOK_S = 1.0
_LONGEST_STOP_S = 5.0


class ExecutorWake:
    """
    Call this object from any thread to make a node's executor run *work* soon.

    *work* runs in the callback group *group*. Several calls may cause only one run. Before the
    node has an executor, a call does nothing.

    A guard condition wakes the executor. For an EventsExecutor none is created, because an
    EventsExecutor refuses nodes that have a guard condition.
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
        """Create the guard condition and trigger it; runs on the executor."""
        with self._lock:
            if self._closed:
                return
            if self._guard is None:
                self._guard = self._node.create_guard_condition(self._work, self._group)
            trigger(self._guard)

    def close(self) -> None:
        """Destroy the guard condition; later calls of this object do nothing."""
        with self._lock:
            self._closed = True
            guard, self._guard = self._guard, None
        if guard is not None:
            self._node.destroy_guard_condition(guard)


def coroutine_turn(
    node: Node, work: Callable[[], Coroutine[Any, Any, None]]
) -> Callable[[], Awaitable[None]]:
    """
    Return a callback for rclpy that runs *work*, a method, as a coroutine.

    The callback group stays occupied until the coroutine has ended, as with rclpy's callbacks.

    rclpy continues a coroutine only while the coroutine's node is in the executor. If the node is
    removed, rclpy never deletes the coroutine, so a camera frame that the coroutine refers to
    would never be released. Therefore a coroutine of *work* that awaits something continues as a
    task of the executor itself, and the coroutine that rclpy keeps refers to no camera frame.
    """
    method, its_node = weakref.WeakMethod(work), weakref.ref(node)

    async def turn() -> None:
        begin, executor = method(), getattr(its_node(), 'executor', None)
        if begin is None or executor is None:
            return
        coroutine = begin()
        del begin
        try:
            coroutine.send(None)
        except StopIteration:  # the usual case: the coroutine awaited nothing and has ended
            return
        ended: Any = Future()
        executor.create_task(_go_on, coroutine, ended, executor)
        del coroutine
        await ended

    return turn


async def _go_on(coroutine: Coroutine[Any, Any, None], ended: Future, executor: Executor) -> None:
    try:
        await _rest(coroutine)
    finally:
        ended.set_result(None)
        wake_up(executor)


@types.coroutine
def _rest(coroutine: Coroutine[Any, Any, None]) -> Generator[None, None, None]:
    while True:
        yield
        try:
            coroutine.send(None)
        except StopIteration:
            return


def phase_s(node: Node) -> float:
    """
    Return the time within each second, 0 to 1 s, at which the lookout thread checks a node.

    All nodes of a namespace have the same time, because they belong to one camera. Different
    cameras have different times: simultaneous checks would hold the interpreter's lock for long,
    and delay the threads that carry frames.
    """
    return zlib.crc32(node.get_namespace().encode()) / 2**32


class NodeWatch:
    """
    Call *look* every *period_s* seconds, on the thread of :mod:`~zc_perception.lookout`.

    The calls end with :meth:`stop`, with the node, with its context, or when nothing refers to
    this object any more.

    :param look: a function that checks the node. It must neither wait nor take locks that a caller
        of :meth:`stop` may hold. It must not itself make or destroy entities of the node: only
        the executor may.
    """

    def __init__(self, node: Node, period_s: float, look: Callable[[], object]) -> None:
        self._node = node
        self._look = look
        self._watch = LOOKOUT.watch(period_s, self._once, phase_s(node))

    def _once(self) -> None:
        if self._node.executor is None:
            return
        try:
            self._look()
        except RuntimeError as error:
            # rclpy raises RuntimeError for every error of the middleware. Ignore the error only if
            # the node or its context has ended.
            if not isinstance(error, InvalidHandle) and self._node.context.ok():
                raise
            self.stop()

    def look_every(self, period_s: float) -> None:
        """Change the period, in seconds; it applies after the next call of *look*."""
        self._watch.period_s = period_s

    def stop(self) -> None:
        """Stop the calls; wait for a running call, unless *look* calls this. Idempotent."""
        self._watch.stop()


def is_spun(node: Node) -> bool:
    """
    Say whether the node is in an executor.

    It isn't enough to read ``node.executor``: after ``rclpy.spin_once(node)`` this attribute still
    holds the executor, although the node was removed from it.
    """
    executor = node.executor
    return executor is not None and node in executor.get_nodes()


class NodeSpinner:
    """
    A thread that spins *node* in its own executor.

    The thread runs until :meth:`stop`, the end of the context or the end of the program. A node
    that is added to another executor leaves the thread's executor. Call :meth:`take` regularly to
    take the node back after the other executor has removed it.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._executor = SingleThreadedExecutor(context=node.context)
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._executor.add_node(node)
        self._thread = threading.Thread(
            target=self._run, name=f'spinner of {node.get_name()}', daemon=True
        )
        self._thread.start()
        # Stop the thread before the interpreter ends: a thread that is inside the middleware must
        # not outlive the interpreter.
        atexit.register(self.stop)

    def take(self) -> None:
        """
        Spin the node again if it is in no executor.

        :raises Exception: a callback of the node raised this exception, which ended the thread.
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
        """End the thread. Idempotent. A callback of the node may call this method."""
        self._stopping.set()
        atexit.unregister(self.stop)
        wake_up(self._executor)  # wake() alone would not end a spin_once() that waits
        if threading.current_thread() is not self._thread:
            self._thread.join(_LONGEST_STOP_S)
