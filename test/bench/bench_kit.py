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

"""Run ``zc_bench`` in tests: read its results, and find its processes."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import json
import os
from pathlib import Path
import subprocess
import sys
from types import ModuleType
from typing import Any

import bench
from npu.json_schema import conforms
import pytest

Start = Callable[..., 'subprocess.Popen[str]']
SCHEMA: dict[str, Any] = json.loads(
    Path(bench.__file__).with_name('bench.schema.json').read_text(encoding='utf-8')
)


def written(path: Path) -> Any:
    """Return a result file's content; it must match the schema."""
    document = json.loads(path.read_text(encoding='utf-8'))
    assert conforms(document, SCHEMA)
    return document


def run_bench(folder: Path, *arguments: str) -> Any:
    """Run a sub-command and return its result; it must succeed and leave no socket."""
    path = folder / 'result.json'
    ran = subprocess.run(
        [sys.executable, '-m', 'bench', *arguments, '--json', str(path)],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, 'ZC_RUNTIME_DIR': str(folder)},
    )  # fmt: skip
    assert ran.returncode == 0 and 'Traceback' not in ran.stderr, ran.stderr
    assert not list(folder.glob('*.sock'))
    return written(path)


def processes(runtime: Path, word: str = '') -> dict[int, str]:
    """Return living processes by pid with names: those with sockets in *runtime*, and *word*."""
    found = {}
    for folder in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            own = f'ZC_RUNTIME_DIR={runtime}'.encode() in (folder / 'environ').read_bytes().split(
                b'\0'
            )
            arguments = (folder / 'cmdline').read_bytes().decode().split('\0')
            if own and int(folder.name) != os.getpid() and (not word or word in arguments):
                found[int(folder.name)] = (folder / 'comm').read_text(encoding='ascii').strip()
    return found


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
