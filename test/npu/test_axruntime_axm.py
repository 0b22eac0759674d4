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
An ``.axm`` on the runtime's double: the same boxes as from ``model.json``.

Also what fails, and releases that don't fit.
"""

from __future__ import annotations

import json
from pathlib import Path
import sys
from typing import Any
import zipfile

from doubles.axelera_runtime import add_pipelines
from npu.axruntime_kit import Double, model, Open, paint, start, WAIT_S
from npu.scheduler_kit import MakeFrame
import numpy as np
from numpy.typing import NDArray
import pytest

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.errors import AcceleratorError, ConfigError, DeviceLostError, ZcError
from zc_perception.npu.axruntime.accelerator import AxRuntimeAccelerator
from zc_perception.npu.manifest import load_manifest, ModelManifest

pytestmark = pytest.mark.usefixtures('no_fd_leak')
_LIMITS = DecodeLimits(0.6, 0.5, 100)


@pytest.fixture
def runtime(binding: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Yield the package of release 1.9."""
    for name, module in add_pipelines(binding).items():
        monkeypatch.setitem(sys.modules, name, module)
    return binding


def axm(folder: Path, **settings: float) -> ModelManifest:
    """Write a manifest with such a file."""
    with zipfile.ZipFile(folder / 'blobs.axm', 'w') as archive:
        archive.writestr('settings.json', json.dumps({'height': 64, 'width': 64, **settings}))
    manifest = model(folder)
    return ModelManifest(**{**vars(manifest), 'file': folder / 'blobs.axm'})


def scene(luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
    luma[:], chroma[:] = 16, 128
    paint(luma, chroma, 'red', 8, 8, 40, 32)
    paint(luma, chroma, 'blue', 64, 24, 104, 56)


def found(
    accelerator: AxRuntimeAccelerator, manifest: ModelManifest, make_frame: MakeFrame
) -> Detections:
    with make_frame(width=128, height=96, fill=scene) as frame:
        job = start(accelerator, frame)
        assert job.fence.wait(WAIT_S)
        detections = make_head(manifest.head).decode(job.outputs(), job.letterbox, _LIMITS)
        job.close()
    return detections


def test_it_finds_what_model_json_of_the_same_numbers_finds(
    runtime: Any, open_axruntime: Open, make_frame: MakeFrame, tmp_path: Path
) -> None:
    accelerator = open_axruntime()
    results = []
    for manifest in (model(tmp_path), axm(tmp_path), model(tmp_path), axm(tmp_path)):
        accelerator.load(manifest)
        results.append(found(accelerator, manifest, make_frame))
    assert len(results[0].scores) == 2
    for result in results[1:]:
        assert np.array_equal(result.classes, results[0].classes)
        assert result.boxes == pytest.approx(results[0].boxes, abs=1e-4)
        assert result.scores == pytest.approx(results[0].scores, abs=1e-6)
    assert {thread.name for thread in accelerator.hot_threads()} == {'axruntime-axm'}
    assert runtime.double.used_sub_devices == 4
    accelerator.close()
    assert runtime.double.used_sub_devices == 0


def test_the_folder_of_an_export_is_enough(
    runtime: Any, open_axruntime: Open, make_frame: MakeFrame, tmp_path: Path
) -> None:
    folder = tmp_path / 'blobs_axelera_model'
    folder.mkdir()
    axm(tmp_path)
    (tmp_path / 'blobs.axm').rename(folder / 'blobs.axm')
    (folder / 'metadata.yaml').write_text(
        'task: detect\nstride: 32\nimgsz: [64, 64]\nnames: {0: red, 1: green, 2: '
        'blue}\nend2end: false\n'
    )
    manifest = load_manifest(str(folder))
    assert (manifest.engine, manifest.classes) == ('axruntime', ('red', 'green', 'blue'))
    accelerator = open_axruntime()
    accelerator.load(manifest)
    assert found(accelerator, manifest, make_frame).classes.tolist() == [2, 0]


def test_a_failed_run_costs_its_frame_and_a_lost_card_is_called_lost(
    runtime: Any, open_axruntime: Open, make_frame: MakeFrame, tmp_path: Path
) -> None:
    manifest = axm(tmp_path)
    accelerator = open_axruntime()
    accelerator.load(manifest)
    for error, kind in (('InternalError', AcceleratorError), ('ConnectionError', DeviceLostError)):
        double = runtime.double
        double.fail_from, double.fail_count, double.fail_with = double.runs + 1, 1, error
        with pytest.raises(kind, match=r'could not run the model: injected into run \d+'):
            found(accelerator, manifest, make_frame)
        assert len(found(accelerator, manifest, make_frame).scores) == 2


def test_what_does_not_fit_is_refused_with_the_next_step(
    runtime: Any, open_axruntime: Open, tmp_path: Path
) -> None:
    accelerator = open_axruntime()
    runtime.double.old_model = True
    with pytest.raises(
        ConfigError, match=r'an older SDK compiled .* release of the runtime \(1\.9\.0\)'
    ):
        accelerator.load(axm(tmp_path))
    runtime.double.old_model = False
    manifest = axm(tmp_path, width=32)
    with pytest.raises(ConfigError, match=r'expected float32 \(1, 3, 64, 32\)'):
        accelerator.load(manifest)
    (tmp_path / 'blobs.axm').write_bytes(b'not an archive')
    with pytest.raises(ZcError, match=r"blobs\.axm' can't be loaded: File is not a zip file"):
        accelerator.load(manifest)


def test_a_release_before_1_9_and_the_c_library_are_named(
    binding: Any, double: Double, open_axruntime: Open, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError,
        match=r'needs axelera\.runtime 1\.9 or later, and this is 1\.8\.0 .*axelera-rt==1\.9\.0',
    ):
        open_axruntime().load(axm(tmp_path))
    with pytest.raises(
        ConfigError, match=r'axelera\.runtime, which is not used here: axruntime_library names'
    ):
        open_axruntime(axruntime_library=double.path).load(axm(tmp_path))
