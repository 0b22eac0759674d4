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
``zc_bench link``: the cost of handing over a frame.

The same run measures the floors, and the libraries that one could use instead of the links. Every
repetition measures every case at every size and rate in a new order, so that other load on the
machine affects all cases alike. The floors are those of ``floor.py``: a bare descriptor loop over
a Unix socket, a bare ``SimpleQueue``, a bare guard condition.

For all cases the clock starts when the stamped pixels are in the producer's buffer, and stops when
the consumer has a view of all pixels. :func:`~bench.environment.tuned_environment` tunes plain
messages. In the case ``link_read`` the consumer also reads every pixel before the clock stops, as
most consumers do; it shows how much smaller the ratios are then.

The file has, in this order: :class:`Case` (a floor's process, or a producer's and a consumer's),
:class:`Peers` (the libraries to compare with, see :mod:`~bench.peers`), :class:`Cases` (owns all
processes of a run), :class:`LinkPlan`, :func:`measure_links`, the bars, the command. The processes
run ``floor_worker.py`` and ``link_worker.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
import contextlib
from dataclasses import dataclass
import functools
import os
import random
import socket
import time
from typing import Any, Protocol

from bench.environment import plain_environment, tuned_environment
from bench.rows import Condition, make_rows, Measuring, Rounds, Row, Series
from bench.subcommand import (
    Bar,
    check_counts,
    Command,
    figure_of,
    FULL_HD,
    Key,
    Measured,
    repetitions,
    Rows,
    Say,
    SIZES,
    UHD_8K,
    VGA,
)  # fmt: skip
from bench.worker import BenchError, NoAnswerError, Worker

from zc_perception.errors import ConfigError

WORKER = 'bench.link_worker'
FLOOR_WORKER = 'bench.floor_worker'
FLOORS = ('fd_socket', 'simple_queue', 'guard')
LINKS = ('in_process_mailbox', 'in_process_executor', 'shared_memory')
PLAIN = ('rclpy_image_default', 'rclpy_image_tuned')
READ = 'link_read'
# The variants of link_read, besides :attr:`Peers.readers`.
READERS = ('in_process_mailbox', 'shared_memory', 'rclpy_image_tuned')
REFERENCES = [('floor', name) for name in FLOORS] + [
    ('link', name) for name in (*PLAIN, 'shared_memory')
]
READ_REFERENCES = [*REFERENCES[: len(FLOORS)], (READ, 'shared_memory')]
WARM_UP_FRAMES = 12
_MATCH_S = 60.0
# How long an answer may take on top of the series. A producer whose frames aren't answered gives
# up earlier by itself.
_PATIENCE_S = 120.0
_FLOOR_PATIENCE_S = 30.0


class TornFrameError(BenchError):
    """A consumer got a frame with pixels of another frame, or an incomplete one."""


def series_of(
    frames: int, sent: Sequence[tuple[int, int]], arrived: Sequence[tuple[int, int]], cpu_us: float
) -> Series:
    """
    Join a producer's and a consumer's notes of the same series.

    :param frames: how many were to be sent; those that could not be sent count as lost, too.
    :param sent: (number, ns) of each frame.
    :param arrived: (number, ns), in the order of arrival.
    :raises BenchError: a frame arrived that wasn't sent, or a frame arrived twice.
    """
    left = dict(sent)
    try:
        latencies = [(at - left.pop(number)) / 1e3 for number, at in arrived]
    except KeyError as error:
        raise BenchError(f'frame {error} arrived twice, or was never sent') from error
    return Series(latencies, cpu_us / max(1, frames), frames - len(latencies))


class Case(Protocol):
    """Some variants, and the processes that measure them."""

    def measure(
        self, variant: str, condition: Condition, frames: int, *, read: bool = False
    ) -> Series:
        """
        Measure one repetition.

        :param read: the consumer reads every pixel.
        """

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The processes that measure."""


@dataclass
class FloorCase:
    """
    Measures floors, which don't depend on a frame's size.

    A floor waits for each wake-up without a time limit, and a guard condition sometimes misses
    one. Then the process is started again, and the series is repeated.

    :param start: starts the floor's process.
    :param say: gets a line each time the process is started again.
    """

    start: Callable[[], Worker]
    say: Say
    patience_s: float = _FLOOR_PATIENCE_S

    def __post_init__(self) -> None:
        self._worker = self.start()

    @property
    def workers(self) -> tuple[Worker, ...]:
        return (self._worker,)

    def measure(
        self, variant: str, condition: Condition, frames: int, *, read: bool = False
    ) -> Series:
        """
        See :class:`Case`.

        :raises BenchError: no answer twice in a row, or the process ended.
        """
        try:
            return self._measure(variant, condition, frames)
        except NoAnswerError as error:
            self.say(f'floor {variant}: {error}; its process is started again')
            cpus = self._worker.cpus
            self._worker.close()
            self._worker = self.start()
            self._worker.set_cpus(cpus)
            return self._measure(variant, condition, frames)

    def _measure(self, variant: str, condition: Condition, frames: int) -> Series:
        patience_s = self.patience_s + (frames / condition.rate_hz if condition.rate_hz else 0.0)
        answer = self._worker.ask(
            patience_s, floor=variant, frames=frames, rate_hz=condition.rate_hz
        )
        return Series([ns / 1e3 for ns in answer['latencies_ns']], answer['cpu_us'] / frames)


@dataclass
class LinkCase:
    """Measures a link with a producer's and a consumer's process, which may be the same one."""

    producer: Worker
    consumer: Worker
    patience_s: float = _PATIENCE_S
    _next: int = 0

    @property
    def workers(self) -> tuple[Worker, ...]:
        return self.producer, self.consumer

    def wait_until_matched(self) -> None:
        """
        Wait until producer and consumer have found each other.

        :raises BenchError: they haven't within a minute.
        """
        deadline = time.monotonic() + _MATCH_S
        for end in (self.producer, self.consumer):
            while not (answer := end.ask(op='matched'))['matched']:
                if time.monotonic() > deadline:
                    raise BenchError(
                        f"the benchmark's process '{end.role}' did not find its other end "
                        f'within {_MATCH_S:g} s ({answer["reason"]}); '
                        'does multicast work on the loopback device?'
                    )
                time.sleep(0.1)

    def measure(
        self, variant: str, condition: Condition, frames: int, *, read: bool = False
    ) -> Series:
        """
        See :class:`Case`.

        Some frames are sent before the series, because the first frames of a new size introduce
        and map its buffers.
        """
        for end in dict.fromkeys((self.consumer, self.producer)):
            end.ask(self.patience_s, op='prepare', width=condition.width, height=condition.height)
        self._run(WARM_UP_FRAMES, 0.0, read)
        return self._run(frames, condition.rate_hz, read)

    def _run(self, frames: int, rate_hz: float, read: bool) -> Series:
        first, self._next = self._next, self._next + frames
        run = {'op': 'run', 'first': first, 'frames': frames, 'rate_hz': rate_hz, 'read': read}
        patience_s = self.patience_s + (frames / rate_hz if rate_hz else 0.0)
        if self.consumer is self.producer:
            answer = self.producer.ask(patience_s, **run)
            sent, arrived = answer['sent'], answer['arrived']
            spent = [self.producer.ask(op='spent')]
        else:
            self.consumer.ask(self.patience_s, op='begin', first=first, rate_hz=rate_hz, read=read)
            sent = self.producer.ask(patience_s, **run)['sent']
            arrived = self.consumer.ask(
                self.patience_s, op='end', last=sent[-1][0] if sent else first - 1
            )['arrived']
            spent = [
                end.ask(self.patience_s, op='spent') for end in (self.consumer, self.producer)
            ]
        if any(s['conversions'] for s in spent):
            raise BenchError(
                'frames were converted to messages on a link without copies '
                f'({self.consumer.role}): it does not measure what it says'
            )
        if torn := sum(s['torn'] for s in spent):
            raise TornFrameError(
                f"{torn} frame(s) of '{self.consumer.role}' were torn: not all of a frame's "
                'pixels were its own'
            )
        return series_of(frames, sent, arrived, sum(s['cpu_us'] for s in spent))


class PeerCases(Protocol):
    """Owns the processes of all peers of a run."""

    absent: dict[str, str]

    def open(self, variants: Sequence[str]) -> dict[str, Case]:  # noqa: A003
        """Start these peers; :attr:`absent` has each that can't be measured, with the reason."""

    @property
    def stalled(self) -> dict[str, str]:
        """By peer with failed series: how many failed, and why the last one did."""

    def end(self) -> None:
        """Tell all processes to end, without waiting for that."""

    def close(self) -> None:
        """End all processes."""


@dataclass(frozen=True)
class Peers:
    """
    The libraries that one could use instead of the links; :mod:`~bench.peers` has them.

    :param start: makes the object that runs them.
    :param names: all variants.
    :param copying: variants that copy every pixel; their series have fewer frames.
    :param one_cpu: variants whose threads never run at the same time.
    :param readers: variants that are also measured with a consumer that reads every pixel.
    :param bars: bars that need a peer's row.
    """

    start: Callable[[Say], PeerCases] | None = None
    names: Sequence[str] = ()
    copying: Sequence[str] = ()
    one_cpu: Sequence[str] = ()
    readers: Sequence[str] = ()
    bars: Sequence[Bar] = ()


NO_PEERS = Peers()


class Cases:
    """Owns all processes of a run: of floors, links, plain messages and peers."""

    def __init__(self, variants: Sequence[str], say: Say, peers: Peers = NO_PEERS) -> None:
        self._cases: dict[str, Case] = {}
        self._peers = None if peers.start is None else peers.start(say)
        self._workers: list[Worker] = []
        self._environment = plain_environment()
        # Topics differ from those of another benchmark that runs at the same time.
        self._prefix = f'/zc_bench/run_{os.getpid()}'
        self.facts: dict[str, Any] = {}
        try:
            # A floor needs no network. Without discovery its context sends no packets, which the
            # other processes would have to handle.
            alone = {**self._environment, 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'OFF'}
            bare, guard = (
                FloorCase(
                    functools.partial(
                        self._start, FLOOR_WORKER, name, environment=alone, orderly=False
                    ),
                    say,
                )
                for name in ('floors', 'floor guard')
            )
            self._cases = {name: guard if name == 'guard' else bare for name in FLOORS}
            own = [variant for variant in variants if variant not in peers.names]
            links = {variant: self._open(variant) for variant in own}
            for link in links.values():
                link.wait_until_matched()
            self._cases |= links
            if own:
                self.facts = self._workers[-1].ask(op='describe')
            if self._peers is not None:
                self._cases |= self._peers.open(
                    [variant for variant in variants if variant in peers.names]
                )
        except BaseException:
            self.close()
            raise

    def _start(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str],
        inherited: Sequence[int] = (),
        orderly: bool = True,
    ) -> Worker:
        worker = Worker(module, arguments, environment, inherited, orderly=orderly)
        self._workers.append(worker)
        return worker

    def _open(self, variant: str) -> LinkCase:
        topic = f'{self._prefix}/{variant}'
        if variant in PLAIN:
            return self._open_plain(
                topic, tuned_environment() if variant == 'rclpy_image_tuned' else {}
            )
        roles = {
            'in_process_mailbox': 'local_mailbox',
            'in_process_executor': 'local_executor',
            'shared_memory': 'frames_out',
        }
        producer = self._start(WORKER, roles[variant], topic, environment=self._environment)
        if variant != 'shared_memory':
            return LinkCase(producer, producer)
        return LinkCase(
            producer, self._start(WORKER, 'frames_in', topic, environment=self._environment)
        )

    def _open_plain(self, topic: str, tuning: Mapping[str, str]) -> LinkCase:
        environment = {**self._environment, **tuning}
        # Unthrottled, the consumer answers over this socket; ROS carries the messages only.
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ends[0], ends[1]:
            producer, consumer = (
                self._start(
                    WORKER,
                    role,
                    topic,
                    str(end.fileno()),
                    environment=environment,
                    inherited=[end.fileno()],
                )
                for role, end in zip(('images_out', 'images_in'), ends, strict=True)
            )
            return LinkCase(producer, consumer)

    def __getitem__(self, variant: str) -> Case:
        return self._cases[variant]

    @property
    def absent(self) -> dict[str, str]:
        """Peers that can't be measured, and why."""
        return {} if self._peers is None else self._peers.absent

    @property
    def stalled(self) -> dict[str, str]:
        """By peer with failed series: how many failed, and why the last one did."""
        return {} if self._peers is None else self._peers.stalled

    def close(self) -> None:
        """Tell all processes to end, then wait for each."""
        if self._peers is not None:
            self._peers.end()
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            worker.close()
        if self._peers is not None:
            self._peers.close()


@dataclass(frozen=True)
class LinkPlan:
    """
    The sizes, rates and variants to measure, and how long.

    :param read_sizes: sizes at which :data:`READERS` are also measured, unthrottled, with a
        consumer that reads every pixel.
    :param one_cpu: run unthrottled series of floors, links without copies and
        :attr:`Peers.one_cpu` on one CPU. With one frame in flight, producer and consumer never run
        at the same time. On two CPUs a series would mostly measure the wake-up of an idle CPU: 3
        to 30 µs, depending on the scheduler. Variants with copying threads always have all CPUs.
    :param peers: the libraries whose variants may be among *variants*.
    """

    sizes: Sequence[tuple[int, int]]
    rates_hz: Sequence[float]
    variants: Sequence[str]
    repetitions: int = 7
    seconds: float = 1.5
    frames_unthrottled: int = 300
    read_sizes: Sequence[tuple[int, int]] = ()
    seed: int = 1
    one_cpu: bool = True
    peers: Peers = NO_PEERS

    def frames(self, variant: str, condition: Condition) -> int:
        """Return the number of frames of one series; fewer of a variant that copies the pixels."""
        if condition.rate_hz:
            return max(20, round(self.seconds * condition.rate_hz))
        if variant in (*PLAIN, *self.peers.copying):
            megabytes = condition.width * condition.height * 1.5e-6
            return min(self.frames_unthrottled, max(8, round(100 / megabytes)))
        return self.frames_unthrottled

    def steps(
        self, repetition: int, absent: Container[str] = ()
    ) -> list[tuple[str, str, Condition]]:
        """Return each (case, variant, condition) once, in this repetition's order."""
        chance = random.Random(f'{self.seed} {repetition}')
        conditions = [Condition(*size, rate) for size in self.sizes for rate in self.rates_hz]
        chance.shuffle(conditions)
        order = []
        for condition in conditions:
            # Measure the floors and cases of one condition close together, because the machine's
            # load changes every second.
            steps = [('link', variant) for variant in self.variants] + [
                ('floor', name) for name in FLOORS
            ]
            if not condition.rate_hz and (condition.width, condition.height) in self.read_sizes:
                steps += [
                    (READ, variant)
                    for variant in (*READERS, *self.peers.readers)
                    if variant in self.variants
                ]
            chance.shuffle(steps)
            order += [
                (case, variant, condition) for case, variant in steps if variant not in absent
            ]
        return order

    def on_one_cpu(self, variant: str, condition: Condition) -> bool:
        """Return whether this series is restricted to one CPU."""
        return (
            self.one_cpu
            and not condition.rate_hz
            and variant in (*FLOORS, *LINKS, *self.peers.one_cpu)
        )


def link_rows(rounds: Rounds) -> list[Row]:
    """
    Return all rows of a run.

    The rows of ``link_read`` are compared with the floors and with each other only.
    """
    read = {key: series for key, series in rounds.items() if key[0] in ('floor', READ)}
    others = {key: series for key, series in rounds.items() if key[0] != READ}
    return make_rows(others, REFERENCES) + [
        row for row in make_rows(read, READ_REFERENCES) if row.case == READ
    ]


def measure_links(plan: LinkPlan, say: Say) -> Measured:
    """
    Measure all series of the plan.

    :raises BenchError: a process failed (a peer's process may fail), a link converted a frame to a
        message, or a frame was torn.
    """
    rounds = Measuring(list)
    with contextlib.closing(Cases(plan.variants, say, plan.peers)) as cases:
        say(f'measuring: {len(plan.steps(0, cases.absent))} series in each repetition')
        for repetition in repetitions(plan.repetitions, say):
            for case, variant, condition in plan.steps(repetition, cases.absent):
                with _on_cpus(cases[variant], plan.on_one_cpu(variant, condition)):
                    series = cases[variant].measure(
                        variant, condition, plan.frames(variant, condition), read=case == READ
                    )
                rounds[case, variant, condition].append(series)
        facts = {
            **cases.facts,
            'unthrottled_cpus': 1 if plan.one_cpu else len(os.sched_getaffinity(0)),
        }
        for name, found in (('absent', cases.absent), ('stalled', cases.stalled)):
            if found:
                facts[name] = dict(found)
        return Measured(link_rows(rounds), facts)


@contextlib.contextmanager
def _on_cpus(case: Case, one: bool) -> Iterator[None]:
    every = os.sched_getaffinity(0)
    if not one:
        yield
        return
    for worker in case.workers:
        worker.set_cpus({max(every)})
    try:
        yield
    finally:
        for worker in case.workers:
            worker.set_cpus(every)


UNTHROTTLED = 0.0
SHARED_MEMORY = 'link/shared_memory'


def link_key(variant: str, rate_hz: float = UNTHROTTLED, size: tuple[int, int] = FULL_HD) -> Key:
    """Return the key of a row of the case ``link``."""
    return 'link', variant, *size, rate_hz


def _growth(variant: str) -> Callable[[Rows], float | None]:
    """Return a figure: the median at 8K (108 times the pixels) divided by the one at VGA."""

    def figure(rows: Rows) -> float | None:
        small, large = (rows.get(link_key(variant, size=size)) for size in (VGA, UHD_8K))
        if small is None or large is None or not small.median_us or large.median_us is None:
            return None
        return large.median_us / small.median_us

    return figure


def _when(rate_hz: float) -> str:
    return f'at {rate_hz:g} Hz' if rate_hz else 'unthrottled'


def _speed(rate_hz: float, tuned: float, default: float) -> list[Bar]:
    bars = []
    for name, times in (('tuned', tuned), ('default', default)):
        plain, ours = link_key(f'rclpy_image_{name}', rate_hz), link_key('shared_memory', rate_hz)
        figure = figure_of(plain, lambda row: row.ratio_to.get(SHARED_MEMORY))
        text = f'1080p {_when(rate_hz)}: shared_memory below {name} rclpy Image, times'
        bars.append(Bar(text, figure, times, '×', at_least=True, involved=(plain, ours)))
    return bars


def _floor(
    variant: str, floor: str, rate_hz: float, *, added_us: float = 0.0, times: float = 0.0
) -> Bar:
    key, text = link_key(variant, rate_hz), f'1080p {_when(rate_hz)}: {variant}'
    if added_us:
        figure = figure_of(key, lambda row: row.added_us.get(f'floor/{floor}'))
        return Bar(f'{text} above the floor {floor}', figure, added_us, ' µs', involved=(key,))
    return Bar(
        f'{text} to the floor {floor}',
        figure_of(key, lambda row: row.ratio_to.get(f'floor/{floor}')),
        times,
        '×',
        involved=(key,),
    )


def _cpu_below(plain: str) -> Bar:
    key = link_key(plain)
    figure = figure_of(key, lambda row: row.cpu_ratio_to.get(SHARED_MEMORY))
    return Bar(
        f'1080p unthrottled: CPU per frame of shared_memory below {plain}, times',
        figure,
        50,
        '×',
        at_least=True,
        involved=(key,),
    )


LINK_BARS = (
    _floor('shared_memory', 'fd_socket', UNTHROTTLED, added_us=25),
    *_speed(UNTHROTTLED, 100, 150),
    _floor('shared_memory', 'fd_socket', 30.0, times=2),
    *_speed(30.0, 40, 200),
    _floor('in_process_mailbox', 'simple_queue', UNTHROTTLED, added_us=15),
    _floor('in_process_mailbox', 'simple_queue', 30.0, times=2),
    _floor('in_process_executor', 'guard', UNTHROTTLED, times=2),
    _floor('in_process_executor', 'guard', 30.0, times=2),
    *(
        Bar(
            f'unthrottled: 8K to VGA, {variant}', _growth(variant), 1.15, '×',
            involved=(link_key(variant, size=VGA), link_key(variant, size=UHD_8K)),
        )
        for variant in ('shared_memory', 'in_process_mailbox', 'in_process_executor')
    ),
    *(_cpu_below(plain) for plain in ('rclpy_image_tuned', 'rclpy_image_default')),
)  # fmt: skip


def _add_options(peers: Peers, parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--sizes',
        nargs='+',
        choices=SIZES,
        default=list(SIZES),
        help='picture sizes (default: all)',
    )
    parser.add_argument(
        '--rates',
        nargs='+',
        type=float,
        default=[30.0, 0.0],
        metavar='HZ',
        help='0: unthrottled (default: 30 0)',
    )
    every = [*LINKS, *PLAIN, *peers.names]
    parser.add_argument(
        '--variants',
        nargs='+',
        choices=every,
        default=every,
        metavar='NAME',
        help=f'some of {", ".join(every)} (default: all)',
    )
    parser.add_argument(
        '--read', nargs='+', choices=(*SIZES, 'none'), default=['1080p'],
        help='sizes at which links and their best rivals are also measured with a '
             'consumer that reads every pixel; '
        'unthrottled (default: 1080p)',
    )  # fmt: skip
    parser.add_argument(
        '--seconds',
        type=float,
        default=1.5,
        help='length of each series at a rate; at least 20 frames (default: 1.5)',
    )
    parser.add_argument(
        '--frames',
        type=int,
        default=300,
        help='frames of each unthrottled series; fewer of large messages (default: 300)',
    )
    parser.add_argument(
        '--all-cpus',
        action='store_true',
        help='do not keep unthrottled series without copies on one CPU',
    )


def _prepare(peers: Peers, options: argparse.Namespace) -> Callable[[Say], Measured]:
    check_counts(options, seconds=3600, frames=1_000_000)
    for rate in options.rates:
        # A worker doesn't answer during a series, and the wait for its answer is limited.
        if not (rate == 0 or 0.1 <= rate <= 1000):
            raise ConfigError(f'--rates {rate:g}: each is 0 (unthrottled) or 0.1 to 1000 Hz')
    plan = LinkPlan(
        [SIZES[size] for size in dict.fromkeys(options.sizes)],
        [abs(rate) for rate in dict.fromkeys(options.rates)],
        list(dict.fromkeys(options.variants)),
        options.repetitions,
        options.seconds,
        options.frames,
        [SIZES[size] for size in options.read if size != 'none'],
        one_cpu=not options.all_cpus,
        peers=peers,
    )
    return lambda say: measure_links(plan, say)


def link_command(peers: Peers) -> Command:
    """Return the sub-command ``link``, with these peers."""
    add_options, prepare = (
        functools.partial(_add_options, peers),
        functools.partial(_prepare, peers),
    )
    return Command(
        'link',
        'what handing over a frame costs',
        add_options,
        prepare,
        (*LINK_BARS, *peers.bars),
        ('rclpy', 'cv2'),
    )
