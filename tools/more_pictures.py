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
Draw the pictures of docs/more_than_boxes.md and docs/boxes_in_space.md with the real nodes.

    .venv/bin/python tools/more_pictures.py docs/pictures [masks keypoints oriented space]

This program draws the scenes. The models are graphs made by hand that yield exactly the drawn
objects. So the pictures show how the package uses a model's output, not how good a model is.
"""

from __future__ import annotations

from collections.abc import Sequence
import os
from pathlib import Path
import sys
import tempfile
from typing import NamedTuple

if __name__ == '__main__':
    _TREE = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(_TREE / 'test'), str(_TREE)]

import cv2
from nodes.ros_kit import Managed
from npu.onnx_kit import export
import numpy as np
from numpy.typing import NDArray
from ros_domains import locked_domain, ON_THIS_HOST
from sensor_msgs.msg import CameraInfo, Image
from vision_msgs.msg import Detection2DArray, Detection3DArray

from zc_perception.detection.extras import PERSON
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.nodes.overlay_picture import class_colour

WIDTH, HEIGHT, SIDE = 640, 480, 640
ABOVE = (SIDE - HEIGHT) // 2  # rows of the input above the picture
FOCAL, EYES_M = 500.0, 1.4
Picture = NDArray[np.uint8]


class Scene(NamedTuple):
    """A picture, a model's file that yields the objects in it, and the depth of each pixel."""

    picture: Picture
    model: str
    depth: NDArray[np.float32] | None = None


def _backdrop(top: Sequence[int], bottom: Sequence[int]) -> Picture:
    share = np.linspace(0, 1, HEIGHT)[:, None, None]
    rows = np.array(top) * (1 - share) + np.array(bottom) * share
    noise = np.random.default_rng(1).normal(0, 3, (HEIGHT, WIDTH, 1))
    return np.clip(rows + noise, 0, 255).astype(np.uint8)


def _row(
    kind: int, kinds: int, box: Sequence[float], score: float, more: Sequence[float]
) -> list[float]:
    """Return a row of a raw YOLOv8 output for a *box* (x0, y0, x1, y1) of the picture."""
    x0, y0, x1, y1 = box
    scores = [score if each == kind else 0.0 for each in range(kinds)]
    return [(x0 + x1) / 2, (y0 + y1) / 2 + ABOVE, x1 - x0, y1 - y0, *scores, *more]


def masks(folder: Path) -> Scene:
    """Draw overlapping fruit; each has a mask prototype: the distance from its outline."""
    names = ['apple', 'banana', 'pear']
    curve = np.linspace(-2.4, 0.3, 40)
    banana = [
        (330 + r * np.cos(-t), 215 - r * np.sin(-t))
        for r, ts in ((150, curve), (98, curve[::-1]))
        for t in ts
    ]
    turn = np.linspace(0, 2 * np.pi, 90)
    pear = [(455 + (66 + 22 * np.sin(t)) * np.cos(t) * 1.1, 300 + 105 * np.sin(t)) for t in turn]
    apples = [
        [(x + r * np.cos(t), y + r * np.sin(t) * 0.94) for t in turn]
        for x, y, r in ((190, 300, 92), (90, 165, 60))
    ]
    things = [
        (0, apples[0], (50, 40, 200)),
        (2, pear, (60, 190, 150)),
        (1, banana, (60, 210, 240)),
        (0, apples[1], (60, 160, 70)),
    ]
    picture, rows, grids = _backdrop((120, 130, 140), (150, 170, 190)), [], []
    for _, outline, colour in reversed(things):
        cv2.fillPoly(picture, [np.array(outline, np.int32)], colour, cv2.LINE_AA)
        cv2.polylines(
            picture, [np.array(outline, np.int32)], True, [c // 2 for c in colour], 2, cv2.LINE_AA
        )
    for index, (kind, outline, _) in enumerate(things):
        points = np.array(outline)
        shape = cv2.fillPoly(
            np.zeros((SIDE, SIDE), np.uint8), [(points + np.array((0, ABOVE))).astype(np.int32)], 1
        )
        inside = cv2.distanceTransform(shape, cv2.DIST_L2, 3) - cv2.distanceTransform(
            1 - shape, cv2.DIST_L2, 3
        )
        grids.append(cv2.resize(inside, (SIDE // 4, SIDE // 4), interpolation=cv2.INTER_AREA))
        weights = [float(index == other) for other in range(len(things))]
        box = (*(points.min(axis=0) - 1), *(points.max(axis=0) + 1))
        rows.append(_row(kind, 3, box, 0.93 - 0.06 * index, weights))
    return Scene(picture, export(folder, 'segment', names, rows, SIDE, grids))


def keypoints(folder: Path) -> Scene:
    """Draw two people; one left hand is hidden, so that its keypoint has a low score."""
    stand = [(0, -95), (6, -101), (-6, -101), (13, -98), (-13, -98), (26, -62), (-26, -62),
             (52, -26), (-44, -24), (70, 8), (-58, 16), (17, 18), (-17, 18), (22, 78), (-24, 76),
             (24, 138), (-34, 134)]  # fmt: skip
    wave = [(0, -95), (6, -101), (-6, -101), (13, -98), (-13, -98), (26, -62), (-26, -62),
            (30, -22), (-60, -92), (12, 8), (-74, -142), (17, 18), (-17, 18), (44, 70), (-20, 78),
            (26, 128), (-20, 140)]  # fmt: skip
    picture, rows = _backdrop((190, 170, 140), (90, 110, 100)), []
    for index, (pose, x, y, size, coat) in enumerate(
        ((stand, 190, 250, 1.25, (150, 90, 60)), (wave, 455, 245, 1.1, (60, 70, 160)))
    ):
        places = np.array(pose) * size + (x, y)
        limb = round(15 * size)
        for start, end in PERSON[4:]:
            colour = coat if max(start, end) <= 12 else (70, 60, 50)
            cv2.line(
                picture, *(places[[start, end]].astype(int).tolist()), colour, limb, cv2.LINE_AA
            )
        cv2.fillPoly(picture, [places[[5, 6, 12, 11]].astype(np.int32)], coat, cv2.LINE_AA)
        cv2.circle(
            picture,
            places[0].astype(int).tolist(),
            round(21 * size),
            (140, 170, 215),
            cv2.FILLED,
            cv2.LINE_AA,
        )
        scores = [0.2 if index and place == 9 else 0.9 for place in range(17)]
        more = [
            n
            for (px, py), s in zip(places.tolist(), scores, strict=True)
            for n in (px, py + ABOVE, s)
        ]
        low, high = places.min(axis=0) - 26, places.max(axis=0) + 12
        rows.append(_row(0, 1, (*low, *high), 0.92 - 0.05 * index, more))
    return Scene(picture, export(folder, 'pose', ['person'], rows, SIDE, keypoints=[17, 3]))


def oriented(folder: Path) -> Scene:
    """Draw ships from above, some so close that their upright boxes are nearly the same."""
    picture, rows = _backdrop((150, 110, 50), (130, 95, 45)), []
    cv2.rectangle(picture, (0, 0), (WIDTH, 56), (120, 125, 130), cv2.FILLED)
    ships = [(150, 190, 190, 44, 0.6), (118, 250, 180, 42, 0.6), (330, 140, 130, 40, -1.1),
             (480, 260, 220, 56, -0.35), (300, 380, 120, 34, 0.15),
             (540, 400, 110, 36, 1.2)]  # fmt: skip
    for index, (x, y, length, width, angle) in enumerate(ships):
        hull = np.array(
            [
                (-0.5, -0.45),
                (-0.46, -0.5),
                (0.28, -0.5),
                (0.5, 0),
                (0.28, 0.5),
                (-0.46, 0.5),
                (-0.5, 0.45),
            ]
        )
        deck = np.array([(-0.38, -0.28), (-0.12, -0.28), (-0.12, 0.28), (-0.38, 0.28)])
        turn = np.array([(np.cos(angle), np.sin(angle)), (-np.sin(angle), np.cos(angle))])
        for shape, colour in ((hull, (70, 70, 90 + 20 * index)), (deck, (215, 220, 225))):
            cv2.fillPoly(
                picture,
                [((shape * (length, width)) @ turn + (x, y)).astype(np.int32)],
                colour,
                cv2.LINE_AA,
            )
        half = length / 2, width / 2
        box = x - half[0], y - half[1], x + half[0], y + half[1]
        rows.append(_row(0, 1, box, 0.95 - 0.04 * index, [angle]))
    return Scene(picture, export(folder, 'obb', ['ship'], rows, SIDE))


THINGS = [
    (0, -1.6, 4.0, 0.6, 1.7),
    (0, 1.3, 6.5, 0.6, 1.8),
    (1, -0.2, 9.0, 1.8, 1.5),
    (2, 0.35, 3.0, 0.4, 0.8),
]
"""The objects of :func:`space`: class, then x, distance, width and height in metres."""


def space(folder: Path) -> Scene:
    """Draw objects on a floor in front of a wall at 12 m; the depths have 0.5 % of noise."""
    picture, rows = _backdrop((190, 190, 185), (120, 130, 140)), []
    down = (np.arange(HEIGHT) + 0.5 - HEIGHT / 2) / FOCAL
    floor = np.where(down > 0, EYES_M / np.maximum(down, 1e-6), np.inf)
    depth = np.repeat(np.minimum(floor, 12.0)[:, None], WIDTH, axis=1).astype(np.float32)
    picture[floor < 12] = picture[floor < 12] // 4 * 3
    for kind, x, z, width, height in sorted(THINGS, key=lambda thing: -thing[2]):
        place = np.array(((x - width / 2), EYES_M - height, (x + width / 2), EYES_M)) / z * FOCAL
        box = (place + (WIDTH / 2, HEIGHT / 2) * 2).tolist()
        x0, y0, x1, y1 = (round(n) for n in box)
        picture[y0:y1, x0:x1] = np.array(((70, 90, 170), (120, 110, 60), (90, 150, 190))[kind]) * (
            1.1 - z / 20
        )
        depth[y0:y1, x0:x1] = z
        rows.append(_row(kind, 3, box, 0.9 - z / 100, []))
    noise = np.random.default_rng(2).normal(1, 0.005, depth.shape)
    model = export(folder, 'detect', ['person', 'car', 'bin'], rows, SIDE)
    return Scene(picture, model, (depth * noise).astype(np.float32))


def from_above(found: Detection3DArray) -> Picture:
    """
    Draw the scene of :func:`space` from above, with a line every 2 m.

    Outlines are the true objects. Filled boxes are the found ones, with their positions.
    """
    scale, picture = HEIGHT / 13.0, np.full((HEIGHT, HEIGHT, 3), 245, np.uint8)

    def place(x: float, z: float) -> tuple[int, int]:
        return round(HEIGHT / 2 + x * scale), round(HEIGHT - 10 - z * scale)

    for metres in range(0, 13, 2):
        cv2.line(picture, place(-9, metres), place(9, metres), (210, 210, 210), 1)
        cv2.putText(
            picture,
            f'{metres} m',
            (4, place(0, metres)[1] - 3),
            cv2.FONT_HERSHEY_SIMPLEX,
            0.4,
            (120, 120, 120),
            1,
            cv2.LINE_AA,
        )
    for each in found.detections:
        at, size = each.bbox.center.position, each.bbox.size
        deep = max(size.z, 0.3)
        corners = place(at.x - size.x / 2, at.z), place(at.x + size.x / 2, at.z + deep)
        cv2.rectangle(
            picture, *corners, class_colour(each.results[0].hypothesis.class_id), cv2.FILLED
        )
        text = f'{at.x:+.2f}, {at.z:.2f} m; {size.x:.2f} x {size.y:.2f}'
        cv2.putText(
            picture,
            text,
            (corners[1][0] + 4, corners[0][1]),
            cv2.FONT_HERSHEY_SIMPLEX,
            0.38,
            (0, 0, 0),
            1,
            cv2.LINE_AA,
        )
    for _, x, z, width, _ in THINGS:
        cv2.rectangle(
            picture, place(x - width / 2, z), place(x + width / 2, z + 0.3), (0, 0, 0), 1
        )
    return picture


def show(video: str, model: str, depth: NDArray[np.float32] | None) -> Picture:
    """Return the overlay's last picture; with *depth*, :func:`from_above` is to its right."""
    with locked_domain() as domain, Managed(domain) as run:
        camera = {'camera': 'replay', 'video': video, 'heap': 'memfd'}
        values = {'model': model, 'accelerator': 'onnx', 'timeout': 20.0, 'threads': 1}
        if depth is not None:
            values['depth_topic'] = 'depth'
        capture, inference = run.make(CaptureNode, camera), run.make(InferenceNode, values)
        overlay = run.make(OverlayNode, {'scale': 1.0})
        pictures: list[Image] = []
        placed: list[Detection3DArray] = []
        run.manager.create_subscription(Image, 'detections/image', pictures.append, 10)
        if depth is not None:
            depths = run.manager.create_publisher(Image, 'depth', 10)
            infos = run.manager.create_publisher(CameraInfo, 'camera_info', 10)
            info = CameraInfo(width=WIDTH, height=HEIGHT, distortion_model='plumb_bob')
            info.k = [FOCAL, 0.0, WIDTH / 2, 0.0, FOCAL, HEIGHT / 2, 0.0, 0.0, 1.0]

            def answer(message: Detection2DArray) -> None:
                infos.publish(info)
                own = Image(
                    header=message.header,
                    height=HEIGHT,
                    width=WIDTH,
                    step=4 * WIDTH,
                    encoding='32FC1',
                )
                own.data = depth.tobytes()
                depths.publish(own)

            run.manager.create_subscription(Detection2DArray, 'detections', answer, 10)
            run.manager.create_subscription(Detection3DArray, 'detections_3d', placed.append, 10)
        for node in (overlay, inference, capture):
            node.start()
        run.eventually(lambda: len(pictures) > 5)
        if depth is not None:
            run.eventually(lambda: any(message.detections for message in placed))
        last = pictures[-1]
        picture = np.frombuffer(last.data, np.uint8).reshape(last.height, last.width, 3)
        return picture if depth is None else np.hstack((picture, from_above(placed[-1])))


def main() -> None:
    """Write the named pictures, or all."""
    os.environ.update(ON_THIS_HOST)
    target = Path(sys.argv[1])
    scenes = {'masks': masks, 'keypoints': keypoints, 'oriented': oriented, 'space': space}
    for name in sys.argv[2:] or scenes:
        with tempfile.TemporaryDirectory() as folder:
            scene, path = scenes[name](Path(folder)), str(Path(folder) / 'scene.png')
            cv2.imwrite(path, scene.picture)
            picture = show(path, scene.model, scene.depth)
            cv2.imwrite(str(target / f'{name}.jpg'), picture, [cv2.IMWRITE_JPEG_QUALITY, 88])


if __name__ == '__main__':
    main()
