"""What does not move in the synthetic road scene: sky, hills, skyline, ground, road; and the noise over everything."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.scene_shapes import LUMA_HIGH, LUMA_LOW, PALETTES, body_colour, contrasting

HORIZON = 0.4
"""Height of the horizon as a fraction of the image's height."""

Planes = tuple[NDArray[np.uint8], NDArray[np.uint8]]


@dataclass(frozen=True)
class RoadEdges:
    """Where the road's left and right edge meet the bottom row; both meet the horizon at ``vanishing_x``. Pixels."""

    left: float
    right: float
    vanishing_x: float


def draw_backdrop(width: int, height: int, edges: RoadEdges, rng: np.random.Generator) -> Planes:
    """The still background as luma ``(height, width)`` and chroma ``(height/2, width/2, 2)``, both uint8."""
    luma = np.empty((height, width), np.uint8)
    chroma = np.empty((height // 2, width // 2, 2), np.uint8)
    horizon = round(height * HORIZON)
    _draw_sky(luma[:horizon], chroma[: horizon // 2], rng)
    _draw_ground(luma[horizon:], chroma[horizon // 2 :], rng)
    _draw_hills(luma, chroma, horizon, rng)
    _draw_skyline(luma, chroma, horizon, rng)
    _draw_road(luma, chroma, horizon, edges, rng)
    return luma, chroma


def noise_tiles(
    width: int, height: int, margin: int, count: int, rng: np.random.Generator
) -> tuple[list[NDArray[np.uint8]], list[NDArray[np.uint8]]]:
    """``count`` luma tiles (0..32, triangular) and chroma tiles (0..8), ``margin`` pixels larger than the planes."""
    luma_shape = (height + margin, width + margin)
    chroma_shape = (height // 2 + margin, width // 2 + margin, 2)
    luma = [_triangular(luma_shape, 16, rng) for _ in range(count)]
    return luma, [_triangular(chroma_shape, 4, rng) for _ in range(count)]


def _triangular(shape: tuple[int, ...], half_range: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    noise = rng.integers(0, half_range + 1, shape, np.uint8)
    noise += rng.integers(0, half_range + 1, shape, np.uint8)
    return noise


def _texture(height: int, width: int, cells: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
    """Smooth random field of about -1 to 1: one octave per entry of ``cells`` (cells across), halving in strength."""
    field = np.zeros((height, width), np.float32)
    for octave, across in enumerate(cells):
        coarse = rng.uniform(-1, 1, (max(across * height // max(width, 1), 2), across)).astype(np.float32)
        field += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC) * 0.5**octave
    return field


def _store(plane: NDArray[np.uint8], levels: NDArray[np.floating], low: int, high: int) -> None:
    plane[:] = np.clip(levels, low, high).astype(np.uint8)


def _draw_sky(luma: NDArray[np.uint8], chroma: NDArray[np.uint8], rng: np.random.Generator) -> None:
    height, width = luma.shape
    top, bottom = rng.uniform(90, 140), rng.uniform(150, 185)
    ramp = np.linspace(top, bottom, height, dtype=np.float32)[:, None]
    _store(luma, ramp + 16 * _texture(height, width, (5, 11, 23), rng), LUMA_LOW, LUMA_HIGH)
    blue = np.linspace(rng.uniform(20, 34), 6, chroma.shape[0], dtype=np.float32)[:, None]
    _store(chroma[..., 0], np.broadcast_to(128 + blue, chroma.shape[:2]), 16, 232)
    _store(chroma[..., 1], np.broadcast_to(128 - 0.6 * blue, chroma.shape[:2]), 16, 232)


def _draw_ground(luma: NDArray[np.uint8], chroma: NDArray[np.uint8], rng: np.random.Generator) -> None:
    height, width = luma.shape
    _store(luma, rng.uniform(65, 115) + 22 * _texture(height, width, (9, 40, 120, 260), rng), LUMA_LOW, LUMA_HIGH)
    for channel, tint in enumerate(rng.uniform(-22, -4, 2)):
        field = 9 * _texture(chroma.shape[0], chroma.shape[1], (7, 30), rng)
        _store(chroma[..., channel], 128 + tint + field, 16, 232)


def _draw_hills(luma: NDArray[np.uint8], chroma: NDArray[np.uint8], horizon: int, rng: np.random.Generator) -> None:
    height, width = luma.shape
    for layer in range(2):
        crests = horizon - height * (0.09 - 0.035 * layer) * rng.uniform(0.2, 1.0, 9)
        line = cv2.resize(crests.astype(np.float32)[None], (width, 1), interpolation=cv2.INTER_CUBIC)[0]
        x = np.arange(0, width, max(width // 160, 1))
        ridge = np.stack([x, line[x]], axis=1).round().astype(np.int32)
        outline = np.vstack([ridge, [[width, ridge[-1, 1]], [width, horizon], [0, horizon]]]).astype(np.int32)
        cv2.fillPoly(luma, [outline], float(rng.uniform(75, 125)))
        cv2.fillPoly(chroma, [outline >> 1], (float(rng.uniform(112, 134)), float(rng.uniform(108, 126))))


def _draw_skyline(luma: NDArray[np.uint8], chroma: NDArray[np.uint8], horizon: int, rng: np.random.Generator) -> None:
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
                _fill_box(luma, chroma, (x, y, x + across * 0.5 / columns, y + tall * 0.5 / rows), pane)


def _draw_road(
    luma: NDArray[np.uint8], chroma: NDArray[np.uint8], horizon: int, edges: RoadEdges, rng: np.random.Generator
) -> None:
    height, width = luma.shape
    outline = _wedge(edges, edges.left, edges.right, horizon, height)
    asphalt = np.clip(
        rng.uniform(62, 96) + 9 * _texture(height, width, (6, 90, 300), rng), LUMA_LOW, LUMA_HIGH
    ).astype(np.uint8)
    mask = np.zeros((height, width), np.uint8)
    cv2.fillPoly(mask, [outline], 255)
    cv2.copyTo(asphalt, mask, luma)
    cv2.fillPoly(chroma, [outline >> 1], (float(rng.uniform(126, 132)), float(rng.uniform(124, 130))))
    line = (edges.right - edges.left) * 0.014
    for edge in (edges.left, edges.right):
        cv2.fillPoly(luma, [_wedge(edges, edge - line, edge + line, horizon, height)], 188)


def _wedge(edges: RoadEdges, left: float, right: float, horizon: int, height: int) -> NDArray[np.int32]:
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
    cv2.rectangle(chroma, (x0 // 2, y0 // 2), ((x1 - 1) // 2, (y1 - 1) // 2), colour[1:], cv2.FILLED)
