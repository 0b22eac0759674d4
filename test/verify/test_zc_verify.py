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

"""The command, on real processes of this machine, whatever its kernel lets it read."""

from __future__ import annotations

import json
import os
from pathlib import Path
import signal
import sys
from typing import Any

from observe.frame_log_kit import note_frame
from processes import environment, ran, ready
import pytest
from verify.command_kit import measuring, nodes, nodes_command, result_in, verify
from verify.fake_tracefs import FakeTracefs

from zc_perception.observe.frame_log import find_frame_logs, FrameLog
from zc_perception.verify.evidence.kernel_events import open_instance, own_name, TraceInstance
from zc_perception.verify.invariants import all_checks
from zc_perception.verify.measurement import Measurement, Roots
from zc_perception.verify.zc_verify import main

PCI = '0000:01:00.0'


def test_running_nodes_are_measured(tmp_path: Path) -> None:
    with nodes('map') as process:
        done = verify('--seconds', 1, '--pid', process.pid, '--output', tmp_path)
    document = result_in(tmp_path)
    assert done.stderr == ''
    assert f'measuring inference /made/inference (process {process.pid})' in done.stdout
    assert document['frames'] > 0 and document['window']['seconds'] >= 1
    assert [(one['pid'], one['role']) for one in document['processes']] == [
        (process.pid, 'capture'),
        (process.pid, 'inference'),
    ]
    # Frames on memfd, one of them mapped: these two checks are false on any machine.
    checks = document['checks']
    assert checks['I2']['holds'] is False and checks['I2']['exporters'] == {'memfd': 3}
    assert checks['I4']['holds'] is False and len(checks['I4']['mappings']) == 1
    measured = all(check['measured'] for check in checks.values())
    assert done.returncode == (1 if measured else 3)
    assert done.stdout.splitlines()[-1].startswith('FAIL' if measured else 'NOT MEASURED')
    timeline = json.loads((tmp_path / 'timeline.json').read_text())
    assert any(entry.get('name') == 'process_name' for entry in timeline['traceEvents'])


def test_a_command_is_started_measured_and_ended(tmp_path: Path) -> None:
    with nodes() as other:
        # It prints 'ready' with its tenth frame.
        words = ('--seconds', 60, '--frames', 20, '--no-sampling', '--output', tmp_path)
        done = verify(*words, command=nodes_command())
        document = result_in(tmp_path)
        (pid,) = {one['pid'] for one in document['processes']}
        assert pid != other.pid and other.poll() is None
    assert document['frames'] >= 20 and document['window']['seconds'] < 60, 'its frames ended it'
    (told,) = [one for one in document['unreadable'] if one['topic'] == 'sampling']
    assert told['reason'] == 'left out by --no-sampling'
    assert document['I4_no_memcpy_hot'] is None and document['pass_document'] is False
    assert document['files']['command'] == 'command.log'
    assert (tmp_path / 'command.log').read_text() == 'ready\nended\n'
    assert not Path(f'/proc/{pid}').exists()
    assert done.returncode in (1, 3)


def test_a_signal_ends_it_and_what_was_seen_is_judged(tmp_path: Path) -> None:
    with measuring(tmp_path, '--seconds', 600, command=nodes_command()) as (process, _):
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=120)
    assert process.returncode in (1, 3)
    document = result_in(tmp_path)
    assert document['window']['seconds'] < 100 and 'result.json' in rest
    (note,) = document['notes']
    assert note.startswith('SIGINT ended the measurement after') and 'of 600 s' in note
    assert not Path(f'/proc/{document["processes"][0]["pid"]}').exists()


@pytest.mark.parametrize(
    ('options', 'named'),
    [
        (['--seconds', 'nan'], '--seconds is nan'),
        (['--pid', '1', '--', 'true'], '--pid names running nodes'),
        (['--pid', '4194305'], 'no such process'),
        (['--', 'true'], 'the command has ended'),
        (['--wait', '1', '--', 'sleep', '60'], 'started no node within 1 s'),
    ],
)
def test_wrong_use_is_told_in_a_sentence(
    options: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(['--output', str(tmp_path), *options]) == 2
    told = capsys.readouterr().err
    assert named in told and told.startswith('zc_verify: ') and told.count('\n') == 1


def test_it_starts_without_what_takes_long_to_import() -> None:
    heavy = ('numpy', 'cv2', 'rclpy', 'yaml')
    code = 'import sys, zc_perception.verify.verification as _; '
    code += f'print([name for name in {heavy} if name in sys.modules])'
    assert ran(sys.executable, '-c', code, env=environment(), check=True).stdout == '[]\n'


# With a kernel simulated by files, zc_verify can read everything.


# A size that no other program's memfd has: a check names only the first few memfds that may be a
# frame's memory.
FRAME_BYTES = 4096 * 7919


class FakeKernel:
    """Buffers, attachments and a trace that match the frames of this process's own logs."""

    def __init__(self, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
        self.tracefs = FakeTracefs(tmp_path, patch)
        self.roots = Roots(tracing=self.tracefs.root, debugfs=tmp_path / 'debug')
        (tmp_path / 'debug' / 'dma_buf').mkdir(parents=True)
        self.bufinfo = tmp_path / 'debug' / 'dma_buf' / 'bufinfo'
        self._number = 0
        text = '\nDma-buf Objects:\nsize\tflags\n'
        for inode in (71, 72):
            text += (
                f'{FRAME_BYTES:08}\t00000002\t0000000f\t00000002\tsystem\t{inode:08}\t<none>\n'
                f'\tAttached Devices:\n\t{PCI}\nTotal 1\n\n'
            )
        self.bufinfo.write_text(text)

    def frame(self, capture: FrameLog, inference: FrameLog) -> None:
        """Add a frame to the logs and to the trace."""
        self._number += 1
        second = self._number % 2
        now = note_frame(capture, inference, self._number, 71 + second, handle=1 + second)
        facts = {'copies': {}, 'processed': self._number}
        capture.describe({**facts, 'camera': 'v4l2', 'pool': [[3, 71], [3, 72]]})
        card = {'accelerator': 'axl', 'pci_address': PCI}
        inference.describe({**facts, **card, 'import_cache': True, 'trial_imports': 0})
        pipe = self.tracefs.root / 'instances' / own_name() / 'trace_pipe'
        with pipe.open('a') as file:
            seconds, rest = divmod(now - 1000, 10**9)
            file.write(
                f' python-{os.getpid()} [000] ..... {seconds}.{rest // 1000:06}: axl_submit: '
                f'handle={1 + second} ctx=1 seqno={self._number} model=1\n'
            )


def measure(kernel: FakeKernel) -> dict[str, Any]:
    """Measure this process's own two nodes; return the checks."""
    ends = iter([False] * 4 + [True] * 40)
    with (
        FrameLog('capture', '/fake/capture') as capture,
        FrameLog('inference', '/fake/inference') as inference,
        find_frame_logs(pids=[os.getpid()]) as logs,
        Measurement(kernel.roots, memmove_probe=False) as measurement,
    ):

        def wait(seconds: float) -> bool:
            kernel.frame(capture, inference)
            return next(ends)

        measurement.watch(logs, 60, 0, wait, lambda: True)
        seen = measurement.observation()
    assert kernel.tracefs.clean
    return {check.name: check for check in all_checks(seen)}


def test_a_kernel_that_agrees_with_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = measure(FakeKernel(tmp_path, monkeypatch))
    assert [checks[name].holds for name in ('I1', 'I2', 'I3')] == [True, True, True], checks
    assert checks['I1'].figures['frames'] >= 4
    assert checks['I3'].figures['kernel_submits'] == checks['I3'].figures['frames']


def test_memory_below_udmabuf_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All processes are searched for a sealed memfd that is large enough for a frame."""
    program = """
import fcntl, os, sys
fd = os.memfd_create('made', os.MFD_ALLOW_SEALING)
os.ftruncate(fd, 3 * int(sys.argv[1]))
fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
print('ready', flush=True)
sys.stdin.read()
"""
    kernel = FakeKernel(tmp_path, monkeypatch)
    with ready(sys.executable, '-c', program, str(FRAME_BYTES)) as other:
        told = f'process {other.pid} ('
        assert told not in measure(kernel)['I4'].reason
        kernel.bufinfo.write_text(kernel.bufinfo.read_text().replace('\tsystem\t', '\tudmabuf\t'))
        assert told in measure(kernel)['I4'].reason


def test_an_error_in_the_middle_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = FakeKernel(tmp_path, monkeypatch)
    with (
        FrameLog('inference', '/fake/inference'),
        pytest.raises(ZeroDivisionError),
        find_frame_logs(pids=[os.getpid()]) as logs,
        Measurement(kernel.roots) as measurement,
    ):
        measurement.watch(logs, 60, 0, lambda seconds: bool(1 // 0), lambda: True)
    assert kernel.tracefs.clean


def test_what_a_killed_run_left_is_removed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, left = FakeKernel(tmp_path, monkeypatch), own_name(4194305)
    assert isinstance(open_instance(kernel.tracefs.root, name=left), TraceInstance)
    with Measurement(kernel.roots) as measurement:
        assert measurement.leftovers == [left]
    assert kernel.tracefs.clean
