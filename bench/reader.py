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
The reader of a benchmark: a node in a process of its own that subscribes to detections.

``python -m bench.reader reader HOW``. HOW is ``decoded``, or ``raw`` to leave messages serialized,
so that the time to decode them isn't measured. The process reads one JSON command per line from
standard input, and writes one line of JSON for each.

- ``watch`` takes ``topics``. The reader subscribes to these topics only, and resets its counts.
- ``received`` answers ``received``: the number of messages since the last ``received``.
- ``first`` answers ``first_ns``: CLOCK_MONOTONIC of the first message; 0: none has come yet.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import sys
import time
from typing import Any

from bench.obeying import obey, run_worker
import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile
from vision_msgs.msg import Detection2DArray

from zc_perception.nodes.process import ExecutorThread


class Reader:
    """Counts detections on the executor's thread; the main thread calls all public methods."""

    def __init__(self, node: Node, *, raw: bool) -> None:
        self._node = node
        self._raw = raw
        self._subscriptions: dict[str, Any] = {}
        self._received = self._first_ns = 0

    def watch(self, topics: Sequence[str]) -> dict[str, Any]:
        """Subscribe to these topics only, and reset the counts."""
        for topic in self._subscriptions.keys() - set(topics):
            self._node.destroy_subscription(self._subscriptions.pop(topic))
        for topic in topics:
            if topic not in self._subscriptions:
                self._subscriptions[topic] = self._node.create_subscription(
                    Detection2DArray, topic, self._take, QoSProfile(depth=10), raw=self._raw
                )
        self._received = self._first_ns = 0
        return {}

    def _take(self, message: object) -> None:
        self._first_ns = self._first_ns or time.monotonic_ns()
        self._received += 1

    def received(self) -> dict[str, Any]:
        """Return the number of messages since the last call."""
        received, self._received = self._received, 0
        return {'received': received}

    def first(self) -> dict[str, Any]:
        """Return when the first message since :meth:`watch` came; 0: none has come."""
        return {'first_ns': self._first_ns}


def _serve(context: rclpy.Context, how: str) -> None:
    with contextlib.ExitStack() as ending:
        running = ExecutorThread(context, lambda: None)
        ending.callback(running.stop)
        node = Node('bench_reader', context=context)
        ending.callback(node.destroy_node)
        running.executor.add_node(node)
        reader = Reader(node, raw=how == 'raw')
        running.start()
        obey(reader, running)


if __name__ == '__main__':
    run_worker(lambda context: _serve(context, *sys.argv[2:]))
