"""The container's node: the services by which components are loaded, unloaded and listed.

They are served by an executor of their own, whose threads a constructor may keep busy for minutes and a component's callback never.
Loads are done one after the other, in the order in which they came, and so are unloads; ``list_nodes`` waits for neither.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

import rclpy
from composition_interfaces.srv import ListNodes, LoadNode, UnloadNode
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup, ReentrantCallbackGroup
from rclpy.node import Node
from rclpy.qos import QoSDurabilityPolicy, QoSProfile, QoSReliabilityPolicy

from zc_perception.errors import ZcError
from zc_perception.nodes.container.complaints import Complaints
from zc_perception.nodes.container.construction import construct
from zc_perception.nodes.container.executor import ContainerExecutor
from zc_perception.nodes.container.memory_use import return_memory
from zc_perception.nodes.container.node_options import node_options
from zc_perception.nodes.container.plugins import LoadError, load_class, one_line, printable
from zc_perception.nodes.container.unloading import Unloading, leases_left, leftovers, threads_left
from zc_perception.nodes.parameters import NodeParameters, ParameterSpec, begin_node
from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.nodes.process import known_among, parameters_for_any_node

NAME = 'ComponentManager'
THREADS = 4
"""For the services: a load and an unload may each keep one busy."""
MAX_COMPONENT_THREADS = 64
_EQUALITY = 'leave __eq__ and __hash__ of the node as rclpy has them'
_UNLOAD_S = 10.0
_AT_LEAST_S = 0.2
_AT_MOST_S = 1.0
# As rclcpp's: a launch file loads many at once, and no request may be lost.
_REQUESTS = QoSProfile(depth=200, reliability=QoSReliabilityPolicy.RELIABLE, durability=QoSDurabilityPolicy.VOLATILE)


@dataclass(eq=False)
class _Loaded:
    """A component.

    :param naming: what its name followed from: the same again would give the same name.
    :param unloading: the thread that ends it, once there is one.
    """

    unique_id: int
    node: Node
    name: str
    naming: tuple[object, ...]
    unloading: threading.Thread | None = None
    ended: threading.Event = field(default_factory=threading.Event)


def _name_of(node: Node) -> str:
    """Not by the node's own method, which may say anything.

    :raises LoadError: there is no node of ROS behind it, or none any more.
    """
    try:
        return Node.get_fully_qualified_name(node)
    except BaseException as error:
        hint = 'its constructor has to call super().__init__, and must not destroy the node'
        raise LoadError(f'The component is no whole node: {one_line(error)}; {hint}') from error


def _spin(node: Node, executor: ContainerExecutor) -> None:
    """:raises LoadError: *executor* doesn't take it."""
    try:
        taken = executor.add_node(node)
    except BaseException as error:
        with contextlib.suppress(BaseException):
            executor.remove_node(node)
        raise LoadError(f"The container can't spin it: {one_line(error)}; {_EQUALITY}") from error
    if not taken:  # and to remove it would remove the other
        raise LoadError(f"The container can't spin it: it is equal to a component that is loaded; {_EQUALITY}")


class ComponentManager(Node):
    """Holds the components. Spin it with an executor of its own with :data:`THREADS` threads.

    :raises ConfigError: a parameter can't be used.
    """

    def __init__(self, context: rclpy.Context, *, multi_threaded: bool) -> None:
        begin_node(self, NAME, context=context)
        cores = min(len(os.sched_getaffinity(0)), MAX_COMPONENT_THREADS)
        text = 'Threads for the callbacks of components; component_container always has one.'
        spec = ParameterSpec('thread_num', cores if multi_threaded else 1, text, '', 1, MAX_COMPONENT_THREADS)
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
        loads, unloads, lists = MutuallyExclusiveCallbackGroup(), MutuallyExclusiveCallbackGroup(), ReentrantCallbackGroup()
        self.create_service(LoadNode, '~/_container/load_node', self._on_load, qos_profile=_REQUESTS, callback_group=loads)
        self.create_service(UnloadNode, '~/_container/unload_node', self._on_unload, qos_profile=_REQUESTS, callback_group=unloads)
        self.create_service(ListNodes, '~/_container/list_nodes', self._on_list, callback_group=lists)

    @property
    def component_threads(self) -> int:
        """How many threads components' callbacks are to have."""
        return int(self.parameters['thread_num']) if self._multi_threaded else 1

    def use(self, executor: ContainerExecutor) -> None:
        """Have components spun by *executor* from now on. All threads that run now are taken for the container's own."""
        self._executor = executor
        self._own_threads = set(threading.enumerate())
        unclaimed = self.parameters.unclaimed()
        # Of a file's section for all nodes, which components may get by forward_global_arguments.
        components = known_among(parameters_for_any_node(self).intersection(unclaimed))
        for name in (name for name in unclaimed if name not in components):
            self.get_logger().warning(
                f"parameter '{name}' is not one of the container; give a component its parameters in the request to load it"
            )
        if not self._multi_threaded and self.parameters['thread_num'] != 1:
            self.get_logger().warning("'thread_num' has no effect here; only component_container_mt uses it")

    def _on_load(self, request: Any, response: Any) -> Any:
        try:
            loaded = self._load(request)
        except LoadError as error:
            cause = error.__cause__
            trace = '' if cause is None or isinstance(cause, ZcError) else '\n' + ''.join(traceback.format_exception(cause))
            detail = f' ({error.detail})' if error.detail else ''
            self._say_error(f"could not load '{request.plugin_name}' of '{request.package_name}': {error}{detail}{trace}")
            response.success, response.error_message = False, printable(str(error))
        except Exception as error:  # a mistake of ours must not leave the client without an answer
            self._say_error(traceback.format_exc())
            response.success, response.error_message = False, f'the container failed: {one_line(error)}'
        else:
            response.success, response.unique_id, response.full_node_name = True, loaded.unique_id, loaded.name
        return response

    def _load(self, request: Any) -> _Loaded:
        assert self._executor is not None
        kind = load_class(request.package_name, request.plugin_name)
        options = node_options(request, self.context, self._say_warning)
        naming = (kind, request.node_name, request.node_namespace, *request.remap_rules)
        self._refuse_duplicate(options.full_name, naming)  # two nodes of one name would share a publisher of logs
        unique_id = next(self._ids)  # also one that then fails has had it
        try:
            node = construct(kind, options, self._say_warning)
        except LoadError:
            threading.Thread(target=self._say_leftovers, name='unload nothing', daemon=True).start()
            raise
        loaded = _Loaded(unique_id, node, _name_of(node), naming)
        try:
            self._refuse_duplicate(loaded.name, naming)
            with self._lock:
                if self._closing:
                    raise LoadError('The container is shutting down')
                _spin(node, self._executor)
                self._loaded[unique_id] = loaded
        except LoadError:
            self._end(loaded, spun=False)
            raise
        self.get_logger().info(f"loaded '{loaded.name}' with unique_id {unique_id}: {kind.__module__}.{kind.__qualname__}")
        return loaded

    def _refuse_duplicate(self, full_name: str, naming: tuple[object, ...]) -> None:
        """:raises LoadError: there is a node of that name in this container."""
        if full_name == self.get_fully_qualified_name():
            raise LoadError(f"'{full_name}' is this container's own name; give another node_name or node_namespace")
        for loaded in self._present():
            if loaded.name == full_name or loaded.naming == naming:
                raise LoadError(
                    f"'{loaded.name}' is loaded already, with unique_id {loaded.unique_id}; give another node_name or node_namespace"
                )

    def _present(self) -> list[_Loaded]:
        with self._lock:
            return [self._loaded[unique_id] for unique_id in sorted(self._loaded)]

    def workers(self) -> list[PerceptionNode]:
        """The components of this package, which can say whether they get on."""
        nodes = [getattr(loaded, 'node', None) for loaded in self._present()]  # one that is being unloaded may have none
        return [node for node in nodes if isinstance(node, PerceptionNode)]

    def _on_unload(self, request: Any, response: Any) -> Any:
        with self._lock:
            loaded = self._loaded.get(request.unique_id)
        if loaded is None:
            text = f'No node found with unique_id: {request.unique_id}'
        else:
            text = '' if self._unload(loaded, _UNLOAD_S) else f"'{loaded.name}' is still being unloaded: {self._where(loaded)}"
        text = printable(text)
        if text:
            self._say_warning(text)
        response.success, response.error_message = not text, text
        return response

    def _unload(self, loaded: _Loaded, timeout_s: float) -> bool:
        """Whether it has ended within *timeout_s*; if not, it goes on."""
        with self._lock:
            if loaded.unloading is None:
                loaded.unloading = threading.Thread(target=self._end_and_forget, args=(loaded,), name=f'unload {loaded.name}', daemon=True)
                loaded.unloading.start()
        return loaded.ended.wait(timeout_s)

    def _end_and_forget(self, loaded: _Loaded) -> None:
        try:
            self._end(loaded)
        except BaseException:  # foreign code: what is left of it must not keep its name, nor who waits
            self._say_error(f"'{loaded.name}': unloading failed:\n{traceback.format_exc()}")
        finally:
            with self._lock:
                del self._loaded[loaded.unique_id]
            # Said first: whoever waits for the last one may end the process.
            self.get_logger().info(f"unloaded '{loaded.name}' with unique_id {loaded.unique_id}")
            loaded.ended.set()
        self._say_leftovers()

    def _end(self, loaded: _Loaded, *, spun: bool = True) -> None:
        Unloading(loaded.node, loaded.name, self._executor if spun else None, self._say_error).run()
        del loaded.node
        return_memory()

    def _say_error(self, text: str) -> None:
        self.get_logger().error(printable(text))

    def _say_warning(self, text: str) -> None:
        self.get_logger().warning(printable(text))

    def _say_leftovers(self) -> None:
        """Once no component is left, everything that isn't the container's is a component's that should have given it back.

        What was said is not said again.
        """
        if self._present() or self._closing:
            return
        found = leftovers(lambda: set() if self._present() else {*threads_left(self._own_threads), *leases_left()}) - self._said
        return_memory()  # what a thread still referred to that has ended since: an idle process collects nothing by itself
        self._said |= found
        if found:
            self._say_warning(f'no component is loaded, but some have left behind: {"; ".join(sorted(found))}')

    def _where(self, loaded: _Loaded) -> str:
        frame = None if loaded.unloading is None or loaded.unloading.ident is None else sys._current_frames().get(loaded.unloading.ident)
        return 'it is about to end' if frame is None else f'at {frame.f_code.co_filename}:{frame.f_lineno}'

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
