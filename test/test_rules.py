"""RULES.md is whole: every section of the four documents is there, every rule names tests, and every test that is named exists and runs."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
RULES = HERE / 'RULES.md'
GUEST = HERE / 'rig' / 'guest'

#: The documents' own headings, in their order.
SECTIONS = {
    'PBE': ('Introduction', 'Glossary', 'Formats and modifiers', 'Dimensions and size', 'Enumeration', 'Negotiation', 'Allocation',
            'Import', 'Implicit modifiers', 'New users'),
    'GST': ('Introduction', 'DRM PRIME buffers', 'File descriptor', 'DRM fourcc', 'DRM modifier', 'Meta Data', 'DMABufs in GStreamer',
            'DRM format caps field', 'Metadata of a buffer', 'Negotiation of DMA buffer', 'Static Template Caps', 'Renegotiation',
            'Example'),
    'WAX': ('Overview', 'Architecture Overview', 'FrameHandle Structure', 'Move-Only Semantics', 'Field Descriptions',
            'RenderTarget Structure', 'RenderTarget Ownership Model', 'DMA-BUF Ownership Model', 'Transfer Semantics', 'dup() for Caching',
            'v5 Render API Flow', 'Plugin Implementation Example', 'Fence Lifecycle', 'Buffer ID Caching for Fast Path',
            'Frame Lifecycle Diagrams', 'Timeline of Frame Through Pipeline', 'Triple Buffer Slot State', 'Slot States', 'Summary'),
    'SYS': ('Introduction', 'Allocation process', 'Buffer destruction', 'Buffer', 'Participant', 'Image formats', 'Buffer settings', 'Heap',
            'Constraints', 'Negotiation', 'Buffer collection', 'Buffer collection token'),
}  # fmt: skip
OTHERWISE, NOT_OURS = 'On purpose otherwise', 'Not ours, and why'
COLUMNS = {
    OTHERWISE: ['id', 'the document', 'here, and why', 'tests'],
    NOT_OURS: ['id', 'section', 'statement', 'why'],
}
RULE_COLUMNS = ['id', 'rule', 'held by', 'tests']
HELD_BY = {'type', 'check', 'protocol', 'test'}
#: Who runs the checks of the rig: each lists the modules whose checks it runs.
RUNNERS = ('checks.py', 'memory_checks.py', 'package_checks.py')


class Row(NamedTuple):
    """A line of a table, and the headings that it stands under."""

    part: str
    section: str
    cells: list[str]


def rows(text: str) -> Iterator[Row]:
    part = section = ''
    for line in text.splitlines():
        if line.startswith('## '):
            part, section = line[3:], ''
        elif line.startswith('### '):
            section = line[4:]
        elif line.startswith('|') and not re.fullmatch(r'[|-]+', line):
            yield Row(part, section, [cell.strip() for cell in line.strip('|').split(' | ')])


def references(cell: str) -> list[str]:
    return re.findall(r'`([^`]*)`', cell)


@cache
def functions(path: Path) -> dict[str, list[str]]:
    """The functions at the top of a module, with their decorators."""
    tree = ast.parse(path.read_text(encoding='utf-8'))
    return {node.name: [ast.unparse(d) for d in node.decorator_list] for node in tree.body if isinstance(node, ast.FunctionDef)}


@cache
def run_in_the_guest() -> set[str]:
    """The modules of the guest whose checks somebody runs."""
    found: set[str] = set()
    for runner in RUNNERS:
        for node in ast.parse((GUEST / runner).read_text(encoding='utf-8')).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == 'MODULES' and isinstance(node.value, ast.Tuple):
                found |= {ast.unparse(element) for element in node.value.elts}
    return found


def reference_problem(reference: str) -> str:
    """Why there is no such test; empty if there is."""
    match = re.fullmatch(r'([\w/]+\.py)::(\w+)', reference)
    if match is None:
        return 'is not path/to/file.py::function'
    path = HERE / match[1]
    if not path.is_file():
        return f'there is no {match[1]}'
    decorators = functions(path).get(match[2])
    if decorators is None:
        return f'there is no {match[2]} at the top of {match[1]}'
    if path.parent == GUEST:
        if not any(decorator.split('(')[0] in ('check', 'check_each') for decorator in decorators):
            return f'{match[2]} is no check'
        return '' if path.stem in run_in_the_guest() else f'nobody runs the checks of {match[1]}'
    if not (match[2].startswith('test_') and path.stem.startswith('test_')):
        return 'pytest would not collect it'
    return 'it is skipped or expected to fail' if any(re.match(r'pytest\.mark\.(skip|xfail)\b', d) for d in decorators) else ''


def row_problems(row: Row) -> Iterator[str]:
    columns = COLUMNS.get(row.part, RULE_COLUMNS)
    if len(row.cells) != len(columns):
        yield f'{row.cells[0]}: {len(row.cells)} cells, not {len(columns)}'
        return
    if row.cells == columns:
        return
    name = row.cells[0]
    document, _, number = name.partition('-')
    letter = {OTHERWISE: 'D', NOT_OURS: 'N'}.get(row.part, '')
    if document not in SECTIONS or not re.fullmatch(rf'{letter}[1-9]\d*', number):
        yield f'{name}: is no id of this table'
    if not all(row.cells):
        yield f'{name}: a cell is empty'
    if row.part in SECTIONS:
        if document != row.part:
            yield f'{name}: stands under {row.part}'
        if row.cells[2] not in HELD_BY:
            yield f"{name}: held by '{row.cells[2]}', not by one of {', '.join(sorted(HELD_BY))}"
    if row.part == NOT_OURS:
        of, _, section = row.cells[1].partition(' ')
        if of != document or section not in SECTIONS.get(of, ()):
            yield f"{name}: there is no section '{row.cells[1]}'"
        return
    named = references(row.cells[3])
    if not named:
        yield f'{name}: names no test'
    yield from (f'{name}: {reference}: {problem}' for reference in named if (problem := reference_problem(reference)))
    yield from (f'{name}: {reference} is named twice' for reference, count in Counter(named).items() if count > 1)


def problems(text: str) -> list[str]:
    """Everything that is wrong with the page."""
    table = list(rows(text))
    found = [problem for row in table for problem in row_problems(row)]
    own = [row for row in table if row.cells not in (RULE_COLUMNS, *COLUMNS.values())]
    names = [row.cells[0] for row in own]
    found += [f'{name}: comes {count} times' for name, count in Counter(names).items() if count > 1]
    kinds: dict[str, list[int]] = {}
    for name in names:
        if match := re.fullmatch(r'(\w+-[DN]?)(\d+)', name):
            kinds.setdefault(match[1], []).append(int(match[2]))
    found += [f'{kind}: the numbers are not 1 to {len(n)}, in order' for kind, n in kinds.items() if n != list(range(1, len(n) + 1))]
    there = {(row.part, row.section) for row in own} | {tuple(row.cells[1].split(' ', 1)) for row in own if row.part == NOT_OURS}
    wanted = {(document, section) for document, sections in SECTIONS.items() for section in sections}
    found += [f'{document}, {section}: no rule of it, nor why there is none' for document, section in sorted(wanted - there)]
    headings = {(row.part, row.section) for row in own if row.part in SECTIONS}
    found += [f'{document}, {section}: the document has no such section' for document, section in sorted(headings - wanted)]
    for document, sections in SECTIONS.items():
        order = list(dict.fromkeys(row.section for row in own if row.part == document))
        if order != [section for section in sections if section in order]:
            found.append(f"{document}: the sections are not in the document's order")
    return found


def test_every_section_has_its_rules_and_every_rule_has_tests_that_exist() -> None:
    text = RULES.read_text(encoding='utf-8')
    assert problems(text) == []
    assert Counter(row.part for row in rows(text)).keys() >= {*SECTIONS, *COLUMNS}


@pytest.mark.parametrize(
    ('pattern', 'replacement', 'message'),
    [
        (r'^\| PBE-2 ', '| PBE-1 ', 'PBE-1: comes 2 times'),
        (r'^\| SYS-3 .*\n', '', 'SYS-: the numbers are not 1 to'),
        (r'^\| WAX-2 ', '| GST-2 ', 'GST-2: stands under WAX'),
        (r'^\| WAX-D1 ', '| WAX-1 ', 'WAX-1: is no id of this table'),
        (r'^\| PBE-2 \|(.*)\|.*\|$', r'| PBE-2 | words | type | none |', 'PBE-2: names no test'),
        (r'^\| PBE-2 \|(.*)\|.*\|$', r'| PBE-2 | words | hope | `test_frame.py::test_use_after_release_raises` |', "held by 'hope'"),
        (r'^\| PBE-2 \|(.*)\|.*\|$', r'| PBE-2 | words | type |', 'PBE-2: 3 cells, not 4'),
        (r'^\| PBE-2 \|(.*)\|.*\|$', r'| PBE-2 | | type | `test_frame.py::test_use_after_release_raises` |', 'cells, not 4'),
        ('test_no_layout_without_a_modifier', 'test_no_layout', 'there is no test_no_layout at the top of'),
        ('pixel/test_layout.py::', 'pixel/test_layouts.py::', 'there is no pixel/test_layouts.py'),
        ('pixel/test_layout.py::test_no_layout', 'pixel/test_layout.py test_no_layout', 'is not path/to/file.py::function'),
        ('pixel/test_layout.py::test_no_layout_without_a_modifier', 'pixel/test_layout.py::own_sizes', 'pytest would not collect it'),
        ('query_lists_what_can_be_imported', '_query', 'PBE-20: rig/guest/check_import.py::_query: _query is no check'),
        ('pixel/test_layout.py::test_no_layout_without_a_modifier', 'pixel/layout_oracle.py::is_safe', 'pytest would not collect it'),
        (r'^### Move-Only Semantics\n', '', 'WAX, Move-Only Semantics: no rule of it'),
        (r'^### Heap$', '### Heaps', 'SYS, Heaps: the document has no such section'),
        (r'^\| GST-N1 .*\n', '', 'GST, DMABufs in GStreamer: no rule of it, nor why there is none'),
        (r'^\| GST-N1 \| GST DMABufs in', '| GST-N1 | GST DMABuffers in', "GST-N1: there is no section 'GST DMABuffers in GStreamer'"),
        (r'^### Move-Only Semantics((.|\n)*?)(?=### RenderTarget Structure)((.|\n)*?)(?=### v5)', r'\3### Move-Only Semantics\1',
         "WAX: the sections are not in the document's order"),
    ],
)  # fmt: skip
def test_what_is_missing_or_wrong_is_found(pattern: str, replacement: str, message: str) -> None:
    text = RULES.read_text(encoding='utf-8')
    changed = re.sub(pattern, replacement, text, count=1, flags=re.MULTILINE)
    assert changed != text, 'the change was made'
    assert [problem for problem in problems(changed) if message in problem], problems(changed)


def test_a_check_that_nobody_runs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = 'rig/guest/package_pool.py::a_slot_is_not_reused_before_its_release_fence'
    assert reference_problem(reference) == '' and {'package_pool', 'check_import', 'package_npu'} <= run_in_the_guest()
    monkeypatch.setattr(f'{__name__}.run_in_the_guest', lambda: {'check_import'})
    assert reference_problem(reference) == 'nobody runs the checks of rig/guest/package_pool.py'


def test_a_test_that_is_skipped_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f'{__name__}.HERE', tmp_path)
    (tmp_path / 'test_skipped.py').write_text(
        'import pytest\n'
        "@pytest.mark.skip(reason='later')\ndef test_a(): ...\n"
        "@pytest.mark.parametrize('x', [1])\n@pytest.mark.xfail\ndef test_b(x): ...\n"
        "@pytest.mark.skipif(True, reason='')\ndef test_c(): ...\n"
        'def test_d(): ...\n',
        encoding='utf-8',
    )
    found = {name: reference_problem(f'test_skipped.py::test_{name}') for name in 'abcd'}
    assert found == {'a': 'it is skipped or expected to fail', 'b': 'it is skipped or expected to fail', 'c': '', 'd': ''}
