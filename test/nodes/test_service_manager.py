"""What systemd hears, on a real datagram socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from descriptors import open_descriptors

from zc_perception.nodes.service_manager import Heartbeat, ServiceManager

pytestmark = pytest.mark.usefixtures('no_fd_leak')


class Listener:
    """systemd's end."""

    def __init__(self, address: str | bytes) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.setblocking(False)

    def heard(self) -> list[str]:
        """Everything since the last call."""
        messages = []
        while True:
            try:
                messages.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return messages


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    listener = Listener(str(tmp_path / 'notify'))
    yield listener
    listener.socket.close()


def environment(listener: Listener, **values: str) -> dict[str, str]:
    return {'NOTIFY_SOCKET': str(listener.socket.getsockname()), **values}


def test_what_is_said(listener: Listener) -> None:
    with ServiceManager(environment(listener, WATCHDOG_USEC='3000000')) as manager:
        assert manager.watchdog_s == 3.0 and manager.period_s == 1.0
        manager.ready()
        manager.alive()
        manager.status('two\nlines')
        manager.status('two lines')
        manager.stopping()
        assert listener.heard() == ['READY=1', 'WATCHDOG=1', 'STATUS=two lines', 'STOPPING=1']


def test_abstract_addresses_are_understood() -> None:
    name = f'zc-test-{os.getpid()}'
    listener = Listener(b'\0' + name.encode())
    with ServiceManager({'NOTIFY_SOCKET': '@' + name}) as manager:
        manager.ready()
    assert listener.heard() == ['READY=1']
    listener.socket.close()


@pytest.mark.parametrize('environ', [{'NOTIFY_SOCKET': address} for address in ('', '@', 'relative/path', 'vsock:2:1234')] + [{}])
def test_without_a_manager_nothing_is_said_or_opened(environ: dict[str, str]) -> None:
    before = open_descriptors()
    with ServiceManager({**environ, 'WATCHDOG_USEC': '1000000'}) as manager:
        assert open_descriptors() == before and manager.period_s is None
        manager.ready()
        manager.alive()
        manager.stopping()


def test_a_manager_that_is_gone_or_does_not_read_costs_nothing(listener: Listener) -> None:
    with ServiceManager(environment(listener, WATCHDOG_USEC='1000000')) as manager:
        for _ in range(10_000):  # more than any socket's queue
            manager.alive()
        assert len(listener.heard()) < 10_000
        os.unlink(listener.socket.getsockname())
        manager.ready()
        assert listener.heard() == []
    manager.close()
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
def test_the_watchdog_is_fed_where_it_waits_for_us_or_for_who_started_us(listener: Listener, values: dict[str, str], watched: bool) -> None:
    with ServiceManager(environment(listener, **values)) as manager:
        manager.alive()
        assert listener.heard() == (['WATCHDOG=1'] if watched else [])
        assert manager.period_s == (pytest.approx(5.0 / 3) if watched else None)


def test_a_watchdog_of_a_process_that_started_us_counts_in_the_child(listener: Listener) -> None:
    program = 'from zc_perception.nodes.service_manager import ServiceManager as S; m = S(); m.ready(); m.alive()'
    values = environment(listener, WATCHDOG_USEC='5000000', WATCHDOG_PID=str(os.getpid()))
    subprocess.run([sys.executable, '-c', program], env=os.environ | values, check=True, timeout=60)
    assert listener.heard() == ['READY=1', 'WATCHDOG=1']


def test_a_proc_that_cannot_be_read_is_no_reason_to_fail(listener: Listener, tmp_path: Path) -> None:
    values = environment(listener, WATCHDOG_USEC='5000000', WATCHDOG_PID=str(os.getpid()))
    with ServiceManager(values, proc=tmp_path / 'nothing') as manager:
        assert manager.watchdog_s == 5.0


class Clock:
    """Seconds that pass when somebody waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_heart_beats_three_times_in_the_time_that_the_watchdog_waits_and_stops_when_there_is_a_worry(listener: Listener) -> None:
    clock, worry = Clock(), ['']
    with ServiceManager(environment(listener, WATCHDOG_USEC='3000000')) as manager:
        heart = Heartbeat(manager, lambda: worry[0], clock)
        waits = 0

        def wait(timeout_s: float | None) -> bool:
            nonlocal waits
            assert timeout_s is not None and 0.0 <= timeout_s <= 1.0
            clock.now += timeout_s or 0.001
            waits += 1
            worry[0] = 'the executor hangs' if waits > 6 else ''
            return waits > 9

        heart.wait(wait)
    said = listener.heard()
    assert said.count('WATCHDOG=1') in (6, 7)
    assert said[0].startswith('STATUS=running') and said[-1] == 'STATUS=the executor hangs', said


def test_without_a_watchdog_the_heart_sleeps(listener: Listener) -> None:
    with ServiceManager(environment(listener)) as manager:
        waited: list[float | None] = []
        Heartbeat(manager).wait(lambda timeout_s: waited.append(timeout_s) is None)
        assert waited == [None]
        assert listener.heard() == []


def test_a_beat_that_comes_early_is_none(listener: Listener) -> None:
    clock = Clock()
    with ServiceManager(environment(listener, WATCHDOG_USEC='3000000')) as manager:
        heart = Heartbeat(manager, monotonic=clock)
        assert heart.beat() == pytest.approx(1.0)
        clock.now += 0.25
        assert heart.beat() == pytest.approx(0.75)
        assert listener.heard().count('WATCHDOG=1') == 1
