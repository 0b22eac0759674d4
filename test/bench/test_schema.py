"""The file's schema, and the check that holds the program to it."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from zc_perception.bench.environment import describe_environment
from zc_perception.bench.rows import Row
from zc_perception.bench.schema import SCHEMA, SchemaError, check_document, violations

PINNED = {'case', 'variant', 'width', 'height', 'rate_hz', 'median_us', 'p99_us', 'cpu_us_per_frame', 'repetitions', 'ratio_to'}


def document() -> dict[str, Any]:
    row = Row('link', 'x', 640, 480, 30.0, 1.0, 2.0, 3.0, 7, {'floor/f': 2.0}, {'floor/f': -1.0}, {'floor/f': 1.5}, [1.0, None], 0.5)
    return {'environment': describe_environment(), 'rows': [row.as_json()]}


def test_the_schema_requires_what_other_programs_rely_on() -> None:
    schema = json.loads(SCHEMA.read_text(encoding='utf-8'))
    assert set(schema['required']) == {'environment', 'rows'}
    row = schema['properties']['rows']['items']
    assert set(row['required']) >= PINNED
    assert set(row['required']) == set(row['properties']) == set(document()['rows'][0])


def test_a_good_document_passes() -> None:
    check_document(document())
    check_document(json.loads(json.dumps(document())))


def without(name: str) -> dict[str, Any]:
    changed = document()
    del changed['rows'][0][name]
    return changed


@pytest.mark.parametrize('name', sorted(PINNED))
def test_each_pinned_key_is_needed(name: str) -> None:
    with pytest.raises(SchemaError, match=rf"\$\.rows\[0\] lacks '{name}'"):
        check_document(without(name))


@pytest.mark.parametrize(
    ('place', 'value', 'message'),
    [
        (('rows', 0, 'median_us'), float('nan'), 'median_us is nan, not number or null'),
        (('rows', 0, 'median_us'), float('inf'), 'is inf, not'),
        (('rows', 0, 'median_us'), -1.0, 'outside of 0'),
        (('rows', 0, 'median_us'), True, 'is True, not number'),
        (('rows', 0, 'median_us'), '1', "is '1', not number"),
        (('rows', 0, 'width'), 0, 'outside of 1'),
        (('rows', 0, 'width'), 1.5, 'not integer'),
        (('rows', 0, 'case'), '', 'shorter than 1'),
        (('rows', 0, 'lost_per_cent'), 100.5, 'outside of 0..100'),
        (('rows', 0, 'ratio_to'), [], 'not object'),
        (('rows', 0, 'ratio_to', 'floor/f'), None, 'floor/f is None, not number'),
        (('rows', 0, 'medians_us', 1), 'none', r'medians_us\[1\]'),
        (('rows', 0, 'colour'), 'red', "has 'colour', which the schema doesn't know"),
        (('rows',), [], 'fewer than 1'),
        (('rows',), {}, 'not array'),
        (('environment', 'cpus'), '2', 'cpus'),
        (('environment', 'virtual'), 1, 'not boolean'),
        (('more',), 1, "has 'more'"),
    ],
)
def test_what_is_wrong_is_named(place: tuple[Any, ...], value: Any, message: str) -> None:
    changed = copy.deepcopy(document())
    inner = changed
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    with pytest.raises(SchemaError, match=message):
        check_document(changed)


@pytest.mark.parametrize('schema', [{'pattern': '^a'}, {'properties': {'a': {'oneOf': []}}}, {'items': {'enum': [1]}}])
def test_a_keyword_that_nothing_checks_is_an_error(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match='nothing here checks'):
        list(violations({'a': 1} if 'properties' in schema else [1], schema))


def test_the_schema_is_installed_with_the_package() -> None:
    setup = (Path(__file__).parents[2] / 'setup.py').read_text(encoding='utf-8')
    patterns = re.findall(r"'([^']+)'", setup.split('package_data=')[1].split('}')[0])
    assert SCHEMA.is_file() and any(SCHEMA.match(f'zc_perception/{pattern}') for pattern in patterns)
