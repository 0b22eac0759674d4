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

- debugfs ``dma_buf/bufinfo``: every dma-buf, and the only file that names the devices attached to
  it, and the fences in its reservation object. The fence of a job that has ended stays there until
  the next job replaces it. Sizes and inodes are decimal, padded with zeros. Sources:
  drivers/dma-buf/dma-buf.c, ``dma_buf_debug_show``; dma-resv.c, ``dma_resv_describe``.
- ``/proc/PID/fd`` and ``fdinfo``: who holds which buffer. Source:
  Documentation/filesystems/proc.rst, *DMA Buffer files*: ``size``, ``count``, ``ino``,
  ``exp_name``, and ``name`` if it has one.

``bufinfo`` alone misses what is attached and detached again between two looks. So one look is
taken in which nothing was attached or detached at the same time, and all attach and detach events
before and after it are applied: :func:`event_history`. The result is the exact list at each
moment, if all other looks agree with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
import os
from pathlib import Path
import re

from zc_perception.observe.processes import open_files, PROC, who
from zc_perception.observe.timeline import KernelEvent
from zc_perception.verify.evidence import Unreadable, unreadable_file
from zc_perception.verify.evidence.kernel_events import ATTACH, DETACH

DEBUGFS = Path('/sys/kernel/debug')
_NO_BUFINFO = (
    'mount debugfs (mount -t debugfs none /sys/kernel/debug) of a kernel with CONFIG_DEBUG_FS'
)
_OBJECT = re.compile(r'^(\d{8,})\t[0-9a-f]{8}\t[0-9a-f]{8}\t\d+\t(.*?)\t(\d{8,})(?:\t.*)?$')
# Linux 5.15 shows neither the purpose of a fence nor its number.
_READ_FENCE = re.compile(r'^\t[Rr]ead fence:(\S+) .*\bseq (\d+) ')


@dataclass
class BufferObject:
    """
    One dma-buf.

    :ivar attached: names of the devices attached to it, one for each attachment.
    :ivar reads: fences of jobs that read it: the driver's name, and the fence's number.
    """

    inode: int
    size: int
    exporter: str
    attached: list[str] = field(default_factory=list)
    reads: list[tuple[str, int]] = field(default_factory=list)


def parse_bufinfo(text: str) -> dict[int, BufferObject] | None:
    """Return the dma-bufs by inode; ``None``: this is not a ``bufinfo``."""
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


# An attach is recorded when it returns and a detach when it begins, so a look in between sees the
# attachment without its event.
_MARGIN_NS = 2_000_000
_PRECISION_NS = 1000


@dataclass(frozen=True)
class Snapshot:
    """One look at ``bufinfo``, which lasted from *start_ns* to *end_ns* (CLOCK_MONOTONIC)."""

    start_ns: int
    end_ns: int
    objects: Mapping[int, BufferObject]

    def attached(self, inode: int) -> Counter[str]:
        """Return how often each device is attached; empty for an unknown buffer."""
        found = self.objects.get(inode)
        return Counter(found.attached) if found is not None else Counter()


@dataclass
class History:
    """
    The attachments of one buffer.

    :ivar times: when each state begins; the first state also holds for all time before.
    :ivar exact: whether events and looks agree; else the states are only what was seen, and there
        may have been more.
    """

    times: list[int] = field(default_factory=list)
    states: list[Counter[str]] = field(default_factory=list)
    exact: bool = True

    def at(self, time_ns: int) -> Counter[str]:
        """
        Return the devices at a moment.

        Two moments within one microsecond are the same.
        """
        return self.states[max(0, bisect_right(self.times, time_ns + _PRECISION_NS) - 1)]

    def during(self, start_ns: int, end_ns: int) -> list[Counter[str]]:
        """Return all states of a span of time."""
        first = max(0, bisect_right(self.times, start_ns) - 1)
        end = max(first + 1, bisect_right(self.times, end_ns))
        return self.states[first:end]


def event_history(
    inode: int, snapshots: Sequence[Snapshot], events: Iterable[KernelEvent]
) -> History:
    """Make a history from looks and from all events since the recording began."""
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
    """Apply one event, and say whether it was possible."""
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
    """
    Make a history from looks alone: what was attached at each of them.

    It is never exact.
    """
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
    A descriptor of a buffer in a process.

    :ivar kind: :data:`DMABUF` or :data:`MEMFD`.
    :ivar device: ``st_dev``.
    :ivar exporter: the dma-buf's exporter; empty where the process's fdinfo names none.
    :ivar name: what the descriptor's link in ``/proc/PID/fd`` says.
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
    """Descriptors of buffers in processes, and the processes that this user may not look into."""

    held: tuple[HeldBuffer, ...]
    unreadable: tuple[Unreadable, ...]

    def exporters(self) -> Mapping[int, str]:
        """Return the exporters of dma-bufs by inode."""
        return {
            one.inode: one.exporter for one in self.held if one.kind == DMABUF and one.exporter
        }


def parse_fdinfo(text: str) -> dict[str, str]:
    """Parse ``key: value`` lines."""
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
            continue  # closed meanwhile
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
