"""``zc_bench link``: what handing over a frame costs, beside its floors and plain rclpy in the same run.

Every repetition measures every case at every size and rate, in an order of its own, so that what the machine does meanwhile hits all of
them. The floors are those of ``floor.py``: a bare descriptor loop over a Unix socket, a bare ``SimpleQueue``, a bare guard condition.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from zc_perception.verify.bench.rows import Condition, Series, SeriesBook
from zc_perception.verify.bench.worker import BenchError, Worker

WORKER = 'zc_perception.verify.bench.link_worker'
FLOOR_WORKER = 'zc_perception.verify.bench.floor_worker'
FLOORS = ('fd_socket', 'simple_queue', 'guard')
LINKS = ('in_process_mailbox', 'in_process_executor', 'shared_memory')
PLAIN = ('rclpy_image_default', 'rclpy_image_tuned')
REFERENCES = [('floor', name) for name in FLOORS] + [('link', name) for name in PLAIN] + [('link', 'shared_memory')]
WARM_UP_FRAMES = 12
_MATCH_S = 60.0
# How long an answer may take on top of the series; a producer whose frames aren't answered gives up sooner.
_PATIENCE_S = 120.0
# What somebody may have set for the whole machine would make the "default" another one.
_TUNING = (
    'FASTRTPS_DEFAULT_PROFILES_FILE',
    'FASTDDS_DEFAULT_PROFILES_FILE',
    'FASTDDS_BUILTIN_TRANSPORTS',
    'CYCLONEDDS_URI',
    'GLIBC_TUNABLES',
)
_TUNING_PREFIXES = ('MALLOC_', 'RMW_FASTRTPS_', 'ZENOH_')


def series_of(frames: int, sent: Sequence[tuple[int, int]], arrived: Sequence[tuple[int, int]], cpu_us: float) -> Series:
    """What a producer and a consumer noted of the same series.

    :param frames: how many were to be sent; those that could not be are lost too.
    :param sent: (number, ns) of each frame.
    :param arrived: (number, ns), in the order of arrival.
    :raises BenchError: a frame arrived that wasn't sent, or twice.
    """
    left = dict(sent)
    try:
        latencies = [(at - left.pop(number)) / 1e3 for number, at in arrived]
    except KeyError as error:
        raise BenchError(f'frame {error} arrived twice, or was never sent') from error
    return Series(latencies, cpu_us / max(1, frames), frames - len(latencies))


class Case(Protocol):
    """Something to measure."""

    def wait_until_matched(self) -> None:
        """Until both ends see each other."""

    def measure(self, variant: str, condition: Condition, frames: int) -> Series:
        """One repetition."""

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Its processes."""


@dataclass
class FloorCase:
    """Floors; a frame's size doesn't enter."""

    worker: Worker

    @property
    def workers(self) -> tuple[Worker, ...]:
        """See :class:`Case`."""
        return (self.worker,)

    def wait_until_matched(self) -> None:
        """There is nobody to wait for."""

    def measure(self, variant: str, condition: Condition, frames: int) -> Series:
        """See :class:`Case`."""
        patience_s = _PATIENCE_S + (frames / condition.rate_hz if condition.rate_hz else 0.0)
        answer = self.worker.ask(patience_s, floor=variant, frames=frames, rate_hz=condition.rate_hz)
        return Series([ns / 1e3 for ns in answer['latencies_ns']], answer['cpu_us'] / frames)


@dataclass
class LinkCase:
    """A producer's and a consumer's process, which may be the same one."""

    producer: Worker
    consumer: Worker
    _next: int = 0

    @property
    def workers(self) -> tuple[Worker, ...]:
        """See :class:`Case`."""
        return self.producer, self.consumer

    def wait_until_matched(self) -> None:
        """See :class:`Case`.

        :raises BenchError: they don't.
        """
        deadline = time.monotonic() + _MATCH_S
        for end in (self.producer, self.consumer):
            while not (answer := end.ask(op='matched'))['matched']:
                if time.monotonic() > deadline:
                    raise BenchError(
                        f"the benchmark's process '{end.role}' did not find its other end within {_MATCH_S:g} s ({answer['reason']}); "
                        'does multicast work on the loopback device?'
                    )
                time.sleep(0.1)

    def measure(self, variant: str, condition: Condition, frames: int) -> Series:
        """See :class:`Case`. The first frames of a new size introduce and map its buffers: set-up, not hand-over."""
        self.producer.ask(_PATIENCE_S, op='prepare', width=condition.width, height=condition.height)
        self._run(WARM_UP_FRAMES, 0.0)
        return self._run(frames, condition.rate_hz)

    def _run(self, frames: int, rate_hz: float) -> Series:
        first, self._next = self._next, self._next + frames
        run = {'op': 'run', 'first': first, 'frames': frames, 'rate_hz': rate_hz}
        patience_s = _PATIENCE_S + (frames / rate_hz if rate_hz else 0.0)
        if self.consumer is self.producer:
            answer = self.producer.ask(patience_s, **run)
            sent, arrived = answer['sent'], answer['arrived']
            spent = [self.producer.ask(op='spent')]
        else:
            self.consumer.ask(op='begin', first=first, rate_hz=rate_hz)
            sent = self.producer.ask(patience_s, **run)['sent']
            arrived = self.consumer.ask(op='end', last=sent[-1][0] if sent else first - 1)['arrived']
            spent = [end.ask(op='spent') for end in (self.consumer, self.producer)]
        if any(s['conversions'] for s in spent):
            raise BenchError(
                f'frames were converted to messages on a link without copies ({self.consumer.role}): it does not measure what it says'
            )
        return series_of(frames, sent, arrived, sum(s['cpu_us'] for s in spent))


def fastdds_profile() -> Path:
    """The profile for plain images, as it is installed or in the source tree.

    :raises BenchError: neither.
    """
    package = Path(__file__).resolve().parents[2]
    places = [
        package.parent / 'config',
        *(Path(p) / 'share/zc_perception/config' for p in (*os.environ.get('AMENT_PREFIX_PATH', '').split(':'), sys.prefix)),
    ]
    for place in places:
        if (place / 'fastdds_images.xml').is_file():
            return place / 'fastdds_images.xml'
    raise BenchError('fastdds_images.xml is not installed; run from the source tree or an installed package')


def tuned_environment() -> dict[str, str]:
    """What makes plain images as quick as they get: a shared-memory segment that holds them, and an allocator that keeps its memory."""
    profile = str(fastdds_profile())
    return {
        'FASTRTPS_DEFAULT_PROFILES_FILE': profile,
        'FASTDDS_DEFAULT_PROFILES_FILE': profile,
        'MALLOC_MMAP_THRESHOLD_': str(1 << 30),
        'MALLOC_TRIM_THRESHOLD_': str(1 << 30),
        'MALLOC_TOP_PAD_': str(1 << 26),
    }


def plain_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """*environment* without tuning, on this host only, and on a ROS domain of its own unless one is set."""
    kept = {name: value for name, value in environment.items() if name not in _TUNING and not name.startswith(_TUNING_PREFIXES)}
    return {'ROS_DOMAIN_ID': '101', **kept, 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}


class Cases:
    """All processes of a run. Use as a context manager."""

    def __init__(self, variants: Sequence[str]) -> None:
        self._cases: dict[str, Case] = {}
        self._workers: list[Worker] = []
        self._environment = plain_environment()
        # Another benchmark may be running.
        self._prefix = f'/zc_bench/run_{os.getpid()}'
        self.facts: dict[str, Any] = {}
        try:
            # Nothing of a floor goes over the network, and what its context says there would be work for the others.
            alone = {**self._environment, 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'OFF'}
            bare = FloorCase(self._start(FLOOR_WORKER, 'floors', environment=alone, orderly=False))
            guard = FloorCase(self._start(FLOOR_WORKER, 'floor guard', environment=alone, orderly=False))
            self._cases = {name: guard if name == 'guard' else bare for name in FLOORS}
            for variant in variants:
                self._cases[variant] = self._open(variant)
            for case in self._cases.values():
                case.wait_until_matched()
            if variants:
                self.facts = self._workers[-1].ask(op='describe')
        except BaseException:
            self.close()
            raise

    def _start(
        self, module: str, *arguments: str, environment: Mapping[str, str], inherited: Sequence[int] = (), orderly: bool = True
    ) -> Worker:
        worker = Worker(module, arguments, environment, inherited, orderly=orderly)
        self._workers.append(worker)
        return worker

    def _open(self, variant: str) -> Case:
        topic = f'{self._prefix}/{variant}'
        if variant in PLAIN:
            return self._open_plain(topic, tuned_environment() if variant == 'rclpy_image_tuned' else {})
        roles = {'in_process_mailbox': 'local_mailbox', 'in_process_executor': 'local_executor', 'shared_memory': 'frames_out'}
        producer = self._start(WORKER, roles[variant], topic, environment=self._environment)
        if variant != 'shared_memory':
            return LinkCase(producer, producer)
        return LinkCase(producer, self._start(WORKER, 'frames_in', topic, environment=self._environment))

    def _open_plain(self, topic: str, tuning: Mapping[str, str]) -> Case:
        environment = {**self._environment, **tuning}
        # For answers when it is unthrottled; messages alone go over ROS.
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ends[0], ends[1]:
            producer, consumer = (
                self._start(WORKER, role, topic, str(end.fileno()), environment=environment, inherited=[end.fileno()])
                for role, end in zip(('images_out', 'images_in'), ends, strict=True)
            )
            return LinkCase(producer, consumer)

    def __getitem__(self, variant: str) -> Case:
        return self._cases[variant]

    def __enter__(self) -> Cases:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End them, all at once."""
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            worker.close()


@dataclass(frozen=True)
class LinkPlan:
    """What to measure. A plain message of 8K takes a tenth of a second, so that fewer of them go into a series.

    :param one_cpu: unthrottled, floors and links without copies run on one CPU. With one frame in flight nothing runs at the same time,
        and where the scheduler puts the two ends decides between 3 and 30 µs: the wake-up of an idle CPU, which isn't the link's. Plain
        messages always have all CPUs: their middleware copies in threads of its own.
    """

    sizes: Sequence[tuple[int, int]]
    rates_hz: Sequence[float]
    variants: Sequence[str]
    repetitions: int = 7
    seconds: float = 1.5
    frames_unthrottled: int = 300
    seed: int = 1
    one_cpu: bool = True

    def frames(self, variant: str, condition: Condition) -> int:
        """Frames of one series."""
        if condition.rate_hz:
            return max(20, round(self.seconds * condition.rate_hz))
        if variant in PLAIN:
            megabytes = condition.width * condition.height * 1.5e-6
            return min(self.frames_unthrottled, max(8, round(100 / megabytes)))
        return self.frames_unthrottled

    def steps(self, repetition: int) -> list[tuple[str, Condition]]:
        """Each case and condition once, in this repetition's order."""
        chance = random.Random(f'{self.seed} {repetition}')
        conditions = [Condition(*size, rate) for size in self.sizes for rate in self.rates_hz]
        chance.shuffle(conditions)
        order = []
        for condition in conditions:
            # Floor and case of one condition stay neighbours: what the machine does changes by the second.
            variants = [*self.variants, *FLOORS]
            chance.shuffle(variants)
            order += [(variant, condition) for variant in variants]
        return order


@dataclass(frozen=True)
class LinkResult:
    """What was measured, and what it depends on besides the machine."""

    book: SeriesBook
    facts: dict[str, Any]


def measure_links(plan: LinkPlan, say: Callable[[str], None]) -> LinkResult:
    """Run the plan.

    :param say: gets a line at the start and for each repetition.
    :raises BenchError: a process failed, or a link converted a frame.
    """
    book = SeriesBook()
    with Cases(plan.variants) as cases:
        say(f'measuring: {len(plan.steps(0))} series in each repetition')
        for repetition in range(plan.repetitions):
            began = time.monotonic()
            for variant, condition in plan.steps(repetition):
                with _on_cpus(cases[variant], plan.one_cpu and not condition.rate_hz and variant not in PLAIN):
                    series = cases[variant].measure(variant, condition, plan.frames(variant, condition))
                book.add('floor' if variant in FLOORS else 'link', variant, condition, series)
            say(f'repetition {repetition + 1} of {plan.repetitions}: {time.monotonic() - began:.0f} s')
        return LinkResult(book, {**cases.facts, 'unthrottled_cpus': 1 if plan.one_cpu else len(os.sched_getaffinity(0))})


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
