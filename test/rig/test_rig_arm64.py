"""What of the arm64 rig can be tested without booting anything: what it judges, and how packages of another architecture are asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from environment import debian_packages

from . import RigResult, machine, module_build
from .guest.harness import NOT_HERE
from .run_rig_arm64 import SHARES, VERIFIED, checks_of, expected_of, result_of, verdict_of
from .test_rig_verify import CASES


def _verdict(name: str, **changes: bool) -> dict[str, Any]:
    """What ``zc_verify`` says of a case, right but for *changes*."""
    said = {**expected_of(name), **changes}
    return {'checks': {check: {'holds': holds, 'measured': True} for check, holds in said.items()}, 'frames': 6, 'problems': []}


def test_each_invariant_is_false_somewhere_and_the_honest_graph_is_true() -> None:
    assert set().union(*(CASES[name] for name in VERIFIED)) == {'I1', 'I2', 'I3', 'I4'}
    assert all(expected_of('nothing').values())


@pytest.mark.parametrize('name', VERIFIED)
def test_a_verdict_must_be_the_expected_one(name: str) -> None:
    assert verdict_of(name, _verdict(name)) == ''
    for check, holds in expected_of(name).items():
        assert 'expected' in verdict_of(name, _verdict(name, **{check: not holds}))
    unmeasured = _verdict(name)
    unmeasured['checks']['I2']['measured'] = False
    assert "not measured: ['I2']" in verdict_of(name, unmeasured)
    assert '5 frames' in verdict_of(name, {**_verdict(name), 'frames': 5})
    assert verdict_of(name, {'error': 'it did not run'}) == 'it did not run'


def _leave(out: Path, **changes: dict[str, Any]) -> dict[str, RigResult]:
    """Write what guests leave in which all is well, but for *changes* by part."""
    for name, share in SHARES.items():
        (out / name).mkdir(parents=True)
        for part in share.parts:
            outcome: dict[str, Any] = {'a check': ''}
            if part == 'verify':
                nothing_left = {'left_on_device': {'jobs': 0}, 'buffers': {}, 'instances': []}
                outcome = {**{case: _verdict(case) for case in VERIFIED}, 'afterwards': nothing_left}
            (out / name / f'{part}.json').write_text(json.dumps({**outcome, **changes.get(part, {})}), encoding='utf-8')
    return {name: RigResult(0, '', '', '', '', out, 1.0) for name in SHARES}


def test_all_well_is_a_pass(tmp_path: Path) -> None:
    found = result_of(_leave(tmp_path), tmp_path)
    assert found['pass'] and not found['failed'] and found['checks'] == len(VERIFIED) + 1 + sum(len(s.parts) for s in SHARES.values()) - 1


@pytest.mark.parametrize(
    ('part', 'outcome'),
    [
        ('memory', {'a check': 'Traceback'}),
        ('verify', {'maps': _verdict('nothing')}),
        ('verify', {'afterwards': {'left_on_device': {'jobs': 1}, 'buffers': {}, 'instances': []}}),
        ('verify', {'afterwards': {'left_on_device': {'jobs': 0}, 'buffers': {'5': 'udmabuf'}, 'instances': []}}),
    ],
)
def test_one_failure_is_a_failure(part: str, outcome: dict[str, Any], tmp_path: Path) -> None:
    found = result_of(_leave(tmp_path, **{part: outcome}), tmp_path)
    assert not found['pass'] and len(found['failed']) == 1


def test_what_is_not_there_is_listed_and_neither_passed_nor_failed(tmp_path: Path) -> None:
    found = result_of(_leave(tmp_path, memory={'of a heap': f'{NOT_HERE}no heap'}), tmp_path)
    assert found['pass'] and found['not_here'] == {'memory: of a heap': 'no heap'}


def test_a_guest_that_did_not_get_there_is_a_failure(tmp_path: Path) -> None:
    results = _leave(tmp_path)
    (tmp_path / 'memory/memory.json').unlink()
    assert list(result_of(results, tmp_path)['failed']) == ['memory: memory']
    results['memory'] = RigResult(125, '', '', '', '', tmp_path, 1.0)
    assert not result_of(results, tmp_path)['pass']
    assert all('did not get to it' in text for text in checks_of('verify', tmp_path / 'nowhere').values())


def test_a_complaint_of_the_kernel_is_a_failure(tmp_path: Path) -> None:
    results = _leave(tmp_path)
    results['memory'] = RigResult(126, '', '', '', '', tmp_path, 1.0, complaints=['BUG'])
    assert not result_of(results, tmp_path)['pass']


def test_shares_are_mounted_under_their_own_path(tmp_path: Path) -> None:
    folder = tmp_path / "it's one, two"
    boot = machine.Boot(
        image=Path('i'), initramfs=Path('r'), setup='', command='', out_dir=tmp_path, timeout=1, root=tmp_path / 'root', shares=[folder],
        machine=machine.arm64(Path('qemu'), {}),
    )  # fmt: skip
    words = machine.command_line('qemu', boot)
    shares = [word for word in words if word.startswith('local,')]
    assert [word.split('mount_tag=')[1].split(',')[0] for word in shares] == ['host', 'out', 'share0']
    assert f"path={tmp_path}/it's one,, two," in shares[2] and 'readonly=on' in shares[2]
    assert f"path={tmp_path}/root," in shares[0]
    assert 'virt,iommu=smmuv3' in ' '.join(words) and 'intel' not in ' '.join(words)
    assert f"""share0 "$root"'{tmp_path}/it'"'"'s one, two' """ in machine._mounts(boot)


def test_the_module_is_built_by_the_compiler_of_its_architecture(tmp_path: Path) -> None:
    cross = module_build.CrossCompiler('aarch64-linux-gnu-', 'arm64', {'PATH': str(tmp_path)})
    assert cross.options('gcc-12') == ['ARCH=arm64', 'CROSS_COMPILE=aarch64-linux-gnu-', 'CC=aarch64-linux-gnu-gcc-12']


def test_packages_of_another_architecture_come_by_lists_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An apt that has no lists of it before its own update, and downloads two packages."""
    calls = tmp_path / 'calls'
    apt = tmp_path / 'bin/apt-get'
    apt.parent.mkdir()
    apt.write_text(
        '#!/bin/sh\n'
        f'echo "$*" >> "{calls}"\n'
        f'case "$*" in *update*) : > "{tmp_path}/updated";;\n'
        f'*) [ -e "{tmp_path}/updated" ] || {{ echo "E: Unable to locate package" >&2; exit 100; }}\n'
        f': > "{tmp_path}/into/archives/python_1_arm64.deb"; : > "{tmp_path}/into/archives/libc_1_arm64.deb";; esac\n',
        encoding='utf-8',
    )
    apt.chmod(0o755)
    monkeypatch.setenv('PATH', f'{apt.parent}:/usr/bin:/bin')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    found = debian_packages.fetch_with_dependencies(['python'], tmp_path / 'into', 'arm64')
    assert [path.name for path in found] == ['libc_1_arm64.deb', 'python_1_arm64.deb']
    lines = calls.read_text(encoding='utf-8').splitlines()
    assert len(lines) == 3 and all('APT::Architecture=arm64' in line and 'nothing_installed' in line for line in lines)
