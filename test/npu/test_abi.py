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

"""Structs, enums and ioctl numbers of axl and the Voyager runtime, against a C compiler."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from pathlib import Path
import re
import shutil
import subprocess
from types import ModuleType

from doubles.c_layout import c_layout, differences, Layout, python_layout
import pytest

from zc_perception.errors import AcceleratorError
from zc_perception.npu.axl import abi as axl
from zc_perception.npu.axruntime import library as axr
from zc_perception.npu.axruntime.runtime import device_stride

TESTS = Path(__file__).resolve().parents[1]
AXL_HEADER, AXR_HEADER = TESTS / 'rig/module/axl_ioctl.h', TESTS / 'doubles/axruntime.h'


def structs_of(module: ModuleType) -> dict[str, type[ctypes.Structure]]:
    """Return all structs that the module defines."""
    classes = {name: each for name, each in vars(module).items() if isinstance(each, type)}
    base = ctypes.LittleEndianStructure
    return {
        name: each
        for name, each in classes.items()
        if issubclass(each, ctypes.Structure) and each not in (base, ctypes.Structure)
    }


#: The Python class of each C name.
AXL_STRUCTS = {
    re.sub(r'(?<=[a-z])(?=[A-Z])', '_', name).lower(): each
    for name, each in structs_of(axl).items()
}
AXR_STRUCTS = {f'axr{name}': each for name, each in structs_of(axr).items()}
#: The module's constants, by the header's macros.
CONSTANTS = {
    **{f'AXL_IMPORT_{flag.name}': int(flag) for flag in axl.ImportFlags},
    'AXL_MAX_PLANES': axl.MAX_PLANES,
    'AXL_ABI_VERSION': axl.ABI_VERSION,
    'AXL_IOCTL_TYPE': ord(axl.IOCTL_TYPE),
    **{f'AXL_IOCTL_{name.upper()}': getattr(axl.REQUESTS, name) for name in axl.IOCTL_NUMBERS},
}
#: Unsold boards: the package has no names for them.
UNNAMED = {'AXR_BOARD_METIS_UNUSED1': 0, 'AXR_BOARD_METIS_UNUSED2': 1}
#: Fields of the double's later release, behind those that the package defines.
LATER = {'axrDeviceInfo': (1608, [['something_new', 1568, 40, 'unsigned[5]']])}


def test_axl_agrees_with_its_header(tmp_path: Path) -> None:
    theirs = c_layout(AXL_HEADER, 'axl_', tmp_path, macros='AXL_')
    assert differences(theirs, python_layout(AXL_STRUCTS, {'#define': CONSTANTS})) == []


def test_the_header_stands_alone_in_c_and_cpp(tmp_path: Path) -> None:
    for suffix, options in (('.c', ['-std=c99', '-pedantic']), ('.cpp', [])):
        source = tmp_path / f'alone{suffix}'
        source.write_text(f'#include "{AXL_HEADER}"\nint alone;\n', encoding='utf-8')
        command = ['gcc', *options, '-Wall', '-Wextra', '-Werror', '-fsyntax-only', str(source)]
        if suffix == '.c' or shutil.which('g++'):
            subprocess.run(command, check=True)


def test_the_sizes_of_axl_are_the_pinned_ones() -> None:
    sizes = [ctypes.sizeof(struct) for struct in AXL_STRUCTS.values()]
    assert sizes == [40, 40, 24, 168, 48, ctypes.sizeof(axl.AxlFormat), 32]
    codes = [getattr(axl.REQUESTS, name) for name in axl.IOCTL_NUMBERS]
    assert codes == [0xC0285540, 0xC0285541, 0x40045542, 0xC0A85543, 0xC0305544, 0xC0205545]


def our_runtime() -> Layout:
    def named(enum: type[IntEnum], prefix: str) -> dict[str, int]:
        return {f'{prefix}{value.name}': value for value in enum}

    results = named(axr.Result, 'AXR_ERROR_')
    results['AXR_SUCCESS'] = results.pop('AXR_ERROR_SUCCESS')
    boards = {**UNNAMED, **named(axr.BoardType, 'AXR_BOARD_')}
    types = named(axr.TensorDataType, 'AXR_')
    enums = {'axrResult': results, 'axrBoardType': boards, 'axrTensorDataType': types}
    return python_layout(AXR_STRUCTS, enums)


@pytest.mark.parametrize('release', ['today', 'later'])
def test_the_runtime_agrees_with_its_double(release: str, tmp_path: Path) -> None:
    options, rests = (['-DLATER_RELEASE'], LATER) if release == 'later' else ([], {})
    theirs = c_layout(AXR_HEADER, 'axr', tmp_path, options)
    assert differences(theirs, our_runtime(), rests) == []


def test_the_sizes_of_the_runtime_are_those_that_were_computed_by_hand() -> None:
    """The sizes follow from the documented fields on LP64: both sides might share an error."""
    assert [ctypes.sizeof(struct) for struct in AXR_STRUCTS.values()] == [32, 1568, 488]
    assert (axr.Argument.offset.offset, axr.Argument.size.offset) == (16, 24)
    info = axr.TensorInfo
    places = info.padding.offset, info.scale.offset, info.zero_point.offset
    assert places == (344, 472, 480)


def test_every_function_has_the_documented_number_of_arguments() -> None:
    text = ' '.join(AXR_HEADER.read_text(encoding='utf-8').split())
    pointers = ctypes.c_void_p, ctypes.c_char_p, ctypes._Pointer
    for name, (result, arguments) in (axr.FUNCTIONS | axr.OPTIONAL_FUNCTIONS).items():
        match = re.search(rf'(\w[\w ]*[ *]){name}\(([^)]*)\);', text)
        assert match, f'{name} is not in the header'
        documented = [] if match[2] == 'void' else match[2].split(',')
        assert (result is None) == (match[1].strip() == 'void'), name
        ours = [issubclass(argument, pointers) for argument in arguments]
        assert ['*' in argument for argument in documented] == ours, name


@pytest.mark.parametrize('size', [544, 1568, 4088])
@pytest.mark.parametrize(
    'second', [b'metis-0:1a:0', b'metis-a:FF:1f', b'metis-0-1a-0', b'europa-0-1-0']
)
def test_the_distance_of_devices_is_measured(size: int, second: bytes) -> None:
    """Other releases have other lengths; nothing may be read behind the list."""
    text = b'metis-0:1:0'.ljust(size, b'\0') + second.ljust(size, b'\0')
    memory = ctypes.create_string_buffer(text, 2 * size)
    assert device_stride(ctypes.addressof(memory), 2) == size
    assert device_stride(0, 1) == ctypes.sizeof(axr.DeviceInfo), 'one device has no distance'


def test_a_list_without_a_second_device_s_name_is_refused() -> None:
    memory = ctypes.create_string_buffer(b'metis-0:1:0', 1 << 16)
    with pytest.raises(AcceleratorError, match='in an unknown format; leave only one card'):
        device_stride(ctypes.addressof(memory), 2)
