"""One manifest for several engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from npu.manifest_kit import GOOD, MISSING, TENSOR, changed, written

from zc_perception.errors import ConfigError
from zc_perception.npu.manifest import load_manifest

VARIANTS: dict[str, Any] = {**GOOD, 'variants': [{'engine': 'axl', 'model_id': 9, 'outputs': [TENSOR], 'score_threshold': 0.5}]}


def test_a_variant_is_the_top_level_with_some_keys_replaced(tmp_path: Path) -> None:
    manifest = load_manifest(written(tmp_path, VARIANTS))
    assert [variant.engine for variant in manifest.variants] == ['onnx', 'axl']
    card = manifest.for_engines(('axl',))
    assert card is not None and (card.model_id, card.score_threshold, card.file) == (9, 0.5, None)
    assert (card.classes, card.input, card.nms_threshold) == (manifest.classes, manifest.input, manifest.nms_threshold)
    assert [spec.name for spec in card.tensors] == ['out'] and [spec.name for spec in manifest.tensors] == ['detections']
    assert manifest.score_threshold == 0.3 and manifest.for_engines(('onnx', 'opencv_hog')) is manifest
    assert manifest.for_engines(('axruntime',)) is None
    assert repr(manifest) and manifest == load_manifest(written(tmp_path, VARIANTS)), 'it does not contain itself'


def test_a_top_level_without_an_engine_only_says_what_the_variants_share(tmp_path: Path) -> None:
    values = changed(changed(changed(VARIANTS, 'engine', MISSING), 'file', MISSING), 'outputs', MISSING)
    assert [variant.engine for variant in load_manifest(written(tmp_path, values)).variants] == ['axl']


def test_a_variant_s_classes_replace_the_file_of_classes(tmp_path: Path) -> None:
    (tmp_path / 'labels.txt').write_text('car\n', encoding='utf-8')
    values = {**changed(VARIANTS, 'classes', MISSING), 'classes_file': 'labels.txt'}
    values['variants'][0]['classes'] = ['a', 'b', 'c']
    manifest = load_manifest(written(tmp_path, values))
    assert [variant.classes for variant in manifest.variants] == [('car',), ('a', 'b', 'c')]


@pytest.mark.parametrize(
    ('key', 'value', 'message'),
    [
        ('variants[0].engine', 'onnx', "key 'variants[0].engine' is 'onnx'; it must be one that no other variant has"),
        ('variants[0].engine', MISSING, "key 'variants[0].engine' is missing; it must be one that no other variant has"),
        ('variants[0].outputs', MISSING, "key 'variants[0].outputs' is missing; it must be a list of at least one tensor for engine axl"),
        (
            'variants[0].outputs',
            [{**TENSOR, 'scale': [1, 2, 3]}],
            "key 'variants[0].outputs[0].scale' is [1, 2, 3]; it must be a number, or 2",
        ),
        ('variants[0].score_threshold', 2, "key 'variants[0].score_threshold' is 2; it must be a number from 0.0 to 1.0"),
        ('variants[0].modelid', 2, "key 'variants[0].modelid' is unknown; did you mean 'model_id'?"),
        ('variants[0].name', 'x', "key 'variants[0].name' is unknown"),
        ('variants[0]', 5, "key 'variants[0]' is 5; it must be a mapping of keys"),
    ],
)
def test_what_is_wrong_with_a_variant_is_said_with_its_place(tmp_path: Path, key: str, value: Any, message: str) -> None:
    values = changed(VARIANTS, key, value)
    with pytest.raises(ConfigError) as caught:
        load_manifest(written(tmp_path, values))
    assert message in str(caught.value)


@pytest.mark.parametrize(('key', 'value'), [('model_id', 3), ('outputs', [TENSOR])])
def test_what_is_one_engine_s_own_does_not_stand_where_no_engine_is(tmp_path: Path, key: str, value: Any) -> None:
    values = {'head': 'yolov8', 'classes': ['a'], 'input': GOOD['input'], 'variants': VARIANTS['variants'], key: value}
    with pytest.raises(ConfigError, match=f"key '{key}' is .*; it must be a key of a variant, as the top level has neither"):
        load_manifest(written(tmp_path, values))


def test_a_variant_whose_file_is_elsewhere_waits_for_it(tmp_path: Path) -> None:
    values = {**GOOD, 'variants': [{'engine': 'axruntime', 'file': 'build/model.json'}]}
    manifest = load_manifest(written(tmp_path, values))
    compiled = manifest.for_engines(('axruntime',))
    assert compiled is not None and compiled.file is None
    assert "key 'variants[0].file' names 'build/model.json', which does not exist in" in compiled.missing
    values['file'] = 'other.onnx'
    with pytest.raises(ConfigError, match=r"key 'file' names 'other\.onnx'.*key 'variants\[0\]\.file' names 'build/model\.json'"):
        load_manifest(written(tmp_path, values))


def test_a_file_and_what_is_in_it_are_not_another_engine_s(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"key 'variants\[0\]\.file' is missing; it must be the weights' file name"):
        load_manifest(written(tmp_path, {**GOOD, 'variants': [{'engine': 'axruntime'}]}))
    (tmp_path / 'model.axm').touch()
    compiled = load_manifest(written(tmp_path, {**GOOD, 'variants': [{'engine': 'axruntime', 'file': 'model.axm'}]})).for_engines(
        ('axruntime',)
    )
    assert compiled is not None and compiled.tensors == ()
