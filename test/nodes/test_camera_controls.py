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
A camera's controls as parameters.

They are set in an order that the driver accepts, all or none, and again after the camera returns.
"""

from __future__ import annotations

from dataclasses import replace
import threading
from typing import Any

from nodes.plug_kit import CONTROLS, Plug, running
from nodes.ros_kit import set_or_why_not
import pytest
from rcl_interfaces.srv import DescribeParameters
from rclpy.parameter import Parameter

from zc_perception.observe.diagnostics import Level

pytestmark = pytest.mark.usefixtures('ros_home')


def setting(**values: Any) -> list[Parameter]:
    return [Parameter(f'controls.{name}', value=value) for name, value in values.items()]


def test_controls_are_parameters_with_the_driver_s_ranges(free_domain: int) -> None:
    plug = Plug()
    with running(free_domain, plug, controls__brightness=200) as bench:
        node = bench.node
        assert plug.value('brightness') == 200
        assert node.get_parameter('controls.brightness').value == 200
        assert node.get_parameter('controls.horizontal_flip').value is False
        described = bench.call(
            DescribeParameters,
            '/capture/describe_parameters',
            DescribeParameters.Request(names=['controls.brightness', 'controls.gain']),
        ).descriptors
        (limits,) = described[0].integer_range
        assert (limits.from_value, limits.to_value) == (0, 255) and described[1].read_only
        assert not set_or_why_not(node, 'controls.horizontal_flip', True)
        assert plug.controls['horizontal_flip'].value == 1
        assert not set_or_why_not(node, 'controls.power_line_frequency', 2)
        reason = set_or_why_not(node, 'controls.power_line_frequency', 9)
        assert '0 (Disabled), 1 (50 Hz), 2 (60 Hz)' in reason
        assert set_or_why_not(node, 'controls.brightness', 256)
        assert not set_or_why_not(node, 'controls.brightness', 123)
        bench.eventually(lambda: node.get_parameter('controls.brightness').value == 120)
        assert plug.controls['brightness'].value == 120, (
            'the driver rounds, and the parameter shows it'
        )


@pytest.mark.parametrize('says_inactive', [True, False])
def test_controls_that_depend_on_each_other_are_set_in_any_order(
    free_domain: int, says_inactive: bool
) -> None:
    plug = Plug()
    plug.says_inactive = says_inactive
    with running(
        free_domain, plug, controls__focus_absolute=40, controls__focus_automatic=False
    ) as bench:
        assert (plug.value('focus_absolute'), plug.value('focus_automatic')) == (40, 0)
        assert bench.node.get_parameter('controls.focus_absolute').value == 40
        assert (
            bench.status('controls').level is Level.OK
            and bench.status('controls').values['focus_absolute'] == 40
        )
        with bench.unplugged():
            plug.controls = dict(CONTROLS)
        assert (plug.value('focus_absolute'), plug.value('focus_automatic')) == (40, 0)


def test_what_the_driver_refuses_is_a_warning_and_the_camera_streams(free_domain: int) -> None:
    plug = Plug()
    with running(
        free_domain, plug, controls__focus_absolute=40, controls__brightness=200
    ) as bench:
        bench.eventually(lambda: bench.status('camera').level is Level.OK)
        assert plug.value('brightness') == 200
        status = bench.status('controls')
        assert status.level is Level.WARN and 'another control overrides it' in status.message
        assert bench.node.set_parameters_atomically(
            setting(focus_absolute=41, focus_automatic=False)
        ).successful
        assert plug.value('focus_absolute') == 41
        assert bench.status('controls').level is Level.OK


@pytest.mark.parametrize(
    ('second', 'words'),
    [
        ({'power_line_frequency': 9}, '0 (Disabled)'),
        ({'focus_absolute': 5}, 'another control overrides it'),
    ],
)
def test_all_are_set_or_none(free_domain: int, second: dict[str, Any], words: str) -> None:
    plug = Plug()
    with running(free_domain, plug) as bench:
        done = bench.node.set_parameters_atomically(setting(brightness=50, **second))
        assert not done.successful and words in done.reason
        assert (
            plug.value('brightness') == 130
            and bench.node.get_parameter('controls.brightness').value == 130
        )
        with bench.unplugged():
            found = plug.controls['horizontal_flip']
            plug.controls['horizontal_flip'] = replace(found, value=1)
        assert plug.value('brightness') == 130, 'what was refused is not set later either'
        flip = 'controls.horizontal_flip'
        bench.eventually(lambda: bench.node.get_parameter(flip).value is True)


def test_no_camera_is_closed_while_a_control_is_set(free_domain: int) -> None:
    plug = Plug()
    with running(free_domain, plug) as bench:
        bench.eventually(lambda: bench.status('camera').level is Level.OK)
        camera = plug.opened[-1]
        closed, was_closed = threading.Event(), []
        close = camera.close

        def closing() -> None:
            closed.set()
            close()

        def pull() -> None:
            plug.pull()
            # Wait until the camera's thread has left capturing: its camera isn't closed yet, but
            # isn't the current one any more.
            bench.eventually(lambda: bench.node.supervisor.camera is None)
            was_closed.append(closed.is_set())

        camera.close = closing
        plug.before_setting = pull
        assert bench.node.set_parameters(setting(brightness=50))[0].successful
        plug.before_setting = lambda: None
        assert was_closed == [False] and closed.wait(60.0)
        assert 'the camera is not there' in set_or_why_not(bench.node, 'controls.brightness', 60)


def test_a_control_that_the_camera_lacks_is_a_warning_with_those_that_it_has(
    free_domain: int,
) -> None:
    plug = Plug()
    with running(free_domain, plug, controls__brightnes=5, controls__brightness=50) as bench:
        bench.eventually(lambda: bench.status('camera').level is Level.OK)
        assert plug.value('brightness') == 50, 'the others are set'
        found = bench.status('controls')
        assert (
            found.level is Level.WARN
            and "has no control 'brightnes'; did you mean 'brightness'?; it has brightness, "
            in found.message
        )
        assert found.advice == 'name controls that this camera has, or leave them out'
        for name in ('brightnes', 'gain'):
            assert set_or_why_not(bench.node, f'controls.{name}', 5)
