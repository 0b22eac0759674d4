"""The JSON schema of parameter files and the nodes say the same, and the shipped files are what both want."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from npu.json_schema import conforms

from zc_perception.errors import ConfigError
from zc_perception.nodes.launching.parameter_file import ParameterFile
from zc_perception.nodes.params import schema
from zc_perception.nodes.params.kinds import node_kinds
from zc_perception.nodes.params.spec import ParameterSpec

CONFIG = Path(__file__).resolve().parents[2] / 'config'
SCHEMA_FILE = CONFIG / 'perception.schema.json'
SCHEMA = json.loads(SCHEMA_FILE.read_text(encoding='utf-8'))
FILES = sorted(path.name for path in CONFIG.glob('*.yaml') if '/**/capture' in path.read_text(encoding='utf-8'))
WRITE = f'.venv/bin/python -m zc_perception.nodes.params.schema config/{SCHEMA_FILE.name}'
FRESH = schema.file_schema()
SPECS = {(name, spec.name): spec for name, node in node_kinds().items() for spec in node.SPECS}


def section(node: str, **values: Any) -> dict[str, Any]:
    return {f'/**/{node}': {'ros__parameters': values}}


def test_the_schema_in_the_repository_is_the_nodes_declarations() -> None:
    assert json.loads(schema.text()) == SCHEMA, f'write it anew: {WRITE}'
    assert SCHEMA_FILE.read_text(encoding='utf-8') == schema.text(), f'write it anew: {WRITE}'


def test_the_program_writes_and_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert schema.main([str(tmp_path / 'x.json')]) == 0
    assert schema.main([]) == 0
    assert (tmp_path / 'x.json').read_text(encoding='utf-8') == capsys.readouterr().out == schema.text()


def test_the_files_are_all_there() -> None:
    assert set(FILES) >= {'perception.yaml', 'sim.yaml', 'v4l2.yaml', 'jetson_metis.yaml', 'stereo.yaml', 'multi_camera.yaml'}


@pytest.mark.parametrize('name', FILES)
def test_each_shipped_file_suits_the_schema_and_names_it_for_editors(name: str) -> None:
    text = (CONFIG / name).read_text(encoding='utf-8')
    assert text.splitlines()[0] == f'# yaml-language-server: $schema={SCHEMA_FILE.name}'
    assert conforms(yaml.safe_load(text), SCHEMA)


@pytest.mark.parametrize('name', FILES)
def test_each_parameter_of_a_shipped_file_has_a_comment(name: str) -> None:
    lines = (CONFIG / name).read_text(encoding='utf-8').splitlines()
    bare = [line for line in lines if re.match(r'    \w', line) and ' # ' not in line]
    assert not bare


@pytest.mark.parametrize('name', FILES)
def test_the_schema_refuses_a_shipped_file_with_one_word_or_value_wrong(name: str) -> None:
    whole = yaml.safe_load((CONFIG / name).read_text(encoding='utf-8'))
    for key, part in whole.items():
        for parameter in part['ros__parameters']:
            typo, mistyped = copy.deepcopy(whole), copy.deepcopy(whole)
            values = typo[key]['ros__parameters']
            values[parameter + 'x'] = values.pop(parameter)
            mistyped[key]['ros__parameters'][parameter] = {'a': 1}
            assert not conforms(typo, SCHEMA), f'{key}: {parameter}x'
            assert not conforms(mistyped, SCHEMA), f'{key}: {parameter}'


@pytest.mark.parametrize('name', FILES)
def test_the_nodes_take_each_shipped_file(name: str) -> None:
    file = ParameterFile(str(CONFIG / name))
    cameras = {'stereo.yaml': ('left', 'right'), 'multi_camera.yaml': ('front', 'rear')}.get(name, ('',))
    nodes = {f'{"/" if camera else ""}{camera}/{kind}': kind for camera in cameras for kind in ('capture', 'inference', 'overlay')}
    # What is the vehicle's own, and not on this machine.
    there = {'capture': {'video': __file__}, 'inference': {'model': 'road'}}
    file.check(nodes, there)
    below_a_namespace = {f'/truck{path}': kind for path, kind in nodes.items()}
    file.check(below_a_namespace, there)
    for path, kind in nodes.items():
        values = file.values(path)
        assert values == file.values(f'/truck{path}')
        assert kind == 'overlay' or values, 'the file is about this node'
    if len(cameras) == 2:
        one, other = (file.values(f'/{camera}/capture') for camera in cameras)
        assert one['frame_id'] != other['frame_id'] and one['sensor_id'] != other['sensor_id'], 'its own section counts'


WRONG: dict[str, Any] = {
    'a list': [],
    'no section': {'camera': 'synthetic'},
    'parameters without their key': {'/**/capture': {'camera': 'synthetic'}},
    'an unknown key': section('capture', widht=640),
    "another node's key": section('overlay', camera='synthetic'),
    'a wrong kind': section('capture', camera='v4l3'),
    'a text for a number': section('capture', width='wide'),
    'a fraction': section('capture', width=640.5),
    'an odd width': section('capture', width=333),
    'too large': section('capture', framerate=5000.0),
    'neither in the range nor the one besides': section('inference', score_threshold=-0.5),
    'no list': section('inference', shared_memory_users='me'),
    'a number among texts': section('capture', participants=[5]),
    'a boolean for a text': section('capture', frame_id=True),
    'in a namespace': {'front': {'capture': {'ros__parameters': {'widht': 640}}}},
    'in all nodes': {'/**': {'ros__parameters': {'width': 'wide'}}},
    'below all namespaces': {'/**': {'capture': {'ros__parameters': {'width': 'wide'}}}},
}
RIGHT: dict[str, Any] = {
    'nothing': {},
    'the one besides': section('inference', score_threshold=-1.0),
    'an integer for a number': section('capture', framerate=30),
    'a boolean for a choice of texts': section('inference', output_dmabuf=True),
    'an index for a text': section('inference', accelerator_device=1),
    'an empty list': section('capture', participants=[]),
    'controls, nested': section('capture', controls={'brightness': 3}),
    'controls, by name': section('capture', **{'controls.brightness': 3}),
    'quality of service': section('inference', **{'qos_overrides./detections.publisher.depth': 1}),
    'the clock': section('overlay', use_sim_time=True),
    "another package's node": {'/planner': {'ros__parameters': {'widht': 640}}},
    'a namespace': {'front': {'capture': {'ros__parameters': {'width': 640}}, 'planner': {'ros__parameters': {'x': 1}}}},
    "all nodes, others' too": {'/**': {'ros__parameters': {'width': 640, 'planner_rate': 3}}},
}


@pytest.mark.parametrize('case', WRONG)
def test_what_is_wrong_is_refused(case: str) -> None:
    assert not conforms(WRONG[case], SCHEMA)


@pytest.mark.parametrize('case', RIGHT)
def test_what_is_right_is_not(case: str) -> None:
    assert conforms(RIGHT[case], SCHEMA)


def values_near(spec: ParameterSpec) -> st.SearchStrategy[Any]:
    """Some that are allowed, some that are just not, and some of other types."""
    bounds = [4] * spec.even + [bound for bound in (spec.low, spec.high, spec.besides) if bound is not None]
    near = [kind(bound + step) for bound in bounds for step in (-1, 0, 1) for kind in (int, float)]
    numbers = st.one_of(st.integers(-(2**31), 2**31), st.floats(allow_nan=False, allow_infinity=False), *map(st.just, near))
    texts = st.sampled_from([*spec.choices, '', 'x', 'true'])
    return st.one_of(st.booleans(), numbers, texts, st.lists(st.one_of(texts, st.integers(0, 3)), max_size=2))


@settings(max_examples=300)
@given(st.data())
def test_schema_and_node_agree_on_every_value(data: st.DataObject) -> None:
    (node, name), spec = data.draw(st.sampled_from(sorted(SPECS.items(), key=lambda item: item[0])))
    value = data.draw(values_near(spec))
    if type(value) is float and type(spec.default) is not float and value == int(value):
        return  # 3.0 is an integer to JSON Schema, but not to ROS
    try:
        spec.convert(value)
        allowed = True
    except ConfigError:
        allowed = False
    assert conforms(section(node, **{name: value}), FRESH) == allowed


def test_each_parameter_is_described_with_its_default() -> None:
    for (node, name), spec in SPECS.items():
        described = FRESH['$defs'][node]['properties'][name]
        assert described['default'] == spec.default and spec.description in described['description']
        assert ('while the node runs' in described['description']) == spec.dynamic


@pytest.mark.parametrize('name', FILES)
def test_the_comments_of_a_shipped_file_say_whether_it_can_change_at_run_time(name: str) -> None:
    node = ''
    for line in (CONFIG / name).read_text(encoding='utf-8').splitlines():
        if match := re.match(r'/\*\*/(?:\w+/)?(\w+):', line):
            node = match[1]
        elif match := re.match(r'    (\w+): .*# (.*)$', line):
            spec = SPECS[node, match[1]]
            assert match[2].endswith(f'run time: {"yes" if spec.dynamic else "no"}'), f'{node}.{spec.name}: {match[2]}'
