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

"""The C header of a driver and the structs that user space packs are the same, byte for byte."""

from __future__ import annotations

import ctypes
from pathlib import Path
import shutil
import subprocess

from doubles.c_layout import c_layout, differences, python_layout

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


#: The header's macros, as the module has them.
CONSTANTS = {
    **{f'AXL_IMPORT_{flag.name}': int(flag) for flag in abi.ImportFlags},
    'AXL_MAX_PLANES': abi.MAX_PLANES,
    'AXL_ABI_VERSION': abi.ABI_VERSION,
    'AXL_IOCTL_TYPE': ord(abi.IOCTL_TYPE),
    **{f'AXL_IOCTL_{name.upper()}': getattr(abi.REQUESTS, name) for name in abi.IOCTL_NUMBERS},
}


def test_python_and_c_agree(tmp_path: Path) -> None:
    assert (
        differences(
            c_layout(HEADER, 'axl_', tmp_path, macros='AXL_'),
            python_layout(STRUCTS, {'#define': CONSTANTS}),
        )
        == []
    )


def test_the_header_stands_alone_in_c_and_cpp(tmp_path: Path) -> None:
    for suffix, options in (
        ('.c', ['-std=c99', '-Wall', '-Wextra', '-pedantic']),
        ('.cpp', ['-Wall', '-Wextra']),
    ):
        source = tmp_path / f'alone{suffix}'
        source.write_text(f'#include "{HEADER}"\nint alone;\n', encoding='utf-8')
        if suffix == '.cpp' and not shutil.which('g++'):
            continue
        subprocess.run(['gcc', *options, '-Werror', '-fsyntax-only', str(source)], check=True)


def test_the_sizes_are_the_pinned_ones() -> None:
    sizes = [
        ctypes.sizeof(struct)
        for struct in (abi.AxlImportFd, abi.AxlSubmit, abi.AxlPlane, abi.AxlImportPlanes)
    ]
    assert [*sizes, ctypes.sizeof(abi.AxlSubmit2), ctypes.sizeof(abi.AxlQuery)] == [
        40,
        40,
        24,
        168,
        48,
        32,
    ]
    codes = [getattr(abi.REQUESTS, name) for name in abi.IOCTL_NUMBERS]
    assert codes == [0xC0285540, 0xC0285541, 0x40045542, 0xC0A85543, 0xC0305544, 0xC0205545]


def test_all_structs_of_the_module_are_compared() -> None:
    structs = {
        value
        for value in vars(abi).values()
        if isinstance(value, type) and issubclass(value, ctypes.Structure)
    }
    assert structs - {ctypes.LittleEndianStructure} == set(STRUCTS.values())
