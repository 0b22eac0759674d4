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

from zc_perception.errors import FormatError, FrameReleasedError
from zc_perception.memory.dmabuf import BufferKind, CpuAccess, DmaBuf
from zc_perception.pixel.fourcc import fourcc_name
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.modifier import LINEAR, modifier_name

_READ, _DMABUF = CpuAccess.READ, BufferKind.DMABUF
_frombuffer, _UINT8 = np.frombuffer, np.dtype(np.uint8)


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

    def _end(self) -> list[NDArray[np.uint8]]:
        """No view from here on; the roots."""
        self._views, roots, self._roots = [], self._roots, []
        return roots


def begin_access(layout: ImageLayout, buffers: tuple[DmaBuf, ...], access: CpuAccess, synced: list[DmaBuf]) -> PlaneViews:
    """Views of the planes, whose CPU access has begun.

    :param synced: gets each buffer whose access has to be ended, also when this raises: by :func:`end_access`.
    :raises FormatError: the layout isn't LINEAR.
    :raises AllocationError: the exporter refuses mmap, or *access* has WRITE and this process may only read a buffer.
    :raises AcceleratorError: a device doesn't finish with a buffer.
    """
    if layout.modifier != LINEAR:
        raise FormatError(
            f'{fourcc_name(layout.fourcc)} with modifier {modifier_name(layout.modifier)} has no rows that a CPU could read: '
            'negotiate LINEAR, or import it into a device that knows the modifier'
        )
    write = access is not _READ
    roots: list[NDArray[np.uint8]] = []
    try:
        for buffer in buffers:
            roots.append(_frombuffer(buffer.memory(write=write), _UINT8))
            if buffer.kind is _DMABUF:
                buffer.begin_cpu_access(access)
                synced.append(buffer)
    except BaseException:
        roots.clear()  # the traceback would keep them, and so the mappings, alive
        raise
    return PlaneViews(layout, roots)


def end_access(views: PlaneViews | None, access: CpuAccess, synced: list[DmaBuf], live: list[weakref.ref[NDArray[Any]]]) -> None:
    """End what :func:`begin_access` began. Every buffer's access is ended, whatever another one's SYNC raises.

    :param live: gets a weak reference to each buffer's root array that somebody still looks through.
    """
    roots = [] if views is None else views._end()
    try:
        if synced:
            with contextlib.ExitStack() as ends:
                for buffer in synced:
                    ends.callback(buffer.end_cpu_access, access)
                synced.clear()
    finally:
        references = [weakref.ref(root) for root in roots]
        roots.clear()
        for reference in references:
            if reference() is not None:
                live.append(reference)


class map_buffers:
    """``with map_buffers(layout, buffers, access, live) as planes:`` for buffers that aren't a frame's yet.

    Entering raises what :func:`begin_access` does. A block that is only forgotten ends too.

    :param live: see :func:`end_access`.
    """

    __slots__ = ('_access', '_buffers', '_layout', '_live', '_synced', '_views')

    def __init__(self, layout: ImageLayout, buffers: tuple[DmaBuf, ...], access: CpuAccess, live: list[weakref.ref[NDArray[Any]]]) -> None:
        self._layout = layout
        self._buffers = buffers
        self._access = access
        self._live = live
        self._synced: list[DmaBuf] = []
        self._views: PlaneViews | None = None

    def __enter__(self) -> PlaneViews:
        try:
            self._views = begin_access(self._layout, self._buffers, self._access, self._synced)
        except BaseException:
            end_access(None, self._access, self._synced, self._live)
            raise
        return self._views

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        views, self._views = self._views, None
        end_access(views, self._access, self._synced, self._live)

    def __del__(self) -> None:
        if self._views is not None or self._synced:
            self.__exit__(None, None, None)
