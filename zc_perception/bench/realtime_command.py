"""``zc_bench realtime``: its options and bars."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from zc_perception.bench.bars import FULL_HD, Bar, Key, Rows
from zc_perception.bench.command import Command, Measured, Say, check_counts
from zc_perception.bench.pipeline import RATE_HZ
from zc_perception.bench.realtime import ALL, P99_RATIO, VARIANTS, RealtimePlan, measure_realtime
from zc_perception.errors import ConfigError

_LOADED: Key = ('realtime_loaded', ALL, *FULL_HD, RATE_HZ)


def _p99_ratio(rows: Rows) -> float | None:
    row = rows.get(_LOADED)
    return None if row is None else row.figures.get(P99_RATIO)


REALTIME_BARS = (Bar('overloaded machine: p99 with all real-time knobs to p99 without', _p99_ratio, 0.7, '×', involved=(_LOADED,)),)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--variants', nargs='+', choices=VARIANTS, default=list(VARIANTS), help='none is always one (default: all)')
    parser.add_argument('--seconds', type=float, default=10.0, help='of each series (default: 10)')
    parser.add_argument('--delay-ms', type=float, default=2.0, help='how long the accelerator takes for a frame (default: 2)')


def _prepare(options: argparse.Namespace) -> Callable[[Say], Measured]:
    check_counts(options, seconds=3600)
    if not 0 <= options.delay_ms <= 60:
        raise ConfigError(f'--delay-ms {options.delay_ms:g}: give 0 to 60; two frames are in flight at 30 Hz')
    plan = RealtimePlan(options.repetitions, options.seconds, options.delay_ms, tuple(dict.fromkeys(options.variants)))

    def measure(say: Say) -> Measured:
        result = measure_realtime(plan, say)
        return Measured(result.rows, result.facts)

    return measure


REALTIME = Command(
    'realtime',
    'what the real-time knobs do to the slowest frames, idle and overloaded',
    _add_options,
    _prepare,
    REALTIME_BARS,
    ('rclpy', 'cv2'),
)
