"""Whose memory a V4L2 camera's frames are in: the driver's, exported once per buffer, or a heap's, imported by the driver.

Sources: the kernel's *Streaming I/O (Memory Mapping)*, *Streaming I/O (DMA buffer importing)*, *VIDIOC_EXPBUF*.
"""

from __future__ import annotations

import errno
import os
from typing import Protocol

from zc_perception.camera.v4l2 import abi
from zc_perception.camera.v4l2.device import V4l2Device, V4l2Error
from zc_perception.camera.v4l2.formats import DriverFormat
from zc_perception.errors import AllocationError, CameraBusyError, CameraError, CameraLostError, ConfigError
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.heaps import HeapUse, OfferedHeaps, heap_order, working_heaps
from zc_perception.memory.pool import Buffers, close_buffers

MODES = ('auto', 'export', 'import')
EXPORTED = "the driver's own buffers are used"
# VIDEO_MAX_FRAME of kernels before 6.8; asking for more is an error on some.
_MOST_BUFFERS = 32
# One frame's pages may be contiguous by chance.
_TRIALS = 4


class FrameMemory(Protocol):
    """Makes the buffers of a camera's frames, and knows how they are queued."""

    kind: str
    memory: int
    notes: list[str]

    @property
    def heap_name(self) -> str:
        """Where the buffers come from, for diagnostics."""

    @property
    def heap_names(self) -> tuple[str, ...]:
        """Where they may come from, the best first, for negotiation."""

    @property
    def heap_reasons(self) -> tuple[str, ...]:
        """Why from nowhere else, as far as that isn't plain."""

    def choose(self, heap: str) -> None:
        """Take the buffers from that one of :attr:`heap_names`.

        :raises AllocationError: it can't be opened any more.
        """

    def allocate(self, count: int, driver: DriverFormat) -> int:
        """Make the buffers of *count* frames; how many there are."""

    def take(self) -> Buffers:
        """The next frame's buffers: the pool's allocator.

        :raises AllocationError: there are no more.
        """

    def begin_trial(self) -> None:
        """Have at least frame 0 queued, so that the driver tells where its data begins. Stopping the stream takes it back."""

    def close(self) -> None:
        """Give back what was not taken."""


class ExportedMemory:
    """The driver's own buffers: no copy, no memory of ours, and whoever gets one can only read it."""

    kind = 'export'
    memory = abi.MEMORY_MMAP

    def __init__(self, device: V4l2Device) -> None:
        self._device = device
        self._access = os.O_RDONLY
        self._made: list[Buffers] = []
        self.notes: list[str] = []
        made, _ = device.request_buffers(1, self.memory)
        try:
            if not made:
                raise CameraError(f"'{device.path}': the driver made no buffer")
            close_buffers([self._export(0, 0)])
        finally:
            device.request_buffers(0, self.memory)

    @property
    def heap_name(self) -> str:
        """See :class:`FrameMemory`."""
        return f'v4l2/{self._device.driver}'

    @property
    def heap_names(self) -> tuple[str, ...]:
        """See :class:`FrameMemory`."""
        return (self.heap_name,)

    @property
    def heap_reasons(self) -> tuple[str, ...]:
        """See :class:`FrameMemory`."""
        return (EXPORTED,)

    def choose(self, heap: str) -> None:
        """See :class:`FrameMemory`. There is nothing to choose."""

    def _export(self, index: int, plane: int) -> DmaBuf:
        try:
            fd = self._device.export_buffer(index, plane, self._access)
        except V4l2Error as error:
            if error.number not in (errno.EINVAL, errno.EACCES) or self._access == os.O_RDWR:
                raise
            fd = self._device.export_buffer(index, plane, os.O_RDWR)
            self._access = os.O_RDWR
            self.notes.append(
                'the driver exports its buffers writable only: every process that gets frames could change them, and is trusted not to'
            )
        return DmaBuf(fd, BufferKind.DMABUF, self.heap_name)

    def allocate(self, count: int, driver: DriverFormat) -> int:
        """See :class:`FrameMemory`."""
        made, _ = self._device.request_buffers(min(count, _MOST_BUFFERS), self.memory)
        for index in range(min(made, _MOST_BUFFERS)):
            planes: list[DmaBuf] = []
            try:
                planes.extend(self._export(index, plane) for plane in range(len(driver.planes)))
            finally:
                self._made.append(tuple(planes))
        return len(self._made)

    def begin_trial(self) -> None:
        """See :class:`FrameMemory`."""
        self._device.queue(0, self.memory, self._made[0])

    def take(self) -> Buffers:
        """See :class:`FrameMemory`."""
        if not self._made:
            # The pool goes on with the others: REQBUFS can't add a buffer while streaming.
            raise AllocationError(f"'{self._device.path}': a V4L2 buffer can't be replaced while streaming")
        return self._made.pop(0)

    def close(self) -> None:
        """See :class:`FrameMemory`."""
        while self._made:
            close_buffers(self._made.pop())


class ImportedMemory:
    """Buffers of a heap, which the driver imports. One that has to be given up can be replaced while streaming.

    :param heaps: owned from here on, and closed when this raises; those whose buffers the driver can't import are removed.
    :raises CameraError: the driver imports buffers of none.
    """

    kind = 'import'
    memory = abi.MEMORY_DMABUF

    def __init__(self, device: V4l2Device, heaps: OfferedHeaps, driver: DriverFormat) -> None:
        self._device = device
        self._heaps = heaps
        self._sizes = tuple(plane.size for plane in driver.planes)
        self._made: list[Buffers] = []
        self._closed = False
        self.notes: list[str] = []
        try:
            self._try_all()
        except BaseException:
            self.close()
            raise

    @property
    def heap_name(self) -> str:
        """See :class:`FrameMemory`."""
        return self._heaps.name

    @property
    def heap_names(self) -> tuple[str, ...]:
        """See :class:`FrameMemory`."""
        return self._heaps.names

    @property
    def heap_reasons(self) -> tuple[str, ...]:
        """See :class:`FrameMemory`."""
        return self._heaps.reasons

    def choose(self, heap: str) -> None:
        """See :class:`FrameMemory`."""
        self._heaps.choose(heap)

    def _try_all(self) -> None:
        """Find out which heaps' buffers the driver imports. Notes say why one is not used that would be better."""
        good: list[str] = []
        reasons: list[str] = []
        for name in self._heaps.names:
            try:
                self._heaps.choose(name)
                self._try()
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
                f"'{self._device.path}' ({self._device.card}) imports buffers of no heap: {'; '.join(reasons)}; try memory: export"
            )
        self._heaps.choose(good[0])

    def _try(self) -> None:
        """Let the driver import some frames: only that tells whether scattered pages suit it."""
        made, capabilities = self._device.request_buffers(_TRIALS, self.memory)
        try:
            if not made or (capabilities and not capabilities & abi.BUF_CAP_SUPPORTS_DMABUF):
                raise CameraError(f"'{self._device.path}': the driver imports no dma-bufs")
            self._import(made)
        finally:
            # Takes what is queued back as well.
            self._device.request_buffers(0, self.memory)
            self._close_made()

    def _import(self, count: int) -> None:
        """Allocate and queue that many frames."""
        for index in range(min(count, _MOST_BUFFERS)):
            self._made.append(self._frame())
            self._device.queue(index, self.memory, self._made[-1])

    def _close_made(self) -> None:
        while self._made:
            close_buffers(self._made.pop())

    def _frame(self) -> Buffers:
        buffers: list[DmaBuf] = []
        try:
            for size in self._sizes:
                buffers.append(self._heaps.allocate(size))
        except BaseException:
            close_buffers(buffers)
            raise
        return tuple(buffers)

    def allocate(self, count: int, driver: DriverFormat) -> int:
        """See :class:`FrameMemory`."""
        self._sizes = tuple(plane.size for plane in driver.planes)
        made, _ = self._device.request_buffers(min(count, _MOST_BUFFERS), self.memory)
        self._import(made)
        return len(self._made)

    def begin_trial(self) -> None:
        """See :class:`FrameMemory`. All of them are: another one may be scattered where the first wasn't."""

    def take(self) -> Buffers:
        """See :class:`FrameMemory`."""
        if self._closed:
            raise AllocationError(f"'{self._device.path}' is closed")
        return self._made.pop(0) if self._made else self._frame()

    def close(self) -> None:
        """See :class:`FrameMemory`."""
        if not self._closed:
            self._closed = True
            self._close_made()
            self._heaps.close()


def frame_memory(device: V4l2Device, mode: str, heap: str, driver: DriverFormat) -> FrameMemory:
    """The memory that works: tried with one buffer each, now that nobody waits for frames.

    :param mode: ``export``, ``import``, or ``auto``: export, and import where that isn't possible; the notes say why.
    :param heap: for import: ``auto`` or a heap's name.
    :raises ConfigError: no such mode, or no such heap.
    :raises CameraBusyError: another program streams.
    :raises CameraError: neither works; the message says why for each.
    """
    if mode not in MODES:
        raise ConfigError(f"parameter 'memory' is '{mode}'; it can be {', '.join(MODES)}")
    if mode == 'import':
        return _imported(device, heap, driver)
    try:
        return ExportedMemory(device)
    except (CameraBusyError, CameraLostError):
        raise
    except CameraError as error:
        if mode == 'export':
            raise CameraError(f"{error}; its buffers can't be exported, try memory: import") from error
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
    """All heaps whose buffers the driver imports. A memfd is none that any device could use."""
    try:
        heaps = working_heaps(heap, heap_order(HeapUse.CAMERA_IMPORT))
    except AllocationError as error:
        raise CameraError(f"'{device.path}' ({device.card}) imports buffers of no heap: {error}; try memory: export") from error
    return ImportedMemory(device, heaps, driver)
