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
An open V4L2 capture device: one method per ioctl, and errors that name the next step.

:class:`DeviceFile` calls ioctl and poll. :class:`V4l2Device` has the same methods for the single-
and the multi-planar API. :class:`V4l2Controls` has the device's controls by name, with the
driver's ranges. :func:`identity_of` returns the text by which a device is found again after it was
unplugged. The name ``/dev/videoN`` doesn't identify it, because a device that is plugged in gets
any free number.

Identities come from the kernel's sysfs (``/sys/dev/char``, video4linux ``index``, USB ``serial``).
Controls follow the kernel's pages *User Controls*, *Extended Controls API* and
*VIDIOC_QUERY_EXT_CTRL*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import ctypes
from dataclasses import dataclass
import errno
import fcntl
import glob
import os
from pathlib import Path
import re
import select

from zc_perception.camera.camera import (
    checked_value,
    ControlInfo,
    ControlKind,
    ControlValue,
    no_such_control,
)
from zc_perception.camera.v4l2 import abi
from zc_perception.camera.v4l2.formats import DriverFormat, DriverPlane, RateRange, SizeRange
from zc_perception.errors import (
    CameraBusyError,
    CameraError,
    CameraLostError,
    NO_DESCRIPTOR,
    printable,
)
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.pixel.colorimetry import V4l2Colorimetry
from zc_perception.pixel.fourcc import fourcc_name

Argument = ctypes.Structure | ctypes.c_int | ctypes.c_uint64


class V4l2Error(CameraError):
    """An ioctl failed with errno *number*, and the device is neither unplugged nor busy."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class DeviceFile:
    """
    An opened device file, through which ioctls are made.

    Tests replace it by an imitated driver.

    :raises OSError: the device file can't be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = OwnedFd.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._fd.fileno(), select.POLLIN | select.POLLPRI)
        self._wake = -1

    def ioctl(self, request: int, argument: Argument) -> None:
        """
        Make the system call; *argument* is filled in place.

        :raises OSError: the driver's error.
        :raises CameraLostError: the file is already closed.
        """
        try:
            number = self._fd.fileno()
        except ValueError as error:
            raise CameraLostError(
                f"'{self.path}' was closed; wait until the camera is back"
            ) from error
        fcntl.ioctl(number, request, argument)

    def poll(self, wake: OwnedFd, timeout_ms: int) -> int:
        """
        Wait at most *timeout_ms* for the device, and return its POLL* bits.

        The wait also ends when *wake* becomes readable. The result is 0 if the device has
        nothing to report. Each call must pass the same *wake*.
        """
        if self._wake != wake.fileno():
            self._wake = wake.fileno()
            self._poll.register(self._wake, select.POLLIN)
        own = self._fd.fileno()
        return sum(events for fd, events in self._poll.poll(timeout_ms) if fd == own)

    def close(self) -> None:
        self._fd.close()


# The cause or remedy of errors whose errno text is too general. A key is an ioctl's name and an
# error number.
_HINTS = {
    (
        'STREAMON',
        errno.EPIPE,
    ): "the formats along the device's media pipeline don't match; set them with media-ctl",
    ('STREAMON', errno.ENOLINK): (
        'no sensor is linked to the device; enable the link with media-ctl'
    ),
    ('STREAMON', errno.ENOSPC): (
        'the USB bus has not enough bandwidth left; use a smaller size, a lower framerate or '
        'another port'
    ),
    ('QBUF', errno.EFAULT): (
        'the buffer is not contiguous for the device, which has no IOMMU; use heap: '
        'dma_heap/linux,cma, or memory: export'
    ),
    ('REQBUFS', errno.ENOMEM): 'use fewer slots or a smaller image',
    ('REQBUFS', errno.EINVAL): 'the driver does not support the requested type of buffer memory',
}


def call(file: DeviceFile, name: str, request: int, argument: Argument) -> None:
    """
    Make one ioctl.

    :raises CameraLostError: the device is gone.
    :raises CameraBusyError: another program uses the device.
    :raises V4l2Error: any other error, with its number.
    """
    try:
        file.ioctl(request, argument)
    except OSError as error:
        raise explained(file.path, f'VIDIOC_{name}', error) from error


def asked(file: DeviceFile) -> tuple[ctypes.Structure, int]:
    """
    Return VIDIOC_QUERYCAP's answer, and the CAP_* bits that hold for *file*.

    The other device files of the same driver may have other CAP_* bits.
    """
    capability = abi.Capability()
    call(file, 'QUERYCAP', abi.VIDIOC_QUERYCAP, capability)
    return (
        capability,
        capability.device_caps
        if capability.capabilities & abi.CAP_DEVICE_CAPS
        else capability.capabilities,
    )


def explained(path: str, what: str, error: OSError) -> CameraError:
    """Return this package's exception for *error*; *what* is the call that failed."""
    text = f"'{path}': {what} failed: {error.strerror}"
    if error.errno in (errno.ENODEV, errno.ENXIO):
        return CameraLostError(f'{text}; it was unplugged: plug it in again')
    if error.errno == errno.EBUSY:
        # imported here, because it is rarely needed
        from zc_perception.machine.system import programs_using

        users = programs_using(path)
        return CameraBusyError(
            f'{text}; another program uses it{": " if users else ""}{", ".join(users)}; end '
            'that program first'
        )
    hint = _HINTS.get((what.removeprefix('VIDIOC_'), error.errno or 0))
    return V4l2Error(text + (f'; {hint}' if hint else ''), error.errno or 0)


# Stop an enumeration after this many entries, because some drivers' enumerations never end.
_MOST_ENTRIES = 256
# Field orders that give complete pictures: progressive, and both fields interleaved.
_WHOLE_FIELDS = {abi.FIELD_NONE: 'progressive', 4: 'interlaced', 8: 'interlaced', 9: 'interlaced'}


@dataclass(frozen=True)
class Dequeued:
    """
    A V4L2 buffer that the driver has filled; it consists of one or several memory buffers.

    :param stamp_ns: the driver's timestamp, in ns.
    :param monotonic: whether the timestamp is in CLOCK_MONOTONIC.
    :param error: whether the driver marked the data as bad.
    :param start_of_exposure: whether the timestamp is the time at which the exposure began; if
        not, it is the time at which the frame's last pixel arrived.
    :param used: for each memory buffer, the offset at which the data ends.
    :param data_offsets: for each memory buffer, the offset at which the data begins.
    """

    index: int
    sequence: int
    stamp_ns: int
    monotonic: bool
    error: bool
    start_of_exposure: bool
    used: tuple[int, ...]
    data_offsets: tuple[int, ...]


class V4l2Device:
    """
    A streaming capture device.

    :param file: the opened device file. This object owns it, and closes it if the constructor
        raises.
    :raises CameraError: the device file isn't that of a streaming capture device.
    """

    def __init__(self, file: DeviceFile) -> None:
        self.file = file
        self.path = file.path
        try:
            capability, flags = asked(file)
            # Make the text printable, because a device may return any text here.
            self.driver = printable(capability.driver.decode(errors='replace'))
            self.card = printable(capability.card.decode(errors='replace'))
            self.bus_info = printable(capability.bus_info.decode(errors='replace'))
            if (
                not flags & (abi.CAP_VIDEO_CAPTURE | abi.CAP_VIDEO_CAPTURE_MPLANE)
                or not flags & abi.CAP_STREAMING
            ):
                what = (
                    'carries metadata'
                    if flags & abi.CAP_META_CAPTURE
                    else f'is no streaming capture device (capabilities {flags:#x})'
                )
                raise CameraError(
                    f"'{file.path}' ({self.card}) {what}; devices found: {devices_text()}; set "
                    "parameter 'device'"
                )
        except BaseException:
            file.close()
            raise
        self.multiplanar = bool(flags & abi.CAP_VIDEO_CAPTURE_MPLANE)
        self.type = (
            abi.BUF_TYPE_VIDEO_CAPTURE_MPLANE if self.multiplanar else abi.BUF_TYPE_VIDEO_CAPTURE
        )

    @classmethod
    def open(cls, path: str) -> V4l2Device:  # noqa: A003
        """
        Open a device file.

        :raises CameraBusyError: another program has opened the device exclusively.
        :raises CameraError: the device doesn't exist, permission is missing, or it isn't a
            streaming capture device. The message lists the devices that exist.
        """
        try:
            file = DeviceFile(path)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise explained(path, 'open', error) from error
            if advice := NO_DESCRIPTOR.get(error.errno or 0):
                raise CameraError(f"camera '{path}' can't be opened: {advice}") from error
            hint = (
                "; add the user to group 'video'"
                if error.errno in (errno.EACCES, errno.EPERM)
                else ''
            )
            raise CameraError(
                f"camera '{path}' can't be opened: {error.strerror}{hint}; devices found: "
                f"{devices_text()}; set parameter 'device'"
            ) from error
        return cls(file)

    def call(self, name: str, request: int, argument: Argument) -> None:
        """Make one ioctl; see :func:`~zc_perception.camera.v4l2.device.call`."""
        call(self.file, name, request, argument)

    def poll(self, wake: OwnedFd, timeout_ms: int) -> int:
        """Wait for a frame or an event; return the device's POLL* bits; 0: neither came."""
        return self.file.poll(wake, timeout_ms)

    def _entries(self, name: str, request: int, argument: ctypes.Structure) -> Iterator[None]:
        """Yield once for each entry of an enumeration; *argument* then contains the entry."""
        for index in range(_MOST_ENTRIES):
            argument.index = index
            try:
                self.call(name, request, argument)
            except V4l2Error as error:
                if error.number in (errno.EINVAL, errno.ENOTTY, errno.ENODATA):
                    return
                raise
            yield

    def inputs(self) -> list[str]:
        """Return a text with number and name for each input; empty: the driver lists no inputs."""
        argument = abi.Input()
        entries = self._entries('ENUMINPUT', abi.VIDIOC_ENUMINPUT, argument)
        return [
            f'{argument.index} ({printable(argument.name.decode(errors="replace"))})'
            for _ in entries
        ]

    def fourccs(self) -> list[int]:
        """Return V4L2's fourccs of all formats, in the driver's order."""
        argument = abi.FmtDesc(type=self.type)
        return list(
            dict.fromkeys(
                int(argument.pixelformat)
                for _ in self._entries('ENUM_FMT', abi.VIDIOC_ENUM_FMT, argument)
            )
        )

    def frame_sizes(self, fourcc: int) -> list[SizeRange]:
        """Return the sizes of a format; empty: the driver lists none."""
        argument, found = abi.FrameSizeEnum(pixel_format=fourcc), []
        for _ in self._entries('ENUM_FRAMESIZES', abi.VIDIOC_ENUM_FRAMESIZES, argument):
            if argument.type == abi.FRMSIZE_TYPE_DISCRETE:
                size = (int(argument.discrete.width), int(argument.discrete.height))
                found.append(SizeRange(size, size))
                continue
            steps = argument.stepwise
            found.append(
                SizeRange(
                    (int(steps.min_width), int(steps.min_height)),
                    (int(steps.max_width), int(steps.max_height)),
                    (int(steps.step_width), int(steps.step_height)),
                )
            )
            break  # for a range of sizes, the first entry describes them all
        return found

    def frame_rates(self, fourcc: int, width: int, height: int) -> list[RateRange]:
        """Return the frames per second of a format in a size; empty: the driver lists none."""
        argument, found = (
            abi.FrameIntervalEnum(pixel_format=fourcc, width=width, height=height),
            [],
        )
        for _ in self._entries('ENUM_FRAMEINTERVALS', abi.VIDIOC_ENUM_FRAMEINTERVALS, argument):
            if argument.type == abi.FRMIVAL_TYPE_DISCRETE:
                found.append(RateRange(*[_rate(argument.discrete)] * 2))
                continue
            # The longest interval is the lowest rate.
            found.append(RateRange(_rate(argument.stepwise.max), _rate(argument.stepwise.min)))
            break
        return found

    def get_format(self) -> DriverFormat:
        """Return the format that the device is set to."""
        argument = abi.Format(type=self.type)
        self.call('G_FMT', abi.VIDIOC_G_FMT, argument)
        return self._read(argument)

    def try_format(
        self, fourcc: int, width: int, height: int, strides: Sequence[int] = ()
    ) -> DriverFormat:
        """Return the format that :meth:`set_format` would set, without setting it."""
        argument = self._format(fourcc, width, height, strides)
        self.call('TRY_FMT', abi.VIDIOC_TRY_FMT, argument)
        return self._read(argument)

    def set_format(
        self, fourcc: int, width: int, height: int, strides: Sequence[int] = ()
    ) -> DriverFormat:
        """
        Ask for a format, and return the format that the driver really set.

        :param strides: the wanted bytes per row for each memory buffer; the driver may set other
            strides.
        :raises CameraBusyError: another program streams from the device.
        :raises CameraError: the device lacks this pixel format, or delivers single fields.
        """
        argument = self._format(fourcc, width, height, strides)
        self.call('S_FMT', abi.VIDIOC_S_FMT, argument)
        answer = self._read(argument)
        if answer.fourcc != fourcc:
            raise CameraError(
                f"'{self.path}' ({self.card}) has no {fourcc_name(fourcc)}, it offers "
                f"{fourcc_name(answer.fourcc)} instead; set parameter 'pixel_format'"
            )
        # ``field`` is at the same place in the structs of the single- and the multi-planar API.
        field = int(argument.fmt.pix_mp.field)
        if field not in _WHOLE_FIELDS:
            raise CameraError(
                f"'{self.path}' ({self.card}) delivers single fields (field {field}), not "
                'pictures; set the video source to a progressive mode'
            )
        return answer

    def _format(
        self, fourcc: int, width: int, height: int, strides: Sequence[int]
    ) -> ctypes.Structure:
        argument = abi.Format(type=self.type)
        pix = argument.fmt.pix_mp if self.multiplanar else argument.fmt.pix
        pix.width, pix.height, pix.pixelformat, pix.field = width, height, fourcc, abi.FIELD_NONE
        if self.multiplanar:
            pix.num_planes = len(strides)
            for plane, stride in zip(pix.plane_fmt, strides, strict=False):
                plane.bytesperline = stride
        elif strides:
            pix.bytesperline = strides[0]
        return argument

    def _read(self, argument: ctypes.Structure) -> DriverFormat:
        if self.multiplanar:
            pix = argument.fmt.pix_mp
            count = min(int(pix.num_planes), abi.MAX_PLANES)
            planes = tuple(
                DriverPlane(int(p.bytesperline), int(p.sizeimage)) for p in pix.plane_fmt[:count]
            )
        else:
            pix = argument.fmt.pix
            planes = (DriverPlane(int(pix.bytesperline), int(pix.sizeimage)),)
        colours = V4l2Colorimetry(
            int(pix.colorspace), int(pix.ycbcr_enc), int(pix.quantization), int(pix.xfer_func)
        )
        return DriverFormat(int(pix.width), int(pix.height), int(pix.pixelformat), planes, colours)

    def set_framerate(self, framerate: float) -> float:
        """Set the frames per second; return the driver's rate, or 0 if it reports no rate."""
        argument = abi.StreamParm(type=self.type)
        period = argument.parm.capture.timeperframe
        period.numerator, period.denominator = 1000, round(framerate * 1000)
        return self._rate_of('S_PARM', abi.VIDIOC_S_PARM, argument)

    def get_framerate(self) -> float:
        """Return the present frames per second; 0 if the driver doesn't report them."""
        return self._rate_of('G_PARM', abi.VIDIOC_G_PARM, abi.StreamParm(type=self.type))

    def _rate_of(self, name: str, request: int, argument: ctypes.Structure) -> float:
        try:
            self.call(name, request, argument)
        except V4l2Error:
            return 0.0
        return _rate(argument.parm.capture.timeperframe)

    def request_buffers(self, count: int, memory: int) -> tuple[int, int]:
        """
        Make *count* buffers; return how many were made, and the BUF_CAP_* bits.

        If *count* is 0, the driver frees all buffers. The bits are 0 before Linux 4.20.
        """
        argument = abi.RequestBuffers(count=count, type=self.type, memory=memory)
        self.call('REQBUFS', abi.VIDIOC_REQBUFS, argument)
        return int(argument.count), int(argument.capabilities)

    def export_buffer(self, index: int, plane: int, access: int) -> OwnedFd:
        """
        Export memory buffer number *plane* of frame *index* as a dma-buf.

        Don't export the same memory buffer twice: the second dma-buf has another inode, so the
        rest of the package would treat it as another buffer.

        :param access: O_RDONLY or O_RDWR.
        """
        argument = abi.ExportBuffer(
            type=self.type, index=index, plane=plane, flags=access | os.O_CLOEXEC
        )
        self.call('EXPBUF', abi.VIDIOC_EXPBUF, argument)
        return OwnedFd(argument.fd)

    def query_offsets(self, index: int, count: int) -> tuple[int, ...]:
        """Return the offset of the data in each memory buffer of a queued frame."""
        planes = (abi.Plane * abi.MAX_PLANES)()
        argument = self._buffer(index, abi.MEMORY_MMAP, planes)
        self.call('QUERYBUF', abi.VIDIOC_QUERYBUF, argument)
        return tuple(int(plane.data_offset) if self.multiplanar else 0 for plane in planes[:count])

    def _buffer(
        self, index: int, memory: int, planes: ctypes.Array[ctypes.Structure]
    ) -> ctypes.Structure:
        argument = abi.Buffer(index=index, type=self.type, memory=memory)
        if self.multiplanar:
            argument.m.planes = ctypes.addressof(planes)
            argument.length = len(planes)
        return argument

    def queue(self, index: int, memory: int, buffers: Sequence[DmaBuf]) -> None:
        """
        Queue frame *index* at the driver, which then fills the frame's buffers.

        :param buffers: the frame's memory buffers; with MEMORY_DMABUF the driver gets their
            descriptors.
        """
        planes = (abi.Plane * len(buffers))()
        argument = self._buffer(index, memory, planes)
        if memory == abi.MEMORY_DMABUF:
            for plane, buffer in zip(planes, buffers, strict=True):
                plane.m.fd, plane.length = buffer.fileno(), buffer.size
            if not self.multiplanar:
                argument.m.fd, argument.length = buffers[0].fileno(), buffers[0].size
        self.call('QBUF', abi.VIDIOC_QBUF, argument)

    def dequeue(self, memory: int, count: int) -> Dequeued | None:
        """
        Return the next filled frame, which has *count* memory buffers; never block.

        ``None``: no frame is filled yet.

        :raises CameraLostError: the device is gone.
        :raises V4l2Error: the driver failed; for EIO and EPIPE the stream has to be restarted.
        """
        planes = (abi.Plane * count)()
        argument = self._buffer(0, memory, planes)
        try:
            self.file.ioctl(abi.VIDIOC_DQBUF, argument)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return None
            raise explained(self.path, 'VIDIOC_DQBUF', error) from error
        flags = int(argument.flags)
        if self.multiplanar:
            used, offsets = (
                tuple(int(p.bytesused) for p in planes),
                tuple(int(p.data_offset) for p in planes),
            )
        else:
            used, offsets = (int(argument.bytesused),), (0,)
        return Dequeued(
            int(argument.index),
            int(argument.sequence),
            argument.timestamp.tv_sec * 1_000_000_000 + argument.timestamp.tv_usec * 1000,
            flags & abi.BUF_FLAG_TIMESTAMP_MASK == abi.BUF_FLAG_TIMESTAMP_MONOTONIC,
            bool(flags & abi.BUF_FLAG_ERROR),
            flags & abi.BUF_FLAG_TSTAMP_SRC_MASK == abi.BUF_FLAG_TSTAMP_SRC_SOE,
            used,
            offsets,
        )

    def stream(self, on: bool) -> None:
        """
        Start or stop streaming.

        Stopping also takes every queued buffer from the driver, even if streaming never started.
        """
        name, request = (
            ('STREAMON', abi.VIDIOC_STREAMON) if on else ('STREAMOFF', abi.VIDIOC_STREAMOFF)
        )
        self.call(name, request, ctypes.c_int(self.type))

    def close(self) -> None:
        """Close the device; exported buffers stay usable."""
        self.file.close()


def _rate(period: ctypes.Structure) -> float:
    return period.denominator / period.numerator if period.numerator else 0.0


def capture_devices() -> list[tuple[str, str]]:
    """
    Return the path and the card's name of every capture device.

    The name is empty for a device that can't be opened or is busy; such a device may be no capture
    device.
    """
    found = []
    for path in sorted(glob.glob('/dev/video*'), key=lambda p: (len(p), p)):
        try:
            file = DeviceFile(path)
        except OSError:
            found.append((path, ''))
            continue
        try:
            capability, flags = asked(file)
            if flags & (abi.CAP_VIDEO_CAPTURE | abi.CAP_VIDEO_CAPTURE_MPLANE):
                found.append((path, printable(capability.card.decode(errors='replace'))))
        except CameraBusyError:
            found.append((path, ''))
        except CameraError:
            continue
        finally:
            file.close()
    return found


def devices_text() -> str:
    """Return the devices of :func:`capture_devices` as a text for messages."""
    return (
        ', '.join(f'{path} ({card})' if card else path for path, card in capture_devices())
        or 'none'
    )


SYSFS = Path('/sys')


def identity_of(device: V4l2Device, sysfs: Path = SYSFS) -> str:
    """
    Return a text that identifies a device: its bus, card, serial number and node number.

    For example ``usb-0000:00:14.0-2 / HD Webcam / serial 1234 / node 0``. The bus distinguishes
    two cameras with equal serial numbers. Without a serial number, the text has the device's path
    in sysfs, which stays the same as long as the device is plugged into the same port.
    """
    parts = [device.bus_info or 'no bus', device.card]
    try:
        number = os.stat(device.path).st_rdev
    except OSError:
        return ' / '.join(parts)
    node = sysfs / 'dev' / 'char' / f'{os.major(number)}:{os.minor(number)}'
    serial, place = _serial(node)
    if serial:
        parts.append(f'serial {serial}')
    elif place:
        parts.append(f'at {place}')
    index = _read(node / 'index')
    return ' / '.join([*parts, f'node {index}'] if index else parts)


def _serial(node: Path) -> tuple[str, str]:
    """
    Return a device's serial number and ``''``.

    If it has no serial number, return ``''`` and its path below /sys/devices.
    """
    try:
        place = (node / 'device').resolve(strict=True)
    except OSError:
        return '', ''
    for folder in (place, *place.parents):
        if folder.name == 'devices':
            return '', str(place.relative_to(folder))
        serial = _read(folder / 'serial')
        # A folder ``usbN`` is the host controller; its serial number is not the camera's.
        if serial and not folder.name.startswith('usb'):
            return serial, ''
    return '', str(place)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding='utf-8', errors='replace').strip()
    except OSError:
        return ''


def find_device(
    identity: str,
    paths: Callable[[], list[tuple[str, str]]] = capture_devices,
    open_device: Callable[[str], V4l2Device] = V4l2Device.open,
) -> str | None:
    """Return the path of the device file that has *identity* now; ``None``: no camera has it."""
    for path, _ in paths():
        try:
            device = open_device(path)
        except CameraError:
            continue
        try:
            if identity_of(device) == identity:
                return path
        finally:
            device.close()
    return None


_KINDS: dict[int, ControlKind] = {
    abi.CTRL_TYPE_INTEGER: 'integer',
    abi.CTRL_TYPE_BOOLEAN: 'boolean',
    abi.CTRL_TYPE_MENU: 'menu',
    abi.CTRL_TYPE_BUTTON: 'button',
    abi.CTRL_TYPE_INTEGER64: 'integer',
    abi.CTRL_TYPE_STRING: 'string',
    abi.CTRL_TYPE_BITMASK: 'bitmask',
    abi.CTRL_TYPE_INTEGER_MENU: 'integer_menu',
}
_MOST_CONTROLS = 1024
# Query at most this many items of a menu: a broken driver's endless menu would take minutes.
_MOST_ITEMS = 256


def control_name(title: str) -> str:
    """Return a control's title as a name: ``White Balance, Auto`` is ``white_balance_auto``."""
    return re.sub(r'[^0-9a-z]+', '_', title.lower()).strip('_')


class V4l2Controls:
    """The controls of an opened device. Any thread may use them: the kernel serialises ioctls."""

    def __init__(self, device: V4l2Device) -> None:
        self._device = device
        self._found: dict[str, ctypes.Structure] = {}
        self._menus: dict[int, Mapping[int, str]] = {}
        for query in self._enumerate():
            name = control_name(query.name.decode(errors='replace')) or f'control_{query.id:08x}'
            if name in self._found:  # two controls have the same title: append the ID
                name = f'{name}_{query.id:08x}'
            self._found[name] = query
            if _KINDS[query.type] in ('menu', 'integer_menu'):
                self._menus[query.id] = self._menu(query)

    def _enumerate(self) -> Iterator[ctypes.Structure]:
        """Yield all controls with a single value; skip classes, arrays and compound controls."""
        last = 0
        for _ in range(_MOST_CONTROLS):
            query = abi.QueryExtCtrl(id=last | abi.CTRL_FLAG_NEXT_CTRL)
            if not self._query(query) or query.id <= last:
                return
            last = query.id
            if (
                query.type in _KINDS
                and not query.flags & abi.CTRL_FLAG_DISABLED
                and not query.nr_of_dims
            ):
                yield query

    def _query(self, query: ctypes.Structure) -> bool:
        try:
            self._device.call('QUERY_EXT_CTRL', abi.VIDIOC_QUERY_EXT_CTRL, query)
        except V4l2Error:
            return False
        return True

    def _menu(self, query: ctypes.Structure) -> Mapping[int, str]:
        items: dict[int, str] = {}
        for index in range(
            max(0, query.minimum), min(query.maximum, query.minimum + _MOST_ITEMS - 1) + 1
        ):
            item = abi.QueryMenu(id=query.id, index=index)
            try:
                self._device.call('QUERYMENU', abi.VIDIOC_QUERYMENU, item)
            except V4l2Error:
                continue  # some indices of a menu may have no item
            text = printable(bytes(item.name).split(b'\0')[0].decode(errors='replace'))
            items[index] = text if query.type == abi.CTRL_TYPE_MENU else str(item.value)
        return items

    def minimum_buffers(self) -> int:
        """Return how many queued buffers the driver needs; 0: it doesn't report a number."""
        query = abi.QueryExtCtrl(id=abi.CID_MIN_BUFFERS_FOR_CAPTURE)
        return max(0, self._value(query) or 0) if self._query(query) else 0

    def infos(self) -> dict[str, ControlInfo]:
        """Query the driver, and return every control with its present state."""
        return {name: self._info(name, found.id) for name, found in self._found.items()}

    def _info(self, name: str, number: int) -> ControlInfo:
        query = abi.QueryExtCtrl(id=number)
        self._device.call('QUERY_EXT_CTRL', abi.VIDIOC_QUERY_EXT_CTRL, query)
        flags = int(query.flags)
        return ControlInfo(
            name,
            _KINDS[query.type],
            int(query.minimum),
            # In a bitmask's query, ``maximum`` is a signed field, but holds an unsigned 32-bit
            # mask.
            int(query.maximum) & 0xFFFFFFFF
            if query.type == abi.CTRL_TYPE_BITMASK
            else int(query.maximum),
            int(query.step),
            int(query.default_value),
            self._value(query),
            self._menus.get(number, {}),
            read_only=bool(flags & abi.CTRL_FLAG_READ_ONLY),
            inactive=bool(flags & abi.CTRL_FLAG_INACTIVE),
            write_only=bool(flags & abi.CTRL_FLAG_WRITE_ONLY),
            title=printable(query.name.decode(errors='replace')),
        )

    def _value(self, query: ctypes.Structure) -> int | None:
        if query.flags & (abi.CTRL_FLAG_WRITE_ONLY | abi.CTRL_FLAG_HAS_PAYLOAD) or query.type in (
            abi.CTRL_TYPE_BUTTON,
            abi.CTRL_TYPE_STRING,
        ):
            return None
        try:
            return self._transfer('G_EXT_CTRLS', abi.VIDIOC_G_EXT_CTRLS, query, 0)
        except V4l2Error:
            return None

    def _transfer(self, name: str, request: int, query: ctypes.Structure, value: int) -> int:
        control = abi.ExtControl(id=query.id)
        wide = query.type == abi.CTRL_TYPE_INTEGER64
        if wide:
            control.value64 = value
        else:
            control.value = value if value < 1 << 31 else value - (1 << 32)
        controls = abi.ExtControls(
            which=abi.CTRL_WHICH_CUR_VAL, count=1, controls=ctypes.pointer(control)
        )
        self._device.call(name, request, controls)
        found = int(control.value64) if wide else int(control.value)
        return found & 0xFFFFFFFF if query.type == abi.CTRL_TYPE_BITMASK else found

    def set(self, name: str, value: ControlValue) -> int | None:  # noqa: A003
        """
        Set a control, and return its new value, which the driver may have rounded.

        ``None``: the control can't be read.

        :raises ConfigError: there is no such control, or the value is outside of the control's
            range. The message names the value and the range.
        :raises CameraError: the driver refuses the value now.
        """
        camera = f"'{self._device.path}' ({self._device.card})"
        found = self._found.get(name)
        if found is None:
            raise no_such_control(camera, name, self.infos())
        info = self._info(name, found.id)
        number = checked_value(camera, info, value)
        try:
            self._transfer('S_EXT_CTRLS', abi.VIDIOC_S_EXT_CTRLS, found, number)
        except CameraLostError:
            raise
        except CameraBusyError as error:
            raise CameraError(
                f"{camera}: control '{name}' can't be changed while the camera streams; set it "
                'before the camera starts'
            ) from error
        except V4l2Error as error:
            why = (
                'another control overrides it'
                if info.inactive or error.number == errno.EACCES
                else str(error)
            )
            raise CameraError(
                f"{camera}: control '{name}' could not be set to {value!r}: {why}; it takes "
                f'{info.allowed()}'
            ) from error
        # Don't query a button: it has no value, and the driver may be resetting the camera now.
        return (
            None if info.kind == 'button' or info.write_only else self._info(name, found.id).value
        )
