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

"""``overlay_node``: draws detections into pictures, while the pictures have a subscriber."""

from __future__ import annotations

import array
from collections import deque, OrderedDict
from collections.abc import Callable, Mapping
import contextlib
import os
import select
import threading
import time
from typing import Any, ClassVar

import cv2
import numpy as np
from numpy.typing import NDArray
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.subscription import Subscription
from sensor_msgs.msg import CompressedImage, Image
from vision_msgs.msg import Detection2DArray, LabelInfo

from zc_perception.errors import message_of, StaleFrameError, ZcError
from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedSubscription
from zc_perception.link.endpoints.executor_turns import NodeWatch
from zc_perception.link.image_conversion import stamp_ns
from zc_perception.link.rclpy_compat import call_soon, publish, subscription_count
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.nodes.declarations import NODES
from zc_perception.nodes.frame_links import (
    CONVERTIBLE,
    cpu_reader,
    subscribe_frames,
    subscription_status,
    user_ids,
)
from zc_perception.nodes.overlay_picture import (
    class_colour,
    LabelledBox,
    Painter,
    PictureHistory,
    pixel,
    ReducedPicture,
    Trails,
)
from zc_perception.nodes.params.qos_overrides import Endpoint, publisher_qos, subscription_qos
from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.observe.diagnostics import ERROR, Figures, OK, Part, Row, Status, WARN
from zc_perception.observe.metrics import LatencyWindow, RecentCount, RecentRates, Silence
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.conversion import ToPicture
from zc_perception.pixel.fourcc import NV12

MASKS, ANNOTATIONS = 'detections/masks', 'detections/annotations'
_KEPT, _PATIENCE_NS = 4, 1_000_000_000
_LEAST_ALPHA = 0.5
Scale = tuple[float, float]


Draw = Callable[[NDArray[np.uint8], Detection2DArray, Any, Scale, int], None]
"""
Draws a layer's message, such as masks, into a picture.

Arguments: BGR picture; detections message; layer's message; scale, which is the picture's size
divided by the frame's, in x and y; line width in pixels.
"""


class Layer:
    """
    Keeps the latest messages of a topic (masks or points) to draw them with the boxes.

    :param came: called after each new message, to wake the drawing thread.
    """

    def __init__(
        self,
        node: Node,
        kind: type[Any],
        topic: str,
        qos: QoSProfile,
        draw: Draw,
        came: Callable[[], None],
    ) -> None:
        self._node, self._draw, self._came = node, draw, came
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._newest = 0
        self._subscription = node.create_subscription(kind, topic, self._take, qos)

    def close(self) -> None:
        """End the subscription."""
        self._node.destroy_subscription(self._subscription)

    def _take(self, message: Any) -> None:
        at = message.header.stamp if hasattr(message, 'header') else message.timestamp
        stamp = int(at.sec) * 1_000_000_000 + int(at.nanosec)
        self._kept[stamp] = message
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        self._newest = stamp
        self._came()

    def waits(self, stamp: int) -> bool:
        """
        Return whether the message for the frame of time *stamp* may still come.

        The message may still come if the newest message is of a frame less than 1 s before
        *stamp*. Before the first message, return False: perhaps the model gives no such messages.
        """
        return 0 < self._newest < stamp < self._newest + _PATIENCE_NS

    def paint(
        self, picture: NDArray[np.uint8], found: Detection2DArray, scale: Scale, line: int
    ) -> None:
        """Draw the kept message that has the same stamp as *found*, if there is one."""
        message = self._kept.pop(stamp_ns(found.header), None)
        if message is not None:
            self._draw(picture, found, message, scale, line)


def draw_masks(
    picture: NDArray[np.uint8], found: Detection2DArray, message: Any, scale: Scale, line: int
) -> None:
    """Tint each mask in the colour of its detection's class."""
    count = message.height * message.step
    fits = 0 < message.width * 2 <= message.step and 0 < count <= len(message.data)
    if message.encoding != 'mono16' or not fits:
        return
    order = '>u2' if message.is_bigendian else '<u2'
    rows = np.frombuffer(message.data, np.uint8, count).reshape(message.height, message.step)
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


def draw_keypoints(
    picture: NDArray[np.uint8], found: Detection2DArray, message: Any, scale: Scale, line: int
) -> None:
    """Draw key points and the lines between them, not the boxes in the same message."""
    for drawn in message.points:
        kind = type(drawn)
        places = [
            (pixel(point.x * scale[0]), pixel(point.y * scale[1]))
            for point in drawn.points
            if np.isfinite((point.x, point.y)).all()
        ]
        if len(places) != len(drawn.points) or drawn.type not in (kind.POINTS, kind.LINE_LIST):
            continue
        own = drawn.outline_color
        colour = tuple(round(255 * min(max(part, 0.0), 1.0)) for part in (own.b, own.g, own.r))
        if drawn.type == kind.LINE_LIST:
            for start, end in zip(places[::2], places[1::2], strict=False):
                cv2.line(picture, start, end, colour, line, cv2.LINE_AA)
        else:
            alphas = [each.a for each in drawn.outline_colors] or [1.0] * len(places)
            for place, alpha in zip(places, alphas, strict=False):
                if alpha >= _LEAST_ALPHA:
                    cv2.circle(picture, place, 2 * line, colour, cv2.FILLED, cv2.LINE_AA)


_DEMAND_PERIOD_S = 0.5
_IDLE_POLL_MS = 1000
_JOIN_S = 0.5
_NICER = 5
_MOST_AGE_MS = 60_000
# Copy at most this many frames, then draw a picture. Without this limit, nothing would be drawn
# when a copy takes longer than a frame's period: the next frame would always be there to copy.
_MOST_AT_ONCE = 2
OVERLAY = Part(
    'overlay',
    Row(lambda s: s.idle, OK, 'idle: nobody subscribes to detections/image'),
    Row(lambda s: s.dead, ERROR, ('the thread that draws has ended; its traceback is on the '
                                  "node's stderr"),
        'deactivate and activate the node, or start it again'),
    Row(lambda s: s.failed, WARN, ('{failed} picture(s) could not be drawn lately, last '
                                   'error: {last_error}'),
        'look at boxes and class_ids: ros2 topic echo {topic}'),
    Row(lambda s: s.left_out, WARN, ('{left_out} box(es) with NaN or infinite numbers were '
                                     'left out lately'),
        'look at what the model gives: ros2 topic echo {topic}'),
    Row(lambda s: s.unfit, WARN, 'no picture: {unfit}', "set the camera's pixel_format to NV12"),
    Row(lambda s: s.unconverted and not s.drawn, WARN, ('no picture: {unconverted} message(s) '
        'could not be converted lately'), CONVERTIBLE),
    Row(lambda s: s.unmatched > s.drawn, WARN, ('{unmatched} detections came lately, but the '
                                                'node no longer had their frames, or never got '
                                                'them'),
        "if the model is slow, raise parameter 'history'; if this node is, lower 'scale'"),
    well='drawing',
)  # fmt: skip


class OverlayNode(PerceptionNode):
    """
    Publishes ``detections/image``: reduced copies of frames, with the boxes of their detections.

    The node subscribes to ``image_raw`` (type-adapted), ``detections``, ``detections/masks``,
    ``detections/annotations`` and ``label_info``. It publishes ``detections/image`` as bgr8, and
    ``detections/image/compressed``.

    While neither output has a subscriber, the node has no drawing thread, and subscribes only to
    ``label_info``. Otherwise the drawing thread, at a lower priority than other threads,
    makes a reduced copy of each frame, and draws the detections with the same stamp. If the
    thread is too slow, it skips older frames; no other thread waits for it.
    """

    SPECS = NODES['overlay']
    # Check this parameter when the node starts: it is used only when somebody subscribes, and an
    # error at that time would end the program.
    CHECKS: ClassVar[Mapping[str, Callable[[Any], object]]] = {'shared_memory_users': user_ids}
    ENDPOINTS = (
        Endpoint('detections/image', 'publisher'),
        Endpoint('detections/image/compressed', 'publisher'),
        Endpoint('label_info', 'subscription'),
        Endpoint('detections', 'subscription'),
        Endpoint(MASKS, 'subscription'),
        Endpoint(ANNOTATIONS, 'subscription'),
        Endpoint('image_raw', 'subscription', adapted=True),
    )

    def __init__(self, **node_options: Any) -> None:
        super().__init__('overlay', **node_options)
        self.drawn = 0
        self.skipped = 0
        self.unmatched = 0
        self.failed = 0
        self.left_out = 0
        self._last_error = ''
        self._unfit = ''
        self._recent = {
            name: RecentCount() for name in ('drawn', 'unmatched', 'failed', 'left_out')
        }
        self._conversion_errors = RecentCount()
        self._rate = RecentRates()
        self._quiet = Silence()
        self._draw_times = LatencyWindow()
        self._names: dict[str, str] = {}
        self._history = PictureHistory(self.parameters['history'], self.parameters['scale'])
        self._detections: deque[Detection2DArray] = deque()
        self._frame_subscription: AdaptedSubscription[Frame] | None = None
        self._detection_subscription: Subscription | None = None
        self._message = Image(encoding='bgr8')
        self._jpeg = CompressedImage(format='bgr8; jpeg compressed bgr8')
        self._picture: NDArray[np.uint8] = np.empty((0, 0, 3), np.uint8)
        self._to_bgr: ToPicture | None = None
        self._colorimetry: Colorimetry | None = None
        self._painter = Painter(0)
        self._trails = Trails()
        self._layers: list[Layer] = []
        self._pace: float | None = None
        self._thread: threading.Thread | None = None
        self._stop_drawing = threading.Event()
        self._wake: OwnedFd | None = None
        # Held by each thread that writes to `_wake`, and by the drawing thread while it closes
        # `_wake`. A write after the close could reach a file that got the same descriptor.
        self._wake_lock = threading.Lock()
        # Held while subscribing or unsubscribing: the periodic check for viewers and a lifecycle
        # transition may both subscribe or unsubscribe at the same time, on different threads.
        self._demand_lock = threading.RLock()
        self._publisher = self.create_publisher(
            Image, 'detections/image', publisher_qos(self, 'detections/image', QoSProfile(depth=1))
        )
        compressed = f'{self._publisher.topic_name}/compressed'
        self._jpeg_publisher = self.create_publisher(
            CompressedImage, compressed, publisher_qos(self, compressed, QoSProfile(depth=1))
        )
        latched = subscription_qos(
            self, 'label_info', QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        )
        self._detections_qos = subscription_qos(self, 'detections', QoSProfile(depth=10))
        self._masks_qos = subscription_qos(self, MASKS, QoSProfile(depth=2))
        self._annotations_qos = subscription_qos(self, ANNOTATIONS, QoSProfile(depth=2))
        subscription_qos(
            self,
            'image_raw',
            QoSProfile(depth=2),
            # Declare the QoS parameters now; the subscription itself is made only for a viewer.
        )
        self._label_subscription = self.create_subscription(
            LabelInfo, 'label_info', self._on_labels, latched
        )
        self._begin()
        self._ends.callback(NodeWatch(self, _DEMAND_PERIOD_S, self._look_at_demand).stop)

    def _open(self) -> None:
        self._history = PictureHistory(self.parameters['history'], self.parameters['scale'])

    def _activate(self) -> None:
        self._flowing = True
        self.update_demand()

    def _deactivate(self) -> None:
        with self._demand_lock:
            self._unsubscribe()

    def _on_parameter(self, name: str, value: Any) -> None:
        if name == 'scale':
            self._history.scale = value

    def update_demand(self) -> None:
        """Subscribe to the inputs if the node is active and has a viewer; else unsubscribe."""
        with self._demand_lock:
            if not self._wanted():
                self._unsubscribe()
            elif self._frame_subscription is None:
                self._subscribe()

    def _look_at_demand(self) -> None:
        executor = self.executor
        if executor is not None and self._wanted() is not (self._frame_subscription is not None):
            call_soon(executor, self.update_demand)

    def _wanted(self) -> bool:
        return self.flowing and any(
            subscription_count(publisher) for publisher in (self._publisher, self._jpeg_publisher)
        )

    def _subscribe(self) -> None:
        from foxglove_msgs.msg import ImageAnnotations

        reads = cpu_reader(self.get_name())
        self._frame_subscription = subscribe_frames(
            self, self.parameters, self.ledger, QoSProfile(depth=2), held=1, constraints=reads
        )
        self._detections = deque(maxlen=self.parameters['history'])
        self._detection_subscription = self.create_subscription(
            Detection2DArray, 'detections', self._on_detections, self._detections_qos
        )
        self._layers = [
            Layer(self, Image, MASKS, self._masks_qos, draw_masks, self._awake),
            Layer(
                self,
                ImageAnnotations,
                ANNOTATIONS,
                self._annotations_qos,
                draw_keypoints,
                self._awake,
            ),
        ]
        self._stop_drawing = threading.Event()
        self._wake = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        arguments = (
            self._frame_subscription,
            self._wake,
            self._stop_drawing,
            self._history,
            self._detections,
        )
        thread = threading.Thread(
            target=self._run, args=arguments, name=f'overlay {self.get_name()}', daemon=True
        )
        thread.start()
        # Store the thread only after its start: else diagnostics would report it as dead.
        self._thread = thread

    def _unsubscribe(self) -> None:
        thread, self._thread = self._thread, None
        self._stop_drawing.set()
        self._awake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_S)
        if self._frame_subscription is not None:
            self._frame_subscription.destroy()
            self._frame_subscription = None
        if self._detection_subscription is not None:
            self.destroy_subscription(self._detection_subscription)
            self._detection_subscription = None
        for layer in self._layers:
            layer.close()
        self._layers = []
        self._history.clear()
        self._detections.clear()
        self._unfit = ''

    def _awake(self) -> None:
        with self._wake_lock:
            if self._wake is not None and not self._wake.closed:
                os.eventfd_write(self._wake.fileno(), 1)

    def _on_labels(self, message: LabelInfo) -> None:
        self._names = {str(c.class_id): c.class_name for c in message.class_map}

    def _on_detections(self, message: Detection2DArray) -> None:
        self._detections.append(message)
        self._awake()

    # `_run` and the methods that it calls, down to `_box`, run on the drawing thread.

    def _run(
        self,
        subscription: AdaptedSubscription[Frame],
        wake: OwnedFd,
        stop: threading.Event,
        history: PictureHistory,
        detections: deque[Detection2DArray],
    ) -> None:
        # Lower the priority, because drawing is less urgent than the other threads' work.
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):
            nice = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, min(19, nice + _NICER))
        self._rate.forget()  # the time without a viewer must not lower the rate
        self._pace = None
        try:
            kept = 0
            while not stop.is_set():
                poller = select.poll()
                poller.register(wake.fileno(), select.POLLIN)
                if not subscription.queue.closed:  # poll would return at once for a closed queue
                    poller.register(subscription.queue.fileno(), select.POLLIN)
                if any(
                    fd == wake.fileno()
                    for fd, _ in poller.poll(0 if kept == _MOST_AT_ONCE else _IDLE_POLL_MS)
                ):
                    os.eventfd_read(wake.fileno())
                kept = 0
                while (
                    kept < _MOST_AT_ONCE
                    and not stop.is_set()
                    and (frame := subscription.queue.get()) is not None
                ):
                    self._keep(frame, history)
                    kept += 1
                if not stop.is_set():
                    self._draw_newest(history, detections)
        except BaseException:
            # Release the queued frames, because the camera needs their slots.
            subscription.queue.close()
            raise
        finally:
            with self._wake_lock:
                wake.close()

    def _keep(self, frame: Frame, history: PictureHistory) -> None:
        try:
            with frame:
                num_bytes = history.keep(frame)
        except StaleFrameError:  # the camera took this frame back; wait for the next frame
            return
        except ZcError as error:  # the frame can't be read
            self._unfit = str(error)
            return
        except Exception as error:
            self._fail(error)
            return
        self._unfit = ''
        self.ledger.book('overlay', num_bytes)

    def _fail(self, error: Exception) -> None:
        """Count a picture that could not be drawn; the thread goes on."""
        text = message_of(error)
        self._last_error = f'{type(error).__name__}: {text}'.encode(errors='replace').decode()
        self.failed += 1

    def _draw_newest(self, history: PictureHistory, detections: deque[Detection2DArray]) -> None:
        """
        Draw the newest detections for which the frame's copy and the layers' messages have come.

        Newer detections stay queued until their frame, masks and points come; older detections are
        dropped.
        """
        waiting: list[Detection2DArray] = []
        newest: Detection2DArray | None = None
        while detections:
            message = detections.pop()
            stamp = stamp_ns(message.header)
            if newest is not None:
                self.skipped += stamp in history
                self.unmatched += stamp not in history
            elif stamp in history and not any(layer.waits(stamp) for layer in self._layers):
                newest = message
            elif stamp > history.newest or stamp in history:
                waiting.append(message)
            else:
                self.unmatched += 1
        for message in reversed(waiting):
            detections.append(message)
        if newest is not None:
            picture = history.take(stamp_ns(newest.header))
            if picture is not None:
                try:
                    self._draw(picture, newest)
                except Exception as error:  # bad detections must not end the thread
                    self._fail(error)

    def _draw(self, reduced: ReducedPicture, message: Detection2DArray) -> None:
        began_ns = time.monotonic_ns()
        height, width = reduced.luma.shape
        self._prepare(width, height)
        if self._to_bgr is None or self._colorimetry != reduced.colorimetry:
            self._to_bgr = ToPicture(NV12, width, height, reduced.colorimetry, bgr=True)
            self._colorimetry = reduced.colorimetry
        self._to_bgr.convert((reduced.luma, reduced.chroma), self._picture)
        found = [self._box(detection) for detection in message.detections if detection.results]
        boxes = [box for box in found if box.finite]
        self.left_out += len(found) - len(boxes)
        age_ms = (began_ns - reduced.captured_ns) / 1e6
        age = f'{age_ms:.0f} ms  ' if 0 <= age_ms < _MOST_AGE_MS else ''
        (self._pace,) = self._rate.see(self.drawn) or (self._pace,)
        rate = '' if self._pace is None else f'  {self._pace:.1f} Hz'
        for layer in self._layers:
            layer.paint(self._picture, message, reduced.scale, self._painter.line)
        self._trails.paint(
            self._picture, boxes, reduced.scale, stamp_ns(message.header), self._painter.line
        )
        self._painter.paint(
            self._picture, boxes, reduced.scale, f'{age}{len(boxes)} objects{rate}'
        )
        if subscription_count(self._publisher):
            self._message.header = message.header
            publish(self._publisher, self._message)
        if subscription_count(self._jpeg_publisher):
            self._jpeg.header = message.header
            _, encoded = cv2.imencode(
                '.jpg', self._picture, (cv2.IMWRITE_JPEG_QUALITY, self.parameters['jpeg_quality'])
            )
            self._jpeg.data = array.array('B', encoded.tobytes())
            publish(self._jpeg_publisher, self._jpeg)
        self.drawn += 1
        self._draw_times.record(time.monotonic_ns() - began_ns)

    def _prepare(self, width: int, height: int) -> None:
        if self._picture.shape[:2] != (height, width):
            self._message.width, self._message.height, self._message.step = (
                width,
                height,
                width * 3,
            )
            self._message.data = array.array('B', bytes(width * height * 3))
            self._picture = np.frombuffer(self._message.data, np.uint8).reshape(height, width, 3)
            self._to_bgr = None
            self._painter = Painter(height)

    def _box(self, detection: Any) -> LabelledBox:
        hypothesis, box = detection.results[0].hypothesis, detection.bbox
        x, y = box.center.position.x, box.center.position.y
        half_width, half_height = box.size_x / 2, box.size_y / 2
        name = self._names.get(hypothesis.class_id, hypothesis.class_id)
        return LabelledBox(
            x - half_width,
            y - half_height,
            x + half_width,
            y + half_height,
            hypothesis.class_id,
            name,
            hypothesis.score,
            detection.id,
            box.center.theta,
        )

    def signs(self) -> object:
        """Return values that change whenever a diagnostic level may have changed."""
        subscription, thread = self._frame_subscription, self._thread
        link = None if subscription is None else subscription.choice
        lives = thread is None or thread.is_alive()
        silent = self._quiet.see(self.drawn) > 0.0
        return (
            self._stirred,
            link,
            lives,
            silent,
            self.failed,
            self.left_out,
            self.unmatched,
            self._unfit,
        )

    def collect_diagnostics(self) -> list[Status]:
        """Return the statuses of the drawing, the frame subscription and the lifecycle."""
        subscription = self._frame_subscription
        links = (
            []
            if subscription is None
            else [subscription_status(subscription, self._conversion_errors)]
        )
        return [self._overlay_status(subscription), *links, self.lifecycle_status()]

    def _overlay_status(self, subscription: AdaptedSubscription[Frame] | None) -> Status:
        drawn, unmatched, failed, left_out = (
            recent.see(getattr(self, name)) for name, recent in self._recent.items()
        )
        thread = self._thread
        unconverted = (
            0
            if subscription is None
            else self._conversion_errors.see(subscription.statistics().conversion_errors)
        )
        return OVERLAY.status(
            Figures(self._values),
            idle=subscription is None,
            dead=thread is not None and not thread.is_alive() and thread is self._thread,
            failed=failed,
            last_error=self._last_error,
            left_out=left_out,
            unfit=self._unfit,
            unconverted=unconverted,
            unmatched=unmatched,
            drawn=drawn,
            topic=self.resolve_topic_name('detections'),
        )

    def _values(self) -> dict[str, object]:
        times = self._draw_times.percentiles()
        return {
            'drawn': self.drawn,
            'rate': '' if self._pace is None else f'{self._pace:.2f}',
            'skipped_newest_wins': self.skipped,
            'without_frame': self.unmatched,
            'failed': self.failed,
            'boxes_left_out': self.left_out,
            'pictures_waiting': len(self._history),
            'draw_ms': f'p50 {times.p50:.3f}, p99 {times.p99:.3f}' if self.drawn else '',
            'scale': self._history.scale,
            'readers': subscription_count(self._publisher),
            'readers_compressed': subscription_count(self._jpeg_publisher),
        }
