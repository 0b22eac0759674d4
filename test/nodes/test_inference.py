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

"""The inference node and its accelerator: choice, log, threads, notices, end."""

from __future__ import annotations

import contextlib
from functools import partial
import os
from pathlib import Path
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from hypothesis import given
from hypothesis import strategies as st
from nodes.fault_kit import AcceleratorFaults, FaultyAccelerator, fleet
from nodes.managed import status
from nodes.ros_kit import alone
import numpy as np
import pytest
from rclpy.parameter import Parameter

from zc_perception.detection.detections import Detections
from zc_perception.errors import ConfigError
from zc_perception.machine.system import HostTree
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.inference import (
    ACCELERATOR,
    ClassFilter,
    DETECTIONS,
    InferenceNode,
    Pace,
    select_accelerator,
)
from zc_perception.npu.axl import accelerator as axl_accelerator
from zc_perception.npu.metis_card import choose_card
from zc_perception.observe.diagnostics import Level


def test_the_real_time_knobs_turn_the_accelerator_s_threads_too(
    free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    own = threading.Thread(target=stop.wait, name='of the accelerator')
    own.start()
    monkeypatch.setattr(FaultyAccelerator, 'hot_threads', lambda _: (own,))
    cpu = max(os.sched_getaffinity(0))
    try:
        with fleet(free_domain) as run:
            run.inference.set_parameters([Parameter('cpu_affinity', value=[str(cpu)])])
            assert own.native_id is not None and os.sched_getaffinity(own.native_id) == {cpu}
    finally:
        stop.set()
        own.join()


@pytest.mark.parametrize(
    ('parameters', 'message'),
    [
        ({'axl_ioctls': ['sumbit=70']}, "parameter 'axl_ioctls' has 'sumbit=70'"),
        ({'accelerator': 'cpu'}, "axruntime, onnx; 'cpu' is called 'onnx' now"),
        ({'accelerator': 'axruntime'}, "model 'road' (engine onnx) can't run on axruntime"),
    ],
)
def test_wrong_parameters_are_one_sentence(
    free_domain: int, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as refused, alone(free_domain, InferenceNode, parameters):
        pass
    assert message in str(refused.value) and '\n' not in str(refused.value)


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


class _Lines:
    def __init__(self, lines: list[str], debug: list[str] | None = None) -> None:
        self.info = self.warning = self.error = lambda text, **options: lines.append(text)
        self.debug = lambda text, **options: debug is not None and debug.append(text)


def test_a_machine_without_a_card_is_told_where_it_runs_and_nothing_of_cards(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reasons are in diagnostics, and logged at debug level only."""
    monkeypatch.setattr(
        axl_accelerator,
        'choose_card',
        lambda wanted, tree: choose_card(wanted, HostTree(tmp_path, tmp_path)),
    )
    for wanted, quiet in (('', True), ('01:00.0', False)):
        with alone(
            free_domain, InferenceNode, {'model': 'hog', 'accelerator_device': wanted}
        ) as node:
            said: list[str] = []
            debug: list[str] = []
            monkeypatch.setattr(node, 'get_logger', partial(_Lines, said, debug))
            node.start()
            assert [line for line in said if line.startswith('running on the CPU')] == [
                'running on the CPU (model hog, OpenCV HOG)'
            ]
            reasons = [line for line in (debug if quiet else said) if "doesn't fit" in line]
            assert (
                len(reasons) == 2
                and 'no Metis card' in reasons[0]
                and 'engine: axruntime' in reasons[1]
            )
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
        said: list[str] = []
        monkeypatch.setattr(node, 'get_logger', partial(_Lines, said))
        node.start()
        (line,) = [line for line in said if line.startswith(f'model {model} finds ')]
        assert words in line
        assert words in status(node, 'accelerator').values['model_finds']


@pytest.mark.parametrize(
    ('owner', 'method'), [(FaultyAccelerator, 'load'), (InferenceNode, '_subscribe')]
)
def test_a_start_that_fails_behind_the_accelerator_leaves_it_closed(
    owner: Any, method: str, free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, method, Mock(side_effect=ConfigError('not so')))
    made = FaultyAccelerator(AcceleratorFaults())
    with (
        pytest.raises(ConfigError, match='not so'),
        alone(free_domain, InferenceNode, accelerator_factory=lambda: made),
    ):
        pass
    assert made.closed


MS = 1_000_000
NAMES = ('car', 'pedestrian', 'sign', '7')


def taken(max_rate: float, moments: list[int]) -> list[int]:
    now = [0]
    pace = Pace(max_rate, lambda: now[0])
    accepted = []
    for now[0] in moments:
        if pace.accepts():
            accepted.append(now[0])
    return accepted


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
    indices = {NAMES.index(name) if name in NAMES else int(name) for name in wanted} or {
        0,
        1,
        2,
        3,
    }
    left = ClassFilter(sorted(wanted), NAMES)(found)
    keep = [number for number, index in enumerate(classes) if index in indices]
    assert left.classes.tolist() == [classes[number] for number in keep]
    assert (
        left.scores.tolist() == [float(number) for number in keep]
        and left.boxes.tolist() == found.boxes[keep].tolist()
    )


@pytest.mark.parametrize(
    ('wanted', 'message'),
    [
        (
            'cat',
            (
                "has 'cat', which the model doesn't know; did you mean 'car'?; it has car, "
                'pedestrian, sign, 7, or their indices from 0 to 3'
            ),
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
            threads = [one.facts()['threads'] for one in (selected.accelerator, again)]
            assert threads == [1, 2]
