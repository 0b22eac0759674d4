"""``overlay_node``: the frame with its boxes drawn in, only while somebody looks."""

from __future__ import annotations

import array
from collections import OrderedDict
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.subscription import Subscription
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray, LabelInfo

from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedSubscription
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.frame_links import SUBSCRIPTION_SPECS, subscribe_frames, subscription_status
from zc_perception.nodes.parameters import ParameterSpec
from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.observe.diagnostics import DiagnosticsPublisher, Level, Status

_DEMAND_PERIOD_S = 0.5
# Distinct hues, one for each class, as B, G, R.
_COLOURS = (
    (60, 220, 60),
    (40, 160, 255),
    (255, 180, 40),
    (200, 80, 255),
    (60, 230, 230),
    (255, 100, 160),
    (180, 180, 255),
    (120, 255, 180),
)
_SPECS = (
    ParameterSpec('scale', 1.0, 'Size of the picture relative to the frame.', '', 0.1, 1.0),
    ParameterSpec('history', 32, 'Pictures kept while their detections are on the way; memory only while somebody looks.', '', 1, 256),
    *SUBSCRIPTION_SPECS,
)
Stamp = tuple[int, int]


class PictureHistory:
    """Reduced copies of the last frames. Copies, because a viewer must not pin the camera's slots while a slow model thinks.

    :param limit: pictures kept; the oldest goes first, its memory is used again.
    """

    def __init__(self, limit: int, scale: float) -> None:
        self._limit = limit
        self._scale = scale
        self._pictures: OrderedDict[Stamp, list[NDArray[np.uint8]]] = OrderedDict()
        self._spare: list[list[NDArray[np.uint8]]] = []

    def __len__(self) -> int:
        return len(self._pictures)

    def _scaled(self, size: int) -> int:
        return max(2, round(size * self._scale / 2) * 2)

    def keep(self, frame: Frame) -> int:
        """Copy *frame*'s planes, reduced; the bytes that were read."""
        height, width = self._scaled(frame.data.height), self._scaled(frame.data.width)
        if len(self._pictures) >= self._limit:
            self._spare.append(self._pictures.popitem(last=False)[1])
        planes = self._spare.pop() if self._spare else []
        if not planes or planes[0].shape != (height, width):
            planes = [np.empty((height, width), np.uint8), np.empty((height // 2, width // 2, 2), np.uint8)]
        with frame.map() as source:
            for plane, target in zip(source, planes, strict=True):
                cv2.resize(plane, (target.shape[1], target.shape[0]), dst=target, interpolation=cv2.INTER_AREA)
            num_bytes = sum(plane.nbytes for plane in source)
        self._pictures[divmod(frame.header.stamp_ns, 1_000_000_000)] = planes
        return num_bytes

    def take(self, stamp: Stamp) -> list[NDArray[np.uint8]] | None:
        """The planes of that frame, valid until the next :meth:`keep`; it and everything older is forgotten."""
        if stamp not in self._pictures:
            return None
        while True:
            found, planes = self._pictures.popitem(last=False)
            self._spare.append(planes)
            if found == stamp:
                return planes

    def clear(self) -> None:
        """Free all memory."""
        self._pictures.clear()
        self._spare.clear()


class OverlayNode(PerceptionNode):
    """Subscribes to ``image_raw`` (type-adapted), ``detections`` and ``label_info``; publishes ``detections/image`` as bgr8.

    While ``detections/image`` has no subscriber it holds no subscription of its own on frames or detections.
    """

    SPECS = _SPECS

    def __init__(self, *, ledger: CopyLedger | None = None, **node_options: Any) -> None:
        super().__init__('overlay', **node_options)
        self.ledger = ledger or CopyLedger()
        self.drawn = 0
        self.unmatched = 0
        self._names: dict[str, str] = {}
        self._history = PictureHistory(self.parameters['history'], self.parameters['scale'])
        self._frame_subscription: AdaptedSubscription[Frame] | None = None
        self._detection_subscription: Subscription | None = None
        self._message = Image(encoding='bgr8')
        self._picture: NDArray[np.uint8] = np.empty((0, 0, 3), np.uint8)
        self._publisher = self.create_publisher(Image, 'detections/image', QoSProfile(depth=1))
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self._label_subscription = self.create_subscription(LabelInfo, 'label_info', self._on_labels, latched)
        self._demand_timer = self.create_timer(_DEMAND_PERIOD_S, self.update_demand)
        self._diagnostics = DiagnosticsPublisher(self, self.collect_diagnostics)

    def start(self) -> None:
        """See :class:`PerceptionNode`."""
        self.update_demand()

    def update_demand(self) -> None:
        """Subscribe while somebody looks, unsubscribe when nobody does."""
        wanted = self._publisher.get_subscription_count() > 0
        if wanted and self._frame_subscription is None:
            self._frame_subscription = subscribe_frames(self, self.parameters, self.ledger, QoSProfile(depth=2), callback=self._on_frame)
            self._detection_subscription = self.create_subscription(
                Detection2DArray, 'detections', self._on_detections, QoSProfile(depth=10)
            )
        elif not wanted:
            self._unsubscribe()

    def _unsubscribe(self) -> None:
        if self._frame_subscription is not None:
            self._frame_subscription.destroy()
            self._frame_subscription = None
        if self._detection_subscription is not None:
            self.destroy_subscription(self._detection_subscription)
            self._detection_subscription = None
        self._history.clear()

    def _on_labels(self, message: LabelInfo) -> None:
        self._names = {str(c.class_id): c.class_name for c in message.class_map}

    def _on_frame(self, frame: Frame) -> None:
        self.ledger.book('overlay', self._history.keep(frame))

    def _on_detections(self, message: Detection2DArray) -> None:
        planes = self._history.take((message.header.stamp.sec, message.header.stamp.nanosec))
        if planes is None:
            self.unmatched += 1
            return
        self._draw(planes, message)
        self._message.header = message.header
        self._publisher.publish(self._message)
        self.drawn += 1

    def _prepare(self, width: int, height: int) -> None:
        if self._picture.shape[:2] != (height, width):
            self._message.width, self._message.height, self._message.step = width, height, width * 3
            self._message.data = array.array('B', bytes(width * height * 3))
            self._picture = np.frombuffer(self._message.data, np.uint8).reshape(height, width, 3)

    def _draw(self, planes: list[NDArray[np.uint8]], message: Detection2DArray) -> None:
        height, width = planes[0].shape
        self._prepare(width, height)
        cv2.cvtColorTwoPlane(planes[0], planes[1], cv2.COLOR_YUV2BGR_NV12, dst=self._picture)
        for detection in message.detections:
            hypothesis = detection.results[0].hypothesis
            self._draw_box(detection.bbox, hypothesis.class_id, hypothesis.score, self.parameters['scale'])

    def _draw_box(self, box: Any, class_id: str, score: float, scale: float) -> None:
        colour = _COLOURS[int(class_id) % len(_COLOURS)] if class_id.isdigit() else _COLOURS[0]
        left, top = (box.center.position.x - box.size_x / 2) * scale, (box.center.position.y - box.size_y / 2) * scale
        right, bottom = left + box.size_x * scale, top + box.size_y * scale
        cv2.rectangle(self._picture, (round(left), round(top)), (round(right) - 1, round(bottom) - 1), colour, 1, cv2.LINE_AA)
        label = f'{self._names.get(class_id, class_id)} {score:.2f}'
        (text_width, text_height), _ = cv2.getTextSize(label, cv2.FONT_HERSHEY_SIMPLEX, 0.35, 1)
        x = min(max(0, round(left)), max(0, self._picture.shape[1] - text_width))
        y = max(text_height + 1, round(top) - 2)
        cv2.rectangle(self._picture, (x, y - text_height - 1), (x + text_width, y + 2), colour, cv2.FILLED)
        cv2.putText(self._picture, label, (x, y), cv2.FONT_HERSHEY_SIMPLEX, 0.35, (0, 0, 0), 1, cv2.LINE_AA)

    def collect_diagnostics(self) -> list[Status]:
        """Whether anybody looks."""
        values = {'drawn': self.drawn, 'without_frame': self.unmatched, 'pictures_waiting': len(self._history)}
        if self._frame_subscription is None:
            return [Status('overlay', Level.OK, 'idle: nobody subscribes to detections/image', values)]
        return [Status('overlay', Level.OK, 'drawing', values), subscription_status(self._frame_subscription)]

    def stop(self) -> None:
        """See :class:`PerceptionNode`."""
        self._demand_timer.cancel()
        self._unsubscribe()
