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
Write docs/api.md, docs/api_publisher.md and docs/api_types.md from docstrings.

The docstrings are those of the names in ``zc_perception/__init__.py``.
``python3 tools/api_page.py docs/api.md`` writes all pages; a test checks that they are up to date.
It reads the sources and imports nothing, so that it needs no ROS. A method whose docstring begins
with "For links:" or "For cameras:" is not for users, and is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path
import re
import sys
import textwrap

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 100
# A longer call is written without types, so that it fits a line of a list.
_LONGEST_CALL = WIDTH - 5
#: Classes of objects that the names return, and the module of each.
RETURNED = {
    'FrameData': 'zc_perception.frame',
    'SubscriptionStatistics': 'zc_perception.link.endpoints.subscription',
    'LoanedFrame': 'zc_perception.link.endpoints.frame_publisher',
    'FramePublisherStatistics': 'zc_perception.link.endpoints.frame_publisher',
    'PublisherStatistics': 'zc_perception.link.endpoints.publisher',
}
FRAMES_PAGE, PUBLISHER_PAGE, TYPES_PAGE = 'api.md', 'api_publisher.md', 'api_types.md'
#: By page, the names that it describes; FRAMES_PAGE describes all other names.
ELSEWHERE = {
    PUBLISHER_PAGE: ('FramePublisher', 'LoanedFrame', 'FramePublisherStatistics'),
    TYPES_PAGE: (
        'AdaptedPublisher',
        'AdaptedSubscription',
        'TypeAdapter',
        'SubscriptionStatistics',
        'PublisherStatistics',
    ),
}
HEADS = {
    FRAMES_PAGE: (
        '# API',
        'How a Python program uses the names of `zc_perception`. `tools/api_page.py` writes this.',
        '`from zc_perception import …` gives you {names}, and the text `__version__`. Each '
        'name is imported from its module when it is '
        'first used, so `import zc_perception` needs no ROS. Errors are classes of '
        "`zc_perception.errors`, or Python's own.",
    ),
    PUBLISHER_PAGE: (
        '# API for publishing frames',
        'How a Python program publishes camera frames of its own by {names}. '
        '`tools/api_page.py` writes this. '
        '[A camera of your own](own_camera.md) tells how to use it.',
    ),
    TYPES_PAGE: (
        '# API for types of your own',
        'The names of `zc_perception` that pass objects of any type. `tools/api_page.py` '
        'writes this. For camera frames you do not '
        'need them: see [the API](api.md).',
        'This page tells of {names}.',
    ),
}
_FIELD = re.compile(r':(param|raises) (\w+): ')
_ROLE = re.compile(r':\w+:`~?([^`]+)`')
_NOT_FOR_USERS = ('For links:', 'For cameras:')


def exported() -> dict[str, str]:
    """Return the names that ``zc_perception`` exports, and the module of each."""
    tree = ast.parse((ROOT / 'zc_perception/__init__.py').read_text(encoding='utf-8'))
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module is not None
            and node.module.startswith('zc_perception.')
        ):
            found |= {alias.name: node.module for alias in node.names}
    return found


def source_of(name: str, module: str) -> ast.ClassDef | ast.FunctionDef:
    """Return the syntax tree of a class or function."""
    path = ROOT / f'{module.replace(".", "/")}.py'
    body = ast.parse(path.read_text(encoding='utf-8')).body
    return next(
        node
        for node in body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name
    )


def page_of(name: str) -> str:
    """Return the page that describes a name."""
    return next((page for page, names in ELSEWHERE.items() if name in names), FRAMES_PAGE)


def _wrapped(text: str, indent: int = 0, hanging: int = 0) -> str:
    text = _ROLE.sub(r'`\1`', ' '.join(text.split())).replace('``', '`')
    text = re.sub(
        '`[^`]+`', lambda code: code[0].replace(' ', '\0'), text
    )  # code stays on its line
    first, others = ' ' * indent, ' ' * (indent + hanging)
    filled = textwrap.fill(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace('\0', ' ')


def _code(text: str) -> str:
    return f'```python\n{text}\n```'


def _link(name: str, page: str) -> str:
    return f'[`{name}`]({"" if page == page_of(name) else page_of(name)}#{name.lower()})'


def _blocks(docstring: str) -> Iterator[str]:
    """Yield a docstring's paragraphs; a literal block is one, without the ``::`` before it."""
    blocks = re.split(r'\n\n+', docstring.strip())
    while blocks:
        block = blocks.pop(0)
        if block.startswith('    '):
            while blocks and blocks[0].startswith('    '):
                block += f'\n\n{blocks.pop(0)}'
        if block != '::':
            yield block


def _items(block: str, types: dict[str, str], indent: int = 0) -> str:
    """Return a docstring's parameters, fields and errors as a list."""
    items = []
    for field in re.split(r'\n(?=:)', block):
        match = _FIELD.match(field)
        assert match is not None, field
        raises = 'raises ' if match[1] == 'raises' else ''
        typed = f' (`{types[match[2]]}`)' if match[2] in types else ''
        items.append(_wrapped(f'- {raises}`{match[2]}`{typed}: {field[match.end() :]}', indent, 2))
    return '\n'.join(items)


def _described(docstring: str, types: dict[str, str]) -> Iterator[str]:
    """
    Yield a class's docstring as Markdown.

    :param types: a dataclass's fields and their types; empty if ``:param:`` describes parameters.
    """
    for block in _blocks(docstring):
        if block.startswith('    '):
            yield _code(textwrap.dedent(block))
        elif _FIELD.match(block):
            yield from () if types else ('Parameters:',)
            yield _items(block, types)
        else:
            yield _wrapped(block)


def _argument(argument: ast.arg, default: ast.expr | None, typed: bool) -> str:
    if argument.annotation is None or not typed:
        return argument.arg + (f'={ast.unparse(default)}' if default is not None else '')
    return f'{argument.arg}: {ast.unparse(argument.annotation)}' + (
        f' = {ast.unparse(default)}' if default is not None else ''
    )


def _parameters(
    function: ast.FunctionDef, *, method: bool = True, typed: bool = True
) -> list[str]:
    """Return each parameter as it is declared, without ``self``, and with or without its type."""
    arguments = function.args
    own = arguments.args[1:] if method else arguments.args
    defaults = [None] * (len(own) - len(arguments.defaults)) + list(arguments.defaults)
    keywords = [
        _argument(*pair, typed)
        for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return [_argument(*pair, typed) for pair in zip(own, defaults, strict=True)] + (
        ['*', *keywords] if keywords else []
    )


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any('dataclass' in ast.unparse(decorator) for decorator in node.decorator_list)


def _data_fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    return [
        each
        for each in node.body
        if isinstance(each, ast.AnnAssign) and 'init=False' not in ast.unparse(each)
    ]


def _call(node: ast.ClassDef | ast.FunctionDef) -> str:
    """Return the call on one line, or with a line for each parameter if one is too long."""
    returns = ''
    if isinstance(node, ast.FunctionDef):
        parts = _parameters(node, method=False)
        returns = '' if node.returns is None else f' -> {ast.unparse(node.returns)}'
    elif _is_dataclass(node):
        parts = [ast.unparse(field) for field in _data_fields(node)]
    else:
        parts = _parameters(
            next(
                each
                for each in node.body
                if isinstance(each, ast.FunctionDef) and each.name == '__init__'
            )
        )
    line = f'{node.name}({", ".join(parts)}){returns}'
    return _code(
        line
        if len(line) <= WIDTH
        else f'{node.name}(\n' + ''.join(f'    {part},\n' for part in parts) + f'){returns}'
    )


def _member(function: ast.FunctionDef, docstring: str) -> str:
    """Return a method or property as a list item, with its parameters and errors below it."""
    returns = 'None' if function.returns is None else ast.unparse(function.returns)
    if any(ast.unparse(decorator) == 'property' for decorator in function.decorator_list):
        call = f'{function.name}: {returns}'
    else:
        result = f' -> {returns}' if returns != 'None' else ''
        calls = [
            f'{function.name}({", ".join(_parameters(function, typed=typed))}){result}'
            for typed in (True, False)
        ]
        call = calls[0] if len(calls[0]) <= _LONGEST_CALL else calls[1]
    blocks = list(_blocks(docstring))
    said = ' '.join(block for block in blocks if not _FIELD.match(block))
    # Four spaces, because the original Markdown doesn't treat fewer as a nested list.
    return '\n'.join(
        [
            _wrapped(f'- `{call}`: {said}', 0, 2),
            *(_items(block, {}, 4) for block in blocks if _FIELD.match(block)),
        ]
    )


def _sets(function: ast.FunctionDef) -> bool:
    """Return whether this is a setter; it is left out, because the getter has the docstring."""
    return any(ast.unparse(decorator).endswith('.setter') for decorator in function.decorator_list)


def _members(node: ast.ClassDef) -> Iterator[str]:
    for function in node.body:
        if (
            isinstance(function, ast.FunctionDef)
            and not function.name.startswith('_')
            and not _sets(function)
        ):
            docstring = ast.get_docstring(function) or ''
            if not docstring.startswith(_NOT_FOR_USERS):
                yield _member(function, docstring)


def section(name: str, module: str, sections: Collection[str]) -> Iterator[str]:
    """
    Yield the Markdown parts of one class or function.

    :param sections: all names that have a section.
    """
    node, returned = source_of(name, module), name in RETURNED
    docstring = ast.get_docstring(node) or ''
    yield f'## {name}'
    if returned:
        yield f'`{module}.{name}`'
    elif ':param ' in docstring:
        yield _call(node)
    if isinstance(node, ast.FunctionDef):
        yield from _described(docstring, {})
        return
    yield from _described(
        docstring,
        {ast.unparse(f.target): ast.unparse(f.annotation) for f in _data_fields(node)}
        if returned
        else {},
    )
    members = list(_members(node))
    if members:
        yield 'Properties:' if returned else 'Methods and properties:'
        yield '\n'.join(members)
    for base in (ast.unparse(base).partition('[')[0] for base in node.bases):
        if base in sections:
            yield f'It has the methods of {_link(base, page_of(name))}.'


def page(which: str) -> str:
    """Return the whole text of one of the pages."""
    names = exported()
    # The first page lists all names, because users look there first.
    listed = [name for name in names if which == FRAMES_PAGE or page_of(name) == which]
    parts = [
        _wrapped(part.format(names=', '.join(_link(name, which) for name in listed)))
        for part in HEADS[which]
    ]
    for name, module in (names | RETURNED).items():
        if page_of(name) == which:
            parts += section(name, module, {*names, *RETURNED})
    return '\n\n'.join(parts) + '\n'


if __name__ == '__main__':
    if len(sys.argv) != 2:
        sys.exit(f'usage: {sys.argv[0]} docs/{FRAMES_PAGE}')
    for each in HEADS:
        Path(sys.argv[1]).with_name(each).write_text(page(each), encoding='utf-8')
