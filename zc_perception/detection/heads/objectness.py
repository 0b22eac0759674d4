"""Heads whose score is objectness times class: cells without an object are left after one number."""

from __future__ import annotations

import numpy as np

from zc_perception.detection.heads.score_filter import NOTHING, Found, Threshold
from zc_perception.detection.heads.scores import Values, activated
from zc_perception.detection.raw_tensor import RawTensor


class ObjectFilter:
    """Finds the cells whose objectness times best class reaches a score; its objectness has to reach it by itself. One thread.

    :param objects: the tensor that the objectness is from.
    :param classes: the one that the classes are from.
    """

    def __init__(self, objects: RawTensor, classes: RawTensor, sigmoid: bool) -> None:
        self._objects, self._classes, self._sigmoid = objects, classes, sigmoid
        self._threshold = Threshold(objects, sigmoid)

    def find(self, objects: Values, classes: Values, score: float) -> Found:
        """:param objects: (...) objectness of all cells.
        :param classes: (..., classes).
        """
        if not score <= 1:
            return NOTHING
        cells = np.flatnonzero(objects >= self._threshold.raw(score))
        if not len(cells):
            return NOTHING
        at = np.unravel_index(cells, objects.shape)
        object_logits = self._objects.read(objects[at])
        logits = self._classes.read(classes[at])
        if not self._classes.quantised:
            logits = np.where(np.abs(logits) < np.inf, logits, -np.inf)
        best = logits.argmax(axis=1)
        logits = logits[np.arange(len(cells)), best]
        object_scores = activated(object_logits, self._sigmoid)
        scores = object_scores * activated(logits, self._sigmoid)
        least = np.float32(score)
        fine = (object_scores >= least) & (scores >= least) & (np.abs(object_logits) < np.inf) & (np.abs(logits) < np.inf)
        return Found(cells[fine], best[fine], scores[fine])
