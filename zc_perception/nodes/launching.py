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
Functions that the launch files share: arguments, processes, components, and their failures.

A program passes its parameter file to rcl. A component can't read a file: the launch file must
read it and send the values. launch_ros would read it by its own rules, which differ between
distributions, and would go on if the container refuses a component. So this module reads the file
by rcl's rules and checks it (:mod:`~zc_perception.nodes.params.verdict`) before anything starts.
The module that checks is imported late, so that ``ros2 launch --show-args`` needs no OpenCV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
import os
from pathlib import Path
import sys
import threading
from typing import Any

from ament_index_python.packages import get_package_share_directory
from composition_interfaces.srv import ListNodes, LoadNode
from launch.action import Action
from launch.actions import DeclareLaunchArgument, EmitEvent, OpaqueFunction, RegisterEventHandler
from launch.event import Event
from launch.event_handler import EventHandler
from launch.event_handlers import OnProcessExit, OnProcessStart
from launch.events import Shutdown
from launch.launch_context import LaunchContext
from launch.launch_description import LaunchDescription
from launch.logging import get_logger
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import ComposableNodeContainer, LoadComposableNodes, Node
from launch_ros.descriptions import ComposableNode
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.ros_adapters import get_ros_node

from zc_perception.camera.kinds import CAMERAS
from zc_perception.camera.stereo import Side
from zc_perception.errors import ConfigError, nearest, ZcError
from zc_perception.link.rclpy_compat import InvalidHandle
from zc_perception.local_path import local_path
from zc_perception.nodes.command_lines import check_cameras, check_namespace
from zc_perception.nodes.params.yaml_file import ParameterYaml, read_parameter_yaml
from zc_perception.npu.kinds import ACCELERATORS, AUTO

FROM_FILE = 'from_file'
_ON = ['true', 'True', 'TRUE', '1']
SWITCH = [*_ON, 'false', 'False', 'FALSE', '0']
"""Choices of an argument that is true or false.

launch's own conditions accept these words. Each form in which a launch file in Python or YAML
passes a boolean is one of them."""
# Arguments that launch and launch_ros read, although no action declares them.
_OF_LAUNCH = (
    'launch-prefix',
    'launch-prefix-filter',
    'emulate_tty',
    'sigterm_timeout',
    'sigkill_timeout',
    'ros_namespace',
)


def description(*entities: Action) -> LaunchDescription:
    """Return a launch description that refuses undeclared arguments, then runs *entities*."""
    known = [entity.name for entity in entities if isinstance(entity, DeclareLaunchArgument)]

    def check(context: LaunchContext) -> list[Action]:
        refuse_unknown(context.argv, known)
        return []

    return LaunchDescription([OpaqueFunction(function=check), *entities])


def refuse_unknown(given: Sequence[str], known: Sequence[str]) -> None:
    """
    Refuse launch arguments that aren't *known*, unless another launch file includes ours.

    The other file may know such an argument.

    :raises ConfigError: an argument is unknown, and the command line starts our launch file.
    """
    names = dict.fromkeys(argument.partition(':=')[0] for argument in given)
    unknown = [name for name in names if name not in known and name not in _OF_LAUNCH]
    if unknown and _launched_by_itself():
        said = ', '.join(
            f"launch argument '{name}' is unknown{nearest(name, known)}" for name in unknown
        )
        raise ConfigError(
            f'{said}; known are {", ".join(known)}; parameters of nodes are set in the file '
            'that params_file names'
        )


def _launched_by_itself() -> bool:
    """Return whether the command line starts one of our launch files, by package or path."""
    folder = Path(get_package_share_directory('zc_perception'), 'launch')
    ours = [path for path in folder.iterdir() if path.is_file()]
    for before, word in zip(sys.argv, sys.argv[1:], strict=False):
        if before == 'zc_perception' and any(path.name == word for path in ours):
            return True
        if os.path.isfile(word) and any(os.path.samefile(word, path) for path in ours):
            return True
    return False


def config_file(name: str) -> str:
    """Return the path of an installed parameter file."""
    return os.path.join(get_package_share_directory('zc_perception'), 'config', name)


def params_file(default: str = 'perception.yaml') -> DeclareLaunchArgument:
    """Declare argument ``params_file``; its default is an installed file."""
    return DeclareLaunchArgument(
        'params_file',
        default_value=config_file(default),
        description='YAML with the parameters of all nodes; a name without a folder may be one '
        'of the installed files: '
        f'{", ".join(_installed())}. The YAML is checked before anything starts: a file that '
        'does not exist, an unknown parameter or a value that '
        'is not allowed is an error.',
    )


def _installed() -> list[str]:
    """Return the names of the installed files with parameters of this package's nodes."""
    folder = Path(config_file(''))
    return sorted(
        path.name
        for path in folder.glob('*.yaml')
        if '/**/capture:' in path.read_text(encoding='utf-8')
    )


def common_arguments(*, overlay: bool = True) -> list[DeclareLaunchArgument]:
    """Return the arguments that all launch files have."""
    picture = DeclareLaunchArgument(
        'overlay',
        default_value='true',
        choices=SWITCH,
        description='Whether detections/image, the picture with boxes, is offered.',
    )
    return [
        DeclareLaunchArgument(
            'namespace',
            default_value='',
            description='Namespace of all nodes and topics, such as truck.',
        ),
        DeclareLaunchArgument(
            'model',
            default_value='',
            description='What to detect with: an ONNX file such as yolo11n.onnx, the folder of '
            'an exported model, a model.yaml, or a shipped model '
            '(road, hog); empty: as the parameter file says.',
        ),
        DeclareLaunchArgument(
            'accelerator',
            default_value=FROM_FILE,
            choices=[FROM_FILE, AUTO, *ACCELERATORS.names],
            description='Where the model runs; auto: the best one that works on this machine; '
            'from_file: the accelerator that the parameter file names.',
        ),
        *([picture] if overlay else []),
        DeclareLaunchArgument(
            'autostart',
            default_value=FROM_FILE,
            choices=[FROM_FILE, *SWITCH],
            description='Whether nodes configure and activate themselves; false: they wait for '
            '"ros2 lifecycle set /capture configure" '
            'and so on; from_file: as the parameter file says, or true if the file says '
            'nothing.',
        ),
    ]


def process_arguments() -> list[DeclareLaunchArgument]:
    """Return the arguments of launch files that start processes."""
    return [
        DeclareLaunchArgument(
            'on_exit',
            default_value='shutdown',
            choices=['shutdown', 'respawn', 'nothing'],
            description='What to do when a process of this launch file ends. shutdown: end '
            'everything, with exit code 1 if the process has failed; respawn: start the process '
            'with all its nodes again after respawn_delay; nothing: leave the rest running.',
        ),
        DeclareLaunchArgument(
            'respawn_delay',
            default_value='2.0',
            description='Seconds before a process is started again.',
        ),
        DeclareLaunchArgument(
            'log_level',
            default_value='info',
            choices=['debug', 'info', 'warn', 'error', 'fatal'],
            description='Least severe level of messages that are shown.',
        ),
    ]


def camera_arguments() -> list[DeclareLaunchArgument]:
    """Return the arguments that choose the kind of camera and what it reads."""
    return [
        DeclareLaunchArgument(
            'camera',
            default_value=FROM_FILE,
            choices=[FROM_FILE, *CAMERAS.names],
            description='Kind of camera; from_file: as the parameter file says.',
        ),
        DeclareLaunchArgument(
            'video',
            default_value='',
            description='Recording to play; it also sets camera:=replay; empty: as the parameter '
            'file says.',
        ),
        DeclareLaunchArgument(
            'device',
            default_value='',
            description='Device node such as /dev/video2; it also sets camera:=v4l2; '
            'empty: as the parameter file says. For several '
            'cameras, set their devices in the parameter file.',
        ),
    ]


def container_arguments() -> list[DeclareLaunchArgument]:
    """Return the arguments that name the container and choose its executor."""
    return [
        DeclareLaunchArgument(
            'container',
            default_value='perception_container',
            description='Name of the container node, within the namespace.',
        ),
        DeclareLaunchArgument(
            'executor',
            default_value='single_threaded',
            choices=['single_threaded', 'multi_threaded'],
            description="Whether one thread or several threads run the container's callbacks. For "
            'frames one thread is enough: cameras and accelerators have '
            'threads of their own.',
        ),
    ]


class Chosen:
    """The values of the launch arguments, by name; methods raise ConfigError for a wrong value."""

    def __init__(self, context: LaunchContext) -> None:
        self._context = context

    def __getitem__(self, name: str) -> str:
        return str(LaunchConfiguration(name).perform(self._context)).strip()

    def flag(self, name: str) -> bool:
        """Return whether argument *name*, whose choices are :data:`SWITCH`, is true."""
        return self[name] in _ON

    def number(self, name: str) -> float:
        """Return the seconds in argument *name*; ConfigError: it isn't a number from 0 to 1e6."""
        try:
            value = float(self[name])
        except ValueError:
            value = -1.0
        if not 0.0 <= value < 1e6:
            raise ConfigError(
                f"launch argument '{name}' is '{self[name]}'; it must be a number of seconds "
                'from 0 to 1e6'
            )
        return value

    def params_file(self) -> ParameterYaml:
        """Read the parameter file without checking its values; ConfigError: it can't be read."""
        name = self['params_file']
        installed = config_file(name)
        if (
            os.path.basename(name) == name
            and not os.path.exists(name)
            and os.path.isfile(installed)
        ):
            name = installed
        path = os.path.expanduser(name)
        if not os.path.isfile(path):
            # launch_ros would only warn and start the nodes with default values, so a vehicle
            # would run with the wrong camera.
            hint = f"installed files: {', '.join(_installed())} in '{config_file('')}'"
            raise ConfigError(f"params_file '{path}' does not exist or is not a file; {hint}")
        return read_parameter_yaml(path, 'params_file')

    def names(self, name: str) -> list[str]:
        """Split the value of an argument at commas and spaces."""
        return self[name].replace(',', ' ').split()

    def namespace(self, camera_name: str = '') -> str:
        """
        Return a camera's full namespace.

        If launch argument ``namespace`` doesn't begin with a slash, the result lies in the
        namespace that a launch group around our launch file has set.

        :param camera_name: last part of the result; empty: the only camera, without a name.
        """
        pushed = str(self._context.launch_configurations.get('ros_namespace', ''))
        own = self['namespace']
        if own.strip('/'):
            check_namespace(own.strip('/'), "launch argument 'namespace'")
        parts = [own] if own.startswith('/') else [pushed, own]
        return '/' + '/'.join(part.strip('/') for part in (*parts, camera_name) if part.strip('/'))

    def kinds(self) -> Sequence[str]:
        """
        Return the kinds of node that each camera has, in the order of their start.

        Consumers come first, because the camera negotiates buffers with them when it starts.
        """
        return ('inference', *(['overlay'] if self.flag('overlay') else []), 'capture')

    def _path(self, name: str) -> str:
        """Return an argument's path, absolute if it exists: a container may run elsewhere."""
        path = local_path(self[name], name)
        return os.path.abspath(path) if os.path.exists(path) else self[name]

    def overrides(self, kind: str) -> dict[str, Any]:
        """Return a node's parameters that launch arguments set; they replace the file's values."""
        values: dict[str, Any] = {}
        given = self._context.launch_configurations
        if kind == 'capture':
            for name in ('video', 'device'):
                # Only one kind of camera reads this parameter, so the argument chooses this kind.
                if given.get(name):
                    kind_of_camera = CAMERAS.declared.readers[name][0]
                    values |= {name: self._path(name), 'camera': kind_of_camera}
            if 'camera' in given and self['camera'] != FROM_FILE:
                values['camera'] = self['camera']
        if kind == 'inference':
            if self['accelerator'] != FROM_FILE:
                values['accelerator'] = self['accelerator']
            if given.get('model'):
                values['model'] = self._path('model')
        if self['autostart'] != FROM_FILE:
            values['autostart'] = self.flag('autostart')
        return values


PACKAGE = 'zc_perception'
PLUGINS = {'capture': 'CaptureNode', 'inference': 'InferenceNode', 'overlay': 'OverlayNode'}
_CONTAINERS = {
    'single_threaded': 'component_container',
    'multi_threaded': 'component_container_mt',
}
_ANSWER_S = 1.0
_LOGGER = get_logger('launch')


class LaunchFailedError(ZcError):
    """A required process or component ended or could not start; ros2 launch ends with code 1."""


def program(
    chosen: Chosen,
    executable: str,
    parameters: Sequence[Any],
    *,
    namespace: str,
    arguments: Sequence[str] = (),
) -> list[Action]:
    """Return the actions that start one of the package's programs as a process."""
    process = Node(
        package=PACKAGE,
        executable=executable,
        namespace=namespace if namespace != '/' else None,
        parameters=[dict_or_file for dict_or_file in parameters if dict_or_file],
        # Unknown parameters are only warnings: a launch file that includes ours may use
        # SetParameter, which sets a parameter of other packages' nodes on our nodes, too.
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
    """Check the parameter file; return actions that start ``perception`` for the cameras."""
    names = [side.value for side in Side] if stereo else cameras
    _judge(chosen, file, names or [''], PLUGINS)  # logs no warnings: the program does
    namespace = chosen.namespace()
    # The program refuses a namespace with --cameras, so put the namespace before each camera's
    # name.
    if cameras and namespace != '/':
        cameras, namespace = [chosen.namespace(name).strip('/') for name in cameras], '/'
    options = ['--stereo'] if stereo else ['--cameras', *cameras] if cameras else []
    values: dict[str, Any] = {}
    for kind in PLUGINS:
        values |= chosen.overrides(kind)
    return program(
        chosen, 'perception', [file.path, values], namespace=namespace, arguments=options
    )


def container(
    chosen: Chosen, components: Sequence[ComposableNode], *, name: str, namespace: str
) -> list[Action]:
    """Return the actions that start a container and load *components* into it."""
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


def components(
    chosen: Chosen, cameras: Sequence[str], file: ParameterYaml, kinds: Sequence[str] | None = None
) -> dict[str, list[ComposableNode]]:
    """
    Check the parameter file; return each camera's nodes with their parameters.

    :param cameras: names of the cameras, which are the keys of the result; ``''``: the only
        camera, without a name.
    """

    def component(camera: str, kind: str, values: Mapping[str, Any]) -> ComposableNode:
        # Send a text as text, even if YAML would read it as a number, such as accelerator_device
        # "01:00.0".
        typed = {
            name: ParameterValue(value, value_type=str) if isinstance(value, str) else value
            for name, value in values.items()
        }
        return ComposableNode(
            package=PACKAGE,
            plugin=f'{PACKAGE}::{PLUGINS[kind]}',
            name=kind,
            namespace=chosen.namespace(camera),
            parameters=[typed] if typed else [],
            extra_arguments=[{'use_intra_process_comms': True}],
        )

    return {
        camera: [component(camera, kind, values) for kind, values in nodes.items()]
        for camera, nodes in node_values(chosen, file, cameras, kinds).items()
    }


def node_values(
    chosen: Chosen,
    file: ParameterYaml,
    cameras: Sequence[str] = ('',),
    kinds: Sequence[str] | None = None,
) -> dict[str, dict[str, dict[str, Any]]]:
    """
    Check the parameter file and log its warnings; return each node's values, by camera and kind.

    The values come from the file and from launch arguments (:meth:`Chosen.overrides`).
    """
    from zc_perception.nodes.params.verdict import component_values

    paths, warnings = _judge(chosen, file, cameras, chosen.kinds() if kinds is None else kinds)
    for sentence in warnings:
        _LOGGER.warning(sentence)
    return {
        camera: {
            kind: component_values(file, path, kind, chosen.overrides(kind))
            for kind, path in nodes.items()
        }
        for camera, nodes in paths.items()
    }


def _judge(
    chosen: Chosen, file: ParameterYaml, cameras: Sequence[str], kinds: Iterable[str]
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """
    Check the parameter file.

    Return the full name of each node, by camera and kind, and the warnings about the file.
    """
    from zc_perception.nodes.params.verdict import check_file

    check_cameras([name for name in cameras if name], "launch argument 'cameras'")
    if len(cameras) > 1 and chosen['device']:
        raise ConfigError(
            f"launch argument 'device' is '{chosen['device']}', for {len(cameras)} cameras; "
            'give each camera its own device in the parameter file, as '
            f'/{cameras[0]}/capture: ros__parameters: device'
        )
    paths = {
        camera: {kind: f'{chosen.namespace(camera).rstrip("/")}/{kind}' for kind in kinds}
        for camera in cameras
    }
    nodes = {path: kind for own in paths.values() for kind, path in own.items()}
    return paths, check_file(file, nodes, {kind: chosen.overrides(kind) for kind in PLUGINS})


class LoadComponents(LoadComposableNodes):
    """
    Loads components into a container, as launch_ros does, but reports failures.

    Before each load it asks the container for its list of nodes and waits for the answer, because
    a load request to a container that has just ended is never answered.

    :param required: whether a failure ends the launch; if not, the failure is logged, and the
        components after the failed one aren't loaded.
    :param timeout_s: seconds within which the container must answer with the list; ``None``: no
        limit, for a container that the launch starts itself.
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
        self._container, self._required, self._timeout_s = container, required, timeout_s
        self._requests: Sequence[LoadNode.Request] = ()
        self._starts = 0

    def execute(self, context: LaunchContext) -> list[Action] | None:
        """Begin to load the components; called by launch."""
        node = get_ros_node(context)
        self._load = node.create_client(LoadNode, f'{self._container}/_container/load_node')
        self._list = node.create_client(ListNodes, f'{self._container}/_container/list_nodes')
        actions: list[Action] | None = super().execute(context)
        return actions

    def load_again(self, context: LaunchContext) -> None:
        """Load the components after a restart of the container; do nothing at the first start."""
        self._starts += 1
        if self._starts > 1:
            load, requests = self._load_in_sequence, self._requests
            context.add_completion_future(
                context.asyncio_loop.run_in_executor(None, load, requests, context)
            )

    def _load_in_sequence(
        self, load_node_requests: Sequence[LoadNode.Request], context: LaunchContext
    ) -> None:
        """Load one component after the other; called by launch_ros, on a thread of launch."""
        try:
            self._load_all(load_node_requests, context)
        # A call of a service raises this after launch has ended and destroyed its node.
        except InvalidHandle:
            if not context.is_shutdown:
                raise

    def _load_all(
        self, load_node_requests: Sequence[LoadNode.Request], context: LaunchContext
    ) -> None:
        # The event of the container's first start may arrive after this line, so count at least
        # one start.
        self._requests, starts = load_node_requests, max(self._starts, 1)
        over = lambda: context.is_shutdown or self._starts > starts  # noqa: E731
        for request in load_node_requests:
            waited = 0.0
            while not (
                self._list.wait_for_service(timeout_sec=_ANSWER_S)
                and _call(self._list, ListNodes.Request(), over, _ANSWER_S)
            ):
                waited += _ANSWER_S
                if over():
                    return
                if self._timeout_s is not None and waited >= self._timeout_s:
                    text = f'has not answered for {self._timeout_s:g} s; {_containers(context)}'
                    self._fail(context, f"container '{self._container}' {text}")
                    return
            answer = _call(self._load, request, over)
            if answer is None:
                return
            if not answer.success:
                name = f'{request.node_namespace.rstrip("/")}/{request.node_name}'
                text = f"could not be loaded into '{self._container}': {answer.error_message}"
                self._fail(context, f"'{name}' {text}")
                return
            _LOGGER.info(f"loaded '{answer.full_node_name}' into '{self._container}'")

    def _fail(self, context: LaunchContext, message: str) -> None:
        if not self._required:
            _LOGGER.error(message)
            return
        failure = Event()

        def end(context: LaunchContext) -> None:
            raise LaunchFailedError(message)

        def tell() -> None:
            # Raise the error in launch's own loop, so that ros2 launch ends with exit status 1.
            # An error on the thread that loads the nodes could go unnoticed.
            context.register_event_handler(
                EventHandler(
                    matcher=lambda event: event is failure, entities=OpaqueFunction(function=end)
                )
            )
            context.emit_event_sync(failure)

        context.asyncio_loop.call_soon_threadsafe(tell)


def _call(client: Any, request: Any, over: Callable[[], bool], timeout_s: float = 0.0) -> Any:
    """
    Send a request and wait for the answer; return it, or ``None`` if no answer came in time.

    :param over: called every second if *timeout_s* is 0; when it returns true, the wait ends.
    :param timeout_s: longest wait; 0: no limit.
    """
    done = threading.Event()
    future = client.call_async(request)
    future.add_done_callback(lambda _: done.set())
    while not done.wait(timeout_s or _ANSWER_S):
        if timeout_s or over():
            client.remove_pending_request(future)
            return None
    return future.result()


def _containers(context: LaunchContext) -> str:
    """Return a text that names the running containers, for an error message."""
    suffix, node = '/_container/load_node', get_ros_node(context)
    # Ask for each node's services: the list of all services has also those that no node serves
    # and for which only our clients wait.
    names = {
        service.removesuffix(suffix)
        for own, namespace in node.get_node_names_and_namespaces()
        for service, _ in node.get_service_names_and_types_by_node(own, namespace)
        if service.endswith(suffix)
    }
    if names:
        return 'running containers: ' + ', '.join(sorted(names))
    return "no container runs; start one with 'ros2 run zc_perception component_container'"
