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

from collections.abc import Sequence
import compileall
from dataclasses import dataclass
import hashlib
import importlib.metadata
import os
from pathlib import Path
import shutil
import subprocess
import sys
from typing import Any
import zipfile

from environment.debian_packages import fetch, fetch_with_dependencies, unpack
from environment.errors import SetupError
from environment.paths import locked, ROOT, scratch_folder

from . import cache, initramfs, machine, module_build, packages
from .errors import RigError, RigUnavailable
from .rig import Rig

ARCHITECTURE = 'arm64'
PYTHON = '/usr/bin/python3.11'
_TRIPLET = 'aarch64-linux-gnu'
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
    'numpy',
    'opencv-python-headless',
    'PyYAML',
    'pytest',
    'pytest-timeout',
    'pluggy',
    'iniconfig',
    'packaging',
    'hypothesis',
    'sortedcontainers',
)
_PLATFORMS = (
    'manylinux2014_aarch64',
    'manylinux_2_17_aarch64',
    'manylinux_2_27_aarch64',
    'manylinux_2_28_aarch64',
)
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
    def compiler(self) -> str:
        return (
            shutil.which(f'{_TRIPLET}-gcc-12', path=self.environment['PATH'])
            or f'{_TRIPLET}-gcc-12'
        )

    @property
    def cross(self) -> module_build.CrossCompiler:
        return module_build.CrossCompiler(f'{_TRIPLET}-', ARCHITECTURE, self.environment)


class Arm64Rig(Rig):
    """A rig whose guest has a root of its own, see :class:`Rig`; it never installs anything."""

    def __init__(self) -> None:
        """Choose the cache; nothing is read or fetched before `prepare`."""
        super().__init__(cache_folder=cache.rig_folder() / ARCHITECTURE, install=False)
        self.tools: Tools | None = None
        self._root: Path | None = None

    def _prepared(self) -> tuple[packages.Kernel, Path, Path]:
        if self._ready is None:
            folder = cache.checked_folder(self._cache_folder)
            lock = folder / 'lock'
            with locked(
                lock, f'rig: waiting for another process that prepares the rig (it holds {lock})'
            ):
                try:
                    self.tools = Tools(_unpacked_tools(folder))
                    self._root = _guest_root(folder)
                except SetupError as error:
                    raise RigUnavailable(
                        f'the packages for arm64 are not cached and cannot be fetched: {error}'
                    ) from error
                kernel = packages.current(folder, packages.ARM64)
                module = module_build.build(kernel, folder, cross=self.tools.cross)
                self._ready = (kernel, module, initramfs.build(kernel, folder))
        return self._ready

    @property
    def folder(self) -> Path:
        return self._cache_folder.resolve()

    def compile_steps(self) -> Path:
        assert self.tools is not None
        headers = _unpacked(self.folder / 'headers', _HEADERS) / 'usr/include'
        target = ROOT / f'zc_perception/native/compiled.cpython-311-{_TRIPLET}.so'
        sources = sorted(str(path) for pattern in _STEPS for path in ROOT.glob(pattern))
        includes = (headers / 'python3.11', headers, ROOT / 'client/include', ROOT / 'client/src')
        # Leave out the C library: the guest's Python has loaded its own, and the compiler's copy
        # is not where its linker script expects it.
        command = [
            self.tools.compiler, '-shared', '-nostdlib', '-fPIC', '-O3', '-ffp-contract=off',
            '-fvisibility=hidden', '-Wall', '-Wextra', '-Werror', '-Wno-cast-function-type',
            *(f'-I{path}' for path in includes), *sources, '-o', str(target),
        ]  # fmt: skip
        done = subprocess.run(
            command,
            env={**os.environ, **self.tools.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RigError(f'the compiled steps cannot be compiled for arm64:\n{done.stdout}')
        return target

    def _place(self) -> dict[str, Any]:
        assert self.tools is not None and self._root is not None
        board = machine.arm64(self.tools.qemu, self.tools.environment)
        return {'machine': board, 'root': self._root, 'shares': (ROOT, self.folder)}


def _unpacked_tools(folder: Path) -> Path:
    """Return the folder with this machine's programs and libraries, without installed ones."""
    root = folder / 'tools' / _key(_TOOLS)
    if not root.is_dir():
        with cache.appearing(root) as scratch:
            _unpack_into(scratch, _TOOLS)
        cache.keep_newest((folder / 'tools').iterdir(), 2)
    return root


def _unpacked(folder: Path, names: Sequence[str]) -> Path:
    """Return the folder with these packages for the guest, without their dependencies."""
    root = folder / _key(names)
    if not root.is_dir():
        with cache.appearing(root) as scratch:
            downloads = scratch / 'downloads'
            for package in fetch(names, downloads, ARCHITECTURE):
                unpack(package, scratch)
            shutil.rmtree(downloads)
        cache.keep_newest(folder.iterdir(), 2)
    return root


def _key(*content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def _unpack_into(scratch: Path, names: Sequence[str], architecture: str = '') -> None:
    downloads = scratch / 'downloads'
    for package in fetch_with_dependencies(names, downloads, architecture):
        unpack(package, scratch)
    shutil.rmtree(downloads)


def _guest_root(folder: Path) -> Path:
    """Return the guest's Debian Python and wheels; another list makes another root."""
    wheels = [f'{name}=={importlib.metadata.version(name)}' for name in _WHEELS]
    root = folder / 'roots' / _key(_FORMAT, _USERLAND, wheels)
    if not root.is_dir():
        with cache.appearing(root) as scratch:
            _unpack_into(scratch, _USERLAND, ARCHITECTURE)
            for name in ('tmp', 'proc', 'sys', 'dev', 'run'):
                (scratch / name).mkdir(exist_ok=True)
            (scratch / 'tmp').chmod(0o1777)
            if not (scratch / 'bin/sh').exists():
                (scratch / 'bin/sh').symlink_to('dash')
            _install_wheels(wheels, scratch / 'usr/local/lib/python3.11/dist-packages')
            compile_for_guest(scratch / 'usr')
        cache.keep_newest((folder / 'roots').iterdir(), 2)
    return root


def _install_wheels(wheels: Sequence[str], target: Path) -> None:
    """Unpack the wheels: they are archives of files in ``dist-packages``."""
    target.mkdir(parents=True)
    platforms = [word for platform in _PLATFORMS for word in ('--platform', platform)]
    options = [
        '--quiet',
        '--no-deps',
        '--only-binary=:all:',
        '--python-version=3.11',
        '--implementation=cp',
        *platforms,
    ]
    with scratch_folder(target.parent) as scratch:
        command = [
            sys.executable,
            '-m',
            'pip',
            'download',
            *options,
            '--dest',
            str(scratch),
            *wheels,
        ]
        result = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
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
