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
The verdict on a file: which nodes it is for, what speaks against it, and what each node gets.

What speaks against it has the line.

That the nodes take a file exactly if the verdict says so is tested in
``test/doctor/test_doctor_parameter_verdicts.py``; which sections miss their nodes, in
``test_ros_arguments.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from zc_perception.errors import ConfigError
from zc_perception.nodes.params.verdict import (
    check_file,
    component_values,
    expected_nodes,
    judge,
    Verdict,
)
from zc_perception.nodes.params.yaml_file import ParameterYaml, read_parameter_yaml

FILE = """\
/**/capture:
  ros__parameters:
    slots: 0
    widht: 64
/front/inference:
  ros__parameters: {max_rate: fast, classes: [nope]}
/**:
  ros__parameters:
    qos_overrides./front/image_raw.publisher.depth: -1
    nobodys: 1
"""
NODES = {'/front/capture': 'capture', '/front/inference': 'inference', '/front/overlay': 'overlay'}


def read(folder: Path, text: str) -> ParameterYaml:
    path = folder / 'vehicle.yaml'
    path.write_text(text)
    return read_parameter_yaml(str(path), 'params_file')


def verdict(folder: Path, text: str, *namespaces: str) -> Verdict:
    file = read(folder, text)
    return judge(file, expected_nodes(file.sections, namespaces or None))


def test_every_mistake_is_found_with_its_node_section_and_line(tmp_path: Path) -> None:
    found = verdict(tmp_path, FILE)
    places = [
        (one.node, one.section, one.line, one.text.split(' is ')[0]) for one in found.problems
    ]
    assert places == [
        ('capture', '/**/capture', 4, "parameter 'widht'"),
        ('capture', '/**/capture', 3, "parameter 'slots'"),
        ('capture', '', 0, "parameter 'qos_overrides./front/image_raw.publisher.depth'"),
        ('inference', '/front/inference', 6, "parameter 'max_rate'"),
    ]
    assert (
        found.warnings == ["section '/**': no node here has a parameter 'nobodys' (line 10)"]
        and found.misses == []
    )


def test_the_same_mistake_of_two_cameras_is_said_once(tmp_path: Path) -> None:
    found = verdict(tmp_path, '/**/capture: {ros__parameters: {slots: 0}}\n', '/front', '/rear')
    assert [str(one) for one in found.problems] == [
        "parameter 'slots' is 0; it must be an integer from 3 to 64 (line 1)"
    ]


@pytest.mark.parametrize(
    ('text', 'namespaces', 'nodes'),
    [
        ('', [], ['/capture', '/inference', '/overlay']),
        ('/**/capture', [], ['/capture', '/inference', '/overlay']),
        ('/front/capture', [], ['/front/capture', '/front/inference', '/front/overlay']),
        (
            '/**/truck/front/overlay',
            [],
            ['/truck/front/capture', '/truck/front/inference', '/truck/front/overlay'],
        ),
        ('/front/capture', ['/rear'], ['/rear/capture', '/rear/inference', '/rear/overlay']),
        ('/**/recorder', [], ['/capture', '/inference', '/overlay', '/recorder']),
        ('/recodrer', [], ['/capture', '/inference', '/overlay', '/recorder']),
        ('/**/gstreamer', [], ['/capture', '/gstreamer', '/inference', '/overlay']),
        ('/planner', [], ['/capture', '/inference', '/overlay']),
    ],
)
def test_the_nodes_that_a_file_is_for(
    text: str, namespaces: list[str], nodes: list[str], tmp_path: Path
) -> None:
    sections = read(
        tmp_path, f'{text}: {{ros__parameters: {{use_sim_time: false}}}}\n' if text else ''
    ).sections
    found = expected_nodes(sections, namespaces or None)
    assert sorted(found) == nodes and all(
        node.endswith(f'/{kind}') for node, kind in found.items()
    )


def test_a_section_that_misses_its_node_and_one_of_a_name_that_is_misspelt(tmp_path: Path) -> None:
    text = (
        '/*/capture: {ros__parameters: {slots: 4}}\n\n/**/infrence: {ros__parameters: '
        '{in_flight: 2}}\n'
    )
    found = verdict(tmp_path, text)
    assert [(one.section, one.line) for one in found.misses] == [('/*/capture', 1)]
    assert [(one.section, one.line) for one in found.problems] == [('/**/infrence', 3)]
    assert "did you mean 'inference'?" in found.problems[0].text


REFUSED: dict[str, tuple[str, str]] = {
    'several at once': (
        (
            '# every one with its line\n/**/capture:\n  ros__parameters: {widht: 3, heigth: '
            '3}\n/**: {ros__parameters: {framerate: -1.0}}'
        ),
        "'width'? (line 3); capture: parameter 'heigth' is unknown; did you mean 'height'? "
        '(line 3); '
        "capture: parameter 'framerate' is -1.0; it must be a number from 0 to 1000 (Hz) (line 4)",
    ),
    "another of our nodes' parameter": (
        '/**/capture: {ros__parameters: {score_threshold: 0.5}}',
        (
            "capture: parameter 'score_threshold' is unknown; it belongs to node 'inference': set "
            'it there'
        ),
    ),
    'a type of every node': (
        '/**: {ros__parameters: {use_sim_time: 5}}',
        "overlay: parameter 'use_sim_time' is 5; it must be a boolean",
    ),
    'a QoS that there is not': (
        (
            '/**: {ros__parameters: {qos_overrides: {/front/image_raw: {publisher: {reliability: '
            'foo}}}}}'
        ),
        (
            "capture: parameter 'qos_overrides./front/image_raw.publisher.reliability' is 'foo'; "
            'it must be reliable or best_effort'
        ),
    ),
    'a depth that is none': (
        (
            '/**: {ros__parameters: {qos_overrides: {/front/detections: {subscription: {depth: '
            '-1}}}}}'
        ),
        (
            "overlay: parameter 'qos_overrides./front/detections.subscription.depth' is -1; it "
            'must be an integer from 0'
        ),
    ),
    "another of our nodes' QoS": (
        (
            '/front/inference: {ros__parameters: {qos_overrides: {/front/image_raw: {publisher: '
            '{depth: 2}}}}}'
        ),
        (
            "'qos_overrides./front/image_raw.publisher.depth' is unknown; did you mean "
            "'qos_overrides./front/image_raw.subscription.depth'?"
        ),
    ),
    'more latched than there is': (
        (
            '/**: {ros__parameters: {slots: 5, qos_overrides: {/front/image_raw: {publisher: '
            '{depth: 2, durability: transient_local}}}}}'
        ),
        "capture: topic 'image_raw': transient_local with depth 2 would pin 2 of 5 slots",
    ),
}


@pytest.mark.parametrize('case', REFUSED)
def test_what_is_wrong_is_said_in_one_line_that_names_the_file(tmp_path: Path, case: str) -> None:
    text, message = REFUSED[case]
    file = read(tmp_path, text)
    with pytest.raises(ConfigError) as refusal:
        check_file(file, NODES)
    assert message in str(refusal.value) and str(refusal.value).startswith(
        f"params_file '{file.path}': "
    )
    assert '\n' not in str(refusal.value)


def test_what_the_launch_arguments_set_stands_on_top_of_the_file(tmp_path: Path) -> None:
    video = tmp_path / 'drive.avi'
    video.touch()
    file = read(tmp_path, '/**/capture: {ros__parameters: {camera: replay}}')
    assert check_file(file, NODES, {'capture': {'video': str(video)}}) == []
    assert check_file(file, NODES, {'capture': {'camera': 'synthetic'}}) == []
    with pytest.raises(
        ConfigError,
        match=r"vehicle.yaml', with camera, video as the launch arguments say: capture: video "
        r"'/nope' does not exist",
    ):
        check_file(
            file,
            NODES,
            {'capture': {'camera': 'replay', 'video': '/nope'}, 'recorder': {'path': ''}},
        )
    (problem,) = judge(
        read(tmp_path, '/**/capture: {ros__parameters: {slots: 0}}'),
        NODES,
        {'capture': {'slots': 1}},
    ).problems
    assert (problem.text.split(';')[0], problem.section, problem.line) == (
        "parameter 'slots' is 1",
        '',
        0,
    ), 'it is not in the file'


OF_ANY_NODE: dict[str, tuple[str, list[str]]] = {
    'mistyped': ('/**: {ros__parameters: {widht: 3}}', ["'/**': 'widht'; did you mean 'width'?"]),
    'of others, and mistyped': (
        '/**: {ros__parameters: {wheelbase: 3, scal: 1}}',
        ["'/**': 'scal'; did you mean 'scale'?", "'/**': 'wheelbase'"],
    ),
    'each once': (
        '/**: {ros__parameters: {widht: 3}}\n/front/*: {ros__parameters: {widht: 3}}',
        ["'/**', '/front/*': 'widht'; did you mean 'width'?"],
    ),
    'of different nodes of ours': (
        '/**: {ros__parameters: {slots: 8, score_threshold: 0.5, scale: 1.0, controls.gain: 1}}',
        [],
    ),
    'of a node of ours that is not here': ('/**: {ros__parameters: {max_frames: 8}}', []),
    'of every node': (
        (
            '/**: {ros__parameters: {use_sim_time: true, qos_overrides: {/x: '
            '{publisher: {depth: 1}}}}}'
        ),
        [],
    ),
    'for nodes that are elsewhere': ('/rear/*: {ros__parameters: {widht: 3}}', []),
    'of another package': ('/planner: {ros__parameters: {widht: 3}}', []),
}


@pytest.mark.parametrize('case', OF_ANY_NODE)
def test_a_key_for_any_node_that_none_has_is_a_warning(tmp_path: Path, case: str) -> None:
    text, warned = OF_ANY_NODE[case]
    file = read(tmp_path, text)
    expected = [each.replace(': ', ': no node here has a parameter ', 1) for each in warned]
    assert check_file(file, NODES) == [
        f'{file.where}: section {each} (line 1)' for each in expected
    ]


def test_each_component_gets_of_all_nodes_parameters_those_that_it_has(tmp_path: Path) -> None:
    everybody = {
        'use_sim_time': True,
        'width': 320,
        'score_threshold': 0.5,
        'planner_rate': 3,
        'qos_overrides./x.publisher.depth': 1,
    }
    sections = {
        '/**': everybody,
        '/**/capture': {'participants': []},
        '/**/overlay': {'scale': 0.5},
    }
    file = read(
        tmp_path,
        yaml.safe_dump({name: {'ros__parameters': values} for name, values in sections.items()}),
    )
    shared = everybody.keys() - {'score_threshold', 'width', 'planner_rate'}
    assert component_values(file, '/inference', 'inference', {}).keys() == shared | {
        'score_threshold'
    }
    assert component_values(file, '/overlay', 'overlay', {}).keys() == shared | {'scale'}
    capture = component_values(file, '/capture', 'capture', {'slots': 6, 'width': 64})
    assert capture.keys() == shared | {'width', 'participants', 'slots'}
    assert (capture['participants'], capture['width'], capture['slots']) == ([''], 64, 6), (
        'an empty list has no type in ROS'
    )


def test_what_the_chosen_kind_does_not_read_is_said_once_with_its_line(tmp_path: Path) -> None:
    """The component, which knows no lines, doesn't get it."""
    file = read(tmp_path, '/**/capture:\n  ros__parameters:\n    seed: 3\n    width: 64\n')
    chosen = {'camera': 'v4l2', 'device': '/dev/video7'}
    assert check_file(file, {'/capture': 'capture'}, {'capture': chosen}) == [
        f"{file.where}, with camera, device as the launch arguments say: section '/**/capture': "
        "parameter 'seed' is read by camera: synthetic only, not by camera: v4l2; leave it out "
        '(line 3)'
    ]
    assert component_values(file, '/capture', 'capture', chosen) == {'width': 64, **chosen}
