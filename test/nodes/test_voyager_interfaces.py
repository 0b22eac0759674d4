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
``zc_demo`` and ``inference_node`` with the doubles of both interfaces of the Voyager runtime.

The detections are the same.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import subprocess
from typing import Any

import cv2
from nodes.programs import BIN, environment, parameters, PlainSubscriber, Program
from npu.axruntime_kit import build_double, CLASSES, model_file
import numpy as np
import pytest

TEST = Path(__file__).parents[1]
BEFORE = os.environ.get('PYTHONPATH', '')
SIDE = 64
FRAMES = 20


@pytest.fixture(scope='module')
def vehicle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    Yield a folder with all that the tests need.

    It has the C library as an SDK has it, the Python package, a model, and a recording of coloured
    squares.
    """
    folder = tmp_path_factory.mktemp('vehicle')
    (folder / 'sdk' / 'lib').mkdir(parents=True)
    build_double(folder / 'sdk' / 'lib' / 'libaxruntime.so')
    (folder / 'packages' / 'axelera').mkdir(parents=True)
    (folder / 'packages' / 'axelera' / 'runtime.py').write_text(
        'import os, sys\nfrom pathlib import Path\nfrom doubles.axelera_runtime import '
        'make_module\n'
        'Path(os.environ["TEST_IMPORTED"]).touch()\nsys.modules[__name__] = make_module()\n'
    )
    outputs: list[dict[str, Any]] = []
    for stride in (8, 16, 32):
        cells = SIDE // stride
        outputs += [
            {'name': f'box_{stride}', 'shape': [1, cells, cells + 1, 64]},
            {'name': f'scores_{stride}', 'shape': [1, cells, cells, 64]},
        ]
    inputs = [{'name': 'images', 'shape': [1, SIDE + 2, SIDE + 16, 4]}]
    model_file(folder, SIDE, SIDE, version='5.0', inputs=inputs, outputs=outputs)  # type: ignore
    (folder / 'model.yaml').write_text(
        f'name: blobs\nengine: axruntime\nfile: model.json\ninput: {{width: {SIDE}, height: '
        f'{SIDE}, colour: rgb, range: [0.0, 1.0]}}\n'
        f'head: yolov8\nclasses: [{", ".join(CLASSES)}]\n'
        'score_threshold: 0.5\nnms_threshold: 0.5\nmax_detections: 100\nlicence: Apache-2.0\n'
    )
    (folder / 'pictures').mkdir()
    for number in range(FRAMES):
        picture = np.zeros((128, 128, 3), np.uint8)
        picture[20:70, slice(3 * number, 3 * number + 40)] = (0, 0, 255)
        picture[80:120, 60:110] = (0, 255, 0)
        assert cv2.imwrite(str(folder / 'pictures' / f'{number:03}.png'), picture)
    return folder


def variables(vehicle: Path, interface: str, imported: Path) -> dict[str, str]:
    """Of a machine that has both interfaces, or only the library."""
    path = [str(vehicle / 'packages')] if interface == 'python' else []
    return {
        'AXELERA_RUNTIME_DIR': str(vehicle / 'sdk'), 'TEST_IMPORTED': str(imported),
        'PYTHONPATH': os.pathsep.join([*path, str(TEST), BEFORE]),
    }  # fmt: skip


def test_the_demo_finds_the_same_with_both(
    vehicle: Path, tmp_path: Path, free_domain: int
) -> None:
    summaries = {}
    for interface in ('python', 'c'):
        imported, out = tmp_path / f'{interface}.imported', tmp_path / interface
        done = subprocess.run(
            [
                str(BIN / 'zc_demo'),
                '--camera',
                'replay',
                '--video',
                str(vehicle / 'pictures'),
                '--keep-all',
                '--out',
                str(out),
                '--accelerator',
                'axruntime',
                '--model',
                str(vehicle / 'model.yaml'),
            ],
            env={**environment(free_domain), **variables(vehicle, interface, imported)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert imported.exists() == (interface == 'python')
        summary = json.loads((out / 'summary.json').read_text())
        summaries[interface] = (
            summary['accelerator'],
            summary['frames'],
            summary['detections'],
            summary['dropped'],
        )
    assert summaries['python'] == summaries['c']
    assert (
        summaries['c'][:2] == ('axruntime', FRAMES)
        and summaries['c'][2] >= FRAMES
        and summaries['c'][3] == 0
    )


def test_the_node_publishes_the_same_with_both(
    vehicle: Path, tmp_path: Path, free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, list[Any]] = {}
    still = vehicle / 'pictures' / '007.png'
    (tmp_path / 'still').mkdir()
    (tmp_path / 'still' / '0.png').write_bytes(still.read_bytes())
    camera = parameters(
        capture__camera='replay', capture__video=tmp_path / 'still', capture__framerate=10.0
    )
    for interface, cores in (('python', 1), ('python', 2), ('c', 1), ('c', 4)):
        imported = tmp_path / f'{interface}.imported'
        for name, value in variables(vehicle, interface, imported).items():
            monkeypatch.setenv(name, value)
        values = {
            'model': vehicle / 'model.yaml',
            'timeout': 20.0,
            'accelerator': 'axruntime',
            'aipu_cores': cores,
            'in_flight': 2 * cores,
        }
        arguments = parameters(**{f'inference__{name}': value for name, value in values.items()})
        with (
            Program('inference_node', *arguments, domain=free_domain, cold=True).start(
                '[inference]: ready'
            ) as inference,
            Program('capture_node', *camera, domain=free_domain).start(
                '[capture]: ready'
            ) as capture,
        ):
            seen = PlainSubscriber(
                ['120', '--until-detections', '3'], domain=free_domain
            ).result()['detections']
            assert (capture.interrupt(), inference.interrupt()) == (0, 0)
        assert (
            imported.exists() == (interface == 'python')
            and "accelerator 'axruntime'" in inference.output
        )
        found[f'{interface} {cores}'] = [each['boxes'] for each in seen]
    first = found['python 1'][0]
    assert {box[4] for box in first} == {'0', '1'}, 'red and green'
    assert all(boxes == first for results in found.values() for boxes in results)
