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
A parameter file has the meaning that rcl gives it.

Files that rcl rejects or misreads are rejected in one line; each parameter has its line numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
import ctypes
import json
import math
from pathlib import Path
import subprocess
import sys
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from nodes.ros_kit import ros
from npu.json_schema import conforms
import pytest
from rclpy.node import Node
import yaml

from zc_perception.errors import ConfigError
from zc_perception.link.rclpy_compat import parameter_overrides
from zc_perception.nodes.params import schema, yaml_file
from zc_perception.nodes.params.verdict import check_file, node_kinds
from zc_perception.nodes.params.yaml_file import read_parameter_yaml
from zc_perception.parameters import ParameterSpec

NODES = ('/capture', '/front/capture', '/front/rear/capture', '/b')

GOOD = '/capture: {ros__parameters: {a: 1}}\n'
# P formats parameters of /capture in braces, B as lines.
P, B = (
    '/capture: {{ros__parameters: {{{}}}}}\n'.format,
    '/capture:\n  ros__parameters:\n    {}\n'.format,
)
TAKEN: dict[str, str | bytes] = {
    'empty': '',
    'a comment': '# nothing\n',
    'an empty mapping': '{}',
    'no parameters': '/capture: {ros__parameters: {}}',
    'a node without a word': '/capture: {}\n',
    'byte order mark': '\ufeff'.encode() + GOOD.encode(),
    'UTF-16': GOOD.encode('utf-16'),
    'other letters': P('a: ä€😀'),
    'escapes': P(r'a: "\x01\U0001F600"'),
    'next line': P('a: x\x85y'),
    'line separator': P('a: x\u2028y'),
    'two documents': GOOD + '---\n/capture: {ros__parameters: {b: 2}}\n',
    'ends of documents': f'---\n{GOOD}...\n',
    'directives': f'%YAML 1.1\n%TAG !e! tag:e,2000:\n---\n{P("a: !e!x 1")}',
    'a node twice': GOOD + P('b: 3'),
    'a mapping twice': P('a: {b: 1}, a: {c: 2}'),
    'dots': P('a.b: 1, a: {b: 2}'),
    'value behind mapping': P('a: {b: 1}, a: 3'),
    'merge key': P('<<: {a: 1}'),
    'anchors': P('a: &x 1').replace(': {ros', ': &y {ros'),
    'tags that mean nothing': P(
        'a: !!int "5", b: !!float 5, c: !!binary aGk=, d: !!timestamp '
        '2020-01-01, e: !!null x, f: ! 5, g: !own 6'
    ),
    'text tag': P('a: !!str 5, b: !<tag:yaml.org,2002:str> yes'),
    "launch_ros's tuples": P('a: !!python/tuple [p, q]'),
    'each type': P(
        'a: [1, -2], b: [1.5, .inf], c: [yes, no], d: [x], e: [], f: .nan, g: 0x10, '
        'h: 1e400, i: 9223372036854775808'
    ),
    'quoted': P("""a: "5", b: 'yes', c: '', d: ["1", "2"]"""),
    'trailing comma': P('a: [x, ]'),
    'tilde': P('a: ~, b: null, c: [~]'),
    'block text': B(
        'a: |\n      5\n    b: |-\n      5\n    c: >-\n      yes\n    d: !!str '
        '|-\n      5\n    e: |1-\n       7'
    ),
    'lines': B('a: 5\n      6'),
    'odd keys': P('"a b": 1, "ä": 2, "a.": 3, 1: 6, ~: 7, ? q : 8, ros__parameters: 9'),
    'namespaces': 'front: {rear/: {capture: {ros__parameters: {a: 1}}}, capture: '
    '{ros__parameters: {b: 1}}}\n'
    '/: {b: {ros__parameters: {c: 1}}}\n',
    'order': GOOD + '/**: {ros__parameters: {a: 2}}\n"*": {ros__parameters: {b: 2}}\n' + P('a: 3'),
    'wildcards': '"**": {ros__parameters: {a: 1}}\n/**/*: {ros__parameters: {b: '
    '1}}\n/*/capture: {ros__parameters: {c: 1}}\n'
    '/**/**: {rear: {"*": {ros__parameters: {d: 1}}}}\n'
    '/front/*/capture: {ros__parameters: {e: 1}}\n'
    '/*: {ros__parameters: {f: 1}}\n/*/*/capture: {ros__parameters: {g: 1}}\n',
    'deep': P('{a: ' * 60 + '1' + '}' * 60).replace('{{', '{', 1).replace('}}', '}', 1),
}
REFUSED: dict[str, tuple[str | bytes, str]] = {
    'a list': ('- 1', "can't be read: line 1: Sequences cannot be key"),
    'no key between': (
        '/capture:\n  camera: v4l2\n',
        "line 2: 'ros__parameters:' must stand between a node's name and its",
    ),
    'no parameters': (
        '/capture:\n  ros__parameters:\n',
        "line 2: 'ros__parameters:' must stand between",
    ),
    'no node': ('ros__parameters: {a: 1}', "line 1: 'ros__parameters:' must stand between"),
    'a tab': ('a:\n\tb: 1', "can't be read: line 2: there is a tab"),
    'broken': ('/capture: {ros__parameters: {a: [1}}', "line 1: expected ',' or ']'"),
    'not UTF-8': (
        b'/capture: {ros__parameters: {a: \xe4}}\n',
        'it is no YAML: unacceptable character #x00e4',
    ),
    'a NUL': (b'/capture: {ros__parameters: {a: x\0y}}\n', 'special characters are not allowed'),
    'half a pair': (P(r'a: "\ud800"'), "line 1: ROS can't parse the file; put quotes"),
    'no character': (P(r'a: "\UFFFFFFFF"'), "can't be read: it is no YAML: "),
    'a colon in flow style': (
        P('a: 0000:01:00.0'),
        "line 1: ROS can't parse the file; put quotes around texts with ':'",
    ),
    'an alias': (P('a: &x 1, b: *x'), 'line 1: ROS takes no alias (*NAME); write the value again'),
    'an alias of itself': ('&a {b: *a}\n', 'ROS takes no alias'),
    'mixed': (
        B('a: 1\n    b: [car, 1]'),
        'line 4: a list has values of several types; put quotes around texts',
    ),
    'no value': (B('a: !!str\n    b: 1'), "line 3: a parameter has no value; an empty text is ''"),
    'a list as a key': (P('[1]: 5'), 'line 1: Sequences cannot be key'),
    'a mapping as a key': (P('{a: b}: 5'), 'line 1: '),
    'an empty document': (GOOD + '---\n', 'line 3: No key'),
    'many nested ones': ('{a: ' * 2000 + '1' + '}' * 2000, 'it is no YAML: maximum recursion'),
    **{
        f'name {name!r}': (
            f'\n"{name}": {{ros__parameters: {{a: 1}}}}\n',
            f"line 2: '{name.removeprefix('/')}' can't be a node's full name: ",
        )
        for name in (
            '/capture/',
            '/',
            '5',
            '/a-b',
            '~',
            '~/capture',
            '/cap*',
            '/**e',
            '//capture',
            '/cäpture',
        )
    },
}
MISREAD_BY_RCL: dict[str, tuple[str | bytes, str]] = {
    'a NUL, escaped': (B(r'a: "x\0y"'), ("line 3: ROS would misread 'a'; write "
                                         'each parameter as NAME: VALUE')),
    'a NUL in a key': (P(r'"a\0b": 1'), 'line 1: '),
    'a NUL in a name': ('"/capture\\0x": {ros__parameters: {a: 1}}\n', 'line 1: '),
    'a scalar': ('5', "line 1: ROS would misread '5'"),
    'an empty mapping': (B('b: 1\n    a: {}'), "line 4: ROS would misread 'a'"),
    'a list in a list': (P('a: [[1]]'), "'a'"),
    'a mapping in a list': (P('a: [{b: 1}, {b: 2}]'), "'a'"),
    'a mapping in place of a value': (P('a: 1, a: {b: 2}'), "'a'"),
    'behind a dotted name': (P('e: {a.b: {d: 1}, f: 2}'), "'e.f'"),
    'a key that only begins so': ('/capture: {ros__parameters_x: {a: 1}}\n', 'ROS would misread'),
}  # fmt: skip


def rcl_reads(path: Path, domain: int) -> dict[str, dict[str, Any]]:
    """Return the nodes' parameters as rcl itself reads them."""
    found = {}
    with ros(domain, '--params-file', str(path)) as context:
        for full_name in NODES:
            namespace, _, name = full_name.rpartition('/')
            where = {'context': context, 'namespace': namespace or '/'}
            node = Node(name, **where, start_parameter_services=False, enable_rosout=False)
            values = parameter_overrides(node).items()
            found[full_name] = {key: parameter.value for key, parameter in values}
            node.destroy_node()
    return found


def comparable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with types, so that NaNs are equal, and -0.0 differs from 0.0."""
    return {name: _typed(value) for name, value in values.items()}


def _typed(value: Any) -> Any:
    if isinstance(value, list):
        return [_typed(item) for item in value] or 'nothing'
    if isinstance(value, float):
        return 'float', 'nan' if math.isnan(value) else value.hex()
    return 'nothing' if value is None else (type(value).__name__, value)


def file(folder: Path, content: str | bytes) -> Path:
    path = folder / 'case.yaml'
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize('case', TAKEN)
def test_what_nodes_get_is_what_rcl_gives_them(
    case: str, tmp_path: Path, module_domain: int
) -> None:
    path = file(tmp_path, TAKEN[case])
    read = read_parameter_yaml(str(path))
    for node, values in rcl_reads(path, module_domain).items():
        assert comparable(read.values(node)) == comparable(values)


@pytest.mark.parametrize('case', [*REFUSED, *MISREAD_BY_RCL])
def test_what_rcl_refuses_or_misreads_is_refused_in_one_line(
    case: str, tmp_path: Path, module_domain: int
) -> None:
    content, message = {**REFUSED, **MISREAD_BY_RCL}[case]
    path = file(tmp_path, content)
    with pytest.raises(ConfigError) as refused:
        read_parameter_yaml(str(path))
    said = str(refused.value)
    assert said.startswith(f"parameter file '{path}'") and message in said
    assert '\n' not in said and '.c:' not in said
    if case in MISREAD_BY_RCL:
        rcl_reads(path, module_domain)  # it says nothing of it


def test_each_parameter_has_its_lines(tmp_path: Path) -> None:
    text = (
        'front:\n  capture:\n    ros__parameters:\n      a: {b: 1,\n        c: [2,\n 3]}\n '
        '     a.b: 2\n/front/capture:\n  ros__parameters: {d: 1}\n'
    )
    assert read_parameter_yaml(str(file(tmp_path, text))).lines == {
        ('/front/capture', ''): [2, 8],
        ('/front/capture', 'a.b'): [4, 7],
        ('/front/capture', 'a.c'): [5],
        ('/front/capture', 'd'): [9],
    }


def test_without_ros_the_values_are_those_of_plain_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = P('a: 3, b: x, c: [p, q], d: 1.5, e: yes, f: "5", g: 2020-99-99, h: ~')
    text = text.replace('/capture', '/**/capture')
    path = str(file(tmp_path, text))
    by_ros = read_parameter_yaml(path)
    monkeypatch.setattr(yaml_file, '_rcl', lambda: None)
    plain = read_parameter_yaml(path)
    assert by_ros.by_rcl and not plain.by_rcl
    assert (plain.sections, plain.lines) == (by_ros.sections, by_ros.lines)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    gone = "can't be read: No such file or directory; name another file"
    with pytest.raises(ConfigError, match=rf"^params_file '.*no\.yaml' {gone}$"):
        read_parameter_yaml(str(tmp_path / 'no.yaml'), 'params_file')
    with pytest.raises(ConfigError, match='Is a directory'):
        read_parameter_yaml(str(tmp_path))
    with pytest.raises(ConfigError, match=r"'/dev/zero' has more than 4194304 bytes, the limit; "):
        read_parameter_yaml('/dev/zero')


def test_the_structs_are_those_of_rcl_s_header(tmp_path: Path) -> None:
    include = Path(sys.prefix, 'include')
    kinds = [
        yaml_file.ALLOCATOR,
        yaml_file.VARIANT,
        yaml_file.NODE_PARAMS,
        yaml_file.PARAMS,
        *yaml_file.ARRAYS.values(),
    ]
    wanted = {f'sizeof({kind.__name__})': ctypes.sizeof(kind) for kind in kinds}
    wanted |= {
        f'offsetof({kind.__name__}, {name})': getattr(kind, name).offset
        for kind in kinds
        for name, _ in kind._fields_
    }
    source, program = tmp_path / 'a.c', tmp_path / 'a'
    prints = ''.join(f'printf("%zu\\n", {expression});' for expression in wanted)
    headers = '#include <stddef.h>\n#include <stdio.h>\n#include <rcl_yaml_param_parser/types.h>\n'
    source.write_text(f'{headers}int main(void) {{ {prints} return 0; }}\n')
    folders = [f'-I{include / name}' for name in ('rcl_yaml_param_parser', 'rcutils')]
    subprocess.run(['gcc', *folders, '-o', str(program), str(source)], check=True)
    said = subprocess.run(
        [str(program)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert dict(zip(wanted, map(int, said), strict=True)) == wanted


# The JSON schema of parameter files agrees with the nodes; shipped files satisfy both.
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
def test_each_shipped_file_suits_the_nodes_and_the_schema_that_it_names(name: str) -> None:
    text = (CONFIG / name).read_text(encoding='utf-8')
    assert text.splitlines()[0] == f'# yaml-language-server: $schema={SCHEMA_FILE.name}'
    assert conforms(yaml.safe_load(text), SCHEMA)
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
