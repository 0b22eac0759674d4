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

"""The rig's cache: folders that appear complete or not at all, and are removed when old."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
import re
import shutil

from environment.paths import cache_folder, scratch_folder

from . import RigUnavailable


def rig_folder() -> Path:
    """Return the rig's cache folder: ``${XDG_CACHE_HOME:-~/.cache}/zc_perception/rig``."""
    return cache_folder() / 'rig'


def checked_folder(folder: Path) -> Path:
    """Create `folder`, return its real path; refuse it if the kernel can't build there."""
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    if re.search(r'[\s:]', str(folder)):
        raise RigUnavailable(
            f"the rig's cache {str(folder)!r} has a space or a colon in its path, which the "
            "kernel's build "
            'system refuses; set XDG_CACHE_HOME to a folder without'
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
