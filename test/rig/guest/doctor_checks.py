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
The doctor on a real kernel: vivid's cameras, the dma-heaps and the virtual Metis.

The doctor finds and tests them, and leaves nothing open.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

from npu.json_schema import conforms

from zc_perception.doctor import zc_doctor

from .graph_variants import DEVICES, MULTI, SINGLE
from .harness import check, equal
from .kernel_api import bufinfo

#: Groups of checks that depend on the guest's kernel.
GROUPS = ('kernel', 'memory', 'buffers', 'cameras', 'metis')
_SCHEMA = json.loads(
    Path(zc_doctor.__file__).with_name('doctor.schema.json').read_text(encoding='utf-8')
)
_VEHICLE = f"""
/**/capture:
  ros__parameters: {{camera: v4l2, device: {SINGLE}, width: 640, height: 360, framerate: 30.0,
                     memory: import, heap: dma_heap/system}}
/**/inference:
  ros__parameters: {{accelerator: axl}}
"""


@check
def the_doctor_finds_heaps_cards_and_cameras_in_order() -> None:
    before = set(bufinfo())
    path, text = Path(os.environ['RIG_OUT']) / 'vehicle.yaml', io.StringIO()
    path.write_text(_VEHICLE, encoding='utf-8')
    with contextlib.redirect_stdout(text):
        code = zc_doctor.main(['--json', '--params-file', str(path), '--only', *GROUPS])
    document = json.loads(text.getvalue())
    assert conforms(document, _SCHEMA), 'the report is not what its schema says'
    failed = [entry for entry in document['checks'] if entry['status'] == 'fail']
    equal((code, failed), (0, []), 'what fails')
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for entry in document['checks']:
        found.setdefault(entry['id'], {})[entry['subject']] = entry
    heaps = {f'dma_heap/{name}' for name in os.listdir('/dev/dma_heap')}
    heaps |= {'udmabuf'} if os.path.exists('/dev/udmabuf') else set()
    (card,) = found['metis.access']
    subjects = {
        'memory.heaps': heaps,
        'buffers.cpu': heaps | {'memfd'},
        'buffers.fences': heaps,
        'buffers.import': {f'{heap} -> {card}' for heap in heaps},
        'cameras.devices': set(DEVICES.values()),
        # The camera of the parameter file, and that it takes our buffers.
        'cameras.configured': {'/capture'},
    }
    for name, expected in subjects.items():
        statuses = {subject: entry['status'] for subject, entry in found[name].items()}
        equal(statuses, dict.fromkeys(expected, 'ok'), name)
    for name in (
        'kernel.release', 'kernel.sync_file_ioctls', 'metis.cards', 'metis.access',
        'metis.driver', 'metis.ioctls', 'metis.iommu',
    ):  # fmt: skip
        equal({entry['status'] for entry in found[name].values()}, {'ok'}, name)
    equal(found['metis.ioctls'][card]['figures']['level'], 2, 'the level of the ioctls')
    equal(
        found['kernel.sync_file_ioctls']['']['figures'],
        {'supported': True, 'asked': True},
        'the kernel was asked',
    )
    cameras = {path: entry['figures'] for path, entry in found['cameras.devices'].items()}
    equal({figures['driver'] for figures in cameras.values()}, {'vivid'}, 'drivers')
    formats = {entry['fourcc']: entry for entry in cameras[SINGLE]['formats']}
    assert '640x360' in formats['NV12']['sizes'], formats['NV12']
    assert formats['NV12']['rates']['640x360'], formats['NV12']
    assert 'NM12' in {entry['fourcc'] for entry in cameras[MULTI]['formats']}
    equal(set(bufinfo()) - before, set(), 'buffers that are left')
