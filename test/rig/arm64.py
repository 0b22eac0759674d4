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

from collections.abc import Callable, Iterable, Sequence
import compileall
from dataclasses import dataclass
from functools import partial
import hashlib
import importlib.metadata
import os
from pathlib import Path
import shutil
import sys
from typing import Any
import zipfile

from environment.debian_packages import fetch, fetch_with_dependencies, unpack
from environment.errors import SetupError
from environment.paths import ROOT, scratch_folder

from . import build, machine, packages, RigError, RigUnavailable
from .rig import Rig

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


@dataclass(frozen=True)
class Tools:
    root: Path

    @property
    def environment(self) -> dict[str, str]:
        found = dict(os.environ)
        libraries = [str(self.root / part / 'x86_64-linux-gnu') for part in ('usr/lib', 'lib')]
        return {
            'PATH': f'{found.get("PATH", "")}:{self.root / "usr/bin"}',
            'LD_LIBRARY_PATH': ':'.join(
                filter(None, [found.get('LD_LIBRARY_PATH', ''), *libraries])
            ),
        }

    @property
    def qemu(self) -> Path:
        path = shutil.which('qemu-system-aarch64', path=self.environment['PATH'])
        if path is None:
            raise RigError(
                f'no qemu-system-aarch64 below {self.root}; delete that folder to fetch it again'
            )
        return Path(path)

    @property
    def cross(self) -> build.CrossCompiler:
        return build.CrossCompiler(f'{_TRIPLET}-', ARCHITECTURE, self.environment)


class Arm64Rig(Rig):
    """A rig whose guest has a root of its own, see :class:`Rig`; it never installs anything."""

    def __init__(self) -> None:
        """Choose the cache; nothing is read or fetched before `prepare`."""
        super().__init__(cache_folder=packages.rig_folder() / ARCHITECTURE, install=False)
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
