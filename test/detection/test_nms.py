"""Non-maximum suppression against a brute-force one and against OpenCV's, class by class."""

from __future__ import annotations

import cv2
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from zc_perception.detection.average_precision import box_iou
from zc_perception.detection.nms import suppress

Clusters = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.intp]]
THRESHOLD = 0.45


@st.composite
def clusters(draw: st.DrawFn) -> Clusters:
    """Boxes around few places, of few classes, so that many overlap; scores all different."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(1, 40))
    centres = random.uniform(100, 500, (3, 2))[random.integers(0, 3, count)] + random.normal(0, 12, (count, 2))
    sizes = random.uniform(20, 90, (count, 2))
    boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1).astype(np.float32)
    scores = random.permutation(np.linspace(0.05, 0.95, count)).astype(np.float32)
    return boxes, scores, random.integers(0, draw(st.integers(1, 3)), count).astype(np.intp)


def brute_force(boxes: NDArray[np.float32], scores: NDArray[np.float32], classes: NDArray[np.intp]) -> tuple[list[int], float]:
    """Indices kept, best first, and how near any comparison came to the threshold."""
    overlaps = box_iou(boxes, boxes)
    kept: list[int] = []
    nearest = 1.0
    for index in np.argsort(-scores):
        rivals = [overlaps[index, other] for other in kept if classes[other] == classes[index]]
        nearest = min([nearest, *(abs(overlap - THRESHOLD) for overlap in rivals)])
        if all(overlap <= THRESHOLD for overlap in rivals):
            kept.append(int(index))
    return kept, nearest


@given(clusters())
def test_it_keeps_what_a_brute_force_one_keeps(case: Clusters) -> None:
    boxes, scores, classes = case
    kept, nearest = brute_force(*case)
    if nearest < 1e-4:
        return  # rounding decides
    result = suppress(boxes, scores, classes, iou_threshold=THRESHOLD, max_detections=1000)
    assert result.scores.tolist() == scores[kept].tolist()
    assert result.boxes.tolist() == boxes[kept].tolist() and result.classes.tolist() == classes[kept].tolist()


@given(clusters())
def test_each_class_is_opencv_s_own_suppression(case: Clusters) -> None:
    boxes, scores, classes = case
    result = suppress(boxes, scores, classes, iou_threshold=THRESHOLD, max_detections=1000)
    for number in np.unique(classes):
        own = classes == number
        corners_sizes = np.concatenate([boxes[own, :2], boxes[own, 2:] - boxes[own, :2]], axis=1).astype(np.float64)
        kept = np.asarray(cv2.dnn.NMSBoxes(corners_sizes.tolist(), scores[own].tolist(), 0.0, THRESHOLD), np.intp)
        assert sorted(result.scores[result.classes == number]) == sorted(scores[own][kept])


def test_boxes_of_different_classes_do_not_suppress_each_other() -> None:
    same = np.array([[10, 10, 50, 50]] * 3, np.float32)
    result = suppress(same, np.array([0.5, 0.9, 0.7], np.float32), np.array([0, 1, 0]), iou_threshold=0.5, max_detections=10)
    assert result.classes.tolist() == [1, 0]
    assert result.scores.tolist() == np.array([0.9, 0.7], np.float32).tolist()


def test_classes_stay_apart_left_of_and_above_the_picture() -> None:
    """Suppression of all classes at once shifts boxes by class; two must not be shifted onto each other."""
    boxes = np.array([[81, 0, 101, 10], [-20, 0, 0, 10], [-20, -10, 0, 0]], np.float32)
    result = suppress(boxes, np.array([0.9, 0.8, 0.7], np.float32), np.array([0, 1, 2]), iou_threshold=0.3, max_detections=10)
    assert len(result) == 3


def test_above_the_limit_the_best_of_all_classes_stay() -> None:
    count = 30
    boxes = np.array([[20 * i, 0, 20 * i + 10, 10] for i in range(count)], np.float32)
    scores = np.linspace(0.1, 0.9, count).astype(np.float32)
    result = suppress(boxes, scores, np.arange(count) % 3, iou_threshold=0.5, max_detections=7)
    assert result.scores.tolist() == scores[::-1][:7].tolist()
    assert result.boxes[:, 0].tolist() == boxes[::-1][:7, 0].tolist()


def test_a_threshold_of_one_keeps_duplicates() -> None:
    same = np.array([[10, 10, 50, 50]] * 2, np.float32)
    assert len(suppress(same, np.array([0.5, 0.9], np.float32), np.array([0, 0]), iou_threshold=1.0, max_detections=10)) == 2


def test_nothing_in_nothing_out() -> None:
    result = suppress(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.intp), iou_threshold=0.5, max_detections=5)
    assert len(result) == 0 and result.boxes.shape == (0, 4)
