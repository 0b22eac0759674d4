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
Where signals end a benchmark and its workers.

In its first moments, while nodes are built up, and while they run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import signal
import subprocess
import sys

from bench_kit import processes, Start
import pytest
from verify.command_kit import ENDING
from waiting import until

PIPELINE = ('pipeline', '--repetitions', '1')

# Sends a signal where a module is imported.
ON_IMPORT = """
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), int(sys.argv[2]))
sys.meta_path.insert(0, Finder())
from bench.__main__ import main
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.parametrize('number', ENDING)
@pytest.mark.parametrize(
    'module', ['bench.program', pytest.param('numpy', marks=pytest.mark.long)]
)
def test_the_first_moments_end_without_a_traceback(module: str, number: signal.Signals) -> None:
    command = [
        sys.executable,
        '-c',
        ON_IMPORT,
        module,
        str(int(number)),
        'decode',
        '--repetitions',
        '1',
        '--frames',
        '1',
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (
        128 + number,
        '',
        f'zc_bench: ended by {number.name}\n',
    )


def reach(reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Until the process is so far."""
    until(lambda: reached() or process.poll() is not None, seconds=120.0)
    assert process.poll() is None


@pytest.mark.parametrize(
    'sockets', [1, *(pytest.param(number, marks=pytest.mark.long) for number in (0, 5, 12))]
)
def test_a_pipeline_leaves_nothing_however_far_it_has_come(
    start: Start, runtime: Path, sockets: int
) -> None:
    process = start('bench', *PIPELINE)
    reach(
        lambda: len(processes(runtime)) > 4 and len(list(runtime.glob('*.sock'))) >= sockets,
        process,
    )
    process.send_signal(signal.SIGINT)
    _, complained = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT
    assert list(runtime.iterdir()) == [] and processes(runtime) == {}
    assert (
        complained.splitlines()[-1] == 'zc_bench: ended by SIGINT'
        and 'Traceback' not in complained
    )


def test_a_worker_that_grows_is_not_left_half_way(start: Start, runtime: Path) -> None:
    process = start(
        'bench.nodes_worker', 'cameras', '/zc_bench/test', '640', '480', '30', '2', '2'
    )
    assert process.stdin is not None
    process.stdin.write('{"op": "grow", "cameras": 16}\n')
    process.stdin.flush()
    reach(lambda: len(list(runtime.glob('*.sock'))) >= 3, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 128 + signal.SIGTERM
    assert list(runtime.iterdir()) == []
