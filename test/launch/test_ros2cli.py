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

"""Test the stock ``ros2`` commands on a running graph: component, param, topic and others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
import re

import pytest
from ros2_tools import Launch, Ros2, Workspace
import yaml

from zc_perception.nodes.params.verdict import check_file, node_kind
from zc_perception.nodes.params.yaml_file import read_parameter_yaml

CONTAINER = '/perception_container'
NODES = ('/capture', '/inference', '/overlay')
DETECTIONS = ('/detections', 'vision_msgs/msg/Detection2DArray')


@pytest.fixture(scope='module')
def ros2(workspace: Workspace, module_domain: int) -> Ros2:  # one graph for all tests of this file
    assert workspace.built.returncode == 0, workspace.built.stdout + workspace.built.stderr
    return Ros2(workspace, module_domain)


@pytest.fixture(scope='module')
def graph(ros2: Ros2, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    path = tmp_path_factory.mktemp('graph') / 'small.yaml'
    path.write_text(
        '/**/capture: {ros__parameters: {width: 320, height: 240, framerate: 15.0}}\n'
        '/**/inference: {ros__parameters: {threads: 1, timeout: 20.0}}\n',
        encoding='utf-8',
    )
    with ros2.launch('zc_perception', 'perception.launch.py', f'params_file:={path}') as launch:
        launch.wait_for("'/image_raw': link is in_process")
        with ros2.daemon(CONTAINER, *NODES):
            yield launch
        assert launch.interrupt() == 0, launch.output
        assert 'Traceback' not in launch.output


def components(ros2: Ros2) -> dict[str, int]:
    """Return the unique ids of the container's components, by the names of the nodes."""
    listed = ros2.asked('component list', until=CONTAINER)
    assert listed.splitlines()[0] == CONTAINER, listed
    return {
        name: int(number) for number, name in re.findall(r'^ +(\d+) +(\S+)$', listed, re.MULTILINE)
    }


@pytest.mark.usefixtures('graph')
def test_component_list_load_and_unload_with_a_foreign_component(ros2: Ros2) -> None:
    assert list(components(ros2)) == ['/inference', '/overlay', '/capture'], (
        'in the order of their ids'
    )
    load = [
        '-n',
        'speaker',
        '--node-namespace',
        '/other',
        '-r',
        'chatter:=words',
        '-p',
        'text:=good morning',
    ]
    said = ros2.asked(
        'component load', CONTAINER, 'foreign_components', 'foreign_components::Talker', *load
    )
    assert "as '/other/speaker'" in said
    assert 'good morning' in ros2.asked(
        'topic echo', '--once', '/other/words', 'std_msgs/msg/String'
    )
    number = components(ros2)['/other/speaker']
    twice = ros2.asked(
        'component load', CONTAINER, 'foreign_components', 'foreign_components::Talker', *load
    )
    assert "as '/other/speaker'" in twice, 'as containers of rclcpp do'
    for unique_id in (number, number + 1):
        assert f'Unloaded component {unique_id}' in ros2.asked(
            'component unload', CONTAINER, str(unique_id)
        )
    assert '/other/speaker' not in components(ros2)
    gone = ros2.run('component', 'unload', CONTAINER, str(number))
    assert gone.returncode and f'No node found with unique_id: {number}' in gone.stdout


@pytest.mark.usefixtures('graph')
def test_component_unload_and_load_of_ours_while_the_others_go_on(ros2: Ros2) -> None:
    before = components(ros2)
    ros2.asked('component unload', CONTAINER, str(before['/capture']))
    ros2.asked(
        'component load',
        CONTAINER,
        'zc_perception',
        'zc_perception::CaptureNode',
        '-p',
        'width:=320',
        '-p',
        'height:=240',
    )
    after = components(ros2)
    assert after['/capture'] > max(before.values()) and after['/inference'] == before['/inference']
    assert 'camera_optical_frame' in ros2.asked('topic echo', '--once', *DETECTIONS)


@pytest.mark.usefixtures('graph')
@pytest.mark.parametrize(
    ('package', 'plugin', 'reason'),
    [
        (
            'foreign_components',
            'foreign_components::Nobody',
            'Failed to find class with the requested plugin name.',
        ),
        (
            'no_such_package',
            'no_such_package::Nobody',
            'Could not find requested resource in ament index',
        ),
    ],
)
def test_component_load_says_why_not(ros2: Ros2, package: str, plugin: str, reason: str) -> None:
    done = ros2.run('component', 'load', CONTAINER, package, plugin)
    assert done.returncode and reason in done.stdout, done.stdout


@pytest.mark.usefixtures('graph')
@pytest.mark.parametrize('node', NODES)
def test_param_list_has_every_parameter(ros2: Ros2, node: str) -> None:
    listed = ros2.asked('param list', node).split()
    assert {spec.name for spec in node_kind(node[1:]).SPECS} <= set(listed)


@pytest.mark.usefixtures('graph')
def test_param_describe_get_and_set(ros2: Ros2) -> None:
    described = ros2.asked('param describe', '/inference', 'score_threshold', 'accelerator')
    for text in (
        'Detections with a lower score are dropped',
        'Min value: -1.0',
        'Max value: 1.0',
        'one of: auto, axl',
    ):
        assert text in described, described
    assert 'Double value is: -1.0' in ros2.asked('param get', '/inference', 'score_threshold')
    assert 'Set parameter successful' in ros2.asked(
        'param set', '/inference', 'score_threshold', '0.25'
    )
    assert 'Double value is: 0.25' in ros2.asked('param get', '/inference', 'score_threshold')
    refused = ros2.run('param', 'set', '/inference', 'score_threshold', '7.0')
    assert "'score_threshold' is 7.0; it must be a number from 0 to 1, or -1" in refused.stdout
    fixed = ros2.run('param', 'set', '/capture', 'width', '640')
    assert "parameter 'width' can't change now, the node is active" in fixed.stdout
    assert 'Double value is: 0.25' in ros2.asked('param get', '/inference', 'score_threshold')


@pytest.mark.usefixtures('graph')
def test_param_dump_is_a_parameter_file(ros2: Ros2, tmp_path: Path) -> None:
    path = tmp_path / 'dump.yaml'
    path.write_text(''.join(ros2.asked('param dump', node) for node in NODES), encoding='utf-8')
    assert yaml.safe_load(path.read_text(encoding='utf-8')).keys() == set(NODES)
    check_file(read_parameter_yaml(str(path)), {node: node[1:] for node in NODES})


@pytest.mark.usefixtures('graph')
def test_topic_echo_info_and_list(ros2: Ros2) -> None:
    assert 'camera_optical_frame' in ros2.asked('topic echo', '--once', *DETECTIONS)
    info = ros2.asked('topic info', '-v', '/image_raw', until='Publisher count: 1')
    assert (
        'Publisher count: 1' in info
        and 'Node name: capture' in info
        and 'Reliability: RELIABLE' in info
    )
    assert 'Subscription count: 0' in info, 'who gets frames without a copy holds no reader'
    ros2.asked(
        'topic info', '/image_raw/_zc', until='Subscription count: 1'
    )  # the subscriber is inference; overlay has none while nobody subscribes to its picture
    listed = ros2.asked('topic list', '-t', until='/detections/image [')
    for topic in (
        '/image_raw [sensor_msgs/msg/Image]',
        '/camera_info [sensor_msgs/msg/CameraInfo]',
        '/detections [vision_msgs/msg/Detection2DArray]',
        ('/label_info [vision_msgs/msg/LabelInfo]'),
        '/detections/image [sensor_msgs/msg/Image]',
        ('/diagnostics [diagnostic_msgs/msg/DiagnosticArray]'),
    ):
        assert topic in listed


@pytest.mark.usefixtures('graph')
def test_service_call_enables_and_disables(ros2: Ros2) -> None:
    for value in ('false', 'true'):
        said = ros2.say(
            'service', 'call', '/inference/enable', 'std_srvs/srv/SetBool', f'{{data: {value}}}'
        )
        assert 'success=True' in said
        assert f'Boolean value is: {value.capitalize()}' in ros2.asked(
            'param get', '/inference', 'enabled'
        )


@pytest.mark.usefixtures('graph')
def test_lifecycle_transitions(ros2: Ros2) -> None:
    assert ros2.asked('lifecycle nodes').split() == list(NODES)
    assert ros2.asked('lifecycle get', '/capture').strip() == 'active [3]'
    steps = (
        ('deactivate', 'inactive'),
        ('cleanup', 'unconfigured'),
        ('configure', 'inactive'),
        ('activate', 'active'),
    )
    for transition, state in steps:
        assert transition in ros2.asked('lifecycle list', '/capture')
        assert 'Transitioning successful' in ros2.asked('lifecycle set', '/capture', transition)
        assert ros2.asked('lifecycle get', '/capture').startswith(state)
        if state == 'unconfigured':
            assert 'Set parameter successful' in ros2.asked(
                'param set', '/capture', 'width', '352'
            )
    assert 'camera_optical_frame' in ros2.asked('topic echo', '--once', *DETECTIONS)
    assert 'width: 352' in ros2.asked(
        'topic echo', '--once', '/camera_info', 'sensor_msgs/msg/CameraInfo'
    )


@pytest.mark.usefixtures('graph')
def test_node_info_names_the_interfaces(ros2: Ros2) -> None:
    info = ros2.asked('node info', '/inference', until='/inference/change_state')
    for name in (
        '/detections: vision_msgs/msg/Detection2DArray',
        '/inference/enable: std_srvs/srv/SetBool',
        '/inference/change_state',
    ):
        assert name in info


@pytest.mark.usefixtures('graph')
def test_doctor_has_nothing_against_our_nodes(ros2: Ros2) -> None:
    """
    Expect at most the warning that a publisher of ours has no subscriber at the moment.

    ``ros2 doctor`` gives this warning for every publisher. Any other would be a mistake of ours.
    """
    for _ in range(
        10
    ):  # doctor looks for half a second, which isn't always enough to find every publisher
        done = ros2.run('doctor')
        assert 'checks passed' in done.stdout, done.stdout
        warnings = [
            line
            for line in done.stdout.splitlines()
            if 'Warning' in line or 'ERROR' in line or 'WARN' in line
        ]
        ours = [
            line
            for line in warnings
            if re.search(
                r'/(capture|inference|overlay|perception_container|image_raw|detections)\b', line
            )
        ]
        if not any('Subscriber without publisher detected' in line for line in ours):
            break
    assert [line for line in ours if 'Publisher without subscriber detected' not in line] == []
