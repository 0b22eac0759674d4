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
The libcamera camera: each buffer that libcamera's pipeline handler allocates is a slot.

Each slot has a request, by which libcamera fills the slot. The request is queued again when the
slot's last lease is released.

libcamera's Python module has one manager for all cameras. The manager's only file descriptor
becomes readable when any camera completes a request. So :class:`Requests` passes each request to
its camera.

From libcamera 0.1 on, a call that fails raises a RuntimeError with strerror's text; in older
versions (Debian 12 has 0.0.3) it returns a negative number. Controls are looked up by name,
because two Python objects may stand for the same control.

Source: libcamera's documentation, and ``src/py/libcamera`` of libcamera 0.0.3 and 0.7.
``SensorTimestamp`` is CLOCK_BOOTTIME. Tested only with ``test/doubles/libcamera_module.py``, which
has the interface of both versions; libcamera itself needs hardware such as a Raspberry Pi.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import errno
from functools import partial
import importlib
import os
import select
import threading
import time
from typing import Any, ClassVar, TYPE_CHECKING

from zc_perception.camera.camera import Camera, CameraOptions, CameraStatistics, PIPELINE_BUFFERS
from zc_perception.camera.clock import CaptureClock
from zc_perception.errors import (
    AllocationError,
    CameraBusyError,
    CameraError,
    CameraLostError,
    ConfigError,
    LayoutError,
    ZcError,
)
from zc_perception.frame import Frame, Header
from zc_perception.machine.checks import (
    Check,
    Finding,
    Need,
    Needs,
    NodeNeed,
    ok,
    skip,
    Status,
    told,
)
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import (
    BorrowedMemory,
    BufferPool,
    Buffers,
    close_buffers,
    own_descriptors,
    Slot,
)
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.settings import AllocationRequest
from zc_perception.parameters import ParameterSpec
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range
from zc_perception.pixel.fourcc import NV12, pixel_format
from zc_perception.pixel.layout import ImageLayout, PlaneLayout, validate_layout
from zc_perception.pixel.modifier import LINEAR

if TYPE_CHECKING:
    from zc_perception.machine.system import System

RESERVE = 3
"""Slots that the camera needs: two that libcamera fills, and one that is just being delivered."""
_INSTALL = 'install it: apt install python3-libcamera, or build libcamera with -Dpycamera=enabled'


def planes_of(buffer: Any) -> list[BorrowedMemory]:
    """Return the file descriptor, offset and size of each plane of a libcamera FrameBuffer."""
    return [BorrowedMemory(plane.fd, plane.offset, plane.length) for plane in buffer.planes]


def checked(what: str, result: Any) -> Any:
    """
    Return *result*, the result of a call to libcamera's Python module, if it is no error number.

    :param what: what the call should do, for the message.
    :raises CameraError: *result* is negative: libcamera before 0.1 reports errors this way.
    """
    if isinstance(result, int) and result < 0:
        raise error_of(what, OSError(-result, os.strerror(-result)))
    return result


def error_of(what: str, error: BaseException) -> CameraError:
    """Return the CameraError for *error*, which libcamera reported when it had to do *what*."""
    text = f'libcamera could not {what}: {error}'
    if os.strerror(errno.EBUSY) in str(error):
        return CameraBusyError(f'{text}; end the other program that uses the camera')
    return CameraError(
        f'{text}; try the camera with the program cam of libcamera-tools, and read its log '
        '(LIBCAMERA_LOG_LEVELS=*:DEBUG)'
    )


def named(controls: Mapping[Any, Any], name: str) -> tuple[Any, Any] | None:
    """Return control *name* and its value from *controls*; ``None``: there is no such control."""
    return next(
        (
            (control, value)
            for control, value in controls.items()
            if getattr(control, 'name', control) == name
        ),
        None,
    )


def choose_camera(names: Sequence[str], wanted: str) -> int:
    """
    Return the index in *names* of the camera that parameter ``libcamera_id`` names.

    :param names: the ids of all cameras.
    :param wanted: the parameter: an id, a part of an id, or an index; empty: the first camera.
    :raises CameraError: no camera matches, or several do.
    """
    if not names:
        step = (
            'plug a camera in, and check that cam -l lists it (a container needs '
            '/dev/media* and /dev/video*)'
        )
        raise CameraError(f'libcamera found no camera; {step}')
    if not wanted:
        return 0
    if wanted.isascii() and wanted.isdigit() and len(wanted) < 5 and int(wanted) < len(names):
        return int(wanted)
    found = [name for name in names if wanted == name] or [
        name for name in names if wanted in name
    ]
    if len(found) != 1:
        raise CameraError(
            f"libcamera has {len(found)} cameras with '{wanted}' in the id; there are "
            f'{", ".join(names)}: '
            'set libcamera_id to one of these ids, or to its index in this list, from 0'
        )
    return names.index(found[0])


def import_libcamera() -> Any:
    """Import libcamera's Python module; ConfigError: it or its CameraManager is missing."""
    try:
        module = importlib.import_module('libcamera')
    except ImportError as error:
        raise ConfigError(
            f"camera 'libcamera' needs libcamera's Python bindings: {error}; {_INSTALL}"
        ) from error
    if not hasattr(module, 'CameraManager'):
        raise ConfigError(
            f"the module 'libcamera' at {getattr(module, '__file__', '?')} isn't libcamera's; "
            f'{_INSTALL}'
        )
    return module


class Mailbox:
    """
    Holds the completed requests of one camera.

    This class has no lock, because a deque's methods are atomic.

    :param cookie: the upper bits of the cookies of this camera's requests; the lower 16 bits are
        the slot's index.
    """

    def __init__(self, cookie: int) -> None:
        self.cookie = cookie
        self.ready: deque[Any] = deque()
        self.wake = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def ring(self) -> None:
        """Wake the thread that waits in :meth:`Requests.wait` for this mailbox."""
        if not self.wake.closed:
            os.eventfd_write(self.wake.fileno(), 1)


class Requests:
    """
    Passes the manager's completed requests to the cameras of this process.

    Each camera's thread waits in :meth:`wait`. When requests complete, the first thread that wakes
    up fetches the requests of all cameras, and puts them into the cameras' mailboxes.
    """

    _of_module: ClassVar[dict[int, Requests]] = {}
    _making = threading.Lock()

    def __init__(self, manager: Any) -> None:
        self.manager = manager
        self._lock = threading.Lock()
        self._boxes: dict[int, Mailbox] = {}
        self._next = 1

    @classmethod
    def shared(cls, module: Any) -> Requests:
        """Return the only Requests of this process: libcamera has one manager for all cameras."""
        with cls._making:
            manager = module.CameraManager.singleton()
            found = cls._of_module.get(id(manager))
            if found is None:
                found = cls._of_module[id(manager)] = cls(manager)
            return found

    def open(self) -> Mailbox:  # noqa: A003
        """Make the mailbox of a new camera."""
        with self._lock:
            box = Mailbox(self._next << 16)
            self._boxes[self._next] = box
            self._next += 1
            return box

    def close(self, box: Mailbox) -> None:
        """Close a mailbox; its requests that complete later are dropped."""
        with self._lock:
            self._boxes.pop(box.cookie >> 16, None)
        box.wake.close()

    def wait(self, box: Mailbox, timeout_s: float) -> Any | None:
        """
        Return the mailbox's oldest completed request.

        ``None``: no request came within *timeout_s*, or :meth:`Mailbox.ring` was called.
        """
        if not box.ready:
            poller = select.poll()
            poller.register(self.manager.event_fd, select.POLLIN)
            poller.register(box.wake.fileno(), select.POLLIN)
            events = dict(poller.poll(max(0, round(timeout_s * 1000))))
            if box.wake.fileno() in events:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(box.wake.fileno())
            if self.manager.event_fd in events:
                with self._lock:
                    for request in self.manager.get_ready_requests():
                        other = self._boxes.get(request.cookie >> 16)
                        if other is not None:
                            other.ready.append(request)
                            other.ring()
        return box.ready.popleft() if box.ready else None


def libcamera_bindings(system: System, needs: Needs) -> Iterator[Finding]:
    """Check that libcamera's Python module loads, and that the parameter file's cameras exist."""
    need = needs.camera('libcamera')
    if need is Need.UNUSED:
        yield skip('no camera in the parameter file uses libcamera')
        return
    answer = system.ask(describe_libcamera)
    if 'error' in answer:
        yield told(need.missing_extra, answer['error'])
        return
    cameras: list[str] = answer['cameras']
    figures = {'version': answer['version'], 'file': answer['file'], 'cameras': cameras}
    for camera in needs.cameras:
        if camera.kind == 'libcamera':
            try:
                choose_camera(cameras, camera['libcamera_id'])
            except CameraError as error:
                yield told(Status.FAIL, error, camera.node, **figures)
                return
    version = f' {answer["version"]}' if answer['version'] else ''
    there = ', '.join(cameras) or 'no camera'
    yield ok(f'libcamera{version}: {there}', **figures)


def describe_libcamera() -> dict[str, Any]:
    """Return file and version of libcamera's Python module, and the ids of all cameras."""
    try:
        module = import_libcamera()
        manager = module.CameraManager.singleton()
        cameras = [str(camera.id) for camera in manager.cameras]
    except ZcError as error:
        return {'error': str(error)}
    except (RuntimeError, OSError) as error:
        return {'error': f'libcamera could not list its cameras: {error}'}
    version = ''
    # libcamera before 0.1 raises TypeError when manager.version is read.
    with contextlib.suppress(TypeError):
        version = str(manager.version)
    return {'file': str(getattr(module, '__file__', '')), 'version': version, 'cameras': cameras}


_WAIT_S, _FENCE_POLL_S = 0.25, 0.005
# After an unplugged camera refuses a request, its earlier requests come back as cancelled within
# this time, in seconds.
_CANCELLED_WITHIN_S = 2.0
_MATRICES = {'Rec601': Matrix.BT601, 'Rec709': Matrix.BT709, 'Rec2020': Matrix.BT2020}


class LibcameraCamera(Camera):
    """
    Takes NV12 frames from one camera of libcamera.

    :raises ConfigError: libcamera's Python module is missing, or the camera has no NV12 stream of
        the wanted size.
    :raises CameraError: the camera isn't connected, or another program uses it.
    """

    PARAMETERS = (
        ParameterSpec('libcamera_id', '', ("the camera's id, a part of this id, or the camera's "
                                           "index in libcamera's list, from 0. "
                                           'Empty: the first camera.')),
        PIPELINE_BUFFERS,
    )  # fmt: skip
    MEMORY = "libcamera's buffers"
    HELD = RESERVE
    CHECKS = (
        Check(
            'libcamera.bindings',
            "whether libcamera's Python module loads, and which cameras it lists",
            libcamera_bindings,
        ),
    )

    def __init__(self, options: CameraOptions) -> None:
        parameters = options.parameters
        wanted, width, height, buffers = (
            parameters[name] for name in ('libcamera_id', 'width', 'height', 'pipeline_buffers')
        )
        self._frame_id = parameters['frame_id']
        self.framerate = self._wanted_rate = parameters['framerate']
        self._watchdog_s = options.pipeline_silence_s()
        self._module = import_libcamera()
        self._requests = Requests.shared(self._module)
        self.clock = options.stamp_clock()
        self._by_slot: list[Any] = []
        self._queue_lock = threading.Lock()
        self._queue_error: CameraError | None = None
        self._queue_error_at = 0.0
        # After libcamera has cancelled requests, _streaming is False: no more requests are queued.
        # _started stays True, because close() has to stop the camera.
        self._started = self._streaming = False
        self._stopped = self._acquired = self._closed = False
        self._last_sequence: int | None = None
        self._last_frame = time.monotonic()
        self._captured = self._lost = self._bad = 0
        self._box = self._requests.open()
        try:
            cameras = list(self._requests.manager.cameras)
            self._camera = cameras[choose_camera([camera.id for camera in cameras], wanted)]
            self._call('acquire the camera', self._camera.acquire)
            self._acquired = True
            self._configure_stream(width, height, buffers)
            self._allocator = self._module.FrameBufferAllocator(self._camera)
            self._call('allocate its buffers', lambda: self._allocator.allocate(self._stream))
            self._buffers = list(self._allocator.buffers(self._stream))
            self._layout, self._colorimetry = self._describe()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, options: CameraOptions) -> LibcameraCamera:  # noqa: A003
        return cls(options)

    @classmethod
    def examine(cls, system: System, needs: Needs, camera: NodeNeed) -> Finding:
        return skip(f'camera {camera.kind}: see check libcamera.bindings', camera.node)

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return checked(what, call())
        except (OSError, RuntimeError, ValueError) as error:
            raise error_of(what, error) from error

    def _configure_stream(self, width: int, height: int, buffers: int) -> None:
        module = self._module
        configuration = self._camera.generate_configuration([module.StreamRole.VideoRecording])
        stream = configuration.at(0)
        stream.pixel_format = module.PixelFormat('NV12')
        if width and height:
            stream.size = module.Size(width, height)
        stream.buffer_count = buffers
        configuration.validate()
        name, size = str(stream.pixel_format), stream.size
        if name != 'NV12':
            raise ConfigError(
                f"camera '{self._camera.id}' has no NV12 stream, it gives {name}; use camera: "
                'gstreamer with libcamerasrc'
            )
        if width and height and (size.width, size.height) != (width, height):
            raise ConfigError(
                f"camera '{self._camera.id}' can't do {width}x{height}; the nearest is "
                f'{size.width}x{size.height}: set width and height to this size'
            )
        self._call('configure the stream', lambda: self._camera.configure(configuration))
        self._stream = stream.stream
        self._configuration = stream
        self.width, self.height = int(stream.size.width), int(stream.size.height)

    def _describe(self) -> tuple[ImageLayout, Colorimetry]:
        """
        Return the layout and colorimetry of all buffers.

        :raises CameraError: the buffers' layouts differ, or there are fewer than RESERVE buffers.
        """
        if len(self._buffers) < RESERVE:
            raise CameraError(
                f"camera '{self._camera.id}' gave {len(self._buffers)} buffers; at least "
                f'{RESERVE} are needed'
            )
        layouts = {self._layout_of(planes_of(buffer)) for buffer in self._buffers}
        if len(layouts) != 1:
            raise CameraError(
                f"camera '{self._camera.id}': its buffers differ in layout; report this to the "
                "authors, with the camera's name and libcamera's version"
            )
        return layouts.pop(), _colorimetry(self._configuration.color_space)

    def _layout_of(self, planes: list[BorrowedMemory]) -> ImageLayout:
        stride = int(self._configuration.stride)
        identities = [plane.identity() for plane in planes]
        shapes = pixel_format(NV12).planes
        if len(planes) == 1:
            # libcamera describes luma and chroma as one plane, in which chroma follows luma.
            luma = stride * self.height
            places = [
                (0, planes[0].offset, luma),
                (0, planes[0].offset + luma, planes[0].size - luma),
            ]
        else:
            order = list(dict.fromkeys(identities))
            places = [
                (order.index(i), plane.offset, plane.size)
                for i, plane in zip(identities, planes, strict=True)
            ]
        if len(places) != len(shapes):
            raise CameraError(
                f"camera '{self._camera.id}' gives NV12 in {len(places)} planes; there must be "
                '1 or 2'
            )
        lying = zip(places, shapes, strict=True)
        made = tuple(
            PlaneLayout(buffer, offset, stride, min(size, stride * p.rows(self.height)))
            for (buffer, offset, size), p in lying
        )
        return ImageLayout(self.width, self.height, NV12, LINEAR, made)

    @property
    def device(self) -> str:
        return f'libcamera {self._camera.id}'

    @property
    def identity(self) -> str:
        """The camera's id: bus positions and sensor names, which stay the same after a reboot."""
        return f'libcamera: {self._camera.id}'

    @property
    def heap_name(self) -> str:
        return 'libcamera'

    def constraints(self) -> BufferConstraints:
        """Return the constraints; the pipeline handler alone decides strides and offsets."""
        size = (self.width, self.height)
        return BufferConstraints(
            'libcamera camera',
            formats=((NV12, LINEAR),),
            heaps=(self.heap_name,),
            slots=RESERVE,
            min_size=size,
            max_size=size,
        )

    def allocate(self, request: AllocationRequest) -> None:
        """Make the pool of libcamera's buffers, which exist already; *request* has no effect."""
        waiting = list(self._buffers)

        def take() -> Buffers:
            if not waiting:
                raise AllocationError(
                    f"camera '{self._camera.id}': a libcamera buffer can't be replaced while "
                    'streaming'
                )
            return self._adopt(planes_of(waiting.pop(0)))

        try:
            self._pool = BufferPool(
                self._layout,
                take,
                len(self._buffers),
                name='camera',
                on_free=self._queue_again,
                reserve=min(RESERVE, len(self._buffers)),
            )
        except (AllocationError, LayoutError) as error:
            raise CameraError(f"camera '{self._camera.id}': {error}") from error
        self._by_slot = [
            self._request(index, buffer) for index, buffer in enumerate(self._buffers)
        ]

    def _adopt(self, planes: list[BorrowedMemory]) -> Buffers:
        buffers = own_descriptors(
            {plane.identity(): plane for plane in planes}.values(), self.heap_name
        )
        try:
            validate_layout(self._layout, [buffer.size for buffer in buffers])
        except LayoutError:
            close_buffers(buffers)
            raise
        return buffers

    def _request(self, index: int, buffer: Any) -> Any:
        request = self._call(
            'make a request', partial(self._camera.create_request, self._box.cookie | index)
        )
        if request is None:  # libcamera before 0.1 returns None if it can't make a request
            raise CameraError(
                f"camera '{self._camera.id}': libcamera made no request; end other programs that "
                'use the camera, and try again'
            )
        self._call('add a buffer to a request', lambda: request.add_buffer(self._stream, buffer))
        return request

    def _queue_again(self, slot: Slot) -> None:
        """
        Queue the slot's request again after the last lease is released.

        The consumer's thread that releases the lease calls this. An error must not reach the
        consumer, so this method stores the error, and the camera's thread raises it.
        """
        with self._queue_lock:
            if not self._streaming:
                return
            try:
                request = self._by_slot[slot.index]
                request.reuse()
                self._call('queue a request', lambda: self._camera.queue_request(request))
            except CameraError as error:
                self._queue_error, self._queue_error_at = error, time.monotonic()

    def _start(self) -> None:
        self._call('start the camera', lambda: self._camera.start(self._controls()))
        self._started = self._streaming = True
        self._last_frame = time.monotonic()
        for request in self._by_slot:
            self._call('queue a request', partial(self._camera.queue_request, request))

    def _controls(self) -> Mapping[Any, Any]:
        limits = named(self._camera.controls, 'FrameDurationLimits') if self._wanted_rate else None
        if limits is None:
            return {}
        period_us = round(1e6 / self._wanted_rate)
        return {limits[0]: (period_us, period_us)}

    def capture(self) -> Frame | None:
        pool = self._pool
        if pool is None:
            raise CameraError('the camera is not configured')
        if self._stopped:
            return None
        if not self._started:
            self._start()
        pool.collect()
        request = self._requests.wait(self._box, _FENCE_POLL_S if pool.waiting else _WAIT_S)
        if self._stopped:
            return None
        if request is None:
            # Don't raise at once: perhaps the request was refused because the camera is
            # unplugged. Then its earlier requests soon come back as cancelled, and _frame() raises
            # CameraLostError.
            if (
                self._queue_error is not None
                and time.monotonic() - self._queue_error_at > _CANCELLED_WITHIN_S
            ):
                raise self._queue_error
            silent = time.monotonic() - self._last_frame
            if 0.0 < self._watchdog_s < silent:
                raise CameraLostError(
                    f"camera '{self._camera.id}' gave no frame for {silent:.1f} s; check "
                    "its cable and read libcamera's log"
                )
            return None
        self._last_frame = time.monotonic()
        return self._frame(pool, request)

    def _frame(self, pool: BufferPool, request: Any) -> Frame | None:
        slot = pool.acquire(request.cookie & 0xFFFF)
        if slot is None:
            raise CameraError(
                f"camera '{self._camera.id}': request {request.cookie & 0xFFFF} came back "
                'although it was not queued'
            )
        self._count(int(request.sequence))
        buffer = self._buffers[slot.index]
        if request.status != self._module.Request.Status.Complete or (
            buffer.metadata.status != self._module.FrameMetadata.Status.Success
        ):
            self._bad += 1
            if request.status != self._module.Request.Status.Complete and not self._stopped:
                # The request was cancelled although the camera was not stopped: the camera was
                # unplugged, or its sensor gave no frames (then the camera still runs, and
                # close() stops it). Clear _streaming first: otherwise pool.discard() would queue
                # the request again.
                with self._queue_lock:
                    self._streaming = False
                pool.discard(slot)
                raise CameraLostError(
                    f"camera '{self._camera.id}': libcamera cancelled its requests; plug the "
                    'camera in again, or see the kernel log'
                )
            pool.discard(slot)
            return None
        captured_boot_ns = _timestamp(request, buffer)
        self._captured += 1
        clock = CaptureClock.UNKNOWN if captured_boot_ns is None else CaptureClock.BOOTTIME
        stamp_ns = self.clock.stamp(captured_boot_ns or 0, clock)
        now = time.monotonic_ns()
        age = (
            0
            if captured_boot_ns is None
            else max(0, time.clock_gettime_ns(time.CLOCK_BOOTTIME) - captured_boot_ns)
        )
        return Frame.publish_slot(
            pool,
            slot,
            header=Header(stamp_ns, self._frame_id),
            colorimetry=self._colorimetry,
            sequence=int(request.sequence),
            captured_ns=now - age,
        )

    def _count(self, sequence: int) -> None:
        if self._last_sequence is not None:
            self._lost += max(0, sequence - self._last_sequence - 1)
        self._last_sequence = sequence

    def statistics(self) -> CameraStatistics:
        return CameraStatistics(
            self._captured, self._lost + self._bad, 0, self._lost, self._bad, 0
        )

    def stop(self) -> None:
        self._stopped = True
        self._box.ring()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.stop()
        with self._queue_lock:
            self._streaming = False
        if self._started:
            with contextlib.suppress(CameraError):  # an unplugged camera has stopped already
                self._call('stop the camera', self._camera.stop)
        if self._pool is not None:
            self._pool.close()
        self._by_slot, self._buffers, self._allocator = [], [], None
        if self._acquired:
            with contextlib.suppress(CameraError):
                self._call('release the camera', self._camera.release)
        self._requests.close(self._box)


def _timestamp(request: Any, buffer: Any) -> int | None:
    """Return the capture time in ns on CLOCK_BOOTTIME; ``None``: libcamera doesn't give it."""
    found = named(request.metadata, 'SensorTimestamp')
    if found is not None:
        return int(found[1])
    return int(buffer.metadata.timestamp) or None


def _colorimetry(space: Any) -> Colorimetry:
    """Return the colorimetry of libcamera's color space; by default BT.601, limited range."""
    encoding, span = str(getattr(space, 'ycbcrEncoding', '')), str(getattr(space, 'range', ''))
    matrix = next(
        (matrix for name, matrix in _MATRICES.items() if encoding.endswith(name)), Matrix.BT601
    )
    return Colorimetry(matrix, Range.FULL if span.endswith('Full') else Range.LIMITED)
