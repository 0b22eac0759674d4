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

"""Ids of objects: which keep one, which get a new one, and what tracking never changes."""

from __future__ import annotations

from collections.abc import Sequence

from detection.tracking_evaluation import DEFAULTS, edgefirst, frames, judge, ours, PERIOD_NS, SIZE
from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import LONG
import numpy as np
import pytest

from zc_perception.detection.detections import Detections
from zc_perception.detection.tracking import NONE, Tracking

HIGH, LOW = 0.9, 0.3
Row = tuple[float, float, float, int]


def found(*rows: Row) -> Detections:
    """Return boxes of 40 x 60 pixels; a row is x and y of the centre, score, class."""
    table = np.array(rows, np.float64).reshape(-1, 4)
    boxes = np.concatenate((table[:, :2] - (20, 30), table[:, :2] + (20, 30)), axis=1)
    return Detections(
        boxes.astype(np.float32), table[:, 2].astype(np.float32), table[:, 3].astype(np.intp)
    )


class Camera:
    """Frames at 30 Hz for a tracker, and the ids that it gives."""

    def __init__(self, **changed: float | str) -> None:
        self.tracking = Tracking(DEFAULTS | changed)
        self.now = 1_700_000_000_000_000_000

    def ids(
        self, *rows: Row, after_s: float = PERIOD_NS / 1e9, size: tuple[int, int] = SIZE
    ) -> list[int]:
        self.now += round(after_s * 1e9)
        ids = self.tracking(found(*rows), self.now, size).ids
        assert ids is not None
        return ids.tolist()


def test_the_detector_s_numbers_stay_and_ids_follow_the_object_not_its_place_in_the_list() -> None:
    camera = Camera()
    assert camera.ids((100, 100, HIGH, 0), (300, 200, HIGH, 0)) == [1, 2]
    detections = found((304, 200, HIGH, 0), (104, 100, HIGH, 0))
    numbered = camera.tracking(detections, camera.now + PERIOD_NS, SIZE)
    assert numbered.ids is not None and numbered.ids.tolist() == [2, 1]
    assert numbered.boxes is detections.boxes and numbered.scores is detections.scores


@pytest.mark.parametrize(
    ('between', 'kept'),
    [
        ([()], True),
        ([()] * 25, True),
        ([()] * 35, False),
        ([((108, 100, LOW, 0),)] * 20, True),
        ([((400, 300, HIGH, 0),)] * 5, True),
    ],
    ids=['an empty frame', 'a second less', 'a second more', 'low scores', 'others only'],
)
def test_who_is_not_seen_for_a_while_comes_back_with_its_id(
    between: list[Sequence[Row]], kept: bool
) -> None:
    camera = Camera()
    for _ in range(5):
        assert camera.ids((108, 100, HIGH, 0)) == [1]
    for rows in between:
        camera.ids(*rows)
    assert (camera.ids((108, 100, HIGH, 0)) == [1]) is kept


@pytest.mark.parametrize('others', [(), ((900.0, 600.0, HIGH, 0),)], ids=['alone', 'with another'])
def test_who_was_covered_bit_by_bit_comes_back_with_its_id(others: Sequence[Row]) -> None:
    camera = Camera()
    other = found(*others)

    def ids(width: float) -> list[int]:
        box = np.array([[100, 100, 100 + width, 300]], np.float32)[: width > 0]
        scores = np.full(len(box), HIGH, np.float32)
        mine = Detections(box, scores, np.zeros(len(box), np.intp))
        camera.now += PERIOD_NS
        numbered = camera.tracking(Detections.joined([mine, other]), camera.now, SIZE).ids
        assert numbered is not None
        return numbered.tolist()

    for width in (*[100] * 20, *range(96, 59, -4), *[0] * 15):
        ids(width)
    assert ids(100)[0] == 1


def test_a_low_score_goes_on_with_a_track_and_begins_none() -> None:
    camera = Camera()
    assert camera.ids((100, 100, LOW, 0), (300, 200, HIGH, 0)) == [0, 1]
    assert camera.ids((101, 100, LOW, 0), (301, 200, LOW, 0)) == [0, 1]


def test_time_that_passes_is_real_time() -> None:
    """The expected place of a fast object depends on the time, not on the number of frames."""
    camera = Camera()
    for step in range(12):
        assert camera.ids((100 + 20 * step, 100, HIGH, 0)) == [1]
    assert camera.ids((100 + 20 * 16, 100, HIGH, 0), after_s=5 * PERIOD_NS / 1e9) == [1]


@pytest.mark.parametrize('jump', [-0.001, -3600.0, 1.5, 1e6], ids=str)
def test_after_a_jump_of_time_all_are_new(jump: float) -> None:
    """Time jumps forward after a camera's outage, and backward when a recording restarts."""
    camera = Camera()
    assert camera.ids((100, 100, HIGH, 0)) == [1]
    assert camera.ids((100, 100, HIGH, 0), after_s=jump) == [2]
    assert camera.ids((100, 100, HIGH, 0)) == [2]


def test_a_camera_that_is_back_soon_keeps_ids_and_another_size_does_not() -> None:
    camera = Camera()
    assert camera.ids((100, 100, HIGH, 0)) == [1]
    assert camera.ids((100, 100, HIGH, 0), after_s=0.8) == [1]
    assert camera.ids((100, 100, HIGH, 0), size=(1280, 720)) == [2]


def test_parameters_change_and_tracks_live_on() -> None:
    camera = Camera()
    assert camera.ids((100, 100, HIGH, 0)) == [1]
    camera.tracking.tune(DEFAULTS | {'track_score': 0.95, 'track_iou': 0.5, 'track_lost': 3.0})
    assert camera.ids((100, 100, HIGH, 0), (300, 200, HIGH, 0)) == [1, 0]
    assert camera.ids((100, 100, 0.99, 0), after_s=2.5) == [1]
    camera.tracking.tune(DEFAULTS | {'tracking': NONE})
    assert camera.tracking(found(), camera.now, SIZE).ids is None
    camera.tracking.tune(DEFAULTS)
    assert camera.ids((101, 100, HIGH, 0)) == [2], 'a number is never used again'


def test_a_track_is_of_one_class() -> None:
    camera = Camera()
    assert camera.ids((100, 100, HIGH, 0)) == [1]
    assert camera.ids((100, 100, HIGH, 1), (102, 100, HIGH, 0)) == [2, 1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.floats(-1e4, 1e4), st.floats(-1e4, 1e4), st.floats(0, 1), st.integers(0, 2)
            ),
            max_size=12,
        ),
        max_size=12,
    )
)
def test_whatever_comes_no_frame_has_an_id_twice_and_none_comes_back_after_it_was_lost(
    sequence: list[list[Row]],
) -> None:
    camera = Camera(track_lost=0.05)
    last: dict[int, int] = {}
    for number, rows in enumerate(sequence):
        ids = [each for each in camera.ids(*rows) if each]
        assert len(set(ids)) == len(ids)
        for each in ids:
            assert number - last.get(each, number) <= 2
            last[each] = number
    assert sorted(last) == list(range(1, len(last) + 1))


def test_ids_are_nearly_as_good_as_detections_allow_and_better_than_a_peer_s_in_a_crowd() -> None:
    for scenes, least, switches in ((1, 0.75, 60), (3, 0.72, 300)):
        sequence = frames(scenes, 120)
        track = ours()
        mine = judge(sequence, [track(frame.found, frame.stamp_ns) for frame in sequence])
        best = judge(sequence, [frame.oracle for frame in sequence])
        assert least < mine.idf1 <= best.idf1 and best.mota - mine.mota < 0.06
        assert mine.switches < switches
    peer = edgefirst()
    theirs = judge(sequence, [peer(frame.found, frame.stamp_ns) for frame in sequence])
    assert mine.idf1 > theirs.idf1


def test_thousands_of_frames_leave_nothing_behind() -> None:
    rng = np.random.default_rng(4)
    camera = Camera(track_lost=0.1)
    live = []
    for _ in range(10):
        for _ in range(1000 if LONG else 200):
            camera.ids(*((x, y, HIGH, 0) for x, y in rng.uniform(0, 600, (3, 2))))
        live.append(camera.tracking.live)
    assert max(live) <= 4 * 3 and camera.tracking.begun > 1_000
