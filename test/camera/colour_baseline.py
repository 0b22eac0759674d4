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
A detector that knows colours but no shapes: the baseline for the road scene.

For each class it learns how much likelier each YUV cell (16 x 16 x 16) is inside the class's boxes
than elsewhere. It boxes connected pixels above a threshold, for each class or for all together;
then the likeliest class wins. It chooses threshold and way by the best mAP on its training frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import cv2
from detection.average_precision import average_precision, ImageBoxes
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.road_scene import (
    CLASS_NAMES,
    MAX_OBJECT_SIDE,
    MIN_OBJECT_SIDE,
    RoadScene,
    SceneObject,
)

CELLS = 16
Pixels = tuple[NDArray[np.int64], NDArray[np.int64]]
THRESHOLDS = (1.2, 1.6, 2.2, 3.0, 5.0)


@dataclass(frozen=True)
class RoadFrame:
    """One drawn frame: ``luma`` (h, w), ``chroma`` (h/2, w/2, 2), and its objects."""

    luma: NDArray[np.uint8]
    chroma: NDArray[np.uint8]
    objects: tuple[SceneObject, ...]

    @property
    def truth(self) -> ImageBoxes:
        corners = [(o.x, o.y, o.x + o.width, o.y + o.height) for o in self.objects]
        return ImageBoxes(np.array(corners), np.array([o.class_index for o in self.objects]))


def road_frames(
    width: int,
    height: int,
    palette: str,
    first_seed: int,
    scenes: int,
    frames_per_scene: int,
    apart: int = 37,
) -> Iterable[RoadFrame]:
    """Draw frames of ``scenes`` scenes, each ``apart`` frame times after the previous one."""
    for seed in range(first_seed, first_seed + scenes):
        scene = RoadScene(width, height, seed, palette)
        for index in range(0, frames_per_scene * apart, apart):
            luma, chroma = (
                np.empty((height, width), np.uint8),
                np.empty((height // 2, width // 2, 2), np.uint8),
            )
            yield RoadFrame(luma, chroma, scene.draw(index, luma, chroma))


class ColourBaseline:
    """The colour detector, trained on ``frames``."""

    def __init__(self, frames: Sequence[RoadFrame]) -> None:
        inside = np.ones((len(CLASS_NAMES), CELLS**3))
        outside = np.ones(CELLS**3)
        for frame in frames:
            cells, background = _colour_cells(frame), np.ones(frame.chroma.shape[:2], bool)
            for item in frame.objects:
                area = _half_size_area(item)
                inside[item.class_index] += np.bincount(cells[area].ravel(), minlength=CELLS**3)
                background[area] = False
            outside += np.bincount(cells[background], minlength=CELLS**3)
        outside /= outside.sum()
        self._ratios = (inside / inside.sum(axis=1, keepdims=True) / outside).astype(np.float32)
        self._any_ratio = (inside.sum(axis=0) / inside.sum() / outside).astype(np.float32)
        truth = [frame.truth for frame in frames]
        ways = [(together, threshold) for together in (False, True) for threshold in THRESHOLDS]
        self._together, self._threshold = max(
            ways, key=lambda way: self._mean_precision(frames, truth, *way)
        )

    def detect(self, frame: RoadFrame) -> ImageBoxes:
        """Return boxes in frame pixels; the score is the component's mean likelihood ratio."""
        return self._detect(frame, self._together, self._threshold)

    def _mean_precision(
        self,
        frames: Sequence[RoadFrame],
        truth: list[ImageBoxes],
        together: bool,
        threshold: float,
    ) -> float:
        detections = [self._detect(frame, together, threshold) for frame in frames]
        return average_precision(detections, truth, len(CLASS_NAMES)).mean

    def _detect(self, frame: RoadFrame, together: bool, threshold: float) -> ImageBoxes:
        cells = _colour_cells(frame)
        likeliest = self._ratios.argmax(axis=0)[cells]
        masks = [likeliest == class_index for class_index in range(len(CLASS_NAMES))]
        ratios = self._any_ratio[cells] if together else self._ratios.max(axis=0)[cells]
        found: list[tuple[tuple[int, ...], int, float]] = []
        for class_index, mask in enumerate([np.ones_like(masks[0])] if together else masks):
            for box, pixels in _components(mask & (ratios > threshold)):
                label = int(np.bincount(likeliest[pixels]).argmax()) if together else class_index
                found.append((box, label, float(ratios[pixels].mean())))
        return ImageBoxes(
            np.array([box for box, _, _ in found], float).reshape(-1, 4),
            np.array([label for _, label, _ in found], int),
            np.array([score for _, _, score in found]),
        )


def _components(mask: NDArray[np.bool_]) -> Iterable[tuple[tuple[int, ...], Pixels]]:
    """Yield large enough components: box in frame pixels, pixels on the chroma grid."""
    closed = cv2.morphologyEx(mask.astype(np.uint8), cv2.MORPH_CLOSE, np.ones((3, 3), np.uint8))
    count, components, stats, _ = cv2.connectedComponentsWithStats(closed)
    for component in range(1, count):
        x, y, width, height = (int(n) for n in stats[component, :4])
        if 2 * min(width, height) >= MIN_OBJECT_SIDE and 2 * max(width, height) <= MAX_OBJECT_SIDE:
            rows, columns = np.nonzero(
                components[slice(y, y + height), slice(x, x + width)] == component
            )
            yield (2 * x, 2 * y, 2 * (x + width), 2 * (y + height)), (rows + y, columns + x)


def _colour_cells(frame: RoadFrame) -> NDArray[np.int64]:
    height, width = frame.chroma.shape[:2]
    luma = cv2.resize(frame.luma, (width, height), interpolation=cv2.INTER_AREA).astype(np.int64)
    chroma = cv2.blur(frame.chroma, (3, 3)).astype(np.int64)
    return (luma // 16 * CELLS + chroma[..., 0] // 16) * CELLS + chroma[..., 1] // 16


def _half_size_area(item: SceneObject) -> tuple[slice, slice]:
    x0, y0 = int(item.x) // 2, int(item.y) // 2
    return slice(y0, int(item.y + item.height) // 2), slice(x0, int(item.x + item.width) // 2)
