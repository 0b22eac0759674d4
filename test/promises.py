"""``PROMISES.md``: what the package promises, which tests hold it, and its last figures.

    python test/promises.py        writes the figures of build/faults/result.json, build/faults/soak.csv and build/bench/*.json into it

A row's *measured by* names faults (``kills: capture killed``), ``soak``, or a benchmark's rows (``bench link: CASE, VARIANT``).
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
FILE = HERE / 'PROMISES.md'
RESULT = HERE.parent / 'build' / 'faults' / 'result.json'
SOAK = HERE.parent / 'build' / 'faults' / 'soak.csv'
BENCH = HERE.parent / 'build' / 'bench'
COLUMNS = ['id', 'promise', 'held by', 'measured by', 'last figures']
_MOST = 3


class Row(NamedTuple):
    """A promise. Cells as they stand in the table."""

    id: str
    promise: str
    tests: str
    measured: str
    figures: str

    def references(self) -> list[str]:
        """``path/to/test_x.py::test_y`` of each test."""
        return re.findall(r'`([^`]+)`', self.tests)

    def faults(self) -> list[str]:
        """Names of the faults that measure it."""
        return [name for name in re.findall(r'`([^`]+)`', self.measured) if name != 'soak' and not name.startswith('bench ')]


def rows(text: str) -> list[Row | list[str]]:
    """The table's rows; those with another number of cells as they are."""
    found: list[Row | list[str]] = []
    for line in text.splitlines():
        if line.startswith('|'):
            cells = [cell.strip() for cell in line.strip('|').split('|')]
            if cells != COLUMNS and set(''.join(cells)) - set('- '):
                found.append(Row(*cells) if len(cells) == len(COLUMNS) else cells)
    return found


def _figures_of(outcome: Mapping[str, Any]) -> str:
    """A fault's, in few words."""
    found = []
    if outcome['frames_in'] or outcome['frames_out']:
        dropped = sum(outcome['drops'].values())
        found.append(f'{outcome["frames_in"]} frames in, {outcome["frames_out"]} out, {dropped} dropped and counted')
    leaks = sum(outcome['leaks'].values()) + sum(outcome['zero'].values())
    found.append(f'{leaks} leaks and violations')
    numbers = [(name, value) for name, value in outcome['figures'].items() if isinstance(value, (int, float))]
    found += [f'{name} {value:g}' for name, value in numbers[:_MOST]]
    return ', '.join(found) if outcome['status'] == 'held' else f'**{outcome["status"]}**: {outcome["reason"][:200]}'.replace('|', '/')


def _size_and_rate(row: Mapping[str, Any]) -> str:
    rate = f'at {row["rate_hz"]:g} Hz' if row['rate_hz'] else 'unthrottled'
    return f'{row["width"]}x{row["height"]} {rate}'


def benchmarks(results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Figures of ``zc_bench``, by what measures them.

    :param results: documents by sub-command.
    """
    found: dict[str, list[str]] = {}
    for name, document in results.items():
        for row in document['rows']:
            texts = found.setdefault(f'bench {name}: {row["case"]}, {row["variant"]}', [f'{document["environment"]["date"][:10]}:'])
            figures = f'median {row["median_us"]:.4g} µs, p99 {row["p99_us"]:.4g}, lost {row["lost_per_cent"]:g} %'
            texts.append(f'{_size_and_rate(row)} {figures};')
    return {name: ' '.join(texts).rstrip(';') for name, texts in found.items()}


def measured(
    result: Mapping[str, Any] | None, minutes: Sequence[Mapping[str, str]], bench: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, str]:
    """Figures by what measures them, with their date."""
    found = benchmarks(bench or {})
    if result is not None:
        for outcome in result['faults']:
            found[f'{outcome["group"]}: {outcome["name"]}'] = f'{result["date"]}: {_figures_of(outcome)}'
    if len(minutes) > 2:
        first, last = minutes[1], minutes[-1]
        grown = float(last['memory_mb']) - float(first['memory_mb'])
        pause = max(float(minute['pause_s']) for minute in minutes[1:])
        day = datetime.fromtimestamp(SOAK.stat().st_mtime, tz=timezone.utc).date().isoformat() if SOAK.exists() else ''
        found['soak'] = (
            f'{day}: {len(minutes) - 1} minutes, {last["kills"]} kills, {last["changes"]} changes, memory {grown:+.2f} MB, '
            f'{int(last["descriptors"]) - int(first["descriptors"]):+d} descriptors, '
            f'{int(last["threads"]) - int(first["threads"]):+d} threads, longest pause {pause:.2f} s'
        )
        if 'frame_buffers' in last:  # older tables don't have it
            found['soak'] += f', at most {max(int(minute["frame_buffers"]) for minute in minutes[1:])} frame buffers'
    return found


def with_figures(text: str, found: Mapping[str, str]) -> str:
    """*text*, with the last column anew where there are figures for it."""
    lines = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')] if line.startswith('|') else []
        names = re.findall(r'`([^`]+)`', cells[3]) if len(cells) == len(COLUMNS) else []
        figures = [found[name] for name in names if name in found]
        if figures:
            cells[4] = '; '.join(figures)
            line = f'| {" | ".join(cells)} |'
        lines.append(line)
    return '\n'.join(lines) + '\n'


def problems(text: str, known_faults: set[str], reference_problem: Any) -> Iterator[str]:
    """What is wrong with the file."""
    numbers, used = [], set()
    for row in rows(text):
        if not isinstance(row, Row):
            yield f'{row[0]}: {len(row)} cells, not {len(COLUMNS)}'
            continue
        if not re.fullmatch(r'P[1-9]\d*', row.id):
            yield f'{row.id}: is no id of this table'
        else:
            numbers.append(int(row.id[1:]))
        if not row.promise or not row.tests or not row.measured or not row.figures:
            yield f'{row.id}: a cell is empty'
        if not row.references():
            yield f'{row.id}: names no test'
        for reference in row.references():
            if why := reference_problem(reference):
                yield f'{row.id}: {reference}: {why}'
        for name in row.faults():
            used.add(name)
            if name not in known_faults:
                yield f"{row.id}: there is no fault '{name}'"
        if '`' in row.measured:
            dates = re.findall(r'\b\d{4}-\d\d-\d\d\b', row.figures)
            if not dates or any(not _is_date(day) for day in dates):
                yield f'{row.id}: its figures have no date'
        elif row.measured != '—' or row.figures != '—':
            yield f"{row.id}: '—' stands for what nothing measures"
    if numbers != list(range(1, len(numbers) + 1)):
        yield 'the ids are not P1 to the last one, in order'
    for name in sorted(known_faults - used):
        yield f"fault '{name}' measures no promise"


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def main() -> None:
    """Write the figures."""
    result = json.loads(RESULT.read_text(encoding='utf-8')) if RESULT.exists() else None
    minutes = list(csv.DictReader(SOAK.open(encoding='utf-8'))) if SOAK.exists() else []
    bench = {path.stem: json.loads(path.read_text(encoding='utf-8')) for path in sorted(BENCH.glob('*.json'))}
    bench = {name: document for name, document in bench.items() if 'rows' in document}
    if result is not None and result['short']:
        sys.exit(f'{RESULT} is of the reduced form; run make faults')
    FILE.write_text(with_figures(FILE.read_text(encoding='utf-8'), measured(result, minutes, bench)), encoding='utf-8')


if __name__ == '__main__':
    main()
