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
Masks, keypoints, turned boxes and boxes in space, from a model's file to topics.

They also reach the overlay's picture, a recording, and an independent reader.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mcap.reader import make_reader
from nodes.ros_kit import CLEANUP, DEACTIVATE, Managed, status
from npu.onnx_kit import export
import numpy as np
import pytest
from rosbags.typesys import get_types_from_msg, get_typestore, Stores
from sensor_msgs.msg import CameraInfo, Image, RegionOfInterest
from vision_msgs.msg import Detection2DArray, Detection3DArray
from visualization_msgs.msg import Marker, MarkerArray

from zc_perception.errors import ConfigError
from zc_perception.link.image_conversion import stamp_ns
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import check_classes, InferenceNode
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.nodes.recorder import RecorderNode
from zc_perception.nodes.stages import SPACE
from zc_perception.observe.diagnostics import Level

SIDE = 64
# Frames of 128 x 96 are halved, and fill rows 8 to 56 of the input. In pixels of the input, the
# box goes from (12, 18) to (44, 42).
X, Y, W, H, SCORE = 28.0, 30.0, 32.0, 24.0, 0.9
POINTS = [(20.0 + i, 24.0 + i, 0.9 if i < 13 else 0.2) for i in range(17)]


def model(folder: Path, task: str) -> str:
    """Write a model of one class that always finds one object."""
    more = {'segment': [1.0, 0.0], 'pose': [n for point in POINTS for n in point], 'obb': [0.5]}
    grids = np.full((2, 16, 16), -1.0)  # the mask is the left half of the input
    grids[0, :, :7] = 1
    rows = [[X, Y, W, H, SCORE, *more[task]]]
    return export(
        folder, task, ['thing'], rows, SIDE, grids if task == 'segment' else (),
        [17, 3] if task == 'pose' else (),
    )  # fmt: skip


def recorded(folder: Path) -> list[Any]:
    """Return a recording's annotations, read by readers that use only the file's own schemas."""
    store, found = get_typestore(Stores.EMPTY), []
    for file in folder.glob('*.mcap'):
        with file.open('rb') as stream:
            for schema, channel, message in make_reader(stream).iter_messages():
                assert schema is not None and channel.topic == '/detections/annotations'
                store.register(get_types_from_msg(schema.data.decode(), schema.name))
                found.append(store.deserialize_cdr(message.data, schema.name))
    return found


@pytest.mark.parametrize('task', ['segment', 'pose', 'obb'])
def test_what_a_model_finds_besides_boxes_is_published_and_drawn(
    task: str, free_domain: int, tmp_path: Path
) -> None:
    parameters = {'model': model(tmp_path, task), 'accelerator': 'onnx', 'timeout': 20.0}
    parameters |= {'threads': 1, 'annotations': task != 'pose', 'tracking': 'bytetrack'}
    parameters |= {'track_lost': 60.0}  # the object keeps its number if frames come late
    camera = {'width': 128, 'height': 96, 'framerate': 10.0, 'heap': 'memfd', 'pattern': 'counter'}
    with Managed(free_domain) as run:
        capture = run.make(CaptureNode, camera)
        inference = run.make(InferenceNode, parameters)
        overlay = run.make(OverlayNode, {})
        record = {'path': str(tmp_path / 'drive'), 'topics': ['detections/annotations']}
        recorder = run.make(RecorderNode, {**record, 'frames': False, 'disk_floor': 0})
        boxes: dict[int, Detection2DArray] = {}
        run.manager.create_subscription(
            Detection2DArray, 'detections', lambda m: boxes.update({stamp_ns(m.header): m}), 10
        )
        masks = run.hear(Image, 'detections/masks')
        pictures = run.hear(Image, 'detections/image')
        for node in (recorder, inference, overlay, capture):
            node.start()
        run.eventually(lambda: recorder.recorder.statistics().messages > 3 and len(pictures) > 3)
        together = lambda: [m for m in masks if stamp_ns(m.header) in boxes]  # noqa: E731
        run.eventually(lambda: len(boxes) > 3)
        run.eventually(lambda: (len(masks) > 3 and together()) or task != 'segment')
        run.eventually(lambda: _shows(task, pictures[-1]), 'the overlay draws it')
        [box] = next(iter(boxes.values())).detections
        assert (box.bbox.size_x, box.bbox.size_y) == (2 * W, 2 * H) and box.id == '1'
        assert (box.bbox.center.position.x, box.bbox.center.position.y) == (2 * X, 2 * (Y - 8))
        assert box.bbox.center.theta == (0.5 if task == 'obb' else 0.0)
        if task == 'segment':
            message = together()[0]
            assert message.header == boxes[stamp_ns(message.header)].header
            assert (message.width, message.height, message.step) == (128, 96, 256)
            assert message.encoding == 'mono16'
            labels = np.frombuffer(message.data, np.uint16).reshape(96, 128)
            expected = np.zeros_like(labels)
            expected[20:68, 24:56] = 1  # up to the middle between the prototypes' pixels 6 and 7
            assert (labels == expected).all()
            assert inference.ledger.count('masks')
        else:
            assert not masks
        assert run.change(recorder, DEACTIVATE) and run.change(recorder, CLEANUP)
        said = recorded(tmp_path / 'drive')[-1]
        loop, *shapes = said.points
        assert loop.type == 2 and said.texts[0].text == 'thing 0.90 #1'
        assert said.timestamp.sec * 10**9 + said.timestamp.nanosec > 0
        # The first side of a turned box goes down to the right.
        one, other = loop.points[:2]
        angle = np.arctan2(other.y - one.y, other.x - one.x)
        assert angle == pytest.approx(0.5 if task == 'obb' else 0.0, abs=1e-5)
        assert np.hypot(other.x - one.x, other.y - one.y) == pytest.approx(2 * W)
        assert bool(shapes) is (task == 'pose')
        if task == 'pose':
            lines, points = shapes
            places = [(2 * x, 2 * (y - 8)) for x, y, _ in POINTS]
            assert [(p.x, p.y) for p in points.points] == places
            assert [c.a for c in points.outline_colors] == pytest.approx([s for *_, s in POINTS])
            assert (lines.type, points.type, len(lines.points)) == (4, 1, 24)
        assert run.change(inference, DEACTIVATE) and run.change(inference, CLEANUP)
        assert not inference.observers
        topic = '/detections/masks' if task == 'segment' else '/detections/annotations'
        run.eventually(lambda: not run.manager.get_publishers_info_by_topic(topic))


def _shows(task: str, message: Image) -> bool:
    """Return whether the class's colour is where only this task draws."""
    picture = np.frombuffer(message.data, np.uint8).reshape(message.height, message.width, 3)
    green = picture[..., 1] > picture[..., ::2].max(axis=2).astype(int) + 40
    if task == 'segment':
        return bool(green[40:66, 28:54].mean() > 0.9 and green[40:66, 60:84].mean() < 0.1)
    # The turned box's left corner lies outside the upright box.
    return bool((green[33:40, 41:48] if task == 'pose' else green[24:44, 14:22]).any())


def test_masks_in_tiles_are_refused_by_name(tmp_path: Path) -> None:
    for task in ('segment', 'pose', 'obb'):
        values = {'model': model(tmp_path, task), 'accelerator': 'onnx', 'classes': []}
        check_classes({**values, 'tiles': '1x1'})
        if task != 'segment':
            check_classes({**values, 'tiles': '2x1'})
            continue
        said = "parameter 'tiles' is 2x1, but model segment finds masks, which can't be joined"
        with pytest.raises(ConfigError, match=said):
            check_classes({**values, 'tiles': '2x1'})
    with pytest.raises(ConfigError, match="has 'cat', which the model doesn't know"):
        check_classes({**values, 'classes': ['cat']})


DISTANCE = 4.0
FRAME = 'camera_optical_frame'


def depth_of(
    header: Any, encoding: str = '16UC1', frame_id: str = FRAME, late_ns: int = 0
) -> Image:
    """Return the depth of a wall, at half the frames' size, in rows with padding."""
    rows = np.full((180, 326), DISTANCE * 1000, '<u2')
    message = Image(height=180, width=320, step=652, encoding=encoding, data=rows.tobytes())
    message.header.stamp, message.header.frame_id = header.stamp, frame_id
    message.header.stamp.nanosec += late_ns
    return message


def test_boxes_are_in_space_where_depth_has_their_stamp_and_it_is_said_where_not(
    free_domain: int,
) -> None:
    """The depth picture of a frame has exactly the same stamp."""
    with Managed(free_domain) as run:
        capture = run.make(CaptureNode, {'heap': 'memfd', 'framerate': 20.0, 'seed': 4})
        parameters = {'threads': 1, 'timeout': 20.0, 'depth_topic': 'depth', 'track_score': 0.1}
        inference = run.make(InferenceNode, {**parameters, 'tracking': 'bytetrack'})
        flat: dict[int, Detection2DArray] = {}
        depth = run.manager.create_publisher(Image, 'depth', 10)
        how: dict[str, Any] = {}

        def answer(message: Detection2DArray) -> None:
            flat[message.header.stamp.nanosec] = message
            depth.publish(depth_of(message.header, **how))

        run.manager.create_subscription(Detection2DArray, 'detections', answer, 10)
        space = run.hear(Detection3DArray, 'detections_3d')
        markers = run.hear(MarkerArray, 'detections_3d/markers')
        for node in (inference, capture):
            node.start()
        run.eventually(lambda: status(inference, 'space').level is Level.WARN and len(flat) > 3)
        assert 'no calibration came on /camera_info' in status(inference, 'space').message
        assert not space

        info = run.manager.create_publisher(CameraInfo, 'camera_info', 10)
        # The frames show a part of the sensor.
        calibration = CameraInfo(width=1280, height=720, distortion_model='plumb_bob')
        calibration.k = [500.0, 0.0, 420.0, 0.0, 500.0, 380.0, 0.0, 0.0, 1.0]
        calibration.roi = RegionOfInterest(x_offset=100, y_offset=200, width=640, height=360)

        def whole() -> bool:
            info.publish(calibration)
            drawn = any(len(each.markers) > 1 for each in markers)
            return drawn and any(message.detections for message in space)

        run.eventually(whole, 'boxes in space')
        message = next(message for message in space if message.detections)
        seen = flat[message.header.stamp.nanosec]
        assert message.header == seen.header and len(message.detections) == len(seen.detections)
        for box, one in zip(seen.detections, message.detections, strict=True):
            assert (one.id, one.header) == (box.id, box.header) and one.id
            assert one.results[0].hypothesis == box.results[0].hypothesis
            place, centre = one.bbox.center.position, box.bbox.center.position
            scale = DISTANCE / 500
            there = (centre.x - 320) * scale, (centre.y - 180) * scale, DISTANCE
            assert (place.x, place.y, place.z) == pytest.approx(there, abs=1e-6)
            assert one.bbox.size.x == pytest.approx(box.bbox.size_x * scale)
            assert one.results[0].pose.pose == one.bbox.center
            assert one.bbox.center.orientation.w == 1.0
        drawn = next(each for each in markers if len(each.markers) > 1)
        assert [m.action for m in drawn.markers[:2]] == [Marker.DELETEALL, Marker.ADD]
        assert all(m.type == Marker.CUBE and m.header.frame_id == FRAME for m in drawn.markers[1:])

        for wrong, said in (
            ({'encoding': 'rgb8'}, 'depth pictures are rgb8, not 16UC1'),
            ({'frame_id': 'elsewhere'}, "depth pictures have the frame_id 'elsewhere'"),
            ({'late_ns': 1}, 'frames lately had no depth picture with exactly the same stamp'),
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
