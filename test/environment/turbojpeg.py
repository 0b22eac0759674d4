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
libturbojpeg for tests: the machine's, or Debian's package, unpacked and not installed.

    from environment.turbojpeg import load
    load()

Once a process has loaded the library, the dynamic linker finds it by name, so the package under
test loads it as on any machine. The library is kept in ``build/fixtures`` and in the user's cache
(0.6 MB): a second call needs no network.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from environment.console import step
from environment.debian_packages import AptError, fetch, unpack_member
from environment.fixtures import kept

LIBRARY = 'libturbojpeg.so.0'
#: The names in Debian and Ubuntu.
PACKAGES = ('libturbojpeg0', 'libturbojpeg')

_loaded: list[ctypes.CDLL] = []


def load() -> None:
    """Load the library into this process; raise SetupError if it can't be fetched."""
    if not _loaded:
        try:
            _loaded.append(ctypes.CDLL(LIBRARY))
        except OSError:
            _loaded.append(ctypes.CDLL(str(kept(LIBRARY, _fetch))))


def _fetch(target: Path) -> None:
    with step(f'fetching {LIBRARY} from its Debian package (0.2 MB)'):
        try:
            (deb,) = fetch([PACKAGES[0]], target.parent)
        except AptError:
            (deb,) = fetch([PACKAGES[1]], target.parent)
        # The library's name is a link to the file with the full version.
        unpack_member(deb, '*/libturbojpeg.so.0.*', target)
