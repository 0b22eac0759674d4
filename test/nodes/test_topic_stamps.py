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

"""What belongs to one frame carries that frame's header, in any order of joining."""

from __future__ import annotations

from typing import Any

from nodes.ros_kit import Onlooker, spun
import rclpy
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import CameraInfo, Image
from vision_msgs.msg import Detection2DArray, LabelInfo
from waiting import until

from zc_perception.nodes.perception import PerceptionGraph

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class Listener(Onlooker):
    """
    Another program that knows nothing of this package.

    It notes the headers of all topics of each camera.
    """

    def __init__(self, domain: int, cameras: list[str]) -> None:
        super().__init__(domain)
        self.headers: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self.inner: list[tuple[int, str]] = []
        self.sizes: dict[str, set[tuple[int, int]]] = {}
        for camera in cameras:
            for kind, topic in (
                (Image, 'image_raw'),
                (CameraInfo, 'camera_info'),
                (Detection2DArray, 'detections'),
            ):
                self._listen(camera, kind, topic)

    def _listen(self, camera: str, kind: Any, topic: str) -> None:
        seen = self.headers.setdefault((camera, topic), [])

        def on_message(message: Any) -> None:
            seen.append(_header(message))
            if kind is Detection2DArray:
                self.inner += [
                    _header(detection)
                    for detection in message.detections
                    if _header(detection) != _header(message)
                ]
            else:
                self.sizes.setdefault(camera, set()).add((message.width, message.height))

        self.node.create_subscription(kind, f'/{camera}/{topic}', on_message, 50)

    def labels(self, camera: str) -> list[LabelInfo]:
        found: list[LabelInfo] = []
        self.node.create_subscription(LabelInfo, f'/{camera}/label_info', found.append, LATCHED)
        return found

    def heard(self) -> dict[tuple[str, str], int]:
        return {key: len(seen) for key, seen in self.headers.items()}


def _header(message: Any) -> tuple[int, str]:
    return message.header.stamp.sec * 10**9 + message.header.stamp.nanosec, message.header.frame_id


def test_image_info_and_detections_of_a_frame_have_one_header_in_each_camera(
    context: rclpy.Context, free_domain: int
) -> None:
    cameras = ['left', 'right']
    published: dict[str, set[tuple[int, str]]] = {camera: set() for camera in cameras}
    graphs = {}
    for number, camera in enumerate(cameras):
        values = {
            'framerate': 10.0,
            'width': 320,
            'height': 192 - 32 * number,
            'frame_id': f'{camera}_optical',
        }
        graphs[camera] = PerceptionGraph(
            context, {'capture': values, 'inference': {'timeout': 20.0}}, camera
        )
        graphs[camera].inference.observers.append(
            lambda entry, found, camera=camera: published[camera].add(
                (entry.frame.header.stamp_ns, entry.frame.header.frame_id)
            )
        )
    nodes = [node for graph in graphs.values() for node in graph.nodes]
    with spun(context, *sorted(nodes, key=lambda node: node.get_name() != 'capture')):
        # Late: everything runs already.
        until(
            lambda: all(graph.inference.processed >= 3 for graph in graphs.values()), 'detections'
        )
        with Listener(free_domain, cameras) as listener:
            labels = {camera: listener.labels(camera) for camera in cameras}
            listener.until(
                lambda: all(len(seen) >= 10 for seen in listener.headers.values()), listener.heard
            )
            listener.until(lambda: all(labels.values()), 'labels, which were published long ago')
    for camera in cameras:
        images, infos, detections = (
            listener.headers[camera, topic] for topic in ('image_raw', 'camera_info', 'detections')
        )
        assert {frame_id for seen in (images, infos, detections) for _, frame_id in seen} == {
            f'{camera}_optical'
        }
        for seen in (images, infos, detections):
            assert seen == sorted(set(seen)), 'each once, in order'
        assert set(detections) <= published[camera], "an array's header is its frame's, whole"
        # Exact-time synchronisation finds partners: what came while all three were listened to.
        common = set(images) & set(infos) & set(detections)
        assert len(common) >= 5
        first, last = max(images[0], infos[0]), min(images[-1], infos[-1])
        assert {stamp for stamp in images if first <= stamp <= last} <= set(infos), (
            'no picture without its camera_info'
        )
        assert {c.class_name for c in labels[camera][0].class_map} >= {'car', 'pedestrian'}
    assert listener.inner == [], "each detection has its array's header"
    assert listener.sizes == {'left': {(320, 192)}, 'right': {(320, 160)}}, (
        'nothing of the other camera'
    )
