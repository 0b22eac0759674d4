"""Runs a coroutine in a callback group to its end, also when its node is destroyed meanwhile."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from rclpy.executors import Executor
from rclpy.node import Node
from rclpy.task import Future

from zc_perception.link.rclpy_compat import wake_up


def coroutine_turn(node: Node, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], Awaitable[None]]:
    """A callback for rclpy that runs *work*, a method, as a coroutine. Until that has ended, its callback group is taken, as with rclpy.

    rclpy goes on with a coroutine only while the executor has its node, and never forgets one that it doesn't go on with: the frame that
    such a callback has would be lost with it. So what awaits something goes on as a task of the executor's own. What rclpy keeps then
    refers to nothing.
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
        except StopIteration:  # nearly always: it awaits nothing
            return
        ended: Any = Future()
        executor.create_task(_go_on, coroutine, ended, executor)
        del coroutine
        await ended

    return turn


async def _go_on(coroutine: Coroutine[Any, Any, None], ended: Future, executor: Executor) -> None:
    try:
        await _Rest(coroutine)
    finally:
        ended.set_result(None)
        wake_up(executor)


class _Rest:
    """What is left of a coroutine that has begun."""

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[None, None, None]:
        while True:
            yield
            try:
                self._coroutine.send(None)
            except StopIteration:
                return
