"""sysfs ``/sys/kernel/dmabuf/buffers``: exporter and size of each dma-buf, where a kernel has them (5.13 to 6.18, if configured).

Attachments were never in a released kernel's directory, whatever older documents say.

Source: Documentation/ABI/testing/sysfs-kernel-dmabuf-buffers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zc_perception.verify.evidence.unreadable import Unreadable, unreadable_file

SYSFS = Path('/sys')
_ABSENT = 'nothing: bufinfo and fdinfo say the same; kernels from 5.13 to 6.18 have it with CONFIG_DMABUF_SYSFS_STATS'


@dataclass(frozen=True)
class BufferStatistics:
    """What sysfs tells of one dma-buf; *size* in bytes."""

    inode: int
    exporter: str
    size: int


def read_buffer_statistics(sysfs: Path = SYSFS) -> Mapping[int, BufferStatistics] | Unreadable:
    """All dma-bufs by inode. One that goes meanwhile is left out."""
    folder = sysfs / 'kernel' / 'dmabuf' / 'buffers'
    try:
        entries = os.listdir(folder)
    except OSError as error:
        return unreadable_file(folder, error, _ABSENT, 'sysfs dmabuf statistics')
    found = {}
    for entry in entries:
        if not entry.isdigit():
            continue
        try:
            exporter = (folder / entry / 'exporter_name').read_text(errors='replace').strip()
            size = int((folder / entry / 'size').read_text())
        except PermissionError as error:
            return unreadable_file(folder / entry, error, _ABSENT, 'sysfs dmabuf statistics')
        except (OSError, ValueError):
            continue
        found[int(entry)] = BufferStatistics(int(entry), exporter, size)
    return found
