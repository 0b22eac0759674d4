"""``zc_bench timeline``: where a frame's time goes, stage by stage, read from the nodes' own frame logs. No root, no rig.

Measured is one 1080p camera at 30 Hz as in ``zc_bench pipeline``, or, with ``--running``, the nodes of all programs that run already and
may be seen. Each row is a stage: the median, the 99th percentile, and its share of the way from captured to published. The trace holds
every frame, for ui.perfetto.dev.

The stages of one frame follow each other without overlap, so their sum is the whole way. They begin and end where a node's record has a
time. In the trace one more span, ``deliver``, overlaps with them: the camera's thread gives the frame to all consumers, and the first of
them works on it meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zc_perception.bench.output import check_apart, target, write
from zc_perception.bench.pipeline import RATE_HZ, PipelinePlan, Processes, Setup
from zc_perception.bench.rows import Condition, Row, Series, make_rows
from zc_perception.bench.subcommand import (
    FULL_HD,
    Command,
    Measured,
    Say,
    add_delay,
    check_counts,
    check_delay,
)
from zc_perception.bench.worker import BenchError
from zc_perception.errors import ConfigError
from zc_perception.observe.frame_log import CAPACITY, FrameLogReader, FrameRecord, find_frame_logs
from zc_perception.observe.timeline import NodeTrack, build_timeline

CASE = 'timeline'
WHOLE = 'whole'
#: Of one frame, in order: its name, and what it lies between.
STAGES = (
    ('capture', 'the camera has it → published'),
    ('link', 'published → taken by the inference node'),
    ('import', 'taken → the device has the job'),
    ('infer', 'the device has the job → its fence is seen'),
    ('queue', 'the fence is seen → its turn comes'),
    ('decode', 'its turn comes → the boxes are there'),
    ('publish', 'the boxes are there → detections are sent'),
)
_NO_CPU = float('nan')


@dataclass(frozen=True)
class TimelinePlan:
    """What to look at.

    :param seconds: how long.
    :param delay_ms: how long the benchmark's accelerator takes.
    :param running: processes whose nodes run already, instead of the benchmark's; empty: all.
    :param trace: where the trace goes.
    """

    seconds: float = 5.0
    delay_ms: float = 2.0
    running: Sequence[int] | None = None
    trace: Path = Path('build/bench/timeline.json')


def stages_us(record: FrameRecord) -> dict[str, float]:
    """How long each stage of one processed frame took. If the node doesn't know a time, that stage is 0 and the next one is longer."""
    times = [
        record.captured_ns, record.published_ns, record.received_ns, record.submitted_ns, record.signalled_ns, record.done_ns,
        record.decoded_ns, record.sent_ns,
    ]  # fmt: skip
    for number in range(1, len(times)):
        # A fence may be seen by a thread that is late to note that it was submitted.
        times[number] = max(times[number], times[number - 1])
    found = {
        name: (end - begin) / 1e3
        for (name, _), (begin, end) in zip(STAGES, itertools.pairwise(times), strict=True)
    }
    return {**found, WHOLE: (times[-1] - times[0]) / 1e3}


def rows_of(records: Sequence[FrameRecord], condition: Condition) -> list[Row]:
    """A row for each stage, in their order, and for the whole way.

    :raises BenchError: fewer than two of the frames were processed.
    """
    stages = [stages_us(record) for record in records if record.sent_ns and record.captured_ns]
    if len(stages) < 2:
        raise BenchError(
            'fewer than two frames were captured and processed by the same machine in that time'
        )
    series = {name: Series([frame[name] for frame in stages], _NO_CPU) for name in stages[0]}
    whole = series[WHOLE].median_us
    found = []
    for name, one in series.items():
        share = {'share_percent': 100.0 * one.median_us / whole} if whole else {}
        found += make_rows(
            {(CASE, name, condition): [Series(one.latencies_us, _NO_CPU, 0, share)]}, []
        )
    return found


def _tracks(logs: Sequence[FrameLogReader], run: Callable[[], object]) -> list[NodeTrack]:
    """What they write while *run* does."""
    for log in logs:
        log.skip()
    run()
    return [NodeTrack(log.node, log.role, log.pid, log.read()) for log in logs]


def measure_timeline(plan: TimelinePlan, say: Say) -> tuple[Measured, dict[str, Any]]:
    """Run the plan: what was measured, and the trace. Nothing is written.

    :param say: gets a line.
    :raises BenchError: there is nothing to see, or a process failed.
    """
    if plan.running is not None:
        with find_frame_logs(pids=plan.running or None) as logs:
            for hidden in logs.unreadable:
                say(f'not seen: {hidden.name} ({hidden.pid}): {hidden.reason}; {hidden.next_step}')
            if not {'capture', 'inference'} <= {log.role for log in logs}:
                raise BenchError(
                    'none of these programs runs a capture and an inference node; start one, or leave out --running'
                )
            say(f'looking at {", ".join(sorted(log.node for log in logs))} for {plan.seconds:g} s')
            tracks = _tracks(logs, lambda: time.sleep(plan.seconds))
            condition = _condition([log.facts() for log in logs])
        return _result(tracks, condition, {})
    setup = Setup(1, FULL_HD, RATE_HZ)
    with contextlib.closing(
        Processes(PipelinePlan(1, plan.seconds, plan.delay_ms, (setup,)))
    ) as processes:
        processes.measure(setup, min(1.0, plan.seconds), 0.0)
        with find_frame_logs() as logs:
            own = [log for log in logs if log.node.startswith(f'/zc_bench/run_{os.getpid()}/')]
            say(f'one camera of 1080p at {RATE_HZ:g} Hz for {plan.seconds:g} s')
            tracks = _tracks(own, lambda: processes.measure(setup, plan.seconds, 0.0))
        return _result(tracks, setup.condition, processes.facts)


def _condition(facts: Sequence[dict[str, Any]]) -> Condition:
    """Of the largest picture; several cameras' frames are in one row."""
    sizes = [(int(fact['width']), int(fact['height'])) for fact in facts if fact.get('width')]
    return Condition(*max(sizes, default=(1, 1)), 0.0)


def _result(
    tracks: Sequence[NodeTrack], condition: Condition, facts: dict[str, Any]
) -> tuple[Measured, dict[str, Any]]:
    records = [record for track in tracks if track.role == 'inference' for record in track.records]
    return Measured(
        rows_of(records, condition), {**facts, 'frames': len(records)}
    ), build_timeline(tracks)


def _add_options(parser: argparse.ArgumentParser) -> None:
    plan = TimelinePlan()
    parser.add_argument('--seconds', type=float, default=plan.seconds, help='(default: 5)')
    add_delay(parser)
    parser.add_argument(
        '--running',
        nargs='*',
        type=int,
        metavar='PID',
        help='nodes that run already; no PID: all that may be seen',
    )
    parser.add_argument(
        '--trace',
        metavar='FILE',
        default=str(plan.trace),
        help='for ui.perfetto.dev (default: build/bench/timeline.json)',
    )
    parser.set_defaults(repetitions=1)


def _prepare(options: argparse.Namespace) -> Callable[[Say], Measured]:
    if options.check:
        raise ConfigError(
            '--check: timeline has no bars of its own; zc_bench pipeline --check compares what a frame costs'
        )
    # A frame log has so many frames; a second of them is for what looks at it.
    check_counts(options, seconds=CAPACITY / RATE_HZ - 1)
    check_delay(options.delay_ms, RATE_HZ)
    running = None if options.running is None else tuple(options.running)
    check_apart({'--trace': options.trace, '--json': options.json})
    plan = TimelinePlan(
        options.seconds, options.delay_ms, running, target(options.trace, '--trace')
    )

    def measure(say: Say) -> Measured:
        measured, trace = measure_timeline(plan, say)
        write(plan.trace, json.dumps(trace), '--trace')
        say(f'{plan.trace} (open it in ui.perfetto.dev)')
        return measured

    return measure


TIMELINE = Command(
    'timeline',
    "where a frame's time goes: medians of the stages, and a trace",
    _add_options,
    _prepare,
    (),
)
