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

"""The manifest: each key is checked, and refusals name file, key, value and what is allowed."""

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
MISSING = object()


def written(folder: Path, values: Any) -> str:
    (folder / 'weights.onnx').write_bytes(identity(['n', 3, 'h', 'w'], FLOAT))
    path = folder / 'model.yaml'
    path.write_text(
        values if isinstance(values, str) else yaml.safe_dump(values), encoding='utf-8'
    )
    return str(path)


def changed(values: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """
    Return a copy with the value at 'a.b' or 'a[0].b' replaced or added.

    MISSING leaves it out.
    """
    copy = yaml.safe_load(yaml.safe_dump(values))
    target: Any = copy
    *parents, last = (
        int(name) if name == '0' else name for name in key.replace('[0]', '.0').split('.')
    )
    for parent in parents:
        target = target[parent]
    if value is MISSING:
        del target[last]
    else:
        target[last] = value
    return copy  # type: ignore[no-any-return]


def test_a_whole_manifest_is_read(tmp_path: Path) -> None:
    manifest = load_manifest(written(tmp_path, GOOD))
    assert (manifest.name, manifest.engine, manifest.file) == (
        'boxes',
        'onnx',
        tmp_path / 'weights.onnx',
    )
    assert manifest.input == ModelInput(
        width=320, height=192, bgr=True, low=-1.0, high=1.0, resize='stretch', pad=0
    )
    assert (manifest.head.kind, manifest.classes, manifest.max_detections) == (
        'yolov8',
        ('car', 'person'),
        20,
    )
    assert (manifest.score_threshold, manifest.nms_threshold) == (0.3, 1.0)
    assert (manifest.path, manifest.own) == (tmp_path / 'model.yaml', {})
    assert manifest.tensors == (TensorSpec('detections', '', (), 0, (1.0,), 0),), (
        'what is left out is the own file of the weights'
    )
    assert (manifest.variants, manifest.missing) == ((manifest,), '')


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    values = {
        'file': 'weights.onnx',
        'input': {'width': 64, 'height': 32},
        'head': 'yolov8',
        'classes': ['car'],
    }
    manifest = load_manifest(written(tmp_path, values))
    assert (manifest.name, manifest.engine) == (tmp_path.name, 'onnx')
    assert manifest.input == ModelInput(
        width=64, height=32, bgr=False, low=0.0, high=1.0, resize='letterbox', pad=114
    )
    assert (manifest.score_threshold, manifest.nms_threshold, manifest.max_detections) == (
        0.25,
        0.45,
        300,
    )


def test_a_device_s_tensors_are_read(tmp_path: Path) -> None:
    manifest = load_manifest(written(tmp_path, AXL))
    spec = TensorSpec('out', 'int8', (1, 6, 2), 64, (0.5, 0.25), -3)
    assert (manifest.engine, manifest.own['model_id'], manifest.tensors, spec.num_bytes) == (
        'axl',
        7,
        (spec,),
        12,
    )
    (padded,) = load_manifest(
        written(tmp_path, changed(AXL, 'outputs[0].padding', [[0, 0], [1, 2], [0, 1]]))
    ).tensors
    assert (padded, padded.num_bytes) == (
        dataclasses.replace(spec, padding=((0, 0), (1, 2), (0, 1))),
        27,
    )
    (largest,) = load_manifest(
        written(tmp_path, changed(AXL, 'outputs[0].shape', [1 << 28, 2, 2]))
    ).tensors
    assert largest.num_bytes == 1 << 30, 'as many bytes as a result buffer may have'


def test_an_engine_without_weights_needs_no_file_and_no_size(tmp_path: Path) -> None:
    values = {
        'engine': 'opencv_hog',
        'input': {'resize': 'none'},
        'head': 'boxes',
        'classes': ['person'],
    }
    manifest = load_manifest(written(tmp_path, values))
    assert manifest.file is None and (manifest.input.width, manifest.input.height) == (0, 0)


@pytest.mark.parametrize(
    ('key', 'value', 'allowed'),
    [
        ('head', 'boxs', f"one of {', '.join(HEADS.built_in)}; did you mean 'boxes'?"),
        ('classes', ['car', ''], 'a list of at least one class name'),
        ('score_threshold', float('nan'), 'a number from 0.0 to 1.0'),
        ('score_threshold', True, 'a number from 0.0 to 1.0'),
        ('max_detections', 0, 'an integer from 1 to 10000'),
        ('model_id', -1, 'an integer from 0 to 4294967295'),
        ('finds', 5, 'a few words'),
        ('licence', 5, 'the name of a licence'),
        ('outputs', [], 'a list of at least one tensor'),
        ('input', 5, 'a mapping of keys'),
        ('variants', [], 'a list of at least one mapping'),
        ('input.width', 1, 'an integer from 2 to 16384'),
        ('input.layout', 'nwhc', 'one of nchw, nhwc'),
        ('input.scale', 0, 'a number above 0'),
        ('input.range', [1, 1.0], 'two different numbers, the tensor values of samples 0 and 255'),
        ('input.range', [0, float('inf')], 'two different numbers'),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(
    tmp_path: Path, key: str, value: Any, allowed: str
) -> None:
    path = written(tmp_path, changed(GOOD, key, value))
    with pytest.raises(ConfigError) as caught:
        load_manifest(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: key '{key}' is {value!r}; it must be {allowed}")
    assert '\n' not in message


@pytest.mark.parametrize(
    ('key', 'value', 'allowed'),
    [
        ('outputs[0].dtype', 'int4', 'one of int8, uint8, int16, int32, float32; did'),
        ('outputs[0].shape', [1 << 29, 2, 2], 'one of 1073741824 bytes at most, padding included'),
        ('outputs[0].scale', [1.0, 2.0, 3.0], 'a number, or 2 of them'),
        ('outputs[0].padding', [[0, 1]], 'a list with two numbers for each of the 3 axes'),
        ('outputs[0].padding', [[0, 0], [0, 0], [0, -1]], 'a list with two numbers for each axis'),
    ],
)
def test_a_wrong_tensor_is_refused_with_its_place(
    tmp_path: Path, key: str, value: Any, allowed: str
) -> None:
    path = written(tmp_path, changed(AXL, key, value))
    with pytest.raises(ConfigError) as caught:
        load_manifest(path)
    assert str(caught.value).startswith(f"{path}: key '{key}' is {value!r}; it must be {allowed}")


@pytest.mark.parametrize('key', ['outputs', 'outputs[0].dtype', 'outputs[0].shape'])
def test_a_card_s_tensors_are_described_whole(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"key '{re.escape(key)}' is missing; it must be "):
        load_manifest(written(tmp_path, changed(AXL, key, MISSING)))


def test_tensors_that_lie_on_each_other_are_refused(tmp_path: Path) -> None:
    second = {**TENSOR, 'name': 'second', 'offset': 64 + 12 - 1}
    with pytest.raises(ConfigError, match=r"key 'outputs\[0\]\.offset' is 75; it must be.*ended"):
        load_manifest(written(tmp_path, {**AXL, 'outputs': [second, TENSOR]}))
    apart = load_manifest(
        written(tmp_path, {**AXL, 'outputs': [{**second, 'offset': 76}, TENSOR]})
    )
    assert [tensor.name for tensor in apart.tensors] == ['second', 'out'], (
        'in the order of the file'
    )


@pytest.mark.parametrize('key', ['file', 'head', 'classes', 'input.width', 'input.height'])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(
        ConfigError, match=f"key '{key}' is missing(; it must be |, and weights.onnx )"
    ):
        load_manifest(written(tmp_path, changed(GOOD, key, MISSING)))


@pytest.mark.parametrize(
    ('key', 'near'), [('score_treshold', 'score_threshold'), ('outputs[0].nome', 'name')]
)
def test_an_unknown_key_is_refused_with_the_nearest_known(
    tmp_path: Path, key: str, near: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_manifest(written(tmp_path, changed(GOOD, key, 1)))
    assert f"key '{key}' is unknown; did you mean '{near}'?; known are " in str(caught.value)


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('', "the file must be a mapping of keys, not 'None'"),
        ('a: [', "can't be read: while parsing"),
    ],
)
def test_what_is_no_manifest_is_refused_in_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_manifest(written(tmp_path, text))
    assert message in str(caught.value) and '\n' not in str(caught.value)


def test_weights_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"key 'file' names 'other\.onnx',.*does not exist in "):
        load_manifest(written(tmp_path, changed(GOOD, 'file', 'other.onnx')))


def test_a_model_is_a_shipped_name_a_folder_or_a_path(tmp_path: Path) -> None:
    path = Path(written(tmp_path, GOOD))
    assert find_manifest(str(tmp_path)) == find_manifest(str(path)) == path
    assert find_manifest('road').parent.name == 'road'


@pytest.mark.parametrize('model', ['', 'no_such_model', 'x' * 5000, 'a\0b'])
def test_a_model_that_is_nowhere_is_refused_with_those_there_are(model: str) -> None:
    with pytest.raises(ConfigError, match=r'is not known; use one of hog, road.*path of a model'):
        find_manifest(model)


def test_a_mistyped_model_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"model 'roads' is not known.*did you mean 'road'\?"):
        find_manifest('roads')


def test_what_can_t_be_run_gets_advice(tmp_path: Path) -> None:
    for name in ('yolo11n.pt', 'yolo11n.engine'):
        (tmp_path / name).touch()
        with pytest.raises(ConfigError, match=r'can be run.*export model=yolo11n.pt format=onnx'):
            find_manifest(str(tmp_path / name))


@pytest.mark.parametrize(
    ('key', 'table'), [('class_agnostic', 'head'), ('strides', 'head'), ('width', 'input')]
)
def test_a_key_in_the_wrong_place_is_told_where_it_belongs(
    tmp_path: Path, key: str, table: str
) -> None:
    with pytest.raises(ConfigError, match=f"key '{key}' is unknown; it belongs to '{table}'"):
        load_manifest(written(tmp_path, {**GOOD, key: 1}))


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
    with pytest.raises(ConfigError, match=r'model\.yaml: head\.strides has 2 levels'):
        load_manifest(written(tmp_path, {**GOOD, 'head': head}))
    with pytest.raises(ConfigError, match=r'model\.yaml: variants\[0\]\.head\.strides.*3 levels'):
        variant = {'engine': 'axl', 'outputs': [TENSOR], 'head': 'yolov8'}
        load_manifest(
            written(tmp_path, {'input': GOOD['input'], 'classes': ['a'], 'variants': [variant]})
        )


def test_classes_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / 'labels.txt').write_text('car \nperson\n\n', encoding='utf-8')
    values = {**changed(GOOD, 'classes', MISSING), 'classes_file': 'labels.txt'}
    manifest = load_manifest(written(tmp_path, values))
    assert manifest.classes == ('car', 'person') and manifest.head.num_classes == 2


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'car\n\nperson\n', "names 'labels.txt', which can't be read: line 2 is empty"),
        (b"item {\n  id: 1\n  name: 'car'\n}\n", "line 1 is 'item {'; it must have one class"),
        (b'1 car\n2 person\n', r'its numbers are \[1, 2\] …, they must be 0, 1, 2 …'),
        (b'nc: 3\nnames: [car, person]\n', "'nc' is 3, but its names are 2"),
        (None, "names 'labels.txt', which can't be read"),
    ],
)
def test_a_file_of_classes_that_cannot_be_meant_is_refused(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / 'labels.txt').write_bytes(content)
    values = {**changed(GOOD, 'classes', MISSING), 'classes_file': 'labels.txt'}
    with pytest.raises(
        ConfigError, match=f"key 'classes_file' {message}" if 'labels.txt' in message else message
    ):
        load_manifest(written(tmp_path, values))
    with pytest.raises(ConfigError, match="keys 'classes' and 'classes_file' say the same"):
        load_manifest(written(tmp_path, {**GOOD, 'classes_file': 'labels.txt'}))


def test_a_pipe_in_place_of_a_file_of_classes_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / 'labels.txt')
    with pytest.raises(ConfigError, match=r"names 'labels\.txt', which can't be.*it is no file"):
        load_manifest(
            written(tmp_path, {**changed(GOOD, 'classes', MISSING), 'classes_file': 'labels.txt'})
        )


def test_int8_needs_its_scale(tmp_path: Path) -> None:
    values = changed(GOOD, 'input.dtype', 'int8')
    with pytest.raises(ConfigError, match=r"key 'input\.scale' is missing;.*the values are int8"):
        load_manifest(written(tmp_path, values))
    path = written(tmp_path, changed(values, 'input.scale', 1 / 255))
    (tmp_path / 'weights.onnx').write_bytes(identity([1, 3, 'h', 'w'], INT8))
    given = load_manifest(path).input
    assert (given.dtype, given.scale, given.zero_point, given.layout) == (
        'int8',
        1 / 255,
        0,
        'nchw',
    )
    with pytest.raises(ConfigError, match=r"key 'input\.mean' is \[1, 2\]; it must be one number"):
        load_manifest(written(tmp_path, changed(GOOD, 'input.mean', [1, 2])))


# One manifest for several engines.


VARIANTS: dict[str, Any] = {
    **GOOD,
    'variants': [{'engine': 'axl', 'model_id': 9, 'outputs': [TENSOR], 'score_threshold': 0.5}],
}


def test_a_variant_is_the_top_level_with_some_keys_replaced(tmp_path: Path) -> None:
    manifest = load_manifest(written(tmp_path, VARIANTS))
    assert [variant.engine for variant in manifest.variants] == ['onnx', 'axl']
    card = manifest.for_engines(('axl',))
    assert card is not None and (card.own['model_id'], card.score_threshold, card.file) == (
        9,
        0.5,
        None,
    )
    assert (card.classes, card.input, card.nms_threshold) == (
        manifest.classes,
        manifest.input,
        manifest.nms_threshold,
    )
    assert [spec.name for spec in card.tensors] == ['out'] and [
        spec.name for spec in manifest.tensors
    ] == ['detections']
    assert (
        manifest.score_threshold == 0.3
        and manifest.for_engines(('onnx', 'opencv_hog')) is manifest
    )
    assert manifest.for_engines(('axruntime',)) is None
    assert repr(manifest) and manifest == load_manifest(written(tmp_path, VARIANTS)), (
        'it does not contain itself'
    )


def test_a_top_level_without_an_engine_only_says_what_the_variants_share(tmp_path: Path) -> None:
    values = changed(
        changed(changed(VARIANTS, 'engine', MISSING), 'file', MISSING), 'outputs', MISSING
    )
    assert [variant.engine for variant in load_manifest(written(tmp_path, values)).variants] == [
        'axl'
    ]


@pytest.mark.parametrize(
    ('key', 'value', 'message'),
    [
        ('variants[0].engine', 'onnx', "is 'onnx'; it must be one that no other variant has"),
        (
            'variants[0].outputs',
            MISSING,
            'is missing; it must be a list of at least one tensor for',
        ),
        ('variants[0].score_threshold', 2, 'is 2; it must be a number from 0.0 to'),
        ('variants[0].modelid', 2, "is unknown; did you mean 'model_id'?"),
    ],
)
def test_what_is_wrong_with_a_variant_is_said_with_its_place(
    tmp_path: Path, key: str, value: Any, message: str
) -> None:
    values = changed(VARIANTS, key, value)
    with pytest.raises(ConfigError) as caught:
        load_manifest(written(tmp_path, values))
    assert f"key '{key}' {message}" in str(caught.value)


@pytest.mark.parametrize(('key', 'value'), [('model_id', 3), ('outputs', [TENSOR])])
def test_what_is_one_engine_s_own_does_not_stand_where_no_engine_is(
    tmp_path: Path, key: str, value: Any
) -> None:
    values = {
        'head': 'yolov8',
        'classes': ['a'],
        'input': GOOD['input'],
        'variants': VARIANTS['variants'],
        key: value,
    }
    with pytest.raises(
        ConfigError,
        match=f"key '{key}' is .*; it must be a key of a variant, as the top level has neither",
    ):
        load_manifest(written(tmp_path, values))


def test_a_variant_whose_file_is_elsewhere_waits_for_it(tmp_path: Path) -> None:
    values = {**GOOD, 'variants': [{'engine': 'axruntime', 'file': 'build/model.json'}]}
    manifest = load_manifest(written(tmp_path, values))
    compiled = manifest.for_engines(('axruntime',))
    assert compiled is not None and compiled.file is None
    assert (
        "key 'variants[0].file' names 'build/model.json', which does not exist in"
        in compiled.missing
    )
    values['file'] = 'other.onnx'
    with pytest.raises(ConfigError, match=r"key 'file' names.*names 'build/model\.json'"):
        load_manifest(written(tmp_path, values))


def test_a_file_and_what_is_in_it_are_not_another_engine_s(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"key 'variants\[0\]\.file' is missing; it.*file name"):
        load_manifest(written(tmp_path, {**GOOD, 'variants': [{'engine': 'axruntime'}]}))
    (tmp_path / 'model.axm').touch()
    compiled = load_manifest(
        written(tmp_path, {**GOOD, 'variants': [{'engine': 'axruntime', 'file': 'model.axm'}]})
    ).for_engines(('axruntime',))
    assert compiled is not None and compiled.tensors == ()


# The text: what YAML 1.1 takes for something else than it looks like, and what is written twice.


HOG = 'engine: opencv_hog\nhead: boxes\ninput: {resize: none}\n'


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
    ('text', 'message'),
    [
        ('name: a\nname: b\n', "key 'name' stands in line 1 and again in line 2; leave one out"),
        (
            'variants:\n- {engine: axl, model_id: 1, model_id: 1}\n',
            "key 'model_id' stands in line 2 and again in line 2",
        ),
    ],
)
def test_a_key_that_stands_twice_is_refused_with_both_lines(
    tmp_path: Path, text: str, message: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_manifest(path)
    assert (
        path in str(caught.value)
        and message in str(caught.value)
        and '\n' not in str(caught.value)
    )


def test_a_merged_key_may_be_replaced_and_siblings_may_have_the_same(tmp_path: Path) -> None:
    text = (
        'a: &a {x: 1, y: 2}\nb: &b\n  <<: *a\n  x: 3\nc: {<<: [*a, *b], y: 4}\nd: [{x: 1}, '
        '{x: 1}]\ne: *b\n'
    )
    assert parse_yaml(text) == yaml.safe_load(text)
    assert parse_yaml(text)['c'] == {'x': 1, 'y': 4} and parse_yaml(text)['b'] == {'x': 3, 'y': 2}


@pytest.mark.parametrize(
    ('line', 'hint'),
    [
        ('classes: [no, yes]', 'yes, no, on, off, true and false for booleans'),
        ('classes: [car, 5]', "('5'): YAML takes it for a number"),
        ('classes: [a]\nname: 2026-01-31', "('2026-01-31'): YAML takes it for a date"),
    ],
)
def test_a_text_without_its_quotes_is_told_of_them(tmp_path: Path, line: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_manifest(written(tmp_path, f'{HOG}{line}\n'))
    assert str(caught.value).endswith(hint) and '; quote it' in str(caught.value)
    assert '\n' not in str(caught.value)


# The JSON schema of model.yaml and the reader say the same.


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
        (SCHEMA['$defs']['outputs']['items'], WHOLE['outputs'][0]),
    ]
    tables += [
        (schema, WHOLE['head'])
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
            continue  # an earlier change took the place away
    assert conforms(values, SCHEMA) == structure_is_read(values), values


@pytest.mark.parametrize(
    'model',
    [*shipped_models(), str(Path(__file__).parents[1] / 'rig' / 'models' / 'virtual_metis.yaml')],
)
def test_the_manifests_of_the_repository_conform(model: str) -> None:
    assert conforms(yaml.safe_load(load_manifest(model).path.read_text(encoding='utf-8')), SCHEMA)
