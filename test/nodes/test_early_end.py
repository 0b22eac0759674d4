"""An interrupt while a program still imports ends it with 0 and without a word."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from nodes.programs import BIN, environment

_SIGTERM_BIT = 1 << (signal.SIGTERM - 1)


def caught(pid: int) -> int:
    """Signals that have a handler."""
    status = Path(f'/proc/{pid}/status').read_text(encoding='ascii')
    return int(status.split('SigCgt:')[1].split()[0], 16)


@pytest.mark.parametrize('program', ['capture_node', 'perception', 'component_container'])
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_as_soon_as_python_runs_our_code(program: str, number: signal.Signals, free_domain: int) -> None:
    running = subprocess.Popen(
        [str(BIN / program)], env=environment(free_domain), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        deadline = time.monotonic() + 60.0
        while not caught(running.pid) & _SIGTERM_BIT:  # Python has a handler of its own for SIGINT, none for SIGTERM
            assert time.monotonic() < deadline
        running.send_signal(number)
        said, _ = running.communicate(timeout=60)
        assert running.returncode == 0 and said == ''
    finally:
        running.kill()
