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

"""The road detector's network: a small anchor-free pyramid, decoded to YOLOv8's layout."""

from __future__ import annotations

from collections.abc import Iterator

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
