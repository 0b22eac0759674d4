"""How far colour alone gets in the road scene: a detector that knows every class's colours and nothing of shapes.

It learns, per class, how much likelier each YUV cell (16 x 16 x 16) is inside that class's truth boxes than elsewhere,
gives every pixel to the likeliest class where that ratio exceeds a threshold, and boxes the connected components. The
threshold is the one with the best mAP on the frames that it learnt from. It works on the chroma grid (half size).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.scene import CLASS_NAMES, MIN_OBJECT_SIDE, RoadScene, SceneObject
from zc_perception.detection.average_precision import ImageBoxes, average_precision

CELLS = 16
THRESHOLDS = (1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class RoadFrame:
    """One drawn frame: ``luma`` (h, w), ``chroma`` (h/2, w/2, 2), and what is in it."""

    luma: NDArray[np.uint8]
    chroma: NDArray[np.uint8]
    objects: tuple[SceneObject, ...]

    @property
    def truth(self) -> ImageBoxes:
        """The ground truth as boxes."""
        corners = [(o.x, o.y, o.x + o.width, o.y + o.height) for o in self.objects]
        return ImageBoxes(np.array(corners), np.array([o.class_index for o in self.objects]))


def road_frames(
    width: int, height: int, palette: str, first_seed: int, scenes: int, frames_per_scene: int, apart: int = 37
) -> Iterable[RoadFrame]:
    """Freshly drawn frames of ``scenes`` scenes, ``apart`` frame times from one to the next."""
    for seed in range(first_seed, first_seed + scenes):
        scene = RoadScene(width, height, seed, palette)
        for index in range(0, frames_per_scene * apart, apart):
            luma, chroma = np.empty((height, width), np.uint8), np.empty((height // 2, width // 2, 2), np.uint8)
            yield RoadFrame(luma, chroma, scene.draw(index, luma, chroma))


class ColourBaseline:
    """The colour detector, learnt from ``frames``."""

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
        inside /= inside.sum(axis=1, keepdims=True)
        ratios = inside / (outside / outside.sum())
        self._best_class = ratios.argmax(axis=0).astype(np.uint8)
        self._best_ratio = ratios.max(axis=0).astype(np.float32)
        truth = [frame.truth for frame in frames]
        self.threshold = max(THRESHOLDS, key=lambda t: self._mean_precision(frames, truth, t))

    def detect(self, frame: RoadFrame) -> ImageBoxes:
        """Boxes in frame pixels; the score is the component's mean likelihood ratio."""
        return self._detect(frame, self.threshold)

    def _mean_precision(self, frames: Sequence[RoadFrame], truth: list[ImageBoxes], threshold: float) -> float:
        return average_precision([self._detect(f, threshold) for f in frames], truth, len(CLASS_NAMES)).mean

    def _detect(self, frame: RoadFrame, threshold: float) -> ImageBoxes:
        cells = _colour_cells(frame)
        classes, ratios = self._best_class[cells], self._best_ratio[cells]
        boxes, labels, scores = [], [], []
        for class_index in range(len(CLASS_NAMES)):
            mask = ((classes == class_index) & (ratios > threshold)).astype(np.uint8)
            mask = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, np.ones((3, 3), np.uint8))
            count, components, stats, _ = cv2.connectedComponentsWithStats(mask)
            flat = components.ravel()
            sums = np.bincount(flat, ratios.ravel(), minlength=count)
            for component in range(1, count):
                x, y, width, height, area = stats[component]
                if min(width, height) * 2 >= MIN_OBJECT_SIDE:
                    boxes.append((2 * x, 2 * y, 2 * (x + width), 2 * (y + height)))
                    labels.append(class_index)
                    scores.append(sums[component] / area)
        return ImageBoxes(np.array(boxes, float).reshape(-1, 4), np.array(labels, int), np.array(scores))


def _colour_cells(frame: RoadFrame) -> NDArray[np.int64]:
    height, width = frame.chroma.shape[:2]
    luma = cv2.resize(frame.luma, (width, height), interpolation=cv2.INTER_AREA).astype(np.int64)
    chroma = cv2.blur(frame.chroma, (3, 3)).astype(np.int64)
    return (luma // 16 * CELLS + chroma[..., 0] // 16) * CELLS + chroma[..., 1] // 16


def _half_size_area(item: SceneObject) -> tuple[slice, slice]:
    x0, y0 = int(item.x) // 2, int(item.y) // 2
    return slice(y0, int(item.y + item.height) // 2), slice(x0, int(item.x + item.width) // 2)
