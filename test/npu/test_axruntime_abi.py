"""The structs and enums of the Voyager runtime's double are the package's, as a C compiler lays them out."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

import pytest
from doubles.c_layout import Layout, Rest, c_layout, differences, is_noticed, python_layout

from zc_perception.npu.axruntime import library as abi
from zc_perception.npu.axruntime.session import device_stride

DOUBLES = Path(__file__).resolve().parents[1] / 'doubles'
HEADER = DOUBLES / 'axruntime.h'
STRUCTS: dict[str, type[ctypes.Structure]] = {
    'axrArgument': abi.Argument,
    'axrDeviceInfo': abi.DeviceInfo,
    'axrTensorInfo': abi.TensorInfo,
}
#: Not on the market: the package has no names for them.
UNNAMED = {'axrBoardType': {'AXR_BOARD_METIS_UNUSED1': 0, 'AXR_BOARD_METIS_UNUSED2': 1}}
RELEASES = {'today': (), 'later': ('-DLATER_RELEASE',)}
#: What the double's later release has behind the fields that the package knows.
RESTS: dict[str, dict[str, Rest]] = {'today': {}, 'later': {'axrDeviceInfo': Rest(1608, [['something_new', 1568, 40, 'unsigned[5]']])}}


def ours() -> Layout:
    def named(enum: type[IntEnum], prefix: str) -> dict[str, IntEnum]:
        return {f'{prefix}{value.name}': value for value in enum}

    results = {f'AXR_{"" if value is abi.Result.SUCCESS else "ERROR_"}{value.name}': value for value in abi.Result}
    return python_layout(
        STRUCTS,
        {
            'axrResult': results,
            'axrBoardType': {**UNNAMED['axrBoardType'], **named(abi.BoardType, 'AXR_BOARD_')},
            'axrTensorDataType': named(abi.TensorDataType, 'AXR_'),
        },
    )


def compare(header: Path, folder: Path, release: str) -> list[str]:
    return differences(c_layout(header, 'axr', folder, RELEASES[release]), ours(), RESTS[release])


@pytest.mark.parametrize('release', RELEASES)
def test_python_and_c_agree(release: str, tmp_path: Path) -> None:
    assert compare(HEADER, tmp_path, release) == []


def test_the_sizes_are_those_that_were_computed_by_hand() -> None:
    """Of the documented fields on LP64: nothing that both sides could have got wrong together."""
    assert [ctypes.sizeof(struct) for struct in STRUCTS.values()] == [32, 1568, 488]
    assert (abi.Argument.offset.offset, abi.Argument.size.offset) == (16, 24)
    assert (abi.TensorInfo.padding.offset, abi.TensorInfo.scale.offset, abi.TensorInfo.zero_point.offset) == (344, 472, 480)


MUTATIONS = {
    'a member less': ('\tsize_t offset;\n\tsize_t size;\n', '\tsize_t size;\n'),
    'a member more': ('\tint fd;\n', '\tint fd;\n\tint flags;\n'),
    'two members swapped': ('\tsize_t ndims;\n\tsize_t bits;\n', '\tsize_t bits;\n\tsize_t ndims;\n'),
    'a member renamed': ('\tsize_t bits;', '\tsize_t bit;'),
    'a wider member': ('\tint zero_point;', '\tlong zero_point;'),
    'a float': ('\tdouble scale;', '\tfloat scale;'),
    'another sign': ('\tint fd;', '\tunsigned fd;'),
    'a longer name': ('\tchar name[256];\n\tsize_t padding', '\tchar name[264];\n\tsize_t padding'),
    'a shorter table': ('padding[AXR_MAX_TENSOR_DIMS][2]', 'padding[2][AXR_MAX_TENSOR_DIMS]'),
    'more dimensions': ('AXR_MAX_TENSOR_DIMS 8', 'AXR_MAX_TENSOR_DIMS 10'),
    'a pointer made a number': ('\tvoid *ptr;', '\tsize_t ptr;'),
    'an enum value inserted': ('\tAXR_ERROR_DEVICE_IN_USE,', '\tAXR_ERROR_NEW,\n\tAXR_ERROR_DEVICE_IN_USE,'),
    'an enum value renamed': ('\tAXR_SIGNED,', '\tAXR_INTEGER,'),
    'a later release that is not': ('\tsize_t something_new[5];\n', ''),
    'a board less': ('\tAXR_BOARD_METIS_UNUSED1,\n', ''),
    'a longer later release': ('something_new[5]', 'something_new[6]'),
    'a later release of another kind': ('\tsize_t something_new', '\tdouble something_new'),
    'a new struct': ('#include <stddef.h>\n', '#include <stddef.h>\ntypedef struct {\n\tint more;\n} axrMore;\n'),
}


@pytest.mark.parametrize('mutation', MUTATIONS.values(), ids=MUTATIONS)
def test_a_changed_header_is_noticed(mutation: tuple[str, str], tmp_path: Path) -> None:
    assert is_noticed(mutation, HEADER, tmp_path, lambda header: any(compare(header, tmp_path, release) for release in RELEASES))


def _other_argument(patch: pytest.MonkeyPatch) -> None:
    class Argument(ctypes.Structure):
        _fields_ = (('ptr', ctypes.c_void_p), ('fd', ctypes.c_long), ('offset', ctypes.c_size_t), ('size', ctypes.c_size_t))

    patch.setitem(STRUCTS, 'axrArgument', Argument)


class _OtherResult(IntEnum):
    SUCCESS = 0
    VALUE_ERROR = 1


@pytest.mark.parametrize(
    'change',
    [_other_argument, lambda patch: patch.delitem(STRUCTS, 'axrDeviceInfo'), lambda patch: patch.setattr(abi, 'Result', _OtherResult)],
    ids=['struct', 'missing struct', 'enum'],
)
def test_a_changed_module_is_noticed(change: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    change(monkeypatch)
    assert compare(HEADER, tmp_path, 'today')


def test_all_structs_of_the_module_are_compared() -> None:
    structs = {value for value in vars(abi).values() if isinstance(value, type) and issubclass(value, ctypes.Structure)}
    assert structs == set(STRUCTS.values())


def test_every_function_has_the_documented_number_of_arguments() -> None:
    text = ' '.join(HEADER.read_text(encoding='utf-8').split())
    functions = abi.FUNCTIONS | abi.OPTIONAL_FUNCTIONS
    for name, (result, arguments) in functions.items():
        match = re.search(rf'(\w[\w ]*[ *]){name}\(([^)]*)\);', text)
        assert match, f'{name} is not in the header'
        documented = [] if match[2] == 'void' else match[2].split(',')
        assert len(documented) == len(arguments), name
        assert (result is None) == (match[1].strip() == 'void'), name
        assert [('*' in text) for text in documented] == [is_pointer(argument) for argument in arguments], name


def is_pointer(argument: type) -> bool:
    return argument in (ctypes.c_void_p, ctypes.c_char_p) or issubclass(argument, ctypes._Pointer)


@pytest.mark.parametrize('size', [800, 1568, 1608, 4088])
@pytest.mark.parametrize('count', [2, 3, 4])
def test_the_distance_of_devices_is_measured(size: int, count: int) -> None:
    """Releases before and after have other lengths; nothing is read behind the list."""
    listed = b''.join(f'metis-{n}:{n + 1}:0'.encode().ljust(size, b'\0') for n in range(count))
    memory = ctypes.create_string_buffer(listed, len(listed))
    assert device_stride(ctypes.addressof(memory), count) == size


def test_one_device_has_no_distance() -> None:
    assert device_stride(0, 1) == ctypes.sizeof(abi.DeviceInfo)
