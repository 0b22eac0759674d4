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
The JSON schema of model.yaml and the reader say the same.

Both come from one table; a program that knows only JSON checks the schema.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from npu.json_schema import conforms
import pytest
import yaml

from zc_perception.errors import ConfigError
from zc_perception.npu.manifest import (
    load_manifest,
    manifest_schema,
    manifest_table,
    MODELS,
    shipped_models,
)
from zc_perception.rules import Place

PATH = MODELS / 'model.schema.json'
SCHEMA = json.loads(PATH.read_text(encoding='utf-8'))
WRITE = (
    '.venv/bin/python -c "from zc_perception.npu import manifest; '
    "print(manifest.schema_text(), end='')\" "
    f'> zc_perception/models/{PATH.name}'
)
TENSOR = {
    'name': 'o',
    'layout': 'nhwc',
    'dtype': 'int8',
    'shape': [1, 2],
    'offset': 4,
    'scale': [1, 0.5],
    'zero_point': 3,
    'padding': [[0, 0], [0, 1]],
}
HEAD = {
    'kind': 'ssd',
    'strides': [8],
    'anchors': [[[1, 2.5]]],
    'sigmoid': False,
    'softmax': True,
    'class_agnostic': True,
    'variances': [0.1, 1],
    'background': -1,
    'priors': [[0, 0, 1, 1]],
    'box_order': 'yxyx',
}
WHOLE: dict[str, Any] = {
    'name': 'm',
    'engine': 'onnx',
    'file': 'w.onnx',
    'model_id': 1,
    'finds': '',
    'licence': '',
    'classes': ['a'],
    'classes_file': 'l.txt',
    'score_threshold': 0.5,
    'nms_threshold': 1,
    'max_detections': 5,
    'head': HEAD,
    'outputs': [TENSOR],
    'input': {
        'width': 8,
        'height': 8,
        'layout': 'nhwc',
        'dtype': 'int8',
        'colour': 'bgr',
        'range': [0, 1.5],
        'mean': [0.5],
        'std': [0.2],
        'scale': 0.1,
        'zero_point': -1,
        'resize': 'stretch',
        'pad': 0,
    },
    'variants': [{'engine': 'axl', 'head': 'yolov8'}],
}


def structure_is_read(values: Any) -> bool:
    try:
        manifest_table().check(values, Place(Path('model.yaml')))
    except ConfigError:
        return False
    return True


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Yield the way to every value inside."""
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [at, *(place for key, entry in inside for place in places(entry, (*at, key)))]


PLACES = [place for place in places(WHOLE) if place]


def test_the_schema_in_the_repository_is_the_reader_s_table() -> None:
    assert manifest_schema() == SCHEMA, f'write it anew: {WRITE}'


def test_every_key_is_in_the_example_that_is_changed_below() -> None:
    tables = [
        (SCHEMA, WHOLE),
        (SCHEMA['$defs']['input'], WHOLE['input']),
        (SCHEMA['$defs']['outputs']['items'], TENSOR),
    ]
    tables += [
        (schema, HEAD)
        for schema in SCHEMA['$defs']['head']['anyOf']
        if schema.get('properties', {}).get('kind', {}).get('enum') == ['ssd']
    ]
    assert len(tables) == 4
    for schema, example in tables:
        assert (
            set(schema['properties']) == set(example) and schema['additionalProperties'] is False
        )
    assert conforms(WHOLE, SCHEMA) and structure_is_read(WHOLE)


# 5.0 is an integer to JSON and none to YAML: the one case in which the two differ on purpose.
SMALL = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([-0.5, 0.25, 1.5, 10**6, 2**31, 2**33, 1e300])
)
WORDS = st.sampled_from(
    [
        '',
        'onnx',
        'axl',
        'nchw',
        'rgb',
        'letterbox',
        'int8',
        'yolov8',
        'boxes',
        'xyxy',
        'source',
        'car',
    ]
)
VALUES = st.recursive(
    SMALL | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [*manifest_table().keys, 'width', 'kind', 'strides', 'shape', 'padding', 'head_', 'engin', '']
)


@settings(max_examples=600)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(PLACES), st.sampled_from(['set', 'delete', 'add']), VALUES, KEYS
        ),
        min_size=1,
        max_size=3,
    )
)
def test_what_one_refuses_the_other_refuses(
    changes: list[tuple[tuple[Any, ...], str, Any, str]],
) -> None:
    values = copy.deepcopy(WHOLE)
    for place, action, value, key in changes:
        target: Any = values
        try:
            for step in place[:-1]:
                target = target[step]
            if action == 'set':
                target[place[-1]] = value
            elif action == 'delete':
                del target[place[-1]]
            elif isinstance(target[place[-1]], dict):
                target[place[-1]][key] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    assert conforms(values, SCHEMA) == structure_is_read(values), values


@pytest.mark.parametrize(
    'model',
    [*shipped_models(), str(Path(__file__).parents[1] / 'rig' / 'models' / 'virtual_metis.yaml')],
)
def test_the_manifests_of_the_repository_conform(model: str) -> None:
    assert conforms(yaml.safe_load(load_manifest(model).path.read_text(encoding='utf-8')), SCHEMA)


def test_every_key_tells_what_it_is_for() -> None:
    def check(schema: dict[str, Any]) -> None:
        for name, rule in schema.get('properties', {}).items():
            assert rule['description'].endswith('.'), f'{name} has no sentence'
        for inner in [
            *schema.get('anyOf', ()),
            *schema.get('$defs', {}).values(),
            *([schema['items']] if 'items' in schema else ()),
        ]:
            check(inner)

    check(SCHEMA)
