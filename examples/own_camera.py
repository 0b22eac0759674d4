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

"""Publishes pictures of its own as a camera does, without a copy. Ctrl-C ends it."""

from contextlib import suppress

import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node

from zc_perception import FramePublisher


class OwnCamera(Node):
    """Publishes pictures of its own."""

    def __init__(self, **options):  # a component container passes rclpy.Node's options
        super().__init__('own_camera', **options)
        self.frames = FramePublisher(self, 'image_raw', width=640, height=480, format='NV12')
        self.timer = self.create_timer(1 / 30, self.on_timer)

    def on_timer(self):
        with self.frames.loan() as out:  # a free buffer; it is sent when the block ends
            out.planes[0][:], out.planes[1][:] = 80, 128  # NumPy arrays: write luma and chroma


if __name__ == '__main__':
    rclpy.init()
    with suppress(KeyboardInterrupt, ExternalShutdownException):
        rclpy.spin(OwnCamera())
