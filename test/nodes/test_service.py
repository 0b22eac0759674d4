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

"""
What systemd hears on a real datagram socket.

The protocol, and programs that work, wait for a camera, and hang.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import math
import os
from pathlib import Path
import socket

from nodes.programs import parameters, PERCEPTION_READY, Program
import pytest

from zc_perception.nodes.process import serve

TIMEOUT_S = 60.0
WATCHDOG_US = '600000'


class Systemd:
    """Listens at $NOTIFY_SOCKET."""

    def __init__(self, address: str | bytes) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(TIMEOUT_S)
        self.address = str(address)

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


Start = Callable[..., list[float | None]]


class Waiting:
    """A clock, and a wait that gives nothing for a number of times; it may come back early."""

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


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Start:
    """
    Serve with these variables; return how long each wait was.

    No wait lasts longer than *longest_s*. Each of *worries* is there once, and the last one from
    then on.
    """

    def start(
        address: str,
        timeout_us: str = '',
        turns: int = 1,
        worries: tuple[str, ...] = ('',),
        longest_s: float = math.inf,
    ) -> list[float | None]:
        monkeypatch.setenv('NOTIFY_SOCKET', address)
        monkeypatch.setenv('WATCHDOG_USEC', timeout_us)
        clock, left = Waiting(turns, longest_s), list(worries)
        serve(clock.wait, lambda: left.pop(0) if len(left) > 1 else left[0], clock)
        return clock.waits

    return start


@pytest.mark.usefixtures('no_fd_leak')
def test_abstract_addresses_are_understood(served: Start) -> None:
    name = f'zc-test-{os.getpid()}'
    listener = Systemd(b'\0' + name.encode())
    served('@' + name)
    assert listener.heard() == ['READY=1', 'STOPPING=1']
    listener.socket.close()


@pytest.mark.usefixtures('no_fd_leak')
@pytest.mark.parametrize('address', ['', '@', 'relative/path', 'vsock:2:1234', '/not/there'])
def test_a_manager_that_is_not_there_costs_nothing(served: Start, address: str) -> None:
    assert served(address) == [None]


@pytest.mark.parametrize(
    ('timeout_us', 'waits'),
    [('', None), ('0', None), ('-5', None), ('soon', None), ('6000000', 2.0)],
)
def test_the_watchdog_is_fed_where_there_is_one(
    served: Start, systemd: Systemd, timeout_us: str, waits: float | None
) -> None:
    assert served(systemd.address, timeout_us) == [waits]
    assert ('WATCHDOG=1' in systemd.heard()) is (waits is not None)


def test_it_is_fed_three_times_in_the_time_that_it_waits_and_not_while_there_is_a_worry(
    served: Start, systemd: Systemd
) -> None:
    waits = served(systemd.address, '3000000', 10, ('', '', '', 'the executor\nhangs'))
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


@pytest.fixture
def service(systemd: Systemd, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    """Make what starts next a service."""
    monkeypatch.setenv('NOTIFY_SOCKET', systemd.address)
    monkeypatch.setenv('WATCHDOG_USEC', WATCHDOG_US)
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
