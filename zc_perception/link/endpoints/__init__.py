"""Adapted publisher and subscription: the only part of this room that knows rclpy.

A publisher hands the same FrameData to every adapted subscription of its process and converts for plain ``Image`` readers, once per
frame, only while one is matched, on a thread of its own: a viewer that is slow can't slow the camera down.

An adapted subscription holds no ``Image`` reader while its frames come in-process (that would make the publisher convert); it makes
one when only plain or foreign publishers are there, and drops it when it is no longer needed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from std_msgs.msg import String

from zc_perception.errors import ConfigError, ZcError
from zc_perception.frame import Frame
from zc_perception.frame_queue import FrameQueue
from zc_perception.link.announcement import SUFFIX, Announcement
from zc_perception.link.bus import BUS, BusKey, BusPublisher, BusSubscription, LinkQos
from zc_perception.link.rclpy_compat import refuses_guard_conditions
from zc_perception.link.type_adapter import TypeAdapter

IN_PROCESS = 'in_process'
ROS_MESSAGE = 'ros_message'
UNMATCHED = 'unmatched'
_RUNG_PERIOD_S = 0.5
_ANNOUNCEMENT_QOS = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)
# A reader keeps one announcement of each of many publishers.
_ANNOUNCEMENTS_QOS = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def link_qos(profile: QoSProfile) -> LinkQos:
    """The bus's view of a profile.

    :raises ConfigError: keep-last with depth 0, which could never hold a frame.
    """
    keep_all = profile.history == HistoryPolicy.KEEP_ALL
    if not keep_all and profile.depth < 1:
        raise ConfigError(f'QoS depth {profile.depth}: keep-last needs at least 1')
    return LinkQos(
        None if keep_all else profile.depth,
        profile.reliability != ReliabilityPolicy.BEST_EFFORT,
        profile.durability == DurabilityPolicy.TRANSIENT_LOCAL,
    )


def bus_key(node: Node, topic: str, ros_type: type[Any]) -> BusKey:
    """Where publishers and subscriptions of one topic meet."""
    return id(node.context), topic, f'{ros_type.__module__.split(".")[0]}/{ros_type.__name__}'


@dataclass(frozen=True)
class PublisherStatistics:
    """Counters since start."""

    published: int
    in_process_subscriptions: int
    image_readers: int
    conversions: int
    conversions_skipped: int
    conversion_errors: int


class AdaptedPublisher:
    """Publishes frames to a topic whose ROS type is the adapter's.

    :param node: lives longer than this.
    :param adapter: how a frame becomes a message.
    :param topic: relative or absolute; remaps apply.
    :raises ConfigError: transient_local, whose history would pin frames.
    """

    def __init__(self, node: Node, adapter: TypeAdapter[Frame], topic: str, qos: QoSProfile) -> None:
        if qos.durability == DurabilityPolicy.TRANSIENT_LOCAL:
            raise ConfigError(f"topic '{topic}': transient_local is not offered for frames, its history would pin them; use volatile")
        self._node = node
        self._adapter = adapter
        self._ros_publisher = node.create_publisher(adapter.ros_type, topic, qos)
        self.topic: str = self._ros_publisher.topic_name
        self._announcer = node.create_publisher(String, self.topic + SUFFIX, _ANNOUNCEMENT_QOS)
        self._key = bus_key(node, self.topic, adapter.ros_type)
        self._bus_publisher = BusPublisher(node.get_fully_qualified_name(), link_qos(qos))
        BUS.add_publisher(self._key, self._bus_publisher)
        self._queue = FrameQueue(1)
        self._converter: threading.Thread | None = None
        self._stop = threading.Event()
        self._published = 0
        self._conversions = 0
        self._conversion_errors = 0

    def announce(self, announcement: Announcement) -> None:
        """Say what is published here, to all present and future subscriptions."""
        self._announcer.publish(String(data=announcement.to_json()))

    def image_readers(self) -> int:
        """Plain readers of the topic, in any process."""
        return int(self._ros_publisher.get_subscription_count())

    def publish(self, frame: Frame) -> None:
        """Publish; the caller keeps its lease. Never waits for anybody.

        :raises FrameReleasedError: the frame was released.
        """
        frame.published_ns = time.monotonic_ns()
        self._published += 1
        self._bus_publisher.publish(frame)
        if self.image_readers():
            delivery = frame.deliver(self._bus_publisher.name + ':to_ros')
            if delivery is not None:
                self._start_converter()
                self._queue.put(delivery)

    def _start_converter(self) -> None:
        if self._converter is None:
            self._converter = threading.Thread(target=self._convert, name=f'to_ros {self.topic}', daemon=True)
            self._converter.start()

    def _convert(self) -> None:
        while not self._stop.is_set():
            frame = self._queue.get(0.5)
            if frame is None:
                continue
            with frame:
                try:
                    message = self._adapter.to_ros(frame)
                    self._conversions += 1
                    self._ros_publisher.publish(message)
                except Exception as error:
                    if self._stop.is_set():
                        return
                    self._conversion_errors += 1
                    self._node.get_logger().error(
                        f"'{self.topic}': a frame could not be published as a message: {error}", throttle_duration_sec=5.0
                    )

    def statistics(self) -> PublisherStatistics:
        """Counters."""
        return PublisherStatistics(
            self._published,
            len(self._bus_publisher.matched),
            self.image_readers(),
            self._conversions,
            self._queue.dropped,
            self._conversion_errors,
        )

    def destroy(self) -> None:
        """Leave the bus and the graph; frames that were delivered stay with their holders."""
        BUS.remove_publisher(self._key, self._bus_publisher)
        self._stop.set()
        self._queue.close()
        if self._converter is not None:
            self._converter.join(timeout=2.0)
        self._node.destroy_publisher(self._announcer)
        self._node.destroy_publisher(self._ros_publisher)


@dataclass(frozen=True)
class SubscriptionStatistics:
    """Counters since start, and the rung in use with its reason."""

    rung: str
    reason: str
    received: int
    dropped: int
    conversions: int
    conversion_errors: int


class AdaptedSubscription:
    """Receives frames by the best rung there is.

    :param callback: called with each frame on the node's executor, in *callback_group*; the frame is released when it returns, unless
        it called :meth:`Frame.share`. ``None``: the owner takes frames from :attr:`queue` on a thread of its own (the hot path).
    :param holder: name among the holders of leases, for diagnostics.
    """

    def __init__(
        self,
        node: Node,
        adapter: TypeAdapter[Frame],
        topic: str,
        qos: QoSProfile,
        *,
        callback: Callable[[Frame], None] | None = None,
        callback_group: CallbackGroup | None = None,
        holder: str | None = None,
    ) -> None:
        self._node = node
        self._adapter = adapter
        self._callback = callback
        self._group = callback_group or node.default_callback_group
        self._qos = qos
        self.topic: str = node.resolve_topic_name(topic)
        self._key = bus_key(node, self.topic, adapter.ros_type)
        self.queue = FrameQueue(link_qos(qos).depth)
        self._guard = None if callback is None else node.create_guard_condition(self._drain, self._group)
        self._drain_lock = threading.Lock()
        self._rung_lock = threading.Lock()
        self._bus_subscription = BusSubscription(
            holder or node.get_fully_qualified_name(), link_qos(qos), self.queue, None if callback is None else self._wake
        )
        self._lingering: list[Frame] = []
        self._ros_subscription: Any = None
        self._announcement: Announcement | None = None
        self._conversions = 0
        self._conversion_errors = 0
        self._rung, self._reason = UNMATCHED, 'no publisher yet'
        BUS.add_subscription(self._key, self._bus_subscription)
        self._reader = node.create_subscription(String, self.topic + SUFFIX, self._on_announcement, _ANNOUNCEMENTS_QOS)
        self._timer = node.create_timer(_RUNG_PERIOD_S, self.update_rung)

    def _on_announcement(self, message: String) -> None:
        announcement = Announcement.from_json(message.data)
        if announcement is not None:
            self._announcement = announcement
            self.update_rung()

    def update_rung(self) -> None:
        """Look at who publishes now and move to the best rung. Called by a timer, and by an owner that doesn't want to wait for it."""
        with self._rung_lock:
            self._choose_rung()

    def _choose_rung(self) -> None:
        local = BUS.publishers(self._key)
        matched = [p for p in local if self._bus_subscription in p.matched]
        foreign = self._node.count_publishers(self.topic) - len(local)
        if matched:
            others = f'; {foreign} other publisher(s) on this topic are ignored' if foreign > 0 else ''
            self._move_to(IN_PROCESS, f'{matched[0].name} is in this process{others}')
        elif local and foreign <= 0:
            self._move_to(
                UNMATCHED, f'QoS of {local[0].name} is incompatible with this subscription: make both reliable or both best effort'
            )
        elif foreign > 0:
            announced = 'a plain publisher' if self._announcement is None else f'announced with heap {self._announcement.heap}'
            self._move_to(
                ROS_MESSAGE, f'the publisher is in another process ({announced}): start both in one process for the copy-free link'
            )
        else:
            self._move_to(UNMATCHED, 'no publisher')

    def _move_to(self, rung: str, reason: str) -> None:
        if rung == ROS_MESSAGE and self._ros_subscription is None:
            self._ros_subscription = self._node.create_subscription(
                self._adapter.ros_type, self.topic, self._on_message, self._qos, callback_group=self._group
            )
        elif rung != ROS_MESSAGE and self._ros_subscription is not None:
            self._node.destroy_subscription(self._ros_subscription)
            self._ros_subscription = None
        if rung != self._rung:
            self._node.get_logger().info(f"'{self.topic}': link is {rung}: {reason}")
        self._rung, self._reason = rung, reason

    def _on_message(self, message: Any) -> None:
        try:
            frame = self._adapter.to_custom(message)
        except ZcError as error:
            self._conversion_errors += 1
            self._node.get_logger().error(f"'{self.topic}': a message could not be taken: {error}", throttle_duration_sec=5.0)
            return
        self._conversions += 1
        frame.published_ns = time.monotonic_ns()
        self.queue.put(frame)
        if self._callback is not None:
            self._drain()

    def _wake(self) -> None:
        executor = self._node.executor
        if executor is not None and refuses_guard_conditions(executor):
            executor.create_task(self._drain)
        elif self._guard is not None:
            self._guard.trigger()

    def _drain(self) -> None:
        """Run the callback for each queued frame, one after the other on any kind of executor."""
        with self._drain_lock:
            self._release_lingering()
            while (frame := self.queue.get()) is not None:
                frame.lend()
                try:
                    if self._callback is not None:
                        self._callback(frame)
                finally:
                    if frame.borrowed and not frame.released:
                        self._end(frame)
                del frame

    def _end(self, frame: Frame) -> None:
        try:
            frame.release()
        except BufferError as error:
            self._lingering.append(frame)
            self._node.get_logger().warning(f"'{self.topic}': {error}", throttle_duration_sec=5.0)

    def _release_lingering(self) -> None:
        for frame in self._lingering[:]:
            try:
                frame.release()
            except BufferError:
                continue
            self._lingering.remove(frame)

    def statistics(self) -> SubscriptionStatistics:
        """Counters."""
        return SubscriptionStatistics(
            self._rung,
            self._reason,
            self._bus_subscription.delivered + self._conversions,
            self.queue.dropped,
            self._conversions,
            self._conversion_errors,
        )

    def destroy(self) -> None:
        """Leave the bus and the graph, and release what is queued."""
        BUS.remove_subscription(self._key, self._bus_subscription)
        self._node.destroy_timer(self._timer)
        self._node.destroy_subscription(self._reader)
        if self._ros_subscription is not None:
            self._node.destroy_subscription(self._ros_subscription)
            self._ros_subscription = None
        if self._guard is not None:
            self._node.destroy_guard_condition(self._guard)
            self._guard = None
        self.queue.close()
        with self._drain_lock:
            self._release_lingering()
