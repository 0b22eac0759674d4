"""A camera, an overlay, and another program that publishes detections as it likes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from sensor_msgs.msg import CompressedImage, Image
from vision_msgs.msg import Detection2DArray

from zc_perception.detection.detections import Detections
from zc_perception.frame import Header
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.messages import DetectionsWriter
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.nodes.process import NodeGroup


class Viewer:
    """Another program: publishes detections as it likes, and looks at what the overlay makes of them."""

    def __init__(self, domain: int) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node('viewer', context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.pictures: list[Image] = []
        self.jpegs: list[CompressedImage] = []
        self.detections = self.node.create_publisher(Detection2DArray, 'detections', 10)

    def look(self, kind: str) -> Any:
        if kind == 'raw':
            return self.node.create_subscription(Image, 'detections/image', self.pictures.append, 10)
        return self.node.create_subscription(CompressedImage, 'detections/image/compressed', self.jpegs.append, 10)

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, what
            self.executor.spin_once(timeout_sec=0.02)

    def close(self) -> None:
        self.executor.shutdown()
        self.node.destroy_node()
        self.context.try_shutdown()


@contextmanager
def camera_and_overlay(domain: int, **overlay: Any) -> Iterator[tuple[CaptureNode, OverlayNode, Viewer, list[int]]]:
    """A camera whose frames say their number in their stamp, an overlay, and a viewer; no model."""
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=domain)
    viewer = Viewer(domain)
    stamps: list[int] = []
    try:
        capture = CaptureNode(
            context=context, parameter_overrides=[Parameter('framerate', value=30.0), Parameter('pattern', value='counter')]
        )
        publish = capture.publisher.publish
        capture.publisher.publish = lambda frame: (publish(frame), stamps.append(frame.header.stamp_ns))[0]  # type: ignore[method-assign]
        node = OverlayNode(context=context, parameter_overrides=[Parameter(name, value=value) for name, value in overlay.items()])
        failed = threading.Event()
        with NodeGroup(context, (capture, node), failed.set) as group:
            group.start()
            yield capture, node, viewer, stamps
            assert group.failure is None
    finally:
        viewer.close()
        context.try_shutdown()


def detect(viewer: Viewer, stamp_ns: int, *boxes: tuple[float, float, float, float]) -> None:
    found = Detections(np.array(boxes, np.float32).reshape(-1, 4), np.full(len(boxes), 0.5, np.float32), np.zeros(len(boxes), np.int64))
    viewer.detections.publish(DetectionsWriter(1).write(Header(stamp_ns, 'lens'), found))


def stamp_in(picture: Image | CompressedImage) -> int:
    return picture.header.stamp.sec * 10**9 + picture.header.stamp.nanosec
