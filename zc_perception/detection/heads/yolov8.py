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
The head ``yolov8``, for YOLOv8 and v11: class scores without objectness.

The model predicts the distance of each side of a box from the cell's centre, as a probability
distribution over whole numbers of cells (DFL).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads.candidates import (
    Candidates,
    compiled_rows,
    detections,
    from_centres,
    NONE,
    oriented,
)
from zc_perception.detection.heads.levels import (
    all_described,
    arrange,
    check_strides,
    Grids,
    grids_for,
    in_fractions,
    is_decoded,
    negative_sizes,
    readable,
    ReadyFor,
    rows_objection,
    STRIDES,
    without_prototypes,
)
from zc_perception.detection.heads.score_filter import (
    logits,
    make_score_filter,
    not_finite,
    out_of_reach,
    sigmoid,
    Values,
)
from zc_perception.detection.heads.spec import (
    CLASS_AGNOSTIC,
    DecodeLimits,
    EXTRAS,
    Head,
    HeadSpec,
    more_numbers,
    SIGMOID,
)
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError
from zc_perception.rules import integer, Key

# Logits from minus this value to this value need no offset before the softmax: exp() doesn't
# overflow float32, and a sum doesn't lose its smaller terms.
_SAFE_EXPONENT = 40.0
# A matrix product gets at most this many boxes, one box per row. For more rows OpenBLAS wakes
# threads, which takes longer than the product itself, and much longer if other programs use the
# CPUs.
_ROWS = 256
# The highest number of cached tables of exp(); each pair of scale and zero point needs one.
_TABLES = 16


class Distances:
    """
    Compute four distances for each box, each the expected value of a distribution over bins.

    If there is only one bin, the model gives the distances themselves.
    """

    def __init__(self, bins: int) -> None:
        self._bins = bins
        # A single matrix product gives two sums over the bins of each side: one weighted by the
        # bins' numbers, and the plain sum to divide it by.
        sides = np.eye(4)
        parts = [
            np.kron(sides, np.reshape(weights, (bins, 1)))
            for weights in (np.arange(bins), np.ones(bins))
        ]
        self._weights = np.concatenate(parts, axis=1).astype(np.float32)
        self._tables: dict[tuple[object, ...], NDArray[np.float32] | None] = {}

    @property
    def channels(self) -> int:
        """How many raw numbers each box has."""
        return 4 * self._bins

    def expected(self, parts: Sequence[tuple[RawTensor, Values]]) -> NDArray[np.float32]:
        """
        Return (4, n) distances in cells from the cell's centre: left, top, right, bottom.

        With several bins, one NaN among a box's numbers makes all its distances NaN.

        :param parts: pairs of a tensor and selected values of it (boxes, 4 * bins).
        """
        if self._bins == 1:
            sides: NDArray[np.float32] = np.concatenate(
                [tensor.read(values) for tensor, values in parts]
            ).T
            return sides
        powers = np.empty((sum(len(values) for _, values in parts), self.channels), np.float32)
        start = 0
        for tensor, values in parts:
            end = start + len(values)
            self._exponentials(tensor, values, powers[start:end])
            start = end
        sums = np.empty((len(powers), 8), np.float32)
        for start in range(0, len(powers), _ROWS):
            part = slice(start, start + _ROWS)
            np.matmul(powers[part], self._weights, out=sums[part])
        distances: NDArray[np.float32] = (sums[:, :4] / sums[:, 4:]).T
        return distances

    def _exponentials(self, tensor: RawTensor, values: Values, out: NDArray[np.float32]) -> None:
        if tensor.values.dtype.itemsize == 1 and isinstance(tensor.scale, float):
            table = self._table(tensor)
            if table is not None:
                cv2.LUT(values.view(np.uint8), table, dst=out)
                return
        logits = tensor.read(values)
        # A softmax doesn't depend on an offset, so subtract each row's maximum only if exp() would
        # overflow. This is rare, and the maxima would cost more than everything else.
        if not (logits.max() <= _SAFE_EXPONENT and logits.min() >= -_SAFE_EXPONENT):
            rows = logits.reshape(-1, self._bins)
            logits = (rows - rows.max(axis=1, keepdims=True)).reshape(logits.shape)
        np.exp(logits, out=out)

    def _table(self, tensor: RawTensor) -> NDArray[np.float32] | None:
        """
        Return a table of exp() for the 256 values of an 8-bit tensor, indexed by the value's bits.

        Return ``None`` if a value needs an offset before exp(), see ``_SAFE_EXPONENT``.
        """
        key = tensor.values.dtype, tensor.scale, tensor.zero_point
        if key not in self._tables:
            if len(self._tables) >= _TABLES:
                self._tables.clear()
            every = tensor.read(np.arange(256, dtype=np.uint8).view(tensor.values.dtype))
            self._tables[key] = (
                np.exp(every) if bool((np.abs(every) <= _SAFE_EXPONENT).all()) else None
            )
        return self._tables[key]


class YoloV8(Head):
    """
    Decode one tensor with all boxes, or the raw tensors of each level (grid of cells).

    The tensor is 1 x (4 + classes) x N or 1 x N x (4 + classes): centre and size in input pixels,
    scores. If both shapes fit, the first is assumed, unless the layout is ``nhwc``. The boxes and
    scores of a level are in separate tensors or in one. The tensors may have any order.

    If the model has masks, keypoints or angles, their numbers follow the scores of each box. A
    level then has three parts: boxes, scores and these numbers.
    """

    OPTIONS: ClassVar[Mapping[str, Key]] = {
        'strides': STRIDES,
        'reg_max': Key(
            integer(1, 64),
            (
                "Number of bins (DFL) for each distance from a cell to a side of the cell's box; "
                '1: the model gives the distances themselves, in cells.'
            ),
            16,
        ),
        'sigmoid': SIGMOID,
        'class_agnostic': CLASS_AGNOSTIC,
        **EXTRAS,
    }

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__(spec)
        spec = self._spec
        check_strides(spec, has_grids=False)
        # Only the output with the boxes has this number of channels. 0: another output has the
        # same number, so the number can't show which output has the boxes.
        self._gathered = (
            4 * spec.reg_max
            if 4 * spec.reg_max not in (spec.num_classes, spec.num_classes + 4, spec.extra)
            else 0
        )
        self._ready: ReadyFor[_Decoded | _Levels] = ReadyFor(self._read, self._rows_of)

    def decode(
        self, outputs: Sequence[RawTensor], box: Letterbox, limits: DecodeLimits
    ) -> Detections:
        reader, outputs = self._ready.ready(outputs, box)
        found = reader.detections(outputs, box, limits)
        return self._in_numpy(reader, outputs, box, limits) if found is None else found

    @np.errstate(all='ignore')
    def _in_numpy(
        self,
        reader: _Decoded | _Levels,
        outputs: Sequence[RawTensor],
        box: Letterbox,
        limits: DecodeLimits,
    ) -> Detections:
        candidates = reader.candidates(outputs, limits.score)
        if not self._spec.oriented:
            return detections(candidates, box, limits, self._spec.class_agnostic)
        return oriented(
            candidates,
            reader.extras(outputs, candidates.rows)[:, 0],
            box,
            limits,
            about=reader.anchors(candidates.rows),
            class_agnostic=self._spec.class_agnostic,
        )

    @np.errstate(all='ignore')
    def extras(self, outputs: Sequence[RawTensor], rows: NDArray[np.intp]) -> NDArray[np.float32]:
        reader = self._ready.last
        if reader is None or not self._spec.extra:
            return super().extras(outputs, rows)
        return reader.extras(self._rows_of(outputs), rows)

    @np.errstate(all='ignore')
    def _rows_of(self, outputs: Sequence[RawTensor]) -> Sequence[RawTensor]:
        kind = self._spec.kind
        return readable(kind, without_prototypes(kind, outputs, self._spec.masks), self._gathered)

    @np.errstate(all='ignore')
    def objection(self, outputs: Sequence[RawTensor], box: Letterbox, score: float) -> str:
        reader, outputs = self._ready.ready(outputs, box)
        return reader.objection(outputs, box, score)

    @np.errstate(all='ignore')
    def _read(self, outputs: Sequence[RawTensor], box: Letterbox) -> _Decoded | _Levels:
        classes = self._spec.num_classes + self._spec.extra
        if is_decoded(self._spec, outputs, box, 4 * self._spec.reg_max + classes, 4 + classes):
            return _Decoded(self._spec, outputs[0])
        return _Levels(self._spec, outputs, grids_for(self._spec, box))


class _Decoded:
    def __init__(self, spec: HeadSpec, tensor: RawTensor) -> None:
        self._classes = slice(4, 4 + spec.num_classes)
        channels = self._classes.stop + spec.extra
        shape = tensor.values.shape
        if len(shape) == 3 and shape[0] == 1:
            shape = shape[1:]
        if len(shape) != 2 or channels not in shape:
            more = '' if spec.extra else more_numbers(min(shape, default=0) - channels)
            raise AcceleratorError(
                f'head {spec.kind}: {all_described([tensor])}: expected 1x{channels}xN or '
                f'1xNx{channels} (4 + {spec.num_classes} classes'
                f'{f" + {spec.extra} other numbers" if spec.extra else ""}), '
                f'or the raw levels (one grid of cells per stride){more}'
            )
        # If both axes have the same length, assume that the channels come first, as exporters
        # write them, unless the layout is nhwc. Example: a 64 x 64 input has 84 cells, and a row
        # with 80 classes has 84 numbers.
        self._channels_first = shape[0] == channels and (
            shape[1] != channels or tensor.layout != 'nhwc'
        )
        self._sigmoid, self._strides = spec.sigmoid is True, spec.strides
        rows = self._rows(tensor.values)
        self._filter = make_score_filter(tensor, rows[:, self._classes], self._sigmoid)
        apart = self._sigmoid or spec.oriented
        self._whole = None if apart else compiled_rows(tensor, len(rows))
        self._class_agnostic = spec.class_agnostic

    def _rows(self, values: Values) -> Values:
        rows = values[0] if values.ndim == 3 else values
        return rows.T if self._channels_first else rows

    def detections(
        self, outputs: Sequence[RawTensor], box: Letterbox, limits: DecodeLimits
    ) -> Detections | None:
        """Decode in compiled code; return ``None`` if the spec or the layout needs NumPy."""
        if self._whole is None:
            return None
        rows = self._rows(outputs[0].values)
        return self._whole.detections(
            rows[:, self._classes], rows[:, :4], box, limits, self._class_agnostic
        )

    def candidates(self, outputs: Sequence[RawTensor], score: float) -> Candidates:
        rows = self._rows(outputs[0].values)
        cells, classes, scores = self._filter.find(rows[:, self._classes], score)
        boxes = outputs[0].read(
            rows.T[:4].take(cells, axis=1) if self._channels_first else rows[cells, :4].T
        )
        return Candidates(from_centres(boxes[:2], boxes[2:]), scores, classes, cells)

    def extras(self, outputs: Sequence[RawTensor], rows: NDArray[np.intp]) -> NDArray[np.float32]:
        behind = self._classes.stop
        return outputs[0].read(self._rows(outputs[0].values)[rows, behind:])

    def anchors(self, rows: NDArray[np.intp]) -> NDArray[np.float32] | None:
        """Return ``None``: each box is turned about its own centre, not about its cell's."""
        return None

    def objection(self, outputs: Sequence[RawTensor], box: Letterbox, score: float) -> str:
        rows = outputs[0].read(np.ascontiguousarray(self._rows(outputs[0].values)))
        return (
            rows_objection(len(rows), box, self._strides)
            or out_of_reach(outputs[0], score, self._sigmoid, has_boxes=True)
            or logits(rows[:, self._classes], self._sigmoid)
            or not_finite(rows[:, :4].T)
            or negative_sizes(rows[:, :4].T)
            or in_fractions(rows[:, :4].T)
        )


class _Levels:
    def __init__(self, spec: HeadSpec, outputs: Sequence[RawTensor], grids: Grids) -> None:
        self._spec, self._grids = spec, grids
        self._distances = Distances(spec.reg_max)
        parts = {'box': 4 * spec.reg_max, 'class': spec.num_classes}
        if spec.extra:
            parts['extra'] = spec.extra
        arranged = arrange(spec.kind, outputs, grids.shapes, parts)
        self._extras = [level['extra'] for level in arranged if spec.extra]
        self._boxes = [level['box'] for level in arranged]
        self._classes = [level['class'] for level in arranged]
        self._sigmoid = spec.sigmoid is not False
        self._filters = [
            make_score_filter(outputs[part.output], part.view(outputs), self._sigmoid)
            for part in self._classes
        ]

    def detections(
        self, outputs: Sequence[RawTensor], box: Letterbox, limits: DecodeLimits
    ) -> Detections | None:
        """Return ``None``: compiled code decodes only one tensor with all boxes."""
        return None

    def candidates(self, outputs: Sequence[RawTensor], score: float) -> Candidates:
        cells, classes, scores, sides = [], [], [], []
        for level, found in enumerate(
            f.find(p.view(outputs), score)
            for f, p in zip(self._filters, self._classes, strict=True)
        ):
            if len(found.cells):
                part = self._boxes[level]
                sides.append((outputs[part.output], _of_cells(part.view(outputs), found.cells)))
                cells.append(found.cells + self._grids.starts[level])
                classes.append(found.classes)
                scores.append(found.scores)
        if not cells:
            return NONE
        distances = self._distances.expected(sides)
        rows = np.concatenate(cells)
        return Candidates(
            self._corners(rows, distances), np.concatenate(scores), np.concatenate(classes), rows
        )

    def extras(self, outputs: Sequence[RawTensor], rows: NDArray[np.intp]) -> NDArray[np.float32]:
        spec = self._spec
        found = np.empty((len(rows), spec.extra), np.float32)
        levels = np.searchsorted(self._grids.starts, rows, side='right') - 1
        for level in np.unique(levels):
            part, own = self._extras[level], levels == level
            cells = rows[own] - self._grids.starts[level]
            found[own] = outputs[part.output].read(_of_cells(part.view(outputs), cells))
        # Networks without DFL (YOLO26) give angles in radians. They give keypoints as distances
        # from the cell's centre, in cells. Older networks encode both differently.
        new = spec.reg_max == 1
        if spec.oriented and not new:
            return np.asarray(np.float32(np.pi) * (sigmoid(found) - np.float32(0.25)))
        if spec.keypoints:
            points = found.reshape(len(rows), *spec.keypoints)
            points[..., :2] *= 1 if new else 2
            points[..., :2] += (self._grids.corners[:, rows].T + (0.5 if new else 0))[:, None]
            points[..., :2] *= self._grids.strides[rows, None, None]
            points[..., 2:] = sigmoid(points[..., 2:])
        return found

    def anchors(self, rows: NDArray[np.intp]) -> NDArray[np.float32] | None:
        centres = self._grids.corners.take(rows, axis=1) + np.float32(0.5)
        return np.asarray(centres * self._grids.strides[rows])

    def objection(self, outputs: Sequence[RawTensor], box: Letterbox, score: float) -> str:
        return next(
            filter(
                None,
                (out_of_reach(outputs[p.output], score, self._sigmoid) for p in self._classes),
            ),
            '',
        )

    def _corners(
        self, cells: NDArray[np.intp], distances: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        centres = self._grids.corners.take(cells, axis=1) + np.float32(0.5)
        corners: NDArray[np.float32] = (
            np.concatenate((centres - distances[:2], centres + distances[2:]))
            * self._grids.strides[cells]
        )
        return corners


def _of_cells(values: Values, cells: NDArray[np.intp]) -> Values:
    """
    Return the channels of n cells, as (n, channels).

    :param values: (rows, columns, channels).
    :param cells: for each cell, its number: row · columns + column.
    """
    columns, channels = values.shape[1:]
    if values.flags.c_contiguous:
        return np.asarray(values.reshape(-1, channels).take(cells, axis=0))
    rows = cells // columns
    return np.asarray(values[rows, cells - rows * columns])
