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
The cases of ``zc_bench decode``: a frame's input tensor, its boxes, and 20 masks of a YOLOv8-seg.

It compares this package with code that one would write without it. The file has, in this order: a
scene (a YOLOv8's raw int8 levels for 100 objects, and the same numbers as its decoded float
tensor), the conversions from NV12 to a quantised input tensor, decoders of the same boxes by
OpenCV and NumPy, and the measurement.

Everything runs on one CPU, and OpenCV uses one thread. Each repetition measures every variant of
every case in a new order. First it checks that the variants of a case yield the same result,
because a quicker wrong answer must not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
from dataclasses import dataclass
import math
import os
import random
import time
from typing import Any

from bench.rows import Condition, make_rows, Measuring, Row, Series
from bench.subcommand import FULL_HD, repetitions, Say, UHD_4K
from bench.worker import BenchError
import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.road_scene import RoadScene
from zc_perception.detection.detections import Detections
from zc_perception.detection.extras import MaskPainter
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.detection.tensor import PlanesToQuantised, QuantisedTensorSpec
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.conversion import ToPicture
from zc_perception.pixel.fourcc import NV12

CLASSES, BINS, SIDE = 80, 16, 640
STRIDES = (8, 16, 32)
OBJECTS = 100
# In the scene with few candidates, this many cells find each object.
SPARSE = 3
LIMITS = DecodeLimits(0.25, 0.45, 300)
BOX = Letterbox.fit(1920, 1080, SIDE, SIDE)
SPEC = HeadSpec('yolov8', CLASSES, (SIDE, SIDE), strides=STRIDES, reg_max=BINS)
# Mean and standard deviation of the background's logits; sigmoid(−9) is 0.0001.
_BACKGROUND, _SPREAD = -9.0, 1.2
_SCALE, _ZERO_POINT = 0.125, 20


@dataclass(frozen=True, eq=False)
class Level:
    """
    The int8 outputs of one grid; real = (value − zero point) · scale.

    :param boxes: (rows, columns, 4 · bins).
    :param scores: (rows, columns, classes).
    """

    stride: int
    boxes: NDArray[np.int8]
    scores: NDArray[np.int8]


def real(values: NDArray[np.int8]) -> NDArray[np.float32]:
    """Return a level's values as real numbers."""
    numbers: NDArray[np.float32] = (
        values.astype(np.float32) - np.float32(_ZERO_POINT)
    ) * np.float32(_SCALE)
    return numbers


def _quantised(values: NDArray[np.floating]) -> NDArray[np.int8]:
    raw: NDArray[np.int8] = np.clip(np.rint(values / _SCALE + _ZERO_POINT), -128, 127).astype(
        np.int8
    )
    return raw


@dataclass(frozen=True)
class _Object:
    """An object's class, its corners in input pixels, and the index of the grid that finds it."""

    kind: int
    corners: tuple[float, float, float, float]
    level: int

    def cells(self) -> list[tuple[int, int]]:
        """Return (row, column) of the grid's cells with centres in the object, middle first."""
        x0, y0, x1, y1 = self.corners
        stride = STRIDES[self.level]
        middle = ((y0 + y1) / 2 / stride - 0.5, (x0 + x1) / 2 / stride - 0.5)
        rows = range(math.ceil(y0 / stride - 0.5), math.floor(y1 / stride - 0.5) + 1)
        columns = range(math.ceil(x0 / stride - 0.5), math.floor(x1 / stride - 0.5) + 1)
        return sorted(
            ((row, column) for row in rows for column in columns),
            key=lambda cell: math.dist(cell, middle),
        )


def _place_objects(random: np.random.Generator) -> list[_Object]:
    """
    Place objects side by side in the letterbox's picture and away from its border.

    This way no box suppresses another box, and no box is clipped.
    """
    columns = 10
    across, down = BOX.width / columns, BOX.height / (OBJECTS // columns)
    objects = []
    for number in range(OBJECTS):
        row, column = divmod(number, columns)
        x, y = BOX.left + (column + 0.5) * across, BOX.top + (row + 0.5) * down
        width, height = random.uniform(0.6, 0.95) * across, random.uniform(0.6, 0.95) * down
        corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        objects.append(
            _Object(int(random.integers(CLASSES)), corners, int(random.choice(2, p=(0.8, 0.2))))
        )
    return objects


def make_levels(cells: int | None = None) -> list[Level]:
    """
    Make levels in which all cells of an object find it.

    The middle cell has the best score. The cells' boxes differ a little.

    :param cells: at most this many cells find an object; ``None``: all of its cells.
    """
    random = np.random.default_rng(1)
    grids = [SIDE // stride for stride in STRIDES]
    distances = [random.normal(0, 0.5, (n, n, 4, BINS)) for n in grids]
    scores = [random.normal(_BACKGROUND, _SPREAD, (n, n, CLASSES)) for n in grids]
    for one in _place_objects(random):
        stride = STRIDES[one.level]
        for rank, (row, column) in enumerate(one.cells()[:cells]):
            at = np.array([column + 0.5, row + 0.5]) * stride
            sides = np.concatenate(
                [at - one.corners[:2], np.array(one.corners[2:]) - at]
            ) + random.normal(0, 0.7, 4)
            scores[one.level][row, column, one.kind] = 2.5 - 0.15 * rank + random.normal(0, 0.3)
            for side, place in enumerate(np.clip(sides / stride, 0, BINS - 1.01)):
                below = int(place)
                distances[one.level][row, column, side, below] = 8.0
                distances[one.level][row, column, side, below + 1] = 8.0 + math.log(
                    max(1e-3, place - below) / (1.001 - place + below)
                )
    return [
        Level(stride, _quantised(distance.reshape(n, n, 4 * BINS)), _quantised(score))
        for stride, n, distance, score in zip(STRIDES, grids, distances, scores, strict=True)
    ]


def raw_outputs(levels: list[Level]) -> list[RawTensor]:
    """
    Return boxes and scores of each grid as a compiled model yields them.

    They are NHWC, with the channels padded to a multiple of 64.
    """
    outputs = []
    for level in levels:
        for values in (level.boxes, level.scores):
            padded = np.full(
                (1, *values.shape[:2], -(-values.shape[2] // 64) * 64), _ZERO_POINT, np.int8
            )
            padded[0, :, :, : values.shape[2]] = values
            outputs.append(
                RawTensor(
                    padded[..., : values.shape[2]],
                    _SCALE,
                    _ZERO_POINT,
                    'nhwc',
                    f'stride{level.stride}',
                )
            )
    return outputs


def decode_levels(
    boxes: list[NDArray[np.float32]], scores: list[NDArray[np.float32]]
) -> NDArray[np.float32]:
    """
    Compute the network's last layers in NumPy.

    The result is (4 + classes, cells): centre and size in input pixels, and probabilities.

    :param boxes: for each level (rows, columns, 4 · bins).
    :param scores: for each level (rows, columns, classes); logits.
    """
    parts = []
    for stride, distance, logits in zip(STRIDES, boxes, scores, strict=True):
        n = distance.shape[0]
        shares = np.exp(distance.reshape(n * n, 4, BINS))
        shares /= shares.sum(axis=2, keepdims=True)
        sides = (shares @ np.arange(BINS, dtype=np.float32)) * np.float32(stride)
        down, across = np.divmod(np.arange(n * n), n)
        centres = (np.stack([across, down], axis=1) + np.float32(0.5)).astype(
            np.float32
        ) * np.float32(stride)
        low, high = centres - sides[:, :2], centres + sides[:, 2:]
        probabilities = np.float32(1) / (np.float32(1) + np.exp(-logits.reshape(n * n, -1)))
        parts.append(np.concatenate([(low + high) / 2, high - low, probabilities], axis=1).T)
    return np.ascontiguousarray(np.concatenate(parts, axis=1), np.float32)


def decoded_output(levels: list[Level]) -> RawTensor:
    """Return the output of an exported YOLOv8: 1 × 84 × 8400 float32."""
    return RawTensor(
        decode_levels(
            [real(level.boxes) for level in levels], [real(level.scores) for level in levels]
        )[None]
    )


TENSOR_SIDE = 640
# The input of a YOLOv8n compiled for the Metis: RGB and a fourth channel, padded.
TENSOR_SPEC = QuantisedTensorSpec(
    TENSOR_SIDE,
    TENSOR_SIDE,
    channels=3,
    scale=0.0039213,
    zero_point=-130,
    padding=((1, 1), (1, 15), (0, 1)),
)
# The largest mean difference to the exact tensor, in grey levels of 255, on the drawn road with
# its sensor noise. At an odd ratio (1080p) the two tensors differ only by rounding.
MOST_OFF_MEAN = 1.0

Figures = Mapping[str, Mapping[str, float]]
Planes = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def _pictures(width: int, height: int) -> dict[str, Planes]:
    road = np.empty((height, width), np.uint8), np.empty((height // 2, width // 2, 2), np.uint8)
    RoadScene(width, height, 1).draw(5, *road)
    random = np.random.default_rng(1)
    noise = tuple(random.integers(16, 236, plane.shape, np.uint8) for plane in road)
    return {'road': road, 'noise': (noise[0], noise[1])}


class _Ways:
    """Converts frames of one size to the input tensor in each way, with memory allocated once."""

    def __init__(self, width: int, height: int) -> None:
        self.box = Letterbox.fit(width, height, TENSOR_SIDE, TENSOR_SIDE)
        inner = self.box.height, self.box.width
        self._ours = PlanesToQuantised(self.box, TENSOR_SPEC, NV12, BT601_LIMITED)
        self._rgb = ToPicture(NV12, width, height, BT601_LIMITED, size=inner[::-1])
        self._tensor = np.empty(TENSOR_SPEC.shape, np.int8)
        self._ours.prepare(self._tensor)
        self._full, self._small = (
            np.empty((height, width, 3), np.uint8),
            np.empty((*inner, 3), np.uint8),
        )
        self._rgba = np.empty((*inner, 4), np.uint8)

    def ours(self, planes: Planes) -> None:
        self._ours.convert(planes, self._tensor)

    def ours_rgb(self, planes: Planes) -> NDArray[np.uint8]:
        return self._rgb.convert(planes)

    def exact_rgb(self, planes: Planes) -> NDArray[np.uint8]:
        """Convert the whole frame to RGB, then resize it."""
        cv2.cvtColorTwoPlane(*planes, cv2.COLOR_YUV2RGB_NV12, dst=self._full)
        cv2.resize(self._full, (self.box.width, self.box.height), dst=self._small)
        return self._small

    def exact(self, planes: Planes) -> None:
        cv2.cvtColor(self.exact_rgb(planes), cv2.COLOR_RGB2RGBA, dst=self._rgba)
        self._ours.convert_rgba(self._rgba, self._tensor)


def tensor_case(
    width: int, height: int
) -> tuple[dict[str, Callable[[], object]], Callable[[], Figures]]:
    """
    Return the variants, and a function that returns how far our picture is from the exact one.

    That function raises BenchError if the mean difference is above :data:`MOST_OFF_MEAN`.
    """
    ways, pictures = _Ways(width, height), _pictures(width, height)
    road = pictures['road']
    variants: dict[str, Callable[[], object]] = {
        'ours': lambda: ways.ours(road),
        'exact': lambda: ways.exact(road),
    }

    def check() -> Figures:
        figures: dict[str, float] = {}
        for kind, planes in pictures.items():
            off = np.abs(ways.ours_rgb(planes) - ways.exact_rgb(planes).astype(np.int16))
            figures[f'{kind}_mean_off_levels'] = float(off.mean())
            figures[f'{kind}_max_off_levels'] = float(off.max())
        if figures['road_mean_off_levels'] > MOST_OFF_MEAN:
            raise BenchError(
                f'the tensor of {width}x{height} is {figures["road_mean_off_levels"]:.2f} '
                'levels off the exact one'
            )
        return {'ours': figures}

    return variants, check


def _to_source(corners: NDArray[np.float32]) -> NDArray[np.float32]:
    scale = np.array(
        [BOX.source_width / BOX.width, BOX.source_height / BOX.height] * 2, np.float32
    )
    moved = (corners - np.array([BOX.left, BOX.top] * 2, np.float32)) * scale
    limit = np.array([BOX.source_width, BOX.source_height] * 2, np.float32)
    clipped: NDArray[np.float32] = np.clip(moved, np.float32(0), limit)
    return clipped


def _finish(
    corners: NDArray[np.float32], scores: NDArray[np.float32], classes: NDArray[np.intp], kept: Any
) -> Detections:
    order = np.asarray(kept, np.intp).reshape(-1)
    order = order[np.argsort(-scores[order], kind='stable')][: LIMITS.count]
    return Detections(_to_source(corners[order]), scores[order], classes[order])


def filter_first(rows: NDArray[np.float32]) -> Detections:
    """
    Decode quickly: apply the threshold first, and compute the rest for the remaining cells only.

    OpenCV suppresses the boxes of each class separately.

    :param rows: (4 + classes, cells).
    """
    best = rows[4:].max(axis=0)
    found = np.flatnonzero(best >= LIMITS.score)
    some = rows[:, found]
    classes = some[4:].argmax(axis=0)
    scores = best[found]
    centre, half = some[:2].T, some[2:4].T / 2
    corners = np.concatenate([centre - half, centre + half], axis=1)
    rectangles = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
    kept = cv2.dnn.NMSBoxesBatched(
        rectangles.tolist(), scores.tolist(), classes.tolist(), LIMITS.score, LIMITS.iou
    )
    return _finish(corners, scores, classes, kept)


def numpy_usual(rows: NDArray[np.float32]) -> Detections:
    """
    Decode as most published examples do.

    The steps: transpose, find every cell's best class, compute all boxes, apply the threshold,
    suppress boxes that were shifted by class.

    :param rows: (4 + classes, cells).
    """
    predictions = rows.T
    classes = predictions[:, 4:].argmax(axis=1)
    scores = predictions[:, 4:].max(axis=1)
    corners = np.empty((len(predictions), 4), np.float32)
    corners[:, :2] = predictions[:, :2] - predictions[:, 2:4] / 2
    corners[:, 2:] = predictions[:, :2] + predictions[:, 2:4] / 2
    found = scores >= LIMITS.score
    corners, scores, classes = corners[found], scores[found], classes[found]
    rectangles = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1).astype(
        np.float64
    )
    rectangles[:, :2] += classes[:, None] * 4096.0
    return _finish(
        corners,
        scores,
        classes,
        cv2.dnn.NMSBoxes(rectangles.tolist(), scores.tolist(), LIMITS.score, LIMITS.iou),
    )


def numpy_levels(levels: list[Level]) -> Detections:
    """Decode raw levels: dequantise, compute all cells' last layers, :func:`filter_first`."""
    return filter_first(
        decode_levels(
            [real(level.boxes) for level in levels], [real(level.scores) for level in levels]
        )
    )


OURS = 'ours'
# In pixels of the source. Boxes may differ this much, because the variants order their float32
# operations differently.
_SAME_PX = 0.01
_SAME_SCORE = 1e-5


@dataclass(frozen=True)
class Case:
    """
    A piece of work that several variants do.

    :param variants: by name, ours first; each call does the whole work for one frame.
    :param check: returns figures of each variant; raises BenchError if the variants' results
        differ.
    """

    name: str
    size: tuple[int, int]
    variants: Mapping[str, Callable[[], Any]]
    check: Callable[[], Mapping[str, Mapping[str, float]]]

    @property
    def condition(self) -> Condition:
        """Source size, unthrottled."""
        return Condition(*self.size, 0.0)


def check_same(case: str, found: Mapping[str, Detections]) -> None:
    """Raise BenchError unless all variants found the same boxes."""
    (first, wanted), *others = found.items()
    if not len(wanted):
        raise BenchError(f"case '{case}': {first} found nothing in a scene of {OBJECTS} objects")
    for name, one in others:
        if len(one) != len(wanted):
            raise BenchError(
                f"case '{case}': {name} found {len(one)} boxes, {first} {len(wanted)}"
            )
        # The variants may order boxes of equal score differently.
        for a, b in zip(_ordered(one), _ordered(wanted), strict=True):
            if (
                a[1] != b[1]
                or abs(a[0] - b[0]) > _SAME_SCORE
                or np.abs(np.subtract(a[2:], b[2:])).max() > _SAME_PX
            ):
                raise BenchError(
                    f"case '{case}': {name} found (score, class, box) {a}, {first} {b}"
                )


def _ordered(found: Detections) -> list[tuple[float, ...]]:
    rows = zip(found.scores.tolist(), found.classes.tolist(), found.boxes.tolist(), strict=True)
    return sorted(
        ((score, kind, *box) for score, kind, box in rows),
        key=lambda row: (row[1], *(round(v) for v in row[2:4])),
    )


def _head_case(
    name: str, outputs: Sequence[RawTensor], others: Mapping[str, Callable[[], Detections]]
) -> Case:
    head = make_head(SPEC)
    variants = {OURS: lambda: head.decode(outputs, BOX, LIMITS), **others}

    def check() -> dict[str, dict[str, float]]:
        found = {variant: run() for variant, run in variants.items()}
        check_same(name, found)
        return {variant: {'boxes': float(len(one))} for variant, one in found.items()}

    return Case(name, FULL_HD, variants, check)


MASKS, MASK_OBJECTS, GRID = 32, 20, 160


def mask_case(side: int) -> Case:
    """
    Return a case that paints masks of *side* × *side* pixels in a picture of the input's size.

    The variant ``whole_picture`` scales each mask to the whole picture, as most examples do.
    """
    random = np.random.default_rng(side)
    corner = random.uniform(0, SIDE - side, (MASK_OBJECTS, 2))
    weights = random.normal(0, 1, (MASK_OBJECTS, MASKS)).astype(np.float32)
    noise = random.normal(0, 1, (MASKS, GRID // 8, GRID // 8)).astype(np.float32)
    grids = np.stack(
        [cv2.resize(one, (GRID, GRID), interpolation=cv2.INTER_CUBIC) for one in noise]
    )
    scores = np.linspace(0.9, 0.5, MASK_OBJECTS)
    table = np.column_stack((corner, corner + side, scores, np.zeros(MASK_OBJECTS), weights))
    outputs = [RawTensor(table[None].astype(np.float32)), RawTensor(grids[None])]
    head = make_head(HeadSpec('boxes', 1, (SIDE, SIDE), masks=MASKS))
    box, limits = Letterbox.fit(SIDE, SIDE, SIDE, SIDE), DecodeLimits(0.1, 1.0, MASK_OBJECTS)
    found = head.decode(outputs, box, limits)
    painter, labels = MaskPainter(head, MASKS), np.zeros((SIDE, SIDE), np.uint16)
    corners = np.ceil(found.boxes - 0.5).astype(int).tolist()

    def ours() -> NDArray[np.uint16]:
        painter.paint(outputs, box, found, labels)
        return labels

    def whole() -> NDArray[np.uint16]:
        sums = (weights @ grids.reshape(MASKS, -1)).reshape(-1, GRID, GRID)
        picture = np.zeros((SIDE, SIDE), np.uint16)
        for index in range(MASK_OBJECTS - 1, -1, -1):
            x0, y0, x1, y1 = corners[index]
            mask = cv2.resize(sums[index], (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
            picture[y0:y1, x0:x1][mask[y0:y1, x0:x1] > 0] = index + 1
        return picture

    def check() -> dict[str, dict[str, float]]:
        first, second = ours(), whole()
        share = float(np.mean(first != second))
        if share > 0.001 or not first.any():
            raise BenchError(f'masks of {side} pixels: {share:.2%} of the pixels differ')
        return {OURS: {'differ_share': share}}

    return Case(f'masks_{side}px', (SIDE, SIDE), {OURS: ours, 'whole_picture': whole}, check)


def cases() -> list[Case]:
    """Return the cases of the benchmark."""
    levels = make_levels()
    decoded = decoded_output(levels)
    rows = decoded.values[0]
    sparse = decoded_output(make_levels(cells=SPARSE))
    few = sparse.values[0]
    tensors = []
    for size in (FULL_HD, UHD_4K):
        variants, check = tensor_case(*size)
        tensors.append(Case('tensor', size, variants, check))
    return [
        _head_case(
            'yolov8_decoded',
            [decoded],
            {'filter_first': lambda: filter_first(rows), 'numpy_usual': lambda: numpy_usual(rows)},
        ),
        _head_case(
            'yolov8_sparse',
            [sparse],
            {'filter_first': lambda: filter_first(few), 'numpy_usual': lambda: numpy_usual(few)},
        ),
        _head_case(
            'yolov8_dfl_int8', raw_outputs(levels), {'numpy_usual': lambda: numpy_levels(levels)}
        ),
        *tensors,
        *map(mask_case, (50, 100, 200)),
    ]


@contextlib.contextmanager
def one_cpu() -> Iterator[None]:
    """
    Run this thread on the last CPU that it may use, and OpenCV with one thread.

    At the end of the block, restore both.
    """
    every, threads = os.sched_getaffinity(0), cv2.getNumThreads()
    os.sched_setaffinity(0, {max(every)})
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(threads)
        os.sched_setaffinity(0, every)


def series(run: Callable[[], object], calls: int, figures: Mapping[str, float]) -> Series:
    """Call *run* as many times as *calls* says, and measure each call."""
    latencies = []
    spent = time.thread_time_ns()
    for _ in range(calls):
        began = time.perf_counter_ns()
        run()
        latencies.append((time.perf_counter_ns() - began) / 1e3)
    return Series(latencies, (time.thread_time_ns() - spent) / 1e3 / calls, figures=figures)


def measure_decoding(
    count: int, calls: int, say: Say, all_cases: Sequence[Case] | None = None
) -> list[Row]:
    """
    Measure all cases and return their rows.

    :param count: number of repetitions.
    :param calls: number of calls in each series.
    :raises BenchError: the variants of a case yield different results.
    """
    measured = cases() if all_cases is None else all_cases
    rounds = [Measuring(list) for _ in measured]
    with one_cpu():
        for repetition in repetitions(count, say):
            for case, found in zip(measured, rounds, strict=True):
                figures = case.check()
                order = list(case.variants)
                random.Random(f'{case.name} {repetition}').shuffle(order)
                for variant in order:
                    one = series(case.variants[variant], calls, figures.get(variant, {}))
                    found[case.name, variant, case.condition].append(one)
    rows: list[Row] = []
    for case, found in zip(measured, rounds, strict=True):
        rows += make_rows(found, [(case.name, variant) for variant in case.variants])
    return rows
