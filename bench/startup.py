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
``zc_bench startup``: from executing ``perception`` to the first detections received.

The program is the installed console script with the software camera, the model of the parameter
``model`` and the ``onnx`` accelerator. Each start has a namespace of its own, so that the
middleware has to discover its topics anew. A reader of its detections already runs in another
process, as a user's node does; ``received`` includes the time of discovery.

``published`` ends when the node has handed the first frame's detections to the middleware;
``received`` ends when the reader has the first message, which may be a later frame's. These times
and the stages in the figures (ms since the program was executed) come from the nodes' frame logs,
so the program needs no extra code.

``warm`` is a start after other starts. ``cold`` is a start after the files of the Python
environment and of the package were dropped from the page cache. Files that other processes have
mapped stay there, so ``cold`` is somewhat quicker than the first start after booting.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
from dataclasses import dataclass
import itertools
import os
from pathlib import Path
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import time

from bench.environment import plain_environment
from bench.rows import Condition, make_rows, Measuring, Series
from bench.subcommand import Bar, Command, figure_of, Key, Measured, Say
from bench.worker import BenchError, Worker

import zc_perception
from zc_perception.errors import ConfigError
from zc_perception.observe.frame_log import find_frame_logs, FrameRecord
from zc_perception.terminal import INTERRUPTION


def evict(paths: Iterable[Path]) -> None:
    """
    Write these files back to disk and drop them from the page cache.

    It needs no privilege. A file that can't be opened is skipped.
    """
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            pass
        finally:
            os.close(fd)


READER = 'bench.reader'
PROGRAM = 'perception'
WARM, COLD = 'warm', 'cold'
VARIANTS = (WARM, COLD)
PUBLISHED, RECEIVED = 'startup_published', 'startup_received'
#: The software camera's default size and rate.
CAMERA = Condition(640, 360, 30.0)
_PATIENCE_S = 60.0
_LOOK_S = 0.005
_FACTS_S = 5.0
_END_S = 10.0
_TICK_US = 1e6 / os.sysconf('SC_CLK_TCK')


@dataclass(frozen=True)
class StartupPlan:
    """
    The variants to measure, and how often.

    :param variants: some of :data:`VARIANTS`.
    :param parameters: the nodes' parameters, each ``NAME:=VALUE``.
    """

    repetitions: int = 7
    variants: Sequence[str] = VARIANTS
    parameters: Sequence[str] = ('accelerator:=onnx',)


@dataclass(frozen=True)
class Start:
    """
    The times of one start, in ns of CLOCK_MONOTONIC.

    :param stages: the stages that the program noted, in order.
    :param frame: the capture node's record of the first frame.
    :param detections: the inference node's record of the first frame.
    :param cpu_us: user and system time of the process until :attr:`received_ns`.
    """

    executed_ns: int
    received_ns: int
    stages: Mapping[str, int]
    frame: FrameRecord
    detections: FrameRecord
    cpu_us: float

    def figures(self) -> dict[str, float]:
        """Return all stages in order, in ms since the program was executed."""
        times = {
            **self.stages,
            'first_frame': self.frame.captured_ns,
            'first_submitted': self.detections.submitted_ns,
            'first_published': self.detections.sent_ns,
            'first_received': self.received_ns,
        }
        return {f'{name}_ms': (at - self.executed_ns) / 1e6 for name, at in times.items()}


def find_program(name: str = PROGRAM, environment: Mapping[str, str] = os.environ) -> Path:
    """
    Return the console script beside this interpreter, of a colcon workspace, or on the PATH.

    :raises BenchError: the script is in none of these places.
    """
    prefixes = [
        Path(prefix) / 'lib' / 'zc_perception'
        for prefix in environment.get('AMENT_PREFIX_PATH', '').split(os.pathsep)
        if prefix
    ]
    for folder in (Path(sysconfig.get_path('scripts')), Path(sys.executable).parent, *prefixes):
        if os.access(folder / name, os.X_OK):
            return folder / name
    found = shutil.which(name, path=environment.get('PATH', ''))
    if found is None:
        raise BenchError(
            f"the console script '{name}' is not installed beside {sys.executable}; install "
            'the package: pip install -e .'
        )
    return Path(found)


def environment_files() -> list[Path]:
    """Return the files that a start may read: Python's library, its packages, and this package."""
    folders = {Path(sysconfig.get_path(name)) for name in ('stdlib', 'purelib', 'platlib')} | {
        Path(zc_perception.__file__).parent
    }
    files: set[Path] = set()
    for folder in folders:
        for base, _, names in os.walk(folder):
            files.update(Path(base, name) for name in names)
    return sorted(files)


def _cpu_us(pid: int) -> float:
    fields = (
        Path(f'/proc/{pid}/stat')
        .read_text(encoding='utf-8', errors='replace')
        .rpartition(')')[2]
        .split()
    )
    return (int(fields[11]) + int(fields[12])) * _TICK_US


class Starter:
    """Owns the reader; starts the program and waits for its first detections."""

    def __init__(self, plan: StartupPlan) -> None:
        self._plan = plan
        self._environment = plain_environment()
        self._program = find_program()
        self._names = itertools.count()
        self._reader = Worker(READER, ['reader', 'decoded'], self._environment)

    def close(self) -> None:
        """End the reader."""
        self._reader.close()

    def start(self) -> Start:
        """
        Start the program, wait for its first detections, and end it.

        :raises BenchError: the program ended by itself, or no detections came.
        """
        namespace = f'/zc_bench/run_{os.getpid()}/start_{next(self._names)}'
        self._reader.ask(op='watch', topics=[f'{namespace}/detections'])
        parameters = [word for parameter in self._plan.parameters for word in ('-p', parameter)]
        arguments = ['--ros-args', '--log-level', 'warn', '-r', f'__ns:={namespace}', *parameters]
        command: list[str | Path] = [self._program, *arguments]
        with contextlib.ExitStack() as ending:
            with INTERRUPTION.put_off():
                executed_ns = time.monotonic_ns()
                process = subprocess.Popen(
                    command,
                    env=self._environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
                ending.callback(_end, process)
            received_ns = self._wait(process)
            cpu_us = _cpu_us(process.pid)
            return Start(executed_ns, received_ns, *_logged(process.pid), cpu_us)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            first_ns = int(self._reader.ask(op='first')['first_ns'])
            if first_ns:
                return first_ns
            if process.poll() is not None:
                raise BenchError(
                    f"'{PROGRAM}' ended with exit code {process.returncode}{_last_line(process)}"
                )
            time.sleep(_LOOK_S)
        raise BenchError(f"'{PROGRAM}' has published no detections within {_PATIENCE_S:.0f} s")


def _last_line(process: subprocess.Popen[bytes]) -> str:
    lines = (
        (process.stderr.read() if process.stderr is not None else b'')
        .decode(errors='replace')
        .strip()
        .splitlines()
    )
    return f': {lines[-1]}' if lines else ''


def _logged(pid: int) -> tuple[Mapping[str, int], FrameRecord, FrameRecord]:
    """Return the program's stages, and both nodes' records of the first frame."""
    deadline = time.monotonic() + _FACTS_S
    with find_frame_logs(pids=[pid]) as logs:
        by_role = {log.role: log for log in logs}
        if not {'capture', 'inference'} <= set(by_role):
            raise BenchError(
                f"'{PROGRAM}' has frame logs of {sorted(by_role) or 'no node'}; needed are "
                'those of capture and inference'
            )
        # The nodes write their facts once a second.
        while 'ready' not in (stages := by_role['inference'].facts().get('startup', {})):
            if time.monotonic() > deadline:
                raise BenchError(
                    f"'{PROGRAM}' doesn't say when it was ready; is it of another version?"
                )
            time.sleep(_LOOK_S)
        frames, results = by_role['capture'].read(), by_role['inference'].read()
        done = [record for record in results if record.sent_ns]
        if not frames or not done or frames[0].number != 1:
            raise BenchError(f"the frame logs of '{PROGRAM}' don't have its first frame")
        return stages, frames[0], done[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def series_of(start: Start) -> dict[str, Series]:
    """Return the series of both cases, ``startup_published`` and ``startup_received``."""
    figures = {**start.figures(), 'cpu_ms': start.cpu_us / 1e3}
    ends = {PUBLISHED: start.detections.sent_ns, RECEIVED: start.received_ns}
    return {
        case: Series([(end - start.executed_ns) / 1e3], start.cpu_us, 0, figures)
        for case, end in ends.items()
    }


def measure_startup(plan: StartupPlan, say: Say) -> Measured:
    """
    Measure all starts of the plan.

    :raises BenchError: the program or the reader failed.
    """
    rounds = Measuring(list)
    files = environment_files() if COLD in plan.variants else []
    with contextlib.closing(Starter(plan)) as starter:
        starter.start()  # not counted: the very first start may compile the package
        for repetition in range(plan.repetitions):
            for variant in random.Random(repetition).sample(
                list(plan.variants), len(plan.variants)
            ):
                if variant == COLD:
                    evict(files)
                start = starter.start()
                for case, series in series_of(start).items():
                    rounds[case, variant, CAMERA].append(series)
                figures = start.figures()
                say(
                    f'{repetition + 1} of {plan.repetitions}, {variant}: published after '
                    f'{figures["first_published_ms"]:.0f} ms, '
                    f'received after {figures["first_received_ms"]:.0f} ms'
                )
                if variant == COLD:
                    starter.start()  # fills the page cache for the next warm start
    rows = make_rows(rounds, [(case, WARM) for case in (PUBLISHED, RECEIVED)])
    return Measured(rows, {'program': PROGRAM, 'parameters': list(plan.parameters)})


_CAMERA = (CAMERA.width, CAMERA.height, CAMERA.rate_hz)
_PUBLISHED_WARM: Key = (PUBLISHED, WARM, *_CAMERA)


# There is no bar for startup_received: the middleware's discovery takes seconds on a busy machine.
STARTUP_BARS = (
    Bar(
        'warm start: from executing perception to the first detections published',
        figure_of(
            _PUBLISHED_WARM, lambda row: None if row.median_us is None else row.median_us / 1e6
        ),
        1.5,
        ' s',
    ),
)


def _add_options(parser: argparse.ArgumentParser) -> None:
    defaults = StartupPlan()
    parser.add_argument(
        '--variants',
        nargs='+',
        choices=VARIANTS,
        default=list(VARIANTS),
        help='which starts to measure (default: all)',
    )
    parser.add_argument(
        '--parameters',
        nargs='+',
        metavar='NAME:=VALUE',
        default=list(defaults.parameters),
        help="the nodes' parameters (default: accelerator:=onnx)",
    )


def _prepare(options: argparse.Namespace) -> Callable[[Say], Measured]:
    for parameter in options.parameters:
        if ':=' not in parameter:
            raise ConfigError(
                f"--parameters '{parameter}': each is NAME:=VALUE, such as accelerator:=onnx"
            )
    plan = StartupPlan(
        options.repetitions, tuple(dict.fromkeys(options.variants)), tuple(options.parameters)
    )
    return lambda say: measure_startup(plan, say)


STARTUP = Command(
    'startup',
    'from executing perception to the first detections',
    _add_options,
    _prepare,
    STARTUP_BARS,
    ('rclpy', 'cv2'),
)
