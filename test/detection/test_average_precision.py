"""Average precision against cases that can be worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from detection.average_precision import ImageBoxes, average_precision, precision_recall

from zc_perception.detection.detections import box_iou

A, B, C, NOWHERE = (0, 0, 10, 10), (20, 0, 30, 10), (40, 0, 50, 10), (80, 80, 90, 90)


def truth(*boxes: tuple[float, ...], classes: tuple[int, ...] | None = None) -> ImageBoxes:
    return ImageBoxes(np.array(boxes, float).reshape(-1, 4), np.array(classes or (0,) * len(boxes), int))


def seen(*scored: tuple[tuple[float, ...], float], classes: tuple[int, ...] | None = None) -> ImageBoxes:
    boxes = np.array([box for box, _ in scored], float).reshape(-1, 4)
    return ImageBoxes(boxes, np.array(classes or (0,) * len(scored), int), np.array([score for _, score in scored]))


def test_iou_of_known_boxes() -> None:
    a = np.array([(0, 0, 10, 10), (0, 0, 4, 2)], float)
    b = np.array([(0, 0, 10, 10), (5, 0, 15, 10), (10, 0, 20, 10), (2, 1, 6, 3)], float)
    expected = [[1, 50 / 150, 0, 8 / 100], [8 / 100, 0, 0, 2 / 14]]
    np.testing.assert_allclose(box_iou(a, b), expected)


def test_iou_of_empty_boxes_is_zero() -> None:
    point = np.array([(3, 3, 3, 3)], float)
    assert box_iou(point, point) == 0
    assert box_iou(np.array([(5, 5, 1, 1)], float), np.array([(0, 0, 9, 9)], float)) == 0
    assert box_iou(np.empty((0, 4)), point).shape == (0, 1)


def test_iou_refuses_other_shapes() -> None:
    with pytest.raises(ValueError, match=r'\(n, 4\)'):
        box_iou(np.zeros(4), np.zeros((1, 4)))


def test_perfect_detections() -> None:
    result = average_precision([seen((A, 0.9), (B, 0.8))], [truth(A, B)], 1)
    assert result.mean == 1.0


def test_a_false_positive_between_two_hits() -> None:
    """Precisions 1, 1/2, 2/3 at recalls 1/3, 1/3, 2/3: raised to 1, 2/3, 2/3, area 1/3 + 2/9."""
    result = average_precision([seen((A, 0.9), (NOWHERE, 0.8), (B, 0.7))], [truth(A, B, C)], 1)
    assert result.mean == pytest.approx(1 / 3 + 2 / 9)


def test_precision_is_raised_to_the_best_at_higher_recall() -> None:
    """Hit ranks 2 and 3: precision 1/2, 2/3 are both raised to 2/3."""
    result = average_precision([seen((NOWHERE, 0.9), (A, 0.8), (B, 0.7))], [truth(A, B)], 1)
    assert result.mean == pytest.approx(2 / 3)


def test_a_second_detection_of_the_same_box_is_false() -> None:
    result = average_precision([seen((A, 0.9), (A, 0.8), (B, 0.7))], [truth(A, B)], 1)
    assert result.mean == pytest.approx(1 / 2 + 1 / 2 * 2 / 3)


def test_scores_are_ranked_over_all_images() -> None:
    detections = [seen((A, 0.5)), seen((NOWHERE, 0.9))]
    assert average_precision(detections, [truth(A), truth()], 1).mean == pytest.approx(0.5)


def test_a_box_of_another_image_or_class_does_not_count() -> None:
    assert average_precision([seen(), seen((A, 0.9))], [truth(A), truth()], 1).mean == 0.0
    wrong_class = average_precision([seen((A, 0.9), classes=(1,))], [truth(A)], 2)
    assert wrong_class.per_class[0] == 0.0
    assert math.isnan(wrong_class.per_class[1])
    assert wrong_class.mean == 0.0


def test_mean_is_over_classes_with_truth() -> None:
    result = average_precision([seen((A, 0.9), classes=(0,))], [truth(A, B, classes=(0, 2))], 3)
    assert result.per_class[0] == 1.0 and math.isnan(result.per_class[1]) and result.per_class[2] == 0.0
    assert result.mean == 0.5


def test_iou_at_the_threshold_counts() -> None:
    half = (0, 0, 10, 5)
    assert average_precision([seen((half, 0.9))], [truth(A)], 1, iou_threshold=0.5).mean == 1.0
    assert average_precision([seen((half, 0.9))], [truth(A)], 1, iou_threshold=0.51).mean == 0.0


def test_nothing_at_all() -> None:
    assert math.isnan(average_precision([seen()], [truth()], 1).mean)
    assert average_precision([seen()], [truth(A)], 1).mean == 0.0


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match='same images, got 1 and 0'):
        average_precision([seen()], [], 1)
    with pytest.raises(ValueError, match='scores'):
        average_precision([truth(A)], [truth(A)], 1)


def test_precision_and_recall_at_a_score() -> None:
    detections = [seen((A, 0.9), (NOWHERE, 0.8), (B, 0.4)), seen((C, 0.6), classes=(1,))]
    real = [truth(A, B), truth(C, classes=(1,))]
    assert precision_recall(detections, real, 0.5) == pytest.approx((2 / 3, 2 / 3))
    assert precision_recall(detections, real, 0.3) == pytest.approx((3 / 4, 1.0))
    assert precision_recall([seen()], [truth()], 0.5) == (1.0, 1.0)
