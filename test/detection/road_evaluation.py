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
Runs the shipped road model on its own.

Letterbox, onnxruntime and suppression written out, none of the package's.
"""

from __future__ import annotations

from pathlib import Path

import cv2
from detection.average_precision import ImageBoxes
import numpy as np
from numpy.typing import NDArray
import onnxruntime

from zc_perception.detection.detections import box_iou

INPUT_WIDTH, INPUT_HEIGHT, PAD = 640, 384, 114
SCORE_FLOOR = 0.02
NMS_THRESHOLD = 0.5
MAX_DETECTIONS = 100


class RoadModel:
    """``model.onnx`` on one core."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=['CPUExecutionProvider']
        )
        self._input = self._session.get_inputs()[0].name

    def infer(self, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return ``(4 + classes, n)`` for one ``(1, 3, 384, 640)`` tensor."""
        output: NDArray[np.float32] = self._session.run(None, {self._input: tensor})[0][0]
        return output

    def detect(self, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> ImageBoxes:
        """Boxes in frame pixels of everything that scores at least ``SCORE_FLOOR``."""
        height, width = luma.shape
        scale = min(INPUT_WIDTH / width, INPUT_HEIGHT / height)
        new_width, new_height = round(width * scale / 2) * 2, round(height * scale / 2) * 2
        left, top = (INPUT_WIDTH - new_width) // 2, (INPUT_HEIGHT - new_height) // 2
        small_luma = cv2.resize(luma, (new_width, new_height), interpolation=cv2.INTER_LINEAR)
        small_chroma = cv2.resize(
            chroma, (new_width // 2, new_height // 2), interpolation=cv2.INTER_LINEAR
        )
        rgb = cv2.cvtColorTwoPlane(small_luma, small_chroma, cv2.COLOR_YUV2RGB_NV12)
        canvas = np.full((INPUT_HEIGHT, INPUT_WIDTH, 3), PAD, np.uint8)
        canvas[slice(top, top + new_height), slice(left, left + new_width)] = rgb
        output = self.infer(
            np.ascontiguousarray(canvas.transpose(2, 0, 1)[None], np.float32) / np.float32(255)
        )
        return _read(output, np.array([left, top, left, top]), scale)


def _read(output: NDArray[np.float32], offset: NDArray[np.int64], scale: float) -> ImageBoxes:
    class_scores = output[4:]
    classes, scores = class_scores.argmax(axis=0), class_scores.max(axis=0)
    candidates = np.flatnonzero(scores >= SCORE_FLOOR)
    candidates = candidates[np.argsort(-scores[candidates], kind='stable')]
    centres, halves = output[:2, candidates].T, output[2:4, candidates].T / 2
    boxes = (np.hstack([centres - halves, centres + halves]) - offset) / scale
    kept = _suppress(boxes, classes[candidates])
    chosen = candidates[kept]
    return ImageBoxes(boxes[kept], classes[chosen], scores[chosen])


def _suppress(boxes: NDArray[np.float64], classes: NDArray[np.int64]) -> list[int]:
    """
    Return the indices that survive; boxes are sorted by falling score.

    Only boxes of the same class suppress each other.
    """
    rivals = (box_iou(boxes, boxes) > NMS_THRESHOLD) & (classes[:, None] == classes[None, :])
    alive = np.ones(len(boxes), bool)
    kept: list[int] = []
    for i in range(len(boxes)):
        if alive[i] and len(kept) < MAX_DETECTIONS:
            kept.append(i)
            alive &= ~rivals[i]
    return kept
