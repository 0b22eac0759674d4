"""``zc_bench scale``: its options and bars."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from zc_perception.bench.bars import FULL_HD, UHD_4K, UHD_8K, VGA, Bar, Key, Rows
from zc_perception.bench.command import Command, Measured, Say, check_counts
from zc_perception.bench.scale import CASE, ScalePlan, measure_scale, variant
from zc_perception.errors import ConfigError

SIZES = {'vga': VGA, '1080p': FULL_HD, '4k': UHD_4K, '8k': UHD_8K}
_MOST_CAMERAS = 256
_MOST_DEPTH = 4
_SIXTEEN: Key = (CASE, variant(16), *FULL_HD, 30.0)
_SECONDS = 10.0


def _lost(rows: Rows) -> float | None:
    row = rows.get(_SIXTEEN)
    return None if row is None or row.figures.get('window_s', 0.0) < _SECONDS else row.lost_per_cent


SCALE_BARS = (Bar('16 cameras of 1080p at 30 Hz in one process on 2 CPUs for 10 s: lost frames', _lost, 0, ' %', involved=(_SIXTEEN,)),)


def _add_options(parser: argparse.ArgumentParser) -> None:
    defaults = ScalePlan()
    parser.add_argument(
        '--cameras', nargs='+', type=int, default=list(defaults.cameras), metavar='N', help='numbers to try (default: 1 … 64)'
    )
    parser.add_argument('--sizes', nargs='+', choices=SIZES, default=['1080p'], help='picture sizes (default: 1080p)')
    parser.add_argument('--rates', nargs='+', type=float, default=list(defaults.rates), metavar='HZ', help='of each camera (default: 30)')
    parser.add_argument('--seconds', type=float, default=defaults.seconds, help='in which nothing may be lost (default: 10)')
    parser.add_argument('--delay-ms', type=float, default=defaults.delay_ms, help='how long the accelerator takes for a frame (default: 2)')
    parser.add_argument('--in-step', action='store_true', help='all cameras have their frames at the same moment, as triggered ones do')
    parser.add_argument('--depth', type=int, default=defaults.depth, help='frames of a camera that may wait (default: 2; perception: 1)')
    # Windows of a number in which something was lost.
    parser.set_defaults(repetitions=defaults.windows)


def _prepare(options: argparse.Namespace) -> Callable[[Say], Measured]:
    check_counts(options, seconds=3600)
    for rate in options.rates:
        if not 1 <= rate <= 1000:
            raise ConfigError(f'--rates {rate:g}: each is 1 to 1000 Hz')
        if not 0 <= options.delay_ms <= 1800 / rate:
            raise ConfigError(f'--delay-ms {options.delay_ms:g}: give 0 to {1800 / rate:g}; two frames are in flight at {rate:g} Hz')
    for cameras in options.cameras:
        if not 1 <= cameras <= _MOST_CAMERAS:
            raise ConfigError(f'--cameras {cameras}: each is 1 to {_MOST_CAMERAS}')
    if not 1 <= options.depth <= _MOST_DEPTH:
        raise ConfigError(f'--depth {options.depth}: give 1 to {_MOST_DEPTH}; the camera has 8 slots')
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

    def measure(say: Say) -> Measured:
        result = measure_scale(plan, say)
        return Measured(result.rows, result.facts)

    return measure


SCALE = Command(
    'scale',
    'how many cameras one process takes until the first frame is lost, and why',
    _add_options,
    _prepare,
    SCALE_BARS,
    ('rclpy', 'cv2'),
)
