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

"""One declaration for start-up and run-time values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nodes.ros_kit import overrides, ros
import pytest
import rclpy
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import HistoryPolicy, QoSProfile

from zc_perception.errors import ConfigError
from zc_perception.nodes.params.node_parameters import NodeParameters
from zc_perception.nodes.params.qos_overrides import publisher_qos
from zc_perception.parameters import ParameterSpec, whole_number

SPECS = (
    ParameterSpec('rate', 30.0, 'A rate.', 'Hz', 0.0, 100.0, dynamic=True),
    ParameterSpec('count', 3, 'A count.', '', 1, 8),
    ParameterSpec('mode', 'fast', 'A mode.', choices=('fast', 'slow'), dynamic=True),
    ParameterSpec('active', True, 'A switch.', dynamic=True),
    ParameterSpec('names', [], 'Names.'),
    ParameterSpec('share', -1.0, 'A share.', '', 0.0, 1.0, -1.0, dynamic=True),
    ParameterSpec('way', 'auto', 'A way.', choices=('auto', 'true', 'false')),
    ParameterSpec('device', '', 'A device.', whole_numbers=True),
    ParameterSpec('title', '', 'A title.'),
    ParameterSpec('side', 0, 'A side.', 'px', 0, 64, even=True),
)


Make = Callable[..., Node]


@pytest.fixture
def make(context: rclpy.Context) -> Iterator[Make]:
    """Make nodes with these start-up parameters; they are destroyed at the end."""
    nodes: list[Node] = []

    def made(**values: Any) -> Node:
        nodes.append(Node('tested', context=context, parameter_overrides=overrides(values)))
        return nodes[-1]

    yield made
    for node in nodes:
        node.destroy_node()


@contextmanager
def started_with(domain: int, *arguments: str) -> Iterator[Node]:
    """Return a node of a program with these ROS arguments."""
    with ros(domain, *arguments) as opened:
        node = Node('tested', context=opened)
        yield node
        node.destroy_node()


def parameter_file(folder: Path, line: str) -> str:
    """One with that parameter for the node."""
    file = folder / 'parameters.yaml'
    file.write_text(f'/**/tested:\n  ros__parameters:\n    {line}\n', encoding='utf-8')
    return str(file)


def test_defaults_overrides_and_integers_for_numbers(make: Make) -> None:
    node = make(rate=25, mode='slow')
    parameters = NodeParameters(node, SPECS)
    assert dict(parameters) == {
        'rate': 25.0,
        'count': 3,
        'mode': 'slow',
        'active': True,
        'names': [],
        'share': -1.0,
        'way': 'auto',
        'device': '',
        'title': '',
        'side': 0,
    }
    assert type(parameters['rate']) is float
    assert node.get_parameter('rate').value == 25.0


@pytest.mark.parametrize(
    ('values', 'message'),
    [
        (
            {'rate': 'much'},
            "node 'tested': parameter 'rate' is 'much'; it must be a number from 0 to 100 (Hz)",
        ),
        ({'rate': float('inf')}, "parameter 'rate' is inf; it must be a number"),
        ({'rate': True}, "parameter 'rate' is True; it must be a number"),
        ({'count': 9}, "parameter 'count' is 9; it must be an integer from 1 to 8"),
        ({'count': 2.0}, "parameter 'count' is 2.0; it must be an integer"),
        (
            {'mode': 'fats'},
            "parameter 'mode' is 'fats'; it must be one of fast, slow; did you mean 'fast'?",
        ),
        ({'active': 1}, "parameter 'active' is 1; it must be a boolean"),
        ({'share': -0.5}, "parameter 'share' is -0.5; it must be a number from 0 to 1, or -1"),
        ({'share': -2}, "parameter 'share' is -2.0; it must be a number from 0 to 1, or -1"),
        ({'share': 1.5}, "parameter 'share' is 1.5; it must be a number from 0 to 1, or -1"),
        ({'way': 1}, "parameter 'way' is 1; it must be one of auto, true, false"),
        ({'mode': True}, "parameter 'mode' is True; it must be one of fast, slow"),
        ({'device': True}, "parameter 'device' is True; it must be a string"),
        ({'device': 0.5}, "parameter 'device' is 0.5; it must be a string"),
        ({'title': 5}, "parameter 'title' is 5; it must be a string"),
        ({'names': 'a'}, "parameter 'names' is 'a'; it must be a list of strings"),
        ({'side': 3}, "parameter 'side' is 3; it must be an integer from 0 to 64 (px), even"),
        ({'names': [1, 2]}, "parameter 'names' is [1, 2]; it must be a list of strings"),
    ],
)
def test_wrong_start_values_are_one_sentence(
    values: dict[str, Any], message: str, make: Make
) -> None:
    node = make(**values)
    with pytest.raises(ConfigError) as refused:
        NodeParameters(node, SPECS)
    assert message in str(refused.value)


def test_wrong_start_values_and_mistyped_names_are_said_together(make: Make) -> None:
    node = make(count=9, mode='fats', raet=1.0, score_threshold=0.5, of_another_package=1)
    with pytest.raises(ConfigError) as refused:
        NodeParameters(node, SPECS)
    assert str(refused.value) == (
        "node 'tested': parameter 'count' is 9; it must be an integer from 1 to 8; "
        "parameter 'mode' is 'fats'; it must be one of fast, slow; did you mean 'fast'?; "
        "parameter 'raet' is unknown; did you mean 'rate'?"
    )


@pytest.mark.parametrize(
    ('text', 'value'),
    [('[]', []), ("['']", []), ("['a b', 'c']", ['a b', 'c']), ("['', 'c']", ['c'])],
)
def test_lists_of_strings_come_from_files_empty_ones_too(
    text: str, value: list[str], free_domain: int, tmp_path: Path
) -> None:
    with started_with(
        free_domain, '--params-file', parameter_file(tmp_path, f'names: {text}')
    ) as node:
        assert NodeParameters(node, SPECS)['names'] == value
        shown = node.get_parameter('names')
        assert shown.type_ is Parameter.Type.STRING_ARRAY and shown.value == (value or ['']), (
            'never an array of bytes'
        )


@pytest.mark.parametrize('from_file', [True, False])
@pytest.mark.parametrize(
    ('name', 'text', 'value'),
    [
        ('way', 'true', 'true'),
        ('way', 'false', 'false'),
        ('way', '"true"', 'true'),
        ('way', 'off', 'false'),
        ('way', 'auto', 'auto'),
        ('device', '0', '0'),
        ('device', '"12"', '12'),
        ('device', '/dev/metis-0:1:0', '/dev/metis-0:1:0'),
        ('device', '0000:01:00.0', '0000:01:00.0'),
    ],
)
def test_a_string_is_what_stands_there_without_quotes_too(
    name: str, text: str, value: str, from_file: bool, free_domain: int, tmp_path: Path
) -> None:
    arguments = (
        ['--params-file', parameter_file(tmp_path, f'{name}: {text}')]
        if from_file
        else ['-p', f'{name}:={text}']
    )
    with started_with(free_domain, *arguments) as node:
        assert NodeParameters(node, SPECS)[name] == value
        shown = node.get_parameter(name)
        assert shown.type_ is Parameter.Type.STRING and shown.value == value


def test_one_number_besides_the_range_may_be_set_and_none_between(make: Make) -> None:
    node = make(share=0.5)
    parameters = NodeParameters(node, SPECS)
    assert (
        node.set_parameters([Parameter('share', value=-1.0)])[0].successful
        and parameters['share'] == -1.0
    )
    refused = node.set_parameters([Parameter('share', value=-0.5)])[0]
    assert (
        not refused.successful
        and 'it must be a number from 0 to 1, or -1' in refused.reason
        and parameters['share'] == -1.0
    )
    described = node.describe_parameter('share')
    assert (
        described.floating_point_range[0].from_value,
        described.floating_point_range[0].to_value,
    ) == (-1.0, 1.0)
    assert described.additional_constraints == 'a number from 0 to 1, or -1'


def test_changes_go_through_the_same_check_and_reach_the_owner(make: Make) -> None:
    node, changes = make(), []
    parameters = NodeParameters(node, SPECS, lambda name, value: changes.append((name, value)))
    assert node.set_parameters([Parameter('rate', value=50.0)])[0].successful
    assert parameters['rate'] == 50.0 and changes == [('rate', 50.0)]
    refused = node.set_parameters_atomically(
        [Parameter('mode', value='slwo'), Parameter('active', value=False)]
    )
    assert not refused.successful and "did you mean 'slow'?" in refused.reason
    assert parameters['active'] is True, 'nothing of a refused set is taken over'
    assert not node.set_parameters([Parameter('rate', value=500.0)])[0].successful
    assert not node.set_parameters([Parameter('count', value=4)])[0].successful, 'read-only'
    assert parameters['count'] == 3


def test_descriptors_tell_ros2_param_describe_everything(make: Make) -> None:
    node = make()
    NodeParameters(node, SPECS)
    rate, count, mode = (node.describe_parameter(n) for n in ('rate', 'count', 'mode'))
    assert (
        rate.description == 'A rate. [Hz]'
        and rate.floating_point_range[0].to_value == 100.0
        and not rate.read_only
    )
    assert count.read_only and count.integer_range[0].from_value == 1
    assert mode.additional_constraints == 'one of: fast, slow'


def test_an_unknown_key_is_told_with_the_nearest_one_of_this_node_before_others(
    make: Make,
) -> None:
    node = make(raet=1.0, elsewhere=2, use_sim_time=False)
    parameters = NodeParameters(node, SPECS)
    assert sorted(parameters.unclaimed()) == ['elsewhere', 'raet']
    assert (
        parameters.unknown('raet', ['raett'])
        == "parameter 'raet' is unknown; did you mean 'rate'?"
    )
    assert (
        parameters.unknown('elsewher', ['elsewhere'])
        == "parameter 'elsewher' is unknown; did you mean 'elsewhere'?"
    )
    assert parameters.unknown('xyz').startswith(
        "parameter 'xyz' is unknown; known are active, count, "
    )


def test_integers_in_a_list_of_strings_are_what_yaml_makes_of_numbers(
    free_domain: int, tmp_path: Path
) -> None:
    specs = (ParameterSpec('cpus', [], 'CPUs.', whole_numbers=True, dynamic=True),)
    for text, value in (('[2, 3]', ['2', '3']), ('["2-3"]', ['2-3']), ('[]', [])):
        with started_with(
            free_domain, '--params-file', parameter_file(tmp_path, f'cpus: {text}')
        ) as node:
            parameters = NodeParameters(node, specs)
            assert parameters['cpus'] == value
            assert node.set_parameters(parameters.judged([Parameter('cpus', value=[4, 5])])[0])[
                0
            ].successful
            assert parameters['cpus'] == node.get_parameter('cpus').value == ['4', '5']


def test_parameters_that_are_not_dynamic_may_be_set_when_the_owner_says_so(make: Make) -> None:
    specs = (*SPECS, ParameterSpec('once', 1, 'Only a start takes it.', '', 0, 9, fixed=True))
    reasons = ['the node is busy']
    node, changes = make(), []
    parameters = NodeParameters(
        node,
        specs,
        lambda name, value: changes.append((name, value)),
        changeable=lambda: ''.join(reasons),
    )
    refused = node.set_parameters([Parameter('count', value=4)])[0]
    assert (
        not refused.successful
        and refused.reason == "parameter 'count' can't change now, the node is busy"
        and parameters['count'] == 3
    )
    assert node.set_parameters([Parameter('count', value=3)])[0].successful, 'it is no change'
    reasons.clear()
    assert (
        node.set_parameters([Parameter('count', value=4)])[0].successful
        and parameters['count'] == 4
        and changes == [('count', 4)]
    )
    assert not node.set_parameters([Parameter('once', value=2)])[0].successful
    count, once = node.describe_parameter('count'), node.describe_parameter('once')
    assert not count.read_only and count.description.endswith(
        'Set it while the node is unconfigured.'
    )
    assert once.read_only and 'unconfigured' not in once.description


def test_all_reasons_against_a_set_are_told_the_owner_s_too(make: Make) -> None:
    def check(name: str, value: Any) -> None:
        if name == 'title' and value == 'bad':
            raise ConfigError('no such title')

    node = make()
    parameters = NodeParameters(node, SPECS, check=check, changeable=lambda: '')
    values = [
        Parameter('rate', value=500.0),
        Parameter('title', value='bad'),
        Parameter('mode', value='fats'),
        Parameter('count', value=2),
    ]
    reasons = parameters.judged(values)[1]
    assert len(reasons) == 3 and 'no such title' in reasons and "did you mean 'fast'" in reasons[2]
    assert parameters.judged(values[3:])[1] == []


def test_qos_overrides_for_topics_that_no_endpoint_has_are_unknown_once_all_are_there(
    make: Make,
) -> None:
    node = make(
        **{'qos_overrides./image.publisher.depth': 3, 'qos_overrides./imgae.publisher.depth': 3}
    )
    parameters = NodeParameters(node, SPECS)
    assert parameters.unclaimed() == []
    qos = publisher_qos(node, 'image', QoSProfile(depth=1))
    assert (
        qos.depth == 3
        and publisher_qos(
            node, 'image', QoSProfile(depth=1, history=HistoryPolicy.KEEP_ALL)
        ).history
        == HistoryPolicy.KEEP_ALL
    )
    parameters.endpoints_declared = True
    (name,) = parameters.unclaimed()
    assert "did you mean 'qos_overrides./image.publisher.depth'?" in parameters.unknown(name)


@pytest.mark.parametrize(
    ('text', 'number'),
    [
        ('0', 0),
        ('7', 7),
        ('10', 10),
        ('11', None),
        ('²', None),
        ('１', None),
        ('-1', None),
        ('', None),
        (' 1', None),
        ('9' * 5000, None),
    ],
)
def test_a_whole_number_is_plain_digits_in_a_range(text: str, number: int | None) -> None:
    assert whole_number(text, 10) == number


def test_what_is_declared_is_never_taken_away(make: Make) -> None:
    node = make()
    specs = (*SPECS, ParameterSpec('cpus', [], 'CPUs.', whole_numbers=True, dynamic=True))
    parameters = NodeParameters(node, specs, changeable=lambda: '')
    for spec in specs:
        removed = Parameter(spec.name, Parameter.Type.NOT_SET)
        assert parameters.judged([removed])[1] == [
            (
                f"parameter '{spec.name}' can't be removed; set it to its default, "
                f'{spec.default!r}, instead'
            )
        ]
        assert not node.set_parameters([removed])[0].successful and node.has_parameter(spec.name)


def test_a_mistake_of_the_check_is_a_reason_and_one_of_the_owner_is_taken_back(make: Make) -> None:
    told: list[tuple[str, Any]] = []

    def check(name: str, value: Any) -> None:
        if name == 'title':
            raise ValueError('odd')

    def changed(name: str, value: Any) -> None:
        told.append((name, value))
        if name == 'mode' and value == 'slow':
            raise RuntimeError('no way')

    node = make()
    parameters = NodeParameters(node, SPECS, changed, check=check, changeable=lambda: '')
    (reason,) = parameters.judged([Parameter('title', value='x'), Parameter('rate', value=1.0)])[1]
    assert "parameter 'title' can't be checked: ValueError: odd" in reason
    done = node.set_parameters_atomically(
        [
            Parameter('rate', value=1.0),
            Parameter('mode', value='slow'),
            Parameter('active', value=False),
        ]
    )
    assert (
        not done.successful
        and done.reason
        == "parameter 'mode' can't be put in force: RuntimeError: no way; nothing was changed"
    )
    assert (parameters['rate'], parameters['mode'], parameters['active']) == (30.0, 'fast', True)
    assert told == [('rate', 1.0), ('mode', 'slow'), ('mode', 'fast'), ('rate', 30.0)]


def test_what_other_packages_offer_is_asked_for_only_when_no_choice_of_ours_is_meant() -> None:
    asked: list[None] = []

    def others() -> tuple[str, ...]:
        asked.append(None)
        return ('own',)

    spec = ParameterSpec(
        'accelerator', 'auto', 'Where.', choices=('auto', 'cpu'), other_choices=others
    )
    assert spec.convert('cpu') == 'cpu' and asked == []
    assert spec.convert('own') == 'own'
    with pytest.raises(
        ConfigError, match="parameter 'accelerator' is 'Own'; it must be one of auto, cpu, own"
    ) as refused:
        spec.convert('Own')
    assert str(refused.value).endswith("; did you mean 'own'?")
