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

"""Launch arguments that several launch files have, and the values that were chosen."""

from __future__ import annotations

from collections.abc import Sequence
import os
from pathlib import Path
import sys
from typing import Any

from ament_index_python.packages import get_package_share_directory
from launch.action import Action
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.launch_context import LaunchContext
from launch.launch_description import LaunchDescription
from launch.substitutions import LaunchConfiguration

from zc_perception.camera.kinds import CAMERAS
from zc_perception.errors import ConfigError, nearest
from zc_perception.local_path import local_path
from zc_perception.nodes.command_lines import check_namespace
from zc_perception.nodes.params.yaml_file import ParameterYaml, read_parameter_yaml
from zc_perception.npu.kinds import ACCELERATORS, AUTO

FROM_FILE = 'from_file'
_ON = ['true', 'True', 'TRUE', '1']
SWITCH = [*_ON, 'false', 'False', 'FALSE', '0']
"""Choices of an argument that is true or false.

launch's own conditions take these, and front ends in Python and YAML write them."""
# What launch and launch_ros read without declaring it.
_OF_LAUNCH = (
    'launch-prefix',
    'launch-prefix-filter',
    'emulate_tty',
    'sigterm_timeout',
    'sigkill_timeout',
    'ros_namespace',
)


def description(*entities: Action) -> LaunchDescription:
    """
    Return a launch file's content, which begins with a check of the command line.

    launch itself ignores arguments that no launch file declares.
    """
    known = [entity.name for entity in entities if isinstance(entity, DeclareLaunchArgument)]

    def check(context: LaunchContext) -> list[Action]:
        refuse_unknown(context.argv, known)
        return []

    return LaunchDescription([OpaqueFunction(function=check), *entities])


def refuse_unknown(given: Sequence[str], known: Sequence[str]) -> None:
    """
    Refuse arguments of the command line that a launch file of ours doesn't have.

    If another file includes ours, its arguments are its own matter.
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
    """Say whether the command line names a launch file of ours, by package or by path."""
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
    """Declare which parameter file to use, an installed one by default."""
    return DeclareLaunchArgument(
        'params_file',
        default_value=config_file(default),
        description='YAML with the parameters of all nodes; a name without a folder may be one '
        'of the installed files: '
        f'{", ".join(_installed())}. It is checked before anything starts: a file that is not '
        'there, an unknown parameter or a value that '
        'is not allowed is an error.',
    )


def _installed() -> list[str]:
    """Return the names of our nodes' installed parameter files; the folder has others too."""
    folder = Path(config_file(''))
    return sorted(
        path.name
        for path in folder.glob('*.yaml')
        if '/**/capture:' in path.read_text(encoding='utf-8')
    )


def common(*, overlay: bool = True) -> list[DeclareLaunchArgument]:
    """
    Return the arguments that all launch files have.

    :param overlay: whether it can be left out.
    """
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
            'an export, a model.yaml, or a shipped model '
            '(road, hog); empty: as the parameter file says.',
        ),
        DeclareLaunchArgument(
            'accelerator',
            default_value=FROM_FILE,
            choices=[FROM_FILE, AUTO, *ACCELERATORS.names],
            description='Where the model runs; auto: the first that fits, best first; '
            'from_file: as the parameter file says.',
        ),
        *([picture] if overlay else []),
        DeclareLaunchArgument(
            'autostart',
            default_value=FROM_FILE,
            choices=[FROM_FILE, *SWITCH],
            description='Whether nodes configure and activate themselves; false: they wait for '
            '"ros2 lifecycle set /capture configure" '
            'and so on; from_file: as the parameter file says, which is true unless it says '
            'otherwise.',
        ),
    ]


def processes() -> list[DeclareLaunchArgument]:
    """Return the arguments of launch files that start processes."""
    return [
        DeclareLaunchArgument(
            'on_exit',
            default_value='shutdown',
            choices=['shutdown', 'respawn', 'nothing'],
            description='When a process of ours ends: end everything (with exit code 1 if it '
            'has failed), start it again after '
            'respawn_delay with all its nodes, or leave the rest running.',
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
            description='Least severe message shown.',
        ),
    ]


def camera() -> list[DeclareLaunchArgument]:
    """Return the argument for the kind of camera, where all cameras are of one kind."""
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
            description='Recording to play, which is camera:=replay; empty: as the parameter '
            'file says.',
        ),
        DeclareLaunchArgument(
            'device',
            default_value='',
            description='Device node such as /dev/video2, which is camera:=v4l2; '
            'empty: as the parameter file says. With several '
            'cameras each has its own, in the parameter file.',
        ),
    ]


def container() -> list[DeclareLaunchArgument]:
    """Return the argument for the container that the nodes are loaded into."""
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
            description="What runs the container's callbacks. Frames don't need more than one "
            'thread there: cameras and accelerators have '
            'threads of their own.',
        ),
    ]


class Chosen:
    """
    The values that the arguments have.

    :raises ConfigError: from the methods, for a value that isn't allowed.
    """

    def __init__(self, context: LaunchContext) -> None:
        self._context = context

    def __getitem__(self, name: str) -> str:
        return str(LaunchConfiguration(name).perform(self._context)).strip()

    def flag(self, name: str) -> bool:
        """Return the value of an argument that is true or false."""
        return self[name] in _ON

    def number(self, name: str) -> float:
        """Return the value of an argument that is a number of seconds."""
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
        """
        Return the parameter file, not checked yet.

        :raises ConfigError: it isn't there, can't be read, or is no parameter file.
        """
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
            # launch_ros itself only warns and starts with defaults, which on a vehicle is the
            # wrong camera.
            hint = f"installed are {', '.join(_installed())} in '{config_file('')}'"
            raise ConfigError(f"params_file '{path}' does not exist or is not a file; {hint}")
        return read_parameter_yaml(path, 'params_file')

    def names(self, name: str) -> list[str]:
        """Return the value of an argument that is a list, with commas or spaces between."""
        return self[name].replace(',', ' ').split()

    def namespace(self, camera_name: str = '') -> str:
        """
        Return the whole namespace, with a slash in front.

        It is below the namespace that a group of the including launch file pushes.
        """
        pushed = str(self._context.launch_configurations.get('ros_namespace', ''))
        own = self['namespace']
        if own.strip('/'):
            check_namespace(own.strip('/'), "launch argument 'namespace'")
        parts = [own] if own.startswith('/') else [pushed, own]
        return '/' + '/'.join(part.strip('/') for part in (*parts, camera_name) if part.strip('/'))

    def kinds(self) -> Sequence[str]:
        """
        Return the nodes of one camera, in the order in which they should start.

        Consumers come first, so that they take part in the negotiation.
        """
        return ('inference', *(['overlay'] if self.flag('overlay') else []), 'capture')

    def overrides(self, kind: str) -> dict[str, Any]:
        """Return a node's parameters that the arguments set; they win over the file's."""
        values: dict[str, Any] = {}
        given = self._context.launch_configurations
        if kind == 'capture':
            for name in ('video', 'device'):
                if given.get(name):  # it says by which kind of camera: the one that reads it
                    values |= {name: self[name], 'camera': CAMERAS.declared.readers[name][0]}
            if 'camera' in given and self['camera'] != FROM_FILE:
                values['camera'] = self['camera']
        if kind == 'inference':
            if self['accelerator'] != FROM_FILE:
                values['accelerator'] = self['accelerator']
            if given.get('model'):
                # A container may run in another folder.
                path = local_path(self['model'], 'model')
                values['model'] = os.path.abspath(path) if os.path.exists(path) else self['model']
        if self['autostart'] != FROM_FILE:
            values['autostart'] = self.flag('autostart')
        return values
