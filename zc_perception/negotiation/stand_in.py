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
Constraints written as text.

They are participants of a parameter file, which stand in for consumers that come later, and what a
HELLO adds.

``NAME: NV12 NV12:0x0300000000000010; stride_align=256; heap=dma_heap/; slots=2; contiguous``
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
import re
from typing import Any

from zc_perception.errors import ConfigError, FormatError, nearest, NegotiationError
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.negotiation.constraints import (
    BufferConstraints,
    Format,
    Placement,
    Size,
    size_text,
)
from zc_perception.pixel.drm_format import parse_drm_format
from zc_perception.pixel.fourcc import pixel_format

SYNTAX = 'NAME: FORMAT FORMAT:MODIFIER …; OPTION=VALUE; heap=HEAP | HEAP …; …'
_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9_./-]*')
# A comma may stand behind a slash, as in dma_heap/linux,cma.
_HEAP = re.compile(r'[^,/]+(/[^/]*)?')
_SIZE = re.compile(r'([0-9]{1,5})x([0-9]{1,5})')


def _number(text: str) -> int:
    if not re.fullmatch('[0-9]{1,10}', text):
        raise ValueError('must be a whole number')
    return int(text)


def _size(text: str) -> Size:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError('must be WIDTHxHEIGHT, such as 1920x1080')
    return int(match[1]), int(match[2])


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(','))
    if not all(names):
        raise ValueError('must be names with commas between them')
    return names


def _heaps(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split('|'))
    if not all(map(_HEAP.fullmatch, names)):
        raise ValueError(
            'must be names with | between them, such as dma_heap/linux,cma | dma_heap/system'
        )
    return names


_CPU = {
    'read': CpuAccess.READ,
    'write': CpuAccess.WRITE,
    'read_write': CpuAccess.READ | CpuAccess.WRITE,
}


def _cpu(text: str) -> CpuAccess:
    if text not in _CPU:
        raise ValueError(f'must be one of {", ".join(_CPU)}{nearest(text, _CPU)}')
    return _CPU[text]


def _cpu_text(access: CpuAccess) -> str:
    return next(word for word, meaning in _CPU.items() if meaning == access)


# By its word: the field of the constraints, how it is read, and how it is written.
_OPTIONS: dict[str, tuple[str, Callable[[str], Any], Callable[[Any], str]]] = {
    **{
        name: (name, _number, str)
        for name in (
            'stride_align', 'offset_align', 'height_align', 'max_stride', 'slots', 'max_slots',
        )
    },
    **{name: (name, _size, size_text) for name in ('min_size', 'max_size')},
    'heap': ('heaps', _heaps, '|'.join),
    'device': ('devices', _names, ','.join),
    'cpu': ('cpu_access', _cpu, _cpu_text),
}  # fmt: skip
_DEFAULTS = {field.name: field.default for field in fields(BufferConstraints)}
_FLAGS: dict[str, tuple[str, Any]] = {
    'contiguous': ('contiguous', True),
    'one_buffer': ('placement', Placement.ONE_BUFFER),
    'buffer_per_plane': ('placement', Placement.BUFFER_PER_PLANE),
}


def _format(word: str) -> Format:
    """Return a ``drm-format``, or ``NV12:INVALID`` for an implicit layout."""
    # Words lose the blanks of 'R8  '.
    name, colon, value = word.partition(':')
    fourcc, modifier = parse_drm_format(name.ljust(4) + colon + value, implicit=True)
    # A drm-format may well name one that isn't in our table, but a camera of ours can't make it:
    # most likely a typing error.
    pixel_format(fourcc)
    return fourcc, modifier


def _option(part: str) -> tuple[str, Any]:
    key, equals, value = (word.strip() for word in part.partition('='))
    if key in _FLAGS:
        if equals:
            raise ValueError(f"option '{key}' takes no value; write it alone")
        return _FLAGS[key]
    if key not in _OPTIONS:
        known = [*_OPTIONS, *_FLAGS]
        raise ValueError(
            f"option '{key}' is unknown{nearest(key, known)}; known are {', '.join(known)}"
        )
    name, convert, _ = _OPTIONS[key]
    if not equals or not value:
        raise ValueError(f"option '{key}' needs a value: {key}=…")
    try:
        return name, convert(value)
    except ValueError as error:
        raise ValueError(f"option '{key}' is '{value}'; it {error}") from None


def _options(parts: Sequence[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for part in parts:
        if not part.strip():
            raise ValueError('there is an empty option; remove a semicolon')
        field, value = _option(part.strip())
        if field in fields:
            raise ValueError(f"'{part.strip()}' says {field} a second time")
        fields[field] = value
    return fields


def parse_options(text: str) -> BufferConstraints:
    """
    Parse constraints of a consumer of any format, as :func:`options_text` writes them.

    :raises ConfigError: an option that isn't known, or constraints that can never be satisfied.
    """
    try:
        return BufferConstraints('consumer', **(_options(text.split(';')) if text else {}))
    except (ValueError, NegotiationError) as error:
        raise ConfigError(f"options '{text}': {error}") from None


def parse_stand_in(text: str) -> BufferConstraints:
    """
    Parse the constraints of one entry of the parameter ``participants``.

    Formats are ``drm-format`` strings, or ``any``. A linear format has no modifier;
    ``NV12:INVALID`` is an implicit layout. Options are those of :class:`BufferConstraints`;
    ``contiguous``, ``one_buffer`` and ``buffer_per_plane`` take no value.

    :raises ConfigError: anything else, with the nearest word that is known.
    """
    head, *parts = text.split(';')
    name, colon, words = (word.strip() for word in head.partition(':'))

    try:
        if not colon or not _NAME.fullmatch(name):
            raise ValueError(
                f'it must begin with a name of letters, digits, _ . / - and a colon: {SYNTAX}'
            )
        if not words:
            raise ValueError(f"{name} has no format; write drm-formats such as NV12, or 'any'")
        formats = None if words == 'any' else tuple(_format(word) for word in words.split())
        return BufferConstraints(name, formats=formats, **_options(parts))
    except (ValueError, FormatError, NegotiationError) as error:
        raise ConfigError(f"parameter 'participants': '{text}': {error}") from None


def parse_stand_ins(entries: Sequence[str]) -> list[BufferConstraints]:
    """
    Parse all entries of the parameter; empty ones are left out.

    :raises ConfigError: see :func:`parse_stand_in`; or two entries of one name.
    """
    found: dict[str, BufferConstraints] = {}
    for entry in filter(None, (entry.strip() for entry in entries)):
        constraints = parse_stand_in(entry)
        if constraints.participant in found:
            raise ConfigError(
                f"parameter 'participants': '{constraints.participant}' stands there twice; "
                'give each its own name'
            )
        found[constraints.participant] = constraints
    return list(found.values())


def options_text(constraints: BufferConstraints) -> str:
    """
    Write everything but name and formats of *constraints* as text.

    :func:`parse_stand_in` reads it after name and formats. Empty: nothing is asked for.
    """
    found = [
        f'{key}={write(getattr(constraints, field))}'
        for key, (field, _, write) in _OPTIONS.items()
        if getattr(constraints, field) != _DEFAULTS[field]
    ]
    found += [
        key for key, (field, value) in _FLAGS.items() if getattr(constraints, field) == value
    ]
    return '; '.join(found)
