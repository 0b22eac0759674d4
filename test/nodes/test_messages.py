"""Detections as messages."""

from __future__ import annotations

import numpy as np
from rclpy.serialization import deserialize_message, serialize_message
from vision_msgs.msg import Detection2DArray

from zc_perception.detection.detections import Detections
from zc_perception.frame import Header
from zc_perception.nodes.messages import DetectionsWriter, label_message


def _found(count: int, classes: int = 3) -> Detections:
    corners = np.arange(count, dtype=np.float32)[:, None] * 10 + np.array([1, 2, 5, 10], np.float32)
    return Detections(corners, np.linspace(0.9, 0.5, count, dtype=np.float32), np.arange(count) % classes)


def _rows(message: Detection2DArray) -> list[tuple]:
    return [
        (
            d.bbox.center.position.x, d.bbox.center.position.y, d.bbox.center.theta, d.bbox.size_x, d.bbox.size_y,
            [(r.hypothesis.class_id, round(r.hypothesis.score, 4)) for r in d.results], d.header.stamp.sec, d.header.frame_id,
        )
        for d in message.detections
    ]  # fmt: skip


def test_boxes_are_centres_and_sizes_and_headers_are_whole() -> None:
    message = DetectionsWriter(3).write(Header(3_000_000_005, 'front'), _found(2))
    assert (message.header.stamp.sec, message.header.stamp.nanosec, message.header.frame_id) == (3, 5, 'front')
    assert _rows(message) == [
        (3.0, 6.0, 0.0, 4.0, 8.0, [('0', 0.9)], 3, 'front'),
        (13.0, 16.0, 0.0, 4.0, 8.0, [('1', 0.5)], 3, 'front'),
    ]


def test_a_writer_that_is_used_again_leaves_nothing_of_the_frame_before() -> None:
    """Compared after a round trip through the wire format, with a writer that is fresh for each frame."""
    writer = DetectionsWriter(3)
    for number, count in enumerate((3, 0, 7, 1, 7)):
        header = Header(number * 1_000_000_000 + number, f'frame{number}')
        reused, fresh = (
            deserialize_message(serialize_message(w.write(header, _found(count))), Detection2DArray) for w in (writer, DetectionsWriter(3))
        )
        assert len(reused.detections) == count and reused == fresh


def test_labels_name_the_ids() -> None:
    message = label_message(['car', 'sign'], 0.5)
    assert [(c.class_id, c.class_name) for c in message.class_map] == [(0, 'car'), (1, 'sign')] and message.threshold == 0.5
