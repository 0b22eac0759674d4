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

"""The bytes that a reader of a layout touches, by the kernel's description of each format."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from zc_perception.pixel.layout import ImageLayout

# For each plane: bytes of a sample, samples of an element, pixels of an element across and down
# (drm_fourcc.h).
PLANES = {
    'NV12': ((1, 1, 1, 1), (1, 2, 2, 2)), 'NV21': ((1, 1, 1, 1), (1, 2, 2, 2)),
    'NV16': ((1, 1, 1, 1), (1, 2, 2, 1)), 'NV24': ((1, 1, 1, 1), (1, 2, 1, 1)),
    'P010': ((2, 1, 1, 1), (2, 2, 2, 2)), 'P210': ((2, 1, 1, 1), (2, 2, 2, 1)),
    'YU12': ((1, 1, 1, 1), (1, 1, 2, 2), (1, 1, 2, 2)),
    'YV12': ((1, 1, 1, 1), (1, 1, 2, 2), (1, 1, 2, 2)),
    'YU24': ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
    'YUYV': ((1, 4, 2, 1),), 'UYVY': ((1, 4, 2, 1),), 'R8  ': ((1, 1, 1, 1),),
    'R16 ': ((2, 1, 1, 1),), 'RG16': ((2, 1, 1, 1),), 'RG24': ((1, 3, 1, 1),),
    'BG24': ((1, 3, 1, 1),), 'XR24': ((1, 4, 1, 1),), 'AR24': ((1, 4, 1, 1),),
    'XB24': ((1, 4, 1, 1),), 'AB24': ((1, 4, 1, 1),),
    'NV15': ((1, 5, 4, 1), (1, 5, 4, 2)),  # four samples of 10 bits in 5 bytes
}  # fmt: skip


def plane_bytes(name: str, index: int, layout: ImageLayout) -> Iterator[int]:
    """Yield the address in its buffer of every byte of a plane, as often as it is touched."""
    plane = layout.planes[index]
    sample, samples, across, down = PLANES[name][index]
    for row in range(layout.height // down):
        start = plane.offset + row * plane.stride
        yield from range(start, start + layout.width // across * samples * sample)


def is_safe(
    name: str,
    layout: ImageLayout,
    buffer_sizes: Sequence[int],
    identities: Sequence[Hashable] | None = None,
) -> bool:
    """Return whether all samples are in their buffers, without overlap and word-aligned."""
    assert len(layout.planes) == len(PLANES[name])
    seen: set[tuple[Hashable, int]] = set()
    for index, plane in enumerate(layout.planes):
        sample = PLANES[name][index][0]
        known = 0 <= plane.buffer < len(buffer_sizes)
        if not known or plane.offset % sample or plane.stride % sample:
            return False
        memory = plane.buffer if identities is None else identities[plane.buffer]
        addresses = list(plane_bytes(name, index, layout))
        if min(addresses) < 0 or max(addresses) >= buffer_sizes[plane.buffer]:
            return False
        before = len(seen)
        seen.update((memory, address) for address in addresses)
        if len(seen) != before + len(addresses):
            return False
    return True
