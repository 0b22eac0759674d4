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

r"""
Measure how well objects keep their ids: IDF1, MOTA and time, at three densities.

    .venv/bin/python test/detection/tracking_evaluation.py
    .venv/bin/python test/detection/tracking_evaluation.py docs/pictures/trails.jpg \
        build/fixtures/vtest.avi

The second command draws a picture with ids and trails: of people in that video, found by HOG, or
of the synthetic scene if no video is given.

Detections are the truth of several synthetic scenes at once, with a detector's errors: boxes
jitter; hidden objects are missed more often and score less; and some detections are false. The
package's tracker is compared with ids by oracle (the best possible with these detections) and
with edgefirst-tracker.

Source of the measures: Ristani et al., ECCV workshops 2016 (IDF1); Bernardin and Stiefelhagen,
2008 (MOTA).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
import sys
import time
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.road_scene import RoadScene
from zc_perception.detection.detections import box_iou, Detections
from zc_perception.detection.tracking import BYTETRACK, PARAMETERS, Tracking
from zc_perception.nodes.overlay_picture import LabelledBox, Painter, Trails

DEFAULTS = {spec.name: spec.default for spec in PARAMETERS} | {'tracking': BYTETRACK}
SIZE = (640, 360)
PERIOD_NS = 33_333_333
DENSITIES = (1, 3, 8)
_SAME = 0.5
Ids = NDArray[np.int64]
Tracker = Callable[[Detections, int], Ids]


@dataclass
class Frame:
    """One frame's truth and detections; 0 in *oracle* is a false detection."""

    stamp_ns: int
    boxes: NDArray[np.float32]
    identities: list[int]
    found: Detections
    oracle: Ids


def frames(scenes: int, count: int, every: int = 1) -> list[Frame]:
    """Return *count* frames of *scenes* overlaid scenes; a detector sees each *every*-th."""
    rng = np.random.default_rng((0, scenes))
    roads = [RoadScene(*SIZE, seed=number) for number in range(scenes)]
    numbers: dict[tuple[int, ...], int] = {}
    result = []
    for index in range(0, count * every, every):
        objects = [
            (number, each) for number, road in enumerate(roads) for each in road.truth(index)
        ]
        boxes = np.array(
            [(o.x, o.y, o.x + o.width, o.y + o.height) for _, o in objects], np.float32
        )
        ids = [numbers.setdefault((n, *o.identity), len(numbers) + 1) for n, o in objects]
        classes = np.array([o.class_index for _, o in objects], np.intp)
        visible = np.array([o.visible for _, o in objects])
        seen = np.flatnonzero(rng.random(len(boxes)) < 0.75 + 0.23 * visible)
        sides = (boxes[:, 2:] - boxes[:, :2])[seen]
        jitter = rng.normal(0, 0.03, (len(seen), 4)) * np.tile(sides, 2)
        scores = np.clip(0.25 + 0.65 * visible[seen] + rng.normal(0, 0.08, len(seen)), 0.1, 1.0)
        false = int(rng.poisson(0.02 * len(boxes)))
        corner = rng.uniform((0, 0), SIZE, (false, 2))
        nothing = np.concatenate((corner, corner + rng.uniform(15, 60, (false, 2))), axis=1)
        found = Detections(
            np.concatenate((boxes[seen] + jitter, nothing)).astype(np.float32),
            np.concatenate((scores, rng.uniform(0.1, 0.7, false))).astype(np.float32),
            np.concatenate((classes[seen], rng.integers(0, 4, false))),
        )
        oracle = np.concatenate((np.array(ids, np.int64)[seen], np.zeros(false, np.int64)))
        result.append(Frame(index * PERIOD_NS, boxes, ids, found, oracle))
    return result


class Score(NamedTuple):
    idf1: float
    mota: float
    switches: int


def judge(sequence: Sequence[Frame], given: Sequence[Ids]) -> Score:
    together: Counter[tuple[int, int]] = Counter()
    last: dict[int, int] = {}
    truths = boxes = missed = false = switches = 0
    for frame, ids in zip(sequence, given, strict=True):
        overlaps = box_iou(frame.boxes, frame.found.boxes)
        truths, boxes = truths + len(frame.boxes), boxes + len(frame.found)
        matched = set()
        for _ in range(min(overlaps.shape)):
            row, column = np.unravel_index(overlaps.argmax(), overlaps.shape)
            if overlaps[row, column] < _SAME:
                break
            overlaps[row], overlaps[:, column] = 0, 0
            matched.add(row)
            true, own = frame.identities[row], int(ids[column])
            if own:
                together[true, own] += 1
                switches += last.get(true, own) != own
                last[true] = own
        missed += len(frame.boxes) - len(matched)
        false += len(frame.found) - len(matched)
    # Assign tracks to objects, pairs with most frames first: that is the best assignment except
    # for rare ties.
    used_true, used_own, hits = set(), set(), 0
    for (true, own), number in together.most_common():
        if true not in used_true and own not in used_own:
            used_true.add(true)
            used_own.add(own)
            hits += number
    return Score(2 * hits / (truths + boxes), 1 - (missed + false + switches) / truths, switches)


def ours() -> Tracker:
    tracking = Tracking(DEFAULTS)

    def track(found: Detections, stamp_ns: int) -> Ids:
        ids = tracking(found, stamp_ns, SIZE).ids
        assert ids is not None
        return ids

    return track


def edgefirst() -> Tracker:
    """Return edgefirst-tracker's ByteTrack, one for each class: it ignores classes itself."""
    from edgefirst.tracker import ByteTrack

    trackers: dict[int, ByteTrack] = {}
    numbers: dict[str, int] = {}

    def track(found: Detections, stamp_ns: int) -> Ids:
        ids = np.zeros(len(found), np.int64)
        for kind in {*trackers, *found.classes.tolist()}:
            mine = np.flatnonzero(found.classes == kind)
            tracker = trackers.setdefault(kind, ByteTrack(0.5, 0.2, 0.25, 1_000_000_000))
            kinds = found.classes[mine].astype(np.uint64)
            tracks = tracker.update(found.boxes[mine], found.scores[mine], kinds, stamp_ns)
            for index, one in zip(mine, tracks, strict=True):
                if one is not None:
                    ids[index] = numbers.setdefault(one.uuid, len(numbers) + 1)
        return ids

    return track


def run(sequence: Sequence[Frame], track: Tracker) -> tuple[Score, float]:
    """Return the score, and the median time of one call in microseconds."""
    given, times = [], []
    for frame in sequence:
        began = time.perf_counter()
        given.append(track(frame.found, frame.stamp_ns))
        times.append(time.perf_counter() - began)
    return judge(sequence, given), float(np.median(times)) * 1e6


def draw(path: str, video: str) -> None:
    """Write a picture with ids and trails, of a video's people or of the synthetic scene."""
    painter, trails, tracking = Painter(540), Trails(), Tracking(DEFAULTS | {'track_score': 0.3})
    names = ['person'] if video else ['car', 'pedestrian', 'sign', 'cone']
    for index, (picture, found) in enumerate(_people(video) if video else _road()):
        now, (height, width) = index * 100_000_000, picture.shape[:2]
        found = tracking(found, now, (width, height))
        assert found.ids is not None
        rows = zip(found.boxes, found.scores, found.classes, found.ids, strict=True)
        boxes = [
            LabelledBox(*map(float, box), str(kind), names[kind], float(score), str(number or ''))
            for box, score, kind, number in rows
        ]
        trails.paint(picture, boxes, (1.0, 1.0), now, painter.line)
        painter.paint(picture, boxes, (1.0, 1.0), '')
    cv2.imwrite(path, picture, [cv2.IMWRITE_JPEG_QUALITY, 85])


def _people(video: str) -> Iterator[tuple[NDArray[np.uint8], Detections]]:
    """Yield pictures of the first four seconds at 10 Hz, with the people in each."""
    hog, capture = cv2.HOGDescriptor(), cv2.VideoCapture(video)
    hog.setSVMDetector(cv2.HOGDescriptor.getDefaultPeopleDetector())
    for _ in range(40):
        _, picture = capture.read()
        rectangles, weights = hog.detectMultiScale(picture, winStride=(8, 8), scale=1.05)
        boxes = np.array(rectangles, np.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        scores = 1 - np.exp(-np.array(weights, np.float32).ravel())
        yield picture, Detections(boxes, scores, np.zeros(len(boxes), np.intp))


def _road() -> Iterator[tuple[NDArray[np.uint8], Detections]]:
    """Yield thirty frames at 10 Hz, with detections as :func:`frames` makes them."""
    road = RoadScene(*SIZE, seed=0)
    for number, frame in enumerate(frames(1, 30, every=3)):
        nv12 = np.empty((SIZE[1] * 3 // 2, SIZE[0]), np.uint8)
        chroma = nv12[slice(SIZE[1], None)].reshape(SIZE[1] // 2, SIZE[0] // 2, 2)
        road.draw(3 * number, nv12[: SIZE[1]], chroma)
        yield cv2.cvtColor(nv12, cv2.COLOR_YUV2BGR_NV12), frame.found


def main() -> None:
    """Print the table of docs/tracking.md, or draw the picture."""
    if len(sys.argv) > 1:
        draw(sys.argv[1], ''.join(sys.argv[2:3]))
        return
    print(
        '| boxes per frame | frames | who | IDF1 | MOTA | switches | µs '
        '|\n|---|---|---|---|---|---|---|'
    )
    for every in (1, 3):
        for scenes in DENSITIES:
            sequence = frames(scenes, 600 // every, every=every)
            mean = np.mean([len(frame.found) for frame in sequence])
            oracle = judge(sequence, [frame.oracle for frame in sequence])
            rows: list[tuple[str, Score, float]] = [('oracle', oracle, 0.0)]
            for name, make in (('ours', ours), ('edgefirst-tracker', edgefirst)):
                rows.append((name, *run(sequence, make())))
            for name, score, cost in rows:
                words = f'{score.idf1:.3f} | {score.mota:.3f} | {score.switches} | {cost:.0f}'
                print(f'| {mean:.0f} | every {every} | {name} | {words} |', flush=True)


if __name__ == '__main__':
    sys.exit(main())
