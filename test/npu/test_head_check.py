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

"""A head that can't read its model's output is refused before the first frame, everywhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from npu.axruntime_kit import Double, model_file
from npu.card_kit import counting_accelerator, MANIFEST
from npu.onnx_kit import FLOAT, identity
import pytest
import yaml

from zc_perception.detection.heads.spec import HeadSpec
from zc_perception.errors import ConfigError
from zc_perception.memory.ledger import CopyLedger
from zc_perception.npu.manifest import check_head, load_manifest, ModelManifest, TensorSpec
from zc_perception.npu.metis_card import find_cards
from zc_perception.npu.onnx.accelerator import OnnxAccelerator
from zc_perception.npu.selection import open_accelerator

pytestmark = [
    pytest.mark.usefixtures('warm_engines', 'no_fd_leak'),
    pytest.mark.skipif(
        bool(find_cards()), reason='this machine has a Metis card; the rig covers that case'
    ),
]


def manifest_file(folder: Path, *variants: dict[str, Any], classes: list[str]) -> ModelManifest:
    """
    Return a function that writes a manifest with any number of classes.

    It has the road detector's weights and a compiled model of three classes.
    """
    weights = load_manifest('road').file
    assert weights is not None
    (folder / 'model.onnx').write_bytes(weights.read_bytes())
    model_file(folder, 64, 64).rename(folder / 'model.bin')
    values = {'head': 'yolov8', 'classes': classes, 'variants': list(variants)}
    (folder / 'model.yaml').write_text(yaml.safe_dump(values), encoding='utf-8')
    return load_manifest(str(folder))


ONNX = {'engine': 'onnx', 'file': 'model.onnx', 'input': {'width': 640, 'height': 384}}
RUNTIME = {'engine': 'axruntime', 'file': 'model.bin', 'input': {'width': 64, 'height': 64}}


def test_weights_with_another_number_of_classes_are_refused_with_both_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        open_accelerator(
            'onnx',
            manifest_file(tmp_path, ONNX, classes=['a', 'b', 'c']),
            {'threads': 1},
            CopyLedger(),
        )
    message = str(caught.value)
    assert message.startswith(
        f"{tmp_path / 'model.yaml'}: key 'head' is yolov8 and key 'classes' has 3 names, which "
        'does not fit'
    )
    assert (
        '1x8x5040' in message
        and '1x7xN' in message
        and 'correct the one that is wrong' in message
        and '\n' not in message
    )


def test_auto_goes_on_to_a_variant_that_fits(tmp_path: Path, double: Double) -> None:
    options = {'axruntime_library': double.path, 'threads': 1}
    selected = open_accelerator(
        'auto',
        manifest_file(tmp_path, RUNTIME, ONNX, classes=['a', 'b', 'c', 'd']),
        options,
        CopyLedger(),
    )
    selected.accelerator.close()
    assert selected.manifest.engine == 'onnx'
    assert (
        "accelerator 'axruntime' doesn't fit" in selected.reasons[1]
        and "key 'classes' has 4 names" in selected.reasons[1]
    )
    assert double.instances == 0, 'nothing was put on the device'


@pytest.mark.parametrize('classes', [['a']])
def test_a_compiled_model_with_another_number_of_classes_is_refused(
    tmp_path: Path, double: Double, classes: list[str]
) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"key 'classes' has {len(classes)} names?, which does not fit .* engine axruntime",
    ):
        open_accelerator(
            'axruntime',
            manifest_file(tmp_path, RUNTIME, classes=classes),
            {'axruntime_library': double.path},
            CopyLedger(),
        )
    fits = manifest_file(tmp_path, RUNTIME, classes=['a', 'b', 'c'])
    selected = open_accelerator(
        'axruntime', fits, {'axruntime_library': double.path}, CopyLedger()
    )
    selected.accelerator.close()


def test_a_card_s_tensors_are_checked_as_the_manifest_describes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    boxes = TensorSpec('boxes', 'int16', (64, 6), 8, (1.0, 1.0, 1.0, 1.0, 0.5, 1.0), 3)
    good = replace(MANIFEST, head=HeadSpec('boxes', 1), tensors=(boxes,))
    accelerator, _ = counting_accelerator(monkeypatch, manifest=good)
    with pytest.raises(ConfigError, match=r"key 'head' is.*engine axl \(head boxes: .*64x5.*nx6"):
        accelerator.load(replace(good, tensors=(replace(boxes, shape=(64, 5), scale=(1.0,)),)))
    accelerator.close()


def test_a_grid_of_the_frame_s_own_size_waits_for_the_frame() -> None:
    check_head(MANIFEST, [spec.blank() for spec in MANIFEST.tensors])
    sized = replace(MANIFEST, input=replace(MANIFEST.input, width=64, height=64))
    with pytest.raises(ConfigError, match="key 'head' is yolov8"):
        check_head(sized, [spec.blank() for spec in sized.tensors])


def test_weights_that_cannot_be_run_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zc_perception.npu.onnx.accelerator import OnnxEngine

    def broken(self: OnnxEngine, tensor: Any) -> Any:
        raise RuntimeError('a node\nfailed')

    monkeypatch.setattr(OnnxEngine, 'infer', broken)
    (tmp_path / 'model.onnx').write_bytes(identity([1, 3, 48, 64], FLOAT))
    values = {
        'file': 'model.onnx',
        'input': {'width': 64, 'height': 48},
        'head': 'boxes',
        'classes': ['a'],
    }
    (tmp_path / 'model.yaml').write_text(yaml.safe_dump(values), encoding='utf-8')
    accelerator = OnnxAccelerator(CopyLedger(), {'threads': 1})
    with pytest.raises(ConfigError, match=r"model file '.*model\.onnx' can't be.*export it anew"):
        accelerator.load(load_manifest(str(tmp_path)))
    accelerator.close()
