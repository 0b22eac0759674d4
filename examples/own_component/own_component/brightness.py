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

"""A component that publishes the mean brightness of each camera frame."""

from rclpy.node import Node
from std_msgs.msg import Float32

from zc_perception import Frame, FrameSubscription


class Brightness(Node):
    """Publishes the brightness of each frame."""

    def __init__(self, **options):  # the container passes rclpy.Node's options
        super().__init__('brightness', **options)
        self.publisher = self.create_publisher(Float32, 'brightness', 10)
        self.frames = FrameSubscription(self, 'image_raw', self.on_frame)

    def on_frame(self, frame: Frame):  # the camera node's own object, not a copy
        with frame.map() as planes:
            brightness = planes[0].mean()
        self.publisher.publish(Float32(data=float(brightness)))

    def destroy_node(self):  # ros2 component unload calls it
        self.frames.destroy()
        super().destroy_node()
