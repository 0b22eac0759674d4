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
Test each launch file with the real ``ros2 launch``.

The tests check the description of its arguments, that it runs, and what happens when an argument
or a file is wrong and when a process ends.
"""

from __future__ import annotations

import os
from pathlib import Path
import re
import shutil
import signal

from npu.onnx_kit import constant, FLOAT
import numpy as np
import pytest
from ros2_tools import REPOSITORY, Ros2

FILES = sorted(path.name for path in (REPOSITORY / 'launch').glob('*.launch.*'))
PACKAGE = 'zc_perception'
SMALL = """
/**/capture:
  ros__parameters: {width: 320, height: 240, framerate: 15.0}
/**/inference:
  ros__parameters: {threads: 1, timeout: 20.0}
"""
LOADED = r"\[launch\]: loaded '{}' into '{}'"


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Return argument ``params_file`` with a file that needs little computing time."""
    path = tmp_path / 'small.yaml'
    path.write_text(SMALL, encoding='utf-8')
    return f'params_file:={path}'


def detections(ros2: Ros2, topic: str) -> str:
    """Return the text of one message of *topic*."""
    return ros2.asked('topic echo', '--once', topic, 'vision_msgs/msg/Detection2DArray')


def assert_clean(code: int, output: str) -> None:
    assert code == 0, output
    assert 'Traceback' not in output and 'Caught exception' not in output, output


@pytest.mark.parametrize('name', FILES)
def test_its_arguments_read_like_documentation(ros2: Ros2, name: str) -> None:
    said = ros2.say('launch', PACKAGE, name, '--show-args')
    arguments = re.findall(
        r"^    '(\w+)':\n        (.*)\n(        \(default: .*\))?", said, re.MULTILINE
    )
    assert len(arguments) >= 4, said
    for argument, description, default in arguments:
        assert len(description) > 20 and description.strip()[-1] in '.]', (
            f'{argument}: {description}'
        )
        assert 'no description' not in description.lower()
        assert default or argument == 'container', f'{argument} has no default'
    assert (
        "Valid choices are: ['debug', 'info', 'warn', 'error', 'fatal']" in said
        or name.startswith('load_into')
    )


def test_perception_runs_in_a_container_and_ends_by_ctrl_c(ros2: Ros2, small: str) -> None:
    with ros2.launch(PACKAGE, 'perception.launch.py', small, 'accelerator:=onnx') as launch:
        for node in ('inference', 'overlay', 'capture'):
            launch.wait_for(LOADED.format(f'/{node}', '/perception_container'))
        launch.wait_for("'/image_raw': link is in_process: /capture is in this process")
        assert 'camera_optical_frame' in detections(ros2, '/detections')
        listed = ros2.asked('component list', '/perception_container', until='/capture')
        assert re.search(r'1 +/inference\s+2 +/overlay\s+3 +/capture', listed), listed
        assert_clean(launch.interrupt(whole_group=True), launch.output)
        assert all(
            f"unloaded '/{node}'" in launch.output for node in ('capture', 'overlay', 'inference')
        ), launch.output


def test_a_model_s_file_is_enough(ros2: Ros2, small: str, tmp_path: Path) -> None:
    rows = np.zeros((1, 300, 6), np.float32)
    rows[0, 0] = 10, 20, 50, 60, 0.9, 1
    said = {'names': "{0: 'car', 1: 'person'}", 'end2end': 'True', 'stride': '32'}
    model = tmp_path / 'mine.onnx'
    model.write_bytes(constant({'output0': rows}, {'images': (FLOAT, (1, 3, 64, 64))}, said))
    with ros2.launch(PACKAGE, 'perception.launch.py', small, f'model:={model}') as launch:
        launch.wait_for(r'first detections: 1 person \(class_id 1\)')
        assert_clean(launch.interrupt(whole_group=True), launch.output)


def test_perception_runs_as_a_program(ros2: Ros2, small: str) -> None:
    options = [
        'composition:=program',
        'namespace:=truck',
        'cameras:=front,rear',
        'log_level:=info',
        small,
    ]
    with ros2.launch(PACKAGE, 'perception.launch.py', *options) as launch:
        launch.wait_for(r'\[truck\.front\.overlay\]: ready')
        launch.wait_for(r'\[truck\.rear\.capture\]: ready')
        ros2.asked('topic list', until='/truck/front/detections')
        assert_clean(launch.interrupt(), launch.output)


def test_perception_in_xml_gives_each_component_its_section(ros2: Ros2, tmp_path: Path) -> None:
    path = tmp_path / 'mine.yaml'
    text = (
        '/**/capture: {ros__parameters: {width: 320}}\n/truck/capture: {ros__parameters: '
        '{height: 240}}\n'
    )
    path.write_text(
        f'/**: {{ros__parameters: {{slots: 8, score_threshold: 0.5}}}}\n{text}', encoding='utf-8'
    )
    with ros2.launch(
        PACKAGE, 'perception.launch.xml', f'params_file:={path}', 'namespace:=truck'
    ) as launch:
        launch.wait_for(r'\[truck\.capture\]: synthetic scene, seed 0: NV12 LINEAR 320x240')
        launch.wait_for(LOADED.format('/truck/inference', '/truck/perception_container'))
        launch.wait_for("'/truck/image_raw': link is in_process")
        os.kill(launch.pid_of('component_container'), signal.SIGKILL)
        assert launch.end() == 1 and 'ended with exit code -9' in launch.output
    assert "'slots'" not in launch.output and "'score_threshold'" not in launch.output, (
        launch.output
    )


def test_components_in_a_launch_file_of_ones_own_warn_of_mistakes_alone(
    ros2: Ros2, tmp_path: Path
) -> None:
    path, parameters = tmp_path / 'own.launch.xml', tmp_path / 'all.yaml'
    parameters.write_text(
        '/**: {ros__parameters: {slots: 8, score_threshold: 0.5, widht: 320}}\n', encoding='utf-8'
    )
    nodes = ''.join(
        (
            f'<composable_node pkg="zc_perception" plugin="zc_perception::{kind}Node" '
            f'name="{kind.lower()}">{inside}</composable_node>'
        )
        for kind, inside in (
            ('Inference', f'<param from="{parameters}"/>'),
            ('Capture', '<extra_arg name="forward_global_arguments" value="true"/>'),
        )
    )
    start = (
        'exec="component_container" name="mine" namespace="" output="screen" '
        f'args="--ros-args --params-file {parameters}"'
    )
    path.write_text(
        f'<launch><node_container pkg="zc_perception" {start}>{nodes}</node_container></launch>',
        encoding='utf-8',
    )
    with ros2.launch(str(path)) as launch:
        launch.wait_for("'/image_raw': link is in_process")
        for node in ('inference', 'capture'):
            launch.wait_for(rf"\[{node}\]: parameter 'widht' is unknown; did you mean 'width'")
        launch.wait_for("\\[mine\\]: parameter 'widht' is not one of the container")
        assert_clean(launch.interrupt(), launch.output)
    assert "'slots'" not in launch.output and "'score_threshold'" not in launch.output, (
        launch.output
    )


@pytest.mark.parametrize(
    ('arguments', 'ready'),
    [
        (['perception.launch.xml'], r"loaded '/capture'"),
        (['split_process.launch.py'], r'\[capture\]: ready'),
        (['multi_camera.launch.py', 'cameras:=a,b', 'containers:=each'], r"loaded '/b/capture'"),
        (['perception.launch.py', 'composition:=program'], r'\[capture\]: ready'),
    ],
    ids=' '.join,
)
def test_a_mistyped_key_for_all_nodes_is_said_with_the_right_one(
    ros2: Ros2, tmp_path: Path, arguments: list[str], ready: str
) -> None:
    path = tmp_path / 'mine.yaml'
    path.write_text(f'/**: {{ros__parameters: {{widht: 333, slots: 6}}}}{SMALL}', encoding='utf-8')
    with ros2.launch(PACKAGE, *arguments, f'params_file:={path}', 'overlay:=true') as launch:
        launch.wait_for(ready)
        said = launch.wait_for(r"'widht'.*did you mean 'width'")
        assert_clean(launch.interrupt(), launch.output)
    if 'composition:=program' not in arguments:  # the program logs it itself, for each node
        assert len(said) == 1 and 'WARNING' in said[0] and str(path) in said[0]
        assert launch.output.count('widht') == 1, launch.output


@pytest.mark.parametrize(
    'arguments',
    [['split_process.launch.py'], ['perception.launch.py', 'composition:=program']],
    ids=' '.join,
)
def test_a_parameter_for_the_nodes_of_all_packages_ends_nothing(
    ros2: Ros2, tmp_path: Path, small: str, arguments: list[str]
) -> None:
    """Set it in an outer launch file: each node goes on and reports what none of ours has."""
    path, (file, *rest) = tmp_path / 'mine.launch.xml', arguments
    given = ''.join(
        f'<arg name="{name}" value="{value}"/>'
        for name, value in (each.split(':=') for each in (*rest, small))
    )
    path.write_text(
        '<launch><set_parameter name="robot_radius" value="0.3"/><set_parameter name="scala" '
        'value="0.5"/><set_parameter name="slots" value="8"/><include file="$(find-pkg-share '
        f'{PACKAGE})/launch/{file}">{given}</include></launch>',
        encoding='utf-8',
    )
    with ros2.launch(str(path)) as launch:
        for node in ('capture', 'inference', 'overlay'):
            launch.wait_for(rf'\[{node}\]: ready')
            launch.wait_for(rf"\[{node}\]: parameter 'robot_radius' is unknown")
        launch.wait_for(r"\[overlay\]: parameter 'scala' is unknown; did you mean 'scale'")
        assert_clean(launch.interrupt(), launch.output)
    assert "'slots'" not in launch.output, launch.output


def test_quality_of_service_for_all_nodes_is_nobodys_mistake(ros2: Ros2, tmp_path: Path) -> None:
    path = tmp_path / 'mine.yaml'
    path.write_text(
        (
            f'/**: {{ros__parameters: {{qos_overrides: {{/image_raw: {{publisher: {{depth: '
            f'2}}}}}}}}}}{SMALL}'
        ),
        encoding='utf-8',
    )
    for file, ready in (
        ('perception.launch.py', "'/image_raw': link is in_process"),
        ('split_process.launch.py', 'link is shared_memory'),
    ):
        with ros2.launch(PACKAGE, file, f'params_file:={path}', 'overlay:=False') as launch:
            launch.wait_for(ready)
            assert '2' in ros2.asked(
                'param get', '/capture', 'qos_overrides./image_raw.publisher.depth'
            )
            assert_clean(launch.interrupt(), launch.output)
        assert 'is unknown' not in launch.output and 'overlay' not in launch.output, launch.output


def test_cameras_of_a_file_may_be_left_out(ros2: Ros2) -> None:
    with ros2.launch(
        PACKAGE, 'multi_camera.launch.py', 'cameras:=front', 'overlay:=false', 'accelerator:=onnx'
    ) as launch:
        launch.wait_for("'/front/image_raw': link is in_process")
        assert_clean(launch.interrupt(), launch.output)


def test_stereo_runs(ros2: Ros2) -> None:
    with ros2.launch(PACKAGE, 'stereo.launch.py', 'namespace:=head') as launch:
        for side in ('left', 'right'):
            launch.wait_for(rf'\[head\.{side}\.capture\]: ready')
        assert 'left_optical_frame' in detections(ros2, '/head/left/detections')
        assert 'right_optical_frame' in ros2.asked(
            'topic echo', '--once', '/head/right/camera_info', 'sensor_msgs/msg/CameraInfo'
        )
        assert_clean(launch.interrupt(), launch.output)


@pytest.mark.parametrize('containers', ['one', 'each'])
def test_several_cameras_run(ros2: Ros2, containers: str) -> None:
    with ros2.launch(
        PACKAGE,
        'multi_camera.launch.py',
        f'containers:={containers}',
        'overlay:=false',
        'accelerator:=onnx',
    ) as launch:
        for camera in ('front', 'rear'):
            container = (
                '/perception_container'
                if containers == 'one'
                else f'/{camera}/perception_container'
            )
            launch.wait_for(LOADED.format(f'/{camera}/capture', container))
            launch.wait_for(f"'/{camera}/image_raw': link is in_process")
        assert 'rear_optical_frame' in detections(ros2, '/rear/detections')
        assert '/rear/overlay' not in ros2.asked('node list', until='/rear/capture')
        assert_clean(launch.interrupt(), launch.output)


def test_split_processes_share_the_frames_memory(ros2: Ros2, small: str) -> None:
    with ros2.launch(PACKAGE, 'split_process.launch.py', small, 'namespace:=truck') as launch:
        for program in ('inference_node', 'overlay_node', 'capture_node'):
            launch.pid_of(program)
        launch.wait_for(r"\[truck\.inference\]: '/truck/image_raw': link is shared_memory")
        assert 'camera_optical_frame' in detections(ros2, '/truck/detections')
        assert 'required' in ros2.asked('param get', '/truck/inference', 'copy_free')
        assert_clean(launch.interrupt(), launch.output)


def test_nodes_are_loaded_into_a_container_that_runs(
    ros2: Ros2, small: str, tmp_path: Path
) -> None:
    container = tmp_path / 'container.launch.xml'
    container.write_text(
        '<launch><node pkg="zc_perception" exec="component_container_mt" name="mine" '
        'namespace="truck"/></launch>'
    )
    with ros2.launch(str(container)) as launch:
        launch.wait_for('ready: ')
        load = [
            PACKAGE,
            'load_into_container.launch.py',
            'container:=mine',
            'namespace:=truck',
            small,
        ]
        said = ros2.say('launch', *load, 'nodes:=inference,capture')
        assert said.index("loaded '/truck/inference' into '/truck/mine'") < said.index(
            "loaded '/truck/capture' into '/truck/mine'"
        )
        assert 'camera_optical_frame' in detections(ros2, '/truck/detections')
        assert_clean(launch.interrupt(), launch.output)


def test_a_recording_is_found_from_the_folder_of_the_launch(ros2: Ros2, tmp_path: Path) -> None:
    pictures, container = tmp_path / 'pictures', tmp_path / 'container.launch.xml'
    pictures.mkdir()
    shutil.copy2(REPOSITORY / 'resource' / 'detections.jpg', pictures)
    container.write_text(
        '<launch><node pkg="zc_perception" exec="component_container" name="mine" cwd="/"/>'
        '</launch>'
    )
    video = os.path.relpath(pictures, ros2.workspace.folder)
    with ros2.launch(str(container)) as launch:
        launch.wait_for('ready: ')
        load = 'load_into_container.launch.py', 'container:=mine', 'nodes:=capture'
        assert "loaded '/capture'" in ros2.say('launch', PACKAGE, *load, f'video:={video}')
        assert_clean(launch.interrupt(), launch.output)


def test_a_container_that_is_not_there_is_said_and_so_is_which_are(ros2: Ros2) -> None:
    done = ros2.run(
        'launch', PACKAGE, 'load_into_container.launch.py', 'container:=/nowhere', 'timeout:=2'
    )
    assert done.returncode == 1
    assert (
        "container '/nowhere' has not answered for 2 s; no container runs; start one with 'ros2"
        in done.stdout
    )
    assert 'Traceback' not in done.stdout


def test_perception_within_another_launch_file_takes_its_namespace_and_parameters(
    ros2: Ros2, small: str, tmp_path: Path
) -> None:
    path = tmp_path / 'vehicle.launch.xml'
    path.write_text(
        f"""
        <launch>
          <group>
            <push_ros_namespace namespace="truck"/>
            <set_remap from="detections" to="objects"/>
            <set_parameter name="use_sim_time" value="false"/>
            <include file="$(find-pkg-share zc_perception)/launch/perception.launch.py">
              <arg name="params_file" value="{small.removeprefix('params_file:=')}"/>
              <arg name="container" value="mine"/>
              <arg name="overlay" value="False"/>
            </include>
          </group>
        </launch>
        """,
        encoding='utf-8',
    )
    # Our file must accept the unknown argument 'rate', because the outer file may know it.
    with ros2.launch(str(path), 'rate:=3') as launch:
        launch.wait_for(LOADED.format('/truck/capture', '/truck/mine'))
        launch.wait_for(r'\[truck\.capture\]: synthetic scene, seed 0: NV12 LINEAR 320x240')
        assert 'camera_optical_frame' in detections(ros2, '/truck/objects')
        assert_clean(launch.interrupt(), launch.output)


WRONG: dict[str, tuple[list[str], str]] = {
    'no such file': (
        ['perception.launch.py', 'params_file:=/no/such.yaml'],
        "params_file '/no/such.yaml' does not exist or is not a file",
    ),
    'a namespace that is none': (
        ['perception.launch.py', 'namespace:=a//b'],
        "launch argument 'namespace': 'a//b' can't be a namespace",
    ),
    'no such argument': (
        ['perception.launch.py', 'acelerator:=cpu'],
        (
            "launch argument 'acelerator' is unknown; did you mean 'accelerator'?; known are "
            'params_file'
        ),
    ),
    'no such kind': (
        ['perception.launch.py', 'camera:=v4l3'],
        'Argument "camera" provided value "v4l3" is not valid',
    ),
    'cameras and stereo': (
        ['perception.launch.py', 'stereo:=true', 'cameras:=a'],
        'cameras and stereo can not go together',
    ),
    'one device for several cameras': (
        ['multi_camera.launch.py', 'device:=/dev/video0'],
        "launch argument 'device' is '/dev/video0', for 2 cameras; give each camera its own",
    ),
    'no overlay in the program': (
        ['perception.launch.py', 'composition:=program', 'overlay:=false'],
        'needs composition:=container',
    ),
    'no cameras': (['multi_camera.launch.py', 'cameras:=,'], "launch argument 'cameras' is empty"),
    'a delay that is none': (
        ['perception.launch.py', 'respawn_delay:=soon'],
        "launch argument 'respawn_delay' is 'soon'; it must be a number",
    ),
    'no such node': (
        ['load_into_container.launch.py', 'container:=x', 'nodes:=captrue'],
        "launch argument 'nodes': 'captrue' is none of them",
    ),
    'no container named': (['load_into_container.launch.py'], 'container'),
    'an unknown parameter': (
        ['split_process.launch.py', 'FILE:/**/capture: {ros__parameters: {widht: 3}}'],
        "'widht' is unknown; did you mean",
    ),
    'a recording that the arguments name': (
        ['perception.launch.py', 'camera:=replay', 'video:=/no/such.avi'],
        "'/no/such.avi' does not exist",
    ),
    'a missed section': (
        ['multi_camera.launch.py', 'FILE:/fornt/capture: {ros__parameters: {width: 320}}'],
        "'fornt/capture' does not match node '/front/capture'",
    ),
}


def test_a_node_of_another_name_in_a_launch_file_of_ones_own_is_named(
    ros2: Ros2, tmp_path: Path
) -> None:
    parameters, path = tmp_path / 'mine.yaml', tmp_path / 'own.launch.xml'
    parameters.write_text('/**/capture: {ros__parameters: {camera: replay}}\n', encoding='utf-8')
    node = (
        '<node pkg="zc_perception" exec="capture_node" name="cam" output="screen"><param '
        f'from="{parameters}"/></node>'
    )
    path.write_text(f'<launch>{node}</launch>', encoding='utf-8')
    said = ros2.run('launch', str(path)).stdout
    assert (
        f"parameter file '{parameters}': '**/capture' does not match node '/cam', which" in said
    )
    assert "is the capture node; write '/**/cam' (line 1)" in said


@pytest.mark.parametrize('case', WRONG)
def test_what_is_wrong_is_said_in_one_line_before_anything_starts(
    ros2: Ros2, tmp_path: Path, case: str
) -> None:
    arguments, message = WRONG[case]
    path = tmp_path / 'wrong.yaml'
    if arguments[-1].startswith('FILE:'):
        path.write_text(arguments[-1].removeprefix('FILE:'), encoding='utf-8')
        arguments = [*arguments[:-1], f'params_file:={path}']
    done = ros2.run('launch', PACKAGE, *arguments)
    assert done.returncode == 1, done.stdout
    said = {
        line.split(']: ', 1)[-1].split('traceback): ')[-1]
        for line in done.stdout.splitlines()
        if 'ERROR' in line or 'rror:' in line
    }
    assert any(message in line for line in said), done.stdout
    assert 'process started' not in done.stdout and 'Traceback' not in done.stdout
    assert len(said) <= 1 or case == 'no container named', said


def test_a_component_that_cannot_be_loaded_ends_the_launch_with_the_reason(
    ros2: Ros2, tmp_path: Path
) -> None:
    path = tmp_path / 'card.yaml'
    path.write_text('/**/inference: {ros__parameters: {accelerator: axl}}\n', encoding='utf-8')
    done = ros2.run('launch', PACKAGE, 'perception.launch.py', f'params_file:={path}')
    assert done.returncode == 1
    assert "'/inference' could not be loaded into '/perception_container': " in done.stdout
    assert 'also runs on accelerator: onnx' in done.stdout
    assert 'Traceback' not in done.stdout


@pytest.mark.parametrize('composition', ['container', 'program'])
def test_a_process_that_fails_ends_the_launch_with_one(
    ros2: Ros2, small: str, composition: str
) -> None:
    executable, ready = {
        'container': ('component_container', LOADED.format('/capture', '.*')),
        'program': ('perception', 'capture.*: ready'),
    }[composition]
    with ros2.launch(
        PACKAGE, 'perception.launch.py', f'composition:={composition}', small
    ) as launch:
        launch.wait_for(ready)
        os.kill(launch.pid_of(executable), signal.SIGKILL)
        assert launch.end() == 1, launch.output
        assert (
            'ended with exit code -9; its last lines say why' in launch.output
            and 'Traceback' not in launch.output
        )


def test_a_process_that_ends_well_ends_the_launch_with_zero(ros2: Ros2, small: str) -> None:
    with ros2.launch(PACKAGE, 'perception.launch.py', small) as launch:
        launch.wait_for(LOADED.format('/capture', '.*'))
        os.kill(launch.pid_of('component_container'), signal.SIGTERM)
        assert_clean(launch.end(), launch.output)


def test_a_container_that_is_started_again_gets_its_nodes_again(ros2: Ros2, small: str) -> None:
    with ros2.launch(
        PACKAGE, 'perception.launch.py', 'on_exit:=respawn', 'respawn_delay:=0.2', small
    ) as launch:
        launch.wait_for(LOADED.format('/capture', '.*'))
        first = launch.pid_of('component_container')
        os.kill(first, signal.SIGKILL)
        for node in ('inference', 'overlay', 'capture'):
            launch.wait_for(LOADED.format(f'/{node}', '/perception_container'), count=2)
        assert launch.pid_of('component_container') != first
        assert 'camera_optical_frame' in detections(ros2, '/detections')
        assert_clean(launch.interrupt(), launch.output)


def test_other_processes_go_on_if_they_are_to(ros2: Ros2, small: str) -> None:
    with ros2.launch(PACKAGE, 'split_process.launch.py', 'on_exit:=nothing', small) as launch:
        launch.wait_for(r"\[inference\]: '/image_raw': link is shared_memory")
        os.kill(launch.pid_of('overlay_node'), signal.SIGKILL)
        launch.wait_for(r'overlay_node.*process has died')
        assert 'camera_optical_frame' in detections(ros2, '/detections')
        assert_clean(launch.interrupt(), launch.output)


def test_without_autostart_nodes_wait_for_transitions(ros2: Ros2, small: str) -> None:
    with ros2.launch(
        PACKAGE, 'perception.launch.py', 'autostart:=false', 'overlay:=false', small
    ) as launch:
        launch.wait_for(LOADED.format('/capture', '.*'))
        with ros2.daemon('/capture', '/inference'):
            assert 'unconfigured' in ros2.asked('lifecycle get', '/capture')
            for node in ('/inference', '/capture'):
                for transition in ('configure', 'activate'):
                    assert 'successful' in ros2.asked('lifecycle set', node, transition)
            assert 'camera_optical_frame' in detections(ros2, '/detections')
        assert_clean(launch.interrupt(), launch.output)
