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

"""The inference node: its accelerator's choice, log, threads and end; its messages."""

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
from nodes.ros_kit import alone, status
from npu.scheduler_kit import ScriptedAccelerator
import numpy as np
import pytest
from rclpy.serialization import deserialize_message
from vision_msgs.msg import Detection2DArray
from waiting import until

from zc_perception.detection.detections import Detections
from zc_perception.errors import ConfigError
from zc_perception.frame import Frame, Header
from zc_perception.link import rclpy_compat
from zc_perception.machine.system import HostTree
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes import inference, messages
from zc_perception.nodes.inference import (
    ACCELERATOR,
    ClassFilter,
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
from zc_perception.npu.axl import accelerator as axl_accelerator
from zc_perception.npu.metis_card import choose_card
from zc_perception.observe.diagnostics import Level


def test_a_wrong_parameter_is_one_sentence(free_domain: int) -> None:
    wrong = alone(free_domain, InferenceNode, {'accelerator': 'cpu'})
    with pytest.raises(ConfigError) as refused, wrong:
        pytest.fail('never reached')
    assert "axruntime, onnx; 'cpu' is called 'onnx' now" in str(refused.value)
    assert '\n' not in str(refused.value)


@pytest.mark.parametrize(
    ('seen', 'level', 'said'),
    [
        ({'lost': 10, 'in_a_row': 10}, Level.ERROR, 'every frame is lost, 10 since the last'),
        ({'lost': 9, 'in_a_row': 9}, Level.WARN, '9 frame(s) lost lately, last error: EIO'),
        ({'lost': 3, 'too_late': True}, Level.WARN, '3 frame(s) lost lately, most of them too'),
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


def test_after_a_pause_no_burst_makes_up_for_it() -> None:
    moments = [*range(0, 1000 * MS, 20 * MS), *range(60_000 * MS, 61_000 * MS, 20 * MS)]
    late = [moment for moment in taken(10.0, moments) if moment >= 60_000 * MS]
    assert len(late) <= 11 and late[1] - late[0] >= 80 * MS


def test_a_change_of_the_rate_counts_at_once() -> None:
    now = [10**9]
    pace = Pace(1.0, lambda: now[0])
    assert pace.accepts() and not pace.accepts()
    pace.set_rate(0.0)
    assert pace.accepts() and pace.accepts()


@given(
    st.lists(st.integers(0, 3), max_size=20),
    st.sets(st.sampled_from([*NAMES, '0', '1', '2', '3'])),
)
def test_only_wanted_classes_come_out_and_all_of_them(
    classes: list[int], wanted: set[str]
) -> None:
    found = Detections(
        np.arange(4 * len(classes), dtype=np.float32).reshape(-1, 4),
        np.arange(len(classes), dtype=np.float32),
        np.array(classes, np.intp),
    )
    # The label '7' is taken as a name; there is no index 7.
    indices = {NAMES.index(name) if name in NAMES else int(name) for name in wanted}
    left = ClassFilter(sorted(wanted), NAMES)(found)
    keep = [number for number, index in enumerate(classes) if not wanted or index in indices]
    assert left.classes.tolist() == [classes[number] for number in keep]
    assert left.scores.tolist() == found.scores[keep].tolist()
    assert left.boxes.tolist() == found.boxes[keep].tolist()


@pytest.mark.parametrize(
    ('wanted', 'message'),
    [
        (
            'cat',
            "has 'cat', which the model doesn't know; did you mean 'car'?; it has car, "
            'pedestrian, sign, 7, or their indices from 0 to 3',
        ),
        ('4', "has '4', which"),
        ('²', "has '²', which"),
        ('9' * 5000, '…, which the model'),
    ],
)
def test_a_class_that_the_model_does_not_have_is_refused(wanted: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ClassFilter([wanted], NAMES)
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
    for stamp_ns, frame_id, rows, tracked in frames:
        header, found = Header(stamp_ns, frame_id), detections(rows, tracked)
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
