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
Topics that the inference node makes from detections, after it has published ``detections``.

``detections_3d`` and its markers are made if ``depth_topic`` is set. ``detections/masks``
(maps pixels to detections) and ``detections/annotations`` (Foxglove draws these over a picture)
are made on the scheduler's thread, while they have a subscriber.
"""

from __future__ import annotations

import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
import threading
from typing import Any

from builtin_interfaces.msg import Time
from foxglove_msgs.msg import Color, ImageAnnotations, Point2, PointsAnnotation, TextAnnotation
import numpy as np
from numpy.typing import NDArray
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CameraInfo, Image
from vision_msgs.msg import Detection3D, Detection3DArray, ObjectHypothesisWithPose
from visualization_msgs.msg import Marker, MarkerArray

from zc_perception.detection.detections import Detections
from zc_perception.detection.extras import keypoints, MaskPainter, PEOPLE, PERSON, SEEN
from zc_perception.detection.heads.spec import Head
from zc_perception.detection.space import Lens, place, Placed
from zc_perception.errors import ConfigError
from zc_perception.frame import Header
from zc_perception.link.image_conversion import stamp_ns, stamp_to_message
from zc_perception.link.rclpy_compat import call_soon, publish, subscription_count
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.overlay_picture import class_colour, LabelledBox
from zc_perception.nodes.params.qos_overrides import publisher_qos
from zc_perception.npu.scheduler import InFlight
from zc_perception.observe.diagnostics import Part, Row, Status, WARN
from zc_perception.observe.metrics import RecentCount

_SPACE, _MARKERS = 'detections_3d', 'detections_3d/markers'
_MASKS, _ANNOTATIONS = 'detections/masks', 'detections/annotations'
_ENCODINGS = {'16UC1': ('u2', 0.001), 'mono16': ('u2', 0.001), '32FC1': ('f4', 1.0)}
# `_DETECTIONS`: how many frames' detections may wait for their depth picture. `_DEPTHS`: how many
# depth pictures may wait for their frame's detections, not counting those of the frames that the
# device works on. `_DEPTHS` is lower, because depth pictures are large.
_DETECTIONS, _DEPTHS = 32, 8
_FLAT = 0.01
_LINE, _POINT, _FONT = 2.0, 6.0, 14.0
SPACE = Part(
    'space',
    Row(
        lambda s: s.refused,
        WARN,
        'no boxes in space: {unfit}',
        "use depth pictures with the view of the camera's pictures, in encoding 16UC1 or 32FC1",
        see='see [boxes in space](boxes_in_space.md)',
    ),
    Row(
        lambda s: not s.lens,
        WARN,
        'no boxes in space: no calibration came on {info}',
        'calibrate the camera, or start the node with -r camera_info:=TOPIC, where TOPIC has the '
        'calibration',
    ),
    Row(
        lambda s: s.seen and not s.depths,
        WARN,
        'no depth picture came lately on {topic}',
        "check parameter 'depth_topic', and who publishes the topic: ros2 topic info {topic}",
    ),
    # If at least half of the depth pictures match a frame, the depth camera only has a lower rate
    # than the colour camera, which is no fault.
    Row(
        lambda s: s.alone > s.placed and s.depths > 2 * s.placed,
        WARN,
        '{alone} frames lately had no depth picture with exactly the same stamp',
        'take depth and colour from one device, or from a driver that gives both the same stamp',
    ),
    well='{placed} frames got boxes in space lately',
)


def _publisher(node: Node, kind: type[Any], topic: str, depth: int) -> Any:
    return node.create_publisher(kind, topic, publisher_qos(node, topic, QoSProfile(depth=depth)))


class BoxesInSpace:
    """
    Makes 3D boxes from detections and the depth picture of the same stamp.

    :param in_flight: returns the stamps of the frames that the device works on.
    """

    def __init__(self, node: Node, topic: str, in_flight: Callable[[], Sequence[int]]) -> None:
        self._node, self._in_flight = node, in_flight
        self._lock = threading.Lock()
        self._found: OrderedDict[int, tuple[Header, tuple[int, int], Detections]] = OrderedDict()
        self._depths: OrderedDict[int, Image] = OrderedDict()
        self._lens: Lens | None = None
        self._no_lens = ''
        self._unfit = ''
        self._counts = dict.fromkeys(
            ('seen', 'depths', 'placed', 'alone', 'refused', 'left_out'), 0
        )
        self._recent = {name: RecentCount() for name in self._counts}
        qos = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
        self._publisher = _publisher(node, Detection3DArray, _SPACE, 10)
        self._markers = _publisher(node, MarkerArray, _MARKERS, 1)
        self._depth_subscription = node.create_subscription(Image, topic, self._on_depth, qos)
        self._info_subscription = node.create_subscription(
            CameraInfo, 'camera_info', self._on_info, qos
        )

    def close(self) -> None:
        """Destroy the subscriptions and publishers."""
        for subscription in (self._depth_subscription, self._info_subscription):
            self._node.destroy_subscription(subscription)
        for publisher in (self._publisher, self._markers):
            self._node.destroy_publisher(publisher)

    def see(self, entry: InFlight, found: Detections) -> None:
        """Keep a frame's detections; the executor's thread joins them with the depth picture."""
        data = entry.frame.data
        with self._lock:
            self._counts['seen'] += 1
            self._found[data.header.stamp_ns] = data.header, (data.width, data.height), found
            while len(self._found) > _DETECTIONS:
                self._found.popitem(last=False)
                self._counts['alone'] += 1
            ready = data.header.stamp_ns in self._depths
        executor = self._node.executor
        if ready and executor is not None:
            call_soon(executor, self._join)

    def _on_info(self, message: CameraInfo) -> None:
        matrix = np.array(message.k, np.float64).reshape(3, 3)
        if matrix[0, 0] > 0 and matrix[1, 1] > 0 and message.width and message.height:
            fisheye = message.distortion_model == 'equidistant'
            distortion = np.array([*message.d] or [0.0] * 4, np.float64)
            size, roi = (message.width, message.height), message.roi
            sides = roi.width or message.width, roi.height or message.height
            region = (roi.x_offset, roi.y_offset, *sides)
            try:
                self._lens = Lens(matrix, distortion, size, fisheye, region)
            except ConfigError as error:
                # The end of the message 'no calibration came on TOPIC that can be used: …'.
                self._lens, self._no_lens = None, f' that can be used: {error}'

    def _on_depth(self, message: Image) -> None:
        with self._lock:
            self._counts['depths'] += 1
            self._depths[stamp_ns(message.header)] = message
            # Keep the depth pictures of frames that the model still processes, or whose detections
            # are kept: a slow model's detections come long after the depth picture.
            needed = {*self._in_flight(), *self._found}
            for stamp in [each for each in self._depths if each not in needed][:-_DEPTHS]:
                del self._depths[stamp]
        self._join()

    def _join(self) -> None:
        """Publish 3D detections of all frames whose depth picture has come, oldest first."""
        while True:
            with self._lock:
                stamp = next((each for each in self._found if each in self._depths), None)
                if stamp is None:
                    return
                header, size, found = self._found.pop(stamp)
                message = self._depths.pop(stamp)
            lens = self._lens
            if lens is None:
                continue
            depth = self._depth(message, header)
            if depth is None:
                continue
            placed = place(found.boxes, size, *depth, lens)
            self._counts['placed'] += 1
            self._counts['left_out'] += len(found) - len(placed.which)
            self._publish(header, found, placed)

    def _depth(self, message: Image, header: Header) -> tuple[NDArray[Any], float] | None:
        """Return a depth picture's pixels and their unit in m; ``None``: it can't be used."""
        kind = _ENCODINGS.get(message.encoding)
        if kind is None:
            self._unfit = (
                f'depth pictures are {message.encoding or "without encoding"}, not '
                f'{", ".join(_ENCODINGS)}'
            )
        elif message.header.frame_id != header.frame_id:
            self._unfit = (
                f"depth pictures have the frame_id '{message.header.frame_id}', not the "
                f"camera's '{header.frame_id}'"
            )
        elif (
            not message.height
            or not 0 < message.width * int(kind[0][1]) <= message.step
            or len(message.data) < message.height * message.step
        ):
            self._unfit = (
                f'a depth picture of {message.width}x{message.height} has '
                f'{len(message.data)} bytes, which contradicts its size or step'
            )
        else:
            order = '>' if message.is_bigendian else '<'
            rows = np.frombuffer(message.data, np.uint8)[: message.height * message.step].reshape(
                message.height, message.step
            )
            numbers = rows[:, : message.width * int(kind[0][1])].view(order + kind[0])
            return numbers, kind[1]
        self._counts['refused'] += 1
        return None

    def _publish(self, header: Header, found: Detections, placed: Placed) -> None:
        message = Detection3DArray()
        stamp_to_message(header, message)
        markers = [Marker(header=message.header, action=Marker.DELETEALL)]
        ids = np.zeros(len(found), np.int64) if found.ids is None else found.ids
        for index, centre, size in zip(
            placed.which.tolist(), placed.centres.tolist(), placed.sizes.tolist(), strict=True
        ):
            result, detection = ObjectHypothesisWithPose(), Detection3D(header=message.header)
            result.hypothesis.class_id = str(found.classes[index])
            result.hypothesis.score = float(found.scores[index])
            pose, box = result.pose.pose, detection.bbox
            pose.position.x, pose.position.y, pose.position.z = centre
            box.center = pose
            box.size.x, box.size.y, box.size.z = size
            detection.results = [result]
            detection.id = str(ids[index] or '')
            message.detections.append(detection)
            blue, green, red = class_colour(result.hypothesis.class_id)
            marker = Marker(
                header=message.header, ns=_SPACE, id=index, type=Marker.CUBE, pose=pose
            )
            marker.scale.x, marker.scale.y, marker.scale.z = (max(side, _FLAT) for side in size)
            marker.color.r, marker.color.g, marker.color.b = red / 255, green / 255, blue / 255
            marker.color.a = 0.5
            markers.append(marker)
        self._publisher.publish(message)
        if subscription_count(self._markers):
            self._markers.publish(MarkerArray(markers=markers))

    def status(self) -> Status:
        """Report whether frames have depth pictures, and why 3D boxes are missing."""
        with self._lock:
            counts = dict(self._counts)
        recent = {name: self._recent[name].see(count) for name, count in counts.items()}
        return SPACE.status(
            counts,
            unfit=self._unfit,
            lens=self._lens is not None,
            info=f'{self._info_subscription.topic_name}{self._no_lens}',
            topic=self._depth_subscription.topic_name,
            **recent,
        )


class _Topic:
    def __init__(self, node: Node, kind: type[Any], topic: str, depth: int) -> None:
        self._node = node
        self._publisher = _publisher(node, kind, topic, depth)

    def close(self) -> None:
        """Destroy the publisher."""
        self._node.destroy_publisher(self._publisher)


class MaskTopic(_Topic):
    """
    Publishes masks in one reused message object.

    :param masks: the number of mask coefficients in each row of the model's output.
    """

    def __init__(self, node: Node, ledger: CopyLedger, head: Head, masks: int) -> None:
        super().__init__(node, Image, _MASKS, 2)
        self._ledger = ledger
        self._painter = MaskPainter(head, masks)
        self._message = Image(encoding='mono16')
        self._labels: NDArray[np.uint16] = np.zeros((0, 0), np.uint16)

    def see(self, entry: InFlight, found: Detections) -> None:
        """Publish the masks of a frame's detections, if there is a subscriber."""
        if not subscription_count(self._publisher):
            return
        data, message = entry.frame.data, self._message
        if self._labels.shape != (data.height, data.width):
            message.height, message.width, message.step = data.height, data.width, data.width * 2
            message.data = array.array('B', bytes(data.width * data.height * 2))
            self._labels = np.frombuffer(message.data, '<u2').reshape(data.height, data.width)
        self._painter.paint(entry.job.outputs(), entry.job.letterbox, found, self._labels)
        stamp_to_message(data.header, message)
        self._ledger.book('masks', self._labels.nbytes)
        publish(self._publisher, message)


class AnnotationTopic(_Topic):
    """
    Publishes boxes (also rotated ones), class names and keypoints as annotations.

    :param names: the names of the classes.
    :param shape: keypoints per detection, numbers per keypoint; empty: there are no keypoints.
    """

    def __init__(self, node: Node, head: Head, names: Sequence[str], shape: Sequence[int]) -> None:
        super().__init__(node, ImageAnnotations, _ANNOTATIONS, 10)
        self._head, self._names, self._shape = head, names, shape

    def see(self, entry: InFlight, found: Detections) -> None:
        """Publish annotations of a frame's detections, if there is a subscriber."""
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
            corners = _corners(found, index)
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
        Return all keypoints of a detection as points in the model's order.

        The alpha of a point's colour is the score of the point. If the model's keypoints are
        those of a person, lines of the skeleton come first.
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


def _corners(found: Detections, index: int) -> list[tuple[float, float]]:
    """Return the corners of a box, rotated or not, in the frame's pixels."""
    left, top, right, bottom = found.boxes[index].tolist()
    theta = 0.0
    if found.turned is not None:
        x, y, width, height, theta = found.turned[index].tolist()
        left, top, right, bottom = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    return LabelledBox(left, top, right, bottom, '', '', 0.0, theta=theta).corners()
