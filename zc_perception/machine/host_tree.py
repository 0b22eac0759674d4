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
What can be seen of the machine without opening a device.

That is where its device nodes are, which programs have one open, and which file a library is.
"""

from __future__ import annotations

from contextlib import suppress
import ctypes
from dataclasses import dataclass
import glob
import os
from pathlib import Path


@dataclass(frozen=True)
class HostTree:
    """Where the machine's nodes and attributes are; tests have trees of their own."""

    dev: Path = Path('/dev')
    sysfs: Path = Path('/sys')

    def pci(self, address: str) -> Path:
        """Return the folder of a PCI device's attributes."""
        return self.sysfs / 'bus' / 'pci' / 'devices' / address


HOST = HostTree()


def programs_using(path: str) -> list[str]:
    """
    Return the programs that have the device node open, as ``name (pid)``.

    Only those that this user may see.
    """
    try:
        wanted = os.stat(path).st_rdev
    except OSError:
        return []
    found = set()
    for entry in glob.glob('/proc/[0-9]*/fd/*'):
        try:
            # Only nodes are of interest; a stat of a pipe or socket would be as good as none.
            if os.readlink(entry).startswith('/dev/') and os.stat(entry).st_rdev == wanted:
                found.add(int(entry.split('/')[2]))
        except OSError:
            continue
    names = []
    for pid in sorted(found):
        name = 'process'
        with suppress(OSError):
            name = Path(f'/proc/{pid}/comm').read_text(encoding='utf-8', errors='replace').strip()
        names.append('this process' if pid == os.getpid() else f'{name} ({pid})')
    return names


def file_of(library: ctypes.CDLL | str) -> str:
    """Return the file that the loader took: its name often ends in the version."""
    wanted = library if isinstance(library, str) else library._name
    base = os.path.basename(wanted or '').split('.so')[0]
    with open('/proc/self/maps', encoding='utf-8', errors='replace') as maps:
        for line in maps:
            path = line.rstrip('\n').partition('/')
            if path[1] and os.path.basename(path[2]).startswith(f'{base}.so'):
                return os.path.realpath('/' + path[2])
    return ''
