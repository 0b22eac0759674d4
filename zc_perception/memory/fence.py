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
Fences: poll(2) reports a fence as readable when a device or program is done with a buffer.

:class:`SyncFile` comes from a driver, and another process may wait for it. :class:`EventFence` is
for software within one process, because a dead peer's eventfd would never signal.
:class:`DeadlineFence` is for devices whose driver doesn't report when they are done. Waits have a
time limit, don't poll in a busy loop, and continue after a signal handler. Code that gets a fence
owns it and closes it. A wait of :class:`Waker` ends when a fence signals or another thread calls
:meth:`Waker.wake`.

Source: ``include/uapi/linux/sync_file.h``, ``drivers/dma-buf/sync_file.c``, eventfd(2),
timerfd_create(2).
"""

from __future__ import annotations

from collections.abc import Iterable
import contextlib
import ctypes
import fcntl
import math
import os
import select
import threading
import time
from typing import Protocol

from zc_perception.errors import AcceleratorError, DeviceLostError
from zc_perception.memory import kernel_abi as abi
from zc_perception.memory.owned_fd import OwnedFd

_LONGEST_POLL_MS = 2**31 - 1
_SYNC_FILE_LINK = 'anon_inode:sync_file'
_LOOK_AGAIN_MS = 50
_ABSOLUTE = 1
# Python has os.timerfd_create only from 3.13 on, so the C library is called.
_libc = ctypes.CDLL(None, use_errno=True)


class Fence(Protocol):
    """Signals the end of a job of a device or program. Code that gets a fence owns it."""

    def fileno(self) -> int:
        """Return the descriptor, which poll(2) reports as readable after success or error."""

    def wait(self, timeout_s: float) -> bool:
        """
        Return whether the fence signals success or an error within *timeout_s*; 0: don't wait.

        :raises ValueError: the timeout is negative, infinite or NaN.
        """

    def check(self) -> None:
        """
        Raise an error unless the fence signalled success.

        :raises AcceleratorError: the fence signalled an error, or hasn't signalled yet.
        """

    def close(self) -> None:
        """Close the fence. Idempotent."""


def check_timeout(timeout_s: float) -> float:
    """
    Return *timeout_s* itself, if it is a valid time limit for a wait.

    :raises ValueError: the timeout is negative, infinite or NaN.
    """
    if not 0.0 <= timeout_s < math.inf:
        raise ValueError(
            f'timeout {timeout_s} s: give a finite number of seconds, 0 (do not wait) or more'
        )
    return timeout_s


def poll_fd(fd: int, events: int, timeout_s: float) -> bool:
    """
    Wait until one of *events* happens on the descriptor; ``False``: not within *timeout_s*.

    Events are ``select.POLLIN`` and ``select.POLLOUT``. After a signal handler, poll(2) is called
    again with the remaining time (PEP 475).

    :raises ValueError: the timeout is negative, infinite or NaN, or the descriptor is closed.
    :raises AcceleratorError: the descriptor's other end is gone.
    """
    deadline = time.monotonic() + check_timeout(timeout_s)
    poller = select.poll()
    poller.register(fd, events)
    remaining_ms = math.ceil(timeout_s * 1000)
    while True:
        for _, seen in poller.poll(min(remaining_ms, _LONGEST_POLL_MS)):
            if seen & select.POLLNVAL:
                raise ValueError(f'descriptor {fd} was closed while a thread waited for it')
            if seen & events:
                return True
            # poll(2) reports POLLERR and POLLHUP at once, even if they aren't in events, so
            # polling again would be a busy loop.
            raise AcceleratorError(
                f"the other end of descriptor {fd} ({abi.describe_fd(fd)}) is gone; it can't "
                'signal any more'
            )
        remaining_ms = math.ceil((deadline - time.monotonic()) * 1000)
        if remaining_ms <= 0:
            return False


class EventFence:
    """A fence that code of this process signals, by an eventfd."""

    def __init__(self) -> None:
        self._fd = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._error: BaseException | None = None
        self._signalled = False
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """See :class:`Fence`."""
        return self._fd.fileno()

    def signal(self, error: BaseException | None = None) -> None:
        """Signal success, or *error*; do nothing if the fence has signalled or is closed."""
        with self._lock:
            if not self._signalled and not self._fd.closed:
                self._signalled, self._error = True, error
                os.eventfd_write(self._fd.fileno(), 1)

    def wait(self, timeout_s: float) -> bool:
        """See :class:`Fence`."""
        return poll_fd(self._fd.fileno(), select.POLLIN, timeout_s)

    def check(self) -> None:
        """See :class:`Fence`."""
        if not self.wait(0.0):
            raise AcceleratorError('the fence has not signalled')
        if self._error is not None:
            # A lost device's error keeps its type, because the caller has to give up the device,
            # not only the job.
            kind = (
                DeviceLostError if isinstance(self._error, DeviceLostError) else AcceleratorError
            )
            raise kind(f'the job failed: {self._error}') from self._error

    def close(self) -> None:
        """See :class:`Fence`."""
        with self._lock:
            self._fd.close()


class DeadlineFence:
    """
    A fence that signals success after *deadline_s* seconds, for jobs whose end no driver signals.

    It makes its descriptor only in :meth:`fileno`. So :meth:`wait` works even if the process has
    no descriptor left.
    """

    def __init__(self, deadline_s: float) -> None:
        self._deadline_ns = time.monotonic_ns() + math.ceil(check_timeout(deadline_s) * 1e9)
        self._timer: OwnedFd | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def deadline_ns(self) -> int:
        """The CLOCK_MONOTONIC nanosecond at which the fence signals."""
        return self._deadline_ns

    def fileno(self) -> int:
        """
        See :class:`Fence`.

        :raises ValueError: after close.
        """
        with self._lock:
            if self._closed:
                raise ValueError('the fence is closed')
            if self._timer is None:
                timer = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK)
                if timer < 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                self._timer = OwnedFd(timer)
                self._set_timer()
            return self._timer.fileno()

    def _set_timer(self) -> None:
        assert self._timer is not None
        # struct itimerspec of 64-bit Linux: no interval, and at least 1 ns, because 0 would stop
        # the timer.
        when = (ctypes.c_int64 * 4)(0, 0, *divmod(max(1, self._deadline_ns), 1_000_000_000))
        if _libc.timerfd_settime(self._timer.fileno(), _ABSOLUTE, when, None) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def wait(self, timeout_s: float) -> bool:
        """See :class:`Fence`."""
        remaining_s = (self._deadline_ns - time.monotonic_ns()) / 1e9
        if check_timeout(timeout_s) > 0.0 and remaining_s > 0.0:
            time.sleep(min(timeout_s, remaining_s))
        return time.monotonic_ns() >= self._deadline_ns

    def check(self) -> None:
        """See :class:`Fence`."""
        if not self.wait(0.0):
            raise AcceleratorError('the fence has not signalled')

    def close(self) -> None:
        """See :class:`Fence`."""
        with self._lock:
            self._closed = True
            if self._timer is not None:
                self._timer.close()
                self._timer = None


class SyncFile:
    """A driver's fence. It is readable for poll(2) even after an error, so call :meth:`check`."""

    def __init__(self, fd: OwnedFd) -> None:
        self._fd = fd
        self._merged_error = 0

    @classmethod
    def merge(cls, name: str, first: SyncFile, second: SyncFile) -> SyncFile:
        """
        Return a new fence that signals when both *first* and *second* have signalled.

        This is SYNC_IOC_MERGE.

        The caller still owns *first* and *second*. The kernel doesn't merge fences that have
        signalled already, so their errors aren't in the new descriptor. The returned object stores
        these errors for :meth:`check`, but a process that is sent the descriptor can't get them.

        :param name: the new fence's name in the kernel's listings, at most 31 bytes.
        :raises ValueError: the name is too long.
        :raises OSError: EMFILE, ENOMEM: no descriptor or no memory is left.
        """
        argument = bytearray(
            abi.SYNC_MERGE_DATA.pack(
                abi.c_name(name, abi.SYNC_NAME_LEN, 'fence name'), second.fileno(), -1, 0, 0
            )
        )
        fcntl.ioctl(first.fileno(), abi.SYNC_IOC_MERGE, argument)
        merged = cls(OwnedFd(abi.SYNC_MERGE_DATA.unpack(argument)[2]))
        # Store the errors of the fences that had signalled before the merge, because the kernel
        # left these fences out. Read the status after the merge, so that no such fence is missed.
        merged._merged_error = min(
            0, *(part._merged_error or part.status() for part in (first, second))
        )
        return merged

    def fileno(self) -> int:
        """See :class:`Fence`."""
        return self._fd.fileno()

    def dup(self) -> SyncFile:
        """Return a second object for the fence, which owns a duplicate of the descriptor."""
        other = SyncFile(self._fd.dup())
        other._merged_error = self._merged_error
        return other

    def wait(self, timeout_s: float) -> bool:
        """See :class:`Fence`."""
        return poll_fd(self._fd.fileno(), select.POLLIN, timeout_s)

    def status(self) -> int:
        """
        Return the status by SYNC_IOC_FILE_INFO.

        It is 1 if all of the file's fences have signalled success, 0 if one of them is pending,
        and a negative errno if one has signalled an error.
        """
        header = bytearray(abi.SYNC_FILE_INFO.pack(b'', 0, 0, 0, 0, 0))
        fcntl.ioctl(self.fileno(), abi.SYNC_IOC_FILE_INFO, header)
        return int(abi.SYNC_FILE_INFO.unpack(header)[1])

    def check(self) -> None:
        """See :class:`Fence`."""
        status = self.status()
        if status == 0:
            raise AcceleratorError('the fence has not signalled')
        error = min(status, self._merged_error)
        if error < 0:
            raise AcceleratorError(f'the fence signalled error {-error} ({os.strerror(-error)})')

    def close(self) -> None:
        """See :class:`Fence`."""
        self._fd.close()


def fence_from_fd(fd: OwnedFd) -> SyncFile:
    """
    Make a fence of a descriptor from another process.

    :param fd: owned by the fence, and closed if this function raises.
    :raises AcceleratorError: *fd* isn't a sync_file. An eventfd or pipe of a dead peer would never
        signal.
    """
    kind = abi.describe_fd(fd.fileno())
    if kind != _SYNC_FILE_LINK:
        fd.close()
        raise AcceleratorError(
            f"a fence from another process must be a sync_file, not '{kind}': send the fence "
            'that a driver gave, or wait until the device is done and send no fence'
        )
    return SyncFile(fd)


class Waker:
    """
    Ends waits of other threads. Finalizers may call :meth:`wake`, because it takes no lock.

    It has a counting eventfd (EFD_SEMAPHORE): a wake-up adds one, and a wait that ends subtracts
    one. So two wake-ups end two waits, and a wake-up before the wait isn't lost. Only the garbage
    collector closes the eventfd. If it were closed earlier, its number could become another
    file's, and a finalizer could write into that file.

    If the process has no descriptor left, no wake-up is possible, and each wait ends after at most
    50 ms.
    """

    def __init__(self) -> None:
        self._fd: OwnedFd | None = None
        with contextlib.suppress(OSError):
            self._fd = OwnedFd(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE))

    def wake(self, waits: int = 1) -> None:
        """End *waits* calls of :meth:`wait`: current ones first, then later ones."""
        if self._fd is None:
            return
        # The garbage collector may close the eventfd before it runs a finalizer that calls this.
        with contextlib.suppress(ValueError, OSError):
            os.eventfd_write(self._fd.fileno(), waits)

    def wait(self, timeout_s: float | None, fences: Iterable[Fence]) -> None:
        """
        Wait until :meth:`wake` is called, one of *fences* signals, or *timeout_s* has passed.

        If *timeout_s* is ``None``, there is no time limit. The call may also return earlier.
        """
        poller = select.poll()
        timeout_ms = None if timeout_s is None else max(0, int(timeout_s * 1000 + 0.999))
        if self._fd is None:
            timeout_ms = _soon(timeout_ms)
        else:
            poller.register(self._fd.fileno(), select.POLLIN)
        for fence in fences:
            # Leave out a fence that can't be polled. This fence's signal doesn't end the wait, but
            # timeout_s does: callers choose timeout_s by the fences' deadlines.
            with contextlib.suppress(ValueError, OSError):
                poller.register(fence.fileno(), select.POLLIN)
        events = poller.poll(timeout_ms)
        broken = [fd for fd, event in events if not event & select.POLLIN]
        if broken and len(broken) == len(events):
            # poll() always returns at once for a descriptor that is closed, or whose other end
            # is closed: wait without such descriptors.
            for fd in broken:
                poller.unregister(fd)
            poller.poll(_soon(timeout_ms))
        if self._fd is not None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._fd.fileno())


def _soon(timeout_ms: int | None) -> int:
    return _LOOK_AGAIN_MS if timeout_ms is None else min(timeout_ms, _LOOK_AGAIN_MS)
