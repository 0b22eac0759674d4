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

"""Prints the brightness of each camera frame, without copying the frame. Ctrl-C ends it."""

from contextlib import suppress

import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node

from zc_perception import create_frame_subscription, Frame


class Viewer(Node):
    """Logs the brightness of each frame."""

    def __init__(self, **options):  # a component container passes rclpy.Node's options
        super().__init__('viewer', **options)
        self.frames = create_frame_subscription(self, 'image_raw', self.on_frame)

    def on_frame(self, frame: Frame):  # the camera's own buffer, until this returns
        self.get_logger().info(f'frame {frame.sequence}: brightness {frame.y.mean():.1f}')


if __name__ == '__main__':
    rclpy.init()
    with suppress(KeyboardInterrupt, ExternalShutdownException):
        rclpy.spin(Viewer())
