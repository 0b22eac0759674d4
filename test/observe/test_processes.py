"""What is read of processes in ``/proc``."""

from __future__ import annotations

from pathlib import Path

from zc_perception.observe.processes import all_pids, command_name, threads_of


def test_who_has_ended_has_nothing(tmp_path: Path) -> None:
    assert (
        all_pids(tmp_path / 'nothing'),
        threads_of(5, tmp_path),
        command_name(5, tmp_path),
    ) == ([], [], '')
