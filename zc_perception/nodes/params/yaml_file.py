"""Reads parameter files as rcl does, for everybody here who has to read one: YAML's own rules take other values from the same text.

:func:`read_parameter_yaml` reads a file, :func:`section_matches` says which nodes a section is for. Needs no ROS.

Source: observed of ``rcl_yaml_param_parser``, which reads YAML's events, not its types. A value without quotes is a boolean, else what
``strtol`` takes whole, else what ``strtod`` takes whole, else a text: ``010`` is 8, ``3e1`` is 30.0, ``1_280``, ``2020-01-01`` and ``~``
are texts. A section or key that comes again is added to the first. What rcl takes but makes something else of than it says is refused
here, so that neither a node nor a launch file starts with it: a mapping with nothing in it, a list in a list, a key that comes again with
another type, what comes behind a nested name with a dot.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import yaml

from zc_perception.errors import ConfigError, message_of

KEY = 'ros__parameters'
Section = tuple[str, dict[str, Any]]
"""Full name with wildcards, and its parameters by their names with dots."""


@dataclass(frozen=True)
class ParameterYaml:
    """What a parameter file says.

    :param where: begins messages about the file.
    :param sections: in the order of their first lines.
    :param lines: where each parameter was given last, by section and name; with an empty name: where the section begins.
    """

    path: str
    where: str
    sections: list[Section]
    lines: Mapping[tuple[str, str], int]

    def values(self, node: str) -> dict[str, Any]:
        """What the file says for a node, by its full name."""
        return values_of(node, self.sections)

    def keys_for_any_name(self, node: str) -> set[str]:
        """Keys that a node gets only from sections for nodes of any name, such as ``/**``: some are meant for others."""
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
    """rcl's wildcards: ``*`` is one token, ``**`` any number of them, also none."""
    pattern = ''.join(
        '(/[^/]+)*' if token == '**' else '/' + re.escape(token).replace(r'\*', '[^/]*')
        for token in section.split('/')[1:]
    )
    return re.fullmatch(pattern, node) is not None


def values_of(node: str, sections: Iterable[Section]) -> dict[str, Any]:
    """What a node starts with: a later section is on top of an earlier one, whichever is the more exact."""
    found: dict[str, Any] = {}
    for section, values in sections:
        if section_matches(section, node):
            found |= values
    return found


def last_name(section: str) -> str:
    """The node's name in the full name of a node or section."""
    return section.rpartition('/')[2]


def nodes_named(name: str, sections: Iterable[Section]) -> list[str]:
    """Full names of the nodes of that name which sections name: without a wildcard, or with ``/**`` in front of a namespace."""
    named = []
    for section, _ in sections:
        below = section.removeprefix('/**')
        node = below if below.count('/') > 1 else section
        if '*' not in node and last_name(node) == name:
            named.append(node)
    return list(dict.fromkeys(named))


_BOOLEANS = {
    text: value
    for value, words in ((True, ('y', 'yes', 'true', 'on')), (False, ('n', 'no', 'false', 'off')))
    for word in words
    for text in (word, word.capitalize(), word.upper())
}
_SPECIAL = dict.fromkeys(('.nan', '.NaN', '.NAN'), math.nan) | {
    sign + text: value
    for sign, value in (('', math.inf), ('+', math.inf), ('-', -math.inf))
    for text in ('.inf', '.Inf', '.INF')
}
_TOKEN = re.compile(r'[A-Za-z_][A-Za-z0-9_]*|\*\*?')
_UNSAFE = re.compile('[\0\ud800-\udfff]')
_STRING_TAG = 'tag:yaml.org,2002:str'
_DEEPEST = 100
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
)
_C = ctypes.CDLL(None, use_errno=True)
_C.strtol.argtypes, _C.strtol.restype = (
    (ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int),
    ctypes.c_long,
)
_C.strtod.argtypes, _C.strtod.restype = (
    (ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)),
    ctypes.c_double,
)


def _whole(function: Any, text: str, *base: int) -> Any:
    """What a C function makes of all of the text; ``None``: it stops before the end, or the number is out of its range."""
    raw = text.encode()
    buffer, end = ctypes.create_string_buffer(raw), ctypes.c_void_p()
    ctypes.set_errno(0)
    value = function(ctypes.cast(buffer, ctypes.c_char_p), ctypes.byref(end), *base)
    return (
        value
        if not ctypes.get_errno() and end.value == ctypes.addressof(buffer) + len(raw)
        else None
    )


def plain_value(text: str) -> bool | int | float | str:
    """What rcl takes a value without quotes for.

    :param text: not empty, without NUL.
    """
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    whole: int | None = _whole(_C.strtol, text, 0)
    if whole is not None:
        return whole
    number: float | None = _SPECIAL.get(text, _whole(_C.strtod, text))
    return text if number is None else number


def _kind(value: Any) -> tuple[type, ...]:
    """Its type in ROS; an empty list has one of its own."""
    return (
        (list, *(type(item) for item in value[:1])) if isinstance(value, list) else (type(value),)
    )


def _line_of(event: yaml.Event) -> int:
    """In the file, counted from 1."""
    assert event.start_mark is not None  # PyYAML's own parser marks every event
    return event.start_mark.line + 1


class _Reader:
    """Makes sections of a file's events."""

    def __init__(self, events: Iterator[yaml.Event], where: str) -> None:
        self._events = events
        self._where = where
        self.sections: dict[str, dict[str, Any]] = {}
        self.lines: dict[tuple[str, str], int] = {}

    def read(self) -> None:
        """All documents; they are one file.

        :raises ConfigError: says what is wrong, and in which line.
        """
        for event in self._events:
            if isinstance(event, yaml.MappingStartEvent):
                self._namespace('', _DEEPEST, event)
            elif isinstance(event, yaml.NodeEvent):
                self._refuse(
                    event, f"has no sections such as '/**/capture:' with '{KEY}:' below", said=True
                )

    def _refuse(self, event: yaml.Event, problem: str, *, said: bool = False) -> NoReturn:
        raise ConfigError(
            f'{self._where} {problem}'
            if said
            else f'{self._where}, line {_line_of(event)}: {problem}'
        )

    def _next(self) -> yaml.Event:
        event = next(self._events)
        if isinstance(event, yaml.AliasEvent):
            self._refuse(
                event,
                f"'*{event.anchor}' is an alias, which ROS doesn't take; write the value again",
            )
        return event

    def _text(self, event: yaml.ScalarEvent) -> str:
        if _UNSAFE.search(event.value):
            self._refuse(
                event,
                f'{event.value!r} has a NUL or half a surrogate pair in it, which no text in ROS can have; write it without',
            )
        return event.value

    def _pairs(self, deeper: int) -> Iterator[tuple[yaml.ScalarEvent, str, yaml.Event]]:
        """Keys of a mapping that has begun, as events and texts, and the events that begin their values."""
        while not isinstance(key := self._next(), yaml.MappingEndEvent):
            if not deeper:
                self._refuse(key, f'it is nested in more than {_DEEPEST} levels')
            if not isinstance(key, yaml.ScalarEvent) or not key.value:
                self._refuse(key, 'a key must be a name')
            yield key, self._text(key), self._next()

    def _namespace(self, name: str, deeper: int, named: yaml.Event) -> None:
        """Sections and namespaces below *name*, which is as it is written, at the event *named*."""
        ended = False
        for key, text, value in self._pairs(deeper):
            below = f'{name.removesuffix("/")}/{text}' if name else text
            if ended:
                self._refuse(
                    key,
                    f"'{text}' comes behind '{KEY}' of '{name}', where ROS expects the next node; put it in front",
                )
            elif text.startswith(KEY):
                if text != KEY or not name:
                    self._refuse(key, f"'{text}' must be '{KEY}', below a node's name")
                self._parameters(value, self._section(key, name, named), '', deeper - 1)
                ended = True
            elif isinstance(value, yaml.MappingStartEvent):
                self._namespace(below, deeper - 1, key)
            else:
                self._refuse(
                    key,
                    f"'{below.lstrip('/')}' needs '{KEY}:' between the node's name and its parameters",
                )

    def _section(self, event: yaml.Event, name: str, named: yaml.Event) -> str:
        """Its full name."""
        tokens = name.removeprefix('/').split('/')
        if not all(_TOKEN.fullmatch(token) for token in tokens):
            allowed = "names of letters, digits and '_' that begin with no digit, '*' or '**', with a '/' between"
            self._refuse(event, f"'{name}' can't be a node's full name; it must be {allowed}")
        section = '/' + '/'.join(tokens)
        self.sections.setdefault(section, {})
        self.lines.setdefault((section, ''), _line_of(named))
        return section

    def _parameters(self, begins: yaml.Event, section: str, prefix: str, deeper: int) -> None:
        if not isinstance(begins, yaml.MappingStartEvent):
            self._refuse(
                begins,
                f"'{KEY}:' needs parameters below, as NAME: VALUE; leave the section out if it has none",
            )
        empty, dotted, values = True, '', self.sections[section]
        for key, text, value in self._pairs(deeper):
            name, empty = prefix + text, False
            if dotted:
                self._refuse(
                    key,
                    f"'{text}' comes behind '{dotted}', a name with a dot that has others below, and ROS mixes them up; move it up",
                )
            if isinstance(value, yaml.MappingStartEvent):
                if name in values:
                    self._refuse(
                        key,
                        f"parameter '{name}' is given as {values[name]!r} and with others below, which ROS puts in its place",
                    )
                self._parameters(value, section, f'{name}.', deeper - 1)
                dotted = text if prefix and '.' in text else ''
                continue
            new = (
                self._list(name)
                if isinstance(value, yaml.SequenceStartEvent)
                else self._value(name, value)
            )
            if name in values and _kind(values[name]) != _kind(new):
                both = f'{values[name]!r} and as {new!r}'
                self._refuse(
                    key,
                    f"parameter '{name}' is given as {both}, and ROS doesn't take the last; write it once",
                )
            values[name] = new
            self.lines[section, name] = _line_of(key)
        if empty and prefix:
            self._refuse(
                begins,
                f"'{prefix[:-1]}' has nothing below, and ROS puts there what follows; leave it out",
            )

    def _value(self, name: str, event: yaml.Event) -> bool | int | float | str:
        assert isinstance(event, yaml.ScalarEvent)
        text = self._text(event)
        if event.style in ('"', "'"):
            return text
        if not text:
            self._refuse(
                event, f"parameter '{name}' has no value; an empty text is '', an empty list []"
            )
        return text if event.tag == _STRING_TAG else plain_value(text)

    def _list(self, name: str) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(
                    event,
                    f"parameter '{name}' is a list with lists or mappings in it; ROS has lists of values only",
                )
            found.append(self._value(name, event))
            if type(found[-1]) is not type(found[0]):
                both = f'{found[0]!r} and {found[-1]!r}'
                self._refuse(
                    event,
                    f"parameter '{name}' is a list with {both} in it; all must be of one type: put quotes around texts",
                )
        return found


def _in_plain_words(problem: str) -> str:
    """What PyYAML says of a file, without its names of tokens."""
    for pattern, words in _PLAIN_WORDS:
        if pattern in problem:
            return words
    return re.sub("'?<stream end>'?", 'the end of the file', problem)


def read_parameter_yaml(path: str, called: str = 'parameter file') -> ParameterYaml:
    """A parameter file: a node gets the sections that match it, later ones on top.

    :param called: what messages call the file.
    :raises ConfigError: it can't be read, or is no parameter file for ROS.
    """
    where = f"{called} '{path}'"
    try:
        with open(path, 'rb') as file:
            raw = file.read()
    except OSError as error:
        raise ConfigError(f"{where} can't be read: {error.strerror}; name another one") from error
    reader = _Reader(yaml.parse(raw, Loader=yaml.SafeLoader), where)
    try:
        reader.read()
    except yaml.MarkedYAMLError as error:
        line = '' if error.problem_mark is None else f'line {error.problem_mark.line + 1}: '
        problem = (
            f'{line}{_in_plain_words(error.problem or "")}; correct that line or the one above it'
        )
        raise ConfigError(f"{where} can't be read: {problem}") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{where} can't be read: it is no YAML: {message_of(error)}; correct the file"
        ) from error
    return ParameterYaml(path, where, list(reader.sections.items()), reader.lines)
