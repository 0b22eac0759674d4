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
Heaps, from which buffers are allocated, and the best heap for each use.

A heap of ``/dev/dma_heap/*`` allocates dma-bufs, which devices can import. ``/dev/udmabuf`` turns
ordinary memory into a dma-buf. A sealed memfd is only memory: processes can share it, but devices
can't import it.

Sources: ``include/uapi/linux/dma-heap.h``, ``include/uapi/linux/udmabuf.h``, memfd_create(2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from enum import Enum
import errno
import fcntl
import os
from typing import Protocol

from zc_perception.errors import AllocationError, ConfigError, nearest, NO_DESCRIPTOR
from zc_perception.memory import kernel_abi as abi
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.owned_fd import OwnedFd

DMA_HEAP_DIRECTORY = '/dev/dma_heap'
UDMABUF_DEVICE = '/dev/udmabuf'
NVMAP_DEVICE = '/dev/nvmap'
# Names of the CMA heap on some boards and kernels. _cma_heaps finds other names with "cma".
_CMA = ('linux,cma', 'reserved', 'default_cma_region')
# Refuse larger buffers; no image is as large. Kernels' errors for absurd sizes differ and don't
# name the cause.
_MAX_SIZE = 1 << 40


class Heap(Protocol):
    """Allocates buffers of one kind of memory."""

    @property
    def name(self) -> str:
        """Name for parameters and diagnostics: ``dma_heap/system``, ``udmabuf`` or ``memfd``."""

    def allocate(self, size: int) -> DmaBuf:
        """
        Allocate a zeroed buffer of *size* bytes, rounded up to pages.

        :raises AllocationError: no memory or descriptor is left, or the user lacks permission.
        """

    def close(self) -> None:
        """Close the heap's device; its buffers stay valid."""


class HeapUse(Enum):
    """The purpose of buffers; it decides which heaps ``auto`` tries, see :func:`heap_order`."""

    CAMERA = 'camera'
    CAMERA_IMPORT = 'camera_import'
    NPU_RESULT = 'npu_result'


def is_contiguous(heap: str) -> bool:
    """Tell whether a heap is CMA: its buffers are contiguous, so a device needs no IOMMU."""
    return heap.startswith('dma_heap/') and (
        heap.removeprefix('dma_heap/') in _CMA or 'cma' in heap
    )


def _cma_heaps(dma_heaps: str) -> list[str]:
    try:
        others = sorted(
            entry for entry in os.listdir(dma_heaps) if 'cma' in entry and entry not in _CMA
        )
    except OSError:
        others = []
    return [f'dma_heap/{name}' for name in (*_CMA, *others)]


def heap_order(use: HeapUse, *, dma_heaps: str = '', nvmap: str = '') -> list[str]:
    """
    Return the names of the heaps that ``auto`` tries, the best first.

    - CAMERA: on a Jetson, CMA first, because the ISP and NVMM need contiguous memory. Elsewhere,
      the system heap first, because CMA is small (256 MB on the reference vehicle). A participant
      of the negotiation that needs contiguous memory asks for it.
    - CAMERA_IMPORT: the same order without memfd, because the camera's driver has to import the
      buffers.
    - NPU_RESULT: CMA, then the system heap. PCIe DMA needs contiguous memory unless an IOMMU joins
      the pages. No memfd, because a device writes the buffers.

    :param dma_heaps: the folder of the dma-heaps; by default ``/dev/dma_heap``.
    :param nvmap: the device node that only a Jetson has; by default ``/dev/nvmap``.
    """
    contiguous = _cma_heaps(dma_heaps or DMA_HEAP_DIRECTORY)
    if use is HeapUse.NPU_RESULT:
        return [*contiguous, 'dma_heap/system', 'udmabuf']
    jetson = os.path.exists(nvmap or NVMAP_DEVICE)
    order = [*contiguous, 'dma_heap/system'] if jetson else ['dma_heap/system', *contiguous]
    return [*order, 'udmabuf', *(['memfd'] if use is HeapUse.CAMERA else [])]


def _page_align(size: int) -> int:
    if not 0 < size <= _MAX_SIZE:
        raise AllocationError(
            f'buffer size {size} must be positive and at most {_MAX_SIZE} bytes; check the '
            'image size'
        )
    page = os.sysconf('SC_PAGE_SIZE')
    return -(-size // page) * page


_NEXT_STEP = {
    **NO_DESCRIPTOR,
    errno.ENOMEM: 'use fewer slots or a smaller image',
    errno.ENOSPC: 'use fewer slots or a smaller image',
    errno.EACCES: (
        'add the user to the group of the device file, or give that group access in a udev rule'
    ),
    errno.EPERM: (
        'add the user to the group of the device file, or give that group access in a udev rule'
    ),
}


def _said(error: OSError) -> str:
    """Return the error's text and, if known, what the user can do next."""
    step = _NEXT_STEP.get(error.errno or 0)
    return f'{error.strerror}; {step}' if step else str(error.strerror)


def _refusal(heap: str, size: int, error: OSError, hint: str = '') -> AllocationError:
    return AllocationError(f'{heap} could not allocate {size} bytes: {_said(error)}{hint}')


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
        argument = bytearray(
            abi.DMA_HEAP_ALLOCATION.pack(_page_align(size), 0, os.O_RDWR | os.O_CLOEXEC, 0)
        )
        try:
            fcntl.ioctl(self._fd.fileno(), abi.DMA_HEAP_IOCTL_ALLOC, argument)
        except OSError as error:
            used_up = error.errno == errno.ENOMEM and is_contiguous(self.name)
            raise _refusal(
                self.name,
                size,
                error,
                ', see CmaFree in /proc/meminfo, or use dma_heap/system' if used_up else '',
            ) from error
        return DmaBuf(
            OwnedFd(abi.DMA_HEAP_ALLOCATION.unpack(argument)[1]), BufferKind.DMABUF, self.name
        )

    def close(self) -> None:
        """See :class:`Heap`."""
        self._fd.close()


class Udmabuf:
    """Makes dma-bufs out of the pages of a memfd, by ``/dev/udmabuf``."""

    name = 'udmabuf'

    def __init__(self) -> None:
        self._fd = OwnedFd.open(UDMABUF_DEVICE, os.O_RDWR)

    def allocate(self, size: int) -> DmaBuf:
        """See :class:`Heap`."""
        aligned = _page_align(size)
        try:
            # udmabuf requires F_SEAL_SHRINK, and refuses a memfd with a seal against writing.
            with _sealed_memfd(aligned, abi.F_SEAL_SHRINK) as memory:
                argument = bytearray(
                    abi.UDMABUF_CREATION.pack(
                        memory.fileno(), abi.UDMABUF_FLAGS_CLOEXEC, 0, aligned
                    )
                )
                fd = fcntl.ioctl(self._fd.fileno(), abi.UDMABUF_CREATE, argument)
        except OSError as error:
            raise _refusal(
                self.name, size, error, '; see /sys/module/udmabuf/parameters/size_limit_mb'
            ) from error
        return DmaBuf(OwnedFd(fd), BufferKind.DMABUF, self.name)

    def close(self) -> None:
        """See :class:`Heap`."""
        self._fd.close()


class SealedMemfd:
    """Anonymous memory of fixed size. It works on every machine, but devices can't import it."""

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


def check_heap_name(name: str) -> None:
    """
    Check a heap's name without opening the heap.

    :raises ConfigError: no machine can have a heap of that name.
    """
    dma_heap = name.removeprefix('dma_heap/')
    if name not in ('auto', 'udmabuf', 'memfd') and (dma_heap == name or '/' in dma_heap):
        raise ConfigError(
            (
                f"heap '{name}' is not known; use auto, dma_heap/NAME (see ls "
                f'{DMA_HEAP_DIRECTORY}), udmabuf or memfd'
            )
            + nearest(name, ['auto', *heap_order(HeapUse.CAMERA)])
        )


def _open_named(name: str) -> Heap:
    if name == 'udmabuf':
        return Udmabuf()
    if name == 'memfd':
        return SealedMemfd()
    check_heap_name(name)
    return DmaHeap(name.removeprefix('dma_heap/'))


def _absent(candidates: Sequence[str], missing: set[str]) -> list[str]:
    """
    Return a list with one sentence about the *missing* device files; empty: nothing to report.

    The CMA heap has one of several names, so it is reported only if all of them are *missing*.
    """
    cma = [name for name in candidates if is_contiguous(name)]
    absent = []
    if not os.path.isdir(DMA_HEAP_DIRECTORY):
        absent += [DMA_HEAP_DIRECTORY] if missing - {'udmabuf'} else []
    else:
        absent += [f'{DMA_HEAP_DIRECTORY}/system'] if 'dma_heap/system' in missing else []
        absent += [f'CMA heap in {DMA_HEAP_DIRECTORY}'] if cma and missing.issuperset(cma) else []
    absent += [UDMABUF_DEVICE] if 'udmabuf' in missing else []
    return [f'this machine has {" and ".join(f"no {name}" for name in absent)}'] if absent else []


Opener = Callable[[str], Heap]
"""Opens a heap by its name; raises ``OSError`` or :class:`AllocationError`."""


def open_heap(name: str = 'auto', *, use: HeapUse = HeapUse.CAMERA) -> tuple[Heap, list[str]]:
    """
    Open the heap *name*, or with ``auto`` the first of :func:`heap_order` that works in a trial.

    :returns: the heap, and for ``auto`` the reasons why other heaps don't work, see
        :func:`working_heaps`.
    :raises ConfigError: no machine can have a heap of that name.
    :raises AllocationError: the named heap can't be used, or none works.
    """
    if name != 'auto':
        return _open_or_refuse(name), []
    heaps = working_heaps('auto', heap_order(use), opener=_open_named)
    heaps.choose(heaps.names[0])
    return heaps, list(heaps.reasons)


def _open_or_refuse(name: str) -> Heap:
    try:
        return _open_named(name)
    except OSError as error:
        raise AllocationError(
            f"heap '{name}' can't be opened: {_said(error)}; use heap: auto"
        ) from error


class OfferedHeaps:
    """
    Heaps that a camera's buffers may come from; the object itself is a :class:`Heap`, too.

    The object opens the heap that :meth:`choose` names, allocates from it, and closes it.

    :param names: the names of heaps that work, the best first; at least one.
    :param reasons: why other heaps are not among *names*.
    """

    def __init__(
        self,
        names: Sequence[str],
        reasons: Sequence[str] = (),
        *,
        opener: Opener = _open_or_refuse,
    ) -> None:
        self.names = tuple(names)
        self.reasons = tuple(reasons)
        self._opener = opener
        self._heap: Heap | None = None
        self._closed = False

    @classmethod
    def only(cls, heap: Heap) -> OfferedHeaps:
        """Offer only *heap*, and own it; return *heap* itself if it is :class:`OfferedHeaps`."""
        if isinstance(heap, OfferedHeaps):
            return heap
        offered = cls((heap.name,))
        offered._heap = heap
        return offered

    @property
    def name(self) -> str:
        """The name of the chosen heap; before :meth:`choose`, of the best one."""
        return self.names[0] if self._heap is None else self._heap.name

    def choose(self, name: str) -> None:
        """
        Open the heap *name*, and close the heap chosen before; buffers of both remain valid.

        :raises AllocationError: the heap is none of :attr:`names` or can't be opened any more, or
            this object was closed.
        """
        if self._closed:
            raise AllocationError(f"heap '{name}' can't be opened: its OfferedHeaps was closed")
        if name not in self.names:
            raise AllocationError(
                f"heap '{name}' is not one of {', '.join(self.names)}; to use it, set the "
                "camera's parameter 'heap' to its name, or to auto"
            )
        if self._heap is not None and self._heap.name == name:
            return
        try:
            heap = self._opener(name)
        except OSError as error:
            raise AllocationError(f"heap '{name}' can't be opened: {error.strerror}") from error
        if self._heap is not None:
            self._heap.close()
        self._heap = heap

    def remove(self, name: str, reason: str) -> None:
        """
        Remove a heap from the offer, because a driver or participant can't use it.

        :param reason: a sentence that begins with the heap's name.
        """
        self.names, self.reasons = (
            tuple(other for other in self.names if other != name),
            (*self.reasons, reason),
        )

    def allocate(self, size: int) -> DmaBuf:
        """See :class:`Heap`. If no heap is chosen yet, allocate from the best."""
        if self._heap is None:
            self.choose(self.names[0])
        assert self._heap is not None
        return self._heap.allocate(size)

    def close(self) -> None:
        """See :class:`Heap`. Idempotent."""
        if not self._closed and self._heap is not None:
            self._heap.close()
        self._closed = True


def working_heaps(
    name: str = 'auto', order: Sequence[str] = (), *, opener: Opener = _open_named
) -> OfferedHeaps:
    """
    Offer the heap *name*, which the user chose, or with ``auto`` all heaps that work in a trial.

    In the trial, a page is allocated from the heap.

    ``reasons`` of the offer has one sentence for all heaps whose device files are missing, and one
    for each other heap that doesn't work.

    :param order: the names to try, the best first; empty: :func:`heap_order` for cameras.
    :param opener: the function that opens the heaps that ``auto`` tries.
    :raises ConfigError: no machine can have a heap of that name.
    :raises AllocationError: the named heap can't be used, or none works.
    """
    if name != 'auto':
        offered = OfferedHeaps.only(_open_or_refuse(name))
        offered.reasons = (f"parameter 'heap' is '{name}'",)
        return offered
    order = order or heap_order(HeapUse.CAMERA)
    names: list[str] = []
    reasons: list[str] = []
    missing: set[str] = set()
    for each in order:
        try:
            with closing(opener(each)) as heap:
                heap.allocate(1).close()
        except FileNotFoundError:
            missing.add(each)
        except OSError as error:
            reasons.append(f'{each}: {_said(error)}')
        except AllocationError as error:
            reasons.append(str(error))
        else:
            names.append(each)
    reasons = [*_absent(order, missing), *reasons]
    if not names:
        raise AllocationError(f'no heap works: {"; ".join(reasons)}')
    return OfferedHeaps(names, reasons, opener=opener)
