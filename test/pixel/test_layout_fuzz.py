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
Descriptors as a broken or hostile peer would send them.

Refused in words, or read to the last sample inside real memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
import os
import random
from typing import Any

from long_form import LONG
import numpy as np
import pytest

from zc_perception.errors import FormatError, LayoutError
from zc_perception.mapping import map_buffers
from zc_perception.memory.dmabuf import BufferKind, CpuAccess, DmaBuf
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.pixel.fourcc import FORMATS
from zc_perception.pixel.layout import compute_layout, ImageLayout, PlaneLayout, validate_layout
from zc_perception.pixel.modifier import INVALID, LINEAR

DESCRIPTORS = 100_000 if LONG else 10_000
# Not only whole pages: a mapping is as long as its buffer says.
SIZES = (1, 63, 64, 1000, 4095, 4096, 6144, 8192, 65536)
WILD = (
    -(1 << 64), -1, 0, 1, 2, 3, 63, 64, 4095, 4096, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32,
    1 << 62, (1 << 63) - 1, 1 << 63,
    (1 << 64) - 1, 1 << 64, 1 << 20000, 0.0, 64.0, 1e308, float('nan'), float('inf'), '64', '',
    b'64', None, True, False, (), [64],
    {'offset': 0}, 1j, object(),
)  # fmt: skip
FOURCCS = tuple(FORMATS)
MODIFIERS = (
    LINEAR,
    INVALID,
    1 << 56 | 1,
    1 << 56 | 4,
    3 << 56 | 0x10,
    8 << 56 | 1,
    0x42 << 56,
    (1 << 64) - 1,
)


@pytest.fixture(scope='module')
def memories() -> Iterator[dict[int, DmaBuf]]:
    """Yield a memfd of each size, of that many bytes exactly."""
    buffers = {}
    for size in SIZES:
        fd = OwnedFd(os.memfd_create('fuzz', os.MFD_CLOEXEC))
        os.ftruncate(fd.fileno(), size)
        buffers[size] = DmaBuf(fd, BufferKind.MEMFD, 'memfd')
    yield buffers
    for buffer in buffers.values():
        buffer.close()


class Peer:
    """
    Makes descriptors.

    Mostly true ones with a few fields changed, sometimes nothing but noise.
    """

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def _number(self, near: Any) -> Any:
        choice = self._chance.random()
        if choice < 0.5 and isinstance(near, int):
            return near + self._chance.choice((-4096, -64, -2, -1, 1, 2, 64, 4096))
        if choice < 0.6:
            return self._chance.getrandbits(self._chance.choice((4, 8, 16, 32, 63, 64, 65)))
        return self._chance.choice(WILD)

    def _plane(self, plane: PlaneLayout) -> Any:
        if self._chance.random() < 0.02:
            return self._chance.choice((None, 7, (0, 0, 64, 64), 'plane'))
        field = self._chance.choice(('buffer', 'offset', 'stride', 'size'))
        return replace(plane, **{field: self._number(getattr(plane, field))})

    def descriptor(self) -> tuple[ImageLayout, list[Any]]:
        """Return a layout, and the sizes of the buffers that came with it."""
        chance = self._chance
        fmt = FORMATS[chance.choice(FOURCCS)]
        layout = compute_layout(
            fmt.code,
            fmt.horizontal * chance.randint(1, 32 // fmt.horizontal),
            fmt.vertical * chance.randint(1, 32 // fmt.vertical),
            stride_align=chance.choice((1, 2, 3, 64)),
            offset_align=chance.choice((1, 2, 64)),
            height_align=chance.choice((1, 16)),
            buffer_per_plane=chance.random() < 0.4,
        )
        sizes: list[Any] = []
        for index in range(layout.num_buffers):
            large = [size for size in SIZES if size >= layout.buffer_size(index)]
            sizes.append(large[0] if large else SIZES[-1])
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 8))):
            planes, kind = (
                list(layout.planes) if isinstance(layout.planes, tuple) else [],
                chance.random(),
            )
            if kind < 0.6 and planes:
                index = chance.randrange(len(planes))
                if isinstance(planes[index], PlaneLayout):
                    planes[index] = self._plane(planes[index])
                layout = replace(layout, planes=tuple(planes))
            elif kind < 0.7:
                changed: Any = chance.choice(
                    (
                        planes[:-1],
                        planes * 2,
                        planes[::-1],
                        planes * 500 if len(planes) < 9 else (),
                    )
                )
                kinds: tuple[Any, ...] = (tuple(changed), tuple(changed), changed, None)
                layout = replace(layout, planes=chance.choice(kinds))
            elif kind < 0.8:
                name = chance.choice(('width', 'height', 'fourcc', 'modifier'))
                layout = replace(layout, **{name: self._number(getattr(layout, name))})
            elif kind < 0.9:
                layout = replace(layout, modifier=chance.choice(MODIFIERS))
            else:
                sizes = chance.choice(
                    (
                        [*sizes, SIZES[-1]],
                        sizes[:-1],
                        sizes[::-1],
                        [chance.choice((*SIZES, *WILD)) for _ in sizes],
                    )
                )
        return layout, sizes


def refused(layout: ImageLayout, sizes: Sequence[Any]) -> bool:
    """Return whether the layout is refused, with one of the two errors and in one short line."""
    try:
        validate_layout(layout, sizes)
    except (LayoutError, FormatError) as error:
        assert 10 < len(str(error)) < 6000 and '\n' not in str(error)
        return True
    return False


def read_every_sample(layout: ImageLayout, buffers: tuple[DmaBuf, ...]) -> None:
    ends = []
    for buffer in buffers:
        memory = np.frombuffer(buffer.mapping(), np.uint8)
        start = int(memory.__array_interface__['data'][0])
        ends.append((start, start + memory.nbytes))
        del memory
    with map_buffers(layout, buffers, CpuAccess.READ, []) as planes:
        for plane, where in zip(planes, layout.planes, strict=True):
            first = int(plane.__array_interface__['data'][0])
            last = (
                first
                + sum(
                    (n - 1) * stride for n, stride in zip(plane.shape, plane.strides, strict=True)
                )
                + plane.itemsize
            )
            assert ends[where.buffer][0] <= first and last <= ends[where.buffer][1]
            assert plane.flags.aligned and all(stride > 0 for stride in plane.strides)
            plane.max()
        del plane


def test_descriptors_are_refused_or_readable(memories: dict[int, DmaBuf]) -> None:
    peer, outcomes = Peer(20240607), Counter[str]()
    for _ in range(DESCRIPTORS):
        layout, sizes = peer.descriptor()
        if refused(layout, sizes):
            outcomes['refused'] += 1
        elif layout.modifier != LINEAR:
            outcomes['without rows'] += 1
        elif not set(sizes) <= set(SIZES):
            outcomes['imagined sizes'] += 1
        else:
            outcomes['read'] += 1
            read_every_sample(layout, tuple(memories[size] for size in sizes))
    # Neither all wrong nor all right, or this tests nothing.
    assert outcomes.total() == DESCRIPTORS
    assert outcomes['refused'] > 0.3 * DESCRIPTORS and outcomes['read'] > 0.1 * DESCRIPTORS, (
        outcomes
    )
    assert outcomes['without rows'] > 0.01 * DESCRIPTORS, outcomes
