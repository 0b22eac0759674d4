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
Print the frames of a topic, each as a line of JSON.

A line has the header, the memory that the frame is in, and a checksum of each plane's samples.
``python frame_printer.py TOPIC FRAMES`` ends after this many frames, or when its
standard input is closed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import zlib

import rclpy

from zc_perception import Frame, FrameSubscription


def main() -> None:
    topic, left = sys.argv[1], int(sys.argv[2])
    rclpy.init()
    node = rclpy.create_node('printer')
    ended = threading.Event()
    seen = 0

    def show(frame: Frame) -> None:
        nonlocal seen
        with frame.map() as planes:
            checksums = [zlib.crc32(plane.tobytes()) for plane in planes]
        header = frame.header
        said = {
            'sequence': frame.data.sequence,
            'stamp_ns': header.stamp_ns,
            'frame_id': header.frame_id,
            'inodes': [buffer.identity.inode for buffer in frame.data.buffers],
            'planes': checksums,
        }
        print(json.dumps(said), flush=True)
        seen += 1
        if seen >= left:
            ended.set()

    frames = FrameSubscription(node, topic, show)
    threading.Thread(target=lambda: (os.read(0, 1), ended.set()), daemon=True).start()
    while not ended.is_set():
        rclpy.spin_once(node, timeout_sec=0.1)
    frames.destroy()
    node.destroy_node()
    rclpy.shutdown()


if __name__ == '__main__':
    main()
