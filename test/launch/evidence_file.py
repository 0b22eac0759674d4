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
Read and write ``evidence.json``, the record of the last run of the tests of this folder.

CI has no launch_ros, so it can't run these tests. It checks instead that they passed in the
recorded run, and that no file that they depend on has changed since.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
FILE = HERE / 'evidence.json'
RUN = '.venv/bin/python -m pytest test/launch --write-evidence'
# Files that the tests depend on: launch files with the modules that they import, parameter files,
# containers and components, the files that decide what is installed, and the tests.
DEPENDS_ON = (
    'launch/*',
    'config/*.yaml',
    'zc_perception/nodes/launching.py',
    'zc_perception/nodes/container.py',
    'zc_perception/nodes/command_lines.py',
    'zc_perception/nodes/declarations.py',
    'zc_perception/nodes/components.py',
    'zc_perception/nodes/main.py',
    'zc_perception/nodes/params/*.py',
    'zc_perception/nodes/__init__.py',
    'zc_perception/kinds.py',
    'zc_perception/parameters.py',
    'zc_perception/programs.py',
    'setup.py',
    'setup.cfg',
    'package.xml',
    'test/launch/*.py',
    'test/launch/foreign_components/**/*.py',
    'test/launch/foreign_components/package.xml',
)
# Files whose tests aren't in the record: they need neither ros2 nor colcon, and check the record.
ELSEWHERE = ('test_evidence.py',)


def _content(path: Path) -> bytes:
    """
    Return the bytes from which a file's hash is made; for YAML, a text of the parser's events.

    The events leave out comments and blank lines, on which no test depends.
    """
    content = path.read_bytes()
    return (
        '\n'.join(map(repr, yaml.parse(content))).encode() if path.suffix == '.yaml' else content
    )


def hashes() -> dict[str, str]:
    """Return the SHA-256 of each file that the tests depend on, by its path in the repository."""
    paths = sorted(
        {path for pattern in DEPENDS_ON for path in REPOSITORY.glob(pattern) if path.is_file()}
    )
    found = {
        path.relative_to(REPOSITORY).as_posix(): hashlib.sha256(_content(path)).hexdigest()
        for path in paths
    }
    return {name: digest for name, digest in found.items() if '__pycache__' not in name}


def test_functions() -> Iterator[str]:
    """Yield ``file::function`` for each test that must be in the record."""
    for path in sorted(HERE.glob('test_*.py')):
        if path.name not in ELSEWHERE:
            for node in ast.parse(path.read_text(encoding='utf-8')).body:
                if isinstance(node, ast.FunctionDef) and node.name.startswith('test_'):
                    yield f'{path.name}::{node.name}'


def write(outcomes: dict[str, str], date: str, versions: dict[str, str]) -> None:
    """Replace the record by one of this run, with the present hashes of the files."""
    content: dict[str, Any] = {
        'date': date,
        'versions': versions,
        'tests': dict(sorted(outcomes.items())),
        'files': hashes(),
    }
    FILE.write_text(json.dumps(content, indent=1) + '\n', encoding='utf-8')


def read() -> dict[str, Any]:
    """Return the content of the record."""
    content: dict[str, Any] = json.loads(FILE.read_text(encoding='utf-8'))
    return content
