"""The component manager: it loads, unloads and lists components for ``ros2 component`` and launch files, as rclcpp's container does."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import inspect
import itertools
import os
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import rclpy
from composition_interfaces.srv import ListNodes, LoadNode, UnloadNode
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup, ReentrantCallbackGroup
from rclpy.logging import LoggingSeverity
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import QoSDurabilityPolicy, QoSProfile, QoSReliabilityPolicy

from zc_perception.errors import ZcError, nearest, one_line, printable
from zc_perception.link.endpoints import IN_PROCESS_ATTRIBUTE
from zc_perception.link.rclpy_compat import (
    InvalidHandle,
    end_lifecycle,
    has_logger_service,
    lifecycle_state,
    without_type_description,
)
from zc_perception.memory.pool import live_pools
from zc_perception.nodes.container.executor import Complaints, ContainerExecutor
from zc_perception.nodes.params.kinds import somebody_has
from zc_perception.nodes.params.node_parameters import NodeParameters, begin_node
from zc_perception.nodes.params.ros_arguments import MeantFor, command_line
from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.parameters import ParameterSpec

NAME = 'ComponentManager'
#: Of ``rclpy_components``, the entry points' group of rclpy's pull request 599, so that packages written for it can be loaded. The ament
#: resource index is left to C++: its containers would try to open a Python class as a library.
GROUP = 'rclpy_components'
THREADS = 4
"""For the services: a load and an unload may each keep one busy."""
MAX_COMPONENT_THREADS = 64
# Word for word as rclcpp says them: clients may compare.
_NO_PACKAGE = 'Could not find requested resource in ament index'
_NO_PLUGIN = 'Failed to find class with the requested plugin name.'
_NO_LIBRARY = 'Failed to load library'
_THREW = 'Component constructor threw an exception'
# As rclcpp's: a launch file loads many at once, and no request may be lost.
_REQUESTS = QoSProfile(
    depth=200, reliability=QoSReliabilityPolicy.RELIABLE, durability=QoSDurabilityPolicy.VOLATILE
)
_LEVELS = {int(level): level for level in LoggingSeverity if level}
# Of rclcpp's extra arguments, those that become an argument of rclpy's Node.
_FORWARDED = {
    'forward_global_arguments': 'use_global_arguments',
    'enable_rosout': 'enable_rosout',
    'start_parameter_services': 'start_parameter_services',
    'enable_logger_service': 'enable_logger_service',
}
# Those that rclpy has no say in: what it does, and why it can't do otherwise. A launch file that needs the other value is told so.
_FIXED = {
    'enable_topic_statistics': (False, 'rclpy has no topic statistics'),
    'start_parameter_event_publisher': (True, 'nodes of rclpy always publish parameter events'),
    'use_clock_thread': (False, 'rclpy reads /clock on the executor'),
}
_IN_PROCESS = 'use_intra_process_comms'
_HINTS = (
    (
        TypeError,
        'unexpected keyword argument',
        'a component takes **kwargs and passes them to Node',
    ),
    (
        TypeError,
        'positional argument',
        'a component takes nothing but **kwargs, which it passes to Node',
    ),
    (RuntimeError, 'must only be called once', 'the container has called rclpy.init already'),
)
_RCLPY = os.path.dirname(rclpy.__file__)
_SLOW_AFTER_S = 10.0
_CALLBACKS_END_S = 1.0
_UNLOAD_S = 10.0
_AT_LEAST_S = 0.2
_AT_MOST_S = 1.0
_LEFTOVERS_END_S = 0.5
_POLL_S = 0.02
# <malloc.h>
_M_ARENA_MAX = -8
_HEAPS = 2


class LoadError(ZcError):
    """A component can't be loaded. The message is the answer to the client.

    :param detail: what the container's log says on top; empty: nothing.
    """

    def __init__(self, answer: str, detail: str = '') -> None:
        super().__init__(answer)
        self.detail = detail


def find_plugin(package: str, plugin: str, entries: Sequence[EntryPoint]) -> EntryPoint:
    """The entry point for *plugin* of *package*. The package's name in front of the plugin's may be left out.

    :param entries: those of :data:`GROUP`; of several with one name the first counts, as it is the first on the path.
    """

    def belongs(entry: EntryPoint) -> bool:
        distribution = '' if entry.dist is None else entry.dist.name
        return entry.name.startswith(f'{package}::') or distribution.replace(
            '-', '_'
        ) == package.replace('-', '_')

    own = [entry for entry in entries if belongs(entry)]
    if not own:
        others = sorted({entry.name.partition('::')[0] for entry in entries})
        raise LoadError(
            _NO_PACKAGE,
            f"package '{package}' has no entry point in group '{GROUP}'{nearest(package, others)}; packages that have: "
            f'{", ".join(others) or "none"}; is its workspace sourced in the shell that started this container?',
        )
    for name in (f'{package}::{plugin}', plugin):
        for entry in own:
            if entry.name == name:
                return entry
    names = sorted({entry.name for entry in own})
    raise LoadError(
        _NO_PLUGIN,
        f"package '{package}' has no plugin '{plugin}'{nearest(plugin, names)}; it has: {', '.join(names)}",
    )


def load_class(package: str, plugin: str) -> type[Node]:
    """The component's class. Its module is imported now.

    :raises LoadError: there is none of that name, or it can't be imported.
    """
    importlib.invalidate_caches()  # a package may have been installed since
    entry = find_plugin(package, plugin, tuple(entry_points(group=GROUP)))
    try:
        found = entry.load()
    except BaseException as error:  # a module may do anything, also exit
        raise LoadError(
            f"{_NO_LIBRARY}: '{entry.value}' of plugin '{entry.name}' can't be imported: {one_line(error)}; "
            f'try: python3 -c "import {entry.module}"'
        ) from error
    if not (isinstance(found, type) and issubclass(found, Node)):
        raise LoadError(
            f"{_NO_LIBRARY}: '{entry.value}' of plugin '{entry.name}' is not a class derived from rclpy.node.Node"
        )
    return found


@dataclass(frozen=True)
class NodeOptions:
    """How a component is to be made.

    :param arguments: for its constructor.
    :param in_process: whether its adapted endpoints may hand on objects; ``False``: messages over DDS only.
    :param level: of its logger; ``None``: the container's.
    :param logger: that logger's name, where the request has the node's name in full.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    in_process: bool = True
    level: LoggingSeverity | None = None
    logger: str = ''


def node_options(
    request: LoadNode.Request, context: rclpy.Context, warn: Callable[[str], object]
) -> NodeOptions:
    """What *request* asks for.

    :param warn: told of what is passed over, or is allowed but seldom meant.
    :raises LoadError: what can't be had, in rclcpp's words where it has some.
    """
    extra = _extra_arguments(request.extra_arguments, warn)
    if extra.get('forward_global_arguments'):
        warn(
            "forward_global_arguments: the container's own arguments, such as its remaps, now apply to the component as well"
        )
    if request.log_level and request.log_level not in _LEVELS:
        known = ', '.join(
            f'{number} ({level.name.lower()})' for number, level in sorted(_LEVELS.items())
        )
        raise LoadError(
            f"log_level {request.log_level} is none; use one of {known}, or 0 for the container's"
        )
    for rule in request.remap_rules:
        if ':=' not in rule:
            raise LoadError(f"Remap rule '{rule}' can't be used: write it as 'from:=to'")
    # The request's rules come before its name and namespace, so that a rule that names the node wins.
    rules = list(request.remap_rules)
    rules += [f'__node:={request.node_name}'] if request.node_name else []
    namespace = request.node_namespace.strip('/')
    rules += [f'__ns:=/{namespace}'] if request.node_namespace else []
    arguments: dict[str, Any] = {
        'context': context,
        'use_global_arguments': False,
        'cli_args': ['--ros-args', *(word for rule in rules for word in ('-r', rule))],
        'parameter_overrides': without_type_description(_parameters(request.parameters)),
    }
    arguments |= {_FORWARDED[name]: value for name, value in extra.items() if name in _FORWARDED}
    in_full = request.node_name and request.node_namespace and not request.remap_rules
    logger = f'{namespace}/{request.node_name}'.strip('/').replace('/', '.') if in_full else ''
    return NodeOptions(
        arguments, extra.get(_IN_PROCESS, True), _LEVELS.get(request.log_level), logger
    )


def _parameters(messages: Sequence[Any]) -> list[Parameter]:
    parameters = []
    for message in messages:
        try:
            parameters.append(Parameter.from_parameter_msg(message))
        except Exception as error:  # rclpy has several classes for this
            raise LoadError(
                f"Parameter '{message.name}' can't be used: {one_line(error)}"
            ) from error
    return parameters


def _extra_arguments(messages: Sequence[Any], warn: Callable[[str], object]) -> dict[str, bool]:
    """:raises LoadError: one is not a boolean, or can't be had."""
    found: dict[str, bool] = {}
    for parameter in _parameters(messages):
        name = parameter.name
        known = (*_FORWARDED, *_FIXED, _IN_PROCESS)
        if name not in known:  # passed over, as rclcpp does
            warn(f"extra argument '{name}' is unknown and has no effect{nearest(name, known)}")
            continue
        if parameter.type_ != Parameter.Type.BOOL:
            raise LoadError(f"Extra component argument '{name}' must be a boolean")
        value = bool(parameter.value)
        fixed = _FIXED.get(name)
        if name == 'enable_logger_service' and not has_logger_service():
            fixed = (False, 'this rclpy has no logger service')
        if fixed is None:
            found[name] = value
        elif value is not fixed[0]:
            raise LoadError(
                f"Extra component argument '{name}' can't be {str(value).lower()}: {fixed[1]}; leave it out"
            )
    return found


def construct(kind: type[Node], options: NodeOptions, warn: Callable[[str], object]) -> Node:
    """Make the component. What a constructor that fails has made of the node leaves the graph.

    :param warn: told of a constructor that takes long: other loads wait for it.
    :raises LoadError: its constructor has raised, with the exception as the cause.
    """
    if options.level is not None and options.logger:
        rclpy.logging.set_logger_level(options.logger, options.level)  # for the constructor too
    try:
        node = kind.__new__(kind, **options.arguments)
        if not options.in_process:
            setattr(node, IN_PROCESS_ATTRIBUTE, False)  # before the constructor makes endpoints
        with _said_when_slow(f'{kind.__module__}.{kind.__qualname__}', warn):
            try:
                node.__init__(**options.arguments)  # type: ignore[misc]
            except BaseException:
                _discard(node)
                raise
    except BaseException as error:  # also SystemExit: a component has no say over the others
        text = one_line(error)
        hints = [
            hint for type_, words, hint in _HINTS if isinstance(error, type_) and words in text
        ]
        raise LoadError('; '.join([f'{_THREW}: {text}', *hints])) from error
    if options.level is not None:
        node.get_logger().set_level(options.level)
    return node


def _discard(node: Node) -> None:
    """Take a node that may be incomplete out of the graph."""
    with contextlib.suppress(AttributeError, InvalidHandle, RuntimeError):
        if node.executor is not None:
            node.executor.remove_node(node)
        end_lifecycle(node)
        Node.destroy_node(node)


@contextlib.contextmanager
def _said_when_slow(what: str, warn: Callable[[str], object]) -> Iterator[None]:
    """Say from another thread, again and again, that a constructor has not returned, and where it is."""
    constructing, done, begun = threading.get_ident(), threading.Event(), time.monotonic()

    def run() -> None:
        wait_s = _SLOW_AFTER_S
        while not done.wait(wait_s):
            frames = _frames(constructing)
            hint = ''
            if any(
                frame.f_code.co_name.startswith('spin')
                and frame.f_code.co_filename.startswith(_RCLPY)
                for frame in frames
            ):
                hint = '; it spins: leave that out, because the container spins its components'
            elapsed = time.monotonic() - begun
            warn(
                f'{what} has been in its constructor for {elapsed:.0f} s ({_place(frames)}); other loads wait for it{hint}'
            )
            wait_s *= 2

    thread = threading.Thread(target=run, name='container watch', daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _frames(thread: int | None) -> list[types.FrameType]:
    """The innermost first; none of a thread that has ended."""
    found = []
    frame = sys._current_frames().get(thread) if thread is not None else None
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _place(frames: Sequence[types.FrameType]) -> str:
    return (
        f'at {frames[0].f_code.co_filename}:{frames[0].f_lineno}'
        if frames
        else 'it is about to end'
    )


@dataclass(eq=False)
class _Loaded:
    """A component.

    :param unloading: the thread that ends it, once there is one.
    """

    unique_id: int
    node: Node
    name: str
    unloading: threading.Thread | None = None
    ended: threading.Event = field(default_factory=threading.Event)


class ComponentManager(Node):
    """The container's node. It owns the components, from their load until their unload.

    **Threads.** The services run on an executor of their own with :data:`THREADS` threads: a constructor may keep one busy for minutes,
    and a component's callback never does. Loads are done one after the other, in the order in which they came, and so are unloads. A
    thread of its own ends each component, so that an answer comes also when a component does not end. ``list_nodes`` waits for neither.

    **Order of an end.** Lifecycle transitions down to unconfigured, out of the executor (running callbacks have a second to return),
    ``stop()`` if the class has one, ``destroy_node()``. A step that fails is logged, and the next one is done.

    **Foreign code.** Whatever a module, a constructor or an end raises becomes the answer to the client and a line of the log. The
    container goes on.
    """

    def __init__(self, context: rclpy.Context, *, multi_threaded: bool) -> None:
        begin_node(self, NAME, context=context)
        cores = min(len(os.sched_getaffinity(0)), MAX_COMPONENT_THREADS)
        text = 'Threads for the callbacks of components; component_container always has one.'
        spec = ParameterSpec(
            'thread_num', cores if multi_threaded else 1, text, '', 1, MAX_COMPONENT_THREADS
        )
        try:
            self.parameters = NodeParameters(self, (spec,))
        except BaseException:
            self.destroy_node()
            raise
        self._multi_threaded = multi_threaded
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._loaded: dict[int, _Loaded] = {}
        self._closing = False
        self._executor: ContainerExecutor | None = None
        self._own_threads: set[threading.Thread] = set()
        self._said: set[str] = set()
        self.complaints = Complaints()
        loads, unloads, lists = (
            MutuallyExclusiveCallbackGroup(),
            MutuallyExclusiveCallbackGroup(),
            ReentrantCallbackGroup(),
        )
        self.create_service(
            LoadNode,
            '~/_container/load_node',
            self._on_load,
            qos_profile=_REQUESTS,
            callback_group=loads,
        )
        self.create_service(
            UnloadNode,
            '~/_container/unload_node',
            self._on_unload,
            qos_profile=_REQUESTS,
            callback_group=unloads,
        )
        self.create_service(
            ListNodes, '~/_container/list_nodes', self._on_list, callback_group=lists
        )

    @property
    def component_threads(self) -> int:
        """How many threads components' callbacks are to have."""
        return int(self.parameters['thread_num']) if self._multi_threaded else 1

    def use(self, executor: ContainerExecutor) -> None:
        """Have components spun by *executor* from now on. All threads that run now are taken for the container's own."""
        self._executor = executor
        self._own_threads = set(threading.enumerate())
        keys = command_line(self.context).keys(self.get_fully_qualified_name())
        for name in self.parameters.unclaimed():
            # Those of a file's section for all nodes, components may get by forward_global_arguments.
            if keys.get(name) is not MeantFor.ANY_NODE or not somebody_has(name):
                self.get_logger().warning(
                    f"parameter '{name}' is not one of the container; give a component its parameters in the request to load it"
                )
        if not self._multi_threaded and self.parameters['thread_num'] != 1:
            self.get_logger().warning(
                "'thread_num' has no effect here; only component_container_mt uses it"
            )

    def _on_load(self, request: Any, response: Any) -> Any:
        try:
            loaded = self._load(request)
        except LoadError as error:
            cause = error.__cause__
            trace = (
                ''
                if cause is None or isinstance(cause, ZcError)
                else '\n' + ''.join(traceback.format_exception(cause))
            )
            detail = f' ({error.detail})' if error.detail else ''
            self._say_error(
                f"could not load '{request.plugin_name}' of '{request.package_name}': {error}{detail}{trace}"
            )
            response.success, response.error_message = False, printable(str(error))
        except Exception as error:  # a mistake of ours must not leave the client without an answer
            self._say_error(traceback.format_exc())
            response.success, response.error_message = (
                False,
                f'the container failed: {one_line(error)}',
            )
        else:
            response.success, response.unique_id, response.full_node_name = (
                True,
                loaded.unique_id,
                loaded.name,
            )
        return response

    def _load(self, request: Any) -> _Loaded:
        kind = load_class(request.package_name, request.plugin_name)
        options = node_options(request, self.context, self._say_warning)
        unique_id = next(self._ids)  # also one that then fails has had it
        try:
            node = construct(kind, options, self._say_warning)
        except LoadError:
            threading.Thread(
                target=self._say_leftovers, name='unload nothing', daemon=True
            ).start()
            raise
        try:
            loaded = self._spin(unique_id, node)
        except LoadError:
            self._end(node, kind.__qualname__, spun=False)
            raise
        self.get_logger().info(
            f"loaded '{loaded.name}' with unique_id {unique_id}: {kind.__module__}.{kind.__qualname__}"
        )
        return loaded

    def _spin(self, unique_id: int, node: Node) -> _Loaded:
        """Have *node* spun and keep it.

        :raises LoadError: it is no node that can be spun, or the container ends.
        """
        assert self._executor is not None
        try:
            # Not by the node's own method, which may say anything.
            loaded = _Loaded(unique_id, node, Node.get_fully_qualified_name(node))
        except Exception as error:
            hint = 'its constructor has to call super().__init__, and must not destroy the node'
            raise LoadError(
                f'The component is no whole node: {one_line(error)}; {hint}'
            ) from error
        with self._lock:
            if self._closing:
                raise LoadError('The container is shutting down')
            try:
                taken = self._executor.add_node(node)
            except Exception as error:
                with contextlib.suppress(Exception):
                    self._executor.remove_node(node)
                raise LoadError(f"The container can't spin it: {one_line(error)}") from error
            if not taken:
                raise LoadError(
                    "The container can't spin it: it is equal to a component that is loaded; leave out its __eq__"
                )
            self._loaded[unique_id] = loaded
        return loaded

    def _present(self) -> list[_Loaded]:
        with self._lock:
            return [self._loaded[unique_id] for unique_id in sorted(self._loaded)]

    def workers(self) -> list[PerceptionNode]:
        """The components of this package, which can say whether they get on."""
        nodes = [
            getattr(loaded, 'node', None) for loaded in self._present()
        ]  # one that is being unloaded may have none
        return [node for node in nodes if isinstance(node, PerceptionNode)]

    def _on_unload(self, request: Any, response: Any) -> Any:
        with self._lock:
            loaded = self._loaded.get(request.unique_id)
        if loaded is None:
            text = f'No node found with unique_id: {request.unique_id}'
        elif self._unload(loaded, _UNLOAD_S):
            text = ''
        else:
            text = f"'{loaded.name}' is still being unloaded: {self._where(loaded)}"
        text = printable(text)
        if text:
            self._say_warning(text)
        response.success, response.error_message = not text, text
        return response

    def _unload(self, loaded: _Loaded, timeout_s: float) -> bool:
        """Whether it has ended within *timeout_s*; if not, it goes on."""
        with self._lock:
            if loaded.unloading is None:
                loaded.unloading = threading.Thread(
                    target=self._end_and_forget,
                    args=(loaded,),
                    name=f'unload {loaded.name}',
                    daemon=True,
                )
                loaded.unloading.start()
        return loaded.ended.wait(timeout_s)

    def _end_and_forget(self, loaded: _Loaded) -> None:
        try:
            node = loaded.node
            del loaded.node
            self._end(node, loaded.name, spun=True)
            del node  # else what follows would find it in use
            _return_memory()
        finally:
            with self._lock:
                del self._loaded[loaded.unique_id]
            # Said first: whoever waits for the last one may end the process.
            self.get_logger().info(f"unloaded '{loaded.name}' with unique_id {loaded.unique_id}")
            loaded.ended.set()
        self._say_leftovers()

    def _end(self, node: Node, name: str, *, spun: bool) -> None:
        """The steps of an end, see the class. None of them keeps the later ones from being done."""

        @contextlib.contextmanager
        def trying(step: str) -> Iterator[None]:
            try:
                yield
            except BaseException:  # foreign code, and the next step is due
                self._say_error(
                    f"'{name}': {step} failed, unloading goes on:\n{traceback.format_exc()}"
                )

        with trying('lifecycle transitions'):
            _end_lifecycle(node)
        with trying('leaving the executor'):
            if (
                spun
                and self._executor is not None
                and not self._executor.leave(node, _CALLBACKS_END_S)
            ):
                text = f'a callback still runs after {_CALLBACKS_END_S:g} s; the node is destroyed under it'
                self._say_error(
                    f"'{name}': {text}, its thread stays busy until the callback returns"
                )
        with trying('stop()'):
            stop = getattr(node, 'stop', None)
            if callable(stop) and not inspect.signature(stop).parameters:
                stop()
        with trying('the level of its logger'):
            node.get_logger().set_level(LoggingSeverity.UNSET)
        with trying('destroy_node()'):
            try:
                node.destroy_node()
            except InvalidHandle:
                pass  # it has done so itself
            except BaseException:
                _discard(node)
                raise

    def _say_error(self, text: str) -> None:
        self.get_logger().error(_loggable(text))

    def _say_warning(self, text: str) -> None:
        self.get_logger().warning(_loggable(text))

    def _say_leftovers(self) -> None:
        """Once no component is left, everything that isn't the container's is a component's that should have given it back.

        What was said is not said again.
        """
        if self._present() or self._closing:
            return
        deadline = time.monotonic() + _LEFTOVERS_END_S
        while (found := self._leftovers()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        _return_memory()  # what a thread still referred to that has ended since: an idle process collects nothing by itself
        news = found - self._said
        self._said |= news
        if news:
            self._say_warning(
                f'no component is loaded, but some have left behind: {"; ".join(sorted(news))}'
            )

    def _leftovers(self) -> set[str]:
        """Threads that live, besides the container's own, and who still holds frames of this process's pools."""
        if self._present():
            return set()
        asking = threading.current_thread()
        others = [
            t
            for t in threading.enumerate()
            if t not in self._own_threads and t is not asking and not t.name.startswith('unload ')
        ]
        return {f"thread '{thread.name}'" for thread in others} | {
            f'{holder} holds {count} lease(s) of the pool of {pool.name}'
            for pool in live_pools()
            for holder, count in pool.statistics().holders.items()
            if count
        }

    def _where(self, loaded: _Loaded) -> str:
        return _place(_frames(None if loaded.unloading is None else loaded.unloading.ident))

    def _on_list(self, request: Any, response: Any) -> Any:
        for loaded in self._present():
            response.full_node_names.append(loaded.name)
            response.unique_ids.append(loaded.unique_id)
        return response

    def on_callback_error(self, name: str, error: BaseException) -> None:
        """A component's callback has raised. The same one again is counted, and said only now and then.

        :param name: the component's; empty for a task of the executor, which is nobody's.
        """
        text = self.complaints.text(f"'{name}'" if name else 'an unknown component', error)
        if text:
            self._say_error(text)

    def close(self, timeout_s: float) -> bool:
        """Unload everything, last loaded first, within *timeout_s*; whether all have ended. Loads that come now are refused."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._closing = True
        hanging = []
        for loaded in reversed(self._present()):
            share = min(_AT_MOST_S, max(_AT_LEAST_S, deadline - time.monotonic()))
            if not self._unload(loaded, share):
                hanging.append(f"'{loaded.name}' ({self._where(loaded)})")
        if hanging:
            self._say_error(f'could not be unloaded in time: {", ".join(hanging)}')
        return not hanging


def _end_lifecycle(node: Any) -> None:
    """A managed node's own steps down, as far as it is from the ground."""
    if hasattr(node, 'trigger_deactivate') and hasattr(node, 'trigger_cleanup'):
        for state, step in (
            ('active', node.trigger_deactivate),
            ('inactive', node.trigger_cleanup),
        ):
            if lifecycle_state(node) == state:
                step()


# glibc gives threads heaps of their own, up to eight per core, and keeps what is freed in them. Constructors run on threads, so do a
# model's workers: after 24 loads and unloads of capture and inference the process had grown from 190 to 320 MB without these two, and
# stays at 155 MB with them.


def limit_heaps() -> None:
    """At the program's start. What the environment says of it (``MALLOC_ARENA_MAX``) stays."""
    if 'MALLOC_ARENA_MAX' not in os.environ:
        with contextlib.suppress(AttributeError, OSError):  # another C library
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _HEAPS)


def _return_memory() -> None:
    """Free what nothing refers to any more, and give unused memory back to the system. Takes some 50 ms.

    Nodes of rclpy are cycles: they, and the models that they hold, would stay until the collector's own time.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _loggable(text: str) -> str:
    """Names of files may have lone surrogates, which rcutils takes no more than a NUL."""
    return text.encode(errors='backslashreplace').decode().replace('\0', '')
