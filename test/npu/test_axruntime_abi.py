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

"""The structs and enums of the runtime's double are the package's, as a C compiler has them."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from pathlib import Path
import re

from doubles.c_layout import c_layout, differences, Layout, python_layout, Rest
import pytest

from zc_perception.npu.axruntime import library as abi
from zc_perception.npu.axruntime.runtime import device_stride

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
RESTS: dict[str, dict[str, Rest]] = {
    'today': {},
    'later': {'axrDeviceInfo': Rest(1608, [['something_new', 1568, 40, 'unsigned[5]']])},
}


def ours() -> Layout:
    def named(enum: type[IntEnum], prefix: str) -> dict[str, IntEnum]:
        return {f'{prefix}{value.name}': value for value in enum}

    results = {
        f'AXR_{"" if value is abi.Result.SUCCESS else "ERROR_"}{value.name}': value
        for value in abi.Result
    }
    return python_layout(
        STRUCTS,
        {
            'axrResult': results,
            'axrBoardType': {**UNNAMED['axrBoardType'], **named(abi.BoardType, 'AXR_BOARD_')},
            'axrTensorDataType': named(abi.TensorDataType, 'AXR_'),
        },
    )


@pytest.mark.parametrize('release', RELEASES)
def test_python_and_c_agree(release: str, tmp_path: Path) -> None:
    assert (
        differences(c_layout(HEADER, 'axr', tmp_path, RELEASES[release]), ours(), RESTS[release])
        == []
    )


def test_the_sizes_are_those_that_were_computed_by_hand() -> None:
    """Of the documented fields on LP64: nothing that both sides could have got wrong together."""
    assert [ctypes.sizeof(struct) for struct in STRUCTS.values()] == [32, 1568, 488]
    assert (abi.Argument.offset.offset, abi.Argument.size.offset) == (16, 24)
    assert (
        abi.TensorInfo.padding.offset,
        abi.TensorInfo.scale.offset,
        abi.TensorInfo.zero_point.offset,
    ) == (344, 472, 480)


def test_all_structs_of_the_module_are_compared() -> None:
    structs = {
        value
        for value in vars(abi).values()
        if isinstance(value, type) and issubclass(value, ctypes.Structure)
    }
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
        assert [('*' in text) for text in documented] == [
            is_pointer(argument) for argument in arguments
        ], name


def is_pointer(argument: type) -> bool:
    return argument in (ctypes.c_void_p, ctypes.c_char_p) or issubclass(argument, ctypes._Pointer)


@pytest.mark.parametrize('size', [544, 800, 1568, 1608, 4088])
@pytest.mark.parametrize(
    'second', [b'metis-0:1a:0', b'metis-a:FF:1f', b'metis-0-1a-0', b'europa-0-1-0']
)
def test_the_distance_of_devices_is_measured(size: int, second: bytes) -> None:
    """Releases before and after have other lengths; nothing is read behind the list."""
    memory = ctypes.create_string_buffer(
        b'metis-0:1:0'.ljust(size, b'\0') + second.ljust(size, b'\0'), 2 * size
    )
    assert device_stride(ctypes.addressof(memory), 2) == size
    assert device_stride(0, 1) == ctypes.sizeof(abi.DeviceInfo), 'one device has no distance'
