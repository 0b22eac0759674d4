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

"""The JSON schema of parameter files agrees with the nodes; shipped files satisfy both."""

from __future__ import annotations

import json
from pathlib import Path
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from npu.json_schema import conforms
import pytest
import yaml

from zc_perception.errors import ConfigError
from zc_perception.nodes.params import schema
from zc_perception.nodes.params.verdict import check_file, node_kinds
from zc_perception.nodes.params.yaml_file import read_parameter_yaml
from zc_perception.parameters import ParameterSpec

CONFIG = Path(__file__).resolve().parents[3] / 'config'
SCHEMA_FILE = CONFIG / 'perception.schema.json'
SCHEMA = json.loads(SCHEMA_FILE.read_text(encoding='utf-8'))
FILES = sorted(
    path.name
    for path in CONFIG.glob('*.yaml')
    if '/**/capture' in path.read_text(encoding='utf-8')
)
WRITE = f'.venv/bin/python -m zc_perception.nodes.params.schema config/{SCHEMA_FILE.name}'
FRESH = schema.file_schema()
SPECS = {(name, spec.name): spec for name, node in node_kinds().items() for spec in node.SPECS}


def section(node: str, **values: Any) -> dict[str, Any]:
    return {f'/**/{node}': {'ros__parameters': values}}


def test_the_schema_in_the_repository_is_the_nodes_declarations(tmp_path: Path) -> None:
    assert json.loads(schema.text()) == SCHEMA, f'write it anew: {WRITE}'
    assert SCHEMA_FILE.read_text(encoding='utf-8') == schema.text(), f'write it anew: {WRITE}'
    assert schema.main([str(tmp_path / 'x.json')]) == 0
    assert (tmp_path / 'x.json').read_text(encoding='utf-8') == schema.text()


@pytest.mark.parametrize('name', FILES)
def test_each_shipped_file_suits_the_schema_and_names_it_for_editors(name: str) -> None:
    text = (CONFIG / name).read_text(encoding='utf-8')
    assert text.splitlines()[0] == f'# yaml-language-server: $schema={SCHEMA_FILE.name}'
    assert conforms(yaml.safe_load(text), SCHEMA)


@pytest.mark.parametrize('name', FILES)
def test_the_nodes_take_each_shipped_file(name: str) -> None:
    file = read_parameter_yaml(str(CONFIG / name))
    cameras = {'stereo.yaml': ('left', 'right'), 'multi_camera.yaml': ('front', 'rear')}.get(
        name, ('',)
    )
    nodes = {
        f'{"/" if camera else ""}{camera}/{kind}': kind
        for camera in cameras
        for kind in ('capture', 'inference', 'overlay')
    }
    # Values that depend on the vehicle, and don't exist here.
    video = {'video': __file__} if name == 'replay_people.yaml' else {}
    there = {'capture': video, 'inference': {'model': 'road'}}
    below_a_namespace = {f'/truck{path}': kind for path, kind in nodes.items()}
    assert check_file(file, nodes, there) == check_file(file, below_a_namespace, there) == [], (
        'and have nothing to warn of'
    )
    for path, kind in nodes.items():
        values = file.values(path)
        assert values == file.values(f'/truck{path}')
        assert kind == 'overlay' or values, 'the file is about this node'
    if len(cameras) == 2:
        one, other = (file.values(f'/{camera}/capture') for camera in cameras)
        assert one['frame_id'] != other['frame_id'], 'its own section counts'


WRONG: dict[str, Any] = {
    'a list': [],
    'no section': {'camera': 'synthetic'},
    'parameters without their key': {'/**/capture': {'camera': 'synthetic'}},
    'an unknown key': section('capture', widht=640),
    "another node's key": section('overlay', camera='synthetic'),
    'in a namespace': {'front': {'capture': {'ros__parameters': {'widht': 640}}}},
    'in all nodes': {'/**': {'ros__parameters': {'width': 'wide'}}},
    'below all namespaces': {'/**': {'capture': {'ros__parameters': {'width': 'wide'}}}},
}
RIGHT: dict[str, Any] = {
    'nothing': {},
    'controls, nested': section('capture', controls={'brightness': 3}),
    'controls, by name': section('capture', **{'controls.brightness': 3}),
    'quality of service': section('inference', **{'qos_overrides./detections.publisher.depth': 1}),
    'the clock': section('overlay', use_sim_time=True),
    "another package's node": {'/planner': {'ros__parameters': {'widht': 640}}},
    'a namespace': {
        'front': {
            'capture': {'ros__parameters': {'width': 640}},
            'planner': {'ros__parameters': {'x': 1}},
        }
    },
    "all nodes, others' too": {'/**': {'ros__parameters': {'width': 640, 'planner_rate': 3}}},
}


def test_what_is_wrong_is_refused_and_what_is_right_is_not() -> None:
    assert [case for case, content in WRONG.items() if conforms(content, SCHEMA)] == []
    assert [case for case, content in RIGHT.items() if not conforms(content, SCHEMA)] == []


def values_near(spec: ParameterSpec) -> st.SearchStrategy[Any]:
    """Return values near the limits, some just outside them, and values of other types."""
    bounds = [4] * spec.even + [
        bound for bound in (spec.low, spec.high, spec.besides) if bound is not None
    ]
    near = [kind(bound + step) for bound in bounds for step in (-1, 0, 1) for kind in (int, float)]
    numbers = st.one_of(
        st.integers(-(2**31), 2**31),
        st.floats(allow_nan=False, allow_infinity=False),
        *map(st.just, near),
    )
    texts = st.sampled_from([*spec.choices, '', 'x', 'true'])
    return st.one_of(
        st.booleans(), numbers, texts, st.lists(st.one_of(texts, st.integers(0, 3)), max_size=2)
    )


@settings(max_examples=300)
@given(st.data())
def test_schema_and_node_agree_on_every_value(data: st.DataObject) -> None:
    (node, name), spec = data.draw(
        st.sampled_from(sorted(SPECS.items(), key=lambda item: item[0]))
    )
    value = data.draw(values_near(spec))
    if type(value) is float and type(spec.default) is not float and value == int(value):
        return  # in JSON Schema 3.0 is an integer, in ROS it isn't
    try:
        spec.convert(value)
        allowed = True
    except ConfigError:
        allowed = False
    # A schema can't express the checks that are Python functions.
    agreed = conforms(section(node, **{name: value}), FRESH)
    assert agreed == allowed or (agreed and spec.check is not None)


@pytest.mark.parametrize('name', FILES)
def test_the_comments_of_a_shipped_file_say_whether_it_can_change_at_run_time(name: str) -> None:
    node = ''
    for line in (CONFIG / name).read_text(encoding='utf-8').splitlines():
        if match := re.match(r'/\*\*/(?:\w+/)?(\w+):', line):
            node = match[1]
        elif match := re.match(r'    (\w+): ', line):
            spec = SPECS[node, match[1]]
            assert ' # ' in line and line.endswith(
                f'run time: {"yes" if spec.dynamic else "no"}'
            ), f'{node}.{spec.name}: {line}'
