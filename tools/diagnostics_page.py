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
Write the tables of docs/diagnostics.md from the rows of the nodes' parts.

``.venv/bin/python tools/diagnostics_page.py docs/diagnostics.md`` replaces the table below each
line ``<!-- rows: MODULE.NAME -->``. A test checks that the page is up to date.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
import re
import sys

from zc_perception.observe.diagnostics import Level, Part, Row

MARK = re.compile(r'(<!-- rows: ([\w.]+)\.(\w+) -->\n\n)(?:\|.*\n)*')
_FIELD = re.compile(r'\{[^{}]*\}')


def _cells(row: Row) -> str:
    sentence, advice = (_FIELD.sub('…', text) for text in (row.sentence, row.advice))
    said = f', {row.shown}' if row.shown else f' `{sentence}`'
    step = '; '.join(text for text in ('' if advice == '…' else advice, row.see) if text)
    return ' | '.join(cell.replace('|', r'\|') for cell in (f'{row.level.name}{said}', step))


def table(part: Part) -> str:
    """Return a table of a part's warnings and errors, with the advice for each."""
    rows = [f'| {_cells(row)} |\n' for row in part.rows if row.level is not Level.OK]
    return ''.join(['| message | what to do |\n', '|---|---|\n', *rows])


def page(text: str) -> str:
    """Return the page *text* with new tables."""
    return MARK.sub(
        lambda found: found[1] + table(getattr(import_module(found[2]), found[3])), text
    )


if __name__ == '__main__':
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text(encoding='utf-8')), encoding='utf-8')
