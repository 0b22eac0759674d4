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
Mean average precision of boxes against ground truth, VOC style.

Detections of a class are taken over all images by falling score. Each is compared with the truth
box of its class and image with the largest overlap. It is a true positive if that IoU reaches the
threshold and no earlier detection took that box. Average precision is the area under the
precision-recall curve, after raising each precision to the best one at the same or a higher recall
(all-point interpolation). The mean leaves out classes without truth boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import box_iou

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
