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
The inference node's ``detections/masks``: which pixel belongs to which detection.

They are published while there is a subscriber.
"""

from __future__ import annotations

import array
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image

from zc_perception.detection.detections import Detections
from zc_perception.detection.extras import MaskPainter
from zc_perception.detection.heads.spec import Head
from zc_perception.link.image_conversion import stamp_to_message
from zc_perception.link.rclpy_compat import publish, subscription_count
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.params.qos_overrides import publisher_qos
from zc_perception.npu.scheduler import InFlight

TOPIC = 'detections/masks'


class MaskTopic:
    """
    Paint into one message again and again.

    This runs on the scheduler's thread, after the detections went out.

    :param masks: coefficients of each row.
    """

    def __init__(self, node: Node, ledger: CopyLedger, head: Head, masks: int) -> None:
        self._node, self._ledger = node, ledger
        self._painter = MaskPainter(head, masks)
        self._message = Image(encoding='mono16')
        self._labels: NDArray[np.uint16] = np.zeros((0, 0), np.uint16)
        self._publisher: Any = node.create_publisher(
            Image, TOPIC, publisher_qos(node, TOPIC, QoSProfile(depth=2))
        )

    def close(self) -> None:
        """End the publisher."""
        self._node.destroy_publisher(self._publisher)

    def see(self, entry: InFlight, found: Detections) -> None:
        """Publish the masks of what was found."""
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
