"""From what a head found to detections: suppression, then the letterbox's inverse for what is left."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.nms import FEW, NO_SIZE, WIDE, keep, keep_few


class Candidates(NamedTuple):
    """What reaches the score: corners (4, n) x0, y0, x1, y1 in input pixels, scores (n), classes (n)."""

    corners: NDArray[np.float32]
    scores: NDArray[np.float32]
    classes: NDArray[np.intp]


_ABOVE_ZERO = 1e-30  # whatever reaches more is above zero as float32
NONE = Candidates(np.zeros((4, 0), np.float32), np.zeros(0, np.float32), np.zeros(0, np.intp))


def from_centres(centres: NDArray[np.float32], sizes: NDArray[np.float32]) -> NDArray[np.float32]:
    """(4, n) corners of boxes whose centres and sizes are (2, n)."""
    half = sizes * np.float32(0.5)
    return np.concatenate((centres - half, centres + half))


def detections(
    candidates: Candidates, box: Letterbox, limits: DecodeLimits, class_agnostic: bool
) -> Detections:
    """What stays of candidates after suppression, in source pixels, best first; of equal scores the one that stands first.

    Suppression is done on the boxes as the network gives them, in input pixels and not yet clipped, as it was when its precision was
    measured. Boxes that are no numbers, that have no area or lie wholly outside the picture are no candidates.
    """
    corners, scores, classes = candidates
    if not len(scores):
        return Detections.empty()
    kinds = None if class_agnostic else classes
    sizes = corners[2:] - corners[:2]
    low, high = corners.min(axis=1).tolist(), corners.max(axis=1).tolist()
    wide = max(high[2:]) - min(low[:2])
    # Nearly always all are fine, which a few numbers tell; where there is a NaN, the least and the highest are.
    fine = wide < WIDE and bool(sizes.min() >= NO_SIZE) and box.meets(low, high)
    if not fine:
        return _of_fine(candidates, box, limits, class_agnostic)
    if len(scores) <= FEW and limits.score > _ABOVE_ZERO:
        order = keep_few(corners[:2], sizes, scores, kinds, np.float32(limits.iou), wide)[
            : limits.count
        ]
    else:
        order = keep(corners, scores, kinds, limits.iou, limits.count)
    return in_source(
        Candidates(corners.take(order, axis=1), scores.take(order), classes.take(order)), box
    )


def _of_fine(
    candidates: Candidates, box: Letterbox, limits: DecodeLimits, class_agnostic: bool
) -> Detections:
    corners, scores, classes = candidates
    sizes = corners[2:] - corners[:2]
    start, end = box.picture
    # Comparisons with NaN are false, and the area of an endless box isn't finite.
    inside = sizes > 0
    inside &= corners[2:] > start
    inside &= corners[:2] < end
    inside[0] &= sizes[0] * sizes[1] < np.inf
    if not inside.all():
        fine = inside[0] & inside[1]
        corners, scores, classes = corners[:, fine], scores[fine], classes[fine]
    order = keep(corners, scores, None if class_agnostic else classes, limits.iou, limits.count)
    return in_source(Candidates(corners.take(order, axis=1), scores[order], classes[order]), box)


def in_source(chosen: Candidates, box: Letterbox) -> Detections:
    """Candidates as detections in source pixels, clipped; those of which nothing is left are dropped."""
    boxes = box.to_source(chosen.corners.T)
    ahead = boxes[:, 2:] > boxes[:, :2]
    if np.count_nonzero(ahead) == ahead.size:  # quicker than all()
        return Detections(boxes, chosen.scores, chosen.classes)
    area = ahead.all(axis=1)
    return Detections(boxes[area], chosen.scores[area], chosen.classes[area])
