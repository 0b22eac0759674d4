"""The V4L2 camera: the driver's frames without a copy, their buffers queued again when the last lease is dropped.

Of a driver that fills its buffers with JPEGs, frames are decoded: :mod:`~zc_perception.camera.v4l2.mjpeg`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zc_perception.camera.camera import Camera, CameraOptions, CameraStatistics, heap_pool
from zc_perception.camera.clock import CaptureClock
from zc_perception.camera.controls import ControlInfo, ControlValue
from zc_perception.camera.jpeg import BadJpegError
from zc_perception.camera.v4l2.choice import (
    MOST_BUFFERS,
    QUEUED,
    aligned_format,
    choose_formats,
    reserve_of,
)
from zc_perception.camera.v4l2.controls import V4l2Controls
from zc_perception.camera.v4l2.device import Dequeued, V4l2Device, find_device, identity_of
from zc_perception.camera.v4l2.formats import JPEGS, driver_layout, least_bytes
from zc_perception.camera.v4l2.memory import frame_memory
from zc_perception.camera.v4l2.mjpeg import (
    JPEG_BUFFERS,
    SLOTS,
    JpegFrames,
    JpegPicture,
    bytes_layout,
)
from zc_perception.camera.v4l2.stream import V4l2Signal, V4l2Stream
from zc_perception.errors import CameraError, CameraLostError, FormatError, LayoutError
from zc_perception.frame import Frame, Header
from zc_perception.machine.checks import Check
from zc_perception.machine.finding import Finding
from zc_perception.memory.heaps import HeapUse, OfferedHeaps
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool, Slot, mapped
from zc_perception.negotiation.constraints import (
    BufferConstraints,
    Format,
    Placement,
    Size,
    format_text,
    size_text,
)
from zc_perception.negotiation.settings import AllocationRequest, BufferSettings
from zc_perception.parameters import ParameterSpec
from zc_perception.pixel.format_names import from_v4l2
from zc_perception.pixel.fourcc import NV12, fourcc_name
from zc_perception.pixel.layout import ImageLayout

if TYPE_CHECKING:
    from zc_perception.camera.pool_plan import Agree, PlannedPool
    from zc_perception.machine.needs import Needs, NodeNeed
    from zc_perception.machine.system import System

_SILENT_S = 2.0
_SILENT_FRAMES = 10
# A timestamp outside of this is none: some drivers leave it empty, some take another clock.
_OLDEST_NS, _NEWEST_NS = 10_000_000_000, 5_000_000


class V4l2Camera(Camera):
    """Captures from a V4L2 device, of the single- or the multi-planar API.

    :param path: device node in place of parameter ``device``, where a camera that was lost is now.
    :raises CameraBusyError: another program streams from it.
    :raises CameraLostError: no signal at its input.
    :raises CameraError: the device can't do that. The message lists what it can.
    """

    PARAMETERS = (
        ParameterSpec('device', '/dev/video0', 'device node. After a loss the same camera is looked for, wherever it is plugged in.'),
        ParameterSpec('input', -1, "which of the device's inputs (HDMI, SDI, …). -1: the input is not changed.", '', -1, 63),
        ParameterSpec('pixel_format', 'auto', "the driver's fourcc, such as NV12, YUYV, MJPG. auto: the cheapest that suits all and keeps "
                      'the framerate.'),
        ParameterSpec('memory', 'auto', "export: the driver's own buffers. import: the driver fills buffers from parameter heap.",
                      choices=('auto', 'export', 'import')),
    )  # fmt: skip
    CHECKS = (
        Check(
            'cameras.devices',
            'each /dev/video*: driver, card, formats, sizes, rates, who uses it',
            'zc_perception.camera.v4l2.checks:camera_devices',
        ),
    )
    MEMORY = "the driver's buffers"
    HELD = reserve_of(0)
    identity = ''

    def __init__(
        self,
        options: CameraOptions,
        path: str | None = None,
        *,
        open_device: Callable[[str], V4l2Device] = V4l2Device.open,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        parameters = options.parameters
        width, height, framerate, heap = (
            parameters[name] for name in ('width', 'height', 'framerate', 'heap')
        )
        memory, pixel_format, input_number, silent_s = (
            parameters[name] for name in ('memory', 'pixel_format', 'input', 'silent')
        )
        self._frame_id = parameters['frame_id']
        self.clock = options.stamp_clock()
        self._monotonic = monotonic
        self._wanted_rate = framerate
        self._stream: V4l2Stream | None = None
        self._ledger = options.ledger
        self._decoded_heaps: OfferedHeaps | None = None
        self._pictures: BufferPool | None = None
        self._jpegs: JpegFrames | None = None
        self._stopped = False
        self._captured = 0
        self._bad = 0
        self._least: tuple[int, ...] = ()
        self._data_offsets: tuple[int, ...] = ()
        self._source = ''
        self._notes: list[str] = []
        with contextlib.ExitStack() as opened:
            self._wake = opened.enter_context(
                OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            )
            self._device = opened.enter_context(
                contextlib.closing(open_device(path or parameters['device']))
            )
            self.identity = identity_of(self._device)
            self._signal = V4l2Signal(self._device, None if input_number < 0 else input_number)
            self._signal.follow()
            self._choice = choose_formats(self._device, width, height, pixel_format, framerate)
            if self._choice.jpeg is not None:
                self._decoded_heaps = opened.enter_context(
                    contextlib.closing(options.open_heaps())
                )
            self._driver = self._device.set_format(self._choice.first_code, *self._choice.size)
            self.framerate = self._set_framerate()
            self._memory = opened.enter_context(
                contextlib.closing(frame_memory(self._device, memory, heap, self._driver))
            )
            self._controls = V4l2Controls(self._device)
            self._reserve = reserve_of(self._controls.minimum_buffers())
            self._silent_s = silent_s or max(
                _SILENT_S, _SILENT_FRAMES / self.framerate if self.framerate else 0.0
            )
            self._signal.subscribe()
            # Closed in the opposite order.
            self._opened = opened.pop_all()
        self.width, self.height = self._driver.size

    @classmethod
    def open(cls, options: CameraOptions) -> V4l2Camera:
        """A camera that was plugged in again may have another node."""
        return cls(options, find_device(options.identity) if options.identity else None)

    @classmethod
    def examine(cls, system: System, needs: Needs, camera: NodeNeed) -> Finding:
        from zc_perception.camera.v4l2.checks import configured

        return configured(system, needs, camera)

    @classmethod
    def heap_use(cls, values: Mapping[str, Any]) -> HeapUse | None:
        return HeapUse.CAMERA_IMPORT if values['memory'] == 'import' else None

    @classmethod
    def picture_size(cls, system: System, values: Mapping[str, Any]) -> Size:
        from zc_perception.camera.v4l2.checks import picture_size

        return (
            super().picture_size(system, values)
            if values['width'] and values['height']
            else picture_size(system, values)
        )

    @classmethod
    def planned_pool(
        cls, system: System, values: Mapping[str, Any], heaps: OfferedHeaps | None, agree: Agree
    ) -> PlannedPool | None:
        """By its driver's own answers, if it gives some; who looks at the camera says why not."""
        from zc_perception.camera.pool_plan import estimated, plan
        from zc_perception.camera.v4l2.checks import driver_pool

        found = driver_pool(system, values, heaps, agree)
        size = cls.picture_size(system, values)
        if found is not None or not all(size):
            return found
        fourcc = NV12
        with contextlib.suppress(FormatError):  # 'auto', JPEGs, and names that no driver has
            fourcc = from_v4l2(values['pixel_format']).fourcc
        known = estimated(size, cls.MEMORY, cls.HELD, fourcc, MOST_BUFFERS)
        return plan(known, agree, own_heap=heaps is not None)

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
        return f'{self._device.path} ({self._device.card}{f", input {self._signal.name}" if self._signal.name else ""})'

    @property
    def _decodes(self) -> bool:
        """Whether the driver is set to JPEGs."""
        return self._driver.fourcc in JPEGS

    @property
    def heap_name(self) -> str:
        return (
            self._decoded_heaps.name
            if self._decodes and self._decoded_heaps is not None
            else self._memory.heap_name
        )

    @property
    def memory(self) -> str:
        """``export`` or ``import``."""
        return self._memory.kind

    def notices(self) -> tuple[str, ...]:
        return (*self._choice.notices, *self._notes, *self._memory.notes)

    def facts(self) -> Mapping[str, object]:
        facts: dict[str, object] = {
            'memory': self.memory,
            'V4L2 format': fourcc_name(self._driver.fourcc),
            'choice': self._choice.describe(self._driver.fourcc),
            'timestamp source': self._source or 'no frame yet',
            'stream restarts': self.restarts,
        }
        if self._jpegs is not None:
            facts['decoding'] = (
                f'{self._jpegs.decode_ns / 1e6:.1f} ms for the last frame; {self._jpegs.skipped} skipped for newer ones'
            )
            facts['last bad JPEG'] = self._jpegs.last_bad or 'none'
            facts['mended JPEGs'] = self._jpegs.mended
        return facts

    @property
    def threads(self) -> Sequence[threading.Thread]:
        jpegs = self._jpegs
        return () if jpegs is None else (jpegs.thread,)

    def controls(self) -> Mapping[str, ControlInfo]:
        return self._controls.infos()

    def set_control(self, name: str, value: ControlValue) -> int | None:
        return self._controls.set(name, value)

    def constraints(self) -> BufferConstraints:
        decoded = () if self._decoded_heaps is None else self._decoded_heaps.names
        return self._choice.constraints(
            self._memory.heap_names, self._reserve, '; '.join(self._memory.heap_reasons), decoded
        )

    def sizes(self) -> Sequence[str]:
        """Of the driver's present format."""
        return list(map(str, self._device.frame_sizes(self._driver.fourcc)))

    def allocate(self, request: AllocationRequest) -> None:
        """Of the layout only format, placement and the strides' alignment count: the driver decides the rest, tiled or linear."""
        modifier = next(
            (
                m
                for m in request.modifiers
                if self._choice.code((request.fourcc, m), request.placement)
            ),
            request.modifiers[0],
        )
        self._set_format(
            (request.fourcc, modifier), request.placement, request.limits.stride_align
        )
        if self._decodes:
            self._configure_jpegs(request.settings())
        else:
            self._configure_driver(
                request.slots, None if request.heap is None else request.heap.name
            )

    def _set_format(self, wanted: Format, placement: Placement | None, stride_align: int) -> None:
        code = self._choice.code(wanted, placement)
        if code is None:
            raise CameraError(
                f"'{self._device.path}' has no {format_text(wanted)}; negotiate with its constraints"
            )
        size = (self.width, self.height)
        ask = self._device.set_format
        driver = (
            ask(code, *size) if code in JPEGS else aligned_format(ask, code, size, stride_align)
        )
        if driver.size != size:
            raise CameraError(
                f"'{self._device.path}' answered {size_text(driver.size)} to {fourcc_name(code)} {size_text(size)}; open it again"
            )
        self._driver = driver
        self.framerate = self._set_framerate() if self._wanted_rate else self.framerate

    def _configure_driver(self, slots: int, heap: str | None) -> None:
        """The driver's buffers are the frames."""
        if heap is not None:
            self._memory.choose(heap)
        made = self._made(slots)
        self._colorimetry = self._driver.colorimetry
        self._data_offsets = self._find_data()
        layout = self._layout()
        self._least = least_bytes(layout)
        self._stream = self._new_stream()
        self._pool = BufferPool(
            layout,
            self._memory.take,
            made,
            name='camera',
            on_free=self._stream.queue_again,
            reserve=min(made, self._reserve),
        )

    def _configure_jpegs(self, settings: BufferSettings) -> None:
        """The driver's buffers hold JPEGs, frames are decoded from them."""
        assert self._decoded_heaps is not None
        made = self._made(self._reserve + JPEG_BUFFERS)
        size = self._driver.planes[0].size
        self._data_offsets = self._find_data()
        self._stream = self._new_stream()
        self._pictures = BufferPool(
            bytes_layout(size),
            mapped(self._memory.take),
            made,
            name='jpegs',
            on_free=self._stream.queue_again,
        )
        self._pool = heap_pool(settings, self._decoded_heaps, name='camera', reserve=SLOTS)
        name = f'jpeg {os.path.basename(self._device.path)}'
        self._jpegs = JpegFrames(name, self._pictures, self._pool, self._wake, self._ledger)

    def _made(self, wanted: int) -> int:
        made = self._memory.allocate(wanted, self._driver)
        if made < self._reserve:
            raise CameraError(
                f"'{self._device.path}' gave {made} buffers of {wanted}; at least {self._reserve} are needed"
            )
        return made

    def _new_stream(self) -> V4l2Stream:
        return V4l2Stream(
            self._device,
            self._signal,
            memory=self._memory.memory,
            buffers=len(self._driver.planes),
            needed=max(1, self._reserve - QUEUED + 1),
            silent_s=self._silent_s,
            monotonic=self._monotonic,
        )

    def _find_data(self) -> tuple[int, ...]:
        """Where the data begins in each buffer. The multi-planar API tells only of a buffer that is queued."""
        self._memory.begin_trial()
        try:
            return self._device.query_offsets(0, len(self._driver.planes))
        finally:
            self._device.stream(False)

    def _layout(self) -> ImageLayout:
        try:
            return driver_layout(self._driver, self._data_offsets)
        except LayoutError as error:
            raise CameraError(
                f"'{self._device.path}' ({self._device.driver}): {error}; use another size or format"
            ) from error

    def capture(self) -> Frame | None:
        """:raises CameraLostError: unplugged, silent, or its stream can't be kept up.
        :raises CameraChangedError: its source has another format now.
        """
        if self._pool is None or self._stream is None:
            raise CameraError('the camera is not configured')
        if self._stopped:
            return None
        self._pool.collect()
        if self._jpegs is not None:
            return self._next_decoded(self._jpegs, self._stream)
        filled = self._stream.next(self._pool, self._wake)
        # A frame that came with the stop is the driver's again with the end of the stream.
        return (
            None
            if filled is None or self._stopped
            else self._frame(self._pool, self._stream, filled)
        )

    def _frame(self, pool: BufferPool, stream: V4l2Stream, filled: Dequeued) -> Frame | None:
        slot = self._slot(pool, filled)
        if filled.error or any(
            used < least for used, least in zip(filled.used, self._least, strict=True)
        ):
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
        header, captured_ns = self._stamped(filled)
        self._captured += 1
        return Frame.publish_slot(
            pool,
            slot,
            header=header,
            colorimetry=self._colorimetry,
            sequence=stream.sequence,
            captured_ns=captured_ns,
        )

    def _slot(self, pool: BufferPool, filled: Dequeued) -> Slot:
        slot = pool.acquire(filled.index)
        if slot is None:
            raise CameraError(
                f"'{self._device.path}': the driver filled buffer {filled.index}, which it did not own"
            )
        return slot

    def _stamped(self, filled: Dequeued) -> tuple[Header, int]:
        """The frame's header, and the CLOCK_MONOTONIC at which the camera had it."""
        now = time.monotonic_ns()
        hardware = filled.monotonic and now - _OLDEST_NS <= filled.stamp_ns <= now + _NEWEST_NS
        self._source = (
            ('start of exposure' if filled.start_of_exposure else 'end of frame')
            if filled.monotonic
            else 'arrival'
        )
        stamp_ns = self.clock.stamp(
            filled.stamp_ns, CaptureClock.MONOTONIC if filled.monotonic else CaptureClock.UNKNOWN
        )
        return Header(stamp_ns, self._frame_id), filled.stamp_ns if hardware else now

    def _next_decoded(self, jpegs: JpegFrames, stream: V4l2Stream) -> Frame | None:
        """A frame that is decoded already, or what the driver or the decoder has next within a bounded wait."""
        # The decoder wakes by it, too. Cleared before looking, so that nothing is missed.
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake.fileno())
        frame = self._finished(jpegs, stream)
        if frame is not None or self._stopped:
            return frame
        filled = stream.next(jpegs.pictures, self._wake)
        if filled is not None and not self._stopped:
            self._hand_over(jpegs, stream, filled)
        return self._finished(jpegs, stream)

    def _hand_over(self, jpegs: JpegFrames, stream: V4l2Stream, filled: Dequeued) -> None:
        slot = self._slot(jpegs.pictures, filled)
        start, end = filled.data_offsets[0], filled.used[0]
        if filled.error or end <= start:
            self._bad += 1
            jpegs.pictures.discard(slot)
            stream.bad(jpegs.pictures)
            return
        jpegs.give(JpegPicture(slot, start, end, *self._stamped(filled), stream.sequence))

    def _finished(self, jpegs: JpegFrames, stream: V4l2Stream) -> Frame | None:
        """The next frame that the decoder has finished; of bad pictures the stream is told."""
        for done in jpegs.finished():
            if isinstance(done, BadJpegError):
                try:
                    stream.bad(jpegs.pictures)
                except CameraLostError as error:
                    raise CameraLostError(f'{error}; the last picture was bad: {done}') from error
                continue
            if isinstance(done, Exception):
                raise done
            stream.good()
            if done is not None:
                self._captured += 1
                return done
        return None

    def statistics(self) -> CameraStatistics:
        """Dropped are the driver's sequence gaps, and frames that it marked bad or left incomplete."""
        lost, no_slot = (
            (0, 0) if self._stream is None else (self._stream.lost, self._stream.no_slot)
        )
        bad, late = self._bad, 0
        if self._jpegs is not None:
            bad, late, no_slot = (
                bad + self._jpegs.bad,
                self._jpegs.skipped,
                no_slot + self._jpegs.no_slot,
            )
        return CameraStatistics(
            self._captured, lost + no_slot + bad + late, late, lost=lost, bad=bad, no_slot=no_slot
        )

    @property
    def restarts(self) -> int:
        """How often the stream was started anew because the driver gave up on it or was silent."""
        return 0 if self._stream is None else self._stream.restarts

    def stop(self) -> None:
        self._stopped = True
        if not self._wake.closed:
            os.eventfd_write(self._wake.fileno(), 1)

    def close(self) -> None:
        self.stop()
        if self._jpegs is not None:
            self._jpegs.close()
        if self._stream is not None:
            self._stream.close()
        for pool in (self._pictures, self._pool):
            if pool is not None:
                pool.close()
        self._opened.close()
