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
Outlines and colours of everything that stands in the synthetic road scene.

A shape is a painter's list of polygons in a unit frame: x runs from -0.5 to 0.5 across the object,
y from -1 (top) to 0 (the ground). Classes differ by outline only: every body colour of every class
comes from :func:`body_colour`. Colours are ``(Y, U, V)`` levels in BT.601 limited range, without
the noise that the scene adds on top.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
import math

import cv2
import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]
Points = list[tuple[float, float]]

LUMA_LOW = 16
LUMA_HIGH = 203
"""Highest level drawn: the noise adds up to 32 and the sum must stay a legal luma (235)."""

PALETTES: dict[str, tuple[float, float]] = {
    'all': (0.0, 360.0),
    'train': (0.0, 200.0),
    'held_out': (220.0, 340.0),
}
"""Hue range of object bodies, in degrees of ``atan2(V - 128, U - 128)``."""


@dataclass(frozen=True)
class Part:
    """One filled polygon: vertices ``start`` to ``stop`` of its shape, in one colour."""

    start: int
    stop: int
    colour: Colour


class Shape:
    """Polygons in painter's order. Once it is drawn, nothing is added to it any more."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._points: Points = []
        self._sway: Points = []

    def add(self, points: Points, colour: Colour, sway: Points | None = None) -> None:
        """
        Append a polygon in the unit frame.

        ``sway`` is what a swing of 1 adds to each vertex; none means that it does not move.
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
        Return vertices in whole pixels, one ``(k, 2)`` array per part.

        ``x, y`` is the middle of the foot in pixels, ``width, height`` the size in pixels,
        ``swing`` -1 to 1.
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
    """
    Fill ``polygons`` of ``shape`` into ``luma`` and ``chroma``; parts outside are clipped.

    ``luma`` is (h, w), ``chroma`` (h/2, w/2, 2).
    """
    for polygon, part in zip(polygons, shape.parts, strict=True):
        level, u, v = part.colour
        cv2.fillPoly(luma, [polygon], level)
        cv2.fillPoly(chroma, [polygon >> 1], (u, v))


def body_colour(rng: np.random.Generator, hues: tuple[float, float]) -> Colour:
    """
    Return a colour from the one distribution that all classes and all clutter share.

    Its hue is within ``hues`` (degrees).
    """
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
    """Return a grey of about ``level``."""
    u, v = rng.integers(122, 135, 2)
    return clamp_luma(level), int(u), int(v)


def clamp_luma(level: float) -> int:
    """Return ``level`` as a drawable luma."""
    return int(min(max(level, LUMA_LOW), LUMA_HIGH))


def _opposite(level: int, rng: np.random.Generator) -> int:
    distance = rng.uniform(50, 110)
    upward = level + distance <= LUMA_HIGH and (level - distance < LUMA_LOW or rng.random() < 0.5)
    return clamp_luma(level + distance if upward else level - distance)


def box(x0: float, y0: float, x1: float, y1: float) -> Points:
    """Return an upright rectangle."""
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
    """Return a regular polygon stretched to an ellipse; ``turn`` is in radians."""
    angles = [turn + 2 * math.pi * k / corners for k in range(corners)]
    return [(x + half_width * math.sin(a), y - half_height * math.cos(a)) for a in angles]


def car(rng: np.random.Generator, hues: tuple[float, float], aspect: float) -> Shape:
    """
    Make a car from behind or ahead.

    It has a body, a narrower cabin with a window, two wheels, two lights and a plate.
    """
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
Sign boards of width 1: corners, turn, circumradius, and how far the centre lies below the top.
"""


def sign(rng: np.random.Generator, hues: tuple[float, float], aspect: float) -> Shape:
    """Make a board with a contrasting rim and a bar on it, on a pole."""
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
    """Make a box with a lid line: a body's colours and size, but no class's outline."""
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
