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

"""Which nodes ``zc_verify`` measures: all, completely, or it names those left out."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import fcntl
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
from typing import Any

from observe.frame_log_kit import note_frame
from processes import environment, is_alive, ran, ready
import pytest
from verify.command_kit import measuring, nodes, nodes_command, result_in, verify, verify_command
from verify.verify_kit import event, FakeTracefs
from waiting import until

from zc_perception.observe.frame_log import (
    CAPACITY,
    find_frame_logs,
    FrameLog,
    HEADER,
    MAGIC,
    NAME,
    RECORD_SIZE,
    SIZE,
    VERSION,
)
from zc_perception.observe.processes import process_state
from zc_perception.verify import verification
from zc_perception.verify.evidence.kernel_events import open_instance, own_name, TraceInstance
from zc_perception.verify.invariants import all_checks
from zc_perception.verify.measurement import Measurement, NodeThreads, Roots
from zc_perception.verify.verification import Descendants, Newcomers
from zc_perception.verify.zc_verify import main

_F_ADD_SEALS, _SHRINK_AND_GROW = 1033, 2 | 4


@contextlib.contextmanager
def foreign_log() -> Iterator[int]:
    """Make this process a node of another version; yield its pid."""
    fd = os.memfd_create(NAME, os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, SIZE)
        os.pwrite(fd, HEADER.pack(MAGIC, VERSION + 1, RECORD_SIZE, CAPACITY), 0)
        fcntl.fcntl(fd, _F_ADD_SEALS, _SHRINK_AND_GROW)
        yield os.getpid()
    finally:
        os.close(fd)


def unreadable_logs(document: Any) -> list[Any]:
    return [one for one in document['unreadable'] if one['topic'] == 'frame log']


def assert_not_measured(document: Any, reason: str) -> None:
    checks = document['checks'].values()
    assert document['pass'] is False and not any(check['holds'] for check in checks)
    assert all(reason in check['reason'] for check in checks if check['holds'] is None)
    assert any(check['holds'] is None for check in checks)


def test_a_pid_without_a_node_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    with nodes() as process:
        done = verify('--seconds', 0.5, '--pid', process.pid, os.getpid(), '--output', tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count('\n')) == (2, '', 1)
    assert (
        f'process {os.getpid()} (' in done.stderr and 'is no node with a frame log' in done.stderr
    )


def test_a_log_that_can_not_be_read_counts_though_no_pid_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with nodes() as process, foreign_log() as pid:
        both = [process.pid, pid]
        for name in ('find_frame_logs', 'running_nodes'):
            monkeypatch.setattr(verification, name, lambda pids: find_frame_logs(pids=both))
        monkeypatch.setattr(os, 'geteuid', lambda: 1000)
        assert main(['--seconds', '0.5', '--output', str(tmp_path)]) == 3
        both.remove(process.pid)
        assert main(['--output', str(tmp_path / 'alone')]) == 3
    document = result_in(tmp_path)
    (unreadable,) = unreadable_logs(document)
    assert unreadable['source'].split()[1] == str(pid)
    assert_not_measured(document, f'process {pid} (')
    said = capsys.readouterr()
    assert f'not measured: process {pid} (' in said.err
    assert not (tmp_path / 'alone' / 'result.json').exists()
    commands = [line for line in (said.out + said.err).splitlines() if 'as root: sudo ' in line]
    assert len(commands) == 2, 'each time it is said how to run it as root'


def test_a_node_that_begins_in_between_was_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[FrameLog] = []

    def beginning(*arguments: Any) -> Newcomers:
        later.append(FrameLog('inference', '/made/later'))
        return Newcomers(*arguments)

    monkeypatch.setattr(verification, 'Newcomers', beginning)
    with FrameLog('capture', '/made/capture'):
        words = f'--seconds 0.2 --no-sampling --quiet --pid {os.getpid()} --output {tmp_path}'
        assert main(words.split()) == 3
    later[0].close()
    document = result_in(tmp_path)
    (told,) = unreadable_logs(document)
    assert told['source'] == f'inference /made/later (process {os.getpid()})'
    assert told['next_step'] == 'measure once more'
    assert_not_measured(document, 'it started during the measurement, and was not measured')


def test_a_node_that_is_killed_meanwhile_is_told_and_nothing_is_true(tmp_path: Path) -> None:
    with (
        nodes() as made,
        measuring(tmp_path, '--seconds', 600, '--pid', made.pid) as (process, pid),
    ):
        os.kill(pid, signal.SIGKILL)
        said, _ = process.communicate(timeout=120)
    document = result_in(tmp_path)
    assert process.returncode == 3
    both = f'/made/capture (process {pid}), /made/inference (process {pid})'
    assert_not_measured(document, f'{both} ended while it was measured')
    notes = document['notes']
    assert any('no node was left' in note for note in notes)
    assert any(f'/made/inference (process {pid}) ended ' in note for note in notes)
    assert [line[6:] for line in said.splitlines() if line.startswith('note: ')] == notes


def test_a_command_that_ends_by_itself_is_told_and_nothing_is_true(tmp_path: Path) -> None:
    with measuring(tmp_path, '--seconds', 600, command=nodes_command()) as (process, pid):
        os.kill(pid, signal.SIGINT)
        process.communicate(timeout=120)
    document = result_in(tmp_path)
    assert process.returncode == 3
    assert any(note.startswith('the command or its nodes ended') for note in document['notes'])
    assert_not_measured(document, f'/made/inference (process {pid}) ended while it was measured')


def test_a_signal_before_anything_is_measured_is_no_failure_of_the_command(tmp_path: Path) -> None:
    words = verify_command('--wait', 600, '--output', tmp_path, command=['sleep', '600'])
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        try:
            until(lambda: (tmp_path / 'command.log').exists())
            process.send_signal(signal.SIGTERM)
            _, told = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (process.returncode, told) == (
        128 + signal.SIGTERM,
        'zc_verify: interrupted by SIGTERM before anything was measured\n',
    )


def test_what_a_command_left_in_another_session_is_ended_by_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('zc_perception.verify.verification._PATIENCE_S', (0.3, 5.0, 5.0))
    monkeypatch.setenv('PYTHONPATH', environment()['PYTHONPATH'])
    command = ['bash', '-c', 'setsid "$@" & exec sleep 600', 'bash', *nodes_command('stubborn')]
    # They print 'ready' with their tenth frame.
    words = f'--seconds 60 --frames 20 --no-sampling --quiet --output {tmp_path} --'
    main([*words.split(), *command])
    (pid,) = {one['pid'] for one in result_in(tmp_path)['processes']}
    try:
        assert not is_alive(pid)
        assert (tmp_path / 'command.log').read_text() == 'ready\n'
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_camera_that_loads_slowly_is_waited_for(tmp_path: Path) -> None:
    words = ('--seconds', 0.3, '--no-sampling', '--output', tmp_path)
    done = verify(*words, command=nodes_command('twice'))
    document = result_in(tmp_path)
    pids = {one['pid'] for one in document['processes'] if one['role'] == 'inference'}
    assert len(pids) == 2, done.stdout
    assert not unreadable_logs(document)


def test_who_reads_no_further_ends_no_measurement(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with nodes() as made, open(writing, 'wb') as nobody:
        options = ('--seconds', 60, '--frames', 5, '--pid', made.pid, '--output', tmp_path)
        done = subprocess.run(
            verify_command(*options), stdout=nobody, stderr=subprocess.PIPE, timeout=120,
            env=environment(), check=False,
        )  # fmt: skip
    document = result_in(tmp_path)
    assert document['frames'] > 0 and done.stderr == b''
    measured = all(check['measured'] for check in document['checks'].values())
    assert done.returncode == (1 if measured else 3)


# Descendants of this process: those that began meanwhile, also orphans, and no others.


@contextlib.contextmanager
def child(*words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_only_what_began_meanwhile_counts() -> None:
    with child('sleep', '600') as before, contextlib.closing(Descendants()) as descendants:
        with child('sleep', '600') as later:
            assert descendants.has(later.pid)
        assert not any(map(descendants.has, (before.pid, os.getpid(), os.getppid(), 1)))


def test_orphans_come_to_this_process_and_are_reaped() -> None:
    with child('true') as before, child('true') as other:
        until(lambda: (state := process_state(before.pid)) and state.ended)
        with contextlib.closing(Descendants()) as descendants:
            # A grandchild whose parent has ended.
            with child('sh', '-c', 'sleep 600 >/dev/null & echo $!') as parent:
                assert parent.stdout is not None
                pid = int(parent.stdout.readline())
                assert parent.wait(60) == 0
            state = process_state(pid)
            assert state is not None and state.parent == os.getpid() and descendants.has(pid)
            os.kill(pid, signal.SIGKILL)
            until(lambda: (state := process_state(pid)) and state.ended)
            descendants.reap(other.pid)
            assert process_state(pid) is None
            # Processes from before are left to their own starters.
            assert process_state(before.pid) is not None


def fake(proc: Path, pid: int, *tids: int) -> None:
    for tid in tids:
        (proc / str(pid) / 'task' / str(tid)).mkdir(parents=True, exist_ok=True)


def test_threads_are_the_nodes_own_and_whom_these_start(tmp_path: Path) -> None:
    fake(tmp_path, 5, 5, 51)
    fake(tmp_path, 6, 6)
    threads = NodeThreads([5, 6], tmp_path)
    assert threads.processes() == {5: 5, 51: 5, 6: 6}
    fake(tmp_path, 5, 52)
    threads.look()
    assert threads.processes()[52] == 5
    fork, other = 'sched_process_fork', 'axl_submit'
    events = ((51, fork, 53), (53, fork, 54), (99, fork, 100), (51, other, 101), (51, fork, 6))
    threads.follow(
        event(at, name, tid, child_pid=child) for at, (tid, name, child) in enumerate(events)
    )
    assert threads.processes() == {5: 5, 51: 5, 52: 5, 53: 5, 54: 5, 6: 6}
    assert threads.pids == [5, 6]


# The command, on real processes of this machine, whatever its kernel lets it read.


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


def test_a_result_that_can_not_be_written_is_printed_nevertheless(tmp_path: Path) -> None:
    with measuring(tmp_path, '--seconds', 600, command=nodes_command()) as (process, _):
        (tmp_path / 'timeline.json').mkdir()
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=120)
    assert process.returncode == 2
    *told, verdict, error = rest.splitlines()
    assert any(line.startswith('I4 ') for line in told) and verdict in ('FAIL', 'NOT MEASURED')
    assert 'timeline.json' in error and error.endswith('; name another folder with --output')


@pytest.mark.parametrize(
    ('options', 'named'),
    [
        (['--seconds', 'nan'], '--seconds is nan'),
        (['--pid', '1', '--', 'true'], '--pid names running nodes'),
        (['--pid', '4194305'], 'no such process'),
        (['--', 'true'], 'the command has ended'),
        (['--wait', '1', '--', 'sleep', '60'], 'started no node within 1 s'),
        (['--output', '/proc/nowhere'], "'/proc/nowhere'; name another folder with --output"),
    ],
)
def test_wrong_use_is_told_in_a_sentence(
    options: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(['--output', str(tmp_path), *options]) == 2
    told = capsys.readouterr().err
    assert named in told and told.startswith('zc_verify: ') and told.count('\n') == 1


def test_it_and_the_readers_of_frame_logs_start_without_what_takes_long_to_import() -> None:
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
