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
``zc_bench pipeline``: what a frame costs the host from capture to published detections.

The model's own time isn't counted.

Real nodes in a process of their own, as ``perception`` runs them: a camera of pre-filled slots,
the in-process link, the scheduler, an accelerator that completes after a set delay, the model's
head, ``vision_msgs`` over ROS to a reader in another process.

How CPU time is measured: CLOCK_PROCESS_CPUTIME_ID of that process, user and system time of all its
threads, those of the interpreter and of the middleware included, the reader's not. It is read as
each frame's detections have been published; ``cpu_p50_us`` is the median of the differences,
``cpu_us_per_frame`` the mean over the series. From both is subtracted what the same process uses
in the same time while its cameras rest (timers, diagnostics: ``idle_cpu_us_per_s``). Nothing of
the benchmark's own, the camera's pace and these readings, is.

Each size is measured twice, at two rates. Unthrottled, the next frame comes when the last one's
detections are out: what the work costs. At 30 Hz the process sleeps nearly all the time, and each
wake-up finds caches, branch predictors and, in a virtual machine, the CPU itself cold: the same
work costs several times as much there, and that is what a vehicle pays.
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
# Wall times; what is between them is waking up.
_STAGES = ('capture', 'link', 'decode', 'publish')


@dataclass(frozen=True)
class Setup:
    """
    *cameras* of one size in one process, each at *rate_hz*.

    0: the next frame comes when the last one's detections are out.
    """

    cameras: int
    size: tuple[int, int]
    rate_hz: float

    @property
    def variant(self) -> str:
        """Its name in rows."""
        return f'{self.cameras}_camera{"s" if self.cameras > 1 else ""}'

    @property
    def condition(self) -> Condition:
        """Rate of each camera."""
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
    What to measure.

    :param seconds: of each series, and the same again at rest.
    :param delay_ms: how long the accelerator takes.
    """

    repetitions: int = 7
    seconds: float = 3.0
    delay_ms: float = 2.0
    setups: Sequence[Setup] = SETUPS


def series_of(run: dict[str, Any], idle: dict[str, Any], idle_s: float, received: int) -> Series:
    """
    Return one repetition, from what the process answered.

    :param received: messages that the reader got; a frame whose detections didn't get there is
        lost.
    :raises BenchError: it measured something else than the path it is named for.
    """
    check_path(run)
    latencies, due = run['latencies_us'], run['due'] - run['drops']['late']
    at_rest = idle['cpu_us'] / idle_s
    # In a short run what is done once a second may fall into the rest alone.
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
    Check what a run measured.

    :raises BenchError: it measured something else than the path from camera to detections within a
        process.
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

    The first has the nodes of all cameras of one size and rate; the second stands for a user's own
    node. There is no camera before :meth:`grow`. The nodes run on the first two CPUs.

    :param topic: the prefix of all cameras' topics, which shows which run they are of.
    :param how: the reader takes messages, ``decoded`` or ``raw``.
    :param depth: this many of a camera's frames may wait for the inference node.
    :param parameters: of the nodes, a JSON object; empty: none.
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
        Grow to this many cameras; return why not, or nothing.

        :raises BenchError: the nodes have not found each other, or the reader has not found them.
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

        Returns what the nodes answer, and how many messages the reader got.
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
        """Tell both to end, without waiting for that."""
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

        :param rest_s: how long to look at what the process does at rest; as long as the series,
            unless given; 0: not at all.
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
        """End them, all at once."""
        for cameras in self._of.values():
            cameras.end()
        for cameras in self._of.values():
            cameras.close()


def measure_pipelines(plan: PipelinePlan, say: Say) -> Measured:
    """
    Run the plan.

    :raises BenchError: a process failed, or measured something else.
    """
    rounds = Measuring(list)
    with contextlib.closing(Processes(plan)) as processes:
        say(f'measuring: {len(plan.setups)} series in each repetition')
        # What is done once: threads, caches, the import of each buffer.
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
    """Return the CPU time that half of the frames stay below."""
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
        help='of each series, and the same again at rest (default: 3)',
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
