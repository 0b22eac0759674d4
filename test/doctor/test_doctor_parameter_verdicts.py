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
The doctor's verdict on a parameter file is the nodes' own.

Each file is given to both, and the verdict must foretell a node that ends.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import json
from pathlib import Path
import signal
import sys
import tempfile
from typing import Any

import pytest

from zc_perception.doctor import zc_doctor
from zc_perception.machine.asking import Question
from zc_perception.machine.system import System
from zc_perception.nodes import main, process

# Parameters of a node; ``camera: synthetic`` and ``accelerator: onnx`` run everywhere.
CAPTURE, INFERENCE = (
    '/capture: {{ros__parameters: {{camera: synthetic, {}}}}}\n'.format,
    '/inference: {{ros__parameters: {{accelerator: onnx, {}}}}}\n'.format,
)
GOOD = CAPTURE('width: 64, height: 64')
QOS = '/**: {{ros__parameters: {{qos_overrides: {}}}}}\n'.format
#: Whether the capture node starts, or the inference node where the file has a section of its own.
FILES: dict[str, tuple[bool, str | bytes]] = {
    'good': (True, GOOD),
    'empty': (True, ''),
    'no ros__parameters': (False, '/capture: {camera: synthetic}\n'),
    'mixed list': (False, INFERENCE('classes: [car, 1]')),
    'text for a list': (False, INFERENCE('classes: car')),
    'section twice, first wrong': (
        False,
        CAPTURE('width: wide') + '/capture: {ros__parameters: {height: 64}}\n',
    ),
    'key twice': (False, CAPTURE('width: 64, width: 64, height: 64')),
    'yes for a text': (False, CAPTURE('frame_id: yes')),
    'unknown key': (False, CAPTURE('widht: 64')),
    'unknown key of any node': (True, GOOD + '/**: {ros__parameters: {widht: 64}}\n'),
    'key of another node': (False, CAPTURE('score_threshold: 0.5')),
    'out of range': (False, CAPTURE('slots: 0')),
    'out of range, overridden': (
        True,
        '/**/capture: {ros__parameters: {slots: 0, camera: synthetic}}\n' + CAPTURE('slots: 8'),
    ),
    'not one of those': (False, CAPTURE('memory: device')),
    'wildcard within a name': (False, '/cap*: {ros__parameters: {slots: 4}}\n'),
    'node misspelt': (False, '/captrue: {ros__parameters: {slots: 4}}\n'),
    'no stand-in': (False, CAPTURE('participants: [garbage]')),
    'replay of nothing': (False, '/capture: {ros__parameters: {camera: replay}}\n'),
    'replay of what is not there': (
        False,
        '/capture: {ros__parameters: {camera: replay, video: /nope.avi}}\n',
    ),
    'no calibration by http': (False, CAPTURE("camera_info_url: 'http://x/y'")),
    'calibration of a package that is not there': (
        True,
        CAPTURE("camera_info_url: 'package://rowboat/x.yaml', width: 64, height: 64"),
    ),
    "nobody's home": (False, CAPTURE("snapshot_folder: '~nobody9/x'")),
    'class that the model has not': (False, INFERENCE('classes: [nope]')),
    'model that is not there': (False, INFERENCE('model: nope')),
    'user that is not there': (False, INFERENCE('shared_memory_users: [nobody9]')),
    'group that is not there': (False, CAPTURE('shared_memory_group: nobody9')),
    'no CPU': (False, CAPTURE("cpu_affinity: ['0-99999']")),
    'no stand-in, overridden': (
        True,
        '/**/capture: {ros__parameters: {participants: [garbage]}}\n'
        + CAPTURE('participants: []'),
    ),
    'no such reliability': (False, GOOD + QOS('{/image_raw: {publisher: {reliability: foo}}}')),
    'depth below 0': (False, GOOD + QOS('{/image_raw: {publisher: {depth: -1}}}')),
    'more frames latched than there are': (
        False,
        GOOD + QOS('{/image_raw: {publisher: {depth: 7, durability: transient_local}}}'),
    ),
    "another's QoS, wrong": (True, GOOD + QOS('{/lidar: {publisher: {reliability: foo}}}')),
    'use_sim_time as a number': (False, GOOD + '/**: {ros__parameters: {use_sim_time: 5}}\n'),
}


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch, free_domain: int, tmp_path: Path) -> Iterator[None]:
    """Programs end as soon as they are ready, and leave this process's signals as they were."""
    with tempfile.TemporaryDirectory() as short:
        yield from _as_before(monkeypatch, tmp_path, Path(short))


def _as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, short: Path) -> Iterator[None]:
    monkeypatch.setattr(process, 'serve', lambda stop, liveness: None)
    monkeypatch.setenv('ZC_RUNTIME_DIR', f'{short}/zc')
    monkeypatch.chdir(tmp_path)  # for relative folders
    handlers = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run(program: str) -> int:
    """With the arguments of this process, as its console script does."""
    return int(getattr(main, program)())


def _asked(question: Question, *arguments: str) -> dict[str, Any]:
    """In this process, as JSON."""
    answer: dict[str, Any] = json.loads(json.dumps(question(*arguments)))
    return answer


@pytest.mark.parametrize('case', FILES)
@pytest.mark.usefixtures('as_before')
def test_a_node_starts_with_a_file_exactly_if_the_doctor_says_so(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    starts, content = FILES[case]
    path = tmp_path / 'vehicle.yaml'
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    program = 'inference_node' if b'/inference' in path.read_bytes() else 'capture_node'
    monkeypatch.setattr(sys, 'argv', [program, '--ros-args', '--params-file', str(path)])
    code = run(program)
    said = capfd.readouterr().err
    assert code == (0 if starts else 2), said
    doctor = zc_doctor.main(
        ['--params-file', str(path), '--only', 'parameters'],
        dataclasses.replace(System(), ask=_asked),
    )
    report = capfd.readouterr()
    assert (doctor == 0) is starts, report
    if not starts:
        assert 'Traceback' not in report.err and str(path) in report.out + report.err


@pytest.mark.parametrize(
    ('text', 'starts', 'warned'),
    [
        (CAPTURE('slots: 8').replace('/capture', '/front/capture'), True, ''),
        (CAPTURE('slots: 0').replace('/capture', '/rear/capture'), True, ''),
        (CAPTURE('slots: 8'), False, "write '/**/capture'"),
        (CAPTURE('slots: 8').replace('/capture', '/*/*/capture'), False, "write '/**/capture'"),
        ('/overlay: {ros__parameters: {scale: 1.0}}\n', False, "write '/**/overlay'"),
        ('/rear/recorder: {ros__parameters: {max_frames: 1}}\n', True, ''),
        (
            '/**/capture: {ros__parameters: {score_threshold: 0.5}}\n',
            False,
            "parameter 'score_threshold' is unknown",
        ),
    ],
)
@pytest.mark.usefixtures('as_before')
def test_sections_for_other_cameras_are_judged_as_perception_does(
    text: str,
    starts: bool,
    warned: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / 'vehicle.yaml'
    everybody = (
        '/**: {ros__parameters: {camera: synthetic, width: 64, height: 64, accelerator: onnx}}\n'
    )
    path.write_text(everybody + text)
    monkeypatch.setattr(
        sys, 'argv', ['perception', '--cameras', 'front', '--ros-args', '--params-file', str(path)]
    )
    assert run('perception') == (0 if starts else 2)
    assert warned in capfd.readouterr().err
    asked = ['--params-file', str(path), '--only', 'parameters', '--cameras', 'front']
    assert zc_doctor.main(asked, dataclasses.replace(System(), ask=_asked)) == (0 if starts else 1)
    report = capfd.readouterr().out
    assert warned in report and ('warn  parameters.file' in report) is (starts and bool(warned)), (
        report
    )


def test_no_start_is_promised_where_a_section_misses_the_cameras_that_the_file_names(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / 'vehicle.yaml'
    path.write_text(
        CAPTURE('slots: 8').replace('/capture', '/front/capture')
        + '/*/*/overlay: {ros__parameters: {scale: 1.0}}\n'
    )
    asked = ['--params-file', str(path), '--only', 'parameters']
    assert zc_doctor.main(asked, dataclasses.replace(System(), ask=_asked)) == 0
    said = capfd.readouterr().out
    assert (
        "'*/*/overlay' does not match node '/front/overlay'" in said
        and '--cameras' in said
        and 'in any case' not in said
    )
    assert (
        zc_doctor.main([*asked, '--cameras', 'front'], dataclasses.replace(System(), ask=_asked))
        == 1
    )
