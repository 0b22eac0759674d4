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
Make ROS messages on a separate thread, so that a slow viewer can't slow a camera.

The messages are for plain readers: subscribers that have no direct link to the publisher, neither
in the process nor by shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import threading
from typing import Any, Generic, NamedTuple, TypeVar

from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import serialize_message

from zc_perception.frame import Frame
from zc_perception.frame_queue import KeepLastQueue
from zc_perception.link.bus import LinkQos
from zc_perception.link.endpoints.qos import link_qos
from zc_perception.link.rclpy_compat import (
    InvalidHandle,
    name_before_remaps,
    publish,
    subscription_count,
)
from zc_perception.link.type_adapter import TypeAdapter
from zc_perception.log import Seldom
from zc_perception.memory.pool import BufferPool

T = TypeVar('T')
# Let at least this many messages of write_message() wait, even if the QoS depth is smaller. They
# don't wait for long, because they need no conversion.
_BURST = 16


@dataclass(frozen=True)
class ExtraMessage(Generic[T]):
    """
    One more message that a publisher makes of each object, on the topic ``<topic><suffix>``.

    The message is made only while this topic has a reader, or always if its QoS is
    transient_local.

    :param qos: QoS of this topic; ``None``: the same as the publisher's.
    """

    ros_type: type[Any]
    suffix: str
    convert: Callable[[T], Any]
    qos: QoSProfile | None = None


class _Waiting(NamedTuple):
    """A waiting message, kept as bytes, because the user may change the message object."""

    content: bytes


def _is_object(entry: object) -> bool:
    return not isinstance(entry, _Waiting)


class MessageWriter(Generic[T]):
    """
    Publishes the messages of one publisher of this package.

    Each object is converted once for each message type, whatever the number of readers.

    The writer owns the rclpy publishers, a queue of waiting objects, and the thread that converts
    them. The thread starts with the first object for which there is a reader. :meth:`write` runs
    on the caller's thread; it only takes a lease on the object, and puts the object into the
    queue. ``_lock`` is held to replace the list of message types, and to start or stop the thread.

    With transient_local QoS, every object is converted, as in rclcpp, because a later reader gets
    the messages from the middleware's history.

    ``withheld`` is the reason why no messages are made of objects; empty if they are made.
    """

    def __init__(
        self,
        node: Node,
        adapter: TypeAdapter[T],
        topic: str,
        qos: QoSProfile,
        extras: Sequence[ExtraMessage[T]],
    ) -> None:
        self._node = node
        self._complain = Seldom(lambda text: node.get_logger().error(text), 5.0)
        self._qos: LinkQos = link_qos(qos)
        self._publisher = node.create_publisher(adapter.ros_type, topic, qos)
        self.topic: str = self._publisher.topic_name
        self._holder = f'{node.get_fully_qualified_name()}:to_ros'
        self._adapter = adapter
        self._outputs: list[tuple[Any, Callable[[T], Any]]] = [(self._publisher, adapter.to_ros)]
        self._extras: dict[str, Any] = {}
        self._latched: tuple[Any, ...] = ()
        self._profile = qos
        # With leased objects, keep-all counts as depth 1: else waiting frames would use up all
        # slots.
        depth = (self._qos.depth or 1) if adapter.leased else self._qos.depth
        self._depth = depth or 1
        # How many finished messages, and how many unconverted objects, may wait. If the frames'
        # pool promises too few slots, _take_from() lowers the number of objects.
        self._most = self._most_objects = depth
        self._queue: KeepLastQueue[T | _Waiting] = KeepLastQueue(
            None, self._leave_out, gate=self._begin
        )
        # Whether an entry was taken from the queue and isn't published yet.
        self._busy = False
        self._last_words: list[_Waiting] = []
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._pool: BufferPool | None = None
        self.withheld = ''
        self.conversions = 0
        self.errors = 0
        self.offer(extras)

    def convert_by(self, to_ros: Callable[[T], Any]) -> None:
        """Use *to_ros* for the topic's messages from the next object on. Thread-safe."""
        with self._lock:
            self._outputs = [
                (self._publisher, to_ros),
                *self._outputs[1:],
            ]  # replace the list and never change it, because other threads read it without a lock

    def offer(self, extras: Sequence[ExtraMessage[T]]) -> None:
        """
        Publish *extras* from now on, in place of the earlier extra messages.

        If an earlier extra message had the same topic, its rclpy publisher is used again. Any
        thread may call this.
        """
        with self._lock:
            if self._stop.is_set():
                return
            before, self._extras = self._extras, {}
            outputs = self._outputs[:1]
            for extra in extras:
                publisher = before.pop(extra.suffix, None)
                if publisher is None:
                    publisher = self._node.create_publisher(
                        extra.ros_type,
                        name_before_remaps(self._node, self.topic + extra.suffix),
                        extra.qos or self._profile,
                    )
                self._extras[extra.suffix] = publisher
                outputs.append((publisher, extra.convert))
            self._outputs = outputs
            self._counts = [publisher.handle.get_subscription_count for publisher, _ in outputs]
            own = [
                (self._publisher, self._profile),
                *((self._extras[extra.suffix], extra.qos or self._profile) for extra in extras),
            ]
            self._latched = tuple(
                publisher for publisher, qos in own if link_qos(qos).transient_local
            )
        for publisher in before.values():
            self._node.destroy_publisher(publisher)

    def readers(self) -> int:
        """Return how many readers, in all processes, the main topic (not an extra topic) has."""
        return subscription_count(self._publisher)

    @property
    def turned_away(self) -> int:
        """The number of readers that get no messages, because messages are withheld."""
        return (
            sum(subscription_count(publisher) for publisher, _ in self._outputs)
            if self.withheld
            else 0
        )

    @property
    def skipped(self) -> int:
        """The number of objects and messages that were dropped because too many waited."""
        return self._queue.dropped

    def wanted(self) -> bool:
        """Say whether to convert: a topic of the writer has a reader or is transient_local."""
        if self.withheld:
            return False
        if self._latched:
            return True
        # This runs for every frame. A loop is quicker than any(), and the handles' own methods are
        # quicker than subscription_count().
        try:
            for count in self._counts:
                if count():
                    return True
        except (InvalidHandle, RuntimeError):
            return any(subscription_count(publisher) for publisher, _ in self._outputs)
        return False

    def write(self, item: T) -> None:
        """Queue a lease on *item* for conversion if there is a reader; don't wait."""
        if not self.wanted() or self._stop.is_set():
            if self._pool is not None:
                self._take_from(None)
            return
        if self._adapter.custom_type is Frame:
            self._take_from(item.pool)  # type: ignore[attr-defined]
        if self._most_objects is not None:
            self._queue.make_room(self._most_objects, _is_object)
        delivery = self._adapter.deliver(item, self._holder)
        # The quota of leases is used up: the adapter keeps views of earlier frames, whose leases
        # therefore last.
        if delivery is None:
            self._queue.dropped += 1
            return
        if self._thread is None:
            with self._lock:
                if not self._stop.is_set():
                    self._thread = threading.Thread(
                        target=self._run, name=f'to_ros {self.topic}', daemon=True
                    )
                    self._thread.start()
        self._queue.put(delivery)

    def _take_from(self, pool: Any) -> None:
        """
        Let *pool* promise slots for the frame that is being converted and for waiting frames.

        A waiting frame needs a promised slot. But if the pool has no slot left to promise, one
        frame may still wait, because a conversion always releases its frame soon.

        :param pool: ``None`` cancels the promise: there are no readers, or the writer is closed.
        """
        before = self._pool
        if pool is before:
            return
        self._pool = pool if isinstance(pool, BufferPool) else None
        self._most_objects = self._most
        if before is not None:
            before.set_quota(self._holder, None)
        if self._pool is not None:
            _, depth = self._pool.grant(self._holder, 1, self._depth)
            self._most_objects = max(1, depth)

    def write_message(self, message: Any) -> None:
        """
        Publish a message as it is, without waiting.

        If earlier objects wait or are being converted, queue the message behind them. If too many
        messages wait, drop the oldest message.
        """
        if not self._queue and not self._busy:
            publish(self._publisher, message)
            return
        if self._most is not None:
            self._queue.make_room(max(self._most, _BURST), lambda each: not _is_object(each))
        self._queue.put(_Waiting(serialize_message(message)))

    def _begin(self, entry: T | _Waiting) -> bool:
        """
        Set _busy before the thread takes an entry; the queue calls this as its ``gate``.

        While _busy is set, write_message() publishes no message ahead of the entry that was taken.
        """
        self._busy = True
        return True

    def _leave_out(self, entry: Any) -> None:
        if _is_object(entry):
            self._adapter.release(entry)
        elif self._stop.is_set():
            self._last_words.append(entry)

    def _run(self) -> None:
        while not self._stop.is_set():
            entry: Any = self._queue.get(0.5)
            if entry is None:
                continue
            try:
                if isinstance(entry, _Waiting):
                    self._publish_waiting(entry)
                else:
                    self._convert(entry)
            finally:
                self._busy = False
            del entry

    def _publish_waiting(self, message: _Waiting) -> None:
        try:
            publish(self._publisher, message.content)
        except Exception as error:
            self._say(f'a message could not be published: {error}')

    def _convert(self, item: T) -> None:
        try:
            for publisher, convert in self._outputs:
                if publisher not in self._latched and not subscription_count(publisher):
                    continue
                try:
                    message = convert(item)
                    self.conversions += 1
                    publish(publisher, message)
                except Exception as error:  # users write adapters, which may raise anything
                    self._say(f'an object could not be published as a message: {error}')
        finally:
            self._adapter.end(item)

    def _say(self, text: str) -> None:
        """Log and count an error; ignore it after close(), when errors are normal."""
        if not self._stop.is_set():
            self.errors += 1
            self._complain(f"'{self.topic}': {text}", 'errors')

    def close(self) -> None:
        """Stop converting, publish the messages that wait, and destroy the rclpy publishers."""
        with self._lock:
            self._stop.set()
        self._queue.end()
        if self._thread is not None:
            self._thread.join(timeout=2.0)
        while self._last_words:
            self._publish_waiting(self._last_words.pop(0))
        self._take_from(None)
        for publisher, _ in self._outputs:
            self._node.destroy_publisher(publisher)
