"""What is behind a descriptor: a dma-buf, a memfd that can't change its size, or no buffer at all.

Source: the kernel's *Buffer Sharing and Synchronization* on fdinfo, fcntl(2) on seals.
"""

from __future__ import annotations

import fcntl
import os
import stat

from zc_perception.memory import kernel_abi as abi
from zc_perception.memory.owned_fd import OwnedFd

_FIXED_SIZE_SEALS = {'SHRINK': abi.F_SEAL_SHRINK, 'GROW': abi.F_SEAL_GROW}
FIXED_SIZE = abi.F_SEAL_SHRINK | abi.F_SEAL_GROW
NO_NEW_WRITERS = abi.F_SEAL_FUTURE_WRITE | abi.F_SEAL_WRITE


def is_dmabuf(fd: OwnedFd) -> bool:
    """Whether the kernel says so: only a dma-buf's fdinfo names an exporter."""
    return 'exp_name' in abi.fdinfo(fd.fileno())


def seals_of(fd: int) -> int:
    """A memfd's seals; 0 for what has none. A file of tmpfs has F_SEAL_SEAL alone."""
    try:
        return fcntl.fcntl(fd, abi.F_GET_SEALS)
    except OSError:
        return 0


def is_write_only(fd: int) -> bool:
    """Whether it was opened with O_WRONLY: what is behind it can't be mapped, neither for reading nor for writing."""
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY


def describe_descriptor(fd: int) -> str:
    """A descriptor that isn't a buffer, in words."""
    mode = os.fstat(fd).st_mode
    link = abi.describe_fd(fd)
    if link.startswith('/memfd:'):
        missing = '|'.join(f'F_SEAL_{name}' for name, seal in _FIXED_SIZE_SEALS.items() if not seals_of(fd) & seal)
        return f'a memfd ({link}) that can still change its size; its owner has to add {missing}'
    kinds = ((stat.S_ISFIFO, 'a pipe'), (stat.S_ISSOCK, 'a socket'), (stat.S_ISDIR, 'a directory'), (stat.S_ISCHR, 'a device file'),
             (stat.S_ISREG, 'a plain file'))  # fmt: skip
    kind = next((words for matches, words in kinds if matches(mode)), 'no memory')
    if link.startswith('anon_inode:'):
        kind = 'no memory'
    return f'{kind} ({link}); send a dma-buf, or a memfd with the seals SHRINK and GROW'
