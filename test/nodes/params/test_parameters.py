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

"""One declaration defines parameters at start and at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import os
from pathlib import Path
import re
from typing import Any

from nodes.programs import Program
from nodes.ros_kit import overrides, ros
import pytest
import rclpy
from rclpy.exceptions import InvalidNamespaceException
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.validate_namespace import validate_namespace

from zc_perception.errors import ConfigError
from zc_perception.nodes.command_lines import check_cameras, check_namespace
from zc_perception.nodes.params.node_parameters import NodeParameters
from zc_perception.nodes.params.ros_arguments import CommandLine, MeantFor
from zc_perception.nodes.params.verdict import (
    check_file,
    component_values,
    expected_nodes,
    judge,
    Verdict,
)
from zc_perception.nodes.params.yaml_file import ParameterYaml, read_parameter_yaml
from zc_perception.nodes.process import ros_context
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
def make(context: rclpy.Context) -> Make:
    return lambda **values: Node('tested', context=context, parameter_overrides=overrides(values))


@contextmanager
def started_with(domain: int, *arguments: str) -> Iterator[Node]:
    """Yield a node of a program with these ROS arguments."""
    with ros(domain, *arguments) as opened:
        node = Node('tested', context=opened)
        yield node
        node.destroy_node()


def write(folder: Path, text: str) -> str:
    file = folder / 'vehicle.yaml'
    file.write_text(text, encoding='utf-8')
    return str(file)


def block(section: str, values: str) -> str:
    return f'{section}: {{ros__parameters: {{{values}}}}}\n'


def test_defaults_overrides_integers_for_numbers_and_descriptors(make: Make) -> None:
    node = make(rate=25, mode='slow')
    parameters = NodeParameters(node, SPECS)
    defaults = {spec.name: spec.default for spec in SPECS}
    assert dict(parameters) == {**defaults, 'rate': 25.0, 'mode': 'slow'}
    assert type(parameters['rate']) is float
    assert node.get_parameter('rate').value == 25.0
    rate, count, mode = (node.describe_parameter(n) for n in ('rate', 'count', 'mode'))
    assert rate.description == 'A rate. [Hz]' and not rate.read_only
    assert rate.floating_point_range[0].to_value == 100.0
    assert count.read_only and count.integer_range[0].from_value == 1
    assert mode.additional_constraints == 'one of: fast, slow'


@pytest.mark.parametrize(
    ('values', 'message'),
    [
        ({'rate': float('inf')}, "node 'tested': parameter 'rate' is inf; it must be a number"),
        ({'rate': True}, "parameter 'rate' is True; it must be a number from 0 to 100 (Hz)"),
        ({'count': 2.0}, "parameter 'count' is 2.0; it must be an integer"),
        ({'active': 1}, "parameter 'active' is 1; it must be a boolean"),
        ({'share': -2}, "parameter 'share' is -2.0; it must be a number from 0 to 1, or -1"),
        ({'way': 1}, "parameter 'way' is 1; it must be one of auto, true, false"),
        ({'mode': True}, "parameter 'mode' is True; it must be one of fast, slow"),
        ({'device': True}, "parameter 'device' is True; it must be a string"),
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
    file = write(tmp_path, block('/**/tested', f'names: {text}'))
    with started_with(free_domain, '--params-file', file) as node:
        assert NodeParameters(node, SPECS)['names'] == value
        shown = node.get_parameter('names')
        assert shown.type_ is Parameter.Type.STRING_ARRAY and shown.value == (value or ['']), (
            'never an array of bytes'
        )


@pytest.mark.parametrize(
    ('name', 'text', 'value'),
    [
        ('way', '"true"', 'true'),
        ('way', 'off', 'false'),
        ('device', '0', '0'),
        ('device', '0000:01:00.0', '0000:01:00.0'),
    ],
)
def test_a_string_is_what_stands_there_without_quotes_too(
    name: str, text: str, value: str, free_domain: int
) -> None:
    with started_with(free_domain, '-p', f'{name}:={text}') as node:
        assert NodeParameters(node, SPECS)[name] == value
        shown = node.get_parameter(name)
        assert shown.type_ is Parameter.Type.STRING and shown.value == value


def test_an_unknown_key_is_told_with_the_nearest_one_of_this_node_before_others(
    make: Make,
) -> None:
    parameters = NodeParameters(make(raet=1.0, elsewhere=2, use_sim_time=False), SPECS)
    assert sorted(parameters.unclaimed()) == ['elsewhere', 'raet']
    for key, others, said in (
        ('raet', ['raett'], "did you mean 'rate'?"),
        ('elsewher', ['elsewhere'], "did you mean 'elsewhere'?"),
        ('xyz', [], 'known are active, count, '),
    ):
        assert parameters.unknown(key, others).startswith(f"parameter '{key}' is unknown; {said}")


def test_a_whole_number_is_plain_digits_in_a_range() -> None:
    assert [whole_number(text, 10) for text in ('0', '10')] == [0, 10]
    for text in ('11', '²', '１', '-1', '', ' 1', '9' * 5000):
        assert whole_number(text, 10) is None


def test_what_is_declared_is_never_taken_away(make: Make) -> None:
    node = make()
    specs = (*SPECS, ParameterSpec('cpus', [], 'CPUs.', whole_numbers=True, dynamic=True))
    parameters = NodeParameters(node, specs, changeable=lambda: '')
    for spec in specs:
        removed = Parameter(spec.name, Parameter.Type.NOT_SET)
        assert parameters.judged([removed])[1] == [
            f"parameter '{spec.name}' can't be removed; set it to its default, "
            f'{spec.default!r}, instead'
        ]
        assert not node.set_parameters([removed])[0].successful and node.has_parameter(spec.name)


@pytest.mark.parametrize('kind', [RuntimeError, SystemExit])
def test_a_mistake_of_the_check_is_a_reason_and_one_of_the_owner_is_taken_back(
    kind: type[BaseException], make: Make
) -> None:
    told: list[tuple[str, Any]] = []

    def check(name: str, value: Any) -> None:
        if name == 'title':
            raise ValueError('odd')

    def changed(name: str, value: Any) -> None:
        told.append((name, value))
        if name == 'mode':
            raise kind('no way')

    node = make()
    parameters = NodeParameters(node, SPECS, changed, check=check, changeable=lambda: '')
    (reason,) = parameters.judged([Parameter('title', value='x'), Parameter('rate', value=1.0)])[1]
    assert "parameter 'title' can't be checked: ValueError: odd" in reason
    wanted = overrides({'rate': 1.0, 'mode': 'slow', 'active': False})
    done = node.set_parameters_atomically(wanted)
    said = f"parameter 'mode' can't be put in force: {kind.__name__}: no way; nothing was changed"
    assert (done.successful, done.reason) == (False, said)
    assert (parameters['rate'], parameters['mode'], parameters['active']) == (30.0, 'fast', True)
    assert told == [('rate', 1.0), ('mode', 'slow'), ('mode', 'fast'), ('rate', 30.0)]


# Check of a file: its nodes, its errors, and the values of each node.
NODES = {'/front/capture': 'capture', '/front/inference': 'inference', '/front/overlay': 'overlay'}


def read(folder: Path, text: str) -> ParameterYaml:
    return read_parameter_yaml(write(folder, text), 'params_file')


def verdict(folder: Path, text: str, *namespaces: str) -> Verdict:
    file = read(folder, text)
    return judge(file, expected_nodes(file.sections, namespaces or None))


def test_every_mistake_is_found_with_its_node_section_and_line(tmp_path: Path) -> None:
    text = block('/**/capture', '\n slots: 0,\n widht: 64')
    text += block('/front/inference', 'max_rate: fast, classes: [nope]')
    text += block('/**', 'qos_overrides./front/image_raw.publisher.depth: -1, nobodys: 1')
    found = verdict(tmp_path, text)
    places = [(each.node, each.section, each.line, each.text) for each in found.problems]
    assert [(*place, text.split(' is ')[0]) for *place, text in places] == [
        ('capture', '/**/capture', 3, "parameter 'widht'"),
        ('capture', '/**/capture', 2, "parameter 'slots'"),
        ('capture', '', 0, "parameter 'qos_overrides./front/image_raw.publisher.depth'"),
        ('inference', '/front/inference', 4, "parameter 'max_rate'"),
    ]
    assert found.warnings == [
        "section '/**': no node of zc_perception has a parameter 'nobodys' (line 5)"
    ]
    assert found.misses == []
    two = verdict(tmp_path, block('/**/capture', 'slots: 0'), '/front', '/rear')
    once = "parameter 'slots' is 0; it must be an integer from 3 to 64 (line 1)"
    assert [str(one) for one in two.problems] == [once], 'the same mistake of two cameras'


@pytest.mark.parametrize(
    ('text', 'namespaces', 'nodes'),
    [
        ('', [], ['/capture', '/inference', '/overlay']),
        ('/**/front/overlay', [], ['/front/capture', '/front/inference', '/front/overlay']),
        ('/front/capture', ['/rear'], ['/rear/capture', '/rear/inference', '/rear/overlay']),
        ('/recodrer', [], ['/capture', '/inference', '/overlay', '/recorder']),
        ('/**/gstreamer', [], ['/capture', '/gstreamer', '/inference', '/overlay']),
        ('/planner', [], ['/capture', '/inference', '/overlay']),
    ],
)
def test_the_nodes_that_a_file_is_for(
    text: str, namespaces: list[str], nodes: list[str], tmp_path: Path
) -> None:
    sections = read(tmp_path, block(text, 'use_sim_time: false') if text else '').sections
    found = expected_nodes(sections, namespaces or None)
    assert sorted(found) == nodes
    assert all(node.endswith(f'/{kind}') for node, kind in found.items())


def test_a_section_that_misses_its_node_and_one_of_a_name_that_is_misspelt(tmp_path: Path) -> None:
    text = block('/*/capture', 'slots: 4') + block('/**/infrence', 'in_flight: 2')
    found = verdict(tmp_path, text)
    assert [(one.section, one.line) for one in found.misses] == [('/*/capture', 1)]
    assert [(one.section, one.line) for one in found.problems] == [('/**/infrence', 2)]
    assert "did you mean 'inference'?" in found.problems[0].text


IMAGES = 'qos_overrides./front/image_raw'
REFUSED: list[tuple[str, str, str]] = [
    ('/**', 'use_sim_time: 5', "overlay: parameter 'use_sim_time' is 5; it must be a boolean"),
    (
        '/**',
        f'{IMAGES}.publisher.reliability: foo',
        f"capture: parameter '{IMAGES}.publisher.reliability' is 'foo'; it must be reliable or ",
    ),
    (
        '/**',
        f'{IMAGES}.subscription.depth: -1',
        f"overlay: parameter '{IMAGES}.subscription.depth' is -1; it must be an integer from 0",
    ),
    (
        '/front/inference',
        f'{IMAGES}.publisher.depth: 2',
        f"'{IMAGES}.publisher.depth' is unknown; did you mean '{IMAGES}.subscription.depth'?",
    ),
    (
        '/**',
        f'slots: 5, {IMAGES}.publisher: {{depth: 2, durability: transient_local}}',
        "capture: topic 'image_raw': transient_local with depth 2 would pin 2 of 5 slots",
    ),
]


@pytest.mark.parametrize(('section', 'values', 'message'), REFUSED)
def test_what_is_wrong_is_said_in_one_line_that_names_the_file(
    section: str, values: str, message: str, tmp_path: Path
) -> None:
    file = read(tmp_path, block(section, values))
    with pytest.raises(ConfigError) as refusal:
        check_file(file, NODES)
    said = str(refusal.value)
    assert message in said and said.startswith(f"params_file '{file.path}': ") and '\n' not in said


def test_what_the_launch_arguments_set_stands_on_top_of_the_file(tmp_path: Path) -> None:
    video = tmp_path / 'drive.avi'
    video.touch()
    file = read(tmp_path, block('/**/capture', 'camera: replay'))
    assert check_file(file, NODES, {'capture': {'video': str(video)}}) == []
    assert check_file(file, NODES, {'capture': {'camera': 'synthetic'}}) == []
    said = "vehicle.yaml', with launch arguments camera, video: capture: video '/nope' "
    arguments = {'capture': {'camera': 'replay', 'video': '/nope'}, 'recorder': {'path': ''}}
    with pytest.raises(ConfigError, match=f'{said}does not exist'):
        check_file(file, NODES, arguments)
    file = read(tmp_path, block('/**/capture', 'slots: 0'))
    (problem,) = judge(file, NODES, {'capture': {'slots': 1}}).problems
    assert problem.text.startswith("parameter 'slots' is 1;")
    assert (problem.section, problem.line) == ('', 0), 'it is not in the file'


OF_ANY_NODE: list[tuple[str, list[str]]] = [
    (
        block('/**', 'wheelbase: 3, scal: 1'),
        ["'/**': 'scal'; did you mean 'scale'?", "'/**': 'wheelbase'"],
    ),
    (
        block('/**', 'widht: 3') + block('/front/*', 'widht: 3'),
        ["'/**', '/front/*': 'widht'; did you mean 'width'?"],
    ),
    (block('/**', 'slots: 8, scale: 1.0, controls.gain: 1, max_frames: 8'), []),
    (block('/**', 'use_sim_time: true, qos_overrides./x.publisher.depth: 1'), []),
    (block('/rear/*', 'widht: 3'), []),
    (block('/planner', 'widht: 3'), []),
]


@pytest.mark.parametrize(('text', 'warned'), OF_ANY_NODE)
def test_a_key_for_any_node_that_none_has_is_a_warning(
    text: str, warned: list[str], tmp_path: Path
) -> None:
    file = read(tmp_path, text)
    lacks = ': no node of zc_perception has a parameter '
    words = [each.replace(': ', lacks, 1) for each in warned]
    assert check_file(file, NODES) == [f'{file.where}: section {each} (line 1)' for each in words]


def test_each_component_gets_of_all_nodes_parameters_those_that_it_has(tmp_path: Path) -> None:
    everybody = (
        'use_sim_time: true, width: 320, score_threshold: 0.5, planner_rate: 3, '
        'qos_overrides./x.publisher.depth: 1'
    )
    text = block('/**', everybody) + block('/**/capture', 'participants: []')
    file = read(tmp_path, text + block('/**/overlay', 'scale: 0.5'))
    shared = {'use_sim_time', 'qos_overrides./x.publisher.depth'}
    for kind, own in (('inference', 'score_threshold'), ('overlay', 'scale')):
        assert component_values(file, f'/{kind}', kind, {}).keys() == shared | {own}
    capture = component_values(file, '/capture', 'capture', {'slots': 6, 'width': 64})
    assert capture.keys() == shared | {'width', 'participants', 'slots'}
    assert (capture['participants'], capture['width'], capture['slots']) == ([''], 64, 6), (
        'an empty list has no type in ROS'
    )


def test_what_the_chosen_kind_does_not_read_is_said_once_with_its_line(tmp_path: Path) -> None:
    """The component doesn't get the value, so it doesn't report it again without its line."""
    file = read(tmp_path, block('/**/capture', '\n\n seed: 3, width: 64'))
    chosen = {'camera': 'v4l2', 'device': '/dev/video7'}
    assert check_file(file, {'/capture': 'capture'}, {'capture': chosen}) == [
        f"{file.where}, with launch arguments camera, device: section '/**/capture': "
        "parameter 'seed' is read by camera: synthetic only, not by camera: v4l2; leave it out "
        '(line 3)'
    ]
    assert component_values(file, '/capture', 'capture', chosen) == {'width': 64, **chosen}


# ROS arguments and parameter files that rcl rejects: the reason is given in one line.
def refusal(*arguments: str) -> str:
    with (
        pytest.raises(ConfigError) as refused,
        ros_context(['--ros-args', *arguments], rclpy.Context()),
    ):
        pass
    return str(refused.value)


def test_a_bad_parameter_file_is_named_with_its_line(tmp_path: Path) -> None:
    for text, line, words in (
        ('width: 640\n   height: 480\n', 4, 'indentation'),
        ('frame_id: "a\n', 4, 'quote is not closed'),
        ('frame_id: @a\n', 3, 'quotes'),
    ):
        path = write(tmp_path, f'capture:\n  ros__parameters:\n    {text}')
        found = refusal('--params-file', path)
        assert f"'{path}'" in found and f'line {line}' in found and words in found
        assert 'rcl' not in found and '.c:' not in found


def test_a_pipe_is_refused_because_its_second_reader_gets_no_parameters() -> None:
    reading, writing = os.pipe()
    with open(reading, 'rb'), open(writing, 'wb') as pipe:
        pipe.write(b'/**/capture: {ros__parameters: {width: 640}}\n')
        path = f'/dev/fd/{reading}'
        words = f"parameter file '{path}' is a pipe, which can be read only once"
        assert refusal('--params-file', path).startswith(words)
        with pytest.raises(ConfigError, match=re.escape(words)):
            read_parameter_yaml(path)


def test_a_bad_argument_is_named() -> None:
    for arguments, words in (
        (['-p', 'width:=[1,'], "'-p width:=[1,' can't be read; write -p NAME:=VALUE"),
        (['-p', '/capture:width:=640'], "-p NODE:NAME:=VALUE (NODE without '/')"),
        (['-p', 'classes:=[car, 99]'], 'the values of a list have one type'),
        (['-r', 'image_raw'], "'-r image_raw' can't be read; write -r FROM:=TO"),
        (['-r', '__ns:=front'], "the value of __ns begins with '/'"),
        (['-r', '__node:=/cam'], "'/', that of __node has no '/'"),
        (['-r', '__node:=a-b'], "names have letters, digits and '_'"),
        (['--nonsense'], "unknown: ['--nonsense']; leave them out"),
        (['--param-file', 'x.yaml'], "'x.yaml']; write --params-file FILE or -p NAME:=VALUE"),
        (['--params-file=x.yaml'], 'NAME:=VALUE, with a space before FILE or NAME'),
    ):
        found = refusal(*arguments)
        assert found.startswith('ROS arguments: ') and words in found and '.c:' not in found


def test_a_log_folder_that_cannot_be_made_is_no_mistake_in_the_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / 'file').touch()
    monkeypatch.setenv('ROS_LOG_DIR', str(tmp_path / 'file'))
    found = refusal()
    assert 'ROS arguments' not in found
    assert found.endswith('; set ROS_LOG_DIR to a folder that this user may write to')


Kinds = dict[str, str]
NAMES: Kinds = {f'/{kind}': kind for kind in ('capture', 'inference', 'overlay')}
FRONT: Kinds = {f'/front{node}': kind for node, kind in NAMES.items()}
TRUCK: Kinds = {'/truck/front/capture': 'capture'}


def check(nodes: Kinds, *arguments: str) -> None:
    CommandLine(['perception', '--ros-args', *arguments]).check(list(nodes.items()))


def sections(*names: str) -> str:
    return ''.join(block(name, 'width: 640') for name in names)


@pytest.mark.parametrize(
    ('text', 'nodes', 'message'),
    [
        (
            sections('capture'),
            FRONT,
            "'capture' does not match node '/front/capture'; write '/**/capture'",
        ),
        (
            sections('/*/capture'),
            NAMES,
            "'*/capture' does not match node '/capture'; write '/**/capture'",
        ),
        (
            sections('/front/capture'),
            TRUCK,
            "does not match node '/truck/front/capture'; write '/**/front/capture'",
        ),
        (sections('/fornt/capture'), FRONT, "'/front/capture'; did you mean 'front'?"),
        (sections('/fornt/capture'), FRONT, ' section of its own'),
        (sections('/**/fornt/capture'), TRUCK, "did you mean 'front'?"),
        (sections('/truk/front/capture'), TRUCK, "did you mean 'truck/front'?"),
        (
            sections('/frontleft/capture'),
            {'/front_left/capture': 'capture', '/front_right/capture': 'capture'},
            "node '/front_left/capture'; did you mean 'front_left'?",
        ),
        (sections('inferense'), NAMES, "no node 'inferense'; did you mean 'inference'"),
        (
            sections('/**', 'capture'),
            {'/front_cam': 'capture'},
            "'capture' does not match node '/front_cam', which is the capture node; write "
            "'/**/front_cam' (line 2)",
        ),
        (
            sections('/**', '/truck/capture'),
            {'/truck/front_cam': 'capture'},
            "'truck/capture' does not match node '/truck/front_cam', which is the capture node; "
            "write '/**/truck/front_cam' (line 2)",
        ),
        (
            block('/**/capture', 'width: 64,\n width: 32'),
            NAMES,
            "'width' is given in line 1 and line 2, and ROS uses only one of these lines",
        ),
        (
            block('/capture', 'width: 64') + '---\n\n' + block('capture', 'width: x'),
            NAMES,
            "'width' is given in line 1 and line 4, and ROS uses only one of these lines",
        ),
    ],
)
def test_what_misses_or_is_there_twice_is_refused_with_what_to_write(
    text: str, nodes: Kinds, message: str, tmp_path: Path
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        check(nodes, '--params-file', file)
    assert str(refused.value).startswith(f"parameter file '{file}': ")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ('text', 'nodes'),
    [
        *((sections(name), NAMES) for name in ('capture', '/**/capture', 'lidar_driver')),
        *((sections(name), FRONT) for name in ('/**/capture', 'front/capture', '/*/capture')),
        *((sections(name), FRONT) for name in ('/front/*', '/rear/planner')),
        (sections('/**/capture', '/**/front/capture', '/rear/overlay'), FRONT),
        # Sections of cameras that are not here: another number means another camera.
        (sections('/cam1/capture'), {'/cam0/capture': 'capture'}),
        (sections('/front_left/capture'), {'/front_right/capture': 'capture'}),
        (sections('/car/front/capture'), TRUCK),
        # Both names exist, so none is mistyped.
        (sections('/fornt/capture', '/front/capture'), {'/front/capture': 'capture'}),
        (sections('capture', '/**/front_cam'), {'/front_cam': 'capture'}),
        # Another package's node may need a key twice.
        (block('/planner/rear', 'rate: 64,\n rate: 32'), NAMES),
    ],
)
def test_what_reaches_a_node_or_is_somebody_elses_passes(
    text: str, nodes: Kinds, tmp_path: Path
) -> None:
    check(nodes, '--params-file', write(tmp_path, text))


def test_arguments_that_miss_are_refused_too_and_those_that_reach_a_node_pass() -> None:
    for argument, nodes, message in (
        ('capure:framerate:=7.0', NAMES, "no node 'capure'; did you mean 'capture'"),
        ('rear/capture:framerate:=7.0', FRONT, "does not match node '/front/capture'"),
        ('capture:x:=1', {'/cam': 'capture'}, "not match node '/cam'; write 'cam' instead"),
        ('capture:x:=1', {'/a/cam': 'capture'}, "node '/a/cam'; write section '/**/cam' in a par"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            check(nodes, '-p', argument)
    for argument in ('capture:framerate:=7.0', 'video:=/a:b/c.avi'):
        check(NAMES, '-p', argument)


def test_what_is_set_for_a_node_is_told_apart_by_whom_it_was_meant_for(tmp_path: Path) -> None:
    everybody = (
        'everywhere: 1, meant: 1, by_argument: 1, nested: 1, other: 1, '
        'qos_overrides: {/image: {publisher: {depth: 3}}}'
    )
    first = write(tmp_path, block('/**', everybody) + block('/front/*', 'in_front: 1'))
    nested = f'front: {{{block("inference", "nested: 1").strip()}}}'
    second = tmp_path / 'b.yaml'
    second.write_text(block('/**/capture', 'meant: 2') + nested)
    files = ['--params-file', first, '--params-file', str(second)]
    arguments = ['-p', 'by_argument:=2', '-p', 'capture:other:=3']
    line = CommandLine(['x', '--ros-args', *files, *arguments])

    def meant(node: str, whom: MeantFor) -> set[str]:
        return {key for key, found in line.keys(node).items() if found is whom}

    always = {'everywhere', 'qos_overrides./image.publisher.depth'}
    assert meant('/capture', MeantFor.ANY_NODE) == always | {'nested'}
    assert meant('/front/capture', MeantFor.ANY_NODE) == always | {'nested', 'in_front', 'other'}
    assert meant('/front/inference', MeantFor.ANY_NODE) == always | {'meant', 'in_front', 'other'}
    assert meant('/capture', MeantFor.THIS_NODE) == {'meant', 'other'}
    assert meant('/front/inference', MeantFor.THIS_NODE) == {'nested'}
    assert meant('/capture', MeantFor.THIS_PROCESS) == {'by_argument'}
    assert CommandLine().keys('/capture') == {}
    assert line.place('/front/inference', 'other') .endswith("section '/**', line 1)")
    assert line.place('/capture', 'other') == line.place('/rear/viewer', 'by_argument') == ''


@pytest.mark.parametrize('name', ['a//b', 'a/', 'a/4x', 'ä', 'a\n', '~'])
def test_what_ros_refuses_is_none_and_the_message_says_what_is(name: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_namespace(name, "launch argument 'namespace'")
    assert str(refusal.value).startswith(
        f"launch argument 'namespace': '{name}' can't be a namespace; use letters"
    )
    with pytest.raises(InvalidNamespaceException):
        validate_namespace(f'/{name}')


def test_cameras_have_different_names() -> None:
    check_cameras(['front', 'rear'], '--cameras')
    with pytest.raises(ConfigError, match=r"^--cameras: 'rear' is given twice"):
        check_cameras(['front', 'rear', 'rear'], '--cameras')
    with pytest.raises(ConfigError, match=r"^--cameras: '' can't be"):
        check_cameras(['front', ''], '--cameras')


LONG_NAME = ('topic length should not exceed', 'choose another name or a shorter namespace')
SLASH = (
    "the namespace can't be used; write a shorter one",
    "without a '/' at its end: --ros-args -r __ns:=/NAME",
)


@pytest.mark.parametrize(
    ('words', 'namespace', 'said'),
    [
        (['capture_node'], 'n' * 230, LONG_NAME),
        (['capture_node'], 'front/', SLASH),
        (['perception', '--stereo'], 'front/', SLASH),
    ],
)
def test_a_namespace_that_ros_refuses_is_said_in_a_line(
    words: list[str], namespace: str, said: tuple[str, ...], free_domain: int
) -> None:
    words = [*words, '--ros-args', '-r', f'__ns:=/{namespace}']
    with Program(*words, domain=free_domain).start('error:') as node:
        assert node.ended() == 2
    *more, line = [line for line in node.lines if 'rmw_fastrtps' not in line]
    assert said is SLASH or not more
    assert all(text in line for text in said), node.output
