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
``zc_verify`` on a real kernel: each invariant can fail; programs are attached and started.

V4L2 cameras, the doctor and faults of the graph are in the same boot.
"""

from __future__ import annotations

from collections.abc import Iterable
import json
from typing import Any

import pytest

from .conftest import Boot, CAMERA_SUITES, checks_of, marked
from .guest.verifier import AFTERWARDS, FRAMES, NOTHING_AGAIN
from .verdicts import (
    CASES,
    EVIDENCE,
    EXPORTERS,
    NOBODY,
    PROCESSES,
    SABOTAGES,
    SHORT,
    told,
    UNKNOWN,
    wrong_verdict,
)

pytestmark = pytest.mark.rig


def _params(names: Iterable[str]) -> list[Any]:
    return marked(names, lambda name: name not in SHORT)


@pytest.mark.parametrize('name', _params(CASES))
def test_exactly_these_checks_are_false_by_what_the_kernel_shows(
    name: str, camera_boot: Boot
) -> None:
    outcome = camera_boot.case(name)
    wrong = wrong_verdict(name, outcome)
    assert not wrong, wrong
    false = [outcome['checks'][check] for check in sorted(CASES[name])]
    for step in (check['next_step'] for check in false):
        assert step and any(step in line for line in outcome['said']), told(outcome)
    figures = {key: value for check in false for key, value in check.items()}
    evidence = EVIDENCE.get(name, {})
    assert {key: bool(figures[key]) for key in evidence} == evidence, told(outcome)
    if name in EXPORTERS:
        assert list(outcome['checks']['I2']['exporters']) == [EXPORTERS[name]]
    if name in SABOTAGES:
        # The faults are real: frames passed the saboteur, and each had its result.
        assert outcome['seen'] >= 3 and outcome['processed'] >= FRAMES, outcome


@pytest.mark.long
def test_the_honest_graph_is_true_each_time(camera_boot: Boot) -> None:
    outcomes = {name: camera_boot.case(name) for name in ('nothing', *NOTHING_AGAIN)}
    wrong = {name: told(outcome) for name, outcome in outcomes.items() if not outcome['pass']}
    assert not wrong, f'{len(wrong)} of {len(outcomes)}: {wrong}'


@pytest.mark.parametrize('name', _params(UNKNOWN))
def test_what_nobody_can_know_is_never_passed_over(name: str, camera_boot: Boot) -> None:
    outcome = camera_boot.case(name)
    holds = {check: found['holds'] for check, found in outcome['checks'].items()}
    assert holds.pop('I4') is not True and set(holds.values()) == {True}, told(outcome)
    assert UNKNOWN[name] in outcome['checks']['I4']['reason'] and outcome['frames'] >= FRAMES, (
        told(outcome)
    )


@pytest.mark.long
def test_what_verdicts_say_besides(camera_boot: Boot) -> None:
    outcome = camera_boot.case('imports_at_a_wrong_offset')
    assert 'strides of the planes' in outcome['checks']['I3']['not_seen'][0], told(outcome)
    # Fences tell which buffers the jobs read.
    outcome = camera_boot.case('nothing')
    found = outcome['checks']['I3']
    by_fences = found['frames_by_earlier_import'] and found['frames_confirmed_by_fence']
    assert by_fences and not found['frames_read_elsewhere'], told(outcome)
    # Numbers of one kind count the same window.
    outcome = camera_boot.case('without_a_cache')
    detail, figures = outcome['detail'], outcome['checks']['I3']
    assert detail['submitted_frames'] == figures['frames'] == outcome['frames'], told(outcome)
    for name in ('imports', 'releases'):
        assert detail[name] == figures[name], told(outcome)
    # Two nodes of one process are told apart.
    outcome = camera_boot.case('second_node')
    roles = [(process['role'], process['node']) for process in outcome['processes']]
    inference = sorted(node for role, node in roles if role == 'inference')
    assert inference == ['/inference', '/second'], told(outcome)


def test_the_verdict_has_a_timeline_and_counts_waits_for_the_device(
    camera_boot: Boot,
) -> None:
    outcome = camera_boot.case('nothing')
    detail = outcome['detail']
    assert detail['fence_wait_lines'] + detail['fence_waits_by_poll'] >= FRAMES, detail
    events = json.loads(
        (camera_boot.result.artifacts / 'nothing' / 'timeline.json').read_text(encoding='utf-8')
    )['traceEvents']
    assert 'timeline' in outcome['files'] and len(events) > 10 * FRAMES


def test_a_user_who_may_see_nothing_is_told_so(camera_boot: Boot) -> None:
    outcome = camera_boot.case(NOBODY)
    assert outcome['exit'] == 3, told(outcome)
    for words in ('not measured', 'root'):
        assert any(words in line for line in outcome['said']), told(outcome)
    holds = [check['holds'] for check in outcome.get('checks', {}).values()]
    assert not any(holds) and not outcome.get('pass'), told(outcome)


@pytest.mark.parametrize('name', _params(PROCESSES))
def test_two_processes_share_the_frames_by_shared_memory(
    name: str, camera_boot: Boot
) -> None:
    outcome = camera_boot.case(name)
    processes = outcome['processes']
    assert {process['role'] for process in processes} == {'capture', 'inference'}
    assert len({process['pid'] for process in processes}) == 2
    assert any(process.get('rung') == 'shared_memory' for process in processes), processes
    assert not any(outcome['left_on_device'].values())


@pytest.mark.long
def test_nodes_that_ran_already_go_on_with_what_the_card_needs(camera_boot: Boot) -> None:
    """A card reads rows of 1366 pixels at multiples of 64 bytes only, copy-free or not at all."""
    outcome = camera_boot.case('two_processes')
    # By our own look: the card is attached to the camera's buffers while both run.
    attached, log = list(outcome['attached'].values()), outcome['log']
    assert attached.count('videobuf2_dma_contig') > 1 and outcome['nodes_exit'] == 0, attached
    said = [line for line in log if '[capture]: buffers: ' in line]
    assert said and 'stride 1408' in said[-1] and 'inference' in said[-1], log
    links = [line for line in log if "[inference]: '/image_raw': link is " in line]
    assert 'link is shared_memory' in links[-1] and not any('ros_message' in one for one in links)


@pytest.mark.long
def test_the_plain_link_was_one(camera_boot: Boot) -> None:
    outcome = camera_boot.case('plain_link')
    assert outcome['rung'] == 'ros_message' and outcome['copies']['from_ros'] >= FRAMES, outcome


@pytest.mark.long
def test_a_stock_pipeline_reads_the_drivers_own_buffers(camera_boot: Boot) -> None:
    reader = camera_boot.case('unixfd')['reader']
    assert len(reader['theirs']) > 2 and {*reader['theirs']} <= {*reader['own']}, reader
    assert reader['exporters'] == ['videobuf2_vmalloc'], reader
    assert 'copied 0' in reader['status'][f'reader {reader["pid"]}'], reader


def test_no_buffer_and_nothing_of_its_tracing_is_left_in_the_kernel(
    camera_boot: Boot,
) -> None:
    left = camera_boot.case(AFTERWARDS)
    assert not any(left['left_on_device'].values())
    assert (left['buffers'], left['instances'], left['dynamic_events']) == ({}, [], '')


@pytest.mark.parametrize('name', checks_of(CAMERA_SUITES))
def test_in_the_guest(name: str, camera_boot: Boot) -> None:
    camera_boot.must_hold(name)


def test_the_kernel_is_content(camera_boot: Boot) -> None:
    camera_boot.kernel_must_be_content()
