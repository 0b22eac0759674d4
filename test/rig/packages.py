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
The rig's Debian packages, and one unpacked copy of them in the cache.

The cache's folders appear complete or not at all, and are removed when old. Nothing is installed:
apt downloads and checks the packages, and they are unpacked below the cache. The kernel version is
queried, never pinned, because the security suite drops old ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
import json
import lzma
from pathlib import Path
import re
import shutil
import subprocess
import time
from typing import Any

from environment.debian_packages import fetch, resolve_dependency, unpack
from environment.errors import SetupError
from environment.paths import scratch_folder

from . import RigUnavailable

# The series whose compiler is bookworm's own gcc, with a configuration that suits the rig.
SERIES = '6.12'
#: Debian's names for kernel configurations: the ordinary one, and PREEMPT_RT.
ORDINARY, REAL_TIME = 'amd64', 'rt-amd64'
FLAVOURS = (ORDINARY, REAL_TIME)
#: Debian's name for its ordinary kernel of another architecture; see arm64.py.
ARM64 = 'arm64'

#: Loaded before the host's root can be mounted.
BOOT_MODULES = ('9pnet_virtio', '9p', 'overlay')
#: Loaded when a run asks for a camera.
CAMERA_MODULES = ('vivid',)
# Loaded when a run asks for USB: webcams, a port to plug one in, and GadgetFS to simulate one. Not
# for Debian's arm64 kernel.
USB_MODULES = ('uvcvideo', 'dummy_hcd', 'gadgetfs')

_CHECK_EVERY_S = 24 * 3600.0


def ran(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command; ``stdout`` of the result has its errors, too."""
    pipes: Any = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT}
    return subprocess.run(command, text=True, check=False, **pipes, **options)


def checked_folder(folder: Path) -> Path:
    """Create `folder`, return its real path; refuse it if the kernel can't build there."""
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    if re.search(r'[\s:]', str(folder)):
        raise RigUnavailable(
            f"the rig's cache {str(folder)!r} has a space or a colon in its path, which the "
            "kernel's build system refuses; set XDG_CACHE_HOME to a folder without"
        )
    return folder


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """Yield a scratch folder that becomes `target` if the block ends without an exception."""
    with scratch_folder(target.parent) as scratch:
        content = scratch / 'content'
        content.mkdir()
        yield content
        shutil.rmtree(target, ignore_errors=True)
        content.rename(target)


def keep_newest(entries: Iterable[Path], count: int) -> None:
    """Remove all but the `count` last used ones; keep several, as other processes may use one."""
    for entry in sorted(entries, key=lambda path: path.stat().st_mtime, reverse=True)[count:]:
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink()


class Kernel:
    def __init__(self, version: str, root: Path, flavour: str = ORDINARY) -> None:
        self.version, self.root, self.flavour = version, root, flavour
        self.release = f'{version}-{flavour}'
        self.image = root / 'boot' / f'vmlinuz-{self.release}'
        self.headers = root / 'usr/src' / f'linux-headers-{self.release}'
        # The architecture of its packages where it is not this machine's.
        self.foreign = ARM64 if flavour == ARM64 else ''
        # The modules to unpack for it, besides their dependencies.
        self.wanted_modules = (
            *BOOT_MODULES, *CAMERA_MODULES, *(() if self.foreign else USB_MODULES)
        )  # fmt: skip

    @property
    def complete(self) -> bool:
        """Return whether all of it is unpacked; earlier tests may have used fewer modules."""
        return self.image.is_file() and all(
            (self.root / 'modules' / f'{name}.ko').is_file() for name in self.wanted_modules
        )

    @property
    def busybox(self) -> Path:
        """Return the static busybox that is the initramfs's user space."""
        paths = (self.root / 'bin/busybox', self.root / 'usr/bin/busybox')
        return next(path for path in paths if path.is_file())

    @property
    def compiler(self) -> str:
        """Return the kernel's compiler, e.g. ``gcc-12``; modules must use the same."""
        config = (self.root / 'boot' / f'config-{self.release}').read_text(encoding='utf-8')
        match = re.search(r'^CONFIG_CC_VERSION_TEXT="([^"\s]+)', config, re.MULTILINE)
        assert match, f'the configuration of kernel {self.version} does not name its compiler'
        return match[1].rpartition('-linux-gnu-')[2]

    def load_order(self, names: Iterable[str]) -> list[Path]:
        """Return the module files for `names`, each after those in its own ``depends=`` line."""
        files = {path.stem.replace('-', '_'): path for path in (self.root / 'modules').iterdir()}
        order: list[Path] = []

        def add(name: str) -> None:
            for dependency in dependencies(files[name]):
                add(dependency)
            if files[name] not in order:
                order.append(files[name])

        for name in names:
            add(name)
        return order


def dependencies(module: Path) -> list[str]:
    """Return a module file's own list of dependencies, names with underscores."""
    match = re.search(rb'\0depends=([^\0]+)\0', module.read_bytes())
    return match[1].decode().replace('-', '_').split(',') if match else []


def current(cache: Path, flavour: str = ORDINARY) -> Kernel:
    """
    Return the newest kernel in the archive, which is queried at most once a day.

    Without a network it returns the cached one; without both it raises `RigUnavailable`. The
    caller holds the cache's lock.
    """
    now = time.time()
    state_file = cache / 'kernel.json'
    kernels = cache / 'kernels'
    try:
        state = json.loads(state_file.read_text(encoding='utf-8'))
        cached = Kernel(state['version'], kernels / state['version'], flavour)
        checked = float(state['checked'])
    except (OSError, ValueError, KeyError, TypeError):
        cached, checked = None, 0.0
    if cached and cached.complete and 0 <= now - checked < _CHECK_EVERY_S:
        return cached
    try:
        # Debian 12 names its packages of this series after it; in Debian 13 it is the usual one.
        image = resolve_dependency(
            f'linux-image-{SERIES}-{flavour} linux-image-{flavour}',
            f'linux-image-{SERIES}.',
            ARM64 if flavour == ARM64 else '',
        )
        version = image.removeprefix('linux-image-').removesuffix(f'-{flavour}')
        kernel = Kernel(version, kernels / version, flavour)
        if not kernel.complete:
            _fetch(kernel)
    except SetupError as error:
        if not (cached and cached.complete):
            raise RigUnavailable(
                f'the kernel packages are not cached and cannot be fetched: {error}'
            ) from error
        kernel = cached  # and ask again tomorrow: without a network each attempt takes long
    state = {'version': kernel.version, 'checked': now}
    state_file.write_text(json.dumps(state), encoding='utf-8')
    keep_newest(kernels.iterdir(), 2)
    return kernel


def _fetch(kernel: Kernel) -> None:
    version = kernel.version
    # The kernel's own packages; the others are this machine's, or independent of architecture.
    of_kernel = [
        f'linux-image-{kernel.release}',
        f'linux-headers-{kernel.release}',
        'busybox-static',
    ]
    of_build = [
        f'linux-headers-{version}-common{"-rt" if kernel.flavour == REAL_TIME else ""}',
        f'linux-kbuild-{version}',
    ]
    with appearing(kernel.root) as scratch:
        downloads = scratch / 'downloads'
        for package in (*fetch(of_kernel, downloads, kernel.foreign), *fetch(of_build, downloads)):
            unpack(package, scratch)
        shutil.rmtree(downloads)
        _keep_modules(scratch, kernel)
        # The packaged Makefile includes its common part by an absolute path below /usr/src.
        makefile = scratch / 'usr/src' / f'linux-headers-{kernel.release}' / 'Makefile'
        makefile.write_text(
            makefile.read_text(encoding='utf-8').replace('/usr/src/', f'{kernel.root}/usr/src/'),
            encoding='utf-8',
        )


def _keep_modules(scratch: Path, kernel: Kernel) -> None:
    """Unpack the modules that the rig loads into ``modules/`` and drop the other four thousand."""
    tree = next(
        path for path in (scratch / 'lib/modules', scratch / 'usr/lib/modules') if path.is_dir()
    )
    kept = scratch / 'modules'
    kept.mkdir()
    packed = {path.name.split('.')[0].replace('-', '_'): path for path in tree.rglob('*.ko*')}
    wanted = list(kernel.wanted_modules)
    while wanted:
        name = wanted.pop()
        if name not in packed:
            raise RigUnavailable(
                f'the kernel package {kernel.version} has no module {name!r}, which the rig needs'
            )
        target = kept / f'{name}.ko'
        if target.exists():
            continue
        data = packed[name].read_bytes()
        target.write_bytes(lzma.decompress(data) if packed[name].suffix == '.xz' else data)
        wanted += dependencies(target)
    shutil.rmtree(tree)
