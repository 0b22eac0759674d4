"""The tables of docs/parameters.md are those that the nodes' declarations give, and the program that writes them works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from zc_perception.nodes.params.kinds import node_kinds

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / 'docs/parameters.md'
PROGRAM = REPOSITORY / 'tools/parameters_page.py'
WRITE = '.venv/bin/python tools/parameters_page.py docs/parameters.md'


def write(page: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, PROGRAM, page], capture_output=True, text=True, timeout=120)


def test_the_page_in_the_repository_is_the_nodes_declarations(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding='utf-8')
    copy = tmp_path / 'parameters.md'
    kept, mark, _ = text.partition('<!-- tables:')
    copy.write_text(kept + mark + text.partition(mark)[2].partition('\n')[0] + '\n| old |\n', encoding='utf-8')
    written = write(copy)
    assert written.returncode == 0, written.stderr
    assert copy.read_text(encoding='utf-8') == text, f'write it anew: {WRITE}'


def test_each_parameter_has_one_row_of_five_cells_in_its_nodes_table() -> None:
    text = PAGE.read_text(encoding='utf-8')
    for name, node in node_kinds().items():
        section = text.partition(f'\n## {name}\n')[2].partition('\n## ')[0]
        rows = [re.split(r' (?<!\\)\| ', line.strip('| ')) for line in section.splitlines() if line.startswith('| `')]
        assert all(len(row) == 5 and all(row) for row in rows)
        assert [row[0] for row in rows] == [*(f'`{spec.name}`' for spec in node.SPECS), *(f'`{prefix}NAME`' for prefix in node.PREFIXES)]


def test_a_page_without_the_mark_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / 'other.md'
    page.write_text('# Other\n', encoding='utf-8')
    written = write(page)
    assert written.returncode != 0 and 'there is no line' in written.stderr
    assert page.read_text(encoding='utf-8') == '# Other\n'
