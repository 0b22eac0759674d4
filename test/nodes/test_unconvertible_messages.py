"""A topic on which nothing comes that can be converted: each node that wants its frames says so, and none of them blames the camera."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import rclpy
from nodes.fault_kit import WAIT_S, Reader
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image

from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.nodes.process import NodeGroup
from zc_perception.nodes.recorder import RecorderNode

OK, WARN, ERROR = 0, 1, 2
PERIOD_S = 0.05
WIDTH, HEIGHT = 64, 128


class Foreigner(Reader):
    """Another program: publishes pictures of an encoding that may change, and reads ``/diagnostics``."""

    def __init__(self, context: rclpy.Context) -> None:
        super().__init__(context)
        self.encoding, self.pixel_bytes = 'mono16', 2
        self._sent = 0
        self._images = self.create_publisher(Image, 'image_raw', 2)
        self.create_subscription(Image, 'detections/image', lambda _: None, 2)
        self.create_timer(PERIOD_S, self._send)
        self.executor_of_its_own = SingleThreadedExecutor(context=context)
        self.executor_of_its_own.add_node(self)

    def _send(self) -> None:
        self._sent += 1
        image = Image(width=WIDTH, height=HEIGHT, encoding=self.encoding, step=WIDTH * self.pixel_bytes)
        image.header.frame_id, image.header.stamp.sec, image.header.stamp.nanosec = 'lens', 1000, self._sent
        image.data = bytes(image.step * HEIGHT)
        self._images.publish(image)

    def until_shown(self, name: str, level: int, *words: str) -> None:
        end = time.monotonic() + WAIT_S
        while self.level(name) != level or any(word not in self.text(name) for word in words):
            assert time.monotonic() < end, f'{name} at {level} with {words}: { ({n: s.message for n, s in self.last.items()}) }'
            self.executor_of_its_own.spin_once(timeout_sec=0.02)


def test_each_node_says_that_messages_cannot_be_converted_and_nobody_blames_the_camera(free_domain: int, tmp_path: Path) -> None:
    context, other = rclpy.Context(), rclpy.Context()
    for each in (context, other):
        rclpy.init(context=each, domain_id=free_domain)
    foreigner = Foreigner(other)
    try:
        nodes = [
            InferenceNode(context=context, parameter_overrides=[Parameter('model', value='hog'), Parameter('timeout', value=20.0)]),
            OverlayNode(context=context),
            RecorderNode(context=context, parameter_overrides=[Parameter('path', value=str(tmp_path / 'a.zcr'))]),
        ]
        failed = threading.Event()
        with NodeGroup(context, nodes, failed.set) as group:
            group.start()
            for name in ('inference', 'overlay', 'recorder'):
                foreigner.until_shown(f'{name}: link', WARN, 'message(s) could not be converted lately')
            foreigner.until_shown('overlay: overlay', WARN, 'no picture: ', 'message(s) could not be converted lately')
            foreigner.until_shown('inference: detections', ERROR, 'no frame could be converted lately', 'see part link')
            foreigner.encoding, foreigner.pixel_bytes = 'rgb8', 3
            foreigner.until_shown('inference: detections', OK, 'frames per second')
            foreigner.until_shown('overlay: overlay', OK)
            # What came before is usual by now: its end is not the camera's.
            foreigner.encoding, foreigner.pixel_bytes = 'mono16', 2
            foreigner.until_shown('inference: detections', ERROR, 'no frame could be converted lately', 'see part link')
            assert group.failure is None, group.failure
    finally:
        foreigner.executor_of_its_own.shutdown()
        foreigner.destroy_node()
        for each in (context, other):
            each.try_shutdown()
