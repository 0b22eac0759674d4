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

"""The manifest: each key is checked; a refusal names file, key, value and allowed values."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from pathlib import Path
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from npu.json_schema import conforms
from npu.onnx_kit import FLOAT, identity, INT8
import pytest
import yaml

from zc_perception.detection.heads import HEADS
from zc_perception.detection.heads.spec import HeadSpec
from zc_perception.errors import ConfigError
from zc_perception.npu import manifest as manifest_module
from zc_perception.npu.axruntime.kind import CompiledInput, read_compiled_input
from zc_perception.npu.manifest import (
    find_manifest,
    load_manifest,
    manifest_schema,
    manifest_table,
    ModelInput,
    MODELS,
    parse_yaml,
    shipped_models,
    TensorSpec,
)
from zc_perception.rules import Place

GOOD: dict[str, Any] = yaml.safe_load("""
{name: boxes, engine: onnx, file: weights.onnx, head: yolov8, classes: [car, person],
 input: {width: 320, height: 192, layout: nchw, colour: bgr, range: [-1, 1.0], resize: stretch,
         pad: 0},
 outputs: [{name: detections}], score_threshold: 0.3, nms_threshold: 1, max_detections: 20,
 licence: MIT}
""")
TENSOR: dict[str, Any] = yaml.safe_load(
    '{name: out, dtype: int8, shape: [1, 6, 2], offset: 64, scale: [0.5, 0.25], zero_point: -3}'
)
AXL: dict[str, Any] = {**GOOD, 'engine': 'axl', 'model_id': 7, 'outputs': [TENSOR]}
VARIANTS: dict[str, Any] = {
    **GOOD,
    'variants': [{'engine': 'axl', 'model_id': 9, 'outputs': [TENSOR], 'score_threshold': 0.5}],
}
#: Keys that the variants share, without an engine.
SHARED: dict[str, Any] = {key: VARIANTS[key] for key in ('head', 'classes', 'input', 'variants')}
MISSING = object()
NOWHERE = 'is not known; use one of hog, road.*path of a model'
HOG = 'engine: opencv_hog\nhead: boxes\ninput: {resize: none}\n'


def written(folder: Path, values: Any) -> str:
    (folder / 'weights.onnx').write_bytes(identity(['n', 3, 'h', 'w'], FLOAT))
    path = folder / 'model.yaml'
    text = values if isinstance(values, str) else yaml.safe_dump(values)
    path.write_text(text, encoding='utf-8')
    return str(path)


def refusal(folder: Path, values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_manifest(written(folder, values))
    assert '\n' not in str(caught.value)
    return str(caught.value)


def changed(values: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return a copy with the value at 'a.b' or 'a[0].b' replaced, added, or removed (MISSING)."""
    copied: dict[str, Any] = copy.deepcopy(values)
    target: Any = copied
    *parents, last = key.replace('[0]', '.0').split('.')
    for parent in parents:
        target = target[int(parent) if parent == '0' else parent]
    if value is MISSING:
        del target[last]
    else:
        target[last] = value
    return copied


def test_a_whole_manifest_is_read(tmp_path: Path) -> None:
    manifest = load_manifest(written(tmp_path, GOOD))
    assert manifest == dataclasses.replace(
        manifest, name='boxes', path=tmp_path / 'model.yaml', engine='onnx', own={},
        file=tmp_path / 'weights.onnx', classes=('car', 'person'), max_detections=20,
        input=ModelInput(320, 192, bgr=True, low=-1.0, high=1.0, resize='stretch', pad=0),
        score_threshold=0.3, nms_threshold=1.0, head=HeadSpec('yolov8', 2, (320, 192)),
    )  # fmt: skip
    assert manifest.tensors == (TensorSpec('detections', '', (), 0, (1.0,), 0),), (
        'what is left out is the own file of the weights'
    )
    assert (manifest.variants, manifest.missing) == ((manifest,), '')


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    size = '{width: 64, height: 32}'
    text = f'file: weights.onnx\ninput: {size}\nhead: yolov8\nclasses: [car]\n'
    manifest = load_manifest(written(tmp_path, text))
    assert manifest == dataclasses.replace(
        manifest, name=tmp_path.name, engine='onnx', score_threshold=0.25, nms_threshold=0.45,
        input=ModelInput(64, 32, bgr=False, low=0.0, high=1.0, resize='letterbox', pad=114),
        max_detections=300,
    )  # fmt: skip
    weightless = load_manifest(written(tmp_path, f'{HOG}classes: [person]\n'))
    assert weightless.file is None
    assert (weightless.input.width, weightless.input.height) == (0, 0)


def test_a_device_s_tensors_are_read(tmp_path: Path) -> None:
    manifest = load_manifest(written(tmp_path, AXL))
    spec = TensorSpec('out', 'int8', (1, 6, 2), 64, (0.5, 0.25), -3)
    assert (manifest.engine, manifest.own['model_id']) == ('axl', 7)
    assert (manifest.tensors, spec.num_bytes) == ((spec,), 12)
    for key, value, num_bytes in (
        ('padding', ((0, 0), (1, 2), (0, 1)), 27),
        ('shape', (1 << 28, 2, 2), 1 << 30),  # as many bytes as a result buffer may have
    ):
        said = [[*each] if isinstance(each, tuple) else each for each in value]
        values = changed(AXL, f'outputs[0].{key}', said)
        (found,) = load_manifest(written(tmp_path, values)).tensors
        assert found == dataclasses.replace(spec, **{key: value})
        assert found.num_bytes == num_bytes


@pytest.mark.parametrize(
    ('base', 'key', 'value', 'allowed'),
    [
        (GOOD, 'head', 'boxs', f"one of {', '.join(HEADS.built_in)}; did you mean 'boxes'?"),
        (GOOD, 'classes', ['car', ''], 'a list of at least one class name'),
        (GOOD, 'score_threshold', float('nan'), 'a number from 0.0 to 1.0'),
        (GOOD, 'score_threshold', True, 'a number from 0.0 to 1.0'),
        (GOOD, 'max_detections', 0, 'an integer from 1 to 10000'),
        (GOOD, 'model_id', -1, 'an integer from 0 to 4294967295'),
        (GOOD, 'finds', 5, 'a few words'),
        (GOOD, 'licence', 5, 'the name of a licence'),
        (GOOD, 'outputs', [], 'a list of at least one tensor'),
        (GOOD, 'input', 5, 'a mapping of keys'),
        (GOOD, 'variants', [], 'a list of at least one mapping'),
        (GOOD, 'input.width', 1, 'an integer from 2 to 16384'),
        (GOOD, 'input.layout', 'nwhc', 'one of nchw, nhwc'),
        (GOOD, 'input.scale', 0, 'a number above 0'),
        (GOOD, 'input.range', [1, 1.0], 'two different numbers, the tensor values for pixel '),
        (GOOD, 'input.range', [0, float('inf')], 'two different numbers'),
        (AXL, 'outputs[0].dtype', 'int4', 'one of int8, uint8, int16, int32, float32; did'),
        (AXL, 'outputs[0].shape', [1 << 29, 2, 2], 'the shape of a tensor with at most'),
        (AXL, 'outputs[0].scale', [1.0, 2.0, 3.0], 'a number, or a list of 2 numbers'),
        (AXL, 'outputs[0].padding', [[0, 1]], 'a list of 3 pairs of numbers, one'),
        (AXL, 'outputs[0].padding', [[0, 0], [0, 0], [0, -1]], 'a list with two numbers'),
        (VARIANTS, 'variants[0].engine', 'onnx', 'one that no other variant has'),
        (VARIANTS, 'variants[0].score_threshold', 2, 'a number from 0.0 to'),
        *[(SHARED, key, value, 'in the variants instead, because the top level has neither')
          for key, value in (('model_id', 3), ('outputs', [dict(sorted(TENSOR.items()))]))],
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_what_is_allowed(
    tmp_path: Path, base: dict[str, Any], key: str, value: Any, allowed: str
) -> None:
    said = refusal(tmp_path, changed(base, key, value))
    assert said.startswith(
        f"{tmp_path / 'model.yaml'}: key '{key}' is {value!r}; it must be {allowed}"
    )


@pytest.mark.parametrize(
    ('base', 'key', 'value', 'words'),
    [
        *[(GOOD, key, MISSING, 'missing, and weights.onnx ') for key in ('head', 'classes')],
        *[(GOOD, key, MISSING, 'missing; it must be ') for key in ('input.width', 'file')],
        *[(AXL, f'outputs{key}', MISSING, 'missing; it must be ')
          for key in ('', '[0].dtype', '[0].shape')],
        (VARIANTS, 'variants[0].outputs', MISSING, 'missing; it must be a list of at least one '),
        (GOOD, 'score_treshold', 1, "unknown; did you mean 'score_threshold'?; known are "),
        (GOOD, 'outputs[0].nome', 1, "unknown; did you mean 'name'?; known are "),
        (VARIANTS, 'variants[0].modelid', 2, "unknown; did you mean 'model_id'?"),
        (GOOD, 'class_agnostic', 1, "unknown here; write it below 'head'"),
        (GOOD, 'strides', 1, "unknown here; write it below 'head'"),
        (GOOD, 'width', 1, "unknown here; write it below 'input'"),
    ],
)  # fmt: skip
def test_a_key_that_is_missing_or_not_known_is_named(
    tmp_path: Path, base: dict[str, Any], key: str, value: Any, words: str
) -> None:
    assert f"key '{key}' is {words}" in refusal(tmp_path, changed(base, key, value))


def test_tensors_that_lie_on_each_other_are_refused(tmp_path: Path) -> None:
    second = {**TENSOR, 'name': 'second', 'offset': 64 + 12 - 1}
    said = refusal(tmp_path, {**AXL, 'outputs': [second, TENSOR]})
    assert re.search(r"key 'outputs\[0\]\.offset' is 75; it must be.*ends there", said)
    outputs = [{**second, 'offset': 76}, TENSOR]
    apart = load_manifest(written(tmp_path, {**AXL, 'outputs': outputs}))
    assert [tensor.name for tensor in apart.tensors] == ['second', 'out'], "in the file's order"


def test_a_model_is_a_shipped_name_a_folder_or_a_path(tmp_path: Path) -> None:
    path = Path(written(tmp_path, GOOD))
    assert find_manifest(str(tmp_path)) == find_manifest(str(path)) == path
    assert find_manifest('road').parent.name == 'road'


@pytest.mark.parametrize(
    ('model', 'words'),
    [
        *[(model, NOWHERE) for model in ('', 'x' * 5000, 'a\0b')],
        ('roads', rf"{NOWHERE}.*did you mean 'road'\?"),
        ('mine.onnx', r"known: there is no 'HERE/mine\.onnx'; use one of"),
        ('https://example.org/mine.onnx', 'known: download it first; use one of'),
    ],
)
def test_a_model_that_is_nowhere_is_refused_with_those_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words.replace('HERE', re.escape(str(tmp_path)))):
        find_manifest(model)


def test_what_can_t_be_run_gets_advice(tmp_path: Path) -> None:
    for name in ('yolo11n.pt', 'yolo11n.engine'):
        (tmp_path / name).touch()
        with pytest.raises(ConfigError, match=r'can be run.*export model=yolo11n.pt format=onnx'):
            find_manifest(str(tmp_path / name))


def test_a_head_s_options_reach_it_and_are_checked_by_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = {'kind': 'yolov8', 'strides': [4, 8], 'class_agnostic': True, 'reg_max': 8}
    manifest = load_manifest(written(tmp_path, {**GOOD, 'head': head}))
    assert manifest.head == HeadSpec(
        'yolov8', 2, (320, 192), strides=(4, 8), reg_max=8, class_agnostic=True
    )

    def refuse(spec: HeadSpec) -> None:
        raise ConfigError(f'head.strides has {len(spec.options.get("strides", "123"))} levels')

    monkeypatch.setattr(manifest_module, 'make_head', refuse)
    assert 'model.yaml: head.strides has 2 levels' in refusal(tmp_path, {**GOOD, 'head': head})
    variant = {'engine': 'axl', 'outputs': [TENSOR], 'head': 'yolov8'}
    several = {'input': GOOD['input'], 'classes': ['a'], 'variants': [variant]}
    assert 'model.yaml: variants[0].head.strides has 3 levels' in refusal(tmp_path, several)


LABELS = {**changed(GOOD, 'classes', MISSING), 'classes_file': 'labels.txt'}


def test_classes_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / 'labels.txt').write_text('car \nperson\n\n', encoding='utf-8')
    manifest = load_manifest(written(tmp_path, LABELS))
    assert manifest.classes == ('car', 'person') and manifest.head.num_classes == 2
    said = refusal(tmp_path, {**GOOD, 'classes_file': 'labels.txt'})
    assert "keys 'classes' and 'classes_file' both name the classes" in said


@pytest.mark.parametrize(
    ('content', 'words'),
    [
        (b'car\n\nperson\n', "names 'labels.txt', which can't be read: line 2 is empty"),
        (b'# our classes\ncar\n\nperson\n', 'line 3 is empty'),
        (
            b"item {\n  id: 1\n  name: 'car'\n}\n",
            "line 1 is 'item {'; each line must name one class",
        ),
        (b'1 car\n2 person\n', 'the classes have the numbers [1, 2] … instead of 0, 1, 2 …'),
        (b'nc: 3\nnames: [car, person]\n', "'nc' is 3, but it has 2 names"),
        (None, "names 'labels.txt', which can't be read"),
        ('a pipe', 'it is no file'),
    ],
)
def test_a_file_of_classes_that_cannot_be_meant_is_refused(
    tmp_path: Path, content: bytes | str | None, words: str
) -> None:
    if isinstance(content, bytes):
        (tmp_path / 'labels.txt').write_bytes(content)
    elif content is not None:
        os.mkfifo(tmp_path / 'labels.txt')  # no process reads it
    said = refusal(tmp_path, LABELS)
    assert "key 'classes_file' " in said and words in said


def test_int8_needs_its_scale(tmp_path: Path) -> None:
    values = changed(GOOD, 'input.dtype', 'int8')
    said = refusal(tmp_path, values)
    assert "key 'input.scale' is missing;" in said and 'the input is int8' in said
    path = written(tmp_path, changed(values, 'input.scale', 1 / 255))
    (tmp_path / 'weights.onnx').write_bytes(identity([1, 3, 'h', 'w'], INT8))
    given = load_manifest(path).input
    read = given.dtype, given.scale, given.zero_point, given.layout
    assert read == ('int8', 1 / 255, 0, 'nchw')
    said = refusal(tmp_path, changed(GOOD, 'input.mean', [1, 2]))
    assert "key 'input.mean' is [1, 2]; it must be one number" in said


def test_a_variant_is_the_top_level_with_some_keys_replaced(tmp_path: Path) -> None:
    manifest = load_manifest(written(tmp_path, VARIANTS))
    assert [variant.engine for variant in manifest.variants] == ['onnx', 'axl']
    card = manifest.for_engines(('axl',))
    assert card is not None
    assert (card.own['model_id'], card.score_threshold, card.file) == (9, 0.5, None)
    for name in ('classes', 'input', 'nms_threshold'):
        assert getattr(card, name) == getattr(manifest, name)
    names = [[spec.name for spec in one.tensors] for one in (card, manifest)]
    assert names == [['out'], ['detections']] and manifest.score_threshold == 0.3
    assert manifest.for_engines(('onnx', 'opencv_hog')) is manifest
    assert manifest.for_engines(('axruntime',)) is None
    again = load_manifest(written(tmp_path, VARIANTS))
    assert repr(manifest) and manifest == again, 'it does not contain itself'
    shared = load_manifest(written(tmp_path, SHARED))
    assert [variant.engine for variant in shared.variants] == ['axl']


def test_a_variant_whose_file_is_elsewhere_waits_for_it(tmp_path: Path) -> None:
    values = {**GOOD, 'variants': [{'engine': 'axruntime', 'file': 'build/model.json'}]}
    compiled = load_manifest(written(tmp_path, values)).for_engines(('axruntime',))
    words = "key 'variants[0].file' names 'build/model.json', which does not exist in"
    assert compiled is not None and compiled.file is None and words in compiled.missing
    said = refusal(tmp_path, {**values, 'file': 'other.onnx'})
    for name in (r'other\.onnx', r'build/model\.json'):
        assert re.search(rf"file' names '{name}',.*does not exist in ", said)


def test_a_file_that_can_t_be_is_said_before_the_keys_that_it_would_give(tmp_path: Path) -> None:
    assert "key 'file' names 'mine.onnx', which does not exist in" in refusal(
        tmp_path, 'file: mine.onnx'
    )
    (tmp_path / 'mine.pt').write_bytes(b'PK')
    assert 'yolo export model=mine.pt format=onnx' in refusal(tmp_path, 'file: mine.pt')


def test_a_file_and_what_is_in_it_are_not_another_engine_s(tmp_path: Path) -> None:
    said = refusal(tmp_path, {**GOOD, 'variants': [{'engine': 'axruntime'}]})
    assert re.search(r"key 'variants\[0\]\.file' is missing; it.*file name", said)
    (tmp_path / 'model.axm').touch()
    values = {**GOOD, 'variants': [{'engine': 'axruntime', 'file': 'model.axm'}]}
    compiled = load_manifest(written(tmp_path, values)).for_engines(('axruntime',))
    assert compiled is not None and compiled.tensors == ()


# The text: values that YAML 1.1 reads in an unexpected way, and duplicate keys.


@pytest.mark.parametrize(
    'text', ['1e', 'e1', '1e-', '0x1e', '1e1x', '-e1', '.e1', '1e1.0', '1 e1', 'a1e1']
)
def test_what_only_looks_like_one_stays_what_it_was(text: str) -> None:
    assert parse_yaml(f'k: {text}') == yaml.safe_load(f'k: {text}')


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(['e', 'E', 'g']))
def test_every_number_that_python_writes_is_read_again(value: float, form: str) -> None:
    text = format(value, f'.17{form}')
    assert parse_yaml(f'k: {text}') == {'k': float(text)}


@settings(max_examples=30)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_everything_else_is_read_as_ever(values: Any) -> None:
    text = yaml.safe_dump(values, default_style='"')
    assert parse_yaml(text) == yaml.safe_load(text) == values


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ('', "the file must be a mapping of keys, not 'None'"),
        ('a: [', "can't be read: while parsing"),
        ('name: a\nname: b\n', "key 'name' stands in line 1 and again in line 2; leave one out"),
        ('variants:\n- {engine: axl, model_id: 1, model_id: 1}\n',
         "key 'model_id' stands in line 2 and again in line 2"),
        (f'{HOG}classes: [no, yes]', '; quote it'),
        (f'{HOG}classes: [no, yes]', 'yes, no, on, off, true and false as booleans'),
        (f'{HOG}classes: [car, 5]', "('5'): YAML reads it as a number"),
        (f'{HOG}classes: [a]\nname: 2026-01-31', "('2026-01-31'): YAML reads it as a date"),
    ],
)  # fmt: skip
def test_what_is_no_manifest_or_needs_quotes_is_refused_in_one_line(
    tmp_path: Path, text: str, words: str
) -> None:
    said = refusal(tmp_path, text)
    assert str(tmp_path / 'model.yaml') in said and words in said


def test_a_merged_key_may_be_replaced_and_siblings_may_have_the_same(tmp_path: Path) -> None:
    text = (
        'a: &a {x: 1, y: 2}\nb: &b\n  <<: *a\n  x: 3\nc: {<<: [*a, *b], y: 4}\nd: [{x: 1}, '
        '{x: 1}]\ne: *b\n'
    )
    assert parse_yaml(text) == yaml.safe_load(text)
    assert parse_yaml(text)['c'] == {'x': 1, 'y': 4} and parse_yaml(text)['b'] == {'x': 3, 'y': 2}


# The JSON schema of model.yaml and the reader accept the same.

PATH = MODELS / 'model.schema.json'
SCHEMA = json.loads(PATH.read_text(encoding='utf-8'))
WRITE = (
    '.venv/bin/python -c "from zc_perception.npu import manifest; '
    "print(manifest.schema_text(), end='')\" "
    f'> zc_perception/models/{PATH.name}'
)
WHOLE: dict[str, Any] = yaml.safe_load("""
{name: m, engine: onnx, file: w.onnx, model_id: 1, finds: '', licence: '', classes: [a],
 classes_file: l.txt, score_threshold: 0.5, nms_threshold: 1, max_detections: 5,
 head: {kind: ssd, strides: [8], anchors: [[[1, 2.5]]], sigmoid: false, softmax: true,
        class_agnostic: true, variances: [0.1, 1], background: -1, priors: [[0, 0, 1, 1]],
        box_order: yxyx},
 outputs: [{name: o, layout: nhwc, dtype: int8, shape: [1, 2], offset: 4, scale: [1, 0.5],
            zero_point: 3, padding: [[0, 0], [0, 1]]}],
 input: {width: 8, height: 8, layout: nhwc, dtype: int8, colour: bgr, range: [0, 1.5], mean: [0.5],
         std: [0.2], scale: 0.1, zero_point: -1, resize: stretch, pad: 0},
 variants: [{engine: axl, head: yolov8}]}
""")


def structure_is_read(values: Any) -> bool:
    try:
        manifest_table().check(values, Place(Path('model.yaml')))
    except ConfigError:
        return False
    return True


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = dict(enumerate(value)) if isinstance(value, list) else value
    entries = inside.items() if isinstance(inside, dict) else ()
    return [at, *(place for key, entry in entries for place in places(entry, (*at, key)))]


PLACES = [place for place in places(WHOLE) if place]


def test_the_schema_in_the_repository_is_the_reader_s_table() -> None:
    assert manifest_schema() == SCHEMA, f'write it anew: {WRITE}'


def test_every_key_is_in_the_example_that_is_changed_below() -> None:
    tables = [
        (SCHEMA, WHOLE),
        (SCHEMA['$defs']['input'], WHOLE['input']),
        (SCHEMA['$defs']['outputs']['items'], WHOLE['outputs'][0]),
    ]
    (ssd,) = (
        schema
        for schema in SCHEMA['$defs']['head']['anyOf']
        if schema.get('properties', {}).get('kind', {}).get('enum') == ['ssd']
    )
    for schema, example in (*tables, (ssd, WHOLE['head'])):
        assert set(schema['properties']) == set(example)
        assert schema['additionalProperties'] is False
    assert conforms(WHOLE, SCHEMA) and structure_is_read(WHOLE)


# 5.0 is an integer in JSON but not in YAML: the one intended difference.
SMALL = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([-0.5, 0.25, 1.5, 10**6, 2**31, 2**33, 1e300])
)
WORDS = st.sampled_from(
    ['', 'onnx', 'axl', 'nchw', 'rgb', 'letterbox', 'int8', 'yolov8', 'boxes', 'xyxy', 'car']
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
            continue  # an earlier change removed the place
    assert conforms(values, SCHEMA) == structure_is_read(values), values


@pytest.mark.parametrize(
    'model',
    [*shipped_models(), str(Path(__file__).parents[1] / 'rig' / 'models' / 'virtual_metis.yaml')],
)
def test_the_manifests_of_the_repository_conform(model: str) -> None:
    assert conforms(yaml.safe_load(load_manifest(model).path.read_text(encoding='utf-8')), SCHEMA)


# Files of the Voyager compiler, as SDK 1.6 writes them, with figures of real models.


def tensor(name: str, *shape: int) -> dict[str, Any]:
    place = {'memory_pool': 'pool', 'offset': 0, 'size': 1}
    return {'name': name, 'shape': list(shape), 'dtype': 'int8', **place}


# A yolov8n of 640x640: model.json has the tensors in memory, manifest.json their padding.
MODEL: dict[str, Any] = {
    'name': 'kernel_function',
    'version': '4.0',
    'inputs': [tensor('var_input_ifd0', 1, 642, 656, 4)],
    'outputs': [tensor('output_mmio_var', 1, 80, 80, 64)],
}
MANIFEST: dict[str, Any] = {
    'input_shapes_original': [[1, 3, 640, 640]],
    'quantize_params': [[0.003921329043805599, -130]], 'model_lib_file': 'x/model.json',
    'n_padded_ch_inputs': [[0, 0, 1, 1, 1, 15, 0, 1]], 'preprocess_graph': None,
    'manifest_version': '1.1',
}  # fmt: skip


def compiled_files(folder: Path, model: Any = MODEL, manifest: Any = MANIFEST) -> Path:
    text = model if isinstance(model, str) else json.dumps(model)
    (folder / 'model.json').write_text(text, encoding='utf-8')
    if manifest is not None:
        (folder / 'manifest.json').write_text(json.dumps(manifest), encoding='utf-8')
    return folder / 'model.json'


def yaml_for(folder: Path, size: dict[str, Any] | None = None, **changes: Any) -> str:
    values = {'engine': 'axruntime', 'file': 'model.json', 'head': 'yolov8', 'classes': [*'abc']}
    values |= {'input': size or {}, **changes}
    (folder / 'model.yaml').write_text(yaml.safe_dump(values), encoding='utf-8')
    return str(folder)


def test_the_manifest_may_be_beside_or_in_the_folder_above(tmp_path: Path) -> None:
    known = CompiledInput((1, 642, 656, 4), (1, 640, 640, 3))
    assert read_compiled_input(compiled_files(tmp_path)) == known
    (tmp_path / 'x').mkdir()
    path = compiled_files(tmp_path / 'x', manifest=None)
    assert read_compiled_input(path) == known
    other = json.dumps({**MANIFEST, 'model_lib_file': 'y/model.json'})
    (tmp_path / 'manifest.json').write_text(other, encoding='utf-8')
    assert read_compiled_input(path) == CompiledInput((1, 642, 656, 4)), (
        "another model's, so the padding is not known"
    )


@pytest.mark.parametrize(
    ('padding', 'inner'),
    [
        ([[1, 2, 3, 4]], (1, 642 - 1 - 3, 656 - 2 - 4, 4)),
        ([[0, 0, 1, 1, 1, 15]], (1, 640, 640, 4)),
        ([[0, 0, 0, 0, 0, 0, 0, 1], [5]], (1, 642, 656, 3)),
        ([], None),
    ],
)
def test_paddings_of_other_sdks_are_understood(
    tmp_path: Path, padding: list[list[int]], inner: tuple[int, ...] | None
) -> None:
    manifest = {**MANIFEST, 'n_padded_ch_inputs': padding}
    model = read_compiled_input(compiled_files(tmp_path, manifest=manifest))
    assert model is not None and model.inner_shape == inner


@pytest.mark.parametrize(
    ('file', 'key', 'value', 'message'),
    [
        ('model', '', '{', "can't be read"),
        ('model', '', '[]', 'is no JSON object'),
        ('model', 'inputs', None, "model.json: key 'inputs' is missing; it must be a"),
        ('model', 'inputs', [{'shape': [1, 0]}], 'a shape of positive sizes; compile'),
        ('model', 'inputs', [{'shape': [16320]}], 'shape [16320]; a frame needs 1 x'),
        ('manifest', 'n_padded_ch_inputs', {'a': 1}, "is {'a': 1}; it must be for each"),
        ('manifest', 'n_padded_ch_inputs', [[0] * 10], 'size of this axis in [1, 642, 656, 4]'),
    ],
)
def test_what_is_wrong_is_named_by_file_and_key(
    tmp_path: Path, file: str, key: str, value: Any, message: str
) -> None:
    whole = MODEL if file == 'model' else MANIFEST
    changed = {file: {**whole, key: value} if key else value}
    with pytest.raises(ConfigError) as caught:
        read_compiled_input(compiled_files(tmp_path, **changed))
    assert message in str(caught.value) and '\n' not in str(caught.value)


def test_the_wrong_one_of_the_two_files_is_told_the_other(tmp_path: Path) -> None:
    compiled_files(tmp_path)
    with pytest.raises(ConfigError, match=r'is the.*model\.json that it names \(x/model\.json\)'):
        read_compiled_input(tmp_path / 'manifest.json')


def test_what_only_the_runtime_can_read_is_left_to_it(tmp_path: Path) -> None:
    (tmp_path / 'model.axm').write_bytes(b'\0')
    assert read_compiled_input(tmp_path / 'model.axm') is None
    assert read_compiled_input(compiled_files(tmp_path, {'version': '5.1', 'graph': {}})) is None
    newer = read_compiled_input(compiled_files(tmp_path, {**MODEL, 'version': '5.1'}))
    assert newer is not None, 'what is where it always was is read'
    for version in ('²', '9' * 5000):
        with pytest.raises(ConfigError, match='inputs'):
            read_compiled_input(compiled_files(tmp_path, {'version': version, 'graph': {}}))


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 700)
    | st.floats(allow_nan=False)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(['name', 'shape']), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.sampled_from([*MODEL, *MANIFEST]), ANYTHING)
def test_whatever_stands_there_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any
) -> None:
    folder = tmp_path_factory.mktemp('voyager')
    model = {**MODEL, **({key: value} if key in MODEL else {})}
    manifest = {**MANIFEST, **({key: value} if key in MANIFEST else {})}
    try:
        read = read_compiled_input(compiled_files(folder, model, manifest))
    except ConfigError as error:
        assert '\n' not in str(error)
    else:
        assert read is None or all(size > 0 for size in read.inner_shape or (1,))


def test_a_manifest_takes_its_size_from_the_compiled_model_and_explains_a_graph_before_the_npu(
    tmp_path: Path,
) -> None:
    compiled_files(tmp_path)
    manifest = load_manifest(yaml_for(tmp_path))
    assert (manifest.engine, manifest.file) == ('axruntime', tmp_path / 'model.json')
    sizes = (manifest.input.width, manifest.input.height), manifest.head.input_size
    assert sizes == ((640, 640), (640, 640))
    compiled_files(tmp_path, manifest={**MANIFEST, 'preprocess_graph': 'x/pre.onnx'})
    with pytest.raises(
        ConfigError, match=r"'x/pre\.onnx' has to run before.*'input\.range' of model\.yaml"
    ):
        load_manifest(yaml_for(tmp_path))
    assert load_manifest(yaml_for(tmp_path, {'range': [-1, 1]})).input.low == -1.0


@pytest.mark.parametrize(
    ('known', 'size', 'message'),
    [
        (True, {'width': 320, 'height': 640}, "'input.width' is 320; it must be 640, as"),
        (True, {'resize': 'none'}, "is 'none'; it must be one of letterbox, stretch"),
        (False, {'width': 640, 'height': 700}, 'is 700; it must be at most 642, as'),
        (False, {}, "input.width' is missing; .*no manifest.json beside"),
    ],
)
def test_a_manifest_that_contradicts_the_compiled_model_is_refused(
    tmp_path: Path, known: bool, size: Any, message: str
) -> None:
    compiled_files(tmp_path, manifest=MANIFEST if known else None)
    with pytest.raises(ConfigError, match=message):
        load_manifest(yaml_for(tmp_path, size))
