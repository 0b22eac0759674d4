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
The rig on arm64, on a machine of another architecture: an emulated board with an SMMU.

The guest runs Debian's arm64 kernel and Python from a root of its own in the cache: packages of
Debian, and the wheels that checks need. The repository is shared under its own path. QEMU and the
cross compiler come from Debian's packages where they are not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
import compileall
from functools import partial
import hashlib
import importlib.metadata
import json
import os
from pathlib import Path
import shutil
import sys
from typing import Any
from unittest import mock
import zipfile

from environment.debian_packages import fetch, fetch_with_dependencies, unpack
from environment.errors import SetupError
from environment.paths import ROOT, scratch_folder

from . import build, machine, packages, RigError, RigUnavailable
from .graph import GUEST
from .guest.graph_variants import MEMORY_MIB, VIVID
from .guest.harness import NOT_HERE
from .guest.link_kit import build_consumer
from .guest.verifier import AFTERWARDS
from .machine import RigResult
from .rig import Rig
from .verdicts import wrong_verdict

ARCHITECTURE = 'arm64'
PYTHON = '/usr/bin/python3.11'
_TRIPLET = 'aarch64-linux-gnu'
COMPILER = f'{_TRIPLET}-gcc-12'
#: Programs of this machine: the emulator, and the compiler for module and C programs.
_TOOLS = ('qemu-system-arm', f'gcc-12-{_TRIPLET}', 'libc6-dev-arm64-cross')
#: The guest's own programs and libraries.
_USERLAND = ('python3.11', 'dash', 'coreutils', 'libstdc++6')
#: Headers for compiling the package's compiled steps.
_HEADERS = ('libpython3.11-dev',)
#: The same sources as in setup.py.
_STEPS = ('zc_perception/native/*.c', 'client/src/transport.c', 'client/src/wire.c')
#: In the versions of this environment.
_WHEELS = (
    'numpy', 'opencv-python-headless', 'PyYAML', 'pytest', 'pytest-timeout', 'pluggy', 'iniconfig',
    'packaging', 'hypothesis', 'sortedcontainers',
)  # fmt: skip
_PLATFORMS = [f'manylinux{version}_aarch64' for version in ('2014', '_2_17', '_2_27', '_2_28')]
#: Version of the root's format; part of the root's key.
_FORMAT = 1
_TIMEOUT_S = 1800.0


class Tools:
    def __init__(self, root: Path) -> None:
        self.root = root
        libraries = [str(root / part / 'x86_64-linux-gnu') for part in ('usr/lib', 'lib')]
        known = os.environ.get('LD_LIBRARY_PATH')
        self.environment = {
            'PATH': f'{os.environ.get("PATH", "")}:{root / "usr/bin"}',
            'LD_LIBRARY_PATH': ':'.join([known, *libraries] if known else libraries),
        }
        self.cross = build.CrossCompiler(f'{_TRIPLET}-', ARCHITECTURE, self.environment)

    @property
    def qemu(self) -> Path:
        path = shutil.which('qemu-system-aarch64', path=self.environment['PATH'])
        if path is None:
            raise RigError(
                f'no qemu-system-aarch64 below {self.root}; delete that folder to fetch it again'
            )
        return Path(path)


class Arm64Rig(Rig):
    """A rig whose guest has a root of its own, see :class:`Rig`; it never installs anything."""

    def __init__(self) -> None:
        """Choose the cache; nothing is read or fetched before `prepare`."""
        super().__init__(folder=ARCHITECTURE, install=False)
        self.tools: Tools | None = None
        self._root: Path | None = None

    def _made(self, folder: Path) -> tuple[packages.Kernel, Path, Path]:
        try:
            self.tools = Tools(
                _kept(folder / 'tools', partial(_unpack_into, names=_TOOLS), _TOOLS)
            )
            self._root = _guest_root(folder)
        except SetupError as error:
            raise RigUnavailable(
                f'the packages for arm64 are not cached and cannot be fetched: {error}'
            ) from error
        kernel = packages.current(folder, packages.ARM64)
        module = build.module(kernel, folder, cross=self.tools.cross)
        return kernel, module, build.initramfs(kernel, folder)

    @property
    def folder(self) -> Path:
        return self._cache_folder.resolve()

    def compile_steps(self) -> Path:
        assert self.tools is not None
        unpack_headers = partial(
            _unpack_into, names=_HEADERS, architecture=ARCHITECTURE, get=fetch
        )
        headers = _kept(self.folder / 'headers', unpack_headers, _HEADERS) / 'usr/include'
        target = ROOT / f'zc_perception/native/compiled.cpython-311-{_TRIPLET}.so'
        sources = sorted(str(path) for pattern in _STEPS for path in ROOT.glob(pattern))
        includes = (headers / 'python3.11', headers, ROOT / 'client/include', ROOT / 'client/src')
        # Leave out the C library: the guest's Python has loaded its own, and the compiler's copy
        # is not where its linker script expects it.
        command = [
            COMPILER, '-shared', '-nostdlib', '-fPIC', '-O3', '-ffp-contract=off',
            '-fvisibility=hidden', '-Wall', '-Wextra', '-Werror', '-Wno-cast-function-type',
            *(f'-I{path}' for path in includes), *sources, '-o', str(target),
        ]  # fmt: skip
        done = packages.ran(command, env={**os.environ, **self.tools.environment})
        if done.returncode:
            raise RigError(f'the compiled steps cannot be compiled for arm64:\n{done.stdout}')
        return target

    def _place(self) -> dict[str, Any]:
        assert self.tools is not None and self._root is not None
        board = machine.arm64(self.tools.qemu, self.tools.environment)
        return {'machine': board, 'root': self._root, 'shares': (ROOT, self.folder)}


def _kept(folder: Path, fill: Callable[[Path], None], *key: object) -> Path:
    """Return the folder for *key* in *folder*; if it is not there, let *fill* make it."""
    root = folder / hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    if not root.is_dir():
        with packages.appearing(root) as scratch:
            fill(scratch)
        packages.keep_newest(folder.iterdir(), 2)
    return root


def _unpack_into(
    scratch: Path,
    names: Sequence[str],
    architecture: str = '',
    get: Callable[..., Iterable[Path]] = fetch_with_dependencies,
) -> None:
    downloads = scratch / 'downloads'
    for package in get(names, downloads, architecture):
        unpack(package, scratch)
    shutil.rmtree(downloads)


def _guest_root(folder: Path) -> Path:
    """Return the guest's Debian Python and wheels; another list makes another root."""
    wheels = [f'{name}=={importlib.metadata.version(name)}' for name in _WHEELS]

    def fill(scratch: Path) -> None:
        _unpack_into(scratch, _USERLAND, ARCHITECTURE)
        for name in ('tmp', 'proc', 'sys', 'dev', 'run'):
            (scratch / name).mkdir(exist_ok=True)
        (scratch / 'tmp').chmod(0o1777)
        if not (scratch / 'bin/sh').exists():
            (scratch / 'bin/sh').symlink_to('dash')
        _install_wheels(wheels, scratch / 'usr/local/lib/python3.11/dist-packages')
        compile_for_guest(scratch / 'usr')

    return _kept(folder / 'roots', fill, _FORMAT, _USERLAND, wheels)


def _install_wheels(wheels: Sequence[str], target: Path) -> None:
    """Unpack the wheels: they are archives of files in ``dist-packages``."""
    target.mkdir(parents=True)
    command = [
        *(sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps', '--only-binary=:all:'),
        *('--python-version=3.11', '--implementation=cp'),
        *(f'--platform={platform}' for platform in _PLATFORMS),
    ]
    with scratch_folder(target.parent) as scratch:
        command += ['--dest', str(scratch), *wheels]
        result = packages.ran(command)
        if result.returncode:
            raise RigUnavailable(
                f'the wheels for aarch64 cannot be fetched:\n{result.stdout[-2000:]}'
            )
        for wheel in scratch.glob('*.whl'):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(target)


def compile_for_guest(*folders: Path) -> None:
    """Compile to byte code, as the guest can't keep it; useless for another Python version."""
    if sys.version_info[:2] == (3, 11):
        for folder in folders:
            compileall.compile_dir(folder, quiet=2)


#: By guest, its parts of ``arm64_checks.py``. Each guest waits for a third of its time, so three
#: run; the longest comes first.
SHARES = {
    'cameras': ('verify', 'camera'),
    'memory': ('memory', 'decode'),
    'contract': ('contract', 'native'),
}
#: The cases for ``zc_verify`` there, and which checks it must find false.
VERIFIED = (
    'nothing', 'maps', 'copies_with_numpy', 'submits_an_old_decoy', 'imports_twice',
    'imports_decoys_alone', 'known_exporter', 'unknown_exporter',
)  # fmt: skip
#: Parts that the rig runs on amd64 but not here, with the reason.
NOT_RUN = {
    'the node graph, its faults, parameters, doctor and launch files': (
        'rclpy has no wheels for aarch64'
    ),
    'zc_verify on nodes in two processes': (
        'the nodes need rclpy; the part "memory" has the shared-memory link between processes'
    ),
    'GStreamer cameras': 'GStreamer is not among the packages of the guest',
    'the dma-heaps system and linux,cma': (
        "Debian's arm64 kernel has no CONFIG_DMABUF_HEAPS; what works with any heap takes udmabuf"
    ),
    'weak ordering of memory': (
        "QEMU translates for this machine's processor, whose order is "
        'strong: a missing barrier cannot show'
    ),
}


def checks_of(part: str, file: Path) -> dict[str, str]:
    """Return the outcome of each check: a traceback, why it can't run there, or empty."""
    if not file.is_file():
        return {part: 'the guest did not get to it'}
    outcome: dict[str, Any] = json.loads(file.read_text(encoding='utf-8'))
    if part != 'verify':
        return outcome
    missing = outcome.get('sabotaged', {'error': 'the guest did not get to it'})
    found = {name: outcome.get(name, missing) for name in (*VERIFIED, AFTERWARDS)}
    end = found[AFTERWARDS]
    left = {what: end.get(what) for what in ('buffers', 'instances')}
    left |= end.get('left_on_device', {})
    wrong = {name: wrong_verdict(name, found[name]) for name in VERIFIED}
    wrong[AFTERWARDS] = f'left behind: {left}' if any(left.values()) else ''
    return {f'zc_verify: {name}': found[name].get('error') or wrong[name] for name in found}


def consumer(rig: Arm64Rig) -> Path:
    """Return the wire protocol's C consumer, compiled for the guest; it needs no libraries."""
    assert rig.tools is not None
    folder = rig.folder / 'consumer'
    folder.mkdir(exist_ok=True)
    with mock.patch.dict(os.environ, {**rig.tools.environment, 'CC': COMPILER}):
        return build_consumer(folder, ['-static'])


def boot(rig: Arm64Rig, name: str, out: Path, variables: Mapping[str, str]) -> RigResult:
    parts = SHARES[name]
    command = [PYTHON, str(GUEST / 'arm64_checks.py'), *parts]
    result = rig.run(
        command,
        timeout=_TIMEOUT_S,
        out_dir=out / name,
        vivid=VIVID,
        env=variables,
        memory_mib=MEMORY_MIB,
    )
    print(
        (
            f'rig: guest {name}: {", ".join(parts)}: {result.wall_s:.1f} s, up after '
            f'{result.boot_s} s'
        ),
        flush=True,
    )
    return result


def result_of(results: Mapping[str, RigResult], out: Path) -> dict[str, Any]:
    """Return the content of ``result.json`` about the started guests."""
    parts = {
        part: checks_of(part, out / name / f'{part}.json')
        for name, parts in SHARES.items()
        for part in parts
    }
    checks = {
        f'{part}: {check}': text for part, found in parts.items() for check, text in found.items()
    }
    not_here = {
        check: text.removeprefix(NOT_HERE)
        for check, text in checks.items()
        if text.startswith(NOT_HERE)
    }
    failed = {check: text for check, text in checks.items() if text and check not in not_here}
    complaints = [line for result in results.values() for line in result.complaints]
    ended = all(result.rc in (0, 1) for result in results.values())
    return {
        'pass': ended and not failed and not complaints,
        'checks': len(checks) - len(not_here),
        'failed': failed,
        'not_here': not_here,
        'not_run': NOT_RUN,
        'by_part': {part: len(found) for part, found in parts.items()},
        'kernel_complaints': complaints,
        'wall_s': {name: round(result.wall_s, 1) for name, result in results.items()},
    }


def describe(found: Mapping[str, Any], results: Mapping[str, RigResult]) -> None:
    for result in results.values():
        if result.rc not in (0, 1) or result.complaints:
            print(result.report(), file=sys.stderr)
    for check, text in found['failed'].items():
        print(f'FAIL {check}\n{text}', file=sys.stderr)
    print(f'{found["checks"]} checks ran, {len(found["failed"])} failed: {found["by_part"]}')
    reasons: dict[str, list[str]] = {}
    for check, reason in found['not_here'].items():
        reasons.setdefault(reason, []).append(check)
    for reason, checks in reasons.items():
        print(f'not there: {len(checks)} checks: {reason}')
    for what, reason in found['not_run'].items():
        print(f'not there: {what}: {reason}')
