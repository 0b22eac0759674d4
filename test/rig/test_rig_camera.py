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

"""V4L2 cameras, the doctor and faults of the graph on a real kernel; what processes agree on."""

from __future__ import annotations

import json
from pathlib import Path
import sys
from typing import Any

from nodes.agreement_matrix import ALONE, complaint, ROWS
import pytest

from .checked_boot import checks_of, compile_for_guest, TIMEOUT_S
from .conftest import CAMERA_SUITES, VerifyBoot
from .graph import ENVIRONMENT
from .guest.graph_variants import MEMORY_MIB, SPLIT, VIVID
from .machine import RigResult
from .rig import Rig

pytestmark = pytest.mark.rig


@pytest.mark.parametrize('name', checks_of(CAMERA_SUITES))
def test_in_the_guest(name: str, camera_boot: VerifyBoot) -> None:
    camera_boot.must_hold(name)


def test_the_kernel_is_content(camera_boot: VerifyBoot) -> None:
    camera_boot.kernel_must_be_content()


#: The guest is 20 to 30 times slower than the host, on which all come within 2 s.
WITHIN_S = 60.0
_SYNTHETIC = {'camera': 'synthetic', 'width': 640, 'height': 360, 'framerate': 5.0}
#: Of a machine with scattered and contiguous memory.
_HEAPS = 'contiguous heap'
#: Each case takes the guest ten seconds: after the death of one in the middle, a third has joined.
COLUMNS = (ALONE, 'capture first', 'consumer first', 'one dies in the middle')
CASES = [
    *(('v4l2', row, column) for row in ROWS for column in COLUMNS),
    *(('synthetic', _HEAPS, column) for column in COLUMNS),
]
Matrix = dict[tuple[str, str, str], dict[str, Any]]


@pytest.fixture(scope='module')
def matrix(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> tuple[RigResult, Matrix]:
    """Run all cases in one boot."""
    compile_for_guest()
    program = Path(__file__).parents[1] / 'nodes' / 'agreement_matrix.py'
    cameras = {'v4l2': {**SPLIT, 'pixel_format': 'auto'}, 'synthetic': _SYNTHETIC}
    words = []
    for camera, values in cameras.items():
        cases = [f'{row}/{column}' for name, row, column in CASES if name == camera]
        words += [json.dumps(values), *cases, '--']
    result = rig.run(
        [
            'sh',
            '-c',
            '"$RIG_BUSYBOX" insmod "${RIG_MODULE%/*}/contiguous_heap.ko" && exec "$0" "$@"',
            sys.executable,
            str(program),
            *words[:-1],
        ],
        timeout=TIMEOUT_S,
        out_dir=tmp_path_factory.mktemp('agreement'),
        vivid=VIVID,
        env=ENVIRONMENT,
        memory_mib=MEMORY_MIB,
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith('{"source"')]
    found = map(json.loads, lines)
    return result, {(one['source'], one['row'], one['column']): one for one in found}


@pytest.mark.long
@pytest.mark.parametrize(('camera', 'row', 'column'), [case for case in CASES if case[2] != ALONE])
def test_processes_agree_as_one_would(
    camera: str, row: str, column: str, matrix: tuple[RigResult, Matrix]
) -> None:
    result, cases = matrix
    if (camera, row, column) not in cases:
        pytest.fail(result.report(), pytrace=False)
    wrong = complaint(cases[camera, row, column], cases[camera, row, ALONE], WITHIN_S)
    assert not wrong, wrong


@pytest.mark.long
@pytest.mark.parametrize(
    ('camera', 'row', 'flows'),
    [
        ('v4l2', 'stride 64', True),
        ('v4l2', 'YUYV only', True),
        ('v4l2', 'implicit', False),
        ('synthetic', _HEAPS, True),
    ],
)
def test_one_process_agrees_as_the_camera_can(
    camera: str, row: str, flows: bool, matrix: tuple[RigResult, Matrix]
) -> None:
    assert matrix[1][camera, row, ALONE]['flows'] is flows


@pytest.mark.long
def test_the_kernel_is_content_with_what_they_agreed_on(matrix: tuple[RigResult, Matrix]) -> None:
    assert not matrix[0].complaints, matrix[0].report()
