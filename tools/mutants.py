#!/usr/bin/env python3
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
Change a room's code at random places and report which tests fail.

A room is a folder or a file of ``zc_perception/``. ``tools/mutants.py memory`` runs
``test/memory`` once to find out which tests reach which lines. Then it makes 40 mutants of
``zc_perception/memory``, one after the other, in a copy of the tree. For each it runs the tests
that reach the changed line until one fails, beginning with the test that failed the last time. It
writes ``test/mutants/memory.json``: a line for each mutant, with the test that failed. A reason
that was added by hand to a surviving mutant is kept. ``--survivors`` repeats only the mutants that
survived, whose test is gone, or that are missing in the list.

Mutants are ordered by a hash of the seed, the function and the text. So the sample stays the same
when another function changes. mutmut and cosmic-ray can't draw such a sample: they make all
mutants of a file, which are thousands here.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
import contextlib
import hashlib
import importlib
import json
import os
from pathlib import Path
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

from hypothesis import Phase, settings
import pytest

TREE = Path(__file__).resolve().parents[1]
_COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
}  # fmt: skip
#: Nodes that are not mutated: imports, and messages, whose words tests need not check.
_UNCHANGED = (ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal)


class Mutant(NamedTuple):
    file: str
    line: int
    function: str
    before: str
    after: str
    start: int
    end: int
    #: A test reaches the mutant if it runs one of these lines; empty for code run at import.
    lines: tuple[int, ...]

    def key(self, seed: int) -> str:
        """Return the key that mutants are sorted by; it depends on this mutant alone."""
        text = repr((seed, self.file, self.function, self.before, self.after))
        return hashlib.sha256(text.encode()).hexdigest()

    def row(self) -> list[Any]:
        """Return the mutant's part of its line in the list."""
        return [self.file, self.line, self.function, self.before[:99], self.after[:99]]


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the replacements of *node*."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        new = _COMPARE[type(node.ops[0])]()
        yield ast.Compare(node.left, [new], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        yield ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Return) and not _is_none(node.value):
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, (ast.If, ast.While)) and isinstance(node.test, (ast.Name, ast.Call)):
        yield ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, (ast.AugAssign, ast.Raise, ast.Break, ast.Continue, ast.Delete)) or (
        isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await))
    ):
        yield ast.Pass()


def _is_none(node: ast.AST | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)


def _mutants(path: Path) -> Iterator[Mutant]:
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    file = str(path.relative_to(TREE))

    def visit(node: ast.AST, function: str, lines: tuple[int, ...]) -> Iterator[Mutant]:
        if isinstance(node, ast.If) and ast.unparse(node.test).startswith(('TYPE_', '__name__')):
            return
        if isinstance(node, ast.stmt):
            lines = (node.lineno,) if lines else ()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            function = f'{function}.{node.name}'.lstrip('.')
            lines = () if isinstance(node, ast.ClassDef) else (node.lineno,)
        for field, value in ast.iter_fields(node):
            if field in ('annotation', 'returns', 'decorator_list', 'type_comment'):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, _UNCHANGED):
                    yield from visit(child, function, lines)
        where = node.test if isinstance(node, (ast.If, ast.While)) else node
        for new in _changed(node):
            start = starts[where.lineno - 1] + where.col_offset  # type: ignore[attr-defined]
            end = starts[where.end_lineno - 1] + where.end_col_offset  # type: ignore[attr-defined]
            after = ast.unparse(ast.fix_missing_locations(new))
            if isinstance(new, ast.expr):
                after = f'({after})'
            before = ' '.join(source[start:end].decode().split())
            line = where.lineno  # type: ignore[attr-defined]
            reached = (*lines, line) if lines else ()
            yield Mutant(file, line, function, before, after, start, end, reached)

    seen: Counter[tuple[str, str, str]] = Counter()
    for mutant in visit(ast.parse(source), '', ()):
        # Number equal texts of a function, so that each is a mutant of its own.
        same = (mutant.function, mutant.before, mutant.after)
        seen[same] += 1
        nth = f'{mutant.function}#{seen[same]}' if seen[same] > 1 else mutant.function
        yield mutant._replace(function=nth)


#: By room, tests of other rooms that check it, too.
_ALSO = {
    'machine': [
        f'test/doctor/test_doctor_{name}.py'
        for name in ('command', 'cameras', 'broken_vehicles')
    ]
}


class Room:
    """A room's files, its tests, and the tests that reach each line."""

    def __init__(self, name: str) -> None:
        self.name = name
        package = TREE / 'zc_perception' / name
        if package.is_dir():
            self.files = sorted(package.rglob('*.py'))
            self.tests = [f'test/{name}', *_ALSO.get(name, ())]
        else:
            self.files = [package.with_suffix('.py')]
            self.tests = [str(p.relative_to(TREE)) for p in TREE.glob(f'test/test_{name}*.py')]
        if not self.files[0].exists() or not self.tests:
            sys.exit(
                f'{name!r} is no room: give a folder or a file of zc_perception/ that has tests, '
                'such as memory, link/shared_memory or frame'
            )
        self.data = TREE / 'build/mutants' / f'{name.replace("/", "-")}.coverage'

    def measure(self, fresh: bool) -> None:
        """Run the tests once with coverage, unless the stored coverage is newer than all files."""
        files = [*self.files, *(p for t in self.tests for p in (TREE / t).rglob('*.py'))]
        files += [TREE / t for t in self.tests]
        newest = max(p.stat().st_mtime for p in files)
        if not fresh and self.data.exists() and self.data.stat().st_mtime > newest:
            return
        self.data.parent.mkdir(parents=True, exist_ok=True)
        new = self.data.with_suffix('.new')
        source = f'zc_perception/{self.name}' if len(self.files) > 1 else 'zc_perception'
        options = [f'--cov={source}', '--cov-context=test', '--cov-branch', '--cov-report=']
        where = {**os.environ, 'COVERAGE_FILE': str(new)}
        command = [sys.executable, '-m', 'pytest', '-x', *_OPTIONS, *options, *self.tests]
        if subprocess.run(command, cwd=TREE, env=where).returncode:
            sys.exit('the tests fail without any mutant: nothing can be learnt from them')
        new.rename(self.data)

    def reaching(self) -> dict[tuple[str, int], set[str]]:
        """Return the tests that reach each (file, line); none reaches a line run at import."""
        found: dict[tuple[str, int], set[str]] = {}
        with sqlite3.connect(self.data) as data:
            rows = data.execute(
                'select path, context, fromno, tono from arc join file on file_id = file.id '
                'join context on context_id = context.id where context != ""'
            )
            for path, context, *lines in rows:
                test = context.rpartition('|')[0].partition('[')[0]
                for line in lines:
                    found.setdefault((os.path.relpath(path, TREE), abs(line)), set()).add(test)
        return found


_OPTIONS = ['-q', '-p', 'no:cacheprovider', '-n', '0']
#: In place of a failed test: '' after a time-out, 'import' if a module could not be imported.
_NO_TEST = ('', 'import')
#: Modules that take long to import; this process imports them once, before it forks.
_SLOW = ('numpy', 'cv2', 'hypothesis.strategies', 'yaml', 'onnxruntime', 'rclpy')


class Copy:
    """A copy of the tree that mutants are written to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written = 1
        listed = subprocess.run(
            ['git', 'ls-files', '-z', '-co', '--exclude-standard'],
            cwd=TREE, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        built = [str(p.relative_to(TREE)) for p in (TREE / 'zc_perception').rglob('*.so')]
        for name in [*filter(None, listed.split('\0')), *built]:
            if (TREE / name).is_file():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(TREE / name, target)
        for name in ('.venv', 'build'):
            if (TREE / name).exists():
                (folder / name).symlink_to(TREE / name)

    def run(self, mutant: Mutant, tests: list[str], limit_s: float) -> tuple[str, str]:
        """Return ``killed``, ``survived`` or ``timeout``, and the test that failed."""
        path = self.folder / mutant.file
        source = path.read_bytes()
        found = path.stat()
        path.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
        self._written += 1  # Python compiles a source again if its time in s or size has changed
        os.utime(path, (self._written, self._written))
        try:
            return self._test(tests, limit_s)
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))

    def _test(self, tests: list[str], limit_s: float) -> tuple[str, str]:
        """Run pytest in a fork of this process, which has imported :data:`_SLOW`."""
        said = self.folder.parent / 'said'
        child = os.fork()
        if not child:
            os.setsid()
            out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for descriptor in (1, 2):
                os.dup2(out, descriptor)
            os.chdir(self.folder)
            sys.path.insert(0, str(self.folder))
            os.environ['PYTHONPATH'] = str(self.folder)
            os._exit(int(pytest.main(['-x', '-rfE', *_OPTIONS, *tests])))
        done = os.pidfd_open(child)
        in_time = select.select([done], [], [], limit_s)[0]
        os.close(done)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # also processes that a test left running
        _, status = os.waitpid(child, 0)
        if not in_time:
            return 'timeout', ''
        if os.waitstatus_to_exitcode(status) in (0, 5):
            return 'survived', ''
        lines = said.read_text(encoding='utf-8', errors='replace').splitlines()
        failed = [line.split()[1] for line in lines if line.startswith(('FAILED ', 'ERROR '))]
        return 'killed', failed[0].partition('[')[0] if failed else 'import'


def _write(path: Path, head: dict[str, Any], rows: list[list[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(line, ensure_ascii=False) for line in (head, *sorted(rows))]
    path.write_text('[\n' + ',\n'.join(lines) + '\n]\n', encoding='utf-8')


def main() -> None:
    """Test the mutants of a room, print each result, and write the list."""
    parser = argparse.ArgumentParser(description='Report the tests that notice changes of a room.')
    parser.add_argument('room', help='a folder or a file of zc_perception/, such as memory')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--count', type=int, default=40)
    parser.add_argument('--limit', type=float, default=120.0, help='seconds for one mutant')
    parser.add_argument('--fresh', action='store_true', help='measure anew which tests reach what')
    parser.add_argument(
        '--survivors', action='store_true', help='repeat only survivors; keep the other results'
    )
    options = parser.parse_args()
    room = Room(options.room)
    room.measure(options.fresh)
    reaching = room.reaching()
    mutants = [m for p in room.files for m in _mutants(p)]
    mutants = sorted(mutants, key=lambda m: m.key(options.seed))[: options.count]
    kept = TREE / 'test/mutants' / f'{options.room.replace("/", "-")}.json'
    before = json.loads(kept.read_text(encoding='utf-8'))[1:] if kept.exists() else []
    known = {(r[0], *r[2:5]): r[5:] for r in before}
    rows, results = [], Counter[str]()
    width = Counter(test for tests in reaching.values() for test in tests)
    for name in _SLOW:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    os.environ['CI'] = 'mutants'  # hypothesis: the same examples each time; without shrinking
    os.environ.setdefault('ZC_PATIENCE_S', str(options.limit / 4))
    settings.register_profile('once', phases=[Phase.explicit, Phase.generate], database=None)
    settings.load_profile('once')
    with tempfile.TemporaryDirectory(prefix='mutants-') as folder:
        copy = Copy(Path(folder) / 'tree')
        for mutant in mutants:
            row = mutant.row()
            was, last, *reason = known.get((row[0], *row[2:]), ['survived', ''])
            if options.survivors and was != 'survived' and (last in width or last in _NO_TEST):
                results[was] += 1
                rows.append([*row, was, last])
                continue
            reached = {t for n in mutant.lines for t in reaching.get((mutant.file, n), ())}
            result, by = 'survived', ''
            if last in width:
                result, by = copy.run(mutant, [last], options.limit)
            if result == 'survived':
                # Run tests that reach few lines first: they are quick and most specific.
                tests = sorted(reached, key=lambda test: (width[test], test))
                result, by = copy.run(mutant, tests or room.tests, options.limit)
            results[result] += 1
            row += [result, by, *(reason if result == 'survived' else ())]
            rows.append(row)
            print(
                f'{result:8}  {mutant.file}:{mutant.line}  {mutant.before!r} -> {mutant.after!r}'
            )
            print(by, flush=True)
    head = {'room': room.name, 'seed': options.seed, 'mutants': len(mutants), **results}
    _write(kept, head, rows)
    print(f'{head}: {kept.relative_to(TREE)}')


if __name__ == '__main__':
    main()
