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

"""Helpers of the negotiation's tests: short format names, and a producer that records calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.negotiation.constraints import BufferConstraints, Format
from zc_perception.negotiation.settings import Allocation, AllocationRequest
from zc_perception.pixel.fourcc import fourcc_code
from zc_perception.pixel.modifier import INVALID, LINEAR

TILED = 3 << 56 | 0x10
X_TILED = 1 << 56 | 1
Y_TILED = 1 << 56 | 2
NV12, YUYV, XR24, R8 = map(fourcc_code, ('NV12', 'YUYV', 'XR24', 'R8  '))
SIZE = (64, 48)


def f(text: str) -> Format:
    """Return the format for ``NV12 linear``, ``NV12 tiled``, ``XR24 x`` or ``NV12 implicit``."""
    name, _, modifier = text.partition(' ')
    modifiers = {'linear': LINEAR, 'tiled': TILED, 'x': X_TILED, 'y': Y_TILED, 'implicit': INVALID}
    return fourcc_code(name.ljust(4)), modifiers[modifier]


def who(name: str, *formats: str, **others: object) -> BufferConstraints:
    """Return constraints with formats by short name; none means any."""
    return BufferConstraints(name, formats=tuple(map(f, formats)) or None, **others)


class Producer:
    """An allocator: it returns memory as asked for, unless ``vary`` changes the answer."""

    def __init__(
        self, vary: Callable[[Allocation], Allocation] = lambda allocation: allocation
    ) -> None:
        self.vary = vary
        self.requests: list[AllocationRequest] = []
        self.buffers: list[DmaBuf] = []

    def __call__(self, request: AllocationRequest) -> Allocation:
        linear = request.limits.layout(request.fourcc, request.size, request.placement)
        own = LINEAR if LINEAR in request.modifiers else request.modifiers[0]
        heap, layout = SealedMemfd(), replace(linear, modifier=own)
        self.requests.append(request)
        sizes = [layout.buffer_size(index) for index in range(layout.num_buffers)]
        slots = tuple(tuple(heap.allocate(size) for size in sizes) for _ in range(request.slots))
        self.buffers += [buffer for slot in slots for buffer in slot]
        return self.vary(Allocation(layout, slots))

    def close(self) -> None:
        for buffer in self.buffers:
            with suppress(ValueError):
                buffer.close()
