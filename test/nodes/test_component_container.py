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

"""The container's answers to a real client are those of rclcpp's container, whatever is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
import signal
import threading
import time
from typing import Any

from faults.holdings import holding, resident_bytes
from long_form import LONG
from nodes.container_kit import Client, Container, install
import pytest
import rclpy
from rclpy.node import NodeNameNonExistentError
from waiting import until

from zc_perception.nodes.container import ContainerExecutor

THREW = 'Component constructor threw an exception: '
NO_PLUGIN = 'Failed to find class with the requested plugin name.'
#: Answers that clients may compare literally: plugin, package, other fields, answer.
EXACT: list[tuple[str, str, dict[str, Any], str]] = [
    ('Quiet', 'zoos', {}, 'Could not find requested resource in ament index'),
    ('zoo::Quite', 'zoo', {}, NO_PLUGIN),
    ('elsewhere::Quiet', 'ours', {}, NO_PLUGIN),
    ('RaisesAfterNode', 'zoo', {}, THREW + 'ValueError: first line second line'),
    ('Exits', 'zoo', {}, THREW + 'SystemExit: no camera, goodbye'),
    ('RaisesBytes', 'zoo', {}, THREW + 'OSError: bad \\udcff\\ud800 end\\x00 of it'),
    ('RaisesOdd', 'zoo', {}, THREW + '_Odd'),
    (
        'Quiet',
        'zoo',
        {'extra': {'enable_rosout': 1}},
        "Extra component argument 'enable_rosout' must be a boolean",
    ),
]
#: Answers in our own words, with reason and next step: plugin, request, part of the answer.
CLEAR: list[tuple[str, dict[str, Any], str]] = [
    (
        'NoModule',
        {},
        "ModuleNotFoundError: No module named 'nodes.there_is_no_such_module'; try: python3 -c",
    ),
    (
        'NoAttribute',
        {},
        "Failed to load library: 'nodes.container_kit:Missing' of plugin "
        "'zoo::NoAttribute' can't be",
    ),
    ('ExitsAtImport', {}, 'SystemExit: no display'),
    ('NoNode', {}, 'is not a class derived from rclpy.node.Node'),
    ('Function', {}, 'is not a class derived from rclpy.node.Node'),
    ('HalfNode', {}, 'its constructor has to call super().__init__, and must not'),
    ('GoneNode', {}, "The container can't spin this node: InvalidHandle"),
    ('Quiet', {'parameters': {'size': 'large'}}, "'size'"),
    ('Quiet', {'remap_rules': ['words']}, "'words' can't be used: write it as 'from:=to'"),
    ('Quiet', {'node_name': 'a b'}, 'a b'),
    ('Quiet', {'log_level': 7}, 'log_level 7 is not a level; use 10 (debug), 20 (info), 30 '),
    (
        'Quiet',
        {'extra': {'enable_topic_statistics': True}},
        'rclpy has no topic statistics; leave it out',
    ),
]


@pytest.fixture(scope='module')
def container(module_domain: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    with Container(
        install(tmp_path_factory.mktemp('packages')), module_domain, cold=True
    ) as running:
        yield running
        assert running.interrupt() == 0, running.output


@pytest.fixture(scope='module')
def zoo_client(container: Container, module_domain: int) -> Iterator[Client]:
    with Client(module_domain) as made:
        yield made


@pytest.fixture
def zoo(zoo_client: Client) -> Iterator[Client]:
    """Yield a container with nothing loaded; unload everything at the end."""
    assert zoo_client.list() == {}
    yield zoo_client
    for unique_id in zoo_client.list():
        assert zoo_client.unload(unique_id).success


@pytest.mark.parametrize(
    ('plugin', 'package', 'options', 'message', 'exact'),
    [
        *((*answer, True) for answer in EXACT),
        *((plugin, 'zoo', options, part, False) for plugin, options, part in CLEAR),
    ],
)
def test_it_refuses_in_the_words_that_clients_know_or_says_why_not_and_what_to_do(
    plugin: str, package: str, options: dict[str, Any], message: str, exact: bool, zoo: Client
) -> None:
    answer = zoo.load(plugin, package, **options)
    assert (answer.success, answer.full_node_name, answer.unique_id) == (False, '', 0)
    said = answer.error_message
    assert said == message if exact else message in said
    assert zoo.list() == {} and '\n' not in said


def test_what_a_failed_constructor_has_made_leaves_the_graph_and_its_traceback_is_logged(
    zoo: Client, container: Container
) -> None:
    assert not zoo.load('RaisesAfterNode').success
    container.wait_for("raise ValueError('first line")
    unique_id = zoo.loaded('Ticking')  # the graph shows this node later
    until(lambda: 'ticking' in zoo.node.get_node_names(), 'the later one in the graph')
    until(lambda: 'half_made' not in zoo.node.get_node_names(), 'the half made one out of it')
    assert zoo.unload(unique_id).success


@pytest.mark.parametrize(
    ('plugin', 'package'),
    [
        ('zoo::Quiet', 'zoo'),
        ('zoo::inner::Quiet', 'zoo'),
        ('elsewhere::Quiet', 'zoo'),
        ('elsewhere::Quiet', 'elsewhere'),
    ],
)
def test_a_plugin_is_found_by_its_name_among_those_of_its_package(
    plugin: str, package: str, zoo: Client
) -> None:
    answer = zoo.load(plugin, package)
    assert answer.success, answer.error_message
    assert (answer.full_node_name, answer.error_message) == ('/quiet', '')


def test_ids_rise_are_never_used_again_and_are_unloaded_once(zoo: Client) -> None:
    first, second = zoo.loaded('Quiet'), zoo.loaded('Quiet', node_name='b')
    calls = [zoo.begin_unload(second) for _ in range(2)]
    assert sorted(zoo.answer(call).success for call in calls) == [False, True]
    third = zoo.loaded('Quiet', node_name='a')
    assert first < second < third
    assert list(zoo.list().items()) == [(first, '/quiet'), (third, '/a')]
    answer, said = zoo.unload(2**64 - 1), f'No node found with unique_id: {2**64 - 1}'
    assert (answer.success, answer.error_message) == (False, said), 'words that clients know'


def test_a_second_one_of_the_same_name_is_loaded_and_each_ends_by_its_id(zoo: Client) -> None:
    """As in rclcpp's container. A constructor may spin."""
    first, second = zoo.loaded('Ticking'), zoo.loaded('SpinsOnce')
    assert zoo.list() == {first: '/ticking', second: '/ticking'}
    assert zoo.unload(first).success
    assert zoo.list() == {second: '/ticking'}
    zoo.hears('/ticking/ticks')


@pytest.mark.parametrize(
    ('fields', 'full_name', 'topic'),
    [
        ({}, '/quiet', '/words'),
        ({'node_namespace': 'front'}, '/front/quiet', '/front/words'),
        ({'node_name': 'mine', 'node_namespace': '/front'}, '/front/mine', '/front/words'),
        (
            {'remap_rules': ['words:=speech', 'unused:=other'], 'node_namespace': '/front'},
            '/front/quiet',
            '/front/speech',
        ),
        # The first rule wins, and the request's rules come first.
        ({'remap_rules': ['__node:=ruled'], 'node_name': 'mine'}, '/ruled', '/words'),
    ],
)
def test_names_and_remaps_are_the_request_s(
    fields: dict[str, Any], full_name: str, topic: str, zoo: Client
) -> None:
    answer = zoo.load('Quiet', **fields)
    assert answer.full_node_name == full_name, answer.error_message
    name = full_name.rpartition('/')[2]
    # A node's name appears and disappears a little later than its endpoints.
    publishers = lambda: zoo.node.get_publishers_info_by_topic(topic)  # noqa: E731
    until(lambda: [info.node_name for info in publishers()] == [name], f'{name} on {topic}')


def test_arguments_that_rclpy_knows_reach_the_node_and_others_do_not(
    zoo: Client, container: Container
) -> None:
    extra = {
        'enable_rosout': False,
        'start_parameter_services': False,
        'enable_logger_service': True,
        'use_intra_process_comms': False,
        'enable_topic_statistics': False,
        'start_parameter_event_publisher': True,
        'use_clock_thread': False,
    }
    zoo.loaded('Quiet', node_name='given', extra=extra)
    container.wait_for(
        "/given: size 1, arguments {'use_global_arguments': False, 'enable_rosout': False, "
        "'start_parameter_services': False, "
    )
    unknown = {'use_intraprocess_comms': True}
    zoo.loaded('Quiet', node_name='left', parameters={'size': 42}, extra=unknown)
    container.wait_for("/left: size 42, arguments {'use_global_arguments': False}")
    container.wait_for(
        "extra argument 'use_intraprocess_comms' is unknown and has no effect; did you mean "
        "'use_intra_process_comms'?"
    )
    services: dict[str, list[str]] = {}

    def known() -> bool:
        with suppress(NodeNameNonExistentError):
            services.update(zoo.node.get_service_names_and_types_by_node('given', '/'))
        return '/given/set_logger_levels' in services

    until(known, 'its services')
    assert '/given/get_parameters' not in services
    zoo.loaded('Ticking', node_name='silent')
    zoo.loaded('Ticking', log_level=10, node_name='chatty')
    container.wait_for('[chatty]: a tick')
    assert '[silent]: a tick' not in container.output, "a log level is the component's alone"


def test_who_leaves_waits_for_a_callback_that_runs_and_none_comes_after_it(
    context: rclpy.Context,
) -> None:
    executor = ContainerExecutor(context, 'test', 1, lambda node, error: None, lambda: None)
    node = rclpy.create_node('leaver', context=context)
    begun, go_on, calls = threading.Event(), threading.Event(), []

    def tick() -> None:
        calls.append(1)
        begun.set()
        assert go_on.wait(60)

    node.create_timer(0.001, tick)
    executor.add_node(node)
    executor.start()
    assert begun.wait(60)
    assert not executor.leave(node, 0.01), 'it still runs'
    go_on.set()
    assert executor.leave(node, 60.0)
    number = len(calls)
    time.sleep(0.05)
    assert len(calls) == number
    assert executor.stop(60.0)
    node.destroy_node()


def test_the_end_of_the_context_is_told(context: rclpy.Context) -> None:
    ended = threading.Event()
    executor = ContainerExecutor(context, 'test', 2, lambda node, error: None, ended.set)
    executor.start()
    context.shutdown()
    assert ended.wait(60)
    assert executor.stop(60.0)
    assert executor.failure is None


# Components that misbehave: the container stays, answers, and ends in order.
CYCLES = 300 if LONG else 15
Start = Callable[..., tuple[Container, Client]]


@pytest.fixture
def start(free_domain: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    folder = install(tmp_path_factory.mktemp('packages'))
    with ExitStack() as stack:

        def begin(
            *args: str, name: str = '/ComponentManager', **options: Any
        ) -> tuple[Container, Client]:
            container = Container(folder, free_domain, *args, **options)
            stack.enter_context(container)
            return container, stack.enter_context(Client(free_domain, name))

        yield begin


def ended_in_time(container: Container, number: int = signal.SIGINT) -> None:
    """End the container, interpreter included, and check exit code and time."""
    begun = time.monotonic()
    assert container.interrupt(number) == 0, container.output
    assert time.monotonic() - begun < 30.0


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
    assert not zoo.done_within(slow, 0.1) and not later.done()
    (tmp_path / 'go_on').touch()
    slow_id, later_id = (zoo.answer(each).unique_id for each in (slow, later))
    assert first < slow_id < later_id
    assert zoo.list() == {slow_id: '/slow', later_id: '/later'}
    ended_in_time(container)


def test_what_callbacks_raise_is_said_and_the_others_go_on(start: Start) -> None:
    container, zoo = start()
    kinds = {'fragile': 'Fragile', 'leaver': 'ExitsInCallback'}
    ids = [zoo.loaded(kind, node_name=name) for name, kind in kinds.items()]
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


def test_a_managed_component_goes_down_step_by_step_and_one_that_won_t_end_is_reported(
    start: Start, tmp_path: Path
) -> None:
    container, zoo = start()
    assert zoo.unload(zoo.loaded('Stubborn')).success
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
    file = tmp_path / 'steps'
    assert zoo.unload(zoo.loaded('Managed', parameters={'file': str(file)})).success
    steps = ['configure', 'activate', 'deactivate', 'cleanup', 'stop', 'destroy']
    assert file.read_text().split() == steps
    file.unlink()
    zoo.loaded('Managed', parameters={'file': str(file)})
    ended_in_time(container, signal.SIGTERM)
    assert file.read_text().split() == steps


def test_global_arguments_are_the_container_s_unless_they_are_forwarded(start: Start) -> None:
    arguments = ('-r', '__node:=box', '-r', 'words:=global')
    values = ('-p', 'size:=5', '-p', 'thread_num:=4')
    container, zoo = start('--ros-args', *arguments, *values, name='/box')
    zoo.loaded('Quiet', node_name='mine')
    container.wait_for("/mine: size 1, arguments {'use_global_arguments': False}")
    zoo.loaded('Quiet', node_name='theirs', extra={'forward_global_arguments': True})
    container.wait_for("/theirs: size 5, arguments {'use_global_arguments': True}")
    count = zoo.node.count_publishers
    until(lambda: count('/global') == count('/words') == 1, 'both topics')
    for name in ('size', 'thread_num'):  # threads are a parameter of the other container
        container.wait_for(f"parameter '{name}' is not one of the container")


def test_cycles_leave_no_descriptor_no_thread_and_no_memory(start: Start) -> None:
    container, zoo = start()
    for _ in range(3):
        assert zoo.unload(zoo.loaded('Ticking')).success
    pid = container.process.pid
    before, resident = holding(pid), resident_bytes(pid)
    for _ in range(CYCLES):
        unique_id = zoo.loaded('Ticking', parameters={'size': 3}, remap_rules=['a:=b'])
        assert zoo.unload(unique_id).success
    assert unique_id == CYCLES + 3
    assert zoo.list() == {}
    until(lambda: holding(pid) <= before, lambda: f'{holding(pid)}, before: {before}')
    # rclpy's type description service alone leaks 5 MiB.
    assert resident_bytes(pid) - resident < 4 << 20
    services = zoo.node.get_service_names_and_types
    until(lambda: '/ticking' not in str(services()), 'nothing of it in the graph')
    ended_in_time(container)


def test_a_signal_ends_it_with_components_and_a_load_under_way(
    start: Start, tmp_path: Path
) -> None:
    threads = '--ros-args', '-p', 'thread_num:=3'
    container, zoo = start(*threads, program='component_container_mt', unload_s=5.0)
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
    (late,) = (line for line in container.lines if 'could not be unloaded in time' in line)
    assert len(unloaded) >= 2 and all(name in late for name in names if name not in unloaded)
    assert 'Traceback' not in container.output
