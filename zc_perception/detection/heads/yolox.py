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

"""The head ``yolox``: one prediction per cell, without anchors, with objectness and classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads.candidates import Candidates, detections, from_centres, NONE
from zc_perception.detection.heads.levels import (
    arrange,
    check_strides,
    Grids,
    grids_for,
    is_decoded,
    ObjectRows,
    readable,
    ReadyFor,
    STRIDES,
)
from zc_perception.detection.heads.score_filter import ObjectFilter
from zc_perception.detection.heads.spec import (
    CLASS_AGNOSTIC,
    DecodeLimits,
    Head,
    HeadSpec,
    SIGMOID,
)
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.rules import Key

# Decoding applies exp() to the widths and heights that the model gives. If most results are more
# than this many times the input's longer side, the model itself has already decoded its boxes.
_FAR = 4.0


class YoloX(Head):
    """
    Decode one tensor with the cells of all levels, or the tensors of each level.

    The tensor of all levels is 1 x N x (5 + C), finest level first: box, objectness, C classes.
    Otherwise each level has one tensor, or separate tensors for boxes, objectness and classes.

    The head computes boxes from the model's numbers v: centre = (v + cell) · stride, size =
    exp(v) · stride. Usually the model itself applies the sigmoid to objectness and classes.
    """

    OPTIONS: ClassVar[Mapping[str, Key]] = {
        'strides': STRIDES,
        'sigmoid': SIGMOID,
        'class_agnostic': CLASS_AGNOSTIC,
    }

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__(spec)
        spec = self._spec
        check_strides(spec, has_grids=True)
        self._ready: ReadyFor[_Rows | _Levels] = ReadyFor(
            self._read, lambda outputs: readable(spec.kind, outputs)
        )

    @np.errstate(all='ignore')
    def decode(
        self, outputs: Sequence[RawTensor], box: Letterbox, limits: DecodeLimits
    ) -> Detections:
        reader, outputs = self._ready.ready(outputs, box)
        candidates = reader.candidates(outputs, limits.score)
        return detections(candidates, box, limits, self._spec.class_agnostic)

    @np.errstate(all='ignore')
    def objection(self, outputs: Sequence[RawTensor], box: Letterbox, score: float) -> str:
        reader, outputs = self._ready.ready(outputs, box)
        return '' if isinstance(reader, _Levels) else reader.objection(outputs[0], box, score)

    def _read(self, outputs: Sequence[RawTensor], box: Letterbox) -> _Rows | _Levels:
        grids = grids_for(self._spec, box)
        if is_decoded(self._spec, outputs, box, 5 + self._spec.num_classes):
            return _Rows(self._spec, outputs[0], grids)
        return _Levels(self._spec, outputs, grids)


def _corners(
    grids: Grids, cells: NDArray[np.intp], boxes: NDArray[np.float32]
) -> NDArray[np.float32]:
    strides = grids.strides[cells]
    return from_centres(
        (boxes[:2] + grids.corners.take(cells, axis=1)) * strides, np.exp(boxes[2:]) * strides
    )


class _Rows:
    def __init__(self, spec: HeadSpec, tensor: RawTensor, grids: Grids) -> None:
        self._grids = grids
        self._rows = ObjectRows(
            spec.kind, tensor, spec.num_classes, spec.sigmoid is True, grids.count
        )
        self._strides = spec.strides

    def candidates(self, outputs: Sequence[RawTensor], score: float) -> Candidates:
        found, boxes = self._rows.find(outputs[0], score)
        corners = _corners(self._grids, found.cells, boxes)
        return Candidates(corners, found.scores, found.classes, found.cells)

    def objection(self, tensor: RawTensor, box: Letterbox, score: float) -> str:
        reason, boxes = self._rows.objection(tensor, box, self._strides, score, 1)
        sides = (np.exp(boxes[2:]) * self._grids.strides).max(axis=0)
        far = sides > _FAR * max(box.input_width, box.input_height)
        if not reason and np.count_nonzero(far) * 2 > np.count_nonzero(boxes.any(axis=0)):
            return (
                'boxes far larger than the input: they are decoded already (exported with '
                '--decode_in_inference); use head: yolov5'
            )
        return reason


class _Levels:
    def __init__(self, spec: HeadSpec, outputs: Sequence[RawTensor], grids: Grids) -> None:
        self._grids = grids
        self._parts = arrange(
            spec.kind,
            outputs,
            grids.shapes,
            {'box': 4, 'objectness': 1, 'class': spec.num_classes},
        )
        self._filters = [
            ObjectFilter(
                outputs[level['objectness'].output],
                outputs[level['class'].output],
                spec.sigmoid is True,
            )
            for level in self._parts
        ]

    def candidates(self, outputs: Sequence[RawTensor], score: float) -> Candidates:
        cells, boxes, scores, classes = [], [], [], []
        for level, parts in enumerate(self._parts):
            found = self._filters[level].find(
                parts['objectness'].view(outputs)[..., 0], parts['class'].view(outputs), score
            )
            if len(found.cells):
                rows, columns = np.divmod(found.cells, self._grids.shapes[level][1])
                boxes.append(
                    outputs[parts['box'].output].read(parts['box'].view(outputs)[rows, columns]).T
                )
                cells.append(found.cells + self._grids.starts[level])
                scores.append(found.scores)
                classes.append(found.classes)
        if not cells:
            return NONE
        rows = np.concatenate(cells)
        corners = _corners(self._grids, rows, np.concatenate(boxes, axis=1))
        return Candidates(corners, np.concatenate(scores), np.concatenate(classes), rows)
