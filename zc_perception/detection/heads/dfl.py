"""Distances that are given as distributions over whole cells (distribution focal loss)."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.heads.scores import Values
from zc_perception.detection.raw_tensor import RawTensor

# exp() of twice as much neither overflows float32 nor loses all of a sum.
_SAFE_EXPONENT = 40.0
# One for each scale and zero point; more only where they change all the time.
_TABLES = 16


class Distances:
    """Expected values of 4 distributions for each box; with one bin the numbers are the distances themselves."""

    def __init__(self, bins: int) -> None:
        self._bins = bins
        # One product gives the weighted and the plain sums of all sides.
        sides = np.eye(4)
        parts = [np.kron(sides, np.reshape(weights, (bins, 1))) for weights in (np.arange(bins), np.ones(bins))]
        self._weights = np.concatenate(parts, axis=1).astype(np.float32)
        self._tables: dict[tuple[object, ...], NDArray[np.float32] | None] = {}

    @property
    def channels(self) -> int:
        """Numbers for each box."""
        return 4 * self._bins

    def expected(self, parts: Sequence[tuple[RawTensor, Values]]) -> NDArray[np.float32]:
        """(4, n) distances in cells: left, top, right, bottom. Where a number isn't finite, those of its box aren't.

        :param parts: tensors, each with some of its values, (…, 4 * bins); n together.
        """
        if self._bins == 1:
            sides: NDArray[np.float32] = np.concatenate([tensor.read(values) for tensor, values in parts]).T
            return sides
        powers = np.empty((sum(len(values) for _, values in parts), self.channels), np.float32)
        start = 0
        for tensor, values in parts:
            end = start + len(values)
            self._exponentials(tensor, values, powers[start:end])
            start = end
        sums = powers @ self._weights
        distances: NDArray[np.float32] = (sums[:, :4] / sums[:, 4:]).T
        return distances

    def _exponentials(self, tensor: RawTensor, values: Values, out: NDArray[np.float32]) -> None:
        if tensor.values.dtype.itemsize == 1 and isinstance(tensor.scale, float):
            table = self._table(tensor)
            if table is not None:
                cv2.LUT(values.view(np.uint8), table, dst=out)
                return
        logits = tensor.read(values)
        # A softmax doesn't depend on an offset. The maximum of each row costs more than all the rest, and is hardly ever needed.
        if not (logits.max() <= _SAFE_EXPONENT and logits.min() >= -_SAFE_EXPONENT):
            rows = logits.reshape(-1, self._bins)
            logits = (rows - rows.max(axis=1, keepdims=True)).reshape(logits.shape)
        np.exp(logits, out=out)

    def _table(self, tensor: RawTensor) -> NDArray[np.float32] | None:
        """exp() of each of the 256 numbers that a tensor can hold, by their bits; ``None`` where one is too large."""
        key = tensor.values.dtype, tensor.scale, tensor.zero_point
        if key not in self._tables:
            if len(self._tables) >= _TABLES:
                self._tables.clear()
            every = tensor.read(np.arange(256, dtype=np.uint8).view(tensor.values.dtype))
            self._tables[key] = np.exp(every) if bool((np.abs(every) <= _SAFE_EXPONENT).all()) else None
        return self._tables[key]
