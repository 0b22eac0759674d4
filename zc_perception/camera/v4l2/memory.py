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
The memory of a V4L2 camera's frames: the driver's or a heap's.

The driver's memory is exported once per buffer; the driver imports a heap's.

Sources: the kernel's *Streaming I/O (Memory Mapping)*, *Streaming I/O (DMA buffer importing)*,
*VIDIOC_EXPBUF*.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
import errno
import os
from typing import ClassVar

from zc_perception.camera.v4l2 import abi
from zc_perception.camera.v4l2.device import V4l2Device, V4l2Error
from zc_perception.camera.v4l2.formats import DriverFormat
from zc_perception.errors import AllocationError, CameraBusyError, CameraError, CameraLostError
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.heaps import heap_order, HeapUse, OfferedHeaps, working_heaps
from zc_perception.memory.pool import Buffers, close_buffers

EXPORTED = "the driver's own buffers are used"
# VIDEO_MAX_FRAME of kernels before 6.8; asking for more is an error on some.
_MOST_BUFFERS = 32
# One frame's pages may be contiguous by chance.
_TRIALS = 4


class FrameMemory(ABC):
    """
    Makes the buffers of a camera's frames.

    It owns those that have not been taken yet; the camera's thread uses it, and closes it.
    """

    kind: ClassVar[str]
    memory: ClassVar[int]
    """V4L2's number of it, with which buffers are queued."""

    def __init__(self, device: V4l2Device) -> None:
        self._device = device
        self._made: list[Buffers] = []
        self.notes: list[str] = []

    @property
    @abstractmethod
    def heap_names(self) -> tuple[str, ...]:
        """Where the buffers may come from, the best first, for negotiation."""

    @property
    def heap_name(self) -> str:
        """Where they come from, for diagnostics."""
        return self.heap_names[0]

    @property
    @abstractmethod
    def heap_reasons(self) -> tuple[str, ...]:
        """Why no other heap is possible, if that isn't obvious."""

    @abstractmethod
    def choose(self, heap: str) -> None:
        """
        Take the buffers from that one of :attr:`heap_names`.

        :raises AllocationError: it can't be opened any more.
        """

    def allocate(self, count: int, driver: DriverFormat) -> int:
        """Make the buffers of *count* frames; how many there are."""
        made, _ = self._device.request_buffers(min(count, _MOST_BUFFERS), self.memory)
        self._make(min(made, _MOST_BUFFERS), driver)
        return len(self._made)

    @abstractmethod
    def _make(self, count: int, driver: DriverFormat) -> None:
        """Get the memory of *count* frames, which the driver knows by their numbers."""

    @abstractmethod
    def take(self) -> Buffers:
        """
        Return the next frame's buffers: the pool's allocator.

        :raises AllocationError: there are no more.
        """

    @abstractmethod
    def begin_trial(self) -> None:
        """
        Have at least frame 0 queued, so that the driver tells where its data begins.

        Stopping the stream takes it back.
        """

    def close(self) -> None:
        """Give back what was not taken. Idempotent."""
        while self._made:
            close_buffers(self._made.pop())


class ExportedMemory(FrameMemory):
    """
    The driver's own buffers.

    There is no copy and no memory of ours, and consumers can only read them.
    """

    kind = 'export'
    memory = abi.MEMORY_MMAP

    def __init__(self, device: V4l2Device) -> None:
        super().__init__(device)
        self._access = os.O_RDONLY
        made, _ = device.request_buffers(1, self.memory)
        try:
            if not made:
                raise CameraError(f"'{device.path}': the driver made no buffer")
            close_buffers([self._export(0, 0)])
        finally:
            device.request_buffers(0, self.memory)

    @property
    def heap_names(self) -> tuple[str, ...]:
        return (f'v4l2/{self._device.driver}',)

    @property
    def heap_reasons(self) -> tuple[str, ...]:
        return (EXPORTED,)

    def choose(self, heap: str) -> None:
        """Do nothing: there is no choice."""

    def _export(self, index: int, plane: int) -> DmaBuf:
        try:
            fd = self._device.export_buffer(index, plane, self._access)
        except V4l2Error as error:
            if error.number not in (errno.EINVAL, errno.EACCES) or self._access == os.O_RDWR:
                raise
            fd = self._device.export_buffer(index, plane, os.O_RDWR)
            self._access = os.O_RDWR
            self.notes.append(
                'the driver exports its buffers writable only: every process that gets frames '
                'could change them, and is trusted not to'
            )
        return DmaBuf(fd, BufferKind.DMABUF, self.heap_name)

    def _make(self, count: int, driver: DriverFormat) -> None:
        for index in range(count):
            planes: list[DmaBuf] = []
            try:
                planes.extend(self._export(index, plane) for plane in range(len(driver.planes)))
            finally:
                self._made.append(tuple(planes))

    def begin_trial(self) -> None:
        self._device.queue(0, self.memory, self._made[0])

    def take(self) -> Buffers:
        if not self._made:
            # The pool goes on with the others: REQBUFS can't add a buffer while streaming.
            raise AllocationError(
                f"'{self._device.path}': a V4L2 buffer can't be replaced while streaming"
            )
        return self._made.pop(0)


class ImportedMemory(FrameMemory):
    """
    Buffers of a heap, which the driver imports.

    A buffer that has to be given up can be replaced while streaming.

    :param heaps: owned from here on, and closed when this raises; those whose buffers the driver
        can't import are removed.
    :raises CameraError: the driver can't import buffers of any heap.
    """

    kind = 'import'
    memory = abi.MEMORY_DMABUF

    def __init__(self, device: V4l2Device, heaps: OfferedHeaps, driver: DriverFormat) -> None:
        super().__init__(device)
        self._heaps = heaps
        self._sizes: tuple[int, ...] = ()
        try:
            self._try_all(driver)
        except BaseException:
            self.close()
            raise

    @property
    def heap_names(self) -> tuple[str, ...]:
        return self._heaps.names

    @property
    def heap_name(self) -> str:
        return self._heaps.name

    @property
    def heap_reasons(self) -> tuple[str, ...]:
        return self._heaps.reasons

    def choose(self, heap: str) -> None:
        self._heaps.choose(heap)

    def _try_all(self, driver: DriverFormat) -> None:
        """
        Find out which heaps' buffers the driver imports.

        Notes say why a better heap is not used.
        """
        good: list[str] = []
        reasons: list[str] = []
        for name in self._heaps.names:
            try:
                self._heaps.choose(name)
                self._try(driver)
            except (CameraBusyError, CameraLostError):
                raise
            except (CameraError, AllocationError) as error:
                reasons.append(f'{name}: {error}')
                self._heaps.remove(name, reasons[-1])
                continue
            if not good:
                self.notes += reasons
            good.append(name)
        if not good:
            raise CameraError(
                f"'{self._device.path}' ({self._device.card}) imports buffers of no heap: "
                f'{"; ".join(reasons)}; try memory: export'
            )
        self._heaps.choose(good[0])

    def _try(self, driver: DriverFormat) -> None:
        """Let the driver import some frames, to find out whether it takes scattered pages."""
        made, capabilities = self._device.request_buffers(_TRIALS, self.memory)
        try:
            if not made or (capabilities and not capabilities & abi.BUF_CAP_SUPPORTS_DMABUF):
                raise CameraError(f"'{self._device.path}': the driver imports no dma-bufs")
            self._make(min(made, _MOST_BUFFERS), driver)
        finally:
            # This takes queued buffers back as well.
            self._device.request_buffers(0, self.memory)
            super().close()

    def _make(self, count: int, driver: DriverFormat) -> None:
        """Make the buffers, and queue each: one may be scattered where another one wasn't."""
        self._sizes = tuple(plane.size for plane in driver.planes)
        for index in range(count):
            self._made.append(self._frame())
            self._device.queue(index, self.memory, self._made[-1])

    def _frame(self) -> Buffers:
        buffers: list[DmaBuf] = []
        try:
            buffers.extend(map(self._heaps.allocate, self._sizes))
        except BaseException:
            close_buffers(buffers)
            raise
        return tuple(buffers)

    def begin_trial(self) -> None:
        """Do nothing: all of them are queued already."""

    def take(self) -> Buffers:
        return self._made.pop(0) if self._made else self._frame()

    def close(self) -> None:
        super().close()
        self._heaps.close()


def frame_memory(device: V4l2Device, mode: str, heap: str, driver: DriverFormat) -> FrameMemory:
    """
    Return the memory that works; each kind is tried with one buffer before frames flow.

    :param mode: ``export``, ``import``, or ``auto``: export, and import where that isn't possible;
        the notes say why.
    :param heap: for import: ``auto`` or a heap's name.
    :raises ConfigError: no such heap.
    :raises CameraBusyError: another program streams.
    :raises CameraError: neither works; the message says why for each.
    """
    if mode == 'import':
        return _imported(device, heap, driver)
    try:
        return ExportedMemory(device)
    except (CameraBusyError, CameraLostError):
        raise
    except CameraError as error:
        if mode == 'export':
            raise CameraError(
                f"{error}; its buffers can't be exported, try memory: import"
            ) from error
        reason = f'its own buffers are not used: {error}'
        try:
            memory = _imported(device, heap, driver)
        except (CameraBusyError, CameraLostError):
            raise
        except CameraError as other:
            raise CameraError(f'{reason}; {other}') from other
        memory.notes.insert(0, reason)
        return memory


def _imported(device: V4l2Device, heap: str, driver: DriverFormat) -> ImportedMemory:
    """
    Return all heaps whose buffers the driver imports.

    A memfd isn't among them: no device can use it.
    """
    try:
        heaps = working_heaps(heap, heap_order(HeapUse.CAMERA_IMPORT))
    except AllocationError as error:
        raise CameraError(
            f"'{device.path}' ({device.card}) imports buffers of no heap: {error}; try memory: "
            'export'
        ) from error
    return ImportedMemory(device, heaps, driver)
