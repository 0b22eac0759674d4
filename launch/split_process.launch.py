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
Start capture, inference and overlay in one process each; the processes share frames' memory.

``ros2 launch zc_perception split_process.launch.py``.
"""

from launch import Action, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.launch_context import LaunchContext

from zc_perception.nodes import launching


def start(context: LaunchContext) -> list[Action]:
    """Return the processes, once the arguments are known."""
    chosen = launching.Chosen(context)
    file = chosen.params_file()
    copy_free = (
        {} if chosen['copy_free'] == launching.FROM_FILE else {'copy_free': chosen['copy_free']}
    )
    actions: list[Action] = []
    # Pass the values instead of the file: its section for all nodes may hold parameters that the
    # only node of a process doesn't have.
    for kind, values in launching.node_values(chosen, file)[''].items():
        own = values | ({} if kind == 'capture' else copy_free)
        actions += launching.program(chosen, f'{kind}_node', [own], namespace=chosen.namespace())
    return actions


def generate_launch_description() -> LaunchDescription:
    """Return the arguments and the processes."""
    return launching.description(
        launching.params_file(),
        *launching.camera_arguments(),
        DeclareLaunchArgument(
            'copy_free',
            default_value='required',
            choices=[launching.FROM_FILE, 'preferred', 'required'],
            description='Parameter of inference and overlay. required: log and diagnostics report '
            'an error if frames can only come as messages, which is a copy; from_file: the value '
            'in the parameter file.',
        ),
        *launching.common_arguments(),
        *launching.process_arguments(),
        OpaqueFunction(function=start),
    )
