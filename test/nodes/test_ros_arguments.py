"""ROS arguments and parameter files that rcl refuses are explained in one line, without the names of its source files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import rclpy
from nodes.programs import BIN, environment

from zc_perception.errors import ConfigError
from zc_perception.nodes.params.ros_arguments import explain_ros_arguments
from zc_perception.nodes.process import ros_context


def refusal(*arguments: str) -> str:
    with pytest.raises(ConfigError) as refused, ros_context(['--ros-args', *arguments], rclpy.Context()):
        pass
    return str(refused.value)


@pytest.mark.parametrize(
    ('text', 'line', 'words'),
    [
        ('capture:\n  ros__parameters:\n    width: 640\n   height: 480\n', 4, 'indentation'),
        ('capture:\n\tros__parameters: {width: 640}\n', 2, 'tab'),
        ('capture:\n  ros__parameters:\n    frame_id: a: b\n', 3, "second ':'"),
        ('capture:\n  ros__parameters:\n    frame_id: "a\n', 4, 'quote is not closed'),
        ('capture:\n  ros__parameters:\n    frame_id: @a\n', 3, 'quotes'),
        ('capture:\n  ros__parameters:\n    width:\n    height: 2\n', 3, "'width' has no value"),
        ('width: 640\n', 1, "needs 'ros__parameters:'"),
    ],
)
def test_a_bad_parameter_file_is_named_with_its_line(text: str, line: int, words: str, tmp_path: Path) -> None:
    path = tmp_path / 'bad.yaml'
    path.write_text(text, encoding='utf-8')
    found = refusal('--params-file', str(path))
    assert f"'{path}'" in found and f'line {line}' in found and words in found
    assert 'rcl' not in found and '.c:' not in found


def test_a_file_behind_a_good_one_is_the_one_that_is_named(tmp_path: Path) -> None:
    good = tmp_path / 'good.yaml'
    good.write_text('capture: {ros__parameters: {width: 640}}\n', encoding='utf-8')
    assert f"'{tmp_path}/none.yaml' can't be read" in refusal('--params-file', str(good), '--params-file', f'{tmp_path}/none.yaml')


def test_a_pipe_is_not_read_a_second_time(tmp_path: Path) -> None:
    pipe = tmp_path / 'pipe.yaml'
    os.mkfifo(pipe)
    assert str(explain_ros_arguments(['--params-file', str(pipe)], RuntimeError('why'))) == 'ROS arguments: why'


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
    path.write_text('capture:\n  ros__parameters:\n    width: 640\n   height: 480\n', encoding='utf-8')
    command = [str(BIN / program), '--ros-args', '--params-file', str(path)]
    done = subprocess.run(command, env=environment(free_domain), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and done.stdout == ''
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{program}: error: parameter file '{path}' can't be read: line 4: ")
