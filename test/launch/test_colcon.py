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

"""The tool colcon builds, installs and tests the package."""

from __future__ import annotations

import os

import pytest
from ros2_tools import Ros2, Workspace

PROGRAMS = (
    'capture_node',
    'inference_node',
    'overlay_node',
    'perception',
    'component_container',
    'component_container_mt',
    'zc_demo',
    'zc_record',
    'zc_verify',
    'zc_doctor',
)


@pytest.fixture
def built(workspace: Workspace) -> Workspace:
    assert workspace.built.returncode == 0, workspace.built.stdout + workspace.built.stderr
    return workspace


def test_it_is_an_ament_python_package(built: Workspace) -> None:
    listed = built.colcon('list').stdout
    # If colcon couldn't read package.xml, it would list the type (python), and everything else
    # would seem to work.
    assert 'zc_perception\tsrc/zc_perception\t(ros.ament_python)' in listed
    assert 'Summary: 2 packages finished' in built.built.stdout


def test_programs_are_where_ros2_run_looks(ros2: Ros2) -> None:
    found = ros2.say('pkg', 'executables', 'zc_perception').split()
    assert set(found) - {'zc_perception'} >= set(PROGRAMS)
    for program in PROGRAMS:
        assert os.access(ros2.workspace.prefix / 'lib' / 'zc_perception' / program, os.X_OK)


def test_launch_and_parameter_files_are_installed(built: Workspace) -> None:
    share = built.prefix / 'share' / 'zc_perception'
    for folder in ('launch', 'config', 'config/vehicle'):
        for path in (built.folder / 'src' / 'zc_perception' / folder).iterdir():
            if path.is_file():
                assert (share / folder / path.name).read_bytes() == path.read_bytes()


def test_a_program_of_the_workspace_says_what_is_wrong(ros2: Ros2) -> None:
    done = ros2.run('run', 'zc_perception', 'capture_node', '--ros-args', '-p', 'widht:=3')
    assert "'widht' is unknown; did you mean 'width'?" in done.stdout


def test_colcon_test_passes(built: Workspace) -> None:
    done = built.colcon(
        'test',
        '--packages-select',
        'zc_perception',
        '--return-code-on-test-failure',
        '--event-handlers',
        'console_direct+',
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = built.colcon('test-result', '--all')
    assert ' 0 errors, 0 failures' in result.stdout, result.stdout
    assert 'passed' in done.stdout
