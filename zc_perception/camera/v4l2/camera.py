"""The V4L2 camera: the driver's frames without a copy, their buffers queued again when the last lease is dropped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from zc_perception.camera.camera import CameraStatistics
from zc_perception.camera.clock import CaptureClock, StampClock
from zc_perception.camera.controls import ControlInfo, ControlValue
from zc_perception.camera.v4l2.choice import QUEUED, aligned_format, choose_formats, reserve_of
from zc_perception.camera.v4l2.controls import V4l2Controls
from zc_perception.camera.v4l2.device import Dequeued, V4l2Device
from zc_perception.camera.v4l2.formats import DriverFormat, driver_layout, least_bytes
from zc_perception.camera.v4l2.identity import identity_of
from zc_perception.camera.v4l2.memory import FrameMemory, frame_memory
from zc_perception.camera.v4l2.signal import V4l2Signal
from zc_perception.camera.v4l2.stream import V4l2Stream
from zc_perception.errors import CameraError, ConfigError, LayoutError
from zc_perception.frame import Frame, Header
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool, PoolStatistics, Slot
from zc_perception.negotiation.constraints import BufferConstraints, size_text
from zc_perception.negotiation.settings import AllocationRequest, BufferSettings
from zc_perception.pixel.fourcc import fourcc_name
from zc_perception.pixel.layout import ImageLayout

_SILENT_S = 2.0
_SILENT_FRAMES = 10
# A timestamp outside of this is none: some drivers leave it empty, some take another clock.
_OLDEST_NS, _NEWEST_NS = 10_000_000_000, 5_000_000


class V4l2Camera:
    """Captures from a V4L2 device, of the single- or the multi-planar API.

    :param path: device node.
    :param width: 0 for what the device is set to.
    :param height: likewise.
    :param framerate: 0 likewise.
    :param now_ns: the ROS clock.
    :param clock: that of the camera's openings before, so that stamps go on increasing; ``None``: a new one.
    :param memory: ``export``: the driver's buffers; ``import``: a heap's; ``auto``: export, and import where that can't be.
    :param heap: where imported buffers come from.
    :param pixel_format: V4L2's fourcc such as ``NM12``; ``auto`` offers all that the device has, NV12 first.
    :param input: which of the device's inputs; ``None`` leaves it.
    :param silent_s: a camera without frames for so long is silent; 0 for 2 s or 10 frames, whichever is longer.
    :raises CameraBusyError: another program streams from it.
    :raises CameraLostError: no signal at its input.
    :raises CameraError: the device can't do that. The message lists what it can.
    :raises ConfigError: a parameter that no device could fulfil.
    """

    def __init__(
        self,
        path: str,
        width: int,
        height: int,
        framerate: float,
        frame_id: str,
        *,
        now_ns: Callable[[], int],
        memory: str = 'auto',
        heap: str = 'auto',
        pixel_format: str = 'auto',
        input: int | None = None,
        silent_s: float = 0.0,
        clock: StampClock | None = None,
        open_device: Callable[[str], V4l2Device] = V4l2Device.open,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0.0 <= silent_s < float('inf'):
            raise ConfigError(f'a camera that is silent after {silent_s} s; a number of seconds is needed, 0 for the default')
        self._wake = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        try:
            self._device = open_device(path)
        except BaseException:
            self._wake.close()
            raise
        self._frame_id = frame_id
        self.clock = StampClock(now_ns) if clock is None else clock.reopened()
        self._monotonic = monotonic
        self._wanted_rate = framerate
        self._pool: BufferPool | None = None
        self._stream: V4l2Stream | None = None
        self._memory: FrameMemory | None = None
        self._stopped = False
        self._captured = 0
        self._bad = 0
        self._least: tuple[int, ...] = ()
        self._data_offsets: tuple[int, ...] = ()
        self._source = ''
        self._notes: list[str] = []
        try:
            self.identity = identity_of(self._device)
            self._signal = V4l2Signal(self._device, input)
            self._signal.follow()
            self._choice = choose_formats(self._device, width, height, pixel_format)
            self._driver = self._device.set_format(self._choice.offers[0].codes[0], *self._choice.size)
            self._colorimetry = self._driver.colorimetry
            self.framerate = self._set_framerate()
            self._memory = frame_memory(self._device, memory, heap, self._driver)
            self._controls = V4l2Controls(self._device)
            self._reserve = reserve_of(self._controls.minimum_buffers())
            self._silent_s = silent_s or max(_SILENT_S, _SILENT_FRAMES / self.framerate if self.framerate else 0.0)
            self._signal.subscribe()
        except BaseException:
            self._close_device()
            raise
        self.width, self.height = self._driver.size

    def _set_framerate(self) -> float:
        wanted = self._wanted_rate
        if not wanted:
            return self._device.get_framerate()
        rate = self._device.set_framerate(wanted) or self._device.get_framerate()
        if rate and abs(rate - wanted) > 0.01 * wanted:
            rates = self._device.frame_rates(self._driver.fourcc, *self._driver.size)
            offered = f'; it offers {", ".join(map(str, rates))}' if rates else ''
            self._notes.append(f'{wanted:g} Hz were asked for, the driver does {rate:g}{offered}')
        return rate

    @property
    def device(self) -> str:
        """See :class:`Camera`."""
        return f'{self._device.path} ({self._device.card}{f", input {self._signal.name}" if self._signal.name else ""})'

    @property
    def heap_name(self) -> str:
        """See :class:`Camera`."""
        assert self._memory is not None
        return self._memory.heap_name

    @property
    def memory(self) -> str:
        """``export`` or ``import``."""
        assert self._memory is not None
        return self._memory.kind

    def notices(self) -> tuple[str, ...]:
        """See :class:`Camera`."""
        return (*self._notes, *(() if self._memory is None else self._memory.notes))

    @property
    def timestamp_source(self) -> str:
        """What the driver's timestamps are: ``start of exposure``, ``end of frame``, ``arrival``; empty before the first frame."""
        return self._source

    def facts(self) -> Mapping[str, object]:
        """See :class:`Camera`."""
        return {
            'memory': self.memory,
            'V4L2 format': fourcc_name(self._driver.fourcc),
            'timestamp source': self._source or 'no frame yet',
            'stream restarts': self.restarts,
        }

    @property
    def ended(self) -> bool:
        """See :class:`Camera`."""
        return False

    def controls(self) -> Mapping[str, ControlInfo]:
        """See :class:`Camera`."""
        return self._controls.infos()

    def set_control(self, name: str, value: ControlValue) -> int | None:
        """See :class:`Camera`."""
        return self._controls.set(name, value)

    def constraints(self) -> BufferConstraints:
        """See :class:`Camera`."""
        return self._choice.constraints(self.heap_name, self._reserve)

    def configure(self, settings: BufferSettings) -> None:
        """See :class:`Camera`. Of the layout only format, placement and the strides' alignment count: the driver decides the rest."""
        assert self._memory is not None
        self._driver = self._agreed_format(settings)
        self._colorimetry = self._driver.colorimetry
        self.framerate = self._set_framerate() if self._wanted_rate else self.framerate
        made = self._memory.allocate(settings.slots, self._driver)
        if made < self._reserve:
            raise CameraError(f"'{self._device.path}' gave {made} buffers of {settings.slots}; at least {self._reserve} are needed")
        self._data_offsets = self._find_data(self._memory)
        layout = self._layout()
        self._least = least_bytes(layout)
        self._stream = V4l2Stream(
            self._device,
            self._signal,
            memory=self._memory.memory,
            buffers=len(self._driver.planes),
            needed=max(1, self._reserve - QUEUED + 1),
            silent_s=self._silent_s,
            monotonic=self._monotonic,
        )
        self._pool = BufferPool(
            layout, self._memory.take, made, name='camera', on_free=self._stream.queue_again, reserve=min(made, self._reserve)
        )

    def allocate(self, request: AllocationRequest) -> None:
        """See :class:`Camera`."""
        self.configure(request.settings())

    def _agreed_format(self, settings: BufferSettings) -> DriverFormat:
        code = self._choice.code(settings.format, settings.placement)
        if code is None:
            raise CameraError(f"'{self._device.path}' has no {settings.layout.describe()}; negotiate with its constraints")
        size = (self.width, self.height)
        driver = aligned_format(self._device.set_format, code, size, settings.limits.stride_align)
        if driver.size != size:
            raise CameraError(
                f"'{self._device.path}' answered {size_text(driver.size)} to {fourcc_name(code)} {size_text(size)}; open it again"
            )
        return driver

    def _find_data(self, memory: FrameMemory) -> tuple[int, ...]:
        """Where the data begins in each buffer. The multi-planar API tells only of a buffer that is queued."""
        memory.begin_trial()
        try:
            return self._device.query_offsets(0, len(self._driver.planes))
        finally:
            self._device.stream(False)

    def _layout(self) -> ImageLayout:
        try:
            return driver_layout(self._driver, self._data_offsets)
        except LayoutError as error:
            raise CameraError(f"'{self._device.path}' ({self._device.driver}): {error}; use another size or format") from error

    @property
    def slots(self) -> tuple[Slot, ...]:
        """See :class:`Camera`."""
        return () if self._pool is None else self._pool.slots

    @property
    def pool(self) -> BufferPool | None:
        """See :class:`Camera`."""
        return self._pool

    def capture(self) -> Frame | None:
        """See :class:`Camera`.

        :raises CameraLostError: unplugged, silent, or its stream can't be kept up.
        :raises CameraChangedError: its source has another format now.
        """
        if self._pool is None or self._stream is None:
            raise CameraError('the camera is not configured')
        if self._stopped:
            return None
        self._pool.collect()
        filled = self._stream.next(self._pool, self._wake)
        # A frame that came with the stop is the driver's again with the end of the stream.
        return None if filled is None or self._stopped else self._frame(self._pool, self._stream, filled)

    def _frame(self, pool: BufferPool, stream: V4l2Stream, filled: Dequeued) -> Frame | None:
        slot = pool.acquire(filled.index)
        if slot is None:
            raise CameraError(f"'{self._device.path}': the driver filled buffer {filled.index}, which it did not own")
        if filled.error or any(used < least for used, least in zip(filled.used, self._least, strict=True)):
            self._bad += 1
            pool.discard(slot)
            stream.bad(pool)
            return None
        if filled.data_offsets != self._data_offsets:
            pool.discard(slot)
            raise CameraError(
                f"'{self._device.path}' ({self._device.driver}): the data begins at {filled.data_offsets}, before it was "
                f'{self._data_offsets}; use another format'
            )
        stream.good()
        now = time.monotonic_ns()
        hardware = filled.monotonic and now - _OLDEST_NS <= filled.stamp_ns <= now + _NEWEST_NS
        captured_ns = filled.stamp_ns if hardware else now
        self._source = ('start of exposure' if filled.start_of_exposure else 'end of frame') if filled.monotonic else 'arrival'
        stamp_ns = self.clock.stamp(filled.stamp_ns, CaptureClock.MONOTONIC if filled.monotonic else CaptureClock.UNKNOWN)
        self._captured += 1
        return Frame.publish_slot(
            pool,
            slot,
            header=Header(stamp_ns, self._frame_id),
            colorimetry=self._colorimetry,
            sequence=stream.sequence,
            captured_ns=captured_ns,
        )

    def statistics(self) -> CameraStatistics:
        """See :class:`Camera`. Dropped are the driver's sequence gaps, and frames that it marked bad or left incomplete."""
        lost, no_slot = (0, 0) if self._stream is None else (self._stream.lost, self._stream.no_slot)
        return CameraStatistics(self._captured, lost + no_slot + self._bad, 0, lost=lost, bad=self._bad, no_slot=no_slot)

    @property
    def restarts(self) -> int:
        """How often the stream was started anew because the driver gave up on it or was silent."""
        return 0 if self._stream is None else self._stream.restarts

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
        if self._stream is not None:
            self._stream.close()
        if self._pool is not None:
            self._pool.close()
        self._close_device()

    def _close_device(self) -> None:
        if self._memory is not None:
            self._memory.close()
        self._device.close()
        self._wake.close()
