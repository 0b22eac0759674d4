"""Processes and components that launch files start, and what happens when one of them ends or can't be started.

Programs leave their parameter files to rcl. Components get values instead, which somebody has to pick from the file: launch_ros does so by
rules of its own, which differ between distributions, and a component that is refused leaves the launch running without it. So a file is
read by rcl's rules and judged (:mod:`~zc_perception.nodes.params.verdict`) before anything starts. What that needs is imported then: to
show a launch file's arguments needs no OpenCV.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from composition_interfaces.srv import ListNodes, LoadNode
from launch.action import Action
from launch.actions import EmitEvent, RegisterEventHandler
from launch.event import Event
from launch.event_handler import EventHandler
from launch.event_handlers import OnProcessExit, OnProcessStart
from launch.events import Shutdown
from launch.launch_context import LaunchContext
from launch.logging import get_logger
from launch_ros.actions import ComposableNodeContainer, LoadComposableNodes, Node
from launch_ros.descriptions import ComposableNode
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.ros_adapters import get_ros_node

from zc_perception.camera.stereo import Side
from zc_perception.errors import ZcError
from zc_perception.nodes.launching.arguments import Chosen
from zc_perception.nodes.namespaces import check_cameras
from zc_perception.nodes.params.yaml_file import ParameterYaml

PACKAGE = 'zc_perception'
PLUGINS = {'capture': 'CaptureNode', 'inference': 'InferenceNode', 'overlay': 'OverlayNode'}
_CONTAINERS = {
    'single_threaded': 'component_container',
    'multi_threaded': 'component_container_mt',
}
_ANSWER_S = 1.0
_LOGGER = get_logger('launch')


class LaunchFailedError(ZcError):
    """Something that the launch can't do without has ended or couldn't be started. It ends the launch with exit code 1."""


class _Failure(Event):
    name = 'zc_perception.nodes.launching.Failure'

    def __init__(self, message: str) -> None:
        self.message = message


class _OnFailure(EventHandler):
    """Raises within launch's own loop, which is what makes ``ros2 launch`` end with 1; one from a load's thread may pass unseen."""

    def __init__(self) -> None:
        super().__init__(matcher=lambda event: isinstance(event, _Failure))

    def handle(self, event: Event, context: LaunchContext) -> None:
        super().handle(event, context)
        raise LaunchFailedError(event.message)


def program(
    chosen: Chosen,
    executable: str,
    parameters: Sequence[Any],
    *,
    namespace: str,
    arguments: Sequence[str] = (),
) -> list[Action]:
    """One of the package's programs in a process of its own."""
    process = Node(
        package=PACKAGE,
        executable=executable,
        namespace=namespace if namespace != '/' else None,
        parameters=[dict_or_file for dict_or_file in parameters if dict_or_file],
        # A SetParameter around the launch file is for the nodes of all packages.
        arguments=[
            *arguments,
            '--unknown-parameters',
            'warn',
            '--ros-args',
            '--log-level',
            chosen['log_level'],
        ],
        output='screen',
        respawn=chosen['on_exit'] == 'respawn',
        respawn_delay=chosen.number('respawn_delay'),
    )
    return [process, *_when_it_ends(chosen, process, executable)]


def perception_program(
    chosen: Chosen, file: ParameterYaml, cameras: Sequence[str] = (), stereo: bool = False
) -> list[Action]:
    """The program ``perception``, with the nodes of one camera, several, or a pair; its file is checked."""
    from zc_perception.nodes.params import verdict

    names = [side.value for side in Side] if stereo else cameras
    check_cameras(names, "launch argument 'cameras'")
    paths = {
        f'{chosen.namespace(name).rstrip("/")}/{kind}': kind
        for name in names or ['']
        for kind in PLUGINS
    }
    verdict.check_file(
        file, paths, all_overrides(chosen)
    )  # the program itself says what is only worth a warning
    namespace = chosen.namespace()
    if cameras and namespace != '/':  # the program refuses both: each name is a namespace in full
        cameras, namespace = [chosen.namespace(name).strip('/') for name in cameras], '/'
    options = ['--stereo'] if stereo else ['--cameras', *cameras] if cameras else []
    values = {
        name: value
        for overrides in all_overrides(chosen).values()
        for name, value in overrides.items()
    }
    return program(
        chosen, 'perception', [file.path, values], namespace=namespace, arguments=options
    )


def container(
    chosen: Chosen, components: Sequence[ComposableNode], *, name: str, namespace: str
) -> list[Action]:
    """A container with components. What can't be loaded ends the launch, unless it is to go on without whatever ends."""
    process = ComposableNodeContainer(
        package=PACKAGE,
        executable=_CONTAINERS[chosen['executor']],
        name=name,
        namespace=namespace,
        composable_node_descriptions=[],
        arguments=['--ros-args', '--log-level', chosen['log_level']],
        output='screen',
        respawn=chosen['on_exit'] == 'respawn',
        respawn_delay=chosen.number('respawn_delay'),
    )
    load = LoadComponents(
        components,
        container=f'{namespace.rstrip("/")}/{name}',
        required=chosen['on_exit'] != 'nothing',
    )
    started_again = OnProcessStart(
        target_action=process, on_start=lambda event, context: load.load_again(context)
    )
    return [
        RegisterEventHandler(started_again),
        process,
        *_when_it_ends(chosen, process, f"container '{name}'"),
        load,
    ]


def _when_it_ends(chosen: Chosen, process: Action, what: str) -> list[Action]:
    if chosen['on_exit'] != 'shutdown':
        return []

    def end(event: Any, context: LaunchContext) -> list[Action]:
        if context.is_shutdown:
            return []
        if event.returncode == 0:
            return [EmitEvent(event=Shutdown(reason=f'{what} has ended'))]
        raise LaunchFailedError(
            f'{what} ended with exit code {event.returncode}; its last lines say why'
        )

    return [RegisterEventHandler(OnProcessExit(target_action=process, on_exit=end))]


def component(kind: str, *, namespace: str, values: Mapping[str, Any]) -> ComposableNode:
    """One of our nodes as a component."""
    # A text stays one, though it looks like a number: accelerator_device "01:00.0".
    typed = {
        name: ParameterValue(value, value_type=str) if isinstance(value, str) else value
        for name, value in values.items()
    }
    return ComposableNode(
        package=PACKAGE,
        plugin=f'{PACKAGE}::{PLUGINS[kind]}',
        name=kind,
        namespace=namespace,
        parameters=[typed] if typed else [],
        extra_arguments=[{'use_intra_process_comms': True}],
    )


def components(
    chosen: Chosen,
    cameras: Sequence[str],
    file: ParameterYaml,
    kinds: Sequence[str] | None = None,
) -> dict[str, list[ComposableNode]]:
    """The nodes of each camera, with their parameters, once the file was checked.

    :param cameras: names, which become namespaces; an empty one for the only camera.
    """
    check_cameras([name for name in cameras if name], "launch argument 'cameras'")
    kinds = chosen.kinds() if kinds is None else kinds
    namespaces = {name: chosen.namespace(name) for name in cameras}
    check_file(
        chosen,
        file,
        {
            f'{namespace.rstrip("/")}/{kind}': kind
            for namespace in namespaces.values()
            for kind in kinds
        },
    )
    return {
        name: [
            component(
                kind,
                namespace=namespace,
                values=node_values(chosen, file, f'{namespace.rstrip("/")}/{kind}', kind),
            )
            for kind in kinds
        ]
        for name, namespace in namespaces.items()
    }


def all_overrides(chosen: Chosen) -> dict[str, dict[str, Any]]:
    """Parameters by kind that the launch arguments set."""
    return {kind: chosen.overrides(kind) for kind in PLUGINS}


def check_file(chosen: Chosen, file: ParameterYaml, nodes: Mapping[str, str]) -> None:
    """Warn of what is wrong in a file. For nodes that get their values (:func:`node_values`) instead of the file: they can't warn."""
    from zc_perception.nodes.params import verdict

    for sentence in verdict.check_file(file, nodes, all_overrides(chosen)):
        _LOGGER.warning(sentence)


def node_values(chosen: Chosen, file: ParameterYaml, node: str, kind: str) -> dict[str, Any]:
    """A node's parameters, from the file and the launch arguments."""
    from zc_perception.nodes.params import verdict

    return verdict.component_values(file, node, kind, chosen.overrides(kind))


class LoadComponents(LoadComposableNodes):
    """Loads components into a container, as launch_ros does, but what fails is not passed over.

    Before each load the container has to answer: a request that was sent to one that has just ended would wait for ever.

    :param required: whether a component that can't be loaded ends the launch.
    :param timeout_s: so long the container may take to answer; ``None``: as long as it takes, for one that was just started.
    """

    def __init__(
        self,
        components: Sequence[ComposableNode],
        *,
        container: str,
        required: bool = True,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(composable_node_descriptions=list(components), target_container=container)
        self._container = container
        self._required = required
        self._timeout_s = timeout_s
        self._requests: list[LoadNode.Request] = []
        self._started = False
        self._ended = False

    def execute(self, context: LaunchContext) -> list[Action] | None:
        """See launch."""
        context.register_event_handler(_OnFailure())
        node = get_ros_node(context)
        self._load = node.create_client(LoadNode, f'{self._container}/_container/load_node')
        self._list = node.create_client(ListNodes, f'{self._container}/_container/list_nodes')
        actions: list[Action] | None = super().execute(context)
        return actions

    def load_again(self, context: LaunchContext) -> None:
        """The container was started; from the second time on its components have to be loaded anew."""
        if not self._started:
            self._started = True
            return
        requests, self._requests = self._requests, []
        self._ended = False

        def load() -> None:
            for request in requests:
                self._load_node(request, context)

        context.add_completion_future(context.asyncio_loop.run_in_executor(None, load))

    def _load_node(self, request: LoadNode.Request, context: LaunchContext) -> None:
        """One component; on a thread of launch's."""
        self._requests.append(request)
        if self._ended or context.is_shutdown:
            return
        if not self._container_answers(context):
            if not context.is_shutdown:
                self._fail(
                    context,
                    f"container '{self._container}' has not answered for {self._timeout_s:g} s; {self._others(context)}",
                )
            return
        answer = self._call(self._load, request, context)
        if answer is None:
            return
        if answer.success:
            _LOGGER.info(f"loaded '{answer.full_node_name}' into '{self._container}'")
        else:
            name = f'{request.node_namespace.rstrip("/")}/{request.node_name}'
            self._fail(
                context,
                f"'{name}' could not be loaded into '{self._container}': {answer.error_message}",
            )

    def _fail(self, context: LaunchContext, message: str) -> None:
        self._ended = True
        if self._required:
            context.asyncio_loop.call_soon_threadsafe(context.emit_event_sync, _Failure(message))
        else:
            _LOGGER.error(message)

    def _container_answers(self, context: LaunchContext) -> bool:
        waited = 0.0
        while not context.is_shutdown and (self._timeout_s is None or waited < self._timeout_s):
            if self._list.wait_for_service(timeout_sec=_ANSWER_S) and self._call(
                self._list, ListNodes.Request(), context, _ANSWER_S
            ):
                return True
            waited += _ANSWER_S
        return False

    @staticmethod
    def _call(client: Any, request: Any, context: LaunchContext, timeout_s: float = 0.0) -> Any:
        """The answer; ``None`` when there was none within *timeout_s* (0: it may take as long as it likes), or the launch ends."""
        done = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: done.set())
        while not done.wait(timeout_s or _ANSWER_S):
            if timeout_s or context.is_shutdown:
                client.remove_pending_request(future)
                return None
        return future.result()

    @staticmethod
    def _others(context: LaunchContext) -> str:
        suffix = '/_container/load_node'
        node = get_ros_node(context)
        # Of each node: the services of the graph as a whole have our own clients among them.
        nodes = node.get_node_names_and_namespaces()
        services = [
            name
            for own, namespace in nodes
            for name, _ in node.get_service_names_and_types_by_node(own, namespace)
        ]
        names = sorted({name for name in services if name.endswith(suffix)})
        if not names:
            return "there is none; start one with 'ros2 run zc_perception component_container'"
        return 'running are ' + ', '.join(name.removesuffix(suffix) for name in names)
