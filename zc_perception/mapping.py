"""CPU access to pixels: the one place where buffers become arrays, with SYNC brackets at both ends.

A consumer does this for every frame, so it is written for few steps: an array is made when it is asked for (most look at one plane), and
what depends on the layout alone is computed once for it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from zc_perception.errors import AllocationError, FormatError, FrameReleasedError
from zc_perception.memory.dmabuf import BufferKind, CpuAccess, DmaBuf
from zc_perception.pixel.fourcc import fourcc_name
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.modifier import LINEAR, modifier_name


class PlaneViews(Sequence[NDArray[Any]]):
    """The planes' samples as NumPy arrays over the mapping itself.

    A plane is (rows, columns) of its only component, or (rows, columns, components): NV12 has (height, width) and (height/2, width/2,
    2), YUYV (height, width/2, 4), RGB (height, width, 3). Components are ``uint8``; those of more than 8 bits are ``uint16``, little
    endian, and words that components share (RGB565) are one unsigned integer.

    They end with the ``with`` block; an array that was taken out and kept makes the frame's release raise.
    """

    __slots__ = ('_layout', '_roots', '_views')

    def __init__(self, layout: ImageLayout, roots: list[NDArray[np.uint8]]) -> None:
        self._layout = layout
        self._roots = roots
        self._views: list[NDArray[Any] | None] = [None] * len(layout.planes)

    @overload
    def __getitem__(self, index: int) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[NDArray[Any]]: ...
    def __getitem__(self, index: int | slice) -> NDArray[Any] | list[NDArray[Any]]:
        if not self._views:
            raise FrameReleasedError("the frame's mapping has ended: use the planes inside 'with frame.map() as planes:'")
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self._views)))]
        view = self._views[index]
        if view is None:
            buffer, shape, sample, offset, strides = self._layout.arrays[index]
            view = self._views[index] = np.ndarray(shape, sample, self._roots[buffer], offset, strides)
        return view

    def __len__(self) -> int:
        return len(self._views)

    def _end(self) -> None:
        self._views, self._roots = [], []


class map_buffers:
    """``with map_buffers(layout, buffers, access, live) as planes:``

    Every buffer whose access began is ended, whatever the block or another buffer's SYNC raises; also when the block is only forgotten.

    :param live: gets a weak reference to each buffer's root array that outlived the block.
    :raises FormatError: the layout isn't LINEAR.
    :raises AllocationError: the exporter refuses mmap, or *access* has WRITE and this process may only read a buffer.
    :raises AcceleratorError: a device doesn't finish with a buffer.
    """

    __slots__ = ('_access', '_buffers', '_layout', '_live', '_roots', '_synced', '_views')

    def __init__(self, layout: ImageLayout, buffers: tuple[DmaBuf, ...], access: CpuAccess, live: list[weakref.ref[NDArray[Any]]]) -> None:
        self._layout = layout
        self._buffers = buffers
        self._access = access
        self._live = live
        self._synced: list[DmaBuf] = []
        self._roots: list[NDArray[np.uint8]] = []
        self._views: PlaneViews | None = None

    def __enter__(self) -> PlaneViews:
        layout, access = self._layout, self._access
        if layout.modifier != LINEAR:
            raise FormatError(
                f'{fourcc_name(layout.fourcc)} with modifier {modifier_name(layout.modifier)} has no rows that a CPU could read: '
                'negotiate LINEAR, or import it into a device that knows the modifier'
            )
        writing = access is not CpuAccess.READ
        try:
            for buffer in self._buffers:
                if writing and not buffer.writable:
                    raise AllocationError(
                        f'buffer {buffer.identity.inode} ({buffer.heap}) may only be read here: map without write=True, '
                        'and write into a frame of your own pool'
                    )
                memory = memoryview(buffer.mapping())
                # Read-only memory and not only a cleared flag, which a consumer could set again.
                self._roots.append(np.frombuffer(memory if writing else memory.toreadonly(), np.uint8))
                del memory
                if buffer.kind is BufferKind.DMABUF:
                    buffer.begin_cpu_access(access)
                    self._synced.append(buffer)
        except BaseException:
            self._end()
            raise
        self._views = PlaneViews(layout, self._roots)
        return self._views

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        if self._views is not None:
            self._views._end()
            self._views = None
        try:
            if self._synced:
                self._end_access()
        finally:
            references = [weakref.ref(root) for root in self._roots]
            self._roots.clear()
            for reference in references:
                if reference() is not None:
                    self._live.append(reference)

    def _end_access(self) -> None:
        with contextlib.ExitStack() as ends:
            for buffer in self._synced:
                ends.callback(buffer.end_cpu_access, self._access)
            self._synced = []

    def __del__(self) -> None:
        if self._views is not None or self._synced:
            self._end()
