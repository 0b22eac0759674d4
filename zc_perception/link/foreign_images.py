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
Describe a foreign library's images: their planes, and constraints that only these images meet.

A library exports one descriptor for an image, or one for each plane. Several of these descriptors
may refer to one buffer, as with EGL and VA-API. So a buffer is identified by the device and inode
number of its descriptors, not by the descriptors' own numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
import os

from zc_perception.errors import AllocationError, ConfigError, LayoutError
from zc_perception.memory.dmabuf import BufferIdentity, BufferKind, DmaBuf
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import Buffers, close_buffers, MAX_SLOTS
from zc_perception.negotiation.constraints import BufferConstraints, placement_of, Size
from zc_perception.pixel.fourcc import PixelFormat
from zc_perception.pixel.layout import ImageLayout, PlaneLayout, validate_layout
from zc_perception.pixel.modifier import check_modifier, LINEAR

LEAST_IMAGES = 2
"""The smallest possible number of images: the owner fills one while a consumer holds the other."""


class ForeignImages:
    """
    Images of a foreign library, which all have the same layout.

    The caller owns all descriptors that it passes, and may close them when the constructor or
    method has returned. Buffers that a method returns own duplicates of the descriptors.

    :param sets: the descriptors of each image: one for all planes, or one for each plane.
    :param strides: bytes from one row to the next, for each plane.
    :param offsets: byte at which each plane begins in its buffer; empty: 0 for each.
    :raises ConfigError: too few or too many images, or the numbers of strides, offsets,
        descriptors and planes don't fit together.
    :raises FormatError: *modifier* doesn't exist.
    :raises LayoutError: a plane ends outside of its buffer.
    :raises AllocationError: a descriptor is neither a dma-buf nor a sealed memfd.
    """

    def __init__(
        self,
        fmt: PixelFormat,
        size: Size,
        sets: Sequence[int | Sequence[int]],
        *,
        modifier: int,
        strides: Sequence[int],
        offsets: Sequence[int] = (),
    ) -> None:
        self._sets = [(each,) if isinstance(each, int) else tuple(each) for each in sets]
        if not LEAST_IMAGES <= len(self._sets) <= MAX_SLOTS:
            raise ConfigError(
                f"argument 'fds' has {len(self._sets)} image(s), but must have {LEAST_IMAGES} to "
                f'{MAX_SLOTS}'
            )
        check_modifier(modifier)
        first, count = self._sets[0], len(strides)
        if (
            len(first) not in (1, count)
            or count < len(fmt.planes)
            or len(offsets) not in (0, count)
        ):
            raise ConfigError(
                f'{fmt.name.strip()} has {len(fmt.planes)} plane(s), and there are {count} '
                f'stride(s), {len(offsets)} offset(s) and '
                f'{len(first)} descriptor(s): give a stride for each plane, an offset for each '
                'plane or no offsets, and one descriptor or one for each plane'
            )
        self._pattern, _ = _distinct(first)
        buffer_of = self._pattern if len(first) == count else (0,) * count
        buffers = self._open(first)
        try:
            places = list(zip(buffer_of, offsets or (0,) * count, strict=True))
            self.layout = ImageLayout(
                *size,
                fmt.code,
                modifier,
                tuple(
                    PlaneLayout(
                        buffer,
                        offset,
                        stride,
                        _plane_size(fmt, size, modifier, index, places, stride, buffers),
                    )
                    for index, ((buffer, offset), stride) in enumerate(
                        zip(places, strides, strict=True)
                    )
                ),
            )
            validate_layout(self.layout, [buffer.size for buffer in buffers])
            self.heap = buffers[0].heap
        finally:
            close_buffers(buffers)

    def identities(self, fds: Sequence[int]) -> tuple[BufferIdentity, ...]:
        """
        Return the identities of one image's buffers; this costs a system call per descriptor.

        :raises AllocationError: a descriptor isn't open.
        :raises LayoutError: this image has more or fewer descriptors than the first image, or
            its descriptors share buffers in another way.
        """
        pattern, identities = _distinct(fds)
        if pattern != self._pattern:
            raise LayoutError(
                f'an image has {len(fds)} descriptor(s) of {len(identities)} buffer(s); each must '
                f'have {len(self._pattern)} descriptor(s) of {max(self._pattern) + 1} buffer(s), '
                "in the same order as the first image of argument 'fds'"
            )
        return identities

    def buffers(self, fds: Sequence[int]) -> Buffers:
        """
        Return the buffers of one image; the caller owns them.

        :raises AllocationError: a descriptor doesn't refer to a buffer, or its memory is of
            another kind than the first image's.
        """
        made = self._open(fds)
        other = next((buffer.heap for buffer in made if buffer.heap != self.heap), None)
        if other is not None:
            close_buffers(made)
            raise AllocationError(
                f"a frame has memory of kind '{other}', while consumers agreed on kind "
                f"'{self.heap}'; use one kind of memory only"
            )
        return made

    def known(self) -> list[Buffers]:
        """Return the buffers of all images of the constructor's *sets*; the caller owns them."""
        found: list[Buffers] = []
        try:
            for fds in self._sets:
                self.identities(fds)
                found.append(self.buffers(fds))
        except BaseException:
            for buffers in found:
                close_buffers(buffers)
            raise
        return found

    def _open(self, fds: Sequence[int]) -> Buffers:
        """Open each distinct buffer of an image once: duplicate the buffer's first descriptor."""
        made: list[DmaBuf] = []
        try:
            for index in range(max(self._pattern) + 1):
                buffer = DmaBuf.from_fd(OwnedFd.duplicate(fds[self._pattern.index(index)]))
                made.append(buffer)
                if buffer.kind is BufferKind.MEMFD:
                    buffer.heap = (
                        BufferKind.MEMFD.value
                    )  # the heap 'memfd' tells consumers that no device can import the buffer
        except BaseException:
            close_buffers(made)
            raise
        return tuple(made)

    def constraints(self, participant: str, *, slots: int) -> BufferConstraints:
        """
        Return constraints that allow only the format, size, memory and layout of these images.

        :param slots: number of images that their owner needs for itself.
        """
        layout, size = self.layout, (self.layout.width, self.layout.height)
        return BufferConstraints(
            participant,
            formats=((layout.fourcc, layout.modifier),),
            heaps=(self.heap,),
            memory_note="a library has allocated the publisher's buffers",
            slots=slots,
            min_size=size,
            max_size=size,
            placement=placement_of(layout),
        )


def _distinct(fds: Sequence[int]) -> tuple[tuple[int, ...], tuple[BufferIdentity, ...]]:
    """Return for each descriptor the index of its buffer, and the buffers' identities."""
    of_fds = []
    for fd in fds:
        try:
            status = os.fstat(fd)
        except OSError as error:
            raise AllocationError(
                f'file descriptor {fd}: {error.strerror}; it has to be open during the call'
            ) from error
        of_fds.append(BufferIdentity(status.st_dev, status.st_ino))
    identities = tuple(dict.fromkeys(of_fds))
    return tuple(map(identities.index, of_fds)), identities


def _plane_size(
    fmt: PixelFormat,
    size: Size,
    modifier: int,
    index: int,
    places: Sequence[tuple[int, int]],
    stride: int,
    buffers: Buffers,
) -> int:
    """
    Return the size of a plane in bytes.

    A LINEAR plane has stride x rows bytes, but the last row may be shorter. Only the vendor knows
    the size of a tiled plane, so all bytes up to the next plane or the buffer's end are counted.
    """
    buffer, offset = places[index]
    end = min(
        [
            buffers[buffer].size,
            *(other for same, other in places if same == buffer and other > offset),
        ]
    )
    rows = (
        fmt.planes[index].rows(size[1]) if modifier == LINEAR and index < len(fmt.planes) else None
    )
    return max(1, end - offset if rows is None else min(stride * rows, end - offset))
