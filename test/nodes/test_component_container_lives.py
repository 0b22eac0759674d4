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

"""Components that misbehave: the container stays, answers, and ends in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
import signal
import time
from typing import Any

from long_form import LONG
from nodes.container_kit import Client, client, Container, install
import pytest
from waiting import until

CYCLES = 300 if LONG else 15
ENDS_S = 30.0
Start = Callable[..., tuple[Container, Client]]


@pytest.fixture
def start(free_domain: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    folder = install(tmp_path_factory.mktemp('packages'))
    running: list[Any] = []

    def begin(
        *args: str, name: str = '/ComponentManager', program: str = 'component_container'
    ) -> tuple[Container, Client]:
        running.append(Container(folder, free_domain, *args, program=program))
        container = running[-1].__enter__()
        running.append(client(free_domain, name))
        return container, running[-1].__enter__()

    yield begin
    for context in reversed(running):
        context.__exit__(None, None, None)


def ended_in_time(container: Container, number: int = signal.SIGINT) -> None:
    """End the container, interpreter included, and check exit code and time."""
    begun = time.monotonic()
    assert container.end(number) == 0, container.output
    assert time.monotonic() - begun < ENDS_S


def test_a_slow_constructor_keeps_neither_list_nor_unload_waiting_and_loads_wait_for_it(
    start: Start, tmp_path: Path
) -> None:
    container, zoo = start()
    first = zoo.loaded('Quiet')
    slow = zoo.begin_load('Slow', parameters={'folder': str(tmp_path)})
    until((tmp_path / 'begun').exists, 'the slow constructor')
    later = zoo.begin_load('Quiet', node_name='later')
    assert zoo.list() == {first: '/quiet'}
    assert zoo.unload(first).success
    assert zoo.list() == {}
    assert not slow.answered
    assert not later.answered
    (tmp_path / 'go_on').touch()
    slow_id, later_id = slow.answer().unique_id, later.answer().unique_id
    assert first < slow_id < later_id
    assert zoo.list() == {slow_id: '/slow', later_id: '/later'}
    ended_in_time(container)


def test_what_callbacks_raise_is_said_and_the_others_go_on(start: Start) -> None:
    container, zoo = start()
    ids = [
        zoo.loaded('Fragile', node_name='fragile'),
        zoo.loaded('ExitsInCallback', node_name='leaver'),
    ]
    zoo.loaded('Ticking')
    container.wait_for("a callback of '/fragile' has raised an exception; the container goes on.")
    container.wait_for('RuntimeError: a tick has failed')
    container.wait_for(
        "a callback of '/leaver' has raised an exception; the container goes on. To end a "
        'component, unload it.'
    )
    zoo.hears()
    zoo.hears()
    assert container.output.count("callback of '/fragile' has raised") == 1, (
        'the same again is not said each time'
    )
    assert [zoo.unload(unique_id).success for unique_id in ids] == [True, True]
    ended_in_time(container)


def test_a_hanging_callback_holds_up_others_of_its_thread_only(start: Start) -> None:
    container, zoo = start('--ros-args', '-p', 'thread_num:=2', program='component_container_mt')
    hanging = zoo.loaded('HangsInCallback', node_name='hanging')
    container.wait_for('a callback hangs')
    zoo.loaded('Ticking')
    zoo.hears()
    assert zoo.unload(hanging).success
    left = (
        "'/hanging': a callback still runs after 1 s; the node is destroyed now, but the "
        'thread stays busy until the callback returns'
    )
    container.wait_for(left)
    zoo.hears()
    ended_in_time(container)
    assert 'ends without waiting for: ' in container.output


def test_a_managed_component_goes_down_step_by_step(start: Start, tmp_path: Path) -> None:
    container, zoo = start()
    file = tmp_path / 'steps'
    unique_id = zoo.loaded('Managed', parameters={'file': str(file)})
    assert zoo.unload(unique_id).success
    steps = ['configure', 'activate', 'deactivate', 'cleanup', 'stop', 'destroy']
    assert file.read_text().split() == steps
    file.unlink()
    zoo.loaded('Managed', parameters={'file': str(file)})
    ended_in_time(container, signal.SIGTERM)
    assert file.read_text().split() == steps


def test_a_component_that_won_t_end_is_taken_down_and_reported(start: Start) -> None:
    container, zoo = start()
    unique_id = zoo.loaded('Stubborn')
    assert zoo.unload(unique_id).success
    assert zoo.list() == {}
    for text in (
        "'/ticking': stop() failed, unloading goes on",
        'it will not stop',
        'destroy_node() failed',
        'it will not be destroyed',
    ):
        container.wait_for(text)
    until(lambda: 'ticking' not in zoo.node.get_node_names(), 'out of the graph')
    zoo.loaded('Ticking')
    zoo.hears()
    ended_in_time(container)


def test_global_arguments_are_the_container_s_unless_they_are_forwarded(start: Start) -> None:
    arguments = ('-r', '__node:=box', '-r', 'words:=global', '-p', 'size:=5')
    container, zoo = start('--ros-args', *arguments, name='/box')
    zoo.loaded('Quiet', node_name='mine')
    container.wait_for("/mine: size 1, arguments {'use_global_arguments': False}")
    zoo.loaded('Quiet', node_name='theirs', extra={'forward_global_arguments': True})
    container.wait_for("/theirs: size 5, arguments {'use_global_arguments': True}")
    until(
        lambda: (
            zoo.node.count_publishers('/global') == 1 and zoo.node.count_publishers('/words') == 1
        ),
        'both topics',
    )
    container.wait_for("parameter 'size' is not one of the container")


def test_cycles_leave_no_descriptor_no_thread_and_no_memory(start: Start) -> None:
    container, zoo = start()
    for _ in range(3):
        assert zoo.unload(zoo.loaded('Ticking')).success
    descriptors, threads, resident = (
        container.descriptors(),
        len(container.threads()),
        container.resident_bytes(),
    )
    for _ in range(CYCLES):
        unique_id = zoo.loaded('Ticking', parameters={'size': 3}, remap_rules=['a:=b'])
        assert zoo.unload(unique_id).success
    assert unique_id == CYCLES + 3
    assert zoo.list() == {}
    until(
        lambda: container.descriptors() <= descriptors and len(container.threads()) <= threads,
        'no more than before',
    )
    assert (
        container.resident_bytes() - resident < 4 << 20
    )  # rclpy's type description service alone leaks 5 MiB
    until(
        lambda: (
            not [n for n, _ in zoo.node.get_service_names_and_types() if n.startswith('/ticking')]
        ),
        'nothing of it in the graph',
    )
    ended_in_time(container)


def test_a_signal_ends_it_with_components_and_a_load_under_way(
    start: Start, tmp_path: Path
) -> None:
    container, zoo = start('--ros-args', '-p', 'thread_num:=3', program='component_container_mt')
    assert '3 thread(s) for components' in container.output
    for count in range(4):
        zoo.loaded('Ticking', node_name=f'n{count}')
    zoo.loaded('NeverStops', node_name='stuck')
    zoo.begin_load('Slow', parameters={'folder': str(tmp_path)})
    until((tmp_path / 'begun').exists, 'the slow constructor')
    zoo.begin_load('Quiet')
    ended_in_time(container)
    assert "could not be unloaded in time: '/stuck'" in container.output
    names = [f"'/n{count}'" for count in range(4)]
    unloaded = [name for name in names if f'unloaded {name}' in container.output]
    # After the one that hangs, little time is left: on a busy machine another may be late, too.
    (late,) = (
        line for line in container.output.splitlines() if 'could not be unloaded in time' in line
    )
    assert len(unloaded) >= 2 and all(name in late for name in names if name not in unloaded)
    assert 'Traceback' not in container.output
