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
``zc_bench timeline``: how long each stage of a frame takes, from the nodes' frame logs.

It needs neither root nor the rig. It measures one 1080p camera at 30 Hz as ``zc_bench pipeline``
does; the installed program ``zc_timeline`` does the same for nodes that already run. Each row is a
stage: its median, its 99th percentile, and its share of the time from captured to published. The
trace holds every frame, for ui.perfetto.dev.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
import contextlib
from dataclasses import dataclass
import json
import os
from pathlib import Path
from typing import Any

from bench.pipeline import PipelinePlan, Processes, RATE_HZ, Setup
from bench.rows import Condition, make_rows, Row, Series
from bench.subcommand import add_delay, check_counts, check_delay, Command, FULL_HD, Measured, Say
from bench.worker import BenchError

from zc_perception.errors import ConfigError
from zc_perception.observe.frame_log import CAPACITY, find_frame_logs, FrameRecord
from zc_perception.observe.timeline import build_timeline, is_whole, NodeTrack, stages_us, WHOLE
from zc_perception.whole_file import output_file, write_output

CASE = 'timeline'
_NO_CPU = float('nan')


@dataclass(frozen=True)
class TimelinePlan:
    """
    The settings of a measurement.

    :param seconds: how long it takes.
    :param delay_ms: how long the benchmark's accelerator takes.
    :param trace: the trace's file.
    """

    seconds: float = 5.0
    delay_ms: float = 2.0
    trace: Path = Path('build/bench/timeline.json')


def rows_of(records: Sequence[FrameRecord], condition: Condition) -> list[Row]:
    """
    Return a row for each stage, in order, and one from captured to published.

    :raises BenchError: fewer than two frames have all stages.
    """
    stages = [stages_us(record) for record in records if is_whole(record)]
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


def measure_timeline(plan: TimelinePlan, say: Say) -> tuple[Measured, dict[str, Any]]:
    """
    Measure one camera; return the rows and the trace, without writing a file.

    :raises BenchError: fewer than two frames were processed, or a process failed.
    """
    setup = Setup(1, FULL_HD, RATE_HZ)
    with contextlib.closing(
        Processes(PipelinePlan(1, plan.seconds, plan.delay_ms, (setup,)))
    ) as processes:
        processes.measure(setup, min(1.0, plan.seconds), 0.0)
        with find_frame_logs() as logs:
            own = [log for log in logs if log.node.startswith(f'/zc_bench/run_{os.getpid()}/')]
            say(f'one camera of 1080p at {RATE_HZ:g} Hz for {plan.seconds:g} s')
            for log in own:
                log.skip()
            processes.measure(setup, plan.seconds, 0.0)
            tracks = [NodeTrack(log.node, log.role, log.pid, log.read()) for log in own]
        records = [
            record for track in tracks if track.role == 'inference' for record in track.records
        ]
        facts = {**processes.facts, 'frames': len(records)}
        return Measured(rows_of(records, setup.condition), facts), build_timeline(tracks)


def _add_options(parser: argparse.ArgumentParser) -> None:
    plan = TimelinePlan()
    parser.add_argument(
        '--seconds', type=float, default=plan.seconds, help='how long to measure (default: 5)'
    )
    add_delay(parser)
    parser.add_argument(
        '--trace',
        metavar='FILE',
        default=str(plan.trace),
        help='where to write the trace, for ui.perfetto.dev (default: build/bench/timeline.json)',
    )
    parser.set_defaults(repetitions=1)


def _prepare(options: argparse.Namespace) -> Callable[[Say], Measured]:
    if options.check:
        raise ConfigError(
            '--check: timeline has no bars of its own; zc_bench pipeline --check compares what '
            'a frame costs'
        )
    # A frame log holds CAPACITY frames; one second of them is kept for the time until it is read.
    check_counts(options, seconds=int(CAPACITY / RATE_HZ - 1))
    check_delay(options.delay_ms, RATE_HZ)
    trace = output_file(options.trace, '--trace')
    if options.json and Path(options.json).resolve() == trace.resolve() != Path(os.devnull):
        raise ConfigError(
            f"--json and --trace (or its default) are both '{trace}'; give each a file of its own"
        )
    plan = TimelinePlan(options.seconds, options.delay_ms, trace)

    def measure(say: Say) -> Measured:
        measured, trace = measure_timeline(plan, say)
        write_output(plan.trace, json.dumps(trace), '--trace')
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
