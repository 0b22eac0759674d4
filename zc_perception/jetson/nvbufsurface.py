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
Images of NVIDIA's ``libnvbufsurface``: one image in one nvmap dma-buf.

Jetson cameras and the VIC use such images. This file begins with the structs and enums of this
library and of ``libnvbufsurftransform``.

* :class:`NvBufSurfaceHeap` allocates an image.
* :func:`surface_parameters` and :func:`surface_image` read the layout of an image that other code
  made, such as a camera.
* :class:`SurfaceCache` makes the library's object for an image that came as a descriptor.

Source: NvBufSurface and NvBufSurfTransform pages of the *Jetson Linux API Reference* (R35.3.1 to
R39.2). ``test_jetson_abi.py`` checks that a C compiler places the documented fields at the same
offsets. The first fields of ``NvBufSurface`` and of its parameters are the same in all these
releases. Later releases have added fields at the end. So the structs' sizes differ, and only
element 0 of ``surfaceList`` may be read. R36's own page wasn't found. So before this module reads
a camera's structs, :func:`check_structs` allocates an image and compares the fields of the image's
struct with the values that were asked for.
"""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass
from enum import IntEnum, IntFlag
import fcntl
import os
import queue
from typing import Any

from zc_perception.c_structs import c_struct
from zc_perception.errors import AcceleratorError, AllocationError, LayoutError
from zc_perception.memory.dmabuf import BufferIdentity, DmaBuf
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.format_names import (
    from_nvbufsurface,
    nvbufsurface_format,
    NvBufSurfaceFormat,
)
from zc_perception.pixel.fourcc import fourcc_name, pixel_format
from zc_perception.pixel.layout import ImageLayout, PlaneLayout, validate_layout
from zc_perception.pixel.modifier import INVALID, LINEAR, modifier_name

LAYOUT_PITCH = 0
LAYOUT_BLOCK_LINEAR = 1
MEM_DEFAULT = 0
MEM_SURFACE_ARRAY = 4
MEM_HANDLE = 5
TAG_CAMERA = 0x200
TAG_VIDEO_CONVERT = 0xF01
MAP_READ = 0

# A struct's name below is the one in the library's header, without its prefix NvBufSurface or
# NvBufSurf. Some structs leave out the fields after the last one that this package uses.
CreateParams = c_struct(
    'u32 gpuId width height size; bool isContiguous; int colorFormat layout memType'
)
# The positions of the chroma samples between the luma samples.
ChromaSubsampling = c_struct('u8 chromaLocHoriz chromaLocVert')
AllocateParams = c_struct(
    'params params; int displayscanformat; chroma chromaSubsampling; int memtag; bool '
    'disablePitchPadding; u32 _reservedParam; ptr[3] _reserved',
    params=CreateParams,
    chroma=ChromaSubsampling,
)
PlaneParams = c_struct(
    'u32 num_planes; u32[4] width height pitch offset psize bytesPerPix; ptr[16] _reserved'
)
_SURFACE = (
    'u32 width height pitch; int colorFormat layout; u64 bufferDesc; u32 dataSize; ptr '
    'dataPtr; planes planeParams'
)
# Read only element 0 of a list of SurfaceParams: the elements' size differs between releases.
SurfaceParams = c_struct(_SURFACE, planes=PlaneParams)
Surface = c_struct(
    'u32 gpuId batchSize numFilled; bool isContiguous; int memType; list surfaceList',
    list=ctypes.POINTER(SurfaceParams),
)
SurfacePointer = ctypes.POINTER(Surface)
MappedAddr = c_struct('ptr[4] addr; ptr eglImage; ptr[4] _reserved')
# These are the first fields of the library's struct, which are the same in R35 and R39.
MappedSurfaceParams = c_struct(
    f'{_SURFACE}; mapped mappedAddr', planes=PlaneParams, mapped=MappedAddr
)
MapPlaneParams = c_struct(
    'u32 width height pitch offset psize secondfieldoffset blockheightlog2; u64 flags; u8[64] '
    'reserved'
)
# The description of a buffer for NvBufSurfaceImport.
MapParams = c_struct(
    'u32 num_planes gpuId; u64 fd; u32 totalSize; int memType layout scanformat colorFormat; '
    'chroma chromaSubsampling; planes[4] planes; u8[64] reserved',
    chroma=ChromaSubsampling,
    planes=MapPlaneParams,
)
# In pixels.
TransformRect = c_struct('u32 top left width height')
# The VIC, the Jetson's unit that converts images, ignores the last two fields.
TransformConfigParams = c_struct('int compute_mode; s32 gpu_id; ptr cuda_stream')
# src_rect and dst_rect are arrays with one rectangle for each surface of the batch.
TransformParams = c_struct(
    'u32 transform_flag; int transform_flip transform_filter; rect src_rect dst_rect',
    rect=ctypes.POINTER(TransformRect),
)


class TransformCompute(IntEnum):
    """``NvBufSurfTransform_Compute``: the hardware that does a transform."""

    DEFAULT = 0
    GPU = 1
    VIC = 2


class TransformFlag(IntFlag):
    """``NvBufSurfTransform_Transform_Flag``: which of a transform's parameters are used."""

    CROP_SRC = 1
    CROP_DST = 2
    FILTER = 4
    FLIP = 8


class TransformFilter(IntEnum):
    """``NvBufSurfTransform_Inter``: the filters for scaling; the VIC has further ones."""

    NEAREST = 0
    BILINEAR = 1


class TransformError(IntEnum):
    """``NvBufSurfTransform_Error``: the status that the library's functions return."""

    ROI_ERROR = -4
    INVALID_PARAMS = -3
    EXECUTION_ERROR = -2
    UNSUPPORTED = -1
    SUCCESS = 0


LIBRARY = 'libnvbufsurface.so'
SURFACE_LIST_OFFSET = 24
PLANE_PARAMS_OFFSET = 48
# The size of the image that check_structs() allocates. No other field of the structs is likely to
# contain these numbers.
_TRIAL_SIZE = (646, 358)
# The functions that make an image readable for the CPU, with their number of integer arguments.
_FOR_CPU = {'NvBufSurfaceMap': 3, 'NvBufSurfaceUnMap': 2, 'NvBufSurfaceSyncForCpu': 2}
# Each descriptor that is passed to the library has at least this number, see SurfaceCache.
_HIGH_NUMBERS = 512
assert (
    Surface.surfaceList.offset == SURFACE_LIST_OFFSET
    and SurfaceParams.planeParams.offset == PLANE_PARAMS_OFFSET
)


def load_library(who: str, name: str, *functions: str) -> ctypes.CDLL:
    """
    Load a library of JetPack.

    :param who: the beginning of the error message, such as ``the VIC needs``.
    :raises AllocationError: the library can't be loaded, or lacks one of the functions.
    """
    try:
        library = ctypes.CDLL(name)
        for function in functions:
            getattr(library, function)
    except (OSError, AttributeError) as error:
        raise AllocationError(f'{who} {name} of JetPack: {error}') from error
    return library


class OwnedSurface:
    """Owns one surface of the library; :meth:`close` or the garbage collector destroys it."""

    def __init__(self, library: ctypes.CDLL, surface: ctypes._Pointer[Any]) -> None:
        self._library = library
        self._surface: ctypes._Pointer[Any] | None = surface

    @property
    def pointer(self) -> ctypes._Pointer[Any]:
        """The pointer to the surface; raise ValueError after :meth:`close`."""
        if self._surface is None:
            raise ValueError('the surface was destroyed')
        return self._surface

    def close(self) -> None:
        """Destroy the surface. A second call does nothing."""
        surface, self._surface = self._surface, None
        if surface is not None:
            self._library.NvBufSurfaceDestroy(surface)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, TypeError):  # the interpreter may be ending
            self.close()


class NvBufSurfaceHeap:
    """
    Allocates images, each in a buffer of its own; the library chooses strides and offsets.

    :param library: the shared library's name or path; ``None``: :data:`LIBRARY`.
    :raises AllocationError: the library can't be loaded, or lacks the functions.
    """

    name = 'nvbufsurface'

    def __init__(self, library: str | None = None) -> None:
        self._library = load_library(
            "heap 'nvbufsurface' needs",
            library or LIBRARY,
            'NvBufSurfaceDestroy',
            'NvBufSurfaceCreate',
        )
        self._library.NvBufSurfaceDestroy.argtypes = [SurfacePointer]
        # Releases of Jetson Linux before R35 lack this function. Unlike NvBufSurfaceCreate, it
        # also tells the library the purpose of the memory (a tag).
        self._allocate = getattr(self._library, 'NvBufSurfaceAllocate', None)

    def allocate_image(
        self, layout: ImageLayout, colorimetry: Colorimetry
    ) -> tuple[tuple[DmaBuf, ...], ImageLayout]:
        """
        Allocate one image in one buffer, and return the buffer and its layout.

        The surface is destroyed when the buffer is closed. See :meth:`allocate_surface`.
        """
        owner, real = self.allocate_surface(layout, colorimetry)
        try:
            # The surface owns its descriptor, so the buffer gets a duplicate. The memory lives as
            # long as one of the two is open.
            fd = OwnedFd.duplicate(owner.pointer[0].surfaceList[0].bufferDesc)
            buffer = DmaBuf.from_fd(
                fd, expected_size=real.buffer_size(0), writable=True, heap=self.name, keeper=owner
            )
        except OSError as error:
            owner.close()
            raise AllocationError(
                f"the descriptor of libnvbufsurface's buffer can't be duplicated: {error.strerror}"
            ) from error
        except BaseException:
            owner.close()
            raise
        return (buffer,), real

    def allocate_surface(
        self, layout: ImageLayout, colorimetry: Colorimetry, tag: int = TAG_CAMERA
    ) -> tuple[OwnedSurface, ImageLayout]:
        """
        Allocate a surface of one image, and return it with its layout.

        :param layout: only width, height and format are used; the library chooses strides and
            offsets, which are in the layout returned.
        :param tag: the purpose of the memory, for the library's own statistics.
        :raises AllocationError: the library refuses, the layout isn't LINEAR, or the library
            returns another image than the one asked for.
        :raises FormatError: the library has no name for the format.
        """
        if layout.modifier != LINEAR:
            raise AllocationError(
                "heap 'nvbufsurface' gives only LINEAR images, not "
                f'{modifier_name(layout.modifier)}; negotiate LINEAR'
            )
        color_format = int(nvbufsurface_format(layout.fourcc, colorimetry))
        wanted = CreateParams(
            width=layout.width,
            height=layout.height,
            colorFormat=color_format,
            layout=LAYOUT_PITCH,
            memType=MEM_SURFACE_ARRAY,
        )
        surface = ctypes.POINTER(Surface)()
        if self._allocate is not None:
            status = self._allocate(
                ctypes.byref(surface),
                ctypes.c_uint32(1),
                ctypes.byref(AllocateParams(params=wanted, memtag=tag)),
            )
        else:
            status = self._library.NvBufSurfaceCreate(
                ctypes.byref(surface), ctypes.c_uint32(1), ctypes.byref(wanted)
            )
        if status != 0 or not surface:
            raise AllocationError(
                f'libnvbufsurface could not allocate {fourcc_name(layout.fourcc)} '
                f'{layout.width}x{layout.height} (status {status}); '
                'use fewer slots, a smaller image, or heap: auto; search the kernel log for nvmap'
            )
        owner = OwnedSurface(self._library, surface)
        try:
            surface[0].numFilled = 1
            return owner, _image_layout(layout, color_format, surface[0])
        except BaseException:
            owner.close()
            raise


def _image_layout(asked: ImageLayout, color_format: int, surface: ctypes.Structure) -> ImageLayout:
    """Return a surface's layout; check that its image is the one that was asked for."""
    if surface.batchSize != 1 or not surface.surfaceList:
        raise AllocationError(
            f'libnvbufsurface returned a batch of {surface.batchSize} images instead of one, so '
            "this release of the library has another struct layout; set parameter 'heap' to auto"
        )
    params = surface.surfaceList[0]
    names = ('width', 'height', 'format', 'layout', 'planes')
    values = (
        params.width,
        params.height,
        params.colorFormat,
        params.layout,
        params.planeParams.num_planes,
    )
    came = dict(zip(names, values, strict=True))
    want = dict(
        zip(
            names,
            (asked.width, asked.height, color_format, LAYOUT_PITCH, len(asked.format.planes)),
            strict=True,
        )
    )
    if came != want:
        raise AllocationError(
            f'libnvbufsurface was asked for {want} and returned {came}; this release of the '
            "library may have another struct layout; set parameter 'heap' to auto"
        )
    layout, _ = surface_image(params)
    try:
        validate_layout(layout, [params.dataSize])
    except LayoutError as error:
        raise AllocationError(f'libnvbufsurface returned an impossible layout: {error}') from error
    return layout


def surface_parameters(address: int, size: int) -> ctypes.Structure:
    """
    Return the parameters of the first image of an ``NvBufSurface``, *size* bytes at *address*.

    The parameters are valid while the surface's owner keeps the surface. Call
    :func:`check_structs` once before.

    :raises LayoutError: these bytes are too few for an ``NvBufSurface``, the surface has no image,
        or its type of memory has no descriptor.
    """
    if size < ctypes.sizeof(Surface):
        raise LayoutError(
            f'an NvBufSurface has at least {ctypes.sizeof(Surface)} bytes, this buffer has '
            f'{size}: it holds something else'
        )
    surface = Surface.from_address(address)
    if not surface.batchSize or not surface.surfaceList:
        raise LayoutError(
            f'the NvBufSurface has a batch of {surface.batchSize} images; one is needed'
        )
    if surface.memType not in (MEM_DEFAULT, MEM_SURFACE_ARRAY, MEM_HANDLE):
        raise LayoutError(
            f'the NvBufSurface has memory of type {surface.memType}, which has no descriptor; let '
            'the element that made it use surface arrays (nvbuf-memory-type=4)'
        )
    parameters = surface.surfaceList[0]
    assert isinstance(parameters, SurfaceParams)
    return parameters


def surface_signature(parameters: ctypes.Structure) -> bytes:
    """Return an image's struct as bytes, without the fields that name its memory."""
    address = ctypes.addressof(parameters)
    head = ctypes.string_at(address, SurfaceParams.bufferDesc.offset)
    return head + ctypes.string_at(
        address + SurfaceParams.planeParams.offset, PlaneParams._reserved.offset
    )


def surface_image(parameters: ctypes.Structure) -> tuple[ImageLayout, Colorimetry]:
    """
    Return the layout of an image that is in one buffer, and the image's colorimetry.

    A pitch-linear image is LINEAR. A block-linear image gets modifier INVALID, because the struct
    lacks parts of NVIDIA's modifier (page kind, generation, sector layout, height of the blocks).

    :raises LayoutError: a field has an impossible value, or the layout isn't documented.
    :raises FormatError: the colour format has no DRM fourcc.
    """
    fourcc, colorimetry = from_nvbufsurface(parameters.colorFormat)
    if parameters.layout not in (LAYOUT_PITCH, LAYOUT_BLOCK_LINEAR):
        raise LayoutError(
            f'NvBufSurface layout {parameters.layout} is neither pitch (0) nor block-linear (1)'
        )
    planes = parameters.planeParams
    modifier = LINEAR if parameters.layout == LAYOUT_PITCH else INVALID
    layout = ImageLayout(parameters.width, parameters.height, fourcc, modifier, ())
    count = len(layout.format.planes)
    if planes.num_planes != count:
        raise LayoutError(
            f'the NvBufSurface has {planes.num_planes} planes, {layout.format.name} has {count}'
        )
    places = tuple(
        PlaneLayout(0, planes.offset[i], planes.pitch[i], planes.psize[i]) for i in range(count)
    )
    return ImageLayout(layout.width, layout.height, fourcc, modifier, places), colorimetry


def check_structs(library: str | None = None) -> None:
    """
    Allocate an image to check that the library's structs are those of this module.

    Only mapped memory is read, so that a wrong struct can't crash the process.

    :raises AllocationError: the library is missing or doesn't allocate, or its structs differ; the
        message gives the unexpected values.
    """
    name = library or LIBRARY
    loaded = load_library(
        'frames in NVMM memory need', name, 'NvBufSurfaceCreate', 'NvBufSurfaceDestroy'
    )
    width, height = _TRIAL_SIZE
    wanted = CreateParams(
        width=width,
        height=height,
        colorFormat=NvBufSurfaceFormat.NV12_ER,
        layout=LAYOUT_PITCH,
        memType=MEM_SURFACE_ARRAY,
    )
    pointer = ctypes.c_void_p()
    status = loaded.NvBufSurfaceCreate(
        ctypes.byref(pointer), ctypes.c_uint32(1), ctypes.byref(wanted)
    )
    if status != 0 or not pointer.value:
        raise AllocationError(
            f'{name} could not allocate a trial image of {width}x{height} (status {status}); '
            'search the kernel log for nvmap'
        )
    try:
        problem = _find_problem(pointer.value)
    finally:
        loaded.NvBufSurfaceDestroy(pointer)
    if problem:
        raise AllocationError(
            f'{name} has other structs than Jetson Linux R35 to R39 ({problem}), so frames would '
            "be misread; report this machine's release, and use camera: v4l2 meanwhile"
        )


def _find_problem(address: int) -> str:
    """Return the first unexpected value of the trial image's structs; empty: none."""
    width, height = _TRIAL_SIZE
    try:
        surface = Surface.from_buffer_copy(_peek(address, ctypes.sizeof(Surface)))
        listed = ctypes.cast(surface.surfaceList, ctypes.c_void_p).value or 0
        parameters = SurfaceParams.from_buffer_copy(_peek(listed, ctypes.sizeof(SurfaceParams)))
    except OSError:
        return f'no list of images at byte {SURFACE_LIST_OFFSET} of NvBufSurface'
    if surface.batchSize != 1:
        return f'a batch of {surface.batchSize} images instead of 1'
    found = (parameters.width, parameters.height, parameters.colorFormat, parameters.layout)
    if found != (width, height, NvBufSurfaceFormat.NV12_ER, LAYOUT_PITCH):
        return f'width, height, format and layout are {found}'
    planes = parameters.planeParams
    if (
        planes.num_planes != 2
        or tuple(planes.width)[:2] != (width, width // 2)
        or tuple(planes.height)[:2] != (height, height // 2)
    ):
        return (
            f'{planes.num_planes} planes of {tuple(planes.width)} x {tuple(planes.height)}, '
            f'read at byte {PLANE_PARAMS_OFFSET} of the list of images'
        )
    pitches, ends = tuple(planes.pitch)[:2], [planes.offset[i] + planes.psize[i] for i in range(2)]
    if (
        min(pitches) < width
        or parameters.pitch != pitches[0]
        or ends[0] > planes.offset[1]
        or ends[1] > parameters.dataSize
    ):
        return f'pitches {pitches} and planes that end at {ends} of {parameters.dataSize} bytes'
    is_open = os.path.lexists(f'/proc/self/fd/{parameters.bufferDesc}')
    return '' if is_open else f'descriptor {parameters.bufferDesc}, which is not open'


def _peek(address: int, size: int) -> bytes:
    """Read this process's memory; if it isn't mapped, raise OSError instead of crashing."""
    with open('/proc/self/mem', 'rb', buffering=0) as memory:
        found = os.pread(memory.fileno(), size, address) if 0 < address < 1 << 62 else b''
    if len(found) != size:
        raise OSError('not mapped')
    return found


@dataclass(frozen=True)
class SurfaceImage:
    """A frame's image in NvBufSurface memory; a transform needs it in one buffer."""

    buffers: tuple[DmaBuf, ...]
    layout: ImageLayout
    colorimetry: Colorimetry


_Entry = tuple['ctypes._Pointer[Any]', contextlib.ExitStack]
"""
A surface, and a stack. The stack's close() closes the duplicate descriptor that the library got
and, if the surface was imported, the surface.
"""


class SurfaceCache:
    """
    Caches the library's objects for buffers that came as descriptors, by buffer and layout.

    Only one thread may use it. An object is made once per buffer and layout, and kept until the
    buffer is closed. ``NvBufSurfaceFromFd`` finds the object of a buffer that the library
    allocated in this process. ``NvBufSurfaceImport`` makes the object of any other buffer, from a
    description of the frame's layout.

    The library caches buffers by the descriptor's *number*. If a number is reused, the library
    returns the buffer that had the number before. So this class passes duplicates with high
    numbers to the library, keeps each duplicate open while the object made from it exists, and
    compares the object with the frame's layout.

    :param library: name or path of ``libnvbufsurface``.
    :raises AllocationError: the library can't be loaded.
    """

    def __init__(self, library: str | None = None) -> None:
        self.library = load_library(
            'the VIC needs', library or LIBRARY, 'NvBufSurfaceDestroy', *_FOR_CPU
        )
        for name in ('NvBufSurfaceDestroy', *_FOR_CPU):
            getattr(self.library, name).argtypes = [
                SurfacePointer,
                *[ctypes.c_int] * _FOR_CPU.get(name, 0),
            ]
        self._from_fd = getattr(self.library, 'NvBufSurfaceFromFd', None)
        self._import = getattr(self.library, 'NvBufSurfaceImport', None)
        self._entries: dict[tuple[BufferIdentity, ImageLayout], _Entry] = {}
        self._ended: queue.SimpleQueue[BufferIdentity] = queue.SimpleQueue()

    def surface(self, image: SurfaceImage) -> ctypes._Pointer[Any]:
        """
        Return the surface of *image*, valid until its buffer is closed or until :meth:`close`.

        :raises AcceleratorError: the buffer isn't NvBufSurface memory, or this release of the
            library can't use it.
        :raises FormatError: NvBufSurface has no name for the format.
        """
        self.tidy()
        buffer = image.buffers[0]
        key = (buffer.identity, image.layout)
        entry = self._entries.get(key)
        if entry is None:
            if len(image.buffers) != 1:
                raise AcceleratorError(
                    'the VIC takes only images in one buffer, but this image has '
                    f'{len(image.buffers)} buffers; negotiate one buffer for all planes'
                )
            entry = self._entries[key] = self._open(image)
            buffer.tell_end(self._ended.put)
        return entry[0]

    def _open(self, image: SurfaceImage) -> _Entry:
        buffer = image.buffers[0]
        color_format = int(nvbufsurface_format(image.layout.fourcc, image.colorimetry))
        with contextlib.ExitStack() as opened:
            fd = opened.enter_context(
                OwnedFd(fcntl.fcntl(buffer.fileno(), fcntl.F_DUPFD_CLOEXEC, _HIGH_NUMBERS))
            )
            pointer = SurfacePointer()
            if (
                self._from_fd is None
                or self._from_fd(ctypes.c_int(fd.fileno()), ctypes.byref(pointer)) != 0
                or not pointer
            ):
                pointer, parameters = (
                    SurfacePointer(),
                    map_params(image, fd.fileno(), color_format),
                )
                if (
                    self._import is None
                    or self._import(ctypes.byref(pointer), ctypes.byref(parameters)) != 0
                    or not pointer
                ):
                    raise AcceleratorError(
                        (
                            f'libnvbufsurface does not know buffer {buffer.identity.inode} '
                            f'({buffer.heap}) and '
                        )
                        + (
                            'refuses to import it'
                            if self._import is not None
                            else 'this release has no NvBufSurfaceImport'
                        )
                        + '; use heap: nvbufsurface, or a camera with NvBufSurface buffers'
                    )
                opened.enter_context(contextlib.closing(OwnedSurface(self.library, pointer)))
            _check(pointer, image.layout, color_format)
            return pointer, opened.pop_all()

    def tidy(self) -> None:
        """Release the surfaces whose buffer has been closed by its owner."""
        while not self._ended.empty():
            identity = self._ended.get()
            for key in [key for key in self._entries if key[0] == identity]:
                self._entries.pop(key)[1].close()

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        """Release all surfaces."""
        entries, self._entries = self._entries, {}
        for _, opened in entries.values():
            opened.close()


def map_params(image: SurfaceImage, fd: int, color_format: int) -> ctypes.Structure:
    """Describe *image* for libnvbufsurface; *fd* is the descriptor of the image's buffer."""
    layout = image.layout
    parameters = MapParams(
        num_planes=len(layout.planes),
        fd=fd,
        totalSize=image.buffers[0].size,
        memType=MEM_SURFACE_ARRAY,
        layout=LAYOUT_PITCH if layout.modifier == LINEAR else LAYOUT_BLOCK_LINEAR,
        colorFormat=color_format,
    )
    for index, (plane, shape) in enumerate(
        zip(layout.planes, pixel_format(layout.fourcc).planes, strict=True)
    ):
        target = parameters.planes[index]
        target.width, target.height = (
            -(-layout.width // shape.horizontal),
            -(-layout.height // shape.vertical),
        )
        target.pitch, target.offset, target.psize = plane.stride, plane.offset, plane.size
    return parameters


def _check(pointer: ctypes._Pointer[Any], layout: ImageLayout, color_format: int) -> None:
    """Check that the surface that the library returned has the layout of the frame."""
    if not pointer[0].surfaceList:
        raise AcceleratorError(
            'libnvbufsurface returned a surface without an image; this release of the library '
            'may have another struct layout'
        )
    params = pointer[0].surfaceList[0]
    came: list[object] = [
        params.width,
        params.height,
        params.colorFormat,
        params.planeParams.num_planes,
    ]
    want: list[object] = [layout.width, layout.height, color_format, len(layout.planes)]
    if layout.modifier == LINEAR:
        count = min(len(layout.planes), params.planeParams.num_planes)
        came += [
            params.layout,
            *((params.planeParams.offset[i], params.planeParams.pitch[i]) for i in range(count)),
        ]
        want += [LAYOUT_PITCH, *((plane.offset, plane.stride) for plane in layout.planes[:count])]
    if came != want:
        raise AcceleratorError(
            f'libnvbufsurface describes this buffer as {came}, but the frame has {want} (width, '
            'height, format, planes, layout, offsets and pitches): the descriptor was reused, '
            'or this release of the library has another struct layout'
        )
