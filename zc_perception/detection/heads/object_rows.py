"""One tensor with a row for each box: four numbers, objectness, classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.heads.levels import all_described
from zc_perception.detection.heads.objectness import ObjectFilter
from zc_perception.detection.heads.score_filter import Found
from zc_perception.detection.heads.scores import Values
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError


class ObjectRows:
    """1 x N x (5 + C), or 1 x (5 + C) x N; where both are as many, the former unless the layout is ``nchw``.

    :param count: N, where it is known.
    :raises AcceleratorError: another shape.
    """

    def __init__(self, kind: str, tensor: RawTensor, num_classes: int, sigmoid: bool, count: int | None = None) -> None:
        channels = 5 + num_classes
        values = tensor.values
        shape = values.shape[1:] if values.ndim == 3 and values.shape[0] == 1 else values.shape
        boxes = 'N' if count is None else str(count)
        if len(shape) != 2 or channels not in shape or (count is not None and sorted(shape) != sorted((count, channels))):
            raise AcceleratorError(
                f'head {kind}: {all_described([tensor])}: expected 1x{boxes}x{channels} or 1x{channels}x{boxes} '
                f'(box, objectness and {num_classes} classes), or the raw levels'
            )
        self._channels_last = shape[1] == channels and (shape[0] != channels or tensor.layout != 'nchw')
        self._filter = ObjectFilter(tensor, tensor, sigmoid)

    def find(self, tensor: RawTensor, score: float) -> tuple[Found, NDArray[np.float32]]:
        """What reaches the score, and the four numbers (4, n) of each."""
        values: Values = tensor.values[0] if tensor.values.ndim == 3 else tensor.values
        rows = values if self._channels_last else values.T
        found = self._filter.find(rows[:, 4], rows[:, 5:], score)
        return found, tensor.read(rows[found.cells, :4]).T
