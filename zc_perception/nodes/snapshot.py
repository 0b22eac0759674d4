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

"""Service ``~/snapshot``: put one frame of a running camera on disk, as a picture and as it is."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import os
from pathlib import Path
import queue
import threading
import time
from typing import Any

from rclpy.qos import QoSProfile
from std_srvs.srv import Trigger

from zc_perception.camera.calibration import camera_name_of, ros_home
from zc_perception.camera.snapshot import PICTURE_SUFFIX, Snapshot
from zc_perception.camera.supervisor import CameraSupervisor
from zc_perception.errors import CameraError, ConfigError, one_line
from zc_perception.frame import Frame
from zc_perception.link.rclpy_compat import answer_later, ResponseSender
from zc_perception.local_path import expanded
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.params.node_parameters import NodeParameters
from zc_perception.nodes.perception_node import PerceptionNode

FRAME_WAIT_S = 2.0
"""Seconds that a snapshot waits for a frame."""
_MOST_WAITING = 4
_JOIN_S = 1.0
# As the container's: a request that finds no place is lost, and its caller waits for ever.
_REQUESTS = QoSProfile(depth=200)


def snapshot_folder(named: str) -> Path:
    """
    Return the absolute folder that parameter ``snapshot_folder`` means.

    Answers name it to clients that are elsewhere.

    :raises ConfigError: it has a variable or a user that isn't known here, which would become the
        name of a folder.
    """
    if not named:
        return Path(os.path.abspath(ros_home() / 'zc_perception' / 'snapshots'))
    path = expanded(named, 'snapshot_folder')
    if not path.strip() or '\0' in path:
        raise ConfigError(
            f"parameter 'snapshot_folder' is '{named}'; that is no name of a folder: "
            'give its path, or nothing for the usual one'
        )
    return Path(os.path.abspath(path))


class SnapshotService:
    """
    Answers from a thread of its own.

    So neither the camera's thread nor the executor's waits for a frame, a conversion or the disk.
    That thread begins with the first call. The frame's slot is free again after one copy, booked
    under ``snapshot``.

    :param supervisor: of the current camera: says why no frame comes, and how many come a second.
    """

    def __init__(
        self,
        node: PerceptionNode,
        parameters: NodeParameters,
        ledger: CopyLedger,
        supervisor: Callable[[], CameraSupervisor],
    ) -> None:
        self._parameters = parameters
        self._ledger = ledger
        self._supervisor = supervisor
        self._holder = f'{node.get_name()}:snapshot'
        self._prefix = camera_name_of(node.get_fully_qualified_name())
        self._requests: queue.Queue[tuple[Any, ResponseSender] | None] = queue.Queue()
        self._frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._wanted = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._node = node
        self._service = node.create_service(
            Trigger, '~/snapshot', lambda request, response: response, qos_profile=_REQUESTS
        )
        answer_later(self._service, self._on_request)

    def offer(self, frame: Frame) -> None:
        """Take a lease of a published frame if one is wanted; runs on the camera's thread."""
        if not self._wanted:
            return
        delivery = frame.deliver(self._holder)
        if delivery is not None:
            self._wanted = False
            self._frames.put(delivery)

    def _on_request(self, response: Any, send: ResponseSender) -> None:
        """
        Take a request; runs on the executor.

        The thread calls *send* later.
        """
        with self._lock:
            refusal = self._refusal()
            if not refusal:
                self._requests.put((response, send))
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name=f'snapshot {self._node.get_name()}', daemon=True
                    )
                    self._thread.start()
                return
        response.success, response.message = False, f'no snapshot: {refusal}'
        send(response)

    def _refusal(self) -> str:
        """Say why no snapshot can be taken; empty: one can."""
        if self._stop.is_set():
            return 'the node is ending'
        if not self._node.flowing:
            return f'the node is {self._node.state}, and no frames flow; {self._node.next_step()}'
        if self._requests.qsize() < _MOST_WAITING:
            return ''
        reason = self._supervisor().condition.reason
        guess = f'no frame comes: {reason}' if reason else 'is the disk slow?'
        return f'{_MOST_WAITING} snapshots wait already; {guess}; call again later'

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            response, send = request
            try:
                response.message = self._take()
                response.success = True
            except Exception as error:  # the caller must not wait for ever
                response.success, response.message = False, f'no snapshot: {one_line(error)}'
            with contextlib.suppress(Exception):  # the service may be gone, and the caller too
                send(response)

    def _take(self) -> str:
        """
        Take the snapshot; return one line about what was written.

        :raises ZcError: why nothing was.
        """
        frame = self._next_frame()
        supervisor = self._supervisor()
        if frame is None:
            why = '' if self._node.flowing and not self._stop.is_set() else self._refusal()
            reason = supervisor.condition.reason or 'the camera gives none'
            wait = f'no frame came within {FRAME_WAIT_S:g} s: {reason}; see /diagnostics'
            raise CameraError(why or wait)
        with frame:
            snapshot = Snapshot.of(frame, self._ledger)
        folder = snapshot_folder(self._parameters['snapshot_folder'])
        try:
            paths = snapshot.write(folder, self._prefix)
        except OSError as error:
            raise ConfigError(
                f"nothing was written to '{error.filename or folder}': "
                f'{error.strerror or error}; free space there, '
                "or set parameter 'snapshot_folder' to a folder that takes files"
            ) from error
        self._node.get_logger().info(f'snapshot of {snapshot.describe()}: {paths[0]}')
        missing = (
            ''
            if paths[-1].suffix == PICTURE_SUFFIX
            else '; no picture: that format is not shown by any viewer here'
        )
        return f'{snapshot.describe()}: {", ".join(map(str, paths))}{missing}'

    def _next_frame(self) -> Frame | None:
        with contextlib.suppress(queue.Empty):
            while True:  # one that came too late for the last call
                self._frames.get_nowait().release()
        self._wanted = True
        try:
            end = time.monotonic() + FRAME_WAIT_S
            while not self._stop.is_set() and self._node.flowing and time.monotonic() < end:
                with contextlib.suppress(queue.Empty):
                    return self._frames.get(timeout=min(0.1, FRAME_WAIT_S))
            return None
        finally:
            self._wanted = False

    def close(self) -> None:
        """
        End the thread, after what is being written.

        Idempotent.

        Calls are refused from here on.
        """
        with self._lock:
            self._stop.set()
            thread, self._thread = self._thread, None
        if thread is not None:
            self._requests.put(None)
            thread.join(_JOIN_S)
        with contextlib.suppress(queue.Empty):
            while True:
                self._frames.get_nowait().release()
