"""Parts that publish and receive plain ``sensor_msgs/Image`` messages."""

from __future__ import annotations

import array
import contextlib
import select
import socket
import time
from typing import Any

import numpy as np
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image

from zc_perception.verify.bench.link_roles.role import ANSWER_S, Arrivals, Role, Times, paced


def _image_qos() -> QoSProfile:
    return QoSProfile(depth=10, history=HistoryPolicy.KEEP_LAST, reliability=ReliabilityPolicy.RELIABLE)


class ImagesOut(Role):
    """Publishes plain ``sensor_msgs/Image`` messages, nv12, the way that is quickest in rclpy: ``data`` is an ``array`` that it keeps."""

    def __init__(self, node: Node, topic: str, answers: socket.socket) -> None:
        super().__init__(node)
        self._publisher = node.create_publisher(Image, topic, _image_qos())
        self._answers = answers
        self._message = Image()

    def matched(self) -> tuple[bool, str]:
        return bool(self._publisher.get_subscription_count()), 'the publisher sees no subscriber'

    def prepare(self, width: int, height: int) -> None:
        self._message = Image(width=width, height=height, step=width, encoding='nv12')
        self._message.data = array.array('B', bytes([90]) * (width * height * 3 // 2))

    def run(self, first: int, frames: int, rate_hz: float) -> dict[str, Any]:
        self.begin(first, rate_hz)
        sent: Times = []
        for number in paced(first, frames, rate_hz, self._answered):
            self._message.header.stamp.sec = number
            sent.append((number, time.monotonic_ns()))
            self._publisher.publish(self._message)
        return {'sent': sent}

    def _answered(self, number: int) -> bool:
        deadline = time.monotonic() + ANSWER_S
        while select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
            answer = self._answers.recv(8)
            # An earlier frame's is late; without any, the other end has ended.
            if not answer or int.from_bytes(answer, 'little') == number:
                return bool(answer)
        return False


class ImagesIn(Role):
    """Receives plain messages on the executor and reads one byte of each."""

    def __init__(self, node: Node, topic: str, answers: socket.socket) -> None:
        super().__init__(node)
        self._answers = answers
        self._answering = False
        self._arrivals = Arrivals()
        self._subscription = node.create_subscription(Image, topic, self._on_image, _image_qos())

    def matched(self) -> tuple[bool, str]:
        return bool(self.node.count_publishers(self._subscription.topic_name)), 'the subscriber sees no publisher'

    def begin(self, first: int, rate_hz: float) -> None:
        self._answering = not rate_hz
        self._arrivals.begin(first)
        super().begin(first, rate_hz)

    def _on_image(self, message: Image) -> None:
        np.frombuffer(message.data, np.uint8)[0]
        number, now = message.header.stamp.sec, time.monotonic_ns()
        self._arrivals.note(number, now)
        if self._answering:
            with contextlib.suppress(OSError):  # nobody waits for it any more
                self._answers.send(number.to_bytes(8, 'little'), socket.MSG_DONTWAIT)

    def end(self, last: int) -> Times:
        return self._arrivals.wait_for(last)
