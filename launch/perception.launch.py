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
Start camera, inference and overlay in one process.

``ros2 launch zc_perception perception.launch.py``. The nodes are components in a container;
``composition:=program`` runs the program ``perception`` instead, which has the same nodes.
"""

from launch import Action, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.launch_context import LaunchContext

from zc_perception.errors import ConfigError
from zc_perception.nodes import launching


def start(context: LaunchContext) -> list[Action]:
    """Return the process, once the arguments are known."""
    chosen = launching.Chosen(context)
    cameras, stereo = chosen.names('cameras'), chosen.flag('stereo')
    if cameras and stereo:
        raise ConfigError(
            'launch arguments cameras and stereo can not go together; a pair is in the '
            'namespaces left and right'
        )
    file = chosen.params_file()
    if stereo or chosen['composition'] == 'program':
        if not chosen.flag('overlay'):
            raise ConfigError(
                'launch argument overlay:=false needs composition:=container and '
                'stereo:=false; nothing is drawn without a subscriber'
            )
        return launching.perception_program(chosen, file, cameras=cameras, stereo=stereo)
    nodes = launching.components(chosen, cameras or [''], file)
    together = [node for own in nodes.values() for node in own]
    return launching.container(
        chosen, together, name=chosen['container'], namespace=chosen.namespace()
    )


def generate_launch_description() -> LaunchDescription:
    """Return the arguments and the process."""
    return launching.description(
        launching.params_file(),
        *launching.camera_arguments(),
        DeclareLaunchArgument(
            'cameras',
            default_value='',
            description='Several cameras in this process, such as front,rear: each has its '
            'nodes in the namespace of its name.',
        ),
        DeclareLaunchArgument(
            'stereo',
            default_value='false',
            choices=launching.SWITCH,
            description='A stereo camera: two cameras whose frames are paired by their stamps, in '
            'the namespaces left and right of a program of their own; not with argument cameras.',
        ),
        *launching.common_arguments(),
        DeclareLaunchArgument(
            'composition',
            default_value='container',
            choices=['container', 'program'],
            description='container: components, so that "ros2 component" can load more of them '
            'into the process; program: the nodes '
            'alone, in the program perception. Frames pass without a copy in both.',
        ),
        *launching.container_arguments(),
        *launching.process_arguments(),
        OpaqueFunction(function=start),
    )
