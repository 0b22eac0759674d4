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

"""The container's answers to a real client are those of rclcpp's container."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
import threading
import time
from typing import Any

from nodes.container_kit import Client, client, Container, install
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
        "Failed to load library: 'nodes.container_components:Missing' of plugin "
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
        assert running.end() == 0, running.output


@pytest.fixture(scope='module')
def zoo_client(container: Container, module_domain: int) -> Iterator[Client]:
    with client(module_domain) as made:
        yield made


@pytest.fixture
def zoo(zoo_client: Client) -> Iterator[Client]:
    """Yield a container with nothing loaded; unload everything at the end."""
    assert zoo_client.list() == {}
    yield zoo_client
    for unique_id in zoo_client.list():
        assert zoo_client.unload(unique_id).success


def refused(zoo: Client, plugin: str, package: str = 'zoo', **options: Any) -> str:
    answer = zoo.load(plugin, package, **options)
    assert (answer.success, answer.full_node_name, answer.unique_id) == (False, '', 0)
    assert zoo.list() == {} and '\n' not in answer.error_message
    return str(answer.error_message)


@pytest.mark.parametrize(('plugin', 'package', 'options', 'message'), EXACT)
def test_it_refuses_in_the_words_that_clients_know(
    plugin: str, package: str, options: dict[str, Any], message: str, zoo: Client
) -> None:
    assert refused(zoo, plugin, package, **options) == message


@pytest.mark.parametrize(('plugin', 'options', 'part'), CLEAR)
def test_it_says_why_not_and_what_to_do(
    plugin: str, options: dict[str, Any], part: str, zoo: Client
) -> None:
    assert part in refused(zoo, plugin, **options)


def test_what_a_failed_constructor_has_made_leaves_the_graph_and_its_traceback_is_logged(
    zoo: Client, container: Container
) -> None:
    assert not zoo.load('RaisesAfterNode').success
    container.wait_for("raise ValueError('first line")
    unique_id = zoo.loaded('Ticking')  # the graph shows this node later
    until(lambda: 'ticking' in zoo.node.get_node_names(), 'the later one in the graph')
    until(
        lambda: 'half_made' not in zoo.node.get_node_names(), 'the half made one out of the graph'
    )
    assert zoo.unload(unique_id).success


FOUND = (
    'zoo::Quiet zoo',
    'zoo::inner::Quiet zoo',
    'elsewhere::Quiet zoo',
    'elsewhere::Quiet elsewhere',
)


@pytest.mark.parametrize(('plugin', 'package'), [case.split() for case in FOUND])
def test_a_plugin_is_found_by_its_name_among_those_of_its_package(
    plugin: str, package: str, zoo: Client
) -> None:
    answer = zoo.load(plugin, package)
    assert answer.success, answer.error_message
    assert (answer.full_node_name, answer.error_message) == ('/quiet', '')


def test_ids_rise_are_never_used_again_and_are_unloaded_once(zoo: Client) -> None:
    first, second = zoo.loaded('Quiet'), zoo.loaded('Quiet', node_name='b')
    answers = [call.answer() for call in [zoo.begin_unload(second) for _ in range(2)]]
    assert sorted(answer.success for answer in answers) == [False, True]
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


def test_an_unknown_extra_argument_is_passed_over_with_a_warning(
    zoo: Client, container: Container
) -> None:
    zoo.loaded('Quiet', extra={'use_intraprocess_comms': True})
    container.wait_for(
        "extra argument 'use_intraprocess_comms' is unknown and has no effect; did you mean "
        "'use_intra_process_comms'?"
    )


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
        (
            {'remap_rules': ['__node:=ruled'], 'node_name': 'mine'},
            '/ruled',
            '/words',
        ),  # the first rule wins, and the request's rules come first
    ],
)
def test_names_and_remaps_are_the_request_s(
    fields: dict[str, Any], full_name: str, topic: str, zoo: Client
) -> None:
    answer = zoo.load('Quiet', **fields)
    assert answer.full_node_name == full_name, answer.error_message
    name = full_name.rpartition('/')[2]
    # A node's name appears and disappears a little later than its endpoints.
    until(
        lambda: (
            [info.node_name for info in zoo.node.get_publishers_info_by_topic(topic)] == [name]
        ),
        f'{name} on {topic}',
    )


def test_arguments_that_rclpy_knows_reach_the_node(zoo: Client, container: Container) -> None:
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
    zoo.loaded('Quiet', node_name='left', parameters={'size': 42})
    container.wait_for("/left: size 42, arguments {'use_global_arguments': False}")
    services: dict[str, list[str]] = {}

    def known() -> bool:
        with suppress(NodeNameNonExistentError):
            services.update(zoo.node.get_service_names_and_types_by_node('given', '/'))
        return '/given/set_logger_levels' in services

    until(known, 'its services')
    assert '/given/get_parameters' not in services


def test_a_log_level_is_the_component_s_alone(zoo: Client, container: Container) -> None:
    zoo.loaded('Ticking', node_name='silent')
    zoo.loaded('Ticking', log_level=10, node_name='chatty')
    container.wait_for('[chatty]: a tick')
    assert '[silent]: a tick' not in container.output


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
