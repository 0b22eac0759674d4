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
Find what can touch a frame with the CPU: mappings, memfds, and pages held without a mapping.

:func:`scan_maps` finds mappings, :func:`find_memfds` finds memfds of which udmabuf may make
frames, and :func:`find_pins` finds pages.

A dma-buf has no ``read()``: a process that has not mapped it can't copy from it in user space. A
buffer of udmabuf is made of a memfd's pages, which any holder of that memfd can map. Nothing in
the kernel tells which memfd it is, so :func:`find_memfds` only finds those that may be: at least
as large as a frame, and sealed against shrinking, which udmabuf insists on. No event tells of a
mapping of a memfd that comes and goes between two looks.

A camera's device may have nodes of any name, in any folder: a user who may make nodes can make
one. So what counts is the number of the device that is behind a mapping, which
``/proc/PID/map_files`` leads to. Only shared mappings are looked at: V4L2 has no others.

vmsplice(2) puts the pages of a mapping into a pipe, and io_uring keeps the pages of registered
buffers. Both hold the pages themselves, not a copy of them. They stay readable after the mapping
is gone, and show what a device writes later. No event and no file tells which pages these are. So
each pipe with at least a page's bytes in it, and each ring with registered buffers, may be such a
way. Not found are pages that wait in a socket's queue, and pages that another driver keeps.

Sources: proc_pid_maps(5): a dma-buf's lines are called ``/dmabuf:NAME`` and have its inode, in
decimal; vmsplice(2); ioctl FIONREAD of pipe(7); io_uring_register(2), ``io_uring_show_fdinfo``.
"""

from __future__ import annotations

import array
from collections.abc import Collection, Iterable
import contextlib
from dataclasses import dataclass
import fcntl
import os
from pathlib import Path
import re
import stat
import termios

from zc_perception.memory import kernel_abi as abi
from zc_perception.observe.frame_log import NAME, SIZE
from zc_perception.observe.processes import all_pids, as_root, folders_of, open_files, PROC, who
from zc_perception.verify.evidence import Unreadable, unreadable_file
from zc_perception.verify.evidence.buffers import buffers_of, MEMFD, parse_fdinfo

# The whole text at once, as bytes: hundreds of lines of hundreds of processes are looked through
# again and again.
_WORTH = (b' /dmabuf:', b' /memfd:', b' /dev/')
_LINE = rb'^([0-9a-f]+)-([0-9a-f]+) (%s) [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) (\d+)[ \t]+(%s[^\n]*)$'
_NAMED = re.compile(_LINE % (rb'\S{4}', rb'(?:/dmabuf:|/memfd:|/dev/)'), re.MULTILINE)
_SHARED = re.compile(_LINE % (rb'\S{3}s', rb'(?!/dmabuf:|/memfd:)/'), re.MULTILINE)


@dataclass(frozen=True)
class MemoryMapping:
    """
    One mapping of a frame's memory, or of a camera.

    :ivar device: ``st_dev`` of the inode.
    :ivar name: as ``maps`` shows it.
    """

    pid: int
    start: int
    end: int
    permissions: str
    device: int
    inode: int
    name: str

    def __contains__(self, address: object) -> bool:
        return isinstance(address, int) and self.start <= address < self.end

    def __str__(self) -> str:
        return (
            f'process {self.pid}: {self.start:x}-{self.end:x} {self.permissions} '
            f'{self.name} (inode {self.inode})'
        )


@dataclass(frozen=True)
class FrameMemory:
    """
    The memory to look for.

    :param dmabufs: inodes.
    :param memfds: (st_dev, inode).
    :param cameras: paths of video devices, such as ``/dev/video0``.
    :param camera_numbers: device numbers of these, as ``st_rdev``.
    :param any_camera: whether frames lie in a video device's buffers of which no node says which
        device that is.
    """

    dmabufs: frozenset[int] = frozenset()
    memfds: frozenset[tuple[int, int]] = frozenset()
    cameras: frozenset[str] = frozenset()
    camera_numbers: frozenset[int] = frozenset()
    any_camera: bool = False

    def matches(self, mapping: MemoryMapping) -> bool:
        """Say whether a mapping shows frames."""
        if mapping.name.startswith('/dev/'):
            return mapping.name.removesuffix(' (deleted)') in self.cameras
        if mapping.name.startswith('/memfd:'):
            return (mapping.device, mapping.inode) in self.memfds
        return mapping.inode in self.dmabufs


@dataclass(frozen=True)
class MapsScan:
    """One look at the maps of processes."""

    mappings: tuple[MemoryMapping, ...]
    unreadable: tuple[Unreadable, ...]


def parse_maps(pid: int, text: bytes) -> list[MemoryMapping]:
    """Return the lines that may show a frame's memory by name: dma-bufs, memfds, devices."""
    return _parsed(pid, _NAMED, text) if any(word in text for word in _WORTH) else []


def _parsed(pid: int, pattern: re.Pattern[bytes], text: bytes) -> list[MemoryMapping]:
    found = []
    for match in pattern.finditer(text):
        device = os.makedev(int(match[4], 16), int(match[5], 16))
        name = match[7].decode(errors='replace')
        found.append(
            MemoryMapping(
                pid,
                int(match[1], 16),
                int(match[2], 16),
                match[3].decode(),
                device,
                int(match[6]),
                name,
            )
        )
    return found


def read_maps(pid: int, proc: Path = PROC) -> bytes:
    """
    Read a process's maps; empty: it has ended, or has no memory.

    :raises OSError: this user may not read them.
    """
    for folder in folders_of(pid, proc):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if text := (folder / 'maps').read_bytes():
                return text
    return b''


def scan_maps(
    memory: FrameMemory,
    pids: Iterable[int] | None = None,
    proc: Path = PROC,
    skip: Collection[int] = (),
) -> MapsScan:
    """
    Look for mappings of frames in these processes, or in all.

    :param skip: processes not to look at.
    """
    found: list[MemoryMapping] = []
    unreadable = []
    for pid in all_pids(proc) if pids is None else pids:
        if pid in skip:
            continue
        try:
            text = read_maps(pid, proc)
        except OSError as error:
            path = proc / str(pid) / 'maps'
            unreadable.append(
                unreadable_file(path, error, as_root(), f'mappings of {who(pid, proc)}')
            )
            continue
        own = [mapping for mapping in parse_maps(pid, text) if memory.matches(mapping)]
        for mapping in (
            _parsed(pid, _SHARED, text) if memory.camera_numbers or memory.any_camera else ()
        ):
            if mapping in own:
                continue
            number = _device_number(mapping, proc)
            if isinstance(number, Unreadable):
                unreadable.append(number)
            elif number in memory.camera_numbers:
                own.append(mapping)
            elif memory.any_camera and os.major(number) == VIDEO_MAJOR:
                reason = (
                    f'{mapping.name} is a video device, and perhaps the camera: its node '
                    'does not say which device it uses'
                )
                step = 'end that program and measure once more'
                unreadable.append(Unreadable(f'mappings of {who(pid, proc)}', reason, step))
        found += own
    return MapsScan(tuple(found), tuple(unreadable))


def _device_number(mapping: MemoryMapping, proc: Path) -> int | Unreadable:
    """Return the number of the mapped device; 0: it is no device, or the mapping is gone."""
    file = _map_file(mapping, proc)
    try:
        return _number_of(os.stat(file))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and _has_entries(file.parent):
            return 0
    # Without its main thread a process has no map_files; and not everybody may look into them.
    paths = [
        Path(mapping.name),
        *(Path(f'{folder}/root{mapping.name}') for folder in folders_of(mapping.pid, proc)),
    ]
    for path in paths:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            if (status.st_dev, status.st_ino) == (mapping.device, mapping.inode):
                return _number_of(status)
    if not read_maps(mapping.pid, proc):
        return 0
    source = f'mappings of {who(mapping.pid, proc)}'
    step = 'run zc_verify as root of the machine itself, or end that program'
    return Unreadable(
        source, f'what it has mapped as {mapping.name} is not known, and may be a camera', step
    )


#: Of all video devices.
VIDEO_MAJOR = 81


def _number_of(status: os.stat_result) -> int:
    return status.st_rdev if stat.S_ISCHR(status.st_mode) else 0


def _has_entries(folder: Path) -> bool:
    try:
        return bool(os.listdir(folder))
    except OSError:
        return False


UDMABUF = 'udmabuf'
_LOG = f'/memfd:{NAME}'


def find_memfds(
    least: int,
    pids: Iterable[int] | None = None,
    proc: Path = PROC,
    skip: Collection[int] = (),
    but: Collection[tuple[int, int]] = (),
) -> list[str]:
    """
    Find memfds of processes of which udmabuf may have made a frame.

    :returns: a line for each process and memfd that it holds or maps.

    :param least: the smallest frame's size in bytes. A memfd may have several frames in it.
    :param pids: look at these only.
    :param skip: processes not to look at.
    :param but: (st_dev, inode) of memfds that are known to be something else.
    """
    found: dict[tuple[int, int, int], str] = {}
    for pid in all_pids(proc) if pids is None else pids:
        if pid in skip:
            continue
        its = who(pid, proc)
        held = buffers_of(pid, proc)
        for one in () if isinstance(held, Unreadable) else held:
            link = proc / str(pid) / 'fd' / str(one.fd)
            if (
                one.kind == MEMFD
                and one.size >= least
                and not _is_log(one.name, one.size)
                and _may_be_sealed(link)
            ):
                found.setdefault(
                    (pid, one.device, one.inode),
                    f'{its} holds memfd {one.inode} of {one.size} bytes',
                )
        try:
            text = read_maps(pid, proc)
        except OSError:
            continue  # the reader of mappings reports it
        for mapping in parse_maps(pid, text):
            if not mapping.name.startswith('/memfd:'):
                continue
            size = _size(mapping, proc)
            if (
                size >= least
                and not _is_log(mapping.name, size)
                and _may_be_sealed(_map_file(mapping, proc))
            ):
                found[pid, mapping.device, mapping.inode] = (
                    f'{its} maps memfd {mapping.inode} of {size} bytes'
                )
    return [line for (_, *identity), line in found.items() if tuple(identity) not in but]


def _is_log(name: str, size: int) -> bool:
    return name.startswith(_LOG) and size == SIZE


def _may_be_sealed(link: Path) -> bool:
    """Say whether a memfd is sealed against shrinking; also true if that can't be seen."""
    try:
        fd = os.open(link, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        return bool(fcntl.fcntl(fd, abi.F_GET_SEALS) & abi.F_SEAL_SHRINK)
    except OSError:
        return True
    finally:
        os.close(fd)


def _map_file(mapping: MemoryMapping, proc: Path) -> Path:
    return proc / str(mapping.pid) / 'map_files' / f'{mapping.start:x}-{mapping.end:x}'


def _size(mapping: MemoryMapping, proc: Path) -> int:
    """Return the size of the whole file, where this user may see it."""
    try:
        return os.stat(_map_file(mapping, proc)).st_size
    except OSError:
        return mapping.end - mapping.start


PAGE = os.sysconf('SC_PAGE_SIZE')
_RING = 'anon_inode:[io_uring]'


def find_pins(pids: Iterable[int] | None = None, proc: Path = PROC) -> list[str]:
    """
    Find pipes and rings that may hold pages.

    :returns: a line for each, with one of the processes that have it.

    :param pids: look at these only.
    """
    pipes: dict[tuple[int, int], int] = {}
    found = []
    for pid in all_pids(proc) if pids is None else pids:
        try:
            folder, entries = open_files(pid, proc)
        except OSError:
            continue  # hidden like its mappings, which the reader of mappings reports
        for entry in entries:
            link = folder / 'fd' / entry
            try:
                target = os.readlink(link)
                if target == _RING:
                    buffers = parse_fdinfo(
                        (folder / 'fdinfo' / entry).read_text(errors='replace')
                    ).get('UserBufs', '0')
                    if buffers != '0':
                        found.append(
                            f'{who(pid, proc)} has an io_uring with {buffers} registered buffers'
                        )
                elif target.startswith(('pipe:', '/')) and stat.S_ISFIFO(
                    (status := os.stat(link)).st_mode
                ):
                    identity = status.st_dev, status.st_ino
                    if identity not in pipes:
                        pipes[identity] = _unread(link)
                        if pipes[identity] >= PAGE:
                            found.append(
                                f'{who(pid, proc)} has a pipe with {pipes[identity]} bytes in it'
                            )
            except OSError:
                continue  # closed meanwhile, or hidden as well
    return found


def _unread(link: Path) -> int:
    """Return the number of bytes in a pipe, without reading them."""
    fd = os.open(link, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        count = array.array('i', [0])
        fcntl.ioctl(fd, termios.FIONREAD, count)
        return count[0]
    finally:
        os.close(fd)
