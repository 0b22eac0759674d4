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

"""A healthy vehicle has no complaint; each broken one exactly those that it should have."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
import re

from doctor.breakages import BROKEN, capture, Expected, inference
from doctor.vehicle import StandInCard, Vehicle
from hypothesis import example, given, HealthCheck, settings
from hypothesis import strategies as st
import pytest

from zc_perception.doctor.needs import node_need
from zc_perception.machine.checks import Status
from zc_perception.npu.axl.device import axl_error

PAGE = os.sysconf('SC_PAGE_SIZE')


def complaints(vehicle: Vehicle) -> Expected:
    return {
        where: status for where, status in vehicle.verdicts().items() if status in ('warn', 'fail')
    }


def test_a_healthy_vehicle_has_no_complaint(vehicle: Vehicle) -> None:
    assert complaints(vehicle) == {}


def test_what_a_healthy_vehicle_needs_is_ok_not_left_out(vehicle: Vehicle) -> None:
    verdicts = vehicle.verdicts()
    left_out = {name for (name, _), status in verdicts.items() if status == 'skip'}
    assert left_out == {
        'cameras.calibration',
        'gstreamer.library',
        'gstreamer.elements',
        'gstreamer.pipeline',
        'libcamera.bindings',
        'metis.attach',
        'voyager.runtime',
        'voyager.toolchain',
        'jetson.release',
        'jetson.nvbufsurface',
        'jetson.vic',
        'agreement.running',
    }
    assert {'dma_heap/system', 'dma_heap/linux,cma', 'udmabuf'} == {
        s for i, s in verdicts if i == 'memory.heaps'
    }


@pytest.mark.parametrize('name', BROKEN)
def test_a_broken_vehicle_has_exactly_the_complaints_it_should_have(
    name: str, vehicle: Vehicle
) -> None:
    breakage, expected = BROKEN[name]
    breakage(vehicle)
    findings = {
        (result.check.id, result.finding.subject): result.finding for result in vehicle.examine()
    }
    bad = {
        where: finding
        for where, finding in findings.items()
        if finding.status in (Status.WARN, Status.FAIL)
    }
    assert {where: finding.status.value for where, finding in bad.items()} == expected
    assert [where for where, finding in bad.items() if not finding.advice] == [], (
        'whoever complains says what to do'
    )
    assert json.dumps([dict(finding.figures) for finding in findings.values()], allow_nan=False)


def test_each_refused_node_comes_with_the_line_that_opens_it_and_it_is_in_the_shipped_rules(
    vehicle: Vehicle,
) -> None:
    rules = (Path(__file__).parents[2] / 'config/vehicle/70-zc-perception.rules').read_text(
        encoding='utf-8'
    )
    nodes = (
        '/dev/dma_heap/system',
        '/dev/dma_heap/linux,cma',
        '/dev/udmabuf',
        '/dev/video0',
        '/dev/metis-0:1:0',
    )
    vehicle.refusals = dict.fromkeys(nodes, errno.EACCES)
    advice = [
        r.finding.advice
        for r in vehicle.examine('memory', 'cameras', 'metis')
        if 'udevadm' in r.finding.advice
    ]
    assert {node for node in nodes for text in advice if f'--device {node})' in text} == set(nodes)
    for text in advice:
        words = dict(
            re.findall(r'(\w+)=+"([^"]+)"', text.partition('add there: ')[2].partition('),')[0])
        )
        assert any(
            _covers(dict(re.findall(r'(\w+)=+"([^"]+)"', line)), words)
            for line in rules.splitlines()
        ), text


def _covers(rule: dict[str, str], wanted: dict[str, str]) -> bool:
    kernels = rule.pop('KERNEL', '').split('|')
    return (
        wanted.get('KERNEL', '') in kernels
        and {k: v for k, v in wanted.items() if k != 'KERNEL'}.items() <= rule.items()
    )


def test_a_card_without_imports_sends_to_the_check_that_tells_why(
    vehicle: Vehicle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(card: StandInCard) -> None:
        raise axl_error('query', errno.EIO)

    def advice() -> list[str]:
        return [
            r.finding.advice for r in vehicle.examine('buffers') if r.check.id == 'buffers.import'
        ]

    monkeypatch.setattr(StandInCard, 'query', silent)
    assert advice() == ['see metis.ioctls']
    BROKEN['card refused'][0](vehicle)
    assert advice() == ['see metis.access']


#  Without a parameter file nothing is required, so that nothing of the hardware can fail; and
#  everything that is there is looked at.
NOT_ASKED = (
    'no card',
    'card without driver',
    'card refused',
    'shipped driver',
    'link with one lane',
    'camera refused',
    'camera in use',
    'no camera',
    'another heap refused',
    'heap without memory',
    'no heap at all',
    'heap that the card cannot map',
    'size of the pool that can not be read',
)


@pytest.mark.parametrize('name', NOT_ASKED)
def test_without_a_parameter_file_hardware_is_only_warned_of(name: str, vehicle: Vehicle) -> None:
    BROKEN[name][0](vehicle)
    vehicle.yaml = None
    found = complaints(vehicle)
    assert set(found.values()) == {'warn'}
    # Its software is not complete: who doesn't ask for that lacks nothing.
    assert not {'gstreamer.elements', 'libcamera.bindings'} & {check for check, _ in found}


def test_a_folder_of_another_user_is_refused(
    vehicle: Vehicle, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = vehicle.sockets
    folder.mkdir(mode=0o700)
    assert complaints(vehicle) == {}
    folder.chmod(0o755)
    assert complaints(vehicle) == {('link.runtime_folder', ''): 'fail'}
    folder.chmod(0o700)
    own = folder.stat().st_uid
    monkeypatch.setattr('os.geteuid', lambda: own + 1)
    assert complaints(vehicle) == {('link.runtime_folder', ''): 'fail'}


def test_what_the_parameter_file_does_not_use_is_left_out(vehicle: Vehicle) -> None:
    inference(accelerator='onnx')(vehicle)
    capture(camera='synthetic', heap='memfd', memory='auto')(vehicle)
    for step in ('no card', 'camera in use', 'heap of the parameter file refused', 'CMA used up'):
        BROKEN[step][0](vehicle)
    assert complaints(vehicle) == {}


@pytest.mark.parametrize(
    ('refused', 'tegra', 'expected'),
    [
        ((), False, 'dma_heap/system'),
        (('dma_heap/system',), False, 'dma_heap/linux,cma'),
        (('dma_heap/system', 'dma_heap/linux,cma'), False, 'udmabuf'),
        (('dma_heap/system', 'dma_heap/linux,cma', 'udmabuf'), False, 'memfd'),
        ((), True, 'dma_heap/linux,cma'),
        (('dma_heap/linux,cma',), True, 'dma_heap/system'),
    ],
)
def test_auto_is_the_first_heap_that_opens(
    refused: tuple[str, ...], tegra: bool, expected: str, vehicle: Vehicle
) -> None:
    vehicle.refusals = {f'/dev/{name}': errno.EACCES for name in refused}
    capture(camera='synthetic', heap='auto')(vehicle)
    if tegra:
        vehicle.tegra()
    (found,) = [r.finding for r in vehicle.examine('memory') if r.check.id == 'memory.cma_pool']
    assert [pool['memory'] for pool in found.figures['pools']] == [expected]


def test_of_several_cards_the_one_that_is_named_is_looked_at(vehicle: Vehicle) -> None:
    vehicle.host.add_card(
        '0000:02:00.0',
        'metis-0:2:0',
        port='0000:00:1d.0',
        current_link_speed='8.0 GT/s PCIe',
        current_link_width='1',
    )
    assert vehicle.verdicts('metis')['metis.link', 'metis-0:1:0'] == 'ok'
    assert {
        s
        for i, s in vehicle.verdicts('metis', 'buffers')
        if i in ('metis.link', 'metis.access', 'metis.ioctls')
    } == {'metis-0:1:0'}
    inference(accelerator_device='0000:02:00.0')(vehicle)
    verdicts = vehicle.verdicts('metis', 'buffers')
    assert (
        verdicts['metis.link', 'metis-0:2:0'] == 'fail'
        and ('metis.link', 'metis-0:1:0') not in verdicts
    )
    assert {s.rpartition(' ')[2] for i, s in verdicts if i == 'buffers.import'} == {'metis-0:2:0'}
    vehicle.yaml = None
    assert {s for i, s in vehicle.verdicts('metis') if i == 'metis.link'} == {
        'metis-0:1:0',
        'metis-0:2:0',
    }


def test_two_cameras_need_twice_the_pool(vehicle: Vehicle) -> None:
    """8 slots of 1920x1080 are 23.8 MiB, so that 11 pools don't fit into 250 MiB, and one does."""
    assert vehicle.yaml is not None
    pages = -(-1920 * 1080 * 3 // 2 // PAGE)
    values = vehicle.yaml.pop('/**/capture') | {
        'camera': 'synthetic',
        'width': 1920,
        'height': 1080,
    }
    vehicle.yaml |= {f'/camera{number}/capture': values for number in range(11)}
    found = next(r.finding for r in vehicle.examine('memory') if r.check.id == 'memory.cma_pool')
    assert found.status.value == 'fail' and found.figures['needed'] == 11 * 8 * pages * PAGE
    for number in range(1, 11):
        vehicle.yaml.pop(f'/camera{number}/capture')
    assert vehicle.verdicts('memory')['memory.cma_pool', ''] == 'ok'


WORDS = st.sampled_from(
    [
        '',
        'auto',
        'true',
        'v4l2',
        'argus',
        'replay',
        'libcamera',
        'axl',
        'axruntime',
        'NV12',
        'XX',
        '/dev/video0',
        'dma_heap/system',
        'udmabuf',
        'memfd',
        'import',
        'metis-0:1:0',
        '0000:01:00.0',
        '1',
        'a=b',
        'submit=70',
        'videotestsrc !',
        'ä',
    ]
)
VALUES = (
    WORDS
    | st.integers(-3, 9000)
    | st.booleans()
    | st.none()
    | st.floats()
    | st.lists(WORDS, max_size=2)
)
NAMES = [name for kind in ('capture', 'inference') for name in node_need(kind, {}).values]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8))
@example(values={'accelerator_device': '/dev/video0'})
@example(values={'width': -1})
@example(values={'camera': 'v4l2', 'device': '/dev/video9', 'height': 100000, 'width': 640})
@example(values={'slots': -3, 'framerate': -1.0})
def test_no_parameter_file_makes_a_check_stumble(
    values: dict[str, object], vehicle: Vehicle
) -> None:
    vehicle.yaml = {'/**': values}
    assert [
        r for r in vehicle.examine() if r.finding.found.startswith('could not be checked')
    ] == []
