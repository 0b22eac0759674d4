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

"""A ROS context in the test's own process; closing it destroys its endpoints."""

from __future__ import annotations

from collections.abc import Callable
import threading
from typing import Any

from link_program import make_executor, spin
import rclpy
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.task import Future
from sensor_msgs.msg import Image

from zc_perception.frame import Frame
from zc_perception.link.announcement import Announcement, host_id
from zc_perception.link.endpoints import AdaptedPublisher, AdaptedSubscription
from zc_perception.link.type_adapter import TypeAdapter

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def announced(
    publisher_id: str, path: object = '/nowhere/x.sock', host: str = '', generation: int = 0
) -> Announcement:
    return Announcement(
        publisher_id, host or host_id(), str(path), 64, 48, ('NV12',), 'memfd', generation
    )


class ConversionRan(Exception):
    """Raised by an adapter that must never be called."""


def _refuse(value: Any) -> Any:
    raise ConversionRan(value)


RAISING = TypeAdapter(Frame, Image, _refuse, _refuse)


class Ros:
    def __init__(self, domain: int, executor: str) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.executor = make_executor(executor, self.context)
        self._nodes: list[Node] = []
        self._endpoints: list[Any] = []
        self.kind = executor
        self._stop = threading.Event()
        self._end: Any = Future()
        self.errors: list[Exception] = []
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def _spin(self) -> None:
        """Spin; go on after a callback raises."""
        while not self._stop.is_set():
            try:
                spin(self.executor, self.kind, self._stop, self._end)
                return
            except Exception as error:
                self.errors.append(error)

    def on_executor(self, work: Callable[[], None]) -> None:
        """Run *work* in the executor's thread, between callbacks."""
        finished = threading.Event()
        done = self.executor.create_task(work)
        done.add_done_callback(lambda future: finished.set())
        assert finished.wait(60.0), 'the executor is busy or dead'
        done.result()

    def node(self, name: str) -> Node:
        node = Node(name, context=self.context)
        self.executor.add_node(node)
        self._nodes.append(node)
        return node

    def publisher(
        self,
        node: Node,
        adapter: TypeAdapter[Any] = RAISING,
        qos: QoSProfile | None = None,
        topic: str = 'image',
        **options: Any,
    ) -> AdaptedPublisher[Any]:
        made = AdaptedPublisher(node, adapter, topic, qos or QoSProfile(depth=1), **options)
        self._endpoints.append(made)
        return made

    def subscription(
        self,
        node: Node,
        adapter: TypeAdapter[Any] = RAISING,
        qos: QoSProfile | None = None,
        **options: Any,
    ) -> AdaptedSubscription[Any]:
        topic = options.pop('topic', 'image')
        made = AdaptedSubscription(node, adapter, topic, qos or QoSProfile(depth=1), **options)
        self._endpoints.append(made)
        return made

    def close(self) -> None:
        self._stop.set()
        # An rclpy executor that is shut down just before it waits may wait for ever.
        self._end.set_result(None)
        self._thread.join(60.0)
        self.executor.shutdown()
        self._thread.join(60.0)
        for endpoint in self._endpoints:
            endpoint.destroy()
        for node in self._nodes:
            node.destroy_node()
        self.context.try_shutdown()
        # A queue's descriptor is closed with its last reference.
        self._endpoints.clear()
        self._nodes.clear()
        del self.executor
