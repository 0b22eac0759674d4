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
The program of ``make bench``: run all benchmarks and write a report.

``.venv/bin/python -m bench.report FOLDER`` runs each sub-command of ``zc_bench``. It writes the
result to ``FOLDER/NAME.json``, the output to ``FOLDER/NAME.log``, then ``FOLDER/report.md`` and
pictures. If a benchmark fails, the report names it and the others still run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
import sys

from bench.output import say, show
from bench.plots import draw, PlotsAbsentError
from bench.program import COMMANDS
from bench.results import arguments_of, Bench, load, report, run

from zc_perception.errors import ConfigError, EXIT_FAILURE
from zc_perception.programs import exit_code_of

PROGRAM = 'bench.report'


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description='Measure everything, and write report.md and pictures.'
    )
    names = [command.name for command in COMMANDS]
    parser.add_argument('folder', type=Path, help='where the results are written')
    parser.add_argument(
        '--quick',
        action='store_true',
        help='a first look: less than 5 minutes instead of less than 25',
    )
    parser.add_argument(
        '--only',
        nargs='+',
        choices=names,
        default=names,
        help='measure only these; for the others use the results in FOLDER',
    )
    parser.add_argument(
        '--no-run', action='store_true', help='measure nothing; use the results in FOLDER'
    )
    parser.add_argument(
        '--check', action='store_true', help='exit code 1 if a bar fails or was not measured'
    )
    return parser


def make_report(folder: Path, benches: Sequence[Bench]) -> Path:
    """
    Write ``report.md`` and its pictures to *folder*; return the path of ``report.md``.

    A failure to draw the pictures is reported in the page.

    :raises ConfigError: ``report.md`` can't be written.
    """
    problem = ''
    try:
        pictures = draw(benches, folder)
    except PlotsAbsentError as error:
        pictures, problem = {}, str(error)
        say(f'no pictures: {error}')
    except OSError as error:
        pictures, problem = {}, f"'{error.filename}' can't be written: {error.strerror}"
        say(f'no pictures: {problem}')
    path = folder / 'report.md'
    try:
        # File names and damaged results may contain text that isn't valid UTF-8.
        path.write_text(
            report(benches, pictures, problem), encoding='utf-8', errors='backslashreplace'
        )
    except OSError as error:
        raise ConfigError(
            f"report '{path}' can't be written: {error.strerror}; name another folder"
        ) from error
    return path


def _run(options: argparse.Namespace) -> int:
    folder: Path = options.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"folder '{folder}' can't be made: {error.strerror}; name another one"
        ) from error
    benches = []
    for command in COMMANDS:
        arguments = arguments_of(command.name, folder, quick=options.quick)
        if options.no_run or command.name not in options.only:
            benches.append(load(command, folder / f'{command.name}.json', arguments))
        else:
            benches.append(run(command, folder, arguments, say))
    path = make_report(folder, benches)
    verdicts = [verdict for bench in benches for verdict in bench.verdicts()]
    failed = [verdict for verdict in verdicts if not verdict.passed]
    # A failure to print is ignored, because the report has the same verdicts.
    show(
        '\n'.join(
            [
                *map(str, failed),
                f'{len(verdicts) - len(failed)} of {len(verdicts)} bars are met; {path}',
            ]
        )
    )
    # It is an error if a benchmark of this run failed. It is none if there is no result of a
    # benchmark that this run left out.
    broken = any(
        bench.problem for bench in benches if not options.no_run and bench.name in options.only
    )
    return EXIT_FAILURE if broken or (options.check and failed) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the program.

    Returns 0; 1: a benchmark failed or, with --check, a bar isn't met; 2: wrong arguments;
    128 + n: signal n.
    """
    options = _parser().parse_args(arguments)
    return exit_code_of(PROGRAM, lambda: _run(options))


if __name__ == '__main__':
    sys.exit(main())
