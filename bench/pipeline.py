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
``zc_bench pipeline``: the host's CPU time and latency of a frame, from capture to detections.

The model's time isn't counted. Real nodes run in a process of their own, as in ``perception``: a
camera of pre-filled slots, the in-process link, the scheduler, an accelerator that completes after
a set delay, the model's head, and ``vision_msgs`` over ROS to a reader in another process.

CPU time is CLOCK_PROCESS_CPUTIME_ID of the nodes' process: user and system time of all its
threads, also the middleware's; the reader's isn't counted. It is read whenever a frame's
detections were published. ``cpu_p50_us`` is the median of the differences; ``cpu_us_per_frame`` is
the mean over the series. Both are reduced by the CPU time of the same process while its cameras
rest (timers, diagnostics: ``idle_cpu_us_per_s``). They still include the benchmark's own work, to
pace the camera and to read the clock.

Each size is measured at two rates. Unthrottled, the next frame comes when the last frame's
detections were published, which shows the cost of the work alone. At 30 Hz the process sleeps most
of the time, and each wake-up begins with cold caches, cold branch predictors and, in a virtual
machine, an idle CPU. So the same work costs several times as much; that is the cost on a vehicle.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
import contextlib
from dataclasses import dataclass
import os
import random
import statistics
import time
from typing import Any

from bench.environment import plain_environment
from bench.rows import Condition, make_rows, Measuring, Series
from bench.subcommand import (
    add_delay,
    Bar,
    check_counts,
    check_delay,
    Command,
    Figure,
    figure_of,
    FULL_HD,
    Key,
    Measured,
    repetitions,
    Rows,
    Say,
    UHD_4K,
)  # fmt: skip
from bench.worker import BenchError, Worker

WORKER = 'bench.nodes_worker'
READER = 'bench.reader'
RATE_HZ = 30.0
UNTHROTTLED = 0.0
_MATCH_S = 120.0
PATIENCE_S = 120.0
_READ_S = 5.0
# Stages whose wall times are in the figures; the time between them is spent on waking up threads.
_STAGES = ('capture', 'link', 'decode', 'publish')


@dataclass(frozen=True)
class Setup:
    """
    The cameras of one process: their number, their size, and the rate of each.

    :param rate_hz: 0: the next frame comes when the last frame's detections were published.
    """

    cameras: int
    size: tuple[int, int]
    rate_hz: float

    @property
    def variant(self) -> str:
        """The name in the rows."""
        return f'{self.cameras}_camera{"s" if self.cameras > 1 else ""}'

    @property
    def condition(self) -> Condition:
        """Each camera's size and rate."""
        return Condition(*self.size, self.rate_hz)


SETUPS = (
    Setup(1, FULL_HD, UNTHROTTLED),
    Setup(1, UHD_4K, UNTHROTTLED),
    Setup(1, FULL_HD, RATE_HZ),
    Setup(1, UHD_4K, RATE_HZ),
    Setup(8, FULL_HD, RATE_HZ),
)


@dataclass(frozen=True)
class PipelinePlan:
    """
    The setups to measure, and how long.

    :param seconds: length of each series, and of the rest before it.
    :param delay_ms: how long the accelerator takes.
    """

    repetitions: int = 7
    seconds: float = 3.0
    delay_ms: float = 2.0
    setups: Sequence[Setup] = SETUPS


def series_of(run: dict[str, Any], idle: dict[str, Any], idle_s: float, received: int) -> Series:
    """
    Make a repetition's series from the nodes' answers to ``run`` and ``idle``.

    :param received: messages that the reader got; each frame without a message counts as lost.
    :raises BenchError: see :func:`check_path`.
    """
    check_path(run)
    latencies, due = run['latencies_us'], run['due'] - run['drops']['late']
    at_rest = idle['cpu_us'] / idle_s
    # Not below 0: in a short run, work that is done once a second may happen only during the rest.
    cpu_us = max(0.0, run['cpu_us'] - at_rest * run['wall_s']) / due
    figures = {
        'idle_cpu_us_per_s': at_rest,
        'detections_per_frame': run['detections'] / len(latencies),
        'fps': len(latencies) / run['wall_s'],
        'imports': float(run['imports']),
        **{f'{stage}_us': run['stages_us'][stage] for stage in _STAGES},
    }
    if run['cpu_each_us']:
        figures['cpu_p50_us'] = (
            statistics.median(run['cpu_each_us']) - at_rest * run['wall_s'] / due
        )
    return Series(latencies, cpu_us, due - min(len(latencies), received), figures)


def check_path(run: dict[str, Any]) -> None:
    """
    Check that a run measured the path from camera to detections within a process.

    :raises BenchError: a frame became a message, fewer than two frames were published, or none
        had a detection.
    """
    if run['conversions']:
        raise BenchError(
            f'{run["conversions"]} frames became messages: the link was not in process'
        )
    if len(run['latencies_us']) < 2 or not run['detections']:
        raise BenchError('no frame came through with a detection')


class Cameras:
    """
    Owns two processes: one with the nodes, and one that reads their detections.

    The nodes' process runs on the first two CPUs. All its cameras have one size and rate; it has
    none before :meth:`grow`. The reader stands for a user's own node.

    :param topic: the last part of the prefix of all cameras' topics.
    :param how: the reader takes messages ``decoded`` or ``raw``.
    :param depth: this many frames of a camera may wait for the inference node.
    :param parameters: the nodes' parameters, a JSON object; empty: none.
    """

    def __init__(
        self,
        topic: str,
        condition: Condition,
        delay_ms: float,
        how: str,
        depth: int = 1,
        parameters: str = '',
    ) -> None:
        self._topic = f'/zc_bench/run_{os.getpid()}/{topic}'
        environment = plain_environment()
        numbers = (
            condition.width,
            condition.height,
            f'{condition.rate_hz:g}',
            f'{delay_ms:g}',
            depth,
        )
        self.reader = Worker(READER, ['reader', how], environment)
        try:
            self.nodes = Worker(
                WORKER,
                ['cameras', self._topic, *map(str, numbers), *filter(None, [parameters])],
                environment,
            )
        except BaseException:
            self.reader.close()
            raise
        self.cpus = sorted(os.sched_getaffinity(0))[:2]
        self.nodes.set_cpus(self.cpus)

    def grow(self, cameras: int) -> str:
        """
        Add cameras until there are this many; return why that is refused, or an empty text.

        :raises BenchError: the nodes didn't find each other or the reader.
        """
        self.reader.ask(
            op='watch',
            topics=[f'{self._topic}/camera_{number}/detections' for number in range(cameras)],
        )
        grown = self.nodes.ask(PATIENCE_S, op='grow', cameras=cameras)
        if 'refused' in grown:
            return str(grown['refused'])
        deadline = time.monotonic() + _MATCH_S
        while not (state := self.nodes.ask(op='matched'))['matched']:
            if time.monotonic() > deadline:
                raise BenchError(
                    f'the nodes have not found each other within {_MATCH_S:g} s: {state["reason"]}'
                )
            time.sleep(0.05)
        return ''

    def run(self, cameras: int, seconds: float, **more: bool) -> tuple[dict[str, Any], int]:
        """
        Run this many cameras; the others rest.

        Returns the nodes' answer, and the number of messages that the reader got.
        """
        self.reader.ask(op='received')
        run = self.nodes.ask(
            PATIENCE_S + seconds, op='run', cameras=cameras, seconds=seconds, **more
        )
        received, deadline = 0, time.monotonic() + _READ_S
        while received < run['published'] and time.monotonic() < deadline:
            received += self.reader.ask(op='received')['received']
            time.sleep(0.01)
        return run, received

    def end(self) -> None:
        """Tell both processes to end, without waiting for that."""
        for worker in (self.nodes, self.reader):
            worker.end()

    def close(self) -> None:
        """End both processes."""
        self.end()
        for worker in (self.nodes, self.reader):
            worker.close()


class Processes:
    """Owns the :class:`Cameras` of all setups."""

    def __init__(self, plan: PipelinePlan) -> None:
        self._of: dict[Setup, Cameras] = {}
        try:
            for number, setup in enumerate(plan.setups):
                self._of[setup] = Cameras(
                    f'setup_{number}', setup.condition, plan.delay_ms, 'decoded'
                )
            for setup, cameras in self._of.items():
                if refused := cameras.grow(setup.cameras):
                    raise BenchError(refused)
            self.facts: dict[str, Any] = next(iter(self._of.values())).nodes.ask(op='describe')
        except BaseException:
            self.close()
            raise

    def measure(self, setup: Setup, seconds: float, rest_s: float | None = None) -> Series:
        """
        Measure one repetition.

        :param rest_s: how long to measure the process at rest before the series; ``None``: as long
            as the series.
        """
        cameras = self._of[setup]
        rest_s = seconds if rest_s is None else rest_s
        idle = (
            cameras.nodes.ask(PATIENCE_S + rest_s, op='idle', seconds=rest_s)
            if rest_s
            else {'cpu_us': 0.0}
        )
        run, received = cameras.run(setup.cameras, seconds)
        return series_of(run, idle, rest_s or 1.0, received)

    def close(self) -> None:
        """Tell all processes to end, then wait for each."""
        for cameras in self._of.values():
            cameras.end()
        for cameras in self._of.values():
            cameras.close()


def measure_pipelines(plan: PipelinePlan, say: Say) -> Measured:
    """
    Measure all setups of the plan.

    :raises BenchError: a process failed; see also :func:`check_path`.
    """
    rounds = Measuring(list)
    with contextlib.closing(Processes(plan)) as processes:
        say(f'measuring: {len(plan.setups)} series in each repetition')
        # Warm up: start threads, fill caches, import each buffer.
        for setup in plan.setups:
            processes.measure(setup, min(1.0, plan.seconds))
        for repetition in repetitions(plan.repetitions, say):
            order = list(plan.setups)
            random.Random(repetition).shuffle(order)
            for setup in order:
                rounds['pipeline', setup.variant, setup.condition].append(
                    processes.measure(setup, plan.seconds)
                )
        return Measured(make_rows(rounds, [('pipeline', '1_camera')]), processes.facts)


_ONE: Key = ('pipeline', '1_camera', *FULL_HD, UNTHROTTLED)
_ONE_4K: Key = ('pipeline', '1_camera', *UHD_4K, UNTHROTTLED)
_ONE_30: Key = ('pipeline', '1_camera', *FULL_HD, RATE_HZ)
_ONE_4K_30: Key = ('pipeline', '1_camera', *UHD_4K, RATE_HZ)
_EIGHT: Key = ('pipeline', '8_cameras', *FULL_HD, RATE_HZ)
_CPU_US = 300


def _cpu(key: Key) -> Figure:
    """Return a figure: the median CPU time of a frame."""
    return figure_of(key, lambda row: row.figures.get('cpu_p50_us'))


def _cpu_growth(rows: Rows) -> float | None:
    small, large = _cpu(_ONE)(rows), _cpu(_ONE_4K)(rows)
    return None if not small or large is None else large / small


def _cpu_bar(text: str, key: Key) -> Bar:
    return Bar(
        f'{text}: CPU per frame, capture to published detections',
        _cpu(key),
        _CPU_US,
        ' µs',
        involved=(key,),
    )


PIPELINE_BARS = (
    _cpu_bar('1080p unthrottled', _ONE),
    _cpu_bar('4K unthrottled', _ONE_4K),
    _cpu_bar('1080p at 30 Hz', _ONE_30),
    _cpu_bar('4K at 30 Hz', _ONE_4K_30),
    Bar(
        '4K to 1080p, unthrottled: CPU per frame', _cpu_growth, 1.1, '×', involved=(_ONE, _ONE_4K)
    ),
    Bar(
        '8 cameras of 1080p at 30 Hz in one process on 2 CPUs: lost frames',
        figure_of(_EIGHT, lambda row: row.lost_per_cent),
        0,
        ' %',
    ),
)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--seconds',
        type=float,
        default=3.0,
        help='length of each series, and of the rest before it (default: 3)',
    )
    add_delay(parser)


def _prepare(options: argparse.Namespace) -> Callable[[Say], Measured]:
    check_counts(options, seconds=3600)
    check_delay(options.delay_ms, RATE_HZ)
    plan = PipelinePlan(options.repetitions, options.seconds, options.delay_ms)
    return lambda say: measure_pipelines(plan, say)


PIPELINE = Command(
    'pipeline',
    "the host's cost of a frame from capture to detections",
    _add_options,
    _prepare,
    PIPELINE_BARS,
    ('rclpy', 'cv2'),
)
