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
The nodes as components, which any container of Python nodes can make and spin.

A container makes them with ``rclpy.node.Node``'s own arguments. With parameter ``autostart`` the
constructor opens files and devices, except a slow camera, and the component starts when an
executor first spins it. If a parameter, file or device can't be used, the constructor raises, and
the error's text answers the load request.

Nobody needs to connect components: a consumer and the camera of its topic find each other in the
process (:mod:`~zc_perception.link.bus`), in any order of loading. If one of them is unloaded, the
other goes on running.
"""

from __future__ import annotations

import threading
from typing import Any

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.timer import Timer

from zc_perception.errors import ZcError
from zc_perception.nodes import capture, gstreamer, inference, overlay, recorder
from zc_perception.nodes.params.ros_arguments import check_start, command_line, CommandLine
from zc_perception.nodes.perception_node import PerceptionNode

_SOON_S = 0.001


class SelfStarting(PerceptionNode):
    """
    A node that starts itself, on a thread made for this, when an executor first spins it.

    A parameter that no node of the package has causes only a warning, because a launch file's
    global parameters and a file's section for all nodes (``/**``) reach every component.
    """

    def __init__(self, **node_options: Any) -> None:
        super().__init__(**node_options)
        try:
            own = not node_options.get('use_global_arguments', True)
            line = CommandLine() if own else command_line(self.context)
            check_start([self], line, component=True)
            self._begin_when_spun()
        except BaseException:
            self.stop()
            raise

    def _begin_when_spun(self) -> None:
        name = self.get_name()
        if name != self.kind and not self.parameters.given():
            self.get_logger().warning(
                f"this {self.kind} node has the name '{name}' and got no parameter; in a "
                f"parameter file, its section must be '/**/{name}'"
            )
        self._starter: Timer | None = None
        if self.parameters['autostart']:
            # Use the steady clock, because a simulated clock may stand still.
            clock = Clock(clock_type=ClockType.STEADY_TIME)
            self._starter = self.create_timer(
                _SOON_S,
                self._on_spun,
                callback_group=MutuallyExclusiveCallbackGroup(),
                clock=clock,
            )

    def _on_spun(self) -> None:
        timer, self._starter = self._starter, None
        if timer is not None:
            self.destroy_timer(timer)
            threading.Thread(
                target=self._start, name=f'start of {self.get_name()}', daemon=True
            ).start()

    def _start(self) -> None:
        try:
            self.start()
        except ZcError as error:
            self.get_logger().error(
                f'the node did not start: {error}; correct that, then: ros2 lifecycle set '
                f'{self.get_fully_qualified_name()} configure'
            )
        except Exception as error:
            self.get_logger().error(f'the node did not start: {type(error).__name__}: {error}')


class CaptureNode(SelfStarting, capture.CaptureNode):
    """The capture node as component ``zc_perception::CaptureNode``."""


class InferenceNode(SelfStarting, inference.InferenceNode):
    """The inference node as component ``zc_perception::InferenceNode``."""


class OverlayNode(SelfStarting, overlay.OverlayNode):
    """The overlay node as component ``zc_perception::OverlayNode``."""


class RecorderNode(SelfStarting, recorder.RecorderNode):
    """The recorder node as component ``zc_perception::RecorderNode``."""


class GStreamerNode(SelfStarting, gstreamer.GStreamerNode):
    """The GStreamer node as component ``zc_perception::GStreamerNode``."""
