"""Where a node looks for its calibration."""

from __future__ import annotations

import pytest
from rclpy.parameter import Parameter

from zc_perception.errors import ConfigError
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.process import ros_context


@pytest.mark.parametrize('package', ['no_such_package', 'my pkg', 'p\u00e4ckchen', 'a.b'])
def test_a_package_that_is_not_or_can_not_be_is_named(package: str, free_domain: int) -> None:
    url = f'package://{package}/camera.yaml'
    overrides = [Parameter('shared_memory', value=False), Parameter('camera_info_url', value=url)]
    with ros_context([]) as context, pytest.raises(ConfigError, match=f"there is no ROS package '{package}'"):
        CaptureNode(context=context, parameter_overrides=overrides)
