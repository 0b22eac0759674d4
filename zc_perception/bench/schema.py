"""Checks a document against ``bench.schema.json``, by the part of JSON Schema (draft 2020-12) that it uses."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zc_perception.errors import ZcError, shown

SCHEMA = Path(__file__).with_name('bench.schema.json')
_ANNOTATIONS = {'$schema', 'title', 'description'}
_CHECKED = {
    'type', 'required', 'properties', 'additionalProperties', 'items', 'minItems', 'minLength', 'minimum', 'maximum',
}  # fmt: skip


class SchemaError(ZcError):
    """A document isn't what the schema says; a bug."""


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # hundreds of digits; nothing can be divided by it
        return False


def _is(value: object, kind: str) -> bool:
    # To Python, True is a number; to JSON it is none, and neither are NaN and infinity.
    if kind in ('number', 'integer'):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_finite(value):
            return False
        return kind == 'number' or float(value).is_integer()
    types: dict[str, type | tuple[type, ...]] = {
        'object': dict, 'array': (list, tuple), 'string': str, 'boolean': bool, 'null': type(None),
    }  # fmt: skip
    return isinstance(value, types[kind])


def violations(value: Any, schema: Mapping[str, Any], where: str = '$') -> Iterator[str]:
    """What is wrong with *value*, each with its place.

    :raises SchemaError: the schema uses a keyword that isn't known here.
    """
    if unknown := set(schema) - _CHECKED - _ANNOTATIONS:
        raise SchemaError(f'the schema uses {sorted(unknown)} at {where}, which nothing here checks')
    kinds = schema.get('type', ())
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    if kinds and not any(_is(value, kind) for kind in kinds):
        yield f'{where} is {shown(value)}, not {" or ".join(kinds)}'
        return
    if isinstance(value, dict):
        yield from _in_object(value, schema, where)
    elif isinstance(value, (list, tuple)):
        if len(value) < schema.get('minItems', 0):
            yield f'{where} has {len(value)} items, fewer than {schema["minItems"]}'
        for index, item in enumerate(value):
            yield from violations(item, schema.get('items', {}), f'{where}[{index}]')
    elif isinstance(value, str):
        if len(value) < schema.get('minLength', 0):
            yield f'{where} is {shown(value)}, shorter than {schema["minLength"]}'
    elif value is not None and not schema.get('minimum', -math.inf) <= value <= schema.get('maximum', math.inf):
        yield f'{where} is {shown(value)}, outside of {schema.get("minimum", "")}..{schema.get("maximum", "")}'


def _in_object(value: Mapping[str, Any], schema: Mapping[str, Any], where: str) -> Iterator[str]:
    yield from (f"{where} lacks '{name}'" for name in schema.get('required', ()) if name not in value)
    properties = schema.get('properties', {})
    for name, entry in value.items():
        rule = properties.get(name, schema.get('additionalProperties', True))
        if rule is False:
            yield f"{where} has '{name}', which the schema doesn't know"
        elif rule is not True:
            yield from violations(entry, rule, f'{where}.{name}')


def check_document(document: object) -> None:
    """Refuse to write what readers of the file wouldn't understand.

    :raises SchemaError: it is not what ``bench.schema.json`` says.
    """
    wrong = list(violations(document, json.loads(SCHEMA.read_text(encoding='utf-8'))))
    if wrong:
        raise SchemaError(f'the result is not what bench.schema.json says: {"; ".join(wrong[:5])}')
