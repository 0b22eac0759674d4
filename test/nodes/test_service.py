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
Notifications to systemd, received on a real datagram socket.

The tests cover the protocol, and programs that work, wait for a camera, and hang.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
import os
from pathlib import Path
import socket
import threading
from typing import Any
from unittest.mock import Mock

from nodes.programs import parameters, Program
from nodes.ros_kit import overrides, spun
import pytest
import rclpy
from waiting import until

from zc_perception.errors import CameraLostError
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.perception import PerceptionGraph
from zc_perception.nodes.perception_node import PATIENCE_S
from zc_perception.nodes.process import Liveness, serve

TIMEOUT_S = 60.0
WATCHDOG_US = '600000'
SMALL = {'width': 128, 'height': 96}


class Systemd:
    """A receiver at ``$NOTIFY_SOCKET``."""

    def __init__(self, address: str | bytes) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(TIMEOUT_S)
        self.address = str(address)

    def hears(self, wanted: str, count: int = 1) -> list[str]:
        """Return all messages up to the *count*-th one that starts with *wanted*."""
        heard: list[str] = []
        while sum(message.startswith(wanted) for message in heard) < count:
            heard.append(self.socket.recv(4096).decode())
        return heard

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    with closing(Systemd(str(tmp_path / 'notify'))) as listening:
        yield listening


Start = Callable[..., list[float | None]]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Return a function that serves for some turns, and returns the length of each wait."""

    def start(
        address: str, timeout_us: str = '', worries: tuple[str, ...] = ('',)
    ) -> list[float | None]:
        """Serve for as many turns as there are worries."""
        monkeypatch.setenv('NOTIFY_SOCKET', address)
        monkeypatch.setenv('WATCHDOG_USEC', timeout_us)
        waits, now, left = list[float | None](), [100.0], list(worries)

        def wait(timeout_s: float | None) -> bool:
            waits.append(timeout_s)
            now[0] += timeout_s or 0.001
            return len(waits) >= len(worries)

        serve(wait, lambda: left.pop(0) if len(left) > 1 else left[0], lambda: now[0])
        return waits

    return start


@pytest.mark.usefixtures('no_fd_leak')
def test_abstract_addresses_are_understood_and_no_manager_costs_nothing(served: Start) -> None:
    for address in ('', '@', 'relative/path', 'vsock:2:1234', '/not/there'):
        assert served(address) == [None]
    name = f'zc-test-{os.getpid()}'
    with closing(Systemd(b'\0' + name.encode())) as listener:
        served('@' + name)
        assert listener.hears('STOPPING=1') == ['READY=1', 'STOPPING=1']


def test_the_watchdog_is_fed_where_there_is_one(served: Start, systemd: Systemd) -> None:
    for timeout_us, waits in (('0', None), ('-5', None), ('soon', None), ('6000000', 2.0)):
        assert served(systemd.address, timeout_us) == [waits]
        assert ('WATCHDOG=1' in systemd.hears('STOPPING=1')) is (waits is not None)


def test_it_is_fed_three_times_in_the_time_that_it_waits_and_not_while_there_is_a_worry(
    served: Start, systemd: Systemd
) -> None:
    worries = ('', '', '', *['the executor\nhangs'] * 7)
    waits = served(systemd.address, '3000000', worries)
    assert all(timeout is not None and 0.0 <= timeout <= 1.0 for timeout in waits)
    said = systemd.hears('STOPPING=1')
    assert said.count('WATCHDOG=1') == 3
    assert said[0] == 'READY=1' and said[1].startswith('STATUS=running')
    assert said[-2:] == ['STATUS=the executor hangs', 'STOPPING=1'], (
        'each status once, in one line'
    )


@pytest.fixture
def service(systemd: Systemd, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    """Set the environment so that the next program runs as a service."""
    monkeypatch.setenv('NOTIFY_SOCKET', systemd.address)
    monkeypatch.setenv('WATCHDOG_USEC', WATCHDOG_US)
    # As under ros2 launch, whose child the program is.
    monkeypatch.setenv('WATCHDOG_PID', str(os.getpid()))
    return systemd


def test_a_camera_that_is_waited_for_is_no_reason_to_be_restarted(
    service: Systemd, free_domain: int
) -> None:
    args = parameters(camera='v4l2', device='/dev/video77')
    mark = 'the camera is not there: '
    with Program('capture_node', *args, domain=free_domain).start(mark) as program:
        service.hears('READY=1')
        service.hears('WATCHDOG=1', 6)
        assert program.interrupt() == 0, program.output


def test_a_container_is_ready_lives_and_stops(service: Systemd, free_domain: int) -> None:
    with Program('component_container', domain=free_domain).start('ready: ') as program:
        assert service.hears('WATCHDOG=1', 4)[0] == 'READY=1'
        assert program.interrupt() == 0, program.output
        assert service.hears('STOPPING=1')[-1] == 'STOPPING=1'


# What nodes and executors report to a service's watchdog.
def node_of(done: int | None = 0, *, reason: str = '', name: str = '/capture') -> Mock:
    made = Mock(patience_s=3.0 if name == '/capture' else 60.0)
    made.get_fully_qualified_name.return_value = name
    made.progress.return_value, made.given_up.return_value = done, reason
    return made


class Scene:
    """Nodes, a clock, and an executor that runs its work on command."""

    def __init__(self, *nodes: Any) -> None:
        self.waiting: list[Callable[[], object]] = []
        self.now = 100.0
        executors = {'the executor': self.waiting.append}
        self.liveness = Liveness(lambda: nodes, executors, lambda: self.now)

    def after(self, seconds: float, *, run: bool = True) -> str:
        """Advance the clock; return the worry. The executor runs unless *run* is ``False``."""
        self.now += seconds
        if run:
            while self.waiting:
                self.waiting.pop()()
        return self.liveness.worry()


def test_who_stands_still_is_one_after_its_own_patience_and_none_when_it_moves_again() -> None:
    node = node_of()
    scene = Scene(node, node_of(name='/inference'))
    assert [scene.after(1.0) for _ in range(4)] == [''] * 4
    assert scene.after(1.0) == '/capture has made no progress for 4 s'
    node.progress.return_value = 1
    assert scene.after(1.0) == ''


def test_who_knows_why_may_stand_still_and_starts_anew_afterwards() -> None:
    node = node_of()
    scene = Scene(node)
    assert scene.after(3.0) == ''
    node.progress.return_value = None
    assert [scene.after(100.0) for _ in range(3)] == ['', '', '']
    node.progress.return_value = 0
    assert [scene.after(seconds) for seconds in (1.0, 3.0)] == ['', '']
    assert scene.after(1.0) != ''


def test_who_has_given_up_is_a_worry_at_once() -> None:
    scene = Scene(node_of(None, reason='no memory'))
    assert scene.after(0.1) == '/capture has given up: no memory'


def test_an_executor_that_runs_nothing_is_a_worry_and_is_asked_once() -> None:
    scene = Scene()
    assert scene.after(1.0) == ''
    for _ in range(3):
        scene.after(1.0, run=False)
    assert len(scene.waiting) == 1
    said = f'the executor has run nothing for {PATIENCE_S + 3:.0f} s'
    assert scene.after(PATIENCE_S, run=False) == said
    assert scene.after(1.0) == ''
    assert len(scene.waiting) == 1, 'asked again'


def test_real_nodes_say_how_far_they_are(context: rclpy.Context) -> None:
    values = {'capture': SMALL, 'inference': {'timeout': 4.0, 'threads': 1}}
    graph = PerceptionGraph(context, values)
    assert graph.capture.progress() is None, 'nothing flows yet'
    with spun(context, *graph.nodes) as group:
        until(lambda: (graph.capture.progress() or 0) > 5)
        until(lambda: graph.inference.processed > 5)
        until(lambda: graph.inference.progress() is not None)
        assert graph.inference.patience_s == PATIENCE_S + 8.0
        assert graph.overlay.progress() is None
        assert not any(node.given_up() for node in graph.nodes)
        assert Liveness(lambda: graph.nodes, {'the executor': group.soon}).worry() == ''


def test_a_camera_that_hangs_is_a_worry_and_one_that_is_lost_is_not(
    context: rclpy.Context,
) -> None:
    node = CaptureNode(context=context, parameter_overrides=overrides(SMALL))
    with spun(context, node):
        hangs, go_on = threading.Event(), threading.Event()
        read = node.camera.capture

        def hang() -> object:
            hangs.set()
            go_on.wait(60.0)
            return read()

        node.camera.capture = hang  # type: ignore[method-assign, assignment]
        assert hangs.wait(60.0)
        now = [0.0]
        liveness = Liveness(lambda: [node], {}, lambda: now[0])
        assert liveness.worry() == ''
        now[0] += PATIENCE_S + 1.0
        assert liveness.worry() == f'/capture has made no progress for {PATIENCE_S + 1:.0f} s'

        unplugged = Mock(side_effect=CameraLostError('it was unplugged'))
        node.camera.capture = unplugged  # type: ignore[method-assign]
        node.supervisor._open_camera = unplugged
        go_on.set()
        until(lambda: node.progress() is None)
        assert liveness.worry() == ''
