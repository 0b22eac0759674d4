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
A user's node that reads frames as a device does, by their memory.

It prints what it found as one JSON object.

tiled_viewer.py MODIFIER COUNT MODIFIER: the only one that it takes, a number; ends after COUNT
frames, or with its standard input
"""

from __future__ import annotations

import json
import sys
import threading
import time

from nodes.tiled_camera import content
import rclpy

from zc_perception import Frame, FrameSubscription
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.pixel.fourcc import NV12


def main() -> None:
    modifier, count = int(sys.argv[1]), int(sys.argv[2])
    rclpy.init()
    node = rclpy.create_node('viewer')
    good: list[bool] = []

    def look(frame: Frame) -> None:
        memory = frame.data.buffers[0].memory()
        good.append(
            frame.data.modifier == modifier
            and bytes(memory) == content(frame.data.sequence, len(memory))
        )

    frames = FrameSubscription(
        node,
        'image_raw',
        look,
        constraints=BufferConstraints('viewer', formats=((NV12, modifier),)),
    )
    threading.Thread(
        target=lambda: (sys.stdin.read(), good.extend([False] * count)), daemon=True
    ).start()
    print('listening', flush=True)
    while len(good) < count:
        rclpy.spin_once(node, timeout_sec=0.1)
    # Frames may come before the graph knows their publisher: the announcement file tells of it
    # first.
    end = time.monotonic() + 60.0
    while frames.statistics().rung == 'unmatched' and time.monotonic() < end:
        rclpy.spin_once(node, timeout_sec=0.1)
    link = frames.statistics()
    print(
        json.dumps({'good': good[:count].count(True), 'rung': link.rung, 'reason': link.reason}),
        flush=True,
    )
    frames.destroy()
    node.destroy_node()
    rclpy.shutdown()


if __name__ == '__main__':
    main()
