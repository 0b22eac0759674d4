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

"""The program behind ``python -m bench``: its arguments, its table and its JSON file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import json
import os
from typing import Any

from bench.decode import DECODE
from bench.environment import describe_environment
from bench.link import link_command
from bench.output import say, show
from bench.peers.processes import PEERS
from bench.pipeline import PIPELINE
from bench.rows import Row
from bench.scale import SCALE
from bench.startup import STARTUP
from bench.subcommand import check_bars, check_counts, Command
from bench.timeline import TIMELINE

from zc_perception.errors import ConfigError, EXIT_FAILURE
from zc_perception.programs import exit_code_of, OptionParser, start, StrictParser
from zc_perception.whole_file import output_file, write_output

_WHAT = 'Measures this package, the least that a link can cost (floors), and other libraries.'
_EXAMPLES = (
    'zc_bench link --sizes 1080p',
    'zc_bench decode --json decode.json',
    'zc_bench pipeline --check',
)
COMMANDS = (link_command(PEERS), DECODE, PIPELINE, SCALE, STARTUP, TIMELINE)


def _parser() -> OptionParser:
    parser = OptionParser('zc_bench', _WHAT, _EXAMPLES, usage='[options] COMMAND ...')
    commands = parser.add_subparsers(
        title='commands (each has its own --help)',
        dest='name',
        metavar='COMMAND',
        required=True,
        prog='zc_bench',
        parser_class=StrictParser,
    )
    for command in COMMANDS:
        one = commands.add_parser(command.name, help=command.help, description=command.help)
        one.set_defaults(command=command)
        one.add_argument('--json', metavar='FILE', help='write all rows to this file')
        one.add_argument(
            '--check',
            action='store_true',
            help="compare to the package's bars; exit code 1 if one fails or was not measured",
        )
        one.add_argument(
            '--repetitions',
            type=int,
            default=7,
            help='how often to measure each case (scale: at most; default: %(default)s)',
        )
        command.add_options(one)
    return parser


def _figure(value: float | None, width: int) -> str:
    return f'{"none":>{width}s}' if value is None else f'{value:{width}.1f}'


def report(rows: Sequence[Row]) -> str:
    """Return the rows as a table for the terminal."""
    head = (
        f'{"case":28s} {"size [px]":>10s} {"rate [Hz]":>9s} {"median [µs]":>11s} '
        f'{"p99 [µs]":>10s} {"CPU [µs/frame]":>14s} {"lost [%]":>8s}'
    )
    lines = [f'{head}   median as a multiple of each floor']
    for row in rows:
        floors = ' '.join(
            f'{name.split("/")[1]} {ratio:.2f}'
            for name, ratio in row.ratio_to.items()
            if row.case != 'floor'
        )
        lines.append(
            f'{row.case + "/" + row.variant:28s} {f"{row.width}x{row.height}":>10s} '
            f'{row.rate_hz:9g} {_figure(row.median_us, 11)} {_figure(row.p99_us, 10)} '
            f'{_figure(row.cpu_us_per_frame, 14)} {row.lost_per_cent:8.1f}   {floors}'
        )
    return '\n'.join(lines)


def _run(options: argparse.Namespace) -> int:
    command: Command = options.command
    check_counts(options, repetitions=1000)
    command.check_needs()
    measure = command.prepare(options)
    path = None if options.json is None else output_file(options.json, '--json')
    environment = describe_environment()
    measured = measure(say)
    environment |= {**measured.facts, 'load_average_after': [round(v, 2) for v in os.getloadavg()]}
    document: dict[str, Any] = {
        'environment': environment,
        'rows': [row.as_json() for row in measured.rows],
    }
    # Write the file first, so that a closed terminal loses no figures. Print the table even if the
    # file can't be written.
    try:
        if path is not None:
            write_output(path, json.dumps(document, indent=1, allow_nan=False) + '\n', '--json')
    finally:
        lost = show(report(measured.rows))
    verdicts = check_bars(measured.rows, command.bars) if options.check else []
    if verdicts and not lost:
        lost = show('\n'.join(['', *map(str, verdicts)]))
    if lost and path is None:
        raise ConfigError(f"the result can't be printed: {lost}; give a file with --json")
    return 0 if all(verdict.passed for verdict in verdicts) else EXIT_FAILURE


def run(arguments: Sequence[str] | None = None) -> int:
    """
    Run a sub-command.

    Returns 0; 1: something went wrong or a bar isn't met; 2: wrong arguments, or the result can't
    be written or printed; 128 + n: signal n.
    """
    return start(
        _parser(), lambda options: exit_code_of('zc_bench', lambda: _run(options)), arguments
    )
