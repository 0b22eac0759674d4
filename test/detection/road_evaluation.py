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
How good a detector is on the road scene: the measure, a model, and a baseline without shapes.

Mean average precision is VOC's. Detections of a class are taken over all images by falling score.
Each is compared with the truth box of its class and image with the largest overlap. It is a true
positive if that IoU reaches the threshold and no earlier detection took that box. Average
precision is the area under the precision-recall curve, after raising each precision to the best
one at the same or a higher recall (all-point interpolation). The mean leaves out classes without
truth boxes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.road_scene import (
    CLASS_NAMES,
    MAX_OBJECT_SIDE,
    MIN_OBJECT_SIDE,
    RoadScene,
    SceneObject,
)
from zc_perception.detection.detections import box_iou
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.npu.manifest import load_manifest
from zc_perception.npu.onnx.accelerator import OnnxEngine
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

FloatArray = NDArray[np.floating]
IntArray = NDArray[np.integer]
#: The least overlap of a true positive.
IOU = 0.5


@dataclass(frozen=True)
class ImageBoxes:
    """Boxes of one image: x0, y0, x1, y1 in pixels; ground truth needs no scores."""

    boxes: FloatArray
    classes: IntArray
    scores: FloatArray | None = None


class AveragePrecision(NamedTuple):
    per_class: tuple[float, ...]
    mean: float


def average_precision(
    detections: Sequence[ImageBoxes], truth: Sequence[ImageBoxes], class_count: int
) -> AveragePrecision:
    per_class = tuple(_class_precision(detections, truth, index) for index in range(class_count))
    return AveragePrecision(per_class, float(np.nanmean(per_class)))


def precision_recall(
    detections: Sequence[ImageBoxes], truth: Sequence[ImageBoxes], score_threshold: float
) -> tuple[float, float]:
    """Return precision and recall over all classes, of detections with at least this score."""
    hits = found = wanted = 0
    for seen, real in zip(detections, truth, strict=True):
        wanted += len(real.boxes)
        for class_index in np.unique(seen.classes):
            scores, boxes = _of_class(seen, int(class_index))
            kept = scores >= score_threshold
            found += int(kept.sum())
            real_boxes = real.boxes[real.classes == class_index]
            hits += int(_match(scores[kept], boxes[kept], real_boxes)[1].sum())
    return hits / found if found else 1.0, hits / wanted if wanted else 1.0


def _class_precision(
    detections: Sequence[ImageBoxes], truth: Sequence[ImageBoxes], class_index: int
) -> float:
    scores: list[NDArray[np.float64]] = [np.empty(0)]
    hits: list[NDArray[np.bool_]] = [np.empty(0, np.bool_)]
    wanted = 0
    for seen, real in zip(detections, truth, strict=True):
        real_boxes = real.boxes[real.classes == class_index]
        wanted += len(real_boxes)
        image_scores, image_hits = _match(*_of_class(seen, class_index), real_boxes)
        scores.append(image_scores)
        hits.append(image_hits)
    if wanted == 0:
        return float('nan')
    order = np.argsort(-np.concatenate(scores), kind='stable')
    true_positives = np.cumsum(np.concatenate(hits)[order])
    recall = true_positives / wanted
    precision = true_positives / np.arange(1, len(order) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * envelope))


def _of_class(seen: ImageBoxes, class_index: int) -> tuple[NDArray[np.float64], FloatArray]:
    assert seen.scores is not None
    chosen = seen.classes == class_index
    return np.asarray(seen.scores[chosen], np.float64), seen.boxes[chosen]


def _match(
    scores: NDArray[np.float64], boxes: FloatArray, real_boxes: FloatArray
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return scores in falling order, and whether each detection is a true positive."""
    order = np.argsort(-scores, kind='stable')
    hits = np.zeros(len(order), np.bool_)
    if len(real_boxes) and len(order):
        overlaps = box_iou(boxes[order], real_boxes)
        taken = np.zeros(len(real_boxes), np.bool_)
        for rank, best in enumerate(overlaps.argmax(axis=1)):
            hits[rank] = overlaps[rank, best] >= IOU and not taken[best]
            taken[best] |= hits[rank]
    return scores[order], hits


SCORE_FLOOR = 0.02


class RoadModel:
    """A model file, read as the shipped one is; returns detections above ``SCORE_FLOOR``."""

    def __init__(self, path: Path) -> None:
        self.manifest = replace(load_manifest('road'), file=path)
        self.engine = OnnxEngine(self.manifest, 1)
        self._head = make_head(self.manifest.head)
        self._limits = DecodeLimits(SCORE_FLOOR, self.manifest.nms_threshold, 100)

    def detect(self, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> ImageBoxes:
        height, width = luma.shape
        layout = compute_layout(NV12, width, height)
        outputs = self.engine.run((luma, chroma), layout, BT601_LIMITED)
        found = self._head.decode(outputs, self.engine.geometry(width, height), self._limits)
        return ImageBoxes(found.boxes, found.classes, found.scores)


CELLS = 16
Pixels = tuple[NDArray[np.int64], NDArray[np.int64]]
THRESHOLDS = (1.2, 1.6, 2.2, 3.0, 5.0)


@dataclass(frozen=True)
class RoadFrame:
    """One drawn frame: ``luma`` (h, w), ``chroma`` (h/2, w/2, 2), and its objects."""

    luma: NDArray[np.uint8]
    chroma: NDArray[np.uint8]
    objects: tuple[SceneObject, ...]

    @property
    def truth(self) -> ImageBoxes:
        corners = [(o.x, o.y, o.x + o.width, o.y + o.height) for o in self.objects]
        return ImageBoxes(np.array(corners), np.array([o.class_index for o in self.objects]))


def road_frames(
    width: int,
    height: int,
    palette: str,
    first_seed: int,
    scenes: int,
    frames_per_scene: int,
) -> Iterable[RoadFrame]:
    """Draw frames of ``scenes`` scenes, each 37 frame times after the previous one."""
    for seed in range(first_seed, first_seed + scenes):
        scene = RoadScene(width, height, seed, palette)
        for index in range(0, frames_per_scene * 37, 37):
            luma = np.empty((height, width), np.uint8)
            chroma = np.empty((height // 2, width // 2, 2), np.uint8)
            yield RoadFrame(luma, chroma, scene.draw(index, luma, chroma))


class ColourBaseline:
    """
    A detector that knows colours but no shapes, trained on ``frames``.

    For each class it learns how much likelier each YUV cell (16 x 16 x 16) is inside the class's
    boxes than elsewhere. It boxes connected pixels above a threshold, for each class or for all
    together; then the likeliest class wins. It chooses threshold and way by the best mAP on its
    training frames.
    """

    def __init__(self, frames: Sequence[RoadFrame]) -> None:
        inside = np.ones((len(CLASS_NAMES), CELLS**3))
        outside = np.ones(CELLS**3)
        for frame in frames:
            cells, background = _colour_cells(frame), np.ones(frame.chroma.shape[:2], bool)
            for item in frame.objects:
                area = _half_size_area(item)
                inside[item.class_index] += np.bincount(cells[area].ravel(), minlength=CELLS**3)
                background[area] = False
            outside += np.bincount(cells[background], minlength=CELLS**3)
        outside /= outside.sum()
        self._ratios = (inside / inside.sum(axis=1, keepdims=True) / outside).astype(np.float32)
        self._any_ratio = (inside.sum(axis=0) / inside.sum() / outside).astype(np.float32)
        truth = [frame.truth for frame in frames]
        ways = [(together, threshold) for together in (False, True) for threshold in THRESHOLDS]
        precision = {
            way: average_precision(
                [self._detect(frame, *way) for frame in frames], truth, len(CLASS_NAMES)
            ).mean
            for way in ways
        }
        self._together, self._threshold = max(precision, key=lambda way: precision[way])

    def detect(self, frame: RoadFrame) -> ImageBoxes:
        """Return boxes in frame pixels; the score is the component's mean likelihood ratio."""
        return self._detect(frame, self._together, self._threshold)

    def _detect(self, frame: RoadFrame, together: bool, threshold: float) -> ImageBoxes:
        cells = _colour_cells(frame)
        likeliest = self._ratios.argmax(axis=0)[cells]
        masks = [likeliest == class_index for class_index in range(len(CLASS_NAMES))]
        ratios = self._any_ratio[cells] if together else self._ratios.max(axis=0)[cells]
        found: list[tuple[tuple[int, ...], int, float]] = []
        for class_index, mask in enumerate([np.ones_like(masks[0])] if together else masks):
            for box, pixels in _components(mask & (ratios > threshold)):
                label = int(np.bincount(likeliest[pixels]).argmax()) if together else class_index
                found.append((box, label, float(ratios[pixels].mean())))
        return ImageBoxes(
            np.array([box for box, _, _ in found], float).reshape(-1, 4),
            np.array([label for _, label, _ in found], int),
            np.array([score for _, _, score in found]),
        )


def _components(mask: NDArray[np.bool_]) -> Iterable[tuple[tuple[int, ...], Pixels]]:
    """Yield large enough components: box in frame pixels, pixels on the chroma grid."""
    closed = cv2.morphologyEx(mask.astype(np.uint8), cv2.MORPH_CLOSE, np.ones((3, 3), np.uint8))
    count, components, stats, _ = cv2.connectedComponentsWithStats(closed)
    for component in range(1, count):
        x, y, width, height = (int(n) for n in stats[component, :4])
        if 2 * min(width, height) >= MIN_OBJECT_SIDE and 2 * max(width, height) <= MAX_OBJECT_SIDE:
            rows, columns = np.nonzero(
                components[slice(y, y + height), slice(x, x + width)] == component
            )
            yield (2 * x, 2 * y, 2 * (x + width), 2 * (y + height)), (rows + y, columns + x)


def _colour_cells(frame: RoadFrame) -> NDArray[np.int64]:
    height, width = frame.chroma.shape[:2]
    luma = cv2.resize(frame.luma, (width, height), interpolation=cv2.INTER_AREA).astype(np.int64)
    chroma = cv2.blur(frame.chroma, (3, 3)).astype(np.int64)
    return (luma // 16 * CELLS + chroma[..., 0] // 16) * CELLS + chroma[..., 1] // 16


def _half_size_area(item: SceneObject) -> tuple[slice, slice]:
    x0, y0 = int(item.x) // 2, int(item.y) // 2
    return slice(y0, int(item.y + item.height) // 2), slice(x0, int(item.x + item.width) // 2)
