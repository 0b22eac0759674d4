"""Where each plane lies: buffer index, offset, stride, size.

Source: the kernel's *Exchanging pixel buffers*. ``width`` and ``height`` are always the image's own (1920×1080); padding lives
only in strides, offsets and sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from zc_perception.errors import LayoutError
from zc_perception.pixel.fourcc import PixelFormat, fourcc_name, pixel_format
from zc_perception.pixel.modifier import LINEAR, check_modifier, modifier_name

MAX_DIMENSION = 1 << 16


@dataclass(frozen=True)
class PlaneLayout:
    """One plane: which of the image's buffers, and offset, stride and size in bytes."""

    buffer: int
    offset: int
    stride: int
    size: int


@dataclass(frozen=True)
class ImageLayout:
    """A whole image. There is no default modifier: LINEAR is a promise that somebody has to make."""

    width: int
    height: int
    fourcc: int
    modifier: int
    planes: tuple[PlaneLayout, ...]

    @property
    def format(self) -> PixelFormat:
        """The format's table entry."""
        return pixel_format(self.fourcc)

    @property
    def num_buffers(self) -> int:
        """How many memory buffers the planes use."""
        return max(p.buffer for p in self.planes) + 1

    def buffer_size(self, index: int) -> int:
        """Bytes that buffer *index* must at least have."""
        return max(p.offset + p.size for p in self.planes if p.buffer == index)

    def describe(self) -> str:
        """One line for logs."""
        planes = ', '.join(f'[{p.buffer}] +{p.offset} stride {p.stride}' for p in self.planes)
        return f'{fourcc_name(self.fourcc)} {modifier_name(self.modifier)} {self.width}x{self.height} ({planes})'


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def check_dimensions(fmt: PixelFormat, width: int, height: int) -> None:
    """Refuse sizes that the format's subsampling can't have.

    :raises LayoutError: not positive, above 65535, or not a multiple of the subsampling.
    """
    for name, value, step in (('width', width, fmt.horizontal), ('height', height, fmt.vertical)):
        if not 0 < value < MAX_DIMENSION:
            raise LayoutError(f'{name} {value} is outside 1 .. {MAX_DIMENSION - 1}')
        if value % step:
            raise LayoutError(f'{name} {value} is not a multiple of {step}, which {fmt.name.strip()} needs; use {value - value % step}')


def compute_layout(
    fourcc: int,
    width: int,
    height: int,
    *,
    stride_align: int = 64,
    offset_align: int = 64,
    height_align: int = 1,
    buffer_per_plane: bool = False,
) -> ImageLayout:
    """A LINEAR layout with padded strides and offsets.

    :param stride_align: every stride is a multiple of this many bytes; 64 is a cache line and suits V4L2 and NVMM users.
    :param offset_align: every plane starts at a multiple of this many bytes.
    :param height_align: the planes are allocated as if the image's height were rounded up to this (1080 → 1088 with 16).
    :param buffer_per_plane: one buffer for each plane instead of one for all.
    :raises LayoutError: impossible size or alignment.
    """
    fmt = pixel_format(fourcc)
    check_dimensions(fmt, width, height)
    for name, value in (('stride_align', stride_align), ('offset_align', offset_align), ('height_align', height_align)):
        if value < 1:
            raise LayoutError(f'{name} {value} must be at least 1')
    padded_height = _align(height, height_align)
    planes, offset = [], 0
    for index, plane in enumerate(fmt.planes):
        stride = _align(plane.row_bytes(width), stride_align)
        size = stride * plane.rows(padded_height)
        if buffer_per_plane:
            planes.append(PlaneLayout(index, 0, stride, size))
        else:
            offset = _align(offset, offset_align)
            planes.append(PlaneLayout(0, offset, stride, size))
            offset += size
    return ImageLayout(width, height, fourcc, LINEAR, tuple(planes))


def validate_layout(layout: ImageLayout, buffer_sizes: Sequence[int]) -> None:
    """Check a foreign layout against the real sizes of its buffers.

    Non-linear planes have no rows that we could check; only their extent is.

    :param buffer_sizes: bytes of each buffer, as the kernel says (``lseek(fd, 0, SEEK_END)``), never as a peer claims.
    :raises LayoutError: names the plane and the numbers.
    """
    fmt = layout.format
    check_dimensions(fmt, layout.width, layout.height)
    check_modifier(layout.modifier)
    linear = layout.modifier == LINEAR
    if (linear and len(layout.planes) != len(fmt.planes)) or len(layout.planes) < len(fmt.planes):
        raise LayoutError(f'{fmt.name.strip()} has {len(fmt.planes)} planes, the layout has {len(layout.planes)}')
    extents: list[tuple[int, int, int, int]] = []
    for index, plane in enumerate(layout.planes):
        if not 0 <= plane.buffer < len(buffer_sizes):
            raise LayoutError(f'plane {index}: buffer {plane.buffer} is outside 0 .. {len(buffer_sizes) - 1}')
        if min(plane.offset, plane.stride, plane.size) < 0 or plane.size == 0:
            raise LayoutError(
                f'plane {index}: offset {plane.offset}, stride {plane.stride}, size {plane.size} must not be negative or empty'
            )
        end = plane.offset + plane.size
        if end > buffer_sizes[plane.buffer]:
            raise LayoutError(f'plane {index}: ends at byte {end}, its buffer {plane.buffer} has {buffer_sizes[plane.buffer]}')
        if linear:
            row, rows = fmt.planes[index].row_bytes(layout.width), fmt.planes[index].rows(layout.height)
            if plane.stride < row:
                raise LayoutError(f'plane {index}: stride {plane.stride} is below the row of {row} bytes')
            if plane.size < (needed := plane.stride * (rows - 1) + row):
                raise LayoutError(f'plane {index}: size {plane.size} is below the {needed} bytes that {rows} rows need')
        extents.append((plane.buffer, plane.offset, end, index))
    extents.sort()
    for (buffer, _, end, index), (other_buffer, start, _, other) in itertools.pairwise(extents):
        if buffer == other_buffer and start < end:
            raise LayoutError(f'planes {index} and {other} overlap in buffer {buffer}: one ends at byte {end}, the other starts at {start}')
