"""Detections as ``vision_msgs``."""

from __future__ import annotations

from collections.abc import Sequence

from vision_msgs.msg import Detection2D, Detection2DArray, LabelInfo, ObjectHypothesisWithPose, VisionClass

from zc_perception.detection.detections import Detections
from zc_perception.frame import Header


def detections_message(header: Header, detections: Detections) -> Detection2DArray:
    """An array with the frame's header, whole; boxes as centre and size in source-image pixels; ``class_id`` a decimal string."""
    message = Detection2DArray()
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(header.stamp_ns, 1_000_000_000)
    message.header.frame_id = header.frame_id
    for (x0, y0, x1, y1), score, index in zip(
        detections.boxes.tolist(), detections.scores.tolist(), detections.classes.tolist(), strict=True
    ):
        detection = Detection2D(header=message.header)
        detection.bbox.center.position.x = (x0 + x1) / 2
        detection.bbox.center.position.y = (y0 + y1) / 2
        detection.bbox.size_x = x1 - x0
        detection.bbox.size_y = y1 - y0
        hypothesis = ObjectHypothesisWithPose()
        hypothesis.hypothesis.class_id = str(index)
        hypothesis.hypothesis.score = score
        detection.results.append(hypothesis)
        message.detections.append(detection)
    return message


def label_message(classes: Sequence[str], threshold: float) -> LabelInfo:
    """Names of the class ids, and the score below which nothing is published."""
    return LabelInfo(class_map=[VisionClass(class_id=i, class_name=name) for i, name in enumerate(classes)], threshold=threshold)
