"""NvBufSurface objects for buffers that came as descriptors.

A library object is made once per buffer and kept until the buffer's owner gives it up. ``NvBufSurfaceFromFd`` finds what this process's
library made itself; ``NvBufSurfaceImport`` takes what came from elsewhere, with a description that the frame's layout yields.

Gotchas: the library caches by the descriptor's *number*, and answers a reused number with the buffer that had it before. So it is given
duplicates of high numbers, which live as long as the entry, and what it answers is compared with the layout.
"""

from __future__ import annotations

import ctypes
import fcntl
import queue
from dataclasses import dataclass

from zc_perception.errors import AcceleratorError, AllocationError
from zc_perception.memory.dmabuf import BufferIdentity, DmaBuf
from zc_perception.memory.nvbufsurface import LAYOUT_PITCH, LIBRARY, MEM_SURFACE_ARRAY, OwnedSurface, Surface
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.vic_abi import LAYOUT_BLOCK_LINEAR, MapParams, SurfacePointer
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.format_names import nvbufsurface_format
from zc_perception.pixel.fourcc import pixel_format
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.modifier import LINEAR

_HIGH_NUMBERS = 512


@dataclass(frozen=True)
class SurfaceImage:
    """An image in one buffer of NvBufSurface memory, as a frame has it."""

    buffers: tuple[DmaBuf, ...]
    layout: ImageLayout
    colorimetry: Colorimetry


class _Entry:
    """A surface, with the descriptor that the library knows it by; *owner* where it has to be destroyed."""

    def __init__(self, fd: OwnedFd, pointer: ctypes._Pointer[Surface], owner: OwnedSurface | None) -> None:
        self.pointer = pointer
        self._fd = fd
        self._owner = owner

    def close(self) -> None:
        if self._owner is not None:
            self._owner.close()
        self._fd.close()


class SurfaceCache:
    """Surfaces by buffer and layout. One thread.

    :param library: name or path of ``libnvbufsurface``.
    :raises AllocationError: it can't be loaded.
    """

    def __init__(self, library: str | None = None) -> None:
        try:
            self.library = ctypes.CDLL(library or LIBRARY)
            self.library.NvBufSurfaceDestroy.argtypes = [SurfacePointer]
        except (OSError, AttributeError) as error:
            raise AllocationError(f'the VIC needs {library or LIBRARY} of JetPack: {error}') from error
        self._from_fd = getattr(self.library, 'NvBufSurfaceFromFd', None)
        self._import = getattr(self.library, 'NvBufSurfaceImport', None)
        self._entries: dict[tuple[BufferIdentity, ImageLayout], _Entry] = {}
        self._ended: queue.SimpleQueue[BufferIdentity] = queue.SimpleQueue()

    def surface(self, image: SurfaceImage) -> ctypes._Pointer[Surface]:
        """The surface of *image*, valid until its buffer's owner gives it up or :meth:`close`.

        :raises AcceleratorError: the buffer isn't NvBufSurface memory, or this release of the library can't take it.
        :raises FormatError: NvBufSurface has no name for the format.
        """
        self.tidy()
        buffer = image.buffers[0]
        key = (buffer.identity, image.layout)
        entry = self._entries.get(key)
        if entry is None:
            if len(image.buffers) != 1:
                raise AcceleratorError(
                    f'the VIC takes an image in one buffer, this one has {len(image.buffers)}; negotiate one buffer for all planes'
                )
            entry = self._entries[key] = self._open(image)
            buffer.tell_end(self._ended.put)
        return entry.pointer

    def _open(self, image: SurfaceImage) -> _Entry:
        color_format = int(nvbufsurface_format(image.layout.fourcc, image.colorimetry))
        fd = OwnedFd(fcntl.fcntl(image.buffers[0].fileno(), fcntl.F_DUPFD_CLOEXEC, _HIGH_NUMBERS))
        try:
            pointer = SurfacePointer()
            if self._from_fd is not None and self._from_fd(ctypes.c_int(fd.fileno()), ctypes.byref(pointer)) == 0 and pointer:
                _check(pointer, image.layout, color_format)
                return _Entry(fd, pointer, None)
            parameters = map_params(image, fd.fileno(), color_format)
            pointer = SurfacePointer()
            if self._import is not None and self._import(ctypes.byref(pointer), ctypes.byref(parameters)) == 0 and pointer:
                owner = OwnedSurface(self.library, pointer)
                try:
                    _check(pointer, image.layout, color_format)
                except BaseException:
                    owner.close()
                    raise
                return _Entry(fd, pointer, owner)
        except BaseException:
            fd.close()
            raise
        fd.close()
        buffer = image.buffers[0]
        raise AcceleratorError(
            f'libnvbufsurface does not know buffer {buffer.identity.inode} ({buffer.heap}) and '
            + ('refuses to import it' if self._import is not None else 'this release has no NvBufSurfaceImport')
            + '; use heap: nvbufsurface or a camera that delivers such buffers'
        )

    def tidy(self) -> None:
        """Let go of buffers whose owners have given them up."""
        while not self._ended.empty():
            identity = self._ended.get()
            for key in [key for key in self._entries if key[0] == identity]:
                self._entries.pop(key).close()

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        """Let go of everything."""
        entries, self._entries = self._entries, {}
        for entry in entries.values():
            entry.close()


def map_params(image: SurfaceImage, fd: int, color_format: int) -> MapParams:
    """The library's description of *image*, whose buffer is *fd* there."""
    layout = image.layout
    parameters = MapParams(
        num_planes=len(layout.planes),
        fd=fd,
        totalSize=image.buffers[0].size,
        memType=MEM_SURFACE_ARRAY,
        layout=LAYOUT_PITCH if layout.modifier == LINEAR else LAYOUT_BLOCK_LINEAR,
        colorFormat=color_format,
    )
    for index, (plane, shape) in enumerate(zip(layout.planes, pixel_format(layout.fourcc).planes, strict=True)):
        target = parameters.planes[index]
        target.width, target.height = -(-layout.width // shape.horizontal), -(-layout.height // shape.vertical)
        target.pitch, target.offset, target.psize = plane.stride, plane.offset, plane.size
    return parameters


def _check(pointer: ctypes._Pointer[Surface], layout: ImageLayout, color_format: int) -> None:
    """Whether the library means the buffer that was meant.

    :raises AcceleratorError: it doesn't.
    """
    if not pointer[0].surfaceList:
        raise AcceleratorError('libnvbufsurface returned a surface without an image; this release may have another struct layout')
    params = pointer[0].surfaceList[0]
    came: list[object] = [params.width, params.height, params.colorFormat, params.planeParams.num_planes]
    want: list[object] = [layout.width, layout.height, color_format, len(layout.planes)]
    if layout.modifier == LINEAR:
        count = min(len(layout.planes), params.planeParams.num_planes)
        came += [params.layout, *((params.planeParams.offset[i], params.planeParams.pitch[i]) for i in range(count))]
        want += [LAYOUT_PITCH, *((plane.offset, plane.stride) for plane in layout.planes[:count])]
    if came != want:
        raise AcceleratorError(
            f'libnvbufsurface says of this buffer {came}, the frame {want} (width, height, format, planes, layout, offsets and pitches): '
            'a reused descriptor, or another struct layout'
        )
