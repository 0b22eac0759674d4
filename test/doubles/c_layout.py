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

"""Layouts of C structs by a compiler, and of the package's ctypes structs, to be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import ctypes
from pathlib import Path
import re
import subprocess
from typing import Any

Layout = dict[str, Any]
"""
``{'structs': {name: {'sizeof', 'fields': [[name, offset, size, kind], ...]}},
'enums': {name: {enumerator: value}}}``.
"""

_STRUCT = re.compile(r'typedef struct \{([^{}]*)\} (\w+);')
_TAGGED_STRUCT = re.compile(r'(?<!typedef )struct (\w+) \{([^{}]*)\};')
_ENUM = re.compile(r'typedef enum \{([^{}]*)\} (\w+);')
_FIELD = re.compile(
    r'(?P<type>[\w ]+?)\s*(?P<pointer>\*?)\s*(?P<name>\w+)(?P<lengths>(?:\[[^\]]+\])*)'
)
_MACRO = re.compile(r'^#define[ \t]+(\w+)[ \t]+\S', re.MULTILINE)
_INTEGERS = {
    **dict.fromkeys(('int', 'int32_t', '__s32'), 'signed'), 'double': 'float', '_Bool': 'bool',
    **dict.fromkeys(('size_t', 'uint8_t', 'uint32_t', 'uint64_t', '__u32', '__u64'), 'unsigned'),
    'char': 'text', 'cudaStream_t': 'pointer',
}  # fmt: skip


def _printed(source: str, folder: Path, options: Sequence[object], **run: Any) -> str:
    """Compile a C program and return what it prints."""
    program, path = folder / 'program', folder / 'program.c'
    path.write_text(source, encoding='utf-8')
    subprocess.run(['gcc', '-Wall', '-o', program, path, *options], check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True, **run).stdout


def c_values(
    expressions: Sequence[str],
    headers: Sequence[str],
    folder: Path,
    options: Sequence[str] = (),
    **run: Any,
) -> dict[str, int]:
    """
    Return the values that a C compiler computes for integer expressions.

    :param headers: headers that they need, from the compiler's include path.
    :param run: options of ``subprocess.run``, for the program that prints the values.
    """
    includes = '\n'.join(f'#include <{header}>' for header in ('stddef.h', 'stdio.h', *headers))
    lines = '\n'.join(
        f'printf("%llu\\n", (unsigned long long)({expression}));' for expression in expressions
    )
    source = f'{includes}\nint main(void) {{\n{lines}\nreturn 0; }}\n'
    values = _printed(source, folder, options, **run).split()
    return dict(zip(expressions, map(int, values), strict=True))


def wrong_values(ours: Mapping[str, int], *where: Any, **run: Any) -> dict[str, tuple[int, int]]:
    """Return (C's value, ours) of what differs; the other arguments are those of c_values."""
    theirs = c_values([*ours], *where, **run)
    return {name: (theirs[name], ours[name]) for name in ours if theirs[name] != ours[name]}


def struct_expressions(
    name: str, struct: type[ctypes.Structure], members: Mapping[str, str]
) -> dict[str, int]:
    """
    Return C expressions for offsets and sizes of a struct's fields, with ctypes' values.

    :param members: C names of fields that have another name in C.
    """
    tag, found = f'{name} *', {}
    for field, *_ in struct._fields_:
        member, place = members.get(field, field), getattr(struct, field)
        found[f'offsetof({name}, {member})'] = place.offset
        found[f'sizeof((({tag})0)->{member})'] = place.size
    return found


def c_layout(
    header: Path, prefix: str, folder: Path, options: Sequence[str] = (), *, macros: str = ''
) -> Layout:
    """
    Return all structs and enums of *header* whose names begin with *prefix*.

    Names come from the header's text, everything else from the compiler.

    :param macros: macros with this prefix are values of an enum ``#define``; empty: none.
    """
    command = ['gcc', '-E', '-P', *options, header]
    text = ' '.join(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    )
    enums = {name: body for body, name in _ENUM.findall(text) if name.startswith(prefix)}
    structs = {name: body for body, name in _STRUCT.findall(text)}
    structs |= {f'struct {tag}': body for tag, body in _TAGGED_STRUCT.findall(text)}
    lines = []
    for c_name, body in structs.items():
        name = c_name.removeprefix('struct ')
        if not name.startswith(prefix):
            continue
        lines.append(f'printf("struct {name} %zu\\n", sizeof({c_name}));')
        for declaration in filter(None, (part.strip() for part in body.split(';'))):
            match = _FIELD.fullmatch(declaration)
            assert match, f'this test does not understand the declaration {declaration!r}'
            base, field, depth = match['type'], match['name'], match['lengths'].count('[')
            kind = _INTEGERS.get(base, base.removeprefix('struct '))
            kind = 'pointer' if match['pointer'] else 'signed' if base in enums else kind
            member = f'(({c_name} *)0)->{field}'
            lengths = ''.join('[%zu]' for _ in range(depth))
            counts = ''.join(
                f', sizeof({member}{"[0]" * level}) / sizeof({member}{"[0]" * (level + 1)})'
                for level in range(depth)
            )
            lines.append(
                f'printf("field {field} %zu %zu {kind}{lengths}\\n", offsetof({c_name}, '
                f'{field}), sizeof({member}){counts});'
            )
    for name, body in enums.items():
        lines.append(f'printf("enum {name}\\n");')
        for enumerator in filter(None, (part.split('=')[0].strip() for part in body.split(','))):
            lines.append(f'printf("value {enumerator} %d\\n", (int){enumerator});')
    if macros:
        lines.append('printf("enum #define\\n");')
        for name in _MACRO.findall(header.read_text(encoding='utf-8')):
            if name.startswith(macros):
                lines.append(f'printf("value {name} %lld\\n", (long long)({name}));')
    source = f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\nint main(void) {{\n'
    source += '\n'.join([*lines, 'return 0;', '}', ''])
    return _parsed(_printed(source, folder, [*options, '-I', header.parent]))


def _parsed(output: str) -> Layout:
    layout: Layout = {'structs': {}, 'enums': {}}
    members: Any = None
    for what, name, *values in (line.split() for line in output.splitlines()):
        if what == 'struct':
            members = []
            layout['structs'][name] = {'sizeof': int(values[0]), 'fields': members}
        elif what == 'field':
            members.append([name, int(values[0]), int(values[1]), values[2]])
        elif what == 'enum':
            members = layout['enums'].setdefault(name, {})
        else:
            members[name] = int(values[0])
    return layout


def python_layout(
    structs: Mapping[str, type[ctypes.Structure]], enums: Mapping[str, Mapping[str, int]]
) -> Layout:
    names = {struct: name for name, struct in structs.items()}
    layout: Layout = {'structs': {}}
    for name, struct in structs.items():
        fields = []
        for field, kind, *_ in struct._fields_:
            place = getattr(struct, field)
            fields.append([field, place.offset, place.size, _kind(kind, names)])
        layout['structs'][name] = {'sizeof': ctypes.sizeof(struct), 'fields': fields}
    numbers = {name: {key: int(n) for key, n in values.items()} for name, values in enums.items()}
    return {**layout, 'enums': numbers}


def _kind(field_type: Any, names: Mapping[Any, str]) -> str:
    if issubclass(field_type, ctypes.Array):
        inner = _kind(field_type._type_, names)
        base, bracket, rest = inner.partition('[')
        return f'{base}[{field_type._length_}]{bracket}{rest}'
    if issubclass(field_type, ctypes.Structure):
        return names.get(field_type, field_type.__name__)
    if field_type is ctypes.c_void_p or issubclass(field_type, ctypes._Pointer):
        return 'pointer'
    if field_type is ctypes.c_double:
        return 'float'
    if field_type is ctypes.c_bool:
        return 'bool'
    if field_type is ctypes.c_char:
        return 'text'
    return 'signed' if field_type(-1).value < 0 else 'unsigned'


def differences(
    theirs: Layout, ours: Layout, rests: Mapping[str, tuple[int, list[list[Any]]]] | None = None
) -> list[str]:
    """
    Return one line for each difference.

    :param rests: by struct of which the package defines only the beginning, the whole struct's
        size and its further fields, as in :data:`Layout`.
    """
    found = []
    for part in ('structs', 'enums'):
        for name in sorted(set(theirs[part]) | set(ours[part])):
            there, here = theirs[part].get(name), ours[part].get(name)
            rest = (rests or {}).get(name)
            if part == 'structs' and rest is not None and here:
                here = {'sizeof': rest[0], 'fields': [*here['fields'], *rest[1]]}
            if there != here:
                found.append(f'{name}: C {there}, Python {here}')
    return found
