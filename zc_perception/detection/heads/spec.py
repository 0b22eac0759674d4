"""What a manifest says of a model's head."""

from __future__ import annotations

from dataclasses import dataclass

Anchor = tuple[float, float]
Prior = tuple[float, float, float, float]


@dataclass(frozen=True)
class HeadSpec:
    """A head and its options, each of them the manifest key ``head.<name>``.

    Each value is checked where the manifest is read. ``make_head`` refuses an option that the kind does not read, and options that don't
    belong together.

    :param kind: a key of ``HEADS``, or the name of another package's head.
    :param num_classes: classes, without a background class.
    :param input_size: width, height of the network's input in pixels without padding; (0, 0): those of the frame's letterbox.
    :param strides: input pixels per cell of each level's grid, finest first (yolov5, yolov8, yolox; ssd with anchors).
    :param anchors: for each level its anchors, width and height in input pixels (yolov5; ssd, whose priors are then made from them:
        centred in each cell, in the order level, row, column, anchor).
    :param reg_max: bins of each side's distribution in a raw yolov8 head (DFL); 1: distances in cells are given directly.
    :param sigmoid: whether the host has to apply it to scores (``True``) or they come as probabilities (``False``); ``None``: as this
        kind is usually exported: the host for raw levels of yolov5 and yolov8, done for decoded yolov5 and yolov8, yolox and ssd.
    :param softmax: ssd: scores are logits of one softmax over all classes; not together with ``sigmoid: true``.
    :param class_agnostic: one suppression for all classes instead of one for each.
    :param variances: ssd: centre and size variances of the box deltas.
    :param background: ssd: index of the background class among the scores; −1: there is none.
    :param priors: ssd: prior boxes (cx, cy, w, h) relative to the input, in the order of the outputs' rows; empty, and no anchors:
        boxes are decoded already.
    :param box_order: ssd, boxes: ``xyxy`` or ``yxyx``: which axis comes first in corners and in deltas (yxyx: TensorFlow).
    :param coordinates: ssd with decoded boxes, boxes: the unit of corners: ``source`` or ``input`` pixels, or ``relative`` to the
        input's size; empty: relative for ssd, source for boxes.
    :param suppressed: boxes: whether the model has removed duplicates already (``True``) or the host has to.
    """

    kind: str
    num_classes: int
    input_size: tuple[int, int] = (0, 0)
    strides: tuple[int, ...] = (8, 16, 32)
    anchors: tuple[tuple[Anchor, ...], ...] = ()
    reg_max: int = 16
    sigmoid: bool | None = None
    softmax: bool = False
    class_agnostic: bool = False
    variances: tuple[float, float] = (0.1, 0.2)
    background: int = 0
    priors: tuple[Prior, ...] = ()
    box_order: str = 'xyxy'
    coordinates: str = ''
    suppressed: bool = True


@dataclass(frozen=True)
class DecodeLimits:
    """What may change while a model runs.

    :param score: candidates below are dropped; one at it counts.
    :param iou: boxes that overlap more than this are the same object.
    :param count: detections at most.
    """

    score: float
    iou: float
    count: int
