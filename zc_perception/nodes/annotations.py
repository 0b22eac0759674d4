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
The inference node's ``detections/annotations``, which Foxglove draws over a picture.

They are boxes, turned ones too, names and keypoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from builtin_interfaces.msg import Time
from foxglove_msgs.msg import Color, ImageAnnotations, Point2, PointsAnnotation, TextAnnotation
from rclpy.node import Node
from rclpy.qos import QoSProfile

from zc_perception.detection.detections import Detections
from zc_perception.detection.extras import keypoints, PEOPLE, PERSON, SEEN
from zc_perception.detection.heads.spec import Head
from zc_perception.frame import Header
from zc_perception.link.rclpy_compat import publish, subscription_count
from zc_perception.nodes.overlay_picture import class_colour, LabelledBox
from zc_perception.nodes.params.qos_overrides import publisher_qos
from zc_perception.npu.scheduler import InFlight

TOPIC = 'detections/annotations'
_LINE, _POINT, _FONT = 2.0, 6.0, 14.0


class AnnotationTopic:
    """
    Publish annotations on the scheduler's thread, after the detections went out.

    Nothing is computed while there is no subscriber.

    :param names: of the classes.
    :param shape: of keypoints of each row: how many, and their numbers; empty: the model has none.
    """

    def __init__(self, node: Node, head: Head, names: Sequence[str], shape: Sequence[int]) -> None:
        self._node, self._head, self._names, self._shape = node, head, names, shape
        self._publisher: Any = node.create_publisher(
            ImageAnnotations, TOPIC, publisher_qos(node, TOPIC, QoSProfile(depth=10))
        )

    def close(self) -> None:
        """End the publisher."""
        self._node.destroy_publisher(self._publisher)

    def see(self, entry: InFlight, found: Detections) -> None:
        """Publish what was found."""
        if not subscription_count(self._publisher):
            return
        message = self._boxes(entry.frame.data.header, found)
        if self._shape and len(found):
            outputs = entry.job.outputs()
            points = keypoints(self._head, outputs, entry.job.letterbox, found, self._shape)
            for annotation, rows in zip([*message.points], points.tolist(), strict=True):
                message.points += self._keypoints(annotation, rows)
        publish(self._publisher, message)

    def _boxes(self, header: Header, found: Detections) -> ImageAnnotations:
        seconds, nanoseconds = divmod(header.stamp_ns, 1_000_000_000)
        stamp = Time(sec=seconds, nanosec=nanoseconds)
        message = ImageAnnotations(timestamp=stamp)
        ids = [0] * len(found) if found.ids is None else found.ids.tolist()
        for index, kind in enumerate(found.classes.tolist()):
            blue, green, red = class_colour(str(kind))
            colour = Color(r=red / 255, g=green / 255, b=blue / 255, a=1.0)
            corners = outline(found, index)
            loop = PointsAnnotation(
                timestamp=stamp, type=PointsAnnotation.LINE_LOOP, thickness=_LINE
            )
            loop.points, loop.outline_color = [Point2(x=x, y=y) for x, y in corners], colour
            message.points.append(loop)
            x, y = min(corners, key=lambda corner: corner[1])
            name = self._names[kind] if kind < len(self._names) else str(kind)
            text = TextAnnotation(timestamp=stamp, position=Point2(x=x, y=y), font_size=_FONT)
            text.text = f'{name} {found.scores[index]:.2f}' + (
                f' #{ids[index]}' if ids[index] else ''
            )
            text.text_color, text.background_color = Color(a=1.0), colour
            message.texts.append(text)
        return message

    @staticmethod
    def _keypoints(
        box: PointsAnnotation, rows: Sequence[Sequence[float]]
    ) -> list[PointsAnnotation]:
        """
        Return all keypoints in the model's order, and lines between those of people.

        Each point has a colour whose alpha is its score.
        """
        colour = box.outline_color
        dots = PointsAnnotation(
            timestamp=box.timestamp, type=PointsAnnotation.POINTS, thickness=_POINT
        )
        dots.points = [Point2(x=x, y=y) for x, y, _ in rows]
        dots.outline_colors = [
            Color(r=colour.r, g=colour.g, b=colour.b, a=score) for *_, score in rows
        ]
        dots.outline_color = dots.fill_color = colour
        if len(rows) != PEOPLE:
            return [dots]
        lines = PointsAnnotation(
            timestamp=box.timestamp, type=PointsAnnotation.LINE_LIST, thickness=_LINE
        )
        lines.outline_color = colour
        lines.points = [
            Point2(x=rows[end][0], y=rows[end][1])
            for pair in PERSON
            if min(rows[end][2] for end in pair) >= SEEN
            for end in pair
        ]
        return [lines, dots]


def outline(found: Detections, index: int) -> list[tuple[float, float]]:
    """Return the corners of a box, turned or not, in the frame's pixels."""
    left, top, right, bottom = found.boxes[index].tolist()
    theta = 0.0
    if found.turned is not None:
        x, y, width, height, theta = found.turned[index].tolist()
        left, top, right, bottom = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    return LabelledBox(left, top, right, bottom, '', '', 0.0, theta=theta).corners()
