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
Another package's accelerator has the rights of this package's own.

It has two parameters and a doctor's check.
"""

from __future__ import annotations

from collections.abc import Iterator
import json
import os
from pathlib import Path
import shutil
import subprocess
import sys
from typing import Any

from entry_point_kit import install, offer_alone
from nodes.ros_kit import overrides, ros, spun
import pytest
from rclpy.parameter import Parameter
from waiting import until

from zc_perception.doctor import zc_doctor
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
from zc_perception.nodes.params.schema import file_schema
from zc_perception.nodes.params.verdict import judge
from zc_perception.nodes.params.yaml_file import read_parameter_yaml
from zc_perception.npu.kinds import ACCELERATORS
from zc_perception.npu.manifest import EngineRules, find_manifest

EXAMPLE = Path(__file__).resolve().parents[2] / 'examples' / 'counter_accelerator'
COUNTER = {'accelerator': 'counter', 'model': str(EXAMPLE / 'bright.yaml')}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / 'site'
    install(
        folder,
        'counter-accelerator',
        {'zc_perception.accelerators': {'counter': 'counter_accelerator:CounterAccelerator'}},
    )
    shutil.copy(EXAMPLE / 'counter_accelerator.py', folder)
    offer_alone(monkeypatch, folder)
    yield folder
    sys.modules.pop('counter_accelerator', None)


def test_it_finds_what_is_bright_and_a_change_of_its_parameter_reaches_it(
    free_domain: int,
) -> None:
    with ros(free_domain) as context:
        camera = CaptureNode(
            context=context,
            parameter_overrides=overrides({'framerate': 60.0, 'pattern': 'bars', 'heap': 'memfd'}),
        )
        values = {**COUNTER, 'brightness': 255}
        node = InferenceNode(context=context, parameter_overrides=overrides(values))
        with spun(context, camera, node):
            until(lambda: node.processed >= 3)
            assert node.detected == 0, 'nothing in a picture of limited range is as bright as that'
            assert node.set_parameters([Parameter('brightness', value=150)])[0].successful
            until(lambda: node.detected > 0)
            refused = node.set_parameters([Parameter('brightness', value=256)])[0]
            assert "'brightness' is 256; it must be an integer from 1 to 255" in refused.reason


def test_help_names_its_parameters(installed: Path) -> None:
    for program in ('inference_node', 'perception'):
        said = subprocess.run(
            [
                sys.executable,
                '-c',
                'from zc_perception.nodes.command_lines import options_of; import sys; '
                'options_of(sys.argv[1]).print_help()',
                program,
            ],
            env={**os.environ, 'PYTHONPATH': str(installed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert 'brightness' in said and 'least_area' in said


def test_launch_files_and_the_schema_know_it() -> None:
    assert ACCELERATORS.names[-1] == 'counter', 'of which launch argument accelerator is made'
    inference = file_schema()['$defs']['inference']['properties']
    assert (inference['brightness']['minimum'], inference['brightness']['maximum']) == (1, 255)


@pytest.mark.parametrize(
    ('line', 'words'),
    [
        ('brightnes: 9', "parameter 'brightnes' is unknown; did you mean 'brightness'? (line 5)"),
        ('brightness: 0', "parameter 'brightness' is 0; it must be an integer from 1 to 255"),
        ('accelerator: countr', "did you mean 'counter'?"),
    ],
)
def test_a_parameter_file_is_judged_by_its_declarations(
    line: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / 'my.yaml'
    lines = ['/**/inference:', '  ros__parameters:', f'    model: {COUNTER["model"]}']
    if 'accelerator' not in line:
        lines.append('    accelerator: counter')
    path.write_text('\n'.join([*lines, f'    {line}']) + '\n', encoding='utf-8')
    found = judge(read_parameter_yaml(str(path)), {'/inference': 'inference'})
    assert any(words in str(problem) for problem in found.problems), found


def test_a_model_s_own_file_runs_on_the_engine_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EngineRules('counter', files=('*.bright',))
    monkeypatch.setattr(ACCELERATORS.load('counter'), 'ENGINES', (engine,))
    file = tmp_path / 'my.bright'
    file.touch()
    assert find_manifest(str(file)) == find_manifest(str(tmp_path)) == file


def test_the_doctor_runs_its_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert zc_doctor.main(['--only', 'counter', '--json']) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    (check,) = said['checks']
    assert check['id'] == 'counter.speed' and check['figures']['milliseconds'] > 0
