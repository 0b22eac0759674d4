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
What the checks may look at.

That is the machine's folders below one root, the environment, and the few calls that open
something. Tests put a folder tree and functions of their own in their place, so that a broken
vehicle is a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
import errno
import os
from pathlib import Path
import platform
from typing import Any, cast, TypeVar

from zc_perception.machine.asking import ask
from zc_perception.machine.host_tree import HostTree, programs_using
from zc_perception.memory.heaps import Heap, open_heap
from zc_perception.memory.owned_fd import OwnedFd

T = TypeVar('T')


def _open_node(path: str) -> int:
    """
    Return 0, or the errno with which the node refuses this user.

    Opening a heap or a card changes nothing in it.
    """
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

    All checks share it, on threads of their own, so nothing in it changes.

    :param root: what stands for ``/``.
    :param environment: variables.
    :param machine: processor architecture, as ``uname -m`` says it.
    :param user: effective user id.
    :param open_node: tries to open a device node for reading and writing; 0 or an errno.
    :param open_heap: opens a heap by its name.
    :param ask: puts a question to a process of its own, because the answer needs libraries that
        may hang or crash; see :mod:`~zc_perception.machine.asking`.
    :param users_of: programs that have a node open, as far as this user may look.
    :param doubles: what a test has in place of a class or function that opens a device, see
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
        """Return *opens*, a class or function that opens a device, or its double in a test."""
        return cast('T', self.doubles.get(opens, opens))

    @property
    def dev(self) -> Path:
        """Device nodes."""
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
        """Where cards are looked for."""
        return HostTree(self.dev, self.sys)

    def shown(self, path: Path | str) -> str:
        """Return a path as it is on the machine itself."""
        path = Path(path)
        return (
            str(Path('/') / path.relative_to(self.root))
            if path.is_relative_to(self.root)
            else str(path)
        )

    def read(self, *parts: str) -> str:
        """Read a file's text, stripped; empty where it can't be read."""
        try:
            return (
                self.root.joinpath(*parts)
                .read_text(encoding='utf-8', errors='replace')
                .strip(' \t\r\n\0')
            )
        except OSError:
            return ''

    def names(self, *parts: str) -> list[str]:
        """List a folder, sorted; empty where it can't be read."""
        try:
            return sorted(os.listdir(self.root.joinpath(*parts)))
        except OSError:
            return []

    @property
    def release(self) -> str:
        """The kernel's release."""
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
        """Return the major and minor version; (0, 0) where the release can't be read."""
        parts = self.release.split('.')
        try:
            return int(parts[0]), int(parts[1].split('-')[0])
        except (IndexError, ValueError):
            return 0, 0


DENIED = (errno.EACCES, errno.EPERM)
