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
Make ctypes structs from declarations that look like C.

For example, ``u32 index type flags; char[32] description`` declares three numbers and a text.
Tests compare each struct's layout with the one that a C compiler gives the original C struct.
"""

from __future__ import annotations

import ctypes
from typing import Any

_TYPES: dict[str, Any] = {
    'char': ctypes.c_char, 'bool': ctypes.c_bool, 'u8': ctypes.c_uint8, 'u16': ctypes.c_uint16,
    'u32': ctypes.c_uint32, 'u64': ctypes.c_uint64, 's32': ctypes.c_int32,
    's64': ctypes.c_int64, 'int': ctypes.c_int, 'uint': ctypes.c_uint, 'ulong': ctypes.c_ulong,
    'size': ctypes.c_size_t, 'ptr': ctypes.c_void_p, 'text': ctypes.c_char_p,
}  # fmt: skip


def c_struct(
    fields: str, *, packed: bool = False, anonymous: tuple[str, ...] = (), **types: Any
) -> type[ctypes.Structure]:
    """
    Make a ctypes structure.

    :param fields: declarations, separated by semicolons; each is a type, followed by the names of
        the fields that have this type.
    :param anonymous: nested structs or unions whose fields can be used like fields of this struct.
    :param types: further types that *fields* may use, by name.
    """
    return type('Struct', (ctypes.Structure,), _content(fields, packed, anonymous, types))


def c_union(fields: str, *, packed: bool = False, **types: Any) -> type[ctypes.Union]:
    """Make a ctypes union; the parameters are those of :func:`c_struct`."""
    return type('Union', (ctypes.Union,), _content(fields, packed, (), types))


def _content(
    fields: str, packed: bool, anonymous: tuple[str, ...], types: dict[str, Any]
) -> dict[str, Any]:
    known, found = {**_TYPES, **types}, []
    for declaration in fields.split(';'):
        kind, *names = declaration.split()
        kind, _, length = kind.partition('[')
        made = known[kind] * int(length[:-1]) if length else known[kind]
        found += [(name, made) for name in names]
    # Python 3.14 warns of a _pack_ without _layout_; older Pythons ignore _layout_.
    content = {'_pack_': 1, '_layout_': 'ms'} if packed else {}
    return {**content, '_anonymous_': anonymous, '_fields_': found}
