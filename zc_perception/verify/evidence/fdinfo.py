"""Who holds which buffer: ``/proc/PID/fd`` and ``fdinfo``.

Source: Documentation/filesystems/proc.rst, *DMA Buffer files*: ``size``, ``count``, ``ino``, ``exp_name``, and ``name`` if it has one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from zc_perception.verify.evidence.processes import PROC, command_name
from zc_perception.verify.evidence.unreadable import Unreadable, unreadable_file

_ENDED = 'start the process again'
DMABUF, MEMFD = 'dma-buf', 'memfd'


@dataclass(frozen=True)
class HeldBuffer:
    """A descriptor of a buffer in a process.

    :ivar kind: :data:`DMABUF` or :data:`MEMFD`.
    :ivar device: ``st_dev``.
    :ivar exporter: of a dma-buf; empty where the process's fdinfo says none.
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
    """Descriptors of buffers in processes, and the processes whose descriptors may not be seen."""

    held: tuple[HeldBuffer, ...]
    unreadable: tuple[Unreadable, ...]

    def exporters(self) -> Mapping[int, str]:
        """By inode of dma-bufs."""
        return {one.inode: one.exporter for one in self.held if one.kind == DMABUF and one.exporter}


def parse_fdinfo(text: str) -> dict[str, str]:
    """``key: value`` lines."""
    pairs = (line.partition(':') for line in text.splitlines())
    return {key.strip(): value.strip() for key, separator, value in pairs if separator}


def buffers_of(pid: int, proc: Path = PROC) -> list[HeldBuffer] | Unreadable:
    """The buffers that a process has open: dma-bufs and memfds."""
    folder = proc / str(pid) / 'fd'
    try:
        entries = os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError):
        return []
    except OSError as error:
        return unreadable_file(folder, error, _ENDED, f'open files of process {pid} ({command_name(pid, proc)})')
    found = []
    for entry in entries:
        try:
            target = os.readlink(folder / entry)
            if not target.startswith(('/dmabuf:', '/memfd:')):
                continue
            status = os.stat(folder / entry)
            info = parse_fdinfo((proc / str(pid) / 'fdinfo' / entry).read_text(errors='replace'))
        except PermissionError as error:
            return unreadable_file(folder / entry, error, _ENDED, f'open files of process {pid} ({command_name(pid, proc)})')
        except OSError:
            continue  # closed meanwhile
        kind = MEMFD if target.startswith('/memfd:') else DMABUF
        inode = int(info['ino']) if info.get('ino', '').isdigit() and kind == DMABUF else status.st_ino
        size = int(info['size']) if info.get('size', '').isdigit() else status.st_size
        found.append(HeldBuffer(pid, int(entry), kind, status.st_dev, inode, size, info.get('exp_name', ''), info.get('name', '')))
    return found


def read_holders(pids: Iterable[int], proc: Path = PROC) -> Holders:
    """The buffers that these processes have open."""
    held: list[HeldBuffer] = []
    unreadable = []
    for pid in pids:
        found = buffers_of(pid, proc)
        if isinstance(found, Unreadable):
            unreadable.append(found)
        else:
            held += found
    return Holders(tuple(held), tuple(unreadable))
