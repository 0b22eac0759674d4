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
What a camera's pool is going to be, as far as that is known before it is opened.

``zc_doctor`` asks each kind for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from zc_perception.machine.system import auto_heaps, System
from zc_perception.memory.heaps import HeapUse, OfferedHeaps
from zc_perception.negotiation.constraints import BufferConstraints, Size
from zc_perception.negotiation.settings import BufferSettings
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import LINEAR

UNKNOWN = (0, 0)
"""The size of pictures that nobody knows before the camera streams."""


@dataclass(frozen=True)
class Known:
    """
    What a kind knows of its frames.

    :param constraints: its own side of the negotiation.
    :param memory: whether it is known where the buffers are going to be; else consumers' wishes
        for that don't count.
    :param formats: the same of the frames' format.
    """

    constraints: BufferConstraints
    size: Size
    memory: bool
    formats: bool = True


Agree = Callable[[Known], BufferSettings]
"""What the camera and its consumers would agree on; raises NegotiationError."""


@dataclass(frozen=True)
class PlannedPool:
    """
    The pool.

    :param settings: what was agreed on, in the layout that the frames are going to have.
    :param buffers: bytes of each buffer of a slot.
    :param heap: the heap that the buffers come from; empty: they aren't the package's to allocate.
    """

    settings: BufferSettings
    buffers: Sequence[int]
    heap: str = ''


def offered_heaps(system: System, heap: str, use: HeapUse) -> OfferedHeaps:
    """
    Return the heaps that parameter ``heap`` allows.

    :raises AllocationError: none that could be used.
    """
    if heap == 'auto':
        return auto_heaps(system, use)
    return OfferedHeaps((heap,), (f"parameter 'heap' is '{heap}'",))


def plan(known: Known, agree: Agree, *, own_heap: bool) -> PlannedPool:
    """
    Return the pool of a camera whose frames lie in memory as they were agreed on.

    :param own_heap: whether the package allocates it.
    """
    settings = agree(known)
    heap = settings.heap.name if own_heap and settings.heap is not None else ''
    return PlannedPool(settings, settings.sizes(), heap)


def estimated(
    size: Size, memory: str, held: int, fourcc: int = NV12, most: int | None = None
) -> Known:
    """
    Estimate the pool of a camera that can't be asked before it streams.

    Only the number of its consumers counts.

    :param memory: the owner of the memory.
    :param held: slots that the camera needs for itself.
    :param most: slots that it can have.
    """
    own = BufferConstraints(
        'camera',
        formats=((fourcc, LINEAR),),
        heaps=(memory,),
        slots=held,
        max_slots=most,
        min_size=size,
        max_size=size,
    )
    return Known(own, size, memory=False, formats=False)


def size_of(values: Any) -> Size:
    """Return the size that parameters say; :data:`UNKNOWN` where they don't."""
    size = values['width'], values['height']
    return size if all(size) else UNKNOWN
