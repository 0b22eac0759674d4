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

"""
NV12 with padded rows and heights, as a consumer asked for them, over both rungs.

Also a card that learns on trial that it can't.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from waiting import until

from zc_perception.frame import Frame
from zc_perception.frame_queue import KeepLastQueue
from zc_perception.link.bus import BusPublisher, BusSubscription, InProcessBus, LinkQos
from zc_perception.link.shared_memory.client import SharedMemoryClient
from zc_perception.link.shared_memory.protocol import Requirements
from zc_perception.negotiation.constraints import BufferConstraints, Placement
from zc_perception.npu.axl.accelerator import AxlAccelerator

from .harness import check, check_each, equal, settles
from .kernel_api import any_heap, live, NPU, parameters
from .link_kit import connected, next_received, PATIENCE_S, Remote, served
from .package_kit import accelerator, crcs, device_crcs, kernel_crcs, MANIFEST
from .package_negotiation import heap_camera, importer

FRAMES = 5
#: By name: what the consumer asks for, and the (stride, rows) of luma and chroma that it gets.
ASKED: dict[str, tuple[dict[str, Any], list[list[int]]]] = {
    'an odd stride': ({'stride_align': 347}, [[347, 240], [347, 120]]),
    'a padded height': ({'height_align': 64}, [[336, 256], [336, 128]]),
    'both, a buffer for each plane': (
        {'stride_align': 208, 'height_align': 32, 'placement': Placement.BUFFER_PER_PLANE},
        [[416, 256], [416, 128]],
    ),
}


def _geometry(frame: Frame) -> list[list[int]]:
    return [[plane.stride, plane.size // plane.stride] for plane in frame.data.planes]


_VARIANTS = [
    f'{heap}: {name}'
    for heap, name in zip(('dma_heap/system', 'udmabuf', 'dma_heap/system'), ASKED, strict=True)
]


@check_each(*_VARIANTS)
def in_process_the_card_and_the_cpu_read_what_was_written(variant: str) -> None:
    heap, _, name = variant.partition(': ')
    options, planes = ASKED[name]
    with accelerator() as npu:
        consumer = importer(npu, replace(npu.constraints(), **options))
        with heap_camera(heap) as camera:
            camera.allocate(consumer)
            equal(camera.session.objection(consumer), '', 'what stands against the card')
            bus, queue = InProcessBus(), KeepLastQueue(1, Frame.release)
            publisher: BusPublisher[Frame] = BusPublisher(
                'camera', LinkQos(1), objection=camera.session.objection
            )
            bus.add_publisher(('', 'image_raw', 'Image'), publisher)
            bus.add_subscription(
                ('', 'image_raw', 'Image'),
                BusSubscription('npu', LinkQos(1), queue, consumer=consumer),
            )
            for _ in range(FRAMES):
                written, right = camera.frame()
                with written:
                    publisher.publish(written)
                with queue.get() as frame:
                    equal(_geometry(frame), planes, 'strides and rows')
                    equal(
                        (device_crcs(npu, frame), crcs(frame), kernel_crcs(frame)),
                        (right,) * 3,
                        'what card, CPU and kernel read',
                    )
            equal(npu.imports, len(camera.pool.slots), 'imports')
            queue.end()


class CardReader:
    """In another process: a consumer with an open card, which reads each frame twice."""

    def __init__(self) -> None:
        self._client: SharedMemoryClient | None = None
        self._npu: AxlAccelerator | None = None

    def connect(self, path: str, options: dict[str, Any]) -> None:
        """Say what it needs, and be welcome."""
        npu = self._npu = AxlAccelerator(AxlAccelerator.own({'timeout': PATIENCE_S}))
        npu.load(MANIFEST)
        if 'placement' in options:
            options = options | {'placement': Placement(options['placement'])}
        requirements = Requirements.of(replace(npu.constraints(), **options))
        self._client = SharedMemoryClient(
            Path(path), name='reader', requirements=requirements,
            trial_import=lambda settings, slot: npu.trial_import(settings.layout, slot),
        )  # fmt: skip
        connected(self._client)

    def read(self) -> dict[str, Any]:
        """Return the next frame: its memory, and what the card and the CPU find."""
        assert self._client is not None and self._npu is not None
        with next_received(self._client) as frame:
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
        until(lambda: client.receive() is None and not client.connected, 'it leaves', PATIENCE_S)
        found = client.statistics()
        equal(
            (found.received, found.ended, self._npu.imports),
            (0, {'constraints': 1}, 0),
            'frames, ends, imports',
        )
        return client.last_end

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._npu is not None:
            self._npu.close()


@check_each(*_VARIANTS)
def in_another_process_the_card_and_the_cpu_read_what_was_written(variant: str) -> None:
    heap, _, name = variant.partition(': ')
    options, planes = ASKED[name]
    said = {
        key: value.value if isinstance(value, Placement) else value
        for key, value in options.items()
    }
    with (
        Remote(CardReader) as reader,
        heap_camera(heap, BufferConstraints('reader', **options)) as camera,
        served(None) as server,
    ):
        camera.allocate()
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
                equal(
                    (seen['sequence'], seen['planes']),
                    (sequence, planes),
                    'sequence, strides and rows',
                )
                equal(
                    (seen['card'], seen['cpu'], kernel_crcs(frame)),
                    (right,) * 3,
                    'what card, CPU and kernel read',
                )
        equal(seen['imports'], len(inodes), 'imports of the other process')
        equal(
            sum(NPU in devices for devices in camera.attached()),
            len(inodes) * camera.settings.layout.num_buffers,
            'attachments',
        )


@check
def in_another_process_a_card_whose_trial_import_fails_leaves_by_name() -> None:
    """
    Use a driver that has ioctls 64 to 66 only and says nothing about strides.

    HELLO suits, the first BUFFERS does not.
    """
    with (
        parameters(abi_level=1),
        Remote(CardReader) as reader,
        heap_camera(any_heap(), BufferConstraints('wide', stride_align=512)) as camera,
    ):
        camera.allocate()
        said: list[str] = []
        with served(None, report=said.append, warn=said.append) as server:
            server.set_pool(camera.pool, camera.settings.heap)
            reader.call('connect', str(server.path), {})
            frame, _ = camera.frame()
            with frame:
                server.publish(frame)
            words = 'trial import of slot', 'only tight LINEAR images in one buffer', 'stride 512'
            end = reader.call('until_left')
            assert all(
                word in end for word in ("this node can't use the publisher's buffers", *words)
            ), end
            until(lambda: server.consumers == 0, 'the producer lets it go', PATIENCE_S)
            settles(lambda: server.statistics().ended, {'constraints': 1}, 'ends')
            statistics = server.statistics()
            equal(
                (statistics.welcomed, statistics.refused),
                (1, {'constraints': 1}),
                'welcome, refused',
            )
            assert all(
                word in statistics.last_refusal['constraints'] for word in ('reader', *words)
            ), statistics.last_refusal
            assert any(
                all(word in line for word in ("can't use the buffers", *words)) for line in said
            ), said
        until(lambda: camera.pool.statistics().holders == {}, 'no slot is kept for it', PATIENCE_S)
        equal(live()['imports'], 0, 'imports')
