"""Allocators of buffers: ``/dev/dma_heap/*``, ``/dev/udmabuf``, sealed memfd.

The order is from the most to the least useful: a dma-heap buffer can be imported by devices as it is, udmabuf turns ordinary
memory into a dma-buf, a memfd is only memory (in-process and cross-process links work, devices can't import it).

Sources: ``include/uapi/linux/dma-heap.h``, ``include/uapi/linux/udmabuf.h``, memfd_create(2).
"""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Protocol

from zc_perception.errors import AllocationError, ConfigError
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.owned_fd import OwnedFd

DMA_HEAP_IOCTL_ALLOC = 0xC0184800
UDMABUF_CREATE = 0x40187542
UDMABUF_FLAGS_CLOEXEC = 1
F_ADD_SEALS = 1033
F_SEAL_SHRINK = 0x0002
F_SEAL_GROW = 0x0004
DMA_HEAP_DIRECTORY = '/dev/dma_heap'
UDMABUF_DEVICE = '/dev/udmabuf'
# CMA comes second: it is small (256 MB on the reference vehicle) and the devices that need contiguity say so.
_DMA_HEAPS = ('system', 'linux,cma', 'reserved', 'default_cma_region')


class Heap(Protocol):
    """Where buffers come from."""

    @property
    def name(self) -> str:
        """Short name for diagnostics: ``dma_heap/system``, ``udmabuf`` or ``memfd``."""

    def allocate(self, size: int) -> DmaBuf:
        """A zeroed buffer of at least *size* bytes, rounded up to pages.

        :raises AllocationError: no memory, or no permission.
        """

    def close(self) -> None:
        """Close the heap's device; buffers live on."""


def _page_align(size: int) -> int:
    if size <= 0:
        raise AllocationError(f'buffer size {size} must be positive')
    page = os.sysconf('SC_PAGE_SIZE')
    return -(-size // page) * page


def _sealed_memfd(size: int, seals: int) -> OwnedFd:
    fd = OwnedFd(os.memfd_create('zc_frame', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    try:
        os.ftruncate(fd.fileno(), size)
        fcntl.fcntl(fd.fileno(), F_ADD_SEALS, seals)
    except OSError:
        fd.close()
        raise
    return fd


class DmaHeap:
    """A heap of the kernel's dma-heap framework."""

    def __init__(self, heap: str) -> None:
        self.name = f'dma_heap/{heap}'
        self._fd = OwnedFd.open(f'{DMA_HEAP_DIRECTORY}/{heap}', os.O_RDWR)

    def allocate(self, size: int) -> DmaBuf:
        """See :class:`Heap`."""
        argument = bytearray(struct.pack('<QIIQ', _page_align(size), 0, os.O_RDWR | os.O_CLOEXEC, 0))
        try:
            fcntl.ioctl(self._fd.fileno(), DMA_HEAP_IOCTL_ALLOC, argument)
        except OSError as error:
            raise AllocationError(f'{self.name} could not allocate {size} bytes: {error.strerror}') from error
        return DmaBuf(OwnedFd(struct.unpack_from('<i', argument, 8)[0]), BufferKind.DMABUF, self.name)

    def close(self) -> None:
        """See :class:`Heap`."""
        self._fd.close()


class Udmabuf:
    """dma-bufs made of memfd pages by ``/dev/udmabuf``."""

    name = 'udmabuf'

    def __init__(self) -> None:
        self._fd = OwnedFd.open(UDMABUF_DEVICE, os.O_RDWR)

    def allocate(self, size: int) -> DmaBuf:
        """See :class:`Heap`."""
        aligned = _page_align(size)
        # udmabuf insists on SHRINK and refuses WRITE seals.
        with _sealed_memfd(aligned, F_SEAL_SHRINK) as memory:
            argument = bytearray(struct.pack('<IIQQ', memory.fileno(), UDMABUF_FLAGS_CLOEXEC, 0, aligned))
            try:
                fd = fcntl.ioctl(self._fd.fileno(), UDMABUF_CREATE, argument)
            except OSError as error:
                raise AllocationError(
                    f'udmabuf could not allocate {size} bytes: {error.strerror}; see /sys/module/udmabuf/parameters/size_limit_mb'
                ) from error
        return DmaBuf(OwnedFd(fd), BufferKind.DMABUF, self.name)

    def close(self) -> None:
        """See :class:`Heap`."""
        self._fd.close()


class SealedMemfd:
    """Anonymous memory that can't change its size: works everywhere, but devices can't import it."""

    name = 'memfd'

    def allocate(self, size: int) -> DmaBuf:
        """See :class:`Heap`."""
        try:
            fd = _sealed_memfd(_page_align(size), F_SEAL_SHRINK | F_SEAL_GROW)
        except OSError as error:
            raise AllocationError(f'memfd could not allocate {size} bytes: {error.strerror}') from error
        return DmaBuf(fd, BufferKind.MEMFD, self.name)

    def close(self) -> None:
        """See :class:`Heap`."""


def _open_named(name: str) -> Heap:
    if name == 'udmabuf':
        return Udmabuf()
    if name == 'memfd':
        return SealedMemfd()
    if name.startswith('dma_heap/') and '/' not in name[len('dma_heap/') :]:
        return DmaHeap(name[len('dma_heap/') :])
    raise ConfigError(f"heap '{name}' is not known; use auto, dma_heap/NAME (see ls {DMA_HEAP_DIRECTORY}), udmabuf or memfd")


def open_heap(name: str = 'auto') -> tuple[Heap, list[str]]:
    """The heap *name*, or with ``auto`` the first that allocates a page: dma-heap, udmabuf, memfd.

    :returns: the heap, and for ``auto`` one sentence for each better heap that didn't work.
    :raises ConfigError: unknown name.
    :raises AllocationError: the named heap can't be used.
    """
    if name != 'auto':
        try:
            return _open_named(name), []
        except OSError as error:
            raise AllocationError(f"heap '{name}' can't be opened: {error.strerror}; use heap: auto") from error
    reasons = []
    for candidate in (*(f'dma_heap/{h}' for h in _DMA_HEAPS), 'udmabuf', 'memfd'):
        try:
            heap = _open_named(candidate)
        except OSError as error:
            reasons.append(f'{candidate}: {error.strerror}')
            continue
        try:
            heap.allocate(1).close()
        except AllocationError as error:
            heap.close()
            reasons.append(str(error))
            continue
        return heap, reasons
    raise AllocationError('no heap works: ' + '; '.join(reasons))
