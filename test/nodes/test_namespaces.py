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
