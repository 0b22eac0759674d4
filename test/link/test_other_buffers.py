"""Buffers that a subscription can't use: it takes messages, or says why not; and it tries those that are allocated after them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from link_ros import LATCHED, Ros, announced
from sensor_msgs.msg import Image
from std_msgs.msg import String
from waiting import eventually

from zc_perception.frame import Frame
from zc_perception.link.endpoints import REFUSED, ROS_MESSAGE, SHARED_MEMORY, SharedMemoryLinks
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.dmabuf import BufferKind, DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.session import Consumer
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout

CAMERA = 'c' * 32


class Camera:
    """A node that isn't this package's: a socket, an announcement, and messages."""

    def __init__(self, here: Ros) -> None:
        node = here.node('camera')
        self._announcer = node.create_publisher(String, '/image/_zc', LATCHED)
        self._images = node.create_publisher(Image, '/image', 1)
        self._generation = 0
        self.server = SharedMemoryServer('camera', CAMERA)

    def allocate(self, pool: BufferPool) -> None:
        """All that it says of other buffers is that they are others."""
        self._generation += 1
        self.server.set_pool(pool)
        self._announcer.publish(
            String(data=announced(CAMERA, self.server.path, generation=self._generation).to_json())
        )

    def say(self) -> None:
        message = Image(height=2, width=2, encoding='mono8', step=2, data=bytes(4))
        message.header.frame_id = 'camera'
        self._images.publish(message)


@pytest.fixture
def camera(here: Ros) -> Iterator[Camera]:
    made = Camera(here)
    yield made
    made.server.close()


@pytest.fixture
def write_only_pool() -> Iterator[BufferPool]:
    """Of a producer that hands out descriptors which it opened for writing alone."""
    layout, heap = compute_layout(NV12, 64, 48), SealedMemfd()

    def allocate() -> tuple[DmaBuf, ...]:
        buffer = heap.allocate(layout.buffer_size(0))
        fd = OwnedFd.open(f'/proc/self/fd/{buffer.fileno()}', os.O_WRONLY)
        buffer.close()
        return (DmaBuf(fd, BufferKind.MEMFD, 'memfd'),)

    pool = BufferPool(layout, allocate, 4, name='camera', release_timeout_s=60.0)
    yield pool
    pool.close()


@pytest.mark.parametrize('required', [False, True])
def test_memory_that_nobody_can_map_leaves_messages_and_says_why(
    here: Ros, camera: Camera, write_only_pool: BufferPool, make_frame: Any, required: bool
) -> None:
    arrived: list[str] = []

    def look(frame: Frame) -> None:
        with frame.map():
            arrived.append(frame.data.header.frame_id)

    adapter = frame_adapter('rgb8', CopyLedger(), holder='viewer')
    viewer = here.subscription(
        here.node('viewer'),
        adapter,
        callback=look,
        remote=SharedMemoryLinks('viewer'),
        copy_free_required=required,
    )
    camera.allocate(write_only_pool)
    assert eventually(lambda: camera.server.consumers == 1)
    with make_frame(write_only_pool) as frame:
        camera.server.publish(frame)
    assert eventually(
        lambda: viewer.statistics().rung == (REFUSED if required else ROS_MESSAGE)
    ), viewer.statistics()
    assert 'buffer 0, a memfd, was opened with O_WRONLY' in viewer.statistics().reason
    assert 'O_WRONLY' in camera.server.statistics().last_refusal['constraints'], 'both ends say it'
    if not required:
        assert eventually(lambda: camera.say() or arrived)
        assert set(arrived) == {'camera'}, 'every frame that comes can be mapped'


def test_buffers_that_are_allocated_anew_are_tried_though_nothing_else_has_changed(
    here: Ros, camera: Camera, make_pool: Callable[..., BufferPool], make_frame: Any
) -> None:
    fails = [True]
    tried: list[int] = []
    arrived: list[int] = []

    def trial_import(settings: Any, buffers: Any) -> None:
        tried.append(len(buffers))
        if fails[0]:
            raise OSError('the card refuses it')

    viewer = here.subscription(
        here.node('viewer'),
        callback=lambda frame: arrived.append(frame.data.sequence),
        remote=SharedMemoryLinks('viewer'),
        consumer=Consumer(BufferConstraints('viewer'), trial_import=trial_import),
        copy_free_required=True,
    )

    def publish(sequence: int) -> None:
        pool = make_pool(slots=4)
        camera.allocate(pool)
        assert eventually(lambda: camera.server.consumers == 1), viewer.statistics()
        with make_frame(pool, sequence=sequence) as frame:
            camera.server.publish(frame)

    for attempt in (1, 2):
        publish(attempt)
        assert eventually(
            lambda attempt=attempt: len(tried) == attempt and camera.server.consumers == 0
        )
        assert eventually(lambda: viewer.statistics().rung == REFUSED), viewer.statistics()
        assert 'the card refuses it' in viewer.statistics().reason
    fails[0] = False
    publish(3)
    assert eventually(lambda: arrived == [3]) and eventually(
        lambda: viewer.statistics().rung == SHARED_MEMORY
    )
    assert len(tried) == 3
