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
The layout of an image: each plane's buffer index, offset, stride and size.

``width`` and ``height`` are always those of the image (1920×1080); only strides, offsets and sizes
include padding. Source: the kernel's *Exchanging pixel buffers*.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
import itertools
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zc_perception.errors import LayoutError, shown
from zc_perception.pixel.fourcc import fourcc_name, pixel_format, PixelFormat
from zc_perception.pixel.modifier import check_modifier, LINEAR, modifier_name, plane_count

MAX_DIMENSION = 1 << 16
# The length of the plane arrays in the kernel's structures (DRM_FORMAT_MAX_PLANES).
MAX_PLANES = 4
# Strides are 32 bits wide in drm_mode_fb_cmd2, v4l2_pix_format and axl_plane; offsets and sizes
# must fit into off_t.
MAX_STRIDE = (1 << 32) - 1
MAX_BYTES = (1 << 63) - 1
# No page or device needs a larger alignment, and with this one no layout of the largest image
# exceeds MAX_STRIDE or MAX_BYTES.
MAX_ALIGNMENT = 1 << 30


@dataclass(frozen=True)
class PlaneLayout:
    """One plane: the index of its buffer, and its offset, stride and size in bytes."""

    buffer: int
    offset: int
    stride: int
    size: int


class PlaneArray(NamedTuple):
    """The arguments for a NumPy array of a LINEAR plane; offset and strides are in bytes."""

    buffer: int
    shape: tuple[int, ...]
    sample: str
    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class ImageLayout:
    """
    The layout of a whole image.

    All planes may share one buffer, or each may have its own, or only some may share one (U and V,
    but not Y). Buffers are numbered in the order in which the planes first use them, so that an
    image has only one description.
    """

    width: int
    height: int
    fourcc: int
    modifier: int
    planes: tuple[PlaneLayout, ...]

    @property
    def format(self) -> PixelFormat:  # noqa: A003
        """The image's format, found by its fourcc."""
        return pixel_format(self.fourcc)

    @property
    def num_buffers(self) -> int:
        """The number of buffers that the planes use."""
        return max(p.buffer for p in self.planes) + 1

    @cached_property
    def arrays(self) -> tuple[PlaneArray, ...]:
        """Arguments for NumPy arrays of the planes, which must be LINEAR; computed only once."""
        return tuple(_plane_array(self, index) for index in range(len(self.planes)))

    def buffer_size(self, index: int) -> int:
        """Return how many bytes buffer *index* needs at least; 0 if no plane uses it."""
        return max((p.offset + p.size for p in self.planes if p.buffer == index), default=0)

    def describe(self) -> str:
        """Return format, size, offsets and strides as one line for logs and messages."""
        planes = ', '.join(f'[{p.buffer}] +{p.offset} stride {p.stride}' for p in self.planes)
        return (
            f'{fourcc_name(self.fourcc)} {modifier_name(self.modifier)} '
            f'{self.width}x{self.height} ({planes})'
        )


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise LayoutError(
            f'{name} {shown(value)} is not an integer from {low} to {high}'
        )
    if not low <= value <= high:
        raise LayoutError(f'{name} {shown(value)} is outside {low} .. {high}')


def check_dimensions(fmt: PixelFormat, width: int, height: int) -> None:
    """
    Refuse sizes that aren't a multiple of the format's subsampling.

    For such sizes, kernel interfaces differ: some round half a chroma sample up, others down.

    :raises LayoutError: width or height is not an integer, not positive, above 65535, or not a
        multiple of the subsampling.
    """
    for name, value, step in (('width', width, fmt.horizontal), ('height', height, fmt.vertical)):
        _check_integer(name, value, 1, MAX_DIMENSION - 1)
        if value % step:
            near = [
                n
                for n in (value - value % step, value - value % step + step)
                if 0 < n < MAX_DIMENSION
            ]
            choice = ' or '.join(map(str, near))
            raise LayoutError(
                f'{name} {value} is not a multiple of {step}, which {fmt.name.strip()} needs; '
                f'use {choice}'
            )


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
    """
    Compute a LINEAR layout with aligned strides and offsets.

    :param stride_align: each stride is a multiple of this many bytes; 64, a cache line, suits V4L2
        and NVMM.
    :param offset_align: each plane starts at a multiple of this many bytes.
    :param height_align: planes are as large as if the image's height were rounded up to a multiple
        of this (with 16, 1080 → 1088).
    :param buffer_per_plane: whether each plane has its own buffer, instead of one for all planes.
    :raises LayoutError: the size or an alignment is impossible.
    """
    fmt = pixel_format(fourcc)
    check_dimensions(fmt, width, height)
    for name, value in (
        ('stride_align', stride_align),
        ('offset_align', offset_align),
        ('height_align', height_align),
    ):
        _check_integer(name, value, 1, MAX_ALIGNMENT)
    padded_height = _align(height, height_align)
    planes, offset = [], 0
    for index, plane in enumerate(fmt.planes):
        sample = sample_bytes(fmt, index)
        stride = _align(plane.row_bytes(width), math.lcm(stride_align, sample))
        size = stride * plane.rows(padded_height)
        if buffer_per_plane:
            planes.append(PlaneLayout(index, 0, stride, size))
        else:
            offset = _align(offset, math.lcm(offset_align, sample))
            planes.append(PlaneLayout(0, offset, stride, size))
            offset += size
    return ImageLayout(width, height, fourcc, LINEAR, tuple(planes))


def chained_layout(
    fourcc: int, width: int, height: int, stride: int, rows: int = 0
) -> ImageLayout:
    """
    Compute a LINEAR layout without gaps between planes, as in messages and raw files.

    All planes are in one buffer. Only the first plane's stride is given; the others follow from
    the subsampling. The padding of the last row may be missing.

    :param stride: the first plane's stride in bytes.
    :param rows: the first plane's number of rows, with padding rows; 0: the image's height.
    :raises LayoutError: the format can't have the size, the stride is too small, or another
        plane's stride wouldn't be a whole number of bytes.
    """
    fmt = pixel_format(fourcc)
    check_dimensions(fmt, width, height)
    first, planes, offset = fmt.planes[0], [], 0
    for index, plane in enumerate(fmt.planes):
        own, rest = divmod(
            stride * plane.element_bytes * first.horizontal, first.element_bytes * plane.horizontal
        )
        if rest or own < plane.row_bytes(width) or own % sample_bytes(fmt, index):
            raise LayoutError(
                f'plane {index}: if the first plane has {stride} bytes per row, this plane of '
                f'{fmt.name.strip()} has no valid stride for {width} pixels'
            )
        count = plane.rows(height)
        last = index == len(fmt.planes) - 1
        planes.append(
            PlaneLayout(
                0, offset, own, own * (count - 1) + plane.row_bytes(width) if last else own * count
            )
        )
        offset += own * plane.rows(rows or height)
    return ImageLayout(width, height, fourcc, LINEAR, tuple(planes))


def views(layout: ImageLayout, memory: Any) -> list[NDArray[Any]]:
    """Return arrays of a LINEAR layout's planes, without a copy; *memory* has all planes."""
    return [
        np.ndarray(array.shape, array.sample, memory, array.offset, array.strides)
        for array in layout.arrays
    ]


def sample_bytes(fmt: PixelFormat, plane: int) -> int:
    """
    Return the size in bytes of the integers in which the CPU reads *plane*.

    It is the size of a component (1 for NV12, 2 for P010), or of the whole element if components
    share a word (2 for RGB565). If samples cross byte boundaries (NV15 has four samples in 5
    bytes), it is 1. A LINEAR plane's offset and stride must be multiples of this size.
    """
    element, count = fmt.planes[plane], len(fmt.planes[plane].components)
    size, rest = divmod(element.element_bytes, count)
    if rest == 0 and size * 8 >= fmt.bits:
        return size
    return element.element_bytes if element.element_bytes in (2, 4, 8) else 1


def _plane_array(layout: ImageLayout, index: int) -> PlaneArray:
    plane, fmt = layout.planes[index], layout.format
    element, sample = fmt.planes[index], sample_bytes(fmt, index)
    components = element.element_bytes // sample
    columns = element.row_bytes(layout.width) // element.element_bytes
    shape: tuple[int, ...] = (element.rows(layout.height), columns, components)
    strides: tuple[int, ...] = (plane.stride, element.element_bytes, sample)
    if components == 1:
        shape, strides = shape[:2], strides[:2]
    return PlaneArray(plane.buffer, shape, f'<u{sample}', plane.offset, strides)


def validate_layout(
    layout: ImageLayout, buffer_sizes: Sequence[int], identities: Sequence[Hashable] | None = None
) -> None:
    """
    Check a layout that another process has sent.

    Every sample of every plane must lie in its buffer, and no two planes may share a byte. The
    fields may have any type and value; the cost of the check doesn't depend on them.

    Overlap is checked between whole planes. So planes whose rows alternate are refused although
    they share no byte; no known format is stored that way. In a LINEAR plane, offset and stride
    must be multiples of :func:`sample_bytes`: no hardware makes unaligned samples, C code must not
    load them, and NumPy reads them slowly. For other modifiers, the rows can't be checked, only
    the extents and the number of the planes.

    :param buffer_sizes: the bytes of each buffer as the kernel reports them
        (``lseek(fd, 0, SEEK_END)``), never as the other process states them. Each buffer must be
        used by a plane.
    :param identities: the identity of each buffer's memory, such as its (device, inode). Two
        buffers with the same identity are the same memory, and planes in them must not overlap
        either. ``None``: all buffers are different memory.
    :raises LayoutError: the layout is wrong. The message names the plane and the numbers.
    :raises FormatError: the fourcc isn't known, or the modifier isn't a 64-bit number.
    """
    fmt = _check_image(layout)
    count, buffers = len(layout.planes), len(buffer_sizes)
    if not 0 < buffers <= count:
        raise LayoutError(f'{count} planes need 1 to {count} buffers, there are {buffers}')
    if identities is not None and len(identities) != buffers:
        raise LayoutError(f'{len(identities)} identities for {buffers} buffers; give one for each')
    used = _check_planes(layout, fmt, buffers)
    if used < buffers:
        raise LayoutError(
            f'{count} planes use {used} of {buffers} buffers; leave out buffer {used}, which '
            'has no plane'
        )
    for index, plane in enumerate(layout.planes):
        size, end = buffer_sizes[plane.buffer], plane.offset + plane.size
        if not isinstance(size, int) or size < 1:
            raise LayoutError(
                f'plane {index}: its buffer {plane.buffer} has {shown(size)} bytes; ask the '
                "kernel for the buffer's real size"
            )
        if end > size:
            raise LayoutError(
                f'plane {index} ends at byte {end}, but its buffer {plane.buffer} has {size} '
                'bytes'
            )
    _check_overlap(layout, range(buffers) if identities is None else identities)


def _check_image(layout: ImageLayout) -> PixelFormat:
    """Check a layout's fields, but not those of its planes; return the image's format."""
    _check_integer('fourcc', layout.fourcc, 0, (1 << 32) - 1)
    fmt = layout.format
    check_dimensions(fmt, layout.width, layout.height)
    if not isinstance(layout.modifier, int) or isinstance(layout.modifier, bool):
        raise LayoutError(f'modifier {shown(layout.modifier)} is not an integer; LINEAR is 0')
    check_modifier(layout.modifier)
    if not isinstance(layout.planes, tuple):
        raise LayoutError(
            f'planes are a {type(layout.planes).__name__}; they must be a tuple of at most '
            f'{MAX_PLANES} PlaneLayouts'
        )
    count, least = len(layout.planes), len(fmt.planes)
    exact = plane_count(layout.fourcc, layout.modifier)
    least, most = (least, MAX_PLANES) if exact is None else (exact, exact)
    if not least <= count <= most:
        number = f'{least} planes' if least == most else f'{least} to {most} planes'
        raise LayoutError(
            f'{fmt.name.strip()} {modifier_name(layout.modifier)} has {number}, but the layout '
            f'has {count}'
        )
    for index, plane in enumerate(layout.planes):
        if not isinstance(plane, PlaneLayout):
            raise LayoutError(
                f'plane {index}: {shown(plane)} is not a PlaneLayout of buffer, offset, stride '
                'and size'
            )
    return fmt


def _check_planes(layout: ImageLayout, fmt: PixelFormat, buffers: int) -> int:
    """Check each plane's fields; return how many of the *buffers* the planes use."""
    used = 0
    for index, plane in enumerate(layout.planes):
        _check_integer(f'plane {index}: buffer', plane.buffer, 0, buffers - 1)
        _check_integer(f'plane {index}: offset', plane.offset, 0, MAX_BYTES)
        _check_integer(f'plane {index}: stride', plane.stride, 0, MAX_STRIDE)
        _check_integer(f'plane {index}: size', plane.size, 1, MAX_BYTES)
        if plane.offset + plane.size > MAX_BYTES:
            raise LayoutError(
                f'plane {index} ends at byte {plane.offset + plane.size}, above {MAX_BYTES}, '
                'the largest possible offset'
            )
        if plane.buffer > used:
            raise LayoutError(
                f'plane {index}: buffer {plane.buffer} comes before buffer {used}; give the '
                'buffers their numbers in the order of the planes'
            )
        used = max(used, plane.buffer + 1)
        if layout.modifier == LINEAR:
            _check_rows(layout, fmt, index)
    return used


def _check_rows(layout: ImageLayout, fmt: PixelFormat, index: int) -> None:
    plane = layout.planes[index]
    row, rows = fmt.planes[index].row_bytes(layout.width), fmt.planes[index].rows(layout.height)
    if plane.stride < row:
        raise LayoutError(
            f'plane {index}: stride {plane.stride} is less than the {row} bytes of a row'
        )
    sample = sample_bytes(fmt, index)
    for name, value in (('offset', plane.offset), ('stride', plane.stride)):
        if value % sample:
            raise LayoutError(
                f'plane {index}: {name} {value} is not a multiple of {sample}, the bytes of a '
                'sample; align it'
            )
    if plane.size < (needed := plane.stride * (rows - 1) + row):
        raise LayoutError(
            f'plane {index}: size {plane.size} is below the {needed} bytes that {rows} rows need'
        )


def _check_overlap(layout: ImageLayout, identities: Sequence[Hashable]) -> None:
    """Check that no two planes in the same memory overlap, see :func:`validate_layout`."""
    extents = [
        (identities.index(identities[p.buffer]), p.offset, p.offset + p.size, i)
        for i, p in enumerate(layout.planes)
    ]
    extents.sort()
    for (memory, _, end, index), (other_memory, start, _, other) in itertools.pairwise(extents):
        if memory == other_memory and start < end:
            first, second = layout.planes[index].buffer, layout.planes[other].buffer
            where = (
                f'buffer {first}'
                if first == second
                else f'buffers {first} and {second}, which are the same memory'
            )
            raise LayoutError(
                f'planes {index} and {other} overlap in {where}: one ends at byte {end}, the '
                f'other starts at {start}'
            )
