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
Read a parameter file: its values as rcl reads them, and the line of each key.

rcl's own parser (library ``rcl_yaml_param_parser``, whose header is the same from Humble to
Kilted) reads the values. This parser keeps no line numbers, so a walk over PyYAML's events finds
the lines. If rcl and PyYAML find different parameters, ROS would start with other values than the
file shows, so the file is refused. Without ROS (where only ``zc_doctor`` runs), PyYAML reads the
values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
import contextlib
import ctypes
from ctypes import c_char_p, c_size_t, POINTER
from dataclasses import dataclass
import functools
import os
import re
import stat
from typing import Any

import yaml

from zc_perception.errors import ConfigError, message_of

KEY = 'ros__parameters'
_MOST_BYTES = 4 << 20
Section = tuple[str, dict[str, Any]]
"""The full node name of a section (wildcards allowed); its values, with dotted names as keys."""


@dataclass(frozen=True)
class ParameterYaml:
    """
    The content of a parameter file.

    :param where: how messages about the file begin.
    :param sections: the sections in the file's order; a later section replaces earlier values.
    :param lines: the lines that give a parameter, with the section and the parameter's name as
        key; for an empty name, the lines where the section begins.
    :param by_rcl: whether rcl has read the values; else PyYAML has.
    """

    path: str
    where: str
    sections: list[Section]
    lines: Mapping[tuple[str, str], list[int]]
    by_rcl: bool = True

    def values(self, node: str) -> dict[str, Any]:
        """Return the file's values for the node of this full name."""
        return values_of(node, self.sections)

    def keys_for_any_name(self, node: str) -> set[str]:
        """Return *node*'s keys that only sections for nodes of any name (such as ``/**``) set."""
        matching = [
            (section, values)
            for section, values in self.sections
            if section_matches(section, node)
        ]
        named = {
            key for section, values in matching if '*' not in last_name(section) for key in values
        }
        return {key for _, values in matching for key in values} - named


def section_matches(section: str, node: str) -> bool:
    """
    Return whether a section matches a node's full name.

    Part ``**`` of the section matches 0 or more parts of the name. A ``*`` in another part matches
    any characters except ``/``.
    """
    pattern = ''.join(
        '(/[^/]+)*' if token == '**' else '/' + re.escape(token).replace(r'\*', '[^/]*')
        for token in section.split('/')[1:]
    )
    return re.fullmatch(pattern, node) is not None


def values_of(node: str, sections: Iterable[Section]) -> dict[str, Any]:
    """Return the values that a node gets; a later section wins, even over a more specific one."""
    found: dict[str, Any] = {}
    for section, values in sections:
        if section_matches(section, node):
            found |= values
    return found


def last_name(section: str) -> str:
    """Return the last part of a full name, without a slash."""
    return section.rpartition('/')[2]


def nodes_named(name: str, sections: Iterable[Section]) -> list[str]:
    """
    Return the full names of the nodes called *name* that have sections without wildcards.

    ``/**/SPACE/NAME`` counts as ``/SPACE/NAME``; other sections with wildcards don't count.
    """
    named = []
    for section, _ in sections:
        below = section.removeprefix('/**')
        node = below if below.count('/') > 1 else section
        if '*' not in node and last_name(node) == name:
            named.append(node)
    return list(dict.fromkeys(named))


# The structs of rcl's parser: rcl_yaml_param_parser/types.h, rcutils/allocator.h.


def _struct(name: str, **fields: Any) -> Any:
    return type(
        name, (ctypes.Structure,), {'_fields_': list(fields.items()), '__module__': __name__}
    )


_CALLS = ('allocate', 'deallocate', 'reallocate', 'zero_allocate', 'state')
ALLOCATOR = _struct('rcutils_allocator_t', **dict.fromkeys(_CALLS, ctypes.c_void_p))
STRINGS = _struct(
    'rcutils_string_array_t', size=c_size_t, data=POINTER(c_char_p), allocator=ALLOCATOR
)


def _array(name: str, kind: Any) -> Any:
    return _struct(f'rcl_{name}_array_t', values=POINTER(kind), size=c_size_t)


ARRAYS = {
    'byte_array_value': _array('byte', ctypes.c_uint8),
    'bool_array_value': _array('bool', ctypes.c_bool),
    'integer_array_value': _array('int64', ctypes.c_int64),
    'double_array_value': _array('double', ctypes.c_double),
    'string_array_value': STRINGS,
}
VARIANT = _struct(
    'rcl_variant_t',
    bool_value=POINTER(ctypes.c_bool),
    integer_value=POINTER(ctypes.c_int64),
    double_value=POINTER(ctypes.c_double),
    string_value=POINTER(ctypes.c_char),
    **{name: POINTER(array) for name, array in ARRAYS.items()},
)
NODE_PARAMS = _struct(
    'rcl_node_params_t',
    parameter_names=POINTER(c_char_p),
    parameter_values=POINTER(VARIANT),
    num_params=c_size_t,
    capacity_params=c_size_t,
)
PARAMS = _struct(
    'rcl_params_t',
    node_names=POINTER(c_char_p),
    params=POINTER(NODE_PARAMS),
    num_nodes=c_size_t,
    capacity_nodes=c_size_t,
    allocator=ALLOCATOR,
)
_ERROR = _struct('rcutils_error_string_t', str=ctypes.c_char * 1024)


@functools.cache
def _rcl() -> ctypes.CDLL | None:
    """Load rcl's parser; ``None``: this machine has no ROS."""
    try:
        library = ctypes.CDLL('librcl_yaml_param_parser.so')
    except OSError:
        return None
    library.rcutils_get_default_allocator.restype = ALLOCATOR
    library.rcutils_get_error_string.restype = _ERROR
    library.rcl_yaml_node_struct_init.argtypes = [ALLOCATOR]
    library.rcl_yaml_node_struct_init.restype = POINTER(PARAMS)
    library.rcl_yaml_node_struct_fini.argtypes = [POINTER(PARAMS)]
    library.rcl_parse_yaml_file.argtypes = [ctypes.c_char_p, POINTER(PARAMS)]
    library.rcl_parse_yaml_file.restype = ctypes.c_bool
    return library


def _python(variant: Any) -> Any:
    """Return the value in an ``rcl_variant_t``; an empty list if none of its pointers is set."""
    for name, _ in VARIANT._fields_:
        if pointer := getattr(variant, name):
            if name == 'string_value':
                return ctypes.string_at(pointer).decode()
            found = pointer.contents
            if name not in ARRAYS:
                return found.value
            items = getattr(found, 'data', None) or found.values
            return [
                item.decode() if isinstance(item, bytes) else item for item in items[: found.size]
            ]
    return []


def _read_by_rcl(library: ctypes.CDLL, raw: bytes) -> list[Section] | str:
    """
    Return the sections that rcl reads from the file's bytes *raw*, or rcl's error message.

    rcl reads a copy, because the file itself may change meanwhile.
    """
    params = library.rcl_yaml_node_struct_init(library.rcutils_get_default_allocator())
    try:
        with open(os.memfd_create('parameters'), 'wb', buffering=0) as copy:
            copy.write(raw)
            taken = library.rcl_parse_yaml_file(b'/proc/self/fd/%d' % copy.fileno(), params)
        if not taken:
            reason = library.rcutils_get_error_string().str.decode(errors='replace')
            library.rcutils_reset_error()
            return ' '.join(re.sub(r',? at \S+\.c:\d+', '', reason).split())
        found = params.contents
        return [
            (
                _section_name(found.node_names[i].decode()),
                {
                    node.parameter_names[k].decode(): _python(node.parameter_values[k])
                    for k in range(node.num_params)
                },
            )
            for i, node in enumerate(found.params[: found.num_nodes])
        ]
    finally:
        library.rcl_yaml_node_struct_fini(params)


# Parts of error messages of rcl and PyYAML, each with plain words to show instead.
_PLAIN_WORDS = (
    ('expected <block end>', 'its indentation does not match the lines above'),
    ("found character '\\t'", 'there is a tab; YAML allows only spaces'),
    (
        'mapping values are not allowed',
        "there is a second ':' in a line, or the line is indented too far",
    ),
    ("could not find expected ':'", "there is no ':' after the name"),
    ('unexpected end of stream', 'a quote is not closed'),
    (
        'that cannot start any token',
        'a value begins with a character that YAML allows only in quotes',
    ),
    (
        'before ros__parameters',
        (
            f"'{KEY}:' must stand between a node's name and its parameters, and at least one "
            'parameter must follow'
        ),
    ),
    ('aliasing', 'ROS takes no alias (*NAME); write the value again'),
    ('should be of same type', 'a list has values of several types; put quotes around texts'),
    (
        'Error parsing a event',
        "ROS can't parse the file; put quotes around texts with ':' or other punctuation",
    ),
    ('No value', "a parameter has no value; an empty text is '', an empty list []"),
)
_NODE = re.compile(r'(/([A-Za-z_]\w*|\*\*?))+', re.ASCII)
_RCL_LINE = re.compile(r' (?:at|near) line(?:_num)? (\d+)')
_ODD = (
    'write each parameter as NAME: VALUE; ROS allows no NUL, no list in a list, no empty '
    "'{}', and no mapping as the value of a name with a dot"
)
_UNREADABLE = object()
_Key = tuple[str, str]


def _section_name(name: str) -> str:
    return '/' + name.removeprefix('/')


def _value(event: yaml.Event, events: Iterator[yaml.Event]) -> Any:
    """Read the value that begins with *event*; return ``_UNREADABLE`` if rcl can't read it."""
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            items.append(_value(item, events))
        odd = any(item is _UNREADABLE or isinstance(item, list) for item in items)
        return _UNREADABLE if odd else items
    if isinstance(event, yaml.MappingStartEvent):
        for _ in _walk(events):
            pass
    if not isinstance(event, yaml.ScalarEvent) or '\0' in event.value:
        return _UNREADABLE
    if not event.implicit[0]:
        return event.value
    with contextlib.suppress(yaml.YAMLError, ValueError):
        plain = yaml.safe_load(event.value)
        return event.value if plain is None else plain
    return event.value


def _walk(
    events: Iterator[yaml.Event], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], int, Any]]:
    """
    Yield path, line and value of each key in a mapping and in the mappings inside it.

    The value of a key with subkeys is ``None``.

    :param events: the events after the mapping's start.
    :param above: the path of the mapping.
    """
    while not isinstance(key := next(events), yaml.MappingEndEvent):
        # Only mypy needs this: PyYAML's parser gives each event its place in the file.
        assert key.start_mark is not None
        keys, line = (*above, str(_value(key, events))), key.start_mark.line + 1
        if isinstance(key, yaml.ScalarEvent):
            keys = (*above, key.value)
        value = next(events)
        if isinstance(value, yaml.MappingStartEvent):
            yield keys, line, None
            yield from _walk(events, keys)
        else:
            yield keys, line, _value(value, events)


def _written(raw: bytes) -> dict[_Key, list[tuple[int, Any]]]:
    """
    Return for each key of ``ParameterYaml.lines`` the lines that give it, each with its value.

    PyYAML reads the values. A value is ``None`` where a section begins, and for a name with
    subkeys. A value is ``_UNREADABLE`` if rcl can't read it or would read another value.

    :raises yaml.YAMLError: the file isn't YAML.
    """
    found: dict[_Key, list[tuple[int, Any]]] = {}
    events, begun = yaml.parse(raw, Loader=yaml.SafeLoader), 0
    for event in events:
        # If the whole file is one text or number, rcl would treat it as an empty file. Mark the
        # text, so that the file is refused.
        if isinstance(event, yaml.ScalarEvent):
            found['', event.value] = [(1, _UNREADABLE)]
        for keys, line, value in (
            _walk(events) if isinstance(event, yaml.MappingStartEvent) else ()
        ):
            if KEY not in keys:
                begun = line
                # Mark a value that is not below `ros__parameters`, so that the file is refused.
                # rcl would take a longer key, such as `ros__parameters_x`, for `ros__parameters`.
                if value is not None:
                    found['', '/'.join(keys)] = [(line, _UNREADABLE)]
                continue
            at = keys.index(KEY)
            above, below = at - 1, at + 1
            names = [*(key.removesuffix('/') for key in keys[:above]), *keys[above:at]]
            place = _section_name('/'.join(names)), '.'.join(keys[below:])
            found.setdefault(place, []).append((line if place[1] else begun, value))
    return found


def _refusal(reason: str, sections: Mapping[str, int]) -> str:
    """
    Return rcl's error *reason* in plain words, with the line if it is known.

    If rcl names no line, the cause is probably a section whose name can't be a node's.

    :param sections: by section, the line where it begins.
    """
    problem, line = _in_plain_words(_RCL_LINE.sub('', reason)), _RCL_LINE.search(reason)
    odd = next((section for section in sections if not _NODE.fullmatch(section)), '')
    if line:
        return f'line {line[1]}: {problem}'
    if odd:
        name = odd.removeprefix('/')
        return f"line {sections[odd]}: '{name}' can't be a node's full name: {problem}"
    return problem


def _in_plain_words(problem: str) -> str:
    """Replace an error of PyYAML or rcl by plain words, without the parser's terms."""
    words = next((words for pattern, words in _PLAIN_WORDS if pattern in problem), problem)
    return re.sub("'?<stream end>'?", 'the end of the file', words)


def refuse_pipe(path: str, called: str = 'parameter file') -> None:
    """
    Raise ConfigError if *path* is a pipe, such as bash's ``<(COMMAND)``.

    A program reads its parameter files several times; a pipe is empty after the first time.
    """
    if os.path.exists(path) and stat.S_ISFIFO(os.stat(path).st_mode):
        raise ConfigError(
            f"{called} '{path}' is a pipe, which can be read only once; name an ordinary file"
        )


def read_parameter_yaml(path: str, called: str = 'parameter file') -> ParameterYaml:
    """
    Read a parameter file; refuse it if rcl and PyYAML find different parameters.

    :param called: the words for the file in messages, before its path.
    :raises ConfigError: the file can't be read, is no parameter file for ROS, or is one in which
        rcl and PyYAML find different parameters.
    """
    where = f"{called} '{path}'"
    refuse_pipe(path, called)
    try:
        with open(path, 'rb') as file:
            raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise ConfigError(
                f'{where} has more than {_MOST_BYTES} bytes, the limit; name another file'
            )
        written = _written(raw)
    except OSError as error:
        raise ConfigError(f"{where} can't be read: {error.strerror}; name another file") from error
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        mark = getattr(error, 'problem_mark', None)
        place = 'it is no YAML' if mark is None else f'line {mark.line + 1}'
        problem = _in_plain_words(getattr(error, 'problem', None) or message_of(error))
        text = f"{where} can't be read: {place}: {problem}; correct the file there or a line above"
        raise ConfigError(text) from error
    lines: dict[_Key, list[int]] = {}
    for key, uses in written.items():
        if found := [line for line, value in uses if value is not None or not key[1]]:
            lines[key] = found
    library = _rcl()
    if library is None:
        plain: dict[str, dict[str, Any]] = {}
        for section, name in filter(lambda key: key[0], lines):
            last = written[section, name][-1][1]
            plain.setdefault(section, {}).update({name: last} if name else {})
        return ParameterYaml(path, where, list(plain.items()), lines, by_rcl=False)
    sections = _read_by_rcl(library, raw)
    if isinstance(sections, str):
        begins = {section: found[0] for (section, name), found in lines.items() if not name}
        raise ConfigError(f"{where} can't be read: {_refusal(sections, begins)}; correct it")
    odd = {(section, name) for section, values in sections for name in values}
    odd ^= {key for key in lines if key[1]}
    odd |= {key for key, uses in written.items() if any(v is _UNREADABLE for _, v in uses)}
    if places := [(line, key[1]) for key in odd for line, _ in written.get(key, ())]:
        number, name = min(places)
        text = f"line {number}: ROS would misread '{name}'; {_ODD}"
        raise ConfigError(f'{where}, {text}')
    return ParameterYaml(path, where, sections, lines)
