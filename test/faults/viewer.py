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
A consumer for the soak: holds frames of several cameras until it is killed.

``python viewer.py HELD TOPIC …`` holds HELD frames of each topic by the shared-memory link, and
prints ``holding`` once it holds a frame of each topic.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from pathlib import Path
import sys
from typing import Any

if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

import rclpy
from rclpy.node import Node

from zc_perception.frame import Frame
from zc_perception.link.endpoints.frame_subscription import FrameSubscription


def main() -> None:
    held, topics = int(sys.argv[1]), sys.argv[2:]
    rclpy.init()
    node = Node('soak_viewer', enable_rosout=False, start_parameter_services=False)
    kept: dict[str, deque[Frame]] = {topic: deque() for topic in topics}

    def take(topic: str, frame: Frame) -> None:
        mine = kept[topic]
        if len(mine) >= held:
            mine.popleft().release()
        with frame.map() as planes:
            assert planes[0].shape
        before = all(kept.values())
        mine.append(frame.keep())
        if not before and all(kept.values()):
            print('holding', flush=True)

    options: dict[str, Any] = {'held': held + 1, 'copy_free_required': True}
    _subscriptions = [
        FrameSubscription(node, topic, partial(take, topic), **options) for topic in topics
    ]
    rclpy.spin(node)


if __name__ == '__main__':
    main()
