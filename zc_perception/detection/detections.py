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

"""The objects found in one image, and the overlap of boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Detections:
    """
    The objects found in one frame, best score first.

    ``boxes`` are (n, 4) x0, y0, x1, y1 in source-image pixels, ``scores`` (n) 0..1, and
    ``classes`` (n) class indices.

    :param rows: (n) the row number of each box in the model's outputs; each kind of head numbers
        rows in its own way. :meth:`Head.extras` uses these numbers to read masks' coefficients,
        keypoints or angles. Empty if no head made the boxes.
    :param ids: (n) the number of each object's track, 0 for an object without a track; ``None``:
        tracking is off.
    :param turned: (n, 5) centre x, y, width, height and angle of oriented boxes. The angle is in
        radians, clockwise on the screen (from x to y). ``boxes`` then has the upright boxes that
        enclose the oriented ones. ``None``: no box is oriented.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    classes: NDArray[np.intp]
    rows: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))
    ids: NDArray[np.int64] | None = None
    turned: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.scores)

    def chosen(self, which: slice | NDArray[np.bool_] | NDArray[np.intp]) -> Detections:
        """Return some of the detections, chosen by a mask, by indices, or by a slice."""
        return Detections(
            self.boxes[which],
            self.scores[which],
            self.classes[which],
            self.rows[which] if len(self.rows) else self.rows,
            None if self.ids is None else self.ids[which],
            None if self.turned is None else self.turned[which],
        )

    def moved(self, x: float, y: float) -> Detections:
        """Return the same detections, moved right by *x* and down by *y* pixels."""
        by = np.array((x, y, x, y, 0), np.float32)
        turned = None if self.turned is None else self.turned + by * (1, 1, 0, 0, 0)
        return replace(self, boxes=self.boxes + by[:4], turned=turned)

    @classmethod
    def joined(cls, parts: Sequence[Detections]) -> Detections:
        """Concatenate several :class:`Detections`, all with oriented boxes or all without."""
        turned = [part.turned for part in parts if part.turned is not None]
        return cls(
            np.concatenate([part.boxes for part in parts]),
            np.concatenate([part.scores for part in parts]),
            np.concatenate([part.classes for part in parts]),
            np.concatenate([part.rows for part in parts]),
            turned=np.concatenate(turned) if turned else None,
        )

    @classmethod
    def empty(cls) -> Detections:
        """Return the :class:`Detections` of a frame in which no object was found."""
        return cls(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.intp))


def box_iou(a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.float64]:
    """
    Return the intersection over union of every box in *a* with every box in *b*.

    *a* is (n, 4), *b* is (m, 4), and the result is (n, m). Boxes are x0, y0, x1, y1 in pixels;
    an empty box has IoU 0 with every box. Raises ValueError for other shapes.
    """
    first, second = _as_boxes(a), _as_boxes(b)
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    overlap = np.prod(np.clip(high - low, 0.0, None), axis=2)
    union = _areas(first)[:, None] + _areas(second)[None, :] - overlap
    iou: NDArray[np.float64] = np.divide(
        overlap, union, out=np.zeros_like(overlap), where=union > 0
    )
    return iou


def _as_boxes(boxes: NDArray[np.floating]) -> NDArray[np.float64]:
    array = np.asarray(boxes, np.float64)
    if array.ndim != 2 or array.shape[1] != 4:
        raise ValueError(f'boxes must have shape (n, 4), got {array.shape}')
    return array


def _areas(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    areas: NDArray[np.float64] = np.prod(np.clip(boxes[:, 2:] - boxes[:, :2], 0.0, None), axis=1)
    return areas
