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

"""The head ``yolov5``, for YOLOv5 and v7: several anchors per cell, objectness and classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads.candidates import Candidates, detections, from_centres, NONE
from zc_perception.detection.heads.levels import (
    all_described,
    ANCHORS,
    arrange,
    check_strides,
    Grids,
    grids_for,
    in_fractions,
    is_decoded,
    negative_sizes,
    ObjectRows,
    Part,
    readable,
    ReadyFor,
    STRIDES,
    without_batch,
)
from zc_perception.detection.heads.score_filter import not_finite, ObjectFilter, sigmoid, Values
from zc_perception.detection.heads.spec import (
    CLASS_AGNOSTIC,
    DecodeLimits,
    Head,
    HeadSpec,
    SIGMOID,
)
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.rules import Key

_MOST_ANCHORS = 9


class YoloV5(Head):
    """
    Decode raw levels whose channels are grouped by anchor, or one decoded tensor.

    An anchor has the channels x, y, w, h, objectness and C classes. With A anchors, a level is
    H x W x A·(5 + C), A·(5 + C) x H x W or A x H x W x (5 + C). The decoded tensor is
    1 x N x (5 + C): centre and size in input pixels, objectness, classes. If the model gives this
    tensor and also raw levels, the levels are not read.

    In raw levels: centre = (2s − ½ + cell) · stride, size = (2s)² · anchor, where s is the sigmoid
    of the raw number. ``sigmoid: false``: the device has applied the sigmoid to boxes and scores.
    """

    OPTIONS: ClassVar[Mapping[str, Key]] = {
        'strides': STRIDES,
        'anchors': ANCHORS,
        'sigmoid': SIGMOID,
        'class_agnostic': CLASS_AGNOSTIC,
    }

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__(spec)
        spec = self._spec
        check_strides(spec, has_grids=bool(spec.anchors))
        counts = {len(level) for level in spec.anchors or ()}
        if spec.anchors and (
            len(spec.anchors) != len(spec.strides) or len(counts) != 1 or counts == {0}
        ):
            raise ConfigError(
                f'head.anchors has lists of {[len(level) for level in spec.anchors]} anchors; '
                f'there must be one list for each of the {len(spec.strides)} strides '
                f'{list(spec.strides)}, and each list must have the same number of (width, height)'
            )
        if any(
            not 0 < side < float('inf')
            for level in spec.anchors or ()
            for anchor in level
            for side in anchor
        ):
            raise ConfigError(
                'head.anchors: every width and height must be a number of pixels above 0'
            )
        self._ready: ReadyFor[_Decoded | _Levels] = ReadyFor(
            self._read, lambda outputs: readable(spec.kind, _without_levels(outputs))
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

    def _read(self, outputs: Sequence[RawTensor], box: Letterbox) -> _Decoded | _Levels:
        numbers = 5 + self._spec.num_classes
        anchors = len(self._spec.anchors[0]) if self._spec.anchors else 1
        if is_decoded(self._spec, outputs, box, anchors * numbers, numbers):
            return _Decoded(self._spec, outputs[0])
        if not self._spec.anchors:
            raise AcceleratorError(
                f'head {self._spec.kind}: the model has {len(outputs)} raw levels, but the '
                'manifest has no head.anchors: add them'
            )
        return _Levels(self._spec, outputs, grids_for(self._spec, box))


def _without_levels(outputs: Sequence[RawTensor]) -> Sequence[RawTensor]:
    """
    Leave out the raw levels if the model also outputs the decoded tensor.

    Models that were exported by YOLOv5 before version 6.2 output both.
    """
    axes = [output.values.ndim for output in outputs]
    if axes.count(3) != 1 or axes.count(5) != len(axes) - 1 or len(axes) == 1:
        return outputs
    return [outputs[axes.index(3)]]


class _Decoded:
    def __init__(self, spec: HeadSpec, tensor: RawTensor) -> None:
        self._rows = ObjectRows(spec.kind, tensor, spec.num_classes, spec.sigmoid is True)
        self._strides = spec.strides

    def candidates(self, outputs: Sequence[RawTensor], score: float) -> Candidates:
        found, boxes = self._rows.find(outputs[0], score)
        corners = from_centres(boxes[:2], boxes[2:])
        return Candidates(corners, found.scores, found.classes, found.cells)

    def objection(self, tensor: RawTensor, box: Letterbox, score: float) -> str:
        reason, boxes = self._rows.objection(tensor, box, self._strides, score, _MOST_ANCHORS)
        return reason or not_finite(boxes) or negative_sizes(boxes) or in_fractions(boxes)


class _Levels:
    def __init__(self, spec: HeadSpec, outputs: Sequence[RawTensor], grids: Grids) -> None:
        self._spec, self._grids = spec, grids
        self._sigmoid = spec.sigmoid is not False
        self._anchors = [np.array(level, np.float32).T for level in spec.anchors]
        count, width = len(spec.anchors[0]), 5 + spec.num_classes
        self._split = (count, width)
        self._anchors_first = all(without_batch(output.values).ndim == 4 for output in outputs)
        if self._anchors_first:
            self._parts = self._of_four_axes(outputs)
        else:
            self._parts = [
                level['anchor']
                for level in arrange(spec.kind, outputs, grids.shapes, {'anchor': count * width})
            ]
        self._filters = [
            ObjectFilter(outputs[part.output], outputs[part.output], self._sigmoid)
            for part in self._parts
        ]

    def _of_four_axes(self, outputs: Sequence[RawTensor]) -> list[Part]:
        """Find each level's output by its shape: anchors x rows x columns x channels."""
        count, width = self._split
        shapes = [(count, *shape, width) for shape in self._grids.shapes]
        found = [without_batch(output.values).shape for output in outputs]
        if sorted(found) != sorted(shapes):
            wanted = ', '.join('x'.join(map(str, shape)) for shape in shapes)
            raise AcceleratorError(
                f'head {self._spec.kind}: {all_described(outputs)}: expected anchor x row x '
                f'column x channel: {wanted}'
            )
        return [Part(found.index(shape), False) for shape in shapes]

    def _view(self, level: int, outputs: Sequence[RawTensor]) -> Values:
        """Return a view of a level's values as (rows, columns, anchors, channels)."""
        part = self._parts[level]
        view: Values
        if self._anchors_first:
            view = without_batch(outputs[part.output].values).transpose(1, 2, 0, 3)
        else:
            view = part.view(outputs)
            view = view.reshape(*view.shape[:2], *self._split)
        return view

    def candidates(self, outputs: Sequence[RawTensor], score: float) -> Candidates:
        corners, scores, classes, places = [], [], [], []
        for level, part in enumerate(self._parts):
            view = self._view(level, outputs)
            found = self._filters[level].find(view[..., 4], view[..., 5:], score)
            if len(found.cells):
                cells, anchors = np.divmod(found.cells, self._split[0])
                rows, columns = np.divmod(cells, view.shape[1])
                boxes = outputs[part.output].read(view[rows, columns, anchors, :4]).T
                share = sigmoid(boxes) if self._sigmoid else boxes
                place = self._grids.corners.take(cells + self._grids.starts[level], axis=1)
                centres = (share[:2] * np.float32(2) - np.float32(0.5) + place) * np.float32(
                    self._spec.strides[level]
                )
                sizes = np.square(share[2:] * np.float32(2)) * self._anchors[level].take(
                    anchors, axis=1
                )
                corners.append(from_centres(centres, sizes))
                scores.append(found.scores)
                classes.append(found.classes)
                places.append(found.cells + self._grids.starts[level] * self._split[0])
        if not corners:
            return NONE
        return Candidates(
            np.concatenate(corners, axis=1),
            np.concatenate(scores),
            np.concatenate(classes),
            np.concatenate(places),
        )
