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
Component containers for Python nodes; they do what rclcpp's containers do for C++ nodes.

:func:`run` runs the programs ``component_container`` and ``component_container_mt``.
:class:`ComponentManager` answers requests of ``ros2 component`` and launch files to load, unload
and list components. :class:`ContainerExecutor` goes on after an exception in a callback, and can
remove a node while the executor spins. rclpy's own executors end with the first exception, don't
report which node raised it, and keep the interpreter from ending while a callback hangs.
ContainerExecutor uses only rclpy's documented interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
import ctypes
from dataclasses import dataclass
from functools import partial
import gc
import importlib
from importlib.metadata import entry_points, EntryPoint
import inspect
import io
import itertools
import os
import sys
import threading
import time
import traceback
from typing import Any
import weakref

from composition_interfaces.srv import ListNodes, LoadNode, UnloadNode
import rclpy
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup, ReentrantCallbackGroup
from rclpy.executors import (
    ConditionReachedException,
    Executor,
    ExternalShutdownException,
    ShutdownException,
    TimeoutException,
)
from rclpy.logging import LoggingSeverity
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile

from zc_perception.errors import (
    error_line,
    EXIT_FAILURE,
    EXIT_USAGE,
    nearest,
    one_line,
    printable,
    ZcError,
)
from zc_perception.link.endpoints import IN_PROCESS_ATTRIBUTE
from zc_perception.link.rclpy_compat import (
    call_soon,
    end_lifecycle,
    has_logger_service,
    InvalidHandle,
    lifecycle_state,
    without_type_description,
)
from zc_perception.log import Seldom
from zc_perception.nodes.params.node_parameters import begin_node, NodeParameters
from zc_perception.nodes.params.ros_arguments import command_line, MeantFor
from zc_perception.nodes.params.verdict import somebody_has
from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.nodes.process import Liveness, ros_context, serve
from zc_perception.parameters import ParameterSpec
from zc_perception.terminal import Interruption, interruptions

NAME = 'ComponentManager'
# Components are entry points in the group of rclpy's pull request 599, so that packages that were
# written for that pull request can be loaded. The ament resource index isn't used, because C++
# containers would try to open a Python class as a library.
GROUP = 'rclpy_components'
MAX_COMPONENT_THREADS = 64
# How many requests may wait for a service; rclcpp has the same number. A launch file sends many
# requests at once, and no request may be lost.
_REQUESTS = QoSProfile(depth=200)
_IN_PROCESS = 'use_intra_process_comms'
# The extra arguments of a load request, as rclcpp defines them. For each: the argument of rclpy's
# Node with this meaning, or, if rclpy has no such argument, the only value that is possible and
# the reason. construct() itself handles use_intra_process_comms, which Node doesn't take.
_EXTRAS: dict[str, str | tuple[bool, str]] = {
    'forward_global_arguments': 'use_global_arguments',
    'enable_rosout': 'enable_rosout',
    'start_parameter_services': 'start_parameter_services',
    'enable_logger_service': 'enable_logger_service'
    if has_logger_service()
    else (False, 'this rclpy has no logger service'),
    'enable_topic_statistics': (False, 'rclpy has no topic statistics'),
    'start_parameter_event_publisher': (True, 'nodes of rclpy always publish parameter events'),
    'use_clock_thread': (False, 'rclpy reads /clock on the executor'),
    _IN_PROCESS: _IN_PROCESS,
}
_CALLBACKS_END_S = 1.0
_POLL_S = 0.02
_M_ARENA_MAX = -8  # from glibc's malloc.h
_HEAPS = 2
_MAX_FAILURES_IN_A_ROW = 20
_PAUSE_S = 0.05


class ContainerExecutor(Executor):
    """
    Spins nodes on its own daemon threads.

    One thread at a time waits for work; while it runs a callback, another thread waits.

    :param name: name of the threads; a number is appended.
    :param on_error: called with a node and the exception of its callback, on the thread that ran
        the callback; the node is ``None`` if a task of the executor raised. The function must not
        raise.
    :param on_end: called on each of these threads that ends without :meth:`stop`: the context was
        shut down, or waiting for work has failed too often (then attribute ``failure`` has the
        traceback).
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
        """Start the threads."""
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
            # A wait fails if another thread destroys one of the entities that are waited for; the
            # next wait works.
            except Exception:
                failures += 1
                if failures == _MAX_FAILURES_IN_A_ROW:
                    self.failure = traceback.format_exc()
                time.sleep(_PAUSE_S)
        if not self._ending:
            self._on_end()

    def spin_once(self, timeout_sec: float | None = None) -> None:
        """Wait for one callback and run it; its exception is passed to ``on_error``."""
        self._step(timeout_sec, lambda: self._ending)

    def spin_once_until_future_complete(self, future: Any, timeout_sec: Any = None) -> None:
        """Run at most one callback, as rclpy does; return at once when *future* is done."""
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
            except (TimeoutException, ShutdownException, ConditionReachedException, InvalidHandle):
                return
            with self._changed:
                # The node was removed while this thread waited for work.
                if node is not None and node in self._left:
                    handler.cancel()
                    return
                self._in_work[thread] = node
        try:
            handler()
            error = handler.exception() if handler.done() else None
        # Catch SystemExit, too, so that the other components go on.
        except BaseException as raised:
            handler.cancel()
            error = raised
        if error is not None:
            self._on_error(node, error)
        with self._changed:
            del self._in_work[thread]
            self._changed.notify_all()

    def add_node(self, node: Node) -> bool:
        """Add *node*, as rclpy does, even if :meth:`leave` has removed it before."""
        self._left.discard(node)
        return bool(super().add_node(node))

    def leave(self, node: Node, timeout_s: float) -> bool:
        """
        Remove *node* and wait for its running callbacks; return whether they have ended.

        If a callback of the node calls this method, the wait always takes *timeout_s*, because
        the callback waits for itself.
        """
        self.remove_node(node)
        with self._changed:
            self._left.add(node)
            return self._changed.wait_for(lambda: node not in self._in_work.values(), timeout_s)

    def stop(self, timeout_s: float) -> bool:
        """End the threads within *timeout_s*; return whether every callback has ended."""
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


class LoadError(ZcError):
    """
    A component can't be loaded; the message is the answer to the client.

    If rclcpp reports the same error, the message begins with rclcpp's words, because clients may
    compare them.

    :param detail: further text for the container's log only; may be empty.
    """

    def __init__(self, answer: str, detail: str = '') -> None:
        super().__init__(answer)
        self.detail = detail


def find_plugin(package: str, plugin: str, entries: Sequence[EntryPoint]) -> EntryPoint:
    """
    Return the first entry point called *plugin* of *package*.

    :param entries: all entry points of components, in the order of sys.path.
    :raises LoadError: there is no such entry point; the detail names the packages or plugins
        that exist.
    """
    own: dict[str, EntryPoint] = {}
    for entry in entries:
        distribution = '' if entry.dist is None else entry.dist.name
        same = distribution.replace('-', '_') == package.replace('-', '_')
        if same or entry.name.startswith(f'{package}::'):
            own.setdefault(entry.name, entry)
    if not own:
        others = sorted({entry.name.partition('::')[0] for entry in entries})
        raise LoadError(
            'Could not find requested resource in ament index',
            f"package '{package}' has no entry point in group "
            f"'{GROUP}'{nearest(package, others)}; packages that have such entry points: "
            f'{", ".join(others) or "none"}; is its workspace sourced in the shell that '
            'started this container?',
        )
    if plugin not in own:
        near = nearest(f'{package}::{plugin}', own) or nearest(plugin, own)
        raise LoadError(
            'Failed to find class with the requested plugin name.',
            (
                f"package '{package}' has no plugin '{plugin}'{near}; it has: "
                f'{", ".join(sorted(own))}'
            ),
        )
    return own[plugin]


def load_class(package: str, plugin: str) -> type[Node]:
    """Import a component's class; LoadError: the class doesn't exist, or importing it fails."""
    importlib.invalidate_caches()  # a package may have been installed since the last load
    entry = find_plugin(package, plugin, tuple(entry_points(group=GROUP)))
    what = f"Failed to load library: '{entry.value}' of plugin '{entry.name}'"
    try:
        found = entry.load()
    except BaseException as error:  # foreign code may raise anything, even SystemExit
        step = f'try: python3 -c "import {entry.module}"'
        raise LoadError(f"{what} can't be imported: {one_line(error)}; {step}") from error
    if not (isinstance(found, type) and issubclass(found, Node)):
        raise LoadError(f'{what} is not a class derived from rclpy.node.Node')
    return found


def construct(
    kind: type[Node],
    request: LoadNode.Request,
    context: rclpy.Context,
    warn: Callable[[str], object],
) -> Node:
    """
    Make the component that *request* describes.

    If the constructor fails, the incomplete node is removed from the graph.

    :param warn: called with a sentence for each ignored argument.
    :raises LoadError: the request is wrong, or the component's constructor has raised; the
        constructor's exception is then the cause of the LoadError.
    """
    arguments: dict[str, Any] = {'use_global_arguments': False, _IN_PROCESS: True}
    for extra in _parameters(request.extra_arguments):
        meaning = _EXTRAS.get(extra.name)
        if meaning is None:  # unknown arguments are ignored, as in rclcpp
            warn(
                f"extra argument '{extra.name}' is unknown and has no "
                f'effect{nearest(extra.name, _EXTRAS)}'
            )
        elif extra.type_ != Parameter.Type.BOOL:
            raise LoadError(f"Extra component argument '{extra.name}' must be a boolean")
        elif isinstance(meaning, str):
            arguments[meaning] = extra.value
        elif extra.value is not meaning[0]:
            raise LoadError(
                f"Extra component argument '{extra.name}' can't be {str(extra.value).lower()}: "
                f'{meaning[1]}; leave it out'
            )
    in_process = arguments.pop(_IN_PROCESS)
    try:
        level = LoggingSeverity(request.log_level)
    except ValueError:
        raise LoadError(
            f'log_level {request.log_level} is not a level; use 10 (debug), 20 (info), 30 (warn), '
            "40 (error), 50 (fatal), or 0 for the container's level"
        ) from None
    # The request's remap rules come first, so that a rule for the node's name wins over the
    # request's node_name.
    rules = list(request.remap_rules)
    for rule in rules:
        if ':=' not in rule:
            raise LoadError(f"Remap rule '{rule}' can't be used: write it as 'from:=to'")
    rules += [f'__node:={request.node_name}'] if request.node_name else []
    rules += [f'__ns:=/{request.node_namespace.strip("/")}'] if request.node_namespace else []
    arguments |= {
        'context': context,
        'cli_args': ['--ros-args', *(word for rule in rules for word in ('-r', rule))],
        'parameter_overrides': without_type_description(_parameters(request.parameters)),
    }
    node: Node | None = None
    try:
        node = kind.__new__(kind, **arguments)
        if not in_process:
            # Set the attribute before the constructor makes publishers and subscriptions.
            setattr(node, IN_PROCESS_ATTRIBUTE, False)
        node.__init__(**arguments)  # type: ignore[misc]
    # Catch SystemExit, too: one component must not end the others.
    except BaseException as error:
        if node is not None:
            _discard(node)
        raise LoadError(f'Component constructor threw an exception: {one_line(error)}') from error
    if level:
        node.get_logger().set_level(level)
    return node


def _parameters(messages: Sequence[Any]) -> list[Parameter]:
    parameters = []
    for message in messages:
        try:
            parameters.append(Parameter.from_parameter_msg(message))
        except Exception as error:  # rclpy raises several classes for a wrong parameter
            raise LoadError(
                f"Parameter '{message.name}' can't be used: {one_line(error)}"
            ) from error
    return parameters


def _discard(node: Node) -> None:
    """Remove a node from the graph, even if its constructor has failed."""
    with contextlib.suppress(AttributeError, InvalidHandle, RuntimeError):
        if node.executor is not None:
            node.executor.remove_node(node)
        end_lifecycle(node)
        Node.destroy_node(node)


@dataclass(eq=False)
class _Loaded:
    """A component from its load to its unload; *node* is ``None`` once it has been destroyed."""

    unique_id: int
    node: Node | None
    name: str
    ending: bool = False


class ComponentManager(Node):
    """
    The container's node: it owns each component from its load until its unload.

    **Threads.** The services have their own executor, because a constructor may block a thread for
    minutes; callbacks of components never run on it. Loads run one at a time, in the order of
    their requests, and so do unloads. ``list_nodes`` waits for neither.

    **Steps of an unload.** Lifecycle transitions down to unconfigured; removal from the executor
    (running callbacks have a second to return); ``stop()`` if the component has this method
    without parameters; ``destroy_node()``. If a step fails, the error is logged, and the next
    step follows.

    **Foreign code.** An exception in a component's module or constructor is logged, and its text
    answers the load request. An exception in a step of an unload is only logged. The container
    goes on.

    :param on_end: called when the components' executor has ended by itself.
    """

    def __init__(
        self, context: rclpy.Context, on_end: Callable[[], None], *, multi_threaded: bool
    ) -> None:
        begin_node(self, NAME, context=context)
        cores = min(len(os.sched_getaffinity(0)), MAX_COMPONENT_THREADS)
        text = 'Threads for the callbacks of components.'
        spec = ParameterSpec('thread_num', cores, text, '', 1, MAX_COMPONENT_THREADS)
        try:
            self.parameters = NodeParameters(self, (spec,) if multi_threaded else ())
        except BaseException:
            self.destroy_node()
            raise
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._loaded: dict[int, _Loaded] = {}
        self._closing = False
        self._complain = Seldom(self._say_error)
        self._threads = int(self.parameters['thread_num']) if multi_threaded else 1
        self.components = ContainerExecutor(
            context, 'components', self._threads, self.on_callback_error, on_end
        )
        for kind, name, answer, group, qos in (
            (LoadNode, 'load', self._on_load, MutuallyExclusiveCallbackGroup(), _REQUESTS),
            (UnloadNode, 'unload', self._on_unload, MutuallyExclusiveCallbackGroup(), _REQUESTS),
            (ListNodes, 'list', self._on_list, ReentrantCallbackGroup(), QoSProfile(depth=10)),
        ):
            path = f'~/_container/{name}_node{"s" if name == "list" else ""}'
            self.create_service(kind, path, answer, qos_profile=qos, callback_group=group)

    def start(self) -> None:
        """Begin to spin components, and warn about parameters that the container doesn't have."""
        self.components.start()
        keys = command_line(self.context).keys(self.get_fully_qualified_name())
        for name in self.parameters.unclaimed():
            # Don't report a parameter from a file's section for all nodes if a node of this
            # package has it: a component may get it by forward_global_arguments.
            if keys.get(name) is not MeantFor.ANY_NODE or not somebody_has(name):
                self._say_warning(
                    f"parameter '{name}' is not one of the container's parameters; give a "
                    'component its parameters in the request that loads it'
                )
        self.get_logger().info(f'ready: {self._threads} thread(s) for components')

    def _on_load(self, request: Any, response: Any) -> Any:
        try:
            loaded = self._load(request)
            response.unique_id, response.full_node_name = loaded.unique_id, loaded.name
            response.success = True
        except LoadError as error:
            cause, detail = error.__cause__, f' ({error.detail})' if error.detail else ''
            if cause is not None and not isinstance(cause, ZcError):
                detail += '\n' + ''.join(traceback.format_exception(cause))
            self._say_error(
                f"could not load '{request.plugin_name}' of '{request.package_name}': "
                f'{error}{detail}'
            )
            response.error_message = printable(str(error))
        except Exception as error:  # even after a bug of the container, the client gets an answer
            self._say_error(traceback.format_exc())
            response.error_message = f'the container failed: {one_line(error)}'
        return response

    def _load(self, request: Any) -> _Loaded:
        kind = load_class(request.package_name, request.plugin_name)
        # A load uses up an id even if the constructor fails, as in rclcpp.
        unique_id = next(self._ids)
        node = construct(kind, request, self.context, self._say_warning)
        try:
            # Call rclpy's method: the component's class may override it and return anything.
            loaded = _Loaded(unique_id, node, Node.get_fully_qualified_name(node))
            with self._lock:
                if self._closing:
                    raise LoadError('The container is shutting down')
                self.components.add_node(node)
                self._loaded[unique_id] = loaded
        except Exception as error:
            self._end(node, kind.__qualname__)
            if isinstance(error, LoadError):
                raise
            hint = 'its constructor has to call super().__init__, and must not destroy the node'
            raise LoadError(
                f"The container can't spin this node: {one_line(error)}; {hint}"
            ) from error
        self.get_logger().info(
            f"loaded '{loaded.name}' with unique_id {unique_id}: "
            f'{kind.__module__}.{kind.__qualname__}'
        )
        return loaded

    def _present(self) -> list[_Loaded]:
        with self._lock:
            return [self._loaded[unique_id] for unique_id in sorted(self._loaded)]

    def workers(self) -> list[PerceptionNode]:
        """Return the loaded nodes of this package; only these have a ``progress()``."""
        return [one.node for one in self._present() if isinstance(one.node, PerceptionNode)]

    def _on_unload(self, request: Any, response: Any) -> Any:
        loaded = self._loaded.get(request.unique_id)
        response.success = loaded is not None and self._unload(loaded)
        if not response.success:
            response.error_message = f'No node found with unique_id: {request.unique_id}'
            self._say_warning(response.error_message)
        return response

    def _unload(self, loaded: _Loaded) -> bool:
        """Unload a component; return ``False`` if its unload has begun or ended already."""
        with self._lock:
            if loaded.ending or loaded.node is None:
                return False
            loaded.ending = True
        self._end(loaded.node, loaded.name)
        # Drop this reference, so that the node is freed before the next request uses its name.
        loaded.node = None
        _return_memory()
        # Log this before the removal below: close() waits for the last removal, and then the
        # process may end.
        self.get_logger().info(f"unloaded '{loaded.name}' with unique_id {loaded.unique_id}")
        with self._lock:
            del self._loaded[loaded.unique_id]
        return True

    def _end(self, node: Node, name: str) -> None:
        """Run the steps of an unload, see :class:`ComponentManager`; go on if a step fails."""

        def leave() -> None:
            if not self.components.leave(node, _CALLBACKS_END_S):
                self._say_error(
                    f"'{name}': a callback still runs after {_CALLBACKS_END_S:g} s; the node is "
                    'destroyed now, but the thread stays busy until the callback returns'
                )

        def stop() -> None:
            stop = getattr(node, 'stop', None)
            if callable(stop) and not inspect.signature(stop).parameters:
                stop()

        steps = {
            'lifecycle transitions': lambda: _end_lifecycle(node),
            'leaving the executor': leave,
            'stop()': stop,
            'destroy_node()': lambda: _destroy(node),
        }
        for step, work in steps.items():
            try:
                work()
            except BaseException:  # foreign code may raise anything
                self._say_error(
                    f"'{name}': {step} failed, unloading goes on:\n{traceback.format_exc()}"
                )

    def _say_error(self, text: str) -> None:
        self.get_logger().error(_loggable(text))

    def _say_warning(self, text: str) -> None:
        self.get_logger().warning(_loggable(text))

    def _on_list(self, request: Any, response: Any) -> Any:
        for loaded in self._present():
            response.full_node_names.append(loaded.name)
            response.unique_ids.append(loaded.unique_id)
        return response

    def on_callback_error(self, node: Node | None, error: BaseException) -> None:
        """
        Log the exception of a callback, at a limited rate.

        :param node: the callback's node; ``None``: a task of the executor raised the exception.
        """
        names = [
            f"'{one.name}'" for one in self._present() if node is not None and one.node is node
        ]
        name = names[0] if names else 'an unknown component'
        trace = traceback.format_exception(error)
        exits = ' To end a component, unload it.' if isinstance(error, SystemExit) else ''
        self._complain(
            (
                f'a callback of {name} has raised an exception; the container goes '
                f'on.{exits}\n{"".join(trace).rstrip()}'
            ),
            f'{name} {type(error).__name__} {"".join(trace[-2:-1])}',
        )

    def close(self, timeout_s: float) -> bool:
        """
        Unload all components, each on its own thread, and wait for them.

        The unload of the component that was loaded last begins first.

        :return: whether all unloads have ended within *timeout_s*.
        """
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._closing = True
        for one in reversed(self._present()):
            threading.Thread(
                target=self._unload, args=(one,), name=f'unload {one.name}', daemon=True
            ).start()
        while self._present() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        hanging = ', '.join(f"'{one.name}'" for one in self._present())
        if hanging:
            self._say_error(f'these components could not be unloaded in time: {hanging}')
        return not hanging


def _end_lifecycle(node: Any) -> None:
    """Deactivate and clean up a managed node, as far as its state allows."""
    if hasattr(node, 'trigger_deactivate') and hasattr(node, 'trigger_cleanup'):
        for state, step in (
            ('active', node.trigger_deactivate),
            ('inactive', node.trigger_cleanup),
        ):
            if lifecycle_state(node) == state:
                step()


def _destroy(node: Node) -> None:
    try:
        node.destroy_node()
    except InvalidHandle:
        pass  # the node has destroyed itself already
    except BaseException:
        _discard(node)
        raise


# glibc gives threads their own heaps, up to eight per core, and keeps freed memory in them.
# Constructors and a model's workers run on threads. Measured over 24 loads and unloads of capture
# and inference: the process grows from 190 to 320 MB; with the next two functions it stays at
# 155 MB.


def limit_heaps() -> None:
    """Limit the number of glibc's heaps, unless ``MALLOC_ARENA_MAX`` is set."""
    if 'MALLOC_ARENA_MAX' not in os.environ:
        # C libraries other than glibc may have no mallopt().
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _HEAPS)


def _return_memory() -> None:
    """
    Collect unreachable objects and return unused memory to the system; takes about 50 ms.

    rclpy's nodes have reference cycles: without this call, an unloaded node and its model would
    stay in memory until the next automatic collection.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _loggable(text: str) -> str:
    """Escape lone surrogates and drop NULs: rcutils refuses to log them."""
    return text.encode(errors='backslashreplace').decode().replace('\0', '')


# The number of threads that serve requests: a load and an unload may each block one of them.
_THREADS = 4
_UNLOAD_S = 1.2
_EXECUTOR_ENDS_S = 0.2


def run(program: str, *, multi_threaded: bool) -> int:
    """
    Run a container until a signal; return the program's exit code.

    The code is 0 after a signal, :data:`EXIT_USAGE` if a ROS argument or a parameter of the
    container is wrong, and :data:`EXIT_FAILURE` if an executor ended because waiting for work
    failed.
    """
    limit_heaps()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Flush each line that a component prints; otherwise ros2 launch would show it late.
        sys.stdout.reconfigure(line_buffering=True)
    with interruptions(for_good=True) as stop:
        try:
            # Use the default context: components may call rclpy.ok() without a context.
            with ros_context(sys.argv[1:], rclpy.get_default_context()) as context:
                return _serve(context, stop, multi_threaded)
        except ZcError as error:
            print(error_line(program, error), file=sys.stderr)
            return EXIT_USAGE


def _serve(context: rclpy.Context, stop: Interruption, multi_threaded: bool) -> int:
    manager = ComponentManager(context, stop.set, multi_threaded=multi_threaded)
    components = manager.components
    services = ContainerExecutor(
        context, 'container', _THREADS, manager.on_callback_error, stop.set
    )
    services.add_node(manager)
    services.start()
    manager.start()
    executors = {
        'the executor of components': partial(call_soon, components),
        'the executor of services': partial(call_soon, services),
    }
    serve(stop.wait, Liveness(manager.workers, executors).worry)
    ended = manager.close(_UNLOAD_S)
    ended &= services.stop(_EXECUTOR_ENDS_S) & components.stop(_EXECUTOR_ENDS_S)
    failure = components.failure or services.failure
    if failure is not None:
        print(failure, file=sys.stderr)
    code = 0 if failure is None else EXIT_FAILURE
    staying = [t.name for t in threading.enumerate() if not t.daemon]
    staying.remove(threading.main_thread().name)
    if not ended or staying:
        names = ', '.join(f"thread '{name}'" for name in sorted(staying)) or 'a component'
        manager.get_logger().warning(f'the container ends without waiting for: {names}')
        # End the process directly: the interpreter's normal end would wait for threads that
        # aren't daemons.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    manager.destroy_node()
    return code
