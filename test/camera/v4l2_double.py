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
A V4L2 driver in Python, written from the kernel's documentation.

It replaces :class:`~zc_perception.camera.v4l2.device.DeviceFile`; time passes only in
:meth:`DriverDouble.poll`. ``test/rig/guest/camera_*.py`` check the same behaviour with the driver
vivid.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
import ctypes
from dataclasses import dataclass, field
import errno
from itertools import cycle
import os
import select
from typing import Any

from camera.camera_options import camera_options
from camera.jpeg_kit import jpeg
import cv2
import numpy as np

from zc_perception.camera.road_scene import RoadScene
from zc_perception.camera.v4l2 import abi
from zc_perception.camera.v4l2 import choice as memory_module
from zc_perception.camera.v4l2.camera import V4l2Camera
from zc_perception.camera.v4l2.device import V4l2Device
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.negotiation.agreement import agree
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.pixel.fourcc import fourcc_code

SIZES = ((320, 180), (640, 360))
# Bits per pixel of each memory buffer.
FORMATS = {'NV12': (12,), 'YUYV': (16,), 'UYVY': (16,), 'MJPG': (8,), 'H264': (8,)}
FORMATS |= {'NM12': (8, 4), 'MM21': (8, 4)}
_NAMES = {
    value: name.removeprefix('VIDIOC_')
    for name, value in vars(abi).items()
    if name.startswith('VIDIOC_')
}
_FULL = object()


@dataclass
class Control:
    title: str
    kind: int
    low: int = 0
    high: int = 0
    step: int = 1
    value: int = 0
    flags: int = 0
    menu: dict[int, bytes] = field(default_factory=dict)
    dims: int = 0


@dataclass
class Frame:
    """The driver's report about one filled buffer; ``None`` means the correct value."""

    sequence: int | None = None
    flags: int = 0
    used: int | object = _FULL
    offset: int | None = None


class DriverDouble:
    """
    A device with one queue of buffers.

    :param formats: V4L2's fourccs, in this order.
    :param offset: ``data_offset`` of each buffer.
    """

    path = '/dev/not_a_node'
    card = b'Double Camera'
    sizes = SIZES

    def __init__(
        self,
        *formats: str,
        multiplanar: bool = False,
        offset: int = 0,
        min_stride: int = 1,
        memory: int = 5,
    ) -> None:
        self.formats = formats or ('YUYV', 'NV12')
        self.multiplanar = multiplanar
        self.offset = offset
        self.min_stride = min_stride
        self.supported = memory
        self.now = 1000.0
        self.code = fourcc_code(self.formats[0])
        self.size = SIZES[0]
        self.interval = (1, 30)
        self.stride = self.memory = self.count = self.sequence = 0
        self.streaming = self.broken = self.silent = self.closed = False
        self.queued: list[int] = []
        self.script: list[Frame] = []
        # The contents of the next filled buffers; the last one repeats.
        self.contents: list[bytes] = []
        # How many more buffers it fills; None for all that are queued.
        self.due: int | None = None
        # The highest frame rates of formats, where that isn't 30.
        self.rates: dict[str, int] = {}
        self.files: dict[int, int] = {}
        self.waiting: list[int] = []
        self.controls: dict[int, Control] = {}
        self.readable_exports = True
        self.errors: defaultdict[str, list[int]] = defaultdict(list)
        self.calls: list[str] = []
        self.queue_order: list[int] = []

    def fail(self, name: str, *numbers: int) -> None:
        """Let the next calls of an ioctl fail with these numbers; 0 lets a call succeed."""
        self.errors[name] += numbers

    def ioctl(self, request: int, argument: Any) -> None:
        if self.closed:
            raise ValueError('the file descriptor is closed')
        name = _NAMES[request]
        self.calls.append(name)
        pending = self.errors[name]
        number = pending.pop(0) if pending else 0
        self._need(not number, number)
        handler: Any = getattr(self, f'_{name.lower()}', None)
        self._need(handler, errno.ENOTTY)
        handler(argument)

    def poll(self, wake: OwnedFd, timeout_ms: int) -> int:
        if not self.streaming or self.broken:
            return select.POLLERR
        if self.waiting or (self.queued and not self.silent and self.due != 0):
            if not self.waiting:
                self.waiting.append(self.queued.pop(0))
                self.due = None if self.due is None else self.due - 1
            return select.POLLIN
        if self.due == 0:
            select.select([wake.fileno()], [], [], 0.01)
        else:
            self.now += timeout_ms / 1000
        return 0

    def close(self) -> None:
        self.closed = True
        self._forget_files()

    def _forget_files(self) -> None:
        while self.files:
            os.close(self.files.popitem()[1])

    @staticmethod
    def _need(good: object, number: int = errno.EINVAL) -> None:
        if not good:
            raise OSError(number, os.strerror(number))

    def _querycap(self, argument: abi.Capability) -> None:
        argument.driver, argument.bus_info = b'double', b'platform:double'
        argument.card = self.card
        kind = abi.CAP_VIDEO_CAPTURE_MPLANE if self.multiplanar else abi.CAP_VIDEO_CAPTURE
        argument.device_caps = abi.CAP_STREAMING | kind
        argument.capabilities = argument.device_caps | abi.CAP_DEVICE_CAPS

    def _enum_fmt(self, argument: abi.FmtDesc) -> None:
        self._need(argument.index < len(self.formats))
        argument.pixelformat = fourcc_code(self.formats[argument.index])

    def _enum_framesizes(self, argument: abi.FrameSizeEnum) -> None:
        self._need(argument.index < len(self.sizes))
        argument.type = abi.FRMSIZE_TYPE_DISCRETE
        argument.discrete.width, argument.discrete.height = self.sizes[argument.index]

    def _enum_frameintervals(self, argument: abi.FrameIntervalEnum) -> None:
        self._need(argument.index == 0)
        argument.type = abi.FRMIVAL_TYPE_CONTINUOUS
        rate = self.rates.get(self._name(argument.pixel_format), 30)
        argument.stepwise.min, argument.stepwise.max = abi.Fract(1, rate), abi.Fract(1, 1)

    def _name(self, code: int) -> str:
        return next((name for name in self.formats if fourcc_code(name) == code), self.formats[0])

    def planes(self) -> list[tuple[int, int]]:
        """Return bytes per line, and size of each buffer, in the current format."""
        found = []
        for bits in FORMATS[self._name(self.code)]:
            # NM12's chroma rows are as long as its luma rows, and half as many.
            line = self.size[0] * (2 if bits == 16 else 1)
            line = -(-max(line, self.stride) // self.min_stride) * self.min_stride
            rows = self.size[1] * (bits if bits != 16 else 8) // 8
            found.append((line, line * rows + self.offset))
        return found

    def _describe(self, argument: abi.Format) -> None:
        pix = argument.fmt.pix_mp if self.multiplanar else argument.fmt.pix
        pix.width, pix.height = self.size
        pix.pixelformat, pix.field = self.code, abi.FIELD_NONE
        if self.multiplanar:
            planes = self.planes()
            pix.num_planes = len(planes)
            for plane, (line, size) in zip(pix.plane_fmt, planes, strict=False):
                plane.bytesperline, plane.sizeimage = line, size
        else:
            ((pix.bytesperline, pix.sizeimage),) = self.planes()

    def _take(self, argument: abi.Format) -> None:
        pix = argument.fmt.pix_mp if self.multiplanar else argument.fmt.pix
        wanted = (pix.width, pix.height)
        self.size = min(
            self.sizes, key=lambda size: abs(size[0] - wanted[0]) + abs(size[1] - wanted[1])
        )
        self.code = fourcc_code(self._name(pix.pixelformat))
        self.stride = pix.plane_fmt[0].bytesperline if self.multiplanar else pix.bytesperline

    _g_fmt = _describe

    def _s_fmt(self, argument: abi.Format) -> None:
        self._need(not self.count, errno.EBUSY)
        self._take(argument)
        self._describe(argument)

    def _try_fmt(self, argument: abi.Format) -> None:
        before = self.code, self.size, self.stride
        self._take(argument)
        self._describe(argument)
        self.code, self.size, self.stride = before

    def _g_parm(self, argument: abi.StreamParm) -> None:
        period = argument.parm.capture.timeperframe
        period.numerator, period.denominator = self.interval

    def _s_parm(self, argument: abi.StreamParm) -> None:
        period = argument.parm.capture.timeperframe
        wanted = max(1, round(period.denominator / period.numerator))
        self.interval = (1, min(self.rates.get(self._name(self.code), 30), wanted))
        self._g_parm(argument)

    def _reqbufs(self, argument: abi.RequestBuffers) -> None:
        argument.capabilities, exports = self.supported, argument.memory == abi.MEMORY_MMAP
        needed = abi.BUF_CAP_SUPPORTS_MMAP if exports else abi.BUF_CAP_SUPPORTS_DMABUF
        self._need(needed & self.supported)
        self.memory, self.count = argument.memory, argument.count
        self.queued.clear()
        self._forget_files()

    def _expbuf(self, argument: abi.ExportBuffer) -> None:
        self._need(argument.index < self.count and self.memory == abi.MEMORY_MMAP)
        self._need(argument.flags & os.O_ACCMODE != os.O_RDONLY or self.readable_exports)
        memory = os.memfd_create('expbuf', os.MFD_CLOEXEC)
        os.ftruncate(memory, -(-self.planes()[argument.plane][1] // 4096) * 4096)
        argument.fd = os.open(f'/proc/self/fd/{memory}', argument.flags)
        if self.contents:
            self.files[argument.index] = memory
        else:
            os.close(memory)

    def _planes_of(self, argument: abi.Buffer) -> ctypes.Array[abi.Plane]:
        return (abi.Plane * argument.length).from_address(argument.m.planes)

    def _qbuf(self, argument: abi.Buffer) -> None:
        index, busy = argument.index, [*self.queued, *self.waiting]
        self._need(index < self.count and index not in busy and argument.memory == self.memory)
        if self.memory == abi.MEMORY_DMABUF:
            given = self._planes_of(argument) if self.multiplanar else [argument]
            for plane, (_, size) in zip(given, self.planes(), strict=True):
                self._need(size <= min(plane.length, os.lseek(plane.m.fd, 0, os.SEEK_END)))
            if self.contents and index not in self.files:
                self.files[index] = os.dup(given[0].m.fd)
        self.queued.append(index)
        self.queue_order.append(index)

    def _querybuf(self, argument: abi.Buffer) -> None:
        if self.multiplanar:
            for plane, _ in zip(self._planes_of(argument), self.planes(), strict=False):
                plane.data_offset = self.offset if argument.index in self.queued else 0

    def _streamon(self, argument: ctypes.c_int) -> None:
        self.streaming = True

    def _streamoff(self, argument: ctypes.c_int) -> None:
        self.streaming = self.broken = False
        self.queued.clear()
        self.waiting.clear()
        self.sequence = 0

    def _dqbuf(self, argument: abi.Buffer) -> None:
        self._need(not self.broken, errno.EIO)
        self._need(self.waiting, errno.EAGAIN)
        frame = self.script.pop(0) if self.script else Frame()
        argument.index = self.waiting.pop(0)
        argument.sequence = self.sequence if frame.sequence is None else frame.sequence
        self.sequence = (argument.sequence + 1) & 0xFFFFFFFF
        argument.flags = frame.flags
        sizes = [size if frame.used is _FULL else frame.used for _, size in self.planes()]
        if self.contents:
            content = self.contents.pop(0) if len(self.contents) > 1 else self.contents[0]
            os.pwrite(self.files[argument.index], content, self.offset)
            sizes = [self.offset + len(content) if frame.used is _FULL else frame.used]
        offset = self.offset if frame.offset is None else frame.offset
        if self.multiplanar:
            for plane, used in zip(self._planes_of(argument), sizes, strict=True):
                plane.bytesused, plane.data_offset = used, offset
        else:
            (argument.bytesused,) = sizes

    def _subscribe_event(self, argument: abi.EventSubscription) -> None:
        pass

    def _query_ext_ctrl(self, argument: abi.QueryExtCtrl) -> None:
        number = argument.id & ~abi.CTRL_FLAG_NEXT_CTRL
        if argument.id & abi.CTRL_FLAG_NEXT_CTRL:
            number = next((n for n in sorted(self.controls) if n > number), -1)
        self._need(number in self.controls)
        control = self.controls[number]
        argument.id, argument.type, argument.name = number, control.kind, control.title.encode()
        argument.minimum, argument.maximum, argument.step = control.low, control.high, control.step
        argument.flags, argument.nr_of_dims = control.flags, control.dims

    def _querymenu(self, argument: abi.QueryMenu) -> None:
        control = self.controls[argument.id]
        self._need(argument.index in control.menu)
        if control.kind == abi.CTRL_TYPE_MENU:
            text = control.menu[argument.index].ljust(32, b'\0')
            ctypes.memmove(ctypes.addressof(argument) + abi.QueryMenu.name.offset, text, 32)
        else:
            argument.value = int(control.menu[argument.index])

    def _g_ext_ctrls(self, argument: abi.ExtControls) -> None:
        entry = argument.controls[0]
        control = self.controls[entry.id]
        wide = control.kind == abi.CTRL_TYPE_INTEGER64
        setattr(entry, 'value64' if wide else 'value', control.value)

    def _s_ext_ctrls(self, argument: abi.ExtControls) -> None:
        entry = argument.controls[0]
        control = self.controls[entry.id]
        value = entry.value64 if control.kind == abi.CTRL_TYPE_INTEGER64 else entry.value
        if control.kind == abi.CTRL_TYPE_INTEGER:
            value -= (value - control.low) % control.step
        control.value = value
        self._g_ext_ctrls(argument)


def opened(
    driver: DriverDouble,
    width: int = 640,
    height: int = 360,
    framerate: float = 30.0,
    **options: Any,
) -> V4l2Camera:
    """Return a camera on the driver and its clock, not yet configured."""
    options = {'width': width, 'height': height, 'now_ns': lambda: 1, **options}
    made = camera_options(framerate=framerate, **options)
    return V4l2Camera(
        made, open_device=lambda path: V4l2Device(driver), monotonic=lambda: driver.now
    )


@contextmanager
def streaming(
    driver: DriverDouble, *consumers: BufferConstraints, slots: int = 5, **options: Any
) -> Iterator[V4l2Camera]:
    """Yield a camera that has agreed on its memory with *consumers*."""
    with closing(opened(driver, **options)) as camera:
        own = camera.constraints()
        rest = BufferConstraints('rest', slots=max(0, slots - own.slots))
        camera.allocate(agree([own, *consumers, rest], (camera.width, camera.height)))
        yield camera


def take(camera: V4l2Camera, count: int = 1) -> list[int]:
    found: list[int] = []
    for _ in range(20 * count):
        frame = camera.capture()
        if frame is not None:
            found.append(frame.data.sequence)
            frame.release()
        if len(found) == count:
            break
    return found


def road_pictures(width: int, height: int, frames: int) -> list[bytes]:
    """Return *frames* JPEGs of the drawn road like a webcam's: full range, halved chroma."""
    scene, found = RoadScene(width, height, 11), []
    luma = np.empty((height, width), np.uint8)
    chroma = np.empty((height // 2, width // 2, 2), np.uint8)
    for number in range(frames):
        scene.draw(number, luma, chroma)
        bgr = cv2.cvtColorTwoPlane(luma, chroma, cv2.COLOR_YUV2BGR_NV12)
        found.append(jpeg(np.asarray(bgr, np.uint8), '422', 60))
    return found


class LiveWebcam(DriverDouble):
    """Fill a buffer every 1/30 s with the next of *pictures*; drop it if none is queued."""

    def __init__(
        self, *formats: str, pictures: Sequence[bytes], size: tuple[int, int]
    ) -> None:
        self.sizes = (size,)
        super().__init__(*formats)
        self.size, self.contents, self.pictures = size, [b''], cycle(pictures)

    def poll(self, wake: OwnedFd, timeout_ms: int) -> int:
        if select.select([wake.fileno()], [], [], min(timeout_ms / 1000, 1 / 30))[0]:
            return 0
        self.contents = [next(self.pictures)]
        return super().poll(wake, timeout_ms)

    def camera(self, ledger: CopyLedger, **options: Any) -> V4l2Camera:
        made = camera_options(
            width=self.size[0], height=self.size[1], framerate=30.0, ledger=ledger, **options
        )
        return V4l2Camera(made, open_device=lambda path: V4l2Device(self))


def exports_are_memfds(monkeypatch: Any) -> None:
    """Export buffers as memfds: doubles lack the ioctl for the CPU's access to dma-bufs."""
    monkeypatch.setattr(
        memory_module, 'DmaBuf', lambda fd, kind, heap: DmaBuf(fd, BufferKind.MEMFD, heap)
    )
