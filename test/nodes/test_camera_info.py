"""Where a node looks for its calibration."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodes.managed import managed, status
from rclpy.parameter import Parameter

from zc_perception.errors import ConfigError
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.process import ros_context
from zc_perception.observe.diagnostics import Level


@pytest.mark.parametrize('package', ['no_such_package', 'my pkg', 'p\u00e4ckchen', 'a.b'])
def test_a_package_that_is_not_or_can_not_be_is_named(package: str, free_domain: int) -> None:
    url = f'package://{package}/camera.yaml'
    overrides = [Parameter('shared_memory', value=False), Parameter('camera_info_url', value=url)]
    with ros_context([]) as context, pytest.raises(ConfigError, match=f"there is no ROS package '{package}'"):
        CaptureNode(context=context, parameter_overrides=overrides)


def test_a_file_that_is_named_and_not_there_is_a_warning_and_the_usual_one_is_not(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('ROS_HOME', str(tmp_path))
    values = {'shared_memory': False, 'width': 128, 'height': 128, 'heap': 'memfd'}
    with managed(free_domain) as run:
        usual = status(run.make(CaptureNode, values), 'calibration')
        assert usual.level is Level.OK and "there is no '" in usual.message
        named = status(run.make(CaptureNode, {**values, 'camera_info_url': 'file:///nowhere/x.yaml'}), 'calibration')
        assert named.level is Level.WARN and "there is no '/nowhere/x.yaml'" in named.message
        assert named.advice == "run camera_calibration, or set 'camera_info_url'"
