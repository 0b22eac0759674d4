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
Rules for the values of a model's manifest.

Each rule checks a value, and can be exported as a JSON schema (draft 2020-12).

No validation library is used. Importing ``jsonschema`` takes 75 to 160 ms, at least a sixth of a
node's start. Pydantic's major versions differ too much, and Ubuntu 22.04 has the old one. With
either library, this package would still have to write its own error messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
import math
from pathlib import Path
from typing import Any

from zc_perception.errors import ConfigError, nearest, shown

Schema = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """
    The place of a value in a manifest, for messages.

    :param path: the manifest's file.
    :param key: the key's path in the file, such as ``variants[1].outputs[0].scale``.
    """

    path: Path
    key: str = ''

    def at(self, name: str) -> Place:
        """Return the place of the key *name* in the mapping at this place."""
        return Place(self.path, f'{self.key}.{name}' if self.key else name)

    def item(self, index: int) -> Place:
        """Return the place of an item of the list at this place."""
        return Place(self.path, f'{self.key}[{index}]')

    def refuse(self, value: object, allowed: str) -> ConfigError:
        """Return the error for a *value* that isn't allowed; *value* ``None``: an empty key."""
        return ConfigError(
            f"{self.path}: key '{self.key}' is "
            f'{"empty (null)" if value is None else shown(value)}; it must be {allowed}'
        )

    def missing(self, allowed: str) -> ConfigError:
        """Return the error for a key that is required but missing."""
        return ConfigError(f"{self.path}: key '{self.key}' is missing; it must be {allowed}")


class Rule:
    """A rule for a value; messages print :attr:`words` after "it must be"."""

    words: str

    def check(self, value: Any, place: Place) -> None:
        """Check the value; if it isn't allowed, raise ConfigError that names the key."""
        raise NotImplementedError

    def schema(self) -> Schema:
        """Return the rule as a JSON schema, for editors and other programs."""
        raise NotImplementedError


@dataclass(frozen=True)
class Leaf(Rule):
    """
    A rule for a number, boolean, text or list: a value that isn't a mapping.

    :param accepts: returns whether a value is allowed.
    :param json: the JSON schema of the rule.
    :param others: returns further allowed words, which other packages offer; called only if
        the value isn't allowed without them.
    """

    words: str
    accepts: Callable[[Any], bool]
    json: Schema
    others: Callable[[], tuple[str, ...]] = tuple

    def check(self, value: Any, place: Place) -> None:
        if value is None or not self.accepts(value):
            others = self.others()
            if not (isinstance(value, str) and value in others):
                near = (
                    nearest(value, (*self.json.get('enum', ()), *others))
                    if isinstance(value, str)
                    else ''
                )
                raise place.refuse(
                    value, ', '.join((self.words, *others)) + (near or _unquoted(value, self.json))
                )

    def schema(self) -> Schema:
        return dict(self.json)


def _unquoted(value: Any, schema: Schema) -> str:
    """Return advice to quote a text that YAML reads as another type, such as ``no``; else ''."""
    if schema.get('type') == 'array' and isinstance(value, list):
        return next(
            (hint for hint in (_unquoted(entry, schema['items']) for entry in value) if hint), ''
        )
    if schema.get('type') != 'string':
        return ''
    if isinstance(value, bool):
        return '; quote it: YAML reads yes, no, on, off, true and false as booleans'
    if isinstance(value, (int, float)):
        return f"; quote it ('{value}'): YAML reads it as a number"
    return f"; quote it ('{value}'): YAML reads it as a date" if isinstance(value, date) else ''


def number(low: float = -math.inf, high: float = math.inf, *, above: float = -math.inf) -> Leaf:
    """Make a rule for a finite number: from *low* to *high*, or greater than *above*."""
    words = 'a finite number'
    schema: Schema = {'type': 'number'}
    if math.isfinite(low):
        words, schema = (
            f'a number from {low} to {high}',
            {'type': 'number', 'minimum': low, 'maximum': high},
        )
    elif math.isfinite(above):
        words, schema = f'a number above {above:g}', {'type': 'number', 'exclusiveMinimum': above}
    return Leaf(
        words,
        lambda v: type(v) in (int, float) and math.isfinite(v) and above < v and low <= v <= high,
        schema,
    )


def integer(low: int, high: int) -> Leaf:
    """Make a rule for an integer from *low* to *high*; a number such as ``2.0`` is refused."""
    return Leaf(
        f'an integer from {low} to {high}',
        lambda v: type(v) is int and low <= v <= high,
        {'type': 'integer', 'minimum': low, 'maximum': high},
    )


def boolean() -> Leaf:
    """Make a rule for true or false."""
    return Leaf('true or false', lambda v: type(v) is bool, {'type': 'boolean'})


def choice(*options: str, others: Callable[[], tuple[str, ...]] = tuple) -> Leaf:
    """
    Make a rule for one of several words.

    :param others: returns further words, which other packages offer; the JSON schema doesn't list
        them.
    """
    return Leaf(
        'one of ' + ', '.join(options),
        lambda v: isinstance(v, str) and v in options,
        {'enum': list(options)},
        others,
    )


def text(words: str, *, empty: bool = False) -> Leaf:
    """Make a rule for any text; an empty text is allowed only with *empty*."""
    schema: Schema = {'type': 'string'} if empty else {'type': 'string', 'minLength': 1}
    return Leaf(words, lambda v: isinstance(v, str) and (empty or v != ''), schema)


def array(
    words: str, item: Leaf, least: int = 0, most: int | None = None, *, different: bool = False
) -> Leaf:
    """
    Make a rule for a list of *least* to *most* items that follow the rule *item*.

    :param different: whether all items must differ; the items must then be hashable.
    """

    def accepts(value: Any) -> bool:
        good = (
            isinstance(value, list)
            and len(value) >= least
            and (most is None or len(value) <= most)
        )
        return (
            good
            and all(item.accepts(v) for v in value)
            and not (different and len(set(value)) < len(value))
        )

    schema: Schema = {'type': 'array', 'items': item.schema()}
    if different:
        schema['uniqueItems'] = True
    if least:
        schema['minItems'] = least
    if most is not None:
        schema['maxItems'] = most
    return Leaf(words, accepts, schema)


def either(first: Leaf, second: Leaf, words: str) -> Leaf:
    """Make a rule for a value that follows at least one of two rules."""
    return Leaf(
        words,
        lambda v: first.accepts(v) or second.accepts(v),
        {'anyOf': [first.schema(), second.schema()]},
    )


@dataclass(frozen=True)
class Key:
    """
    A key of a table, with the rule for its value.

    :param description: the text that editors show for the key, from the JSON schema.
    :param default: the value of a key that is left out, for error messages and the schema.
    """

    rule: Rule
    description: str
    default: Any = None


@dataclass(frozen=True)
class Table(Rule):
    """
    A rule for a mapping with known keys.

    :param keys: the known keys; a key that isn't in *needed* may be left out.
    :param needed: the required keys.
    :param elsewhere: returns keys that users often write in this table by mistake, each with the
        name of the right table; called only if a key is unknown.
    :param more: returns keys that other packages add; called only if a key is unknown.
    :param meant: wrong names that users often write, each with the key's right name.
    """

    keys: Mapping[str, Key]
    needed: tuple[str, ...] = ()
    elsewhere: Callable[[], Mapping[str, str]] = dict
    more: Callable[[], Mapping[str, Key]] = dict
    meant: Mapping[str, str] = field(default_factory=dict)
    words: str = 'a mapping of keys'

    def check(self, value: Any, place: Place) -> None:
        if not isinstance(value, Mapping):
            if not place.key:
                raise ConfigError(
                    f"{place.path}: the file must be a mapping of keys, not '{value}'"
                )
            raise place.refuse(value, self.words)
        keys = self.keys
        if not value.keys() <= keys.keys():
            keys = {**keys, **self.more()}
        for name in value:
            if name not in keys:
                if owner := self.elsewhere().get(name):
                    raise ConfigError(
                        f"{place.path}: key '{place.at(str(name)).key}' is unknown here; write it "
                        f"below '{owner}'"
                    )
                hint = nearest(str(self.meant.get(name, name)), keys)
                known = ', '.join(keys)
                raise ConfigError(
                    f"{place.path}: key '{place.at(str(name)).key}' is unknown{hint}; known "
                    f'are {known}'
                )
        for name, entry in value.items():
            key = keys[name]
            if entry is None and key.default is not None:
                raise place.at(name).refuse(
                    None, f'{key.rule.words}, or be left out, which means {key.default}'
                )
            key.rule.check(entry, place.at(name))
        for name in self.needed:
            if name not in value:
                raise place.at(name).missing(self.keys[name].rule.words)

    def schema(self) -> Schema:
        properties = {}
        for name, key in self.keys.items():
            properties[name] = {**key.rule.schema(), 'description': key.description}
            if key.default is not None:
                properties[name]['default'] = key.default
        schema: Schema = {
            'type': 'object',
            'additionalProperties': False,
            'properties': properties,
        }
        if self.needed:
            schema['required'] = list(self.needed)
        return schema


@dataclass(frozen=True)
class TableList(Rule):
    """A rule for a list of at least one mapping; each mapping follows *table*."""

    table: Table
    words: str

    def check(self, value: Any, place: Place) -> None:
        if not isinstance(value, list) or not value:
            raise place.refuse(value, self.words)
        for index, entry in enumerate(value):
            self.table.check(entry, place.item(index))

    def schema(self) -> Schema:
        return {'type': 'array', 'minItems': 1, 'items': self.table.schema()}
