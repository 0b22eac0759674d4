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

"""``zc_verify`` measures all nodes, completely, or names those left out; and its window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
from contextlib import contextmanager
from dataclasses import replace
import fcntl
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import time
from types import SimpleNamespace as Made
from typing import Any

from observe.frame_log_kit import made_entry, made_frame, note_frame
from processes import environment, is_alive, ran, ready
import pytest
from verify import verify_kit as kit
from verify.command_kit import measuring, nodes, nodes_command, result_in, verify, verify_command
from verify.verify_kit import event, FakeTracefs, MS, POOL, START
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
from zc_perception.verify import measurement, verification
from zc_perception.verify.evidence.kernel_events import open_instance, own_name, TraceInstance
from zc_perception.verify.invariants import all_checks
from zc_perception.verify.measurement import (
    Cameras,
    Ending,
    Measurement,
    memory_of,
    NodeThreads,
    Roots,
    WatchedNode,
)
from zc_perception.verify.observation import NodeView, Observation
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


def test_a_kernel_agrees_with_the_logs_and_memory_below_udmabuf_is_looked_for(
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
        checks = measure(kernel)
        assert [checks[name].holds for name in ('I1', 'I2', 'I3')] == [True, True, True], checks
        assert checks['I3'].figures['kernel_submits'] == checks['I1'].figures['frames'] >= 4
        assert told not in checks['I4'].reason
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


# The measuring window and the nodes' counters begin and end together.
EVERY = 40


class Pipeline:
    """Two nodes of this process, which make a frame and a copy at each wait."""

    def __init__(
        self, capture: FrameLog, inference: FrameLog, every: int = 5, later: int = 0
    ) -> None:
        self._capture, self._inference = capture, inference
        self._every, self._later = every, later
        self.frames = self.copies = 0

    def wait(self, seconds: float) -> bool:
        """Make a frame and a copy in place of waiting."""
        self.frames += 1
        self.copies += 1
        note_frame(self._capture, self._inference, self.frames)
        if self.frames % self._every == 0:
            self._describe(self._capture)
        if self.frames % self._every == self._later:
            self._describe(self._inference)
        return False

    def _describe(self, log: FrameLog) -> None:
        copies = {'draw': {'count': self.copies, 'bytes': 1}}
        log.describe({'copies': copies, 'processed': self.frames, 'accelerator': 'axl'})

    def book(self) -> None:
        """Add copies of another process's work, which the next counters report."""
        self.copies += 1000
        self._describe(self._capture)


@contextmanager
def pipeline(**how: int) -> Iterator[Pipeline]:
    with (
        FrameLog('capture', '/made/capture') as capture,
        FrameLog('inference', '/made/inference') as inference,
    ):
        yield Pipeline(capture, inference, **how)


def watch(
    tmp_path: Path, wait: Callable[[float], bool], frames: int = 20, **options: bool
) -> tuple[Ending, Observation]:
    """Measure this process's nodes for some frames, on a kernel that shows nothing."""
    roots = Roots(tracing=tmp_path / 'tracing', debugfs=tmp_path / 'debug')
    with (
        find_frame_logs(pids=[os.getpid()]) as logs,
        Measurement(roots, memmove_probe=False, **options) as measured,
    ):
        return measured.watch(logs, 60, frames, wait, lambda: True), measured.observation()


def booked(node: NodeView) -> int:
    return node.copies()['draw']


def test_what_is_copied_behind_the_window_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipeline() as made:
        sampler = Made(
            start=made.book, drain=made.book, kept=lambda pid: 10**6, stop=dict, close=lambda: None
        )
        monkeypatch.setattr(measurement, 'open_sampler', lambda pids: sampler)
        ending, seen = watch(tmp_path, made.wait)
    assert ending is Ending.FRAMES and made.copies > 1000
    assert [booked(node) < 1000 for node in seen.nodes] == [True, True]


@pytest.mark.parametrize('later', [0, 2])
def test_counters_and_frames_are_of_the_same_time(tmp_path: Path, later: int) -> None:
    with pipeline(every=EVERY, later=later) as made:
        _, seen = watch(tmp_path, made.wait, sampling=False)
    frames = len(seen.all_submitted())
    assert frames >= 20
    # Nothing of the window is missing. Extra counts come from between the renewals of several
    # nodes.
    besides = 2 if not later else 2 * EVERY
    assert all(frames <= booked(node) <= frames + besides for node in seen.nodes)


def test_a_signal_does_not_cut_off_what_the_nodes_count(tmp_path: Path) -> None:
    with pipeline(every=7) as made:

        def wait(seconds: float) -> bool:
            return made.wait(seconds) or made.frames > 30

        ending, seen = watch(tmp_path, wait, frames=0, sampling=False)
    frames = len(seen.all_submitted())
    assert ending is Ending.WANTED and frames > 7
    assert all(node.described and frames <= booked(node) <= frames + 2 for node in seen.nodes)


def test_jobs_in_flight_at_the_end_are_waited_for(tmp_path: Path) -> None:
    """The counters are renewed at once, the frame's record comes later."""
    with FrameLog('inference', '/made/inference') as log:
        submitted: list[int] = []
        count = 0

        def wait(seconds: float) -> bool:
            nonlocal count
            count += 1
            submitted.append(time.monotonic_ns())
            log.describe({'processed': count})
            if len(submitted) > 4:  # five jobs at a time
                at = submitted.pop(0)
                entry = made_entry(made_frame(count), at, at, at, handle=1, device_seqno=count)
                log.processed(entry, at, at, at, 1)
            return False

        _, seen = watch(tmp_path, wait, sampling=False)
    assert seen.nodes[0].records[-1].submitted_ns > seen.end_ns


def test_all_maps_are_looked_at_before_the_window_and_it_is_known_since_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    scan = measurement.scan_maps

    def noted(*arguments: Any, **named: Any) -> Any:
        looks.append(time.monotonic_ns())
        return scan(*arguments, **named)

    monkeypatch.setattr(measurement, 'scan_maps', noted)
    with pipeline() as made:
        _, seen = watch(tmp_path, made.wait, sampling=False)
    assert 0 < seen.looked_ns < looks[0] < seen.start_ns


def test_a_node_that_ends_before_it_has_told_its_counters_has_ended() -> None:
    for end_first in (True, False):
        with (
            FrameLog('capture', '/made/node') as log,
            find_frame_logs(pids=[os.getpid()]) as (reader,),
        ):
            log.describe({'n': 1})
            watched = WatchedNode(reader)
            watched.expect_facts()
            steps = [log.close, watched.keep_facts]
            for step in steps if end_first else reversed(steps):
                step()
                watched.read()
        assert (watched.ended_ns > 0, watched.counted) == (end_first, not end_first)


# Frames whose origin can't be proved.


MIDDLE = START + 10 * kit.PERIOD


def only_i4(holds: bool | None) -> dict[str, bool | None]:
    return {'I1': True, 'I2': True, 'I3': True, 'I4': holds}


def reason(seen: Observation) -> str:
    return all_checks(seen)[3].reason


def of_other_buffers(seen: Observation) -> Observation:
    """Let the watched capture node use other buffers than the submitted ones."""
    both = (*POOL, *(inode + 10 for inode in POOL))
    seen = replace(seen, exporters=dict.fromkeys(both, 'system'), dmabufs=frozenset(both))
    return kit.with_records(
        seen, lambda old: old._replace(inodes=(old.inodes[0] + 10,)), role='capture'
    )


def test_frames_of_a_node_that_is_not_seen_are_not_measured() -> None:
    seen = of_other_buffers(kit.cached_graph())
    assert kit.verdicts(seen) == only_i4(None)
    assert (
        reason(seen)
        == f'20 frames that /inference (process {kit.PID}) got come from a node that is not '
        'measured'
    )
    assert 'measure all nodes of the pipeline' in all_checks(seen)[3].next_step


@pytest.mark.parametrize('when', ['before', 'after'])
def test_a_pool_at_either_end_of_the_window_is_known(when: str) -> None:
    """After a format change, frames of the old or the new pool are submitted."""
    seen = of_other_buffers(kit.cached_graph())
    pool = {'pool': [[12, inode] for inode in POOL]}
    before, after = (pool, {}) if when == 'before' else ({}, pool)
    assert kit.verdicts(kit.with_facts(seen, 'capture', before, **after)) == only_i4(True)
    elsewhere = {'pool': [[13, inode] for inode in POOL]}
    assert kit.verdicts(kit.with_facts(seen, 'capture', elsewhere, **elsewhere)) == only_i4(None)


def test_a_frame_from_before_the_window_may_be_of_a_pool_that_is_gone() -> None:
    seen = kit.cached_graph()
    lost = (POOL[0],)
    gone = kit.with_records(seen, lambda old: old if old.inodes != lost else None, role='capture')
    assert kit.verdicts(gone) == only_i4(None)
    before = START - MS
    early = kit.with_records(
        gone, lambda old: old._replace(published_ns=before) if old.inodes == lost else old
    )
    assert kit.verdicts(early) == only_i4(True)


def test_memory_below_udmabuf_is_not_measured_where_somebody_has_it() -> None:
    line = 'process 7 (x) maps memfd 5 of 4096 bytes'
    other = kit.cached_graph(backing=(line,))
    assert kit.verdicts(other) == only_i4(True)
    seen = replace(other, exporters=dict.fromkeys(POOL, 'udmabuf'))
    assert kit.verdicts(seen) == only_i4(None) and line in reason(seen)
    assert kit.verdicts(replace(seen, backing=())) == only_i4(True)


def test_pages_that_may_be_held_without_a_mapping_are_not_measured() -> None:
    line = 'process 7 (x) has a pipe with 65536 bytes in it'
    seen = kit.cached_graph(pins=(line,))
    assert kit.verdicts(seen) == only_i4(None) and line in reason(seen)
    assert 'the program that reads one of these pipes too slowly' in all_checks(seen)[3].next_step


@pytest.mark.parametrize('second', [['a pipe'], []])
def test_a_pipe_that_becomes_empty_in_a_moment_holds_nothing(
    second: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([['a pipe'], second])
    monkeypatch.setattr(measurement, 'find_pins', lambda proc: next(looks))
    measured = Measurement()
    measured._look_at_pins()
    assert measured.observation().pins == second


BEFORE = [('dma_buf_mmap_internal', {'ino': POOL[1]}), ('vb2_mmap', {'rdev': 81 << 20})]


@pytest.mark.parametrize(('name', 'fields'), BEFORE)
def test_a_mapping_between_the_first_look_and_the_window_may_have_ended_in_it(
    name: str, fields: dict[str, int]
) -> None:
    seen = kit.cached_graph(looked_ns=START - 100 * MS)
    mapped = kit.event(START - 50 * MS, name, 4242, **fields)
    unsure = kit.with_events(seen, mapped)
    assert kit.verdicts(unsure) == only_i4(None)
    assert 'frames were mapped 1 times just before the measured time' in reason(unsure)
    early = kit.with_events(seen, replace(mapped, time_ns=START - 150 * MS))
    assert kit.verdicts(early) == only_i4(True), 'the first look would have shown it'
    again = kit.with_events(unsure, replace(mapped, time_ns=MIDDLE))
    assert kit.verdicts(again) == only_i4(False)


@pytest.mark.parametrize(
    'cameras', [{'camera_rdevs': frozenset[int]()}, {'lost_cameras': frozenset(('/dev/video7',))}]
)
def test_a_camera_of_unknown_number_may_be_any_device_that_a_node_maps(
    cameras: dict[str, Any],
) -> None:
    seen = kit.cached_graph(**cameras)
    assert kit.verdicts(seen) == only_i4(True)
    mapped = kit.event(MIDDLE, 'vb2_mmap', rdev=(81 << 20) + 2)
    assert kit.verdicts(kit.with_events(seen, mapped)) == only_i4(False)
    assert kit.verdicts(kit.with_events(seen, replace(mapped, tid=4242))) == only_i4(True)
    assert kit.verdicts(kit.with_events(kit.cached_graph(), mapped)) == only_i4(True)
    # A camera that nobody names may be any device that anybody maps.
    any_camera, by_anybody = kit.cached_graph(any_camera=True), replace(mapped, tid=4242)
    assert kit.verdicts(kit.with_events(any_camera, by_anybody)) == only_i4(None)
    assert kit.verdicts(kit.with_events(kit.cached_graph(), by_anybody)) == only_i4(True)
    assert kit.verdicts(any_camera) == only_i4(True)


@pytest.mark.parametrize(
    ('device', 'exporter', 'wanted'),
    [
        ('/dev/video0 (vivid)', 'videobuf2_vmalloc', False),
        ('v4l2src ! appsink', 'videobuf2_vmalloc', True),
        ('pattern', 'system', False),
    ],
)
def test_a_camera_is_unnamed_if_its_frames_are_of_a_device_that_it_does_not_name(
    device: str, exporter: str, wanted: bool
) -> None:
    memory = memory_of([capture_node(5, device, [[12, 41]])], {}, Cameras(), {41: exporter})
    assert memory.any_camera is wanted and memory.dmabufs == {41}


def capture_node(pid: int, device: str, pool: Sequence[Sequence[int]] = ()) -> Any:
    facts = {'device': device, 'pool': pool}
    return Made(role='capture', pid=pid, facts=lambda: facts, before=facts, records=())


def test_a_camera_is_what_its_node_sees_under_that_name(tmp_path: Path) -> None:
    """In a container, for example, /dev/zero may be another device than ours of that name."""
    dev = tmp_path / '5' / 'root' / 'dev'
    dev.mkdir(parents=True)
    (dev / 'zero').symlink_to('/dev/null')
    (dev / 'front').symlink_to('zero')
    (tmp_path / '6' / 'root').mkdir(parents=True)
    cameras = Cameras(tmp_path)
    devices = ('/dev/zero (vivid)', '/dev/front', 'libcamera 1')
    cameras.look([capture_node(5, device) for device in devices])
    null = os.stat('/dev/null').st_rdev
    assert (
        cameras.numbers == {os.major(null) << 20 | os.minor(null)} and cameras.lost == frozenset()
    )
    assert {'/dev/zero', '/dev/front'} <= cameras.paths
    cameras.look([capture_node(6, '/dev/zero')])
    assert cameras.lost == {'/dev/zero'}
    (tmp_path / '6' / 'root').rmdir()
    (tmp_path / '6' / 'root').symlink_to('/')
    cameras.look([capture_node(6, '/dev/zero')])
    zero = os.stat('/dev/zero').st_rdev
    assert cameras.lost == frozenset() and os.major(zero) << 20 | os.minor(zero) in cameras.numbers
