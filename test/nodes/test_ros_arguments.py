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
ROS arguments and parameter files that rcl refuses are explained in one line.

Also tested: parameters that miss the node for which they were meant.
"""

from __future__ import annotations

import os
from pathlib import Path
import re
import subprocess

from nodes.programs import BIN, environment
import pytest
import rclpy

from zc_perception.errors import ConfigError
from zc_perception.nodes.params.ros_arguments import CommandLine, explain_ros_arguments, MeantFor
from zc_perception.nodes.process import ros_context


def refusal(*arguments: str) -> str:
    with (
        pytest.raises(ConfigError) as refused,
        ros_context(['--ros-args', *arguments], rclpy.Context()),
    ):
        pass
    return str(refused.value)


@pytest.mark.parametrize(
    ('text', 'line', 'words'),
    [
        ('capture:\n  ros__parameters:\n    width: 640\n   height: 480\n', 4, 'indentation'),
        ('capture:\n  ros__parameters:\n    frame_id: a: b\n', 3, "second ':'"),
        ('capture:\n  ros__parameters:\n    frame_id: "a\n', 4, 'quote is not closed'),
        ('capture:\n  ros__parameters:\n    frame_id: @a\n', 3, 'quotes'),
    ],
)
def test_a_bad_parameter_file_is_named_with_its_line(
    text: str, line: int, words: str, tmp_path: Path
) -> None:
    path = tmp_path / 'bad.yaml'
    path.write_text(text, encoding='utf-8')
    found = refusal('--params-file', str(path))
    assert f"'{path}'" in found and f'line {line}' in found and words in found
    assert 'rcl' not in found and '.c:' not in found


def test_a_pipe_is_not_read_a_second_time(tmp_path: Path) -> None:
    pipe = tmp_path / 'pipe.yaml'
    os.mkfifo(pipe)
    assert (
        str(explain_ros_arguments(['--params-file', str(pipe)], RuntimeError('why')))
        == 'ROS arguments: why'
    )


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        (['-p', 'width'], "'-p width' can't be read; write -p NAME:=VALUE"),
        (['-p', 'width:=[1,'], "'-p width:=[1,' can't be read; write -p NAME:=VALUE"),
        (['-r', 'image_raw'], "'-r image_raw' can't be read; write -r FROM:=TO"),
        (['--nonsense'], "unknown: ['--nonsense']"),
        (['--log-level', 'loud'], 'valid severity level'),
    ],
)
def test_a_bad_argument_is_named(arguments: list[str], words: str) -> None:
    found = refusal(*arguments)
    assert found.startswith('ROS arguments: ') and words in found and '.c:' not in found


@pytest.mark.parametrize('program', ['perception', 'component_container'])
def test_programs_say_it(program: str, free_domain: int, tmp_path: Path) -> None:
    path = tmp_path / 'bad.yaml'
    path.write_text(
        'capture:\n  ros__parameters:\n    width: 640\n   height: 480\n', encoding='utf-8'
    )
    command = [str(BIN / program), '--ros-args', '--params-file', str(path)]
    done = subprocess.run(
        command,
        env=environment(free_domain),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2 and done.stdout == ''
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{program}: error: parameter file '{path}' can't be read: line 4: ")


NODES = ['/capture', '/inference', '/overlay']
FRONT = ['/front/capture', '/front/inference', '/front/overlay']


def check(argv: list[str], nodes: list[str], kind: str = '') -> None:
    """:param kind: of these nodes, where it isn't their name."""
    CommandLine(argv).check([(node, kind or node.rpartition('/')[2]) for node in nodes])


def _file(folder: Path, *sections: str) -> list[str]:
    path = folder / 'parameters.yaml'
    path.write_text(''.join(f'{s}:\n  ros__parameters:\n    width: 640\n' for s in sections))
    return ['perception', '--ros-args', '--params-file', str(path)]


@pytest.mark.parametrize(
    ('section', 'nodes'),
    [
        ('capture', NODES),
        ('/capture', NODES),
        ('/**/capture', NODES),
        ('/**/capture', FRONT),
        ('/front/capture', FRONT),
        ('front/capture', FRONT),
        ('/*/capture', FRONT),
        ('/**', FRONT),
        ('/front/*', FRONT),
        ('lidar_driver', NODES),
        ('/rear/planner', FRONT),
    ],
)
def test_sections_that_reach_a_node_or_are_somebody_elses_pass(
    section: str, nodes: list[str], tmp_path: Path
) -> None:
    check(_file(tmp_path, section), nodes)


def _sections(folder: Path, text: str) -> list[str]:
    path = folder / 'parameters.yaml'
    path.write_text(text)
    return ['capture_node', '--ros-args', '--params-file', str(path)]


@pytest.mark.parametrize(
    ('section', 'nodes', 'message'),
    [
        (
            'capture',
            FRONT,
            r"'capture' does not match node '/front/capture'; write '/\*\*/capture'",
        ),
        (
            '/*/capture',
            NODES,
            r"'\*/capture' does not match node '/capture'; write '/\*\*/capture'",
        ),
        (
            '/front/capture',
            ['/truck/front/capture'],
            r"does not match node '/truck/front/capture'; write '/\*\*/front/capture'",
        ),
        ('/*/front/capture', FRONT, r"write '/\*\*/front/capture'"),
        (
            '/fornt/capture',
            FRONT,
            (
                "'fornt/capture' does not match node '/front/capture'; did you mean 'front'?.* "
                'section of its own'
            ),
        ),
        ('/**/fornt/capture', ['/truck/front/capture'], "did you mean 'front'?"),
        ('/truk/front/capture', ['/truck/front/capture'], "did you mean 'truck/front'?"),
        (
            '/frontleft/capture',
            ['/front_left/capture', '/front_right/capture'],
            "node '/front_left/capture'; did you mean 'front_left'?",
        ),
        ('/**/captur', NODES, "no node 'captur' here; did you mean 'capture'"),
        ('inferense', NODES, "no node 'inferense' here; did you mean 'inference'"),
    ],
)
def test_sections_that_miss_are_refused_with_the_right_spelling(
    section: str, nodes: list[str], message: str, tmp_path: Path
) -> None:
    argv = _file(tmp_path, section)
    with pytest.raises(ConfigError, match=message) as refused:
        check(argv, nodes)
    assert argv[-1] in str(refused.value)


@pytest.mark.parametrize(
    ('sections', 'node'),
    [
        (['/**/capture', '/**/front/capture', '/rear/overlay'], '/front/capture'),
        (['/cam1/capture'], '/cam0/capture'),  # another number is another camera
        (['/front_left/capture'], '/front_right/capture'),
        (['/car/front/capture'], '/truck/front/capture'),
        (['/fornt/capture', '/front/capture'], '/front/capture'),  # not mistyped: both are there
    ],
)
def test_sections_of_cameras_that_are_not_here_pass(
    sections: list[str], node: str, tmp_path: Path
) -> None:
    check(_file(tmp_path, *sections), [node])


def test_several_files_are_judged_together(tmp_path: Path) -> None:
    first, second = tmp_path / 'a.yaml', tmp_path / 'b.yaml'
    for path, space in ((first, 'fornt'), (second, 'front')):
        path.write_text(f'/{space}/capture:\n  ros__parameters: {{width: 640}}\n')
    with pytest.raises(ConfigError, match="did you mean 'front'"):
        check(['--params-file', str(first)], FRONT)
    check(['--params-file', str(first), '--params-file', str(second)], FRONT)


@pytest.mark.parametrize(
    ('section', 'node', 'right'),
    [
        ('/**/capture', '/front_cam', '/**/front_cam'),
        ('capture', '/front_cam', '/**/front_cam'),
        ('/**/capture', '/truck/front_cam', '/**/front_cam'),
        ('/truck/capture', '/truck/front_cam', '/**/truck/front_cam'),
    ],
)
def test_a_section_for_a_node_that_has_another_name_is_refused(
    section: str, node: str, right: str, tmp_path: Path
) -> None:
    argv = _file(tmp_path, '/**', section)
    with pytest.raises(ConfigError) as refused:
        check(argv, [node], 'capture')
    assert str(refused.value) == (
        f"parameter file '{argv[-1]}': '{section.lstrip('/')}' does not match node "
        f"'{node}', as which capture runs here; write '{right}' (line 4)"
    )
    check(_file(tmp_path, section, right), [node], 'capture')  # it is for another one


@pytest.mark.parametrize(
    ('node', 'right'), [('/cam', "'cam' in its place"), ('/a/cam', "'/**/cam', in a par")]
)
def test_an_argument_for_a_node_that_has_another_name_is_refused(node: str, right: str) -> None:
    with pytest.raises(
        ConfigError, match=re.escape(f"'capture' does not match node '{node}'; write {right}")
    ):
        check(['x', '--ros-args', '-p', 'capture:width:=64'], [node], 'capture')


@pytest.mark.parametrize(
    ('text', 'places'),
    [
        ('/**/capture: {ros__parameters: {width: 64,\n width: 32}}', 'line 1 and line 2'),
        (
            (
                '/capture: {ros__parameters: {width: 64}}\n---\n\ncapture: {ros__parameters: '
                '{width: x}}'
            ),
            'line 1 and line 4',
        ),
        (
            '/**: {ros__parameters: {width: 64, width: 1, width: 2}}',
            'line 1 and line 1 and line 1',
        ),
    ],
)
def test_a_key_that_is_there_twice_is_refused_with_both_lines(
    text: str, places: str, tmp_path: Path
) -> None:
    argv = _sections(tmp_path, text)
    with pytest.raises(
        ConfigError,
        match=f"'width' is given in {places}, and ROS takes one of them; write it once",
    ):
        check(argv, NODES)
    other = text.replace('capture', 'planner').replace('/**', '/planner').replace('width', 'rate')
    check(_sections(tmp_path, other), NODES)  # another package may want it so


@pytest.mark.parametrize(
    ('argument', 'nodes', 'message'),
    [
        ('capure:framerate:=7.0', NODES, "no node 'capure' here; did you mean 'capture'"),
        ('capture:framerate:=7.0', FRONT, "does not match node '/front/capture'"),
        ('rear/capture:framerate:=7.0', FRONT, "does not match node '/front/capture'"),
    ],
)
def test_arguments_that_miss_are_refused_too(
    argument: str, nodes: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check(['perception', '--ros-args', '-p', argument], nodes)


@pytest.mark.parametrize(
    'argument', ['capture:framerate:=7.0', 'framerate:=7.0', 'video:=/a:b/c.avi']
)
def test_arguments_that_reach_a_node_pass(argument: str) -> None:
    check(['perception', '--ros-args', '-p', argument], NODES)


def test_what_is_set_for_a_node_is_told_apart_by_whom_it_was_meant_for(tmp_path: Path) -> None:
    first, second = tmp_path / 'a.yaml', tmp_path / 'b.yaml'
    first.write_text(
        '/**:\n  ros__parameters: {everywhere: 1, meant: 1, by_argument: 1, nested: 1, other: 1, '
        'qos_overrides: {/image: {publisher: {depth: 3}}}}\n'
        '/front/*:\n  ros__parameters: {in_front: 1}\n'
    )
    second.write_text(
        '/**/capture:\n  ros__parameters: {meant: 2}\nfront:\n  inference:\n    '
        'ros__parameters: {nested: 1}\n'
    )
    files = ['--params-file', str(first), '--params-file', str(second)]
    line = CommandLine(
        ['x', '--ros-args', *files, '-p', 'by_argument:=2', '-p', 'capture:other:=3']
    )

    def meant(node: str, whom: MeantFor) -> set[str]:
        return {key for key, found in line.keys(node).items() if found is whom}

    always = {'everywhere', 'qos_overrides./image.publisher.depth'}
    assert meant('/capture', MeantFor.ANY_NODE) == always | {'nested'}
    assert meant('/front/capture', MeantFor.ANY_NODE) == always | {'nested', 'in_front', 'other'}
    assert meant('/front/inference', MeantFor.ANY_NODE) == always | {'meant', 'in_front', 'other'}
    assert (
        meant('/capture', MeantFor.THIS_NODE),
        meant('/front/inference', MeantFor.THIS_NODE),
    ) == ({'meant', 'other'}, {'nested'})
    assert meant('/capture', MeantFor.THIS_PROCESS) == {'by_argument'}
    assert CommandLine().keys('/capture') == {}
