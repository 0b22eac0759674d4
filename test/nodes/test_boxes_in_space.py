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
The topic ``detections_3d``: for frames with a depth picture of exactly their stamp.

The boxes have the colour frame's header. If there is no such picture, diagnostics say so.
"""

from __future__ import annotations

from typing import Any

from nodes.managed import CLEANUP, DEACTIVATE, managed, status
import numpy as np
import pytest
from sensor_msgs.msg import CameraInfo, Image
from vision_msgs.msg import Detection2DArray, Detection3DArray
from visualization_msgs.msg import Marker, MarkerArray

from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.stages import SPACE
from zc_perception.observe.diagnostics import Level

DISTANCE = 4.0
FRAME = 'camera_optical_frame'


def depth_of(header: Any, encoding: str = '16UC1', frame_id: str = FRAME) -> Image:
    """Return a wall, half as large as the frames, in rows with padding."""
    rows = np.full((180, 326), DISTANCE * 1000, '<u2')
    message = Image(height=180, width=320, step=652, encoding=encoding, data=rows.tobytes())
    message.header.stamp, message.header.frame_id = header.stamp, frame_id
    return message


def test_boxes_are_in_space_where_depth_has_their_stamp_and_it_is_said_where_not(
    free_domain: int,
) -> None:
    with managed(free_domain) as run:
        capture = run.make(CaptureNode, {'heap': 'memfd', 'framerate': 20.0, 'seed': 4})
        inference = run.make(
            InferenceNode,
            {
                'threads': 1,
                'timeout': 20.0,
                'depth_topic': 'depth',
                'tracking': 'bytetrack',
                'track_score': 0.1,
            },
        )
        flat: dict[int, Detection2DArray] = {}
        space: list[Detection3DArray] = []
        markers: list[MarkerArray] = []
        depth = run.manager.create_publisher(Image, 'depth', 10)
        how: dict[str, Any] = {}

        def answer(message: Detection2DArray) -> None:
            flat[message.header.stamp.nanosec] = message
            if how is not None:
                other = depth_of(message.header, **{k: v for k, v in how.items() if k != 'late'})
                other.header.stamp.nanosec += how.get('late', 0)
                depth.publish(other)

        run.manager.create_subscription(Detection2DArray, 'detections', answer, 10)
        run.manager.create_subscription(Detection3DArray, 'detections_3d', space.append, 10)
        run.manager.create_subscription(MarkerArray, 'detections_3d/markers', markers.append, 10)
        for node in (inference, capture):
            node.start()
        run.eventually(lambda: status(inference, 'space').level is Level.WARN and len(flat) > 3)
        assert 'no calibration came on /camera_info' in status(inference, 'space').message
        assert not space

        info = run.manager.create_publisher(CameraInfo, 'camera_info', 10)
        calibration = CameraInfo(width=640, height=360, distortion_model='plumb_bob')
        calibration.k = [500.0, 0.0, 320.0, 0.0, 500.0, 180.0, 0.0, 0.0, 1.0]

        def whole() -> bool:
            info.publish(calibration)
            return any(message.detections for message in space) and bool(markers)

        run.eventually(whole, 'boxes in space')
        message = next(message for message in space if message.detections)
        seen = flat[message.header.stamp.nanosec]
        assert message.header == seen.header and len(message.detections) == len(seen.detections)
        for box, one in zip(seen.detections, message.detections, strict=True):
            assert (one.id, one.header) == (box.id, box.header) and one.id
            assert one.results[0].hypothesis == box.results[0].hypothesis
            place, size, centre = one.bbox.center.position, one.bbox.size, box.bbox.center.position
            assert (place.x, place.y, place.z) == pytest.approx(
                ((centre.x - 320) / 500 * DISTANCE, (centre.y - 180) / 500 * DISTANCE, DISTANCE),
                abs=1e-6,
            )
            assert size.x == pytest.approx(box.bbox.size_x / 500 * DISTANCE)
            assert (
                one.results[0].pose.pose == one.bbox.center
                and one.bbox.center.orientation.w == 1.0
            )
        drawn = next(each for each in markers if len(each.markers) > 1)
        assert [m.action for m in drawn.markers[:2]] == [Marker.DELETEALL, Marker.ADD]
        assert all(m.type == Marker.CUBE and m.header.frame_id == FRAME for m in drawn.markers[1:])

        for wrong, said in (
            ({'encoding': 'rgb8'}, 'depth pictures are rgb8, not 16UC1'),
            ({'frame_id': 'elsewhere'}, "depth pictures are of frame 'elsewhere'"),
            ({'late': 1}, 'frames lately had no depth picture of their very stamp'),
        ):
            how.clear()
            how.update(wrong)
            before = len(flat)
            run.eventually(lambda text=said: text in status(inference, 'space').message, said)
            assert len(flat) > before

        assert run.change(inference, DEACTIVATE) and run.change(inference, CLEANUP)
        assert not inference.observers
        run.eventually(lambda: not run.manager.get_publishers_info_by_topic('/detections_3d'))


def test_depth_pictures_that_come_more_seldom_than_frames_are_no_fault() -> None:
    for depths, level in ((10, Level.OK), (30, Level.WARN)):
        lately = {'seen': 30, 'placed': 10, 'alone': 20, 'refused': 0, 'left_out': 0}
        names = {'unfit': '', 'lens': True, 'info': '/camera_info', 'topic': '/depth'}
        assert SPACE.status({}, **names, **lately, depths=depths).level is level
