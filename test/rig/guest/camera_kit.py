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

"""Helpers of the cameras' checks: opened and untouched cameras, consumers, next frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
import fcntl
import os
from typing import Any
from unittest import mock

from camera.camera_options import camera_options
import frame_kit
from waiting import until

from zc_perception.camera import camera as camera_module
from zc_perception.camera.camera import Camera
from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.camera.v4l2.camera import V4l2Camera
from zc_perception.camera.v4l2.device import V4l2Controls, V4l2Device
from zc_perception.errors import CameraError
from zc_perception.frame import Frame
from zc_perception.memory import kernel_abi as abi
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import Slot
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.session import BufferSession, Consumer
from zc_perception.negotiation.settings import Allocation, AllocationRequest

from .graph_variants import VIVID_START_OF_EXPOSURE
from .kernel_api import shadow_buffer
from .package_kit import PAGE, refused

SIZE, RATE = (640, 360), 30.0
PATIENCE_S = 60.0


def opened(
    path: str, *, size: tuple[int, int] = SIZE, rate: float = RATE, **options: Any
) -> V4l2Camera:
    return V4l2Camera(
        camera_options(device=path, width=size[0], height=size[1], framerate=rate, **options)
    )


def agreed(
    camera: Camera,
    stand_ins: Sequence[BufferConstraints],
    consumers: Sequence[Consumer] = (),
    slots: int = 4,
) -> BufferSession:
    """Agree on a camera's buffers as a capture node does."""
    session = BufferSession(
        camera.constraints(),
        (camera.width, camera.height),
        wanted_slots=slots,
        stand_ins=stand_ins,
    )

    def allocate(request: AllocationRequest) -> Allocation:
        camera.allocate(request)
        return Allocation(camera.slots[0].layout, tuple(slot.buffers for slot in camera.slots))

    session.allocate(consumers, allocate)
    return session


def configured(camera: V4l2Camera, consumers: Sequence[BufferConstraints] = ()) -> V4l2Camera:
    agreed(camera, consumers, slots=6)
    return camera


@contextmanager
def streaming(
    path: str, consumers: Sequence[BufferConstraints] = (), **options: Any
) -> Iterator[V4l2Camera]:
    """Yield a configured camera whose timestamps are in the past, as a real camera's are."""
    with closing(opened(path, **options)) as camera:
        if 'timestamp_source' in camera.controls():  # a webcam on USB has no such control
            camera.set_control('timestamp_source', VIVID_START_OF_EXPOSURE)
        yield configured(camera, consumers)


def next_frame(camera: Camera) -> Frame:
    """Return the camera's next frame; the wait is limited."""
    frame: Frame = until(
        camera.capture,
        lambda: f'a frame: {camera.statistics()} {camera.pool_statistics()}',
        PATIENCE_S,
        lambda: None,  # the camera itself waits for its next frame
    )
    return frame


def capture_until(camera: Camera, condition: Callable[[], bool], what: str) -> None:
    def capture() -> None:
        frame = camera.capture()
        if frame is not None:
            frame.release()

    until(condition, lambda: f'{what}; {camera.statistics()}', PATIENCE_S, capture)


def until_raises(camera: Camera, kind: type[CameraError], *words: str) -> None:
    with refused(kind, *words):
        capture_until(camera, lambda: False, kind.__name__)


def set_controls(path: str, **values: Any) -> None:
    """Set controls of a device, from which another one may stream."""
    with closing(V4l2Device.open(path)) as device:
        for name, value in values.items():
            V4l2Controls(device).set(name, value)


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
        shown = {'header': self._header(), 'colorimetry': self.colorimetry}
        return frame_kit.next_frame(self._pool, self._sequence, slot, **shown)

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
            OwnedFd(shadow_buffer(-(-size // PAGE) * PAGE).fd), BufferKind.DMABUF, self.name
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
        aligned = -(-size // PAGE) * PAGE
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
