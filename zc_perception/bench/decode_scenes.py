"""What heads are measured on: a YOLOv8's raw levels for 100 objects, as int8 and as the decoded float tensor of the same numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor

CLASSES, BINS, SIDE = 80, 16, 640
STRIDES = (8, 16, 32)
OBJECTS = 100
# Cells for each object in the scene with few candidates.
SPARSE = 3
LIMITS = DecodeLimits(0.25, 0.45, 300)
BOX = Letterbox.fit(1920, 1080, SIDE, SIDE)
SPEC = HeadSpec('yolov8', CLASSES, (SIDE, SIDE), STRIDES, reg_max=BINS)
# Logits of what is no object: sigmoid −9 is 0.0001.
_BACKGROUND, _SPREAD = -9.0, 1.2
_SCALE, _ZERO_POINT = 0.125, 20


@dataclass(frozen=True, eq=False)
class Level:
    """One grid: (cells down, cells across, 4 · bins) and (…, classes), int8; real = (value − zero point) · scale."""

    stride: int
    boxes: NDArray[np.int8]
    scores: NDArray[np.int8]


def real(values: NDArray[np.int8]) -> NDArray[np.float32]:
    """Of a level's values."""
    numbers: NDArray[np.float32] = (values.astype(np.float32) - np.float32(_ZERO_POINT)) * np.float32(_SCALE)
    return numbers


def _quantised(values: NDArray[np.floating]) -> NDArray[np.int8]:
    raw: NDArray[np.int8] = np.clip(np.rint(values / _SCALE + _ZERO_POINT), -128, 127).astype(np.int8)
    return raw


@dataclass(frozen=True)
class _Object:
    """Its class, corners in input pixels, and the index of the grid that finds it."""

    kind: int
    corners: tuple[float, float, float, float]
    level: int

    def cells(self) -> list[tuple[int, int]]:
        """Those of its grid, row and column, whose centres lie in it: the one in the middle first."""
        x0, y0, x1, y1 = self.corners
        stride = STRIDES[self.level]
        middle = ((y0 + y1) / 2 / stride - 0.5, (x0 + x1) / 2 / stride - 0.5)
        rows = range(math.ceil(y0 / stride - 0.5), math.floor(y1 / stride - 0.5) + 1)
        columns = range(math.ceil(x0 / stride - 0.5), math.floor(x1 / stride - 0.5) + 1)
        return sorted(((row, column) for row in rows for column in columns), key=lambda cell: math.dist(cell, middle))


def _place_objects(random: np.random.Generator) -> list[_Object]:
    """Side by side in the letterbox's picture and apart from its border, so that no box suppresses another's or is clipped."""
    columns = 10
    across, down = BOX.width / columns, BOX.height / (OBJECTS // columns)
    objects = []
    for number in range(OBJECTS):
        row, column = divmod(number, columns)
        x, y = BOX.left + (column + 0.5) * across, BOX.top + (row + 0.5) * down
        width, height = random.uniform(0.6, 0.95) * across, random.uniform(0.6, 0.95) * down
        corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        objects.append(_Object(int(random.integers(CLASSES)), corners, int(random.choice(2, p=(0.8, 0.2)))))
    return objects


def make_levels(seed: int = 1, cells: int | None = None) -> list[Level]:
    """Each object is found by all cells in it, best in the middle, with boxes a little apart.

    :param cells: of each object that find it at most.
    """
    random = np.random.default_rng(seed)
    grids = [SIDE // stride for stride in STRIDES]
    distances = [random.normal(0, 0.5, (n, n, 4, BINS)) for n in grids]
    scores = [random.normal(_BACKGROUND, _SPREAD, (n, n, CLASSES)) for n in grids]
    for one in _place_objects(random):
        stride = STRIDES[one.level]
        for rank, (row, column) in enumerate(one.cells()[:cells]):
            at = np.array([column + 0.5, row + 0.5]) * stride
            sides = np.concatenate([at - one.corners[:2], np.array(one.corners[2:]) - at]) + random.normal(0, 0.7, 4)
            scores[one.level][row, column, one.kind] = 2.5 - 0.15 * rank + random.normal(0, 0.3)
            for side, place in enumerate(np.clip(sides / stride, 0, BINS - 1.01)):
                below = int(place)
                distances[one.level][row, column, side, below] = 8.0
                distances[one.level][row, column, side, below + 1] = 8.0 + math.log(max(1e-3, place - below) / (1.001 - place + below))
    return [
        Level(stride, _quantised(distance.reshape(n, n, 4 * BINS)), _quantised(score))
        for stride, n, distance, score in zip(STRIDES, grids, distances, scores, strict=True)
    ]


def raw_outputs(levels: list[Level]) -> list[RawTensor]:
    """As a compiled model yields them: boxes and scores of each grid, NHWC, in buffers whose channels are padded to 64 or 128."""
    outputs = []
    for level in levels:
        for values in (level.boxes, level.scores):
            padded = np.full((1, *values.shape[:2], -(-values.shape[2] // 64) * 64), _ZERO_POINT, np.int8)
            padded[0, :, :, : values.shape[2]] = values
            outputs.append(RawTensor(padded[..., : values.shape[2]], _SCALE, _ZERO_POINT, 'nhwc', f'stride{level.stride}'))
    return outputs


def decode_levels(boxes: list[NDArray[np.float32]], scores: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The network's own last layers in numpy: (4 + classes, cells) of centre and size in input pixels, and probabilities.

    :param boxes: (cells down, cells across, 4 · bins) of each level.
    :param scores: (cells down, cells across, classes), logits.
    """
    parts = []
    for stride, distance, logits in zip(STRIDES, boxes, scores, strict=True):
        n = distance.shape[0]
        shares = np.exp(distance.reshape(n * n, 4, BINS))
        shares /= shares.sum(axis=2, keepdims=True)
        sides = (shares @ np.arange(BINS, dtype=np.float32)) * np.float32(stride)
        down, across = np.divmod(np.arange(n * n), n)
        centres = (np.stack([across, down], axis=1) + np.float32(0.5)).astype(np.float32) * np.float32(stride)
        low, high = centres - sides[:, :2], centres + sides[:, 2:]
        probabilities = np.float32(1) / (np.float32(1) + np.exp(-logits.reshape(n * n, -1)))
        parts.append(np.concatenate([(low + high) / 2, high - low, probabilities], axis=1).T)
    return np.ascontiguousarray(np.concatenate(parts, axis=1), np.float32)


def decoded_output(levels: list[Level]) -> RawTensor:
    """1 × 84 × 8400 float32, as an exported YOLOv8 yields it."""
    return RawTensor(decode_levels([real(level.boxes) for level in levels], [real(level.scores) for level in levels])[None])
