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

"""The inference node: its accelerator, log, threads and end; its messages, of more than boxes."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from pathlib import Path
import threading
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.reader import make_reader
from nodes.ros_kit import alone, CLEANUP, DEACTIVATE, Managed, status
from npu.onnx_kit import export
from npu.scheduler_kit import ScriptedAccelerator
import numpy as np
import pytest
from rclpy.serialization import deserialize_message
from rosbags.typesys import get_types_from_msg, get_typestore, Stores
from sensor_msgs.msg import CameraInfo, Image, RegionOfInterest
from vision_msgs.msg import Detection2DArray, Detection3DArray
from visualization_msgs.msg import Marker, MarkerArray
from waiting import until

from zc_perception.detection.detections import Detections
from zc_perception.errors import ConfigError
from zc_perception.frame import Frame, Header
from zc_perception.link import rclpy_compat
from zc_perception.link.image_conversion import stamp_ns
from zc_perception.machine.system import HostTree
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes import inference, messages
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import (
    ACCELERATOR,
    check_classes,
    class_mask,
    DETECTIONS,
    InferenceNode,
    Pace,
    select_accelerator,
)
from zc_perception.nodes.messages import (
    cdr_is_understood,
    detections_writer,
    DetectionsCdr,
    DetectionsWriter,
)
from zc_perception.nodes.overlay import OverlayNode
from zc_perception.nodes.recorder import RecorderNode
from zc_perception.nodes.stages import BoxesInSpace, SPACE
from zc_perception.npu.axl import accelerator as axl_accelerator
from zc_perception.npu.metis_card import choose_card
from zc_perception.observe.diagnostics import Level


def test_a_wrong_parameter_is_one_sentence(free_domain: int) -> None:
    wrong = alone(free_domain, InferenceNode, {'accelerator': 'cpu'})
    with pytest.raises(ConfigError) as refused, wrong:
        pytest.fail('never reached')
    assert "axruntime, onnx; 'cpu' is called 'onnx' now" in str(refused.value)
    assert '\n' not in str(refused.value)
    quality = 'qos_overrides./detections/annotations.publisher.reliability'
    values = {'depth_topic': 'depth', 'annotations': True, quality: 'best'}
    with pytest.raises(ConfigError, match="reliability' is 'best'"):
        alone(free_domain, InferenceNode, values).__enter__()


@pytest.mark.parametrize(
    ('seen', 'level', 'said'),
    [
        ({'lost': 10, 'in_a_row': 10}, Level.ERROR, 'every frame is lost, 10 since the last'),
        ({'lost': 9, 'in_a_row': 9}, Level.WARN, '9 frame(s) lost lately, last error: EIO'),
        ({'lost': 3, 'too_late': True}, Level.WARN, '3 frame(s) lost lately, most because'),
        ({'imports': 15}, Level.WARN, 'the import cache is of no use: 15 imports for 30'),
        ({'imports': 14}, Level.OK, 'running'),
        ({'imports': 15, 'cached': False}, Level.OK, 'running'),
        ({'submitted': 9, 'imports': 9}, Level.OK, 'running'),
    ],
)
def test_what_the_accelerator_s_diagnostics_say(
    seen: dict[str, Any], level: Level, said: str
) -> None:
    state, well = SimpleNamespace(recovering=False), {'lost': 0, 'in_a_row': 0, 'too_late': False}
    cache = {'cached': True, 'submitted': 30, 'imports': 3}
    others = {'state': state, 'device': 'x', 'last_error': 'EIO', 'timeout': 1.0}
    found = ACCELERATOR.status({}, **{**well, **cache, **others, **seen})
    assert found.level is level and found.message.startswith(said)
    assert bool(found.advice) is (level is not Level.OK)


def test_what_the_diagnostics_of_detections_say_while_there_is_no_rate() -> None:
    seen = {'active': True, 'enabled': True, 'alone': False, 'unconverted': 0, 'silent_s': 0.0}
    seen |= {'nothing': True, 'judged': False}
    assert DETECTIONS.status({}, **seen).message == 'waits for frames'
    for name, value, said in (
        ('nothing', False, 'frames come, but too few yet to measure their rate'),
        ('alone', True, 'waits for a publisher'),
        ('enabled', False, 'switched off'),
    ):
        assert DETECTIONS.status({}, **{**seen, name: value}).message == said


def lines(logger: Mock, *levels: str) -> list[str]:
    return [call.args[0] for level in levels for call in getattr(logger, level).call_args_list]


def test_a_machine_without_a_card_is_told_where_it_runs_and_nothing_of_cards(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reasons are in diagnostics, and logged at debug level only."""
    nothing = HostTree(tmp_path, tmp_path)
    monkeypatch.setattr(
        axl_accelerator, 'choose_card', lambda wanted, _: choose_card(wanted, nothing)
    )
    for wanted, quiet in (('', True), ('01:00.0', False)):
        values, logger = {'model': 'hog', 'accelerator_device': wanted}, Mock()
        with alone(free_domain, InferenceNode, values) as node:
            monkeypatch.setattr(node, 'get_logger', lambda logger=logger: logger)
            node.start()
            said = lines(logger, 'info', 'warning', 'error')
            assert [line for line in said if line.startswith('running on the CPU')] == [
                'running on the CPU (model hog, OpenCV HOG)'
            ]
            told = lines(logger, 'debug') if quiet else said
            first, second = reasons = [line for line in told if "doesn't fit" in line]
            assert 'no Metis card' in first and 'engine: axruntime' in second
            assert any('card' in line for line in said) is not quiet
            assert status(node, 'accelerator').values['why_no_better'] == '; '.join(reasons)


@pytest.mark.parametrize(
    ('model', 'words'),
    [('road', "camera 'synthetic' draws, and nothing in real pictures"), ('hog', 'head to foot')],
)
def test_log_and_diagnostics_say_what_a_shipped_model_finds(
    free_domain: int, monkeypatch: pytest.MonkeyPatch, model: str, words: str
) -> None:
    with alone(free_domain, InferenceNode, {'model': model, 'accelerator': 'onnx'}) as node:
        logger = Mock()
        monkeypatch.setattr(node, 'get_logger', lambda: logger)
        node.start()
        begin = f'model {model} finds '
        (line,) = [line for line in lines(logger, 'info') if line.startswith(begin)]
        assert words in line
        assert words in status(node, 'accelerator').values['model_finds']


def test_deactivation_waits_until_the_frame_in_flight_is_given_back(
    free_domain: int, make_frame: Callable[..., Frame], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result comes too late to be published."""
    monkeypatch.setattr(inference, '_DRAIN_S', 60.0)
    accelerator, frame = ScriptedAccelerator(), make_frame()
    options = {'accelerator_factory': lambda: accelerator}
    with alone(free_domain, InferenceNode, {'timeout': 60.0}, **options) as node:
        node.start()
        node.subscription.queue.put(frame)
        until(lambda: accelerator.jobs)

        def finish() -> None:
            until(lambda: not node.flowing)
            time.sleep(0.1)  # meanwhile the deactivation waits
            accelerator.finish(0)

        late = threading.Thread(target=finish)
        late.start()
        node.trigger_deactivate()
        assert frame.released and accelerator.jobs[0].ends == ['closed']
        assert (node.state, node.processed, node.failed) == ('inactive', 0, 0)
        late.join(60.0)


MS = 1_000_000
NAMES = ('car', 'pedestrian', 'sign', '7')


def taken(max_rate: float, moments: list[int]) -> list[int]:
    now = [0]
    pace = Pace(max_rate, lambda: now[0])
    return [now[0] for now[0] in moments if pace.accepts()]


@pytest.mark.parametrize(
    ('rate', 'camera', 'expected'), [(0.0, 30.0, 30.0), (25.0, 60.0, 25.0), (100.0, 30.0, 30.0)]
)
def test_the_rate_is_kept_whatever_the_camera_s(
    rate: float, camera: float, expected: float
) -> None:
    chance = np.random.default_rng(7)
    moments = [
        round((number / camera + chance.uniform(-0.002, 0.002)) * 1e9)
        for number in range(100, 100 + round(20 * camera))
    ]
    assert len(taken(rate, moments)) == pytest.approx(20 * expected, rel=0.06)


def test_after_a_pause_no_burst_makes_up_for_it_and_a_change_counts_at_once() -> None:
    moments = [*range(0, 1000 * MS, 20 * MS), *range(60_000 * MS, 61_000 * MS, 20 * MS)]
    late = [moment for moment in taken(10.0, moments) if moment >= 60_000 * MS]
    assert len(late) <= 11 and late[1] - late[0] >= 80 * MS
    pace = Pace(1.0, lambda: 10**9)
    assert pace.accepts() and not pace.accepts()
    pace.set_rate(0.0)
    assert pace.accepts() and pace.accepts()


@given(st.sets(st.sampled_from([*NAMES, '0', '1', '2', '3'])))
def test_classes_are_wanted_by_name_or_by_index(wanted: set[str]) -> None:
    # The label '7' is taken as a name; there is no index 7.
    indices = {NAMES.index(name) if name in NAMES else int(name) for name in wanted}
    mask = class_mask(sorted(wanted), NAMES)
    if indices and len(indices) < len(NAMES):
        assert mask is not None and set(np.flatnonzero(mask).tolist()) == indices
    else:
        assert mask is None


@pytest.mark.parametrize(
    ('wanted', 'message'),
    [
        (
            'cat',
            "has 'cat', which the model doesn't know; did you mean 'car'?; write car, "
            'pedestrian, sign, 7, or an index from 0 to 3',
        ),
        ('4', "has '4', which"),
        ('²', "has '²', which"),
        ('9' * 5000, '…, which the model'),
    ],
)
def test_a_class_that_the_model_does_not_have_is_refused(wanted: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        class_mask([wanted], NAMES)
    assert message in str(refused.value)


def test_an_accelerator_that_is_opened_anew_takes_over_what_was_changed() -> None:
    values: dict[str, Any] = {'accelerator': 'onnx', 'model': 'road', 'classes': [], 'threads': 1}
    selected = select_accelerator(values, CopyLedger(), None)
    with contextlib.closing(selected.accelerator):
        values['threads'] = 2
        with contextlib.closing(selected.reopen()) as again:
            assert [one.facts()['threads'] for one in (selected.accelerator, again)] == [1, 2]


# Detections as messages and as bytes. The middleware must read the same from the bytes as from the
# message; otherwise messages are sent.
HEADER = Header(3_000_000_005, 'front')
COORDINATES = st.floats(-1e5, 1e5, width=32)
FRAME_IDS = st.text(
    st.characters(exclude_characters='\0', exclude_categories=('Cs',)), max_size=40
)
BOXES = st.tuples(*[COORDINATES] * 4)
IDS = st.just(0) | st.integers(1, 2**63 - 1)
ROWS = st.lists(
    st.tuples(BOXES, st.floats(0, 1, width=32), st.integers(0, 1200), IDS), max_size=12
)


def detections(rows: list[tuple], tracked: bool = False) -> Detections:
    boxes, scores, classes, ids = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(scores, np.float32),
        np.array(classes, np.intp),
        ids=np.array(ids, np.int64) if tracked else None,
    )


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
    for at_ns, frame_id, rows, tracked in frames:
        header, found = Header(at_ns, frame_id), detections(rows, tracked)
        written = cdr.write(header, found)
        with patch.object(messages, '_COMPILED', None):
            assert cdr.write(header, found) == written
        said = deserialize_message(written, Detection2DArray)
        assert said == message.write(header, found)
        assert [each.id for each in said.detections] == [
            str(row[3]) if tracked and row[3] else '' for row in rows
        ]


def test_a_message_has_the_frame_s_header_the_box_s_centre_and_its_class() -> None:
    written = DetectionsCdr(20).write(HEADER, detections([((1, 2, 5, 10), 0.5, 12345, 0)]))
    message = deserialize_message(written, Detection2DArray)
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


@pytest.mark.parametrize('field', ['id', 'frame_id'])
def test_bytes_that_say_something_else_are_not_used(field: str) -> None:
    def write(header: Header, found: Detections) -> Detection2DArray:
        message = DetectionsWriter(3).write(header, found)
        if field == 'id':
            for detection in message.detections:
                detection.id = 'x'
        elif len(message.header.frame_id) == 3:  # wrong only for frame ids of one length
            message.header.frame_id += '!'
        return message

    assert not cdr_is_understood(write)


def test_where_the_middleware_does_not_understand_messages_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse = Mock(side_effect=RuntimeError('not this format'))
    monkeypatch.setattr(rclpy_compat, 'deserialize_message', refuse)
    message = detections_writer(3)(HEADER, detections([((1, 2, 5, 10), 0.5, 2, 0)]))
    assert isinstance(message, Detection2DArray)
    assert message.detections[0].results[0].hypothesis.class_id == '2'


# Masks, keypoints, turned boxes and boxes in space, from a model's file to topics. They also reach
# the overlay's picture, a recording, and an independent reader.
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
        calibration.d = [0.0] * 6

        def refused() -> bool:
            info.publish(calibration)
            return 'has 6 distortion coefficients' in status(inference, 'space').message

        run.eventually(refused, 'no lens')
        calibration.d = []

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


def test_a_slow_model_s_depth_picture_is_kept_as_long_as_its_frame_is_in_flight(
    free_domain: int,
) -> None:
    calibration = CameraInfo(width=640, height=360, k=[500.0, 0, 320, 0, 500, 180, 0, 0, 1.0])
    data = SimpleNamespace(header=Header(0, FRAME), width=640, height=360)
    found = Detections(np.float32([[9, 9, 90, 90]]), np.ones(1), np.zeros(1, np.intp))
    with alone(free_domain, InferenceNode) as node:
        space = BoxesInSpace(node, 'depth', lambda: [0])
        space._on_info(calibration)
        for number in range(20):
            space._on_depth(depth_of(Image().header, late_ns=number))
        space.see(SimpleNamespace(frame=SimpleNamespace(data=data)), found)
        space._on_depth(depth_of(Image().header, late_ns=20))
        assert space.status().values['placed'] == 1
        space.close()


def test_depth_pictures_that_come_more_seldom_than_frames_are_no_fault() -> None:
    for depths, level in ((10, Level.OK), (30, Level.WARN)):
        lately = {'seen': 30, 'placed': 10, 'alone': 20, 'refused': 0, 'left_out': 0}
        names = {'unfit': '', 'lens': True, 'info': '/camera_info', 'topic': '/depth'}
        assert SPACE.status({}, **names, **lately, depths=depths).level is level
