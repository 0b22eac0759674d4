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

"""Find this installation's documentation, parameter files and examples, to name them to users."""

from __future__ import annotations

import functools
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


@functools.cache
def share_folder() -> Path | None:
    """
    Return the source folder or the installation's ``share/zc_perception``; ``None``: none found.

    The search starts at this file's path and not at AMENT_PREFIX_PATH, because sudo removes
    environment variables.
    """
    shares = (folder / 'share' / _PACKAGE.name for folder in _PACKAGE.parents)
    for folder in (_PACKAGE.parent, *shares):
        if (folder / 'package.xml').is_file():
            return folder
    return None


def shipped_file(name: str) -> str:
    """
    Return the absolute path of a file in ``config/``, ``docs/`` or ``examples/``.

    :param name: the file's path in the repository; returned unchanged if no share folder exists.
    """
    folder = share_folder()
    return name if folder is None else str(folder / name)
