"""Descendants of this process: those that began meanwhile, orphans too, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from verify.command_kit import wait_until

from zc_perception.verify.workload import Descendants, process_state


@contextmanager
def child(*words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def orphan() -> int:
    """A grandchild whose parent has ended."""
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
        wait_until(lambda: (state := process_state(before.pid)) and state.ended)
        descendants = Descendants()
        try:
            pid = orphan()
            state = process_state(pid)
            assert state is not None and state.parent == os.getpid() and descendants.has(pid)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: (state := process_state(pid)) and state.ended)
            descendants.reap(other.pid)
            assert process_state(pid) is None
            # Those that were there before are their own starters'.
            assert process_state(before.pid) is not None
        finally:
            descendants.close()


def test_afterwards_orphans_go_where_they_went() -> None:
    Descendants().close()
    pid = orphan()
    state = process_state(pid)
    os.kill(pid, signal.SIGKILL)
    assert state is not None and state.parent != os.getpid()
