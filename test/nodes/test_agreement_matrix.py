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
A consumer in another process: its needs, and which process starts first.

Frames flow as they do in one process, or the reason is reported.
"""

from __future__ import annotations

from collections.abc import Callable
import json
import os
from pathlib import Path
import subprocess
import sys
from typing import Any

from camera.gstreamer_process import gstreamer
from long_form import LONG
from nodes.agreement_matrix import ALONE, COLUMNS, complaint, ROWS
from nodes.programs import environment
import pytest

#: Limit after the last process is ready; it is long if other tests run at the same time.
WITHIN_S = 2.0 if LONG else 60.0
SIZE = {'width': 1366, 'height': 768}
CAMERAS: dict[str, dict[str, Any]] = {
    'synthetic': {'camera': 'synthetic', **SIZE, 'framerate': 15.0},
    'gstreamer': {
        'camera': 'gstreamer',
        'pipeline': 'videotestsrc is-live=true ! video/x-raw,width=1366,height=768,framerate=15/1',
    },
}
ORDERS = COLUMNS if LONG else (ALONE, 'consumer first', 'one dies in the middle')
Cases = dict[tuple[str, str], dict[str, Any]]


def _variables(camera: str) -> dict[str, str]:
    if camera != 'gstreamer':
        return {}
    found = gstreamer().environment()
    # The middleware's libraries are in LD_LIBRARY_PATH, too.
    libraries = filter(None, (found['LD_LIBRARY_PATH'], os.environ.get('LD_LIBRARY_PATH')))
    return {**found, 'LD_LIBRARY_PATH': ':'.join(libraries)}


@pytest.fixture(scope='module')
def matrix(
    module_domain: int, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Cases]:
    """Return the results of a camera's row of cases."""
    done: dict[tuple[str, str], Cases] = {}

    def of(camera: str, row: str) -> Cases:
        if (camera, row) not in done:
            folder = tmp_path_factory.mktemp('run')
            program = Path(__file__).with_name('agreement_matrix.py')
            cases = [f'{row}/{column}' for column in ORDERS]
            ended = subprocess.run(
                [sys.executable, str(program), json.dumps(CAMERAS[camera]), *cases],
                env={
                    **environment(module_domain),
                    **_variables(camera),
                    'ZC_RUNTIME_DIR': str(folder / 'run'),
                    'ROS_HOME': str(folder),
                },
                capture_output=True,
                text=True,
                check=True,
            )
            found = list(map(json.loads, ended.stdout.splitlines()))
            done[camera, row] = {(one['row'], one['column']): one for one in found}
        return done[camera, row]

    return of


@pytest.mark.parametrize('column', [column for column in ORDERS if column != ALONE])
@pytest.mark.parametrize('row', ROWS if LONG else ('stride 64', 'YUYV only'))
@pytest.mark.parametrize('camera', CAMERAS if LONG else ('synthetic',))
def test_it_goes_as_in_one_process(
    camera: str, row: str, column: str, matrix: Callable[[str, str], Cases]
) -> None:
    cases = matrix(camera, row)
    wrong = complaint(cases[row, column], cases[row, ALONE], WITHIN_S)
    assert not wrong, wrong


@pytest.mark.parametrize(
    ('camera', 'row', 'flows'),
    [
        ('synthetic', 'stride 64', True),
        ('synthetic', 'YUYV only', False),
        pytest.param('gstreamer', 'YUYV only', True, marks=pytest.mark.long),
        pytest.param('gstreamer', 'implicit', False, marks=pytest.mark.long),
    ],
)
def test_in_one_process_it_goes_as_the_camera_can(
    camera: str, row: str, flows: bool, matrix: Callable[[str, str], Cases]
) -> None:
    assert matrix(camera, row)[row, ALONE]['flows'] is flows
