"""What systemd hears on a real datagram socket: of a service manager, and of programs that work, wait for a camera, and hang."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from descriptors import open_descriptors
from nodes.programs import PERCEPTION_READY, Program, parameters

from zc_perception.nodes.service import ServiceManager

TIMEOUT_S = 60.0
WATCHDOG_US = '600000'


class Systemd:
    """Listens at $NOTIFY_SOCKET."""

    def __init__(self, address: str | bytes) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(TIMEOUT_S)

    def hears(self, wanted: str, count: int = 1) -> list[str]:
        """Everything up to the *count*-th such message."""
        heard: list[str] = []
        while sum(message.startswith(wanted) for message in heard) < count:
            heard.append(self.socket.recv(4096).decode())
        return heard

    def heard(self) -> list[str]:
        """Everything that has come."""
        messages: list[str] = []
        self.socket.settimeout(0.0)
        while True:
            try:
                messages.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                self.socket.settimeout(TIMEOUT_S)
                return messages


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    listening = Systemd(str(tmp_path / 'notify'))
    yield listening
    listening.socket.close()


def environ(systemd: Systemd, **values: str) -> dict[str, str]:
    return {'NOTIFY_SOCKET': str(systemd.socket.getsockname()), **values}


class Waiting:
    """A clock, and a wait of which nothing comes until there were so many; it may come back early."""

    def __init__(self, turns: int, longest_s: float) -> None:
        self.now = 100.0
        self.left = turns
        self.longest_s = longest_s
        self.waits: list[float | None] = []

    def __call__(self) -> float:
        return self.now

    def wait(self, timeout_s: float | None) -> bool:
        self.waits.append(timeout_s)
        self.now += min(timeout_s or 0.001, self.longest_s)
        self.left -= 1
        return self.left <= 0


def fed(
    environment: dict[str, str],
    turns: int = 1,
    proc: Path = Path('/proc'),
    worries: tuple[str, ...] = ('',),
    longest_s: float = math.inf,
) -> list[float | None]:
    """How long it was waited each time, if no wait lasts longer than *longest_s*. Of *worries* each is there once, and the last one from
    then on."""
    clock, left = Waiting(turns, longest_s), list(worries)
    with ServiceManager(environment, proc, clock) as manager:
        manager.ready()
        manager.feed_watchdog(clock.wait, lambda: left.pop(0) if len(left) > 1 else left[0])
        manager.stopping()
    return clock.waits


@pytest.mark.usefixtures('no_fd_leak')
def test_abstract_addresses_are_understood() -> None:
    name = f'zc-test-{os.getpid()}'
    listener = Systemd(b'\0' + name.encode())
    fed({'NOTIFY_SOCKET': '@' + name})
    assert listener.heard() == ['READY=1', 'STOPPING=1']
    listener.socket.close()


@pytest.mark.parametrize(
    'environment',
    [{'NOTIFY_SOCKET': address} for address in ('', '@', 'relative/path', 'vsock:2:1234')] + [{}],
)
def test_without_a_manager_nothing_is_said_or_opened(environment: dict[str, str]) -> None:
    before = open_descriptors()
    with ServiceManager({**environment, 'WATCHDOG_USEC': '1000000'}):
        assert open_descriptors() == before
    assert fed({**environment, 'WATCHDOG_USEC': '1000000'}) == [None]


def test_a_manager_that_is_gone_or_does_not_read_costs_nothing(systemd: Systemd) -> None:
    with ServiceManager(environ(systemd)) as manager:
        for _ in range(10_000):  # more than any socket's queue
            manager.ready()
        assert len(systemd.heard()) < 10_000
        os.unlink(systemd.socket.getsockname())
        manager.ready()
        assert systemd.heard() == []
    manager.ready()


@pytest.mark.parametrize(
    ('values', 'watched'),
    [
        ({}, False),
        ({'WATCHDOG_USEC': '0'}, False),
        ({'WATCHDOG_USEC': '-5'}, False),
        ({'WATCHDOG_USEC': 'soon'}, False),
        ({'WATCHDOG_USEC': '5000000', 'WATCHDOG_PID': 'x'}, False),
        ({'WATCHDOG_USEC': '5000000'}, True),
        ({'WATCHDOG_USEC': '5000000', 'WATCHDOG_PID': str(os.getpid())}, True),
        ({'WATCHDOG_USEC': '5000000', 'WATCHDOG_PID': str(os.getppid())}, True),
        ({'WATCHDOG_USEC': '5000000', 'WATCHDOG_PID': '4194304'}, False),
    ],
)
def test_the_watchdog_is_fed_where_it_waits_for_us_or_for_who_started_us(
    systemd: Systemd, values: dict[str, str], watched: bool
) -> None:
    (waited,) = fed(environ(systemd, **values))
    assert waited == (pytest.approx(5.0 / 3) if watched else None)
    assert ('WATCHDOG=1' in systemd.heard()) is watched


def test_a_watchdog_of_a_process_that_started_us_counts_in_the_child(systemd: Systemd) -> None:
    program = 'from zc_perception.nodes.service import ServiceManager as S; S().feed_watchdog(lambda _: True, str)'
    values = environ(systemd, WATCHDOG_USEC='5000000', WATCHDOG_PID=str(os.getpid()))
    subprocess.run(
        [sys.executable, '-c', program], env=os.environ | values, check=True, timeout=60
    )
    assert systemd.heard()[-1] == 'WATCHDOG=1'


def test_a_proc_that_cannot_be_read_is_no_reason_to_fail(systemd: Systemd, tmp_path: Path) -> None:
    values = environ(systemd, WATCHDOG_USEC='6000000', WATCHDOG_PID=str(os.getpid()))
    assert fed(values, proc=tmp_path / 'nothing') == [pytest.approx(2.0)]


def test_it_is_fed_three_times_in_the_time_that_it_waits_and_not_while_there_is_a_worry(
    systemd: Systemd,
) -> None:
    waits = fed(
        environ(systemd, WATCHDOG_USEC='3000000'), 10, worries=('', '', '', 'the executor\nhangs')
    )
    assert all(timeout is not None and 0.0 <= timeout <= 1.0 for timeout in waits)
    said = systemd.heard()
    assert (
        said.count('WATCHDOG=1') == 3
        and said[0] == 'READY=1'
        and said[1].startswith('STATUS=running')
    )
    assert said[-2:] == ['STATUS=the executor hangs', 'STOPPING=1'], (
        'each status once, in one line'
    )


def test_after_a_wait_that_ends_early_the_rest_is_waited_before_it_is_fed_again(
    systemd: Systemd,
) -> None:
    waits = fed(environ(systemd, WATCHDOG_USEC='3000000'), 6, longest_s=0.25)
    assert waits == pytest.approx([1.0, 0.75, 0.5, 0.25, 1.0, 0.75])
    assert systemd.heard().count('WATCHDOG=1') == 2


@pytest.fixture
def service(systemd: Systemd, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    """What starts next is a service."""
    for name, value in environ(systemd, WATCHDOG_USEC=WATCHDOG_US).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(
        'WATCHDOG_PID', str(os.getpid())
    )  # as of ros2 launch, whose child the program is
    return systemd


def test_a_program_is_ready_lives_and_stops(service: Systemd, free_domain: int) -> None:
    with Program('perception', domain=free_domain).start(*PERCEPTION_READY) as program:
        heard = service.hears('WATCHDOG=1', 4)
        assert heard[0] == 'READY=1' and any(
            line.startswith('STATUS=') and '/diagnostics' in line for line in heard
        )
        assert program.interrupt() == 0, program.output
        assert service.hears('STOPPING=1')[-1] == 'STOPPING=1'


def test_a_camera_that_is_waited_for_is_no_reason_to_be_restarted(
    service: Systemd, free_domain: int
) -> None:
    args = parameters(camera='v4l2', device='/dev/video77')
    with Program('capture_node', *args, domain=free_domain).start(
        'the camera is not there: '
    ) as program:
        service.hears('READY=1')
        service.hears('WATCHDOG=1', 6)
        assert program.interrupt() == 0, program.output


def test_a_container_is_ready_lives_and_stops(service: Systemd, free_domain: int) -> None:
    with Program('component_container', domain=free_domain).start('ready: ') as program:
        assert service.hears('WATCHDOG=1', 4)[0] == 'READY=1'
        assert program.interrupt() == 0, program.output
        assert service.hears('STOPPING=1')[-1] == 'STOPPING=1'


def test_a_program_that_is_stopped_says_nothing_more(service: Systemd, free_domain: int) -> None:
    # Only a child of ours can be waited for until it has stopped.
    with Program('overlay_node', domain=free_domain, cold=True).start(
        '[overlay]: ready'
    ) as program:
        service.hears('WATCHDOG=1', 2)
        program.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, program.process.pid, os.WSTOPPED | os.WNOWAIT)
        service.heard()
        service.socket.settimeout(1.5)
        with pytest.raises(TimeoutError):
            service.hears('WATCHDOG=1')
        program.process.send_signal(signal.SIGCONT)
        assert program.interrupt() == 0, program.output
