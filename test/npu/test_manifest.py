"""model.yaml: every key is checked, and every refusal names file, key, value and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from zc_perception.errors import ConfigError
from zc_perception.npu.manifest import ModelInput, TensorSpec, find_manifest, load_manifest, shipped_models

GOOD: dict[str, Any] = {
    'name': 'boxes',
    'engine': 'onnx',
    'file': 'weights.onnx',
    'input': {'width': 320, 'height': 192, 'layout': 'nchw', 'colour': 'bgr', 'range': [-1, 1.0], 'resize': 'stretch', 'pad': 0},
    'outputs': [{'name': 'detections', 'layout': 'yolov8'}],
    'head': 'yolov8',
    'classes': ['car', 'person'],
    'score_threshold': 0.3,
    'nms_threshold': 1,
    'max_detections': 20,
    'licence': 'MIT',
}
TENSOR: dict[str, Any] = {'name': 'out', 'dtype': 'int8', 'shape': [1, 6, 2], 'offset': 64, 'scale': [0.5, 0.25], 'zero_point': -3}
AXL: dict[str, Any] = {**GOOD, 'engine': 'axl', 'model_id': 7, 'outputs': [TENSOR]}
MISSING = object()


def written(folder: Path, values: Any) -> str:
    (folder / 'weights.onnx').touch()
    path = folder / 'model.yaml'
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values), encoding='utf-8')
    return str(path)


def changed(values: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy with the value at 'a.b' or 'a[0].b' replaced, added, or with MISSING left out."""
    copy = yaml.safe_load(yaml.safe_dump(values))
    target: Any = copy
    *parents, last = key.replace('[0]', '.0').split('.')
    for parent in parents:
        target = target[int(parent) if parent == '0' else parent]
    if value is MISSING:
        del target[last]
    else:
        target[last] = value
    return copy  # type: ignore[no-any-return]


def test_a_whole_manifest_is_read(tmp_path: Path) -> None:
    manifest = load_manifest(written(tmp_path, GOOD))
    assert (manifest.name, manifest.engine, manifest.file) == ('boxes', 'onnx', tmp_path / 'weights.onnx')
    assert manifest.input == ModelInput(width=320, height=192, bgr=True, low=-1.0, high=1.0, resize='stretch', pad=0)
    assert (manifest.head.kind, manifest.classes, manifest.max_detections) == ('yolov8', ('car', 'person'), 20)
    assert (manifest.score_threshold, manifest.nms_threshold) == (0.3, 1.0)
    assert (manifest.path, manifest.model_id, manifest.tensors) == (tmp_path / 'model.yaml', 0, ())


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    values = {'file': 'weights.onnx', 'input': {'width': 64, 'height': 32}, 'head': 'yolov8', 'classes': ['car']}
    manifest = load_manifest(written(tmp_path, values))
    assert (manifest.name, manifest.engine) == (tmp_path.name, 'onnx')
    assert manifest.input == ModelInput(width=64, height=32, bgr=False, low=0.0, high=1.0, resize='letterbox', pad=114)
    assert (manifest.score_threshold, manifest.nms_threshold, manifest.max_detections) == (0.25, 0.45, 300)


def test_a_device_s_tensors_are_read(tmp_path: Path) -> None:
    manifest = load_manifest(written(tmp_path, AXL))
    spec = TensorSpec('out', 'int8', (1, 6, 2), 64, (0.5, 0.25), -3)
    assert (manifest.engine, manifest.model_id, manifest.tensors, spec.num_bytes) == ('axl', 7, (spec,), 12)


def test_an_engine_without_weights_needs_no_file_and_no_size(tmp_path: Path) -> None:
    values = {'engine': 'opencv_hog', 'input': {'resize': 'none'}, 'head': 'boxes', 'classes': ['person']}
    manifest = load_manifest(written(tmp_path, values))
    assert manifest.file is None and (manifest.input.width, manifest.input.height) == (0, 0)


@pytest.mark.parametrize(
    ('key', 'value', 'allowed'),
    [
        ('name', 5, 'a name'),
        ('name', '', 'a name'),
        ('engine', 'onyx', 'one of onnx, opencv_hog, axl'),
        ('engine', ['onnx'], 'one of onnx'),
        ('file', 5, "the weights' file name, relative to the manifest"),
        ('head', 'yolo', 'one of yolov8, boxes'),
        ('classes', [], 'a list of at least one class name'),
        ('classes', 'car', 'a list of at least one class name'),
        ('classes', ['car', 5], 'a list of at least one class name'),
        ('classes', ['car', ''], 'a list of at least one class name'),
        ('score_threshold', 1.01, 'a number from 0.0 to 1.0'),
        ('score_threshold', -0.1, 'a number from 0.0 to 1.0'),
        ('score_threshold', float('nan'), 'a number from 0.0 to 1.0'),
        ('score_threshold', '0.5', 'a number from 0.0 to 1.0'),
        ('score_threshold', True, 'a number from 0.0 to 1.0'),
        ('nms_threshold', 2, 'a number from 0.0 to 1.0'),
        ('nms_threshold', [0.5], 'a number from 0.0 to 1.0'),
        ('max_detections', 0, 'an integer from 1 to 10000'),
        ('max_detections', 10001, 'an integer from 1 to 10000'),
        ('max_detections', 5.0, 'an integer from 1 to 10000'),
        ('max_detections', True, 'an integer from 1 to 10000'),
        ('model_id', -1, 'an integer from 0 to 4294967295'),
        ('licence', 5, 'the name of a licence'),
        ('outputs', 5, 'a list of tensors'),
        ('outputs', {'name': 'x'}, 'a list of tensors'),
        ('input.width', 1, 'an integer from 2 to 16384'),
        ('input.width', 20000, 'an integer from 2 to 16384'),
        ('input.width', '320', 'an integer from 2 to 16384'),
        ('input.height', 0, 'an integer from 2 to 16384'),
        ('input.height', 3.5, 'an integer from 2 to 16384'),
        ('input.layout', 'nhwc', 'one of nchw'),
        ('input.colour', 'yuv', 'one of rgb, bgr'),
        ('input.resize', 'crop', 'one of letterbox, stretch, none'),
        ('input.pad', 256, 'an integer from 0 to 255'),
        ('input.pad', 1.5, 'an integer from 0 to 255'),
        ('input.range', [0], 'two numbers'),
        ('input.range', 1.0, 'two numbers'),
        ('input.range', [0, 'x'], 'two numbers'),
        ('input.range', [False, True], 'two numbers'),
        ('input.range', [0, float('inf')], 'two numbers'),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(tmp_path: Path, key: str, value: Any, allowed: str) -> None:
    path = written(tmp_path, changed(GOOD, key, value))
    with pytest.raises(ConfigError) as caught:
        load_manifest(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: key '{key}' is {value!r}; it must be {allowed}")
    assert '\n' not in message


@pytest.mark.parametrize(
    ('key', 'value', 'allowed'),
    [
        ('outputs', [], 'engine axl needs a list of at least one tensor'),
        ('outputs[0].dtype', 'int4', 'it must be one of int8, uint8, int16, int32, float32'),
        ('outputs[0].name', '', 'it must be a name'),
        ('outputs[0].shape', [], 'it must be a list of positive sizes'),
        ('outputs[0].shape', [1, 0], 'it must be a list of positive sizes'),
        ('outputs[0].shape', [1, 2.0], 'it must be a list of positive sizes'),
        ('outputs[0].offset', -1, 'it must be an integer from 0 to 1073741824'),
        ('outputs[0].scale', [1.0, 2.0, 3.0], 'it must be a number, or 2 of them'),
        ('outputs[0].scale', 'x', 'it must be a number, or 2 of them'),
        ('outputs[0].scale', [True, 1.0], 'it must be a number, or 2 of them'),
        ('outputs[0].scale', float('inf'), 'it must be a number, or 2 of them'),
        ('outputs[0].zero_point', 0.5, 'it must be an integer from -2147483648 to 2147483647'),
    ],
)
def test_a_wrong_tensor_is_refused_with_its_place(tmp_path: Path, key: str, value: Any, allowed: str) -> None:
    path = written(tmp_path, changed(AXL, key, value))
    with pytest.raises(ConfigError) as caught:
        load_manifest(path)
    assert str(caught.value) == f"{path}: key '{key}' is {value!r}; {allowed}"


@pytest.mark.parametrize('key', ['file', 'head', 'classes', 'input.width', 'input.height'])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=f"key '{key}' is missing; it must be "):
        load_manifest(written(tmp_path, changed(GOOD, key, MISSING)))


def test_an_empty_value_is_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="key 'head' is missing"):
        load_manifest(written(tmp_path, changed(GOOD, 'head', None)))


@pytest.mark.parametrize(
    ('key', 'near'),
    [('score_treshold', 'score_threshold'), ('class', 'classes'), ('input.colours', 'colour'), ('outputs[0].names', 'name')],
)
def test_an_unknown_key_is_refused_with_the_nearest_known(tmp_path: Path, key: str, near: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_manifest(written(tmp_path, changed(GOOD, key, 1)))
    assert f"key '{key}' is unknown; did you mean '{near}'?; known are " in str(caught.value)


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('', "the file must be a mapping of keys, not 'None'"),
        ('- a', 'the file must be a mapping of keys'),
        ('a: [', "can't be read: while parsing"),
        ('input: 5\nhead: boxes\nengine: opencv_hog\nclasses: [a]', "input. must be a mapping of keys, not '5'"),
        ('1: 2', "key '1' is unknown"),
    ],
)
def test_what_is_no_manifest_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_manifest(written(tmp_path, text))
    assert message in str(caught.value) and '\n' not in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / 'model.yaml').write_bytes(b'name: \xff\xfe\x00')
    with pytest.raises(ConfigError, match="can't be read"):
        load_manifest(str(tmp_path))


def test_weights_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"key 'file' names 'other\.onnx', which does not exist in "):
        load_manifest(written(tmp_path, changed(GOOD, 'file', 'other.onnx')))


def test_a_model_is_a_shipped_name_a_folder_or_a_path(tmp_path: Path) -> None:
    path = Path(written(tmp_path, GOOD))
    assert find_manifest(str(tmp_path)) == find_manifest(str(path)) == path
    assert find_manifest('road').parent.name == 'road'


@pytest.mark.parametrize('model', ['', 'no_such_model', '~nobody_has_this_name/model.yaml', 'x' * 5000, 'a\0b'])
def test_a_model_that_is_nowhere_is_refused_with_those_there_are(model: str) -> None:
    with pytest.raises(ConfigError, match='is not known; use one of hog, road or the path of a model'):
        find_manifest(model)


def test_a_mistyped_model_gets_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"model 'roads' is not known.*did you mean 'road'\?"):
        find_manifest('roads')


def test_weights_in_place_of_a_manifest_get_advice(tmp_path: Path) -> None:
    written(tmp_path, GOOD)
    with pytest.raises(ConfigError, match=r'is not a manifest; write a model\.yaml beside it'):
        find_manifest(str(tmp_path / 'weights.onnx'))


def test_the_shipped_models_load() -> None:
    assert shipped_models() == ['hog', 'road']
    for name in shipped_models():
        manifest = load_manifest(name)
        assert manifest.name == name and manifest.classes
