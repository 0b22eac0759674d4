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

"""Another package's accelerator has full rights: two own parameters and a doctor's check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
import shutil
import sys

from entry_point_kit import install, offer_alone
from nodes.ros_kit import overrides, ros, spun
import pytest
from rclpy.parameter import Parameter
from waiting import until

from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.inference import InferenceNode
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


def test_a_model_s_own_file_runs_on_the_engine_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EngineRules('counter', files=('*.bright',))
    monkeypatch.setattr(ACCELERATORS.load('counter'), 'ENGINES', (engine,))
    file = tmp_path / 'my.bright'
    file.touch()
    assert find_manifest(str(file)) == find_manifest(str(tmp_path)) == file
