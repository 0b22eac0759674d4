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

"""A user's node publishes frames that a device still writes: consumers wait for the fence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, ExitStack
from typing import Any
import zlib

from waiting import until

from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.fence import SyncFile
from zc_perception.npu.axl.device import AxlDevice

from .harness import check, check_each, equal
from .kernel_api import any_heap, parameters
from .link_kit import Consumer, PATIENCE_S, Remote, RemoteError
from .package_kit import (
    buffers,
    card,
    jobs_held,
    LAYOUT,
    level_crcs,
    refused,
    result_crcs,
    RESULT_SIZE,
    start,
)

_LOAN, _DESCRIPTOR = 'a loan', 'a buffer of its own'


class _Camera:
    def __init__(self, context: Any, device: AxlDevice, image: DmaBuf, own: list[DmaBuf]) -> None:
        import rclpy

        from zc_perception import FramePublisher

        self._device, self._image, self._own = device, image, own
        lie: dict[str, Any] = {'heap': any_heap()}
        if own:
            planes = LAYOUT.planes
            lie = {
                'fds': [buffer.fileno() for buffer in own],
                'modifier': LAYOUT.modifier,
                'strides': [plane.stride for plane in planes],
                'offsets': [plane.offset for plane in planes],
            }
        self.node = rclpy.create_node('camera', context=context)
        self.publisher = FramePublisher(
            self.node,
            'image',
            width=LAYOUT.width,
            height=LAYOUT.height,
            image_encoding='nv12',
            **lie,
        )

    @property
    def path(self) -> str:
        assert self.publisher._server is not None
        return str(self.publisher._server.path)

    def _begin(self, target: DmaBuf) -> SyncFile:
        """Begin a job; its sync_file is the only fence, as the reservation object gets none."""
        with parameters(reservation_fences=0):
            return start(self._device, [self._image], target)

    def publish(self) -> SyncFile:
        if self._own:
            job = self._begin(self._own[0])
            assert self.publisher.publish_fd(self._own[0].fileno(), fence=job.fileno())
            return job
        pool = self.publisher._pool
        assert pool is not None
        free = {slot.index: slot.generation for slot in pool.slots}
        with self.publisher.loan() as out:
            (lent,) = [slot for slot in pool.slots if slot.generation != free[slot.index]]
            job = self._begin(lent.buffers[0])
            out.set_fence(job.fileno())
        return job

    def close(self) -> None:
        self.publisher.destroy()
        self.node.destroy_node()


@contextmanager
def _camera(way: str) -> Iterator[_Camera]:
    from .graph_kit import ros

    size = LAYOUT.buffer_size(0)
    with (
        card() as device,
        buffers(any_heap(), *[size] * (5 if way == _DESCRIPTOR else 1)) as (image, *own),
        ros() as context,
    ):
        camera = _Camera(context, device, image, own)
        try:
            yield camera
        finally:
            camera.close()


@check_each(_LOAN, _DESCRIPTOR)
def another_process_and_its_device_wait_for_the_fence_of(way: str) -> None:
    with (
        buffers(any_heap(), RESULT_SIZE) as (result,),
        Remote(lambda: Consumer(result=result)) as consumer,
        _camera(way) as camera,
        ExitStack() as gate,
    ):
        consumer.call('connect', camera.path)
        let_go = gate.enter_context(jobs_held())
        job = camera.publish()
        equal(consumer.call('receive')['fence'], 'SyncFile', 'what came with FRAME')
        equal(consumer.call('fence', 0, 0.0), [False, 0], 'signalled, status')
        with refused(RemoteError, 'did not signal'):
            consumer.call('pixels', 0)
        consumer.call('submit', 0)
        let_go()
        equal(consumer.call('fence', 0, PATIENCE_S), [True, 1], 'signalled, status')
        equal(consumer.call('finish_job'), 1, "status of the consumer's job")
        seen = consumer.call('pixels', 0)
        equal(result_crcs(result), seen, "what the consumer's device saw, and its CPU")
        assert seen != level_crcs(0), 'the device wrote nothing'
        consumer.call('release', 0)
        job.close()


@check
def a_plain_message_is_made_when_the_device_has_written() -> None:
    """Check that another thread than the publishing one makes the message."""
    import rclpy
    from sensor_msgs.msg import Image

    from zc_perception.nodes.process import ExecutorThread

    from .graph_kit import ros

    pictures: list[list[int]] = []

    def look(message: Image) -> None:
        luma = LAYOUT.width * LAYOUT.height
        pictures.append([zlib.crc32(message.data[:luma]), zlib.crc32(message.data[luma:])])

    with ros() as elsewhere, _camera(_LOAN) as camera, ExitStack() as gate:
        viewer = rclpy.create_node('viewer', context=elsewhere)
        viewer.create_subscription(Image, 'image', look, 1)
        spinner = ExecutorThread(elsewhere, lambda: None)
        spinner.executor.add_node(viewer)
        spinner.start()
        gate.callback(viewer.destroy_node)
        gate.callback(spinner.stop)
        until(lambda: camera.publisher.statistics().image_readers, 'it is found', PATIENCE_S)
        let_go = gate.enter_context(jobs_held())
        job = camera.publish()
        assert not job.wait(0.0) and not pictures, 'the device has not written yet'
        let_go()
        until(lambda: pictures, lambda: str(camera.publisher.statistics()), PATIENCE_S)
        assert pictures[0] != level_crcs(0), 'it was made too early'
        equal(camera.publisher.statistics().conversion_errors, 0, 'conversion errors')
        job.close()
