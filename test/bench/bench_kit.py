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

"""Run ``zc_bench`` in tests, read its results, and invent results for the report."""

from __future__ import annotations

import json
import os
from pathlib import Path
import subprocess
import sys
from types import ModuleType
from typing import Any

import bench as bench_package
from bench.results import Bench
from bench.rows import Row
from bench.subcommand import Bar, Command, Measured
from npu.json_schema import conforms
import pytest

SCHEMA: dict[str, Any] = json.loads(
    Path(bench_package.__file__).with_name('bench.schema.json').read_text(encoding='utf-8')
)


def written(path: Path) -> Any:
    document = json.loads(path.read_text(encoding='utf-8'))
    assert conforms(document, SCHEMA)
    return document


def run_bench(folder: Path, *arguments: str) -> Any:
    """Run a sub-command and return its result; it must succeed and leave no socket."""
    path = folder / 'result.json'
    ran = subprocess.run(
        [sys.executable, '-m', 'bench', *arguments, '--json', str(path)], capture_output=True,
        text=True, timeout=300, check=False, env={**os.environ, 'ZC_RUNTIME_DIR': str(folder)},
    )  # fmt: skip
    assert ran.returncode == 0 and 'Traceback' not in ran.stderr, ran.stderr
    assert not list(folder.glob('*.sock'))
    return written(path)


def instead_of_measuring(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, function: str, measured: object
) -> list[Any]:
    """Make *function* return *measured*; return the list of plans that it is called with."""
    plans: list[Any] = []

    def measure(plan: object, say: object) -> object:
        plans.append(plan)
        return measured

    monkeypatch.setattr(module, function, measure)
    return plans


ENVIRONMENT = {
    'date': '2026-11-21', 'cpu': 'a CPU', 'cpus': 2, 'memory_gib': 23.5, 'governor': 'unknown',
    'virtual': True, 'kernel': '6.18', 'libc': 'glibc 2.36', 'python': '3.11.7', 'ros_distro': '',
    'packages': {'numpy': '2.4.6'}, 'load_average': [0.1, 0.2, 0.3],
}  # fmt: skip


def row(
    case: str,
    variant: str,
    size: tuple[int, int] = (1920, 1080),
    rate_hz: float = 0.0,
    **changes: Any,
) -> Row:
    values = {'median_us': 100.0, 'p99_us': 200.0, 'cpu_us_per_frame': 50.0, 'repetitions': 3}
    return Row(case, variant, *size, rate_hz, **{**values, **changes})


def command(name: str, *bars: Bar) -> Command:
    measure = lambda options: lambda say: Measured([])  # noqa: E731
    return Command(name, f'what {name} costs', lambda parser: None, measure, bars)


def bench(name: str, rows: list[Row], *bars: Bar, **changes: Any) -> Bench:
    values = {'environment': ENVIRONMENT, 'rows': rows, **changes}
    return Bench(name, command(name, *bars), Path(f'out/{name}.json'), **values)


def write(path: Path, rows: list[Row], **more: Any) -> None:
    document = {'environment': {**ENVIRONMENT, **more}, 'rows': [one.as_json() for one in rows]}
    path.write_text(json.dumps(document), encoding='utf-8')
