"""Memory that belongs to a library, GStreamer or libcamera, which lends it to us with a frame."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from zc_perception.memory.dmabuf import BufferIdentity, DmaBuf
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import Buffers, close_buffers
from zc_perception.parameters import ParameterSpec

PIPELINE_BUFFERS = ParameterSpec(
    'pipeline_buffers', 8, 'number of buffers of the pipeline.', '', 3, 32
)
"""Declared by each kind of camera whose library has the buffers."""


class BorrowedMemory(NamedTuple):
    """A part of what somebody else's descriptor refers to. The descriptor is never closed here, only duplicated.

    :param offset: where the part begins, in bytes.
    :param size: its bytes.
    """

    number: int
    offset: int
    size: int

    def identity(self) -> BufferIdentity:
        """What it refers to. The number alone says nothing: it is another buffer's as soon as its owner has closed it."""
        status = os.fstat(self.number)
        return BufferIdentity(status.st_dev, status.st_ino)


def own_descriptors(parts: Iterable[BorrowedMemory], heap: str | None = None) -> Buffers:
    """Descriptors of our own, one for each part, or none at all.

    :param heap: the allocator's name where it is known.
    :raises AllocationError: one is neither a dma-buf nor memory that can't change its size.
    """
    made: list[DmaBuf] = []
    try:
        for part in parts:
            made.append(DmaBuf.from_fd(OwnedFd.duplicate(part.number), heap=heap, lent=True))
    except BaseException:
        close_buffers(made)
        raise
    return tuple(made)
