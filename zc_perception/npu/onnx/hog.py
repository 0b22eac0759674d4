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

"""OpenCV's people detector, for machines without a model."""

from __future__ import annotations

import cv2
import numpy as np

from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.detection.tiles import Part
from zc_perception.errors import ConfigError
from zc_perception.npu.accelerator import Outputs
from zc_perception.npu.engine_thread import Engine
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.conversion import ToLuma
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.samples import Planes


class HogEngine(Engine):
    """
    OpenCV's HOG people detector on the frame's luma.

    :raises ConfigError: this OpenCV has none (version 5 dropped it).
    """

    def __init__(self) -> None:
        if not hasattr(cv2, 'HOGDescriptor'):
            raise ConfigError(
                f"model 'hog' needs OpenCV 4, this is {cv2.__version__}: pip install "
                "'opencv-python-headless<5'"
            )
        self._hog = cv2.HOGDescriptor()
        self._hog.setSVMDetector(
            np.asarray(cv2.HOGDescriptor.getDefaultPeopleDetector(), np.float32)
        )
        self._converter: tuple[ImageLayout | Part, Colorimetry, ToLuma] | None = None

    def geometry(self, width: int, height: int) -> Letterbox:
        return Letterbox.fit(width, height, width, height, stretch=True)

    def run(self, planes: Planes, layout: ImageLayout | Part, colorimetry: Colorimetry) -> Outputs:
        """
        Run the detector, see :class:`Engine`.

        One output (n, 6): x0, y0, x1, y1, score, class. The SVM's distance d > 0 has no upper
        bound; the score is 1 - exp(-d), so that it lies in 0..1 as subscribers expect.
        """
        if self._converter is None or self._converter[:2] != (layout, colorimetry):
            self._converter = (
                layout,
                colorimetry,
                ToLuma(layout.fourcc, layout.width, layout.height, colorimetry),
            )
        luma = self._converter[2].convert(planes)
        window_width, window_height = self._hog.winSize
        if luma.shape[1] < window_width or luma.shape[0] < window_height:
            # OpenCV ends the process over pictures that are smaller than its window.
            return [RawTensor(np.zeros((0, 6), np.float32))]
        boxes, weights = self._hog.detectMultiScale(luma, winStride=(8, 8), scale=1.05)
        rows = np.zeros((len(boxes), 6), np.float32)
        if len(boxes):
            corners = np.asarray(boxes, np.float32)
            rows[:, :2] = corners[:, :2]
            rows[:, 2:4] = corners[:, :2] + corners[:, 2:]
            rows[:, 4] = -np.expm1(-np.asarray(weights, np.float32).reshape(-1))
        return [RawTensor(rows)]
