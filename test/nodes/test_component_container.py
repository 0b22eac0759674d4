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

"""The container's answers, which are those of rclcpp's, to a real client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from composition_interfaces.srv import LoadNode
from nodes.container_kit import Client, client, Container, install
import pytest
from rcl_interfaces.msg import Parameter as ParameterMessage
from rcl_interfaces.msg import ParameterValue
from rcl_interfaces.srv import GetParameters, ListParameters
from rclpy.node import NodeNameNonExistentError
from waiting import until

KNOWN_EXTRAS = (
    'forward_global_arguments',
    'enable_rosout',
    'use_intra_process_comms',
    'enable_topic_statistics',
    'start_parameter_services',
    'start_parameter_event_publisher',
    'use_clock_thread',
    'enable_logger_service',
)
THREW = 'Component constructor threw an exception: '
LIBRARY = 'Failed to load library: '
Case = tuple[str, str, dict[str, Any], str]
# What clients may compare word for word.
EXACT: dict[str, Case] = {
    'no such package': ('Quiet', 'zoos', {}, 'Could not find requested resource in ament index'),
    'no such plugin': (
        'zoo::Quite',
        'zoo',
        {},
        'Failed to find class with the requested plugin name.',
    ),
    'a plugin of another package': (
        'elsewhere::Quiet',
        'ours',
        {},
        'Failed to find class with the requested plugin name.',
    ),
    'raises': ('RaisesAfterNode', 'zoo', {}, THREW + 'ValueError: first line second line'),
    'raises before there is a node': (
        'RaisesBeforeNode',
        'zoo',
        {},
        THREW + "OSError: [Errno 19] No such device: '/dev/camera'",
    ),
    'exits': ('Exits', 'zoo', {}, THREW + 'SystemExit: no camera, goodbye'),
    'is interrupted': ('Interrupts', 'zoo', {}, THREW + 'KeyboardInterrupt'),
    'raises what is no text for a message': (
        'RaisesBytes',
        'zoo',
        {},
        THREW + 'OSError: bad \\udcff\\ud800 end\\x00 of it',
    ),
    'raises what says no text': ('RaisesOdd', 'zoo', {}, THREW + '_Odd'),
} | {
    f'{name} is no boolean': (
        'Quiet',
        'zoo',
        {'extra': {name: value}},
        f"Extra component argument '{name}' must be a boolean",
    )
    for name, value in zip(
        KNOWN_EXTRAS, (1, 'true', 1.0, [True], 0, 'false', [1], ''), strict=True
    )
}
# What names the reason and the next step in our own words.
CLEAR: dict[str, Case] = {
    'module is missing': (
        'NoModule',
        'zoo',
        {},
        "ModuleNotFoundError: No module named 'nodes.there_is_no_such_module'; try: python3 -c",
    ),
    'class is missing': (
        'NoAttribute',
        'zoo',
        {},
        LIBRARY + ("'nodes.container_components:Missing' of plugin 'zoo::NoAttribute' can't be"),
    ),
    'module exits': ('ExitsAtImport', 'zoo', {}, 'SystemExit: no display'),
    'no node': ('NoNode', 'zoo', {}, 'is not a class derived from rclpy.node.Node'),
    'a node without its constructor': (
        'HalfNode',
        'zoo',
        {},
        'its constructor has to call super().__init__, and must not',
    ),
    'a node that has destroyed itself': (
        'GoneNode',
        'zoo',
        {},
        "The container can't spin it: InvalidHandle",
    ),
    'a node without a hash': ('Comparable', 'zoo', {}, "The container can't spin it: TypeError: "),
    'no class': ('Function', 'zoo', {}, 'is not a class derived from rclpy.node.Node'),
    'parameter of another type': (
        'NeedsParameter',
        'zoo',
        {'parameters': {'size': 'large'}},
        "'size'",
    ),
    'no remap rule': (
        'Quiet',
        'zoo',
        {'remap_rules': ['words']},
        "Remap rule 'words' can't be used: write it as 'from:=to'",
    ),
    'a remap rule that is none': (
        'Quiet',
        'zoo',
        {'remap_rules': ['no words:=a b']},
        'no words:=a b',
    ),
    'no node name': ('Quiet', 'zoo', {'node_name': 'a b'}, 'a b'),
    'no log level': (
        'Quiet',
        'zoo',
        {'log_level': 7},
        'log_level 7 is none; use 10 (debug), 20 (info), 30 (warn), 40 (error), ',
    ),
    'no statistics': (
        'Quiet',
        'zoo',
        {'extra': {'enable_topic_statistics': True}},
        'rclpy has no topic statistics; leave it out',
    ),
    'always events': (
        'Quiet',
        'zoo',
        {'extra': {'start_parameter_event_publisher': False}},
        'always publish parameter events',
    ),
    'no clock thread': (
        'Quiet',
        'zoo',
        {'extra': {'use_clock_thread': True}},
        'rclpy reads /clock on the executor',
    ),
}


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
    """With nothing loaded, before and after."""
    assert zoo_client.list() == {}
    yield zoo_client
    for unique_id in zoo_client.list():
        assert zoo_client.unload(unique_id).success


def refused(zoo: Client, case: Case) -> str:
    plugin, package, options, _ = case
    answer = zoo.load(plugin, package, **options)
    assert (answer.success, answer.full_node_name, answer.unique_id) == (False, '', 0)
    assert zoo.list() == {}
    assert '\n' not in answer.error_message
    return str(answer.error_message)


@pytest.mark.parametrize('case', EXACT)
def test_it_refuses_in_the_words_that_clients_know(case: str, zoo: Client) -> None:
    assert refused(zoo, EXACT[case]) == EXACT[case][-1]


@pytest.mark.parametrize('case', CLEAR)
def test_it_says_why_not_and_what_to_do(case: str, zoo: Client) -> None:
    assert CLEAR[case][-1] in refused(zoo, CLEAR[case])


def test_a_parameter_without_a_type_is_named(zoo: Client) -> None:
    bad = ParameterMessage(name='size', value=ParameterValue(type=99))
    answer = zoo.send(
        LoadNode, LoadNode.Request(package_name='zoo', plugin_name='zoo::Quiet', parameters=[bad])
    ).answer()
    assert not answer.success
    assert answer.error_message.startswith("Parameter 'size' can't be used: ")


def test_what_a_failed_constructor_has_made_leaves_the_graph(zoo: Client) -> None:
    assert not zoo.load('RaisesAfterNode').success
    unique_id = zoo.loaded('Ticking')  # the graph has been told of this one later
    until(lambda: 'ticking' in zoo.node.get_node_names(), 'the later one in the graph')
    until(
        lambda: 'half_made' not in zoo.node.get_node_names(), 'the half made one out of the graph'
    )
    assert zoo.unload(unique_id).success


def test_a_constructor_s_traceback_is_in_the_log(zoo: Client, container: Container) -> None:
    assert not zoo.load('RaisesAfterNode').success
    container.wait_for("raise ValueError('first line")


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


def test_ids_rise_and_are_never_used_again(zoo: Client) -> None:
    first = zoo.loaded('Quiet')
    second = zoo.loaded('Quiet', node_name='b')
    assert first < second
    assert zoo.unload(second).success
    third = zoo.loaded('Quiet', node_name='a')
    assert second < third
    assert list(zoo.list().items()) == [(first, '/quiet'), (third, '/a')]
    assert zoo.unload(first).success
    assert zoo.list() == {third: '/a'}


@pytest.mark.parametrize('unique_id', [0, 2**64 - 1])
def test_an_unknown_id_is_refused_in_the_words_that_clients_know(
    unique_id: int, zoo: Client
) -> None:
    answer = zoo.unload(unique_id)
    assert (answer.success, answer.error_message) == (
        False,
        f'No node found with unique_id: {unique_id}',
    )


def test_an_id_is_unloaded_once(zoo: Client) -> None:
    unique_id = zoo.loaded('Quiet')
    answers = [
        call.answer() for call in [zoo.begin_unload(unique_id), zoo.begin_unload(unique_id)]
    ]
    assert sorted(answer.success for answer in answers) == [False, True]


def test_a_second_one_of_the_same_name_is_loaded_and_each_ends_by_its_id(zoo: Client) -> None:
    """As rclcpp's container does."""
    first, second = zoo.loaded('Ticking'), zoo.loaded('Ticking')
    assert zoo.list() == {first: '/ticking', second: '/ticking'}
    assert zoo.unload(first).success
    assert zoo.list() == {second: '/ticking'}
    zoo.hears('/ticking/ticks')


def test_an_unknown_extra_argument_is_passed_over_with_a_warning(
    zoo: Client, container: Container
) -> None:
    """As rclcpp's container does."""
    zoo.loaded('Quiet', extra={'use_intraprocess_comms': True})
    container.wait_for(
        "extra argument 'use_intraprocess_comms' is unknown and has no effect; did you mean "
        "'use_intra_process_comms'?"
    )


@pytest.mark.parametrize(
    ('fields', 'full_name', 'topic'),
    [
        ({}, '/quiet', '/words'),
        ({'node_name': 'mine'}, '/mine', '/words'),
        ({'node_namespace': '/front/left'}, '/front/left/quiet', '/front/left/words'),
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
        ),  # the first rule wins, and the request's come first
    ],
)
def test_names_and_remaps_are_the_request_s(
    fields: dict[str, Any], full_name: str, topic: str, zoo: Client
) -> None:
    answer = zoo.load('Quiet', **fields)
    assert answer.full_node_name == full_name, answer.error_message
    name = full_name.rpartition('/')[2]
    # A node's name comes a little later than its endpoints, and goes a little later.
    until(
        lambda: (
            [info.node_name for info in zoo.node.get_publishers_info_by_topic(topic)] == [name]
        ),
        f'{name} on {topic}',
    )


def test_parameters_are_the_node_s_start_up_values(zoo: Client) -> None:
    zoo.loaded('Quiet', parameters={'size': 42})
    answer = zoo.call(
        GetParameters, '/quiet/get_parameters', GetParameters.Request(names=['size'])
    )
    assert answer.values[0].integer_value == 42


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
    zoo.loaded('Quiet', node_name='left')
    container.wait_for("/left: size 1, arguments {'use_global_arguments': False}")
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


def test_a_constructor_may_spin_for_a_while(zoo: Client) -> None:
    answer = zoo.load('SpinsOnce')
    assert answer.full_node_name == '/ticking', answer.error_message


def test_many_requests_at_once_are_all_answered_in_their_order(zoo: Client) -> None:
    calls = [zoo.begin_load('Quiet', node_name=f'n{number}') for number in range(20)]
    answers = [call.answer() for call in calls]
    assert [answer.full_node_name for answer in answers] == [f'/n{number}' for number in range(20)]
    ids = [answer.unique_id for answer in answers]
    assert ids == sorted(ids)


def test_the_container_has_its_parameter_and_nothing_unknown(zoo: Client) -> None:
    listed = zoo.call(
        ListParameters, '/ComponentManager/list_parameters', ListParameters.Request()
    )
    assert 'thread_num' in listed.result.names
