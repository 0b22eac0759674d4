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
What a boot of the rig brings back.

Status, output and artifacts; complaints of the kernel, a panic, a hang.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from . import Rig, RigResult

pytestmark = [pytest.mark.rig, pytest.mark.long]

Run = Callable[..., RigResult]


@pytest.fixture
def run(rig: Rig, tmp_path: Path) -> Run:
    """Run a shell command in a guest of its own."""

    def run_shell(script: str, timeout: float = 60, **options: object) -> RigResult:
        return rig.run(
            ['/bin/sh', '-c', script], timeout=timeout, out_dir=tmp_path / "a, 'b c'", **options
        )  # type: ignore[arg-type]

    return run_shell


def test_status_output_and_artifacts_come_back(run: Run) -> None:
    script = (
        'echo out; echo err >&2; pwd; echo "$WORD"; cat '
        '/sys/module/metis_virtual/parameters/latency_us; '
        'ls /dev/video0 /dev/shm /sys/kernel/debug/dma_buf/bufinfo '
        '/sys/kernel/tracing/events/axl/axl_dmabuf_import/id; '
        'echo "$HOME" > "$RIG_OUT/artifact"; touch "$HOME/writable" /root-of-the-overlay; exit 7'
    )
    result = run(
        script,
        vivid=True,
        module_params={'latency_us': 5},
        env={'WORD': "two 'words'"},
        cwd=Path('/usr/lib'),
    )
    lines = result.stdout.splitlines()
    assert lines[:4] == ['out', '/usr/lib', "two 'words'", '5'], result.report()
    assert '/dev/video0' in lines and result.stderr == 'err\n', result.report()
    assert (result.artifacts / 'artifact').read_text(encoding='utf-8') == '/run/root\n'
    assert result.rc == 7 and not result.complaints, result.report()
    assert not Path('/root-of-the-overlay').exists()


def test_what_the_kernel_complains_of_fails_the_run(run: Run) -> None:
    result = run('echo "<4>WARNING: from the test" > /dev/kmsg')
    assert result.rc == 126
    assert [line.partition('] ')[2] for line in result.complaints] == ['WARNING: from the test']
    with pytest.raises(AssertionError, match='WARNING: from the test'):
        result.check()


def test_a_panic_shows_the_console(run: Run) -> None:
    result = run('echo c > /proc/sysrq-trigger')
    assert result.rc == 125
    assert 'a kernel panic?' in result.problem
    assert 'sysrq: Trigger a crash' in result.report()


def test_a_command_that_hangs_shows_where(run: Run) -> None:
    result = run('echo before; sleep 1000', timeout=2)
    assert result.rc == 124
    assert result.stdout == 'before\n'
    assert 'did not end within 2 s' in result.problem
    assert 'sysrq: Show Blocked State' in result.dmesg
    assert not result.complaints
