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
An observer node: takes every frame by the shared-memory link, and counts detections.

It reads each frame's number from the pixels. So it detects a buffer that is written while held, a
frame that comes twice or in the wrong order, and a stamp that goes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import contextlib
import threading
import time
from typing import Any

from camera.jpeg_kit import read_counter
from faults.harness import Stretch
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from nodes.ros_kit import answer_of, Onlooker, Reader
from rclpy.executors import ExternalShutdownException
from rclpy.logging import LoggingSeverity, set_logger_level
from rclpy.qos import QoSProfile
from rclpy.task import Future
from vision_msgs.msg import Detection2DArray
from waiting import eventually, until

from zc_perception.frame import Frame
from zc_perception.link.endpoints.frame_subscription import FrameSubscription

NAME = 'fault_witness'
# How many frames may wait for it: a second's, so that a busy moment costs it none.
DEPTH = 30


class Stalls:
    """How long threads of this process were kept from running: then timing tests prove nothing."""

    def __init__(self) -> None:
        self._seen = 0.0, time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name='stalls', daemon=True)
        self._thread.start()

    @property
    def total_s(self) -> float:
        """Return the seconds until now; the calling thread may run before the counting thread."""
        total, before = self._seen
        return total + max(0.0, time.monotonic() - before - 0.03)

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self._seen = self.total_s, time.monotonic()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


class Pauses:
    """
    The longest time between two events, with and without stalls; for one thread.

    :ivar longest_s: by the clock.
    :ivar longest_own_s: without stalls, each of which may stop every process involved.
    """

    def __init__(self, stalled_s: Callable[[], float]) -> None:
        self._stalled_s = stalled_s
        self._last: tuple[float, float] | None = None
        self.longest_s = self.longest_own_s = 0.0

    def begin(self) -> None:
        self._last = time.monotonic(), self._stalled_s()
        self.longest_s = self.longest_own_s = 0.0

    def came(self, now_s: float) -> None:
        stalled_s = self._stalled_s()
        if self._last is not None:
            pause_s = now_s - self._last[0]
            self.longest_s = max(self.longest_s, pause_s)
            self.longest_own_s = max(self.longest_own_s, pause_s - (stalled_s - self._last[1]))
        self._last = now_s, stalled_s


class Spinning:
    def __init__(self, onlooker: Onlooker) -> None:
        self._onlooker = onlooker
        self._end: Any = Future()
        self._thread = threading.Thread(
            target=self._spin, name=f'{onlooker.node.get_name()} executor', daemon=True
        )
        self._thread.start()

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException):
            self._onlooker.executor.spin_until_future_complete(self._end)

    def stop(self) -> None:
        """
        End the thread; only then may the executor be shut down.

        An rclpy executor that is shut down while it begins to wait may wait for ever.
        """
        self._end.set_result(None)
        self._thread.join(60.0)


class Witness(Reader):
    """
    The observer; see the module. Uses an executor's thread, and a thread for frames.

    :param oldest_s: the largest age of a frame when the witness looked at it: a small value shows
        that it keeps up.
    :param wrong_pixels: frames whose picture doesn't match their descriptor.
    :param disorder: frames that came twice or too late.
    """

    def __init__(self, domain: int, *, frames: bool = True) -> None:
        super().__init__(domain, NAME)
        set_logger_level(NAME, LoggingSeverity.ERROR)
        self._lock = threading.Lock()
        self.stretches: list[Stretch] = []
        self.received = self.detections = 0
        self.wrong_pixels = self.disorder = self.detection_disorder = 0
        self._stalls = Stalls()
        self.frame_pauses, self.detection_pauses = Pauses(self.stalled_s), Pauses(self.stalled_s)
        self.stalled_before_s = 0.0
        self.last_stamp_ns = self.last_detection_ns = 0
        self.detection_stamps: deque[int] = deque(maxlen=1000)
        self.oldest_s = 0.0
        self._clients: dict[str, Any] = {}
        self._stop = threading.Event()
        self.node.create_subscription(
            Detection2DArray, 'detections', self._on_detections, QoSProfile(depth=100)
        )
        self.frames: Any = (
            FrameSubscription(self.node, 'image_raw', depth=DEPTH, held=2, copy_free_required=True)
            if frames
            else None
        )
        # Its connections are counted there.
        self._links: Any = self.frames and self.frames._remote
        self._spinning = Spinning(self)
        self._taking = threading.Thread(target=self._take, name='witness frames', daemon=True)
        if frames:
            self._taking.start()

    def _take(self) -> None:
        while not self._stop.is_set():
            if (frame := self.frames.queue.get(0.1)) is not None:
                with frame:
                    self._look(frame)

    def _look(self, frame: Frame) -> None:
        data = frame.data
        with frame.map() as planes:
            code = read_counter(planes[0])
        now, dropped = time.monotonic(), self.frames.statistics().dropped
        connection = sum(each.connections for each in self._links.statistics().values())
        wrong = (
            code is None
            or code.counter != data.sequence & 0xFFFFFFFF
            or code.stamp_ns != frame.header.stamp_ns
        )
        # A forgotten camera's connections are no longer counted, so the sum alone may seem
        # unchanged.
        place = connection, data.buffer_uid >> 32
        with self._lock:
            current = self.stretches[-1] if self.stretches else None
            if current is None or place != (current.connection, current.pool):
                current = Stretch(data.captured_ns, dropped, *place)
                self.stretches.append(current)
            self.disorder += (
                data.sequence <= current.sequence or frame.header.stamp_ns <= self.last_stamp_ns
            )
            current.sequence, current.last_ns = data.sequence, data.captured_ns
            current.dropped = dropped - current.dropped_before
            current.captured.append(data.captured_ns)
            self.wrong_pixels += wrong
            self.received += 1
            self.last_stamp_ns = frame.header.stamp_ns
            self.frame_pauses.came(now)
            self.oldest_s = max(self.oldest_s, now - data.captured_ns / 1e9)

    def _on_detections(self, message: Detection2DArray) -> None:
        stamp = message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec
        now = time.monotonic()
        with self._lock:
            self.detections += 1
            self.detection_stamps.append(stamp)
            self.detection_disorder += stamp <= self.last_detection_ns
            self.last_detection_ns = stamp
            self.detection_pauses.came(now)

    def stalled_s(self) -> float:
        """Return how long this process was stalled so far; others may stall with it."""
        return 3 * self._stalls.total_s

    def new_life(self) -> None:
        """Reset the last stamps: the camera's new process starts its stamps anew."""
        with self._lock:
            self.last_stamp_ns = self.last_detection_ns = 0

    def begin(self) -> None:
        """Forget the counts: frames from now on belong to the next fault."""
        with self._lock:
            self.stretches = [stretch.continued() for stretch in self.stretches[-1:]]
            self.wrong_pixels = self.disorder = self.detection_disorder = 0
            self.oldest_s = 0.0
            self.frame_pauses.begin()
            self.detection_pauses.begin()
            self.stalled_before_s = self.stalled_s()

    def finish(self) -> list[Stretch]:
        """Return the stretches since :meth:`begin`; the first continues an earlier one."""
        with self._lock:
            found = self.stretches
            self.stretches = [stretch.continued() for stretch in found[-1:]]
            return found

    def expect(self, frames: int = 3, detections: int = 2) -> None:
        """Wait until this many more frames and detections have come."""
        wanted = self.received + frames, self.detections + detections
        until(
            lambda: self.received >= wanted[0] and self.detections >= wanted[1],
            lambda: f'frames and detections ({self.describe()})',
        )

    def describe(self) -> str:
        links = [] if self.frames is None else [self.frames.statistics()]
        link = ''.join(f'{each.rung}: {each.reason}; ' for each in links)
        bad = {name: text for name, text in self.messages().items() if self.level(name)}
        return f'{link}{self.received} frames, {self.detections} detections, {bad}'

    def number(self, name: str, key: str) -> int:
        return int(self.values(name).get(key, '0'))

    def _client(self, kind: Any, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self.node.create_client(kind, service)
        client = self._clients[service]
        assert client.wait_for_service(60.0), f'no service {service}'
        return client

    def know_capture(self) -> None:
        """
        Wait until the capture node has discovered the readers of all its answers.

        A node that answers the state request has also discovered the reader of transition answers:
        it was made earlier.
        """
        self._client(ChangeState, '/capture/change_state')
        client = self._client(GetState, '/capture/get_state')
        answer_of(client, GetState.Request(), lambda future, s: eventually(future.done, s))

    def change(self, transition: str) -> bool:
        """Request a transition of the capture node; return whether it succeeded."""
        self.know_capture()  # this request must not come twice
        wanted = Transition(id=getattr(Transition, f'TRANSITION_{transition.upper()}'))
        client = self._client(ChangeState, '/capture/change_state')
        future = client.call_async(ChangeState.Request(transition=wanted))
        until(future.done, f'the answer to {transition}')
        return bool(future.result().success)

    def close(self) -> None:
        self._stop.set()
        self._stalls.close()
        self._spinning.stop()
        if self.frames is not None:
            self._taking.join(60.0)
            self.frames.destroy()
        super().close()
        # A queue's descriptors are closed with its last reference.
        self.frames = self._links = None
