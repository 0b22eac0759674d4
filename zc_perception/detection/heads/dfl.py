"""Distances that are given as distributions over whole cells (distribution focal loss)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# exp() of twice as much neither overflows float32 nor loses all of a sum.
_SAFE_EXPONENT = 40.0


class Distances:
    """Expected values of 4 distributions for each box; with one bin the numbers are the distances themselves."""

    def __init__(self, bins: int) -> None:
        self._bins = bins
        # One product gives the weighted and the plain sum.
        self._weights = np.stack((np.arange(bins), np.ones(bins)), axis=1).astype(np.float32)

    def expected(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """(4, n) distances in cells: left, top, right, bottom.

        :param logits: (n, 4 * bins), real numbers; one that is not finite gives a distance that isn't.
        """
        if self._bins == 1:
            sides: NDArray[np.float32] = logits.T
            return sides
        rows = logits.reshape(-1, self._bins)
        # A softmax doesn't depend on an offset. The maximum of each row costs more than all the rest, and is hardly ever needed.
        if not (rows.max() <= _SAFE_EXPONENT and rows.min() >= -_SAFE_EXPONENT):
            rows = rows - rows.max(axis=1, keepdims=True)
        sums = np.exp(rows) @ self._weights
        distances: NDArray[np.float32] = (sums[:, 0] / sums[:, 1]).reshape(-1, 4).T
        return distances
