"""The V4L2 camera: the driver's own buffers, each exported once as a dma-buf, queued again when its last lease is dropped."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable

from zc_perception.camera import v4l2_abi as abi
from zc_perception.camera.camera import CameraStatistics
from zc_perception.camera.v4l2_device import Dequeued, V4l2Device
from zc_perception.errors import AllocationError, CameraError, FormatError
from zc_perception.frame import Frame, Header
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool, PoolStatistics, Slot
from zc_perception.negotiation.constraints import BufferConstraints, Placement
from zc_perception.negotiation.settings import BufferSettings
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range, V4l2Colorimetry, from_v4l2_colorimetry
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import ImageLayout, PlaneLayout
from zc_perception.pixel.modifier import LINEAR

# What the driver needs queued so that it never has nowhere to write, plus one that is being handed over.
_QUEUED = 3
_WAIT_MS = 250
_FENCE_POLL_MS = 5


def nv12_layout(pix: abi.PixFormat) -> ImageLayout:
    """The layout of V4L2's single-planar NV12: chroma follows luma directly, with the same stride. LINEAR by its definition."""
    luma = pix.bytesperline * pix.height
    return ImageLayout(
        pix.width,
        pix.height,
        NV12,
        LINEAR,
        (PlaneLayout(0, 0, pix.bytesperline, luma), PlaneLayout(0, luma, pix.bytesperline, luma // 2)),
    )


def colorimetry_of(pix: abi.PixFormat) -> Colorimetry:
    """What the driver says of its colours; BT.601 where it says nothing, or something that has no name here, with its range.

    A camera whose colours are unknown is still a camera.
    """
    fields = V4l2Colorimetry(int(pix.colorspace), int(pix.ycbcr_enc), int(pix.quantization), int(pix.xfer_func))
    try:
        return from_v4l2_colorimetry(fields)
    except FormatError:
        return Colorimetry(Matrix.BT601, Range.FULL if pix.quantization == abi.QUANTIZATION_FULL_RANGE else Range.LIMITED)


class V4l2Camera:
    """Captures NV12 from a single-planar device in MMAP mode with EXPBUF.

    :param path: device node.
    :param width: 0 for what the device is set to.
    :param height: likewise.
    :param framerate: 0 likewise.
    :param now_ns: the ROS clock.
    :raises CameraError: the device can't do that.
    """

    def __init__(self, path: str, width: int, height: int, framerate: float, frame_id: str, *, now_ns: Callable[[], int]) -> None:
        self._device = V4l2Device(path)
        self._frame_id = frame_id
        self._now_ns = now_ns
        self._pool: BufferPool | None = None
        self._wake = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._stopped = False
        self._streaming = False
        self._captured = 0
        self._lost = 0
        self._bad = 0
        self._last_sequence: int | None = None
        self._queue_lock = threading.Lock()
        self._queue_error: CameraError | None = None
        try:
            current = self._device.get_format()
            self._pix = self._device.set_format(width or current.width, height or current.height, NV12)
            if width and height and (self._pix.width, self._pix.height) != (width, height):
                raise CameraError(
                    f"'{path}' can't do {width}x{height}; the nearest is {self._pix.width}x{self._pix.height}: set width and height"
                )
            self.framerate = self._device.set_framerate(framerate) if framerate else self._device.get_framerate()
        except BaseException:
            self._device.close()
            self._wake.close()
            raise
        self.width, self.height = int(self._pix.width), int(self._pix.height)
        self._colorimetry = colorimetry_of(self._pix)

    @property
    def device(self) -> str:
        """See :class:`Camera`."""
        return f'{self._device.path} ({self._device.card})'

    @property
    def heap_name(self) -> str:
        """See :class:`Camera`."""
        return f'v4l2/{self._device.driver}'

    @property
    def ended(self) -> bool:
        """See :class:`Camera`."""
        return False

    def set_control(self, control: int, value: int) -> None:
        """Set a driver's control by its id."""
        self._device.set_control(control, value)

    def constraints(self) -> BufferConstraints:
        """See :class:`Camera`. The driver decides stride and offsets, for the one size that it is set to."""
        size = (self.width, self.height)
        return BufferConstraints(
            'v4l2 camera',
            formats=((NV12, LINEAR),),
            heaps=(self.heap_name,),
            slots=_QUEUED,
            min_size=size,
            max_size=size,
            placement=Placement.ONE_BUFFER,
        )

    def configure(self, settings: BufferSettings) -> None:
        """See :class:`Camera`. The layout is the driver's own; of the settings only the number of slots counts."""
        made = self._device.request_buffers(settings.slots)
        if made < _QUEUED:
            raise CameraError(f"'{self._device.path}' gave {made} buffers of {settings.slots}; at least {_QUEUED} are needed")
        exported = iter([self._device.export_buffer(index) for index in range(made)])

        def take() -> tuple[DmaBuf, ...]:
            fd = next(exported, None)
            if fd is None:
                # The pool goes on with the others: REQBUFS can't add a buffer while streaming.
                raise AllocationError(f"'{self._device.path}': a V4L2 buffer can't be replaced while streaming")
            return (DmaBuf(fd, BufferKind.DMABUF, self.heap_name),)

        self._pool = BufferPool(nv12_layout(self._pix), take, made, name='camera', on_free=self._queue_again, reserve=_QUEUED)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """See :class:`Camera`."""
        return () if self._pool is None else self._pool.slots

    @property
    def pool(self) -> BufferPool | None:
        """See :class:`Camera`."""
        return self._pool

    def _queue_again(self, slot: Slot) -> None:
        """Called by whoever drops the last lease: a failure is the camera's, not the consumer's."""
        with self._queue_lock:
            if self._streaming:
                try:
                    self._device.queue(slot.index)
                except CameraError as error:
                    self._queue_error = error

    def _start(self, pool: BufferPool) -> None:
        for slot in pool.slots:
            self._device.queue(slot.index)
        self._device.stream(True)
        self._streaming = True

    def capture(self) -> Frame | None:
        """See :class:`Camera`."""
        if self._pool is None:
            raise CameraError('the camera is not configured')
        if self._stopped:
            return None
        if self._queue_error is not None:
            raise self._queue_error
        if not self._streaming:
            self._start(self._pool)
        self._pool.collect()
        poller = select.poll()
        poller.register(self._device.fileno(), select.POLLIN)
        poller.register(self._wake.fileno(), select.POLLIN)
        poller.poll(_FENCE_POLL_MS if self._pool.waiting else _WAIT_MS)
        if self._stopped:
            return None
        filled = self._device.dequeue()
        return None if filled is None else self._frame(self._pool, filled)

    def _frame(self, pool: BufferPool, filled: Dequeued) -> Frame | None:
        if self._last_sequence is not None:
            self._lost += max(0, filled.sequence - self._last_sequence - 1)
        self._last_sequence = filled.sequence
        slot = pool.acquire(filled.index)
        if slot is None:
            raise CameraError(f"'{self._device.path}': the driver filled buffer {filled.index}, which it did not own")
        if filled.error:
            self._bad += 1
            pool.discard(slot)
            return None
        now = time.monotonic_ns()
        captured_ns = filled.stamp_ns if filled.monotonic else now
        self._captured += 1
        return Frame.publish_slot(
            pool,
            slot,
            header=Header(self._now_ns() - (now - captured_ns), self._frame_id),
            colorimetry=self._colorimetry,
            sequence=filled.sequence,
            captured_ns=captured_ns,
        )

    def statistics(self) -> CameraStatistics:
        """See :class:`Camera`. Dropped are the driver's sequence gaps, and frames that it marked bad."""
        return CameraStatistics(self._captured, self._lost + self._bad, 0)

    def pool_statistics(self) -> PoolStatistics | None:
        """See :class:`Camera`."""
        return None if self._pool is None else self._pool.statistics()

    def stop(self) -> None:
        """See :class:`Camera`."""
        self._stopped = True
        if not self._wake.closed:
            os.eventfd_write(self._wake.fileno(), 1)

    def close(self) -> None:
        """See :class:`Camera`."""
        self.stop()
        with self._queue_lock:
            was_streaming, self._streaming = self._streaming, False
        if was_streaming:
            with contextlib.suppress(CameraError):  # an unplugged device has stopped already
                self._device.stream(False)
        if self._pool is not None:
            self._pool.close()
        self._device.close()
        self._wake.close()
