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
The synthetic camera's picture: an animated road with exact ground truth.

It is drawn straight into NV12 planes.

The ego camera drives along a straight road through an endless stream of cars, pedestrians, signs
and cones. Everything is a function of ``(width, height, seed, palette, index)``: frames may be
drawn in any order and come out the same. What does not move (sky, hills, skyline, ground, road) is
drawn once; :mod:`~zc_perception.camera.scene_shapes` has the outlines and colours of the objects.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
import math

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera import scene_shapes as shapes

HORIZON = 0.4
"""Height of the horizon as a fraction of the image's height."""

Planes = tuple[NDArray[np.uint8], NDArray[np.uint8]]


@dataclass(frozen=True)
class RoadEdges:
    """
    Where the road's left and right edge meet the bottom row.

    Both meet the horizon at ``vanishing_x``. The unit is pixels.
    """

    left: float
    right: float
    vanishing_x: float


def draw_backdrop(width: int, height: int, edges: RoadEdges, rng: np.random.Generator) -> Planes:
    """
    Draw the still background.

    It is luma ``(height, width)`` and chroma ``(height/2, width/2, 2)``, both uint8.
    """
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
    Make ``count`` tiles of luma noise (0..32, triangular) and of chroma noise (0..8).

    They are ``margin`` pixels larger than the planes.
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
    Make a smooth random field of about -1 to 1.

    It has one octave per entry of ``cells`` (cells across), halving in strength.
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
    _store(
        luma,
        ramp + 16 * _texture(height, width, (5, 11, 23), rng),
        shapes.LUMA_LOW,
        shapes.LUMA_HIGH,
    )
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
        shapes.LUMA_LOW,
        shapes.LUMA_HIGH,
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
        wall = shapes.body_colour(rng, shapes.PALETTES['all'])
        across, tall = width * rng.uniform(0.025, 0.08), height * rng.uniform(0.05, 0.2)
        left, top = rng.uniform(-across, width), horizon - tall
        _fill_box(luma, chroma, (left, top, left + across, horizon), wall)
        pane = shapes.contrasting(wall, rng, shapes.PALETTES['all'])
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
        rng.uniform(62, 96) + 9 * _texture(height, width, (6, 90, 300), rng),
        shapes.LUMA_LOW,
        shapes.LUMA_HIGH,
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
"""Names in the order of ``SceneObject.class_index``."""

FRAMES_PER_SECOND = 30.0
MIN_FRAME_SIDE = 64
MIN_OBJECT_SIDE = 12
MAX_OBJECT_SIDE = 400
MIN_OBJECTS = 5
MAX_OBJECTS = 40
MIN_VISIBLE = 0.55
MIN_INSIDE = 0.8

# The size that models see: objects are scaled to look alike once the frame is letterboxed to it.
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
    box around the whole silhouette clipped to the image (parts hidden by nearer objects included);
    ``visible`` is the share of the silhouette's pixels that can be seen, 0 to 1. ``identity`` is
    the same for the same thing in all frames of a scene.
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
    """
    What a sort of thing looks like and where it stands.

    Lengths in metres, speeds in metres per second.
    """

    make: shapes.ShapeMaker
    width: tuple[float, float]
    aspect: tuple[float, float]
    lateral: tuple[float, ...]
    jitter: float
    count: tuple[int, int]
    own_speed: tuple[float, float] = (0.0, 0.0)
    sweep: float = 0.0


_OBJECT_KINDS = (
    _Kind(shapes.car, (1.75, 2.1), (0.74, 0.86), (-_LANE, 0.0, _LANE), 0.3, (6, 10), (-11.0, 9.0)),
    _Kind(
        shapes.pedestrian,
        (0.84, 0.98),
        (2.0, 2.3),
        (-3.5, -1.5, 1.5, 3.5),
        1.5,
        (4, 7),
        (-1.0, 1.0),
        2.2,
    ),
    _Kind(shapes.sign, (0.9, 1.15), (2.0, 2.6), (-5.4, 5.4), 0.6, (4, 7)),
    _Kind(shapes.cone, (0.84, 1.0), (1.15, 1.4), (-4.3, -1.5, 1.5, 4.3), 0.3, (5, 8)),
)
_CLUTTER_KINDS = (
    _Kind(shapes.building, (3.0, 7.0), (0.7, 1.6), (-14.0, -9.5, 9.5, 14.0), 2.0, (4, 6)),
    _Kind(shapes.tree, (1.6, 3.2), (1.3, 2.0), (-9.0, -6.8, 6.8, 9.0), 0.8, (4, 6)),
    _Kind(shapes.bush, (0.9, 2.2), (0.5, 0.9), (-7.0, -5.6, 5.6, 7.0), 0.6, (3, 5)),
    _Kind(shapes.crate, (0.8, 1.9), (0.6, 1.3), (-6.5, -5.0, 5.0, 6.5), 0.8, (3, 5)),
    _Kind(shapes.barrel, (0.7, 1.0), (1.2, 1.7), (-6.5, -5.0, 5.0, 6.5), 0.6, (2, 4)),
    _Kind(shapes.patch, (0.8, 2.4), (0.12, 0.3), (-4.0, -1.5, 1.5, 4.0), 1.2, (4, 7)),
)


@dataclass(frozen=True)
class _Track:
    """
    An endless row of things of one kind.

    One thing at a time travels from ``far`` to ``near``, then the next starts.
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
    """What is drawn once per thing: its outline, size (metres) and place across the road."""

    shape: shapes.Shape
    width: float
    height: float
    lateral: float
    stride: float


@dataclass(frozen=True)
class _Sprite:
    """
    A thing placed in the image.

    ``polygons`` are in pixels, ``depth`` in metres, ``foot`` and ``reach`` in pixels.
    """

    class_index: int
    shape: shapes.Shape
    polygons: list[NDArray[np.int32]]
    depth: float
    foot: tuple[int, int]
    reach: int
    identity: tuple[int, int]


class RoadScene:
    """
    Draws frames of one scene and tells what is in them.

    Not thread-safe: each thread needs its own.
    """

    def __init__(self, width: int, height: int, seed: int = 0, palette: str = 'all') -> None:
        """
        Make a scene of ``width`` and ``height`` pixels, even and at least 64.

        ``palette`` is one of ``scene_shapes.PALETTES``. It raises ValueError for anything else,
        and for a negative ``seed``.
        """
        check_size(width, height)
        if palette not in shapes.PALETTES:
            raise ValueError(
                f'palette must be one of {", ".join(shapes.PALETTES)}, got {palette!r}'
            )
        if seed < 0:
            raise ValueError(f'seed must be 0 or more, got {seed}')
        self.width = width
        self.height = height
        self.seed = seed
        self.palette = palette
        rng = np.random.default_rng((seed, 0))
        self._hues = shapes.PALETTES[palette]
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

        ``index`` is 0 or more, 30 per second. ``luma`` is ``(height, width)`` and ``chroma``
        ``(height/2, width/2, 2)`` with U before V, both writable uint8; rows may be padded (the
        padding stays untouched). Levels are BT.601 limited range.
        """
        objects, sprites = self._visible(index)
        np.copyto(luma, self._backdrop[0])
        np.copyto(chroma, self._backdrop[1])
        self._draw_lanes(index, luma)
        clutter = [self._place(track, index) for track in self._clutter]
        for sprite in sorted(clutter, key=lambda s: -s.depth):
            shapes.paint(sprite.polygons, sprite.shape, luma, chroma)
        for sprite in sprites:
            self._draw_shadow(sprite, luma)
        for sprite in reversed(sprites):
            shapes.paint(sprite.polygons, sprite.shape, luma, chroma)
        self._add_noise(index, luma, chroma)
        return objects

    def truth(self, index: int) -> tuple[SceneObject, ...]:
        """
        Return what :meth:`draw` returns for frame ``index``, without drawing.

        It raises ValueError for a negative index.
        """
        return self._visible(index)[0]

    def _visible(self, index: int) -> tuple[tuple[SceneObject, ...], list[_Sprite]]:
        """Return the accepted objects and their sprites, nearest first."""
        if index < 0:
            raise ValueError(f'index must be 0 or more, got {index}')
        candidates = sorted(
            (self._place(track, index) for track in self._objects), key=lambda s: s.depth
        )
        # In a tiny picture, few near ones may leave no room: the nearest gives way then.
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
        Take ``sprite`` behind all accepted ones.

        It isn't taken if it would be too hidden, cut off, small or large.
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
            # Drawn again rather than cut out: OpenCV rounds edges that the image cuts a little
            # differently.
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
        """
        Return a mask (0 or 255) of ``sprite``'s pixels within a part of the image.

        It is valid until the next call.
        """
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
        """Return the thing of ``track`` that is on its way in frame ``index``."""
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
            hues = self._hues if track.kind in _OBJECT_KINDS else shapes.PALETTES['all']
            # Cycles of receding things count down from 0, and seeds cannot be negative.
            rng = np.random.default_rng((self.seed, 1, track.number, abs(cycle), int(cycle < 0)))
            look = _make_look(track.kind, hues, rng)
            self._looks[key] = look
            if len(self._looks) > _CACHED_LOOKS:
                self._looks.popitem(last=False)
        return look

    def _fillers(self) -> Iterator[_Sprite]:
        """
        Place small standing objects all over the image.

        They serve frames in which too few of the moving ones can be seen.
        """
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

    def _draw_shadow(self, sprite: _Sprite, luma: NDArray[np.uint8]) -> None:
        cv2.ellipse(
            luma, sprite.foot, (sprite.reach, max(sprite.reach // 6, 1)), 0, 0, 360, 34, cv2.FILLED
        )

    def _add_noise(self, index: int, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
        rng = np.random.default_rng((self.seed, 3, index))
        tile, y, x = (
            int(n) for n in rng.integers(0, (_NOISE_TILES, _NOISE_MARGIN, _NOISE_MARGIN))
        )
        luma_tile, chroma_tile = self._noise[0][tile], self._noise[1][tile]
        cv2.add(luma, luma_tile[y:, x:][: self.height, : self.width], luma)
        cv2.add(chroma, chroma_tile[y:, x:][: self.height // 2, : self.width // 2], chroma)


class _Lens:
    """Perspective of the ego camera: metres on the road to pixels."""

    def __init__(self, width: int, height: int) -> None:
        across, down = width / _REFERENCE_WIDTH, height / _REFERENCE_HEIGHT
        # Very long or very tall frames are letterboxed so small that objects would no longer fit
        # across them.
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
        """
        Return the pixel of a point on the road's surface.

        The point is ``lateral`` metres to the right and ``depth`` metres ahead.
        """
        return (
            self._centre_x + self._focal_x * lateral / depth,
            self._horizon + self._focal_y * _CAMERA_HEIGHT / depth,
        )

    def road_edges(self) -> RoadEdges:
        """Return the road's edges at the bottom of the image."""
        left, right = (
            self.ground(side * _ROAD_HALF_WIDTH, self.bottom_depth)[0] for side in (-1, 1)
        )
        return RoadEdges(left, right, self._centre_x)

    def depth_range(self, kind: _Kind) -> tuple[float, float]:
        """
        Return the nearest and farthest depth for things of ``kind``.

        At these depths every one of them has an allowed size and can be in the image.
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
        """``look`` standing on the road at ``lateral`` and ``depth``."""
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


def check_size(width: int, height: int) -> None:
    """
    Refuse sizes that neither a scene nor a pattern can have.

    :raises ValueError: odd, or smaller than 64.
    """
    for name, side in (('width', width), ('height', height)):
        if side < MIN_FRAME_SIDE or side % 2:
            raise ValueError(
                f'{name} must be an even number of at least {MIN_FRAME_SIDE} pixels, got {side}'
            )
