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

"""A failing check doesn't stop the others; the report names it, and keeps the order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
import threading
import time
from typing import Any

from doctor.vehicle import Vehicle
from hypothesis import given
from hypothesis import strategies as st
import pytest

from zc_perception.doctor.answers import describe_ros
from zc_perception.doctor.command import checks_of, exit_code, Result, run_checks
from zc_perception.doctor.needs import needs_of, node_need, read_needs
from zc_perception.errors import CameraError, ConfigError
from zc_perception.machine.asking import NoAnswerError, Question
from zc_perception.machine.checks import Check, Finding, Need, Needs, ok, Status
from zc_perception.machine.system import System


def good(system: System, needs: Needs) -> Iterator[Finding]:
    yield ok('fine', 'one')
    yield ok('fine', 'two')


def raising(system: System, needs: Needs) -> Iterator[Finding]:
    yield ok('so far')
    raise ZeroDivisionError('division by zero')


def complaining(system: System, needs: Needs) -> Iterable[Finding]:
    raise CameraError('the camera said no')


def silent(system: System, needs: Needs) -> Iterable[Finding]:
    return ()


def run(*checks: Check, limit_s: float = 20.0, system: System | None = None) -> list[Result]:
    return list(run_checks(checks, system or System(), Needs(), limit_s))


@pytest.mark.parametrize(
    ('function', 'words'),
    [
        (raising, 'ZeroDivisionError: division by zero'),
        (complaining, 'the camera said no'),
        (silent, 'no result'),
    ],
)
def test_a_check_that_goes_wrong_is_named_and_the_others_are_heard(
    function: Any, words: str
) -> None:
    results = run(
        Check('a.bad', 'something', function),
        Check('a.good', 'something', good),
        Check('b.good', 'something', good),
    )
    bad = [r for r in results if r.check.id == 'a.bad' and r.finding.status is Status.FAIL]
    assert (
        len(bad) == 1
        and bad[0].finding.found.startswith('could not be checked: ')
        and words in bad[0].finding.found
    )
    assert [r.finding.found for r in results if r.check.id == 'a.bad' and r not in bad] == (
        ['so far'] if function is raising else []
    )
    assert '--only' in bad[0].finding.advice and bad[0].finding.figures == {'checked': False}
    assert [(r.check.id, r.finding.subject) for r in results if r.check.id != 'a.bad'] == [
        ('a.good', 'one'), ('a.good', 'two'), ('b.good', 'one'), ('b.good', 'two'),
    ]  # fmt: skip
    assert (
        exit_code(results) == 1 and exit_code([r for r in results if r.check.id != 'a.bad']) == 0
    )


def test_a_check_that_hangs_is_left_behind_and_the_rest_of_its_group_runs() -> None:
    go_on = threading.Event()

    def hanging(system: System, needs: Needs) -> Iterator[Finding]:
        go_on.wait()
        yield ok('late')

    began = time.monotonic()
    results = run(
        Check('a.hangs', 'something', hanging), Check('a.good', 'something', good), limit_s=4.0
    )
    try:
        assert time.monotonic() - began < 60, 'it was not waited for'
        assert [(r.check.id, r.finding.status.value) for r in results] == [
            ('a.hangs', 'fail'),
            ('a.good', 'ok'),
            ('a.good', 'ok'),
        ]
        assert '4 s' in results[0].finding.found
        assert 'zc_doctor a.hangs' in {thread.name for thread in threading.enumerate()}
    finally:
        go_on.set()
    for thread in threading.enumerate():
        if thread.name == 'zc_doctor a.hangs':
            thread.join(60)
            assert not thread.is_alive()


def test_groups_run_side_by_side_and_checks_of_a_group_one_after_the_other() -> None:
    both = threading.Barrier(2, timeout=60)
    inside: list[str] = []

    def meeting(system: System, needs: Needs) -> Iterator[Finding]:
        both.wait()
        yield ok('met')

    def alone(system: System, needs: Needs) -> Iterator[Finding]:
        inside.append('in')
        assert inside == ['in']
        inside.clear()
        yield ok('alone')

    results = run(
        Check('a.meets', 'something', meeting),
        Check('b.meets', 'something', meeting),
        *(Check(f'c.{n}', 'something', alone) for n in range(5)),
    )
    assert [r.finding.status for r in results] == [Status.OK] * 7


def test_each_question_is_asked_once_and_a_refusal_is_remembered(vehicle: Vehicle) -> None:
    vehicle.examine()
    assert sorted(vehicle.asked) == sorted(set(vehicle.asked))
    asked: list[Question] = []

    def refuse(question: Question) -> dict[str, Any]:
        asked.append(question)
        raise NoAnswerError('no answer to ros')

    results = run(
        *checks_of(('ros',)), system=System(root=vehicle.root, environment={}, ask=refuse)
    )
    assert asked == [describe_ros]
    assert [r.finding.status for r in results] == [Status.WARN, *[Status.FAIL] * 4]
    assert all('no answer to ros' in r.finding.found for r in results[1:])


# What a parameter file requires of the machine.


CONFIG = Path(__file__).parents[2] / 'config' / 'perception.yaml'


DEFAULTS = node_need('capture', {}), node_need('inference', {})


def test_the_shipped_file_asks_for_nothing_special() -> None:
    needs = read_needs(str(CONFIG))
    assert (*needs.cameras, *needs.inferences) == DEFAULTS
    assert (
        needs.accelerator('axl') is Need.POSSIBLE
        and needs.camera('v4l2') is Need.UNUSED
        and needs.heap('dma_heap/system') is Need.POSSIBLE
    )


def sections(text: str, tmp_path: Path) -> Needs:
    path = tmp_path / 'vehicle.yaml'
    path.write_text(text, encoding='utf-8')
    return read_needs(str(path))


def test_sections_that_name_a_node_are_one_camera_each(tmp_path: Path) -> None:
    needs = sections(
        """
/**/capture: {ros__parameters: {camera: v4l2, slots: 5}}
left:
  capture: {ros__parameters: {device: /dev/video2}}
/right/capture: {ros__parameters: {device: /dev/video4, slots: 7}}
/**/inference: {ros__parameters: {accelerator: axl, in_flight: 2}}
/other_package: {ros__parameters: {width: 1}}
""",
        tmp_path,
    )
    assert [(c.node, c['camera'], c['device'], c['slots']) for c in needs.cameras] == [
        ('/left/capture', 'v4l2', '/dev/video2', 5), ('/right/capture', 'v4l2', '/dev/video4', 7),
    ]  # fmt: skip
    assert [(i.node, i.kind, i['in_flight']) for i in needs.inferences] == [
        ('/inference', 'axl', 2)
    ]


def test_namespaces_can_be_given_as_for_perception(tmp_path: Path) -> None:
    (tmp_path / 'v.yaml').write_text(
        '/**/capture: {ros__parameters: {camera: v4l2}}\n/front/capture: {ros__parameters: '
        '{slots: 3}}\n'
    )
    needs = read_needs(str(tmp_path / 'v.yaml'), ['front', 'rear'])
    assert [(c.node, c['camera'], c['slots']) for c in needs.cameras] == [
        ('/front/capture', 'v4l2', 3),
        ('/rear/capture', 'v4l2', 8),
    ]
    with pytest.raises(ConfigError, match='--params-file'):
        read_needs('', ['front'])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from([*(name for need in DEFAULTS for name in need.values), 'other'])


@given(
    st.dictionaries(KEYS, VALUES, max_size=6),
    st.sampled_from(['/**', '/**/capture', '/x/inference', '/capture']),
)
def test_no_value_ends_the_doctor(values: dict[str, object], section: str) -> None:
    needs = needs_of([(section, values)], 'file')
    assert needs.summary()
    for need, default in zip((*needs.cameras, *needs.inferences), DEFAULTS, strict=True):
        assert {name: type(value) for name, value in need.values.items()} == {
            name: type(value) for name, value in default.values.items()
        }
