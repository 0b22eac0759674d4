"""The file of a V4L2 device: ioctl and poll, and what each error number means for the person at the keyboard."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import os
import select
from typing import Protocol

from zc_perception.errors import CameraBusyError, CameraError, CameraLostError
from zc_perception.memory.owned_fd import OwnedFd

Argument = ctypes.Structure | ctypes.c_int | ctypes.c_uint64


class V4l2Error(CameraError):
    """An ioctl failed with *number*; being unplugged or busy are errors of their own."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class DeviceFile(Protocol):
    """What is asked of the kernel: the boundary that tests put a driver of their own behind."""

    path: str

    def ioctl(self, request: int, argument: Argument) -> None:
        """``ioctl(2)``; *argument* is filled in place.

        :raises OSError: as the driver answers.
        :raises CameraLostError: it was closed meanwhile.
        """

    def poll(self, wake: OwnedFd, timeout_ms: int) -> int:
        """The POLL* bits that the device shows, after at most *timeout_ms*; 0 also when *wake* became readable."""

    def close(self) -> None:
        """Close it."""


class OpenFile:
    """A device node, opened.

    :raises OSError: it can't be.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = OwnedFd.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._fd.fileno(), select.POLLIN | select.POLLPRI)
        self._wake = -1

    def ioctl(self, request: int, argument: Argument) -> None:
        """See :class:`DeviceFile`."""
        try:
            number = self._fd.fileno()
        except ValueError as error:
            raise CameraLostError(f"'{self.path}' was closed; wait until the camera is back") from error
        fcntl.ioctl(number, request, argument)

    def poll(self, wake: OwnedFd, timeout_ms: int) -> int:
        """See :class:`DeviceFile`. Registered once: it is always the same camera that waits."""
        if self._wake != wake.fileno():
            self._wake = wake.fileno()
            self._poll.register(self._wake, select.POLLIN)
        own = self._fd.fileno()
        return sum(events for fd, events in self._poll.poll(timeout_ms) if fd == own)

    def close(self) -> None:
        """See :class:`DeviceFile`."""
        self._fd.close()


# What an error number means where the plain text of errno says too little.
_HINTS = {
    ('STREAMON', errno.EPIPE): "the formats along its media pipeline don't match; set them with media-ctl",
    ('STREAMON', errno.ENOLINK): 'no sensor is linked to it; enable the link with media-ctl',
    ('STREAMON', errno.ENOSPC): 'the USB bus has not enough bandwidth left; use a smaller size, a lower framerate or another port',
    (
        'QBUF',
        errno.EFAULT,
    ): 'the buffer is not contiguous for the device, which has no IOMMU; use heap: dma_heap/linux,cma, or memory: export',
    ('REQBUFS', errno.ENOMEM): 'use fewer slots or a smaller image',
    ('REQBUFS', errno.EINVAL): 'the driver has no buffers of that memory type',
}


def call(file: DeviceFile, name: str, request: int, argument: Argument) -> None:
    """One ioctl.

    :raises CameraLostError: the device is gone.
    :raises CameraBusyError: another program has it.
    :raises V4l2Error: anything else, with its number.
    """
    try:
        file.ioctl(request, argument)
    except OSError as error:
        raise explained(file.path, f'VIDIOC_{name}', error) from error


def explained(path: str, what: str, error: OSError) -> CameraError:
    """The package's error for *error* of *what*."""
    text = f"'{path}': {what} failed: {error.strerror}"
    if error.errno in (errno.ENODEV, errno.ENXIO):
        return CameraLostError(f'{text}; it was unplugged: plug it in again')
    if error.errno == errno.EBUSY:
        users = programs_using(path)
        return CameraBusyError(f'{text}; another program uses it{": " if users else ""}{", ".join(users)}; end that one first')
    hint = _HINTS.get((what.removeprefix('VIDIOC_'), error.errno or 0))
    return V4l2Error(text + (f'; {hint}' if hint else ''), error.errno or 0)


def programs_using(path: str) -> list[str]:
    """Who has the device node open, as ``name (pid)``, as far as this user may look."""
    try:
        wanted = os.stat(path).st_rdev
    except OSError:
        return []
    found = set()
    for entry in glob.glob('/proc/[0-9]*/fd/*'):
        try:
            # Only nodes are of interest; a stat of a pipe or socket would be as good as none.
            if os.readlink(entry).startswith('/dev/') and os.stat(entry).st_rdev == wanted:
                found.add(int(entry.split('/')[2]))
        except OSError:
            continue
    return ['this process' if pid == os.getpid() else f'{_name(pid)} ({pid})' for pid in sorted(found)]


def _name(pid: int) -> str:
    try:
        with open(f'/proc/{pid}/comm', encoding='utf-8', errors='replace') as file:
            return file.read().strip()
    except OSError:
        return 'process'
