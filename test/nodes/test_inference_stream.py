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

"""Which frames inference takes, which classes it publishes, and a new accelerator's values."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.errors import ConfigError
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.inference import (
    ClassFilter,
    InferenceNode,
    InferenceStream,
    Pace,
    select_accelerator,
)
from zc_perception.npu.onnx.accelerator import OnnxAccelerator

MS = 1_000_000
NAMES = ('car', 'pedestrian', 'sign', '7')


def taken(max_rate: float, moments: list[int]) -> list[int]:
    """Which of frames that come at these times are run."""
    now = [0]
    pace = Pace(max_rate, lambda: now[0])
    accepted = []
    for now[0] in moments:
        if pace.accepts():
            accepted.append(now[0])
    return accepted


@pytest.mark.parametrize(
    ('rate', 'camera', 'expected'),
    [
        (0.0, 30.0, 30.0),
        (10.0, 30.0, 10.0),
        (30.0, 30.0, 30.0),
        (25.0, 60.0, 25.0),
        (100.0, 30.0, 30.0),
        (1.0, 60.0, 1.0),
    ],
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
    # The name '7' is a name; there is no index 7.
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
        ('-1', "has '-1', which"),
        ('1.0', "has '1.0', which"),
        ('²', "has '²', which"),
        ('１', "has '１', which"),
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


def test_frames_go_through_the_scheduler_s_thread_and_the_accelerator_s() -> None:
    """Asked each time: an accelerator that was lost comes again with other threads."""
    own, first, second = (threading.Thread(name=name) for name in ('scheduler', 'first', 'second'))
    accelerators = [
        SimpleNamespace(hot_threads=lambda: (first,)),
        SimpleNamespace(hot_threads=lambda: (second,)),
    ]
    scheduler = SimpleNamespace(thread=own, accelerator=accelerators[0])
    values = {spec.name: spec.default for spec in InferenceNode.SPECS} | {'model': 'hog'}
    selected = select_accelerator(
        values, CopyLedger(), lambda: OnnxAccelerator(CopyLedger(), {'threads': 1})
    )
    limits, nothing = DecodeLimits(0.5, 0.5, 100), SimpleNamespace()
    stream = InferenceStream(selected, nothing, scheduler, limits)  # type: ignore[arg-type]
    try:
        assert list(stream.hot_threads()) == [own, first]
        scheduler.accelerator = accelerators[1]
        assert list(stream.hot_threads()) == [own, second]
    finally:
        selected.accelerator.close()
