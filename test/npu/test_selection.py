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

"""Choosing an accelerator, on a machine that has no card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
import re
from typing import Any
from unittest.mock import call, Mock

from entry_point_kit import install, offer_alone
from npu.axruntime_kit import Double, model_file
from npu.card_kit import counting_accelerator, MANIFEST
from npu.onnx_kit import FLOAT, identity
import pytest
import yaml

from zc_perception.detection.heads.spec import HeadSpec
from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.memory.ledger import CopyLedger
from zc_perception.npu.axl.abi import parse_ioctl_numbers
from zc_perception.npu.axruntime.kind import AxRuntime
from zc_perception.npu.manifest import check_head, load_manifest, ModelManifest, MODELS, TensorSpec
from zc_perception.npu.metis_card import find_cards
from zc_perception.npu.onnx.accelerator import OnnxAccelerator, OnnxEngine
from zc_perception.npu.selection import open_accelerator

pytestmark = [
    pytest.mark.usefixtures('warm_engines', 'no_fd_leak'),
    pytest.mark.skipif(
        bool(find_cards()), reason='this machine has a Metis card; the rig covers that case'
    ),
]
VIRTUAL = str(Path(__file__).parents[1] / 'rig' / 'models' / 'virtual_metis.yaml')


def test_auto_goes_on_to_the_cpu_and_says_why_not_axl(runtime: Mock) -> None:
    selected = open_accelerator('auto', load_manifest('hog'), {}, CopyLedger())
    assert selected.accelerator.capabilities().name == 'onnx'
    assert len(selected.reasons) == 2 and selected.without_card
    assert "'axl' doesn't fit: no Metis card" in selected.reasons[0]
    assert not runtime.called, (
        'the model has no variant for the runtime, which takes the card as soon as it is opened'
    )
    selected.accelerator.close()


def test_a_model_file_alone_gets_its_variants_in_a_manifest(tmp_path: Path) -> None:
    (tmp_path / 'mine.axm').touch()
    said = {'names': ['car'], 'stride': 32, 'imgsz': [64, 64]}
    (tmp_path / 'metadata.yaml').write_text(yaml.safe_dump(said))
    with pytest.raises(ConfigError, match=r'variant with engine: onnx.* to a model\.yaml'):
        open_accelerator('onnx', load_manifest(str(tmp_path)), {}, CopyLedger())


@pytest.mark.parametrize(
    ('accelerator', 'model', 'kind', 'words'),
    [
        ('axl', 'hog', AcceleratorError, r'no Metis card.*; model.*on accelerator: onnx$'),
        ('axruntime', 'hog', ConfigError, r"model 'hog' \(engine opencv_hog\).*with engine: axr"),
        ('onnx', VIRTUAL, ConfigError, r"can't run on.*onnx or opencv_hog.*accelerator: axl$"),
        ('auto', VIRTUAL, ConfigError,
         r"^no .* fits: .*'axl'.*'axruntime'.*'onnx'.*engine axl"),
    ],
)  # fmt: skip
def test_a_named_accelerator_is_not_replaced_and_a_model_that_fits_nowhere_refused_with_reasons(
    accelerator: str, model: str, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        open_accelerator(accelerator, load_manifest(model), {}, CopyLedger())


def written(folder: Path, **values: Any) -> ModelManifest:
    (folder / 'model.yaml').write_text(yaml.safe_dump(values), encoding='utf-8')
    return load_manifest(str(folder))


def variants(folder: Path, *engines: str, **changes: Any) -> ModelManifest:
    """Return a manifest for engines; only the shipped card's and runtime's files exist."""
    known: dict[str, dict[str, Any]] = {
        'axl': {'outputs': [{'name': 'o', 'dtype': 'int8', 'shape': [4]}]},
        'axruntime': {'file': 'model.bin', 'input': {'width': 64, 'height': 64}},
        'opencv_hog': {'input': {'resize': 'none'}},
    }
    (folder / 'model.bin').touch()
    entries = [
        {'engine': engine, **known[engine], **changes.get(engine, {})} for engine in engines
    ]
    whole = {'resize': 'none'}
    return written(folder, name='many', head='boxes', classes=['a'], input=whole, variants=entries)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return what stands for the runtime's ``open``, and is the accelerator that it opens."""
    opened = Mock(spec_set=['load', 'close'])
    opened.return_value = opened
    monkeypatch.setattr(AxRuntime, 'open', opened)
    return opened


def test_a_node_whose_driver_lacks_our_ioctls_is_the_runtime_s_device_too(
    tmp_path: Path, double: Double
) -> None:
    """The whole path: from ENOTTY to a model on the second device of the runtime's double."""
    node = tmp_path / 'metis-1:3:0'
    node.symlink_to('/dev/null')
    model_file(tmp_path, 64, 64).rename(tmp_path / 'compiled.bin')
    network = {'width': 64, 'height': 64, 'resize': 'stretch'}
    compiled = {'file': 'compiled.bin', 'head': 'yolov8', 'classes': [*'rgb'], 'input': network}
    manifest = variants(tmp_path, 'axl', 'axruntime', 'opencv_hog', axruntime=compiled)
    options = {'accelerator_device': str(node), 'axruntime_library': double.path}
    selected = open_accelerator('auto', manifest, options, CopyLedger())
    capabilities, (reason,) = selected.accelerator.capabilities(), selected.reasons
    assert (capabilities.name, capabilities.device) == ('axruntime', 'metis-1:3:0')
    assert 'ENOTTY' in reason and double.used_sub_devices() == [0, 1, 0, 0]
    selected.accelerator.close()
    again = selected.reopen()
    assert again.capabilities().device == 'metis-1:3:0'
    again.close()


def test_auto_goes_on_when_the_runtime_is_missing_or_refuses_the_model(
    tmp_path: Path, runtime: Mock, capfd: pytest.CaptureFixture[str]
) -> None:
    runtime.close.side_effect = SystemExit('the library is gone')  # must not hide the reason
    manifest = variants(tmp_path, 'axl', 'axruntime', 'opencv_hog')
    missing = AcceleratorError('libaxruntime.so is not installed')
    refused = ConfigError('compiled for another chip')
    for runtime.side_effect, runtime.load.side_effect in ((missing, None), (None, refused)):
        selected = open_accelerator('auto', manifest, {}, CopyLedger())
        selected.accelerator.close()
        assert selected.manifest.engine == 'opencv_hog' and len(selected.reasons) == 2
        words = f"accelerator 'axruntime' doesn't fit: {runtime.side_effect or refused}"
        assert selected.reasons[1].startswith(words)
    assert runtime.close.call_count == 1, 'what was opened is closed'
    assert 'Mock.close failed: SystemExit: the library is gone' in capfd.readouterr().err


FIRST = """
from zc_perception.npu.accelerator import Accelerator
from zc_perception.npu.manifest import EngineRules

class First(Accelerator):
    AUTO, ENGINES = -1, (EngineRules('opencv_hog', needs_file=False),)

    @classmethod
    def open(cls, values, ledger):
        import library_of_first
"""


def test_auto_goes_on_when_another_package_s_accelerator_raises_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, 'first', {'zc_perception.accelerators': {'first': 'first_one:First'}})
    (tmp_path / 'first_one.py').write_text(FIRST, encoding='utf-8')
    offer_alone(monkeypatch, tmp_path)
    selected = open_accelerator('auto', load_manifest('hog'), {}, CopyLedger())
    selected.accelerator.close()
    assert selected.accelerator.capabilities().name == 'onnx'
    words = "accelerator 'first' doesn't fit: ModuleNotFoundError: No module named 'library_of_"
    assert selected.reasons[0].startswith(words)
    with pytest.raises(ModuleNotFoundError):
        open_accelerator('first', load_manifest('hog'), {}, CopyLedger())


def test_a_variant_whose_file_is_not_there_is_a_reason(tmp_path: Path, runtime: Mock) -> None:
    manifest = variants(
        tmp_path, 'axruntime', 'opencv_hog', axruntime={'file': 'build/model.json'}
    )
    selected = open_accelerator('auto', manifest, {}, CopyLedger())
    selected.accelerator.close()
    words = "key 'variants[0].file' names 'build/model.json', which does not exist"
    assert words in selected.reasons[1] and not runtime.called
    with pytest.raises(ConfigError, match='which does not exist'):
        open_accelerator('axruntime', manifest, {}, CopyLedger())


def test_what_was_chosen_is_what_is_opened_again(tmp_path: Path, runtime: Mock) -> None:
    manifest = variants(tmp_path, 'axruntime', 'opencv_hog')
    selected = open_accelerator('auto', manifest, {}, CopyLedger())
    assert selected.reopen() is runtime and runtime.call_count == 2
    assert runtime.load.call_args_list == [call(selected.manifest)] * 2
    runtime.load.side_effect = AcceleratorError('in use')
    with pytest.raises(AcceleratorError, match='in use'):
        selected.reopen()
    # Never the next best: the buffers were negotiated with this one.
    assert runtime.close.call_count == 1


def test_two_packages_with_one_name_are_both_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ('one', 'two'):
        twin = {'zc_perception.accelerators': {'twin': f'{package}:Twin'}}
        install(tmp_path / package, package, twin)
    offer_alone(monkeypatch, tmp_path / 'one', tmp_path / 'two')
    with pytest.raises(ConfigError, match=r"'twin' of group .*\.accelerators is offered by.*one"):
        open_accelerator('twin', load_manifest('hog'), {}, CopyLedger())


@pytest.mark.parametrize(
    ('entries', 'message'),
    [
        (['sumbit=70'], "'axl_ioctls' has 'sumbit=70'; it must be .* to 255 .*mean 'submit'"),
        (['submit'], "has 'submit'; it must be 'name=number'"),
        (['submit=256'], "has 'submit=256'; it must be"),
        (['submit=70', 'submit=71'], "names 'submit' twice"),
        (['submit=64'], 'the ioctls import_fd and submit have the same number 64'),
    ],
)
def test_an_ioctl_number_that_cannot_be_meant_is_refused(entries: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_ioctl_numbers(entries)


def manifest_file(folder: Path, *variants: dict[str, Any], classes: str) -> ModelManifest:
    """Return a manifest with letters as classes, and a compiled model of three classes."""
    (folder / 'model.onnx').write_bytes((MODELS / 'road/model.onnx').read_bytes())
    model_file(folder, 64, 64).rename(folder / 'model.bin')
    return written(folder, head='yolov8', classes=[*classes], variants=[*variants])


ONNX = {'engine': 'onnx', 'file': 'model.onnx', 'input': {'width': 640, 'height': 384}}
RUNTIME = {'engine': 'axruntime', 'file': 'model.bin', 'input': {'width': 64, 'height': 64}}


def test_weights_with_another_number_of_classes_are_refused_with_both_keys(tmp_path: Path) -> None:
    manifest = manifest_file(tmp_path, ONNX, classes='a')
    with pytest.raises(ConfigError) as caught:
        open_accelerator('onnx', manifest, {'threads': 1}, CopyLedger())
    message = str(caught.value)
    assert message.startswith(
        f"{tmp_path / 'model.yaml'}: key 'head' is yolov8 and key 'classes' has 1 name, which "
        'does not fit'
    )
    for word in ('1x8x5040', '1x5xN', 'correct the key that is wrong'):
        assert word in message and '\n' not in message


def test_auto_goes_on_to_a_variant_that_fits(tmp_path: Path, double: Double) -> None:
    manifest = manifest_file(tmp_path, RUNTIME, ONNX, classes='abcd')
    options = {'axruntime_library': double.path, 'threads': 1}
    selected = open_accelerator('auto', manifest, options, CopyLedger())
    selected.accelerator.close()
    assert selected.manifest.engine == 'onnx'
    words = r"'axruntime' doesn't fit.*'classes' has 4 names, which does not fit .* axruntime"
    assert re.search(words, selected.reasons[1])
    assert double.instances == 0, 'nothing was put on the device'


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
    broken = Mock(side_effect=RuntimeError('a node\nfailed'))
    monkeypatch.setattr(OnnxEngine, 'infer', broken)
    (tmp_path / 'model.onnx').write_bytes(identity([1, 3, 48, 64], FLOAT))
    size = {'width': 64, 'height': 48}
    manifest = written(tmp_path, file='model.onnx', input=size, head='boxes', classes=['a'])
    accelerator = OnnxAccelerator(CopyLedger(), {'threads': 1})
    with pytest.raises(ConfigError, match=r"model file '.*model\.onnx' can't be.*export it again"):
        accelerator.load(manifest)
    accelerator.close()
