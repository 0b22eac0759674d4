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
One process of the link benchmark: ``python -m bench.link_worker ROLE TOPIC``.

It reads one JSON command per line from standard input, and writes one line of JSON for each. Times
are CLOCK_MONOTONIC, which all processes of a host share, so that a producer's time can be
subtracted from a consumer's. Frame numbers go on from series to series, so that a late frame isn't
taken for one of the next series.

- ``describe`` answers settings that the figures depend on.
- ``matched`` answers ``matched`` (the other process was found); if not, ``reason``.
- ``prepare`` takes ``width`` and ``height`` of the next series' frames.
- ``begin`` takes ``first`` (the first frame's number), ``rate_hz`` and ``read`` (every pixel). A
  consumer begins a series.
- ``run`` takes ``first``, ``rate_hz``, ``read`` and ``frames``. A producer sends a series and
  answers ``sent``: [number, ns] of each frame; a process with both ends answers ``arrived``, too.
- ``end`` takes ``last``, the number of the last frame that was sent. A consumer answers
  ``arrived``: [number, ns] of each frame.
- ``spent`` answers ``cpu_us`` of all threads and ``torn`` frames, both of the series, and
  ``conversions`` since the process began.
"""

from __future__ import annotations

import array
from collections.abc import Callable
import contextlib
import queue
import socket
import sys
import threading
import time
from typing import Any

from bench.link_roles import ANSWER_S, FILL, paced, PicturesIn, PicturesOut, Role, stamp, Times
from bench.obeying import answer, hold_back_termination, obey
import numpy as np
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.utilities import get_default_context, get_rmw_implementation_identifier
from sensor_msgs.msg import Image

from zc_perception.errors import ZcError
from zc_perception.frame import Frame, Header
from zc_perception.link.endpoints import (
    AdaptedPublisher,
    AdaptedSubscription,
    IN_PROCESS,
    SHARED_MEMORY,
    SharedMemoryLinks,
)
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.link.rclpy_compat import init_without_signal_handlers
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.dmabuf import DmaBuf
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import BufferPool, Slot
from zc_perception.pixel.colorimetry import BT601_LIMITED
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import compute_layout, ImageLayout

SLOTS = 4
_QOS = QoSProfile(depth=1)


def _buffers(layout: ImageLayout) -> tuple[DmaBuf, ...]:
    """Return filled buffers: as with a camera driver, no pixels are written while measuring."""
    heap = SealedMemfd()
    buffers = tuple(heap.allocate(layout.buffer_size(i)) for i in range(layout.num_buffers))
    for buffer in buffers:
        np.frombuffer(buffer.mapping(), np.uint8)[:] = FILL
    return buffers


def _pixels(slot: Slot) -> list[np.ndarray[Any, Any]]:
    """Return writable views of a slot's planes."""
    mappings = [np.frombuffer(buffer.mapping(), np.uint8) for buffer in slot.buffers]
    return [
        mappings[plane.buffer][slice(plane.offset, plane.offset + plane.size)]
        for plane in slot.layout.planes
    ]


class FramesOut(Role):
    """Publishes frames to another process (:class:`FramesIn`) or to a subscription in this one."""

    def __init__(self, node: Node, topic: str, *, shared_memory: bool = True) -> None:
        super().__init__()
        self.publisher: AdaptedPublisher[Frame] = AdaptedPublisher(
            node, frame_adapter('rgb8', CopyLedger(), holder='bench'), topic, _QOS
        )
        # Gets an item for each frame whose slot is free again (all its leases were released).
        self._returned: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._out = 0
        # A slot's planes, by its buffer_uid.
        self._pixels: dict[int, list[np.ndarray[Any, Any]]] = {}
        # A pool for each size. It is kept to the end, because later series have the same size and
        # consumers keep the pool's buffers mapped.
        self._pools: dict[tuple[int, int], BufferPool] = {}
        self.prepare(64, 48)
        if shared_memory:
            self.publisher.serve(
                SharedMemoryServer('bench', self.publisher.publisher_id, self._pool)
            )
        self.publisher.announce(width=64, height=48, formats=('NV12',), heap='memfd')

    def prepare(self, width: int, height: int) -> None:
        layout = compute_layout(NV12, width, height)
        if (width, height) not in self._pools:
            made = BufferPool(
                layout, lambda: _buffers(layout), SLOTS, name='bench', on_free=self._on_free
            )
            self._pools[width, height] = made
        self._pool = self._pools[width, height]

    def _on_free(self, slot: Slot) -> None:
        self._returned.put(None)

    def _all_back(self, number: int = 0) -> bool:
        """Wait until all frames were released; ``False``: one was not, in :data:`ANSWER_S`."""
        try:
            while self._out:
                self._returned.get(timeout=ANSWER_S)
                self._out -= 1
        except queue.Empty:
            return False
        return True

    def _planes(self, slot: Slot) -> list[np.ndarray[Any, Any]]:
        planes = self._pixels.get(slot.buffer_uid)
        if planes is None:
            planes = self._pixels[slot.buffer_uid] = _pixels(slot)
        return planes

    def run(self, first: int, frames: int, rate_hz: float, read: bool = False) -> dict[str, Any]:
        self.begin(first, rate_hz, read)
        sent: Times = []
        for number in paced(first, frames, rate_hz, self._all_back):
            slot = self._pool.acquire()
            if slot is None:
                continue  # not sent, hence lost
            stamp(self._planes(slot), number)
            header = Header(number, 'bench')
            frame = Frame.publish_slot(
                self._pool,
                slot,
                header=header,
                colorimetry=BT601_LIMITED,
                sequence=number,
                captured_ns=0,
            )
            self._out += 1
            sent.append((number, time.monotonic_ns()))
            self.publisher.publish(frame)
            frame.release()
        if not self._all_back():
            raise ZcError(
                f'{self._out} frame(s) were not given back within {ANSWER_S:g} s of the end of '
                'a series'
            )
        self.finish()
        return {'sent': sent}

    def conversions(self) -> int:
        return self.publisher.statistics().conversions

    def close(self) -> None:
        self.publisher.destroy()
        self._pixels.clear()
        for pool in self._pools.values():
            pool.close()


class FramesTaken:
    """Takes a subscription's frames on a thread of its own, as an inference node does."""

    def __init__(
        self, subscription: AdaptedSubscription[Frame], arrived: Callable[[Frame], None]
    ) -> None:
        self._subscription = subscription
        self._arrived = arrived
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._take, name='bench mailbox', daemon=True)
        self._thread.start()

    def _take(self) -> None:
        take = self._subscription.queue.get
        while not self._stop.is_set():
            frame = take(0.5)
            if frame is not None:
                self._arrived(frame)
                frame.release()

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._thread.join(2.0)


class FramesIn(Role):
    """Takes frames from another process on its own thread, and reads each."""

    def __init__(self, node: Node, topic: str) -> None:
        super().__init__()
        adapter = frame_adapter('rgb8', CopyLedger(), holder='bench')
        self._subscription = AdaptedSubscription(
            node, adapter, topic, _QOS, remote=SharedMemoryLinks('bench consumer')
        )
        self._taken = FramesTaken(self._subscription, self._read)

    def _read(self, frame: Frame) -> None:
        with frame.map() as planes:
            self.arrivals.note(*self.look(planes))

    def other_end(self) -> tuple[bool, str]:
        statistics = self._subscription.statistics()
        return (
            statistics.rung == SHARED_MEMORY,
            f'the link is {statistics.rung}: {statistics.reason}',
        )

    def conversions(self) -> int:
        return self._subscription.statistics().conversions

    def close(self) -> None:
        self._taken.close()
        self._subscription.destroy()


class FramesLocal(FramesOut):
    """
    Publishes and takes frames in one process.

    :param executor: the executor takes the frames; otherwise a thread of its own.
    """

    def __init__(self, node: Node, topic: str, *, executor: bool) -> None:
        super().__init__(node, topic, shared_memory=False)
        adapter = frame_adapter('rgb8', CopyLedger(), holder='bench')
        callback = self._in_hand if executor else None
        self._subscription = AdaptedSubscription(node, adapter, topic, _QOS, callback=callback)
        self._taken = None if executor else FramesTaken(self._subscription, self._in_hand)

    def _in_hand(self, frame: Frame) -> None:
        if not self.look.every_pixel:
            self.arrivals.note(frame.data.sequence, time.monotonic_ns())
            return
        with frame.map() as planes:
            self.arrivals.note(*self.look(planes))

    def other_end(self) -> tuple[bool, str]:
        statistics = self._subscription.statistics()
        return statistics.rung == IN_PROCESS, f'the link is {statistics.rung}: {statistics.reason}'

    def run(self, first: int, frames: int, rate_hz: float, read: bool = False) -> dict[str, Any]:
        # No wait is needed: each frame was noted before its release, and all were released.
        return {
            **super().run(first, frames, rate_hz, read),
            'arrived': self.arrivals.wait_for(first - 1),
        }

    def conversions(self) -> int:
        return super().conversions() + self._subscription.statistics().conversions

    def close(self) -> None:
        if self._taken is not None:
            self._taken.close()
        self._subscription.destroy()
        super().close()


def _image_qos() -> QoSProfile:
    return QoSProfile(
        depth=10, history=HistoryPolicy.KEEP_LAST, reliability=ReliabilityPolicy.RELIABLE
    )


class ImagesOut(PicturesOut):
    """
    Publishes plain ``sensor_msgs/Image`` messages, nv12.

    It does so in rclpy's quickest way: ``data`` is an ``array``, which it reuses.
    """

    def __init__(self, node: Node, topic: str, answers: socket.socket) -> None:
        super().__init__(answers)
        self._publisher = node.create_publisher(Image, topic, _image_qos())
        self._message = Image()

    def other_end(self) -> tuple[bool, str]:
        return bool(self._publisher.get_subscription_count()), 'the publisher sees no subscriber'

    def prepare(self, width: int, height: int) -> None:
        super().prepare(width, height)
        self._message = Image(
            width=width,
            height=height,
            step=width,
            encoding='nv12',
            data=array.array('B', self.source),
        )
        self.pixels = np.frombuffer(self._message.data, np.uint8)

    def publish(self) -> None:
        self._publisher.publish(self._message)


class ImagesIn(PicturesIn):
    """Receives plain messages on the executor's thread and reads each."""

    def __init__(self, node: Node, topic: str, answers: socket.socket) -> None:
        super().__init__(answers)
        self._node = node
        self._subscription = node.create_subscription(Image, topic, self._on_image, _image_qos())

    def other_end(self) -> tuple[bool, str]:
        return bool(
            self._node.count_publishers(self._subscription.topic_name)
        ), 'the subscriber sees no publisher'

    def _on_image(self, message: Image) -> None:
        self.arrived(np.frombuffer(message.data, np.uint8))


def _make(role: str, node: Node, topic: str) -> Role:
    if role in ('images_out', 'images_in'):
        answers = socket.socket(fileno=int(sys.argv[3]))
        return (
            ImagesOut(node, topic, answers)
            if role == 'images_out'
            else ImagesIn(node, topic, answers)
        )
    makers: dict[str, Callable[[], Role]] = {
        'frames_out': lambda: FramesOut(node, topic),
        'frames_in': lambda: FramesIn(node, topic),
        'local_mailbox': lambda: FramesLocal(node, topic, executor=False),
        'local_executor': lambda: FramesLocal(node, topic, executor=True),
    }
    return makers[role]()


def _serve(role_name: str, topic: str) -> None:
    node = Node('bench_' + role_name)
    executor = SingleThreadedExecutor()
    # This thread isn't started in producers: they have no callbacks, and the thread's wake-ups
    # would disturb the measurement.
    spinning = threading.Thread(target=executor.spin, name='executor', daemon=True)
    with contextlib.ExitStack() as ending:
        ending.callback(node.destroy_node)
        role = _make(role_name, node, topic)
        ending.callback(role.close)
        if role_name not in ('frames_out', 'images_out', 'local_mailbox'):
            executor.add_node(node)
            spinning.start()
            ending.callback(spinning.join, 2.0)
        ending.callback(executor.shutdown)
        role.facts = {
            'rmw': get_rmw_implementation_identifier(),
            'buffers': 'sealed memfd',
            'slots': SLOTS,
        }
        obey(role)


def main() -> None:
    """Serve commands until standard input ends or SIGTERM."""
    hold_back_termination()
    context = get_default_context()
    try:
        # Warnings go to the benchmark's standard error. The links' state isn't logged; matched
        # answers it.
        init_without_signal_handlers(context, ['--ros-args', '--log-level', 'warn'])
        _serve(*sys.argv[1:3])
    except ZcError as error:
        answer({'failure': str(error)})
        raise SystemExit(1) from None
    finally:
        context.try_shutdown()


if __name__ == '__main__':
    main()
