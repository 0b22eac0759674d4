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
The tables of the pages equal those generated from the code.

Launch files are parsed as source, because not every environment of the tests has launch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
import re
import subprocess
import sys

from zc_perception.observe.diagnostics import Level, Part

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / 'docs/parameters.md'
PROGRAM = REPOSITORY / 'tools/parameters_page.py'
WRITE = '.venv/bin/python tools/parameters_page.py docs/parameters.md'


def test_the_page_in_the_repository_is_the_nodes_declarations(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding='utf-8')
    copy = tmp_path / 'parameters.md'
    kept, mark, _ = text.partition('<!-- tables:')
    copy.write_text(
        kept + mark + text.partition(mark)[2].partition('\n')[0] + '\n| old |\n', encoding='utf-8'
    )
    subprocess.run([sys.executable, PROGRAM, copy], check=True, timeout=120)
    assert copy.read_text(encoding='utf-8') == text, f'write it anew: {WRITE}'


def test_the_page_of_diagnostics_has_the_rows_of_each_part(tmp_path: Path) -> None:
    page = REPOSITORY / 'docs/diagnostics.md'
    text = page.read_text(encoding='utf-8')
    copy = tmp_path / 'diagnostics.md'
    copy.write_text(text.replace('\n| WARN', '\n| old'), encoding='utf-8')
    program = REPOSITORY / 'tools/diagnostics_page.py'
    subprocess.run([sys.executable, program, copy], check=True, timeout=120)
    assert copy.read_text(encoding='utf-8') == text, (
        'write it anew: .venv/bin/python tools/diagnostics_page.py docs/diagnostics.md'
    )
    on_page = set(re.findall(r'<!-- rows: ([\w.]+) -->', text))
    defined = {
        f'zc_perception.nodes.{file.stem}.{name}'
        for file in (REPOSITORY / 'zc_perception/nodes').glob('*.py')
        for name in re.findall(r'^(\w+) = Part\(', file.read_text(encoding='utf-8'), re.MULTILINE)
    }
    assert on_page == defined
    for place in defined:
        module, _, name = place.rpartition('.')
        part: Part = getattr(import_module(module), name)
        without = [r.sentence for r in part.rows if r.level is not Level.OK and not r.advice]
        assert without == [], f'{place}: rows that do not say what to do'


LAUNCH_PAGE = (REPOSITORY / 'docs/launch_and_lifecycle.md').read_text(encoding='utf-8')
FILES = sorted((REPOSITORY / 'launch').glob('*.launch.py'))
SHARED = REPOSITORY / 'zc_perception/nodes/launching.py'


def rows(head: str) -> list[list[str]]:
    table = LAUNCH_PAGE.partition(f'\n{head}\n')[2].partition('\n\n')[0]
    return [[cell.strip() for cell in line.split('|')[1:-1]] for line in table.splitlines()[1:]]


def called(function: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(function) if isinstance(node, ast.Call)]


def functions(file: Path) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(file.read_text(encoding='utf-8'))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def directly(function: ast.FunctionDef) -> set[str]:
    declarations = (
        call
        for call in called(function)
        if isinstance(call.func, ast.Name) and call.func.id == 'DeclareLaunchArgument'
    )
    return {ast.literal_eval(call.args[0]) for call in declarations}


def declared(file: Path) -> set[str]:
    function, shared = functions(file)['generate_launch_description'], functions(SHARED)
    found = directly(function)
    for call in called(function):
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == 'launching':
            left_out = {
                keyword.arg for keyword in call.keywords if ast.unparse(keyword.value) == 'False'
            }
            if call.func.attr in shared:
                found |= directly(shared[call.func.attr]) - left_out
    return found


def names(cells: Iterable[str]) -> set[str]:
    return {name for cell in cells for name in re.findall(r'`([\w.]+)`', cell)}


def test_the_table_of_launch_files_has_each_file_and_no_other() -> None:
    there = {file.name for file in (REPOSITORY / 'launch').iterdir() if file.is_file()}
    assert names(row[0] for row in rows('| file | what it starts |')) == there


def test_the_table_of_arguments_has_those_of_each_launch_file_and_no_other() -> None:
    files = {file.name.removesuffix('.launch.py') for file in FILES}
    listed: dict[str, set[str]] = {file: set() for file in files}
    for argument, _, _, where in rows('| argument | default | meaning | files |'):
        assert names([where]) <= files
        in_row = files - names([where]) if where.startswith('all') else names([where])
        for file in in_row:
            listed[file] |= names([argument])
    assert listed == {file.name.removesuffix('.launch.py'): declared(file) for file in FILES}
