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
The overlay's layers of masks and of keypoints.

They are drawn where their topics have a message for exactly that frame.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

from zc_perception.link.image_conversion import stamp_ns
from zc_perception.nodes.overlay_picture import class_colour, pixel

MASKS, ANNOTATIONS = 'detections/masks', 'detections/annotations'
_KEPT, _PATIENCE_NS = 4, 1_000_000_000
_LEAST_ALPHA = 0.5
Scale = tuple[float, float]


class Layer(ABC):
    """
    Keeps the last messages of a topic that is published beside the detections.

    :param came: called when a message came.
    """

    def __init__(
        self, node: Node, kind: type[Any], topic: str, qos: QoSProfile, came: Callable[[], None]
    ) -> None:
        self._node, self._came = node, came
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._newest = 0
        self._subscription = node.create_subscription(kind, topic, self._take, qos)

    def close(self) -> None:
        """End the subscription."""
        self._node.destroy_subscription(self._subscription)

    def _take(self, message: Any) -> None:
        stamp = self._stamp(message)
        self._kept[stamp] = message
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        self._newest = stamp
        self._came()

    def waits(self, stamp: int) -> bool:
        """Say whether a frame's message is still to come: it will if others came lately."""
        return self._newest < stamp < self._newest + _PATIENCE_NS

    def paint(
        self, picture: NDArray[np.uint8], found: Detection2DArray, scale: Scale, line: int
    ) -> None:
        """Draw what there is for the frame of these detections."""
        message = self._kept.pop(stamp_ns(found.header), None)
        if message is not None:
            self._draw(picture, found, message, scale, line)

    @staticmethod
    @abstractmethod
    def _stamp(message: Any) -> int:
        """Return the stamp of the frame, in ns."""

    @abstractmethod
    def _draw(
        self,
        picture: NDArray[np.uint8],
        found: Detection2DArray,
        message: Any,
        scale: Scale,
        line: int,
    ) -> None:
        """Draw one message."""


class MaskLayer(Layer):
    """Tints each mask in the colour of its detection's class."""

    def __init__(self, node: Node, qos: QoSProfile, came: Callable[[], None]) -> None:
        super().__init__(node, Image, MASKS, qos, came)

    @staticmethod
    def _stamp(message: Any) -> int:
        return stamp_ns(message.header)

    def _draw(
        self,
        picture: NDArray[np.uint8],
        found: Detection2DArray,
        message: Any,
        scale: Scale,
        line: int,
    ) -> None:
        if message.encoding != 'mono16' or len(message.data) < message.height * message.step:
            return
        order = '>u2' if message.is_bigendian else '<u2'
        rows = np.frombuffer(message.data, np.uint8).reshape(message.height, message.step)
        labels = rows[:, : message.width * 2].view(order).astype(np.uint16, copy=False)
        height, width = picture.shape[:2]
        size, nearest = (width, height), cv2.INTER_NEAREST
        labels = cv2.resize(labels, size, interpolation=nearest)  # type: ignore[assignment]
        colours = np.zeros((1 << 16, 3), np.uint8)
        for index, detection in enumerate(found.detections[: len(colours) - 1]):
            if detection.results:
                colours[index + 1] = class_colour(detection.results[0].hypothesis.class_id)
        which = (labels > 0) & (labels <= len(found.detections))
        picture[which] = picture[which] // 2 + colours[labels[which]] // 2


class KeypointLayer(Layer):
    """Draws the points and the lines between them; the overlay itself draws boxes."""

    def __init__(self, node: Node, qos: QoSProfile, came: Callable[[], None]) -> None:
        from foxglove_msgs.msg import ImageAnnotations, PointsAnnotation

        self._types = PointsAnnotation.POINTS, PointsAnnotation.LINE_LIST
        super().__init__(node, ImageAnnotations, ANNOTATIONS, qos, came)

    @staticmethod
    def _stamp(message: Any) -> int:
        return int(message.timestamp.sec * 1_000_000_000 + message.timestamp.nanosec)

    def _draw(
        self,
        picture: NDArray[np.uint8],
        found: Detection2DArray,
        message: Any,
        scale: Scale,
        line: int,
    ) -> None:
        _, lines = self._types
        for drawn in message.points:
            places = [
                (pixel(point.x * scale[0]), pixel(point.y * scale[1]))
                for point in drawn.points
                if np.isfinite((point.x, point.y)).all()
            ]
            if len(places) != len(drawn.points) or drawn.type not in self._types:
                continue
            own = drawn.outline_color
            colour = tuple(round(255 * min(max(part, 0.0), 1.0)) for part in (own.b, own.g, own.r))
            if drawn.type == lines:
                for start, end in zip(places[::2], places[1::2], strict=False):
                    cv2.line(picture, start, end, colour, line, cv2.LINE_AA)
            else:
                alphas = [each.a for each in drawn.outline_colors] or [1.0] * len(places)
                for place, alpha in zip(places, alphas, strict=False):
                    if alpha >= _LEAST_ALPHA:
                        cv2.circle(picture, place, 2 * line, colour, cv2.FILLED, cv2.LINE_AA)
