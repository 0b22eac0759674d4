"""Makes a component: whatever its constructor does, the container answers and goes on.

A constructor may take long; that only keeps other loads waiting, and is said. One that calls ``rclpy.spin`` would never return, because
that ends with the context alone: it is interrupted. A loop of ``spin_once`` may wait for something and end: it only is said.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import rclpy
from rclpy.executors import Executor
from rclpy.node import Node

from zc_perception.link.endpoints import IN_PROCESS_ATTRIBUTE
from zc_perception.link.rclpy_compat import InvalidHandle, end_lifecycle
from zc_perception.nodes.container.node_options import NodeOptions
from zc_perception.nodes.container.plugins import LoadError, one_line

THREW = 'Component constructor threw an exception'
_LOOK_EVERY_S = 0.5
_SPINS_AFTER_S = 3.0
_SLOW_AFTER_S = 10.0
_ENDLESS = (rclpy.spin.__code__, Executor.spin.__code__)
_HINTS = (
    (TypeError, 'unexpected keyword argument', 'a component takes **kwargs and passes them to Node'),
    (TypeError, 'positional argument', 'a component takes nothing but **kwargs, which it passes to Node'),
    (RuntimeError, 'must only be called once', 'the container has called rclpy.init already'),
)


class ConstructorSpins(BaseException):
    """Raised inside a constructor that would never end. No ``except Exception`` there is to catch it."""

    def __str__(self) -> str:
        return 'the constructor calls spin, which never returns; leave it out, the container spins its components'


class _Watch:
    """Looks after a constructor from a thread of its own."""

    def __init__(self, what: str, warn: Callable[[str], object]) -> None:
        self._what = what
        self._warn = warn
        self._constructing = threading.get_ident()
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name='container watch', daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._done.set()
        self._thread.join()

    def _run(self) -> None:
        begun = time.monotonic()
        say_at = _SLOW_AFTER_S
        while not self._done.wait(_LOOK_EVERY_S):
            elapsed = time.monotonic() - begun
            if elapsed >= _SPINS_AFTER_S:
                with self._lock:
                    if not self._done.is_set():
                        self._end_spinning()
            if elapsed >= say_at:
                hint = '; it calls spin_once: remove such loops, because the container spins its components' if self._spins() else ''
                self._warn(f'{self._what} has been in its constructor for {elapsed:.0f} s ({self._place()}); other loads wait for it{hint}')
                say_at *= 2

    def _frames(self) -> list[types.FrameType]:
        frames = []
        frame = sys._current_frames().get(self._constructing)
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        return frames

    def _place(self) -> str:
        frames = self._frames()
        return f'at {frames[0].f_code.co_filename}:{frames[0].f_lineno}' if frames else 'it is about to return'

    def _spins(self) -> bool:
        """Not interrupted, as it may wait for something."""
        return any(frame.f_code.co_name == 'spin_once' for frame in self._frames())

    def _end_spinning(self) -> None:
        spinning = [frame for frame in self._frames() if frame.f_code in _ENDLESS]
        if spinning:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._constructing), ctypes.py_object(ConstructorSpins))
            for frame in spinning:
                executor = frame.f_locals.get('executor') or frame.f_locals.get('self')
                if isinstance(executor, Executor):
                    executor.wake()


def _without_in_process(kind: type[Node]) -> type[Node]:
    """Its endpoints are made in its constructor, so that the wish has to be there before the node is: as an attribute of a subclass."""
    members = {IN_PROCESS_ATTRIBUTE: False, '__module__': kind.__module__, '__qualname__': kind.__qualname__, '__doc__': kind.__doc__}
    return types.new_class(kind.__name__, (kind,), exec_body=lambda namespace: namespace.update(members))


def _make(kind: type[Node], arguments: dict[str, Any]) -> Node:
    """As a call of *kind*, and what a failing constructor has made of the node leaves the graph."""
    if type(kind).__call__ is not type.__call__:
        return kind(**arguments)  # its metaclass has its own way
    node = kind.__new__(kind, **arguments)
    try:
        node.__init__(**arguments)  # type: ignore[misc]
    except BaseException:
        discard(node)
        raise
    return node


def discard(node: Node) -> None:
    """Take a node that may be incomplete out of the graph."""
    with contextlib.suppress(Exception):  # a node may have its own idea of equality
        if node.executor is not None:
            node.executor.remove_node(node)
    with contextlib.suppress(AttributeError, InvalidHandle, RuntimeError):
        end_lifecycle(node)
        Node.destroy_node(node)


def _reason(error: BaseException) -> str:
    text = one_line(error) if not isinstance(error, ConstructorSpins) else str(error)
    hints = [hint for kind, words, hint in _HINTS if isinstance(error, kind) and words in text]
    return f'{THREW}: {text}{"".join(f"; {hint}" for hint in hints)}'


def construct(kind: type[Node], options: NodeOptions, warn: Callable[[str], object]) -> Node:
    """The component.

    :param warn: told of what lasts long.
    :raises LoadError: its constructor has raised, with the exception as the cause.
    """
    level = options.level
    if level is not None and options.full_name:
        rclpy.logging.set_logger_level(options.full_name.strip('/').replace('/', '.'), level)  # for the constructor too
    if not options.in_process:
        kind = _without_in_process(kind)
    try:
        with _Watch(f'{kind.__module__}.{kind.__qualname__}', warn):
            node = _make(kind, options.arguments)
    except BaseException as error:  # also SystemExit: a component has no say over the others
        raise LoadError(_reason(error)) from error
    if level is not None:
        node.get_logger().set_level(level)
    return node
