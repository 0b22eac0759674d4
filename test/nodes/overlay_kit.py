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

"""A camera, an overlay, and another program that publishes detections as it likes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nodes.ros_kit import Onlooker, overrides, ros, spun
import numpy as np
from sensor_msgs.msg import CompressedImage, Image
from vision_msgs.msg import Detection2DArray

from zc_perception.detection.detections import Detections
from zc_perception.frame import Header
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.messages import DetectionsWriter
from zc_perception.nodes.overlay import OverlayNode


class Viewer(Onlooker):
    """Another program: publishes detections as it likes, and looks at the overlay's pictures."""

    def __init__(self, domain: int) -> None:
        super().__init__(domain, 'viewer')
        self.pictures: list[Image] = []
        self.jpegs: list[CompressedImage] = []
        self.detections = self.node.create_publisher(Detection2DArray, 'detections', 10)

    def look(self, kind: str) -> Any:
        if kind == 'raw':
            return self.node.create_subscription(
                Image, 'detections/image', self.pictures.append, 10
            )
        return self.node.create_subscription(
            CompressedImage, 'detections/image/compressed', self.jpegs.append, 10
        )


@contextmanager
def camera_and_overlay(
    domain: int, **overlay: Any
) -> Iterator[tuple[CaptureNode, OverlayNode, Viewer, list[int]]]:
    """
    Yield a camera, an overlay, and a viewer; there is no model.

    The camera's frames have their number in their stamp.
    """
    stamps: list[int] = []
    with ros(domain) as context, Viewer(domain) as viewer:
        capture = CaptureNode(
            context=context,
            parameter_overrides=overrides({'framerate': 30.0, 'pattern': 'counter'}),
        )
        publish = capture.publisher.publish
        capture.publisher.publish = lambda frame: (
            publish(frame),
            stamps.append(frame.header.stamp_ns),
        )[0]  # type: ignore[method-assign]
        node = OverlayNode(context=context, parameter_overrides=overrides(overlay))
        with spun(context, capture, node):
            yield capture, node, viewer, stamps


def detect(viewer: Viewer, stamp_ns: int, *boxes: tuple[float, float, float, float]) -> None:
    found = Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.full(len(boxes), 0.5, np.float32),
        np.zeros(len(boxes), np.int64),
    )
    viewer.detections.publish(DetectionsWriter(1).write(Header(stamp_ns, 'lens'), found))


def stamp_in(picture: Image | CompressedImage) -> int:
    return picture.header.stamp.sec * 10**9 + picture.header.stamp.nanosec
