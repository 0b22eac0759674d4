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

"""Files of the Voyager compiler, as SDK 1.6 writes them, with figures of real models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
import pytest
import yaml

from zc_perception.errors import ConfigError
from zc_perception.npu.axruntime.kind import CompiledInput, read_compiled_input
from zc_perception.npu.manifest import load_manifest


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
    'quantize_params': [[0.003921329043805599, -130]],
    'model_lib_file': 'x/model.json',
    'n_padded_ch_inputs': [[0, 0, 1, 1, 1, 15, 0, 1]],
    'preprocess_graph': None,
    'manifest_version': '1.1',
}


def written(folder: Path, model: Any = MODEL, manifest: Any = MANIFEST) -> Path:
    (folder / 'model.json').write_text(json.dumps(model), encoding='utf-8')
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
    assert read_compiled_input(written(tmp_path)) == known
    (tmp_path / 'x').mkdir()
    path = written(tmp_path / 'x', manifest=None)
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
    model = read_compiled_input(written(tmp_path, manifest=manifest))
    assert model is not None and model.inner_shape == inner


@pytest.mark.parametrize(
    ('file', 'key', 'value', 'message'),
    [
        ('model', 'inputs', None, "model.json: key 'inputs' is missing; it must be a"),
        ('model', 'inputs', [{'shape': [1, 0]}], 'a shape of positive sizes; compile'),
        ('model', 'inputs', [{'shape': [16320]}], 'shape [16320]; a frame needs 1 x'),
        ('manifest', 'n_padded_ch_inputs', {'a': 1}, "is {'a': 1}; it must be for each"),
        ('manifest', 'n_padded_ch_inputs', [[0] * 10], 'less than its shape [1, 642, 656, 4]'),
    ],
)
def test_what_is_wrong_is_named_by_file_and_key(
    tmp_path: Path, file: str, key: str, value: Any, message: str
) -> None:
    changed = {file: {**(MODEL if file == 'model' else MANIFEST), key: value}}
    with pytest.raises(ConfigError) as caught:
        read_compiled_input(written(tmp_path, **changed))
    assert message in str(caught.value) and '\n' not in str(caught.value)


@pytest.mark.parametrize(
    ('text', 'message'), [('{', "can't be read"), ('[]', 'is no JSON object')]
)
def test_what_is_no_model_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / 'model.json').write_text(text, encoding='utf-8')
    with pytest.raises(ConfigError, match=message):
        read_compiled_input(tmp_path / 'model.json')


def test_the_wrong_one_of_the_two_files_is_told_the_other(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(ConfigError, match=r'is the.*model\.json that it names \(x/model\.json\)'):
        read_compiled_input(tmp_path / 'manifest.json')


def test_what_only_the_runtime_can_read_is_left_to_it(tmp_path: Path) -> None:
    (tmp_path / 'model.axm').write_bytes(b'\0')
    assert read_compiled_input(tmp_path / 'model.axm') is None
    assert read_compiled_input(written(tmp_path, {'version': '5.1', 'graph': {}})) is None
    newer = read_compiled_input(written(tmp_path, {**MODEL, 'version': '5.1'}))
    assert newer is not None, 'what is where it always was is read'
    for version in ('²', '9' * 5000):
        with pytest.raises(ConfigError, match='inputs'):
            read_compiled_input(written(tmp_path, {'version': version, 'graph': {}}))


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
        read = read_compiled_input(written(folder, model, manifest))
    except ConfigError as error:
        assert '\n' not in str(error)
    else:
        assert read is None or all(size > 0 for size in read.inner_shape or (1,))


def test_a_manifest_takes_its_size_from_the_compiled_model(tmp_path: Path) -> None:
    written(tmp_path)
    manifest = load_manifest(yaml_for(tmp_path))
    assert (manifest.engine, manifest.file) == ('axruntime', tmp_path / 'model.json')
    sizes = (manifest.input.width, manifest.input.height), manifest.head.input_size
    assert sizes == ((640, 640), (640, 640))


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
    written(tmp_path, manifest=MANIFEST if known else None)
    with pytest.raises(ConfigError, match=message):
        load_manifest(yaml_for(tmp_path, size))


def test_a_graph_before_the_npu_has_to_be_explained(tmp_path: Path) -> None:
    written(tmp_path, manifest={**MANIFEST, 'preprocess_graph': 'x/pre.onnx'})
    with pytest.raises(
        ConfigError, match=r"'x/pre\.onnx' has to run before.*'input\.range' of model\.yaml"
    ):
        load_manifest(yaml_for(tmp_path))
    assert load_manifest(yaml_for(tmp_path, {'range': [-1, 1]})).input.low == -1.0
