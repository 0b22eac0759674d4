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
Run a sub-command for ``make bench``, load its result, and write the page ``report.md``.

The page has the environment, the verdicts, and a table for each benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
import json
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
import time
from typing import Any

from bench.link import FLOORS, LINKS, PLAIN, READ
from bench.peers.processes import VARIANTS as PEERS
from bench.rows import Row
from bench.subcommand import check_bars, Command, FULL_HD, UHD_4K, UHD_8K, Verdict, VGA
from bench.worker import importing_bench

#: The interpreter's arguments before a sub-command's name.
PROGRAM = ('-m', 'bench')
_LONGEST_S = 3600.0
_END_S = 60.0
_LAST_WORDS = 3


# {folder}: where the results are written. The trace must not be named timeline.json: that is the
# file of the sub-command's result.
_TIMELINE = ('--trace', '{folder}/timeline_trace.json')
ARGUMENTS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    'link': (
        ('--repetitions', '3', '--seconds', '0.7', '--read', 'vga', '1080p', '4k'),
        ('--repetitions', '1', '--seconds', '0.5', '--frames', '100', '--sizes', 'vga', '1080p'),
    ),
    'decode': (('--repetitions', '5'), ('--repetitions', '1', '--frames', '50')),
    'pipeline': (('--repetitions', '3'), ('--repetitions', '1', '--seconds', '1')),
    'startup': (('--repetitions', '5'), ('--repetitions', '1')),
    'scale': ((), ('--cameras', '1', '8', '16', '--seconds', '3')),
    'timeline': (_TIMELINE, _TIMELINE),
}
"""Each sub-command's arguments: for a full run (25 minutes), and for ``--quick`` (5 minutes)."""


@dataclass(frozen=True)
class Bench:
    """
    One sub-command's result.

    :param path: the path of the result's JSON file.
    :param problem: why there is no result; empty when there is one.
    """

    name: str
    command: Command
    path: Path
    arguments: Sequence[str] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    rows: Sequence[Row] = ()
    problem: str = ''

    def verdicts(self) -> list[Verdict]:
        """Check the sub-command's bars; a bar that was not measured fails."""
        return check_bars(self.rows, self.command.bars)

    @property
    def command_line(self) -> str:
        """The command that repeats the measurement."""
        return ' '.join(['zc_bench', self.name, *self.arguments, '--json', str(self.path)])


def load(command: Command, path: Path, arguments: Sequence[str] = ()) -> Bench:
    """Load a sub-command's result; if that fails, :attr:`Bench.problem` has the reason."""
    try:
        document = json.loads(path.read_text(encoding='utf-8'))
        rows = [Row(**row) for row in document['rows']]
        return Bench(command.name, command, path, arguments, document['environment'], rows)
    except FileNotFoundError:
        return Bench(command.name, command, path, arguments, problem='it was not measured')
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        reason = getattr(error, 'strerror', None) or f'{type(error).__name__}: {error}'
        return Bench(
            command.name,
            command,
            path,
            arguments,
            problem=f'{path.name} is not a result: {reason}',
        )


def arguments_of(name: str, folder: Path, *, quick: bool) -> Sequence[str]:
    """Return a sub-command's arguments, with *folder* filled in."""
    return [argument.replace('{folder}', str(folder)) for argument in ARGUMENTS[name][quick]]


def run(
    command: Command, folder: Path, arguments: Sequence[str], say: Callable[[str], None]
) -> Bench:
    """
    Run a sub-command in a process of its own, and load its result.

    A failure is returned in :attr:`Bench.problem`, so that the other benchmarks still run.
    """
    path = folder / f'{command.name}.json'
    log = folder / f'{command.name}.log'
    try:
        path.unlink(missing_ok=True)
        words = log.open('w', encoding='utf-8')
    except OSError as error:
        problem = f"'{error.filename}' can't be written: {error.strerror}"
        say(f'zc_bench {command.name}: not measured: {problem}')
        return Bench(command.name, command, path, arguments, problem=problem)
    say(f'zc_bench {command.name}: measuring; its output goes to {log}')
    began = time.monotonic()
    with words:
        # Unbuffered (-u), so that the log has its lines in the order they were written:
        # Bench.problem quotes the last lines, which must be the error.
        process = subprocess.Popen(
            [sys.executable, '-u', *PROGRAM, command.name, *arguments, '--json', str(path)],
            stdout=words,
            stderr=subprocess.STDOUT,
            env=importing_bench(os.environ),
        )
        try:
            code = process.wait(_LONGEST_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_process(process)
    said = log.read_text(encoding='utf-8', errors='replace').strip().splitlines()
    say(f'zc_bench {command.name}: {time.monotonic() - began:.0f} s')
    if code == 0:
        return load(command, path, arguments)
    how = f'it took longer than {_LONGEST_S:g} s' if code is None else f'exit code {code}'
    problem = f'{how}: {" / ".join(said[-_LAST_WORDS:])}' if said else how
    say(f'zc_bench {command.name}: not measured: {problem}')
    return Bench(command.name, command, path, arguments, problem=problem)


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, on which the process ends its children, too; kill it after a minute."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_SIZES = {VGA: 'VGA', FULL_HD: '1080p', UHD_4K: '4K', UHD_8K: '8K'}
_OURS = 'link/shared_memory'
_MISSING = '–'
_UNITS = {
    '_us_per_s': 'µs/s',
    '_us': 'µs',
    '_ms': 'ms',
    '_s': 's',
    '_hz': 'Hz',
    '_percent': '%',
    '_levels': 'levels',
    '_mib': 'MiB',
}


def size_name(size: tuple[int, int]) -> str:
    """Return the usual name of a size, such as ``1080p``, or WIDTH×HEIGHT."""
    return _SIZES.get(size, f'{size[0]}×{size[1]}')


def leading_number(variant: str) -> int:
    """Return the number of cameras that a variant's name begins with; 0: it has none."""
    match = re.match(r'\d+', variant)
    return int(match.group()) if match else 0


def duration(value_us: float | None) -> str:
    """Write a duration with three digits, in µs, ms or s; a dash for ``None``."""
    if value_us is None:
        return _MISSING
    for limit, unit, scale in ((1e3, 'µs', 1.0), (1e6, 'ms', 1e3)):
        if abs(value_us) < limit:
            return f'{value_us / scale:.3g} {unit}'
    return f'{value_us / 1e6:.3g} s'


def times(ratio: float | None) -> str:
    """Write a ratio with two digits and ×; a dash for ``None``."""
    if ratio is None:
        return _MISSING
    return f'{ratio:.0f} ×' if ratio >= 10 else f'{ratio:.2g} ×'


def with_unit(figure: str) -> str:
    """Return a column's title for a figure of the JSON, whose name ends in its unit."""
    for end, unit in _UNITS.items():
        if figure.endswith(end):
            return f'{figure.removesuffix(end)} [{unit}]'
    return figure


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown; escape each ``|`` in a cell, as it would end the cell."""
    cells = [
        [cell.replace('|', '\\|').replace('\n', ' ') for cell in line]
        for line in (head, ['---'] * len(head), *lines)
    ]
    return '\n'.join('| ' + ' | '.join(line) + ' |' for line in cells)


def _environment(benches: Sequence[Bench]) -> Iterator[str]:
    environment: Mapping[str, Any] = next(
        (bench.environment for bench in benches if bench.environment), {}
    )
    if not environment:
        return
    machine = (
        f'{environment["cpus"]} CPUs of {environment["cpu"]}, {environment["memory_gib"]:g} GiB'
    )
    yield from (
        f'- {environment["date"]}: '
        f'{machine}{", a virtual machine" if environment["virtual"] else ""}, Linux '
        f'{environment["kernel"]}, {environment["libc"]}, Python {environment["python"]}, '
        f'governor {environment["governor"]}',
        '- ' + ', '.join(f'{name} {version}' for name, version in environment['packages'].items()),
    )
    loads = [
        (
            f'{bench.name} {bench.environment["load_average"][0]:g} → '
            f'{(bench.environment.get("load_average_after") or [0.0])[0]:g}'
        )
        for bench in benches
        if bench.environment.get('load_average')
    ]
    yield f'- load average before and after each: {", ".join(loads)}'


def _verdicts(benches: Sequence[Bench]) -> str:
    lines = []
    for bench in benches:
        for verdict in bench.verdicts():
            lines.append(
                [
                    bench.name,
                    verdict.bar,
                    verdict.measured,
                    'pass' if verdict.passed else '**FAIL**',
                ]
            )
    passed = sum(line[-1] == 'pass' for line in lines)
    return f'{passed} of {len(lines)} bars are met.\n\n' + table(
        ['benchmark', 'bar', 'measured', ''], lines
    )


class _LinkRows:
    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {
            (row.case, row.variant, (row.width, row.height), row.rate_hz): row for row in rows
        }
        self.rates = sorted({row.rate_hz for row in rows}, key=lambda rate: (rate > 0, -rate))

    def __call__(
        self, case: str, variant: str, size: tuple[int, int], rate_hz: float
    ) -> Row | None:
        return self._rows.get((case, variant, size, rate_hz))

    def sizes(self, case: str, rate_hz: float) -> list[tuple[int, int]]:
        return sorted({size for c, _, size, rate in self._rows if c == case and rate == rate_hz})

    def variants(self, case: str, rate_hz: float, order: Sequence[str]) -> list[str]:
        found = {variant for c, variant, _, rate in self._rows if c == case and rate == rate_hz}
        return [variant for variant in order if variant in found]


def _cell(row: Row | None, reference: str, own: bool) -> str:
    if row is None:
        return _MISSING
    lost = f' ({row.lost_per_cent:g} % lost)' if row.lost_per_cent else ''
    ratio = '**1 ×**' if own else times(row.ratio_to.get(reference))
    return f'{ratio} {duration(row.median_us)}{lost}'


def _link(bench: Bench) -> Iterator[str]:
    rows = _LinkRows(bench.rows)
    order = ('shared_memory', *PEERS, *PLAIN, 'in_process_mailbox', 'in_process_executor')
    for rate in rows.rates:
        when = f'at {rate:g} Hz' if rate else 'unthrottled, one frame in flight'
        sizes = rows.sizes('link', rate)
        if not sizes:
            continue
        yield (
            f'Publish → a view of all pixels, {when}: median as a multiple of '
            '`shared_memory`, and itself.'
        )
        yield table(
            ['NV12', *(size_name(size) for size in sizes)],
            [
                [
                    f'`{name}`',
                    *(
                        _cell(rows('link', name, size, rate), _OURS, name == 'shared_memory')
                        for size in sizes
                    ),
                ]
                for name in rows.variants('link', rate, order)
            ]
            + [
                [
                    f'floor `{name}`',
                    *(_cell(rows('floor', name, size, rate), _OURS, False) for size in sizes),
                ]
                for name in rows.variants('floor', rate, FLOORS)
            ],
        )
        size = FULL_HD if FULL_HD in sizes else sizes[-1]
        found = [
            (name, row)
            for name in rows.variants('link', rate, order)
            if (row := rows('link', name, size, rate)) is not None
        ]
        yield (
            f'{size_name(size)} {when}: CPU time of both processes for a frame, and the '
            'slowest frames.'
        )
        yield table(
            ['', 'CPU, × `shared_memory`', 'CPU per frame', 'p99', 'lost'],
            [
                [
                    f'`{name}`',
                    '**1 ×**' if name == 'shared_memory' else times(row.cpu_ratio_to.get(_OURS)),
                    duration(row.cpu_us_per_frame), duration(row.p99_us),
                    f'{row.lost_per_cent:g} %',
                ]
                for name, row in found
            ],
        )  # fmt: skip
    sizes = rows.sizes(READ, 0.0)
    if sizes:
        yield (
            'The same, unthrottled, with a consumer that reads every pixel (NumPy adds them '
            'up): publish → read.'
        )
        yield table(
            ['NV12', *(size_name(size) for size in sizes)],
            [
                [
                    f'`{name}`',
                    *(
                        _cell(
                            rows(READ, name, size, 0.0),
                            f'{READ}/shared_memory',
                            name == 'shared_memory',
                        )
                        for size in sizes
                    ),
                ]
                for name in rows.variants(READ, 0.0, (*LINKS[::-1], *PEERS, *PLAIN))
            ],
        )


def _case(row: Row) -> list[str]:
    rate = f'{row.rate_hz:g} Hz' if row.rate_hz else 'unthrottled'
    return [row.case, f'`{row.variant}`', size_name((row.width, row.height)), rate]


def _figures(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table of the other figures; a figure that is the same in all rows is a sentence."""
    names = list(dict.fromkeys(name for row in rows for name in row.figures))
    values = {name: [row.figures.get(name) for row in rows] for name in names}
    same = [name for name in names if len(set(values[name])) == 1] if len(rows) > 1 else []
    if same:
        yield (
            'Of all: '
            + ', '.join(f'`{with_unit(name)}` {values[name][0]:g}' for name in same)
            + '.'
        )
    columns = [name for name in names if name not in same]
    if columns:
        yield table(
            ['case', 'variant', 'size', 'rate', *map(with_unit, columns)],
            [
                [
                    *_case(row),
                    *(
                        _MISSING if (value := row.figures.get(name)) is None else f'{value:.4g}'
                        for name in columns
                    ),
                ]
                for row in rows
                if row.figures
            ],
        )


def _plain(bench: Bench) -> Iterator[str]:
    # The rows are in the order of measurement. Those of zc_bench scale are sorted, because it
    # doesn't try the numbers of cameras in order.
    rows = (
        sorted(bench.rows, key=lambda row: (row.width, row.rate_hz, leading_number(row.variant)))
        if bench.name == 'scale'
        else bench.rows
    )
    yield table(
        ['case', 'variant', 'size', 'rate', 'median as a multiple of', 'median', 'p99',
         'CPU per frame', 'lost'],
        [
            [
                *_case(row),
                ', '.join(
                    f'{times(ratio)} {name.removeprefix(row.case + "/")}'
                    for name, ratio in row.ratio_to.items()
                ) or _MISSING,
                duration(row.median_us), duration(row.p99_us), duration(row.cpu_us_per_frame),
                f'{row.lost_per_cent:g} %',
            ]
            for row in rows
        ],
    )  # fmt: skip
    yield from _figures(rows)


def _notes(bench: Bench) -> Iterator[str]:
    for key, what in (('absent', 'not measured'), ('stalled', 'lost series')):
        for name, reason in bench.environment.get(key, {}).items():
            yield f'- `{name}`, {what}: {reason}'
    for where, limit in bench.environment.get('limits', {}).items():
        yield f'- {where}: {limit["cameras"]} cameras without a loss; {limit["limit"]}'


def _section(bench: Bench, pictures: Sequence[Path]) -> Iterator[str]:
    yield f'## {bench.name}: {bench.command.help}'
    yield f'`{bench.command_line}`'
    if bench.problem:
        yield f'Not measured: {bench.problem}'
        return
    notes = list(_notes(bench))
    if notes:
        yield '\n'.join(notes)
    yield from (f'![{picture.stem}]({picture.name})' for picture in pictures)
    yield from _link(bench) if bench.name == 'link' else _plain(bench)


def report(
    benches: Sequence[Bench], pictures: Mapping[str, Sequence[Path]], picture_problem: str = ''
) -> str:
    """
    Return the page ``report.md``.

    :param pictures: the pictures' paths, by the benchmark's name.
    :param picture_problem: why there are no pictures.
    """
    parts = ['# zc_bench', '\n'.join(_environment(benches)) or 'Nothing was measured.']
    parts.append(
        'Microseconds do not carry over to another machine, ratios do. Each ratio is the median '
        'over the repetitions of the ratio within one repetition.'
    )
    if picture_problem:
        parts.append(f'No pictures: {picture_problem}')
    parts += ['## Bars', _verdicts(benches)]
    for bench in benches:
        parts += _section(bench, pictures.get(bench.name, ()))
    return '\n\n'.join(parts) + '\n'
