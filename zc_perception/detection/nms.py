"""Non-maximum suppression: exactly what ``cv2.dnn.NMSBoxes`` keeps, class by class or for all classes at once."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections

# Candidates that are looked at in one go, best first: with a low score threshold there are thousands, few of which are ever needed.
_CHUNK = 2048
# Below so many boxes, or with more of them for each class that is present, OpenCV alone is quicker than a round in numpy.
_FEW = 128
_BOXES_PER_CLASS = 24
_CLASS_BITS, _INDEX_BITS = 11, 20


def keep(
    corners: NDArray[np.float32], scores: NDArray[np.float32], classes: NDArray[np.intp] | None, iou_threshold: float, limit: int
) -> NDArray[np.intp]:
    """Indices of the boxes that stay, best first; of equal scores the one that stands first.

    Overlaps are computed in OpenCV's arithmetic: corner and size in float64, sizes being float32 differences; the overlap is rounded to
    float32.

    :param corners: (4, n) x0, y0, x1, y1, finite.
    :param scores: (n), finite.
    :param classes: (n), not negative; boxes of different classes don't suppress each other. ``None``: all do.
    :param iou_threshold: boxes that overlap more than this are the same object.
    :param limit: indices at most.
    """
    count = len(scores)
    if count == 0:
        return np.zeros(0, np.intp)
    boxes = np.empty((5, count))
    boxes[:4] = corners
    boxes[2:4] = corners[2:] - corners[:2]
    np.multiply(boxes[2], boxes[3], out=boxes[4])
    threshold = np.float32(iou_threshold)
    if count <= _CHUNK:
        return _keep(boxes, scores, classes, threshold)[:limit]
    order = np.argsort(-scores, kind='stable')
    kept = order[:0]
    for start in range(0, count, _CHUNK):
        # What is kept so far doesn't suppress each other, so going through it again changes nothing but what comes behind.
        some = np.concatenate((kept, order[start : start + _CHUNK]))
        kept = some[_keep(boxes.take(some, axis=1), scores[some], None if classes is None else classes[some], threshold)]
        if len(kept) >= limit:
            break
    return kept[:limit]


def _keep(
    boxes: NDArray[np.float64], scores: NDArray[np.float32], classes: NDArray[np.intp] | None, threshold: np.float32
) -> NDArray[np.intp]:
    """:param boxes: (5, n) x, y, width, height, area."""
    if classes is None:
        return _opencv(boxes, scores, classes, threshold)
    if boxes[2:4].min() < 1e-7:
        # OpenCV counts boxes of no size as the same object, wherever they have been moved to.
        own = [np.flatnonzero(classes == number) for number in np.unique(classes)]
        return _best_first([some[_opencv(boxes[:, some], scores[some], None, threshold)] for some in own], scores)
    if not _worth_rounds(classes):
        return _opencv(boxes, scores, classes, threshold)
    place = _by_class_and_score(scores, classes)
    boxes, classes = boxes.take(place, axis=1), classes[place]
    kept: list[NDArray[np.intp]] = []
    while _worth_rounds(classes):
        first = np.concatenate(([True], classes[1:] != classes[:-1]))
        # The best of each class stays for certain: all that it suppresses go at once.
        best = boxes.take(first.nonzero()[0].take(first.cumsum() - 1), axis=1)
        alive = _overlaps(boxes, best) <= threshold
        alive[first] = False
        kept.append(place[first])
        left = alive.nonzero()[0]
        boxes, classes, place = boxes.take(left, axis=1), classes[left], place[left]
    if len(place):
        kept.append(place[_opencv(boxes, scores[place], classes, threshold)])
    return _best_first(kept, scores)


def _best_first(kept: list[NDArray[np.intp]], scores: NDArray[np.float32]) -> NDArray[np.intp]:
    indices = np.concatenate(kept)
    indices.sort()
    return indices[np.argsort(-scores[indices], kind='stable')]


def _by_class_and_score(scores: NDArray[np.float32], classes: NDArray[np.intp]) -> NDArray[np.intp]:
    """Order by class, falling score, index."""
    if int(classes.max()) >= 1 << _CLASS_BITS or len(scores) >= 1 << _INDEX_BITS:
        return np.lexsort((-scores, classes))
    # Sorting one number each is several times quicker: class, falling score (a float's bits order as the float), index.
    bits = (scores + np.float32(0)).view(np.int32).astype(np.int64)
    bits = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = (classes << (32 + _INDEX_BITS)) | ((0x7FFFFFFF - bits) << _INDEX_BITS) | np.arange(len(scores))
    keys.sort()
    order: NDArray[np.intp] = keys & ((1 << _INDEX_BITS) - 1)
    return order


def _worth_rounds(classes: NDArray[np.intp]) -> bool:
    count = len(classes)
    return count > _FEW and bool(np.count_nonzero(np.bincount(classes)) * _BOXES_PER_CLASS >= count)


def _overlaps(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float32]:
    """Intersection over union of each pair, with every rounding of OpenCV's ``rectOverlap``."""
    ahead = b[:2] - a[:2]
    sides = np.minimum(a[2:4] - np.maximum(ahead, 0), b[2:4] + np.minimum(ahead, 0))
    np.maximum(sides, 0, out=sides)
    shared = sides[0] * sides[1]
    union = a[4] + b[4]
    union -= shared
    shared /= union
    overlaps: NDArray[np.float32] = np.float32(1) - (1.0 - shared).astype(np.float32)
    return overlaps


def _opencv(
    boxes: NDArray[np.float64], scores: NDArray[np.float32], classes: NDArray[np.intp] | None, threshold: np.float32
) -> NDArray[np.intp]:
    if classes is not None:
        # Moved apart by class; from zero, or one that reaches left of the picture would meet another class.
        left = boxes[0].min()
        step = (boxes[0] + boxes[2]).max() - left + 1.0
        boxes = boxes.copy()
        boxes[0] += classes * step - left
    if scores.min() <= 0:  # OpenCV takes only what is above zero: ranks do as well
        ranks = np.empty(len(scores), np.intp)
        ranks[np.argsort(-scores, kind='stable')] = np.arange(len(scores), 0, -1)
        scores = ranks.astype(np.float32)
    # A list of tuples is read quicker than an array, which OpenCV takes number by number.
    rectangles = list(zip(*boxes[:4].tolist(), strict=True))
    opencv: Any = cv2.dnn.NMSBoxes
    found = opencv(rectangles, scores, 0.0, float(threshold))
    return np.asarray(found, np.intp).reshape(-1)


def suppress(
    boxes: NDArray[np.float32],
    scores: NDArray[np.float32],
    classes: NDArray[np.intp],
    *,
    iou_threshold: float,
    max_detections: int,
    class_agnostic: bool = False,
) -> Detections:
    """Keep the best of each cluster of boxes, at most *max_detections* in all, best score first.

    :param boxes: (n, 4) x0, y0, x1, y1, finite.
    :param iou_threshold: boxes of one class that overlap more than this are the same object.
    :param class_agnostic: of any class.
    """
    corners = np.ascontiguousarray(boxes.T)
    order = keep(corners, scores, None if class_agnostic else classes, iou_threshold, max_detections)
    return Detections(boxes[order], scores[order], classes[order])
