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
The video image compositor (VIC) of a Jetson.

The VIC scales NvBufSurface images and converts their colours and layouts, without the CPU. Camera
and decoder images are often block-linear, and the CPU reads their memory slowly. One pass of the
VIC turns such an image into a small linear one.

Source: NvBufSurfTransform pages of the *Jetson Linux API Reference* (R35.3.1, R35.6). The tests
use a stand-in for the library (``test/doubles/nvbufsurftransform.c``), not a Jetson.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import ctypes
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zc_perception.errors import AcceleratorError, AllocationError
from zc_perception.jetson.nvbufsurface import (
    load_library,
    MAP_READ,
    MappedSurfaceParams,
    NvBufSurfaceHeap,
    OwnedSurface,
    SurfaceCache,
    SurfaceImage,
    SurfacePointer,
    TAG_VIDEO_CONVERT,
    TransformCompute,
    TransformConfigParams,
    TransformError,
    TransformFilter,
    TransformFlag,
    TransformParams,
    TransformRect,
)
from zc_perception.pixel.colorimetry import BT601_LIMITED, Colorimetry
from zc_perception.pixel.fourcc import fourcc_name
from zc_perception.pixel.layout import compute_layout, ImageLayout

TRANSFORM_LIBRARY = 'libnvbufsurftransform.so'
_ADVICE = {
    TransformError.ROI_ERROR: 'a rectangle lies outside its image',
    TransformError.INVALID_PARAMS: 'this release of the library expects other parameters',
    TransformError.EXECUTION_ERROR: 'the VIC failed, see dmesg',
    TransformError.UNSUPPORTED: (
        'the VIC cannot convert between these formats or sizes (it scales by 1/16 to 16)'
    ),
}


class VicImage:
    """
    A linear image that the VIC writes and the CPU reads; :meth:`Vic.allocate` makes it.

    The library maps the image once; :meth:`reading` only makes the VIC's last writes visible.
    """

    def __init__(self, library: ctypes.CDLL, owner: OwnedSurface, layout: ImageLayout) -> None:
        self.layout = layout
        self._library = library
        self._owner = owner
        self._mapped = 0
        self._views: list[NDArray[np.uint8]] = []
        try:
            for index in range(len(layout.planes)):
                self._map(index)
        except BaseException:
            self.close()
            raise

    def _map(self, index: int) -> None:
        pointer = self._owner.pointer
        if self._library.NvBufSurfaceMap(pointer, 0, index, MAP_READ) != 0:
            raise AllocationError(
                f'libnvbufsurface could not map plane {index} of the image for the VIC; search '
                'the kernel log for nvmap'
            )
        self._mapped = index + 1
        address = ctypes.cast(pointer[0].surfaceList, ctypes.POINTER(MappedSurfaceParams))[
            0
        ].mappedAddr.addr[index]
        if not address:
            raise AllocationError(
                f'libnvbufsurface returned no address for plane {index}; this release of the '
                'library may have another struct layout'
            )
        _, shape, sample, _, strides = self.layout.arrays[index]
        memory = memoryview(
            (ctypes.c_uint8 * self.layout.planes[index].size).from_address(address)
        ).cast('B')
        view: NDArray[Any] = np.ndarray(shape, sample, memory, 0, strides)
        view.flags.writeable = False
        self._views.append(view)

    @property
    def pointer(self) -> ctypes._Pointer[Any]:
        """The library's surface; raise ValueError after :meth:`close`."""
        return self._owner.pointer

    @contextlib.contextmanager
    def reading(self) -> Iterator[list[NDArray[np.uint8]]]:
        """
        Yield the image's planes as read-only arrays of shape (rows, columns, components).

        The next transform into this image overwrites the planes.

        :raises AcceleratorError: the library can't make the planes visible to the CPU.
        """
        for index in range(self._mapped):
            # Synchronise each plane by itself: users report that synchronising all planes at once
            # (-1) fails on some releases.
            if self._library.NvBufSurfaceSyncForCpu(self.pointer, 0, index) != 0:
                raise AcceleratorError(
                    f'libnvbufsurface could not synchronise plane {index} for the CPU; search the '
                    'kernel log for nvmap'
                )
        yield self._views

    def close(self) -> None:
        """Unmap and destroy the image; don't use arrays of its pixels afterwards. Idempotent."""
        self._views = []
        with contextlib.suppress(ValueError):
            for index in range(self._mapped):
                self._library.NvBufSurfaceUnMap(self.pointer, 0, index)
        self._mapped = 0
        self._owner.close()


class Vic:
    """
    Transforms images with the VIC.

    Only one thread at a time may use this object.

    :param library: name or path of ``libnvbufsurftransform``; ``None``: the system's.
    :param surface_library: name or path of ``libnvbufsurface``; ``None``: the system's.
    :raises AllocationError: a library can't be loaded, for example if this machine is no Jetson.
    """

    def __init__(self, library: str | None = None, surface_library: str | None = None) -> None:
        self._heap = NvBufSurfaceHeap(surface_library)
        self._surfaces = SurfaceCache(surface_library)
        names = ('NvBufSurfTransform', 'NvBufSurfTransformSetSessionParams')
        loaded = load_library('the VIC needs', library or TRANSFORM_LIBRARY, *names)
        self._transform, self._configure = (getattr(loaded, name) for name in names)
        self._transform.argtypes = [
            SurfacePointer,
            SurfacePointer,
            ctypes.POINTER(TransformParams),
        ]
        self._configure.argtypes = [ctypes.POINTER(TransformConfigParams)]
        # The library stores the parameters of _configure() per thread. So attribute 'set' of the
        # following object says, for each thread, whether that thread has passed them.
        self._sessions = threading.local()

    def allocate(
        self, width: int, height: int, fourcc: int, colorimetry: Colorimetry = BT601_LIMITED
    ) -> VicImage:
        """
        Allocate an image that the VIC writes and the CPU reads.

        :param colorimetry: the colorimetry of a Y'CbCr format; ignored for other formats.
        :raises AllocationError: no memory is left, or the library returns another image than the
            one asked for.
        :raises FormatError: NvBufSurface has no name for the format.
        """
        owner, layout = self._heap.allocate_surface(
            compute_layout(fourcc, width, height), colorimetry, TAG_VIDEO_CONVERT
        )
        return VicImage(self._surfaces.library, owner, layout)

    def transform(self, source: SurfaceImage, destination: SurfaceImage | VicImage) -> None:
        """
        Convert *source* to the size, format and layout of *destination*, and write it there.

        The call blocks, but other Python threads go on. Wait for the images' fences before the
        call, because no device may use either image during the call.

        :raises AcceleratorError: a buffer isn't NvBufSurface memory, or the VIC can't do the
            transform.
        :raises FormatError: NvBufSurface has no name for one of the formats.
        """
        self._begin_session()
        source_rect, destination_rect = (
            TransformRect(0, 0, i.layout.width, i.layout.height) for i in (source, destination)
        )
        parameters = TransformParams(
            transform_flag=TransformFlag.CROP_SRC | TransformFlag.CROP_DST | TransformFlag.FILTER,
            transform_filter=TransformFilter.BILINEAR,
            src_rect=ctypes.pointer(source_rect),
            dst_rect=ctypes.pointer(destination_rect),
        )
        target = (
            destination.pointer
            if isinstance(destination, VicImage)
            else self._surfaces.surface(destination)
        )
        status = self._transform(self._surfaces.surface(source), target, ctypes.byref(parameters))
        if status != TransformError.SUCCESS:
            raise AcceleratorError(
                f'the VIC could not make {_describe(destination.layout)} from '
                f'{_describe(source.layout)} (status {status}): {_ADVICE.get(status, "see dmesg")}'
            )

    def _begin_session(self) -> None:
        if getattr(self._sessions, 'set', False):
            return
        status = self._configure(
            ctypes.byref(TransformConfigParams(compute_mode=TransformCompute.VIC))
        )
        if status != TransformError.SUCCESS:
            raise AcceleratorError(
                f'libnvbufsurftransform finds no VIC on this machine (status {status}): '
                f'{_ADVICE.get(status, "see dmesg")}'
            )
        self._sessions.set = True

    def tidy(self) -> None:
        """Release the surfaces of buffers that their owners have closed."""
        self._surfaces.tidy()

    def close(self) -> None:
        """Release all cached surfaces, but not the images from :meth:`allocate`. Idempotent."""
        self._surfaces.close()


def _describe(layout: ImageLayout) -> str:
    return f'{fourcc_name(layout.fourcc)} {layout.width}x{layout.height}'
