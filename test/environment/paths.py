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

"""The set-up's folders, and the lock for changing them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
import fcntl
import os
from pathlib import Path
import shutil
import tempfile

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / 'build'


def cache_folder() -> Path:
    """Return the cache of all clones of one user; ``build/cache`` if that isn't writable."""
    base = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
    shared = Path(base) / 'zc_perception'
    with suppress(OSError):
        shared.mkdir(parents=True, exist_ok=True)
    folder = shared if os.access(shared, os.W_OK | os.X_OK) else BUILD / 'cache'
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(lock_file: Path, busy_message: str) -> Iterator[None]:
    """Hold ``lock_file`` (freed on a crash); print ``busy_message`` once if it is taken."""
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with open(lock_file, 'w', encoding='ascii') as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(busy_message, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix='.new-', dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def place(source: Path, target: Path) -> None:
    """Copy a file or folder to *target*, which is then either complete or absent."""
    with scratch_folder(target.parent) as scratch:
        copy = shutil.copytree if source.is_dir() else shutil.copyfile
        copy(source, scratch / 'new')
        if target.is_dir():
            os.replace(target, scratch / 'old')
        os.replace(scratch / 'new', target)
