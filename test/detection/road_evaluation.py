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

"""Runs a road model as the package does, on one core, and returns its detections."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from detection.average_precision import ImageBoxes
import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.npu.manifest import load_manifest
from zc_perception.npu.onnx.accelerator import OnnxEngine
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

SCORE_FLOOR = 0.02


class RoadModel:
    """A model file, read as the shipped one is; returns detections above ``SCORE_FLOOR``."""

    def __init__(self, path: Path) -> None:
        self.manifest = replace(load_manifest('road'), file=path)
        self.engine = OnnxEngine(self.manifest, 1)
        self._head = make_head(self.manifest.head)
        self._limits = DecodeLimits(SCORE_FLOOR, self.manifest.nms_threshold, 100)

    def detect(self, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> ImageBoxes:
        height, width = luma.shape
        layout = compute_layout(NV12, width, height)
        outputs = self.engine.run((luma, chroma), layout, BT601_LIMITED)
        found = self._head.decode(outputs, self.engine.geometry(width, height), self._limits)
        return ImageBoxes(found.boxes, found.classes, found.scores)
