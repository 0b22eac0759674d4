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
The results of a negotiation's steps: first image limits, then a request, then buffer settings.

Source: Fuchsia's *Sysmem overview* (buffer settings; several image sizes in one buffer) and the
kernel's *Exchanging pixel buffers* (the contents of an allocation request, and the values that the
allocator may change).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
import math

from zc_perception.errors import NegotiationError
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import is_contiguous
from zc_perception.negotiation.constraints import (
    BufferConstraints,
    Format,
    format_text,
    formats_text,
    Placement,
    placement_of,
    Size,
    size_text,
)
from zc_perception.pixel.fourcc import fourcc_name
from zc_perception.pixel.layout import compute_layout, ImageLayout
from zc_perception.pixel.modifier import LINEAR, modifier_name

Buffers = tuple[DmaBuf, ...]
"""One slot's memory buffers."""


Objection = tuple[str, str, str]
"""
A reason why some heaps can't be used, as parts of a sentence (see :func:`objection_text`).

The parts are the text before the heaps' names, the text that follows one name, and the text that
follows several names.
"""


@dataclass(frozen=True)
class HeapOffer:
    """
    One heap that the allocator can use.

    :param name: for example ``dma_heap/system``, ``udmabuf``, ``memfd`` or ``v4l2/DRIVER``.
    :param contiguous: whether the heap's buffers are physically contiguous; ``None``: unknown
        until a device imports one.
    :param attachable: whether devices can attach to the heap's buffers.
    """

    name: str
    contiguous: bool | None = None
    attachable: bool = True

    def objections(self, participant: BufferConstraints, fmt: Format | None) -> list[str]:
        """List the reasons why *participant* can't use this heap for images of *fmt*."""
        return [
            objection_text(objection, [self.name])
            for objection in self.each_objection(participant, fmt)
        ]

    def each_objection(
        self, participant: BufferConstraints, fmt: Format | None
    ) -> Iterator[Objection]:
        participant = participant.for_format(fmt)
        name = participant.participant
        if not participant.accepts_heap(self.name):
            only = f', only of {", ".join(participant.heaps or ()) or "none"}'
            yield f"{name} can't use buffers of ", only, only
        if participant.contiguous and self.contiguous is False:
            because = f' ({participant.memory_note})' if participant.memory_note else ''
            yield f'{name} needs contiguous memory{because}, which ', ' is not', ' are not'
        if participant.devices and not self.attachable:
            yield f"{', '.join(participant.devices)} of {name} can't attach to buffers of ", '', ''


def heap_offer(name: str) -> HeapOffer:
    """Return the offer of the heap *name*, with the properties that the name implies."""
    if is_contiguous(name):
        return HeapOffer(name, contiguous=True)
    if name in ('dma_heap/system', 'udmabuf'):
        return HeapOffer(name, contiguous=False)
    if name == 'memfd':  # a memfd is no dma-buf, so devices can't attach to it
        return HeapOffer(name, contiguous=False, attachable=False)
    return HeapOffer(name)


def objection_text(objection: Objection, names: Sequence[str]) -> str:
    before, of_one, of_several = objection
    quoted = ', '.join(f"'{name}'" for name in names)
    return (
        f'{before}heap {quoted}{of_one}'
        if len(names) == 1
        else f'{before}heaps {quoted}{of_several}'
    )


@dataclass(frozen=True)
class ImageLimits:
    """The limits for strides, offsets and sizes of images: all participants' limits combined."""

    stride_align: int = 1
    offset_align: int = 1
    height_align: int = 1
    max_stride: int | None = None

    def layout(self, fourcc: int, size: Size, placement: Placement | None) -> ImageLayout:
        """
        Return the LINEAR layout of an image of *size*, aligned as the limits demand.

        :raises LayoutError: the format can't have this size, or an alignment is out of range.
        :raises FormatError: this package doesn't know the format.
        """
        return compute_layout(
            fourcc,
            *size,
            stride_align=self.stride_align,
            offset_align=self.offset_align,
            height_align=self.height_align,
            buffer_per_plane=placement is Placement.BUFFER_PER_PLANE,
        )


@dataclass(frozen=True)
class BufferSettings:
    """
    A complete description of a pool's buffers, without the memory itself.

    :param layout: size, fourcc, modifier and planes of the images.
    :param slots: the number of slots; each may consist of several memory buffers.
    :param heap: the heap that the buffers come from; ``None``: no participant named a heap.
    :param limits: the limits within which all strides, offsets and sizes are.
    """

    layout: ImageLayout
    slots: int
    heap: HeapOffer | None = None
    limits: ImageLimits = ImageLimits()

    @property
    def format(self) -> Format:  # noqa: A003
        return self.layout.fourcc, self.layout.modifier

    @property
    def placement(self) -> Placement | None:
        """
        How the planes are distributed over memory buffers.

        ``None``: see :func:`~zc_perception.negotiation.constraints.placement_of`.
        """
        return placement_of(self.layout)

    def describe(self) -> str:
        heap = '' if self.heap is None else f" from heap '{self.heap.name}'"
        return f'{self.layout.describe()}, {self.slots} slots{heap}'

    def sizes(self) -> tuple[int, ...]:
        """Return the size in bytes of each memory buffer of one slot."""
        return tuple(self.layout.buffer_size(index) for index in range(self.layout.num_buffers))


@dataclass(frozen=True)
class AllocationRequest:
    """
    Asks the allocator, which is the camera, for buffers.

    The allocator chooses one of ``modifiers``. It may add padding, but must not change
    the other settings.

    :param modifiers: the acceptable modifiers, the best first. INVALID among them means that an
        implicit layout is acceptable; INVALID alone requires it.
    :param size: the images' width and height in pixels, without padding.
    :param slots: the number of slots that should be allocated.
    :param needed: the lowest number of slots that participants can work with; more slots only
        avoid dropped frames.
    :param limits: the limits for strides, offsets and sizes.
    :param placement: the placement of planes in buffers; ``None``: the allocator chooses.
    :param reasons: the reasons for these settings, if other settings were possible.
    """

    fourcc: int
    modifiers: tuple[int, ...]
    size: Size
    slots: int
    needed: int
    limits: ImageLimits = ImageLimits()
    heap: HeapOffer | None = None
    placement: Placement | None = None
    reasons: tuple[str, ...] = ()

    def layout(self) -> ImageLayout:
        """
        Return the LINEAR layout of the images, aligned as :attr:`limits` demands.

        :raises NegotiationError: LINEAR isn't acceptable, so only the allocator knows the layout.
        """
        if LINEAR not in self.modifiers:
            names = ', '.join(format_text((self.fourcc, modifier)) for modifier in self.modifiers)
            raise NegotiationError(
                f'{names}: only the camera itself can allocate non-linear buffers'
            )
        return self.limits.layout(self.fourcc, self.size, self.placement)

    def settings(self) -> BufferSettings:
        """
        Return the buffer settings that match this request exactly, with the LINEAR layout.

        :raises NegotiationError: LINEAR isn't acceptable.
        """
        return BufferSettings(self.layout(), self.slots, self.heap, self.limits)

    def describe(self) -> str:
        modifiers = ', '.join(map(modifier_name, self.modifiers))
        return (
            f'{fourcc_name(self.fourcc)} ({modifiers}) {size_text(self.size)}, {self.slots} slots'
        )


@dataclass(frozen=True)
class Allocation:
    """
    The buffers that the allocator made.

    :param layout: the images' actual layout; its modifier is INVALID if the allocator doesn't name
        one.
    :param buffers: for each slot, its memory buffers.
    """

    layout: ImageLayout
    buffers: tuple[Buffers, ...]


Allocator = Callable[[AllocationRequest], Allocation]
Undo = Callable[[], None]
TrialImport = Callable[[BufferSettings, Buffers], Undo | None]
"""
A consumer's function that imports one slot's buffers on trial, and raises an error on failure.

The function undoes the import itself. Or it keeps the import for later use, and returns a function
that undoes it. If the import of a later slot fails,
:func:`~zc_perception.negotiation.session.trial_failure` calls the returned function.
"""


def violations(constraints: BufferConstraints, settings: BufferSettings) -> list[str]:
    """Return a message for each of *constraints* that buffers with *settings* violate."""
    layout, found = settings.layout, []
    if not constraints.accepts_format(settings.format):
        offered = (
            'LINEAR formats, because the CPU accesses the frames'
            if constraints.formats is None
            else formats_text(constraints.formats)
        )
        found.append(
            f'format {format_text(settings.format)} is not accepted (accepted: {offered})'
        )
    for index, plane in enumerate(layout.planes):
        for name, value, step in (
            ('stride', plane.stride, constraints.stride_align),
            ('offset', plane.offset, constraints.offset_align),
        ):
            if value % step:
                found.append(
                    f'plane {index}: {name} {value} is not a multiple of {name}_align {step}'
                )
    widest = max(plane.stride for plane in layout.planes)
    if constraints.max_stride is not None and widest > constraints.max_stride:
        found.append(f'a stride of {widest} bytes is above max_stride {constraints.max_stride}')
    padded = -(-layout.height // constraints.height_align) * constraints.height_align
    for index, plane in enumerate(layout.planes if layout.modifier == LINEAR else ()):
        kind = layout.format.planes[index]
        # The last row may lack its padding.
        if plane.size < plane.stride * (kind.rows(padded) - 1) + kind.row_bytes(layout.width):
            found.append(
                f'plane {index} has {plane.size} bytes, too few for {padded} rows '
                f'(height_align {constraints.height_align})'
            )
    found += constraints.size_problems((layout.width, layout.height))
    if (
        constraints.placement is not None
        and len(layout.planes) > 1
        and settings.placement is not constraints.placement
    ):
        found.append(
            f'planes lie in {layout.num_buffers} buffer(s), but this participant needs '
            f'{constraints.placement.value}'
        )
    if settings.heap is not None:
        found += settings.heap.objections(constraints, settings.format)
    elif constraints.wants_certain_memory:
        found.append(
            'this participant wants a certain kind of memory, but the heap of these buffers is '
            'not known'
        )
    if settings.slots < constraints.slots:
        found.append(
            f'there are {settings.slots} slots, but this participant needs {constraints.slots}'
        )
    if constraints.max_slots is not None and settings.slots > constraints.max_slots:
        found.append(
            f'there are {settings.slots} slots, but this participant allows at most '
            f'{constraints.max_slots} (max_slots)'
        )
    return found


def joint_limits(participants: Sequence[BufferConstraints]) -> ImageLimits:
    """
    Combine all participants' limits.

    Each alignment is the least common multiple of the participants' alignments, and ``max_stride``
    is the lowest ``max_stride`` of a participant.
    """
    strides = [p.max_stride for p in participants if p.max_stride is not None]
    return ImageLimits(
        stride_align=math.lcm(*(p.stride_align for p in participants)),
        offset_align=math.lcm(*(p.offset_align for p in participants)),
        height_align=math.lcm(*(p.height_align for p in participants)),
        max_stride=min(strides, default=None),
    )
