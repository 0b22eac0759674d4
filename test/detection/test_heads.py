"""Heads on tensors that are written here, with boxes known beforehand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads import decode_boxes, decode_yolov8
from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.errors import AcceleratorError

# 1920x1080 in 640x640: scale 1/3, picture in rows 140..500.
BOX = Letterbox.fit(1920, 1080, 640, 640)
CLASSES = 3


def yolov8(*anchors: Sequence[float], empty: int = 50) -> list[RawTensor]:
    """1 x (4 + classes) x N: each anchor is cx, cy, w, h, then scores; the others have a score of 0.01."""
    rows = np.full((len(anchors) + empty, 4 + CLASSES), 0.01, np.float32)
    rows[: len(anchors)] = np.reshape(anchors, (-1, 4 + CLASSES)) if anchors else rows[:0]
    return [RawTensor(np.ascontiguousarray(rows.T[None]))]


def decode(outputs: list[RawTensor], score: float = 0.25, iou: float = 0.5, limit: int = 100) -> Detections:
    return decode_yolov8(outputs, BOX, score, iou, limit)


def test_a_known_box_comes_out_in_source_pixels() -> None:
    found = decode(yolov8((320, 320, 64, 32, 0.1, 0.8, 0.3)))
    assert found.boxes.tolist() == [[864, 492, 1056, 588]]
    assert (found.scores.tolist(), found.classes.tolist()) == (pytest.approx([0.8]), [1])


def test_two_objects_come_best_first_and_duplicates_are_suppressed() -> None:
    found = decode(yolov8((100, 200, 40, 40, 0.6, 0, 0), (400, 300, 50, 60, 0, 0, 0.9), (102, 201, 40, 40, 0.5, 0, 0)))
    assert found.classes.tolist() == [2, 0]
    assert found.scores.tolist() == pytest.approx([0.9, 0.6])
    assert found.boxes[1].tolist() == pytest.approx([240, 120, 360, 240])


def test_boxes_are_clipped_to_the_picture() -> None:
    found = decode(yolov8((0, 140, 100, 100, 0.9, 0, 0)))
    assert found.boxes.tolist() == [[0, 0, 150, 150]]


def test_a_score_at_the_threshold_counts() -> None:
    outputs = yolov8((320, 320, 64, 32, 0.5, 0, 0))
    assert len(decode(outputs, score=0.5)) == 1
    assert len(decode(outputs, score=np.nextafter(np.float32(0.5), np.float32(1)))) == 0


def test_nothing_above_the_threshold_is_an_empty_result() -> None:
    for outputs in (yolov8(), yolov8(empty=0), yolov8((320, 320, 64, 32, 0.2, 0.1, 0.1))):
        found = decode(outputs)
        assert (len(found), found.boxes.shape, found.scores.shape, found.classes.shape) == (0, (0, 4), (0,), (0,))


def test_scores_that_are_no_numbers_are_no_detections() -> None:
    nan = float('nan')
    found = decode(yolov8((100, 200, 40, 40, nan, nan, nan), (400, 300, 50, 60, 0, 0.7, 0)))
    assert found.classes.tolist() == [1] and found.scores.tolist() == pytest.approx([0.7])


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
def test_boxes_that_are_no_boxes_are_no_detections_and_suppress_none(bad: float) -> None:
    found = decode(yolov8((bad, 200, 40, 40, 0.9, 0, 0), (400, 300, bad, 60, 0.8, 0, 0), (400, 300, 50, 60, 0.7, 0, 0)))
    assert found.scores.tolist() == pytest.approx([0.7])
    assert np.isfinite(found.boxes).all()


def test_the_number_of_detections_is_limited_to_the_best() -> None:
    anchors = [(30 + 60 * i, 300, 20, 20, 0.3 + 0.05 * i, 0, 0) for i in range(10)]
    found = decode(yolov8(*anchors), limit=4)
    assert found.scores.tolist() == pytest.approx([0.75, 0.7, 0.65, 0.6])


@pytest.mark.parametrize(
    'outputs',
    [
        [],
        [np.zeros((1, 7, 10), np.float32)] * 2,
        [np.zeros((7, 10), np.float32)],
        [np.zeros((2, 7, 10), np.float32)],
        [np.zeros((1, 4, 10), np.float32)],
    ],
    ids=['none', 'two', 'no batch', 'batch of two', 'no class'],
)
def test_another_layout_is_an_error_with_its_shape(outputs: list[NDArray[np.float32]]) -> None:
    with pytest.raises(AcceleratorError, match=r'head yolov8 needs one output 1 x \(4 \+ classes\) x N, the model has'):
        decode([RawTensor(values) for values in outputs])


def rows(*values: Sequence[float]) -> list[RawTensor]:
    return [RawTensor(np.array(values, np.float32).reshape(-1, 6))]


def test_ready_made_boxes_are_filtered_and_sorted_and_not_moved() -> None:
    outputs = rows((1, 2, 30, 40, 0.3, 1), (5, 6, 70, 80, 0.9, 0), (1, 2, 30, 40, 0.1, 1), (1, 1, 9, 9, float('nan'), 0))
    found = decode_boxes(outputs, BOX, 0.25, 0.5, 10)
    assert found.boxes.tolist() == [[5, 6, 70, 80], [1, 2, 30, 40]]
    assert found.classes.tolist() == [0, 1] and found.scores.tolist() == pytest.approx([0.9, 0.3])


def test_ready_made_boxes_are_limited_to_the_best() -> None:
    outputs = rows(*[(0, 0, 5, 5, 0.1 * i, i) for i in range(1, 8)])
    assert decode_boxes(outputs, BOX, 0.0, 0.5, 2).classes.tolist() == [7, 6]


def test_places_of_a_table_that_are_empty_are_no_detections() -> None:
    assert len(decode_boxes(rows((0, 0, 0, 0, 0, 0), (5, 5, 5, 9, 0.5, 0)), BOX, 0.0, 0.5, 10)) == 0
    assert len(decode_boxes(rows(), BOX, 0.0, 0.5, 10)) == 0
