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
The parts of the rig that need no boot.

Its verdicts on what a guest left, and what its programs say where something is missing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import shutil
from types import SimpleNamespace
from typing import Any

from environment.errors import SetupError
import pytest

from . import (
    cache,
    kernel_log,
    machine,
    module_build,
    packages,
    RigError,
    RigResult,
    RigUnavailable,
)
from . import rig as rig_module
from .graph import check_names, checks_of, DOCUMENT_KEYS, GraphRuns, result_of
from .guest.graph_variants import RUNS, VARIANTS
from .guest.harness import NOT_HERE
from .guest.verifier import FRAMES
from .run_rig_arm64 import result_of as arm64_result_of
from .run_rig_arm64 import SHARES, VERIFIED
from .test_rig_verify import CASES, INVARIANTS

# --- make rig
# --------------------------------------------------------------------------------------

WANTED = 60


def _good_verdict() -> dict[str, Any]:
    """``zc_verify``'s result where everything holds."""
    checks = {name: {'holds': True, 'measured': True, 'source': 'test'} for name in INVARIANTS}
    return {
        'exit': 0,
        'pass': True,
        'frames': 60,
        'checks': checks,
        **dict.fromkeys(DOCUMENT_KEYS, True),
        'pass_document': True,
        'detail': {
            'imports': 60,
            'fence_wait_lines': 20,
            'fence_waits_by_poll': 40,
            'exporters': ['system'],
        },
        'files': {'timeline': 'timeline.json'},
    }


def _good_run(name: str) -> dict[str, Any]:
    """Figures of a run in which everything holds."""
    variant = VARIANTS[name]
    inodes = [5, 6] if variant.buffers == 1 else [5, 6, 7, 8]
    return {
        'variant': name,
        'frames': 60,
        'processed': 60,
        'camera_fps': 30.0,
        'crc_equal': 60,
        'distinct_contents': 60,
        'boxes_equal': 60,
        'fences_good': 60,
        'failed': 0,
        'submitted_inodes': inodes,
        'pool_inodes': [*inodes, 9],
        'attached': {str(inode): ['0000:01:00.0'] for inode in inodes},
        'buffers': [variant.buffers],
        'strides': [list(variant.strides)],
        'rows': [list(variant.rows)],
        'exporters': ['system'],
        'traced_import_inodes': inodes,
        'traced_imports': len(inodes) if variant.cached else 64,
        'trial_imports': 0 if variant.cached else 4,
        'traced_submits': 60,
        'looks': 3,
        'cpu_mappings': [],
        'copies': {},
        'rung': 'in_process',
        'conversions': 0,
        'received_by_plain_subscriber': 60,
        'left_in_bufinfo': [],
        'left_on_device': {'imports': 0},
        'verify': _good_verdict(),
    }


BROKEN: dict[str, list[dict[str, Any]]] = {
    'frames': [{'frames': 59}],
    'layout': [{'strides': [[641, 641]]}],
    # A frame that was not compared, or one picture again and again, proves nothing.
    'content': [{'crc_equal': 59}, {'processed': 61}, {'distinct_contents': 1}],
    'results': [{'fences_good': 59}],
    'I1': [{'attached': {'5': ['0000:01:00.0'], '6': []}, 'traced_import_inodes': [5]}],
    'I2': [{'exporters': ['system', 'somebody']}],
    # With the cache: one buffer twice, a stranger, one buffer less, no frame.
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
    ('variant', 'name', 'fault'),
    [
        (variant, name, fault)
        for variant in VARIANTS
        for name in check_names(variant)
        for fault in BROKEN[name]
    ],
)
def test_each_check_can_fail(name: str, variant: str, fault: dict[str, Any]) -> None:
    assert not checks_of({**_good_run(variant), **fault}, WANTED)[name]['holds']


@pytest.mark.parametrize('variant', RUNS)
@pytest.mark.parametrize(
    'fault',
    [
        {'exit': 1},
        {'exit': 3},
        {'pass': None},
        {'frames': 59},
        {'frames': None},
        {'checks': {}},
        {'detail': {**_good_verdict()['detail'], 'fence_waits_by_poll': 39}},
        {'detail': {**_good_verdict()['detail'], 'exporters': []}},
        {'files': {}},
        *(
            {'checks': {**_good_verdict()['checks'], name: {'holds': True, 'measured': False}}}
            for name in INVARIANTS
        ),
        *(
            {'checks': {**_good_verdict()['checks'], name: {'holds': None, 'measured': True}}}
            for name in INVARIANTS
        ),
    ],
    ids=str,
)
def test_a_verdict_counts_only_if_all_was_measured_and_holds(
    fault: dict[str, Any], variant: str
) -> None:
    run = {**_good_run(variant), 'verify': {**_good_verdict(), **fault}}
    assert not checks_of(run, WANTED)['verify']['holds']


@pytest.mark.parametrize('variant', RUNS)
@pytest.mark.parametrize('key', [*DOCUMENT_KEYS, 'pass_document'])
def test_the_document_s_own_keys_count_in_the_document_s_run_alone(key: str, variant: str) -> None:
    run = {**_good_run(variant), 'verify': {**_good_verdict(), key: False}}
    assert checks_of(run, WANTED)['verify']['holds'] == (variant != 'document')


def _result(runs: dict[str, dict[str, Any]], rc: int = 0) -> dict[str, Any]:
    boot = RigResult(rc, '', '', '', '', Path('nowhere'), 12.34, 3.2)
    return result_of(GraphRuns(boot, runs), '6.12.0', dict.fromkeys(RUNS, WANTED))


@pytest.mark.parametrize('name', RUNS)
def test_a_run_that_is_missing_or_false_fails_the_whole(name: str) -> None:
    runs = {name: _good_run(name) for name in RUNS}
    assert not _result({other: run for other, run in runs.items() if other != name})['pass']
    assert not _result({**runs, name: {**runs[name], 'crc_equal': 59}})['pass']
    assert not _result({**runs, name: {**runs[name], 'verify': {}}})['pass']


def test_a_boot_that_failed_fails_the_whole() -> None:
    assert _result({name: _good_run(name) for name in RUNS})['pass']
    assert not _result({name: _good_run(name) for name in RUNS}, rc=126)['pass']


def test_the_result_names_which_run_says_what() -> None:
    runs = {name: _good_run(name) for name in RUNS}
    runs['document']['verify']['detail']['imports'] = 77
    runs['cached']['verify']['checks']['I3']['imports'] = 0
    result = _result(runs)
    assert result['of_run'] == {'checks': 'cached', 'document': 'document'} and set(
        result['checks']
    ) == set(INVARIANTS)
    assert (
        result['checks']['I3']['imports'],
        result['detail']['imports'],
        result['pass_document'],
    ) == (0, 77, True)
    assert all(result[key] is True for key in DOCUMENT_KEYS) and (
        result['kernel'],
        result['wall_s'],
    ) == ('6.12.0', 12.3)
    assert all(
        run['verify']['pass'] and 'verify' not in run['figures'] for run in result['runs'].values()
    )


# --- make rig-arm64
# --------------------------------------------------------------------------------


def _verdict(name: str, **changes: dict[str, bool]) -> dict[str, Any]:
    """Return what ``zc_verify`` must say about a case, except *changes* by check."""
    wrong = CASES[name]
    checks = {check: {'holds': check not in wrong, 'measured': True} for check in INVARIANTS}
    return {
        'checks': {**checks, **changes},
        'exit': int(bool(wrong)),
        'pass': not wrong,
        'frames': FRAMES,
        'problems': [],
    }


def _leave(out: Path, **changes: dict[str, Any]) -> dict[str, RigResult]:
    """Write what guests leave in which all is well, but for *changes* by part."""
    for name, share in SHARES.items():
        (out / name).mkdir(parents=True)
        for part in share.parts:
            outcome: dict[str, Any] = {'a check': ''}
            if part == 'verify':
                nothing_left = {'left_on_device': {'jobs': 0}, 'buffers': {}, 'instances': []}
                outcome = {
                    **{case: _verdict(case) for case in VERIFIED},
                    'afterwards': nothing_left,
                }
            (out / name / f'{part}.json').write_text(
                json.dumps({**outcome, **changes.get(part, {})}), encoding='utf-8'
            )
    return {name: RigResult(0, '', '', '', '', out, 1.0) for name in SHARES}


def test_all_well_is_a_pass(tmp_path: Path) -> None:
    found = arm64_result_of(_leave(tmp_path), tmp_path)
    assert found['pass'] and not found['failed'] and found['checks'] > len(VERIFIED)


@pytest.mark.parametrize(
    ('part', 'outcome'),
    [
        ('memory', {'a check': 'Traceback'}),
        ('verify', {'maps': _verdict('nothing')}),
        ('verify', {'nothing': _verdict('nothing', I2={'holds': False, 'measured': True})}),
        ('verify', {'nothing': _verdict('nothing', I2={'holds': True, 'measured': False})}),
        ('verify', {'nothing': {**_verdict('nothing'), 'frames': FRAMES - 1}}),
        ('verify', {'nothing': {**_verdict('nothing'), 'error': 'it did not run'}}),
        (
            'verify',
            {'afterwards': {'left_on_device': {'jobs': 1}, 'buffers': {}, 'instances': []}},
        ),
        (
            'verify',
            {
                'afterwards': {
                    'left_on_device': {'jobs': 0},
                    'buffers': {'5': 'udmabuf'},
                    'instances': [],
                }
            },
        ),
    ],
)
def test_one_failure_is_a_failure(part: str, outcome: dict[str, Any], tmp_path: Path) -> None:
    found = arm64_result_of(_leave(tmp_path, **{part: outcome}), tmp_path)
    assert not found['pass'] and len(found['failed']) == 1


def test_what_is_not_there_is_listed_and_neither_passed_nor_failed(tmp_path: Path) -> None:
    found = arm64_result_of(_leave(tmp_path, memory={'of a heap': f'{NOT_HERE}no heap'}), tmp_path)
    assert found['pass'] and found['not_here'] == {'memory: of a heap': 'no heap'}


def test_a_guest_that_did_not_get_there_is_a_failure(tmp_path: Path) -> None:
    results = _leave(tmp_path)
    (tmp_path / 'memory/memory.json').unlink()
    assert list(arm64_result_of(results, tmp_path)['failed']) == ['memory: memory']
    results['memory'] = RigResult(125, '', '', '', '', tmp_path, 1.0)
    assert not arm64_result_of(results, tmp_path)['pass']


def test_a_guest_that_was_not_started_is_listed_and_neither_passed_nor_failed(
    tmp_path: Path,
) -> None:
    results = _leave(tmp_path)
    found = arm64_result_of({'contract': results['contract']}, tmp_path)
    assert found['pass'] and set(found['by_part']) == set(SHARES['contract'].parts)
    assert found['not_run']['memory'] == '--only leaves it out' and not found['verify']


# --- the kernel's log
# ------------------------------------------------------------------------------


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
    assert kernel_log.complaints(f'[    1.0] fine\n{line}\n[    6.0] fine') != []


def test_backtraces_that_the_rig_asked_for_are_no_complaints() -> None:
    log = '[   60.0] sysrq: Show Blocked State\n[   60.1] Call Trace:'
    assert kernel_log.complaints(log) == []
    assert kernel_log.complaints(f'[    5.0] BUG: bad page state\n{log}') == [
        '[    5.0] BUG: bad page state'
    ]


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


# --- what is missing is named
# ----------------------------------------------------------------------


class Archive:
    """Stands in for the network: one kernel version, or none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.version: str | None = '6.12.1+deb12'
        self.asked = 0
        monkeypatch.setattr(packages, 'resolve_dependency', self._resolve)
        monkeypatch.setattr(packages, '_fetch', self._fetch)

    def _resolve(self, meta: str, prefix: str, architecture: str = '') -> str:
        self.asked += 1
        if self.version is None:
            raise SetupError(f'no network for {meta}')
        return f'{prefix}{self.version}-amd64'

    def _fetch(self, kernel: packages.Kernel) -> None:
        for file in (
            kernel.image,
            *(kernel.root / 'modules' / f'{name}.ko' for name in kernel.wanted_modules),
        ):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()

    def current(self, now: float) -> str:
        """Return the version that is used at the time `now`."""
        return packages.current(self.folder, now=now).version


def test_a_newer_kernel_is_looked_for_once_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(monkeypatch, tmp_path)
    day = 24 * 3600.0
    assert [archive.current(now) for now in (0.0, 10.0, day - 1)] == ['6.12.1+deb12'] * 3
    assert archive.asked == 1
    archive.version = '6.12.2+deb12'
    assert archive.current(day) == '6.12.2+deb12'
    archive.version = None
    assert [archive.current(now) for now in (2 * day, 2 * day + 1)] == ['6.12.2+deb12'] * 2
    assert archive.asked == 3
    assert sorted(path.name for path in (tmp_path / 'kernels').iterdir()) == [
        '6.12.1+deb12',
        '6.12.2+deb12',
    ]
    for number in (3, 4):
        archive.version = f'6.12.{number}+deb12'
        archive.current(number * day)
    assert len(list((tmp_path / 'kernels').iterdir())) == 2


def test_no_network_and_no_cache_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(monkeypatch, tmp_path)
    archive.version = None
    with pytest.raises(RigUnavailable, match=r'no network for linux-image-6\.12-amd64'):
        archive.current(0.0)


def test_a_kernel_that_there_is_not_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('ZC_RIG_KERNEL', 'rt')
    with pytest.raises(
        RigError, match=r"no kernel 'rt'; set ZC_RIG_KERNEL to one of amd64, rt-amd64"
    ):
        rig_module.Rig()


def test_a_cache_in_which_nothing_can_be_built_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RigUnavailable, match=r'has a space or a colon .* set XDG_CACHE_HOME'):
        cache.checked_folder(tmp_path / 'with space')


def test_a_missing_qemu_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, 'which', lambda name: None)
    with pytest.raises(
        RigUnavailable,
        match=r'qemu-system-x86_64 is not installed: apt-get install .* qemu-system-x86$',
    ):
        rig_module.Rig(cache_folder=tmp_path, install=False).prepare()


FAKE_APT = """#!/bin/sh
echo "$*" >> {log}
case "$1" in
    update) touch {log}.updated ;;
    install)
        [ -e {log}.updated ] || {{ echo "E: Unable to fetch some archives"; exit 100; }}
        printf '#!/bin/sh\\n' > {folder}/qemu-system-x86_64
        {chmod} +x {folder}/qemu-system-x86_64 ;;
esac
"""


def _machine_with_apt(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Make a PATH with nothing but the apt-get given; return the log of its calls."""
    log = folder / 'apt.log'
    (folder / 'bin').mkdir()
    apt = folder / 'bin/apt-get'
    apt.write_text(
        script.format(log=log, folder=folder / 'bin', chmod=shutil.which('chmod')),
        encoding='utf-8',
    )
    apt.chmod(0o755)
    (folder / 'bin/touch').symlink_to(str(shutil.which('touch')))
    monkeypatch.setenv('PATH', str(folder / 'bin'))
    monkeypatch.setattr(os, 'geteuid', lambda: 0)
    return log


def test_qemu_is_installed_where_the_rig_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _machine_with_apt(tmp_path, monkeypatch, FAKE_APT)
    monkeypatch.setenv('ZC_RIG', 'required')
    # What comes after QEMU is missing as well.
    monkeypatch.setattr(
        packages, 'current', lambda folder, flavour: pytest.fail('far enough', pytrace=False)
    )
    with pytest.raises(pytest.fail.Exception, match='far enough'):
        rig_module.Rig(cache_folder=tmp_path / 'cache').prepare()
    install = ' '.join(machine.INSTALL_QEMU[1:])
    assert log.read_text(encoding='utf-8').splitlines() == [install, 'update', install]


def test_nothing_is_installed_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _machine_with_apt(tmp_path, monkeypatch, FAKE_APT)
    monkeypatch.delenv('ZC_RIG', raising=False)
    with pytest.raises(RigUnavailable, match='qemu-system-x86_64 is not installed'):
        rig_module.Rig(cache_folder=tmp_path / 'cache').prepare()
    assert not log.exists()


def test_an_installation_that_fails_shows_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _machine_with_apt(
        tmp_path, monkeypatch, '#!/bin/sh\necho "E: Unable to locate package"; exit 100\n'
    )
    with pytest.raises(
        RigUnavailable, match=r'(?s)qemu-system-x86 failed:\n.*E: Unable to locate package'
    ):
        rig_module.Rig(cache_folder=tmp_path / 'cache', install=True).prepare()


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'boot').mkdir()
    config = tmp_path / 'boot/config-6.12.1+deb12-amd64'
    config.write_text(
        'CONFIG_CC_VERSION_TEXT="x86_64-linux-gnu-gcc-12 (Debian 12.2.0)"\n', encoding='utf-8'
    )
    monkeypatch.setattr(shutil, 'which', lambda name, path=None: None)
    with pytest.raises(RigUnavailable, match='gcc-12 and make: apt-get install gcc-12 make'):
        module_build.build(packages.Kernel('6.12.1+deb12', tmp_path), tmp_path)
