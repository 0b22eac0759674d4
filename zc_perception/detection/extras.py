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

"""
Read the keypoints and the masks of detections from a model's outputs.

A mask covers the pixels where a weighted sum of the network's prototypes (small pictures) is above
zero. The weights are the mask coefficients in the detection's row. Only the part inside the box is
computed: first the sum at the prototypes' resolution, then its bilinear interpolation at each
pixel of the frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads.levels import prototypes, without_batch
from zc_perception.detection.heads.spec import Head
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.native import compiled

PEOPLE = 17
PERSON = ((0, 1), (0, 2), (1, 3), (2, 4), (5, 6), (5, 7), (7, 9), (6, 8), (8, 10),
          (5, 11), (6, 12), (11, 12), (11, 13), (13, 15), (12, 14), (14, 16))  # fmt: skip
"""
A line is drawn between the two keypoints of each pair. A person has 17 keypoints, in COCO's order:
nose, eyes, ears, shoulders, elbows, wrists, hips, knees, ankles.
"""
SEEN = 0.5
"""A keypoint with a lower score counts as not visible: no line is drawn to it."""


def keypoints(
    head: Head,
    outputs: Sequence[RawTensor],
    box: Letterbox,
    found: Detections,
    shape: Sequence[int],
) -> NDArray[np.float32]:
    """
    Return (n, keypoints, 3): x and y in pixels, clipped to the frame, and a score from 0 to 1.

    If the model gives no scores for keypoints, each score is 1. A keypoint with a number that is
    not finite becomes (0, 0) with score 0: viewers can't draw NaN.

    :param outputs: the model's outputs from which *found* was decoded.
    :param shape: how many keypoints a detection has, and how many numbers (2 or 3) a keypoint
        has.
    """
    points = np.ones((len(found), shape[0], 3), np.float32)
    for region, part, which, rows in box.runs(outputs, found.rows):
        values = head.extras(part, rows).reshape(-1, shape[1])
        # to_source() takes boxes, so repeat each point to get four numbers.
        places = box.to_source(np.tile(values[:, :2], 2))[:, :2] + region[:2]
        points[which, :, :2] = places.reshape(len(which), -1, 2)
        if shape[1] > 2:
            points[which, :, 2] = values[:, 2].reshape(len(which), -1)
    points[~np.isfinite(points).all(axis=2)] = 0
    np.clip(points[..., 2], 0, 1, out=points[..., 2])
    return points


MOST = 65535
"""The highest number of masks in a picture of labels: a label is a uint16 above 0."""
_NOWHERE = np.zeros((0, 4), np.int32)


class MaskPainter:
    """
    Paint masks into a picture of labels, in which each pixel holds a detection's number.

    Each call first clears (sets to 0) the boxes in which the previous call painted. To save time,
    it doesn't clear the rest of the picture. Only one thread may use a painter.

    :param masks: the number of mask coefficients in each row.
    """

    def __init__(self, head: Head, masks: int) -> None:
        self._head, self._masks = head, masks
        self._key: object = None
        self._axes: tuple[_Axis, _Axis] | None = None
        self._labels: NDArray[np.uint16] | None = None
        self._painted = _NOWHERE

    def paint(
        self,
        outputs: Sequence[RawTensor],
        box: Letterbox,
        found: Detections,
        labels: NDArray[np.uint16],
    ) -> None:
        """
        In *labels*, set each pixel of a detection to the number of this detection, from 1.

        Where the masks of detections overlap, the detection with the best score wins. All other
        pixels are 0.

        :param outputs: the model's outputs from which *found* was decoded.
        :param labels: (rows, columns) of the frame's size: all zeros, or the picture that the
            previous call painted.
        """
        if labels is not self._labels:
            self._labels, self._painted = labels, _NOWHERE
        _wipe(labels, self._painted)
        self._painted = _NOWHERE
        found = found.chosen(slice(MOST))
        if not len(found):
            return
        [((left, top, width, height), *_)] = box.runs(outputs, found.rows)
        tensor = outputs[prototypes(outputs, self._masks)]
        # A mask depends only on the sign of the weighted sum, so a single scale for all values can
        # be left out. If there are several scales, dequantise the values.
        if not isinstance(tensor.scale, float):
            tensor = RawTensor(tensor.real(), layout=tensor.layout)
        grids = without_batch(tensor.values)
        if grids.shape[0] != self._masks or tensor.layout == 'nhwc':
            grids = grids.transpose(2, 0, 1)
        weights = np.ascontiguousarray(self._head.extras(outputs, found.rows), np.float32)
        zero = tensor.zero_point if tensor.quantised else 0
        offsets = np.asarray(zero * weights.sum(axis=1), np.float32)
        columns, rows = self._look(box, grids.shape)
        corners = np.ceil(found.boxes - (left, top, left, top) - 0.5)
        boxes = corners.clip(0, (width, height) * 2).astype(np.int32)
        part = labels[top:, left:][:height, :width]
        _paint(part, boxes, grids, weights, offsets, columns, rows)
        self._painted = boxes + np.array((left, top, left, top), np.int32)

    def _look(self, box: Letterbox, shape: tuple[int, ...]) -> tuple[_Axis, _Axis]:
        """Return the interpolation along x and y, cached for the last letterbox."""
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
    The linear interpolation between the prototypes' pixels along one axis.

    For each pixel of the frame, ``before`` is the index of the prototypes' pixel before it.
    ``share`` is the weight of the prototypes' pixel after it, from 0 to 1.
    """

    def __init__(self, source: int, size: int, start: int, input_size: int, count: int) -> None:
        places = start + (np.arange(source) + 0.5) * (size / source)
        places = places * (count / input_size) - 0.5
        self.before = np.floor(places).clip(0, count - 2).astype(np.int32)
        self.share = (places - self.before).clip(0, 1).astype(np.float32)


def _wipe(labels: NDArray[np.uint16], places: NDArray[np.int32]) -> None:
    if compiled is not None:
        compiled.wipe(labels, places)
        return
    for x0, y0, x1, y1 in places.tolist():
        labels[y0:y1, x0:x1] = 0


def _paint(
    labels: NDArray[np.uint16],
    boxes: NDArray[np.int32],
    grids: NDArray[Any],
    weights: NDArray[np.float32],
    offsets: NDArray[np.float32],
    columns: _Axis,
    rows: _Axis,
) -> None:
    """Paint masks by C or NumPy; both add the *grids* in the same order: the results are equal."""
    if compiled is not None and compiled.paint(
        labels,
        boxes,
        grids,
        weights,
        offsets,
        columns.before,
        columns.share,
        rows.before,
        rows.share,
    ):
        return
    for index, (x0, y0, x1, y1) in reversed([*enumerate(boxes.tolist())]):
        if x1 <= x0 or y1 <= y0:
            continue
        x, y = columns.before[x0:x1], rows.before[y0:y1]
        own = slice(y[0], y[-1] + 2), slice(x[0], x[-1] + 2)
        part = grids[:, own[0], own[1]].astype(np.float32, order='C')
        part *= weights[index, :, None, None]
        values = np.add.reduce(part, axis=0)
        values -= offsets[index]
        values = _between(values, x - x[0], columns.share[x0:x1], 1)
        values = _between(values, y - y[0], rows.share[y0:y1, None], 0)
        label = np.full(values.shape, index + 1, np.uint16)
        cv2.copyTo(label, (values > 0).view(np.uint8), labels[y0:y1, x0:x1])


def _between(
    values: NDArray[np.float32], before: NDArray[np.int32], share: NDArray[np.float32], axis: int
) -> NDArray[np.float32]:
    """
    Interpolate between neighbours along *axis*: the values at *before* and at *before* + 1.

    :param share: the weight of the value at *before* + 1, from 0 to 1, for each index.
    """
    low = values.take(before, axis=axis)
    high = values.take(before + 1, axis=axis)
    high -= low
    high *= share
    high += low
    return high
