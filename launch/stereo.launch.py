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
Start two cameras whose frames form pairs, in one process, in namespaces left and right.

``ros2 launch zc_perception stereo.launch.py``.
"""

from launch import Action, LaunchDescription
from launch.actions import OpaqueFunction
from launch.launch_context import LaunchContext

from zc_perception.nodes import launching


def start(context: LaunchContext) -> list[Action]:
    """Return the process, once the arguments are known."""
    chosen = launching.Chosen(context)
    file = chosen.params_file()
    return launching.perception_program(chosen, file, stereo=True)


def generate_launch_description() -> LaunchDescription:
    """Return the arguments and the process."""
    return launching.description(
        launching.params_file('stereo.yaml'),
        *launching.camera_arguments(),
        *launching.common_arguments(overlay=False),
        *launching.process_arguments(),
        OpaqueFunction(function=start),
    )
