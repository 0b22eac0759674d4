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
Publish objects that a type adapter can convert to messages.

The module also announces a publisher to other processes, and counts what it publishes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import operator
from pathlib import Path
import threading
import time
from typing import Any, Generic, Protocol, TypeVar

from rclpy.node import Node
from rclpy.qos import QoSProfile
from std_msgs.msg import String

from zc_perception.frame import Frame
from zc_perception.link.announcement import (
    Announcement,
    announcement_topic,
    host_id,
    new_publisher_id,
    remove_announcement,
    write_announcement,
)
from zc_perception.link.bus import BUS, BusPublisher, BusSubscription
from zc_perception.link.endpoints.message_writer import ExtraMessage, MessageWriter
from zc_perception.link.endpoints.qos import (
    ANNOUNCEMENT_QOS,
    bus_key,
    leased_publisher_qos,
    link_qos,
)
from zc_perception.link.rclpy_compat import publish, when_destroyed
from zc_perception.link.shared_memory.unix_socket import announcement_path
from zc_perception.link.type_adapter import TypeAdapter
from zc_perception.lookout import LOOKOUT, Watch
from zc_perception.memory.pool import BufferPool
from zc_perception.native import compiled
from zc_perception.negotiation.session import Consumer

T = TypeVar('T')
# These getters are called for every frame; Python functions would take three times as long.
_pool_of = operator.attrgetter('_lease.pool')
_header_of = operator.attrgetter('data.header')


UNANNOUNCED = (
    'without it, consumers find the publisher only by its message on TOPIC/_zc, some of them '
    "late; free room in the socket's folder, or name another folder in ZC_RUNTIME_DIR; writing is "
    'tried again every 5 s'
)
"""Text for logs and diagnostics: the effect of an announcement file that can't be written."""
_AGAIN_S = 5.0


class Announcer:
    """
    Announces one publisher by a file beside its socket, and by a latched message.

    The message's topic is ``<topic>/_zc``. The announcer owns the file and the message's writer.
    Any thread may call its methods.

    ``unannounced`` is the reason why the file can't be written; empty if it is written, or if
    there is no socket.

    :param topic: full name of the topic.
    :raises ConfigError: the topic's name is too long.
    """

    def __init__(self, node: Node, topic: str) -> None:
        self._node = node
        self._topic = topic
        self.writer = node.create_publisher(String, announcement_topic(topic), ANNOUNCEMENT_QOS)
        self._lock = threading.Lock()
        self._announcement: Announcement | None = None
        self._again: Watch | None = None
        self._silent = False
        self.unannounced = ''

    def announce(self, announcement: Announcement) -> None:
        """
        Publish *announcement* in place of the earlier one.

        Also write *announcement* to a file. If the file can't be written, for example because the
        disk is full, try again every 5 s.
        """
        with self._lock:
            self._announcement = announcement
        self._say()

    def _say(self) -> None:
        with self._lock:
            announcement = self._announcement
            if announcement is None or self._silent:
                return
            before, again = self.unannounced, None
            # Write the announcement's file before the message is published, so that a subscriber
            # that has got the message never finds an older file.
            try:
                if announcement.socket:
                    domain = self._node.context.get_domain_id()
                    write_announcement(announcement, self._topic, domain)
                self.unannounced = ''
                again, self._again = self._again, None
            except OSError as error:
                self.unannounced = error.strerror or str(error)
                if self._again is None:
                    self._again = LOOKOUT.watch(_AGAIN_S, self._say)
            publish(self.writer, String(data=announcement.to_json()))
        if again is not None:
            again.stop()  # without the lock, because stop() waits for _say(), which needs the lock
        if bool(before) is bool(self.unannounced):
            return
        path, logger = announcement_path(Path(announcement.socket)), self._node.get_logger()
        if self.unannounced:
            logger.warning(
                f"'{self._topic}': announcement file '{path}' can't be written: "
                f'{self.unannounced}; {UNANNOUNCED}'
            )
        else:
            logger.info(f"'{self._topic}': announcement file '{path}' has now been written")

    def fall_silent(self) -> None:
        """
        Remove the announcement file and stop announcing.

        Call this method before the socket is removed.
        """
        with self._lock:
            self._silent = True
            announcement, again = self._announcement, self._again
            if announcement is not None and announcement.socket:
                remove_announcement(Path(announcement.socket))
        if again is not None:
            again.stop()

    def close(self) -> None:
        """Destroy the announcements' writer; the topic's own writer must be destroyed before."""
        self._node.destroy_publisher(self.writer)


class SharedMemoryEnd(Protocol):
    """The server that a publisher of frames uses to send them to other processes."""

    @property
    def path(self) -> Path:
        """Path of the socket to which consumers connect."""

    def publish(self, frame: Frame) -> None:
        """Send *frame* to all connected consumers; never block."""

    def close(self) -> None:
        """End all connections."""


@dataclass(frozen=True)
class PublisherStatistics:
    """
    A publisher's counters since its start, and its current subscribers.

    :param published: number of objects and messages that were passed to ``publish``.
    :param in_process_subscriptions: number of subscriptions in this process that get the objects
        themselves now.
    :param image_readers: number of subscribers that read messages now.
    :param conversions: number of messages that were made of objects; for frames each is a copy.
    :param conversions_skipped: number of objects and messages that were dropped before they were
        published as messages, because too many waited in the queue.
    :param conversion_errors: number of objects and messages that could not be published as
        messages.
    :param turned_away: number of readers that get no messages now, for the reason *withheld*.
    :param withheld: why no messages are made; empty if they are made.
    """

    published: int
    in_process_subscriptions: int
    image_readers: int
    conversions: int
    conversions_skipped: int
    conversion_errors: int
    turned_away: int = 0
    withheld: str = ''


@dataclass(frozen=True)
class InProcessPeer:
    """
    A subscription in this process: it gets published objects without conversion to messages.

    If the pool has no slots for the subscription, it gets messages instead.

    :param name: the subscription's name among the holders of leases.
    :param sent: number of objects that were put into its queue.
    :param dropped: number of objects that newer ones replaced in its queue.
    :param refused: number of objects that it did not get because it held as many as it may
        hold.
    :param window: number of objects that it may hold at the same time; 0: no limit, or the pool
        has promised it no slots.
    :param asked: number of objects that it asked to hold; 0: it named no number.
    :param in_hand: for each frame that it holds, its sequence number and for how many seconds it
        has held it.
    :param without_slots: why the pool has no slots for it, so that it gets only messages; empty:
        it gets the published objects.
    """

    name: str
    sent: int
    dropped: int
    refused: int
    window: int = 0
    asked: int = 0
    in_hand: tuple[tuple[int, float], ...] = ()
    without_slots: str = ''


class AdaptedPublisher(Generic[T]):
    """
    Publishes objects of your own type.

    Subscriptions in this process get the objects themselves; other subscriptions get ROS messages.

    ::

        import rclpy
        from rclpy.qos import QoSProfile
        from std_msgs.msg import String
        from zc_perception import AdaptedPublisher, TypeAdapter

        TEXT = TypeAdapter(
            str, String, lambda text: String(data=text), lambda message: message.data
        )
        rclpy.init()
        node = rclpy.create_node('speaker')
        publisher = AdaptedPublisher(node, TEXT, 'chatter', QoSProfile(depth=10))
        node.create_timer(0.5, lambda: publisher.publish('hello'))
        rclpy.spin(node)

    An object is converted to a message once, and only while a subscription gets messages. With
    transient_local QoS, every object is converted, because a subscription may come later.
    ``capture_node`` publishes camera frames with this class; its frames also reach other processes
    of the host by shared memory, see :meth:`serve`.

    **Owner.** The publisher ends with :meth:`destroy`, or with ``node.destroy_node()``. Do not
    change an object after you published it. You still own a published frame: release it.

    **Threads.** Call ``publish`` from one thread at a time. It never waits for a subscriber:
    messages are made on another thread. All subscriptions get objects and messages in the order of
    the calls.

    **Errors.** An exception of the adapter's ``to_ros`` is logged and counted.

    :param node: the node that the publisher belongs to.
    :param adapter: how an object becomes a message.
    :param topic: name of the topic, relative or absolute; remaps apply.
    :param qos: QoS as in rclpy.
    :param extras: further messages that are made of each object, such as a compressed picture.
    :param publisher_id: the publisher's id in the messages that :meth:`announce` sends; by default
        a random one.
    :raises ConfigError: *qos* is keep-last with depth 0, or transient_local with keep-all for a
        type with leases; or the topic's name is too long to append ``/_zc``.
    """

    # The attributes that native/links.c reads and writes have a fixed place in the object.
    __slots__ = (
        '__dict__', '__weakref__', '_adapter', '_bus_publisher', '_closed', '_published',
        '_shared_memory', 'messages',
    )  # fmt: skip

    def __init__(
        self,
        node: Node,
        adapter: TypeAdapter[T],
        topic: str,
        qos: QoSProfile,
        *,
        extras: Sequence[ExtraMessage[T]] = (),
        publisher_id: str | None = None,
    ) -> None:
        offered = leased_publisher_qos(qos, topic) if adapter.leased else link_qos(qos)
        self._node = node
        self._adapter = adapter
        self.publisher_id = publisher_id or new_publisher_id()
        # Make the announcer first and destroy it last: if a subscriber finds the writer of
        # messages but no announcer, it takes this publisher for a plain one, which only sends
        # messages.
        self.announcer = Announcer(node, node.resolve_topic_name(topic))
        self.messages = MessageWriter(node, adapter, topic, qos, extras)
        self.topic: str = self.messages.topic
        self._key = bus_key(node, self.topic, adapter.ros_type)
        self._bus_publisher: BusPublisher[T] = BusPublisher(
            node.get_fully_qualified_name(),
            offered,
            adapter.deliver,
            adapter.release,
            adapter.custom_type,
            self.publisher_id,
        )
        if adapter.custom_type is Frame:
            self._bus_publisher.deliver = Frame.deliver  # type: ignore[assignment]
            self._bus_publisher.pool_of = _pool_of
            self._bus_publisher.header_of = _header_of
        self._stamps_publication = hasattr(adapter.custom_type, 'published_ns')
        self._shared_memory: SharedMemoryEnd | None = None
        self._published = 0
        self._allocations = 0
        self._closed = False
        self._at_end: Callable[[], object] = lambda: None
        BUS.add_publisher(self._key, self._bus_publisher)
        when_destroyed(self.announcer.writer, self.destroy)

    def serve(self, shared_memory: SharedMemoryEnd) -> None:
        """Pass frames to other processes by *shared_memory*, which this object owns and closes."""
        self._shared_memory = shared_memory

    def use(self, pool: BufferPool) -> None:
        """
        Publish a camera's frames from *pool* from now on.

        The call promises slots of *pool* to the subscriptions in this process, before other
        processes ask for slots.
        """
        self._bus_publisher.use(pool)

    def announce(
        self,
        *,
        width: int,
        height: int,
        formats: Sequence[str] = (),
        heap: str = '',
        **possible: Sequence[str],
    ) -> None:
        """
        Announce a camera's socket, image size and format to all current and later subscriptions.

        Call this after each allocation of buffers, so that consumers that could not use the
        earlier buffers try again. Call it without *formats* before the first allocation, so that
        consumers connect and send their needs.

        :param formats: ``drm-format`` strings, such as ``NV12``.
        :param heap: the name of the memory's allocator.
        :param possible: optional fields of :class:`Announcement`, such as ``possible_formats``.
        """
        socket = '' if self._shared_memory is None else str(self._shared_memory.path)
        self._allocations += bool(formats)
        optional: dict[str, Any] = {key: tuple(values) for key, values in possible.items()}
        self.announcer.announce(
            Announcement(
                self.publisher_id,
                host_id(),
                socket,
                width,
                height,
                tuple(formats),
                heap,
                self._allocations,
                **optional,
            )
        )

    @property
    def history(self) -> int:
        """How many of the newest published objects the publisher keeps for late subscriptions."""
        qos = self._bus_publisher.qos
        return (qos.depth or 0) if qos.transient_local else 0

    def tell_end(self, call: Callable[[], object]) -> None:
        """For cameras: set a function that is called once, when the publisher or its node ends."""
        self._at_end = call

    def judge_by(self, objection: Callable[[Consumer], str]) -> None:
        """
        Set the function that decides whether a consumer of this process can use a camera's frames.

        *objection* returns '' if the consumer can use them; else the reason, and the consumer gets
        messages. When the results of *objection* change, call ``BUS.rematch``.
        """
        self._bus_publisher.objection = objection

    def publish(self, item: T | Any) -> None:
        """
        Publish an object of the adapter's type, or a message of the ROS type.

        You still own a frame afterwards: release it. After :meth:`destroy` this does nothing.

        :raises FrameReleasedError: the frame was released before.
        """
        if self._closed:
            return
        self._published += 1
        if item.__class__ is not self._adapter.custom_type and isinstance(
            item, self._adapter.ros_type
        ):
            self._publish_message(item)
            return
        self._publish_direct(item)
        self.messages.write(item)

    def _publish_direct(self, item: Any) -> None:
        if self._stamps_publication:
            item.published_ns = time.monotonic_ns()
        # Send to other processes first: that path has the highest latency.
        if self._shared_memory is not None:
            self._shared_memory.publish(item)
        self._bus_publisher.publish(item)

    def _publish_message(self, message: Any) -> None:
        try:
            if (
                self._bus_publisher.matched
                or self._bus_publisher.qos.transient_local
                or self._shared_memory is not None
            ):
                item = self._adapter.to_custom(message)
                try:
                    self._publish_direct(item)
                finally:
                    self._adapter.release(item)
        finally:
            # Plain readers get the message even if it can't be converted to an object.
            self.messages.write_message(message)

    def statistics(self) -> PublisherStatistics:
        """Return the counters, see :class:`PublisherStatistics`; any thread may call this."""
        return PublisherStatistics(
            self._published,
            len(self._bus_publisher.served),
            self.messages.readers(),
            self.messages.conversions,
            self.messages.skipped,
            self.messages.errors,
            self.messages.turned_away,
            self.messages.withheld,
        )

    def in_process_peers(self) -> tuple[InProcessPeer, ...]:
        """Return names and counters of this process's subscriptions that match this publisher."""
        return tuple(map(self._peer, self._bus_publisher.matched))

    def _peer(self, subscription: BusSubscription[T]) -> InProcessPeer:
        publisher = self._bus_publisher
        granted = publisher.granted(subscription)
        return InProcessPeer(
            subscription.holder if granted is None else granted.holder,
            subscription.delivered,
            subscription.queue.dropped,
            subscription.refused,
            0 if granted is None else granted.number,
            subscription.held or 0,
            publisher.in_hand(subscription),
            publisher.without_slots(subscription),
        )

    def destroy(self) -> None:
        """Stop publishing. Idempotent. Frames that were delivered stay with their holders."""
        if self._closed:
            return
        self._closed = True
        BUS.remove_publisher(self._key, self._bus_publisher)
        self.announcer.fall_silent()
        if self._shared_memory is not None:
            self._shared_memory.close()
        self.messages.close()
        self.announcer.close()
        self._at_end()


if compiled is not None:
    compiled.join(AdaptedPublisher)
