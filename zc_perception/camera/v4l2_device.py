"""An open V4L2 capture device: one method per ioctl, errors with the next step, no policy."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import os
from dataclasses import dataclass

from zc_perception.camera import v4l2_abi as abi
from zc_perception.errors import CameraError
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.pixel.fourcc import fourcc_name


@dataclass(frozen=True)
class Dequeued:
    """A buffer that the driver has filled.

    :param stamp_ns: the driver's timestamp.
    :param monotonic: whether that is CLOCK_MONOTONIC.
    :param error: the driver says that the data is bad.
    """

    index: int
    sequence: int
    stamp_ns: int
    monotonic: bool
    error: bool


class V4l2Device:
    """Single-planar capture, MMAP buffers.

    :raises CameraError: no such device, no permission, or not a streaming capture device.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._fd = OwnedFd.open(path, os.O_RDWR | os.O_NONBLOCK)
        except OSError as error:
            found = ', '.join(sorted(glob.glob('/dev/video*'))) or 'none'
            raise CameraError(
                f"camera '{path}' can't be opened: {error.strerror}; devices found: {found}; set parameter 'device'"
            ) from error
        try:
            capability = abi.Capability()
            self._ioctl('QUERYCAP', abi.VIDIOC_QUERYCAP, capability)
            flags = capability.device_caps if capability.capabilities & abi.CAP_DEVICE_CAPS else capability.capabilities
            if not flags & abi.CAP_VIDEO_CAPTURE or not flags & abi.CAP_STREAMING:
                raise CameraError(
                    f"'{path}' ({capability.card.decode()}) is no single-planar streaming capture device (capabilities {flags:#x})"
                )
        except BaseException:
            self._fd.close()
            raise
        self.driver = capability.driver.decode(errors='replace')
        self.card = capability.card.decode(errors='replace')

    def fileno(self) -> int:
        """For poll(2): readable while a filled buffer waits."""
        return self._fd.fileno()

    def _ioctl(self, name: str, request: int, argument: ctypes.Structure | ctypes.c_int) -> None:
        try:
            fcntl.ioctl(self._fd.fileno(), request, argument)
        except OSError as error:
            hint = '; another program uses it' if error.errno == errno.EBUSY else ''
            hint = '; it was unplugged' if error.errno == errno.ENODEV else hint
            raise CameraError(f"'{self.path}': VIDIOC_{name} failed: {error.strerror}{hint}") from error

    def get_format(self) -> abi.PixFormat:
        """The format in force."""
        argument = abi.Format(type=abi.BUF_TYPE_VIDEO_CAPTURE)
        self._ioctl('G_FMT', abi.VIDIOC_G_FMT, argument)
        found: abi.PixFormat = argument.fmt.pix
        return found

    def set_format(self, width: int, height: int, fourcc: int) -> abi.PixFormat:
        """Ask for a format; what the driver really set is returned.

        :raises CameraError: it can't do that pixel format.
        """
        argument = abi.Format(type=abi.BUF_TYPE_VIDEO_CAPTURE)
        pix: abi.PixFormat = argument.fmt.pix
        pix.width, pix.height, pix.pixelformat, pix.field = width, height, fourcc, abi.FIELD_NONE
        self._ioctl('S_FMT', abi.VIDIOC_S_FMT, argument)
        if pix.pixelformat != fourcc:
            raise CameraError(f"'{self.path}' ({self.card}) has no {fourcc_name(fourcc)}, it offers {fourcc_name(pix.pixelformat)} instead")
        return pix

    def set_framerate(self, framerate: float) -> float:
        """Ask for frames per second; what the driver really set, 0 if it doesn't say."""
        argument = abi.StreamParm(type=abi.BUF_TYPE_VIDEO_CAPTURE)
        period = argument.parm.capture.timeperframe
        period.numerator, period.denominator = 1000, round(framerate * 1000)
        self._ioctl('S_PARM', abi.VIDIOC_S_PARM, argument)
        return period.denominator / period.numerator if period.numerator else 0.0

    def get_framerate(self) -> float:
        """Frames per second in force, 0 if the driver doesn't say."""
        argument = abi.StreamParm(type=abi.BUF_TYPE_VIDEO_CAPTURE)
        try:
            self._ioctl('G_PARM', abi.VIDIOC_G_PARM, argument)
        except CameraError:
            return 0.0
        period = argument.parm.capture.timeperframe
        return period.denominator / period.numerator if period.numerator else 0.0

    def set_control(self, control: int, value: int) -> None:
        """Set one control by its id."""
        self._ioctl('S_CTRL', abi.VIDIOC_S_CTRL, abi.Control(id=control, value=value))

    def request_buffers(self, count: int) -> int:
        """Allocate *count* MMAP buffers (0: free them); how many the driver made."""
        argument = abi.RequestBuffers(count=count, type=abi.BUF_TYPE_VIDEO_CAPTURE, memory=abi.MEMORY_MMAP)
        self._ioctl('REQBUFS', abi.VIDIOC_REQBUFS, argument)
        return int(argument.count)

    def export_buffer(self, index: int) -> OwnedFd:
        """A dma-buf of buffer *index*, for reading only. Call once for each: a second call makes another dma-buf with another inode."""
        argument = abi.ExportBuffer(type=abi.BUF_TYPE_VIDEO_CAPTURE, index=index, flags=os.O_RDONLY | os.O_CLOEXEC)
        self._ioctl('EXPBUF', abi.VIDIOC_EXPBUF, argument)
        return OwnedFd(argument.fd)

    def queue(self, index: int) -> None:
        """Hand buffer *index* to the driver to fill."""
        self._ioctl('QBUF', abi.VIDIOC_QBUF, abi.Buffer(index=index, type=abi.BUF_TYPE_VIDEO_CAPTURE, memory=abi.MEMORY_MMAP))

    def dequeue(self) -> Dequeued | None:
        """The next filled buffer, or ``None`` when there is none yet. Never blocks.

        :raises CameraError: the device is gone or needs a restart of the stream.
        """
        argument = abi.Buffer(type=abi.BUF_TYPE_VIDEO_CAPTURE, memory=abi.MEMORY_MMAP)
        try:
            fcntl.ioctl(self._fd.fileno(), abi.VIDIOC_DQBUF, argument)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return None
            hint = '; it was unplugged' if error.errno == errno.ENODEV else ''
            raise CameraError(f"'{self.path}': VIDIOC_DQBUF failed: {error.strerror}{hint}") from error
        stamp_ns = argument.timestamp.tv_sec * 1_000_000_000 + argument.timestamp.tv_usec * 1000
        monotonic = argument.flags & abi.BUF_FLAG_TIMESTAMP_MASK == abi.BUF_FLAG_TIMESTAMP_MONOTONIC
        return Dequeued(argument.index, argument.sequence, stamp_ns, monotonic, bool(argument.flags & abi.BUF_FLAG_ERROR))

    def stream(self, on: bool) -> None:
        """Start or stop; stopping takes every queued buffer back."""
        name, request = ('STREAMON', abi.VIDIOC_STREAMON) if on else ('STREAMOFF', abi.VIDIOC_STREAMOFF)
        self._ioctl(name, request, ctypes.c_int(abi.BUF_TYPE_VIDEO_CAPTURE))

    def close(self) -> None:
        """Close it; exported buffers live on."""
        self._fd.close()
