"""``report.md``: environment, verdicts, and a table for each benchmark, ratios before microseconds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zc_perception.bench.bars import FULL_HD, UHD_4K, UHD_8K, VGA
from zc_perception.bench.link import FLOORS, LINKS, PLAIN, READ
from zc_perception.bench.link_peers.variants import PEERS
from zc_perception.bench.report_runs import Bench
from zc_perception.bench.rows import Row

_SIZES = {VGA: 'VGA', FULL_HD: '1080p', UHD_4K: '4K', UHD_8K: '8K'}
_OURS = 'link/shared_memory'
_MISSING = '–'
_UNITS = {'_us_per_s': 'µs/s', '_us': 'µs', '_ms': 'ms', '_s': 's', '_hz': 'Hz', '_percent': '%', '_levels': 'levels', '_mib': 'MiB'}


def size_name(size: tuple[int, int]) -> str:
    """As people say."""
    return _SIZES.get(size, f'{size[0]}×{size[1]}')


def leading_number(variant: str) -> int:
    """Of cameras; 0: none."""
    match = re.match(r'\d+', variant)
    return int(match.group()) if match else 0


def duration(value_us: float | None) -> str:
    """Three digits, in the unit that fits."""
    if value_us is None:
        return _MISSING
    for limit, unit, scale in ((1e3, 'µs', 1.0), (1e6, 'ms', 1e3)):
        if abs(value_us) < limit:
            return f'{value_us / scale:.3g} {unit}'
    return f'{value_us / 1e6:.3g} s'


def times(ratio: float | None) -> str:
    """A ratio."""
    if ratio is None:
        return _MISSING
    return f'{ratio:.0f} ×' if ratio >= 10 else f'{ratio:.2g} ×'


def with_unit(figure: str) -> str:
    """A figure's name in the JSON, whose end is its unit, as the head of a column."""
    for end, unit in _UNITS.items():
        if figure.endswith(end):
            return f'{figure.removesuffix(end)} [{unit}]'
    return figure


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """In Markdown; a bar in a cell would end it."""
    cells = [[cell.replace('|', '\\|').replace('\n', ' ') for cell in line] for line in (head, ['---'] * len(head), *lines)]
    return '\n'.join('| ' + ' | '.join(line) + ' |' for line in cells)


def _environment(benches: Sequence[Bench]) -> Iterator[str]:
    environment: Mapping[str, Any] = next((bench.environment for bench in benches if bench.environment), {})
    if not environment:
        return
    machine = f'{environment["cpus"]} CPUs of {environment["cpu"]}, {environment["memory_gib"]:g} GiB'
    yield from (
        f'- {environment["date"]}: {machine}{", a virtual machine" if environment["virtual"] else ""}, Linux {environment["kernel"]}, '
        f'{environment["libc"]}, Python {environment["python"]}, governor {environment["governor"]}',
        '- ' + ', '.join(f'{name} {version}' for name, version in environment['packages'].items()),
    )
    loads = [
        f'{bench.name} {bench.environment["load_average"][0]:g} → {(bench.environment.get("load_average_after") or [0.0])[0]:g}'
        for bench in benches
        if bench.environment.get('load_average')
    ]
    yield f'- load average before and after each: {", ".join(loads)}'


def _verdicts(benches: Sequence[Bench]) -> str:
    lines = []
    for bench in benches:
        for verdict in bench.verdicts():
            lines.append([bench.name, verdict.bar, verdict.measured, 'pass' if verdict.passed else '**FAIL**'])
    passed = sum(line[-1] == 'pass' for line in lines)
    return f'{passed} of {len(lines)} bars are met.\n\n' + table(['benchmark', 'bar', 'measured', ''], lines)


class _LinkRows:
    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {(row.case, row.variant, (row.width, row.height), row.rate_hz): row for row in rows}
        self.rates = sorted({row.rate_hz for row in rows}, key=lambda rate: (rate > 0, -rate))

    def __call__(self, case: str, variant: str, size: tuple[int, int], rate_hz: float) -> Row | None:
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
        yield f'Publish → a view of all pixels, {when}: median as a multiple of `shared_memory`, and itself.'
        yield table(
            ['NV12', *(size_name(size) for size in sizes)],
            [
                [f'`{name}`', *(_cell(rows('link', name, size, rate), _OURS, name == 'shared_memory') for size in sizes)]
                for name in rows.variants('link', rate, order)
            ]
            + [
                [f'floor `{name}`', *(_cell(rows('floor', name, size, rate), _OURS, False) for size in sizes)]
                for name in rows.variants('floor', rate, FLOORS)
            ],
        )
        size = FULL_HD if FULL_HD in sizes else sizes[-1]
        found = [(name, row) for name in rows.variants('link', rate, order) if (row := rows('link', name, size, rate)) is not None]
        yield f'{size_name(size)} {when}: CPU time of both processes for a frame, and the slowest frames.'
        yield table(
            ['', 'CPU, × `shared_memory`', 'CPU per frame', 'p99', 'lost'],
            [
                [
                    f'`{name}`', '**1 ×**' if name == 'shared_memory' else times(row.cpu_ratio_to.get(_OURS)),
                    duration(row.cpu_us_per_frame), duration(row.p99_us), f'{row.lost_per_cent:g} %',
                ]
                for name, row in found
            ],
        )  # fmt: skip
    sizes = rows.sizes(READ, 0.0)
    if sizes:
        yield 'The same, unthrottled, with a consumer that reads every pixel (NumPy adds them up): publish → read.'
        yield table(
            ['NV12', *(size_name(size) for size in sizes)],
            [
                [f'`{name}`', *(_cell(rows(READ, name, size, 0.0), f'{READ}/shared_memory', name == 'shared_memory') for size in sizes)]
                for name in rows.variants(READ, 0.0, (*LINKS[::-1], *PEERS, *PLAIN))
            ],
        )


def _case(row: Row) -> list[str]:
    rate = f'{row.rate_hz:g} Hz' if row.rate_hz else 'unthrottled'
    return [row.case, f'`{row.variant}`', size_name((row.width, row.height)), rate]


def _figures(rows: Sequence[Row]) -> Iterator[str]:
    """What else was measured: a column for each, unless it is the same for all."""
    names = list(dict.fromkeys(name for row in rows for name in row.figures))
    values = {name: [row.figures.get(name) for row in rows] for name in names}
    same = [name for name in names if len(set(values[name])) == 1] if len(rows) > 1 else []
    if same:
        yield 'Of all: ' + ', '.join(f'`{with_unit(name)}` {values[name][0]:g}' for name in same) + '.'
    columns = [name for name in names if name not in same]
    if columns:
        yield table(
            ['case', 'variant', 'size', 'rate', *map(with_unit, columns)],
            [
                [*_case(row), *(_MISSING if (value := row.figures.get(name)) is None else f'{value:.4g}' for name in columns)]
                for row in rows
                if row.figures
            ],
        )


def _plain(bench: Bench) -> Iterator[str]:
    # As they were measured; numbers of cameras are tried in no order.
    rows = (
        sorted(bench.rows, key=lambda row: (row.width, row.rate_hz, leading_number(row.variant))) if bench.name == 'scale' else bench.rows
    )
    yield table(
        ['case', 'variant', 'size', 'rate', 'median as a multiple of', 'median', 'p99', 'CPU per frame', 'lost'],
        [
            [
                *_case(row),
                ', '.join(f'{times(ratio)} {name.removeprefix(row.case + "/")}' for name, ratio in row.ratio_to.items()) or _MISSING,
                duration(row.median_us), duration(row.p99_us), duration(row.cpu_us_per_frame), f'{row.lost_per_cent:g} %',
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


def report(benches: Sequence[Bench], pictures: Mapping[str, Sequence[Path]], picture_problem: str = '') -> str:
    """The page.

    :param pictures: by the benchmark's name.
    :param picture_problem: why there are none.
    """
    parts = ['# zc_bench', '\n'.join(_environment(benches)) or 'Nothing was measured.']
    parts.append(
        'Microseconds do not carry over to another machine, ratios do: each is the median over the repetitions of the ratio within one '
        'repetition.'
    )
    if picture_problem:
        parts.append(f'No pictures: {picture_problem}')
    parts += ['## Bars', _verdicts(benches)]
    for bench in benches:
        parts += _section(bench, pictures.get(bench.name, ()))
    return '\n\n'.join(parts) + '\n'
