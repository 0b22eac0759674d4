"""Allocators of buffers, and which one for which use: ``/dev/dma_heap/*``, ``/dev/udmabuf``, sealed memfd, NvBufSurface.

A dma-heap's buffer can be imported by devices as it is, udmabuf turns ordinary memory into a dma-buf, a memfd is only memory
(in-process and cross-process links work, devices can't import it).

Sources: ``include/uapi/linux/dma-heap.h``, ``include/uapi/linux/udmabuf.h``, memfd_create(2).
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from enum import Enum
from typing import Protocol, runtime_checkable

from zc_perception.errors import AllocationError, ConfigError
from zc_perception.memory import kernel_abi as abi
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.nvbufsurface import NvBufSurfaceHeap
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.layout import ImageLayout

DMA_HEAP_DIRECTORY = '/dev/dma_heap'
UDMABUF_DEVICE = '/dev/udmabuf'
NVMAP_DEVICE = '/dev/nvmap'
# One heap, by the name it has on different boards and kernels; other names with "cma" in them are found in the folder.
_CMA = ('linux,cma', 'reserved', 'default_cma_region')
# More than any image has; the kernel's own answers to absurd sizes differ and don't help.
_MAX_SIZE = 1 << 40


class Heap(Protocol):
    """Where buffers come from."""

    @property
    def name(self) -> str:
        """Short name for diagnostics: ``dma_heap/system``, ``udmabuf``, ``memfd`` or ``nvbufsurface``."""

    def allocate(self, size: int) -> DmaBuf:
        """A zeroed buffer of at least *size* bytes, rounded up to pages.

        :raises AllocationError: no memory, no descriptor left, or no permission.
        """

    def close(self) -> None:
        """Close the heap's device; buffers live on."""


@runtime_checkable
class ImageHeap(Protocol):
    """A heap that decides itself where an image's planes lie."""

    def allocate_image(self, layout: ImageLayout, colorimetry: Colorimetry) -> tuple[tuple[DmaBuf, ...], ImageLayout]:
        """See :func:`allocate_image`."""


class HeapUse(Enum):
    """What the buffers are for; decides the order in which ``auto`` tries the heaps (:func:`heap_order`)."""

    CAMERA = 'camera'
    NPU_RESULT = 'npu_result'
    HOST = 'host'


def is_contiguous(heap: str) -> bool:
    """Whether buffers of the heap of that name are physically contiguous, so that a device without IOMMU can use them."""
    return heap.startswith('dma_heap/') and (heap[len('dma_heap/') :] in _CMA or 'cma' in heap)


def _cma_heaps() -> list[str]:
    try:
        others = sorted(entry for entry in os.listdir(DMA_HEAP_DIRECTORY) if 'cma' in entry and entry not in _CMA)
    except OSError:
        others = []
    return [f'dma_heap/{name}' for name in (*_CMA, *others)]


def heap_order(use: HeapUse, *, contiguous: bool = False) -> list[str]:
    """The names that ``auto`` tries, the best first.

    ============  ========================  =======================================================================================
    use           first                     why
    ============  ========================  =======================================================================================
    CAMERA        CMA on a Jetson, or with  The ISP and NVMM need contiguous memory. Elsewhere CMA comes second: it is small (256 MB
                  *contiguous*; or system   on the reference vehicle), and the devices that need it say so.
    NPU_RESULT    CMA, then system          PCIe DMA wants contiguous memory unless an IOMMU gathers the pages. Never a memfd: a
                                            device writes there.
    HOST          system                    Telemetry and whatever only the CPU reads has no such need, and leaves CMA to those who do.
    ============  ========================  =======================================================================================
    """
    if use is HeapUse.NPU_RESULT:
        return [*_cma_heaps(), 'dma_heap/system', 'udmabuf']
    if contiguous or (use is HeapUse.CAMERA and os.path.exists(NVMAP_DEVICE)):
        return [*_cma_heaps(), 'dma_heap/system', 'udmabuf', 'memfd']
    if use is HeapUse.HOST:
        return ['dma_heap/system', 'udmabuf', 'memfd']
    return ['dma_heap/system', *_cma_heaps(), 'udmabuf', 'memfd']


def _page_align(size: int) -> int:
    if not 0 < size <= _MAX_SIZE:
        raise AllocationError(f'buffer size {size} must be positive and at most {_MAX_SIZE} bytes; check the image size')
    page = os.sysconf('SC_PAGE_SIZE')
    return -(-size // page) * page


_NEXT_STEP = {
    errno.EMFILE: "; this process has no file descriptor left: raise its limit ('ulimit -n'), or use fewer slots",
    errno.ENFILE: '; the machine has no file descriptor left: look for leaks (zc_doctor), or raise fs.file-max',
    errno.ENOMEM: '; use fewer slots or a smaller image',
    errno.ENOSPC: '; use fewer slots or a smaller image',
    errno.EACCES: '; add the user to the group of the device file, or give that group access in a udev rule',
    errno.EPERM: '; add the user to the group of the device file, or give that group access in a udev rule',
}


def _refusal(heap: str, size: int, error: OSError, hint: str = '') -> AllocationError:
    step = _NEXT_STEP.get(error.errno or 0, '')
    return AllocationError(f'{heap} could not allocate {size} bytes: {error.strerror}{step}{hint}')


def _sealed_memfd(size: int, seals: int) -> OwnedFd:
    fd = OwnedFd(os.memfd_create('zc_frame', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    try:
        os.ftruncate(fd.fileno(), size)
        fcntl.fcntl(fd.fileno(), abi.F_ADD_SEALS, seals)
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
        argument = bytearray(abi.DMA_HEAP_ALLOCATION.pack(_page_align(size), 0, os.O_RDWR | os.O_CLOEXEC, 0))
        try:
            fcntl.ioctl(self._fd.fileno(), abi.DMA_HEAP_IOCTL_ALLOC, argument)
        except OSError as error:
            used_up = error.errno == errno.ENOMEM and is_contiguous(self.name)
            raise _refusal(self.name, size, error, ', see CmaFree in /proc/meminfo, or use dma_heap/system' if used_up else '') from error
        return DmaBuf(OwnedFd(abi.DMA_HEAP_ALLOCATION.unpack(argument)[1]), BufferKind.DMABUF, self.name)

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
        try:
            # udmabuf insists on SHRINK and refuses seals against writing.
            with _sealed_memfd(aligned, abi.F_SEAL_SHRINK) as memory:
                argument = bytearray(abi.UDMABUF_CREATION.pack(memory.fileno(), abi.UDMABUF_FLAGS_CLOEXEC, 0, aligned))
                fd = fcntl.ioctl(self._fd.fileno(), abi.UDMABUF_CREATE, argument)
        except OSError as error:
            raise _refusal(self.name, size, error, '; see /sys/module/udmabuf/parameters/size_limit_mb') from error
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
            fd = _sealed_memfd(_page_align(size), abi.F_SEAL_SHRINK | abi.F_SEAL_GROW)
        except OSError as error:
            raise _refusal(self.name, size, error) from error
        return DmaBuf(fd, BufferKind.MEMFD, self.name)

    def close(self) -> None:
        """See :class:`Heap`."""


def allocate_image(heap: Heap, layout: ImageLayout, colorimetry: Colorimetry) -> tuple[tuple[DmaBuf, ...], ImageLayout]:
    """The buffers of one image, and where its planes lie in them: *layout* itself, unless the heap decides that (NvBufSurface).

    :raises AllocationError: no memory; nothing of the image stays allocated.
    :raises FormatError: the heap has no name for the format.
    """
    if isinstance(heap, ImageHeap):
        return heap.allocate_image(layout, colorimetry)
    buffers: list[DmaBuf] = []
    try:
        for index in range(layout.num_buffers):
            buffers.append(heap.allocate(layout.buffer_size(index)))
    except BaseException:
        for buffer in buffers:
            buffer.close()
        raise
    return tuple(buffers), layout


def _open_named(name: str) -> Heap:
    if name == 'udmabuf':
        return Udmabuf()
    if name == 'memfd':
        return SealedMemfd()
    if name == 'nvbufsurface':
        return NvBufSurfaceHeap()
    if name.startswith('dma_heap/') and '/' not in name[len('dma_heap/') :]:
        return DmaHeap(name[len('dma_heap/') :])
    raise ConfigError(f"heap '{name}' is not known; use auto, dma_heap/NAME (see ls {DMA_HEAP_DIRECTORY}), udmabuf or memfd")


def _absent(candidates: Sequence[str], missing: set[str]) -> list[str]:
    """One sentence for all heaps whose device files are missing, if there are any. CMA has several names, and one of them is enough."""
    cma = [name for name in candidates if is_contiguous(name)]
    absent = []
    if not os.path.isdir(DMA_HEAP_DIRECTORY):
        absent += [DMA_HEAP_DIRECTORY] if missing - {'udmabuf'} else []
    else:
        absent += [f'{DMA_HEAP_DIRECTORY}/system'] if 'dma_heap/system' in missing else []
        absent += [f'CMA heap in {DMA_HEAP_DIRECTORY}'] if cma and missing.issuperset(cma) else []
    absent += [UDMABUF_DEVICE] if 'udmabuf' in missing else []
    return [f'this machine has {" and ".join(f"no {name}" for name in absent)}'] if absent else []


def open_heap(name: str = 'auto', *, use: HeapUse = HeapUse.CAMERA, contiguous: bool = False) -> tuple[Heap, list[str]]:
    """The heap *name*, or with ``auto`` the first of :func:`heap_order` that allocates a page.

    :param contiguous: a device needs physically contiguous buffers: with ``auto`` CMA heaps come first, and when none works the reasons
        say what that means. A named heap is the user's choice. :func:`is_contiguous` tells what came out.
    :returns: the heap, and for ``auto`` why no better one was taken: a sentence for those that this machine lacks, and one for each that
        didn't work; worth saying once.
    :raises ConfigError: unknown name.
    :raises AllocationError: the named heap can't be used, or none works.
    """
    if name != 'auto':
        try:
            return _open_named(name), []
        except OSError as error:
            step = _NEXT_STEP.get(error.errno or 0, '')
            raise AllocationError(f"heap '{name}' can't be opened: {error.strerror}{step}; use heap: auto") from error
    candidates = heap_order(use, contiguous=contiguous)
    reasons: list[str] = []
    missing: set[str] = set()
    for candidate in candidates:
        try:
            heap = _open_named(candidate)
        except FileNotFoundError:
            missing.add(candidate)
            continue
        except OSError as error:
            reasons.append(f'{candidate}: {error.strerror}{_NEXT_STEP.get(error.errno or 0, "")}')
            continue
        try:
            heap.allocate(1).close()
        except AllocationError as error:
            heap.close()
            reasons.append(str(error))
            continue
        if contiguous and not is_contiguous(candidate):
            reasons.append(f'{candidate}: used although its pages are scattered, which only devices behind an IOMMU can use as one block')
        return heap, [*_absent(candidates, missing), *reasons]
    raise AllocationError(f'no heap for {use.value} works: ' + '; '.join([*_absent(candidates, missing), *reasons]))
