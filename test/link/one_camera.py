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

"""A camera of tiny frames that reaches subscriptions of this process by one of three links."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import time
from typing import Any

from frame_kit import next_frame, nv12, pool_of
from link_program import grey_image
from link_ros import announced, LATCHED, Ros
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from std_msgs.msg import String
from waiting import eventually

from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedPublisher
from zc_perception.link.endpoints.frame_subscription import FrameSubscription
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.ledger import CopyLedger

RESERVE = 2


class Camera:
    """Publish frames by *way*, from a pool with :data:`RESERVE` slots for the camera itself."""

    def __init__(self, ros: Ros, way: str, folder: Path, *, slots: int = 8) -> None:
        self.way = way
        self._node = ros.node('camera')
        self.pool = pool_of(nv12(), slots, reserve=RESERVE)
        self.number = 0
        self.missed = 0
        self._server: SharedMemoryServer | None = None
        self._publisher: AdaptedPublisher[Frame] | None = None
        self._plain: Any = None
        if way in ('in_process', 'both'):
            adapter = frame_adapter('mono8', CopyLedger(), holder='camera')
            self._publisher = AdaptedPublisher(self._node, adapter, 'image', QoSProfile(depth=1))
        if way in ('shared_memory', 'both'):
            identity = self._publisher.publisher_id if self._publisher else 'a' * 32
            self._server = SharedMemoryServer('camera', identity, self.pool, folder=folder)
            if self._publisher is not None:
                self._publisher.use(self.pool)
                self._publisher.serve(self._server)
                self._publisher.announce(width=32, height=16, formats=('NV12',), heap='memfd')
            else:
                announcer = self._node.create_publisher(String, 'image/_zc', LATCHED)
                announcer.publish(String(data=announced(identity, self._server.path).to_json()))
        if way == 'ros_message':
            self._plain = self._node.create_publisher(Image, 'image', QoSProfile(depth=20))

    def publish(self) -> int:
        """Publish one more frame, and return its number, which is also its stamp and luma."""
        self.number += 1
        if self._plain is not None:
            self._plain.publish(grey_image(self.number % 250, self.number))
            return self.number
        slot = self.pool.acquire()
        if slot is None:
            self.missed += 1
            return self.number
        with next_frame(self.pool, self.number, slot) as frame:
            if self._publisher is not None:
                self._publisher.publish(frame)
            elif self._server is not None:
                self._server.publish(frame)
        return self.number

    def met(self, subscription: FrameSubscription) -> bool:
        """Return whether *subscription* is connected, so that it gets the next frame."""
        if self._plain is not None:
            return bool(self._plain.get_subscription_count())
        if self.way == 'in_process':
            return True
        # A subscription without a callback connects in a thread of its own.
        return subscription.statistics().window > 0

    def peers(self) -> list[tuple[str, int, int]]:
        """Return name, frames in hand and window of each consumer that takes slots of the pool."""
        here = () if self._publisher is None else self._publisher.in_process_peers()
        there = () if self._server is None else self._server.statistics().consumers
        return [(peer.name, len(peer.in_hand), peer.window) for peer in (*here, *there)]

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.destroy()
        elif self._server is not None:
            self._server.close()
        self.pool.close()


def number_of(frame: Frame) -> int:
    return frame.header.stamp_ns % 1_000_000_000


def publishing(camera: Camera, condition: Callable[[], Any], seconds: float = 60.0) -> bool:
    """Publish at about 50 Hz until *condition* is true; return ``False`` after *seconds*."""

    def publish() -> None:
        camera.publish()
        time.sleep(0.02)

    return eventually(condition, seconds, publish)
