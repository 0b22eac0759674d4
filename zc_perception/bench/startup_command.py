"""``zc_bench startup``: its options and bars."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from zc_perception.bench.bars import Bar, Key, Rows
from zc_perception.bench.command import Command, Measured, Say
from zc_perception.bench.startup import CAMERA, PUBLISHED, VARIANTS, WARM, StartupPlan, measure_startup
from zc_perception.errors import ConfigError

_CAMERA = (CAMERA.width, CAMERA.height, CAMERA.rate_hz)
_PUBLISHED_WARM: Key = (PUBLISHED, WARM, *_CAMERA)
_MOST_S = 1.5


def _seconds(key: Key) -> Callable[[Rows], float | None]:
    def figure(rows: Rows) -> float | None:
        row = rows.get(key)
        return None if row is None or row.median_us is None else row.median_us / 1e6

    return figure


# When it is received depends on how the middleware finds its peers, on a busy machine for seconds: that row stands beside.
STARTUP_BARS = (Bar('warm start: from executing perception to the first detections published', _seconds(_PUBLISHED_WARM), _MOST_S, ' s'),)


def _add_options(parser: argparse.ArgumentParser) -> None:
    defaults = StartupPlan()
    parser.add_argument('--variants', nargs='+', choices=VARIANTS, default=list(VARIANTS), help='(default: all)')
    parser.add_argument(
        '--parameters', nargs='+', metavar='NAME:=VALUE', default=list(defaults.parameters), help='of the nodes (default: accelerator:=cpu)'
    )


def _prepare(options: argparse.Namespace) -> Callable[[Say], Measured]:
    for parameter in options.parameters:
        if ':=' not in parameter:
            raise ConfigError(f"--parameters '{parameter}': each is NAME:=VALUE, such as accelerator:=cpu")
    plan = StartupPlan(options.repetitions, tuple(dict.fromkeys(options.variants)), tuple(options.parameters))

    def measure(say: Say) -> Measured:
        result = measure_startup(plan, say)
        return Measured(result.rows, result.facts)

    return measure


STARTUP = Command('startup', 'from executing perception to the first detections', _add_options, _prepare, STARTUP_BARS, ('rclpy', 'cv2'))
