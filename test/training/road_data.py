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

"""Rendered training frames: NV12 planes of RoadScene, letterboxed as at inference."""

from __future__ import annotations

from collections.abc import Iterator

import cv2
import numpy as np
from numpy.typing import NDArray
import torch
from torch.utils.data import get_worker_info, IterableDataset

from zc_perception.camera.road_scene import MAX_OBJECTS, RoadScene, SceneObject
from zc_perception.detection.letterbox import Letterbox

INPUT_WIDTH, INPUT_HEIGHT, PAD = 640, 384, 114
FRAME_SIZES = (
    (640, 360), (640, 480), (1280, 720), (320, 240), (1920, 1080), (800, 600), (1280, 800),
    (480, 270),
)  # fmt: skip
SIZE_SHARES = (0.40, 0.17, 0.13, 0.06, 0.06, 0.06, 0.06, 0.06)
LIVE_SCENES = 24
FRAMES_PER_SCENE = 12
LAST_INDEX = 200_000


def apply(box: Letterbox, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return RGB ``(384, 640, 3)``: planes are resized first, then converted, then padded."""
    if luma.shape != (box.height, box.width):
        luma = cv2.resize(luma, (box.width, box.height), interpolation=cv2.INTER_LINEAR)
        half = box.width // 2, box.height // 2
        chroma = cv2.resize(chroma, half, interpolation=cv2.INTER_LINEAR)
    picture = np.full((INPUT_HEIGHT, INPUT_WIDTH, 3), PAD, np.uint8)
    inner = picture[box.top :, box.left :][: box.height, : box.width]
    inner[:] = cv2.cvtColorTwoPlane(luma, chroma, cv2.COLOR_YUV2RGB_NV12)
    return picture


def boxes_of(box: Letterbox, objects: tuple[SceneObject, ...]) -> NDArray[np.float32]:
    """Return true boxes ``(n, 4)`` as x0, y0, x1, y1 in input pixels."""
    corners = np.array([(o.x, o.y, o.x + o.width, o.y + o.height) for o in objects], np.float32)
    scale = np.array([box.width / box.source_width, box.height / box.source_height] * 2)
    return (corners * scale + [box.left, box.top] * 2).astype(np.float32)


class LiveScene:
    def __init__(self, width: int, height: int, seed: int, palette: str) -> None:
        self._scene = RoadScene(width, height, seed, palette)
        self._luma = np.empty((height, width), np.uint8)
        self._chroma = np.empty((height // 2, width // 2, 2), np.uint8)
        self._box = Letterbox.fit(width, height, INPUT_WIDTH, INPUT_HEIGHT)
        self.drawn = 0

    def sample(
        self, index: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.int64]]:
        """Return picture, boxes (input pixels) and class indices of a frame."""
        objects = self._scene.draw(index, self._luma, self._chroma)
        self.drawn += 1
        labels = np.array([o.class_index for o in objects], np.int64)
        picture = apply(self._box, self._luma, self._chroma)
        return picture, boxes_of(self._box, objects), labels


class RoadFrames(IterableDataset[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]):
    """
    Endless random frames.

    Picture ``(384, 640, 3)`` uint8, boxes ``(40, 4)``, labels ``(40,)`` padded with -1.
    """

    def __init__(self, seed: int, palette: str, first_scene: int, last_scene: int) -> None:
        self._seed = seed
        self._palette = palette
        self._scenes = (first_scene, last_scene)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        cv2.setNumThreads(1)
        worker = get_worker_info()
        rng = np.random.default_rng((self._seed, worker.id if worker else 0))
        live: list[LiveScene] = []
        while True:
            if len(live) < LIVE_SCENES:
                width, height = FRAME_SIZES[rng.choice(len(FRAME_SIZES), p=SIZE_SHARES)]
                live.append(
                    LiveScene(width, height, int(rng.integers(*self._scenes)), self._palette)
                )
            place = int(rng.integers(len(live)))
            picture, boxes, labels = live[place].sample(int(rng.integers(LAST_INDEX)))
            yield _padded(jittered(picture, rng), boxes, labels, flip=bool(rng.random() < 0.5))
            if live[place].drawn == FRAMES_PER_SCENE:
                live.pop(place)


def _padded(
    picture: NDArray[np.uint8], boxes: NDArray[np.float32], labels: NDArray[np.int64], flip: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if flip:
        picture = np.ascontiguousarray(picture[:, ::-1])
        boxes[:, [0, 2]] = INPUT_WIDTH - boxes[:, [2, 0]]
    all_boxes = np.zeros((MAX_OBJECTS, 4), np.float32)
    all_labels = np.full(MAX_OBJECTS, -1, np.int64)
    all_boxes[: len(boxes)], all_labels[: len(labels)] = boxes, labels
    return torch.from_numpy(picture), torch.from_numpy(all_boxes), torch.from_numpy(all_labels)


def jittered(picture: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return ``picture`` with random saturation, hues and gain: the palette must not matter."""
    to_grey = np.full((3, 3), 1 / 3)
    hues = np.eye(3)[rng.permutation(3)] - to_grey
    matrix = (to_grey + rng.uniform(0.0, 1.2) * hues) * rng.uniform(0.75, 1.15)
    return cv2.transform(picture, matrix).astype(np.uint8, copy=False)


def to_input(pictures: torch.Tensor) -> torch.Tensor:
    """Convert ``(b, h, w, 3)`` uint8 to the network's ``(b, 3, h, w)``, 0..1, channels last."""
    return pictures.permute(0, 3, 1, 2).float().div_(255.0)
