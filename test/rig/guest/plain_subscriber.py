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
A plain rclpy process for the rig's guest, which imports nothing of zc_perception.

``plain_subscriber.py`` listens until its standard input is closed and all received messages were
taken. Then it prints the stamps of the received detections, as a JSON list.
"""

import json
import sys
import threading
import time

import rclpy
from vision_msgs.msg import Detection2DArray


def main() -> None:
    rclpy.init()
    node = rclpy.create_node('plain_subscriber')
    stamps, last, closed = [], [0.0], []

    def note(message):
        last[0] = time.monotonic()
        stamps.append(message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec)

    node.create_subscription(Detection2DArray, 'detections', note, 50)
    threading.Thread(
        target=lambda: (sys.stdin.read(), closed.append(time.monotonic())), daemon=True
    ).start()
    print('listening', flush=True)
    while not closed or time.monotonic() - max(last[0], *closed) <= 1.0:
        rclpy.spin_once(node, timeout_sec=0.1)
    print(json.dumps(stamps), flush=True)
    # Otherwise publishers would count it as a reader until its lease ends, 20 s later.
    node.destroy_node()
    rclpy.shutdown()


main()
