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

"""The parts of the rig that need no boot: its verdicts, and its errors for missing parts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from . import machine
from . import rig as rig_module
from .arm64 import result_of as arm64_result_of
from .arm64 import SHARES, VERIFIED
from .graph import check_names, checks_of, DOCUMENT_KEYS, GraphRuns, result_of
from .guest.graph_variants import RUNS, VARIANTS
from .guest.harness import NOT_HERE
from .guest.verifier import FRAMES
from .machine import RigResult
from .verdicts import CASES, INVARIANTS

WANTED = 60


def _good_verdict() -> dict[str, Any]:
    return {
        'exit': 0, 'pass': True, 'frames': 60, 'files': {'timeline': 'timeline.json'},
        'checks': {name: {'holds': True, 'measured': True} for name in INVARIANTS},
        **dict.fromkeys(DOCUMENT_KEYS, True), 'pass_document': True,
        'detail': {'fence_wait_lines': 20, 'fence_waits_by_poll': 40, 'exporters': ['system']},
    }  # fmt: skip


def _good_run(name: str) -> dict[str, Any]:
    variant = VARIANTS[name]
    inodes = [5, 6] if variant.buffers == 1 else [5, 6, 7, 8]
    return {
        'variant': name, 'camera_fps': 30.0, 'frames': 60, 'processed': 60, 'crc_equal': 60,
        'distinct_contents': 60, 'boxes_equal': 60, 'fences_good': 60, 'failed': 0,
        'buffers': [variant.buffers], 'strides': [list(variant.strides)],
        'rows': [list(variant.rows)], 'exporters': ['system'],
        'submitted_inodes': inodes, 'pool_inodes': [*inodes, 9], 'traced_import_inodes': inodes,
        'attached': {str(inode): ['0000:01:00.0'] for inode in inodes},
        'traced_imports': len(inodes) if variant.cached else 64,
        'trial_imports': 0 if variant.cached else 4, 'traced_submits': 60,
        'looks': 3, 'cpu_mappings': [], 'copies': {}, 'rung': 'in_process', 'conversions': 0,
        'received_by_plain_subscriber': 60, 'left_in_bufinfo': [],
        'left_on_device': {'imports': 0}, 'verify': _good_verdict(),
    }  # fmt: skip


BROKEN: dict[str, list[dict[str, Any]]] = {
    'frames': [{'frames': 59}],
    'layout': [{'strides': [[641, 641]]}],
    # A frame that was not compared, or one picture repeated, proves nothing.
    'content': [{'crc_equal': 59}, {'processed': 61}, {'distinct_contents': 1}],
    'results': [{'fences_good': 59}],
    'I1': [{'attached': {'5': ['0000:01:00.0'], '6': []}, 'traced_import_inodes': [5]}],
    'I2': [{'exporters': ['system', 'somebody']}],
    # With the cache: one buffer twice, a foreign buffer, a buffer too few, no frame.
    'I3': [
        {'traced_imports': 3},
        {'traced_imports': 3, 'traced_import_inodes': [5, 6, 77]},
        {'traced_imports': 1, 'traced_import_inodes': [5]},
        {'submitted_inodes': []},
    ],
    'I4': [
        {'cpu_mappings': ['12: 7f00-7f01 rw-s 0 00:0c 5 /dmabuf:']},
        {'looks': 0},
        {'copies': {'tensor': 60}},
    ],
    'link': [{'conversions': 1}],
    'subscriber': [{'received_by_plain_subscriber': 10}],
    'nothing_left': [{'left_in_bufinfo': [5]}],
    'verify': [{'verify': {}}],
}
#: A buffer of the pool that is imported and never carries a frame is no fault.
SPARE = {'traced_imports': 3, 'traced_import_inodes': [5, 6, 9]}


@pytest.mark.parametrize(
    ('variant', 'changes'), [*((variant, {}) for variant in VARIANTS), ('cached', SPARE)]
)
def test_a_good_run_passes(variant: str, changes: dict[str, Any]) -> None:
    checks = checks_of({**_good_run(variant), **changes}, WANTED)
    assert list(checks) == check_names(variant) and all(
        check['holds'] for check in checks.values()
    )


@pytest.mark.parametrize(
    ('name', 'fault'), [(name, fault) for name, faults in BROKEN.items() for fault in faults]
)
def test_each_check_can_fail(name: str, fault: dict[str, Any]) -> None:
    assert not checks_of({**_good_run('cached'), **fault}, WANTED)[name]['holds']


@pytest.mark.parametrize(
    'fault',
    [
        {'exit': 1},
        {'pass': None},
        {'frames': 59},
        {'checks': {}},
        {'detail': {**_good_verdict()['detail'], 'fence_waits_by_poll': 39}},
        {'detail': {**_good_verdict()['detail'], 'exporters': []}},
        {'files': {}},
        {'checks': {**_good_verdict()['checks'], 'I4': {'holds': None, 'measured': True}}},
    ],
    ids=str,
)
def test_a_verdict_counts_only_if_all_was_measured_and_holds(fault: dict[str, Any]) -> None:
    run = {**_good_run('cached'), 'verify': {**_good_verdict(), **fault}}
    assert not checks_of(run, WANTED)['verify']['holds']


@pytest.mark.parametrize('variant', RUNS)
@pytest.mark.parametrize('key', [*DOCUMENT_KEYS, 'pass_document'])
def test_the_document_s_own_keys_count_in_the_document_s_run_alone(key: str, variant: str) -> None:
    run = {**_good_run(variant), 'verify': {**_good_verdict(), key: False}}
    assert checks_of(run, WANTED)['verify']['holds'] == (variant != 'document')


@pytest.mark.parametrize(
    ('broken', 'rc', 'holds'),
    [
        ({}, 0, True),
        ({'crc_equal': 59}, 0, False),
        ({'verify': {}}, 0, False),
        (None, 0, False),
        ({}, 126, False),
    ],
)
def test_a_run_that_is_missing_or_false_and_a_boot_that_failed_fail_the_whole(
    broken: dict[str, Any] | None, rc: int, holds: bool
) -> None:
    runs = {name: _good_run(name) for name in RUNS if broken is not None or name != 'cached'}
    if broken:
        runs['cached'] |= broken
    boot = RigResult(rc, '', '', '', '', Path('nowhere'), 12.34, 3.2)
    found = result_of(GraphRuns(boot, runs), '6.12.0', dict.fromkeys(RUNS, WANTED))
    assert found['pass'] is holds


def _verdict(name: str, **changes: dict[str, bool]) -> dict[str, Any]:
    """Return the verdict that ``zc_verify`` must give on a case, except *changes* by check."""
    wrong = CASES[name]
    checks = {check: {'holds': check not in wrong, 'measured': True} for check in INVARIANTS}
    ended = {'exit': int(bool(wrong)), 'pass': not wrong, 'frames': FRAMES, 'problems': []}
    return {'checks': {**checks, **changes}, **ended}


def _leave(out: Path, **changes: dict[str, Any]) -> dict[str, RigResult]:
    """Write the results of guests without any fault, except *changes* by part."""
    for name, parts in SHARES.items():
        (out / name).mkdir(parents=True)
        for part in parts:
            nothing_left = {'left_on_device': {'jobs': 0}, 'buffers': {}, 'instances': []}
            outcome: dict[str, Any] = {'a check': ''}
            if part == 'verify':
                outcome = {case: _verdict(case) for case in VERIFIED} | {
                    'afterwards': nothing_left
                }
            (out / name / f'{part}.json').write_text(
                json.dumps({**outcome, **changes.get(part, {})}), encoding='utf-8'
            )
    return {name: RigResult(0, '', '', '', '', out, 1.0) for name in SHARES}


@pytest.mark.parametrize(
    ('part', 'outcome'),
    [
        ('memory', {'a check': 'Traceback'}),
        ('verify', {'maps': _verdict('nothing')}),
        ('verify', {'nothing': _verdict('nothing', I2={'holds': True, 'measured': False})}),
        ('verify', {'nothing': {**_verdict('nothing'), 'error': 'it did not run'}}),
        ('verify', {'afterwards': {'left_on_device': {}, 'buffers': {'5': ''}, 'instances': []}}),
    ],
)
def test_one_failure_is_a_failure(part: str, outcome: dict[str, Any], tmp_path: Path) -> None:
    found = arm64_result_of(_leave(tmp_path, **{part: outcome}), tmp_path)
    assert not found['pass'] and len(found['failed']) == 1


def test_what_is_not_there_neither_passes_nor_fails_and_a_dead_guest_fails(tmp_path: Path) -> None:
    results = _leave(tmp_path, memory={'of a heap': f'{NOT_HERE}no heap'})
    found = arm64_result_of(results, tmp_path)
    assert found['pass'] and found['not_here'] == {'memory: of a heap': 'no heap'}
    assert not found['failed'] and found['checks'] > len(VERIFIED)
    (tmp_path / 'memory/memory.json').unlink()
    assert list(arm64_result_of(results, tmp_path)['failed']) == ['memory: memory']
    results['memory'] = RigResult(125, '', '', '', '', tmp_path, 1.0)
    assert not arm64_result_of(results, tmp_path)['pass']


@pytest.mark.parametrize(
    'line',
    [
        '[    5.1] WARNING: CPU: 1 PID: 99 at lib/refcount.c:28 refcount_warn_saturate+0xba/0x110',
        '[    5.1] refcount_t: underflow; use-after-free.',
        '[    5.1] BUG: KFENCE: use-after-free read in axl_release+0x12/0x40 [metis_virtual]',
        '[    5.1] Oops: 0000 [#1] PREEMPT SMP NOPTI',
        '[  130.1] INFO: task python3:123 blocked for more than 120 seconds.',
        '[   30.1] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:',
        '[    5.1] DMAR: [DMA Read NO_PASID] Request device [01:00.0] fault addr 0xffe00000',
        '[    5.1] Fence axl:metis-0:1:2 released with pending signals!\n[    5.1] Call Trace:',
    ],
)
def test_complaints_are_found(line: str) -> None:
    assert machine.complaints(f'[    1.0] fine\n{line}\n[    6.0] fine') != []


@pytest.mark.parametrize(
    ('consoles', 'boots', 'rc'),
    [
        (['Oops: int3: 0000 [#1] PREEMPT SMP', ''], 2, 0),
        (['Oops: int3: 0000 [#1]', 'Oops: int3: 0000 [#1]'], 2, machine.RC_NOT_FINISHED),
        (['Oops: general protection fault', ''], 1, machine.RC_NOT_FINISHED),
    ],
)
def test_only_what_emulation_breaks_is_booted_again_and_only_once(
    consoles: list[str], boots: int, rc: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[machine.Boot] = []

    def boot(given: machine.Boot) -> machine.RigResult:
        seen.append(given)
        console = consoles[len(seen) - 1]
        return machine.RigResult(
            machine.RC_NOT_FINISHED if console else 0, '', '', '', console, tmp_path, 1.0
        )

    kernel = SimpleNamespace(image=tmp_path, busybox=tmp_path)
    monkeypatch.setattr(rig_module.Rig, '_prepared', lambda self: (kernel, tmp_path, tmp_path))
    monkeypatch.setattr(machine, 'run', boot)
    assert rig_module.Rig().run(['true'], timeout=1, out_dir=tmp_path).rc == rc
    assert len(seen) == boots
