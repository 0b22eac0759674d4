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

"""Where results and words go: a result outlives what it is printed to."""

from __future__ import annotations

import json
import os
from pathlib import Path
import subprocess
import sys
from typing import Any, IO

import pytest

# A sub-command of one row, which says something meanwhile.
STAND_IN = """
import sys
from bench import program
from bench.subcommand import Bar
from bench.subcommand import Command, Measured
from bench.rows import Row
def measure(say):
    say('repetition 1 of 1')
    return Measured([Row('x', 'y', 640, 480, 30.0, 1.0, 2.0, 3.0, 1)])
bars = [Bar('a', lambda rows: float(sys.argv[1]), 1.0, '')]
command = Command('x', 'x', lambda parser: None, lambda options: measure, bars)
program.COMMANDS = [command]
sys.exit(program.run(['x', *sys.argv[2:]]))
"""


def bench(*arguments: str, figure: float = 0.0, **where: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, '-c', STAND_IN, str(figure), *arguments], text=True, check=False, **where
    )


def broken_pipe() -> IO[bytes]:
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, 'wb')


def full_disk() -> IO[bytes]:
    return open('/dev/full', 'wb', buffering=0)


@pytest.mark.parametrize('make', [broken_pipe, full_disk])
@pytest.mark.parametrize(
    ('arguments', 'figure', 'code'), [((), 2.0, 0), (('--check',), 0.5, 0), (('--check',), 2.0, 1)]
)
def test_the_file_is_there_and_the_exit_code_is_the_measurement_s(
    make: Any, arguments: tuple[str, ...], figure: float, code: int, tmp_path: Path
) -> None:
    path = tmp_path / 'x.json'
    with make() as lost:
        ran = bench(
            '--json', str(path), *arguments, figure=figure, stdout=lost, stderr=subprocess.PIPE
        )
    assert (ran.returncode, ran.stderr) == (code, 'repetition 1 of 1\n')
    assert json.loads(path.read_text())['rows'][0]['case'] == 'x'


@pytest.mark.parametrize(
    ('make', 'why'), [(broken_pipe, 'Broken pipe'), (full_disk, 'No space left on device')]
)
def test_without_a_file_a_result_that_nobody_saw_is_an_error(make: Any, why: str) -> None:
    with make() as lost:
        ran = bench(stdout=lost, stderr=subprocess.PIPE)
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[1:] == [
        f"zc_bench: error: the result can't be printed: {why}; give a file with --json"
    ]


@pytest.mark.parametrize('make', [broken_pipe, full_disk])
def test_progress_that_nobody_sees_costs_nothing(make: Any, tmp_path: Path) -> None:
    path = tmp_path / 'x.json'
    with make() as lost:
        ran = bench('--json', str(path), '--check', stdout=subprocess.PIPE, stderr=lost)
    assert ran.returncode == 0 and 'x/y' in ran.stdout and 'pass  a' in ran.stdout
    assert json.loads(path.read_text())['rows'][0]['variant'] == 'y'


def test_the_table_says_what_each_column_is_measured_in() -> None:
    head, row = bench(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.splitlines()
    for unit in (
        'size [px]',
        'rate [Hz]',
        'median [µs]',
        'p99 [µs]',
        'CPU [µs/frame]',
        'lost [%]',
    ):
        assert unit in head
    # Figures stand below the last letter of their heads.
    for unit, figure in (
        ('rate [Hz]', '30'),
        ('median [µs]', '1.0'),
        ('p99 [µs]', '2.0'),
        ('CPU [µs/frame]', '3.0'),
    ):
        assert row[: head.index(unit) + len(unit)].endswith(f' {figure}')


def test_a_terminal_without_the_letters_costs_no_result(tmp_path: Path) -> None:
    path = tmp_path / 'x.json'
    environment = {**os.environ, 'PYTHONIOENCODING': 'ascii'}
    ran = bench(
        '--json',
        str(path),
        '--check',
        figure=2.0,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert ran.returncode == 1 and 'Traceback' not in ran.stderr and path.exists()


def test_a_file_that_can_not_be_written_after_all_leaves_the_table(tmp_path: Path) -> None:
    folder = tmp_path / 'gone'
    lines = STAND_IN.replace("say('rep", f"import os; os.rmdir({str(folder)!r}); say('rep")
    command = [sys.executable, '-c', lines, '0', '--json', str(folder / 'x.json')]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and 'x/y' in ran.stdout
    assert ran.stderr.splitlines()[1].startswith(
        f"zc_bench: error: --json '{folder}/x.json' can't be written: No such file or directory"
    )
