"""Scores: raw numbers to probabilities, and a score threshold to a raw one, so that only candidates are ever dequantised."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.raw_tensor import RawTensor

Values = NDArray[Any]
# Wider than all rounding of the float32 computation: a threshold in raw numbers lets through what may reach the score.
_MARGIN = 2.0**-20
# Far below it float32 loses its relative precision.
_TINY = 1e-30
# All values of 8 bits, whose threshold is exact.
_STEPS = 255


def sigmoid(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 / (1 + exp(−x)) in float32; callers have overflow warnings off."""
    result: NDArray[np.float32] = np.float32(1) / (np.float32(1) + np.exp(-logits))
    return result


def activated(logits: NDArray[np.float32], by_sigmoid: bool) -> NDArray[np.float32]:
    """Probabilities; those that the device has computed can lie a rounding above 1."""
    return sigmoid(logits) if by_sigmoid else np.minimum(logits, np.float32(1))


def logit(score: float) -> float:
    """The sigmoid's inverse; infinite at 0 and 1."""
    if not 0 < score < 1:
        return -math.inf if score <= 0 else math.inf
    return math.log(score) - math.log1p(-score)


def real_threshold(score: float, by_sigmoid: bool) -> float:
    """A real value that nothing lies below which reaches *score*, by a hair too low rather than too high."""
    score = float(np.float32(score))
    low = score - abs(score) * _MARGIN - _TINY
    if by_sigmoid:
        low = logit(low)
    return low - abs(low) * _MARGIN if math.isfinite(low) else low


def raw_threshold(tensor: RawTensor, score: float, by_sigmoid: bool) -> Values:
    """The least raw value, in the tensor's own type, that reaches *score*.

    What lies below doesn't reach it for certain. What lies above has to be asked again as a real number: for floats and wide integers
    this is a hair too low, and where nothing reaches the score it is the type's last value.
    """
    low = real_threshold(score, by_sigmoid)
    kind = tensor.values.dtype
    if kind.kind == 'f':
        return np.array(low, kind)
    limits = np.iinfo(kind)
    place = min(max(low / float(tensor.scale), -1e12), 1e12) + tensor.zero_point
    place = math.floor(place - (abs(place) + abs(tensor.zero_point)) * _MARGIN)
    least = min(max(place, limits.min), limits.max)
    steps = np.arange(least, min(least + _STEPS, limits.max) + 1).astype(kind)
    enough = np.flatnonzero(activated(tensor.read(steps), by_sigmoid) >= np.float32(score))
    return np.array(steps[enough[0] if len(enough) else -1])
