"""``zc_bench pipeline``: its options."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from zc_perception.bench.command import Command, Measured, Say, check_counts
from zc_perception.bench.pipeline import PipelinePlan, measure_pipelines
from zc_perception.bench.pipeline_bars import PIPELINE_BARS
from zc_perception.errors import ConfigError


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--seconds', type=float, default=3.0, help='of each series, and the same again at rest (default: 3)')
    parser.add_argument('--delay-ms', type=float, default=2.0, help='how long the accelerator takes for a frame (default: 2)')


def _prepare(options: argparse.Namespace) -> Callable[[Say], Measured]:
    check_counts(options, seconds=3600)
    if not 0 <= options.delay_ms <= 60:
        raise ConfigError(f'--delay-ms {options.delay_ms:g}: give 0 to 60; two frames are in flight at 30 Hz')
    plan = PipelinePlan(options.repetitions, options.seconds, options.delay_ms)

    def measure(say: Say) -> Measured:
        result = measure_pipelines(plan, say)
        return Measured(result.rows, result.facts)

    return measure


PIPELINE = Command(
    'pipeline', "the host's cost of a frame from capture to detections", _add_options, _prepare, PIPELINE_BARS, ('rclpy', 'cv2')
)
