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
The kernel's side of a sync_file's two ioctls.

Sources: ``linux/sync_file.h`` and the comments of ``drivers/dma-buf/sync_file.c``. A fence is an
eventfd that is written when it signals. A merge drops signalled fences with their errors: so
observed on Linux 6.12.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
import errno
import os

import pytest

from zc_perception.memory import fence as fence_module
from zc_perception.memory.fence import SyncFile
from zc_perception.memory.owned_fd import OwnedFd


class FileRecord(ctypes.Structure):
    """``struct sync_file_info``."""

    _fields_ = (
        ('name', ctypes.c_char * 32), ('status', ctypes.c_int32), ('flags', ctypes.c_uint32),
        ('num_fences', ctypes.c_uint32), ('pad', ctypes.c_uint32),
        ('sync_fence_info', ctypes.c_uint64),
    )  # fmt: skip


class MergeRecord(ctypes.Structure):
    """``struct sync_merge_data``."""

    _fields_ = (
        ('name', ctypes.c_char * 32), ('fd2', ctypes.c_int32), ('fence', ctypes.c_int32),
        ('flags', ctypes.c_uint32), ('pad', ctypes.c_uint32),
    )  # fmt: skip


@dataclass(eq=False)
class KernelFence:
    """A fence within the kernel; *status* is 0 while it is pending, 1, or a negative errno."""

    status: int = 0


@dataclass(eq=False)
class KernelFile:
    fences: list[KernelFence]

    @property
    def status(self) -> int:
        """Return the status as the header defines it: 1 signalled, 0 active, negative error."""
        if any(fence.status == 0 for fence in self.fences):
            return 0
        return min((fence.status for fence in self.fences), default=1)


class SyncKernel:
    """Answers ioctls of the sync_files that it made, by descriptor; signals through duplicates."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: dict[int, KernelFile] = {}
        self._open: list[tuple[OwnedFd, KernelFile]] = []
        monkeypatch.setattr(fence_module.fcntl, 'ioctl', self.ioctl)

    def _make(self, file: KernelFile) -> int:
        fd = os.eventfd(int(file.status != 0), os.EFD_CLOEXEC)
        self.files[fd] = file
        self._open.append((OwnedFd.duplicate(fd), file))
        return fd

    def close(self) -> None:
        for fd, _ in self._open:
            fd.close()

    def sync_file(self, fence: KernelFence) -> SyncFile:
        return SyncFile(OwnedFd(self._make(KernelFile([fence]))))

    def signal(self, fence: KernelFence, status: int = 1) -> None:
        fence.status = status
        for fd, file in self._open:
            if fence in file.fences and file.status:
                os.eventfd_write(fd.fileno(), 1)

    def ioctl(self, fd: int, request: int, argument: bytearray) -> int:
        """Answer SYNC_IOC_MERGE (3), and SYNC_IOC_FILE_INFO (4) without fences, of type '>'."""
        if fd not in self.files:
            raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
        if request == 3 << 30 | ctypes.sizeof(FileRecord) << 16 | ord('>') << 8 | 4:
            info, file = FileRecord.from_buffer(argument), self.files[fd]
            assert not (info.flags or info.pad or info.num_fences)
            info.status, info.num_fences = file.status, len(file.fences)
            return 0
        assert request == 3 << 30 | ctypes.sizeof(MergeRecord) << 16 | ord('>') << 8 | 3
        record = MergeRecord.from_buffer(argument)
        assert not (record.flags or record.pad)
        fences = [*self.files[fd].fences, *self.files[record.fd2].fences]
        # Without pending fences a single stub remains.
        pending = [fence for fence in fences if fence.status == 0]
        record.fence = self._make(KernelFile(pending or [KernelFence(1)]))
        return 0
