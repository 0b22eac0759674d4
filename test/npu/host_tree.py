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

"""Device nodes and sysfs of a machine in a folder, after ``sysfs-bus-pci`` and ``sysfs-dev``."""

from __future__ import annotations

import os
from pathlib import Path

from zc_perception.machine.system import HostTree

# Character devices that every machine has and that answer our ioctls with ENOTTY: nodes are links
# to them.
STAND_INS = ('null', 'zero', 'full', 'random', 'urandom')


class Host:
    """A machine's tree. Nodes are links to existing devices, so they have device numbers."""

    def __init__(self, root: Path) -> None:
        self.tree = HostTree(root / 'dev', root / 'sys')
        self.tree.dev.mkdir(parents=True)
        (self.tree.sysfs / 'bus/pci/devices').mkdir(parents=True)
        (self.tree.sysfs / 'dev/char').mkdir(parents=True)
        self._nodes = 0

    def add_pci(
        self,
        address: str,
        *,
        port: str = '0000:00:1c.0',
        vendor: str = '0x1f9d',
        driver: str = 'metis',
        **files: str,
    ) -> Path:
        """Add a PCI device behind a port; *files* are its attributes."""
        folder = self.tree.sysfs / 'devices' / 'pci0000:00' / port / address
        folder.mkdir(parents=True)
        (folder / 'vendor').write_text(vendor + '\n')
        (folder / 'config').write_bytes(bytes.fromhex('9d1f0011'))
        self.write(folder, **files)
        (self.tree.sysfs / 'bus/pci/devices' / address).symlink_to(folder)
        if driver:
            home = self.tree.sysfs / 'bus/pci/drivers' / driver
            home.mkdir(parents=True, exist_ok=True)
            (folder / 'driver').symlink_to(home)
        return folder

    def add_card(
        self, address: str = '0000:01:00.0', name: str = 'metis-0:1:0', **options: str
    ) -> str:
        """Add a card with a driver and a node; return the path of the node."""
        folder = self.add_pci(address, **options)
        node = self.add_node(name)
        number = os.stat(node).st_rdev
        entry = folder / 'metis' / name
        entry.mkdir(parents=True)
        (entry / 'device').symlink_to(folder)
        (self.tree.sysfs / 'dev/char' / f'{os.major(number)}:{os.minor(number)}').symlink_to(entry)
        return node

    def add_node(self, name: str, like: str = '') -> str:
        """Add a node, or a second name of the node *like*."""
        path = self.tree.dev / name
        path.symlink_to(like or f'/dev/{STAND_INS[self._nodes]}')
        self._nodes += not like
        return str(path)

    @staticmethod
    def write(folder: Path, **files: str) -> None:
        for name, text in files.items():
            (folder / name).write_text(text + '\n')
