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
The machine's heaps: their nodes, the rights that they need, and real buffers of them to try.

A trial buffer is allocated when a check asks for it, and the check gives it back at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, ExitStack, suppress
import errno
import os
from pathlib import Path

from zc_perception.errors import ZcError
from zc_perception.machine.system import System
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.heaps import Heap, heap_order, HeapUse, OfferedHeaps, working_heaps
from zc_perception.shipped_files import shipped_file


def heap_nodes(system: System) -> dict[str, Path]:
    """Return the heaps' names as parameter ``heap`` takes them, and their nodes."""
    found = {
        f'dma_heap/{name}': system.dev / 'dma_heap' / name for name in system.names('dev/dma_heap')
    }
    if (system.dev / 'udmabuf').exists():
        found['udmabuf'] = system.dev / 'udmabuf'
    return found


def auto_heaps(system: System, use: HeapUse) -> OfferedHeaps:
    """
    Return the heaps that ``auto`` offers.

    :raises AllocationError: none works.
    """
    nodes = heap_nodes(system)

    def open_one(name: str) -> Heap:
        if name != 'memfd' and name not in nodes:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return system.open_heap(name)

    order = heap_order(
        use, dma_heaps=str(system.dev / 'dma_heap'), nvmap=str(system.dev / 'nvmap')
    )
    return working_heaps('auto', order, opener=open_one)


def udev_line(name: str) -> str:
    """Return the rule that opens a heap to group video."""
    if name == 'udmabuf':
        return 'SUBSYSTEM=="misc", KERNEL=="udmabuf", GROUP="video", MODE="0660"'
    return (
        f'SUBSYSTEM=="dma_heap", KERNEL=="{name.removeprefix("dma_heap/")}", '
        'GROUP="video", MODE="0660"'
    )


def rights_advice(line: str, node: str) -> str:
    """Return what to do where a node refuses this user."""
    return (
        f'copy {shipped_file("config/vehicle/70-zc-perception.rules")} to /etc/udev/rules.d/ '
        f'(or add there: {line}), then udevadm control --reload && udevadm trigger; '
        'add the user to group video (usermod -aG video USER) and log in again; give a '
        f'container the node (--device {node}) and the group'
    )


PAGE = 4096


@contextmanager
def allocate(system: System, name: str, size: int = PAGE) -> Iterator[DmaBuf]:
    """
    Allocate a buffer of a heap; it is given back at the end of the block.

    :raises ZcError: the heap can't be opened, or has no memory.
    """
    with closing(system.open_heap(name)) as heap, closing(heap.allocate(size)) as buffer:
        yield buffer


@contextmanager
def first_dmabuf(system: System) -> Iterator[DmaBuf | None]:
    """
    Return a page of the first heap that gives a dma-buf; ``None``: no heap does.

    Scattered heaps come first, since the contiguous pool is small.
    """
    names = sorted(
        heap_nodes(system), key=lambda name: (name != 'dma_heap/system', 'cma' in name, name)
    )
    found = None
    with ExitStack() as opened:
        for name in names:
            with suppress(ZcError, OSError):
                buffer = opened.enter_context(allocate(system, name))
                if buffer.kind is BufferKind.DMABUF:
                    found = buffer
                    break
        yield found


def trial_heaps(system: System) -> list[str]:
    """Return the heaps to try: all that the machine has, and the memfd that stands in for them."""
    return [*heap_nodes(system), 'memfd']
