"""The C header that a driver is built from and the structs that user space packs are the same, byte for byte."""

from __future__ import annotations

import ctypes
import enum
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doubles.c_layout import is_noticed

from zc_perception.npu.axl import abi

HEADER = Path(__file__).resolve().parents[1] / 'rig/module/axl_ioctl.h'

#: What each C name is called in Python.
STRUCTS: dict[str, type[ctypes.LittleEndianStructure]] = {
    'axl_import_fd': abi.AxlImportFd,
    'axl_submit': abi.AxlSubmit,
    'axl_plane': abi.AxlPlane,
    'axl_import_planes': abi.AxlImportPlanes,
    'axl_submit2': abi.AxlSubmit2,
    'axl_format': abi.AxlFormat,
    'axl_query': abi.AxlQuery,
}
NOT_IN_PYTHON = {'AXL_IOCTL_H'}

Layout = dict[str, Any]


def python_layout() -> Layout:
    """Return what `axl_abi` says."""
    constants = {f'AXL_IMPORT_{flag.name}': int(flag) for flag in abi.ImportFlags}
    constants |= {'AXL_MAX_PLANES': abi.MAX_PLANES, 'AXL_ABI_VERSION': abi.ABI_VERSION}
    constants |= {'AXL_IOCTL_TYPE': ord(abi.IOCTL_TYPE)}
    constants |= {f'AXL_IOCTL_{name.upper()}': getattr(abi.REQUESTS, name) for name in abi.IOCTL_NUMBERS}
    structs = {
        name: {
            'sizeof': ctypes.sizeof(struct),
            'fields': [[field[0], *_place(struct, field[0]), _kind(field[1])] for field in struct._fields_],
        }
        for name, struct in STRUCTS.items()
    }
    return {'structs': structs, 'constants': constants}


def _place(struct: type[ctypes.LittleEndianStructure], name: str) -> tuple[int, int]:
    descriptor = getattr(struct, name)
    return descriptor.offset, descriptor.size


def _kind(field_type: Any) -> str:
    """Return signedness, or the name of a struct; with the length of an array."""
    if issubclass(field_type, ctypes.Array):
        return f'{_kind(field_type._type_)}[{field_type._length_}]'
    if issubclass(field_type, ctypes.Structure):
        return re.sub('(?<=.)(?=[A-Z])', '_', field_type.__name__).lower()
    return 'signed' if field_type(-1).value < 0 else 'unsigned'


def c_layout(header: Path, folder: Path) -> Layout:
    """Return what a C compiler says."""
    text = re.sub(r'/\*.*?\*/', '', header.read_text(encoding='utf-8'), flags=re.DOTALL)
    lines = []
    for name, body in re.findall(r'^struct (\w+) \{(.*?)^\};', text, flags=re.DOTALL | re.MULTILINE):
        lines.append(f'printf("struct {name} %zu\\n", sizeof(struct {name}));')
        for declaration in filter(None, (part.strip() for part in body.split(';'))):
            lines.append(_print_field(name, declaration))
    for name in re.findall(r'^#define\s+(\w+)(?:\s|$)', text, flags=re.MULTILINE):
        if name not in NOT_IN_PYTHON:
            lines.append(f'printf("constant {name} %llu\\n", (unsigned long long)(unsigned int)({name}));')
    source = folder / 'layout.c'
    source.write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\nint main(void) {{\n' + '\n'.join(lines) + '\nreturn 0;\n}\n',
        encoding='utf-8',
    )
    program = folder / 'layout'
    subprocess.run([_compiler(), '-Wall', '-Werror', '-o', str(program), str(source)], check=True)
    return _parsed(subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout)


def _print_field(struct: str, declaration: str) -> str:
    match = re.fullmatch(r'(?:struct )?(\w+)\s+(\w+)(?:\[(\w+)\])?', declaration)
    assert match, f'this test does not understand the declaration {declaration!r}'
    base, name, length = match.groups()
    count = f'(size_t){length}' if length else '(size_t)0'
    kind = f'"{base}"' if f'struct {base}' in declaration else f'(__typeof__({base}))-1 < 0 ? "signed" : "unsigned"'
    place = f'offsetof(struct {struct}, {name}), sizeof(((struct {struct} *)0)->{name})'
    return f'printf("field {name} %zu %zu %s %zu\\n", {place}, {kind}, {count});'


def _parsed(output: str) -> Layout:
    layout: Layout = {'structs': {}, 'constants': {}}
    fields: list[list[Any]] = []
    for what, name, *values in (line.split() for line in output.splitlines()):
        if what == 'struct':
            fields = []
            layout['structs'][name] = {'sizeof': int(values[0]), 'fields': fields}
        elif what == 'field':
            offset, size, kind, count = values
            fields.append([name, int(offset), int(size), kind if count == '0' else f'{kind}[{count}]'])
        else:
            layout['constants'][name] = int(values[0])
    return layout


def _compiler() -> str:
    found = shutil.which('gcc') or shutil.which('cc')
    if not found:
        pytest.skip('no C compiler: apt-get install gcc')
    return found


def difference(header: Path, folder: Path) -> list[str]:
    """Return each line in which the two sides differ."""
    ours = json.dumps(python_layout(), indent=1, sort_keys=True).splitlines()
    theirs = json.dumps(c_layout(header, folder), indent=1, sort_keys=True).splitlines()
    return sorted(set(ours) ^ set(theirs)) or ([] if ours == theirs else ['the order differs'])


def test_python_and_c_agree(tmp_path: Path) -> None:
    assert difference(HEADER, tmp_path) == []


def test_the_header_stands_alone_in_c_and_cpp(tmp_path: Path) -> None:
    for suffix, options in (('.c', ['-std=c99', '-Wall', '-Wextra', '-pedantic']), ('.cpp', ['-Wall', '-Wextra'])):
        source = tmp_path / f'alone{suffix}'
        source.write_text(f'#include "{HEADER}"\nint alone;\n', encoding='utf-8')
        if suffix == '.cpp' and not shutil.which('g++'):
            continue
        subprocess.run([_compiler(), *options, '-Werror', '-fsyntax-only', str(source)], check=True)


def test_the_sizes_are_the_pinned_ones() -> None:
    sizes = [ctypes.sizeof(struct) for struct in (abi.AxlImportFd, abi.AxlSubmit, abi.AxlPlane, abi.AxlImportPlanes)]
    assert [*sizes, ctypes.sizeof(abi.AxlSubmit2), ctypes.sizeof(abi.AxlQuery)] == [40, 40, 24, 168, 48, 32]
    codes = [getattr(abi.REQUESTS, name) for name in abi.IOCTL_NUMBERS]
    assert codes == [0xC0285540, 0xC0285541, 0x40045542, 0xC0A85543, 0xC0305544, 0xC0205545]


MUTATIONS: dict[str, tuple[str, str]] = {
    'a member less': ('\t__u64 seqno;\t\t/* out: counts the jobs of this open file from 1 */\n', ''),
    'a member more': ('\t__s32 fence_fd;\t\t/* out */\n', '\t__s32 fence_fd;\n\t__u32 more;\n'),
    'two members swapped': (
        '\t__u32 width;\t\t/* in */\n\t__u32 height;\t\t/* in */\n\t__u32 pixfmt;',
        '\t__u32 height;\n\t__u32 width;\n\t__u32 pixfmt;',
    ),
    'a member renamed': ('\t__u32 model_id;', '\t__u32 model;'),
    'a signed fd made unsigned': ('\t__s32 result_fd;', '\t__u32 result_fd;'),
    'a wider member': ('\t__u32 stride;', '\t__u64 stride;'),
    'a longer array': ('iova_base[AXL_MAX_PLANES]', 'iova_base[5]'),
    'another number': ('_IOWR(AXL_IOCTL_TYPE, 68,', '_IOWR(AXL_IOCTL_TYPE, 70,'),
    'another direction': ('_IOW(AXL_IOCTL_TYPE, 66,', '_IOWR(AXL_IOCTL_TYPE, 66,'),
    'another type': ("AXL_IOCTL_TYPE\t\t\t'U'", "AXL_IOCTL_TYPE\t\t\t'V'"),
    'another flag': ('AXL_IMPORT_FROM_DEVICE\t\t(1 << 1)', 'AXL_IMPORT_FROM_DEVICE\t\t(1 << 3)'),
    'a new flag': ('#define AXL_MAX_PLANES', '#define AXL_IMPORT_COHERENT (1 << 3)\n#define AXL_MAX_PLANES'),
    'a new struct': ('#define AXL_ABI_VERSION', 'struct axl_more {\n\t__u32 pad;\n};\n#define AXL_ABI_VERSION'),
    'another version': ('AXL_ABI_VERSION\t\t\t2', 'AXL_ABI_VERSION\t\t\t3'),
}


@pytest.mark.parametrize('mutation', MUTATIONS.values(), ids=MUTATIONS)
def test_a_changed_header_is_noticed(mutation: tuple[str, str], tmp_path: Path) -> None:
    assert is_noticed(mutation, HEADER, tmp_path, lambda header: difference(header, tmp_path))


class _SwappedPlane(ctypes.LittleEndianStructure):
    _fields_ = (
        ('stride', ctypes.c_uint32),
        ('fd', ctypes.c_int32),
        ('offset', ctypes.c_uint64),
        ('size', ctypes.c_uint64),
    )


class _MoreFlags(enum.IntFlag):
    TO_DEVICE = 1
    FROM_DEVICE = 2
    BIDIRECTIONAL = 4
    COHERENT = 8


@pytest.mark.parametrize(
    'change',
    [
        lambda patch: patch.setitem(STRUCTS, 'axl_plane', _SwappedPlane),
        lambda patch: patch.delitem(STRUCTS, 'axl_format'),
        lambda patch: patch.setattr(abi, 'ImportFlags', _MoreFlags),
        lambda patch: patch.setattr(abi, 'REQUESTS', abi.requests({'query': 70})),
        lambda patch: patch.setattr(abi, 'ABI_VERSION', 3),
    ],
    ids=['struct', 'missing struct', 'flag', 'number', 'version'],
)
def test_a_changed_module_is_noticed(change: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    change(monkeypatch)
    assert difference(HEADER, tmp_path)


def test_all_structs_of_the_module_are_compared() -> None:
    structs = {value for value in vars(abi).values() if isinstance(value, type) and issubclass(value, ctypes.Structure)}
    assert structs - {ctypes.LittleEndianStructure} == set(STRUCTS.values())


def test_numbers_can_be_replaced() -> None:
    codes = abi.requests({'query': 77, 'import_fd': 78})
    assert (codes.query & 0xFF, codes.import_fd & 0xFF, codes.submit) == (77, 78, abi.REQUESTS.submit)
    assert abi.requests(ioctl_type='X').submit == abi.ioc(3, 'X', 65, 40)


@pytest.mark.parametrize(
    ('numbers', 'ioctl_type', 'message'),
    [
        ({'imprt_fd': 64}, 'U', 'no ioctl is called imprt_fd; there are import_fd, submit'),
        ({'query': 64}, 'U', 'the ioctls import_fd and query have the same number 64'),
        ({'query': 256}, 'U', 'within 0..255, got 256'),
        ({'query': -1}, 'U', 'within 0..255, got -1'),
        ({}, 'UV', "one byte, got 'UV'"),
        ({}, '', "one byte, got ''"),
    ],
)
def test_bad_numbers_are_named(numbers: dict[str, int], ioctl_type: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        abi.requests(numbers, ioctl_type)


def test_arguments_have_a_size_limit() -> None:
    with pytest.raises(ValueError, match='less than 16384 bytes, got 16384'):
        abi.ioc(3, 'U', 64, 16384)
