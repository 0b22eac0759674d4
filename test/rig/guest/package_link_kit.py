"""What the checks of rung 2 share: servers, cameras, the kernel's own word on pixels, and the C consumer."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zc_perception.camera.v4l2.camera import V4l2Camera
from zc_perception.frame import Frame
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.pool import BufferPool, Slot
from zc_perception.negotiation.agreement import agree
from zc_perception.negotiation.constraints import BufferConstraints

from .check_camera import cameras
from .harness import equal
from .package_expbuf import EXPORTERS
from .package_kit import kernel_crcs as kernel_crcs
from .package_link_processes import PATIENCE_S
from .package_memory_kit import publish

_LINK = Path(__file__).resolve().parents[2] / 'link'
sys.path += [str(_LINK / 'wire'), str(_LINK / 'shared_memory')]

from memory_link import FakeProducer as FakeProducer  # noqa: E402 - needs the path
from memory_link import RawPeer as RawPeer  # noqa: E402
from wire_builder import build_consumer  # noqa: E402
from wire_process import FRAMES_READ as FRAMES_READ  # noqa: E402
from wire_process import ConsumerProcess as ConsumerProcess  # noqa: E402

PUBLISHER = 'f' * 32
#: By exporter, the index of a camera with such memory.
CAMERAS = EXPORTERS
#: Where the C consumer lies that was compiled before the guest was started.
PROGRAM = 'ZC_WIRE_CONSUMER'
SIZE, FRAMERATE = (320, 180), 60.0


@contextmanager
def served(pool: BufferPool | None, **options: Any) -> Iterator[SharedMemoryServer]:
    """A server in a folder of its own; nothing may have gone wrong inside of it."""
    options.setdefault('quarantine_timeout_s', 0.05)
    with tempfile.TemporaryDirectory() as folder, SharedMemoryServer('camera', PUBLISHER, pool, folder=Path(folder), **options) as server:
        yield server
        equal((server.counters.internal_errors, server.counters.last_internal_error), (0, ''), 'internal errors')


def free_slot(pool: BufferPool) -> Slot:
    """The next one that a consumer gives back."""
    deadline = time.monotonic() + PATIENCE_S
    while (slot := pool.acquire()) is None:
        assert time.monotonic() < deadline, pool.describe_holders()
        time.sleep(0.0005)
    return slot


@contextmanager
def camera_of(exporter: str) -> Iterator[tuple[V4l2Camera, BufferPool]]:
    """A streaming camera with slots for consumers, and its pool."""
    camera = V4l2Camera(str(cameras()[CAMERAS[exporter]]), *SIZE, FRAMERATE, 'camera', now_ns=time.time_ns)
    own = camera.constraints()
    slots = BufferConstraints('consumers', slots=4)
    try:
        camera.allocate(agree([own, slots], SIZE))
        assert camera.pool is not None
        # Of the checks here none is about patience: on a slow machine too, a fence that a check holds back gets enough of it.
        camera.pool._release_timeout_s = PATIENCE_S
        yield camera, camera.pool
    finally:
        camera.close()


def captured(camera: V4l2Camera) -> Frame:
    """The camera's next frame."""
    deadline = time.monotonic() + PATIENCE_S
    while (frame := camera.capture()) is None:
        assert time.monotonic() < deadline, f'no frame of the camera: {camera.statistics()}'
    return frame


def overwrite(server: SharedMemoryServer, pool: BufferPool) -> set[int]:
    """Publish a frame in every slot that is free; their uids. Written without waiting for devices, as a camera's DMA is."""
    slots = []
    while (slot := pool.acquire()) is not None:
        slots.append(slot)
        for buffer in slot.buffers:
            buffer.mapping()[:] = b'\xff' * buffer.size
    for slot in slots:
        with publish(pool, slot, sequence=100) as frame:
            server.publish(frame)
    return {slot.buffer_uid for slot in slots}


def c_program(folder: Path) -> Path:
    """The C consumer: compiled before the guest was started, or by the guest's compiler."""
    given = os.environ.get(PROGRAM)
    return Path(given) if given else build_consumer(folder)
