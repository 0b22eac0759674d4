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
A stand-in for libcamera's Python module, with the interface that its bindings document.

A camera thread completes queued requests. Generation ``new`` raises RuntimeError with strerror's
text on failure; ``old`` (before 0.1) returns negative numbers, and has no readable version. As in
the real module, the keys of metadata are control objects that are made anew at each reading, and
the manager has one descriptor for all cameras.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
import errno
import os
import queue
import threading
import time
from types import SimpleNamespace
from typing import Any

from zc_perception.memory.heaps import SealedMemfd


@dataclass(frozen=True, eq=False)
class ControlId:
    name: str


Status = Enum('Status', ['Pending', 'Complete', 'Cancelled'], start=0)
FrameStatus = Enum('FrameStatus', ['Success', 'Error', 'Cancelled'], start=0)


@dataclass
class Named:
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass
class Size:
    width: int
    height: int


class Manager:
    def __init__(self, generation: str) -> None:  # noqa: CNL100
        self._generation = generation
        self.event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.cameras: list[Camera] = []
        self._done: queue.SimpleQueue[Request] = queue.SimpleQueue()

    def complete(self, request: Request) -> None:
        self._done.put(request)
        os.eventfd_write(self.event_fd, 1)

    @property
    def version(self) -> str:
        if self._generation == 'old':
            raise TypeError('(): incompatible function arguments')
        return 'v0.7.0'

    def get_ready_requests(self) -> list[Request]:
        try:
            os.eventfd_read(self.event_fd)
        except BlockingIOError:
            return []
        return [self._done.get() for _ in range(self._done.qsize())]


class Buffer:
    def __init__(self, memories: list[Any], planes: list[tuple[int, int, int]]) -> None:
        self.memories = memories
        self._planes = planes
        self.metadata = SimpleNamespace(status=FrameStatus.Success, timestamp=0)
        self.planes = [
            SimpleNamespace(fd=memories[m].fileno(), offset=o, length=n) for m, o, n in planes
        ]

    def paint(self, number: int) -> None:
        for index, (memory, offset, length) in enumerate(self._planes):
            self.memories[memory].mapping()[slice(offset, offset + length)] = (
                bytes([(number + index) % 256]) * length
            )


@dataclass(eq=False)
class Request:
    cookie: int
    status: Status = Status.Pending
    sequence: int = 0
    buffers: dict[object, Buffer] = field(default_factory=dict)
    stamp: int = 0
    queued: bool = False

    def add_buffer(self, stream: object, buffer: Buffer) -> int:
        self.buffers[stream] = buffer
        return 0

    def reuse(self) -> None:
        assert not self.queued, 'a request that is queued must not be reused'
        self.status = Status.Pending

    @property
    def metadata(self) -> dict[ControlId, int]:
        values = {'ExposureTime': 1000, 'SensorTimestamp': self.stamp} if self.stamp else {}
        return {ControlId(name): value for name, value in values.items()}


class Camera:
    """A camera; *memories* sets where its planes lie: ``shared`` (one dma-buf) or ``split``."""

    def __init__(
        self,
        module: Any,
        name: str,
        *,
        memories: str = 'shared',
        largest: tuple[int, int] = (640, 480),
    ) -> None:
        self.id = name
        self._module, self._memories, self._largest = module, memories, largest
        self.acquired = self.running = self.busy = False
        self.formats = ['NV12']
        self.color_space: Any = SimpleNamespace(
            ycbcrEncoding=Named('YcbcrEncoding.Rec709'), range=Named('Range.Full')
        )
        self.stamps = True
        self.bad: set[int] = set()
        self.silent = threading.Event()
        self.cancels = threading.Event()
        """All requests are cancelled, but the camera runs on, as after a timeout of its sensor."""
        self.controls = {ControlId('FrameDurationLimits'): None}
        self.started_with: dict[str, object] = {}
        self._queue: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._sequence = 0
        self._thread: threading.Thread | None = None

    def _result(self, number: int = 0) -> int | None:
        if not number:
            return 0 if self._module.generation == 'old' else None
        if self._module.generation == 'old':
            return -number
        raise RuntimeError(f'Failed: {os.strerror(number)}')

    def acquire(self) -> int | None:
        if self.busy or self.acquired:
            return self._result(errno.EBUSY)
        self.acquired = True
        return self._result()

    def release(self) -> int | None:
        if self.running:
            return self._result(errno.EACCES)
        self.acquired = False
        return self._result()

    def generate_configuration(self, roles: list[object]) -> Any:
        assert len(roles) == 1
        stream = SimpleNamespace(
            size=Size(320, 240), pixel_format=Named('XR24'), stride=0, buffer_count=4,
            color_space=None, stream=object(),
        )  # fmt: skip

        def validate() -> str:
            if str(stream.pixel_format) not in self.formats:
                stream.pixel_format = Named(self.formats[0])
            size, (width, height) = stream.size, self._largest
            stream.size = Size(min(size.width, width), min(size.height, height))
            stream.stride = -(-stream.size.width // 64) * 64
            stream.color_space = self.color_space
            return 'Adjusted'

        return SimpleNamespace(at=lambda index: stream, validate=validate)

    def configure(self, configuration: Any) -> int | None:
        self.configured = configuration.at(0)
        return self._result()

    def create_request(self, cookie: int = 0) -> Request:
        return Request(cookie)

    def start(self, controls: dict[Any, object] | None = None) -> int | None:
        if self.running:
            return self._result(errno.EACCES)
        self._queue = queue.SimpleQueue()
        self.cancels.clear()
        self.started_with = {control.name: value for control, value in (controls or {}).items()}
        self.running = True
        self._thread = threading.Thread(target=self._run, name=f'libcamera {self.id}', daemon=True)
        self._thread.start()
        return self._result()

    def queue_request(self, request: Request) -> int | None:
        if not self.running:
            return self._result(errno.EACCES)
        request.queued = True
        self._queue.put(request)
        return self._result()

    def _run(self) -> None:
        while (request := self._queue.get()) is not None:
            time.sleep(0.002)
            while self.silent.is_set() and self.running:
                time.sleep(0.001)
            if not self.running:
                self._finish(request, Status.Cancelled)
                break
            if self.cancels.is_set():
                self._finish(request, Status.Cancelled)
                continue
            (buffer,) = request.buffers.values()
            buffer.paint(self._sequence)
            buffer.metadata.status = (
                FrameStatus.Error if self._sequence in self.bad else FrameStatus.Success
            )
            request.sequence = self._sequence
            request.stamp = time.clock_gettime_ns(time.CLOCK_BOOTTIME) if self.stamps else 0
            self._sequence += 1
            self._finish(request, Status.Complete)

    def _finish(self, request: Request, status: Status) -> None:
        request.status, request.queued = status, False
        self._module.manager.complete(request)

    def stop(self) -> int | None:
        self.running = False
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()
        return self._result()

    def unplug(self) -> None:
        """Complete everything that is queued as cancelled."""
        self.running = False
        self._queue.put(None)


class Allocator:
    def __init__(self, camera: Camera) -> None:  # noqa: CNL100
        self._camera = camera
        self._buffers: list[Buffer] = []

    def allocate(self, stream: object) -> int:
        configured, heap = self._camera.configured, SealedMemfd()
        luma = configured.stride * configured.size.height
        for _ in range(configured.buffer_count):
            split = self._camera._memories == 'split'
            sizes = (luma, luma // 2) if split else (luma + luma // 2,)
            chroma = (1, 0, luma // 2) if split else (0, luma, luma // 2)
            memories = [heap.allocate(size) for size in sizes]
            self._buffers.append(Buffer(memories, [(0, 0, luma), chroma]))
        self._camera._module.allocated.append(self)
        return len(self._buffers)

    def buffers(self, stream: object) -> list[Buffer]:
        return self._buffers

    def free(self) -> None:
        for buffer in self._buffers:
            for memory in buffer.memories:
                memory.close()


def make_module(generation: str) -> Any:
    """Return a module; the test fills ``manager.cameras`` and calls :func:`free_module`."""
    manager = Manager(generation)

    class CameraManager:
        @staticmethod  # noqa: CNL100
        def singleton() -> Manager:
            return manager

    return SimpleNamespace(
        generation=generation, manager=manager, allocated=[], CameraManager=CameraManager,
        FrameBufferAllocator=Allocator,
        PixelFormat=Named, Size=Size, StreamRole=SimpleNamespace(VideoRecording='video'),
        Request=SimpleNamespace(Status=Status), FrameMetadata=SimpleNamespace(Status=FrameStatus),
    )  # fmt: skip


def free_module(module: Any) -> None:
    for allocator in module.allocated:
        allocator.free()
    os.close(module.manager.event_fd)
