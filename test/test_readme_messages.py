"""Messages that the README's troubleshooting explains are those that the code has."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Example values and what an ellipsis leaves out; the words between them are literal.
VARIES = re.compile(r"…|'[^']*'|\b\d+\b|\b(?:x|y|N|WxH)\b|/[\w/*-]*|\b(?:ros_message|unmatched|refused|axl import_planes|EINVAL)\b")


def table() -> list[str]:
    below = (ROOT / 'README.md').read_text(encoding='utf-8').split('\n## Troubleshooting\n')[1].split('\n## ')[0]
    first = [re.split(r'(?<!\\)\|', line)[1].strip() for line in below.splitlines() if line.startswith('|')]
    return [cell[1:].split('`')[0] for cell in first if cell.startswith('`')]


@functools.cache
def literals() -> tuple[str, ...]:
    """Every text in the code; what is put into one is an ellipsis."""

    def texts(path: Path) -> Iterator[str]:
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if isinstance(node, ast.JoinedStr):
                yield ''.join(part.value if isinstance(part, ast.Constant) else '…' for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value

    return tuple(text for path in sorted((ROOT / 'zc_perception').rglob('*.py')) for text in texts(path))


def clauses(message: str) -> list[list[str]]:
    """What has to be in the code: a message is put together of clauses, each of which is one text with these words in this order."""
    pieces = [[piece.strip(" ,()'") for piece in VARIES.split(clause)] for clause in re.split('[:;]', message)]
    return [kept for clause in pieces if (kept := [piece for piece in clause if len(re.findall('[A-Za-z]', piece)) >= 4])]


def occurs(clause: list[str]) -> bool:
    return any(re.search('.*'.join(map(re.escape, clause)), text, re.DOTALL) for text in literals())


def test_there_are_messages() -> None:
    assert len(table()) >= 20 and all(clauses(message) for message in table() if message != '… PCIe …')


@pytest.mark.parametrize('message', table())
def test_a_message_is_one_that_the_code_has(message: str) -> None:
    assert [clause for clause in clauses(message) if not occurs(clause)] == []


def test_another_message_would_be_noticed() -> None:
    (clause,) = clauses("calibration '…' is of WxH, the camera gives WxH")
    assert clause == ['calibration', 'is of', 'the camera gives'] and not occurs(clause)
