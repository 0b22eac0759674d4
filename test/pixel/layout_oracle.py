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

from zc_perception.pixel.layout import ImageLayout, PlaneLayout

# For each plane: bytes of a sample, samples of an element, pixels of an element across and down
# (drm_fourcc.h).
PLANES = {
    'NV12': ((1, 1, 1, 1), (1, 2, 2, 2)),
    'NV21': ((1, 1, 1, 1), (1, 2, 2, 2)),
    'NV16': ((1, 1, 1, 1), (1, 2, 2, 1)),
    'NV24': ((1, 1, 1, 1), (1, 2, 1, 1)),
    'P010': ((2, 1, 1, 1), (2, 2, 2, 2)),
    'YU12': ((1, 1, 1, 1), (1, 1, 2, 2), (1, 1, 2, 2)),
    'YV12': ((1, 1, 1, 1), (1, 1, 2, 2), (1, 1, 2, 2)),
    'YUYV': ((1, 4, 2, 1),),
    'UYVY': ((1, 4, 2, 1),),
    'R8  ': ((1, 1, 1, 1),),
    'RG24': ((1, 3, 1, 1),),
    'BG24': ((1, 3, 1, 1),),
    'XR24': ((1, 4, 1, 1),),
    'AR24': ((1, 4, 1, 1),),
    'XB24': ((1, 4, 1, 1),),
    'AB24': ((1, 4, 1, 1),),
    'RG16': ((2, 1, 1, 1),),
    'R16 ': ((2, 1, 1, 1),),
    'P210': ((2, 1, 1, 1), (2, 2, 2, 1)),
    'YU24': ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
    # Four samples of 10 bits in 5 bytes.
    'NV15': ((1, 5, 4, 1), (1, 5, 4, 2)),
}


def plane_bytes(name: str, index: int, layout: ImageLayout) -> Iterator[int]:
    """Yield the address in its buffer of every byte of a plane, as often as it is touched."""
    plane: PlaneLayout = layout.planes[index]
    sample, samples, across, down = PLANES[name][index]
    for row in range(layout.height // down):
        for column in range(layout.width // across):
            for one in range(samples):
                start = plane.offset + row * plane.stride + (column * samples + one) * sample
                assert isinstance(start, int)
                yield from range(start, start + sample)


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
        if (
            not 0 <= plane.buffer < len(buffer_sizes)
            or plane.offset % sample
            or plane.stride % sample
        ):
            return False
        memory = plane.buffer if identities is None else identities[plane.buffer]
        touched = [(memory, address) for address in plane_bytes(name, index, layout)]
        if (
            min(a for _, a in touched) < 0
            or max(a for _, a in touched) >= buffer_sizes[plane.buffer]
        ):
            return False
        before = len(seen)
        seen.update(touched)
        if len(seen) != before + len(touched):
            return False
    return True
