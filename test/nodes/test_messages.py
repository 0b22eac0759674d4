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
Detections as messages and as bytes.

The middleware must read the same from the bytes as from the message; otherwise messages are sent.
"""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from rclpy.serialization import deserialize_message
from vision_msgs.msg import Detection2DArray

from zc_perception.detection.detections import Detections
from zc_perception.frame import Header
from zc_perception.link import rclpy_compat
from zc_perception.nodes import messages
from zc_perception.nodes.messages import (
    cdr_is_understood,
    detections_writer,
    DetectionsCdr,
    DetectionsWriter,
    label_message,
)

HEADER = Header(3_000_000_005, 'front')
COORDINATES = st.floats(-1e5, 1e5, width=32)
FRAME_IDS = st.text(
    st.characters(exclude_characters='\0', exclude_categories=('Cs',)), max_size=40
)
BOXES = st.tuples(COORDINATES, COORDINATES, COORDINATES, COORDINATES)
IDS = st.just(0) | st.integers(1, 2**63 - 1)
ROWS = st.lists(
    st.tuples(BOXES, st.floats(0, 1, width=32), st.integers(0, 1200), IDS), max_size=12
)


def detections(rows: list[tuple], tracked: bool = False) -> Detections:
    boxes = np.array([row[0] for row in rows], np.float32).reshape(-1, 4)
    return Detections(
        boxes,
        np.array([row[1] for row in rows], np.float32),
        np.array([row[2] for row in rows], np.intp),
        ids=np.array([row[3] for row in rows], np.int64) if tracked else None,
    )


def read(serialised: bytes) -> Detection2DArray:
    return deserialize_message(serialised, Detection2DArray)


@settings(max_examples=200, deadline=None)
@given(
    frames=st.lists(
        st.tuples(st.integers(0, 2**31 * 10**9 - 1), FRAME_IDS, ROWS, st.booleans()),
        min_size=1,
        max_size=3,
    ),
    classes=st.integers(0, 120),
)
def test_the_middleware_reads_what_the_message_says(frames: list[tuple], classes: int) -> None:
    """One writer for several frames, as in the node: nothing of an earlier frame may remain."""
    cdr, message = DetectionsCdr(classes), DetectionsWriter(classes)
    for stamp_ns, frame_id, rows, tracked in frames:
        header, found = Header(stamp_ns, frame_id), detections(rows, tracked)
        written = cdr.write(header, found)
        with patch.object(messages, '_COMPILED', None):
            assert cdr.write(header, found) == written
        said = read(written)
        assert said == message.write(header, found)
        assert [each.id for each in said.detections] == [
            str(row[3]) if tracked and row[3] else '' for row in rows
        ]


def test_a_message_has_the_frame_s_header_the_box_s_centre_and_its_class() -> None:
    found = detections([((1, 2, 5, 10), 0.5, 12345)])
    message = read(DetectionsCdr(20).write(HEADER, found))
    stamp = message.header.stamp
    assert (stamp.sec, stamp.nanosec, message.header.frame_id) == (3, 5, 'front')
    (detection,) = message.detections
    (result,) = detection.results
    box, pose = detection.bbox, result.pose
    assert (box.center.position.x, box.center.position.y, box.center.theta) == (3.0, 6.0, 0.0)
    assert (box.size_x, box.size_y, detection.id) == (4.0, 8.0, '')
    assert detection.header == message.header
    assert (result.hypothesis.class_id, result.hypothesis.score) == ('12345', 0.5)
    assert pose.pose.orientation.w == 1.0 and not pose.covariance.any()


def test_here_it_is_used() -> None:
    assert cdr_is_understood(DetectionsWriter(3).write)
    assert isinstance(detections_writer(3)(HEADER, Detections.empty()), bytes)


def _other_field(message: Detection2DArray) -> Detection2DArray:
    for detection in message.detections:
        detection.id = 'x'
    return message


def _other_length(message: Detection2DArray) -> Detection2DArray:
    """Return a message that is wrong only for frame ids of one length."""
    if len(message.header.frame_id) == 3:
        message.header.frame_id += '!'
    return message


@pytest.mark.parametrize('change', [_other_field, _other_length])
def test_bytes_that_say_something_else_are_not_used(change: object) -> None:
    write = DetectionsWriter(3).write
    assert not cdr_is_understood(lambda header, found: change(write(header, found)))


def test_where_the_middleware_does_not_understand_messages_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(serialised: bytes, kind: type) -> None:
        raise RuntimeError('not this format')

    monkeypatch.setattr(rclpy_compat, 'deserialize_message', refuse)
    message = detections_writer(3)(HEADER, detections([((1, 2, 5, 10), 0.5, 2)]))
    assert (
        isinstance(message, Detection2DArray)
        and message.detections[0].results[0].hypothesis.class_id == '2'
    )


def test_labels_name_the_ids() -> None:
    message = label_message(['car', 'sign'], 0.5)
    assert [(c.class_id, c.class_name) for c in message.class_map] == [
        (0, 'car'),
        (1, 'sign'),
    ] and message.threshold == 0.5
