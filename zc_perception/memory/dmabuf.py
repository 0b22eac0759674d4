"""A memory buffer behind a file descriptor: a dma-buf, or the sealed memfd that stands in where a machine has none.

Source: ``include/uapi/linux/dma-buf.h`` and the kernel's *Buffer Sharing and Synchronization*.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
import threading
from dataclasses import dataclass
from enum import Enum, IntFlag

from zc_perception.errors import AllocationError
from zc_perception.memory.owned_fd import OwnedFd

DMA_BUF_IOCTL_SYNC = 0x40086200
_SYNC_ATTEMPTS = 100


class BufferKind(Enum):
    """What is behind the descriptor. A memfd is *not* a dma-buf: no device can import it."""

    DMABUF = 'dmabuf'
    MEMFD = 'memfd'


class CpuAccess(IntFlag):
    """Direction of CPU access, with the values of DMA_BUF_SYNC_READ and DMA_BUF_SYNC_WRITE."""

    READ = 1
    WRITE = 2


_SYNC_END = 4


@dataclass(frozen=True)
class BufferIdentity:
    """The same in every process and for every duplicate of the descriptor, for as long as one of them is open."""

    device: int
    inode: int


class DmaBuf:
    """One buffer: its descriptor, real size, identity, and at most one cached CPU mapping.

    The mapping is made at the first CPU access and kept, so that mapping costs nothing per frame, and a buffer that only devices
    touch never has one.

    :param fd: owned from here on.
    :param kind: what the descriptor is.
    :param heap: the allocator's name, for diagnostics.
    :param writable: whether the CPU may map it for writing.
    """

    def __init__(self, fd: OwnedFd, kind: BufferKind, heap: str, *, writable: bool = True) -> None:
        status = os.fstat(fd.fileno())
        self._fd = fd
        self.kind = kind
        self.heap = heap
        self.writable = writable
        self.identity = BufferIdentity(status.st_dev, status.st_ino)
        # A dma-buf's st_size is 0 on older kernels; seeking to its end is the documented way.
        self.size = os.lseek(fd.fileno(), 0, os.SEEK_END)
        self._mapping: mmap.mmap | None = None
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """The descriptor's number, for a system call made right now. Consumers never close it; they may :meth:`dup`."""
        return self._fd.fileno()

    def dup(self) -> OwnedFd:
        """A second owner of the buffer."""
        return self._fd.dup()

    @property
    def mapped(self) -> bool:
        """Whether this process has a CPU mapping of it."""
        return self._mapping is not None

    def mapping(self) -> mmap.mmap:
        """The cached CPU mapping of the whole buffer, shared; made at the first call.

        :raises AllocationError: the exporter refuses mmap.
        """
        with self._lock:
            if self._mapping is None:
                protection = mmap.PROT_READ | (mmap.PROT_WRITE if self.writable else 0)
                try:
                    self._mapping = mmap.mmap(self.fileno(), self.size, mmap.MAP_SHARED, protection)
                except OSError as error:
                    raise AllocationError(
                        f"buffer {self.identity.inode} ({self.heap}) can't be mapped for the CPU: {error.strerror}; "
                        'use a consumer that imports it, or a heap with CPU access such as /dev/dma_heap/system'
                    ) from error
            return self._mapping

    def begin_cpu_access(self, access: CpuAccess) -> None:
        """Make the device's writes visible to the CPU (DMA_BUF_SYNC_START). Nothing to do for a memfd."""
        self._sync(int(access))

    def end_cpu_access(self, access: CpuAccess) -> None:
        """Make the CPU's writes visible to devices (DMA_BUF_SYNC_END), with the same *access* as at the beginning."""
        self._sync(int(access) | _SYNC_END)

    def _sync(self, flags: int) -> None:
        if self.kind is not BufferKind.DMABUF:
            return
        argument = struct.pack('<Q', flags)
        for _ in range(_SYNC_ATTEMPTS):
            try:
                fcntl.ioctl(self.fileno(), DMA_BUF_IOCTL_SYNC, argument)
                return
            except OSError as error:
                # The kernel documents that both must be retried: the wait for the device's fences was interrupted.
                if error.errno not in (errno.EINTR, errno.EAGAIN):
                    raise
        raise TimeoutError(f'DMA_BUF_IOCTL_SYNC on buffer {self.identity.inode} was interrupted {_SYNC_ATTEMPTS} times')

    def exporter(self) -> str:
        """The exporter's name as fdinfo says it, or the heap's name for a memfd."""
        if self.kind is not BufferKind.DMABUF:
            return self.heap
        with open(f'/proc/self/fdinfo/{self.fileno()}', errors='replace') as info:
            for line in info:
                if line.startswith('exp_name:'):
                    return line.split(':', 1)[1].strip()
        return 'unknown'

    def close(self) -> None:
        """Unmap and close.

        :raises BufferError: views of the mapping are still alive.
        """
        with self._lock:
            if self._mapping is not None:
                self._mapping.close()
                self._mapping = None
        self._fd.close()

    def __repr__(self) -> str:
        return f'DmaBuf({self.heap}, inode {self.identity.inode}, {self.size} bytes)'
