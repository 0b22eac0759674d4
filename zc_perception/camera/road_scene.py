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
The synthetic camera's road: an animated scene with exact ground truth.

The picture is drawn directly into NV12 planes. The ego camera drives along a straight road past an
endless stream of cars, pedestrians, signs and cones. The picture depends only on ``(width, height,
seed, palette, index)``, so frames may be drawn in any order. The still parts (sky, hills, skyline,
ground, road) are drawn once.

An object's shape is a list of polygons, drawn in the list's order. Their vertices are in unit
coordinates: x runs from -0.5 to 0.5 across the object, y from -1 (the object's top) to 0 (the
ground). Classes differ only by their outlines: the body colours of all classes come from
:func:`body_colour`. Colours are ``(Y, U, V)`` levels in BT.601 limited range, without the noise
that is added later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
import math

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.synthetic import check_size

Colour = tuple[int, int, int]
Points = list[tuple[float, float]]

LUMA_LOW = 16
LUMA_HIGH = 203
"""Highest luma drawn: noise of at most 32 is added later, and the highest legal luma is 235."""

PALETTES: dict[str, tuple[float, float]] = {
    'all': (0.0, 360.0),
    'train': (0.0, 200.0),
    'held_out': (220.0, 340.0),
}
"""Each palette's range of hues for objects' bodies, in degrees of ``atan2(V - 128, U - 128)``."""


@dataclass(frozen=True)
class Part:
    """A filled polygon of a shape; its corners are the vertices ``start`` to ``stop - 1``."""

    start: int
    stop: int
    colour: Colour


class Shape:
    """An object's polygons in drawing order. Add all of them before calling :meth:`polygons`."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._points: Points = []
        self._sway: Points = []

    def add(self, points: Points, colour: Colour, sway: Points | None = None) -> None:
        """
        Append a polygon in unit coordinates (see this module's docstring).

        ``sway`` has an offset for each vertex; :meth:`polygons` multiplies the offset by ``swing``
        and adds the result to the vertex. ``None``: the polygon does not move.
        """
        start = len(self._points)
        self._points += points
        self._sway += sway if sway is not None else [(0.0, 0.0)] * len(points)
        self.parts.append(Part(start, len(self._points), colour))

    @cached_property
    def _vertices(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.array(self._points), np.array(self._sway)

    def polygons(
        self, x: float, y: float, width: float, height: float, swing: float
    ) -> list[NDArray[np.int32]]:
        """
        Return the vertices in whole pixels, one ``(k, 2)`` array per part.

        ``x, y`` is the middle of the object's bottom edge, ``width, height`` its size, all in
        pixels; ``swing`` (-1 to 1) moves the vertices that have a sway, such as those of limbs.
        """
        points, sway = self._vertices
        placed = np.rint((points + swing * sway) * (width, height) + (x, y)).astype(np.int32)
        return [placed[slice(part.start, part.stop)] for part in self.parts]


def paint(
    polygons: list[NDArray[np.int32]],
    shape: Shape,
    luma: NDArray[np.uint8],
    chroma: NDArray[np.uint8],
) -> None:
    """Draw a shape, filled and clipped, into ``luma`` (h, w) and ``chroma`` (h/2, w/2, 2)."""
    for polygon, part in zip(polygons, shape.parts, strict=True):
        level, u, v = part.colour
        cv2.fillPoly(luma, [polygon], level)
        cv2.fillPoly(chroma, [polygon >> 1], (u, v))


def body_colour(rng: np.random.Generator, hues: tuple[float, float]) -> Colour:
    """Return a random colour with a hue in the range ``hues``, in degrees."""
    hue = math.radians(rng.uniform(*hues))
    saturation = rng.uniform(14.0, 62.0)
    u, v = 128 + saturation * math.cos(hue), 128 + saturation * math.sin(hue)
    return int(rng.uniform(30, 196)), round(u), round(v)


def contrasting(colour: Colour, rng: np.random.Generator, hues: tuple[float, float]) -> Colour:
    """Return another body colour whose luma differs from ``colour``'s by at least 50."""
    _, u, v = body_colour(rng, hues)
    return _opposite(colour[0], rng), u, v


def shaded(colour: Colour, rng: np.random.Generator) -> Colour:
    """Return ``colour`` a little darker or brighter."""
    return clamp_luma(colour[0] + rng.choice((-1, 1)) * rng.uniform(12, 34)), colour[1], colour[2]


def neutral(level: float, rng: np.random.Generator) -> Colour:
    """Return a nearly grey colour of luma ``level``, limited to the range that may be drawn."""
    u, v = rng.integers(122, 135, 2)
    return clamp_luma(level), int(u), int(v)


def clamp_luma(level: float) -> int:
    """Return ``level``, limited to the range of luma that may be drawn."""
    return int(min(max(level, LUMA_LOW), LUMA_HIGH))


def _opposite(level: int, rng: np.random.Generator) -> int:
    distance = rng.uniform(50, 110)
    upward = level + distance <= LUMA_HIGH and (level - distance < LUMA_LOW or rng.random() < 0.5)
    return clamp_luma(level + distance if upward else level - distance)


def box(x0: float, y0: float, x1: float, y1: float) -> Points:
    """Return a rectangle with sides parallel to the axes."""
    return [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]


def trapezoid(half_top: float, y_top: float, half_bottom: float, y_bottom: float) -> Points:
    """Return a symmetric trapezoid around x = 0."""
    return [
        (-half_top, y_top),
        (half_top, y_top),
        (half_bottom, y_bottom),
        (-half_bottom, y_bottom),
    ]


def ellipse(
    x: float, y: float, half_width: float, half_height: float, corners: int = 14, turn: float = 0.0
) -> Points:
    """Return a regular polygon, turned by ``turn`` radians and stretched to an ellipse."""
    angles = [turn + 2 * math.pi * k / corners for k in range(corners)]
    return [(x + half_width * math.sin(a), y - half_height * math.cos(a)) for a in angles]


def car(rng: np.random.Generator, hues: tuple[float, float], aspect: float) -> Shape:
    """Make a car seen from behind or in front: body, cabin, window, wheels, lights and plate."""
    body = body_colour(rng, hues)
    roof, shoulder = -1.0, -1.0 + rng.uniform(0.34, 0.46)
    sill, cabin = -rng.uniform(0.13, 0.19), rng.uniform(0.30, 0.37)
    shape = Shape()
    tyre = neutral(rng.uniform(18, 40), rng)
    for side in (-1, 1):
        shape.add(box(side * 0.46, sill - 0.06, side * 0.26, 0.0), tyre)
    shape.add(
        trapezoid(cabin, roof, cabin + 0.09, shoulder),
        shaded(body, rng) if rng.random() < 0.3 else body,
    )
    glass = neutral(_opposite(body[0], rng), rng)
    shape.add(trapezoid(cabin - 0.05, roof + 0.07, cabin + 0.02, shoulder - 0.02), glass)
    rounded = [
        (-0.44, shoulder),
        (0.44, shoulder),
        (0.5, shoulder + 0.1),
        (0.5, sill - 0.05),
        (0.45, sill),
    ]
    shape.add([*rounded, (-0.45, sill), (-0.5, sill - 0.05), (-0.5, shoulder + 0.1)], body)
    shape.add(box(-0.49, sill - rng.uniform(0.1, 0.18), 0.49, sill - 0.03), shaded(body, rng))
    light = contrasting(body, rng, hues)
    drop = shoulder + rng.uniform(0.08, 0.12)
    for side in (-1, 1):
        shape.add(box(side * 0.45, drop, side * rng.uniform(0.3, 0.34), drop + 0.12), light)
    plate = contrasting(body, rng, hues)
    shape.add(box(-0.12, drop + 0.04, 0.12, drop + 0.15), plate)
    return shape


def pedestrian(rng: np.random.Generator, hues: tuple[float, float], aspect: float) -> Shape:
    """Make a walking figure: head, torso, two arms, two legs that swing."""
    coat = body_colour(rng, hues)
    trousers, sleeve, skin = (
        contrasting(coat, rng, hues),
        shaded(coat, rng),
        contrasting(coat, rng, hues),
    )
    hip, shoulder, chin = -rng.uniform(0.44, 0.50), -rng.uniform(0.80, 0.84), -0.855
    shape = Shape()
    for side in (-1, 1):
        still, foot = (0.0, 0.0), (side * 0.22, 0.0)
        leg = [
            (side * 0.02, hip - 0.03),
            (side * 0.26, hip - 0.03),
            (side * 0.27, 0.0),
            (side * 0.07, 0.0),
        ]
        shape.add(leg, trousers if side < 0 else shaded(trousers, rng), [still, still, foot, foot])
        hand = (-side * 0.10, 0.0)
        arm = [
            (side * 0.24, shoulder + 0.01),
            (side * 0.36, shoulder + 0.04),
            (side * 0.49, hip),
            (side * 0.36, hip),
        ]
        shape.add(arm, sleeve, [still, still, hand, hand])
    shape.add(
        [
            (-0.30, shoulder),
            (0.30, shoulder),
            (0.34, shoulder + 0.06),
            (0.27, hip),
            (-0.27, hip),
            (-0.34, shoulder + 0.06),
        ],
        coat,
    )
    if rng.random() < 0.6:
        middle = rng.uniform(shoulder + 0.1, hip - 0.08)
        shape.add(box(-0.26, middle, 0.26, middle + 0.06), shaded(coat, rng))
    half_height = (1 + chin) / 2 + 0.01
    shape.add(ellipse(0.0, -1 + half_height, min(half_height / aspect, 0.24), half_height), skin)
    if rng.random() < 0.5:
        shape.add(trapezoid(0.10, -1.0, 0.17, -1 + half_height * 0.8), shaded(skin, rng))
    return shape


BOARDS = (
    (16, 0.0, 0.5, 0.5),
    (8, math.pi / 8, 0.5412, 0.5),
    (4, 0.0, 0.5, 0.5),
    (4, math.pi / 4, 0.7071, 0.5),
    (3, math.pi, 0.5774, 0.2887),
)
"""
The outlines of sign boards, each of width 1: number of corners, angle by which the board is turned
in radians, circumradius, and distance of the centre from the top.
"""


def sign(rng: np.random.Generator, hues: tuple[float, float], aspect: float) -> Shape:
    """Make a road sign: a pole, a board with a rim in another colour, a bar on the board."""
    rim = body_colour(rng, hues)
    face = contrasting(rim, rng, hues)
    corners, turn, reach, drop = BOARDS[rng.integers(len(BOARDS))]
    inner = reach * rng.uniform(0.62, 0.74)
    centre = -1 + drop * aspect
    shape = Shape()
    shape.add(box(-0.07, centre, 0.07, 0.0), neutral(rng.uniform(40, 190), rng))
    shape.add(ellipse(0.0, centre, reach, reach * aspect, corners, turn), rim)
    shape.add(ellipse(0.0, centre, inner, inner * aspect, corners, turn), face)
    mark = contrasting(face, rng, hues)
    if rng.random() < 0.5:
        shape.add(box(-0.22, centre - 0.08 * aspect, 0.22, centre + 0.08 * aspect), mark)
    else:
        shape.add(box(-0.08, centre - 0.2 * aspect, 0.08, centre + 0.2 * aspect), mark)
    return shape


def cone(rng: np.random.Generator, hues: tuple[float, float], aspect: float) -> Shape:
    """Make a traffic cone: a slab, a narrow tapering body, one or two contrasting bands."""
    body = body_colour(rng, hues)
    band = contrasting(body, rng, hues)
    slab = -rng.uniform(0.09, 0.13)
    foot, tip = rng.uniform(0.34, 0.39), rng.uniform(0.05, 0.09)

    def half_at(y: float) -> float:
        return tip + (foot - tip) * (y + 1) / (slab + 1)

    shape = Shape()
    shape.add(
        box(-0.5, slab, 0.5, 0.0),
        shaded(body, rng) if rng.random() < 0.6 else contrasting(body, rng, hues),
    )
    shape.add(trapezoid(tip, -1.0, foot, slab), body)
    for middle in ((-0.42, -0.70), (-0.55,))[rng.integers(2)]:
        top, bottom = middle - rng.uniform(0.06, 0.10), middle + rng.uniform(0.06, 0.10)
        shape.add(trapezoid(half_at(top), top, half_at(bottom), bottom), band)
    return shape


def tree(rng: np.random.Generator, hues: tuple[float, float], aspect: float) -> Shape:
    """Make a trunk and a ragged crown that sways a little."""
    shape = Shape()
    shape.add(box(-0.06, -0.5, 0.06, 0.0), neutral(rng.uniform(30, 90), rng))
    crown = body_colour(rng, hues)
    shape.add(*_blob(rng, -0.64, 0.5, 0.36, crown))
    shape.add(*_blob(rng, -0.72, 0.28, 0.2, shaded(crown, rng)))
    return shape


def bush(rng: np.random.Generator, hues: tuple[float, float], aspect: float) -> Shape:
    """Make a low blob in two shades."""
    shape = Shape()
    leaves = body_colour(rng, hues)
    shape.add(*_blob(rng, -0.45, 0.5, 0.5, leaves))
    shape.add(*_blob(rng, -0.55, 0.25, 0.25, shaded(leaves, rng)))
    return shape


def building(rng: np.random.Generator, hues: tuple[float, float], aspect: float) -> Shape:
    """Make a wall with rows of windows."""
    wall = body_colour(rng, hues)
    shape = Shape()
    shape.add(box(-0.5, -1.0, 0.5, 0.0), wall)
    shape.add(box(-0.5, -1.0, rng.uniform(-0.3, -0.1), 0.0), shaded(wall, rng))
    pane = contrasting(wall, rng, hues)
    for row in range(int(rng.integers(1, 4))):
        top = -0.92 + 0.28 * row
        for left in (-0.38, -0.08, 0.22):
            shape.add(box(left, top, left + 0.16, top + 0.15), pane)
    return shape


def crate(rng: np.random.Generator, hues: tuple[float, float], aspect: float) -> Shape:
    """Make a crate: it has an object's size and colours, but it belongs to no class."""
    side = body_colour(rng, hues)
    shape = Shape()
    shape.add(box(-0.5, -1.0, 0.5, 0.0), side)
    line = rng.uniform(-0.85, -0.3)
    shape.add(box(-0.5, line, 0.5, line + 0.12), contrasting(side, rng, hues))
    return shape


def barrel(rng: np.random.Generator, hues: tuple[float, float], aspect: float) -> Shape:
    """Make an upright drum in two tones."""
    side = body_colour(rng, hues)
    shape = Shape()
    shape.add(ellipse(0.0, -0.12, 0.5, 0.12), side)
    shape.add(box(-0.5, -0.88, 0.5, -0.12), side)
    shape.add(ellipse(0.0, -0.88, 0.5, 0.12), contrasting(side, rng, hues))
    return shape


def patch(rng: np.random.Generator, hues: tuple[float, float], aspect: float) -> Shape:
    """Make a flat stain on the ground."""
    shape = Shape()
    shape.add(*_blob(rng, -0.5, 0.5, 0.5, body_colour(rng, hues)))
    return shape


def _blob(
    rng: np.random.Generator, y: float, half_width: float, half_height: float, colour: Colour
) -> tuple[Points, Colour, Points]:
    reach = rng.uniform(0.72, 1.0, 14)
    outline = ellipse(0.0, y, half_width, half_height)
    ragged = [(px * r, y + (py - y) * r) for (px, py), r in zip(outline, reach, strict=True)]
    sway = [(float(s), 0.0) for s in rng.uniform(-0.02, 0.02, 14)]
    return ragged, colour, sway


ShapeMaker = Callable[[np.random.Generator, tuple[float, float], float], Shape]


HORIZON = 0.4
"""Distance of the horizon from the image's top, as a fraction of the image's height."""

Planes = tuple[NDArray[np.uint8], NDArray[np.uint8]]


@dataclass(frozen=True)
class RoadEdges:
    """Pixel columns of the road's edges at the picture's bottom, and of their vanishing point."""

    left: float
    right: float
    vanishing_x: float


def draw_backdrop(width: int, height: int, edges: RoadEdges, rng: np.random.Generator) -> Planes:
    """Draw the still background; return its luma (h, w) and chroma (h/2, w/2, 2), both uint8."""
    luma = np.empty((height, width), np.uint8)
    chroma = np.empty((height // 2, width // 2, 2), np.uint8)
    horizon = round(height * HORIZON)
    half = horizon // 2
    _draw_sky(luma[:horizon], chroma[:half], rng)
    _draw_ground(luma[horizon:], chroma[half:], rng)
    _draw_hills(luma, chroma, horizon, rng)
    _draw_skyline(luma, chroma, horizon, rng)
    _draw_road(luma, chroma, horizon, edges, rng)
    return luma, chroma


def noise_tiles(
    width: int, height: int, margin: int, count: int, rng: np.random.Generator
) -> tuple[list[NDArray[np.uint8]], list[NDArray[np.uint8]]]:
    """
    Make ``count`` tiles of luma noise (0..32) and as many of chroma noise (0..8).

    The noise has a triangular distribution. Each tile is ``margin`` pixels wider and higher than
    its plane, so that each frame can use a different part of the tile.
    """
    luma_shape = (height + margin, width + margin)
    chroma_shape = (height // 2 + margin, width // 2 + margin, 2)
    luma = [_triangular(luma_shape, 16, rng) for _ in range(count)]
    return luma, [_triangular(chroma_shape, 4, rng) for _ in range(count)]


def _triangular(
    shape: tuple[int, ...], half_range: int, rng: np.random.Generator
) -> NDArray[np.uint8]:
    noise = rng.integers(0, half_range + 1, shape, np.uint8)
    noise += rng.integers(0, half_range + 1, shape, np.uint8)
    return noise


def _texture(
    height: int, width: int, cells: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.float32]:
    """
    Make a smooth random field with values of about -1 to 1.

    The field is a sum of random grids, enlarged to its size. ``cells`` has the number of columns
    of each grid; each grid has half the strength of the one before.
    """
    field = np.zeros((height, width), np.float32)
    for octave, across in enumerate(cells):
        coarse = rng.uniform(-1, 1, (max(across * height // max(width, 1), 2), across)).astype(
            np.float32
        )
        field += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC) * 0.5**octave
    return field


def _store(plane: NDArray[np.uint8], levels: NDArray[np.floating], low: int, high: int) -> None:
    plane[:] = np.clip(levels, low, high).astype(np.uint8)


def _draw_sky(
    luma: NDArray[np.uint8], chroma: NDArray[np.uint8], rng: np.random.Generator
) -> None:
    height, width = luma.shape
    top, bottom = rng.uniform(90, 140), rng.uniform(150, 185)
    ramp = np.linspace(top, bottom, height, dtype=np.float32)[:, None]
    _store(luma, ramp + 16 * _texture(height, width, (5, 11, 23), rng), LUMA_LOW, LUMA_HIGH)
    blue = np.linspace(rng.uniform(20, 34), 6, chroma.shape[0], dtype=np.float32)[:, None]
    _store(chroma[..., 0], np.broadcast_to(128 + blue, chroma.shape[:2]), 16, 232)
    _store(chroma[..., 1], np.broadcast_to(128 - 0.6 * blue, chroma.shape[:2]), 16, 232)


def _draw_ground(
    luma: NDArray[np.uint8], chroma: NDArray[np.uint8], rng: np.random.Generator
) -> None:
    height, width = luma.shape
    _store(
        luma,
        rng.uniform(65, 115) + 22 * _texture(height, width, (9, 40, 120, 260), rng),
        LUMA_LOW,
        LUMA_HIGH,
    )
    for channel, tint in enumerate(rng.uniform(-22, -4, 2)):
        field = 9 * _texture(chroma.shape[0], chroma.shape[1], (7, 30), rng)
        _store(chroma[..., channel], 128 + tint + field, 16, 232)


def _draw_hills(
    luma: NDArray[np.uint8], chroma: NDArray[np.uint8], horizon: int, rng: np.random.Generator
) -> None:
    height, width = luma.shape
    for layer in range(2):
        crests = horizon - height * (0.09 - 0.035 * layer) * rng.uniform(0.2, 1.0, 9)
        line = cv2.resize(
            crests.astype(np.float32)[None], (width, 1), interpolation=cv2.INTER_CUBIC
        )[0]
        x = np.arange(0, width, max(width // 160, 1))
        ridge = np.stack([x, line[x]], axis=1).round().astype(np.int32)
        outline = np.vstack(
            [ridge, [[width, ridge[-1, 1]], [width, horizon], [0, horizon]]]
        ).astype(np.int32)
        cv2.fillPoly(luma, [outline], float(rng.uniform(75, 125)))
        cv2.fillPoly(
            chroma, [outline >> 1], (float(rng.uniform(112, 134)), float(rng.uniform(108, 126)))
        )


def _draw_skyline(
    luma: NDArray[np.uint8], chroma: NDArray[np.uint8], horizon: int, rng: np.random.Generator
) -> None:
    height, width = luma.shape
    for _ in range(int(rng.integers(7, 14))):
        wall = body_colour(rng, PALETTES['all'])
        across, tall = width * rng.uniform(0.025, 0.08), height * rng.uniform(0.05, 0.2)
        left, top = rng.uniform(-across, width), horizon - tall
        _fill_box(luma, chroma, (left, top, left + across, horizon), wall)
        pane = contrasting(wall, rng, PALETTES['all'])
        columns, rows = int(rng.integers(2, 5)), int(rng.integers(2, 6))
        for row in range(rows):
            for column in range(columns):
                x, y = left + across * (column + 0.25) / columns, top + tall * (row + 0.25) / rows
                _fill_box(
                    luma, chroma, (x, y, x + across * 0.5 / columns, y + tall * 0.5 / rows), pane
                )


def _draw_road(
    luma: NDArray[np.uint8],
    chroma: NDArray[np.uint8],
    horizon: int,
    edges: RoadEdges,
    rng: np.random.Generator,
) -> None:
    height, width = luma.shape
    outline = _wedge(edges, edges.left, edges.right, horizon, height)
    asphalt = np.clip(
        rng.uniform(62, 96) + 9 * _texture(height, width, (6, 90, 300), rng), LUMA_LOW, LUMA_HIGH
    ).astype(np.uint8)
    mask = np.zeros((height, width), np.uint8)
    cv2.fillPoly(mask, [outline], 255)
    cv2.copyTo(asphalt, mask, luma)
    cv2.fillPoly(
        chroma, [outline >> 1], (float(rng.uniform(126, 132)), float(rng.uniform(124, 130)))
    )
    line = (edges.right - edges.left) * 0.014
    for edge in (edges.left, edges.right):
        cv2.fillPoly(luma, [_wedge(edges, edge - line, edge + line, horizon, height)], 188)


def _wedge(
    edges: RoadEdges, left: float, right: float, horizon: int, height: int
) -> NDArray[np.int32]:
    x = edges.vanishing_x
    return np.rint([(x, horizon), (right, height), (left, height)]).astype(np.int32)


def _fill_box(
    luma: NDArray[np.uint8],
    chroma: NDArray[np.uint8],
    corners: tuple[float, float, float, float],
    colour: tuple[int, int, int],
) -> None:
    x0, y0, x1, y1 = (round(c) for c in corners)
    cv2.rectangle(luma, (x0, y0), (x1 - 1, y1 - 1), colour[0], cv2.FILLED)
    cv2.rectangle(
        chroma, (x0 // 2, y0 // 2), ((x1 - 1) // 2, (y1 - 1) // 2), colour[1:], cv2.FILLED
    )


CLASS_NAMES: tuple[str, ...] = ('car', 'pedestrian', 'sign', 'cone')
"""The names of the object classes, in the order of ``SceneObject.class_index``."""

FRAMES_PER_SECOND = 30.0
MIN_OBJECT_SIDE = 12
MAX_OBJECT_SIDE = 400
MIN_OBJECTS = 5
MAX_OBJECTS = 40
MIN_VISIBLE = 0.55
MIN_INSIDE = 0.8

# The input size of model ``road``. Objects are scaled with the picture: after the picture has been
# letterboxed to this size, objects have similar sizes, whatever size the picture had.
_REFERENCE_WIDTH, _REFERENCE_HEIGHT = 640, 384
_FOCAL = 420.0
_CAMERA_HEIGHT = 2.0
_ROAD_HALF_WIDTH = 4.6
_LANE = 3.0
_DASH_PERIOD, _DASH_LENGTH = 7.0, 3.0
_NOISE_MARGIN, _NOISE_TILES = 61, 3
_CACHED_LOOKS = 512


@dataclass(frozen=True)
class SceneObject:
    """
    One object of the ground truth.

    ``x, y`` is the top-left corner and ``width, height`` the size, in image pixels, of the tight
    box around the silhouette. The silhouette includes parts hidden by nearer objects, but not
    parts outside of the image. ``visible``, 0 to 1, is the share of the object's pixels that can
    be seen; pixels outside of the image count as hidden. An object keeps its ``identity`` in all
    frames of a scene.
    """

    class_index: int
    x: float
    y: float
    width: float
    height: float
    visible: float
    identity: tuple[int, int]


@dataclass(frozen=True)
class _Kind:
    """A sort of object, such as cars or trees: its look, places (metres) and speeds (m/s)."""

    make: ShapeMaker
    width: tuple[float, float]
    aspect: tuple[float, float]
    lateral: tuple[float, ...]
    jitter: float
    count: tuple[int, int]
    own_speed: tuple[float, float] = (0.0, 0.0)
    sweep: float = 0.0


_OBJECT_KINDS = (
    _Kind(car, (1.75, 2.1), (0.74, 0.86), (-_LANE, 0.0, _LANE), 0.3, (6, 10), (-11.0, 9.0)),
    _Kind(
        pedestrian, (0.84, 0.98), (2.0, 2.3), (-3.5, -1.5, 1.5, 3.5), 1.5, (4, 7), (-1.0, 1.0), 2.2
    ),
    _Kind(sign, (0.9, 1.15), (2.0, 2.6), (-5.4, 5.4), 0.6, (4, 7)),
    _Kind(cone, (0.84, 1.0), (1.15, 1.4), (-4.3, -1.5, 1.5, 4.3), 0.3, (5, 8)),
)
_CLUTTER_KINDS = (
    _Kind(building, (3.0, 7.0), (0.7, 1.6), (-14.0, -9.5, 9.5, 14.0), 2.0, (4, 6)),
    _Kind(tree, (1.6, 3.2), (1.3, 2.0), (-9.0, -6.8, 6.8, 9.0), 0.8, (4, 6)),
    _Kind(bush, (0.9, 2.2), (0.5, 0.9), (-7.0, -5.6, 5.6, 7.0), 0.6, (3, 5)),
    _Kind(crate, (0.8, 1.9), (0.6, 1.3), (-6.5, -5.0, 5.0, 6.5), 0.8, (3, 5)),
    _Kind(barrel, (0.7, 1.0), (1.2, 1.7), (-6.5, -5.0, 5.0, 6.5), 0.6, (2, 4)),
    _Kind(patch, (0.8, 2.4), (0.12, 0.3), (-4.0, -1.5, 1.5, 4.0), 1.2, (4, 7)),
)


@dataclass(frozen=True)
class _Track:
    """
    An endless row of objects, which pass one after the other.

    They travel from distance ``far`` to ``near``, in metres. If ``speed`` is negative,
    they travel from ``near`` to ``far``.
    """

    kind: _Kind
    class_index: int
    number: int
    near: float
    far: float
    phase: float
    speed: float


@dataclass(frozen=True)
class _Look:
    """One object's constant values: outline, size and place (metres), phase of its steps (rad)."""

    shape: Shape
    width: float
    height: float
    lateral: float
    stride: float


@dataclass(frozen=True)
class _Sprite:
    """
    An object placed in the image.

    ``polygons`` are in pixels, ``depth`` is in metres. ``foot`` is the centre of the shadow and
    ``reach`` its half width, in pixels.
    """

    class_index: int
    shape: Shape
    polygons: list[NDArray[np.int32]]
    depth: float
    foot: tuple[int, int]
    reach: int
    identity: tuple[int, int]


class RoadScene:
    """
    Draws the frames of one scene, and returns the objects in each.

    Not thread-safe: each thread needs its own scene.
    """

    def __init__(self, width: int, height: int, seed: int = 0, palette: str = 'all') -> None:
        """
        Make a scene of ``width`` and ``height`` pixels; both must be even and at least 64.

        ``palette`` is a key of :data:`PALETTES`.

        :raises ValueError: the size is odd or below 64, the palette is unknown, or ``seed`` is
            negative.
        """
        check_size(width, height)
        if palette not in PALETTES:
            raise ValueError(f'palette must be one of {", ".join(PALETTES)}, got {palette!r}')
        if seed < 0:
            raise ValueError(f'seed must be 0 or more, got {seed}')
        self.width = width
        self.height = height
        self.seed = seed
        self.palette = palette
        rng = np.random.default_rng((seed, 0))
        self._hues = PALETTES[palette]
        self._lens = _Lens(width, height)
        self._ego_speed = rng.uniform(4.0, 10.0)
        self._objects = self._make_tracks(_OBJECT_KINDS, 0, rng)
        self._clutter = self._make_tracks(_CLUTTER_KINDS, len(self._objects), rng)
        self._backdrop = draw_backdrop(width, height, self._lens.road_edges(), rng)
        self._noise = noise_tiles(width, height, _NOISE_MARGIN, _NOISE_TILES, rng)
        self._looks: OrderedDict[tuple[int, int], _Look] = OrderedDict()
        self._free = np.empty((height, width), np.uint8)
        self._mask = np.empty((MAX_OBJECT_SIDE, MAX_OBJECT_SIDE), np.uint8)

    def draw(
        self, index: int, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]
    ) -> tuple[SceneObject, ...]:
        """
        Draw frame ``index`` and return its ground truth, nearest object first.

        ``index`` is 0 or more; a scene has 30 frames per second. ``luma`` is ``(height, width)``
        and ``chroma`` ``(height/2, width/2, 2)`` with U before V, both writable uint8; rows may be
        padded (the padding stays untouched). Levels are BT.601 limited range.
        """
        objects, sprites = self._visible(index)
        np.copyto(luma, self._backdrop[0])
        np.copyto(chroma, self._backdrop[1])
        self._draw_lanes(index, luma)
        clutter = [self._place(track, index) for track in self._clutter]
        for sprite in sorted(clutter, key=lambda s: -s.depth):
            paint(sprite.polygons, sprite.shape, luma, chroma)
        for sprite in sprites:
            shadow = sprite.reach, max(sprite.reach // 6, 1)
            cv2.ellipse(luma, sprite.foot, shadow, 0, 0, 360, 34, cv2.FILLED)
        for sprite in reversed(sprites):
            paint(sprite.polygons, sprite.shape, luma, chroma)
        self._add_noise(index, luma, chroma)
        return objects

    def truth(self, index: int) -> tuple[SceneObject, ...]:
        """Return the ground truth as :meth:`draw` does, but draw nothing."""
        return self._visible(index)[0]

    def _visible(self, index: int) -> tuple[tuple[SceneObject, ...], list[_Sprite]]:
        """Return frame ``index``'s ground truth and its objects to draw, both nearest first."""
        if index < 0:
            raise ValueError(f'index must be 0 or more, got {index}')
        candidates = sorted(
            (self._place(track, index) for track in self._objects), key=lambda s: s.depth
        )
        # In a tiny picture, a few near objects may leave no room for others. Then try without the
        # nearest objects.
        for first in range(len(candidates) + 1):
            self._free.fill(255)
            objects: list[SceneObject] = []
            sprites: list[_Sprite] = []
            for sprite in candidates[first:]:
                self._accept(sprite, objects, sprites)
            for sprite in self._fillers() if len(objects) < MIN_OBJECTS else ():
                self._accept(sprite, objects, sprites)
                if len(objects) == MIN_OBJECTS:
                    break
            if len(objects) >= MIN_OBJECTS:
                break
        return tuple(objects), sprites

    def _accept(self, sprite: _Sprite, objects: list[SceneObject], sprites: list[_Sprite]) -> None:
        """
        Append ``sprite`` to ``sprites``, and its ground truth to ``objects``.

        Nothing is appended if the sprite is too small or large, or too much cut off or hidden.
        """
        vertices = np.concatenate(sprite.polygons)
        x0, y0 = vertices.min(axis=0).tolist()
        x1, y1 = (vertices.max(axis=0) + 1).tolist()
        left, top, right, bottom = (
            max(x0, 0),
            max(y0, 0),
            min(x1, self.width),
            min(y1, self.height),
        )
        if (
            min(right - left, bottom - top) < MIN_OBJECT_SIDE
            or max(x1 - x0, y1 - y0) > MAX_OBJECT_SIDE
        ):
            return
        inside = self._silhouette(sprite, x0, y0, x1, y1)
        total = cv2.countNonZero(inside)
        if (left, top, right, bottom) != (x0, y0, x1, y1):
            # The image's border cuts this object. Draw the silhouette of the inner part instead of
            # cutting the mask: OpenCV rounds edges a little differently where the border cuts
            # them.
            inside = self._silhouette(sprite, left, top, right, bottom)
            if cv2.countNonZero(inside) < MIN_INSIDE * total:
                return
        free = self._free[top:bottom, left:right]
        shown = cv2.countNonZero(cv2.bitwise_and(free, inside))
        if shown < MIN_VISIBLE * total:
            return
        cv2.subtract(free, inside, free)
        bounds = cv2.boundingRect(inside)
        objects.append(
            SceneObject(
                sprite.class_index,
                float(left + bounds[0]),
                float(top + bounds[1]),
                float(bounds[2]),
                float(bounds[3]),
                min(shown / total, 1.0),
                sprite.identity,
            )
        )
        sprites.append(sprite)

    def _silhouette(
        self, sprite: _Sprite, x0: int, y0: int, x1: int, y1: int
    ) -> NDArray[np.uint8]:
        """Return a mask (0 or 255) of ``sprite`` in a rectangle; the next call overwrites it."""
        mask = self._mask[: y1 - y0, : x1 - x0]
        mask.fill(0)
        for polygon in sprite.polygons:
            cv2.fillPoly(mask, [polygon], 255, offset=(-x0, -y0))
        return mask

    def _make_tracks(
        self, kinds: tuple[_Kind, ...], first_number: int, rng: np.random.Generator
    ) -> list[_Track]:
        tracks: list[_Track] = []
        for class_index, kind in enumerate(kinds):
            near, far = self._lens.depth_range(kind)
            for _ in range(int(rng.integers(kind.count[0], kind.count[1] + 1))):
                phase, speed = (
                    rng.uniform(0.0, far - near),
                    self._ego_speed + rng.uniform(*kind.own_speed),
                )
                tracks.append(
                    _Track(kind, class_index, first_number + len(tracks), near, far, phase, speed)
                )
        return tracks

    def _place(self, track: _Track, index: int) -> _Sprite:
        """Return the object that ``track`` shows in frame ``index``, placed in the image."""
        seconds = index / FRAMES_PER_SECOND
        cycle, travelled = divmod(track.phase + track.speed * seconds, track.far - track.near)
        look = self._look(track, int(cycle))
        gait = math.sin(look.stride + 7.0 * seconds)
        lateral = look.lateral + track.kind.sweep * math.sin(look.stride + 0.55 * seconds)
        return self._lens.sprite(
            track.class_index,
            look,
            lateral,
            track.far - travelled,
            gait,
            (track.number, int(cycle)),
        )

    def _look(self, track: _Track, cycle: int) -> _Look:
        key = (track.number, cycle)
        look = self._looks.get(key)
        if look is None:
            hues = self._hues if track.kind in _OBJECT_KINDS else PALETTES['all']
            # ``cycle`` is the object's number in its track. It is negative if the track's objects
            # move away from the camera, but a seed can't be negative.
            rng = np.random.default_rng((self.seed, 1, track.number, abs(cycle), int(cycle < 0)))
            look = _make_look(track.kind, hues, rng)
            self._looks[key] = look
            if len(self._looks) > _CACHED_LOOKS:
                self._looks.popitem(last=False)
        return look

    def _fillers(self) -> Iterator[_Sprite]:
        """Yield small standing objects all over the image, for frames with too few objects."""
        side = self._lens.smallest * 1.3
        step = max(round(side), 1)
        number = 0
        for y in range(step * 2, self.height, step):
            for x in range(step, self.width - step // 2, step):
                class_index = number % len(_OBJECT_KINDS)
                kind = _OBJECT_KINDS[class_index]
                look = _make_look(kind, self._hues, np.random.default_rng((self.seed, 2, number)))
                scale = side / min(look.width, look.height)
                polygons = look.shape.polygons(x, y, look.width * scale, look.height * scale, 0.0)
                yield _Sprite(
                    class_index, look.shape, polygons, math.inf, (x, y), step, (-1, number)
                )
                number += 1

    def _draw_lanes(self, index: int, luma: NDArray[np.uint8]) -> None:
        lens = self._lens
        shift = self._ego_speed * index / FRAMES_PER_SECOND % _DASH_PERIOD
        for dash in range(8):
            near = max(lens.bottom_depth * 0.8, dash * _DASH_PERIOD + lens.bottom_depth - shift)
            far = dash * _DASH_PERIOD + lens.bottom_depth - shift + _DASH_LENGTH
            if far <= near:
                continue
            for x in (-_LANE / 2, _LANE / 2):
                corners = [
                    lens.ground(x - 0.07, near),
                    lens.ground(x + 0.07, near),
                    lens.ground(x + 0.07, far),
                    lens.ground(x - 0.07, far),
                ]
                cv2.fillPoly(luma, [np.array(corners).round().astype(np.int32)], 180)

    def _add_noise(self, index: int, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
        rng = np.random.default_rng((self.seed, 3, index))
        tile, y, x = (
            int(n) for n in rng.integers(0, (_NOISE_TILES, _NOISE_MARGIN, _NOISE_MARGIN))
        )
        luma_tile, chroma_tile = self._noise[0][tile], self._noise[1][tile]
        cv2.add(luma, luma_tile[y:, x:][: self.height, : self.width], luma)
        cv2.add(chroma, chroma_tile[y:, x:][: self.height // 2, : self.width // 2], chroma)


class _Lens:
    """Perspective of the ego camera: converts metres on the road to pixels."""

    def __init__(self, width: int, height: int) -> None:
        across, down = width / _REFERENCE_WIDTH, height / _REFERENCE_HEIGHT
        # Limit the scale. Without the limit, objects in a very wide or very tall frame would be
        # larger than the frame's shorter side.
        self.scale = min(max(across, down), 2 * min(across, down))
        self._centre_x = width / 2
        self._horizon = height * HORIZON
        self._focal_x = _FOCAL * across
        self._focal_y = _FOCAL * height / 360
        self._height = height
        shorter = min(width, height)
        self.smallest = min(max(MIN_OBJECT_SIDE + 1.5, 14.5 * self.scale), 0.45 * MAX_OBJECT_SIDE)
        self.largest = max(min(0.96 * MAX_OBJECT_SIDE, 0.62 * shorter), 2.2 * self.smallest)
        self.bottom_depth = self._focal_y * _CAMERA_HEIGHT / (height - self._horizon)

    def ground(self, lateral: float, depth: float) -> tuple[float, float]:
        """Return the pixel of the road's point ``lateral`` m to the right, ``depth`` m ahead."""
        return (
            self._centre_x + self._focal_x * lateral / depth,
            self._horizon + self._focal_y * _CAMERA_HEIGHT / depth,
        )

    def road_edges(self) -> RoadEdges:
        """Return the road's edges, :data:`_ROAD_HALF_WIDTH` metres from its middle."""
        left, right = (
            self.ground(side * _ROAD_HALF_WIDTH, self.bottom_depth)[0] for side in (-1, 1)
        )
        return RoadEdges(left, right, self._centre_x)

    def depth_range(self, kind: _Kind) -> tuple[float, float]:
        """
        Return the nearest and farthest depth for objects of ``kind``, in metres.

        Between them, every object of the kind has an allowed size and can be inside the image.
        """
        focal = _FOCAL * self.scale
        thinnest = kind.width[0] * min(kind.aspect[0], 1.0)
        longest = kind.width[1] * max(kind.aspect[1], 1.0)
        far = focal * thinnest / self.smallest if kind in _OBJECT_KINDS else 40.0
        beside = min(abs(x) for x in kind.lateral) - kind.jitter - kind.sweep
        near = max(
            focal * longest / self.largest,
            self.bottom_depth * 1.02,
            self._focal_x * beside / self._centre_x,
        )
        return min(near, 0.7 * far), far

    def sprite(
        self,
        class_index: int,
        look: _Look,
        lateral: float,
        depth: float,
        swing: float,
        identity: tuple[int, int],
    ) -> _Sprite:
        """Place an object on the road, ``lateral`` metres to the right, ``depth`` metres ahead."""
        x, y = self.ground(lateral, depth)
        pixels = _FOCAL * self.scale / depth
        width, height = look.width * pixels, look.height * pixels
        polygons = look.shape.polygons(x, y, width, height, swing)
        return _Sprite(
            class_index,
            look.shape,
            polygons,
            depth,
            (round(x), round(y)),
            round(width * 0.55),
            identity,
        )


def _make_look(kind: _Kind, hues: tuple[float, float], rng: np.random.Generator) -> _Look:
    width, aspect = rng.uniform(*kind.width), rng.uniform(*kind.aspect)
    shape = kind.make(rng, hues, 1 / aspect)
    lateral = rng.choice(kind.lateral) + rng.uniform(-kind.jitter, kind.jitter)
    return _Look(shape, width, width * aspect, lateral, rng.uniform(0.0, 2 * math.pi))
