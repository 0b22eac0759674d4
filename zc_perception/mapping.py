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
Map buffers for the CPU as NumPy arrays; no other module does this.

DMA_BUF_IOCTL_SYNC is called at the beginning and the end of each access. Consumers map every
frame, so mapping must be fast: an array is made only on demand (most consumers use one plane), and
values that depend only on the layout are computed once per layout.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
from typing import Any, overload
import weakref

import numpy as np
from numpy.typing import NDArray

from zc_perception.errors import FormatError, FrameReleasedError
from zc_perception.memory.dmabuf import BufferKind, CpuAccess, DmaBuf
from zc_perception.pixel.fourcc import fourcc_name
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.modifier import LINEAR, modifier_name

_READ, _DMABUF = CpuAccess.READ, BufferKind.DMABUF
_frombuffer, _UINT8 = np.frombuffer, np.dtype(np.uint8)


def why_unmapped(layout: ImageLayout) -> str:
    """Return a text that explains why the CPU can't read *layout*; empty: the CPU can read it."""
    if layout.modifier == LINEAR:
        return ''
    return (
        f'{fourcc_name(layout.fourcc)} with modifier {modifier_name(layout.modifier)} has '
        'no rows that a CPU could read'
    )


class PlaneViews(Sequence[NDArray[Any]]):
    """
    A context manager that maps the planes as NumPy arrays over the buffers' memory.

    The shape of a plane is (rows, columns) if it has one component, else (rows, columns,
    components): NV12 has (height, width) and (height/2, width/2, 2), YUYV (height, width/2, 4),
    RGB (height, width, 3). Components are ``uint8``, or little-endian ``uint16`` if they have more
    than 8 bits. A word that holds several components (RGB565) is one unsigned integer.

    The mapping ends with the ``with`` block, or when this object is collected. This ends the CPU
    access to every buffer, even if the block or the SYNC ioctl on another buffer raises an error.

    :param live: a list. For each buffer, one array spans its memory and the planes are views of
        this array. If such an array is still in use when the mapping ends, a weak reference to it
        is added to the list. A frame uses the list to find arrays that were kept too long.
    """

    __slots__ = ('_access', '_buffers', '_layout', '_live', '_roots', '_synced', '_views')

    def __init__(
        self,
        layout: ImageLayout,
        buffers: tuple[DmaBuf, ...],
        access: CpuAccess,
        live: list[weakref.ref[NDArray[Any]]],
    ) -> None:
        self._layout = layout
        self._buffers = buffers
        self._access = access
        self._live = live
        self._synced: list[DmaBuf] = []
        self._roots: list[NDArray[np.uint8]] = []
        self._views: list[NDArray[Any] | None] | None = None

    def __enter__(self) -> PlaneViews:
        """
        Begin the CPU access to all buffers.

        :raises FormatError: the layout isn't LINEAR.
        :raises AllocationError: the exporter refuses mmap, or the access includes WRITE and this
            process may only read a buffer.
        :raises AcceleratorError: a device doesn't finish its work on a buffer in time.
        """
        try:
            self._begin()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _begin(self) -> None:
        layout = self._layout
        if layout.modifier != LINEAR:
            raise FormatError(
                f'{why_unmapped(layout)}: negotiate LINEAR, or import the frame into a device '
                'that knows the modifier'
            )
        read_only = self._access is _READ
        for buffer in self._buffers:
            memory = (buffer.read_memory if read_only else None) or buffer.memory(
                write=not read_only
            )
            self._roots.append(_frombuffer(memory, _UINT8))
            if buffer.kind is _DMABUF:
                buffer.begin_cpu_access(self._access)
                self._synced.append(buffer)
        self._views = [None] * len(layout.planes)

    def _end(self) -> None:
        self._views = None
        roots, self._roots = self._roots, []
        try:
            if self._synced:
                with contextlib.ExitStack() as ends:
                    for buffer in self._synced:
                        ends.callback(buffer.end_cpu_access, self._access)
                    self._synced = []
        finally:
            references = [weakref.ref(root) for root in roots]
            roots.clear()
            for reference in references:
                if reference() is not None:
                    self._live.append(reference)

    @overload
    def __getitem__(self, index: int) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[NDArray[Any]]: ...

    def __getitem__(self, index: int | slice) -> NDArray[Any] | list[NDArray[Any]]:
        views = self._views
        if views is None:
            raise FrameReleasedError(
                "there is no mapping now: use the planes inside 'with frame.map() as planes:'"
            )
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(views)))]
        view = views[index]
        if view is None:
            buffer, shape, sample, offset, strides = self._layout.arrays[index]
            view = views[index] = np.ndarray(shape, sample, self._roots[buffer], offset, strides)
        return view

    def whole(self) -> NDArray[Any]:
        """
        Return all planes as one array: the rows of the first plane, then those of the next ones.

        :raises BufferError: the planes don't follow each other without a gap in one buffer, or
            their rows differ in length.
        """
        views, arrays = list(self), self._layout.arrays
        first, (buffer, _, sample, start, (stride, *_)) = views[0], arrays[0]
        if len(views) == 1:
            return first
        rows = 0
        for view, (its_buffer, _, its_sample, offset, strides) in zip(views, arrays, strict=True):
            place = its_buffer, its_sample, offset, strides[0], view[0].nbytes
            if place != (buffer, sample, start + rows * stride, stride, first[0].nbytes):
                raise BufferError(
                    f"{self._layout.describe()}: its planes don't form one array; "
                    "use them one by one, such as 'from_dlpack(frame.y)'"
                )
            rows += len(view)
        shape = (rows, first.shape[1])
        whole: NDArray[Any] = np.ndarray(shape, sample, self._roots[buffer], start, first.strides)
        return whole

    def __len__(self) -> int:
        return 0 if self._views is None else len(self._views)

    def __del__(self) -> None:
        if self._roots or self._synced:
            self._end()


def map_buffers(
    layout: ImageLayout,
    buffers: tuple[DmaBuf, ...],
    access: CpuAccess,
    live: list[weakref.ref[NDArray[Any]]],
) -> PlaneViews:
    """
    Map buffers that don't belong to a :class:`Frame` yet; see :class:`PlaneViews`.

    Use it as ``with map_buffers(layout, buffers, access, live) as planes:``.
    """
    return PlaneViews(layout, buffers, access, live)
