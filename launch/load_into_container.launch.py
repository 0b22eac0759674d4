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
Load camera, inference and overlay into a container that already runs.

``ros2 launch zc_perception load_into_container.launch.py container:=/my_container``. The container
must be one for Python nodes, such as ``ros2 run zc_perception component_container``. The nodes
stay in the container when the launch ends.
"""

from launch import Action, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.launch_context import LaunchContext

from zc_perception.errors import ConfigError
from zc_perception.nodes import launching

KINDS = ('inference', 'overlay', 'capture')


def start(context: LaunchContext) -> list[Action]:
    """Return the loads, once the arguments are known."""
    chosen = launching.Chosen(context)
    file = chosen.params_file()
    wanted = chosen.names('nodes')
    for kind in wanted:
        if kind not in KINDS:
            raise ConfigError(
                f"launch argument 'nodes': '{kind}' is none of them; use some of "
                f'{", ".join(KINDS)}'
            )
    if not wanted:
        raise ConfigError(f"launch argument 'nodes' is empty; use some of {', '.join(KINDS)}")
    name = chosen['container']
    if not name.startswith('/'):
        name = f'{chosen.namespace().rstrip("/")}/{name}'
    nodes = launching.components(
        chosen, [''], file, [kind for kind in KINDS if kind in wanted and kind in chosen.kinds()]
    )
    return [
        launching.LoadComponents(nodes[''], container=name, timeout_s=chosen.number('timeout'))
    ]


def generate_launch_description() -> LaunchDescription:
    """Return the arguments and the loads."""
    return launching.description(
        DeclareLaunchArgument(
            'container',
            description='Name of the container; with a slash in front in full, otherwise '
            'within the namespace.',
        ),
        DeclareLaunchArgument(
            'nodes',
            default_value='inference,overlay,capture',
            description='Which of capture, inference and overlay, with commas between. '
            'Consumers are loaded first: then they take part '
            'in the negotiation of buffers.',
        ),
        DeclareLaunchArgument(
            'timeout',
            default_value='10.0',
            description='Seconds that the container may take to answer.',
        ),
        launching.params_file(),
        *launching.camera_arguments(),
        *launching.common_arguments(),
        OpaqueFunction(function=start),
    )
