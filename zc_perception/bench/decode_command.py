"""``zc_bench decode``: its options."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from zc_perception.bench.command import Command, Measured, Say, check_counts
from zc_perception.bench.decode_bars import DECODE_BARS


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--frames', type=int, default=200, help='of each series (default: 200)')


def _prepare(options: argparse.Namespace) -> Callable[[Say], Measured]:
    check_counts(options, frames=100_000)

    def measure(say: Say) -> Measured:
        from zc_perception.bench.decode import measure_decoding  # it needs OpenCV, which --help must not

        return Measured(measure_decoding(options.repetitions, options.frames, say), {'opencv_threads': 1})

    return measure


DECODE = Command('decode', 'what a frame costs before and after the network: input tensor and boxes', _add_options, _prepare, DECODE_BARS)
