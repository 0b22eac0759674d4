"""``zc_bench realtime``: what the real-time knobs of the nodes do to the slowest frames, on a machine at rest and an overloaded one.

One 1080p camera at 30 Hz, its nodes in a process of their own as in ``zc_bench pipeline``; each variant is such a process with other
parameters. Overloaded means one busy process more than there are CPUs, at ordinary priority, for as long as the series take.

A latency begins when the frame was due, as a driver's time stamp does, so that a camera thread that wakes up late counts; it ends when the
detections have been published, and is given without the accelerator's own time. Each repetition measures every variant in both states in
an order of its own; a variant is compared to ``none`` in the same repetition and state.

What the system refuses is not measured: such a variant is absent, with the node's own warning as the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zc_perception.bench.pipeline import RATE_HZ, PipelinePlan, Processes, Setup
from zc_perception.bench.rows import Measuring, Series, make_rows
from zc_perception.bench.subcommand import (
    FULL_HD,
    Bar,
    Command,
    Key,
    Measured,
    Say,
    add_delay,
    check_counts,
    check_delay,
    figure_of,
    repetitions,
)  # fmt: skip
from zc_perception.bench.worker import BenchError, Worker

BUSY_WORKER = 'zc_perception.bench.bare_worker'
NONE, ALL = 'none', 'all'
VARIANTS = (NONE, 'gc_freeze', 'lock_memory', 'cpu_affinity', 'realtime_priority', ALL)
STATES = ('idle', 'loaded')
PRIORITY = 50
P99_RATIO = 'p99_times_none'
P50_RATIO = 'p50_times_none'
_REST_S = 1.0


def knobs(cpus: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Variants and the nodes' parameters; of *cpus*, those that the process may use, the last one is the hot path's: interrupts and most
    of the system's own work gather on the first."""
    single: dict[str, dict[str, Any]] = {
        'gc_freeze': {'gc_freeze': True},
        'lock_memory': {'lock_memory': True},
        'cpu_affinity': {'cpu_affinity': [str(cpus[-1])]},
        'realtime_priority': {'realtime_priority': PRIORITY},
    }
    together = {name: value for values in single.values() for name, value in values.items()}
    return dict(zip(VARIANTS, ({}, *single.values(), together), strict=True))


@dataclass(frozen=True)
class RealtimePlan:
    """What to measure.

    :param seconds: of each series.
    :param delay_ms: how long the accelerator takes.
    :param variants: of :data:`VARIANTS`, next to ``none``, which all are compared to.
    """

    repetitions: int = 7
    seconds: float = 10.0
    delay_ms: float = 2.0
    variants: Sequence[str] = VARIANTS


@contextlib.contextmanager
def busy_machine(processes: int) -> Iterator[None]:
    """While it lasts, so many processes do nothing but compute.

    :raises BenchError: one doesn't start.
    """
    with contextlib.ExitStack() as ending:
        workers = []
        for _ in range(processes):
            worker = Worker(BUSY_WORKER, ['busy'], os.environ)
            ending.callback(worker.close)
            workers.append(worker)
        for worker in workers:
            worker.receive()
        # All at once; closing them then only reaps.
        ending.callback(lambda: [worker.end() for worker in workers])
        yield


def beside_none(series: Mapping[str, Series]) -> dict[str, Series]:
    """A round's series, by variants, each with its median and p99 as multiples of the one without any knob."""
    none = series[NONE]

    def figures(own: Series) -> dict[str, float]:
        pairs = {P50_RATIO: (own.median_us, none.median_us), P99_RATIO: (own.p99_us, none.p99_us)}
        return {
            name: mine / other
            for name, (mine, other) in pairs.items()
            if other and math.isfinite(mine / other)
        }

    return {
        variant: one if variant == NONE else replace(one, figures={**one.figures, **figures(one)})
        for variant, one in series.items()
    }


def measure_realtime(plan: RealtimePlan, say: Say) -> Measured:
    """Run the plan.

    :raises BenchError: a process failed, or measured something else.
    """
    cpus = sorted(os.sched_getaffinity(0))
    setups = {
        name: Setup(1, FULL_HD, RATE_HZ, json.dumps(values))
        for name, values in knobs(cpus).items()
        if name in {NONE, *plan.variants}
    }
    rounds = Measuring(list)
    pipelines = PipelinePlan(
        plan.repetitions, plan.seconds, plan.delay_ms, tuple(setups.values()), confined=False
    )
    with contextlib.closing(Processes(pipelines)) as processes:
        absent = {
            name: reason for name, setup in setups.items() if (reason := processes.refused(setup))
        }
        for name, reason in absent.items():
            say(f'absent: {name}: {reason}')
            del setups[name]
        if NONE in absent:
            raise BenchError(f'the system refuses what nobody asked for: {absent[NONE]}')
        say(f'measuring: {len(setups)} variants, idle and loaded, in each repetition')
        for setup in setups.values():
            processes.measure(setup, min(1.0, plan.seconds), 0.0)
        for repetition in repetitions(plan.repetitions, say):
            shuffled = random.Random(repetition)
            for state in shuffled.sample(STATES, len(STATES)):
                with (
                    busy_machine(len(cpus) + 1) if state == 'loaded' else contextlib.nullcontext()
                ):
                    order = shuffled.sample(list(setups), len(setups))
                    found = {
                        name: processes.measure(
                            setups[name], plan.seconds, min(_REST_S, plan.seconds)
                        )
                        for name in order
                    }
                for name, series in beside_none(found).items():
                    rounds[f'realtime_{state}', name, setups[name].condition].append(series)
        facts = {**processes.facts, 'busy_processes': len(cpus) + 1, 'absent': absent}
    rows = []
    for state in STATES:
        case = f'realtime_{state}'
        rows += make_rows(
            {key: series for key, series in rounds.items() if key[0] == case}, [(case, NONE)]
        )
    return Measured(rows, facts)


_LOADED: Key = ('realtime_loaded', ALL, *FULL_HD, RATE_HZ)


REALTIME_BARS = (
    Bar(
        'overloaded machine: p99 with all real-time knobs to p99 without',
        figure_of(_LOADED, lambda row: row.figures.get(P99_RATIO)),
        0.7,
        '×',
        involved=(_LOADED,),
    ),
)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--variants',
        nargs='+',
        choices=VARIANTS,
        default=list(VARIANTS),
        help='none is always one (default: all)',
    )
    parser.add_argument('--seconds', type=float, default=10.0, help='of each series (default: 10)')
    add_delay(parser)


def _prepare(options: argparse.Namespace) -> Callable[[Say], Measured]:
    check_counts(options, seconds=3600)
    check_delay(options.delay_ms, RATE_HZ)
    plan = RealtimePlan(
        options.repetitions,
        options.seconds,
        options.delay_ms,
        tuple(dict.fromkeys(options.variants)),
    )
    return lambda say: measure_realtime(plan, say)


REALTIME = Command(
    'realtime',
    'what the real-time knobs do to the slowest frames, idle and overloaded',
    _add_options,
    _prepare,
    REALTIME_BARS,
    ('rclpy', 'cv2'),
)
