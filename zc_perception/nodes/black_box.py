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

"""Service ``~/trigger``: write to the disk what the black box has kept, while it keeps on."""

from __future__ import annotations

import contextlib
from pathlib import Path
import queue
import threading
import time
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSProfile
from std_srvs.srv import Trigger

from zc_perception.camera.recording import BlackBox, Kept, write_event
from zc_perception.errors import one_line
from zc_perception.link.rclpy_compat import answer_later, ResponseSender

_MOST_WAITING = 4
_JOIN_S = 10.0
_REQUESTS = QoSProfile(depth=200)


class TriggerService:
    """
    Answers from a thread of its own, which lives as long as the black box.

    Triggers are written one after the other, each with what came until it was called.
    """

    def __init__(self, node: Node, box: BlackBox, folder: Path, floor_bytes: int) -> None:
        self._node = node
        self._box = box
        self._folder = folder
        self._floor_bytes = floor_bytes
        self.written = 0
        self.failure = ''
        self._requests: queue.Queue[tuple[Any, ResponseSender, list[Kept], int] | None] = (
            queue.Queue()
        )
        self._service = node.create_service(
            Trigger, '~/trigger', lambda request, response: response, qos_profile=_REQUESTS
        )
        answer_later(self._service, self._on_request)
        self._thread = threading.Thread(target=self._run, name='black box', daemon=True)
        self._thread.start()

    def _on_request(self, response: Any, send: ResponseSender) -> None:
        """Take a request; runs on the executor."""
        if self._requests.qsize() < _MOST_WAITING:
            now_ns = time.time_ns()
            self._requests.put((response, send, self._box.last(now_ns), now_ns))
            return
        response.success = False
        response.message = f'{_MOST_WAITING} triggers wait for the disk; call again later'
        send(response)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            response, send, chosen, now_ns = request
            try:
                response.message = write_event(chosen, self._folder, now_ns, self._floor_bytes)
                response.success = True
                self.written += 1
                self.failure = ''
                self._node.get_logger().info(response.message)
            except Exception as error:  # the caller must not wait for ever
                response.success = False
                response.message = self.failure = f'nothing was written: {one_line(error)}'
                self._node.get_logger().error(response.message)
            with contextlib.suppress(Exception):  # the service may be gone, and the caller too
                send(response)

    def close(self) -> None:
        """Write what was asked for, and stop offering the service."""
        self._node.destroy_service(self._service)
        self._requests.put(None)
        self._thread.join(_JOIN_S)
