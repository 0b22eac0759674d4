"""From a network's raw outputs to boxes. Each head filters by score before it computes anything per box."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads.spec import DecodeLimits, HeadSpec
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.nms import suppress
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError


class Head(Protocol):
    """Decodes the outputs of one model. One thread."""

    def decode(self, outputs: Sequence[RawTensor], box: Letterbox, limits: DecodeLimits) -> Detections:
        """Detections in source pixels, best first.

        :param box: geometry between the frame and the network's input.
        :raises AcceleratorError: the outputs aren't what the head's spec promises; names the tensor, its shape and the one expected.
        """


def decode_yolov8(
    outputs: Sequence[RawTensor], box: Letterbox, score_threshold: float, iou_threshold: float, max_detections: int
) -> Detections:
    """The decoded YOLOv8/v11 layout, 1 × (4 + C) × N: centre, size in input pixels, then class scores after sigmoid.

    :raises AcceleratorError: another shape.
    """
    if len(outputs) != 1 or outputs[0].values.ndim != 3 or outputs[0].values.shape[0] != 1 or outputs[0].values.shape[1] < 5:
        raise AcceleratorError(f'head yolov8 needs one output 1 x (4 + classes) x N, the model has {[o.values.shape for o in outputs]}')
    rows = outputs[0].real()[0]
    best = rows[4:].max(axis=0)
    # A box that is no number would suppress others, or cover the picture.
    candidates = np.flatnonzero((best >= score_threshold) & np.isfinite(rows[:4]).all(axis=0))
    if not len(candidates):
        return Detections.empty()
    classes = rows[4:, candidates].argmax(axis=0)
    centre, half = rows[:2, candidates].T, rows[2:4, candidates].T / 2
    boxes = np.concatenate([centre - half, centre + half], axis=1)
    return suppress(box.to_source(boxes), best[candidates], classes, iou_threshold=iou_threshold, max_detections=max_detections)


def decode_boxes(
    outputs: Sequence[RawTensor], box: Letterbox, score_threshold: float, iou_threshold: float, max_detections: int
) -> Detections:
    """A detector that yields boxes itself: one output (n, 6) of x0, y0, x1, y1, score, class in source pixels, suppressed already.

    Rows without an area are empty places of a fixed-size table.
    """
    rows = outputs[0].real()
    rows = rows[(rows[:, 4] >= score_threshold) & (rows[:, 2] > rows[:, 0]) & (rows[:, 3] > rows[:, 1])]
    rows = rows[np.argsort(-rows[:, 4], kind='stable')][:max_detections]
    return Detections(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.intp))


class _FunctionHead:
    def __init__(self, function: Callable[[Sequence[RawTensor], Letterbox, float, float, int], Detections]) -> None:
        self._function = function

    def decode(self, outputs: Sequence[RawTensor], box: Letterbox, limits: DecodeLimits) -> Detections:
        return self._function(outputs, box, limits.score, limits.iou, limits.count)


HEADS: dict[str, Callable[[HeadSpec], Head]] = {
    'yolov8': lambda spec: _FunctionHead(decode_yolov8),
    'boxes': lambda spec: _FunctionHead(decode_boxes),
}


def make_head(spec: HeadSpec) -> Head:
    """The head that a manifest describes.

    :raises ConfigError: options that don't belong together; names the manifest's key.
    """
    return HEADS[spec.kind](spec)
