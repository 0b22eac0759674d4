"""Models that yield boxes: a table of corners, score and class. What corners that a model gives itself mean, other heads ask here too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads.candidates import Candidates, detections, in_source
from zc_perception.detection.heads.levels import all_described, input_size, readable
from zc_perception.detection.heads.score_filter import Values
from zc_perception.detection.heads.spec import (
    CLASS_AGNOSTIC,
    EXTRA,
    DecodeLimits,
    Head,
    HeadSpec,
)
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.rules import Key, boolean, choice

_TURNED = [1, 0, 3, 2]
UNITS = choice('source', 'input', 'relative')
BOX_ORDER = Key(
    choice('xyxy', 'yxyx'),
    'Which axis comes first in corners and deltas; yxyx: TensorFlow.',
    'xyxy',
)


def x_first(spec: HeadSpec, four: NDArray[np.float32]) -> NDArray[np.float32]:
    """(4, n) with x before y."""
    return four[_TURNED] if spec.box_order == 'yxyx' else four


class CornerUnit:
    """:param spec: with the options ``box_order`` and ``coordinates``; without the latter: relative to the input."""

    def __init__(self, spec: HeadSpec) -> None:
        self._spec = spec
        self._unit = spec.coordinates or 'relative'

    def corners(
        self, corners: NDArray[np.float32], box: Letterbox
    ) -> tuple[NDArray[np.float32], Letterbox]:
        """(4, n) x0, y0, x1, y1 in pixels, and the geometry that leads from them to the source.

        :param corners: (4, n) as the model gives them.
        """
        corners = x_first(self._spec, corners)
        if self._unit == 'source':
            width, height = box.source_width, box.source_height
            return corners, Letterbox(width, height, width, height, width, height, 0, 0)
        size = input_size(self._spec, box)
        if self._unit == 'relative':
            corners = corners * np.array([size * 2], np.float32).T
        return corners, box


class Boxes(Head):
    """One output n x 6 or 1 x n x 6: x0, y0, x1, y1, score, class; rows without an area are empty places of a fixed-size table.
    Behind the class may stand ``extra`` numbers.

    So HOG in source pixels, and networks that suppress themselves (YOLOv10, YOLO26, DETR exports) with ``coordinates: input``.
    """

    OPTIONS: ClassVar[Mapping[str, Key]] = {
        'class_agnostic': CLASS_AGNOSTIC,
        'box_order': BOX_ORDER,
        'coordinates': Key(
            UNITS,
            "Unit of corners: pixels of the frame or of the input, or relative to the input's size.",
            'source',
        ),
        'extra': EXTRA,
        'suppressed': Key(boolean(), 'Whether the model has removed duplicates already.', True),
    }

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__(spec)
        spec = self._spec
        if spec.class_agnostic and spec.suppressed:
            raise ConfigError(
                'head.class_agnostic is for boxes that the host suppresses: add suppressed: false, or leave it out'
            )
        self._unit = CornerUnit(spec)

    @np.errstate(all='ignore')
    def decode(
        self, outputs: Sequence[RawTensor], box: Letterbox, limits: DecodeLimits
    ) -> Detections:
        outputs = readable(self._spec.kind, outputs)
        table = self._table(outputs)
        rows = outputs[0].read(table)
        corners, box = self._unit.corners(rows[:, :4].T, box)
        chosen = ready_made(corners, rows[:, 4], rows[:, 5], self._spec.num_classes, limits.score)
        if not self._spec.suppressed:
            return detections(chosen, box, limits, self._spec.class_agnostic)
        return best_first(chosen, box, limits.count)


    def extras(
        self, outputs: Sequence[RawTensor], rows: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        outputs = readable(self._spec.kind, outputs)
        return outputs[0].read(self._table(outputs)[rows])[:, 6:]

    def _table(self, outputs: Sequence[RawTensor]) -> Values:
        columns = 6 + self._spec.extra
        values = outputs[0].values if len(outputs) == 1 else None
        if values is not None and values.ndim == 3 and values.shape[0] == 1:
            values = values[0]
        if values is None or values.ndim != 2 or values.shape[1] != columns:
            raise AcceleratorError(
                f'head {self._spec.kind}: {all_described(outputs)}: expected one output nx{columns} or 1xnx{columns}'
            )
        return values


def ready_made(
    corners: NDArray[np.float32],
    scores: NDArray[np.float32],
    classes: NDArray[np.float32],
    num_classes: int,
    score: float,
) -> Candidates:
    """Those rows of a table that are boxes of a class that exists and reach the score."""
    fine = (
        (scores >= np.float32(score))
        & (scores < np.inf)
        & (classes >= 0)
        & (classes < num_classes)
        & np.isfinite(corners).all(axis=0)
    )
    fine &= (corners[2:] > corners[:2]).all(axis=0)
    rows = fine.nonzero()[0]
    return Candidates(
        corners[:, rows],
        np.minimum(scores[rows], np.float32(1)),
        classes[rows].astype(np.intp),
        rows,
    )


def best_first(chosen: Candidates, box: Letterbox, count: int) -> Detections:
    """The best of boxes that the model has suppressed already."""
    order = np.argsort(-chosen.scores, kind='stable')
    return in_source(chosen.chosen(order), box).chosen(slice(count))
