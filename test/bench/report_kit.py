"""Results of benchmarks that nobody has measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.results import Bench
from bench.rows import Row
from bench.subcommand import Bar, Command, Measured

ENVIRONMENT = {
    'date': '2026-11-21', 'cpu': 'a CPU', 'cpus': 2, 'memory_gib': 23.5, 'governor': 'unknown',
    'virtual': True, 'kernel': '6.18',
    'libc': 'glibc 2.36', 'python': '3.11.7', 'ros_distro': '', 'packages': {'numpy': '2.4.6'},
    'load_average': [0.1, 0.2, 0.3],
}  # fmt: skip


def row(
    case: str,
    variant: str,
    size: tuple[int, int] = (1920, 1080),
    rate_hz: float = 0.0,
    **changes: Any,
) -> Row:
    values = {
        'median_us': 100.0,
        'p99_us': 200.0,
        'cpu_us_per_frame': 50.0,
        'repetitions': 3,
        **changes,
    }
    return Row(case, variant, *size, rate_hz, **values)


def command(name: str, *bars: Bar) -> Command:
    return Command(
        name,
        f'what {name} costs',
        lambda parser: None,
        lambda options: lambda say: Measured([]),
        bars,
    )


def bench(name: str, rows: list[Row], *bars: Bar, **changes: Any) -> Bench:
    return Bench(
        name,
        command(name, *bars),
        Path(f'out/{name}.json'),
        **{'environment': ENVIRONMENT, 'rows': rows, **changes},
    )


def write(path: Path, rows: list[Row], **more: Any) -> None:
    path.write_text(
        json.dumps(
            {'environment': {**ENVIRONMENT, **more}, 'rows': [one.as_json() for one in rows]}
        ),
        encoding='utf-8',
    )
