"""What one would write without this package: the same boxes from the same tensors, by OpenCV and numpy."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.bench.decode_scenes import BOX, LIMITS, Level, decode_levels, real
from zc_perception.detection.detections import Detections


def _to_source(corners: NDArray[np.float32]) -> NDArray[np.float32]:
    scale = np.array([BOX.source_width / BOX.width, BOX.source_height / BOX.height] * 2, np.float32)
    moved = (corners - np.array([BOX.left, BOX.top] * 2, np.float32)) * scale
    limit = np.array([BOX.source_width, BOX.source_height] * 2, np.float32)
    clipped: NDArray[np.float32] = np.clip(moved, np.float32(0), limit)
    return clipped


def _finish(corners: NDArray[np.float32], scores: NDArray[np.float32], classes: NDArray[np.intp], kept: Any) -> Detections:
    order = np.asarray(kept, np.intp).reshape(-1)
    order = order[np.argsort(-scores[order], kind='stable')][: LIMITS.count]
    return Detections(_to_source(corners[order]), scores[order], classes[order])


def filter_first(rows: NDArray[np.float32]) -> Detections:
    """Threshold, then everything else for what is left; OpenCV's suppression by class.

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
    kept = cv2.dnn.NMSBoxesBatched(rectangles.tolist(), scores.tolist(), classes.tolist(), LIMITS.score, LIMITS.iou)
    return _finish(corners, scores, classes, kept)


def numpy_usual(rows: NDArray[np.float32]) -> Detections:
    """As in most examples: transpose, best class of every cell, all boxes, filter, suppression with boxes moved apart by class.

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
    rectangles = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1).astype(np.float64)
    rectangles[:, :2] += classes[:, None] * 4096.0
    return _finish(corners, scores, classes, cv2.dnn.NMSBoxes(rectangles.tolist(), scores.tolist(), LIMITS.score, LIMITS.iou))


def numpy_levels(levels: list[Level]) -> Detections:
    """Raw levels: to real numbers, the network's last layers for every cell, then :func:`filter_first`."""
    return filter_first(decode_levels([real(level.boxes) for level in levels], [real(level.scores) for level in levels]))
