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

"""A camera whose pixels the CPU never touches, with buffers of any heap or exporter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
import fcntl
import os
import time
from unittest import mock

from zc_perception.camera import camera as camera_module
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.frame import Frame
from zc_perception.memory import kernel_abi as abi
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import Slot

from .kernel_api import shadow_buffer

_PAGE = os.sysconf('SC_PAGE_SIZE')


class UntouchedCamera(SyntheticCamera):
    """Publishes its buffers as a device left them; make them within :func:`unmapped`."""

    def capture(self) -> Frame | None:
        assert self._pool is not None
        slot = self._pool.acquire() if self._wait_for_turn() else None
        if slot is None:
            return None
        self._fill(slot)
        self._sequence += 1
        self._captured += 1
        return Frame.publish_slot(
            self._pool,
            slot,
            header=self._header(),
            colorimetry=self.colorimetry,
            sequence=self._sequence,
            captured_ns=time.monotonic_ns(),
        )

    def _fill(self, slot: Slot) -> None:
        """Leave the pixels as they are."""


@contextmanager
def unmapped() -> Iterator[None]:
    """Keep the camera from mapping its buffers for the CPU."""
    with mock.patch.object(camera_module, 'mapped', lambda allocate: allocate):
        yield


class ShadowHeap:
    """The rig's own, unknown exporter, named like a heap that the accelerator accepts."""

    name = 'udmabuf'

    def allocate(self, size: int) -> DmaBuf:
        return DmaBuf(
            OwnedFd(shadow_buffer(-(-size // _PAGE) * _PAGE).fd), BufferKind.DMABUF, self.name
        )

    def close(self) -> None:
        """See :class:`Heap`."""


class OneMemfd:
    """A heap whose buffers all lie in one memfd, which it keeps; udmabuf exports each part."""

    name = 'udmabuf'
    _BUFFERS = 32

    def __init__(self) -> None:
        self._memory = OwnedFd(os.memfd_create('frames', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        self._offsets: dict[int, int] = {}

    def allocate(self, size: int) -> DmaBuf:
        aligned = -(-size // _PAGE) * _PAGE
        if not self._offsets:
            os.ftruncate(self._memory.fileno(), self._BUFFERS * aligned)
            fcntl.fcntl(self._memory.fileno(), fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        offset = len(self._offsets) * aligned
        with OwnedFd.open('/dev/udmabuf', os.O_RDWR) as device:
            argument = bytearray(
                abi.UDMABUF_CREATION.pack(
                    self._memory.fileno(), abi.UDMABUF_FLAGS_CLOEXEC, offset, aligned
                )
            )
            buffer = DmaBuf(
                OwnedFd(fcntl.ioctl(device.fileno(), abi.UDMABUF_CREATE, argument)),
                BufferKind.DMABUF,
                self.name,
            )
        self._offsets[buffer.identity.inode] = offset
        return buffer

    def write(self, buffer: DmaBuf, pixels: bytes) -> None:
        os.pwrite(self._memory.fileno(), pixels, self._offsets[buffer.identity.inode])

    def close(self) -> None:
        self._memory.close()


def writing_camera(heap: OneMemfd) -> type[UntouchedCamera]:
    """Return a camera class that writes each frame through the memfd, without a mapping."""

    class WritingCamera(UntouchedCamera):
        def _fill(self, slot: Slot) -> None:
            heap.write(slot.buffers[0], bytes([self._sequence % 256]) * slot.layout.buffer_size(0))

    return WritingCamera
