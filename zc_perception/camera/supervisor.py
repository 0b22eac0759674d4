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
Keep one camera running.

The supervisor opens the camera, captures its frames on a thread of its own, and opens it again
when it was unplugged, busy, silent or changed. It doesn't use ROS: its owner passes functions that
open the camera, negotiate its buffers and receive its frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
import os
import threading
import time
import traceback

from zc_perception.backoff import BackOff
from zc_perception.camera.camera import Camera
from zc_perception.errors import (
    AllocationError,
    CameraChangedError,
    CameraError,
    CameraLostError,
    NegotiationError,
    one_line,
    RecordingError,
    ZcError,
)
from zc_perception.frame import Frame
from zc_perception.log import on_stderr

FIRST_RETRY_S = 0.5
LAST_RETRY_S = 10.0
# If a camera ran this long before it failed, it is opened again after the shortest pause.
_HEALTHY_S = 10.0


class CameraState(Enum):
    """The state of a camera between its first opening and its end."""

    CLOSED = 'closed'
    STREAMING = 'streaming'
    LOST = 'lost'
    ENDED = 'ended'
    FAILED = 'failed'


class Renewal(Enum):
    """The ways in which a camera gets other buffers; each value describes its way in words."""

    NONE = 'it keeps its buffers'
    REALLOCATE = 'it allocates new buffers'
    REOPEN = 'it is closed and opened again'


@dataclass(frozen=True)
class CameraCondition:
    """
    A camera's condition, for diagnostics.

    :param reason: why the camera isn't streaming; empty while it streams.
    :param attempts: how many attempts were made to open the camera; the count restarts when a
        camera is lost that had run for more than 10 s.
    :param losses: how often the camera was lost since the supervisor was made.
    :param retry_s: seconds until the next attempt to open the camera.
    """

    state: CameraState
    reason: str = ''
    attempts: int = 0
    losses: int = 0
    retry_s: float = 0.0


class CameraSupervisor:
    """
    Runs one camera on one thread.

    If opening, negotiating buffers or capturing fails, the thread closes the camera and opens it
    again after a pause, which doubles up to :data:`LAST_RETRY_S`. After a
    :class:`CameraChangedError` there is no pause. Only the same device (:attr:`Camera.identity`)
    is opened again, never another camera. An ``OSError`` of the system, such as "no more
    descriptors", is handled like a failure of the camera. Any other error ends the thread with
    state FAILED.

    :param open_camera: opens the camera; its argument is the identity of the wanted camera, empty
        at the first opening.
    :param prepare: makes an opened camera ready to capture: it negotiates buffers and announces
        them to the links. The supervisor's thread or :meth:`prepare_now` calls it.
    :param deliver: called with each frame. The supervisor releases that frame when *deliver* has
        returned.
    :param on_condition: called at each change of the condition; must not block.
    :param renew: called between two frames; returns whether and how the camera gets other buffers.
        For ``Renewal.REALLOCATE``, *prepare* is called again at once. For ``Renewal.REOPEN``, the
        camera is closed and opened first.
    :param before_close: called before a camera is closed, so that other code stops using it.
    :param wait_s: seconds that the thread waits before it opens the camera for the first time.
    :param identity: identity of the wanted camera, if it is known; empty: any camera is accepted.
    """

    def __init__(
        self,
        name: str,
        open_camera: Callable[[str], Camera],
        prepare: Callable[[Camera], None],
        deliver: Callable[[Frame], None],
        on_condition: Callable[[CameraCondition], None] = lambda condition: None,
        *,
        renew: Callable[[], Renewal] = lambda: Renewal.NONE,
        before_close: Callable[[], None] = lambda: None,
        wait_s: float = 0.0,
        first_retry_s: float = FIRST_RETRY_S,
        identity: str = '',
    ) -> None:
        self._open_camera = open_camera
        self._prepare = prepare
        self._deliver = deliver
        self._on_condition = on_condition
        self._renew = renew
        self._before_close = before_close
        self._wait_s = wait_s
        self._first_retry_s = first_retry_s
        self._retry = BackOff(first_retry_s, LAST_RETRY_S)
        self._camera: Camera | None = None
        self._prepared = False
        self._identity = identity
        self._losses = 0
        self._attempts = 0
        self._condition = CameraCondition(CameraState.CLOSED)
        self._streaming_since = 0.0
        self._stop = threading.Event()
        # Guards only self._camera: another thread may call stop() while the camera is replaced.
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def camera(self) -> Camera | None:
        """The open camera; ``None`` while none is open."""
        return self._camera

    @property
    def identity(self) -> str:
        """
        The identity of the wanted camera; a camera with another identity is refused.

        The supervisor's owner may give this identity. Otherwise it is the identity of the first
        camera that was opened, and empty before that.
        """
        return self._identity

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """The supervisor's thread and the open camera's threads, for code that sets priorities."""
        with self._lock:
            camera = self._camera
        return [self._thread, *(() if camera is None else camera.threads)]

    @property
    def condition(self) -> CameraCondition:
        """The camera's condition."""
        condition = self._condition
        if condition.state is not CameraState.LOST:
            return condition
        return CameraCondition(
            condition.state,
            condition.reason,
            self._attempts,
            self._losses,
            self._retry.remaining_s,
        )

    @property
    def finished(self) -> bool:
        """Whether no frame will come any more."""
        return self._condition.state in (CameraState.ENDED, CameraState.FAILED)

    @property
    def stopping(self) -> bool:
        """Whether :meth:`stop` was called; if so, a camera that is still being opened gives up."""
        return self._stop.is_set()

    @property
    def started(self) -> bool:
        """Whether the thread was started."""
        return self._thread.ident is not None

    def open_now(self) -> None:
        """
        Open the camera in the calling thread, before :meth:`start`.

        If the camera is missing or busy, no error is raised: once started, the thread tries again.

        :raises ConfigError: the camera can't fulfil the parameters, and waiting would not help.
        """
        self._now(self._open)

    def prepare_now(self) -> None:
        """
        Negotiate an opened camera's buffers in the calling thread, before :meth:`start`.

        If the camera is lost or becomes busy, no error is raised: the thread tries again later.

        :raises ConfigError: the camera can't fulfil the parameters.
        :raises NegotiationError: camera and consumers have no buffer setting in common.
        :raises AllocationError: there is not enough memory.
        """
        self._now(self._prepare_open)

    def _now(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (CameraError, OSError) as error:
            self._lose(error)

    def _prepare_open(self) -> None:
        if self._camera is not None and not self._prepared:
            self._prepare(self._camera)
            self._prepared = True

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 1.5) -> None:
        """Stop the thread, waiting for it at most *timeout_s*; close the camera. Idempotent."""
        self._stop.set()
        with self._lock:
            if self._camera is not None:
                self._end(self._camera.stop)
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        # If the thread still waits in a call of the camera, the thread itself closes the camera
        # after that call.
        if not self._thread.is_alive():
            self._close()

    def _run(self) -> None:
        self._stop.wait(self._wait_s)
        try:
            while not self._stop.is_set() and not self.finished:
                self._live()
        except (Exception, SystemExit) as error:
            # Report each error as FAILED, even a library's sys.exit(). Otherwise the thread would
            # end, but the condition would stay as it is, for example STREAMING.
            text = (
                one_line(error)
                if isinstance(error, ZcError)
                else f'{one_line(error)} ({_place(error)})'
            )
            self._become(CameraCondition(CameraState.FAILED, text, losses=self._losses))
        finally:
            if self._stop.is_set():
                self._close()

    def _live(self) -> None:
        """Open the camera if needed, and capture until it is lost or has ended."""
        try:
            if self._camera is None:
                self._stop.wait(self._retry.remaining_s)
                if self._stop.is_set():
                    return
                self._attempts += 1
                self._open()
            self._prepare_open()
            self._streaming_since = time.monotonic()
            self._capture()
        except CameraChangedError as error:
            self._close()
            # Open the camera again at once. But if its source keeps changing, open the camera at
            # most once per first_retry_s.
            self._retry.due = self._streaming_since + self._first_retry_s
            self._become(CameraCondition(CameraState.LOST, str(error), losses=self._losses))
        except (
            RecordingError
        ):  # a recording isn't opened again, because it would begin at its first frame
            raise
        except (CameraError, NegotiationError, AllocationError, OSError) as error:
            self._lose(error)

    def _capture(self) -> None:
        camera = self._camera
        while camera is not None and not self._stop.is_set():
            renewal = self._renew()
            if renewal is Renewal.REOPEN:
                self._close()
                return
            if renewal is Renewal.REALLOCATE:
                self._prepare(camera)
            if camera.ended:
                self._become(CameraCondition(CameraState.ENDED, losses=self._losses))
                return
            frame = camera.capture()
            streaming = self._condition.state is CameraState.STREAMING
            # A camera of a stereo pair returns no frame while the pair's other camera has none.
            # Nevertheless, a camera that has captured frames counts as streaming.
            if not streaming and (frame is not None or camera.statistics().captured):
                self._become(CameraCondition(CameraState.STREAMING, losses=self._losses))
            if frame is None:
                continue
            with frame:
                self._deliver(frame)

    def _open(self) -> None:
        camera = self._open_camera(self._identity)
        if self._identity and camera.identity != self._identity:
            other = camera.identity
            self._end(camera.close)
            raise CameraLostError(
                f"another camera ('{other}') is where '{self._identity}' was; plug the earlier "
                'camera in again, or restart the node'
            )
        self._identity = camera.identity
        with self._lock:
            self._camera, self._prepared = camera, False
            if self._stop.is_set():
                self._end(camera.stop)

    def _lose(self, error: ZcError | OSError) -> None:
        self._close()
        if self._stop.is_set():  # stop() made the camera's call fail: no camera is lost
            return
        if self._condition.state is CameraState.STREAMING:
            self._losses += 1
            if time.monotonic() - self._streaming_since > _HEALTHY_S:
                self._attempts = 0
                self._retry.start_over()
        self._retry.failed()
        self._become(
            CameraCondition(
                CameraState.LOST, str(error), self._attempts, self._losses, self._retry.pause_s
            )
        )

    def _become(self, condition: CameraCondition) -> None:
        self._condition = condition
        self._on_condition(condition)

    def _close(self) -> None:
        with self._lock:
            camera, self._camera = self._camera, None
        if camera is not None:
            self._before_close()
            self._end(camera.close)

    def _end(self, step: Callable[[], None]) -> None:
        """Stop or close a camera; print its error, don't raise it, so that the caller goes on."""
        try:
            step()
        except (Exception, SystemExit) as error:  # a camera of another package may raise anything
            name = getattr(step, '__qualname__', 'its end')
            on_stderr(f'{self._thread.name}: {name} failed: {one_line(error)} ({_place(error)})')


def _place(error: BaseException) -> str:
    """Return file and line that raised the error, for the camera's author."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f'{os.path.basename(last.filename)}:{last.lineno}'
