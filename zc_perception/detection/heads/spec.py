"""What a manifest says of a model's head."""

from __future__ import annotations

from dataclasses import dataclass

Anchor = tuple[float, float]


@dataclass(frozen=True)
class HeadSpec:
    """A head and its options. Which of them a kind of head uses, and what it checks, stands with that head.

    :param kind: a key of ``HEADS``.
    :param num_classes: classes, without a background class.
    :param input_size: width, height of the network's input in pixels; (0, 0) for a head that yields source pixels.
    :param strides: input pixels per cell of each level's grid, finest first.
    :param anchors: for each level its anchors, width and height in input pixels (YOLOv5, SSD priors are made from others).
    :param reg_max: bins of each side's distribution (DFL); 1: distances are given directly.
    :param sigmoid: whether the host still has to apply it to scores (``True``) or the device has (``False``).
    :param class_agnostic: one suppression for all classes instead of one for each.
    :param variances: SSD: centre and size variances.
    :param background: SSD: index of the background class among the scores; −1: there is none.
    :param priors: SSD: prior boxes (cx, cy, w, h) relative to the input, in the order of the outputs' rows; empty: boxes are decoded.
    """

    kind: str
    num_classes: int
    input_size: tuple[int, int] = (0, 0)
    strides: tuple[int, ...] = (8, 16, 32)
    anchors: tuple[tuple[Anchor, ...], ...] = ()
    reg_max: int = 16
    sigmoid: bool = True
    class_agnostic: bool = False
    variances: tuple[float, float] = (0.1, 0.2)
    background: int = 0
    priors: tuple[tuple[float, float, float, float], ...] = ()


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
