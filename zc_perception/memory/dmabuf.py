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
A memory buffer with a file descriptor: a dma-buf or, on a machine without these, a sealed memfd.

Source: ``include/uapi/linux/dma-buf.h``, the kernel's document *Buffer Sharing and
Synchronization* (which also describes fdinfo), memfd_create(2), and fcntl(2) for seals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
import contextlib
from enum import Enum, IntFlag
import errno
import fcntl
import mmap
import os
import select
import stat
import threading
from typing import NamedTuple, Protocol

from zc_perception.errors import AcceleratorError, AllocationError, NO_DESCRIPTOR
from zc_perception.memory import kernel_abi as abi
from zc_perception.memory.fence import poll_fd, SyncFile
from zc_perception.memory.owned_fd import OwnedFd

CPU_ACCESS_TIMEOUT_S = 5.0
_SYNC_ATTEMPTS = 100
MAPPABLE = "the buffer's owner has to send an O_RDWR or O_RDONLY descriptor"
_UNMAPPABLE = (
    'use a consumer that imports the buffer, or a heap with CPU access such as '
    '/dev/dma_heap/system'
)
# Errors of mmap that the exporter doesn't cause. EMFILE is possible, because Python's mmap
# duplicates the descriptor.
_EXHAUSTED = {
    errno.ENOMEM: (
        "use fewer slots or a smaller image, or raise this process's limit ('ulimit "
        "-v', vm.max_map_count)"
    ),
    errno.EMFILE: NO_DESCRIPTOR[errno.EMFILE],
}

_FIXED_SIZE_SEALS = {'SHRINK': abi.F_SEAL_SHRINK, 'GROW': abi.F_SEAL_GROW}
FIXED_SIZE = abi.F_SEAL_SHRINK | abi.F_SEAL_GROW
NO_NEW_WRITERS = abi.F_SEAL_FUTURE_WRITE | abi.F_SEAL_WRITE

# Ioctls that failed with ENOTTY on a dma-buf: this kernel lacks them, so don't call them again.
_missing_ioctls: set[int] = set()


class BufferKind(Enum):
    """The kind of a buffer. Devices can import a dma-buf, but not a memfd."""

    DMABUF = 'dmabuf'
    MEMFD = 'memfd'


class CpuAccess(IntFlag):
    """Directions of CPU access, with the values of DMA_BUF_SYNC_READ and DMA_BUF_SYNC_WRITE."""

    READ = 1
    WRITE = 2


class BufferIdentity(NamedTuple):
    """
    Identifies a buffer while any descriptor of it is open.

    The identity is the same in every process and for every duplicate of the descriptor. It is a
    tuple, because it is looked up in a dictionary for each frame, and tuples are quick to hash.
    """

    device: int
    inode: int


class Keeper(Protocol):
    """The allocator's own object for a buffer; :meth:`DmaBuf.close` closes the object last."""

    def close(self) -> None:
        """Give the object back to its allocator."""


class DmaBuf:
    """
    One buffer: its descriptor, real size, identity, and at most one CPU mapping.

    The mapping is made at the first CPU access and kept. So later frames need no new mapping, and
    a buffer that only devices use never has one.

    :param fd: owned by this object, and closed if the constructor raises.
    :param heap: the allocator's name, for diagnostics.
    :param writable: whether the CPU may map the buffer for writing; ignored, and taken as
        ``False``, if the descriptor wasn't opened with O_RDWR.
    """

    def __init__(self, fd: OwnedFd, kind: BufferKind, heap: str, *, writable: bool = True) -> None:
        try:
            status = os.fstat(fd.fileno())
            access = fcntl.fcntl(fd.fileno(), fcntl.F_GETFL) & os.O_ACCMODE
            # Older kernels report a dma-buf's st_size as 0, but lseek() returns its size.
            self.size = os.lseek(fd.fileno(), 0, os.SEEK_END)
        except BaseException:
            fd.close()
            raise
        self._fd = fd
        self.kind = kind
        self.heap = heap
        self.writable = writable and access == os.O_RDWR
        self.identity = BufferIdentity(status.st_dev, status.st_ino)
        self._keeper: Keeper | None = None
        self._lent = False
        self._end_listeners: list[Callable[[BufferIdentity], None]] = []
        self._mapping: mmap.mmap | None = None
        # Views of the mapping. They exist as long as the mapping, so a frame's CPU access needs
        # neither a new view nor the lock.
        self.read_memory: memoryview | None = None
        self._memory: memoryview | None = None
        self._lock = threading.Lock()

    @classmethod
    def from_fd(
        cls,
        fd: OwnedFd,
        *,
        expected_size: int | None = None,
        writable: bool = False,
        heap: str | None = None,
        keeper: Keeper | None = None,
        lent: bool = False,
    ) -> DmaBuf:
        """
        Make a buffer of a received descriptor: a dma-buf, or a memfd whose size can't change.

        :param fd: owned by the buffer, and closed if it is refused.
        :param expected_size: the bytes that the sender has announced; the buffer may be larger.
        :param writable: whether the CPU is going to write to the buffer.
        :param heap: the allocator's name, if known; else ``foreign/`` and the exporter's name.
        :param keeper: the allocator's object, which is closed after the buffer.
        :param lent: whether the buffer's owner, a library in this process, continues to write to
            it. The owner may map it again for each frame, so :meth:`seal_for_sharing` skips it.
        :raises AllocationError: the descriptor is neither a dma-buf nor a memfd of fixed size, the
            buffer is too small, or *writable* is set but the CPU can't write to the buffer.
        """
        try:
            number = fd.fileno()
            if is_dmabuf(fd):
                kind, exporter = BufferKind.DMABUF, abi.fdinfo(number).get('exp_name', '')
            elif seals_of(number) & FIXED_SIZE == FIXED_SIZE:
                kind, exporter = BufferKind.MEMFD, 'memfd'
            else:
                raise AllocationError(
                    'a buffer can be a dma-buf or a sealed memfd, but this is '
                    f'{describe_descriptor(number)}'
                )
            if kind is BufferKind.MEMFD and is_write_only(number):
                raise AllocationError(
                    f'the memfd {abi.describe_fd(number)} was opened with O_WRONLY, so it '
                    f'can not be mapped; {MAPPABLE}'
                )
            if writable and kind is BufferKind.MEMFD and seals_of(number) & NO_NEW_WRITERS:
                raise AllocationError(
                    f'the memfd {abi.describe_fd(number)} is sealed against writing; map it '
                    'read-only'
                )
            buffer = cls(fd, kind, heap or f'foreign/{exporter}', writable=writable)
            if writable and not buffer.writable:
                raise AllocationError(
                    f'buffer {buffer.identity.inode} ({exporter}) was opened read-only; '
                    "the buffer's owner has to send an O_RDWR descriptor"
                )
            if buffer.size <= 0 or (expected_size is not None and expected_size < 1):
                announced = '' if expected_size is None else f', {expected_size} were announced'
                raise AllocationError(
                    f'buffer {buffer.identity.inode} ({exporter}) has {buffer.size} bytes'
                    f'{announced}; there must be 1 or more'
                )
            if expected_size is not None and buffer.size < expected_size:
                raise AllocationError(
                    f'buffer {buffer.identity.inode} ({exporter}) has {buffer.size} bytes, '
                    f'{expected_size} were announced'
                )
        except BaseException:
            fd.close()
            raise
        buffer._keeper, buffer._lent = keeper, lent
        return buffer

    def fileno(self) -> int:
        """
        Return the descriptor's number, for an immediate system call.

        This object still owns the descriptor; for a descriptor of your own, call :meth:`dup`.
        """
        return self._fd.fileno()

    def dup(self) -> OwnedFd:
        """Return a duplicate of the descriptor: a second owner of the buffer."""
        return self._fd.dup()

    @property
    def mapped(self) -> bool:
        """Whether this process has a CPU mapping of the buffer."""
        return self._mapping is not None

    def mapping(self) -> mmap.mmap:
        """
        Return the CPU mapping of the whole buffer; all calls return the same one.

        :raises AllocationError: the exporter refuses mmap.
        """
        with self._lock:
            if self._mapping is None:
                protection = mmap.PROT_READ | (mmap.PROT_WRITE if self.writable else 0)
                try:
                    self._mapping = mmap.mmap(
                        self.fileno(), self.size, mmap.MAP_SHARED, protection
                    )
                except OSError as error:
                    step = _EXHAUSTED.get(error.errno or 0, _UNMAPPABLE)
                    raise AllocationError(
                        f"buffer {self.identity.inode} ({self.heap}) can't be mapped for the "
                        f'CPU: {error.strerror}; {step}'
                    ) from error
                self._memory = memoryview(self._mapping)
                self.read_memory = self._memory.toreadonly()
            return self._mapping

    def memory(self, *, write: bool = False) -> memoryview:
        """
        Return the mapping as a memoryview, which is read-only unless *write* is set.

        Code that gets a read-only view can't make it writable. DMA_BUF_IOCTL_SYNC isn't called.

        :raises AllocationError: the exporter refuses mmap, or *write* is set and this process may
            only read the buffer.
        """
        self.mapping()
        if write and not self.writable:
            raise AllocationError(
                f'buffer {self.identity.inode} ({self.heap}) may only be read here: map without '
                'write=True, and write into a frame of your own pool'
            )
        memory = self._memory if write else self.read_memory
        assert memory is not None
        return memory

    def begin_cpu_access(self, access: CpuAccess, timeout_s: float = CPU_ACCESS_TIMEOUT_S) -> None:
        """
        Make the device's writes visible to the CPU (DMA_BUF_SYNC_START); do nothing for a memfd.

        The ioctl may wait forever for a device, so this method polls the buffer first.

        :raises AcceleratorError: a device still uses the buffer after *timeout_s*.
        """
        if self.kind is BufferKind.DMABUF and not self.wait_for_devices(access, timeout_s):
            raise AcceleratorError(
                f'buffer {self.identity.inode} ({self.heap}) is still in use by a device after '
                f'{timeout_s:g} s; '
                "drop the frame, and look into the device's log if that happens again"
            )
        self._sync(int(access))

    def end_cpu_access(self, access: CpuAccess) -> None:
        """
        Make the CPU's writes visible to devices (DMA_BUF_SYNC_END).

        *access* must be the same as in :meth:`begin_cpu_access`.
        """
        self._sync(int(access) | abi.DMA_BUF_SYNC_END)

    @contextlib.contextmanager
    def cpu_access(self, access: CpuAccess) -> Iterator[mmap.mmap]:
        """
        Yield the mapping; call :meth:`begin_cpu_access` before, :meth:`end_cpu_access` afterwards.

        :raises AllocationError: the exporter refuses mmap, or *access* has WRITE and the buffer is
            read-only.
        :raises AcceleratorError: a device still uses the buffer after 5 s.
        """
        if access & CpuAccess.WRITE and not self.writable:
            raise AllocationError(
                f'buffer {self.identity.inode} ({self.heap}) is read-only here; ask for '
                'CpuAccess.READ'
            )
        mapping = self.mapping()
        self.begin_cpu_access(access)
        try:
            yield mapping
        finally:
            self.end_cpu_access(access)

    def wait_for_devices(self, access: CpuAccess, timeout_s: float) -> bool:
        """
        Wait until devices allow *access*, by the fences in the buffer's reservation object.

        Before reading, wait for the writers' fences; before writing, for all fences. Return at
        once for a memfd, and where drivers add no fences.

        :returns: whether these fences signalled within *timeout_s*.
        """
        return self.kind is not BufferKind.DMABUF or poll_fd(
            self.fileno(), select.POLLIN if access is CpuAccess.READ else select.POLLOUT, timeout_s
        )

    def _sync(self, flags: int) -> None:
        if self.kind is not BufferKind.DMABUF:
            return
        argument = abi.DMA_BUF_SYNC.pack(flags)
        for _ in range(_SYNC_ATTEMPTS):
            try:
                fcntl.ioctl(self.fileno(), abi.DMA_BUF_IOCTL_SYNC, argument)
                return
            except OSError as error:
                # By the kernel's documentation, the ioctl must be called again after these errors,
                # because its wait for the device's fences was interrupted.
                if error.errno not in (errno.EINTR, errno.EAGAIN):
                    raise
        raise AcceleratorError(
            f'DMA_BUF_IOCTL_SYNC on buffer {self.identity.inode} was interrupted '
            f'{_SYNC_ATTEMPTS} times'
        )

    def _optional_ioctl(self, request: int, argument: bytes | bytearray) -> bool:
        """Call an ioctl; return ``False`` for a memfd, and if the kernel lacks the ioctl."""
        if self.kind is not BufferKind.DMABUF or request in _missing_ioctls:
            return False
        try:
            fcntl.ioctl(self.fileno(), request, argument)
        except OSError as error:
            if error.errno != errno.ENOTTY:
                raise
            if is_dmabuf(self._fd):
                _missing_ioctls.add(request)
            return False
        return True

    @property
    def sync_supported(self) -> bool:
        """
        Whether :meth:`export_fence` and :meth:`import_fence` work for the buffer.

        They need a dma-buf on Linux 6.0 or later (JetPack 6 has 5.15).
        """
        fence = self.export_fence(CpuAccess.READ)
        if fence is not None:
            fence.close()
        return fence is not None

    def export_fence(self, access: CpuAccess) -> SyncFile | None:
        """
        Export the fences in the buffer's reservation object as one new sync_file.

        This is DMA_BUF_IOCTL_EXPORT_SYNC_FILE.

        :param access: READ: only the fences of writers, for which a reader waits; with WRITE: all
            fences.
        :returns: a fence, which has signalled already if no device is busy with the buffer;
            ``None`` for a memfd, and on kernels before 6.0.
        :raises OSError: EMFILE, ENOMEM: no descriptor or no memory is left.
        """
        argument = bytearray(abi.DMA_BUF_SYNC_FILE.pack(int(access), -1))
        if not self._optional_ioctl(abi.DMA_BUF_IOCTL_EXPORT_SYNC_FILE, argument):
            return None
        return SyncFile(OwnedFd(abi.DMA_BUF_SYNC_FILE.unpack(argument)[1]))

    def import_fence(self, fence: SyncFile, access: CpuAccess) -> bool:
        """
        Make drivers wait for *fence* before they use the buffer.

        This is DMA_BUF_IOCTL_IMPORT_SYNC_FILE. The caller still owns the fence.

        :param access: the access whose end the fence signals. For READ, only writers wait for
            the fence; for WRITE, all users wait.
        :returns: ``False`` for a memfd, and on kernels before 6.0; the caller then has to wait for
            the fence itself.
        """
        return self._optional_ioctl(
            abi.DMA_BUF_IOCTL_IMPORT_SYNC_FILE,
            abi.DMA_BUF_SYNC_FILE.pack(int(access), fence.fileno()),
        )

    def set_name(self, name: str) -> bool:
        """
        Name the buffer (DMA_BUF_SET_NAME); fdinfo and bufinfo show the name, to trace leaks.

        :param name: printable, at most 31 bytes of UTF-8.
        :returns: ``False`` if the buffer can't be named: a memfd; any buffer on a kernel before
            5.3; a buffer to which a device is attached on a kernel before 5.8.
        :raises ValueError: the name is too long or not printable.
        """
        # The ioctl's argument is the string's address: fcntl.ioctl() passes the address of bytes.
        text = abi.c_name(name, abi.DMA_BUF_NAME_LEN, 'buffer name')
        try:
            return self._optional_ioctl(abi.DMA_BUF_SET_NAME, text)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False

    def exporter(self) -> str:
        """Return the exporter's name from fdinfo, or the heap's name for a memfd."""
        if self.kind is not BufferKind.DMABUF:
            return self.heap
        return abi.fdinfo(self.fileno()).get('exp_name', 'unknown')

    @property
    def peers_can_write(self) -> bool:
        """
        Whether a process that gets this descriptor could write to the pixels.

        An O_RDONLY descriptor protects a dma-buf, which can't be opened again for writing. A memfd
        can be opened again, so only :meth:`seal_for_sharing` protects it.
        """
        if self.kind is BufferKind.MEMFD:
            return not seals_of(self.fileno()) & NO_NEW_WRITERS
        return fcntl.fcntl(self.fileno(), fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY

    def seal_for_sharing(self) -> bool:
        """
        Prevent other processes from writing to a memfd; call it before sending the descriptor.

        F_SEAL_FUTURE_WRITE forbids later writable mappings but keeps existing ones. So the memfd
        is mapped first, and pixels are written only through this mapping, until :meth:`close`.
        F_SEAL_SEAL prevents peers from adding further seals. A dma-buf isn't changed, because
        dma-bufs have no seals. Lent memory isn't changed, because its owner could not map it for
        writing any more.

        :returns: whether peers can't write. If they can, they must be trusted not to write, and
            the log line about the link has to report this.
        :raises AllocationError: the memfd can't be mapped.
        """
        if self.kind is BufferKind.MEMFD and self.peers_can_write and not self._lent:
            if self.writable:
                self.mapping()
            with contextlib.suppress(
                OSError
            ):  # EINVAL on Linux before 5.1; EPERM if the memfd has F_SEAL_SEAL
                fcntl.fcntl(
                    self.fileno(), abi.F_ADD_SEALS, abi.F_SEAL_FUTURE_WRITE | abi.F_SEAL_SEAL
                )
        return not self.peers_can_write

    def unmap(self) -> None:
        """
        End the CPU mapping, if one exists; the next access makes a new one.

        :raises BufferError: views of the mapping are still alive.
        """
        with self._lock:
            self._unmap()

    def _unmap(self) -> None:
        if self._mapping is not None:
            # release() and close() raise BufferError while an array over the memory exists.
            for memory in (self.read_memory, self._memory):
                if memory is not None:
                    memory.release()
            self.read_memory = self._memory = None
            self._mapping.close()
            self._mapping = None

    def close(self) -> None:
        """
        Unmap and close the buffer. Idempotent.

        :raises BufferError: views of the mapping are still alive; the buffer stays open.
        """
        listeners: list[Callable[[BufferIdentity], None]] = []
        try:
            with self._lock:
                listeners, self._end_listeners = self._end_listeners, []
                self._unmap()
                self._fd.close()
                keeper, self._keeper = self._keeper, None
        finally:
            for listener in listeners:
                listener(self.identity)
        if keeper is not None:
            keeper.close()

    def tell_end(self, listener: Callable[[BufferIdentity], None]) -> None:
        """
        Call *listener* once with the buffer's identity when the buffer's use ends.

        The use ends when the owner calls :meth:`close`, even if that raises, or when this object
        is collected. If the buffer is closed already, *listener* is called at once. Caches use
        this: their key is the identity, and they own a duplicate of the descriptor until the
        call.

        The call may come on any thread, even in a finalizer, so *listener* must take no lock.
        ``SimpleQueue.put`` is a suitable listener.
        """
        with self._lock:
            if not self._fd.closed:
                if listener not in self._end_listeners:
                    self._end_listeners.append(listener)
                return
        listener(self.identity)

    def __del__(self) -> None:
        for listener in getattr(self, '_end_listeners', ()):
            listener(self.identity)

    def __repr__(self) -> str:
        return f'DmaBuf({self.heap}, inode {self.identity.inode}, {self.size} bytes)'


def is_dmabuf(fd: OwnedFd) -> bool:
    """Tell whether a descriptor is a dma-buf: only a dma-buf's fdinfo names an exporter."""
    return 'exp_name' in abi.fdinfo(fd.fileno())


def seals_of(fd: int) -> int:
    """Return a memfd's seals; F_SEAL_SEAL for a plain file of tmpfs, 0 for any other file."""
    try:
        return fcntl.fcntl(fd, abi.F_GET_SEALS)
    except OSError:
        return 0


def is_write_only(fd: int) -> bool:
    """Tell whether a descriptor was opened with O_WRONLY, so that it can't be mapped at all."""
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY


def describe_descriptor(fd: int) -> str:
    """Return, for a message, what the unsuitable descriptor *fd* is and what to do about it."""
    mode = os.fstat(fd).st_mode
    link = abi.describe_fd(fd)
    if link.startswith('/memfd:'):
        missing = '|'.join(
            f'F_SEAL_{name}' for name, seal in _FIXED_SIZE_SEALS.items() if not seals_of(fd) & seal
        )
        return f'a memfd ({link}) that can still change its size; its owner has to add {missing}'
    kinds = ((stat.S_ISFIFO, 'a pipe'), (stat.S_ISSOCK, 'a socket'), (stat.S_ISDIR, 'a directory'),
             (stat.S_ISCHR, 'a device file'),
             (stat.S_ISREG, 'a plain file'))  # fmt: skip
    kind = next((words for matches, words in kinds if matches(mode)), 'no memory')
    if link.startswith('anon_inode:'):
        kind = 'no memory'
    return f'{kind} ({link}); send a dma-buf, or a memfd with the seals SHRINK and GROW'


def pending_fence(
    buffers: Iterable[DmaBuf], access: CpuAccess, *, errors: bool = True
) -> SyncFile | None:
    """
    Return one fence that signals when all devices allow *access* to *buffers*.

    :param errors: whether to include fences that have signalled an error.
    :returns: ``None`` if no device is busy; also for memfds, and on kernels before 6.0, where
        this can't be found out.
    :raises OSError: EMFILE, ENOMEM: no descriptor or no memory is left.
    """
    pending: SyncFile | None = None
    try:
        for buffer in buffers:
            fence = buffer.export_fence(access)
            if fence is None:
                continue
            if fence.wait(0.0) and not (errors and fence.status() < 0):
                fence.close()
            elif pending is None:
                pending = fence
            else:
                first, pending = pending, None
                try:
                    pending = SyncFile.merge('zc pending', first, fence)
                finally:
                    first.close()
                    fence.close()
    except OSError:
        if pending is not None:
            pending.close()
        raise
    return pending
