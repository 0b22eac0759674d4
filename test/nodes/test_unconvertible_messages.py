"""A topic on which nothing comes that can be converted: each node that wants its frames says so, and none of them blames the camera."""

from __future__ import annotations

from pathlib import Path

import rclpy
from nodes.fault_kit import Reader
from nodes.ros_kit import overrides, spun
from sensor_msgs.msg import Image

from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.nodes.recorder import RecorderNode

OK, WARN, ERROR = 0, 1, 2
PERIOD_S = 0.05
WIDTH, HEIGHT = 64, 128


class Foreigner(Reader):
    """Another program: publishes pictures of an encoding that may change, and reads ``/diagnostics``."""

    def __init__(self, domain: int) -> None:
        super().__init__(domain)
        self.encoding, self.pixel_bytes = 'mono16', 2
        self._sent = 0
        self._images = self.node.create_publisher(Image, 'image_raw', 2)
        self.node.create_subscription(Image, 'detections/image', lambda _: None, 2)
        self.node.create_timer(PERIOD_S, self._send)

    def _send(self) -> None:
        self._sent += 1
        image = Image(width=WIDTH, height=HEIGHT, encoding=self.encoding, step=WIDTH * self.pixel_bytes)
        image.header.frame_id, image.header.stamp.sec, image.header.stamp.nanosec = 'lens', 1000, self._sent
        image.data = bytes(image.step * HEIGHT)
        self._images.publish(image)


def test_each_node_says_that_messages_cannot_be_converted_and_nobody_blames_the_camera(
    context: rclpy.Context, free_domain: int, tmp_path: Path
) -> None:
    with Foreigner(free_domain) as foreigner:
        nodes = [
            InferenceNode(context=context, parameter_overrides=overrides({'model': 'hog', 'timeout': 20.0})),
            OverlayNode(context=context),
            RecorderNode(context=context, parameter_overrides=overrides({'path': str(tmp_path / 'a.zcr')})),
        ]
        with spun(context, *nodes):
            for name in ('inference', 'overlay', 'recorder'):
                foreigner.comes_to(f'{name}: link', WARN, 'message(s) could not be converted lately')
            foreigner.comes_to('overlay: overlay', WARN, 'no picture: ', 'message(s) could not be converted lately')
            foreigner.comes_to('inference: detections', ERROR, 'no frame could be converted lately', 'see part link')
            foreigner.encoding, foreigner.pixel_bytes = 'rgb8', 3
            foreigner.comes_to('inference: detections', OK, 'frames per second')
            foreigner.comes_to('overlay: overlay', OK)
            # What came before is usual by now: its end is not the camera's.
            foreigner.encoding, foreigner.pixel_bytes = 'mono16', 2
            foreigner.comes_to('inference: detections', ERROR, 'no frame could be converted lately', 'see part link')
