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
A process with adapted and plain publishers and subscriptions, for tests of processes.

``python link_program.py EXECUTOR`` reads one JSON command per line and answers each with a line of
JSON; the methods of Program are the commands. Frames are tiny. One value (1 to 250) is a frame's
luma, the message's bytes and the stamp, so a receiver can check that they belong together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
import faulthandler
import gc
import json
import operator
import os
import signal
import sys
import threading
import time
from typing import Any
import zlib

from frame_kit import next_frame, nv12, pool_of
import rclpy
from rclpy.executors import MultiThreadedExecutor, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.task import Future
from sensor_msgs.msg import Image

from zc_perception.frame import Frame, Header
from zc_perception.link.endpoints import AdaptedPublisher, AdaptedSubscription, SharedMemoryLinks
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.link.rclpy_compat import InvalidHandle
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.link.type_adapter import TypeAdapter
from zc_perception.memory.ledger import CopyLedger
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range

EXECUTORS = ['single', 'multi', 'events']
WIDTH, HEIGHT = 32, 16
SECOND = 1_000_000_000


def profile(*, depth: int, transient_local: bool = False, best_effort: bool = False) -> QoSProfile:
    durability, reliability = DurabilityPolicy, ReliabilityPolicy
    return QoSProfile(
        depth=depth,
        durability=durability.TRANSIENT_LOCAL if transient_local else durability.VOLATILE,
        reliability=reliability.BEST_EFFORT if best_effort else reliability.RELIABLE,
    )


def executor_exists(kind: str) -> bool:
    try:
        import rclpy.experimental  # noqa: F401
    except ImportError:
        return kind != 'events'
    return True


def make_executor(kind: str, context: rclpy.Context) -> Any:
    if kind == 'events':
        from rclpy.experimental.events_executor import EventsExecutor

        return EventsExecutor(context=context)
    return {'single': SingleThreadedExecutor, 'multi': MultiThreadedExecutor}[kind](
        context=context
    )


def spin(executor: Any, kind: str, stop: threading.Event, end: Any = None) -> None:
    """
    Spin until the executor is shut down, or the future *end* is done.

    After *stop*, an EventsExecutor ends with its next task. A spin of rclpy ends with
    InvalidHandle if another thread destroys a plain endpoint at the wrong moment; then it spins
    again.
    """
    while not stop.is_set():
        with suppress(InvalidHandle):
            if kind != 'events':
                executor.spin() if end is None else executor.spin_until_future_complete(end)
                return
            # In current releases, an EventsExecutor's spin() without a timeout delivers nothing.
            executor.spin_once(timeout_sec=0.2)


def refuse(value: Any) -> Any:
    raise AssertionError(f'{type(value).__name__} was converted')


def adapter(options: dict[str, Any]) -> TypeAdapter[Frame]:
    if options['converts']:
        return frame_adapter('mono8', CopyLedger(), holder=options['name'])
    return TypeAdapter(Frame, Image, refuse, refuse)


def checked(value: int, stamp: tuple[int, int]) -> int:
    """Return *value*, negated if the stamp belongs to another value."""
    return value if stamp == (1, value) else -value


# Full range, so that a mono8 message has the same bytes as the luma.
_FULL = Colorimetry(Matrix.BT601, Range.FULL)


def grey_image(value: int, stamp: int | None) -> Image:
    """Return a mono8 message of *value*, *stamp* ns after one second if that isn't ``None``."""
    pixels = bytes([value]) * (WIDTH * HEIGHT)
    message = Image(width=WIDTH, height=HEIGHT, step=WIDTH, encoding='mono8', data=pixels)
    if stamp is not None:
        message.header.stamp.sec, message.header.stamp.nanosec = 1, stamp
    return message


class PlainPublisher:
    """A plain publisher; with ``stamped: false`` its messages have stamp 0."""

    def __init__(self, node: Node, options: dict[str, Any]) -> None:
        self._node = node
        self._publisher = node.create_publisher(Image, options['topic'], profile(**options['qos']))
        self._stamped = options.get('stamped', True)

    def publish(self, value: int) -> None:
        self._publisher.publish(grey_image(value, value if self._stamped else None))

    def state(self) -> dict[str, Any]:
        return {'readers': self._publisher.get_subscription_count()}

    def close(self) -> None:
        self._node.destroy_publisher(self._publisher)


class FramePublisher:
    """Options: ``slots`` of the pool, ``serve`` for rung 2, ``stamped: false`` for stamp 0."""

    def __init__(self, node: Node, options: dict[str, Any]) -> None:
        qos = options['qos']
        self._stamped = options.get('stamped', True)
        self._pool = pool_of(nv12(), options.get('slots', 28), name=options['name'])
        self._publisher = AdaptedPublisher(
            node, adapter(options), options['topic'], profile(**qos)
        )
        self._server: SharedMemoryServer | None = None
        if options.get('serve', True):
            history = qos['depth'] if qos.get('transient_local') else 0
            self._server = SharedMemoryServer(
                options['name'], self._publisher.publisher_id, self._pool, history=history
            )
            self._publisher.serve(self._server)
        self._publisher.announce(width=WIDTH, height=HEIGHT, formats=('NV12',), heap='memfd')

    def publish(self, value: int) -> None:
        header = Header(SECOND + value if self._stamped else 0, '')
        with next_frame(self._pool, value, header=header, colorimetry=_FULL) as frame:
            with frame.map(write=True) as planes:
                planes[0][:] = value
            self._publisher.publish(frame)

    def state(self) -> dict[str, Any]:
        statistics = self._publisher.statistics()
        return {
            'readers': statistics.image_readers,
            'in_process': statistics.in_process_subscriptions,
            'conversions': statistics.conversions,
            'converted': statistics.conversions + statistics.conversions_skipped,
            'errors': statistics.conversion_errors,
            'consumers': 0 if self._server is None else self._server.consumers,
        }

    def close(self) -> None:
        self._publisher.destroy()
        self._pool.close()


class PlainSubscription:
    def __init__(self, node: Node, options: dict[str, Any]) -> None:
        self.received: list[int] = []
        self._node = node
        self._subscription = node.create_subscription(
            Image, options['topic'], self._on_message, profile(**options['qos'])
        )

    def _on_message(self, message: Image) -> None:
        stamp = message.header.stamp
        self.received.append(checked(message.data[-1], (stamp.sec, stamp.nanosec)))

    def state(self) -> dict[str, Any]:
        return {
            'received': self.received,
            'publishers': self._node.count_publishers(self._subscription.topic_name),
        }

    def close(self) -> None:
        self._node.destroy_subscription(self._subscription)


class FrameSubscription:
    """
    A subscription of frames.

    Options: ``held``, the frames that it may hold of each remote publisher; ``keeps``, how many
    frames it shares and never releases.
    """

    def __init__(self, node: Node, options: dict[str, Any]) -> None:
        self.received: list[int] = []
        self._keeps = options.get('keeps', 0)
        self._kept: list[Frame] = []
        self._last: dict[str, Any] = {}
        self.links = SharedMemoryLinks(options['name'], held=options.get('held', 1))
        self._subscription = AdaptedSubscription(
            node,
            adapter(options),
            options['topic'],
            profile(**options['qos']),
            callback=self._on_frame,
            holder=options['name'],
            remote=self.links,
        )

    def _on_frame(self, frame: Frame) -> None:
        with frame.map() as planes:
            value = int(planes[0].flat[-1])
            checksums = [zlib.crc32(plane.tobytes()) for plane in planes]
        inodes = [buffer.identity.inode for buffer in frame.data.buffers]
        self._last = {**asdict(frame.header), 'planes': checksums, 'inodes': inodes}
        self._last['sequence'] = frame.data.sequence
        if len(self._kept) < self._keeps:
            self._kept.append(frame.keep())
        self.received.append(checked(value, divmod(frame.header.stamp_ns, SECOND)))

    def state(self) -> dict[str, Any]:
        statistics = self._subscription.statistics()
        return {
            'received': self.received,
            'last': self._last,
            'rung': statistics.rung,
            'reason': statistics.reason,
            'conversions': statistics.conversions,
            'errors': statistics.conversion_errors,
            'dropped': statistics.dropped,
            'duplicates': statistics.duplicates,
            'windows': f'{statistics.window} of {statistics.asked}',
        }

    def close(self) -> None:
        self._subscription.destroy()
        for frame in self._kept:
            frame.release()


def open_descriptors() -> Counter[str]:
    gc.collect()
    found: Counter[str] = Counter()
    for number in os.listdir('/proc/self/fd'):
        with suppress(OSError):
            found[os.readlink(f'/proc/self/fd/{number}').split(' ')[0].split(':[')[0]] += 1
    return found


KINDS: dict[str, Callable[[Node, dict[str, Any]], Any]] = {
    'plain publisher': PlainPublisher,
    'adapted publisher': FramePublisher,
    'plain subscriber': PlainSubscription,
    'adapted subscriber': FrameSubscription,
}


class Program:
    """All endpoints of this process: publishers on one node, subscriptions on another."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self._executor = make_executor(kind, self.context)
        options = {
            'context': self.context,
            'enable_rosout': False,
            'start_parameter_services': False,
        }
        self._nodes = {
            role: Node(f'{role}_{os.getpid()}', **options) for role in ('publisher', 'subscriber')
        }
        for node in self._nodes.values():
            self._executor.add_node(node)
        self._ends: dict[str, Any] = {}
        self._stop = threading.Event()
        self._end: Any = Future()
        self._thread = threading.Thread(
            target=spin, args=(self._executor, kind, self._stop, self._end), daemon=True
        )
        self._thread.start()

    def open(self, ends: list[dict[str, Any]]) -> None:  # noqa: A003
        """
        Make endpoints.

        Each has ``name``, ``kind``, ``topic``, ``qos``, ``converts`` (``False``: converting
        raises), and its kind's own options.
        """

        def make() -> None:
            for end in ends:
                self._ends[end['name']] = KINDS[end['kind']](
                    self._nodes[end['kind'].split()[1]], end
                )

        self._between_callbacks(make)

    def _between_callbacks(self, work: Callable[[], None]) -> None:
        """
        Run *work* as a task of an EventsExecutor, else at once.

        An EventsExecutor fails if another thread creates or destroys entities.
        """
        if self._kind != 'events':
            work()
            return
        done = self._executor.create_task(work)
        finished = threading.Event()
        done.add_done_callback(lambda future: finished.set())
        assert finished.wait(60.0), 'the executor is busy or dead'
        done.result()

    def publish(self, values: dict[str, list[int]]) -> None:
        for name, each in values.items():
            for value in each:
                self._ends[name].publish(value)

    def state(self, names: list[str]) -> dict[str, dict[str, Any]]:
        return {name: self._ends[name].state() for name in names}

    def wait(
        self, wanted: dict[str, dict[str, Any]], timeout_s: float = 60.0
    ) -> dict[str, dict[str, Any]]:
        """
        Wait until every endpoint has its wanted state; return the states that are still missing.

        A wanted number is a minimum; for a list it is the minimum length.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            missing = {}
            for name, conditions in wanted.items():
                state = self._ends[name].state()
                if not all(_holds(state[key], value) for key, value in conditions.items()):
                    missing[name] = state
            if not missing or time.monotonic() > deadline:
                return missing
            time.sleep(0.005)

    def close(self, names: list[str]) -> None:
        self._between_callbacks(lambda: [self._ends.pop(name).close() for name in names])

    def end(self) -> None:
        self.close(list(self._ends))
        self._stop.set()
        # An rclpy executor that is shut down just before it waits may wait for ever.
        self._end.set_result(None)
        self._thread.join(60.0)
        self._executor.shutdown()
        self.context.try_shutdown()


def _holds(actual: Any, wanted: Any) -> bool:
    if isinstance(actual, list):
        return len(actual) >= wanted
    return bool(actual >= wanted) if isinstance(actual, int) else wanted in actual


def serve(make: Callable[[], Any]) -> None:
    """Answer commands from stdin, such as ``open`` or ``camera.run``, by calling methods."""
    # Answers get a descriptor of their own, because libraries may print to stdout.
    answers = os.fdopen(os.dup(1), 'w', encoding='utf-8')
    os.dup2(2, 1)
    faulthandler.register(signal.SIGUSR1)
    program = make()
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {'result': operator.attrgetter(command['op'])(program)(*command['arguments'])}
        except Exception as error:
            answer = {'error': f'{type(error).__name__}: {error}'}
        print(json.dumps(answer), file=answers, flush=True)
    program.end()


if __name__ == '__main__':
    serve(lambda: Program(sys.argv[1]))
