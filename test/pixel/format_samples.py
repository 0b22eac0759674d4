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

"""Planes of every format, packed by hand from ``drm_fourcc.h``, and their true colours."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zc_perception.pixel.layout import ImageLayout

Samples = NDArray[np.uint8]

# Luma's factor, then Cr in R, Cb in G, Cr in G, Cb in B, as published.
PUBLISHED = {
    ('bt601', 'limited'): (1.16438, 1.59603, -0.39176, -0.81297, 2.01723),
    ('bt601', 'full'): (1.0, 1.402, -0.344136, -0.714136, 1.772),
    ('bt709', 'limited'): (1.16438, 1.79274, -0.21325, -0.53291, 2.11240),
    ('bt709', 'full'): (1.0, 1.5748, -0.187324, -0.468124, 1.8556),
    ('bt2020', 'limited'): (1.16438, 1.67867, -0.18733, -0.65042, 2.14177),
    ('bt2020', 'full'): (1.0, 1.4746, -0.164553, -0.571353, 1.8814),
}
# Luma samples that share a chroma sample, across and down.
SUBSAMPLING = {
    **dict.fromkeys(('NV12', 'NV21', 'YU12', 'YV12', 'P010', 'P012', 'P016'), (2, 2)),
    **dict.fromkeys(
        ('NV16', 'NV61', 'YU16', 'YV16', 'P210', 'YUYV', 'YVYU', 'UYVY', 'VYUY'), (2, 1)
    ),
    **dict.fromkeys(('NV24', 'NV42', 'YU24', 'YV24'), (1, 1)),
}
WIDE = {'P010': 10, 'P012': 12, 'P016': 16, 'P210': 10}
# Bytes of a pixel in memory order; X is padding.
BYTE_ORDERS = {
    'RG24': 'BGR', 'BG24': 'RGB', 'XR24': 'BGRX', 'AR24': 'BGRA', 'XB24': 'RGBX', 'AB24': 'RGBA',
    'RX24': 'XBGR', 'RA24': 'ABGR', 'BX24': 'XRGB', 'BA24': 'ARGB',
}  # fmt: skip
GREY = ('R8  ', 'R16 ')
WORDS = ('RG16', 'BG16')
YUV = tuple(SUBSAMPLING)
ALL = (*YUV, *BYTE_ORDERS, *GREY, *WORDS)


def _wide(samples: Samples, bits: int, random: np.random.Generator) -> NDArray[np.uint16]:
    """Return 16-bit samples: 8 bits on top, noise below half a step, so rounding restores them."""
    below = random.integers(0, 1 << 7, samples.shape).astype(np.uint16)
    return (samples.astype(np.uint16) << 8) | (below >> (16 - bits) << (16 - bits))


def yuv_planes(
    name: str, y: Samples, u: Samples, v: Samples, random: np.random.Generator
) -> list[NDArray[Any]]:
    """Return the planes of luma (height, width) and of the format's own chroma samples."""
    if name in WIDE:
        return [_wide(plane, WIDE[name], random) for plane in (y, np.stack([u, v], axis=-1))]
    if name in ('NV12', 'NV16', 'NV24'):
        return [y, np.stack([u, v], axis=-1)]
    if name in ('NV21', 'NV61', 'NV42'):
        return [y, np.stack([v, u], axis=-1)]
    if name in ('YU12', 'YU16', 'YU24'):
        return [y, u, v]
    if name in ('YV12', 'YV16', 'YV24'):
        return [y, v, u]
    by_name = {'Y': [y[:, 0::2], y[:, 1::2]], 'U': [u], 'V': [v]}
    return [np.stack([by_name[letter].pop(0) for letter in name], axis=-1)]


def rgb_planes(name: str, rgb: Samples, random: np.random.Generator) -> list[NDArray[Any]]:
    """Return the plane of R, G, B (height, width, 3); of grey formats, of R."""
    red, green, blue = (rgb[..., i] for i in range(3))
    if name == 'R8  ':
        return [red.copy()]
    if name == 'R16 ':
        return [_wide(red, 16, random)]
    if name in WORDS:
        r, g, b = (
            red.astype(np.uint16) >> 3,
            green.astype(np.uint16) >> 2,
            blue.astype(np.uint16) >> 3,
        )
        return [(r << 11) | (g << 5) | b if name == 'RG16' else (b << 11) | (g << 5) | r]
    rest = random.integers(0, 256, red.shape, np.uint8)
    return [
        np.stack(
            [{'R': red, 'G': green, 'B': blue}.get(letter, rest) for letter in BYTE_ORDERS[name]],
            axis=-1,
        )
    ]


def strided(plane: NDArray[Any], padding: int) -> NDArray[Any]:
    """Return the same samples, read-only, with *padding* samples of noise after each row."""
    rows, row = plane.shape[0], plane[0].size + padding
    memory = (
        np.random.default_rng(padding)
        .integers(0, 256, (rows, row * plane.itemsize), np.uint8)
        .view(plane.dtype)
    )
    inner = [plane.itemsize]
    for size in plane.shape[:1:-1]:
        inner.insert(0, inner[0] * size)
    view: NDArray[Any] = np.ndarray(
        plane.shape, plane.dtype, memory, 0, (memory.strides[0], *inner)
    )
    view[:] = plane
    memory.flags.writeable = view.flags.writeable = False
    return view


def spread(chroma: NDArray[Any], name: str) -> NDArray[Any]:
    across, down = SUBSAMPLING[name]
    return chroma.repeat(down, axis=0).repeat(across, axis=1)


def published_rgb(
    y: NDArray[Any], u: NDArray[Any], v: NDArray[Any], matrix: str, span: str
) -> NDArray[np.float64]:
    """Convert planes of one size to R, G, B, without rounding."""
    factor, red, green_b, green_r, blue = PUBLISHED[matrix, span]
    luma = (y.astype(np.float64) - (16 if span == 'limited' else 0)) * factor
    b, r = (chroma.astype(np.float64) - 128 for chroma in (u, v))
    return np.clip(
        np.stack([luma + red * r, luma + green_b * b + green_r * r, luma + blue * b], axis=-1),
        0,
        255,
    )


def expanded(samples: NDArray[Any], span: str) -> NDArray[np.float64]:
    """Return grey, or R, G, B, of *span* in 0..255, without rounding."""
    given = samples.astype(np.float64)
    return given if span == 'full' else np.clip((given - 16) * 255 / 219, 0, 255)


def noise(name: str, width: int, height: int, seed: int) -> tuple[Samples, Samples, Samples]:
    """Return random luma from black on, and chroma: below black, OpenCV and ITU-R differ."""
    random = np.random.default_rng(seed)
    across, down = SUBSAMPLING[name]
    half = height // down, width // across
    u, v = (random.integers(0, 256, half, np.uint8) for _ in range(2))
    return random.integers(16, 256, (height, width), np.uint8), u, v


def words_rgb(rgb: Samples) -> Samples:
    """Return R, G, B after rounding to 5, 6 and 5 bits, with all ones as 255."""
    kept = [
        np.rint((rgb[..., i] >> (8 - bits)).astype(np.float64) * 255 / ((1 << bits) - 1))
        for i, bits in enumerate((5, 6, 5))
    ]
    return np.stack(kept, axis=-1).astype(np.uint8)


# The bytes that a reader of a layout touches, by the kernel's description of each format.


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
