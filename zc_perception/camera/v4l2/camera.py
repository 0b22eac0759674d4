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
The V4L2 camera: it publishes the driver's buffers as frames, without a copy.

When a frame's last lease is released, its buffer is queued at the driver again.

Read :class:`V4l2Camera` first. :class:`V4l2Stream` queues and dequeues buffers, counts lost
frames, and restarts a stream that stopped delivering. :class:`V4l2Signal` handles a capture card's
input, the signal at this input, and the event that reports a changed signal. A driver without
ioctls for inputs, signals or events answers ENOTTY, which this class accepts. If a driver fills
its buffers with JPEGs, :mod:`~zc_perception.camera.v4l2.mjpeg` decodes them.

Sources: the kernel's *VIDIOC_QBUF, VIDIOC_DQBUF*, *VIDIOC_STREAMON*, *V4L2 poll()*; *Video Inputs
and Outputs*, *Digital Video (DV) Timings* (query, set, and only then choose a format),
*VIDIOC_DQEVENT* (V4L2_EVENT_SOURCE_CHANGE).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import contextlib
import ctypes
import errno
import os
import select
import threading
import time

from zc_perception.camera.camera import (
    CameraOptions,
    CameraStatistics,
    ControlInfo,
    ControlValue,
    heap_pool,
)
from zc_perception.camera.clock import CaptureClock
from zc_perception.camera.v4l2 import abi
from zc_perception.camera.v4l2.choice import aligned_format, choose_formats, frame_memory
from zc_perception.camera.v4l2.device import (
    Dequeued,
    find_device,
    identity_of,
    V4l2Controls,
    V4l2Device,
    V4l2Error,
)
from zc_perception.camera.v4l2.formats import driver_layout, JPEGS, least_bytes
from zc_perception.camera.v4l2.kind import QUEUED, reserve_of, V4l2
from zc_perception.camera.v4l2.mjpeg import (
    BadJpegError,
    bytes_layout,
    JPEG_BUFFERS,
    JpegFrames,
    JpegPicture,
    SLOTS,
)
from zc_perception.errors import (
    CameraChangedError,
    CameraError,
    CameraLostError,
    LayoutError,
    printable,
)
from zc_perception.frame import Frame, Header
from zc_perception.memory.heaps import OfferedHeaps
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool, mapped, Slot, SlotState
from zc_perception.negotiation.constraints import (
    BufferConstraints,
    Format,
    format_text,
    Placement,
    size_text,
)
from zc_perception.negotiation.settings import AllocationRequest, BufferSettings
from zc_perception.pixel.fourcc import fourcc_name
from zc_perception.pixel.layout import ImageLayout

_NONE = (errno.ENOTTY, errno.EINVAL, errno.ENODATA)
_NO_SIGNAL = (errno.ENOLINK, errno.ENOLCK, errno.ERANGE)


class V4l2Signal:
    """
    The selected input of an opened device, and the signal at this input.

    :param wanted: number of the input to switch to; ``None``: keep the present input.
    :raises CameraError: the device has no input of this number.
    """

    def __init__(self, device: V4l2Device, wanted: int | None = None) -> None:
        self._device = device
        self._input = self._select(wanted)
        self._set: bytes | None = None

    def _select(self, wanted: int | None) -> ctypes.Structure | None:
        number = ctypes.c_int(0 if wanted is None else wanted)
        name, request = (
            ('G_INPUT', abi.VIDIOC_G_INPUT) if wanted is None else ('S_INPUT', abi.VIDIOC_S_INPUT)
        )
        argument = abi.Input()
        try:
            self._device.call(name, request, number)
            argument.index = number.value
            self._device.call('ENUMINPUT', abi.VIDIOC_ENUMINPUT, argument)
        except V4l2Error as error:
            if wanted is None and error.number in _NONE:
                return None
            if error.number in _NONE:
                names = ', '.join(self._device.inputs()) or 'none that can be chosen'
                raise CameraError(
                    f"'{self._device.path}' has no input {wanted}; it has {names}; set "
                    "parameter 'input'"
                ) from error
            raise
        return argument

    @property
    def name(self) -> str:
        """The input's name; empty: the driver has no ioctls for inputs."""
        return '' if self._input is None else printable(self._input.name.decode(errors='replace'))

    def follow(self) -> None:
        """
        Set the device to the incoming signal: timings of HDMI and SDI, or an analogue standard.

        Call this before choosing a format, because it changes the formats that the device offers.

        :raises CameraLostError: there is no signal.
        """
        if self._input is None:
            return
        if self._input.capabilities & abi.IN_CAP_DV_TIMINGS:
            timings = self._query()
            if timings is not None:
                self._set = bytes(timings)
                try:
                    self._device.call('S_DV_TIMINGS', abi.VIDIOC_S_DV_TIMINGS, timings)
                except V4l2Error as error:
                    raise CameraError(
                        f"'{self._device.path}': it can't take the "
                        f"{timings.words[0]}x{timings.words[1]} signal at input '{self.name}' "
                        f'({error}); set the source to another mode'
                    ) from error
        elif self._input.capabilities & abi.IN_CAP_STD:
            standard = ctypes.c_uint64()
            if self._asked('QUERYSTD', abi.VIDIOC_QUERYSTD, standard):
                if not standard.value:
                    raise self._no_signal('no standard')
                # Each bit is a standard. If several bits are set, the device can't tell these
                # standards apart: then keep the present standard.
                if standard.value & (standard.value - 1) == 0:
                    self._device.call('S_STD', abi.VIDIOC_S_STD, standard)

    def _query(self) -> ctypes.Structure | None:
        timings = abi.DvTimings()
        return (
            timings
            if self._asked('QUERY_DV_TIMINGS', abi.VIDIOC_QUERY_DV_TIMINGS, timings)
            else None
        )

    def _asked(
        self, name: str, request: int, argument: ctypes.Structure | ctypes.c_uint64
    ) -> bool:
        """Make an ioctl that the driver may lack; return whether the driver has it."""
        try:
            self._device.call(name, request, argument)
        except V4l2Error as error:
            if error.number in _NO_SIGNAL:
                raise self._no_signal(errno.errorcode[error.number]) from error
            if error.number in _NONE:
                return False
            raise
        return True

    def _no_signal(self, detail: str) -> CameraLostError:
        return CameraLostError(
            f"'{self._device.path}': no signal at input '{self.name}' ({detail}); look at its "
            'cable and source'
        )

    def changed(self) -> str | None:
        """
        Describe the incoming signal if it differs from the signal at the last :meth:`follow`.

        ``None``: the signal is still the same; it was only interrupted.

        :raises CameraLostError: there is no signal.
        """
        if self._input is None or not self._input.capabilities & abi.IN_CAP_DV_TIMINGS:
            return 'another format'
        timings = self._query()
        if timings is None:
            return 'another format'
        if bytes(timings) == self._set:
            return None
        return f'{timings.words[0]}x{timings.words[1]} at input {self.name!r}'

    def subscribe(self) -> bool:
        """Subscribe to source-change events; return whether the driver supports them."""
        wanted = abi.EventSubscription(
            type=abi.EVENT_SOURCE_CHANGE, id=0 if self._input is None else self._input.index
        )
        try:
            self._device.call('SUBSCRIBE_EVENT', abi.VIDIOC_SUBSCRIBE_EVENT, wanted)
        except V4l2Error:
            return False
        return True

    def source_changed(self) -> bool:
        """Take all waiting events; return whether the picture's size or format changed."""
        found = False
        while True:
            event = abi.Event()
            try:
                self._device.call('DQEVENT', abi.VIDIOC_DQEVENT, event)
            except V4l2Error as error:
                if error.number in (errno.ENOENT, *_NONE):
                    return found
                raise
            found |= event.type == abi.EVENT_SOURCE_CHANGE and bool(
                event.u.src_change & abi.EVENT_SRC_CH_RESOLUTION
            )
            if not event.pending:
                return found


WAIT_MS = 250
FENCE_POLL_MS = 5
MAX_RESTARTS = 3
# After this many good frames since a restart, the count of failures is reset.
_HEALTHY_FRAMES = 30
# Errors after which starting the stream again helps: the driver gave up (EIO), ended the stream
# (EPIPE), or stopped it by itself (EINVAL), or a transfer from the camera failed (the others).
_RESTART_HELPS = (errno.EIO, errno.EPIPE, errno.EINVAL, errno.ETIMEDOUT, errno.EPROTO)


class V4l2Stream:
    """
    Queues buffers at the driver, and dequeues the buffers that it has filled.

    Any thread may call :meth:`queue_again`; only the camera's thread calls the other methods.

    :param memory: MEMORY_MMAP or MEMORY_DMABUF.
    :param buffers: number of memory buffers of each frame.
    :param needed: how many buffers must be queued before the driver fills a buffer. While fewer
        are queued, the time without a frame does not count as silence.
    :param silent_s: after this many seconds without a good frame (see :meth:`good`) the stream is
        restarted; after this many more seconds the camera counts as lost.
    """

    def __init__(
        self,
        device: V4l2Device,
        signal: V4l2Signal,
        *,
        memory: int,
        buffers: int,
        needed: int,
        silent_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._device = device
        self._signal = signal
        self._memory = memory
        self._buffers = buffers
        self._needed = max(1, needed)
        self._silent_s = silent_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._queued: set[int] = set()
        self._refused: dict[int, Slot] = {}
        self._streaming = False
        self._heard = 0.0
        self._silences = 0
        self._failures = 0
        self._good = 0
        self._last: int | None = None
        self._starved = False
        self.sequence = -1
        self.lost = self.no_slot = self.restarts = 0

    def queue_again(self, slot: Slot) -> None:
        """
        Queue a buffer again when its last lease is released.

        The thread that releases the lease calls this. If the driver refuses the buffer, the
        camera's thread tries again, so the consumer gets no error.
        """
        with self._lock:
            if self._streaming and slot.index not in self._queued:
                self._queue(slot)

    def _queue(self, slot: Slot) -> None:
        """Queue a buffer; keep a refused one for a later try. The caller holds the lock."""
        try:
            self._device.queue(slot.index, self._memory, slot.buffers)
        except (CameraError, ValueError):  # ValueError: the device is closed already
            self._refused[slot.index] = slot
        else:
            self._queued.add(slot.index)

    def next(self, pool: BufferPool, wake: OwnedFd) -> Dequeued | None:  # noqa: A003
        """
        Wait for the next filled buffer; the caller has to acquire its slot from *pool*.

        ``None``: no buffer was filled within :data:`WAIT_MS`, or *wake* became readable.

        :raises CameraLostError: the camera is unplugged or silent, or restarts did not help.
        :raises CameraChangedError: the source has another format.
        :raises CameraBusyError: another program streams from the camera.
        :raises CameraError: the driver refuses to stream.
        """
        try:
            if not self._streaming:
                self._start(pool)
            if self._refused:
                self._try_again()
            events = self._device.poll(wake, FENCE_POLL_MS if pool.waiting else WAIT_MS)
            if (
                events & select.POLLPRI
                and not events & select.POLLHUP
                and self._signal.source_changed()
            ):
                self._change(pool)
                return None
            filled = self._device.dequeue(self._memory, self._buffers) if events else None
        except V4l2Error as error:
            if error.number not in _RESTART_HELPS:
                raise
            self._fail(pool, str(error))
            return None
        if filled is None:
            if events & select.POLLERR:
                self._fail(
                    pool, f"'{self._device.path}': the driver reports an error and has no frame"
                )
            else:
                self.bad(pool)
            return None
        self._note(filled)
        return filled

    def _start(self, pool: BufferPool) -> None:
        with self._lock:
            self._queued.clear()
            self._refused.clear()
            for slot in pool.slots:
                if slot.state is SlotState.FREE:
                    self._queue(slot)
            self._streaming = True
        try:
            self._try_again()
            self._device.stream(True)
        except BaseException as error:
            self._halt()
            if (
                isinstance(error, V4l2Error) and error.number == errno.EPIPE
            ):  # when a stream starts, EPIPE means that the media pipeline is set up wrongly
                raise CameraError(str(error)) from error
            raise
        self._last = None
        self._heard = self._monotonic()

    def _try_again(self) -> None:
        with self._lock:
            refused, self._refused = self._refused, {}
            for slot in refused.values():
                # Since the refusal, the pool may have replaced this slot by a new slot of the
                # same number. Then skip the old slot: the new slot is queued already.
                if slot.state is SlotState.FREE and slot.index not in self._queued:
                    self._device.queue(slot.index, self._memory, slot.buffers)
                    self._queued.add(slot.index)

    def _halt(self) -> None:
        """Take all buffers back from the driver."""
        with self._lock:
            self._streaming = False
            self._queued.clear()
            self._device.stream(False)

    def _restart(self, pool: BufferPool) -> None:
        self.restarts += 1
        self._good = 0
        self._halt()
        self._start(pool)

    def _fail(self, pool: BufferPool, reason: str) -> None:
        """Restart a stream; after :data:`MAX_RESTARTS` failures raise CameraLostError."""
        while True:
            self._failures += 1
            if self._failures > MAX_RESTARTS:
                raise CameraLostError(
                    f'{reason}; starting the stream anew {MAX_RESTARTS} times did not help: '
                    'plug the camera in again'
                )
            try:
                self._restart(pool)
                return
            except V4l2Error as error:
                if error.number not in _RESTART_HELPS:
                    raise
                reason = str(error)

    def _change(self, pool: BufferPool) -> None:
        """
        Raise CameraChangedError if the source has another format; otherwise restart the stream.

        Drivers send the same event in both cases: the source has changed, or was only interrupted.
        """
        now = self._signal.changed()
        if now is not None:
            raise CameraChangedError(
                f"'{self._device.path}': its source changed to {now}; open the camera again and "
                'negotiate anew'
            )
        self._fail(pool, f"'{self._device.path}': its source was interrupted")

    def good(self) -> None:
        """Record that the last buffer from :meth:`next` is a complete frame."""
        self._heard = self._monotonic()
        self._silences = 0
        self._good += 1
        if self._good >= _HEALTHY_FRAMES:
            self._failures = 0

    def bad(self, pool: BufferPool) -> None:
        """
        Record an incomplete frame, whose slot is free again, or a wait without any frame.

        A camera that delivers only bad frames counts as silent. After *silent_s* seconds of
        silence the stream is restarted.

        :raises CameraLostError: no good frame came for too long, even after a restart.
        """
        now = self._monotonic()
        if len(self._queued) < self._needed:
            self._heard = now
        if now - self._heard < self._silent_s:
            return
        self._silences += 1
        if self._silences > 1:
            raise CameraLostError(
                f"'{self._device.path}' is silent: no good frame for {self._silent_s:g} s, even "
                'after its stream was started anew; look at its cable and power'
            )
        self._restart(pool)

    def _note(self, filled: Dequeued) -> None:
        """
        Update :attr:`sequence`, and count the frames whose numbers are missing.

        :attr:`sequence` continues after a restart, and after the driver's 32-bit number wraps.
        """
        step = 1
        if self._last is not None:
            step = (filled.sequence - self._last) & 0xFFFFFFFF
            if step == 0 or step >> 31:  # the driver restarted its count, or doesn't count frames
                step = 1
            if self._starved:
                self.no_slot += step - 1
            else:
                self.lost += step - 1
        elif self.sequence < 0:
            step = filled.sequence + 1
        self.sequence += step
        self._last = filled.sequence
        with self._lock:
            self._queued.discard(filled.index)
            self._starved = len(self._queued) < self._needed

    def close(self) -> None:
        """Stop streaming. Leased frames stay readable."""
        with self._lock:
            was, self._streaming = self._streaming, False
            self._queued.clear()
        if was:
            # a device that was unplugged has stopped already, and refuses the call
            with contextlib.suppress(CameraError):
                self._device.stream(False)


_SILENT_S = 2.0
_SILENT_FRAMES = 10
# Ignore a timestamp this far in the past or future: some drivers leave it empty, and some use
# another clock.
_OLDEST_NS, _NEWEST_NS = 10_000_000_000, 5_000_000


class V4l2Camera(V4l2):
    """
    Captures from a V4L2 device of the single- or multi-planar API.

    :param path: the present device file of a camera that was lost and has come back, used instead
        of parameter ``device``; ``None``: no camera was lost.
    :raises CameraBusyError: another program streams from the device.
    :raises CameraLostError: there is no signal at the device's input.
    :raises CameraError: the device can't do what the parameters ask for. The message lists what it
        can do.
    """

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
            # From here on, close() closes the objects that were opened above, in reverse order.
            self._opened = opened.pop_all()
        self.width, self.height = self._driver.size

    @classmethod
    def open(cls, options: CameraOptions) -> V4l2Camera:  # noqa: A003
        """Open the camera; if ``options`` has an identity, find the device file with it first."""
        return cls(options, find_device(options.identity) if options.identity else None)

    def _set_framerate(self) -> float:
        wanted = self._wanted_rate
        if not wanted:
            return self._device.get_framerate()
        rate = self._device.set_framerate(wanted) or self._device.get_framerate()
        if rate and abs(rate - wanted) > 0.01 * wanted:
            rates = self._device.frame_rates(self._driver.fourcc, *self._driver.size)
            offered = f'; the driver offers {", ".join(map(str, rates))}' if rates else ''
            self._notes.append(
                f'{wanted:g} Hz were asked for, but the driver gives {rate:g} Hz{offered}'
            )
        return rate

    @property
    def device(self) -> str:
        return (
            f'{self._device.path} '
            f'({self._device.card}{f", input {self._signal.name}" if self._signal.name else ""})'
        )

    @property
    def _decodes(self) -> bool:
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
        """Whose memory the frames use: the driver's (``export``) or a heap's (``import``)."""
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
                f'{self._jpegs.decode_ns / 1e6:.1f} ms for the last frame; '
                f'{self._jpegs.skipped} pictures skipped for newer ones'
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
        """Return the picture sizes that the driver offers in its present format."""
        return list(map(str, self._device.frame_sizes(self._driver.fourcc)))

    def allocate(self, request: AllocationRequest) -> None:
        """
        Set the request's format, placement and stride alignment, and make the buffers.

        The driver decides the rest of the layout.
        """
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
                f"'{self._device.path}' has no {format_text(wanted)}; request one of the "
                "formats in the camera's constraints"
            )
        size = (self.width, self.height)
        ask = self._device.set_format
        driver = (
            ask(code, *size) if code in JPEGS else aligned_format(ask, code, size, stride_align)
        )
        if driver.size != size:
            raise CameraError(
                f"'{self._device.path}' set {size_text(driver.size)} when it was asked for "
                f'{fourcc_name(code)} {size_text(size)}; open the camera again'
            )
        self._driver = driver
        self.framerate = self._set_framerate() if self._wanted_rate else self.framerate

    def _configure_driver(self, slots: int, heap: str | None) -> None:
        """Set up the driver's buffers as the pool of frames."""
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
        """Set up the driver's buffers for JPEGs, and a second pool for the decoded frames."""
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
                f"'{self._device.path}' gave {made} of {wanted} buffers; at least "
                f'{self._reserve} are needed'
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
        """Return the offset of the data in each buffer; drivers report it for queued buffers."""
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
                f"'{self._device.path}' ({self._device.driver}): {error}; use another size or "
                'format'
            ) from error

    def capture(self) -> Frame | None:
        """
        Return the next frame; ``None``: no good frame came in time.

        :raises CameraChangedError: the camera's source has another format now.
        """
        if self._pool is None or self._stream is None:
            raise CameraError('the camera is not configured')
        if self._stopped:
            return None
        self._pool.collect()
        if self._jpegs is not None:
            return self._next_decoded(self._jpegs, self._stream)
        filled = self._stream.next(self._pool, self._wake)
        # Once stop() was called, a filled buffer isn't acquired; the end of the stream frees it.
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
                f"'{self._device.path}' ({self._device.driver}): the buffers' data begins at "
                f'{filled.data_offsets} bytes, not at {self._data_offsets} bytes as before; use '
                'another format'
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
                f"'{self._device.path}': the driver filled buffer {filled.index}, which it did "
                'not own'
            )
        return slot

    def _stamped(self, filled: Dequeued) -> tuple[Header, int]:
        """
        Return a frame's header, and its capture time in ns of CLOCK_MONOTONIC.

        The capture time is the driver's timestamp, or the present time if the driver gives no
        credible timestamp.
        """
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
        """Return the next decoded frame; ``None``: the wait ended and no frame is decoded."""
        # The decoder also wakes this thread by the eventfd. Clear the eventfd before looking for
        # frames, so that no frame is missed.
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
        """Return the decoder's next finished frame; report bad pictures to the stream."""
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
        """
        Return counters.

        ``lost`` counts the frames whose numbers are missing in the driver's sequence, although
        enough buffers were queued. ``bad`` counts frames that the driver marked bad or left
        incomplete, and JPEGs that can't be decoded.
        """
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
        """How often the stream was restarted because it failed or no frame came."""
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
