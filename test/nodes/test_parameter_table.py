"""README's table of parameters has each parameter of each node, and says of it what the node's declaration says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from zc_perception.nodes.parameter_schema import NODES
from zc_perception.nodes.parameters import ParameterSpec

README = Path(__file__).resolve().parents[2] / 'README.md'
SPECS = {(node, spec.name): spec for node, kind in NODES.items() for spec in kind.SPECS}
# Declared by the camera once it is open.
OPEN_ENDED = {('capture', 'controls.NAME')}


@dataclass(frozen=True)
class Row:
    default: str
    limits: str
    run_time: str
    meaning: str


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r'(?<!\\)\|', line)[1:-1]]


def share(cell: str, number: int, of: int) -> str:
    """One parameter's part of a cell that several share."""
    parts = [part.strip() for part in cell.split(',')]
    return parts[number] if of > 1 and len(parts) == of else cell


def table() -> dict[tuple[str, str], Row]:
    section = README.read_text(encoding='utf-8').split('\n## Parameters\n')[1].split('\n## ')[0]
    lines = [line for line in section.splitlines() if line.startswith('|')]
    assert cells(lines[0]) == ['node', 'parameter', 'default', 'range', 'run time', 'meaning']
    rows = {}
    for line in lines[2:]:
        nodes, names, default, limits, run_time, meaning = cells(line)
        names_found = re.findall(r'`([^`]+)`', names)
        for node in NODES if nodes == 'all' else [name.strip() for name in nodes.split(',')]:
            for number, name in enumerate(names_found):
                part = [share(cell, number, len(names_found)) for cell in (default, limits)]
                assert (node, name) not in rows, f'{node}: {name} stands there twice'
                rows[node, name] = Row(part[0], part[1], run_time, meaning)
    return rows


def number(text: str) -> float:
    digits = str.maketrans('⁰¹²³⁴⁵⁶⁷⁸⁹', '0123456789')
    text = text.replace('−', '-')
    if power := re.fullmatch(r'(\d+)([⁰¹²³⁴⁵⁶⁷⁸⁹]+)(-1)?', text):
        return float(int(power[1]) ** int(power[2].translate(digits)) + int(power[3] or 0))
    return float(text)


def test_the_table_is_complete() -> None:
    ours = {key for key in table() if key[0] in NODES}
    assert ours - OPEN_ENDED == set(SPECS) and ours >= OPEN_ENDED


def said(value: object) -> str:
    return '' if value == '' else str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize(('key', 'spec'), SPECS.items(), ids=[f'{node}-{name}' for node, name in SPECS])
def test_a_row_says_what_the_node_declares(key: tuple[str, str], spec: ParameterSpec) -> None:
    row = table()[key]
    assert row.default.strip('`"').replace('−', '-').strip() == said(spec.default)
    assert row.run_time == ('yes' if spec.dynamic else 'no') and row.meaning
    if spec.choices:
        assert set(re.findall(r'`([^`]+)`', row.limits)) - {'dma_heap/NAME'} <= set(spec.choices) and row.limits
    bounds = re.search(r'([-−]?[\d.]+(?:[⁰¹²³⁴⁵⁶⁷⁸⁹]+)?)…([-−]?[\d.]+(?:[⁰¹²³⁴⁵⁶⁷⁸⁹]+(?:−1)?)?)', row.limits)
    if spec.low is not None and spec.high is not None:
        assert bounds is not None, f'no range in {row.limits!r}'
        assert (number(bounds[1]), number(bounds[2])) == (spec.low, spec.high)
        if spec.unit and not spec.unit.startswith('IoU'):
            assert spec.unit in row.limits
