"""``zc_bench timeline``: its options."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zc_perception.bench.command import Command, Measured, Say, check_counts
from zc_perception.bench.pipeline import RATE_HZ
from zc_perception.bench.targets import check_apart, target, write
from zc_perception.bench.timeline import TimelinePlan, measure_timeline
from zc_perception.errors import ConfigError
from zc_perception.observe.frame_log_layout import CAPACITY


def _add_options(parser: argparse.ArgumentParser) -> None:
    plan = TimelinePlan()
    parser.add_argument('--seconds', type=float, default=plan.seconds, help='(default: 5)')
    parser.add_argument('--delay-ms', type=float, default=plan.delay_ms, help="how long the benchmark's accelerator takes (default: 2)")
    parser.add_argument('--running', nargs='*', type=int, metavar='PID', help='nodes that run already; no PID: all that may be seen')
    parser.add_argument('--trace', metavar='FILE', default=str(plan.trace), help='for ui.perfetto.dev (default: build/bench/timeline.json)')
    parser.add_argument('--picture', metavar='FILE', default=str(plan.picture), help='a PNG (default: build/bench/timeline.png)')
    parser.add_argument('--frames', type=int, default=1, help='successive frames that the picture shows (default: 1)')
    parser.set_defaults(repetitions=1)


def _prepare(options: argparse.Namespace) -> Callable[[Say], Measured]:
    if options.check:
        raise ConfigError('--check: timeline has no bars of its own; zc_bench pipeline --check compares what a frame costs')
    # A frame log has so many frames; a second of them is for what looks at it.
    check_counts(options, seconds=CAPACITY / RATE_HZ - 1, frames=20)
    if not 0 <= options.delay_ms <= 60:
        raise ConfigError(f'--delay-ms {options.delay_ms:g}: give 0 to 60; two frames are in flight at 30 Hz')
    running = None if options.running is None else tuple(options.running)
    check_apart({'--trace': options.trace, '--picture': options.picture, '--json': options.json})
    trace, picture = target(options.trace, '--trace'), target(options.picture, '--picture')
    plan = TimelinePlan(options.seconds, options.delay_ms, running, trace, picture)

    def measure(say: Say) -> Measured:
        result = measure_timeline(plan, say)
        write(plan.trace, json.dumps(result.trace), '--trace')
        drawn = _draw(result.trace, plan.picture, options.frames)
        say(f'{plan.trace} (open it in ui.perfetto.dev){drawn}')
        return Measured(result.rows, result.facts)

    return measure


def _draw(trace: dict[str, Any], path: Path, frames: int) -> str:
    # OpenCV is needed for nothing else here.
    try:
        from zc_perception.observe.timeline_picture import draw_timeline
    except ImportError as error:
        return f'; no picture without OpenCV: {error}'
    try:
        draw_timeline(trace, path, frames=frames)
    except (OSError, ValueError) as error:
        return f'; no picture: {error}'
    return f', {path}'


TIMELINE = Command('timeline', "where a frame's time goes: medians of the stages, a trace and a picture", _add_options, _prepare, ())
