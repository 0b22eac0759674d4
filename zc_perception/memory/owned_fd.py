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

"""The owner of a file descriptor: functions pass this object instead of a descriptor's number."""

from __future__ import annotations

import contextlib
import fcntl
import os


class OwnedFd:
    """
    Owns one descriptor, and closes it once.

    The descriptor is closed by :meth:`close`, at the end of a ``with`` block, or when the garbage
    collector frees this object. Only one thread may call :meth:`close` or :meth:`detach`.

    :param fd: an open descriptor; this object owns it and makes it close-on-exec.
    :raises OSError: EBADF: the descriptor isn't open.
    """

    __slots__ = ('_fd',)

    def __init__(self, fd: int) -> None:
        self._fd = -1
        fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        self._fd = fd

    @classmethod
    def duplicate(cls, fd: int) -> OwnedFd:
        """Duplicate a descriptor that the caller keeps, and return the duplicate's owner."""
        return cls(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3))

    @classmethod
    def open(cls, path: str, flags: int) -> OwnedFd:  # noqa: A003
        """Open *path*, with O_CLOEXEC added to *flags*."""
        return cls(os.open(path, flags | os.O_CLOEXEC))

    def fileno(self) -> int:
        """
        Return the number, for an immediate system call; this object still owns the descriptor.

        :raises ValueError: the descriptor was closed or detached.
        """
        if self._fd < 0:
            raise ValueError('the file descriptor is closed')
        return self._fd

    @property
    def closed(self) -> bool:
        """Whether the descriptor was closed or detached."""
        return self._fd < 0

    def dup(self) -> OwnedFd:
        """Return the owner of a duplicate, which refers to the same open file."""
        return OwnedFd.duplicate(self.fileno())

    def detach(self) -> int:
        """Return the number; the caller owns the descriptor from now on."""
        fd, self._fd = self.fileno(), -1
        return fd

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __enter__(self) -> OwnedFd:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self.close()

    def __repr__(self) -> str:
        return f'OwnedFd({self._fd if self._fd >= 0 else "closed"})'
