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
Start several cameras; a camera's nodes are in the namespace of its name.

``ros2 launch zc_perception multi_camera.launch.py cameras:=front,rear``.
"""

from launch import Action, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.launch_context import LaunchContext

from zc_perception.errors import ConfigError
from zc_perception.nodes import launching


def start(context: LaunchContext) -> list[Action]:
    """Return the containers, once the arguments are known."""
    chosen = launching.Chosen(context)
    cameras = chosen.names('cameras')
    if not cameras:
        raise ConfigError("launch argument 'cameras' is empty; give names such as front,rear")
    file = chosen.params_file()
    nodes = launching.components(chosen, cameras, file)
    batches = (
        nodes
        if chosen['containers'] == 'each'
        else {'': [node for own in nodes.values() for node in own]}
    )
    return [
        action
        for camera, batch in batches.items()
        for action in launching.container(
            chosen, batch, name=chosen['container'], namespace=chosen.namespace(camera)
        )
    ]


def generate_launch_description() -> LaunchDescription:
    """Return the arguments and the containers."""
    return launching.description(
        DeclareLaunchArgument(
            'cameras',
            default_value='front,rear',
            description='Names of the cameras, with commas between: each has its nodes in the '
            'namespace of its name, and its section '
            'in the parameter file, such as /front/capture.',
        ),
        launching.params_file('multi_camera.yaml'),
        *launching.camera_arguments(),
        DeclareLaunchArgument(
            'containers',
            default_value='one',
            choices=['one', 'each'],
            description="one: all cameras in one process, which shares the model's libraries; "
            'each: a process for each camera, so '
            'that one that ends takes no other with it (with on_exit:=respawn or nothing).',
        ),
        *launching.common_arguments(),
        *launching.container_arguments(),
        *launching.process_arguments(),
        OpaqueFunction(function=start),
    )
