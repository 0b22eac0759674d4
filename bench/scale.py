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
``zc_bench scale``: how many cameras one process can run before it loses a frame, and why.

A camera has pre-filled slots, a capture and an inference node, an in-process link, a scheduler and
an accelerator that completes after a set delay. All cameras run in one process on the first two
CPUs; a reader in another process takes all detections. The cameras' frames are spread evenly over
the period, about as with free-running cameras. With ``--in-step`` all come at the same moment, as
with triggered cameras, which is the worst case. As on a vehicle, the nodes have ``gc_freeze``,
because a full collection of all nodes' objects takes longer than a frame's period. Two frames of a
camera may wait (``--depth``): a virtual machine's CPU may stand still for nearly a period, and
then the next frame is already due. With a depth of one, the default of ``perception``, that
next frame would replace the waiting frame.

For each size and rate the process grows from one number of cameras to the next, and each number is
measured for some seconds, called a window. A number holds if no frame was lost in its window. A
window with a loss is repeated, because another program may have caused the loss
(``--repetitions``: the most windows). The last window makes the row; its figures also count the
frames lost in the earlier windows. After the first number that doesn't hold, numbers between it
and the last one that held are tried (the other cameras rest meanwhile), until these two differ by
one or by an eighth. The window of the lowest number that doesn't hold gives the reason for the
limit.

A frame counts as lost if its camera's thread came a whole period late (``late``), if it found no
free slot (``no_slot``), if a newer frame replaced it before the accelerator had room
(``newest_wins``), if it gave no result (``device``), or if its detections didn't reach the reader
(``unread``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.holders import describe
from bench.pipeline import Cameras, check_path
from bench.rows import Condition, make_rows, Row, Series
from bench.subcommand import (
    add_delay,
    Bar,
    check_counts,
    check_delay,
    Command,
    figure_of,
    FULL_HD,
    Key,
    Measured,
    Say,
    SIZES,
)
from bench.worker import BenchError

from zc_perception.errors import ConfigError

CASE = 'scale'
DROPS = ('late', 'no_slot', 'newest_wins', 'device', 'unread')
_WARM_UP_S = 1.0
# Slots of a camera, and bytes of memory that stay free: otherwise the machine would swap, or kill
# a process.
_SLOTS, _SPARE = 8, 1 << 30
# The nodes' parameters. Without gc_freeze, a full collection of the objects of 32 nodes takes
# longer than a frame's period.
_KNOBS = '{"gc_freeze": true}'
# A resource that is used more than this is named as the reason for the limit.
_FULL_PERCENT = 88.0


@dataclass(frozen=True)
class ScalePlan:
    """
    The numbers, sizes and rates to measure.

    :param cameras: numbers to try, in ascending order.
    :param seconds: the length of each window.
    :param delay_ms: how long the accelerator takes.
    :param windows: the most windows of each number.
    :param in_step: all cameras have their frames at the same moment.
    :param depth: this many frames of a camera may wait for the inference node.
    """

    cameras: Sequence[int] = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64)
    sizes: Sequence[tuple[int, int]] = (FULL_HD,)
    rates: Sequence[float] = (30.0,)
    seconds: float = 10.0
    delay_ms: float = 2.0
    windows: int = 2
    in_step: bool = False
    depth: int = 2


@dataclass(frozen=True)
class Window:
    """The result of one number of cameras for some seconds."""

    series: Series
    drops: dict[str, int]
    holders: Sequence[Mapping[str, Any]] = ()

    @property
    def holds(self) -> bool:
        """Whether no frame was lost."""
        return not any(self.drops.values())


def window_of(run: dict[str, Any], received: int) -> Window:
    """
    Make a window from the answer of the nodes' process.

    :param received: messages that the reader got.
    :raises BenchError: see :func:`~bench.pipeline.check_path`.
    """
    check_path(run)
    drops = {name: int(run['drops'].get(name, 0)) for name in DROPS}
    drops['unread'] = max(0, run['published'] - received)
    figures = {
        **run['use'],
        **{f'lost_{name}': float(count) for name, count in drops.items()},
        'fps': run['published'] / run['ran_s'],
    }
    cpu_us = figures['process_percent'] / 100.0 * run['ran_s'] * 1e6 / run['due']
    series = Series(run['latencies_us'], cpu_us, sum(drops.values()), figures)
    return Window(series, drops, run.get('holders', ()))


def explain(window: Window, cpus: int) -> str:
    """Return the resource that was used up in a window with losses, and the losses."""
    figures = window.series.figures
    process, machine = figures['process_percent'], figures['machine_percent']
    losses = ', '.join(
        f'{count} {name}'
        for name, count in sorted(window.drops.items(), key=lambda drop: -drop[1])
        if count
    )
    others = machine - process / cpus
    waits = f'p99 {figures["gil_wait_p99_us"] / 1e3:.1f} ms'
    # Only one thread at a time runs Python code. A process uses more than one CPU only for system
    # calls and the middleware's threads.
    if process >= _FULL_PERCENT:
        why = (
            f"the interpreter's lock: the process used {process:.0f} % of one CPU, its "
            f'threads waited for the lock {waits}'
        )
    elif machine >= _FULL_PERCENT:
        why = f'the CPUs: {machine:.0f} % of them were busy, {others:.0f} % with other programs'
    else:
        why = (
            f'a moment only: the CPUs were {machine:.0f} % busy ({others:.0f} % other '
            f'programs), threads waited for the lock {waits}'
        )
    return f'{why}; lost: {losses or "nothing"}'


def available_memory() -> int:
    """Return how many bytes can be allocated without swapping (proc_meminfo(5)); 0: unknown."""
    for line in Path('/proc/meminfo').read_text(encoding='ascii').splitlines():
        if line.startswith('MemAvailable:'):
            return int(line.split()[1]) * 1024
    return 0


def between(held: int, failed: int) -> int:
    """Return the number to try next; 0: *held* and *failed* are close enough."""
    return (held + failed) // 2 if failed - held > max(1, held // 8) else 0


class Search:
    """
    Finds the largest number of cameras that holds.

    :param window: measures one number.
    :param grow: adds cameras up to a number; returns why that is refused, or an empty text.
    :param most: the most windows of each number.
    """

    def __init__(
        self, window: Callable[[int], Window], grow: Callable[[int], str], say: Say, most: int = 2
    ) -> None:
        self._window, self._grow, self._say, self._most = window, grow, say, most
        self.windows: dict[int, list[Window]] = {}
        self.held = self.failed = 0
        self.refused = ''

    def _holds(self, cameras: int) -> bool:
        windows = self.windows.setdefault(cameras, [])
        while len(windows) < self._most:
            windows.append(self._window(cameras))
            last = windows[-1]
            lost = ', '.join(f'{count} {name}' for name, count in last.drops.items() if count)
            self._say(
                f'{cameras} cameras: p99 {last.series.p99_us / 1e3:.1f} ms, '
                f'{f"lost {lost}" if lost else "nothing lost"}'
            )
            if last.holders:
                self._say(f'  kept the lock over 1 ms: {describe(last.holders)}')
            if last.holds:
                return True
        return False

    def run(self, cameras: Iterator[int]) -> None:
        """Try ascending numbers until one doesn't hold, then numbers between the last two."""
        for number in cameras:
            self.refused = self._grow(number)
            if self.refused:
                self._say(f'{number} cameras: {self.refused}')
                return
            if not self._holds(number):
                self.failed = number
                break
            self.held = number
        while self.failed and (number := between(self.held, self.failed)):
            if self._holds(number):
                self.held = number
            else:
                self.failed = number

    def limit(self, cpus: int) -> str:
        """Return the reason why no more cameras hold."""
        if self.failed:
            return explain(self.windows[self.failed][-1], cpus)
        return self.refused or 'not reached: more cameras were not tried'


def _searched(plan: ScalePlan, condition: Condition, say: Say) -> tuple[Search, int]:
    """Search at one size and rate; also return how many CPUs the nodes had."""
    topic = f'scale_{condition.width}x{condition.height}_{condition.rate_hz:g}'.replace('.', '_')
    with contextlib.closing(
        Cameras(topic, condition, plan.delay_ms, 'raw', plan.depth, _KNOBS)
    ) as cameras:

        def grow(number: int) -> str:
            need, there = (
                number * _SLOTS * condition.width * condition.height * 3 // 2,
                available_memory(),
            )
            if need + _SPARE > there:
                return (
                    f'memory: {number} cameras have {need >> 20} MiB of buffers, but only '
                    f'{there >> 20} MiB are free'
                )
            refused = cameras.grow(number)
            if not refused:  # warm up: start threads, fill caches, import each buffer
                cameras.run(number, min(_WARM_UP_S, plan.seconds), spread=not plan.in_step)
            return refused

        def window(number: int) -> Window:
            return window_of(
                *cameras.run(number, plan.seconds, spread=not plan.in_step, probed=True)
            )

        search = Search(window, grow, say, plan.windows)
        search.run(iter(plan.cameras))
        return search, len(cameras.cpus)


def measure_scale(plan: ScalePlan, say: Say) -> Measured:
    """
    Find the largest number of cameras for each size and rate of the plan.

    :raises BenchError: a process failed, or no camera could be started.
    """
    rows: list[Row] = []
    limits: dict[str, dict[str, Any]] = {}
    for condition in (Condition(*size, rate_hz) for size in plan.sizes for rate_hz in plan.rates):
        name = f'{condition.width}x{condition.height}@{condition.rate_hz:g}'
        say(f'{name}: up to {max(plan.cameras)} cameras, {plan.seconds:g} s each')
        search, cpus = _searched(plan, condition, say)
        for number, windows in search.windows.items():
            rows += make_rows(
                {
                    (CASE, variant(number, in_step=plan.in_step), condition): [
                        _series(windows, plan.seconds)
                    ]
                },
                [],
            )
        limits[name] = {
            'cameras': search.held,
            'first_loss': search.failed,
            'limit': search.limit(cpus),
            'cpus': cpus,
            'holders': {
                str(number): list(windows[-1].holders)
                for number, windows in search.windows.items()
            },
        }
        say(f'{name}: {search.held} cameras without a loss; limit: {limits[name]["limit"]}')
    if not rows:
        raise BenchError(
            'not one camera could be started: '
            f'{"; ".join(limit["limit"] for limit in limits.values())}'
        )
    return Measured(rows, {'limits': limits})


def _series(windows: Sequence[Window], seconds: float) -> Series:
    before = sum(window.series.lost for window in windows[:-1])
    figures = {
        'window_s': seconds,
        'windows': float(len(windows)),
        'lost_in_earlier_windows': float(before),
    }
    return replace(windows[-1].series, figures={**windows[-1].series.figures, **figures})


def variant(cameras: int, *, in_step: bool = False) -> str:
    """Return the variant's name in the rows, such as ``16_cameras``."""
    return f'{cameras}_camera{"s" if cameras > 1 else ""}{"_in_step" if in_step else ""}'


_MOST_CAMERAS = 256
_MOST_DEPTH = 4
_SIXTEEN: Key = (CASE, variant(16), *FULL_HD, 30.0)
_SECONDS = 10.0


def _lost(row: Row) -> float | None:
    return None if row.figures.get('window_s', 0.0) < _SECONDS else row.lost_per_cent


SCALE_BARS = (
    Bar(
        '16 cameras of 1080p at 30 Hz in one process on 2 CPUs for 10 s: lost frames',
        figure_of(_SIXTEEN, _lost),
        0,
        ' %',
        involved=(_SIXTEEN,),
    ),
)


def _add_options(parser: argparse.ArgumentParser) -> None:
    defaults = ScalePlan()
    parser.add_argument(
        '--cameras',
        nargs='+',
        type=int,
        default=list(defaults.cameras),
        metavar='N',
        help='numbers to try (default: 1 … 64)',
    )
    parser.add_argument(
        '--sizes',
        nargs='+',
        choices=SIZES,
        default=['1080p'],
        help='picture sizes (default: 1080p)',
    )
    parser.add_argument(
        '--rates',
        nargs='+',
        type=float,
        default=list(defaults.rates),
        metavar='HZ',
        help="each camera's rates to try (default: 30)",
    )
    parser.add_argument(
        '--seconds',
        type=float,
        default=defaults.seconds,
        help='length of each window (default: 10)',
    )
    add_delay(parser)
    parser.add_argument(
        '--in-step',
        action='store_true',
        help='all cameras have their frames at the same moment, as triggered ones do',
    )
    parser.add_argument(
        '--depth',
        type=int,
        default=defaults.depth,
        help='frames of a camera that may wait (default: 2; perception: 1)',
    )
    # --repetitions is the most windows of a number; here its default isn't 7.
    parser.set_defaults(repetitions=defaults.windows)


def _prepare(options: argparse.Namespace) -> Callable[[Say], Measured]:
    check_counts(options, seconds=3600)
    for rate in options.rates:
        if not 1 <= rate <= 1000:
            raise ConfigError(f'--rates {rate:g}: each is 1 to 1000 Hz')
        check_delay(options.delay_ms, rate)
    for cameras in options.cameras:
        if not 1 <= cameras <= _MOST_CAMERAS:
            raise ConfigError(f'--cameras {cameras}: each is 1 to {_MOST_CAMERAS}')
    if not 1 <= options.depth <= _MOST_DEPTH:
        raise ConfigError(
            f'--depth {options.depth}: give 1 to {_MOST_DEPTH}; the camera has 8 slots'
        )
    plan = ScalePlan(
        tuple(sorted(set(options.cameras))),
        tuple(SIZES[size] for size in dict.fromkeys(options.sizes)),
        tuple(dict.fromkeys(options.rates)),
        options.seconds,
        options.delay_ms,
        options.repetitions,
        options.in_step,
        options.depth,
    )
    return lambda say: measure_scale(plan, say)


SCALE = Command(
    'scale',
    'how many cameras one process takes until the first frame is lost, and why',
    _add_options,
    _prepare,
    SCALE_BARS,
    ('rclpy', 'cv2'),
)
