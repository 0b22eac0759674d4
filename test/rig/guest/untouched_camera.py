"""A camera whose pixels the CPU has no part in, with buffers of any heap, also of one that nobody knows."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from zc_perception.camera import heap_pool as heap_pool_module
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.owned_fd import OwnedFd

from .kernel_api import shadow_buffer

_PAGE = os.sysconf('SC_PAGE_SIZE')


class UntouchedCamera(SyntheticCamera):
    """Publishes its buffers as some device left them: the CPU has no part in it. Make its buffers within :func:`unmapped`."""

    def capture(self) -> Frame | None:
        """See :class:`Camera`."""
        assert self._pool is not None
        slot = self._pool.acquire() if self._wait_for_turn() else None
        if slot is None:
            return None
        self._sequence += 1
        self._captured += 1
        return Frame.publish_slot(
            self._pool, slot, header=self._header(), colorimetry=self.colorimetry, sequence=self._sequence,
            captured_ns=time.monotonic_ns(),
        )  # fmt: skip


@contextmanager
def unmapped() -> Iterator[None]:
    """The CPU never looks at these frames, so nothing is mapped for it."""
    with mock.patch.object(heap_pool_module, 'mapped', lambda allocate: allocate):
        yield


class ShadowHeap:
    """The rig's own exporter, which nobody knows, under the name of a heap that the accelerator takes."""

    name = 'udmabuf'

    def allocate(self, size: int) -> DmaBuf:
        """See :class:`Heap`."""
        return DmaBuf(OwnedFd(shadow_buffer(-(-size // _PAGE) * _PAGE).fd), BufferKind.DMABUF, self.name)

    def close(self) -> None:
        """See :class:`Heap`."""
