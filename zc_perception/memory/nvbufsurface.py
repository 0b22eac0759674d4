"""Images of NVIDIA's ``libnvbufsurface``, as Jetson cameras and the VIC use them: one pitch-linear image in one nvmap dma-buf.

Source: NvBufSurface pages of the *Jetson Linux API Reference* (R35); struct offsets as a C compiler lays out the documented fields
(``test/memory/test_nvbufsurface.py``). Later releases only add behind what is used here; what comes back is checked against what was
asked for, so that a library with another layout is refused, not believed.
"""

from __future__ import annotations

import contextlib
import ctypes

from zc_perception.errors import AllocationError, LayoutError
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.format_names import nvbufsurface_format
from zc_perception.pixel.fourcc import fourcc_name
from zc_perception.pixel.layout import ImageLayout, PlaneLayout, validate_layout
from zc_perception.pixel.modifier import LINEAR, modifier_name

LIBRARY = 'libnvbufsurface.so'
LAYOUT_PITCH = 0
MEM_SURFACE_ARRAY = 4
TAG_CAMERA = 0x200
_MAX_PLANES = 4


class CreateParams(ctypes.Structure):
    """``NvBufSurfaceCreateParams``."""

    _fields_ = (
        ('gpuId', ctypes.c_uint32),
        ('width', ctypes.c_uint32),
        ('height', ctypes.c_uint32),
        ('size', ctypes.c_uint32),
        ('isContiguous', ctypes.c_bool),
        ('colorFormat', ctypes.c_int),
        ('layout', ctypes.c_int),
        ('memType', ctypes.c_int),
    )


class ChromaSubsampling(ctypes.Structure):
    """``NvBufSurfaceChromaSubsamplingParams``: where chroma samples sit."""

    _fields_ = (('chromaLocHoriz', ctypes.c_uint8), ('chromaLocVert', ctypes.c_uint8))


class AllocateParams(ctypes.Structure):
    """``NvBufSurfaceAllocateParams``."""

    _fields_ = (
        ('params', CreateParams),
        ('displayscanformat', ctypes.c_int),
        ('chromaSubsampling', ChromaSubsampling),
        ('memtag', ctypes.c_int),
        ('disablePitchPadding', ctypes.c_bool),
        ('_reservedParam', ctypes.c_uint32),
        ('_reserved', ctypes.c_void_p * 3),
    )


class PlaneParams(ctypes.Structure):
    """``NvBufSurfacePlaneParams``."""

    _fields_ = (
        ('num_planes', ctypes.c_uint32),
        ('width', ctypes.c_uint32 * _MAX_PLANES),
        ('height', ctypes.c_uint32 * _MAX_PLANES),
        ('pitch', ctypes.c_uint32 * _MAX_PLANES),
        ('offset', ctypes.c_uint32 * _MAX_PLANES),
        ('psize', ctypes.c_uint32 * _MAX_PLANES),
        ('bytesPerPix', ctypes.c_uint32 * _MAX_PLANES),
        ('_reserved', ctypes.c_void_p * (4 * _MAX_PLANES)),
    )


class SurfaceParams(ctypes.Structure):
    """``NvBufSurfaceParams`` up to the plane table: its size differs between releases, so that only element 0 of a list may be read."""

    _fields_ = (
        ('width', ctypes.c_uint32),
        ('height', ctypes.c_uint32),
        ('pitch', ctypes.c_uint32),
        ('colorFormat', ctypes.c_int),
        ('layout', ctypes.c_int),
        ('bufferDesc', ctypes.c_uint64),
        ('dataSize', ctypes.c_uint32),
        ('dataPtr', ctypes.c_void_p),
        ('planeParams', PlaneParams),
    )


class Surface(ctypes.Structure):
    """``NvBufSurface`` up to the list of its surfaces."""

    _fields_ = (
        ('gpuId', ctypes.c_uint32),
        ('batchSize', ctypes.c_uint32),
        ('numFilled', ctypes.c_uint32),
        ('isContiguous', ctypes.c_bool),
        ('memType', ctypes.c_int),
        ('surfaceList', ctypes.POINTER(SurfaceParams)),
    )


class OwnedSurface:
    """Destroys a surface once: when its buffer is closed, or is only forgotten."""

    def __init__(self, library: ctypes.CDLL, surface: ctypes._Pointer[Surface]) -> None:
        self._library = library
        self._surface: ctypes._Pointer[Surface] | None = surface

    @property
    def pointer(self) -> ctypes._Pointer[Surface]:
        """For a call of the library made right now.

        :raises ValueError: after close.
        """
        if self._surface is None:
            raise ValueError('the surface was destroyed')
        return self._surface

    def close(self) -> None:
        """Destroy it. A second call does nothing."""
        surface, self._surface = self._surface, None
        if surface is not None:
            self._library.NvBufSurfaceDestroy(surface)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, TypeError):  # the interpreter is going away
            self.close()


class NvBufSurfaceHeap:
    """Allocates whole images: the library decides strides and offsets. It has no memory without an image's shape.

    :param library: the shared library's name or path.
    :raises AllocationError: it can't be loaded, or lacks the functions.
    """

    name = 'nvbufsurface'

    def __init__(self, library: str | None = None) -> None:
        try:
            self._library = ctypes.CDLL(library or LIBRARY)
            self._library.NvBufSurfaceDestroy.argtypes = [ctypes.POINTER(Surface)]
            self._create = self._library.NvBufSurfaceCreate
        except (OSError, AttributeError) as error:
            raise AllocationError(f"heap 'nvbufsurface' needs {library or LIBRARY} of JetPack: {error}; use heap: auto") from error
        # Releases before R35 lack it. It tells the library that this is a camera's memory.
        self._allocate = getattr(self._library, 'NvBufSurfaceAllocate', None)

    def allocate(self, size: int) -> DmaBuf:
        """Refused.

        :raises AllocationError: always.
        """
        raise AllocationError(
            f"heap 'nvbufsurface' allocates images, not {size} bytes; use a camera that asks it for images, or heap: auto"
        )

    def allocate_image(self, layout: ImageLayout, colorimetry: Colorimetry) -> tuple[tuple[DmaBuf, ...], ImageLayout]:
        """One image in one buffer, and where its planes really lie. The surface is destroyed when the buffer is closed.

        See :meth:`allocate_surface`.
        """
        owner, real = self.allocate_surface(layout, colorimetry)
        try:
            # The surface owns the descriptor in it; the memory lives as long as either of the two.
            fd = OwnedFd.duplicate(owner.pointer[0].surfaceList[0].bufferDesc)
            buffer = DmaBuf.from_fd(fd, expected_size=real.buffer_size(0), writable=True, heap=self.name, keeper=owner)
        except OSError as error:
            owner.close()
            raise AllocationError(f"libnvbufsurface's buffer can't be duplicated: {error.strerror}") from error
        except BaseException:
            owner.close()
            raise
        return (buffer,), real

    def allocate_surface(self, layout: ImageLayout, colorimetry: Colorimetry, tag: int = TAG_CAMERA) -> tuple[OwnedSurface, ImageLayout]:
        """A surface of one image, and where its planes lie.

        :param layout: of it count width, height and format; strides and offsets are the library's choice, in the layout returned.
        :param tag: what the memory is for, in the library's own statistics.
        :raises AllocationError: the library refuses, the layout isn't LINEAR, or what came back isn't what was asked for.
        :raises FormatError: the library has no name for the format.
        """
        if layout.modifier != LINEAR:
            raise AllocationError(f"heap 'nvbufsurface' gives LINEAR images here, not {modifier_name(layout.modifier)}; negotiate LINEAR")
        color_format = int(nvbufsurface_format(layout.fourcc, colorimetry))
        wanted = CreateParams(
            width=layout.width, height=layout.height, colorFormat=color_format, layout=LAYOUT_PITCH, memType=MEM_SURFACE_ARRAY
        )
        surface = ctypes.POINTER(Surface)()
        if self._allocate is not None:
            status = self._allocate(
                ctypes.byref(surface), ctypes.c_uint32(1), ctypes.byref(AllocateParams(params=wanted, memtag=tag))
            )
        else:
            status = self._create(ctypes.byref(surface), ctypes.c_uint32(1), ctypes.byref(wanted))
        if status != 0 or not surface:
            raise AllocationError(
                f'libnvbufsurface could not allocate {fourcc_name(layout.fourcc)} {layout.width}x{layout.height} (status {status}); '
                'use fewer slots, a smaller image, or heap: auto, and see the kernel log for nvmap'
            )
        owner = OwnedSurface(self._library, surface)
        try:
            surface[0].numFilled = 1
            return owner, _image_layout(layout, color_format, surface[0])
        except BaseException:
            owner.close()
            raise

    def close(self) -> None:
        """Nothing: the library stays loaded, surfaces live on."""


def _image_layout(asked: ImageLayout, color_format: int, surface: Surface) -> ImageLayout:
    """Where the planes lie, from a surface that must be the one asked for."""
    if surface.batchSize != 1 or not surface.surfaceList:
        raise AllocationError(
            f'libnvbufsurface returned a batch of {surface.batchSize}; this release has another struct layout: use heap: auto'
        )
    params, planes = surface.surfaceList[0], surface.surfaceList[0].planeParams
    came = {
        'width': params.width,
        'height': params.height,
        'format': params.colorFormat,
        'layout': params.layout,
        'planes': planes.num_planes,
    }
    want = {
        'width': asked.width,
        'height': asked.height,
        'format': color_format,
        'layout': LAYOUT_PITCH,
        'planes': len(asked.format.planes),
    }
    if came != want:
        raise AllocationError(
            f'libnvbufsurface was asked for {want} and returned {came}; this release may have another struct layout: use heap: auto'
        )
    layout = ImageLayout(
        asked.width,
        asked.height,
        asked.fourcc,
        LINEAR,
        tuple(PlaneLayout(0, planes.offset[i], planes.pitch[i], planes.psize[i]) for i in range(planes.num_planes)),
    )
    try:
        validate_layout(layout, [params.dataSize])
    except LayoutError as error:
        raise AllocationError(f'libnvbufsurface returned an impossible layout: {error}') from error
    return layout
