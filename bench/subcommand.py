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
The parts of a sub-command of ``zc_bench``: its options, its measuring function and its bars.

:mod:`~bench.program` does the rest, which is the same for all sub-commands.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
import importlib.util
import time
from typing import Any

from bench.rows import Row

from zc_perception.errors import ConfigError

VGA, FULL_HD, UHD_4K, UHD_8K = (640, 480), (1920, 1080), (3840, 2160), (7680, 4320)
#: (width, height) of each size, by its name in the options.
SIZES = {'vga': VGA, '1080p': FULL_HD, '4k': UHD_4K, '8k': UHD_8K}

Key = tuple[str, str, int, int, float]
Rows = Mapping[Key, Row]
Figure = Callable[[Rows], 'float | None']


def figure_of(key: Key, read: Callable[[Row], float | None]) -> Figure:
    """Return a function that applies *read* to the row *key*; ``None``: it wasn't measured."""

    def figure(rows: Rows) -> float | None:
        row = rows.get(key)
        return None if row is None else read(row)

    return figure


@dataclass(frozen=True)
class Verdict:
    """
    The result of checking one :class:`Bar`.

    :param measured: the figure with its unit, or ``not measured``.
    """

    bar: str
    measured: str
    passed: bool

    def __str__(self) -> str:
        return f'{"pass" if self.passed else "FAIL"}  {self.bar}: {self.measured}'


@dataclass(frozen=True)
class Bar:
    """
    A limit that ``--check`` compares a measured figure with.

    :param at_least: the figure must be at least *limit*; otherwise it must be at most *limit*.
    :param involved: rows whose lost frames are reported with the figure.
    """

    text: str
    figure: Figure
    limit: float
    unit: str
    at_least: bool = False
    involved: tuple[Key, ...] = ()

    def verdict(self, rows: Rows) -> Verdict:
        figure = self.figure(rows)
        sign = '≥' if self.at_least else '≤'
        bar = f'{self.text} {sign} {self.limit:g}{self.unit}'
        if figure is None:
            return Verdict(bar, 'not measured', False)
        lost = [
            f'{row.variant} lost {row.lost_per_cent:g} % of its frames'
            for key in self.involved
            if (row := rows.get(key)) is not None and row.lost_per_cent
        ]
        note = f' ({", ".join(lost)})' if lost else ''
        passed = figure >= self.limit if self.at_least else figure <= self.limit
        return Verdict(bar, f'{figure:.2f}{self.unit}{note}', passed)


def check_bars(rows: Sequence[Row], bars: Sequence[Bar]) -> list[Verdict]:
    """Check every bar; a bar whose rows are missing fails."""
    table = {(row.case, row.variant, row.width, row.height, row.rate_hz): row for row in rows}
    return [bar.verdict(table) for bar in bars]


Say = Callable[[str], None]
"""
Reports progress: one line at the start, for each repetition, and for each failed measurement.
"""


def repetitions(count: int, say: Say) -> Iterator[int]:
    """Yield the repetitions' numbers, from 0; *say* gets a line after each."""
    for number in range(count):
        began = time.monotonic()
        yield number
        say(f'repetition {number + 1} of {count}: {time.monotonic() - began:.0f} s')


@dataclass(frozen=True)
class Measured:
    """
    A run's rows.

    :param facts: settings that the figures depend on; ``environment`` in the JSON gets these keys.
    """

    rows: Sequence[Row]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """
    A sub-command.

    :param add_options: adds the command's own options, next to ``--json``, ``--check`` and
        ``--repetitions``.
    :param prepare: takes the parsed options and returns the measuring function. It raises
        ConfigError for values out of range, before any process starts.
    :param needs: modules that the command's processes import.
    """

    name: str
    help: str  # noqa: A003
    add_options: Callable[[argparse.ArgumentParser], None]
    prepare: Callable[[argparse.Namespace], Callable[[Say], Measured]]
    bars: Sequence[Bar]
    needs: Sequence[str] = ()

    def check_needs(self) -> None:
        """Raise ModuleNotFoundError if one of the needed modules isn't installed."""
        for module in self.needs:
            if importlib.util.find_spec(module) is None:
                raise ModuleNotFoundError(f"No module named '{module}'", name=module)


def add_delay(parser: argparse.ArgumentParser) -> None:
    """Add ``--delay-ms`` to a command that runs the benchmark's stand-in for an accelerator."""
    parser.add_argument(
        '--delay-ms',
        type=float,
        default=2.0,
        help='time that the accelerator takes for a frame (default: 2)',
    )


def check_delay(delay_ms: float, rate_hz: float) -> None:
    """
    Check that the accelerator keeps up at this rate with two frames in flight.

    :raises ConfigError: the delay is negative or too long.
    """
    if not 0 <= delay_ms <= 1800 / rate_hz:
        raise ConfigError(
            f'--delay-ms {delay_ms:g}: give 0 to {1800 / rate_hz:g}; two frames are in flight '
            f'at {rate_hz:g} Hz'
        )


def check_counts(options: argparse.Namespace, **most: int) -> None:
    """
    Check that each option named in *most* is above 0 and at most its limit.

    :raises ConfigError: an option is out of its range.
    """
    for name, limit in most.items():
        value = getattr(options, name)
        if not 0 < value <= limit:
            raise ConfigError(f'--{name} {value:g}: give more than 0 and at most {limit}')
