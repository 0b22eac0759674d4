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
The machine that the checks of ``zc_doctor`` examine.

:class:`System` has the machine's folders below one root, its environment, and the functions that
open devices. A test replaces the root by a folder with the files of a faulty machine, and replaces
the functions. :class:`HostTree` has the folders of device nodes and attributes, for code that
doesn't open a device. The last part of this module is about the machine's heaps: their device
nodes, the rights that a user needs to open them, and buffers that a check allocates for a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, ExitStack, suppress
import ctypes
from dataclasses import dataclass, field
import errno
import glob
import os
from pathlib import Path
import platform
from typing import Any, cast, TypeVar

from zc_perception.errors import ZcError
from zc_perception.machine.asking import ask
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.heaps import (
    Heap,
    heap_order,
    HeapUse,
    OfferedHeaps,
    open_heap,
    working_heaps,
)
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.shipped_files import shipped_file


@dataclass(frozen=True)
class HostTree:
    """The folders of the machine's device nodes and attributes; tests use their own folders."""

    dev: Path = Path('/dev')
    sysfs: Path = Path('/sys')

    def pci(self, address: str) -> Path:
        """Return the folder of a PCI device's attributes."""
        return self.sysfs / 'bus' / 'pci' / 'devices' / address


HOST = HostTree()


def programs_using(path: str) -> list[str]:
    """
    Return ``name (pid)`` of each program that has device node *path* open.

    The calling process is listed as ``this process``. Programs whose descriptors this user may not
    see are missing.
    """
    try:
        wanted = os.stat(path).st_rdev
    except OSError:
        return []
    found = set()
    for entry in glob.glob('/proc/[0-9]*/fd/*'):
        try:
            # Skip pipes and sockets without a stat() call; only device nodes matter here.
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
    """Return the path of a loaded library, often with the version in it; empty: not loaded."""
    wanted = library if isinstance(library, str) else library._name
    base = os.path.basename(wanted or '').split('.so')[0]
    with open('/proc/self/maps', encoding='utf-8', errors='replace') as maps:
        for line in maps:
            path = line.rstrip('\n').partition('/')
            if path[1] and os.path.basename(path[2]).startswith(f'{base}.so'):
                return os.path.realpath('/' + path[2])
    return ''


T = TypeVar('T')


def _open_node(path: str) -> int:
    """Open and close a device file, without giving it commands; return 0 or the errno."""
    try:
        OwnedFd.open(path, os.O_RDWR | os.O_NONBLOCK).close()
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _open_heap(name: str) -> Heap:
    return open_heap(name)[0]


@dataclass(frozen=True)
class System:
    """
    The machine that is examined.

    All checks use the same object from several threads, so nothing in it changes.

    :param root: the folder that is used in place of ``/``.
    :param environment: the environment variables.
    :param machine: processor architecture, as in ``uname -m``.
    :param user: effective user id.
    :param open_node: tries to open a device node for reading and writing, and returns 0 or an
        errno.
    :param open_heap: opens a heap by its name.
    :param ask: starts a process and calls a function there, because the function may hang or
        crash; see :mod:`~zc_perception.machine.asking`.
    :param users_of: returns the programs that have a device node open, as far as this user may see
        them.
    :param doubles: a test's replacements for classes or functions that open a device, see
        :meth:`opener`.
    """

    root: Path = Path('/')
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    machine: str = field(default_factory=platform.machine)
    user: int = field(default_factory=os.geteuid)
    open_node: Callable[[str], int] = _open_node
    open_heap: Callable[[str], Heap] = _open_heap
    ask: Callable[..., dict[str, Any]] = ask
    users_of: Callable[[str], list[str]] = programs_using
    doubles: Mapping[Any, Any] = field(default_factory=dict)

    def opener(self, opens: T) -> T:
        """Return *opens*, which opens a device, or the replacement that a test has set for it."""
        return cast('T', self.doubles.get(opens, opens))

    @property
    def dev(self) -> Path:
        """The folder of device nodes."""
        return self.root / 'dev'

    @property
    def proc(self) -> Path:
        """The folder of procfs."""
        return self.root / 'proc'

    @property
    def sys(self) -> Path:
        """The folder of sysfs."""
        return self.root / 'sys'

    @property
    def host(self) -> HostTree:
        """The folders in which to search for accelerator cards."""
        return HostTree(self.dev, self.sys)

    def shown(self, path: Path | str) -> str:
        """Return a path without the root, as the examined machine has it, for messages."""
        path = Path(path)
        return (
            str(Path('/') / path.relative_to(self.root))
            if path.is_relative_to(self.root)
            else str(path)
        )

    def read(self, *parts: str) -> str:
        """Return a file's text without outer whitespace; empty if the file can't be read."""
        try:
            return (
                self.root.joinpath(*parts)
                .read_text(encoding='utf-8', errors='replace')
                .strip(' \t\r\n\0')
            )
        except OSError:
            return ''

    def names(self, *parts: str) -> list[str]:
        """Return the sorted names in a folder; empty if the folder can't be read."""
        try:
            return sorted(os.listdir(self.root.joinpath(*parts)))
        except OSError:
            return []

    @property
    def release(self) -> str:
        """The kernel's release, as ``uname -r`` prints it."""
        return self.read('proc/sys/kernel/osrelease')

    @property
    def is_tegra(self) -> bool:
        """Whether this is a Jetson."""
        return (
            'tegra' in self.release
            or (self.dev / 'nvmap').exists()
            or bool(self.read('etc/nv_tegra_release'))
            or 'nvidia,tegra' in self.read('proc/device-tree/compatible')
        )

    def kernel_version(self) -> tuple[int, int]:
        """Return the kernel's major and minor version; (0, 0) if the release can't be read."""
        parts = self.release.split('.')
        try:
            return int(parts[0]), int(parts[1].split('-')[0])
        except (IndexError, ValueError):
            return 0, 0


DENIED = (errno.EACCES, errno.EPERM)


def heap_nodes(system: System) -> dict[str, Path]:
    """Return the heaps' names, as in the parameter ``heap``, and their device nodes."""
    found = {
        f'dma_heap/{name}': system.dev / 'dma_heap' / name for name in system.names('dev/dma_heap')
    }
    if (system.dev / 'udmabuf').exists():
        found['udmabuf'] = system.dev / 'udmabuf'
    return found


def auto_heaps(system: System, use: HeapUse) -> OfferedHeaps:
    """
    Return the heaps from which the parameter value ``auto`` may choose for buffers of this *use*.

    :raises AllocationError: no heap works.
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
    """Return the udev rule that lets the group ``video`` open a heap."""
    if name == 'udmabuf':
        return 'SUBSYSTEM=="misc", KERNEL=="udmabuf", GROUP="video", MODE="0660"'
    return (
        f'SUBSYSTEM=="dma_heap", KERNEL=="{name.removeprefix("dma_heap/")}", '
        'GROUP="video", MODE="0660"'
    )


def rights_advice(line: str, node: str) -> str:
    """Return advice for a user without access to device *node*; udev rule *line* gives access."""
    return (
        f'copy {shipped_file("config/vehicle/70-zc-perception.rules")} to /etc/udev/rules.d/ '
        f'(or write this line to a file there: {line}), then udevadm control --reload && udevadm '
        'trigger; add the user to group video (usermod -aG video USER) and log in again; give a '
        f'container the node (--device {node}) and the group'
    )


PAGE = 4096


@contextmanager
def allocate(system: System, name: str, size: int = PAGE) -> Iterator[DmaBuf]:
    """
    Allocate a buffer of a heap; the buffer is closed at the end of the ``with`` block.

    :raises ZcError: the heap can't be opened, or has no memory.
    """
    with closing(system.open_heap(name)) as heap, closing(heap.allocate(size)) as buffer:
        yield buffer


@contextmanager
def first_dmabuf(system: System) -> Iterator[DmaBuf | None]:
    """
    Yield a one-page buffer of the first heap that allocates dma-bufs; ``None``: no heap does.

    Heaps that aren't contiguous are tried first, because contiguous memory is scarce.
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
    """Return the heaps to try: those of the machine, and ``memfd``, which every machine has."""
    return [*heap_nodes(system), 'memfd']
