"""Fences: descriptors that poll readable when somebody is done with a buffer.

A sync_file comes from a driver and is safe across processes. An eventfd is for user-space producers within one process: that of
a dead peer would never signal. Source: ``include/uapi/linux/sync_file.h``, eventfd(2).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import threading
from typing import Protocol

from zc_perception.errors import AcceleratorError
from zc_perception.memory.owned_fd import OwnedFd

SYNC_IOC_FILE_INFO = 0xC0383E04
_FILE_INFO = struct.Struct('<32siIIIQ')
_FENCE_INFO = struct.Struct('<32s32siIQ')


class Fence(Protocol):
    """Something to wait for. Passing one on passes its ownership."""

    def fileno(self) -> int:
        """For poll(2): readable once signalled, with success or error."""

    def wait(self, timeout_s: float) -> bool:
        """Whether it signalled within *timeout_s*; 0 only looks. Never spins."""

    def check(self) -> None:
        """Do nothing if it signalled success.

        :raises AcceleratorError: it signalled an error, or not at all.
        """

    def close(self) -> None:
        """Close the descriptor."""


def _poll(fd: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(max(0, int(timeout_s * 1000 + 0.999))))


class EventFence:
    """A fence that this process signals itself, over an eventfd."""

    def __init__(self) -> None:
        self._fd = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """See :class:`Fence`."""
        return self._fd.fileno()

    def signal(self, error: BaseException | None = None) -> None:
        """Signal success, or *error*. Once only; nothing happens when nobody waits any more."""
        with self._lock:
            if not self._fd.closed:
                self._error = error
                os.eventfd_write(self._fd.fileno(), 1)

    def wait(self, timeout_s: float) -> bool:
        """See :class:`Fence`."""
        return _poll(self._fd.fileno(), timeout_s)

    def check(self) -> None:
        """See :class:`Fence`."""
        if not self.wait(0.0):
            raise AcceleratorError('the fence has not signalled')
        if self._error is not None:
            raise AcceleratorError(f'the job failed: {self._error}') from self._error

    def close(self) -> None:
        """See :class:`Fence`."""
        with self._lock:
            self._fd.close()


class SyncFile:
    """A driver's fence. An error fence polls readable too, so that its status has always to be read."""

    def __init__(self, fd: OwnedFd) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """See :class:`Fence`."""
        return self._fd.fileno()

    def wait(self, timeout_s: float) -> bool:
        """See :class:`Fence`."""
        return _poll(self._fd.fileno(), timeout_s)

    def info(self) -> tuple[int, int]:
        """``(status, timestamp_ns)``: 1 signalled, 0 pending, negative errno; CLOCK_MONOTONIC of the last of its fences."""
        header = bytearray(_FILE_INFO.pack(b'', 0, 0, 0, 0, 0))
        fcntl.ioctl(self.fileno(), SYNC_IOC_FILE_INFO, header)
        _, status, _, count, _, _ = _FILE_INFO.unpack(header)
        return status, self._last_timestamp(count)

    def _last_timestamp(self, count: int) -> int:
        if count == 0:
            return 0
        table = ctypes.create_string_buffer(_FENCE_INFO.size * count)
        fcntl.ioctl(self.fileno(), SYNC_IOC_FILE_INFO, bytearray(_FILE_INFO.pack(b'', 0, 0, count, 0, ctypes.addressof(table))))
        return max(int(_FENCE_INFO.unpack_from(table, i * _FENCE_INFO.size)[4]) for i in range(count))

    def check(self) -> None:
        """See :class:`Fence`."""
        status, _ = self.info()
        if status < 0:
            raise AcceleratorError(f'the fence signalled error {-status} ({os.strerror(-status)})')
        if status == 0:
            raise AcceleratorError('the fence has not signalled')

    def close(self) -> None:
        """See :class:`Fence`."""
        self._fd.close()
