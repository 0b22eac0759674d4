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

"""Task-aligned assignment (TOOD, Feng et al. 2021), BCE for classes, CIoU for boxes."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

CANDIDATES = 10
SCORE_POWER, IOU_POWER = 0.5, 6.0
BOX_WEIGHT = 5.0


def detection_loss(
    boxes: Tensor, logits: Tensor, centres: Tensor, real: Tensor, labels: Tensor
) -> Tensor:
    """
    Return the loss of a batch.

    ``boxes`` ``(b, n, 4)``, ``logits`` ``(b, n, c)``, ``centres`` ``(n, 2)``; ``real`` ``(b, m,
    4)`` and ``labels`` ``(b, m)`` are padded with label -1.
    """
    most = int((labels >= 0).sum(1).max())
    real, labels = real[:, :most], labels[:, :most]
    with torch.no_grad():
        targets, chosen = assign(boxes, logits.sigmoid(), centres, real, labels)
    weight = targets.sum(2)
    total = weight.sum().clamp(min=1.0)
    class_loss = (
        functional.binary_cross_entropy_with_logits(logits, targets, reduction='sum') / total
    )
    positive = weight > 0
    wanted = real.gather(1, chosen[..., None].expand(-1, -1, 4))[positive]
    box_loss = ((1 - ciou(boxes[positive], wanted)) * weight[positive]).sum() / total
    return class_loss + BOX_WEIGHT * box_loss


def assign(
    boxes: Tensor, scores: Tensor, centres: Tensor, real: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return soft class targets ``(b, n, c)`` and each cell's truth box index ``(b, n)``."""
    valid = labels >= 0
    inside = contains(real, centres) & valid[..., None]
    overlap = pairwise_iou(real, boxes) * inside
    own_score = scores.transpose(1, 2).gather(
        1, labels.clamp(min=0)[..., None].expand(-1, -1, boxes.shape[1])
    )
    metric = own_score.pow(SCORE_POWER) * overlap.pow(IOU_POWER) * inside
    best = metric.topk(CANDIDATES, 2)
    picked = torch.zeros_like(metric).scatter_(2, best.indices, (best.values > 1e-9).float())
    rivals = torch.where(picked > 0, overlap, -1.0)
    chosen = rivals.argmax(1)
    picked *= functional.one_hot(chosen, real.shape[1]).transpose(1, 2)
    metric = metric * picked
    strength = (
        metric
        / metric.amax(2, keepdim=True).clamp(min=1e-9)
        * (overlap * picked).amax(2, keepdim=True)
    )
    quality = strength.amax(1)
    classes = labels.clamp(min=0).gather(1, chosen)
    return functional.one_hot(classes, scores.shape[2]) * quality[..., None], chosen


def pairwise_iou(a: Tensor, b: Tensor) -> Tensor:
    """Return the IoU ``(b, m, n)`` of ``a`` ``(b, m, 4)`` and ``b`` ``(b, n, 4)``."""
    ax0, ay0, ax1, ay1 = a[..., None].unbind(2)
    bx0, by0, bx1, by1 = b.transpose(1, 2)[:, None].unbind(2)
    across = (torch.minimum(ax1, bx1) - torch.maximum(ax0, bx0)).clamp_(min=0)
    overlap = across.mul_((torch.minimum(ay1, by1) - torch.maximum(ay0, by0)).clamp_(min=0))
    return overlap / (_area(a)[:, :, None] + _area(b)[:, None] - overlap).clamp_(min=1e-6)


def contains(boxes: Tensor, points: Tensor) -> Tensor:
    """Return whether box ``(b, m, 4)`` has point ``(n, 2)`` inside: ``(b, m, n)``."""
    x0, y0, x1, y1 = boxes[..., None].unbind(2)
    x, y = points.unbind(1)
    return (x > x0) & (x < x1) & (y > y0) & (y < y1)


def ciou(a: Tensor, b: Tensor) -> Tensor:
    """Return the complete IoU ``(k,)`` of matched boxes ``(k, 4)``."""
    low, high = torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])
    overlap = (high - low).clamp(min=0).prod(1)
    iou = overlap / (_area(a) + _area(b) - overlap).clamp(min=1e-6)
    hull = torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])
    apart = (a[:, :2] + a[:, 2:] - b[:, :2] - b[:, 2:]).square().sum(1) / 4
    size_a, size_b = (a[:, 2:] - a[:, :2]).clamp(min=1e-3), (b[:, 2:] - b[:, :2]).clamp(min=1e-3)
    skew = (
        4
        / math.pi**2
        * (
            torch.atan(size_a[:, 0] / size_a[:, 1]) - torch.atan(size_b[:, 0] / size_b[:, 1])
        ).square()
    )
    with torch.no_grad():
        share = skew / (1 - iou + skew + 1e-6)
    return iou - apart / hull.square().sum(1).clamp(min=1e-6) - share * skew


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1)
