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

"""Build the virtual Metis module outside the source tree, once per content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
import hashlib
import os
from pathlib import Path
import shutil
import subprocess

from .cache import appearing, keep_newest
from .errors import RigError, RigUnavailable
from .packages import Kernel

MODULE_SOURCES = Path(__file__).resolve().parent / 'module'
MODULE_NAME = 'metis_virtual'


def sources(folder: Path = MODULE_SOURCES) -> list[Path]:
    return sorted(
        path for path in folder.iterdir() if path.suffix in ('.c', '.h') or path.name == 'Kbuild'
    )


@dataclass(frozen=True)
class CrossCompiler:
    """
    A compiler for another architecture.

    :param prefix: prefix of its programs' names, such as ``aarch64-linux-gnu-``.
    :param architecture: the kernel's name for it.
    :param environment: environment of its programs; ``PATH`` leads to them.
    """

    prefix: str
    architecture: str
    environment: Mapping[str, str]

    def options(self, compiler: str) -> list[str]:
        return [
            f'ARCH={self.architecture}',
            f'CROSS_COMPILE={self.prefix}',
            f'CC={self.prefix}{compiler}',
        ]


def cache_key(kernel: Kernel, files: list[Path]) -> str:
    """Return a key that changes with the kernel, and with the name and content of any source."""
    digest = hashlib.sha256(kernel.version.encode())
    for path in files:
        content = path.read_bytes()
        digest.update(b'\0%s\0%d\0' % (path.name.encode(), len(content)))
        digest.update(content)
    return digest.hexdigest()[:32]


def build(
    kernel: Kernel, cache: Path, folder: Path = MODULE_SOURCES, cross: CrossCompiler | None = None
) -> Path:
    """Return the built module; rebuild it only if its sources or the kernel changed."""
    files = sources(folder)
    home = cache / 'modules' / cache_key(kernel, files)
    module = home / f'{MODULE_NAME}.ko'
    if module.is_file():
        home.touch()
        return module
    compiler = f'{cross.prefix if cross else ""}{kernel.compiler}'
    environment = {**os.environ, **(cross.environment if cross else {})}
    missing = [
        tool for tool in (compiler, 'make') if not shutil.which(tool, path=environment.get('PATH'))
    ]
    if missing:
        raise RigUnavailable(
            f"building the rig's kernel module needs {' and '.join(missing)}: apt-get install "
            f'{" ".join(missing)}'
        )
    with appearing(home) as scratch:
        for path in files:
            shutil.copyfile(path, scratch / path.name)
        # The empty CONFIG_DEBUG_INFO_BTF_MODULES turns BTF off, which would need pahole.
        options = [
            'CONFIG_DEBUG_INFO_BTF_MODULES=',
            'W=1',
            'KCFLAGS=-Werror',
            *(cross.options(kernel.compiler) if cross else ()),
        ]
        command = [
            'make',
            '-C',
            str(kernel.headers),
            f'-j{os.cpu_count() or 1}',
            f'M={scratch}',
            *options,
            'modules',
        ]
        result = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if result.returncode:
            raise RigError(
                f"the rig's kernel module did not build for {kernel.version}:\n{result.stdout}"
            )
        (scratch / 'build.log').write_text(result.stdout, encoding='utf-8')
    keep_newest((cache / 'modules').iterdir(), 4)
    return module
