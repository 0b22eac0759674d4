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

"""Data about processes, from ``/proc``."""

from __future__ import annotations

from pathlib import Path
import re

import pytest

from zc_perception.observe.processes import (
    all_pids,
    as_root,
    command_name,
    sudo_command,
    threads_of,
)


def test_who_has_ended_has_nothing(tmp_path: Path) -> None:
    assert (
        all_pids(tmp_path / 'nothing'),
        threads_of(5, tmp_path),
        command_name(5, tmp_path),
    ) == ([], [], '')


@pytest.mark.parametrize(
    ('effective', 'needed', 'said', 'not_said'),
    [
        (
            0,
            (),
            'CAP_SYS_PTRACE and CAP_SYS_ADMIN, .*--cap-add SYS_PTRACE --cap-add SYS_ADMIN',
            'run as root',
        ),
        (0, ('CAP_SYS_PTRACE',), 'CAP_SYS_PTRACE, .*--cap-add SYS_PTRACE', 'ADMIN'),
        (1 << 19 | 1 << 21, (), 'root of the machine itself', '--cap-add'),
        (None, (), 'CAP_SYS_PTRACE and CAP_SYS_ADMIN', 'run as root'),
    ],
    ids=['lacks both', 'lacks one', 'root of a container', 'capabilities are not shown'],
)
def test_a_root_is_told_what_it_lacks(
    effective: int | None, needed: tuple[str, ...], said: str, not_said: str, tmp_path: Path
) -> None:
    status = tmp_path / 'status'
    if effective is not None:
        status.write_text(f'Name:\tpython\nCapPrm:\t000001ffffffffff\nCapEff:\t{effective:016x}\n')
    text = as_root(*needed, user=0, status=status)
    assert re.search(said, text) and not_said not in text


@pytest.mark.parametrize(
    ('environment', 'expected'),
    [
        ({'PATH': '/bin', 'LD_LIBRARY_PATH': '/l'}, "sudo '{folder}/zc_x'"),
        (
            {'PATH': '/bin', 'PYTHONPATH': '/p', 'ROS_DOMAIN_ID': '7', 'HOME': '/h'},
            'sudo env "PATH=$PATH" "PYTHONPATH=$PYTHONPATH" "ROS_DOMAIN_ID=$ROS_DOMAIN_ID" '
            "'{folder}/zc_x'",
        ),
    ],
)
def test_the_command_for_root_keeps_what_this_shell_has_of_ros(
    environment: dict[str, str], expected: str, tmp_path: Path
) -> None:
    program = tmp_path / 'a workspace' / 'zc_x'
    program.parent.mkdir()
    program.touch(0o755)
    assert sudo_command(str(program), environment) == expected.format(folder=program.parent)
    # A program that is found nowhere keeps its name.
    assert sudo_command('zc_nowhere', {'PATH': '/nowhere'}) == 'sudo zc_nowhere'
