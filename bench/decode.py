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

"""``zc_bench decode``: its options and bars; :mod:`~bench.decode_cases` measures, with OpenCV."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from bench.subcommand import Bar, check_counts, Command, Figure, figure_of, FULL_HD, Measured, Say


def _median(case: str, size: tuple[int, int] = FULL_HD) -> Figure:
    return figure_of((case, 'ours', *size, 0.0), lambda row: row.median_us)


def _quicker(case: str, variant: str, times: float = 1.0, size: tuple[int, int] = FULL_HD) -> Bar:
    """Return a bar: *variant* must take at least *times* as long as this package."""
    figure = figure_of((case, variant, *size, 0.0), lambda row: row.ratio_to.get(f'{case}/ours'))
    return Bar(
        f'{case}: {"quicker" if times >= 1.0 else "no slower"} than {variant}, times',
        figure,
        times,
        '×',
        at_least=True,
    )


DECODE_BARS = (
    Bar('yolov8_decoded 1x84x8400, 100 objects', _median('yolov8_decoded'), 800, ' µs'),
    _quicker('yolov8_decoded', 'filter_first'),
    _quicker('yolov8_decoded', 'numpy_usual'),
    # Both variants spend most of their time on the same maximum over the classes. So this package
    # can't be quicker here, but it must not be slower.
    _quicker('yolov8_sparse', 'filter_first', 0.97),
    _quicker('yolov8_sparse', 'numpy_usual'),
    Bar('yolov8_dfl_int8, 100 objects', _median('yolov8_dfl_int8'), 1200, ' µs'),
    _quicker('yolov8_dfl_int8', 'numpy_usual'),
    Bar('tensor of 1080p, 640x640x4 int8', _median('tensor'), 900, ' µs'),
    _quicker('tensor', 'exact'),
    Bar(
        'tensor of 1080p: off the exact one on noise, at most',
        figure_of(
            ('tensor', 'ours', *FULL_HD, 0.0), lambda row: row.figures.get('noise_max_off_levels')
        ),
        1,
        ' levels',
    ),
    Bar('20 masks of 200 pixels at 640x640', _median('masks_200px', (640, 640)), 700, ' µs'),
    _quicker('masks_200px', 'whole_picture', size=(640, 640)),
)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--frames', type=int, default=200, help='frames per series (default: 200)')


def _prepare(options: argparse.Namespace) -> Callable[[Say], Measured]:
    check_counts(options, frames=100_000)

    def measure(say: Say) -> Measured:
        from bench.decode_cases import measure_decoding  # OpenCV: --help must run without it

        return Measured(
            measure_decoding(options.repetitions, options.frames, say), {'opencv_threads': 1}
        )

    return measure


DECODE = Command(
    'decode',
    'what a frame costs before and after the network: input tensor and boxes',
    _add_options,
    _prepare,
    DECODE_BARS,
)
