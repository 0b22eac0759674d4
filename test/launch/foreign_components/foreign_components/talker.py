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

"""Says something ten times a second."""

from rclpy.node import Node
from std_msgs.msg import String


class Talker(Node):
    """The component."""

    def __init__(self, **kwargs):
        super().__init__('talker', **kwargs)
        self.declare_parameter('text', 'hello')
        self._publisher = self.create_publisher(String, 'chatter', 10)
        self.create_timer(0.1, self._say)

    def _say(self):
        self._publisher.publish(String(data=self.get_parameter('text').value))
