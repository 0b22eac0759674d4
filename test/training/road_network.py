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

"""The road detector: a small anchor-free pyramid, decoded to YOLOv8's layout, and its loss."""

from __future__ import annotations

from collections.abc import Iterator
import math

import torch
from torch import nn, Tensor
from torch.nn import functional

STRIDES = (8, 16, 32)
MAX_LOG_REACH = 4.0


class Conv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, size: int = 3, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False),
            nn.BatchNorm2d(outputs, momentum=0.03, eps=1e-3),
            nn.ReLU(inplace=True),
        )


class Residual(nn.Module):
    """Bottleneck of half the channels with a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(Conv(channels, channels // 2, 1), Conv(channels // 2, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class LevelConv(nn.Module):
    """
    3x3 convolution, batch norm, ReLU; the levels share weights but not norms.

    Levels differ in their statistics: running averages over all would fit none at inference.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(
            [nn.BatchNorm2d(outputs, momentum=0.03, eps=1e-3) for _ in STRIDES]
        )

    def forward(self, x: Tensor, level: int) -> Tensor:
        norm = self.norms[level]
        if self.training:
            return functional.relu(norm(self.conv(x)))
        # Fold the norm here: the exporter would give each norm its own copy of the shared weights.
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        shift = norm.bias - norm.running_mean * scale
        return functional.relu(self.conv(x) * scale[:, None, None] + shift[:, None, None])


class RoadNetwork(nn.Module):
    """
    The network: RGB to boxes and class scores of all cells of three strides.

    The input is ``(b, 3, h, w)``, 0..1; sides are multiples of 32.
    """

    def __init__(self, class_count: int) -> None:
        super().__init__()
        self.stride4 = nn.Sequential(Conv(3, 8, stride=2), Conv(8, 24, stride=2))
        self.stride8 = nn.Sequential(Conv(24, 40, stride=2), Residual(40))
        self.stride16 = nn.Sequential(Conv(40, 64, stride=2), Residual(64), Residual(64))
        self.stride32 = nn.Sequential(Conv(64, 88, stride=2), Residual(88))
        width = 40
        self.lateral = nn.ModuleList([Conv(channels, width, 1) for channels in (40, 64, 88)])
        self.merge = nn.ModuleList([Conv(width, width), Conv(width, width)])
        self.box_branch = LevelConv(width, 24)
        self.class_branch = LevelConv(width, 24)
        self.box_out = nn.ModuleList([nn.Conv2d(24, 4, 1) for _ in STRIDES])
        self.class_out = nn.ModuleList([nn.Conv2d(24, class_count, 1) for _ in STRIDES])
        for layer in self.class_out:
            nn.init.constant_(layer.bias, -4.5)
        for layer in self.box_out:
            nn.init.constant_(layer.bias, 0.7)

    def levels(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """
        Yield the reach to each side and the class logits of each stride.

        The reach is to the left, top, right and bottom in pixels ``(b, 4, h, w)``; class logits
        have the same grid.
        """
        fine = self.stride8(self.stride4(x))
        middle = self.stride16(fine)
        coarse = self.lateral[2](self.stride32(middle))
        middle = self.merge[1](
            self.lateral[1](middle) + functional.interpolate(coarse, scale_factor=2.0)
        )
        fine = self.merge[0](
            self.lateral[0](fine) + functional.interpolate(middle, scale_factor=2.0)
        )
        for level, (features, stride) in enumerate(
            zip((fine, middle, coarse), STRIDES, strict=True)
        ):
            log_reach = (
                self.box_out[level](self.box_branch(features, level))
                .float()
                .clamp(max=MAX_LOG_REACH)
            )
            yield (
                log_reach.exp() * stride,
                self.class_out[level](self.class_branch(features, level)).float(),
            )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return boxes ``(b, n, 4)``, x0, y0, x1, y1 in pixels, and class logits."""
        boxes, logits = [], []
        for (reach, scores), stride in zip(self.levels(x), STRIDES, strict=True):
            centres = cell_centres(reach.shape[2], reach.shape[3], stride, x.device)
            flat = reach.flatten(2).transpose(1, 2)
            boxes.append(torch.cat((centres - flat[..., :2], centres + flat[..., 2:]), 2))
            logits.append(scores.flatten(2).transpose(1, 2))
        return torch.cat(boxes, 1), torch.cat(logits, 1)


class Decoded(nn.Module):
    """The exported form: ``(1, 4 + classes, n)`` of cx, cy, w, h in pixels and class scores."""

    def __init__(self, network: RoadNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        decoded = []
        for (reach, scores), stride in zip(self.network.levels(x), STRIDES, strict=True):
            low, high = reach[:, :2], reach[:, 2:]
            # One row and one column, instead of a centre per cell, save 20 kB of constants in the
            # file.
            row = (torch.arange(int(reach.shape[3])) + 0.5) * stride
            column = ((torch.arange(int(reach.shape[2])) + 0.5) * stride)[:, None]
            middle = (high - low) * 0.5
            box = torch.cat(
                (middle[:, :1] + row, middle[:, 1:] + column, low + high, scores.sigmoid()), 1
            )
            decoded.append(box.flatten(2))
        return torch.cat(decoded, 2)


def cell_centres(rows: int, columns: int, stride: int, device: torch.device) -> Tensor:
    """Return pixel centres ``(rows * columns, 2)`` of a level's cells, row by row."""
    y, x = torch.meshgrid(
        torch.arange(rows, device=device, dtype=torch.float32),
        torch.arange(columns, device=device, dtype=torch.float32),
        indexing='ij',
    )
    return torch.stack((x, y), 2).reshape(-1, 2).add(0.5).mul(stride)


# Task-aligned assignment (TOOD, Feng et al. 2021), BCE for classes, CIoU for boxes.
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
