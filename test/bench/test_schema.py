"""The file's schema: what it needs and refuses, and that it is installed."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from bench_kit import SCHEMA
from npu.json_schema import conforms

from zc_perception import bench
from zc_perception.bench.environment import describe_environment
from zc_perception.bench.rows import Row

PINNED = {'case', 'variant', 'width', 'height', 'rate_hz', 'median_us', 'p99_us', 'cpu_us_per_frame', 'repetitions', 'ratio_to'}


def document() -> dict[str, Any]:
    row = Row('link', 'x', 640, 480, 30.0, 1.0, 2.0, 3.0, 7, {'floor/f': 2.0}, {'floor/f': -1.0}, {'floor/f': 1.5}, [1.0, None], 0.5)
    made: dict[str, Any] = json.loads(json.dumps({'environment': describe_environment(), 'rows': [row.as_json()]}))
    return made


def test_the_schema_requires_what_other_programs_rely_on() -> None:
    assert conforms(document(), SCHEMA) and set(SCHEMA['required']) == {'environment', 'rows'}
    row = SCHEMA['properties']['rows']['items']
    assert set(row['required']) >= PINNED
    assert set(row['required']) == set(row['properties']) == set(document()['rows'][0])


@pytest.mark.parametrize(
    ('place', 'value'),
    [
        (('rows', 0, 'median_us'), float('nan')),
        (('rows', 0, 'median_us'), -1.0),
        (('rows', 0, 'width'), 1.5),
        (('rows', 0, 'case'), ''),
        (('rows', 0, 'lost_per_cent'), 100.5),
        (('rows', 0, 'ratio_to', 'floor/f'), None),
        (('rows', 0, 'medians_us', 1), 'none'),
        (('rows', 0, 'colour'), 'red'),
        (('rows',), []),
        (('environment', 'cpus'), '2'),
        (('environment', 'virtual'), 1),
        (('more',), 1),
    ],
)
def test_what_is_wrong_is_refused(place: tuple[Any, ...], value: Any) -> None:
    changed = copy.deepcopy(document())
    inner = changed
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    assert not conforms(changed, SCHEMA)


def test_the_schema_is_installed_with_the_package() -> None:
    setup = (Path(__file__).parents[2] / 'setup.py').read_text(encoding='utf-8')
    patterns = re.findall(r"'([^']+)'", setup.split('package_data=')[1].split('}')[0])
    schema = Path(bench.__file__).with_name('bench.schema.json')
    assert any(schema.match(f'zc_perception/{pattern}') for pattern in patterns)
