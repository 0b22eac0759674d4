"""Non-maximum suppression, class by class."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections


def suppress(
    boxes: NDArray[np.float32], scores: NDArray[np.float32], classes: NDArray[np.intp], *, iou_threshold: float, max_detections: int
) -> Detections:
    """Keep the best of each cluster of same-class boxes, at most *max_detections* in all, best score first.

    :param boxes: (n, 4) x0, y0, x1, y1.
    :param iou_threshold: boxes of one class that overlap more than this are the same object.
    """
    if len(scores) == 0:
        return Detections.empty()
    corners_sizes = boxes.copy()
    corners_sizes[:, 2:] -= corners_sizes[:, :2]
    kept = cv2.dnn.NMSBoxesBatched(
        corners_sizes.astype(np.float64).tolist(), scores.astype(float).tolist(), classes.tolist(), 0.0, iou_threshold
    )
    order = np.asarray(kept, np.intp).reshape(-1)
    order = order[np.argsort(-scores[order], kind='stable')][:max_detections]
    return Detections(boxes[order], scores[order], classes[order])
