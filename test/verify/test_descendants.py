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

"""Descendants of this process: those that began meanwhile, also orphans, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import os
from pathlib import Path
import signal
import subprocess

from verify.verify_kit import event
from waiting import until

from zc_perception.observe.processes import process_state
from zc_perception.verify.measurement import NodeThreads
from zc_perception.verify.verification import Descendants


@contextmanager
def child(*words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def orphan() -> int:
    """Yield a grandchild whose parent has ended."""
    with child('sh', '-c', 'sleep 600 >/dev/null & echo $!') as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert parent.wait(60) == 0
    return pid


def test_only_what_began_meanwhile_counts() -> None:
    with child('sleep', '600') as before:
        descendants = Descendants()
        try:
            with child('sleep', '600') as later:
                assert descendants.has(later.pid)
            assert not any(map(descendants.has, (before.pid, os.getpid(), os.getppid(), 1)))
        finally:
            descendants.close()


def test_orphans_come_to_this_process_and_are_reaped() -> None:
    with child('true') as before, child('true') as other:
        until(lambda: (state := process_state(before.pid)) and state.ended)
        descendants = Descendants()
        try:
            pid = orphan()
            state = process_state(pid)
            assert state is not None and state.parent == os.getpid() and descendants.has(pid)
            os.kill(pid, signal.SIGKILL)
            until(lambda: (state := process_state(pid)) and state.ended)
            descendants.reap(other.pid)
            assert process_state(pid) is None
            # Processes from before are left to their own starters.
            assert process_state(before.pid) is not None
        finally:
            descendants.close()


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
    forks = [
        event(
            1, 'sched_process_fork', 51, comm='python', pid=51, child_comm='python', child_pid=53
        ),
        event(
            2, 'sched_process_fork', 53, comm='python', pid=53, child_comm='python', child_pid=54
        ),
        event(3, 'sched_process_fork', 99, comm='sh', pid=99, child_comm='sh', child_pid=100),
        event(4, 'axl_submit', 51, child_pid=101),
        event(5, 'sched_process_fork', 51, child_pid=6),
    ]
    threads.follow(forks)
    assert threads.processes() == {5: 5, 51: 5, 52: 5, 53: 5, 54: 5, 6: 6}
    assert threads.pids == [5, 6]
