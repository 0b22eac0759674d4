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
Stand-ins for a camera and an accelerator, which leave only the host's own work to measure.

The camera's slots are filled beforehand. So a frame costs the host as much as a driver's frame:
acquiring a slot and making the frame's description. The accelerator takes a set time, but no CPU
time. It does the same as ``axl`` around its ioctls: it imports through the cache, the kernel
signals its fence, and the result is ready in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import contextlib
import queue
import select
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.camera import DrawnCamera, SLOT_WAIT_S
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, CameraError
from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import DeadlineFence, Fence, poll_fd
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.settings import BufferSettings
from zc_perception.npu.accelerator import Accelerator, Capabilities, ImportHandle, Outputs
from zc_perception.npu.axl.accelerator import import_key, ImportCache
from zc_perception.npu.manifest import ModelManifest
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.modifier import LINEAR

_GREY = 128


class PrefilledCamera(DrawnCamera):
    """
    Delivers frames while :attr:`running` is set; if no slot is free, it counts a lost frame.

    :param unthrottled: a frame comes when :meth:`go_on` is called, instead of at a steady rate.
    :param from_due: a frame's time stamp is the time it was due, as with a driver, instead of the
        time its thread woke up.
    """

    def __init__(
        self, *arguments: Any, unthrottled: bool = False, from_due: bool = False, **options: Any
    ) -> None:
        super().__init__(*arguments, heap=SealedMemfd(), **options)
        self.running = threading.Event()
        self._from_due = from_due
        self._turns: queue.SimpleQueue[None] | None = queue.SimpleQueue() if unthrottled else None

    def go_on(self) -> None:
        """Let the next unthrottled frame come. Any thread may call this."""
        if self._turns is not None:
            self._turns.put(None)

    def configure(self, settings: BufferSettings) -> None:
        """See :class:`~zc_perception.camera.camera.Camera`. It fills all slots."""
        super().configure(settings)
        for slot in self.slots:
            for buffer in slot.buffers:
                np.frombuffer(buffer.mapping(), np.uint8)[:] = _GREY

    def facts(self) -> dict[str, object]:
        """Return no facts."""
        return {}

    def capture(self) -> Frame | None:
        if self._pool is None:
            raise CameraError('the camera is not configured')
        if not self.running.is_set():
            self._next_time = 0.0
            self.running.wait(SLOT_WAIT_S)
            return None
        self._wait_for_turn()
        began_ns = time.monotonic_ns()
        slot = self._pool.acquire()
        if slot is None:
            self._skip()
            return None
        header = self._header()
        frame = Frame.publish_slot(
            self._pool,
            slot,
            header=header,
            colorimetry=self.colorimetry,
            sequence=self._sequence,
            captured_ns=round((self._next_time - 1.0 / self.framerate) * 1e9)
            if self._from_due
            else began_ns,
            capture_cost_ns=time.monotonic_ns() - began_ns,
        )
        self._sequence += 1
        self._captured += 1
        return frame

    def _wait_for_turn(self) -> bool:
        """
        Wait for the next frame's time with one system call, as a real camera does.

        :meth:`stop` doesn't interrupt this wait, so that it takes up to a period.
        """
        if self._turns is None:
            now = time.monotonic()
            period = 1.0 / self.framerate
            if now - self._next_time > period:
                self._late += self._next_time > 0.0
                self._next_time = now
            time.sleep(max(0.0, self._next_time - now))
            self._next_time += period
        elif self._next_time:
            # The wait has a limit: if a frame is lost, go_on isn't called for it.
            with contextlib.suppress(queue.Empty):
                self._turns.get(timeout=SLOT_WAIT_S)
        else:
            self._next_time = 1.0
            with contextlib.suppress(queue.Empty):
                while True:
                    self._turns.get_nowait()
        return True


_TO_DEVICE = 1
OBJECTS = 10
_CELLS_PER_OBJECT = 6


def fixed_result(manifest: ModelManifest) -> NDArray[np.float32]:
    """
    Return an output like those of the shipped model ``road``: 1 × (4 + classes) × cells.

    It has :data:`OBJECTS` objects, and several cells find each. The objects are side by side, so
    that each gives a detection.
    """
    random = np.random.default_rng(1)
    width, height, classes = manifest.input.width, manifest.input.height, len(manifest.classes)
    cells = sum((width // stride) * (height // stride) for stride in (8, 16, 32))
    rows = np.empty((4 + classes, cells), np.float32)
    rows[:2] = random.uniform(0, 1, (2, cells)) * np.array([[width], [height]])
    rows[2:4] = random.uniform(8, 100, (2, cells))
    rows[4:] = random.uniform(0, 0.05, (classes, cells))
    places = random.choice(cells, (OBJECTS, _CELLS_PER_OBJECT), replace=False)
    for number, place in enumerate(places):
        rows[:4, place] = np.array(
            [(number + 0.5) * width / OBJECTS, height / 2, 0.6 * width / OBJECTS, 60]
        )[:, None]
        rows[:4, place] += random.normal(0, 0.5, (4, _CELLS_PER_OBJECT))
        rows[4 + number % classes, place] = random.uniform(0.7, 0.95, _CELLS_PER_OBJECT)
    return rows[None]


class TimerFence(DeadlineFence):
    """
    A fence that the kernel signals some time after :meth:`arm`.

    It can be armed again for another job, because a new timer for each frame would cost the host
    more than a driver's fence does.
    """

    def __init__(self, delay_s: float) -> None:
        super().__init__(delay_s)
        self._delay_ns = round(delay_s * 1e9)
        self._poller = select.poll()
        self._poller.register(self.fileno(), select.POLLIN)

    def arm(self) -> None:
        """Start the delay, after which the fence signals."""
        self._deadline_ns = time.monotonic_ns() + self._delay_ns
        self._set_timer()

    def wait(self, timeout_s: float) -> bool:
        return poll_fd(self.fileno(), select.POLLIN, timeout_s)

    def check(self) -> None:
        """
        See :class:`~zc_perception.memory.fence.Fence`.

        It needs one system call, as reading the status of a sync_file does.
        """
        if not self._poller.poll(0):
            raise AcceleratorError('the fence has not signalled')


class DelayedJob:
    """
    See :class:`~zc_perception.npu.accelerator.Job`.

    :param fences: gets the fence back when the job is closed.
    """

    def __init__(
        self, fence: TimerFence, outputs: Outputs, box: Letterbox, fences: list[TimerFence]
    ) -> None:
        self.fence: Fence = fence
        self.letterbox = box
        self._timer = fence
        self._outputs = outputs
        self._fences = fences

    def outputs(self) -> Outputs:
        """Return the outputs, which are the same for every frame."""
        return self._outputs

    def abandon(self) -> Fence:
        return self._timer

    def close(self) -> None:
        self._fences.append(self._timer)


class DelayedAccelerator(Accelerator):
    """
    An accelerator that signals each job's fence after a delay; it never reads the frames.

    :param delay_s: from submitting a job to its fence's signal; jobs overlap.
    """

    def __init__(self, delay_s: float, max_in_flight: int = 4) -> None:
        self._delay_s = delay_s
        self._capabilities = Capabilities(
            'delayed', f'{delay_s * 1e3:g} ms for each frame', True, max_in_flight
        )
        self._imports = 0
        self._fences: list[TimerFence] = []
        self._cache = ImportCache(lambda handle: None)
        self._outputs: Outputs = ()
        self._box: Letterbox | None = None
        self._input = (0, 0)

    def capabilities(self) -> Capabilities:
        return self._capabilities

    def constraints(self) -> BufferConstraints:
        return BufferConstraints('delayed accelerator', formats=((NV12, LINEAR),))

    def trial_import(
        self, layout: ImageLayout, buffers: tuple[DmaBuf, ...]
    ) -> Callable[[], None] | None:
        self._import(layout, buffers)
        return None

    def load(self, manifest: ModelManifest) -> None:
        self._input = manifest.input.width, manifest.input.height
        self._outputs = (RawTensor(fixed_result(manifest)),)

    def _import(self, layout: ImageLayout, buffers: tuple[DmaBuf, ...]) -> int:
        return self._cache.get(
            import_key(1, _TO_DEVICE, layout, buffers), buffers, self._new_handle
        )

    def _new_handle(self) -> int:
        self._imports += 1
        return self._imports

    def import_frame(self, frame: Frame) -> ImportHandle:
        return ImportHandle(self._import(frame.data.layout, frame.data.buffers))

    def submit(self, handle: ImportHandle, frame: Frame) -> DelayedJob:
        """See :class:`Accelerator`. It only sets a timer."""
        layout = frame.data.layout
        if self._box is None or (self._box.source_width, self._box.source_height) != (
            layout.width,
            layout.height,
        ):
            self._box = Letterbox.fit(layout.width, layout.height, *self._input)
        fence = self._fences.pop() if self._fences else TimerFence(self._delay_s)
        fence.arm()
        return DelayedJob(fence, self._outputs, self._box, self._fences)

    def facts(self) -> Mapping[str, object]:
        return {'imports': self._imports}

    def tidy(self) -> None:
        self._cache.forget_ended()

    @property
    def imports(self) -> int:
        return self._imports

    def close(self) -> None:
        self._cache.clear()
        while self._fences:
            self._fences.pop().close()
