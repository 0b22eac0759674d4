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
Find the system's dma-bufs and memfds, what is attached to them, and which process holds them.

There are two sources.

- debugfs ``dma_buf/bufinfo``: lists every dma-buf. No other file names the devices attached to a
  dma-buf, or the fences in its reservation object. The fence of a job that has ended stays in this
  object until the next job's fence replaces it. Sizes and inodes are decimal, padded with zeros.
  Sources: drivers/dma-buf/dma-buf.c, ``dma_buf_debug_show``; dma-resv.c, ``dma_resv_describe``.
- ``/proc/PID/fd`` and ``fdinfo`` show which process holds which buffer. Source:
  Documentation/filesystems/proc.rst, *DMA Buffer files*: ``size``, ``count``, ``ino``,
  ``exp_name``, and ``name`` if the buffer has one.

``bufinfo`` alone misses a device that is attached and detached between two readings (looks). So
:func:`event_history` starts from a look during which nothing was attached or detached, and applies
all attach and detach events before and after that look. The result is the exact list of attached
devices at each moment, provided that all other looks agree with it.

The other functions find ways by which the CPU could read or write a frame: :func:`scan_maps` finds
mappings, :func:`find_memfds` finds memfds that may be the memory of frames in udmabuf buffers,
and :func:`find_pins` finds pipes and io_urings that may hold pages of frames.

A dma-buf has no ``read()``: a process that has not mapped it can't copy from it in user space. A
buffer of udmabuf is made of a memfd's pages, which any holder of that memfd can map. The kernel
doesn't tell which memfd that is, so :func:`find_memfds` finds all that could be: memfds at least
as large as a frame and sealed against shrinking, as udmabuf demands. If a memfd is mapped and
unmapped between two looks, no event shows this.

The buffers of a V4L2 camera can also be mapped through a device file of the camera. A privileged
user can create such files with any name, in any folder. So :func:`scan_maps` identifies the camera
by the number of the mapped device, which ``/proc/PID/map_files`` gives. For this it examines only
shared mappings, because V4L2 allows no others.

vmsplice(2) puts the pages of a mapping into a pipe, and io_uring keeps the pages of registered
buffers. Both hold the pages themselves, not a copy of them. The pages stay readable after the
mapping is gone, and show what a device writes later. No event and no file tells which pages a pipe
or ring holds. So each pipe that contains at least one page of bytes, and each ring with registered
buffers, counts as a possible way. Pages in a socket's queue, and pages that another driver keeps,
are not found.

Sources: proc_pid_maps(5): a dma-buf's lines are called ``/dmabuf:NAME`` and have its inode, in
decimal; vmsplice(2); ioctl FIONREAD of pipe(7); io_uring_register(2), ``io_uring_show_fdinfo``.
"""

from __future__ import annotations

import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
import contextlib
from dataclasses import dataclass, field
import fcntl
import os
from pathlib import Path
import re
import stat
import termios

from zc_perception.memory import kernel_abi as abi
from zc_perception.observe.frame_log import NAME, SIZE
from zc_perception.observe.processes import all_pids, as_root, folders_of, open_files, PROC, who
from zc_perception.observe.timeline import KernelEvent
from zc_perception.verify.evidence import Unreadable, unreadable_file
from zc_perception.verify.evidence.kernel_events import ATTACH, DETACH

DEBUGFS = Path('/sys/kernel/debug')
_NO_BUFINFO = (
    'mount debugfs (mount -t debugfs none /sys/kernel/debug); the kernel needs CONFIG_DEBUG_FS'
)
_OBJECT = re.compile(r'^(\d{8,})\t[0-9a-f]{8}\t[0-9a-f]{8}\t\d+\t(.*?)\t(\d{8,})(?:\t.*)?$')
# Linux 5.15 writes neither a fence's purpose nor its number, so its lines for fences are ignored.
_READ_FENCE = re.compile(r'^\t[Rr]ead fence:(\S+) .*\bseq (\d+) ')


@dataclass
class BufferObject:
    """
    One dma-buf.

    :ivar attached: names of the devices attached to it, one for each attachment.
    :ivar reads: the fences of jobs that read the buffer: the driver's name and the fence's number.
    """

    inode: int
    size: int
    exporter: str
    attached: list[str] = field(default_factory=list)
    reads: list[tuple[str, int]] = field(default_factory=list)


def parse_bufinfo(text: str) -> dict[int, BufferObject] | None:
    """Return the dma-bufs by inode; ``None``: *text* is not the content of ``bufinfo``."""
    found: dict[int, BufferObject] = {}
    current: BufferObject | None = None
    listing = False
    known = False
    for line in text.splitlines():
        if match := _OBJECT.match(line):
            current = BufferObject(int(match[3]), int(match[1]), match[2])
            found[current.inode] = current
            listing = False
        elif line.strip() == 'Attached Devices:':
            listing = True
        elif current is not None and not listing and (fence := _READ_FENCE.match(line)):
            current.reads.append((fence[1], int(fence[2])))
        elif listing and current is not None and line.startswith('\t') and line.strip():
            current.attached.append(line.strip())
        else:
            listing = False
            known = known or line.strip() == 'Dma-buf Objects:'
    return found if known or found else None


def read_bufinfo(debugfs: Path = DEBUGFS) -> Mapping[int, BufferObject] | Unreadable:
    """Return all dma-bufs by inode, with their attachments."""
    path = debugfs / 'dma_buf' / 'bufinfo'
    try:
        text = path.read_text(encoding='utf-8', errors='replace')
    except OSError as error:
        return unreadable_file(path, error, _NO_BUFINFO, 'bufinfo')
    found = parse_bufinfo(text)
    if found is None:
        return Unreadable(
            'bufinfo',
            f"{path} is not what the kernel's dma-buf code writes",
            'report the kernel version',
        )
    return found


# The kernel records an attach event when it has attached a device, and a detach event before it
# detaches a device. So bufinfo may show a device as attached shortly before the attach event, and
# shortly after the detach event. Readings of bufinfo within _MARGIN_NS of an event aren't used.
_MARGIN_NS = 2_000_000
_PRECISION_NS = 1000


@dataclass(frozen=True)
class Snapshot:
    """What ``bufinfo`` showed when it was read, from *start_ns* to *end_ns* (CLOCK_MONOTONIC)."""

    start_ns: int
    end_ns: int
    objects: Mapping[int, BufferObject]

    def attached(self, inode: int) -> Counter[str]:
        """Count each device's attachments to the dma-buf *inode*; empty if it isn't listed."""
        found = self.objects.get(inode)
        return Counter(found.attached) if found is not None else Counter()


@dataclass
class History:
    """
    The devices attached to one buffer over time.

    :ivar times: when each state begins; the first state also counts for all time before.
    :ivar exact: whether the recorded attach and detach events agree with the readings of
        ``bufinfo``. If they don't, there may have been states that are not listed.
    """

    times: list[int] = field(default_factory=list)
    states: list[Counter[str]] = field(default_factory=list)
    exact: bool = True

    def at(self, time_ns: int) -> Counter[str]:
        """
        Return the attached devices at a moment.

        Events within the same microsecond count as one moment.
        """
        return self.states[max(0, bisect_right(self.times, time_ns + _PRECISION_NS) - 1)]

    def during(self, start_ns: int, end_ns: int) -> list[Counter[str]]:
        """Return each set of attached devices that existed during a span of time."""
        first = max(0, bisect_right(self.times, start_ns) - 1)
        end = max(first + 1, bisect_right(self.times, end_ns))
        return self.states[first:end]


def event_history(
    inode: int, snapshots: Sequence[Snapshot], events: Iterable[KernelEvent]
) -> History:
    """Return a buffer's history from readings of ``bufinfo``, and from all recorded events."""
    own = sorted(
        (
            event
            for event in events
            if event.name in (ATTACH, DETACH) and event.inode == inode and not event.failed
        ),
        key=lambda event: event.time_ns,
    )
    base = next((look for look in snapshots if _is_quiet(look, own)), None)
    exact = base is not None or not snapshots
    state = Counter(base.attached(inode)) if base is not None else Counter()
    before = [event for event in own if base is not None and event.time_ns < base.start_ns]
    for event in reversed(before):
        exact = _step(state, event, backwards=True) and exact
    history = History([0], [Counter(state)], exact)
    for event in own:
        history.exact = _step(state, event, backwards=False) and history.exact
        history.times.append(event.time_ns)
        history.states.append(Counter(state))
    for look in snapshots:
        if _is_quiet(look, own) and history.at(look.end_ns) != look.attached(inode):
            history.exact = False
    return history


def _is_quiet(look: Snapshot, own: Sequence[KernelEvent]) -> bool:
    return not any(
        look.start_ns - _MARGIN_NS <= event.time_ns <= look.end_ns + _MARGIN_NS for event in own
    )


def _step(state: Counter[str], event: KernelEvent, *, backwards: bool) -> bool:
    """Apply one event to *state*, or undo the event; return whether *state* allowed this."""
    device = event.fields.get('dev_name', '')
    if (event.name == ATTACH) != backwards:
        state[device] += 1
        return True
    if state[device] <= 0:
        del state[device]
        return False
    state[device] -= 1
    if not state[device]:
        del state[device]
    return True


def polled_history(inode: int, snapshots: Sequence[Snapshot]) -> History:
    """Make a buffer's history from readings of ``bufinfo``; such a history is never exact."""
    history = History([0], [snapshots[0].attached(inode) if snapshots else Counter()], False)
    for look in snapshots:
        history.times.append(look.start_ns)
        history.states.append(look.attached(inode))
    return history


_ENDED = 'start the process again'
DMABUF, MEMFD = 'dma-buf', 'memfd'


@dataclass(frozen=True)
class HeldBuffer:
    """
    A buffer that a process has open as a file descriptor.

    :ivar kind: :data:`DMABUF` or :data:`MEMFD`.
    :ivar device: the inode's ``st_dev``.
    :ivar exporter: the dma-buf's exporter; empty if the process's fdinfo names none.
    :ivar name: the target of the descriptor's link in ``/proc/PID/fd``.
    """

    pid: int
    fd: int
    kind: str
    device: int
    inode: int
    size: int = 0
    exporter: str = ''
    name: str = ''


@dataclass(frozen=True)
class Holders:
    """The processes' descriptors of buffers, and the processes that this user may not examine."""

    held: tuple[HeldBuffer, ...]
    unreadable: tuple[Unreadable, ...]

    def exporters(self) -> Mapping[int, str]:
        """Return the exporters of dma-bufs by inode."""
        return {
            one.inode: one.exporter for one in self.held if one.kind == DMABUF and one.exporter
        }


def parse_fdinfo(text: str) -> dict[str, str]:
    """Parse the ``key: value`` lines of a file in ``/proc/PID/fdinfo``."""
    pairs = (line.partition(':') for line in text.splitlines())
    return {key.strip(): value.strip() for key, separator, value in pairs if separator}


def buffers_of(pid: int, proc: Path = PROC) -> list[HeldBuffer] | Unreadable:
    """Return the buffers that a process has open: dma-bufs and memfds."""
    try:
        folder, entries = open_files(pid, proc)
    except OSError as error:
        return unreadable_file(
            proc / str(pid) / 'fd', error, _ENDED, f'open files of {who(pid, proc)}'
        )
    found = []
    for entry in entries:
        link = folder / 'fd' / entry
        try:
            target = os.readlink(link)
            if not target.startswith(('/dmabuf:', '/memfd:')):
                continue
            status = os.stat(link)
            info = parse_fdinfo((folder / 'fdinfo' / entry).read_text(errors='replace'))
        except PermissionError as error:
            return unreadable_file(link, error, _ENDED, f'open files of {who(pid, proc)}')
        except OSError:
            continue  # the process has closed the descriptor since the folder was listed
        kind = MEMFD if target.startswith('/memfd:') else DMABUF
        inode = (
            int(info['ino']) if info.get('ino', '').isdigit() and kind == DMABUF else status.st_ino
        )
        size = int(info['size']) if info.get('size', '').isdigit() else status.st_size
        found.append(
            HeldBuffer(
                pid, int(entry), kind, status.st_dev, inode, size, info.get('exp_name', ''), target
            )
        )
    return found


def read_holders(pids: Iterable[int], proc: Path = PROC) -> Holders:
    """Return the buffers that these processes have open."""
    held: list[HeldBuffer] = []
    unreadable = []
    for pid in pids:
        found = buffers_of(pid, proc)
        if isinstance(found, Unreadable):
            unreadable.append(found)
        else:
            held += found
    return Holders(tuple(held), tuple(unreadable))


# The whole text of a process's maps is searched for these words at once, as bytes. This is fast,
# which matters: hundreds of processes have hundreds of lines each.
_WORTH = (b' /dmabuf:', b' /memfd:', b' /dev/')
_LINE = rb'^([0-9a-f]+)-([0-9a-f]+) (%s) [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) (\d+)[ \t]+(%s[^\n]*)$'
_NAMED = re.compile(_LINE % (rb'\S{4}', rb'(?:/dmabuf:|/memfd:|/dev/)'), re.MULTILINE)
_SHARED = re.compile(_LINE % (rb'\S{3}s', rb'(?!/dmabuf:|/memfd:)/'), re.MULTILINE)


@dataclass(frozen=True)
class MemoryMapping:
    """One mapping of a frame's memory or of a camera; *device* is the inode's ``st_dev``."""

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
    The frames' memory, which is looked for in the processes' mappings.

    :param dmabufs: the inodes of dma-bufs.
    :param memfds: (st_dev, inode) of memfds.
    :param cameras: paths of video devices, such as ``/dev/video0``.
    :param camera_numbers: the cameras' device numbers, as ``st_rdev``.
    :param any_camera: whether frames lie in buffers of a video device that no frame log names. If
        so, every video device counts as a camera.
    """

    dmabufs: frozenset[int] = frozenset()
    memfds: frozenset[tuple[int, int]] = frozenset()
    cameras: frozenset[str] = frozenset()
    camera_numbers: frozenset[int] = frozenset()
    any_camera: bool = False

    def matches(self, mapping: MemoryMapping) -> bool:
        """Return whether a mapping is of memory that has frames."""
        if mapping.name.startswith('/dev/'):
            return mapping.name.removesuffix(' (deleted)') in self.cameras
        if mapping.name.startswith('/memfd:'):
            return (mapping.device, mapping.inode) in self.memfds
        return mapping.inode in self.dmabufs


@dataclass(frozen=True)
class MapsScan:
    """The result of reading the maps of all given processes once."""

    mappings: tuple[MemoryMapping, ...]
    unreadable: tuple[Unreadable, ...]


def parse_maps(pid: int, text: bytes) -> list[MemoryMapping]:
    """Return the mappings of dma-bufs, memfds and devices; only these can contain frames."""
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
    """Return a process's maps, empty if it has ended; raise OSError if they aren't readable."""
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
    """Find mappings of frames in the processes *pids* (``None``: all), except in *skip*."""
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
                    f'{mapping.name} is a video device, and perhaps the camera: a capture node '
                    'does not say which device it uses'
                )
                step = f'end {who(pid, proc)} and measure once more'
                unreadable.append(Unreadable(f'mappings of {who(pid, proc)}', reason, step))
        found += own
    return MapsScan(tuple(found), tuple(unreadable))


def _device_number(mapping: MemoryMapping, proc: Path) -> int | Unreadable:
    """Return the device number of the mapped file; 0: it is no device, or the mapping is gone."""
    file = _map_file(mapping, proc)
    try:
        return _number_of(os.stat(file))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and _has_entries(file.parent):
            return 0
    # map_files can't be read: this user may not read it, or the process's main thread has ended.
    # So look for the mapping's path, also in the process's root folder.
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
    step = 'run zc_verify as root outside of any container, or end that program'
    return Unreadable(
        source,
        f'it is not known whether {mapping.name}, which this program has mapped, is a camera',
        step,
    )


#: The major device number of all video devices.
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
    Find the memfds that may be the memory of frames in udmabuf buffers.

    :returns: for each process, a line of text for each memfd that the process holds or maps.

    :param least: the smallest frame's size in bytes. A memfd may have several frames in it.
    :param pids: look only at these processes.
    :param skip: processes not to look at.
    :param but: (st_dev, inode) of memfds that are known to be something else.
    """
    found: dict[tuple[int, int, int], str] = {}
    for pid in all_pids(proc) if pids is None else pids:
        if pid in skip:
            continue
        process = who(pid, proc)
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
                    f'{process} holds memfd {one.inode} of {one.size} bytes',
                )
        try:
            text = read_maps(pid, proc)
        except OSError:
            continue  # the process can't be examined; scan_maps() reports this
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
                    f'{process} maps memfd {mapping.inode} of {size} bytes'
                )
    return [line for (_, *identity), line in found.items() if tuple(identity) not in but]


def _is_log(name: str, size: int) -> bool:
    return name.startswith(_LOG) and size == SIZE


def _may_be_sealed(link: Path) -> bool:
    """Return whether a memfd is sealed against shrinking; also true if this isn't known."""
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
    """
    Return the size of the whole mapped file.

    If this user may not see that size, return the mapping's length.
    """
    try:
        return os.stat(_map_file(mapping, proc)).st_size
    except OSError:
        return mapping.end - mapping.start


PAGE = os.sysconf('SC_PAGE_SIZE')
_RING = 'anon_inode:[io_uring]'


def find_pins(pids: Iterable[int] | None = None, proc: Path = PROC) -> list[str]:
    """Return a line for each pipe or io_uring that may hold frames' pages, with its process."""
    pipes: dict[tuple[int, int], int] = {}
    found = []
    for pid in all_pids(proc) if pids is None else pids:
        try:
            folder, entries = open_files(pid, proc)
        except OSError:
            # the process can't be examined; scan_maps() reports this
            continue
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
                # the process has closed the descriptor, or this user may not read it
                continue
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
