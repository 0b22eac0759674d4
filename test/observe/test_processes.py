"""What is read of processes in ``/proc``."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from zc_perception.observe.processes import all_pids, command_name, threads_of


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
    assert (
        all_pids(tmp_path / 'nothing'),
        threads_of(5, tmp_path),
        command_name(5, tmp_path),
    ) == ([], [], '')
