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

"""The console scripts: ready line, end by signal, wrong parameters; the demo."""

from __future__ import annotations

import json
from pathlib import Path
import random
import re
import signal
import subprocess
import sys
import time

import cv2
from long_form import LONG
from nodes.programs import BIN, environment, parameters, PERCEPTION_READY, Program
from nodes.ros_kit import Onlooker
import pytest
from vision_msgs.msg import Detection2DArray
from waiting import until
import warm_start

from zc_perception.camera.mcap_file import MAGIC
from zc_perception.errors import ConfigError
from zc_perception.nodes import demo
from zc_perception.observe.metrics import StageLatencies


def run(program: str, args: list[str], domain: int) -> subprocess.CompletedProcess[str]:
    return warm_start.run([str(BIN / program), *args], env=environment(domain), timeout=200)


def check_one_clear_line(program: str, args: list[str], domain: int, message: str) -> None:
    """Check that the program refuses its arguments."""
    done = run(program, args, domain)
    (line,) = (line for line in (done.stdout + done.stderr).splitlines() if line.strip())
    assert done.returncode == 2 and message in line


def test_several_cameras_run_in_one_process_each_with_its_own_parameters(
    tmp_path: Path, free_domain: int
) -> None:
    yaml = tmp_path / 'cameras.yaml'
    yaml.write_text(
        '/**/capture: {ros__parameters: {width: 128, height: 128}}\n'
        '/front/capture: {ros__parameters: {frame_id: nose}}\n'
        '/**/inference: {ros__parameters: {model: hog}}\n'
    )
    args = ['--cameras', 'front', 'truck/rear', '--ros-args', '--params-file', str(yaml)]
    marks = '[front.capture]: ready', '[truck.rear.inference]: ready'
    with (
        Program('perception', *args, domain=free_domain).start(*marks) as program,
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
    check_one_clear_line(program, args, free_domain, message)


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
        assert "parameter 'of_another_package' is unknown" in program.output
        assert '[WARN]' in program.output
        assert 'score_threshold' not in program.output, 'another of our nodes has it'
        assert program.interrupt() == 0, program.output
    yaml.write_text('/**/capture:\n  ros__parameters: {score_threshold: 0.5}\n')
    said = "parameter 'score_threshold' is unknown; it belongs to node 'inference'"
    args = ['--ros-args', '--params-file', str(yaml)]
    check_one_clear_line('capture_node', args, free_domain, f"node 'capture': {said}")


def test_an_argument_for_all_nodes_is_no_mistake_where_another_of_ours_has_it(
    free_domain: int,
) -> None:
    """``SetParameter`` in a launch file becomes such an argument of every program."""
    args = ['--ros-args', '-p', 'framerate:=12.0', '-p', 'use_sim_time:=false']
    with Program('overlay_node', *args, domain=free_domain).start('[overlay]: ready') as program:
        assert program.interrupt() == 0 and 'framerate' not in program.output, program.output
    args = ['--ros-args', '-p', 'robot_radius:=0.3', '-p', 'scala:=0.5', '-p', 'framerate:=12.0']
    said = "parameter 'robot_radius' is unknown"
    check_one_clear_line('overlay_node', args, free_domain, said)
    warned = Program('perception', '--unknown-parameters', 'warn', *args, domain=free_domain)
    with warned.start(*PERCEPTION_READY) as program:
        for node in ('capture', 'inference', 'overlay'):
            assert f'[{node}]: {said}' in program.output
        assert "[overlay]: parameter 'scala' is unknown; did you mean 'scale'?" in program.output
        assert "parameter 'framerate'" not in program.output and program.interrupt() == 0
    meant = ['--unknown-parameters', 'warn', '--ros-args', '-p', 'overlay:robot_radius:=0.3']
    check_one_clear_line('overlay_node', meant, free_domain, f"node 'overlay': {said}")


@pytest.mark.parametrize(
    ('program', 'marks', 'delays'),
    [
        ('perception', PERCEPTION_READY, [0.0, 0.02, 0.1, 0.3, 1.5]),
        ('capture_node', PERCEPTION_READY[:1], [0.0, 0.0005, 0.001, 0.002, 0.005, 0.4]),
    ],
)
def test_sigint_at_any_moment_after_ready_ends_with_zero(
    program: str, marks: tuple[str, ...], delays: list[float], free_domain: int
) -> None:
    chance = random.Random(free_domain)
    for delay in delays if LONG else chance.sample(delays, 1):
        with Program(program, domain=free_domain, cold=True).start(*marks) as running:
            time.sleep(delay * chance.uniform(0.3, 1.7))
            assert running.interrupt() == 0, running.output
            assert 'Traceback' not in running.output


def catches_sigterm(pid: int) -> bool:
    """Return whether there is a handler: Python itself handles SIGINT, but not SIGTERM."""
    status = Path(f'/proc/{pid}/status').read_text(encoding='ascii')
    return bool(int(status.split('SigCgt:')[1].split()[0], 16) & 1 << (signal.SIGTERM - 1))


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
        until(lambda: catches_sigterm(running.pid))
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
            command = [*under, str(BIN / 'zc_record'), *values]
            with Program(command, domain=free_domain, cold=True).start() as running:
                until(path.exists, 'the first frame')
                running.process.send_signal(signal.SIGHUP)
                if under:
                    with pytest.raises(subprocess.TimeoutExpired):
                        running.process.wait(timeout=1)
                    running.process.send_signal(signal.SIGINT)
                assert running.ended() == 0, running.output
            assert path.read_bytes().endswith(MAGIC), 'the recording has its end'


# ``zc_demo`` as ``make demo`` runs it, only shorter.
#: Frames whose tensor is made but whose detections aren't published when the demo ends.
IN_FLIGHT = 4


def test_a_bounded_run_writes_summary_and_picture(tmp_path: Path, free_domain: int) -> None:
    args = ['--frames', '60', '--seed', '3', '--framerate', '15', '--out', str(tmp_path)]
    done = run('zc_demo', args, free_domain)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / 'summary.json').read_text())
    assert set(summary) >= {'dropped', 'fps', 'heap'}
    assert summary['frames'] >= 60 and summary['detections'] > 60
    assert summary['rung'] == 'in_process' and summary['accelerator'] == 'onnx'
    assert set(summary['latency_ms']) == set(StageLatencies.STAGES)
    assert all(0 <= stage['p50'] <= stage['p99'] for stage in summary['latency_ms'].values())
    copies = summary['pixel_copies_per_frame']
    assert copies['draw'] == 1 and 'to_ros' not in copies and 'from_ros' not in copies
    # A slow machine's inference takes fewer frames than the camera makes: one tensor for each.
    tensors = round(copies['tensor'] * summary['captured'])
    assert summary['frames'] <= tensors <= summary['frames'] + IN_FLIGHT
    assert summary['boxes_iou_min'] >= 0.5
    picture = cv2.imread(str(tmp_path / 'detections.png'))
    assert picture is not None and picture.shape == (360, 640, 3)
    assert 'frames' in done.stdout and 'end_to_end' in done.stdout


@pytest.mark.parametrize(
    ('args', 'message'),
    [
        (['--frames', '0'], '--frames is 0; it must be at least 1'),
        (['--duration', '-1'], '--duration is -1; it must be a positive number'),
        (['--camera', 'tally'], "--camera is 'tally'; it must be one of synthetic, replay; for"),
        (['--camera', 'replay'], '--camera replay needs a recording; add --video FILE'),
        (['--keep-all'], '--keep-all has no effect with --camera synthetic; add --camera replay'),
        (
            ['--camera', 'replay', '--video', 'drive.mp4', '--seed', '0'],
            '--seed has no effect with --camera replay; leave it out',
        ),
    ],
)
def test_options_that_can_not_be_meant_are_refused(args: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        demo.check(demo.option_parser().read(args))


def test_an_early_end_says_that_there_is_no_picture(tmp_path: Path, free_domain: int) -> None:
    (tmp_path / 'detections.png').write_bytes(b'of another run')
    words = '--duration', '600', '--framerate', '15', '--out', str(tmp_path)
    with Program('zc_demo', *words, domain=free_domain).start() as running:
        frames = re.compile(r'^ *[0-9.]+ s +[1-9][0-9]* frames', re.MULTILINE)
        until(lambda: frames.search(running.output), lambda: running.output, 120.0)
        assert running.interrupt() == 0, running.output
    assert json.loads((tmp_path / 'summary.json').read_text())['frames'] > 0
    (told,) = (line for line in running.lines if line.startswith('wrote'))
    assert told.startswith(
        f'wrote {tmp_path}/summary.json, no detections.png: the picture is taken in the second '
        'half of the run'
    )
    assert 'earlier run' in told and (tmp_path / 'detections.png').exists()
