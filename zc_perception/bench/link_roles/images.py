"""Parts that publish and receive plain ``sensor_msgs/Image`` messages."""

from __future__ import annotations

import array
import socket
import time
from typing import Any

import numpy as np
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image

from zc_perception.bench.link_roles.answers import answered, give_answer
from zc_perception.bench.link_roles.pixels import FILL, stamp
from zc_perception.bench.link_roles.role import Arrivals, Role, Times, paced


def _image_qos() -> QoSProfile:
    return QoSProfile(depth=10, history=HistoryPolicy.KEEP_LAST, reliability=ReliabilityPolicy.RELIABLE)


class ImagesOut(Role):
    """Publishes plain ``sensor_msgs/Image`` messages, nv12, the way that is quickest in rclpy: ``data`` is an ``array`` that it keeps."""

    def __init__(self, node: Node, topic: str, answers: socket.socket) -> None:
        super().__init__()
        self._publisher = node.create_publisher(Image, topic, _image_qos())
        self._answers = answers
        self._message = Image()

    def matched(self) -> tuple[bool, str]:
        return bool(self._publisher.get_subscription_count()), 'the publisher sees no subscriber'

    def prepare(self, width: int, height: int) -> None:
        self._message = Image(width=width, height=height, step=width, encoding='nv12')
        self._message.data = array.array('B', bytes([FILL]) * (width * height * 3 // 2))

    def run(self, first: int, frames: int, rate_hz: float, read: bool = False) -> dict[str, Any]:
        self.begin(first, rate_hz, read)
        sent: Times = []
        pixels = [np.frombuffer(self._message.data, np.uint8)]
        for number in paced(first, frames, rate_hz, lambda number: answered(self._answers, number)):
            stamp(pixels, number)
            sent.append((number, time.monotonic_ns()))
            self._publisher.publish(self._message)
        self.finish()
        return {'sent': sent}


class ImagesIn(Role):
    """Receives plain messages on the executor and looks at each."""

    def __init__(self, node: Node, topic: str, answers: socket.socket) -> None:
        super().__init__()
        self._node = node
        self._answers = answers
        self._answering = False
        self._arrivals = Arrivals()
        self._subscription = node.create_subscription(Image, topic, self._on_image, _image_qos())

    def matched(self) -> tuple[bool, str]:
        return bool(self._node.count_publishers(self._subscription.topic_name)), 'the subscriber sees no publisher'

    def begin(self, first: int, rate_hz: float, read: bool = False) -> None:
        self._answering = not rate_hz
        self._arrivals.begin(first)
        super().begin(first, rate_hz, read)

    def _on_image(self, message: Image) -> None:
        number, now = self.look([np.frombuffer(message.data, np.uint8)])
        self._arrivals.note(number, now)
        if self._answering:
            give_answer(self._answers, number)

    def end(self, last: int) -> Times:
        times = self._arrivals.wait_for(last)
        self.finish()
        return times
