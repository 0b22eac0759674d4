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
Installs one of the package's extras into the environment that runs this.

Example: ``.venv/bin/python test/environment/extras.py bench``. The package itself is not installed
again, so nothing is rebuilt.
"""

from __future__ import annotations

from importlib import metadata
import subprocess
import sys

PACKAGE = 'zc_perception'


def requirements(extra: str) -> list[str]:
    """Return the requirements of an extra in setup.py; exit if there is none."""
    known = metadata.metadata(PACKAGE).get_all('Provides-Extra') or []
    if extra not in known:
        raise SystemExit(f"extra '{extra}' is unknown; there are {', '.join(sorted(known))}")
    named = [line.partition(';') for line in metadata.requires(PACKAGE) or []]
    return [
        what.strip()
        for what, _, marker in named
        if f'extra == {extra!r}' in marker.replace('"', "'")
    ]


if __name__ == '__main__':
    pip = [sys.executable, '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check']
    sys.exit(subprocess.call([*pip, *requirements(sys.argv[1])]))
