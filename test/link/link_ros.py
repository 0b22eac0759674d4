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
A ROS context in the test's own process, a camera of tiny frames in it, and other processes.

``python link_ros.py EXECUTOR`` reads one JSON command per line and answers each with a line of
JSON; the methods of Program are the commands. One value (1 to 250) is a frame's luma, the
message's bytes and the stamp, so a receiver can check that they belong together.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
import faulthandler
from importlib.util import find_spec
import json
import operator
import os
from pathlib import Path
import signal
import subprocess
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
from std_msgs.msg import String
from waiting import eventually, PATIENCE_S
from warm_start import Started

from zc_perception.frame import Frame, Header
from zc_perception.frame_queue import KeepLastQueue
from zc_perception.link.announcement import Announcement, host_id
from zc_perception.link.bus import LinkQos
from zc_perception.link.endpoints import (
    AdaptedPublisher,
    AdaptedSubscription,
    remote_links,
    SharedMemoryLinks,
)
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.link.rclpy_compat import InvalidHandle
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.link.type_adapter import TypeAdapter
from zc_perception.memory.ledger import CopyLedger
from zc_perception.pixel.colorimetry import Colorimetry, Matrix, Range

EXECUTORS = ['single', 'multi', *(['events'] if find_spec('rclpy.experimental') else [])]
WIDTH, HEIGHT = 32, 16
SECOND = 1_000_000_000
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
RESERVE = 2
LEAN = {'enable_rosout': False, 'start_parameter_services': False}


def profile(*, depth: int, transient_local: bool = False, best_effort: bool = False) -> QoSProfile:
    durability, reliability = DurabilityPolicy, ReliabilityPolicy
    return QoSProfile(
        depth=depth,
        durability=durability.TRANSIENT_LOCAL if transient_local else durability.VOLATILE,
        reliability=reliability.BEST_EFFORT if best_effort else reliability.RELIABLE,
    )


def make_executor(kind: str, context: rclpy.Context) -> Any:
    if kind == 'events':
        from rclpy.experimental.events_executor import EventsExecutor

        return EventsExecutor(context=context)
    return {'single': SingleThreadedExecutor, 'multi': MultiThreadedExecutor}[kind](
        context=context
    )


def run_on(executor: Any, work: Callable[[], None]) -> None:
    finished, done = threading.Event(), executor.create_task(work)
    done.add_done_callback(lambda future: finished.set())
    assert finished.wait(60.0), 'the executor is busy or dead'
    done.result()


def refuse(value: Any) -> Any:
    raise AssertionError(f'{type(value).__name__} was converted')


RAISING = TypeAdapter(Frame, Image, refuse, refuse)


def adapter(options: dict[str, Any]) -> TypeAdapter[Frame]:
    if options['converts']:
        return frame_adapter('mono8', CopyLedger(), holder=options['name'])
    return RAISING


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


def announced(publisher_id: str, path: object = '/nowhere/x.sock') -> Announcement:
    return Announcement(publisher_id, host_id(), str(path), 64, 48, ('NV12',), 'memfd')


class Ros:
    """A context with nodes; a thread spins them, and goes on after a callback raises."""

    def __init__(self, executor: str, domain: int | None = None, *names: str) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.executor = make_executor(executor, self.context)
        self.kind = executor
        self._nodes: list[Node] = []
        self._endpoints: list[Any] = []
        self._stop = threading.Event()
        self._end: Any = Future()
        self.errors: list[Exception] = []
        self.named = {name: self.node(name) for name in names}
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def _spin(self) -> None:
        while not self._stop.is_set():
            try:
                # A spin ends so if another thread destroys a plain endpoint at the wrong moment.
                with suppress(InvalidHandle):
                    if self.kind != 'events':
                        self.executor.spin_until_future_complete(self._end)
                        return
                    # Without a timeout, current EventsExecutors deliver nothing.
                    self.executor.spin_once(timeout_sec=0.2)
            except Exception as error:
                self.errors.append(error)

    def node(self, name: str, **options: Any) -> Node:
        node = Node(name, context=self.context, **LEAN, **options)
        self.executor.add_node(node)
        self._nodes.append(node)
        return node

    def own(self, endpoint: Any) -> Any:
        """Destroy the endpoint at the end, after those that are made later."""
        self._endpoints.append(endpoint)
        return endpoint

    def publisher(
        self,
        node: Node,
        adapter: TypeAdapter[Any] = RAISING,
        qos: QoSProfile | None = None,
        topic: str = 'image',
        **options: Any,
    ) -> AdaptedPublisher[Any]:
        made = AdaptedPublisher(node, adapter, topic, qos or QoSProfile(depth=1), **options)
        return self.own(made)

    def subscription(
        self,
        node: Node,
        adapter: TypeAdapter[Any] = RAISING,
        qos: QoSProfile | None = None,
        **options: Any,
    ) -> AdaptedSubscription[Any]:
        topic = options.pop('topic', 'image')
        made = AdaptedSubscription(node, adapter, topic, qos or QoSProfile(depth=1), **options)
        return self.own(made)

    def close(self) -> None:
        self._stop.set()
        # An rclpy executor that is shut down just before it waits may wait for ever.
        self._end.set_result(None)
        self._thread.join(60.0)
        self.executor.shutdown()
        self._thread.join(60.0)
        while self._endpoints:  # a queue's descriptor is closed with its last reference
            self._endpoints.pop().destroy()
        while self._nodes:
            self._nodes.pop().destroy_node()
        self.context.try_shutdown()
        del self.executor


class Camera:
    """Publish frames by *way*, from a pool with :data:`RESERVE` slots for the camera itself."""

    def __init__(self, ros: Any, way: str, folder: Path, *, slots: int = 8) -> None:
        self.way = way
        self.node = ros.node('camera')
        self.pool = pool_of(nv12(), slots, reserve=RESERVE)
        self.number = 0
        self.missed = 0
        self._server: SharedMemoryServer | None = None
        self._publisher: AdaptedPublisher[Frame] | None = None
        self._plain: Any = None
        if way in ('in_process', 'both'):
            adapter = frame_adapter('mono8', CopyLedger(), holder='camera')
            self._publisher = AdaptedPublisher(self.node, adapter, 'image', QoSProfile(depth=1))
        if way in ('shared_memory', 'both'):
            identity = self._publisher.publisher_id if self._publisher else 'a' * 32
            self._server = SharedMemoryServer('camera', identity, self.pool, folder=folder)
            if self._publisher is not None:
                self._publisher.use(self.pool)
                self._publisher.serve(self._server)
                self._publisher.announce(width=32, height=16, formats=('NV12',), heap='memfd')
            else:
                announcer = self.node.create_publisher(String, 'image/_zc', LATCHED)
                announcer.publish(String(data=announced(identity, self._server.path).to_json()))
        if way == 'ros_message':
            self._plain = self.node.create_publisher(Image, 'image', QoSProfile(depth=32))

    def message(self, number: int) -> Image:
        return grey_image(number % 250, number)

    def draw(self, frame: Frame, number: int) -> None:
        """Fill the frame; its pixels say nothing here."""

    def publish(self) -> int:
        self.number += 1
        if self._plain is not None:
            self._plain.publish(self.message(self.number))
            return self.number
        slot = self.pool.acquire()
        if slot is None:
            self.missed += 1
            return self.number
        with next_frame(self.pool, self.number, slot) as frame:
            self.draw(frame, self.number)
            if self._publisher is not None:
                self._publisher.publish(frame)
            elif self._server is not None:
                self._server.publish(frame)
        return self.number

    def met(self, subscription: Any) -> bool:
        if self._plain is not None:
            return bool(self._plain.get_subscription_count())
        if self.way == 'in_process':
            return True
        # A subscription without a callback connects in a thread of its own.
        return subscription.statistics().window > 0

    def peers(self) -> list[tuple[str, int, int]]:
        """Return name, frames in hand and window of each consumer that takes slots of the pool."""
        here = () if self._publisher is None else self._publisher.in_process_peers()
        there = () if self._server is None else self._server.statistics().consumers
        return [(peer.name, len(peer.in_hand), peer.window) for peer in (*here, *there)]

    def is_alone(self) -> bool:
        """Return whether no consumer has slots of the pool."""
        return not self.peers() and self.pool.unpromised == len(self.pool.slots) - RESERVE

    def destroy(self) -> None:
        if self._publisher is not None:
            self._publisher.destroy()
        elif self._server is not None:
            self._server.close()
        self.pool.close()


def number_of(frame: Frame) -> int:
    return frame.header.stamp_ns % 1_000_000_000


def publishing(camera: Camera, condition: Callable[[], Any]) -> bool:
    """Publish at about 50 Hz until *condition* is true; return whether it was in time."""
    return eventually(condition, pause=lambda: (camera.publish(), time.sleep(0.02)))


class Links:
    """The clients for rung 2 of a subscription with no node."""

    def __init__(self, with_callback: bool = False, **options: Any) -> None:
        self.queue: KeepLastQueue[Frame] = KeepLastQueue(1, Frame.release)
        self.links = SharedMemoryLinks('npu', **options)
        self.woken, self.changes = threading.Event(), list[int]()
        self.links.open(
            self.queue,
            LinkQos(1),
            lambda header: True,
            self.woken.set if with_callback else None,
            lambda: self.changes.append(len(self.links.connected())),
        )

    def close(self) -> None:
        self.links.close()
        self.queue.end()


# What a Program opens.


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
        found = self._publisher.statistics()
        readers = {'readers': found.image_readers, 'in_process': found.in_process_subscriptions}
        consumers = 0 if self._server is None else self._server.consumers
        converted = {'conversions': found.conversions, 'errors': found.conversion_errors}
        converted['converted'] = found.conversions + found.conversions_skipped
        return {**readers, **converted, 'consumers': consumers}

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


class FrameReceiver:
    """Options: ``held`` of each remote publisher, ``keeps``: so many are never released."""

    def __init__(self, node: Node, options: dict[str, Any]) -> None:
        self.received: list[int] = []
        self._keeps = options.get('keeps', 0)
        self._kept: list[Frame] = []
        self._last: dict[str, Any] = {}
        self.links = SharedMemoryLinks(options['name'], held=options.get('held', 1))
        own = {'callback': self._on_frame, 'holder': options['name'], 'remote': self.links}
        qos = profile(**options['qos'])
        self._subscription = AdaptedSubscription(
            node, adapter(options), options['topic'], qos, **own
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
        names = 'rung', 'reason', 'conversions', 'dropped', 'duplicates'
        told = {name: getattr(statistics, name) for name in names}
        told |= {'received': self.received, 'last': self._last}
        windows = f'{statistics.window} of {statistics.asked}'
        return told | {'errors': statistics.conversion_errors, 'windows': windows}

    def close(self) -> None:
        self._subscription.destroy()
        for frame in self._kept:
            frame.release()


KINDS: dict[str, Callable[[Node, dict[str, Any]], Any]] = {
    'plain publisher': PlainPublisher,
    'adapted publisher': FramePublisher,
    'plain subscriber': PlainSubscription,
    'adapted subscriber': FrameReceiver,
}


class Program:
    """All endpoints of this process: publishers on one node, subscriptions on another."""

    def __init__(self, kind: str) -> None:
        self._ros = Ros(kind, None, 'publisher', 'subscriber')
        self._nodes, self._kind = self._ros.named, kind
        self._ends: dict[str, Any] = {}

    def open(self, ends: list[dict[str, Any]]) -> None:  # noqa: A003
        """Make endpoints, which :func:`end` describes."""

        def make() -> None:
            for end in ends:
                self._ends[end['name']] = KINDS[end['kind']](
                    self._nodes[end['kind'].split()[1]], end
                )

        self._between_callbacks(make)

    def _between_callbacks(self, work: Callable[[], None]) -> None:
        # An EventsExecutor fails if another thread creates or destroys entities.
        if self._kind == 'events':
            run_on(self._ros.executor, work)
        else:
            work()

    def publish(self, values: dict[str, list[int]]) -> None:
        for name, each in values.items():
            for value in each:
                self._ends[name].publish(value)

    def state(self, names: list[str]) -> dict[str, dict[str, Any]]:
        return {name: self._ends[name].state() for name in names}

    def wait(self, wanted: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """
        Wait until every endpoint has its wanted state; return the states that are still missing.

        A wanted number is a minimum; for a list it is the minimum length.
        """
        missing: dict[str, dict[str, Any]] = {}

        def all_there() -> bool:
            nonlocal missing
            states = {name: self._ends[name].state() for name in wanted}
            missing = {
                name: state
                for name, state in states.items()
                if not all(_holds(state[key], value) for key, value in wanted[name].items())
            }
            return not missing

        eventually(all_there)
        return missing

    def close(self, names: list[str]) -> None:
        self._between_callbacks(lambda: [self._ends.pop(name).close() for name in names])

    def end(self) -> None:
        self.close(list(self._ends))
        assert not self._ros.errors, self._ros.errors
        self._ros.close()


def _holds(actual: Any, wanted: Any) -> bool:
    if isinstance(actual, list):
        return len(actual) >= wanted
    return bool(actual >= wanted) if isinstance(actual, int) else wanted in actual


def serve(make: Callable[[], Any]) -> None:
    # Answers get a descriptor of their own, because libraries may print to stdout.
    answers = os.fdopen(os.dup(1), 'w', encoding='utf-8')
    os.dup2(2, 1)
    faulthandler.register(signal.SIGUSR1)
    # On a busy machine a connection takes longer than the two seconds after which messages are
    # read: the publisher would convert frames, or the receiver.
    remote_links._PATIENCE_S = PATIENCE_S
    program = make()
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {'result': operator.attrgetter(command['op'])(program)(*command['arguments'])}
        except Exception as error:
            answer = {'error': f'{type(error).__name__}: {error}'}
        print(json.dumps(answer), file=answers, flush=True)
    program.end()


# Other processes: start this program, or one with the same commands, and talk to it.


def end(
    name: str,
    kind: str,
    *,
    depth: int = 5,
    transient_local: bool = False,
    best_effort: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Return an endpoint for Program to open; if it doesn't convert, converting raises."""
    qos = {'depth': depth, 'transient_local': transient_local, 'best_effort': best_effort}
    return {'name': name, 'kind': kind, 'topic': 'image', 'qos': qos, 'converts': True, **options}


class LinkProcess(AbstractContextManager['LinkProcess']):
    """A process of a Program; it is called with commands: ``process('open', [...])``."""

    def __init__(self, executor: str, domain: int, folder: Path, program: str = __file__) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        paths = str(Path(__file__).parents[1]), os.environ.get('PYTHONPATH', '')
        given = {'ROS_DOMAIN_ID': str(domain), 'ZC_RUNTIME_DIR': str(folder)}
        environment = os.environ | given | {'PYTHONPATH': os.pathsep.join(paths)}
        self._log = folder / f'{executor}-{os.urandom(3).hex()}.log'
        with self._log.open('w') as log:
            self.process = Started(
                [sys.executable, program, executor],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def send(self, operation: str, *arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({'op': operation, 'arguments': arguments}) + '\n')
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f'the program has ended:\n{self.log[-4000:]}'
        answer = json.loads(line)
        assert 'error' not in answer, f'{answer["error"]}\n{self.log[-4000:]}'
        return answer['result']

    def __call__(self, operation: str, *arguments: Any) -> Any:
        self.send(operation, *arguments)
        return self.answer()

    @property
    def log(self) -> str:
        # Open the file anew: the process shares this file's position, and moves it when it writes.
        return self._log.read_text(encoding='utf-8')

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60.0)

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(60.0)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGUSR1)
                time.sleep(1.0)
                self.kill()
                raise AssertionError(
                    f'the program does not end: where its threads are:\n{self.log[-8000:]}'
                ) from None
        self.process.stdout.close()

    def __exit__(self, *failure: object) -> None:
        if any(failure):
            sys.stderr.write(self.log[-4000:])
        self.close()


if __name__ == '__main__':
    serve(lambda: Program(sys.argv[1]))
