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


# The message for a user without the permission to look.


PTRACE, ADMIN = 1 << 19, 1 << 21


def told(tmp_path: Path, effective: int, *needed: str) -> str:
    status = tmp_path / 'status'
    status.write_text(f'Name:\tpython\nCapPrm:\t000001ffffffffff\nCapEff:\t{effective:016x}\n')
    return as_root(*needed, user=0, status=status)


@pytest.mark.parametrize(
    ('effective', 'needed', 'lacking', 'not_said'),
    [
        (
            0,
            (),
            ('CAP_SYS_PTRACE and CAP_SYS_ADMIN', '--cap-add SYS_PTRACE --cap-add SYS_ADMIN'),
            'run as root',
        ),
        (0, ('CAP_SYS_PTRACE',), ('CAP_SYS_PTRACE', '--cap-add SYS_PTRACE'), 'ADMIN'),
    ],
)
def test_a_root_is_told_what_it_lacks(
    effective: int,
    needed: tuple[str, ...],
    lacking: tuple[str, ...],
    not_said: str,
    tmp_path: Path,
) -> None:
    text = told(tmp_path, effective, *needed)
    assert all(words in text for words in lacking) and not_said not in text


def test_a_root_that_has_them_is_one_of_a_container(tmp_path: Path) -> None:
    assert 'of the machine itself' in told(tmp_path, PTRACE | ADMIN) and '--cap-add' not in told(
        tmp_path, PTRACE | ADMIN
    )


def test_capabilities_that_are_not_shown_are_none(tmp_path: Path) -> None:
    assert 'CAP_SYS_PTRACE and CAP_SYS_ADMIN' in as_root(user=0, status=tmp_path / 'nowhere')


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
    folder = tmp_path / 'a workspace'
    folder.mkdir()
    program = folder / 'zc_x'
    program.touch(0o755)
    assert sudo_command(str(program), environment) == expected.format(folder=folder)


def test_a_program_that_is_found_nowhere_keeps_its_name() -> None:
    assert sudo_command('zc_nowhere', {'PATH': '/nowhere'}) == 'sudo zc_nowhere'
