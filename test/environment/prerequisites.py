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

"""Debian packages that an environment needs; installs them where that is allowed."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
import shutil
import subprocess
import sys
import sysconfig

from environment.console import run_logged, step
from environment.errors import SetupError
from environment.paths import ROOT

OLDEST_PYTHON = (3, 10)


def check_python() -> None:
    if sys.version_info[:2] < OLDEST_PYTHON:
        raise SetupError(
            f'Python {sys.version.split()[0]} is too old, 3.{OLDEST_PYTHON[1]} is needed: install '
            'a newer one and call make PYTHON=python3.N'
        )


def missing_packages() -> dict[str, str]:
    version = f'{sys.version_info.major}.{sys.version_info.minor}'
    missing = {}
    if importlib.util.find_spec('ensurepip') is None:
        missing[f'python{version}-venv'] = "Python's ensurepip, to create an environment"
    gcc = shutil.which('gcc')
    if not gcc:
        missing['gcc'] = 'a C compiler, to build interface packages'
    # Debian's gcc may lack all headers.
    find_header = ['gcc', '-E', '-include', 'stdio.h', '-x', 'c', os.devnull]
    if not gcc or subprocess.run(find_header, capture_output=True, check=False).returncode:
        missing['libc6-dev'] = "the C library's headers"
    if not shutil.which('g++'):
        missing['g++'] = 'a C++ compiler, to build interface packages'
    if not Path(sysconfig.get_path('include'), 'Python.h').is_file():
        missing[f'python{version}-dev'] = 'Python.h, to build interface packages'
    return missing


def ensure(log: Path) -> None:
    missing = missing_packages()
    if not missing:
        return
    if shutil.which('apt-get'):
        rights = _rights()
        install = ['apt-get', 'install', '--yes', '--no-install-recommends', *missing]
        if rights is None:
            raise SetupError(
                f'{describe(missing)}\nInstall them with:\n  sudo {" ".join(install)}'
            )
        with step(f'installing {" ".join(missing)} with apt'):
            prefix = [*rights, 'env', 'DEBIAN_FRONTEND=noninteractive']
            # The package lists may be absent or stale.
            run_logged([*prefix, 'apt-get', 'update'], log, ROOT)
            run_logged([*prefix, *install, '-o', 'DPkg::Lock::Timeout=300'], log, ROOT)
        missing = missing_packages()
    if missing:
        raise SetupError(
            f"{describe(missing)}\nInstall them with the system's package manager, or let make "
            f'use another interpreter than {sys.executable}: make PYTHON=/usr/bin/python3'
        )


def describe(missing: dict[str, str]) -> str:
    lines = [f'\n  {name}: {purpose}' for name, purpose in missing.items()]
    return 'Missing on this machine:' + ''.join(lines)


def _rights() -> list[str] | None:
    """Return the words before apt-get for the right to install; None if a password is needed."""
    if os.geteuid() == 0:
        return []
    sudo = ['sudo', '-n']
    if (
        shutil.which('sudo')
        and subprocess.run([*sudo, 'true'], capture_output=True, check=False).returncode == 0
    ):
        return sudo
    return None
