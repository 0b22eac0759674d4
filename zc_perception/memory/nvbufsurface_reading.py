"""Reading NvBufSurfaces that somebody else made, such as a camera's: where their planes lie, and whether the structs are the ones we know.

Source: NvBufSurface pages of the *Jetson Linux API Reference* (R35.3.1 to R39.2). The head of ``NvBufSurface`` and of its parameters is
the same in all of them; their tails have grown, so that only element 0 of a list may be read. R36's own page wasn't found: that is why the
structs are tried out on an image of our own before a camera's are believed.
"""

from __future__ import annotations

import ctypes
import os

from zc_perception.errors import AllocationError, LayoutError
from zc_perception.memory.nvbufsurface import (
    LAYOUT_PITCH,
    LIBRARY,
    MEM_SURFACE_ARRAY,
    CreateParams,
    PlaneParams,
    Surface,
    SurfaceParams,
)
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.format_names import NvBufSurfaceFormat, from_nvbufsurface
from zc_perception.pixel.layout import ImageLayout, PlaneLayout
from zc_perception.pixel.modifier import INVALID, LINEAR

SURFACE_LIST_OFFSET = 24
PLANE_PARAMS_OFFSET = 48
LAYOUT_BLOCK_LINEAR = 1
_MEM_DEFAULT, _MEM_HANDLE = 0, 5
# Numbers that no other field is likely to have.
_TRIAL_SIZE = (646, 358)
assert Surface.surfaceList.offset == SURFACE_LIST_OFFSET and SurfaceParams.planeParams.offset == PLANE_PARAMS_OFFSET


class SurfaceReader:
    """Reads surfaces of one library, whose structs it has tried out.

    :param library: name or path of ``libnvbufsurface``; ``None``: the system's.
    :raises AllocationError: it can't be loaded, or its structs are others than those we know.
    """

    def __init__(self, library: str | None = None) -> None:
        check_structs(library)

    def parameters(self, address: int, size: int) -> SurfaceParams:
        """The first image's parameters, of the ``NvBufSurface`` of *size* bytes at *address*. Good while its owner keeps the surface.

        :raises LayoutError: there is no image in device memory with a descriptor.
        """
        if size < ctypes.sizeof(Surface):
            raise LayoutError(
                f'an NvBufSurface has at least {ctypes.sizeof(Surface)} bytes, this buffer has {size}: it holds something else'
            )
        surface = Surface.from_address(address)
        if not surface.batchSize or not surface.surfaceList:
            raise LayoutError(f'the NvBufSurface has a batch of {surface.batchSize} images; one is needed')
        if surface.memType not in (_MEM_DEFAULT, MEM_SURFACE_ARRAY, _MEM_HANDLE):
            raise LayoutError(
                f'the NvBufSurface has memory of type {surface.memType}, which has no descriptor; let its element use surface arrays '
                '(nvbuf-memory-type=4)'
            )
        parameters = surface.surfaceList[0]
        assert isinstance(parameters, SurfaceParams)
        return parameters

    @staticmethod
    def signature(parameters: SurfaceParams) -> bytes:
        """Equal for two images that differ in nothing but where they are."""
        address = ctypes.addressof(parameters)
        head = ctypes.string_at(address, SurfaceParams.bufferDesc.offset)
        return head + ctypes.string_at(address + SurfaceParams.planeParams.offset, PlaneParams._reserved.offset)


def surface_image(parameters: SurfaceParams) -> tuple[ImageLayout, Colorimetry]:
    """An image's layout, in one buffer, and its colours.

    A pitch-linear one is LINEAR. Of a block-linear one the struct doesn't say enough for NVIDIA's modifier (page kind, generation, sector
    layout, height of the blocks), so that it is INVALID: nobody told us.

    :raises LayoutError: a number that can't be, or a layout that isn't documented.
    :raises FormatError: a colour format without a DRM fourcc.
    """
    fourcc, colorimetry = from_nvbufsurface(parameters.colorFormat)
    if parameters.layout not in (LAYOUT_PITCH, LAYOUT_BLOCK_LINEAR):
        raise LayoutError(f'NvBufSurface layout {parameters.layout} is neither pitch (0) nor block-linear (1)')
    planes = parameters.planeParams
    modifier = LINEAR if parameters.layout == LAYOUT_PITCH else INVALID
    layout = ImageLayout(parameters.width, parameters.height, fourcc, modifier, ())
    count = len(layout.format.planes)
    if planes.num_planes != count:
        raise LayoutError(f'the NvBufSurface has {planes.num_planes} planes, {layout.format.name} has {count}')
    places = tuple(PlaneLayout(0, planes.offset[i], planes.pitch[i], planes.psize[i]) for i in range(count))
    return ImageLayout(layout.width, layout.height, fourcc, modifier, places), colorimetry


def check_structs(library: str | None = None) -> None:
    """Allocate an image, and see that the library's structs have the fields where we read them. Nothing is read that isn't mapped.

    :raises AllocationError: the library isn't there or doesn't allocate, or its structs are others; the message says what stood there.
    """
    name = library or LIBRARY
    try:
        loaded = ctypes.CDLL(name)
        create, destroy = loaded.NvBufSurfaceCreate, loaded.NvBufSurfaceDestroy
    except (OSError, AttributeError) as error:
        raise AllocationError(f'frames in NVMM memory need {name} of JetPack: {error}') from error
    width, height = _TRIAL_SIZE
    wanted = CreateParams(
        width=width, height=height, colorFormat=NvBufSurfaceFormat.NV12_ER, layout=LAYOUT_PITCH, memType=MEM_SURFACE_ARRAY
    )
    pointer = ctypes.c_void_p()
    status = create(ctypes.byref(pointer), ctypes.c_uint32(1), ctypes.byref(wanted))
    if status != 0 or not pointer.value:
        raise AllocationError(
            f'{name} could not allocate a trial image of {width}x{height} (status {status}); see the kernel log for nvmap'
        )
    try:
        problem = _find_problem(pointer.value)
    finally:
        destroy(pointer)
    if problem:
        raise AllocationError(
            f'{name} has other structs than R35 to R39 ({problem}): frames of this release would be misread; report its version, '
            'and use camera: v4l2 meanwhile'
        )


def _find_problem(address: int) -> str:
    """What isn't as it should be of the trial image; empty when everything is."""
    width, height = _TRIAL_SIZE
    try:
        surface = Surface.from_buffer_copy(_peek(address, ctypes.sizeof(Surface)))
        listed = ctypes.cast(surface.surfaceList, ctypes.c_void_p).value or 0
        parameters = SurfaceParams.from_buffer_copy(_peek(listed, ctypes.sizeof(SurfaceParams)))
    except OSError:
        return f'no list of images {SURFACE_LIST_OFFSET} bytes inside of NvBufSurface'
    if surface.batchSize != 1:
        return f'a batch of {surface.batchSize} where there must be 1'
    found = (parameters.width, parameters.height, parameters.colorFormat, parameters.layout)
    if found != (width, height, NvBufSurfaceFormat.NV12_ER, LAYOUT_PITCH):
        return f'width, height, format and layout read {found}'
    planes = parameters.planeParams
    if planes.num_planes != 2 or tuple(planes.width)[:2] != (width, width // 2) or tuple(planes.height)[:2] != (height, height // 2):
        return (
            f'{planes.num_planes} planes of {tuple(planes.width)} x {tuple(planes.height)} {PLANE_PARAMS_OFFSET} bytes inside of its list'
        )
    pitches, ends = tuple(planes.pitch)[:2], [planes.offset[i] + planes.psize[i] for i in range(2)]
    if min(pitches) < width or parameters.pitch != pitches[0] or ends[0] > planes.offset[1] or ends[1] > parameters.dataSize:
        return f'pitches {pitches} and planes that end at {ends} of {parameters.dataSize} bytes'
    is_open = os.path.lexists(f'/proc/self/fd/{parameters.bufferDesc}')
    return '' if is_open else f'descriptor {parameters.bufferDesc}, which is not open'


def _peek(address: int, size: int) -> bytes:
    """Bytes of our own memory.

    :raises OSError: they aren't mapped.
    """
    with open('/proc/self/mem', 'rb', buffering=0) as memory:
        found = os.pread(memory.fileno(), size, address) if 0 < address < 1 << 62 else b''
    if len(found) != size:
        raise OSError('not mapped')
    return found
