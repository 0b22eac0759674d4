"""Threads of nodes: those that are there, and those that come and go."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from verify.verify_kit import event

from zc_perception.verify.evidence.processes import all_pids, command_name, threads_of
from zc_perception.verify.watched_node import NodeThreads


def test_own_process_and_threads_are_found() -> None:
    assert os.getpid() in all_pids()
    assert command_name(os.getpid()) == Path('/proc/self/comm').read_text().strip()
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    try:
        assert {os.getpid(), thread.native_id} <= set(threads_of(os.getpid()))
    finally:
        ends.set()
        thread.join()


def test_who_has_ended_has_nothing(tmp_path: Path) -> None:
    assert (all_pids(tmp_path / 'nothing'), threads_of(5, tmp_path), command_name(5, tmp_path)) == ([], [], '')


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
        event(1, 'sched_process_fork', 51, comm='python', pid=51, child_comm='python', child_pid=53),
        event(2, 'sched_process_fork', 53, comm='python', pid=53, child_comm='python', child_pid=54),
        event(3, 'sched_process_fork', 99, comm='sh', pid=99, child_comm='sh', child_pid=100),
        event(4, 'axl_submit', 51, child_pid=101),
        event(5, 'sched_process_fork', 51, child_pid=6),
    ]
    threads.follow(forks)
    assert threads.processes() == {5: 5, 51: 5, 52: 5, 53: 5, 54: 5, 6: 6}
    assert threads.pids == [5, 6]
