"""``zc_bench link``: what handing over a frame costs, beside its floors and what one would use instead, in the same run.

Every repetition measures every case at every size and rate, in an order of its own, so that what the machine does meanwhile hits all of
them. The floors are those of ``floor.py``: a bare descriptor loop over a Unix socket, a bare ``SimpleQueue``, a bare guard condition.

For all of them the clock starts when the pixels are in a buffer of the producer's and stamped, and stops when the consumer has a view of
all of them. How each peer is set up is told in ``link_peers/``, plain messages in :func:`~.link_environment.tuned_environment`. The case
``link_read`` is the same with a consumer that reads every pixel first, which most consumers do: what remains of a ratio then.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import socket
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zc_perception.bench.environment import plain_environment, tuned_environment
from zc_perception.bench.link_cases import Case, FloorCase, LinkCase
from zc_perception.bench.link_peers.processes import PEERS, Peers
from zc_perception.bench.link_peers.processes import VARIANTS as PEER_VARIANTS
from zc_perception.bench.rows import Condition, Rounds, Row, SeriesBook, make_rows
from zc_perception.bench.subcommand import FULL_HD, UHD_4K, UHD_8K, VGA, Bar, Command, Key, Measured, Rows, Say, check_counts
from zc_perception.bench.worker import Worker
from zc_perception.errors import ConfigError

WORKER = 'zc_perception.bench.link_worker'
FLOOR_WORKER = 'zc_perception.bench.bare_worker'
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
    """Owns all processes of a run: those of the floors, of the links, of plain messages, and of the peers. Use it as a context manager."""

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


UNTHROTTLED = 0.0
_BAR_SIZES = {'VGA': VGA, '1080p': FULL_HD, '4K': UHD_4K, '8K': UHD_8K}
# What copies a camera's frame at least once.
COPYING_PEERS = ('zenoh_shared_memory', 'cyclonedds', 'iceoryx2_copy')
IN_PLACE = 'iceoryx2_in_place'
SHARED_MEMORY = 'link/shared_memory'
_GROWING = ('shared_memory', 'in_process_mailbox', 'in_process_executor')


def _key(variant: str, rate_hz: float) -> Key:
    return 'link', variant, *FULL_HD, rate_hz


def _ratio(variant: str, rate_hz: float, reference: str) -> Callable[[Rows], float | None]:
    def figure(rows: Rows) -> float | None:
        row = rows.get(_key(variant, rate_hz))
        return None if row is None else row.ratio_to.get(reference)

    return figure


def _added(variant: str, rate_hz: float, reference: str) -> Callable[[Rows], float | None]:
    def figure(rows: Rows) -> float | None:
        row = rows.get(_key(variant, rate_hz))
        return None if row is None else row.added_us.get(reference)

    return figure


def _growth(variant: str) -> Callable[[Rows], float | None]:
    """A frame of 54 times the pixels."""

    def figure(rows: Rows) -> float | None:
        small, large = (rows.get(('link', variant, *size, UNTHROTTLED)) for size in (VGA, UHD_8K))
        if small is None or large is None or not small.median_us or large.median_us is None:
            return None
        return large.median_us / small.median_us

    return figure


def _speed(rate_hz: float, tuned: float, default: float) -> list[Bar]:
    when = f'at {rate_hz:g} Hz' if rate_hz else 'unthrottled'
    return [
        Bar(
            f'1080p {when}: shared_memory below {name} rclpy Image, times',
            _ratio(f'rclpy_image_{name}', rate_hz, 'link/shared_memory'),
            times,
            '×',
            at_least=True,
            involved=(_key(f'rclpy_image_{name}', rate_hz), _key('shared_memory', rate_hz)),
        )
        for name, times in (('tuned', tuned), ('default', default))
    ]


def _floor(variant: str, floor: str, rate_hz: float, *, added_us: float = 0.0, times: float = 0.0) -> Bar:
    when = f'at {rate_hz:g} Hz' if rate_hz else 'unthrottled'
    involved = (_key(variant, rate_hz),)
    if added_us:
        text = f'1080p {when}: {variant} above the floor {floor}'
        return Bar(text, _added(variant, rate_hz, f'floor/{floor}'), added_us, ' µs', involved=involved)
    return Bar(f'1080p {when}: {variant} to the floor {floor}', _ratio(variant, rate_hz, f'floor/{floor}'), times, '×', involved=involved)


def _below_peer(peer: str, size: str) -> Bar:
    key: Key = ('link', peer, *_BAR_SIZES[size], UNTHROTTLED)

    def figure(rows: Rows) -> float | None:
        row = rows.get(key)
        return None if row is None else row.ratio_to.get(SHARED_MEMORY)

    involved = (key, ('link', 'shared_memory', *_BAR_SIZES[size], UNTHROTTLED))
    return Bar(f'{size} unthrottled: shared_memory below {peer}, times', figure, 5, '×', at_least=True, involved=involved)


def _above_in_place(size: str) -> Bar:
    key: Key = ('link', IN_PLACE, *_BAR_SIZES[size], UNTHROTTLED)

    def figure(rows: Rows) -> float | None:
        row = rows.get(key)
        return None if row is None or SHARED_MEMORY not in row.added_us else -row.added_us[SHARED_MEMORY]

    return Bar(f'{size} unthrottled: shared_memory above {IN_PLACE}', figure, 25, ' µs', involved=(key,))


def _cpu_below(plain: str) -> Bar:
    key = _key(plain, UNTHROTTLED)

    def figure(rows: Rows) -> float | None:
        row = rows.get(key)
        return None if row is None else row.cpu_ratio_to.get(SHARED_MEMORY)

    return Bar(f'1080p unthrottled: CPU per frame of shared_memory below {plain}, times', figure, 50, '×', at_least=True, involved=(key,))


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
            involved=(('link', variant, *VGA, UNTHROTTLED), ('link', variant, *UHD_8K, UNTHROTTLED)),
        )
        for variant in _GROWING
    ),
    *(_below_peer(peer, size) for peer in COPYING_PEERS for size in _BAR_SIZES),
    *(_above_in_place(size) for size in _BAR_SIZES),
    *(_cpu_below(plain) for plain in ('rclpy_image_tuned', 'rclpy_image_default')),
)  # fmt: skip


SIZES = {'vga': VGA, '1080p': FULL_HD, '4k': UHD_4K, '8k': UHD_8K}


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--sizes', nargs='+', choices=SIZES, default=list(SIZES), help='picture sizes (default: all)')
    parser.add_argument('--rates', nargs='+', type=float, default=[30.0, 0.0], metavar='HZ', help='0: unthrottled (default: 30 0)')
    every = [*LINKS, *PLAIN, *PEERS]
    parser.add_argument('--variants', nargs='+', choices=every, default=every, metavar='NAME', help=f'of {", ".join(every)} (default: all)')
    parser.add_argument(
        '--read', nargs='+', choices=(*SIZES, 'none'), default=['1080p'],
        help='of the sizes, those at which links and their best rivals are measured with a consumer that reads every pixel too; '
        'unthrottled (default: 1080p)',
    )  # fmt: skip
    parser.add_argument('--seconds', type=float, default=1.5, help='of each series at a rate; at least 20 frames (default: 1.5)')
    parser.add_argument('--frames', type=int, default=300, help='of each unthrottled series; fewer of large messages (default: 300)')
    parser.add_argument('--all-cpus', action='store_true', help='do not keep unthrottled series without copies on one CPU')


def _plan(options: argparse.Namespace) -> LinkPlan:
    """
    :raises ConfigError: a number that makes no sense.
    """
    check_counts(options, seconds=3600, frames=1_000_000)
    for rate in options.rates:
        # A worker is silent during a series.
        if not (rate == 0 or 0.1 <= rate <= 1000):
            raise ConfigError(f'--rates {rate:g}: each is 0 (unthrottled) or 0.1 to 1000 Hz')
    return LinkPlan(
        [SIZES[size] for size in dict.fromkeys(options.sizes)],
        [abs(rate) for rate in dict.fromkeys(options.rates)],
        list(dict.fromkeys(options.variants)),
        options.repetitions,
        options.seconds,
        options.frames,
        [SIZES[size] for size in options.read if size != 'none'],
        one_cpu=not options.all_cpus,
    )


def _measure(plan: LinkPlan, say: Say) -> Measured:
    result = measure_links(plan, say)
    return Measured(link_rows(result.book.rounds()), result.facts)


LINK = Command(
    'link',
    'what handing over a frame costs',
    _add_options,
    lambda options: functools.partial(_measure, _plan(options)),
    LINK_BARS,
    ('rclpy', 'cv2'),
)
