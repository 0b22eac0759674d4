"""Programs as services: what systemd hears of a real program, while it works, while the camera is gone, and when it hangs."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes.programs import PERCEPTION_READY, Program, parameters

TIMEOUT_S = 60.0
WATCHDOG_US = '600000'


class Systemd:
    """Listens at $NOTIFY_SOCKET."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / 'notify'))
        self.socket.settimeout(TIMEOUT_S)

    def hears(self, wanted: str, count: int = 1) -> list[str]:
        """Everything up to the *count*-th such message."""
        heard: list[str] = []
        while sum(message.startswith(wanted) for message in heard) < count:
            heard.append(self.socket.recv(4096).decode())
        return heard


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Systemd]:
    systemd = Systemd(tmp_path)
    monkeypatch.setenv('NOTIFY_SOCKET', systemd.socket.getsockname())
    monkeypatch.setenv('WATCHDOG_USEC', WATCHDOG_US)
    monkeypatch.setenv('WATCHDOG_PID', str(os.getpid()))  # as of ros2 launch, whose child the program is
    yield systemd
    systemd.socket.close()


def test_a_program_is_ready_lives_and_stops(systemd: Systemd, free_domain: int) -> None:
    with Program('perception', domain=free_domain).start(*PERCEPTION_READY) as program:
        heard = systemd.hears('WATCHDOG=1', 4)
        assert heard[0] == 'READY=1' and any(line.startswith('STATUS=') and '/diagnostics' in line for line in heard)
        assert program.interrupt() == 0, program.output
        assert systemd.hears('STOPPING=1')[-1] == 'STOPPING=1'


def test_a_camera_that_is_waited_for_is_no_reason_to_be_restarted(systemd: Systemd, free_domain: int) -> None:
    args = parameters(camera='v4l2', device='/dev/video77')
    with Program('capture_node', *args, domain=free_domain).start('the camera is not there: ') as program:
        systemd.hears('READY=1')
        systemd.hears('WATCHDOG=1', 6)
        assert program.interrupt() == 0, program.output


def test_a_container_is_ready_lives_and_stops(systemd: Systemd, free_domain: int) -> None:
    with Program('component_container', domain=free_domain).start('ready: ') as program:
        assert systemd.hears('WATCHDOG=1', 4)[0] == 'READY=1'
        assert program.interrupt() == 0, program.output
        assert systemd.hears('STOPPING=1')[-1] == 'STOPPING=1'


def test_a_program_that_is_stopped_says_nothing_more(systemd: Systemd, free_domain: int) -> None:
    # Only a child of ours can be waited for until it has stopped.
    with Program('overlay_node', domain=free_domain, cold=True).start('[overlay]: ready') as program:
        systemd.hears('WATCHDOG=1', 2)
        program.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, program.process.pid, os.WSTOPPED | os.WNOWAIT)
        systemd.socket.settimeout(0.0)
        while True:
            try:
                systemd.socket.recv(4096)
            except BlockingIOError:
                break
        systemd.socket.settimeout(1.5)
        with pytest.raises(TimeoutError):
            systemd.hears('WATCHDOG=1')
        program.process.send_signal(signal.SIGCONT)
        assert program.interrupt() == 0, program.output
