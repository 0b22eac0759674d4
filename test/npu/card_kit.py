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

"""Stand-ins for cards: one that only counts, and a machine's nodes and sysfs in a folder."""

from __future__ import annotations

from collections.abc import Mapping
import os
from pathlib import Path
from typing import Any

import pytest

from zc_perception.detection.heads.spec import HeadSpec
from zc_perception.machine.system import HOST, HostTree
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import EventFence, Fence
from zc_perception.memory.heaps import Heap, SealedMemfd
from zc_perception.negotiation.constraints import Format
from zc_perception.npu.axl import accelerator as axl
from zc_perception.npu.axl.accelerator import allocate_results
from zc_perception.npu.axl.device import AxlCapabilities
from zc_perception.npu.manifest import ModelInput, ModelManifest, TensorSpec
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.modifier import LINEAR

LINEAR_ONLY = ((NV12, LINEAR),)
MANIFEST = ModelManifest(
    'counting', Path('model.yaml'), 'axl', None, ModelInput(0, 0, False, 0.0, 1.0, 'none', 0),
    HeadSpec('yolov8', 1), ('thing',), 0.5, 0.5, 10,
    tensors=(TensorSpec('out', 'int8', (4,), 0, (1.0,), 0),),
)  # fmt: skip


class CardFence(EventFence):
    """A job's fence, which can be watched by a duplicate of its descriptor as a sync_file can."""

    seqno = 0

    def dup(self) -> CardFence:
        other = CardFence()
        other._fd.close()
        other._fd = self._fd.dup()
        return other


class CountingCard:
    """
    A card that counts handles and jobs.

    ``held`` are its handles, ``modifiers`` those of the imported images. ``submitted`` has the
    in-fence of each job (``None``: none, or an older driver), ``numbers`` the driver's own ioctl
    numbers.
    """

    def __init__(
        self,
        level: int = 2,
        in_flight: int = 4,
        formats: tuple[Format, ...] = LINEAR_ONLY,
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        self.numbers = numbers
        self.capabilities = AxlCapabilities(level, in_flight, 64, 64, formats)
        self.made = 0
        self.held: set[int] = set()
        self.modifiers: list[int] = []
        self.import_error: Exception | None = None
        self.submitted: list[Fence | None] = []
        self.timeouts_us: list[int] = []
        self.jobs: list[CardFence] = []
        self.release_error: Exception | None = None

    def query(self) -> AxlCapabilities:
        return self.capabilities

    def import_planes(self, layout: ImageLayout, buffers: Any, flags: Any) -> int:
        self.modifiers.append(layout.modifier)
        return self.import_fd()

    def import_fd(self, *_: Any) -> int:
        if self.import_error is not None:
            raise self.import_error
        self.made += 1
        self.held.add(self.made)
        return self.made

    def release_import(self, handle: int) -> None:
        if self.release_error is not None:
            raise self.release_error
        self.held.remove(handle)

    def submit2(
        self, handle: int, result: Any, model_id: int, timeout_us: int, in_fence: Fence | None
    ) -> CardFence:
        assert handle in self.held
        self.submitted.append(in_fence)
        self.timeouts_us.append(timeout_us)
        self.jobs.append(CardFence())
        self.jobs[-1].seqno = len(self.jobs)
        return self.jobs[-1]

    def submit(self, handle: int, result: Any, model_id: int, timeout_us: int) -> CardFence:
        return self.submit2(handle, result, model_id, timeout_us, None)

    def close(self) -> None:
        self.held.clear()


Opened = tuple[axl.AxlAccelerator, CountingCard]


def memfd_results(size: int, count: int) -> tuple[Heap, list[DmaBuf], str]:
    """Return result buffers as :func:`open_result_heap` does, on a machine without dma-heaps."""
    heap = SealedMemfd()
    return heap, allocate_results(heap, size, count), ''


def counting_accelerator(
    monkeypatch: pytest.MonkeyPatch,
    device: str = '/dev/metis-0:1:0',
    *,
    level: int = 2,
    in_flight: int = 4,
    formats: tuple[Format, ...] = LINEAR_ONLY,
    manifest: ModelManifest = MANIFEST,
    tree: HostTree = HOST,
    **options: Any,
) -> Opened:
    """Return an axl accelerator with a model on a card that counts; the caller closes it."""
    monkeypatch.setattr(
        axl,
        'AxlDevice',
        lambda path, numbers, tree: CountingCard(level, in_flight, formats, numbers),
    )
    monkeypatch.setattr(axl, 'open_result_heap', memfd_results)
    values = axl.AxlAccelerator.own({'accelerator_device': device, **options})
    accelerator = axl.AxlAccelerator(values, tree=tree)
    accelerator.load(manifest)
    card: Any = accelerator._device
    return accelerator, card


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
