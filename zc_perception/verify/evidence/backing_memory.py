"""Who can touch a frame of udmabuf without its dma-buf: such a buffer is made of a memfd's pages, which any holder of that can map.

Nothing in the kernel tells which memfd a buffer is made of, so this only finds those that may be: of the same size. No event tells of a
mapping that comes and goes between two looks.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from zc_perception.observe.frame_log_layout import NAME
from zc_perception.verify.evidence.fdinfo import MEMFD, buffers_of
from zc_perception.verify.evidence.mappings import Mapping, parse_maps
from zc_perception.verify.evidence.processes import PROC, all_pids, command_name
from zc_perception.verify.evidence.unreadable import Unreadable

UDMABUF = 'udmabuf'
_LOG = f'/memfd:{NAME}'


def find_memfds(
    sizes: Collection[int],
    pids: Iterable[int] | None = None,
    proc: Path = PROC,
    skip: Collection[int] = (),
    but: Collection[tuple[int, int]] = (),
) -> list[str]:
    """Memfds of one of these *sizes* in bytes that processes hold or map: a line for each process and memfd.

    :param pids: look at these only.
    :param skip: processes not to look at.
    :param but: (st_dev, inode) of memfds that are known for something else.
    """
    found: dict[tuple[int, int, int], str] = {}
    for pid in all_pids(proc) if pids is None else pids:
        if pid in skip:
            continue
        held = buffers_of(pid, proc)
        for one in () if isinstance(held, Unreadable) else held:
            if one.kind == MEMFD and one.size in sizes and not _is_log(proc / str(pid) / 'fd' / str(one.fd)):
                found.setdefault(
                    (pid, one.device, one.inode), f'process {pid} ({command_name(pid, proc)}) holds memfd {one.inode} of {one.size} bytes'
                )
        try:
            text = (proc / str(pid) / 'maps').read_bytes()
        except OSError:
            continue  # told by the reader of mappings
        for mapping in parse_maps(pid, text):
            size = _size(mapping, proc)
            if mapping.name.startswith('/memfd:') and not mapping.name.startswith(_LOG) and size in sizes:
                line = f'process {pid} ({command_name(pid, proc)}) maps memfd {mapping.inode} of {size} bytes'
                found[pid, mapping.device, mapping.inode] = line
    return [line for (_, *identity), line in found.items() if tuple(identity) not in but]


def _is_log(link: Path) -> bool:
    try:
        return os.readlink(link).startswith(_LOG)
    except OSError:
        return False


def _size(mapping: Mapping, proc: Path) -> int:
    """Of the whole file, where that may be seen."""
    try:
        return os.stat(proc / str(mapping.pid) / 'map_files' / f'{mapping.start:x}-{mapping.end:x}').st_size
    except OSError:
        return mapping.end - mapping.start
