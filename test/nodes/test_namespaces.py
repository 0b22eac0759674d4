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

"""Names of cameras and namespaces, which ROS has to take."""

from __future__ import annotations

from nodes.programs import Program
import pytest
from rclpy.exceptions import InvalidNamespaceException
from rclpy.validate_namespace import validate_namespace

from zc_perception.errors import ConfigError
from zc_perception.nodes.command_lines import check_cameras, check_namespace


def ros_refuses(name: str) -> bool:
    try:
        return not validate_namespace(f'/{name}')
    except InvalidNamespaceException:
        return True


@pytest.mark.parametrize(
    'name', ['a//b', 'a/', '4x', 'a/4x', 'front-left', 'a b', 'ä', 'a\n', 'a.b', '~', '*']
)
def test_what_ros_refuses_is_none_and_the_message_says_what_is(name: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_namespace(name, "launch argument 'namespace'")
    assert str(refusal.value).startswith(
        f"launch argument 'namespace': '{name}' can't be a namespace; use letters"
    )
    assert ros_refuses(name)


def test_cameras_have_different_names() -> None:
    check_cameras(['front', 'rear'], '--cameras')
    with pytest.raises(ConfigError, match=r"^--cameras: 'rear' is there twice"):
        check_cameras(['front', 'rear', 'rear'], '--cameras')
    with pytest.raises(ConfigError, match=r"^--cameras: '' can't be"):
        check_cameras(['front', ''], '--cameras')


@pytest.mark.parametrize('program', ['capture_node', 'inference_node'])
def test_a_namespace_that_is_too_long_for_ros_is_said_in_a_line(
    free_domain: int, program: str
) -> None:
    with Program(program, '--ros-args', '-r', f'__ns:=/{"n" * 230}', domain=free_domain).start(
        'error:'
    ) as node:
        assert node.process.wait(60.0) == 2
        node._reader.join(60.0)
    (line,) = [line for line in node.lines if 'rmw_fastrtps' not in line]
    assert (
        'topic length should not exceed' in line
        and 'choose another name or a shorter namespace' in line
    )
