"""``zc_bench link``: what handing over a frame costs, beside its floors and what one would use instead, in the same run.

Every repetition measures every case at every size and rate, in an order of its own, so that what the machine does meanwhile hits all of
them. The floors are those of ``floor.py``: a bare descriptor loop over a Unix socket, a bare ``SimpleQueue``, a bare guard condition.

For all of them the clock starts when the pixels are in a buffer of the producer's and stamped, and stops when the consumer has a view of
all of them. How each peer is set up is told in ``link_peers/``, plain messages in :func:`~.link_environment.tuned_environment`. The case
``link_read`` is the same with a consumer that reads every pixel first, which most consumers do: what remains of a ratio then.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import socket
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zc_perception.bench.link_cases import Case, FloorCase, LinkCase
from zc_perception.bench.link_environment import plain_environment, tuned_environment
from zc_perception.bench.link_peers.peers import Peers
from zc_perception.bench.link_peers.variants import PEERS
from zc_perception.bench.link_peers.variants import VARIANTS as PEER_VARIANTS
from zc_perception.bench.rows import Condition, Rounds, Row, SeriesBook, make_rows
from zc_perception.bench.worker import Worker

WORKER = 'zc_perception.bench.link_worker'
FLOOR_WORKER = 'zc_perception.bench.floor_worker'
FLOORS = ('fd_socket', 'simple_queue', 'guard')
LINKS = ('in_process_mailbox', 'in_process_executor', 'shared_memory')
PLAIN = ('rclpy_image_default', 'rclpy_image_tuned')
READ = 'link_read'
# With a consumer that reads every pixel: ours, and of what one would use instead the best of its kind.
READERS = ('in_process_mailbox', 'shared_memory', 'iceoryx2_in_place', 'iceoryx2_copy', 'zenoh_shared_memory', 'rclpy_image_tuned')
REFERENCES = [('floor', name) for name in FLOORS] + [('link', name) for name in (*PLAIN, 'shared_memory')]
READ_REFERENCES = [*REFERENCES[: len(FLOORS)], (READ, 'shared_memory')]
# Each copies every pixel, so that fewer of them make a series.
_COPYING = (*PLAIN, 'zenoh', 'zenoh_shared_memory', 'cyclonedds')
# Nothing of them runs at the same time.
_ONE_CPU = (*FLOORS, *LINKS, *(name for name, variant in PEER_VARIANTS.items() if variant.one_cpu))


class Cases:
    """All processes of a run. Use as a context manager."""

    def __init__(self, variants: Sequence[str], say: Callable[[str], None]) -> None:
        self._cases: dict[str, Case] = {}
        self._peers = Peers(say)
        self._workers: list[Worker] = []
        self._environment = plain_environment()
        # Another benchmark may be running.
        self._prefix = f'/zc_bench/run_{os.getpid()}'
        self.facts: dict[str, Any] = {}
        try:
            # Nothing of a floor goes over the network, and what its context says there would be work for the others.
            alone = {**self._environment, 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'OFF'}
            bare, guard = (
                FloorCase(functools.partial(self._start, FLOOR_WORKER, name, environment=alone, orderly=False), say)
                for name in ('floors', 'floor guard')
            )
            self._cases = {name: guard if name == 'guard' else bare for name in FLOORS}
            for variant in variants:
                if variant not in PEERS:
                    self._cases[variant] = self._open(variant)
            for case in self._cases.values():
                case.wait_until_matched()
            if set(variants) - set(PEERS):
                self.facts = self._workers[-1].ask(op='describe')
            self._cases |= self._peers.open([variant for variant in variants if variant in PEERS])
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

    @property
    def absent(self) -> dict[str, str]:
        """Peers that can't be measured, and why."""
        return self._peers.absent

    @property
    def stalled(self) -> dict[str, str]:
        """Peers of which a series failed: of how many, and why the last one did."""
        return self._peers.stalled

    def close(self) -> None:
        """End them, all at once."""
        self._peers.end()
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            worker.close()
        self._peers.close()


@dataclass(frozen=True)
class LinkPlan:
    """What to measure. A plain message of 8K takes a tenth of a second, so that fewer of them go into a series.

    :param read_sizes: unthrottled, at these sizes, :data:`READERS` are measured with a consumer that reads every pixel too.
    :param one_cpu: unthrottled, floors, links without copies and peers that are quickest so run on one CPU. With one frame in flight
        nothing runs at the same time, and where the scheduler puts the two ends decides between 3 and 30 µs: the wake-up of an idle CPU,
        which isn't the link's. What has threads of its own that copy always has all CPUs.
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

    def frames(self, variant: str, condition: Condition) -> int:
        """Frames of one series."""
        if condition.rate_hz:
            return max(20, round(self.seconds * condition.rate_hz))
        if variant in _COPYING:
            megabytes = condition.width * condition.height * 1.5e-6
            return min(self.frames_unthrottled, max(8, round(100 / megabytes)))
        return self.frames_unthrottled

    def steps(self, repetition: int, absent: Container[str] = ()) -> list[tuple[str, str, Condition]]:
        """Case, variant and condition: each once, in this repetition's order."""
        chance = random.Random(f'{self.seed} {repetition}')
        conditions = [Condition(*size, rate) for size in self.sizes for rate in self.rates_hz]
        chance.shuffle(conditions)
        order = []
        for condition in conditions:
            # Floor and case of one condition stay neighbours: what the machine does changes by the second.
            steps = [('link', variant) for variant in self.variants] + [('floor', name) for name in FLOORS]
            if not condition.rate_hz and (condition.width, condition.height) in self.read_sizes:
                steps += [(READ, variant) for variant in READERS if variant in self.variants]
            chance.shuffle(steps)
            order += [(case, variant, condition) for case, variant in steps if variant not in absent]
        return order


@dataclass(frozen=True)
class LinkResult:
    """What was measured, and what it depends on besides the machine."""

    book: SeriesBook
    facts: dict[str, Any]


def link_rows(rounds: Rounds) -> list[Row]:
    """All of a run, those with a consumer that reads every pixel compared to each other."""
    read = {key: series for key, series in rounds.items() if key[0] in ('floor', READ)}
    others = {key: series for key, series in rounds.items() if key[0] != READ}
    return make_rows(others, REFERENCES) + [row for row in make_rows(read, READ_REFERENCES) if row.case == READ]


def measure_links(plan: LinkPlan, say: Callable[[str], None]) -> LinkResult:
    """Run the plan.

    :param say: gets a line for each peer that is absent, at the start, for each series of a peer that failed, and for each repetition.
    :raises BenchError: a process that isn't a peer's failed, a link converted a frame, or a frame was torn.
    """
    book = SeriesBook()
    with Cases(plan.variants, say) as cases:
        say(f'measuring: {len(plan.steps(0, cases.absent))} series in each repetition')
        for repetition in range(plan.repetitions):
            began = time.monotonic()
            for case, variant, condition in plan.steps(repetition, cases.absent):
                with _on_cpus(cases[variant], plan.one_cpu and not condition.rate_hz and variant in _ONE_CPU):
                    series = cases[variant].measure(variant, condition, plan.frames(variant, condition), read=case == READ)
                book.add(case, variant, condition, series)
            say(f'repetition {repetition + 1} of {plan.repetitions}: {time.monotonic() - began:.0f} s')
        facts = {**cases.facts, 'unthrottled_cpus': 1 if plan.one_cpu else len(os.sched_getaffinity(0))}
        for name, found in (('absent', cases.absent), ('stalled', cases.stalled)):
            if found:
                facts[name] = dict(found)
        return LinkResult(book, facts)


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
