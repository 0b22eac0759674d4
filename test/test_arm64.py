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
The package's ctypes structs have the same layout on a Jetson (arm64) as here.

Every ctypes struct is laid out anew by the procedure call standard for 64-bit Arm (AAPCS64: sizes
and alignments of C types), and compared with the layout that ctypes chose on this machine. Types
whose names don't give their size are listed with the C header that uses them. With a cross
compiler and an emulator, the tests that compare with C headers run again for arm64.
"""

from __future__ import annotations

from collections.abc import Iterator
import ctypes
import importlib
import os
from pathlib import Path
import pkgutil
import re
import shutil
import subprocess
import sys
from typing import Any

from processes import ran
import pytest

import zc_perception

REPOSITORY = Path(__file__).resolve().parent.parent
COMPOUND = (ctypes.Structure, ctypes.Union)
# Size and alignment in bytes of these C types on arm64 Linux; both are equal.
SIZES: dict[Any, int] = {
    ctypes.c_int8: 1, ctypes.c_uint8: 1, ctypes.c_char: 1, ctypes.c_bool: 1, ctypes.c_int16: 2,
    ctypes.c_uint16: 2, ctypes.c_int32: 4, ctypes.c_uint32: 4, ctypes.c_float: 4,
    ctypes.c_int64: 8, ctypes.c_uint64: 8, ctypes.c_double: 8, ctypes.c_void_p: 8,
    ctypes.c_char_p: 8, ctypes.c_size_t: 8, ctypes.c_ssize_t: 8, ctypes.c_long: 8,
    ctypes.c_ulong: 8, ctypes.c_int: 4, ctypes.c_uint: 4,
}  # fmt: skip
# Names in the package's sources whose size depends on the platform: allowed only where the C
# header uses them too.
NATIVE = re.compile(
    r'\b(?:ctypes\.)?(c_long|c_ulong|c_longdouble|c_wchar|c_wchar_p|c_short|c_ushort)\b|(?<=[ '
    r"'])(ulong)(?= \w)"
)
NATIVE_ALLOWED = {
    ('c_structs.py', 'c_ulong'),  # the type ulong of structs
    ('camera/v4l2/abi.py', 'ulong'),  # videodev2.h: userptr, in v4l2_buffer and v4l2_plane
    ('camera/gstreamer/abi.py', 'ulong'),  # gstpad.h: gulong id, in GstPadProbeInfo
    ('camera/gstreamer/abi.py', 'c_ulong'),  # gstpad.h: the id of a probe
    # turbojpeg.h: jpegSize, of tjDecompressHeader3 and tjDecompressToYUVPlanes
    ('camera/v4l2/mjpeg.py', 'c_ulong'),
}
CHECKED_BY_C = (
    'test/camera/test_v4l2_abi.py', 'test/memory/test_kernel_abi.py', 'test/npu/test_abi.py',
    'test/jetson/test_jetson_abi.py',
)  # fmt: skip


def modules_with_ctypes() -> Iterator[Any]:
    use = re.compile(r'^\s*(?:import ctypes|from (?:ctypes|zc_perception.c_structs) import)', re.M)
    for module in pkgutil.walk_packages(zc_perception.__path__, 'zc_perception.'):
        source = REPOSITORY.joinpath(*module.name.split('.')).with_suffix('.py')
        if source.is_file() and use.search(source.read_text(encoding='utf-8')):
            yield importlib.import_module(module.name)


def compounds() -> dict[str, Any]:
    found: dict[str, Any] = {}

    def add(kind: Any, name: str) -> None:
        while isinstance(kind, type) and issubclass(kind, ctypes.Array):
            kind = kind._type_
        is_compound = isinstance(kind, type) and issubclass(kind, COMPOUND)
        if is_compound and hasattr(kind, '_fields_') and kind not in found.values():
            found[name] = kind
            for field, inner, *_ in kind._fields_:
                add(inner, f'{name}.{field}')

    for module in modules_with_ctypes():
        for name, value in vars(module).items():
            add(value, f'{module.__name__.removeprefix("zc_perception.")}.{name}')
    return found


STRUCTS = compounds()


def by_the_standard(kind: Any) -> tuple[int, int]:
    if issubclass(kind, ctypes.Array):
        size, alignment = by_the_standard(kind._type_)
        return size * kind._length_, alignment
    if issubclass(kind, COMPOUND):
        return place_fields(kind)[1:]
    if issubclass(kind, ctypes._Pointer) or hasattr(kind, '_flags_'):  # also of a function
        return 8, 8
    for known, size in SIZES.items():
        if kind is known or kind.__name__.removesuffix('_le') == known.__name__:
            return size, size
    raise AssertionError(f'{kind} is laid out by other rules: choose a type of a fixed size')


def place_fields(struct: Any) -> tuple[dict[str, int], int, int]:
    offsets: dict[str, int] = {}
    end, whole, largest = 0, 1, 0
    for name, kind, *bits in struct._fields_:
        assert not bits, f"{struct.__name__}.{name} is a bit field: their place is the compiler's"
        size, alignment = by_the_standard(kind)
        alignment = min(alignment, getattr(struct, '_pack_', alignment) or alignment)
        start = 0 if issubclass(struct, ctypes.Union) else -(-end // alignment) * alignment
        offsets[name] = start
        end, whole, largest = start + size, max(whole, alignment), max(largest, start + size)
    return offsets, -(-largest // whole) * whole, whole


def test_the_structs_were_found() -> None:
    assert len(STRUCTS) > 50
    rooms = ('camera.v4l2.abi', 'camera.gstreamer.abi', 'npu.axl.abi', 'npu.axruntime.library')
    assert set(rooms) <= {name.rpartition('.')[0] for name in STRUCTS}


@pytest.mark.parametrize('name', STRUCTS)
def test_a_struct_is_laid_out_on_arm64_as_here(name: str) -> None:
    struct = STRUCTS[name]
    offsets, size, _ = place_fields(struct)
    assert {field: getattr(struct, field).offset for field in offsets} == offsets
    assert ctypes.sizeof(struct) == size


def test_types_of_the_platform_s_size_are_used_where_the_header_does() -> None:
    package = Path(zc_perception.__file__).parent
    found = set()
    for path in package.rglob('*.py'):
        for match in NATIVE.finditer(path.read_text(encoding='utf-8')):
            found.add((path.relative_to(package).as_posix(), match[1] or match[2]))
    assert found == NATIVE_ALLOWED


GCC = """#!/bin/sh
# Stands in for gcc: compiles for arm64, and leaves a program that the emulator runs.
out=a.out link=yes
for argument do
  shift
  case $argument in
    -E | -c | -S | -fsyntax-only) link= ;;
  esac
  [ "$previous" = -o ] && out=$argument
  previous=$argument
  set -- "$@" "$argument"
done
[ "$link" ] || exec aarch64-linux-gnu-gcc "$@"
aarch64-linux-gnu-gcc -static "$@" || exit
mv "$out" "$out.arm64"
printf '#!/bin/sh\\nexec qemu-aarch64 "%s.arm64" "$@"\\n' "$out" > "$out"
chmod +x "$out"
"""


def test_a_compiler_for_arm64_says_the_same(tmp_path: Path) -> None:
    """Run the tests that compare with C headers with the arm64 compiler as ``gcc``."""
    if not shutil.which('aarch64-linux-gnu-gcc') or not shutil.which('qemu-aarch64'):
        pytest.skip('apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user')
    gcc = tmp_path / 'gcc'
    gcc.write_text(GCC, encoding='utf-8')
    gcc.chmod(0o755)
    probe = tmp_path / 'probe.c'
    probe.write_text(
        '#include <stdio.h>\nint main(void) { printf("%d %zu", (char)255 == 255, sizeof(long '
        'double)); return 0; }\n'
    )
    environment = {**os.environ, 'PATH': f'{tmp_path}{os.pathsep}{os.environ["PATH"]}'}
    subprocess.run(['gcc', '-o', tmp_path / 'probe', probe], env=environment, check=True)
    said = ran(tmp_path / 'probe', env=environment, check=True).stdout
    assert said == '1 16', 'a char without a sign: that is arm64'
    command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', *CHECKED_BY_C]
    done = ran(*command, '-k', 'not cpp', cwd=REPOSITORY, env=environment)
    assert done.returncode == 0, done.stdout[-3000:]
    assert ' passed' in done.stdout and 'failed' not in done.stdout
