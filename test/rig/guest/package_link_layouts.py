"""NV12 with padded rows and heights, as a consumer asked for them, over both rungs; and a card that learns on trial that it can't."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zc_perception.frame import Frame
from zc_perception.frame_queue import KeepLastQueue
from zc_perception.link.bus import BusPublisher, BusSubscription, InProcessBus, LinkQos
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.requirements import Requirements
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.heaps import open_heap
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import BufferConstraints, Placement
from zc_perception.negotiation.session import BufferSession, Consumer
from zc_perception.negotiation.settings import Allocation, AllocationRequest
from zc_perception.npu.axl.accelerator import AxlAccelerator
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.modifier import LINEAR

from .harness import equal, eventually, settles
from .kernel_api import any_heap, bufinfo, live, parameters
from .package_kit import MANIFEST, crcs, device_crcs, kernel_crcs
from .package_kit import accelerator as opened_card
from .package_link_kit import served
from .package_link_processes import PATIENCE_S, Remote, next_frame
from .package_memory_kit import allocate, check, check_each, publish

SIZE, SLOTS, FRAMES = (336, 240), 3, 5
NPU = '0000:01:00.0'
#: By name: what the consumer asks for, and the (stride, rows) of luma and chroma that it gets.
ASKED: dict[str, tuple[dict[str, Any], list[tuple[int, int]]]] = {
    'an odd stride': ({'stride_align': 347}, [(347, 240), (347, 120)]),
    'a padded height': ({'height_align': 64}, [(336, 256), (336, 128)]),
    'both, a buffer for each plane': (
        {'stride_align': 208, 'height_align': 32, 'placement': Placement.BUFFER_PER_PLANE}, [(416, 256), (416, 128)],
    ),
}  # fmt: skip


class _Camera:
    """Allocates from a heap what is agreed on, and publishes random pixels."""

    def __init__(self, heap: str, *stand_ins: BufferConstraints, consumers: tuple[Consumer, ...] = ()) -> None:
        own = BufferConstraints('camera', formats=((NV12, LINEAR),), heaps=(heap,), cpu_access=CpuAccess.WRITE)
        self._heap, _ = open_heap(heap)
        self.session = BufferSession(own, SIZE, wanted_slots=SLOTS, stand_ins=stand_ins)
        self.settings = self.session.allocate(consumers, self._allocate)
        self._sequence = 0

    def _allocate(self, request: AllocationRequest) -> Allocation:
        layout = request.layout()
        self.pool = BufferPool(layout, partial(allocate, self._heap, layout), request.slots, name='camera', reserve=1)
        return Allocation(layout, tuple(slot.buffers for slot in self.pool.slots))

    def frame(self) -> tuple[Frame, list[int]]:
        """The next one, and the CRCs of what was written, which nobody has read from its memory."""
        self._sequence += 1
        frame = publish(self.pool, sequence=self._sequence)
        chance, right = np.random.default_rng(self._sequence), []
        with frame.map(write=True) as planes:
            for plane in planes:
                content = chance.integers(0, 256, plane.shape, np.uint8)
                plane[:] = content
                right.append(zlib.crc32(content.tobytes()))
        return frame, right

    def attached(self) -> list[list[str]]:
        """Which devices the kernel lists, buffer by buffer."""
        found = bufinfo()
        return [found[buffer.identity.inode].attached for slot in self.pool.slots for buffer in slot.buffers]

    def close(self) -> None:
        """End it."""
        self.pool.close()
        self._heap.close()


@contextmanager
def _camera(heap: str, *stand_ins: BufferConstraints, consumers: tuple[Consumer, ...] = ()) -> Iterator[_Camera]:
    camera = _Camera(heap, *stand_ins, consumers=consumers)
    try:
        yield camera
    finally:
        camera.close()


def _geometry(frame: Frame) -> list[list[int]]:
    return [[plane.stride, plane.size // plane.stride] for plane in frame.data.planes]


def _geometry_of(asked: list[tuple[int, int]]) -> list[list[int]]:
    return [list(plane) for plane in asked]


_VARIANTS = [f'{heap}: {name}' for heap, name in zip(('dma_heap/system', 'udmabuf', 'dma_heap/system'), ASKED, strict=True)]


@check_each(*_VARIANTS)
def in_process_the_card_and_the_cpu_read_what_was_written(variant: str) -> None:
    heap, _, name = variant.partition(': ')
    options, planes = ASKED[name]
    with opened_card() as npu:
        consumer = Consumer(replace(npu.constraints(), **options), lambda settings, slot: npu.trial_import(settings.layout, slot))
        with _camera(heap, consumers=(consumer,)) as camera:
            equal(camera.session.objection(consumer), '', 'what stands against the card')
            bus, queue = InProcessBus(), KeepLastQueue(1, Frame.release)
            publisher: BusPublisher[Frame] = BusPublisher('camera', LinkQos(1), objection=camera.session.objection)
            bus.add_publisher(('', 'image_raw', 'Image'), publisher)
            bus.add_subscription(('', 'image_raw', 'Image'), BusSubscription('npu', LinkQos(1), queue, consumer=consumer))
            for _ in range(FRAMES):
                written, right = camera.frame()
                with written:
                    publisher.publish(written)
                with queue.get() as frame:
                    equal(_geometry(frame), _geometry_of(planes), 'strides and rows')
                    equal((device_crcs(npu, frame), crcs(frame), kernel_crcs(frame)), (right,) * 3, 'what card, CPU and kernel read')
            equal(npu.imports, len(camera.pool.slots), 'imports')
            queue.end()


class CardReader:
    """In another process: a consumer with an open card, which reads each frame twice."""

    def __init__(self) -> None:
        self._client: SharedMemoryClient | None = None
        self._npu: AxlAccelerator | None = None

    def connect(self, path: str, options: dict[str, Any]) -> None:
        """Say what it needs, and be welcome."""
        npu = self._npu = AxlAccelerator(timeout_s=PATIENCE_S)
        npu.load(MANIFEST)
        if 'placement' in options:
            options = options | {'placement': Placement(options['placement'])}
        requirements = Requirements.of(replace(npu.constraints(), **options))
        self._client = SharedMemoryClient(
            Path(path), name='reader', requirements=requirements,
            trial_import=lambda settings, slot: npu.trial_import(settings.layout, slot),
        )  # fmt: skip
        self._client.connect(PATIENCE_S)

    def read(self) -> dict[str, Any]:
        """The next frame: its memory, and what the card and the CPU find."""
        assert self._client is not None and self._npu is not None
        with next_frame(self._client) as frame:
            return {
                'sequence': frame.data.sequence,
                'planes': _geometry(frame),
                'card': device_crcs(self._npu, frame),
                'cpu': crcs(frame),
                'imports': self._npu.imports,
            }

    def until_left(self) -> str:
        """Receive until the connection has ended; why, in this consumer's words."""
        client = self._client
        assert client is not None and self._npu is not None
        eventually(lambda: client.receive() is None and not client.connected, 'it leaves', PATIENCE_S)
        found = client.statistics()
        equal((found.received, found.ended, self._npu.imports), (0, {'constraints': 1}, 0), 'frames, ends, imports')
        return client.last_end

    def close(self) -> None:
        """End both."""
        if self._client is not None:
            self._client.close()
        if self._npu is not None:
            self._npu.close()


@check_each(*_VARIANTS)
def in_another_process_the_card_and_the_cpu_read_what_was_written(variant: str) -> None:
    heap, _, name = variant.partition(': ')
    options, planes = ASKED[name]
    said = {key: value.value if isinstance(value, Placement) else value for key, value in options.items()}
    with Remote(CardReader) as reader, _camera(heap, BufferConstraints('reader', **options)) as camera, served(None) as server:
        server.set_pool(camera.pool, camera.settings.heap)
        reader.call('connect', str(server.path), said)
        equal(server.consumers, 1, 'consumers')
        inodes = set()
        for sequence in range(1, FRAMES + 1):
            frame, right = camera.frame()
            with frame:
                server.publish(frame)
                inodes.add(frame.data.buffers[0].identity.inode)
                seen = reader.call('read')
                equal((seen['sequence'], seen['planes']), (sequence, _geometry_of(planes)), 'sequence, strides and rows')
                equal((seen['card'], seen['cpu'], kernel_crcs(frame)), (right,) * 3, 'what card, CPU and kernel read')
        equal(seen['imports'], len(inodes), 'imports of the other process')
        equal(sum(NPU in devices for devices in camera.attached()), len(inodes) * camera.settings.layout.num_buffers, 'attachments')


@check
def in_another_process_a_card_whose_trial_import_fails_leaves_by_name() -> None:
    """The driver has ioctls 64 to 66 only and says nothing of strides: HELLO suits, the first BUFFERS does not."""
    with (
        parameters(abi_level=1),
        Remote(CardReader) as reader,
        _camera(any_heap(), BufferConstraints('wide', stride_align=512)) as camera,
    ):
        said: list[str] = []
        with served(None, report=said.append, warn=said.append) as server:
            server.set_pool(camera.pool, camera.settings.heap)
            reader.call('connect', str(server.path), {})
            frame, _ = camera.frame()
            with frame:
                server.publish(frame)
            words = 'trial import of slot', 'only tight LINEAR images in one buffer', 'stride 512'
            end = reader.call('until_left')
            assert all(word in end for word in ("this node can't use the publisher's buffers", *words)), end
            eventually(lambda: server.consumers == 0, 'the producer lets it go', PATIENCE_S)
            settles(lambda: server.statistics().ended, {'constraints': 1}, 'ends')
            statistics = server.statistics()
            equal((statistics.welcomed, statistics.refused), (1, {'constraints': 1}), 'welcome, refused')
            assert all(word in statistics.last_refusal['constraints'] for word in ('reader', *words)), statistics.last_refusal
            assert any(all(word in line for word in ("can't use the buffers", *words)) for line in said), said
        eventually(lambda: camera.pool.statistics().holders == {}, 'no slot is kept for it', PATIENCE_S)
        equal(live()['imports'], 0, 'imports')
