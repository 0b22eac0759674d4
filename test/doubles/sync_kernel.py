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
from dataclasses import dataclass, field
import errno
import os
import time

import pytest

from zc_perception.memory import fence as fence_module
from zc_perception.memory.fence import SyncFile
from zc_perception.memory.owned_fd import OwnedFd


class FenceRecord(ctypes.Structure):
    """``struct sync_fence_info``."""

    _fields_ = (
        ('obj_name', ctypes.c_char * 32), ('driver_name', ctypes.c_char * 32),
        ('status', ctypes.c_int32), ('flags', ctypes.c_uint32), ('timestamp_ns', ctypes.c_uint64),
    )  # fmt: skip


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
    """A fence within the kernel, with the sync_files that contain it."""

    timeline: bytes
    driver: bytes = b'axl'
    status: int = 0
    timestamp_ns: int = 0


@dataclass(eq=False)
class KernelFile:
    name: bytes
    fences: list[KernelFence] = field(default_factory=list)

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
        self.merges: list[str] = []
        monkeypatch.setattr(fence_module.fcntl, 'ioctl', self.ioctl)

    def _make(self, file: KernelFile) -> int:
        fd = os.eventfd(int(file.status != 0), os.EFD_CLOEXEC)
        self.files[fd] = file
        self._open.append((OwnedFd.duplicate(fd), file))
        return fd

    def close(self) -> None:
        for fd, _ in self._open:
            fd.close()

    def sync_file(self, *fences: KernelFence, name: bytes = b'axl-metis-0-1') -> SyncFile:
        return SyncFile(OwnedFd(self._make(KernelFile(name, list(fences)))))

    def signal(self, fence: KernelFence, status: int = 1, timestamp_ns: int | None = None) -> None:
        fence.status = status
        fence.timestamp_ns = time.monotonic_ns() if timestamp_ns is None else timestamp_ns
        for fd, file in self._open:
            if fence in file.fences and file.status:
                os.eventfd_write(fd.fileno(), 1)

    def ioctl(self, fd: int, request: int, argument: bytearray) -> int:
        """Answer SYNC_IOC_MERGE (3) and SYNC_IOC_FILE_INFO (4) of type '>'."""
        if fd not in self.files:
            raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
        if request == 3 << 30 | ctypes.sizeof(FileRecord) << 16 | ord('>') << 8 | 4:
            return self._file_info(self.files[fd], FileRecord.from_buffer(argument))
        assert request == 3 << 30 | ctypes.sizeof(MergeRecord) << 16 | ord('>') << 8 | 3
        return self._merge(self.files[fd], MergeRecord.from_buffer(argument))

    @staticmethod
    def _file_info(file: KernelFile, record: FileRecord) -> int:
        if record.flags or record.pad or 0 < record.num_fences < len(file.fences):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if record.num_fences:
            table = (FenceRecord * len(file.fences)).from_address(record.sync_fence_info)
            for entry, fence in zip(table, file.fences, strict=True):
                entry.obj_name, entry.driver_name = fence.timeline, fence.driver
                entry.status, entry.timestamp_ns = fence.status, fence.timestamp_ns
        record.name, record.status, record.num_fences = file.name, file.status, len(file.fences)
        return 0

    def _merge(self, first: KernelFile, record: MergeRecord) -> int:
        if record.flags or record.pad:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fences = [*first.fences, *self.files[record.fd2].fences]
        # Without pending fences a single stub remains, with the latest time.
        left = [f for f in fences if f.status == 0] or [
            KernelFence(b'stub', b'stub', 1, max(f.timestamp_ns for f in fences))
        ]
        self.merges.append(record.name.decode())
        record.fence = self._make(KernelFile(record.name, left))
        return 0
