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
import errno
import io
import json
import os
from pathlib import Path
import sys
from typing import Any

from npu.json_schema import conforms

from zc_perception.doctor import zc_doctor
from zc_perception.doctor.zc_doctor import main

from .graph_variants import MULTI, SINGLE
from .harness import check, equal
from .kernel_api import bufinfo

#: Groups of checks that depend on the guest's kernel.
GROUPS = ('kernel', 'memory', 'buffers', 'cameras', 'metis')
_NOBODY = 65534
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


def _examined() -> tuple[int, list[dict[str, Any]]]:
    path, text = Path(os.environ['RIG_OUT']) / 'vehicle.yaml', io.StringIO()
    path.write_text(_VEHICLE, encoding='utf-8')
    with contextlib.redirect_stdout(text):
        code = main(['--json', '--params-file', str(path), '--only', *GROUPS])
    document = json.loads(text.getvalue())
    assert conforms(document, _SCHEMA), 'the report is not what its schema says'
    return code, document['checks']


def _statuses(checks: list[dict[str, Any]], name: str) -> dict[str, str]:
    return {entry['subject']: entry['status'] for entry in checks if entry['id'] == name}


def _of(checks: list[dict[str, Any]], name: str, subject: str) -> dict[str, Any]:
    (found,) = [entry for entry in checks if entry['id'] == name and entry['subject'] == subject]
    return found


def _examined_by_nobody(*groups: str) -> tuple[int, list[dict[str, Any]]]:
    """Examine as a user who may open nothing; so there is no parameter file."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        os.dup2(writing, sys.stdout.fileno())
        os._exit(main(['--json', '--only', *groups]))
    os.close(writing)
    with open(reading, encoding='utf-8') as report:
        checks = json.load(report)['checks']
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), checks


@check
def the_doctor_finds_heaps_cards_and_cameras_in_order() -> None:
    before = set(bufinfo())
    code, checks = _examined()
    failed = [entry for entry in checks if entry['status'] == 'fail']
    equal((code, failed), (0, []), 'what fails')
    heaps = {f'dma_heap/{name}' for name in os.listdir('/dev/dma_heap')} | (
        {'udmabuf'} if os.path.exists('/dev/udmabuf') else set()
    )
    equal(_statuses(checks, 'memory.heaps'), dict.fromkeys(heaps, 'ok'), 'heaps')
    equal(_statuses(checks, 'buffers.cpu'), dict.fromkeys(heaps | {'memfd'}, 'ok'), 'buffers')
    equal(_statuses(checks, 'buffers.fences'), dict.fromkeys(heaps, 'ok'), 'fences')
    (card,) = _statuses(checks, 'metis.access')
    equal(
        _statuses(checks, 'buffers.import'),
        dict.fromkeys((f'{heap} -> {card}' for heap in heaps), 'ok'),
        'imports',
    )
    for name in (
        'kernel.release',
        'kernel.sync_file_ioctls',
        'metis.cards',
        'metis.access',
        'metis.driver',
        'metis.ioctls',
        'metis.iommu',
    ):
        equal(set(_statuses(checks, name).values()), {'ok'}, name)
    equal(_of(checks, 'metis.ioctls', card)['figures']['level'], 2, 'the level of the ioctls')
    equal(
        _of(checks, 'kernel.sync_file_ioctls', '')['figures'],
        {'supported': True, 'asked': True},
        'the kernel was asked',
    )
    equal(
        _statuses(checks, 'cameras.devices'),
        {f'/dev/video{number}': 'ok' for number in range(4)},
        'cameras',
    )
    equal(
        _statuses(checks, 'cameras.configured'),
        {'/capture': 'ok'},
        'the camera of the parameter file, and that it takes our buffers',
    )
    equal(
        {
            entry['driver']
            for e in checks
            if e['id'] == 'cameras.devices'
            for entry in [e['figures']]
        },
        {'vivid'},
        'drivers',
    )
    formats = {
        entry['fourcc']: entry
        for entry in _of(checks, 'cameras.devices', SINGLE)['figures']['formats']
    }
    assert '640x360' in formats['NV12']['sizes'] and formats['NV12']['rates']['640x360'], formats[
        'NV12'
    ]
    assert 'NM12' in {
        entry['fourcc'] for entry in _of(checks, 'cameras.devices', MULTI)['figures']['formats']
    }
    equal(set(bufinfo()) - before, set(), 'buffers that are left')


@check
def the_doctor_says_what_another_user_may_not_open() -> None:
    code, checks = _examined_by_nobody('memory', 'cameras', 'metis', 'buffers')
    equal(code, 0, 'nothing is required')
    heaps = {
        entry['subject']: entry
        for entry in checks
        if entry['id'] == 'memory.heaps' and entry['subject']
    }
    assert {'dma_heap/system', 'udmabuf'} <= set(heaps), heaps
    for name, entry in heaps.items():
        equal((entry['status'], entry['figures']['errno']), ('warn', errno.EACCES), name)
        assert (
            'may not open ' in entry['found']
            and 'mode 0600' in entry['found']
            and 'udevadm' in entry['advice']
        ), entry
    equal(_of(checks, 'memory.heaps', '')['status'], 'warn', 'no heap that this user can use')
    equal(
        {entry['figures']['errno'] for entry in checks if entry['id'] == 'cameras.devices'},
        {errno.EACCES},
        'cameras',
    )
    equal(
        set(_statuses(checks, 'metis.access').values()),
        {'ok'},
        'the virtual card is open to everybody',
    )
    equal(
        set(_statuses(checks, 'buffers.import').values()),
        {'warn'},
        'without buffers there is nothing to import',
    )
    equal(_of(checks, 'buffers.cpu', 'memfd')['status'], 'ok', 'a memfd is for everybody')
