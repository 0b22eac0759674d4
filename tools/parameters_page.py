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
Write the tables of docs/parameters.md from the nodes' declarations.

``.venv/bin/python tools/parameters_page.py docs/parameters.md`` replaces everything below the line
``<!-- tables … -->``. A test checks that the page is up to date.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
import sys

from zc_perception.nodes.params.schema import OPEN_ENDED
from zc_perception.nodes.params.verdict import node_kinds
from zc_perception.parameters import ParameterSpec

MARK = '<!-- tables: written by tools/parameters_page.py, do not edit below this line -->'
_STARTED_BY = {
    'capture': 'programs `capture_node` and `perception`, component `zc_perception::CaptureNode`',
    'inference': (
        'programs `inference_node` and `perception`, component `zc_perception::InferenceNode`'
    ),
    'overlay': 'programs `overlay_node` and `perception`, component `zc_perception::OverlayNode`',
    'recorder': 'program `zc_record`, component `zc_perception::RecorderNode`',
    'gstreamer': 'program `gstreamer_node`, component `zc_perception::GStreamerNode`',
}
_TYPES = {
    bool: '`true`, `false`',
    int: 'integer',
    float: 'number',
    str: 'text',
    list: 'list of texts',
}
_HEAD = ('| parameter | default | allowed | can change | meaning |', '|---|---|---|---|---|')


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f'{value:g}'


def _default(value: object) -> str:
    if isinstance(value, bool):
        return f'`{str(value).lower()}`'
    return '`""`' if value == '' else f'`{value}`'


def _allowed(spec: ParameterSpec) -> str:
    if spec.choices:
        return ', '.join(f'`{choice}`' for choice in spec.choices)
    text = _TYPES[type(spec.default)] + (
        ' or integers' if spec.whole_numbers and isinstance(spec.default, list) else ''
    )
    if spec.low is not None and spec.high is not None:
        text = f'{_number(spec.low)} to {_number(spec.high)}'
    text += f' {spec.unit}' if spec.unit else ''
    text += ', even' if spec.even else ''
    return text + (f', or {_number(spec.besides)}' if spec.besides is not None else '')


def _when(spec: ParameterSpec) -> str:
    if spec.dynamic:
        return 'any time'
    return 'at start only' if spec.fixed else 'unconfigured'


def _row(*cells: str) -> str:
    return f'| {" | ".join(cell.replace("|", chr(92) + "|") for cell in cells)} |'


def _rows(specs: Iterable[ParameterSpec]) -> list[str]:
    return [
        _row(
            f'`{spec.name}`', _default(spec.default), _allowed(spec), _when(spec), spec.description
        )
        for spec in specs
    ]


def tables() -> str:
    """Return the part of the page below :data:`MARK`."""
    lines: list[str] = []
    driver = "the driver's"
    for name, node in node_kinds().items():
        open_ended = [
            _row(f'`{prefix}NAME`', driver, driver, 'any time', OPEN_ENDED[prefix.rstrip('.')])
            for prefix in node.PREFIXES
        ]
        lines += [
            '',
            f'## {name}',
            '',
            f'Started by: {_STARTED_BY[name]}.',
            '',
            *_HEAD,
            *_rows(node.SPECS.own),
            *open_ended,
        ]
        kinds = node.SPECS.kinds
        for kind in () if kinds is None else kinds.built_in:
            lines += [
                '',
                f'### {node.SPECS.chooses}: {kind}',
                '',
                *_HEAD,
                *_rows(kinds.load(kind).PARAMETERS),
            ]
    return '\n'.join(lines) + '\n'


def page(text: str) -> str:
    """
    Return the page with new tables.

    :param text: the old page.
    :raises ValueError: the page has no line :data:`MARK`.
    """
    kept, mark, _ = text.partition(f'{MARK}\n')
    if not mark:
        raise ValueError(f"there is no line '{MARK}'; write it above the tables")
    return kept + mark + tables()


def main(args: Sequence[str] | None = None) -> int:
    """Replace the page's tables; return the exit code, 2 if that fails."""
    parser = argparse.ArgumentParser(
        prog='parameters_page', description="The parameters' page, from the nodes' declarations."
    )
    parser.add_argument('path', type=Path, help='page to rewrite, docs/parameters.md')
    path = parser.parse_args(args).path
    try:
        path.write_text(page(path.read_text(encoding='utf-8')), encoding='utf-8')
    except (OSError, ValueError) as error:
        print(f"parameters_page: '{path}': {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == '__main__':
    sys.exit(main())
