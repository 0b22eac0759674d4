"""Detections as ``vision_msgs``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vision_msgs.msg import Detection2D, Detection2DArray, LabelInfo, ObjectHypothesisWithPose, VisionClass

from zc_perception.detection.detections import Detections
from zc_perception.frame import Header
from zc_perception.nodes.detections_cdr import DetectionsCdr, cdr_is_understood


class DetectionsWriter:
    """Fills one message again and again: building the nested Python objects anew costs more than everything else of publishing.

    :param num_classes: how many class ids there are.
    """

    def __init__(self, num_classes: int) -> None:
        self._ids = [str(index) for index in range(num_classes)]
        self._message = Detection2DArray()
        self._spare: list[Detection2D] = []

    def _detection(self, index: int) -> Detection2D:
        while len(self._spare) <= index:
            detection = Detection2D(header=self._message.header)
            detection.results.append(ObjectHypothesisWithPose())
            self._spare.append(detection)
        return self._spare[index]

    def write(self, header: Header, detections: Detections) -> Detection2DArray:
        """The message, valid until the next call.

        It has the frame's header, whole; boxes as centre and size in source-image pixels; ``class_id`` a decimal string.
        """
        message = self._message
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(header.stamp_ns, 1_000_000_000)
        message.header.frame_id = header.frame_id
        rows = zip(detections.boxes.tolist(), detections.scores.tolist(), detections.classes.tolist(), strict=True)
        for number, ((x0, y0, x1, y1), score, index) in enumerate(rows):
            detection = self._detection(number)
            box, hypothesis = detection.bbox, detection.results[0].hypothesis
            box.center.position.x, box.center.position.y = (x0 + x1) / 2, (y0 + y1) / 2
            box.size_x, box.size_y = x1 - x0, y1 - y0
            hypothesis.class_id = self._ids[index] if index < len(self._ids) else str(index)
            hypothesis.score = score
        message.detections = self._spare[: len(detections)]
        return message


def detections_writer(num_classes: int) -> Callable[[Header, Detections], Detection2DArray | bytes]:
    """What makes of a frame's detections what ``Publisher.publish`` takes: serialised bytes where the middleware understands them as they
    are meant, else a message, valid until the next call.

    :param num_classes: how many class ids there are.
    """
    fallback = DetectionsWriter(num_classes).write
    return DetectionsCdr(num_classes).write if cdr_is_understood(fallback) else fallback


def label_message(classes: Sequence[str], threshold: float) -> LabelInfo:
    """Names of the class ids, and the score below which nothing is published."""
    return LabelInfo(class_map=[VisionClass(class_id=i, class_name=name) for i, name in enumerate(classes)], threshold=threshold)
