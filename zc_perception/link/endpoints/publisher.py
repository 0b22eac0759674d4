"""The adapted publisher."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from rclpy.node import Node
from rclpy.qos import QoSProfile
from std_msgs.msg import String

from zc_perception.errors import ConfigError
from zc_perception.frame import Frame
from zc_perception.link.announcement import SUFFIX, Announcement, host_id, new_publisher_id
from zc_perception.link.announcement_files import remove_announcement, write_announcement
from zc_perception.link.bus import BUS, BusPublisher
from zc_perception.link.endpoints.message_writer import ExtraMessage, MessageWriter
from zc_perception.link.endpoints.qos import ANNOUNCEMENT_QOS, bus_key, link_qos
from zc_perception.link.type_adapter import TypeAdapter

T = TypeVar('T')


class SharedMemoryEnd(Protocol):
    """The producer's end of rung 2, for publishers of frames."""

    @property
    def path(self) -> Path:
        """The socket to which consumers connect."""

    def publish(self, frame: Frame) -> None:
        """Send to whoever is connected. Never blocks."""

    def close(self) -> None:
        """End all connections."""


@dataclass(frozen=True)
class PublisherStatistics:
    """Counters since start."""

    published: int
    in_process_subscriptions: int
    image_readers: int
    conversions: int
    conversions_skipped: int
    conversion_errors: int


@dataclass(frozen=True)
class InProcessPeer:
    """A subscription of this process.

    :param name: its holder's.
    :param sent: objects that were put into its queue.
    :param dropped: those of them that a newer one replaced there.
    :param refused: objects that its quota kept from it.
    """

    name: str
    sent: int
    dropped: int
    refused: int


class AdaptedPublisher(Generic[T]):
    """Publishes objects of the adapter's custom type to a topic whose type is the ROS type.

    Each object goes to the adapted subscriptions of this process as it is, to those of other processes on this host as the same memory
    (frames only), and is converted for plain readers, once, while there are any. Nobody is waited for.

    :param node: lives longer than this.
    :param adapter: how an object becomes a message.
    :param topic: relative or absolute; remaps apply.
    :param extras: further messages, such as a compressed picture.
    :raises ConfigError: keep-last with depth 0; leased objects with transient_local and keep-all, which would never come back.
    """

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
        offered = link_qos(qos)
        if adapter.leased and offered.transient_local and offered.depth is None:
            raise ConfigError(f"topic '{topic}': transient_local with keep-all would pin every frame for ever; use keep-last")
        self._node = node
        self._adapter = adapter
        self.publisher_id = publisher_id or new_publisher_id()
        # The announcer first, and last to go: whoever sees the other one alone takes this for a plain publisher.
        self._announcer = node.create_publisher(String, node.resolve_topic_name(topic) + SUFFIX, ANNOUNCEMENT_QOS)
        self._writer = MessageWriter(node, adapter, topic, qos, extras)
        self.topic: str = self._writer.topic
        self._key = bus_key(node, self.topic, adapter.ros_type)
        self._bus_publisher: BusPublisher[T] = BusPublisher(
            node.get_fully_qualified_name(), offered, adapter.deliver, adapter.release, adapter.custom_type, self.publisher_id
        )
        self._bus_publisher.wrote = self._writer.wrote
        if adapter.custom_type is Frame:
            self._bus_publisher.deliver = Frame.deliver  # type: ignore[assignment]
        self._stamps_publication = hasattr(adapter.custom_type, 'published_ns')
        self._shared_memory: SharedMemoryEnd | None = None
        self._published = 0
        self._closed = False
        BUS.add_publisher(self._key, self._bus_publisher)

    def serve(self, shared_memory: SharedMemoryEnd) -> None:
        """Offer rung 2 from now on; *shared_memory* is owned from here."""
        self._shared_memory = shared_memory

    def announce(self, *, width: int, height: int, formats: Sequence[str], heap: str) -> None:
        """Tell all present and future adapted subscriptions what is published here and where its memory can be had.

        :param formats: ``drm-format`` strings.
        """
        socket = '' if self._shared_memory is None else str(self._shared_memory.path)
        announcement = Announcement(self.publisher_id, host_id(), socket, width, height, tuple(formats), heap)
        self._announcer.publish(String(data=announcement.to_json()))
        if socket:
            write_announcement(announcement, self.topic, self._node.context.get_domain_id())

    def convert_by(self, to_ros: Callable[[T], Any]) -> None:
        """Make messages in another way from the next object on. Any thread."""
        self._writer.convert_by(to_ros)

    def offer(self, extras: Sequence[ExtraMessage[T]]) -> None:
        """Have these further messages from now on, in place of those before. Any thread."""
        self._writer.offer(extras)

    def image_readers(self) -> int:
        """Plain readers of the topic, in any process."""
        return self._writer.readers()

    def publish(self, item: T | Any) -> None:
        """Publish an object of the custom type, of which the caller keeps its lease, or a message of the ROS type.

        After :meth:`destroy` it does nothing.

        :raises FrameReleasedError: the frame was released.
        """
        if self._closed:
            return
        self._published += 1
        if item.__class__ is not self._adapter.custom_type and isinstance(item, self._adapter.ros_type):
            self._publish_message(item)
            return
        if self._stamps_publication:
            item.published_ns = time.monotonic_ns()
        # In the order of their haste: another process has the longest way.
        if self._shared_memory is not None:
            self._shared_memory.publish(item)
        self._bus_publisher.publish(item)
        self._writer.write(item)

    def _publish_direct(self, item: Any) -> None:
        if self._stamps_publication:
            item.published_ns = time.monotonic_ns()
        if self._shared_memory is not None:
            self._shared_memory.publish(item)
        self._bus_publisher.publish(item)

    def _publish_message(self, message: Any) -> None:
        try:
            if self._bus_publisher.matched or self._bus_publisher.qos.transient_local or self._shared_memory is not None:
                item = self._adapter.to_custom(message)
                try:
                    self._publish_direct(item)
                finally:
                    self._adapter.release(item)
        finally:
            # Plain readers get it even if it is none of the custom type's.
            self._writer.write_message(message)

    def statistics(self) -> PublisherStatistics:
        """Counters."""
        return PublisherStatistics(
            self._published,
            len(self._bus_publisher.matched),
            self._writer.readers(),
            self._writer.conversions,
            self._writer.skipped,
            self._writer.errors,
        )

    def in_process_peers(self) -> tuple[InProcessPeer, ...]:
        """Who gets objects as they are."""
        return tuple(InProcessPeer(s.holder, s.delivered, s.queue.dropped, s.refused) for s in self._bus_publisher.matched)

    def destroy(self) -> None:
        """Leave the bus, the sockets and the graph; objects that were delivered stay with their holders."""
        self._closed = True
        BUS.remove_publisher(self._key, self._bus_publisher)
        if self._shared_memory is not None:
            remove_announcement(self._shared_memory.path)
            self._shared_memory.close()
        self._writer.close()
        self._node.destroy_publisher(self._announcer)
