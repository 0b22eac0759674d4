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

"""Two cameras that publish on one topic: each says so, for as long as the other one lives."""

from __future__ import annotations

from collections.abc import Iterator
import signal

from nodes.managed import status
from nodes.programs import parameters, Program
from nodes.ros_kit import overrides, spun
import pytest
import rclpy
from waiting import until

from zc_perception.nodes.capture import CaptureNode
from zc_perception.observe.diagnostics import Level, Status

# Fast DDS keeps a killed publisher in the graph for 20 s.
SOON_S = 18.0


@pytest.fixture
def capture(context: rclpy.Context) -> Iterator[CaptureNode]:
    node = CaptureNode(context=context, parameter_overrides=overrides({'framerate': 5.0}))
    with spun(context, node):
        yield node


def link(node: CaptureNode) -> Status:
    found: Status = status(node, 'link')
    return found


def start(domain: int, *arguments: str) -> Program:
    return Program('capture_node', *arguments, domain=domain).start(': ready')


def test_another_camera_on_the_topic_is_warned_of_at_both_ends_until_it_is_gone(
    capture: CaptureNode, free_domain: int
) -> None:
    assert link(capture).level is Level.OK
    with start(free_domain, *parameters(framerate='5.0'), '-r', '__node:=second') as other:
        until(
            lambda: "'/image_raw' has another publisher (/second)" in link(capture).message,
            'a warning of the second camera',
        )
        warned = link(capture)
        assert warned.level is Level.WARN and 'ROS_DOMAIN_ID' in warned.advice
        until(
            lambda: "'/image_raw' has another publisher (/capture)" in other.output,
            'a line of the second camera',
        )
        assert other.output.count('has another publisher (/capture)') == 1, (
            'once, not at each look'
        )
        assert not [name for name in warned.values if name.startswith('protocol_error')], (
            'to be asked whether it listens is no fault'
        )
        other.process.send_signal(signal.SIGKILL)
        other.process.wait(60)
        until(lambda: link(capture).level is Level.OK, 'the end of the warning', SOON_S)
    assert capture.get_publishers_info_by_topic('/image_raw/_zc'), 'the graph was asked'
