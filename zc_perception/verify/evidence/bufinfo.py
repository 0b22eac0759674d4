"""debugfs ``dma_buf/bufinfo``: every dma-buf of the system, and the only file that names the devices attached to it.

Source: drivers/dma-buf/dma-buf.c, ``dma_buf_debug_show``. Sizes and inodes are decimal, padded with zeros.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zc_perception.verify.evidence.unreadable import Unreadable, unreadable_file

DEBUGFS = Path('/sys/kernel/debug')
_ABSENT = 'mount debugfs (mount -t debugfs none /sys/kernel/debug) of a kernel with CONFIG_DEBUG_FS'
_OBJECT = re.compile(r'^(\d{8,})\t[0-9a-f]{8}\t[0-9a-f]{8}\t(\d+)\t(.*?)\t(\d{8,})(?:\t(.*))?$')


@dataclass
class BufferObject:
    """One dma-buf.

    :ivar count: of references to its file.
    :ivar attached: names of the devices attached to it, one for each attachment.
    """

    inode: int
    size: int
    count: int
    exporter: str
    name: str = ''
    attached: list[str] = field(default_factory=list)


def parse_bufinfo(text: str) -> dict[int, BufferObject] | None:
    """By inode; ``None``: this is not a ``bufinfo``."""
    found: dict[int, BufferObject] = {}
    current: BufferObject | None = None
    listing = False
    known = False
    for line in text.splitlines():
        if match := _OBJECT.match(line):
            name = (match[5] or '').strip()
            current = BufferObject(int(match[4]), int(match[1]), int(match[2]), match[3], '' if name == '<none>' else name)
            found[current.inode] = current
            listing = False
        elif line.strip() == 'Attached Devices:':
            listing = True
        elif listing and current is not None and line.startswith('\t') and line.strip():
            current.attached.append(line.strip())
        else:
            listing = False
            known = known or line.strip() == 'Dma-buf Objects:'
    return found if known or found else None


def read_bufinfo(debugfs: Path = DEBUGFS) -> Mapping[int, BufferObject] | Unreadable:
    """All dma-bufs by inode, with their attachments."""
    path = debugfs / 'dma_buf' / 'bufinfo'
    try:
        text = path.read_text(encoding='utf-8', errors='replace')
    except OSError as error:
        return unreadable_file(path, error, _ABSENT, 'bufinfo')
    found = parse_bufinfo(text)
    if found is None:
        return Unreadable('bufinfo', f"{path} is not what the kernel's dma-buf code writes", 'report the kernel version')
    return found
