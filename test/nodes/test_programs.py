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

"""The console scripts: ready line, end by signal, wrong parameters."""

from __future__ import annotations

from pathlib import Path
import random
import signal
import subprocess
import sys
import time

from long_form import LONG
from nodes.programs import BIN, environment, parameters, PERCEPTION_READY, Program
from nodes.ros_kit import Onlooker
import pytest
from vision_msgs.msg import Detection2DArray
from waiting import until
import warm_start

from zc_perception.camera.mcap_file import MAGIC


def _refused(program: str, args: list[str], domain: int) -> subprocess.CompletedProcess[str]:
    return warm_start.run([str(BIN / program), *args], env=environment(domain), timeout=120)


def _assert_one_clear_line(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode == 2
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert len(lines) == 1, lines
    assert message in lines[0]


def test_several_cameras_run_in_one_process_each_with_its_own_parameters(
    tmp_path: Path, free_domain: int
) -> None:
    yaml = tmp_path / 'cameras.yaml'
    sections = (
        ('/**/capture', '{width: 128, height: 128}'),
        ('/front/capture', '{frame_id: nose}'),
        ('/**/inference', '{model: hog}'),
    )
    yaml.write_text(
        ''.join(f'{name}:\n  ros__parameters: {values}\n' for name, values in sections)
    )
    args = ['--cameras', 'front', 'truck/rear', '--ros-args', '--params-file', str(yaml)]
    with (
        Program('perception', *args, domain=free_domain).start(
            '[front.capture]: ready', '[truck.rear.inference]: ready'
        ) as program,
        Onlooker(free_domain) as onlooker,
    ):
        for namespace, frame_id in (('front', 'nose'), ('truck/rear', 'camera_optical_frame')):
            heard = onlooker.hear(Detection2DArray, f'/{namespace}/detections')
            onlooker.until(lambda heard=heard: len(heard) >= 3, namespace)
            assert {each.header.frame_id for each in heard} == {frame_id}
        assert program.interrupt() == 0, program.output


@pytest.mark.parametrize(
    ('program', 'args', 'message'),
    [
        (
            'perception',
            parameters(capture__width='wide'),
            "'width' is 'wide'; it must be an integer from 0 to 8192 (px)",
        ),
        ('perception', ['--cameras'], 'argument --cameras: expected at least one argument'),
        (
            'perception',
            ['--cameras', 'front', '--ros-args', '-r', '__ns:=/truck'],
            "name the cameras 'truck/front'",
        ),
        (
            'component_container',
            ['--ros-args', '-p', 'use_sim_time:=5'],
            "'use_sim_time' is 5; it must be a boolean",
        ),
        (
            'component_container_mt',
            ['--ros-args', '-p', 'thread_num:=0'],
            "parameter 'thread_num' is 0; it must be an integer from 1 to 64",
        ),
    ],
)
def test_a_wrong_argument_ends_with_one_clear_line(
    program: str, args: list[str], message: str, free_domain: int
) -> None:
    _assert_one_clear_line(_refused(program, args, free_domain), message)


def test_a_key_for_nodes_of_any_name_is_a_warning_and_one_for_ours_the_end(
    tmp_path: Path, free_domain: int
) -> None:
    yaml = tmp_path / 'shared.yaml'
    yaml.write_text(
        '/**:\n  ros__parameters: {widht: 640, of_another_package: 1, score_threshold: 0.5}\n'
    )
    args = ['--ros-args', '--params-file', str(yaml), '-p', 'width:=128', '-p', 'height:=128']
    with Program('capture_node', *args, domain=free_domain).start('[capture]: ready') as program:
        assert "parameter 'widht' is unknown; did you mean 'width'?" in program.output
        assert (
            "parameter 'of_another_package' is unknown" in program.output
            and '[WARN]' in program.output
        )
        assert 'score_threshold' not in program.output.replace('widht', ''), (
            'another of our nodes has it'
        )
        assert program.interrupt() == 0, program.output
    yaml.write_text('/**/capture:\n  ros__parameters: {score_threshold: 0.5}\n')
    _assert_one_clear_line(
        _refused('capture_node', ['--ros-args', '--params-file', str(yaml)], free_domain),
        "node 'capture': parameter 'score_threshold' is unknown; it belongs to node 'inference'",
    )


def test_an_argument_for_all_nodes_is_no_mistake_where_another_of_ours_has_it(
    free_domain: int,
) -> None:
    """``SetParameter`` in a launch file becomes such an argument of every program."""
    args = ['--ros-args', '-p', 'framerate:=12.0', '-p', 'use_sim_time:=false']
    with Program('overlay_node', *args, domain=free_domain).start('[overlay]: ready') as program:
        assert program.interrupt() == 0 and 'framerate' not in program.output, program.output
    args = ['--ros-args', '-p', 'robot_radius:=0.3', '-p', 'scala:=0.5', '-p', 'framerate:=12.0']
    _assert_one_clear_line(
        _refused('overlay_node', args, free_domain), "parameter 'robot_radius' is unknown"
    )
    with Program('perception', '--unknown-parameters', 'warn', *args, domain=free_domain).start(
        *PERCEPTION_READY
    ) as program:
        for node in ('capture', 'inference', 'overlay'):
            assert f"[{node}]: parameter 'robot_radius' is unknown" in program.output
        assert "[overlay]: parameter 'scala' is unknown; did you mean 'scale'?" in program.output
        assert "parameter 'framerate'" not in program.output and program.interrupt() == 0
    meant = ['--unknown-parameters', 'warn', '--ros-args', '-p', 'overlay:robot_radius:=0.3']
    _assert_one_clear_line(
        _refused('overlay_node', meant, free_domain),
        "node 'overlay': parameter 'robot_radius' is unknown",
    )


@pytest.mark.parametrize('program', ['perception', 'capture_node'])
def test_sigint_at_any_moment_after_ready_ends_with_zero(program: str, free_domain: int) -> None:
    marks = (
        PERCEPTION_READY
        if program == 'perception'
        else (f'[{program.removesuffix("_node")}]: ready',)
    )
    chance = random.Random(free_domain)
    delays = (
        [0.0, 0.02, chance.uniform(0.03, 0.3), chance.uniform(0.3, 1.5)]
        if program == 'perception'
        else [0.0, 0.0005, 0.001, 0.002, 0.005, 0.4]
    )
    for delay in delays if LONG else chance.sample(delays, 1):
        with Program(program, domain=free_domain, cold=True).start(*marks) as running:
            time.sleep(delay)
            assert running.interrupt() == 0, running.output
            assert 'Traceback' not in running.output


_SIGTERM_BIT = 1 << (signal.SIGTERM - 1)


def caught(pid: int) -> int:
    """Return a bit mask of the signals that have a handler."""
    status = Path(f'/proc/{pid}/status').read_text(encoding='ascii')
    return int(status.split('SigCgt:')[1].split()[0], 16)


@pytest.mark.parametrize(
    ('program', 'number'), [('perception', signal.SIGINT), ('component_container', signal.SIGTERM)]
)
def test_as_soon_as_python_runs_our_code(
    program: str, number: signal.Signals, free_domain: int
) -> None:
    running = subprocess.Popen(
        [str(BIN / program)],
        env=environment(free_domain),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until(
            lambda: caught(running.pid) & _SIGTERM_BIT
        )  # Python handles SIGINT itself, but not SIGTERM
        running.send_signal(number)
        said, _ = running.communicate(timeout=60)
        assert running.returncode == 0 and said == ''
    finally:
        running.kill()


# Sends itself SIGINT at the end of one method's first call, and prints all calls.
_INTERRUPTED_START = """
import os, signal, sys

from zc_perception.nodes.main import perception as run
from zc_perception.nodes.perception import PerceptionGraph
from zc_perception.nodes.perception_node import PerceptionNode

def told(kind, method):
    original = getattr(kind, method)

    def call(*arguments, **options):
        print(method, flush=True)
        original(*arguments, **options)
        if method == 'start':
            os.kill(os.getpid(), signal.SIGINT)

    setattr(kind, method, call)

told(PerceptionGraph, '__init__')
told(PerceptionNode, 'start')
sys.exit(run())
"""


def test_a_signal_during_the_start_ends_it_before_the_next_step(free_domain: int) -> None:
    words = [sys.executable, '-c', _INTERRUPTED_START, '--cameras', 'left', 'right']
    done = subprocess.run(
        words, env=environment(free_domain), capture_output=True, text=True, check=False
    )
    calls = ['__init__', '__init__', 'start']
    assert (done.returncode, done.stdout.split()) == (0, calls), done.stderr
    assert 'ready' not in done.stderr and 'Traceback' not in done.stderr


def test_a_terminal_that_closes_ends_a_program_in_order_but_not_under_nohup(
    free_domain: int, tmp_path: Path
) -> None:
    with Program('capture_node', domain=free_domain).start('ready'):
        for under in ([], ['nohup']):
            path = tmp_path / f'drive{len(under)}' / f'drive{len(under)}_0.mcap'
            values = parameters(path=path.parent, disk_floor=0)
            running = subprocess.Popen(
                [*under, str(BIN / 'zc_record'), *values],
                env=environment(free_domain),
                stdin=subprocess.DEVNULL,
            )
            try:
                until(path.exists, 'the first frame')
                running.send_signal(signal.SIGHUP)
                if under:
                    with pytest.raises(subprocess.TimeoutExpired):
                        running.wait(timeout=1)
                    running.send_signal(signal.SIGINT)
                assert running.wait(timeout=60) == 0
            finally:
                running.kill()
                running.wait()
            assert path.read_bytes().endswith(MAGIC), 'the recording has its end'
