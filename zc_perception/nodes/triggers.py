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
Services that write to the disk.

``~/snapshot`` of a capture node writes the next frame. ``~/trigger`` of a recorder writes the
messages that its black box has kept in memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
import contextlib
import os
from pathlib import Path
import queue
import threading
import time
from typing import Any, TYPE_CHECKING

from rclpy.node import Node
from rclpy.qos import QoSProfile
from std_srvs.srv import Trigger

from zc_perception.camera.calibration import camera_name_of, ros_home
from zc_perception.camera.supervisor import CameraSupervisor
from zc_perception.errors import CameraError, ConfigError, one_line
from zc_perception.frame import Frame
from zc_perception.link.rclpy_compat import answer_later, ResponseSender
from zc_perception.local_path import expanded
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.params.node_parameters import NodeParameters
from zc_perception.nodes.perception_node import PerceptionNode

if TYPE_CHECKING:
    from zc_perception.camera.recording import BlackBox

FRAME_WAIT_S = 2.0
"""How many seconds a request for a snapshot waits at most for the camera's next frame."""
_MOST_WAITING = 4
# The middleware's queue of requests. When it is full, a further request is lost, and its caller
# waits for ever. So this queue is long, like that of the component container's services.
_REQUESTS = QoSProfile(depth=200)


def snapshot_folder(named: str) -> Path:
    """
    Return the absolute folder for parameter ``snapshot_folder``.

    The answers of service ``~/snapshot`` name the folder to clients. A client may run in another
    folder, so the path must be absolute.

    :raises ConfigError: the parameter's path names an environment variable that isn't set, or an
        unknown user after ``~``, or it is no path.
    """
    if not named:
        return Path(os.path.abspath(ros_home() / 'zc_perception' / 'snapshots'))
    path = expanded(named, 'snapshot_folder')
    if not path.strip() or '\0' in path:
        raise ConfigError(
            f"parameter 'snapshot_folder' is '{named}'; that can't be a folder: "
            'give the path of a folder, or leave the parameter empty for the default'
        )
    return Path(os.path.abspath(path))


class _Trigger(ABC):
    """
    A service that handles one call at a time, on its own thread.

    So neither the executor nor a camera waits for the disk. The thread starts at the first call.

    :param refused: how the answer to a refused or failed call begins.
    """

    def __init__(self, node: Node, name: str, refused: str) -> None:
        self._node = node
        self._refused = refused
        self._name = f'{name} {node.get_name()}'
        self._requests: queue.Queue[tuple[Any, ResponseSender, Any] | None] = queue.Queue()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._service = node.create_service(
            Trigger, f'~/{name}', lambda request, response: response, qos_profile=_REQUESTS
        )
        answer_later(self._service, self._on_request)

    def _on_request(self, response: Any, send: ResponseSender) -> None:
        """
        Queue a request, or refuse it at once; called on the executor's thread.

        :param response: the answer, whose fields have no values yet.
        :param send: sends the answer; for a queued request this service's thread calls it.
        """
        with self._lock:
            refusal = 'the node is ending' if self._stop.is_set() else self._refusal()
            if not refusal:
                self._requests.put((response, send, self._noted()))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
                return
        response.success, response.message = False, f'{self._refused}: {refusal}'
        send(response)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            response, send, noted = request
            try:
                response.message, response.success = self._work(noted), True
            except Exception as error:  # answer after any error: else the caller waits for ever
                response.success, response.message = False, f'{self._refused}: {one_line(error)}'
            with contextlib.suppress(Exception):  # the service or the caller may be gone
                send(response)

    def _noted(self) -> Any:
        """Return the data for :meth:`_work` that must be taken now, when the request arrives."""
        return None

    @abstractmethod
    def _refusal(self) -> str:
        """Return why nothing can be written now; empty: a request is accepted."""

    @abstractmethod
    def _work(self, noted: Any) -> str:
        """Handle a request; return one line about the written files."""

    def close(self, patience_s: float = 1.0) -> None:
        """Refuse new requests, finish the queued ones, and end the thread. Idempotent."""
        with self._lock:
            self._stop.set()
            thread, self._thread = self._thread, None
        if thread is not None:
            self._requests.put(None)
            thread.join(patience_s)


class SnapshotService(_Trigger):
    """
    Copies the next frame, releases the frame, and writes the copy to files.

    The copy ledger counts the copy as ``snapshot``.

    :param supervisor: returns the camera's present supervisor, which knows why no frame comes.
    """

    def __init__(
        self,
        node: PerceptionNode,
        parameters: NodeParameters,
        ledger: CopyLedger,
        supervisor: Callable[[], CameraSupervisor],
    ) -> None:
        self._owner = node
        self._parameters = parameters
        self._ledger = ledger
        self._supervisor = supervisor
        self._holder = f'{node.get_name()}:snapshot'
        self._prefix = camera_name_of(node.get_fully_qualified_name())
        self._frames: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self._wanted = False
        super().__init__(node, 'snapshot', 'no snapshot')

    def offer(self, frame: Frame) -> None:
        """Keep a published frame if a request waits for one; called on the camera's thread."""
        if not self._wanted:
            return
        delivery = frame.deliver(self._holder)
        if delivery is not None:
            self._wanted = False
            self._frames.put(delivery)

    def _refusal(self) -> str:
        node = self._owner
        if not node.flowing:
            return f'the node is {node.state}, and no frames flow; {node.next_step()}'
        if self._requests.qsize() < _MOST_WAITING:
            return ''
        reason = self._supervisor().condition.reason
        guess = f'no frame comes: {reason}' if reason else 'perhaps the disk is slow'
        return f'{_MOST_WAITING} snapshots wait already; {guess}; call again later'

    def _work(self, noted: Any) -> str:
        from zc_perception.camera.recording import PICTURE_SUFFIX, Snapshot

        frame = self._next_frame()
        if frame is None:
            if self._stop.is_set():
                raise CameraError('the node is ending')
            reason = self._supervisor().condition.reason or 'the camera gives no frames'
            wait = f'no frame came within {FRAME_WAIT_S:g} s: {reason}; see /diagnostics'
            raise CameraError(wait if self._owner.flowing else self._refusal())
        with frame:
            snapshot = Snapshot.of(frame, self._ledger)
        folder = snapshot_folder(self._parameters['snapshot_folder'])
        try:
            paths = snapshot.write(folder, self._prefix)
        except OSError as error:
            raise ConfigError(
                f"nothing was written to '{error.filename or folder}': {error.strerror or error}; "
                "free space there, or set parameter 'snapshot_folder' to a folder that takes files"
            ) from error
        self._node.get_logger().info(f'snapshot of {snapshot.describe()}: {paths[0]}')
        missing = (
            ''
            if paths[-1].suffix == PICTURE_SUFFIX
            else '; no picture was written, because this package cannot convert the format'
        )
        return f'{snapshot.describe()}: {", ".join(map(str, paths))}{missing}'

    def _next_frame(self) -> Frame | None:
        # Release an old frame, which may have come after the last request had given up waiting.
        self._forget()
        self._wanted = True
        try:
            end = time.monotonic() + FRAME_WAIT_S
            while not self._stop.is_set() and self._owner.flowing and time.monotonic() < end:
                with contextlib.suppress(queue.Empty):
                    return self._frames.get(timeout=min(0.1, FRAME_WAIT_S))
            return None
        finally:
            self._wanted = False

    def _forget(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._frames.get_nowait().release()

    def close(self, patience_s: float = 1.0) -> None:
        """End the thread, and release a frame that was not written."""
        super().close(patience_s)
        self._forget()


class TriggerService(_Trigger):
    """Writes the messages that the black box (in memory) held when the request came."""

    def __init__(self, node: Node, box: BlackBox, folder: Path, floor_bytes: int) -> None:
        self._box = box
        self._folder = folder
        self._floor_bytes = floor_bytes
        self.written = 0
        self.failure = ''
        super().__init__(node, 'trigger', 'nothing was written')

    def _noted(self) -> Any:
        steady_ns, now_ns = time.monotonic_ns(), time.time_ns()
        # The box keeps times of CLOCK_MONOTONIC; a recording has times of the system clock.
        ahead_ns = now_ns - steady_ns
        kept = self._box.last(steady_ns)
        return [each._replace(log_ns=each.log_ns + ahead_ns) for each in kept], now_ns

    def _refusal(self) -> str:
        waiting = self._requests.qsize() >= _MOST_WAITING
        return f'{_MOST_WAITING} triggers wait for the disk; call again later' if waiting else ''

    def _work(self, noted: Any) -> str:
        from zc_perception.camera.recording import write_event

        chosen, now_ns = noted
        try:
            written = write_event(chosen, self._folder, now_ns, self._floor_bytes)
        except Exception as error:
            self.failure = f'{self._refused}: {one_line(error)}'
            self._node.get_logger().error(self.failure)
            raise
        self.written += 1
        self.failure = ''
        self._node.get_logger().info(written)
        return written

    def close(self, patience_s: float = 10.0) -> None:
        """Remove the service, and finish the queued requests."""
        self._node.destroy_service(self._service)
        super().close(patience_s)
