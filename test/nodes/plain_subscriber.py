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
A plain rclpy process: it knows standard messages and nothing of zc_perception.

It prints what it received as one JSON object.

plain_subscriber.py SECONDS [--image] [--until-images N] [--until-detections N] [--with-others]
[--until-silent SECONDS] [--until-eof]
"""

import argparse
import json
import sys
import threading
import time

import rclpy
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import CameraInfo, Image
from vision_msgs.msg import Detection2DArray, LabelInfo


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('seconds', type=float)
    parser.add_argument('--image', action='store_true')
    parser.add_argument(
        '--until-images', type=int, default=sys.maxsize, help='end when so many came'
    )
    parser.add_argument(
        '--until-detections', type=int, default=sys.maxsize, help='end when so many arrays came'
    )
    parser.add_argument(
        '--with-others',
        action='store_true',
        help='...and labels, and ten messages of camera_info behind the first array',
    )
    parser.add_argument(
        '--until-silent',
        type=float,
        default=0.0,
        help='end when no detections came for so long after the first',
    )
    parser.add_argument(
        '--until-eof',
        action='store_true',
        help='end when stdin is closed and what had come was taken',
    )
    parser.add_argument('--namespace', default='')
    options = parser.parse_args()
    rclpy.init()
    node = rclpy.create_node('plain_subscriber', namespace=options.namespace)
    seen = {'detections': [], 'camera_info': [], 'labels': {}, 'images': 0, 'image': None}
    last = [0.0]

    def stamp(message):
        return message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec

    def on_detections(message):
        last[0] = time.monotonic()
        boxes = [
            [
                d.bbox.center.position.x,
                d.bbox.center.position.y,
                d.bbox.size_x,
                d.bbox.size_y,
                d.results[0].hypothesis.class_id,
                d.results[0].hypothesis.score,
            ]
            for d in message.detections
        ]
        seen['detections'].append(
            {'stamp': stamp(message), 'frame_id': message.header.frame_id, 'boxes': boxes}
        )

    def on_info(message):
        seen['camera_info'].append(
            {
                'stamp': stamp(message),
                'size': [message.width, message.height],
                'frame_id': message.header.frame_id,
            }
        )

    def on_labels(message):
        seen['labels'] = {str(c.class_id): c.class_name for c in message.class_map}

    def on_image(message):
        seen['images'] += 1
        seen['image'] = {
            'stamp': stamp(message),
            'encoding': message.encoding,
            'size': [message.width, message.height],
            'step': message.step,
            'hex': bytes(message.data).hex(),
        }

    latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    node.create_subscription(Detection2DArray, 'detections', on_detections, 50)
    node.create_subscription(CameraInfo, 'camera_info', on_info, 50)
    node.create_subscription(LabelInfo, 'label_info', on_labels, latched)
    if options.image:
        node.create_subscription(Image, 'image_raw', on_image, 1)

    def others():
        first = seen['detections'][0]['stamp'] if seen['detections'] else 0
        return seen['labels'] and sum(info['stamp'] >= first for info in seen['camera_info']) >= 10

    closed = []
    if options.until_eof:
        threading.Thread(
            target=lambda: (sys.stdin.read(), closed.append(time.monotonic())), daemon=True
        ).start()
    print('listening', flush=True)
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        rclpy.spin_once(node, timeout_sec=0.1)
        if closed and time.monotonic() - max(last[0], *closed) > 1.0:
            break
        if options.until_silent and last[0] and time.monotonic() - last[0] > options.until_silent:
            break
        if seen['images'] >= options.until_images:
            break
        if len(seen['detections']) >= options.until_detections and (
            others() or not options.with_others
        ):
            break
    json.dump(seen, sys.stdout)
    print(flush=True)
    # Without this, publishers would take it for a reader until its lease ends, 20 s later.
    node.destroy_node()
    rclpy.shutdown()


main()
