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

"""The console scripts: ready line, end by signal, wrong parameters, systemd; the executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
import gc
import json
import os
from pathlib import Path
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import call, Mock

import cv2
from long_form import LONG
from nodes.programs import BIN, environment, parameters, PERCEPTION_READY, Program
from nodes.ros_kit import Onlooker, overrides, spun, WAIT_S
import pytest
import rclpy
from rclpy.logging import LoggingSeverity, set_logger_level
from std_msgs.msg import String
from vision_msgs.msg import Detection2DArray
from waiting import until
import warm_start

from zc_perception.camera.mcap_file import MAGIC
from zc_perception.errors import CameraLostError, ConfigError
from zc_perception.link.endpoints import IN_PROCESS
from zc_perception.nodes import demo, realtime
from zc_perception.nodes.capture import CaptureNode
from zc_perception.nodes.declarations import NODES
from zc_perception.nodes.perception import PerceptionGraph
from zc_perception.nodes.perception_node import PATIENCE_S
from zc_perception.nodes.process import ExecutorThread, Liveness, NodeGroup, ros_context, serve
from zc_perception.nodes.realtime import parse_cpus, Realtime
from zc_perception.observe.diagnostics import Level
from zc_perception.observe.metrics import StageLatencies


def run(program: str, args: list[str], domain: int) -> subprocess.CompletedProcess[str]:
    return warm_start.run([str(BIN / program), *args], env=environment(domain), timeout=200)


def check_one_clear_line(program: str, args: list[str], domain: int, message: str) -> None:
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
            'capture_node',
            ['--ros-args', '-r', 'image_raw:=camera_info'],
            'a remap gives one name to two topics of this process that have different types',
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


@pytest.mark.parametrize(('cameras', 'node'), [([], '/q'), (['--cameras', 'a', 'b'], '/a/q')])
def test_one_name_for_all_nodes_is_refused(
    cameras: list[str], node: str, free_domain: int
) -> None:
    done = run('perception', [*cameras, '--ros-args', '-r', '__node:=q'], free_domain)
    last = done.stderr.splitlines()[-1]  # rcl's warning about the name comes first
    assert done.returncode == 2, last
    assert f"several nodes the name '{node}'; name one node: -r capture:__node:=NAME" in last


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
    program: str, number: signal.Signals, free_domain: int, tmp_path: Path
) -> None:
    # The program imports this with its handlers set, and waits in it for the signal.
    (tmp_path / 'argparse.py').write_text('import time\ntime.sleep(600)\n')
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get('PYTHONPATH')])])
    running = subprocess.Popen(
        [str(BIN / program)],
        env={**environment(free_domain), 'PYTHONPATH': path},
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
# On a busy machine, the picture comes later than 5 s after the last frame.
_PATIENT_DEMO = """
import sys
from zc_perception.nodes import demo, demo_run
demo_run._DRAIN_S = 60.0
sys.exit(demo.main())
"""


def test_a_bounded_run_writes_summary_and_picture(tmp_path: Path, free_domain: int) -> None:
    args = ['--frames', '60', '--seed', '3', '--framerate', '15', '--out', str(tmp_path)]
    words = [sys.executable, '-c', _PATIENT_DEMO, *args]
    done = warm_start.run(words, env=environment(free_domain), timeout=200)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / 'summary.json').read_text())
    assert set(summary) >= {'dropped', 'fps', 'heap'}
    assert summary['frames'] >= 60 and summary['detections'] > 60
    assert summary['rung'] == 'in_process' and summary['accelerator'] == 'onnx'
    assert set(summary['latency_ms']) == set(StageLatencies.STAGES)
    assert all(0 <= stage['p50'] <= stage['p99'] for stage in summary['latency_ms'].values())
    copies = summary['pixel_copies_per_frame']
    assert 'to_ros' not in copies and 'from_ros' not in copies
    # The frame that is drawn when the demo ends isn't captured yet.
    assert 0 <= round(copies['draw'] * summary['captured']) - summary['captured'] <= 1
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
        f'wrote {tmp_path}/summary.json, no detections.png: the picture is taken after half of '
        'the planned time'
    )
    assert 'earlier run' in told and (tmp_path / 'detections.png').exists()


def test_a_demo_that_can_not_print_still_writes_its_results(
    tmp_path: Path, free_domain: int
) -> None:
    words = [str(BIN / 'zc_demo'), '--frames', '5', '--out', str(tmp_path)]
    pipe = subprocess.PIPE
    with (
        open('/dev/full', 'wb') as full,
        warm_start.Started(
            words, stdout=full, stderr=pipe, text=True, env=environment(free_domain)
        ) as running,
    ):
        _, errors = running.communicate(timeout=200)
    assert running.returncode == 0 and 'Traceback' not in errors, errors
    assert json.loads((tmp_path / 'summary.json').read_text())['frames'] >= 5


# Notifications to systemd, received on a real datagram socket: the protocol, and programs that
# work, wait for a camera, and hang.
SMALL = {'width': 128, 'height': 96}


class Systemd:
    """A receiver at ``$NOTIFY_SOCKET``."""

    def __init__(self, address: str | bytes) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(60.0)
        self.address = str(address)

    def hears(self, wanted: str, count: int = 1) -> list[str]:
        """Return all messages up to the *count*-th one that starts with *wanted*."""
        heard: list[str] = []
        while sum(message.startswith(wanted) for message in heard) < count:
            heard.append(self.socket.recv(4096).decode())
        return heard

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    with closing(Systemd(str(tmp_path / 'notify'))) as listening:
        yield listening


Start = Callable[..., list[float | None]]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Return a function that serves for some turns, and returns the length of each wait."""

    def start(
        address: str, timeout_us: str = '', worries: tuple[str, ...] = ('',)
    ) -> list[float | None]:
        """Serve for as many turns as there are worries."""
        monkeypatch.setenv('NOTIFY_SOCKET', address)
        monkeypatch.setenv('WATCHDOG_USEC', timeout_us)
        waits, now, left = list[float | None](), [100.0], list(worries)

        def wait(timeout_s: float | None) -> bool:
            waits.append(timeout_s)
            now[0] += timeout_s or 0.001
            return len(waits) >= len(worries)

        serve(wait, lambda: left.pop(0) if len(left) > 1 else left[0], lambda: now[0])
        return waits

    return start


@pytest.mark.usefixtures('no_fd_leak')
def test_abstract_addresses_are_understood_and_no_manager_costs_nothing(served: Start) -> None:
    for address in ('', '@', 'relative/path', 'vsock:2:1234', '/not/there'):
        assert served(address) == [None]
    name = f'zc-test-{os.getpid()}'
    with closing(Systemd(b'\0' + name.encode())) as listener:
        served('@' + name)
        assert listener.hears('STOPPING=1') == ['READY=1', 'STOPPING=1']


def test_the_watchdog_is_fed_three_times_in_the_time_that_it_waits_unless_there_is_a_worry(
    served: Start, systemd: Systemd
) -> None:
    for timeout_us, wait in (('0', None), ('-5', None), ('soon', None), ('6000000', 2.0)):
        assert served(systemd.address, timeout_us) == [wait]
        assert ('WATCHDOG=1' in systemd.hears('STOPPING=1')) is (wait is not None)
    waits = served(systemd.address, '3000000', ('', '', '', *['the executor\nhangs'] * 7))
    assert all(timeout is not None and 0.0 <= timeout <= 1.0 for timeout in waits)
    said = systemd.hears('STOPPING=1')
    assert said.count('WATCHDOG=1') == 3
    assert said[0] == 'READY=1' and said[1].startswith('STATUS=running')
    assert said[-2:] == ['STATUS=the executor hangs', 'STOPPING=1'], (
        'each status once, in one line'
    )


@pytest.fixture
def service(systemd: Systemd, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    """Set the environment so that the next program runs as a service."""
    monkeypatch.setenv('NOTIFY_SOCKET', systemd.address)
    # A socket keeps ten messages, and loses further ones; a third of this time is between two.
    monkeypatch.setenv('WATCHDOG_USEC', '1500000')
    # As under ros2 launch, whose child the program is.
    monkeypatch.setenv('WATCHDOG_PID', str(os.getpid()))
    return systemd


@pytest.mark.parametrize(
    ('program', 'args', 'mark'),
    [
        ('component_container', [], 'ready: '),
        (
            'capture_node',
            parameters(camera='v4l2', device='/dev/video77'),
            'the camera is not there: ',  # to wait for it is no reason to be restarted
        ),
    ],
)
def test_a_service_is_ready_lives_and_stops(
    program: str, args: list[str], mark: str, service: Systemd, free_domain: int
) -> None:
    with Program(program, *args, domain=free_domain).start(mark) as running:
        assert service.hears('WATCHDOG=1', 6).count('READY=1') == 1
        assert running.interrupt() == 0, running.output
        assert service.hears('STOPPING=1')[-1] == 'STOPPING=1'


# What nodes and executors report to a service's watchdog.
def node_of(done: int | None = 0, *, reason: str = '', name: str = '/capture') -> Mock:
    made = Mock(patience_s=3.0 if name == '/capture' else 60.0)
    made.get_fully_qualified_name.return_value = name
    made.progress.return_value, made.given_up.return_value = done, reason
    return made


class Scene:
    """Nodes, a clock, and an executor that runs its work on command."""

    def __init__(self, *nodes: Any) -> None:
        self.waiting: list[Callable[[], object]] = []
        self.now = 100.0
        executors = {'the executor': self.waiting.append}
        self.liveness = Liveness(lambda: nodes, executors, lambda: self.now)

    def after(self, seconds: float, *, run: bool = True) -> str:
        """Advance the clock; return the worry. The executor runs unless *run* is ``False``."""
        self.now += seconds
        if run:
            while self.waiting:
                self.waiting.pop()()
        return self.liveness.worry()


def test_who_stands_still_is_one_after_its_own_patience_and_none_when_it_moves_again() -> None:
    node = node_of()
    scene = Scene(node, node_of(name='/inference'))
    assert [scene.after(1.0) for _ in range(4)] == [''] * 4
    assert scene.after(1.0) == '/capture has made no progress for 4 s'
    node.progress.return_value = 1
    assert [scene.after(seconds) for seconds in (1.0, 3.0)] == ['', '']
    node.progress.return_value = None
    assert scene.after(40.0) == '', 'who knows why may stand still'
    node.progress.return_value = 1
    assert [scene.after(seconds) for seconds in (1.0, 3.0)] == ['', ''], 'it starts anew'
    assert scene.after(1.0) != ''
    gave_up = Scene(node_of(None, reason='no memory'))
    assert gave_up.after(0.1) == '/capture has given up: no memory'


def test_an_executor_that_runs_nothing_is_a_worry_and_is_asked_once() -> None:
    scene = Scene()
    assert scene.after(1.0) == ''
    for _ in range(3):
        scene.after(1.0, run=False)
    assert len(scene.waiting) == 1
    said = f'the executor has run nothing for {PATIENCE_S + 3:.0f} s'
    assert scene.after(PATIENCE_S, run=False) == said
    assert scene.after(1.0) == ''
    assert len(scene.waiting) == 1, 'asked again'


def test_real_nodes_say_how_far_they_are(context: rclpy.Context) -> None:
    values = {'capture': SMALL, 'inference': {'timeout': 4.0, 'threads': 1}}
    graph = PerceptionGraph(context, values)
    assert graph.capture.progress() is None, 'nothing flows yet'
    with spun(context, *graph.nodes) as group:
        until(lambda: (graph.capture.progress() or 0) > 5)
        until(lambda: graph.inference.processed > 5)
        until(lambda: graph.inference.progress() is not None)
        assert graph.inference.patience_s == PATIENCE_S + 8.0
        assert graph.overlay.progress() is None
        assert not any(node.given_up() for node in graph.nodes)
        assert Liveness(lambda: graph.nodes, {'the executor': group.soon}).worry() == ''


def test_a_camera_that_hangs_is_a_worry_and_one_that_is_lost_is_not(
    context: rclpy.Context,
) -> None:
    node = CaptureNode(context=context, parameter_overrides=overrides(SMALL))
    with spun(context, node):
        hangs, go_on = threading.Event(), threading.Event()
        read = node.camera.capture

        def hang() -> object:
            hangs.set()
            go_on.wait(60.0)
            return read()

        node.camera.capture = hang  # type: ignore[method-assign, assignment]
        assert hangs.wait(60.0)
        now = [0.0]
        liveness = Liveness(lambda: [node], {}, lambda: now[0])
        assert liveness.worry() == ''
        now[0] += PATIENCE_S + 1.0
        assert liveness.worry() == f'/capture has made no progress for {PATIENCE_S + 1:.0f} s'

        unplugged = Mock(side_effect=CameraLostError('it was unplugged'))
        node.camera.capture = unplugged  # type: ignore[method-assign]
        node.supervisor._open_camera = unplugged
        go_on.set()
        until(lambda: node.progress() is None)
        assert liveness.worry() == ''


# The programs' executor: entities that others destroy don't end it, exceptions do. Idle nodes
# must not wake it, because a wake-up costs time for all of its nodes.
@pytest.fixture
def quiet(free_domain: int, monkeypatch: pytest.MonkeyPatch) -> rclpy.Context:
    monkeypatch.setenv('ROS_DOMAIN_ID', str(free_domain))
    with ros_context(['--ros-args', '--log-level', 'error']) as made:
        yield made
    set_logger_level('', LoggingSeverity.INFO)  # it is global, and other tests read logs


@pytest.fixture
def spinning(quiet: rclpy.Context) -> Iterator[Any]:
    """Yield an executor's thread with a node; ``soon`` gives it work."""
    failed, node = threading.Event(), rclpy.create_node('spinning', context=quiet)
    thread = ExecutorThread(quiet, failed.set)
    thread.executor.add_node(node)
    thread.start()
    soon = thread.executor.create_task
    yield SimpleNamespace(failed=failed, node=node, thread=thread, soon=soon)
    thread.stop()
    node.destroy_node()


def test_subscriptions_may_be_destroyed_while_it_looks_at_them(spinning: Any) -> None:
    node, busy = spinning.node, threading.Event()

    def again() -> None:  # for each task, the executor looks at all entities again
        if not busy.is_set():
            spinning.soon(again)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    again()
    try:
        for _ in range(150):
            made = [node.create_subscription(String, 'text', lambda _: None, 1) for _ in range(4)]
            for subscription in made:
                node.destroy_subscription(subscription)
            assert not spinning.failed.is_set(), spinning.thread.failure
    finally:
        busy.set()
        sys.setswitchinterval(interval)
    answered = threading.Event()
    spinning.soon(answered.set)
    assert answered.wait(WAIT_S) and spinning.thread.failure is None


@pytest.mark.parametrize('kind', [ValueError, SystemExit])
def test_what_a_callback_raises_does(spinning: Any, kind: type[BaseException]) -> None:
    def fail() -> None:
        raise kind('it can not go on')

    spinning.soon(fail)
    assert spinning.failed.wait(WAIT_S)
    assert 'it can not go on' in spinning.thread.failure


def test_the_end_waits_for_a_callback_but_not_for_ever(spinning: Any) -> None:
    running, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def late() -> None:
        running.set()
        go_on.wait(WAIT_S)
        ended.set()
        raise ValueError('its node is gone by now')

    spinning.soon(late)
    assert running.wait(WAIT_S)
    spinning.thread.stop()
    spinning.node.destroy_node()
    assert not ended.is_set(), 'the end did not wait for ever'
    go_on.set()
    assert ended.wait(WAIT_S)
    time.sleep(0.1)  # let the exception arrive
    assert spinning.thread.failure is None and not spinning.failed.is_set()


def test_it_is_woken_neither_for_frames_nor_to_look_at_anything(quiet: rclpy.Context) -> None:
    small = {'width': 64, 'height': 64, 'framerate': 30.0}
    graph = PerceptionGraph(quiet, {'capture': small, 'inference': {'model': 'hog'}})
    executed: list[object] = []
    with NodeGroup(quiet, graph.nodes, lambda: None) as group:
        assert [timer for node in group.nodes for timer in node.timers] == []
        group.start()
        done = threading.Event()
        graph.inference.observers.append(
            lambda entry, found: done.set() if graph.inference.processed > 90 else None
        )
        executor = group._spinner.executor
        original = executor._spin_once_impl
        executor._spin_once_impl = lambda *arguments: (
            executed.append(arguments),
            original(*arguments),
        )[1]
        group.soon(lambda: None)
        assert done.wait(WAIT_S) and graph.inference.subscription.statistics().rung == IN_PROCESS
        # One turn is the request above; none is for a frame.
        assert len(executed) <= 3, f'for {graph.inference.processed} frames'


# Real-time settings: their effect, and the one-sentence advice if the system refuses.
CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return the system calls, which are recorded; those in ``refused`` fail."""
    found = Mock(refused=set())

    def refuse(name: str, *_: Any) -> None:
        if name in found.refused:
            raise PermissionError(1, 'Operation not permitted')

    found.side_effect = refuse
    for name in ('sched_setaffinity', 'sched_setscheduler'):
        monkeypatch.setattr(realtime.os, name, partial(found, name))
    monkeypatch.setattr(realtime, '_PROCESS', realtime._Process())
    monkeypatch.setattr(realtime, '_libc_call', found)
    return found


@pytest.fixture
def thread() -> Iterator[threading.Thread]:
    stop = threading.Event()
    running = threading.Thread(target=stop.wait, args=(60,), daemon=True)
    running.start()
    yield running
    stop.set()
    running.join(60.0)


def knobs(*threads: threading.Thread, node: Any = None, **values: Any) -> Realtime:
    parameters = {spec.name: spec.default for spec in NODES['inference']} | values
    return Realtime(node or Mock(), parameters, lambda: threads)


def test_cpus_are_numbers_and_ranges() -> None:
    assert parse_cpus([]) == set()
    assert parse_cpus([f' {CPUS[0]} ']) == parse_cpus([f'{CPUS[0]}-{CPUS[0]}']) == {CPUS[0]}
    assert parse_cpus([str(cpu) for cpu in CPUS]) == set(CPUS)


@pytest.mark.parametrize('entry', ['4096', '', '1-', '3-1', '0-²', '9' * 5000, '0-9' + '9' * 18])
def test_what_is_no_cpu_of_this_process_is_refused(entry: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"parameter 'cpu_affinity' has .*; it must be CPUs that this process may use: ",
    ):
        parse_cpus([entry])


@pytest.mark.parametrize(
    ('refused', 'values', 'grant'),
    [
        (
            'sched_setscheduler',
            {'realtime_priority': 42},
            'LimitRTPRIO=42 (systemd) or rtprio 42 (limits.conf)',
        ),
        (
            'mlockall',
            {'lock_memory': True},
            'LimitMEMLOCK=infinity (systemd) or memlock unlimited (limits.conf)',
        ),
        ('sched_setaffinity', {'cpu_affinity': [str(CPUS[0])]}, 'cpuset'),
    ],
)
def test_a_refusal_is_one_warning_with_what_to_grant(
    refused: str, values: dict[str, Any], grant: str, calls: Mock, thread: threading.Thread
) -> None:
    calls.refused.add(refused)
    node = Mock()
    made = knobs(thread, node=node, **values)
    made.configure()
    made.activate()
    made.apply()
    ((said,),) = (one.args for one in node.get_logger().warning.call_args_list)
    assert grant in said and 'Operation not permitted' in said and '\n' not in said
    (status,) = made.statuses()
    assert status.level is Level.WARN and next(iter(values)) in status.message
    calls.refused.clear()
    made.cleanup()
    made.configure()
    made.activate()
    assert made.statuses() == [], 'it was granted meanwhile'


def test_what_is_the_process_s_ends_with_the_last_node_that_wants_it(calls: Mock) -> None:
    first, second = (knobs(lock_memory=True, gc_freeze=True) for _ in range(2))
    first.configure()
    second.configure()
    first.cleanup()
    first.cleanup()
    assert calls.mock_calls == [call('mlockall', 3)] and gc.get_freeze_count() > 0
    second.cleanup()
    assert calls.mock_calls[1:] == [call('munlockall')] and gc.get_freeze_count() == 0
