"""
Masks of what was found: :class:`MaskPainter` paints them into a picture of labels.

A mask is a sum of the network's prototypes, weighted by the row's own coefficients, where it is
above zero. Only what lies inside the box is computed: the part of each prototype that the box
covers, then its values between the prototype's pixels, bilinear, for each pixel of the frame.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads.levels import prototypes, without_batch
from zc_perception.detection.heads.spec import Head
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.detection.tiles import seen_region

MOST = 65535
"""Labels that a picture can have."""


class MaskPainter:
    """
    Paints masks into a picture of labels.

    One thread uses it. It first removes what it painted before: the rest of the picture is never
    touched.

    :param masks: coefficients of each row.
    """

    def __init__(self, head: Head, masks: int) -> None:
        self._head, self._masks = head, masks
        self._key: object = None
        self._axes: tuple[_Axis, _Axis] | None = None
        self._labels: NDArray[np.uint16] | None = None
        self._painted: list[tuple[slice, slice]] = []

    def paint(
        self,
        outputs: Sequence[RawTensor],
        box: Letterbox,
        found: Detections,
        labels: NDArray[np.uint16],
    ) -> None:
        """
        Give each pixel of a mask the number of its detection, from 1 on.

        Where several masks overlap, the best detection's number is used. All other pixels are 0.

        :param outputs: those that *found* was decoded from.
        :param labels: (rows, columns) of the frame; zeros, or the result of the last call.
        """
        if labels is not self._labels:
            self._labels, self._painted = labels, []
        for place in self._painted:
            labels[place] = 0
        self._painted.clear()
        if not len(found):
            return
        tensor = outputs[prototypes(outputs, self._masks)]
        grids = without_batch(tensor.values)
        if grids.shape[0] != self._masks or tensor.layout == 'nhwc':
            grids = grids.transpose(2, 0, 1)
        # The scale of a sum's prototypes doesn't matter where only its sign does.
        weights = self._head.extras(outputs, found.rows)
        offset = tensor.zero_point * weights.sum(axis=1) if tensor.quantised else None
        columns, rows = self._look(box, grids.shape)
        left, top, *_ = seen_region(box)
        corners = np.ceil(found.boxes - (left, top, left, top) - 0.5).astype(int)
        limits = (box.source_width, box.source_height)
        corners = corners.clip(0, limits * 2).tolist()
        for index in range(min(len(found), MOST) - 1, -1, -1):
            x0, y0, x1, y1 = corners[index]
            if x1 <= x0 or y1 <= y0:
                continue
            x, y, across = columns.first[x0:x1], rows.first[y0:y1], rows.share[y0:y1, None]
            own = slice(x[0], x[-1] + 2)
            part = grids[:, y[0] : y[-1] + 2, own]
            values = weights[index] @ part.reshape(self._masks, -1).astype(np.float32, copy=False)
            if offset is not None:
                values -= offset[index]
            values = values.reshape(part.shape[1:]) @ columns.weights[own, x0:x1]
            low, high = values.take(y - y[0], axis=0), values.take(y - (y[0] - 1), axis=0)
            high -= low
            high *= across
            high += low
            place = slice(y0 + top, y1 + top), slice(x0 + left, x1 + left)
            label = np.full(high.shape, index + 1, np.uint16)
            cv2.copyTo(label, (high > 0).view(np.uint8), labels[place])
            self._painted.append(place)

    def _look(self, box: Letterbox, shape: tuple[int, ...]) -> tuple[_Axis, _Axis]:
        """Return the prototypes' pixels around the frame's pixels, along each axis."""
        key = box, shape
        if self._axes is None or key != self._key:
            self._key = key
            self._axes = (
                _Axis(box.source_width, box.width, box.left, box.input_width, shape[2]),
                _Axis(box.source_height, box.height, box.top, box.input_height, shape[1]),
            )
        return self._axes


class _Axis:
    """
    How the frame's pixels along an axis map to the prototypes' pixels.

    For each pixel: the prototypes' pixel before it, the weight of the next one, and both as a
    matrix.
    """

    def __init__(self, source: int, size: int, start: int, input_size: int, count: int) -> None:
        places = start + (np.arange(source) + 0.5) * (size / source)
        places = places * (count / input_size) - 0.5
        self.first = np.floor(places).astype(np.intp).clip(0, count - 2)
        self.share = (places - self.first).clip(0, 1).astype(np.float32)
        self.weights = np.zeros((count, source), np.float32)
        self.weights[self.first, np.arange(source)] = 1 - self.share
        self.weights[self.first + 1, np.arange(source)] = self.share
