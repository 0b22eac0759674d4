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
Makes ``vision_msgs`` (version 4) messages of detections, as objects or as serialised bytes.

Most bytes of a message never change. :class:`DetectionsCdr` prepares them once, and adds only six
numbers per detection; see :mod:`~zc_perception.link.rclpy_compat` for the format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import itertools
import struct
import sys

import numpy as np
from vision_msgs.msg import (
    Detection2D,
    Detection2DArray,
    LabelInfo,
    ObjectHypothesisWithPose,
    VisionClass,
)

from zc_perception.detection.detections import Detections
from zc_perception.frame import Header
from zc_perception.link.image_conversion import stamp_to_message
from zc_perception.link.rclpy_compat import cdr_string, COUNT, ENCAPSULATION, STAMP, understood
from zc_perception.native import compiled

Write = Callable[[Header, Detections], Detection2DArray]
_ONE = COUNT.pack(1)
# The end of each detection's pose: the orientation's w, which is 1, and 6 × 6 covariances, all 0.
_UPRIGHT = struct.pack('<d', 1.0) + bytes(8 * 36)
# The numbers of a detection, in order: score; position and orientation x, y, z (all 0); _UPRIGHT;
# the box's centre, theta and size. All are doubles, so they need no padding between them.
_NUMBERS = struct.Struct(f'<d48x{len(_UPRIGHT)}s5d')
# An empty ``Detection2D.id``, without the padding up to the next detection's stamp.
_NO_ID = _ONE + b'\0'
# Compiled function that makes the bytes of boxes without angles and ids; ``None``: the function
# isn't built, or this machine isn't little-endian.
_COMPILED = compiled.upright if compiled is not None and sys.byteorder == 'little' else None


class DetectionsWriter:
    """Fills one message again and again, because making new nested objects is too slow."""

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
        """
        Return the message; it is valid until the next call.

        The message has the frame's header. A box is its centre, angle and size in pixels of the
        source image; ``class_id`` is a decimal text.
        """
        message = self._message
        stamp_to_message(header, message)
        rows = zip(
            _places(detections),
            detections.scores.tolist(),
            detections.classes.tolist(),
            strict=True,
        )
        ids = _texts(detections)
        for number, (place, score, index) in enumerate(rows):
            detection = self._detection(number)
            box, hypothesis = detection.bbox, detection.results[0].hypothesis
            (
                box.center.position.x,
                box.center.position.y,
                box.center.theta,
                box.size_x,
                box.size_y,
            ) = place
            hypothesis.class_id = self._ids[index] if index < len(self._ids) else str(index)
            hypothesis.score = score
            detection.id = ids[number]
        message.detections = self._spare[: len(detections)]
        return message


def _places(detections: Detections) -> list[Sequence[float]]:
    """Return centre x and y, angle, width and height of each box."""
    if detections.turned is None:
        return [
            ((x0 + x1) / 2, (y0 + y1) / 2, 0.0, x1 - x0, y1 - y0)
            for x0, y0, x1, y1 in detections.boxes.tolist()
        ]
    rows: list[Sequence[float]] = detections.turned[:, [0, 1, 4, 2, 3]].tolist()
    return rows


def _texts(detections: Detections) -> list[str]:
    """Return the boxes' track ids as texts; a box without a track has an empty text."""
    ids = detections.ids
    return [''] * len(detections) if ids is None else [str(i) if i else '' for i in ids.tolist()]


class DetectionsCdr:
    """Makes serialised messages, which ``Publisher.publish`` accepts as bytes."""

    def __init__(self, num_classes: int) -> None:
        self._num_classes = num_classes
        self._use_frame('')

    def _use_frame(self, frame_id: str) -> None:
        """Prepare the bytes that stay the same in all messages with this *frame_id*."""
        text = cdr_string(frame_id)
        # A 4-byte number follows, so pad to a multiple of 4.
        self._frame, self._frame_id = text + bytes(-len(text) % 4), frame_id
        # A detection's result begins 0 or 4 bytes after a multiple of 8: prepare each class's
        # bytes for both cases.
        self._results = tuple(
            [self._result(begin, index) for index in range(self._num_classes)] for begin in (0, 4)
        )

    @staticmethod
    def _result(begin: int, index: int) -> bytes:
        """
        Return the bytes of a detection's result before its score.

        They are the number of results (1), the class id, and padding to a multiple of 8.

        :param begin: how many bytes after a multiple of 8 the result begins.
        :param index: the class's number.
        """
        text = _ONE + cdr_string(str(index))
        return text + bytes(-(begin + len(text)) % 8)

    def write(self, header: Header, detections: Detections) -> bytes:
        """
        Serialise the same message as :meth:`DetectionsWriter.write` makes.

        :raises struct.error: the stamp is out of the range of ``builtin_interfaces/Time``.
        """
        if header.frame_id != self._frame_id:
            self._use_frame(header.frame_id)
        head = STAMP.pack(*divmod(header.stamp_ns, 1_000_000_000)) + self._frame
        parts = [ENCAPSULATION, head, COUNT.pack(len(detections))]
        if detections.ids is None and detections.turned is None and len(detections):
            try:
                parts += self._upright(head, detections)
                return b''.join(parts)
            except IndexError:  # a class number that the model doesn't have
                pass
        add, numbers, known = parts.extend, _NUMBERS.pack, self._num_classes
        # Before the first result come the message's header, a 4-byte count, and the detection's
        # header. Both headers have the same length, a multiple of 4, so that the result begins
        # 4 bytes after a multiple of 8. An id follows doubles, so it begins at a multiple of 8.
        lead, begin, number, results = head, 4, _NO_ID, self._results[1]
        ids = None if detections.ids is None else _texts(detections)
        rows = zip(
            _places(detections),
            detections.scores.tolist(),
            detections.classes.tolist(),
            strict=True,
        )
        for at, (place, score, index) in enumerate(rows):
            result = results[index] if index < known else self._result(begin, index)
            add((lead, result, numbers(score, _UPRIGHT, *place)))
            if ids is not None:
                number = cdr_string(ids[at])
            elif at:
                continue
            lead = number + bytes(-len(number) % 4) + head
            begin = len(lead) % 8
            results = self._results[begin // 4]
        if len(detections):
            parts.append(number)
        return b''.join(parts)

    def _upright(self, head: bytes, detections: Detections) -> list[bytes]:
        """
        Serialise detections without angles and ids; this usual case has faster code.

        :raises IndexError: a detection has a class number that the model doesn't have.
        """
        lead = _NO_ID + bytes(-len(_NO_ID) % 4) + head
        results = self._results[len(lead) % 8 // 4]
        if _COMPILED is not None:
            rows = _COMPILED(
                detections.boxes, detections.scores, detections.classes, (head, lead),
                (self._results[1], results), _UPRIGHT,
            )  # fmt: skip
            if rows is not None:
                return [rows, _NO_ID]
        pack, classes = _NUMBERS.pack, detections.classes.tolist()
        boxes = [
            pack(score, _UPRIGHT, (x0 + x1) / 2, (y0 + y1) / 2, 0.0, x1 - x0, y1 - y0)
            for (x0, y0, x1, y1), score in zip(
                detections.boxes.tolist(), detections.scores.tolist(), strict=True
            )
        ]
        texts = [results[index] for index in classes]
        texts[0] = self._results[1][classes[0]]
        leads = itertools.chain((head,), itertools.repeat(lead))
        parts = zip(leads, texts, boxes, strict=False)
        return [*itertools.chain.from_iterable(parts), _NO_ID]


def _samples() -> list[tuple[Header, Detections]]:
    """
    Return headers and detections for :func:`cdr_is_understood`.

    They cover all alignments: frame ids, class ids and track ids of each length modulo 4. Some
    samples have no detections, or detections without track ids and angles.
    """
    samples = []
    # Make no more samples than needed for all alignments: each process that publishes detections
    # checks them at its start.
    for count, lengths in ((0, 1), (3, 5)):
        corners = np.arange(count, dtype=np.float32)[:, None] * 20 + np.array(
            [1, 2.5, 5, 10.25], np.float32
        )
        for length in range(lengths):
            classes = np.array([7, 10 + length, 100 + length], np.intp)[:count]
            ids = (
                10 ** np.array([length, 0, length + 3])[:count] * (classes != 7)
                if length
                else None
            )
            turned = np.concatenate((corners, corners[:, :1] / 7), axis=1) if length % 2 else None
            header = Header(1_700_000_000_000_000_005 + length, 'öptical_'[:length])
            scores = np.linspace(0.75, 0.25, count, dtype=np.float32)
            samples += [
                (header, Detections(corners, scores, classes)),
                (header, Detections(corners, scores, classes, ids=ids, turned=turned)),
            ]
    return samples


def cdr_is_understood(write: Write) -> bool:
    """
    Return whether the middleware decodes :class:`DetectionsCdr`'s bytes as it should.

    The decoded messages must be equal to those that *write* makes of the same detections. They
    aren't equal if the version of ``vision_msgs`` isn't 4.

    :param write: makes a message object of a header and detections.
    """
    return understood(Detection2DArray, _samples(), DetectionsCdr(105).write, write)


def detections_writer(
    num_classes: int,
) -> Callable[[Header, Detections], Detection2DArray | bytes]:
    """
    Return the function that makes a frame's message for ``Publisher.publish``.

    The function returns serialised bytes if the middleware decodes them correctly, else an object
    that is valid until the next call.
    """
    fallback = DetectionsWriter(num_classes).write
    return DetectionsCdr(num_classes).write if cdr_is_understood(fallback) else fallback


def label_message(classes: Sequence[str], threshold: float) -> LabelInfo:
    """Return the ``LabelInfo``: class names by id, and the lowest score that is published."""
    return LabelInfo(
        class_map=[VisionClass(class_id=i, class_name=name) for i, name in enumerate(classes)],
        threshold=threshold,
    )
